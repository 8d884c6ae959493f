// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of Apache Arrow as pairs for a load, through Arrow's C stream interface: no Arrow library is linked.
//!
//! - **Flow** a stream exported by pyarrow, pandas or arrow-rs' `FFI_ArrowArrayStream` ─▶ [`Rows::new`]: columns by name ─▶ an
//!   iterator of pairs ─▶ `load`
//! - **Layout** `ArrowSchema`, `ArrowArray`, `ArrowArrayStream` as the interface defines them. Formats read: whole numbers of any
//!   width, floats of 32 and 64 bits, dates and times, strings, bytes, bytes of a fixed width. Values: each number becomes 8 bytes
//!   (integers extended, floats as f64), bytes are copied; several columns are concatenated
//! - **Order** batches are requested one at a time, and each is released before the next
//! - **Owner** [`Rows`] owns the stream from `new` on, and releases it, its schema and its batch exactly once
//! - **Not here** dictionaries, nested columns, nulls: refused with the column's name
//!
//! Source: Apache Arrow, "The Arrow C data interface" and "The Arrow C stream interface".

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use super::load::OwnedKey;
use crate::client::{ClientError, Result};

/// `struct ArrowSchema`.
#[repr(C)]
#[derive(Debug)]
pub struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
#[derive(Debug)]
pub struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private_data: *mut c_void,
}

/// `struct ArrowArrayStream`.
#[repr(C)]
#[derive(Debug)]
pub struct Stream {
    get_schema: Option<unsafe extern "C" fn(*mut Stream, *mut Schema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Stream, *mut Array) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Stream)>,
    private_data: *mut c_void,
}

const _: () = assert!(size_of::<Schema>() == 72 && size_of::<Array>() == 80 && size_of::<Stream>() == 40);

impl Schema {
    const EMPTY: Schema = Schema {
        format: null_mut(),
        name: null_mut(),
        metadata: null_mut(),
        flags: 0,
        n_children: 0,
        children: null_mut(),
        dictionary: null_mut(),
        release: None,
        private_data: null_mut(),
    };
}

impl Array {
    const EMPTY: Array = Array {
        length: 0,
        null_count: 0,
        offset: 0,
        n_buffers: 0,
        n_children: 0,
        buffers: null_mut(),
        children: null_mut(),
        dictionary: null_mut(),
        release: None,
        private_data: null_mut(),
    };
}

impl Drop for Schema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is set, so the structure was filled by the producer and was not released; the callback is
            // the producer's own.
            unsafe { release(self) };
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is set, so the array was filled by the producer and was not released; the callback is the
            // producer's own.
            unsafe { release(self) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is set, so the stream was filled by the producer and was not released; the callback is the
            // producer's own.
            unsafe { release(self) };
        }
    }
}

/// Memory layout of a column's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whole numbers: the bytes of each, and true if they are signed.
    Whole(usize, bool),
    /// Floats: the bytes of each.
    Float(usize),
    /// Strings or bytes of any length: the bytes of each offset.
    Bytes(usize),
    /// Bytes of a fixed length: the bytes of each element.
    Fixed(usize),
}

impl Kind {
    fn parse(format: &str) -> Option<Kind> {
        Some(match format {
            "c" => Kind::Whole(1, true),
            "C" => Kind::Whole(1, false),
            "s" => Kind::Whole(2, true),
            "S" => Kind::Whole(2, false),
            "i" | "tdD" | "tts" | "ttm" => Kind::Whole(4, true),
            "I" => Kind::Whole(4, false),
            "l" | "tdm" | "ttu" | "ttn" => Kind::Whole(8, true),
            "L" => Kind::Whole(8, false),
            "f" => Kind::Float(4),
            "g" => Kind::Float(8),
            "u" | "z" => Kind::Bytes(4),
            "U" | "Z" => Kind::Bytes(8),
            _ if format.starts_with("ts") || format.starts_with("tD") => Kind::Whole(8, true),
            _ => Kind::Fixed(format.strip_prefix("w:")?.parse().ok().filter(|&bytes| bytes > 0)?),
        })
    }

    /// Returns the bytes of an element in a value; `None` if the elements differ in length.
    fn value_bytes(self) -> Option<usize> {
        match self {
            Kind::Whole(..) | Kind::Float(_) => Some(8),
            Kind::Fixed(bytes) => Some(bytes),
            Kind::Bytes(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    index: usize,
    kind: Kind,
}

/// Type of a value's column, for code that unpacks values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A signed whole number, 8 bytes.
    Signed,
    /// An unsigned whole number, 8 bytes.
    Unsigned,
    /// A float, 8 bytes.
    Float,
    /// Bytes of this fixed length.
    Fixed(usize),
    /// Bytes of any length; then it is the only column.
    Bytes,
}

/// Iterator over the pairs in a stream's batches.
#[derive(Debug)]
pub struct Rows {
    // Declared before `stream`, so that the batch is released first.
    batch: Array,
    stream: Box<Stream>,
    key: Column,
    values: Vec<Column>,
    columns: usize,
    next: i64,
    taken: u64,
    ended: bool,
}

// SAFETY: the interface lets a stream and its batches be used from any thread, one at a time; all uses need `&mut Rows`.
unsafe impl Send for Rows {}

fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the interface's strings end with a zero byte and live as long as the structure that holds them, which the
    // caller has.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn wrong(line: u64, reason: impl Into<String>) -> ClientError {
    ClientError::Input { line, reason: reason.into() }
}

impl Rows {
    /// Takes ownership of the stream. `key` and `values` name columns; without `values` all other columns are taken, in
    /// their order.
    ///
    /// # Errors
    /// [`ClientError::Input`]: a column does not exist, or has a type that is not read; an error of the stream.
    ///
    /// # Safety
    /// `stream` points to an initialized stream of the C stream interface whose callbacks follow the interface. It is moved
    /// from: its `release` is null afterwards, also on an error.
    pub unsafe fn new(stream: *mut Stream, key: &str, values: Option<&[&str]>) -> Result<Rows> {
        // SAFETY: the caller promises that `stream` points to an initialized stream; the interface defines a move as a copy
        // that leaves a null `release` behind.
        let mut stream = Box::new(unsafe {
            let moved = stream.read();
            (&raw mut (*stream).release).write(None);
            moved
        });
        let mut schema = Schema::EMPTY;
        let get = stream.get_schema.ok_or_else(|| wrong(0, "the Arrow stream was released before"))?;
        // SAFETY: the callback is the stream's own, and `schema` is a place for its result.
        let failed = unsafe { get(&raw mut *stream, &raw mut schema) };
        if failed != 0 {
            return Err(refused(&mut stream, failed));
        }
        if text(schema.format) != "+s" {
            return Err(wrong(0, "the Arrow stream has no columns: give a table or batches, not an array"));
        }
        let count = usize::try_from(schema.n_children).unwrap_or(0);
        let mut columns = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: `index` is below `n_children`, and each child is a schema that lives as long as its parent.
            let child = unsafe { &**schema.children.add(index) };
            let format =
                if child.dictionary.is_null() { text(child.format) } else { "a dictionary".to_owned() };
            columns.push((text(child.name), format));
        }
        let column = |name: &str| -> Result<Column> {
            let index = columns.iter().position(|(have, _)| have == name).ok_or_else(|| {
                let have: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                wrong(0, format!("there is no column {name:?}: the table has {}", have.join(", ")))
            })?;
            let kind = Kind::parse(&columns[index].1).ok_or_else(|| {
                let format = &columns[index].1;
                wrong(
                    0,
                    format!(
                        "column {name:?} is of Arrow's type {format:?}: cast it to numbers, strings or bytes"
                    ),
                )
            })?;
            Ok(Column { name: name.to_owned(), index, kind })
        };
        let key = column(key)?;
        let values = match values {
            Some(names) => names.iter().map(|name| column(name)).collect::<Result<Vec<_>>>()?,
            None => columns
                .iter()
                .filter(|(name, _)| *name != key.name)
                .map(|(name, _)| column(name))
                .collect::<Result<Vec<_>>>()?,
        };
        if values.is_empty() {
            return Err(wrong(0, "there is no column for values"));
        }
        if let Some(any) = values.iter().find(|value| value.kind.value_bytes().is_none())
            && values.len() > 1
        {
            let reason =
                format!("column {:?} has values of any length: it cannot be one of several", any.name);
            return Err(wrong(0, reason));
        }
        Ok(Rows { batch: Array::EMPTY, stream, key, values, columns: count, next: 0, taken: 0, ended: false })
    }

    /// Returns the bytes of every value; `None` if values differ in length.
    #[must_use]
    pub fn value_bytes(&self) -> Option<usize> {
        self.values.iter().map(|column| column.kind.value_bytes()).sum()
    }

    /// Returns the name and the content of each column that values consist of.
    #[must_use]
    pub fn contents(&self) -> Vec<(&str, Content)> {
        let content = |kind| match kind {
            Kind::Whole(_, true) => Content::Signed,
            Kind::Whole(_, false) => Content::Unsigned,
            Kind::Float(_) => Content::Float,
            Kind::Fixed(bytes) => Content::Fixed(bytes),
            Kind::Bytes(_) => Content::Bytes,
        };
        self.values.iter().map(|column| (column.name.as_str(), content(column.kind))).collect()
    }

    /// Returns the same rows; a key that is not a number is an error.
    pub fn numbered(self) -> impl Iterator<Item = Result<(u64, Vec<u8>)>> {
        self.enumerate().map(|(row, pair)| match pair? {
            (OwnedKey::Number(key), value) => Ok((key, value)),
            (OwnedKey::Bytes(_), _) => {
                Err(wrong(row as u64 + 1, "the key is of bytes, and numbers are wanted"))
            }
        })
    }

    /// Advances to the next batch; returns false if there is none.
    fn advance(&mut self) -> Result<bool> {
        self.batch = Array::EMPTY;
        self.next = 0;
        let get = self.stream.get_next.ok_or_else(|| wrong(0, "the Arrow stream was released before"))?;
        // SAFETY: the callback is the stream's own, and `batch` is empty, a place for its result.
        let failed = unsafe { get(&raw mut *self.stream, &raw mut self.batch) };
        if failed != 0 {
            return Err(refused(&mut self.stream, failed));
        }
        if self.batch.release.is_none() {
            return Ok(false);
        }
        if self.batch.n_children != self.columns as i64 || self.batch.length < 0 {
            return Err(wrong(self.taken + 1, "an Arrow batch has other columns than its schema"));
        }
        Ok(true)
    }

    fn element(&self, column: &Column) -> Result<Element<'_>> {
        let line = self.taken + 1;
        // SAFETY: `advance` has checked that the batch has as many children as the schema, in which `column.index` is valid;
        // a child lives as long as its batch.
        let array = unsafe { &**self.batch.children.add(column.index) };
        let (row, length) = (self.next + self.batch.offset, array.length);
        let buffers = if matches!(column.kind, Kind::Bytes(_)) { 3 } else { 2 };
        if !(0..length).contains(&row) || array.n_buffers != buffers || array.offset < 0 {
            return Err(wrong(line, format!("column {:?} of an Arrow batch is too short", column.name)));
        }
        let at = usize::try_from(array.offset + row).unwrap_or(usize::MAX);
        // SAFETY: the array has `n_buffers` buffers, which was checked just above. The interface defines their sizes for
        // `length` elements behind `offset`, and `at` is one of those.
        unsafe {
            let buffer = |index: usize| (*array.buffers.add(index)).cast::<u8>();
            let valid = buffer(0);
            if array.null_count != 0 && !valid.is_null() && *valid.add(at / 8) >> (at % 8) & 1 == 0 {
                let reason = format!("column {:?} is null: fill or drop such rows first", column.name);
                return Err(wrong(line, reason));
            }
            let copied = |from: *const u8, bytes: usize| {
                let mut number = [0; 8];
                from.copy_to_nonoverlapping(number.as_mut_ptr(), bytes);
                u64::from_le_bytes(number)
            };
            Ok(match column.kind {
                Kind::Whole(bytes, signed) => {
                    let number = copied(buffer(1).add(at * bytes), bytes);
                    let shift = 64 - 8 * bytes as u32;
                    if signed {
                        Element::Signed((number << shift) as i64 >> shift)
                    } else {
                        Element::Unsigned(number)
                    }
                }
                Kind::Float(bytes) => {
                    let bits = copied(buffer(1).add(at * bytes), bytes);
                    Element::Float(if bytes == 4 {
                        f32::from_bits(bits as u32).into()
                    } else {
                        f64::from_bits(bits)
                    })
                }
                Kind::Fixed(bytes) => {
                    Element::Bytes(std::slice::from_raw_parts(buffer(1).add(at * bytes), bytes))
                }
                Kind::Bytes(bytes) => {
                    let (first, end) = (
                        copied(buffer(1).add(at * bytes), bytes),
                        copied(buffer(1).add((at + 1) * bytes), bytes),
                    );
                    let length = end.checked_sub(first).filter(|_| end <= i64::MAX as u64);
                    let length = length.ok_or_else(|| wrong(line, "an Arrow batch whose offsets descend"))?;
                    // A column of empty strings may have no buffer.
                    let data = if length == 0 {
                        &[][..]
                    } else {
                        std::slice::from_raw_parts(buffer(2).add(first as usize), length as usize)
                    };
                    Element::Bytes(data)
                }
            })
        }
    }

    fn pair(&self) -> Result<(OwnedKey, Vec<u8>)> {
        let line = self.taken + 1;
        let key = match self.element(&self.key)? {
            Element::Unsigned(number) => OwnedKey::Number(number),
            Element::Signed(number) => OwnedKey::Number(u64::try_from(number).map_err(|_| {
                wrong(line, format!("key {number} is less than 0: keys are numbers from 0 on"))
            })?),
            Element::Float(_) => return Err(wrong(line, "the key is a float: cast it to whole numbers")),
            Element::Bytes(bytes) => OwnedKey::Bytes(bytes.to_vec()),
        };
        let mut value = Vec::new();
        for column in &self.values {
            match self.element(column)? {
                Element::Unsigned(number) => value.extend_from_slice(&number.to_le_bytes()),
                Element::Signed(number) => value.extend_from_slice(&number.to_le_bytes()),
                Element::Float(number) => value.extend_from_slice(&number.to_le_bytes()),
                Element::Bytes(bytes) => value.extend_from_slice(bytes),
            }
        }
        Ok((key, value))
    }
}

enum Element<'b> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bytes(&'b [u8]),
}

fn refused(stream: &mut Stream, failed: c_int) -> ClientError {
    let said = stream.get_last_error.map(|say| {
        // SAFETY: the callback is the stream's own, called after a failure; its text lives until the next call.
        text(unsafe { say(stream) })
    });
    wrong(0, format!("the Arrow stream failed ({failed}): {}", said.unwrap_or_default()))
}

impl Iterator for Rows {
    type Item = Result<(OwnedKey, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            if self.next < self.batch.length {
                let pair = self.pair();
                self.next += 1;
                self.taken += 1;
                self.ended = pair.is_err();
                return Some(pair);
            }
            match self.advance() {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in batches, as a producer exports it: a column `k` of u64 and a column `v` of text.
    struct Table {
        batches: Vec<(Vec<u64>, Vec<&'static str>)>,
    }

    /// Memory of a batch's buffers.
    struct Kept {
        keys: Vec<u64>,
        offsets: Vec<i32>,
        data: Vec<u8>,
        buffers: [Vec<*const c_void>; 2],
        children: [Array; 2],
        pointers: Vec<*mut Array>,
        struct_buffers: Vec<*const c_void>,
    }

    unsafe extern "C" fn schema(_: *mut Stream, to: *mut Schema) -> c_int {
        let child = |name: &'static CStr, format: &'static CStr| {
            let schema =
                Schema { format: format.as_ptr(), name: name.as_ptr(), release: Some(gone), ..Schema::EMPTY };
            Box::into_raw(Box::new(schema))
        };
        unsafe extern "C" fn gone(schema: *mut Schema) {
            // SAFETY: `schema` is the structure that is being released, which the callback's caller owns.
            unsafe { (*schema).release = None };
        }
        unsafe extern "C" fn all_gone(schema: *mut Schema) {
            // SAFETY: the schema was made below, with two children in a vector of capacity 2.
            unsafe {
                let children = Vec::from_raw_parts((*schema).children, 2, 2);
                for child in children {
                    drop(Box::from_raw(child));
                }
                (*schema).release = None;
            }
        }
        let mut children = vec![child(c"k", c"L"), child(c"v", c"u")];
        let made = Schema {
            format: c"+s".as_ptr(),
            n_children: 2,
            children: children.as_mut_ptr(),
            release: Some(all_gone),
            ..Schema::EMPTY
        };
        std::mem::forget(children);
        // SAFETY: `to` is a place for one schema, which the caller of the callback has.
        unsafe { to.write(made) };
        0
    }

    unsafe extern "C" fn batch_gone(array: *mut Array) {
        // SAFETY: the array was made in `next`, which leaked this box into `private_data`.
        unsafe {
            drop(Box::from_raw((*array).private_data.cast::<Kept>()));
            (*array).release = None;
        }
    }

    unsafe extern "C" fn next(stream: *mut Stream, to: *mut Array) -> c_int {
        // SAFETY: the stream was made in `stream`, which leaked this box into `private_data`.
        let table = unsafe { &mut *(*stream).private_data.cast::<Table>() };
        let Some((keys, texts)) = table.batches.pop() else {
            // SAFETY: `to` is a place for one array, which the caller of the callback has.
            unsafe { to.write(Array::EMPTY) };
            return 0;
        };
        let mut kept = Box::new(Kept {
            offsets: std::iter::once(0)
                .chain(texts.iter().scan(0, |end, text| {
                    *end += text.len() as i32;
                    Some(*end)
                }))
                .collect(),
            data: texts.concat().into_bytes(),
            keys,
            buffers: [Vec::new(), Vec::new()],
            children: [Array::EMPTY, Array::EMPTY],
            pointers: Vec::new(),
            struct_buffers: vec![null_mut()],
        });
        let length = kept.keys.len() as i64;
        kept.buffers[0] = vec![null_mut(), kept.keys.as_ptr().cast()];
        kept.buffers[1] = vec![null_mut(), kept.offsets.as_ptr().cast(), kept.data.as_ptr().cast()];
        for index in 0..2 {
            let (buffers, many) = (kept.buffers[index].as_mut_ptr(), kept.buffers[index].len() as i64);
            kept.children[index] = Array { length, n_buffers: many, buffers, ..Array::EMPTY };
        }
        kept.pointers = kept.children.iter_mut().map(|child| &raw mut *child).collect();
        let array = Array {
            length,
            n_buffers: 1,
            n_children: 2,
            buffers: kept.struct_buffers.as_mut_ptr(),
            children: kept.pointers.as_mut_ptr(),
            release: Some(batch_gone),
            private_data: Box::into_raw(kept).cast(),
            ..Array::EMPTY
        };
        // SAFETY: `to` is a place for one array, which the caller of the callback has.
        unsafe { to.write(array) };
        0
    }

    unsafe extern "C" fn stream_gone(stream: *mut Stream) {
        // SAFETY: the stream was made in `stream`, which leaked this box into `private_data`.
        unsafe {
            drop(Box::from_raw((*stream).private_data.cast::<Table>()));
            (*stream).release = None;
        }
    }

    fn stream(batches: Vec<(Vec<u64>, Vec<&'static str>)>) -> Stream {
        Stream {
            get_schema: Some(schema),
            get_next: Some(next),
            get_last_error: None,
            release: Some(stream_gone),
            private_data: Box::into_raw(Box::new(Table { batches })).cast(),
        }
    }

    #[test]
    fn rows_come_batch_by_batch_and_the_stream_is_taken_over() {
        let mut made =
            stream(vec![(vec![7], vec!["seven"]), (vec![], vec![]), (vec![1, 2], vec!["one", ""])]);
        // SAFETY: the stream was made just now, its callbacks follow the interface, and nobody else has it.
        let rows = unsafe { Rows::new(&raw mut made, "k", None) }.expect("columns");
        assert!(made.release.is_none(), "moved from");
        assert_eq!(rows.contents(), [("v", Content::Bytes)]);
        let pairs: Vec<_> = rows.numbered().collect::<Result<_>>().expect("rows");
        assert_eq!(pairs, [(1, b"one".to_vec()), (2, vec![]), (7, b"seven".to_vec())]);
    }

    #[test]
    fn columns_that_are_not_there_are_named() {
        let mut made = stream(vec![]);
        // SAFETY: the stream was made just now, its callbacks follow the interface, and nobody else has it.
        let error = unsafe { Rows::new(&raw mut made, "key", None) }.expect_err("no such column");
        assert!(error.to_string().contains("\"key\": the table has k, v"), "{error}");
        assert!(made.release.is_none(), "released with the error");
        let mut keyed = stream(vec![(vec![1], vec!["one"])]);
        // SAFETY: the stream was made just now, its callbacks follow the interface, and nobody else has it.
        let rows = unsafe { Rows::new(&raw mut keyed, "v", Some(&["k"])) }.expect("columns");
        assert_eq!(rows.value_bytes(), Some(8));
        assert!(rows.numbered().next().expect("a row").is_err(), "keys of bytes");
    }
}
