// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of a pool, decoded by what the catalog says of their types; those of Python and C by what the pool's own tables say (`foreign`).
//!
//! - **Flow** snapshot (`check`) ─▶ slab by slab ─▶ each object in use ─▶ [`Value`] ─▶ the caller, which may stop it
//! - **Rule** the file is not trusted: a type that does not fit its slot is shown as bytes
//! - **Not here** text for people and JSON: [`Value`] has the first, the command line makes the second

mod foreign;
mod python;

use std::fmt;

use crate::catalog::Catalog;
use crate::check::Files;
use crate::check::directory;
use crate::check::directory_words;
use crate::check::foreign::Foreign;
use crate::check::objects::{Heap, Place};
use crate::check::owned::Audit;
use crate::check::snapshot::Snapshot;
use crate::check::types::{Kind, Types};
use crate::error::{Error, Result};
use crate::persist::Persist;
use crate::raw::{ForeignRoot, root as foreign_root};

/// Content of a field or an object.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// u8 to u128.
    Unsigned(u128),
    /// i8 to i128.
    Signed(i128),
    /// A value of type f32.
    Float(f32),
    /// A value of type f64.
    Double(f64),
    /// A pointer; its type's name and its value.
    Pointer {
        /// The type's name.
        name: String,
        /// Bytes from the start of the heap; 0: null.
        offset: u64,
    },
    /// An array in an object of its own.
    Slice {
        /// The elements' type.
        name: String,
        /// Bytes from the start of the heap to the first element.
        offset: u64,
        /// How many elements.
        elements: u64,
        /// The first ones; none when it leads nowhere.
        first: Vec<Value>,
    },
    /// An array in the value itself, by element.
    Array(Vec<Value>),
    /// Fields by name.
    Struct(Vec<(String, Value)>),
    /// Bytes that may be text, or whose meaning is not known.
    Bytes(Vec<u8>),
    /// None of Python.
    Nothing,
    /// True or false.
    Truth(bool),
    /// A str of Python.
    Text(String),
    /// A dict of Python in the value itself.
    Map {
        /// The first pairs.
        pairs: Vec<(Value, Value)>,
        /// Number of those that are not shown.
        more: u64,
    },
    /// Values of a kind that has a name: a tuple, a set, a number of NumPy.
    Tagged {
        /// Name of the kind.
        name: String,
        /// The first elements.
        values: Vec<Value>,
    },
    /// Elements or bytes that are not shown: their number.
    More(u64),
}

/// An object in use.
#[derive(Clone, PartialEq, Debug)]
pub struct Object {
    /// Its place in the heap.
    pub offset: u64,
    /// The section that owns it.
    pub section: u16,
    /// Its type's tag.
    pub tag: u32,
    /// Its type's name; an array's is in brackets. Of Python: `dict`, `dict entry`, `dict segment` or `array`; of C: the described type.
    pub name: String,
    /// Bytes of its slot or run. An array may be shorter: its length is where its pointer is.
    pub room: u64,
    /// Its content, by the fields that the catalog names.
    pub value: Value,
}

/// Selects objects; one that names nothing selects all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only objects of this type; an array's name is in brackets.
    pub name: Option<String>,
    /// Only the object that holds this byte of the heap.
    pub offset: Option<u64>,
}

/// Elements of an array, and bytes, that are shown.
const ELEMENTS: u64 = 64;
const BYTES: usize = 256;

/// Calls `each` for the objects that the filter lets through, by their place, until it returns false.
///
/// # Errors
///
/// As [`crate::check::check`]; [`Error::Corrupt`] when the heap cannot be read; [`Error::Argument`] for a type that is not there.
pub fn dump(files: impl Files, filter: &Filter, mut each: impl FnMut(Object) -> bool) -> Result<()> {
    let mut snapshot = Snapshot::open(&files)?;
    let (header, _) = snapshot.sound()?;
    let catalog = Catalog::read(&snapshot.medium)?;
    let types = Types::new(catalog.records());
    let marked = directory::marked(&snapshot, &header)?;
    let words = directory_words(&snapshot, &header)?;
    let (directory, _) = directory::judge(&words, &marked, &header, &types);
    let (heap, _) = Heap::new(&snapshot, directory, &types)?;
    let audit = Audit::new(&heap, &header)?;
    let reading = Reading { heap: &heap, foreign: Foreign::read(&audit), audit: &audit };
    if let Some(name) = &filter.name {
        let mut names: Vec<String> = catalog.records().iter().map(|record| record.name.clone()).collect();
        names.dedup();
        names.extend(reading.foreign.iter().flat_map(Foreign::type_names));
        if !names.contains(name) {
            let what = format!("no type {name} in this pool; it has: {}", names.join(", "));
            return Err(Error::Argument { what });
        }
    }
    let mut wanted = |place: &Place| {
        // The catalog's name holds for objects of Python and C, too.
        let all = filter.name.as_ref().is_none_or(|name| types.name(place.tag) == *name);
        if !all && !reading.is(place, filter.name.as_deref().unwrap_or_default())? {
            return Ok(true);
        }
        Ok::<bool, Error>(each(reading.object(place)?))
    };
    if let Some(offset) = filter.offset {
        let place = heap.place(offset).filter(|place| place.used).ok_or_else(|| Error::Argument {
            what: format!("no object in use at {offset:#x} of the heap"),
        })?;
        return wanted(&place).map(drop);
    }
    for place in heap.in_use() {
        if !wanted(&place)? {
            break;
        }
    }
    Ok(())
}

/// A heap whose objects are read.
struct Reading<'r, 'h> {
    heap: &'r Heap<'h>,
    audit: &'r Audit<'h>,
    /// Of a pool of Python or C.
    foreign: Option<Foreign>,
}

impl Reading<'_, '_> {
    /// Returns true if an object of Python or C is of a type of this name.
    fn is(&self, place: &Place, name: &str) -> Result<bool> {
        let Some(foreign) = &self.foreign else { return Ok(false) };
        Ok(foreign.head(self.audit, place)?.is_some_and(|head| foreign.name_of(head.id) == name))
    }

    fn object(&self, place: &Place) -> Result<Object> {
        let mut object = object(self.heap, place)?;
        if let Some(foreign) = &self.foreign {
            if place.tag == ForeignRoot::TAG
                && let Ok(root) = foreign_root(self.audit)
            {
                object.value = foreign::root(&root, foreign);
            } else if let Some(head) = foreign.head(self.audit, place)? {
                (object.name, object.value) = foreign::describe(foreign, self.audit, place, head)?;
            }
        }
        Ok(object)
    }
}

fn object(heap: &Heap<'_>, place: &Place) -> Result<Object> {
    let known = heap.types.get(place.tag);
    let value = match known {
        Some(known) if known.slice && known.bytes > 0 => {
            let count = place.room / known.bytes;
            elements(heap, &known.kind, place.start, known.bytes, count)?
        }
        Some(known) if known.bytes <= place.room => {
            let mut bytes = vec![0; known.bytes as usize];
            heap.snapshot.heap(place.start, &mut bytes)?;
            value(heap, &known.kind, &bytes)
        }
        _ => {
            let mut bytes = vec![0; place.room.min(BYTES as u64) as usize];
            heap.snapshot.heap(place.start, &mut bytes)?;
            Value::Bytes(bytes)
        }
    };
    Ok(Object {
        offset: place.start,
        section: place.section,
        tag: place.tag,
        name: heap.types.name(place.tag),
        room: place.room,
        value,
    })
}

/// The first elements of an array at a place.
fn elements(heap: &Heap<'_>, kind: &Kind, start: u64, each: u64, count: u64) -> Result<Value> {
    let bytes_only = *kind == Kind::Number("u8") || (*kind == Kind::Bytes && each == 1);
    let shown = count.min(if bytes_only { BYTES as u64 } else { ELEMENTS });
    let mut bytes = vec![0; (shown * each).min(1 << 20) as usize];
    heap.snapshot.heap(start, &mut bytes)?;
    if bytes_only {
        return Ok(Value::Bytes(bytes));
    }
    let mut values: Vec<Value> =
        bytes.chunks_exact(each as usize).map(|one| value(heap, kind, one)).collect();
    if (values.len() as u64) < count {
        values.push(Value::More(count - values.len() as u64));
    }
    Ok(Value::Array(values))
}

fn number(name: &str, bytes: &[u8]) -> Value {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u128::from_le_bytes(wide);
    let unused = 128 - bytes.len() as u32 * 8;
    match name {
        "f32" => Value::Float(f32::from_bits(unsigned as u32)),
        "f64" => Value::Double(f64::from_bits(unsigned as u64)),
        _ if name.starts_with('i') => Value::Signed((unsigned << unused) as i128 >> unused),
        _ => Value::Unsigned(unsigned),
    }
}

fn value(heap: &Heap<'_>, kind: &Kind, bytes: &[u8]) -> Value {
    let word = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
    };
    match kind {
        Kind::Number(name) => number(name, bytes),
        Kind::Pointer { name, .. } => Value::Pointer { name: name.clone(), offset: word(0) },
        Kind::Slice { name, tags } => {
            let (offset, count) = (word(0), word(8));
            let first = first(heap, tags, offset, count);
            Value::Slice { name: name.clone(), offset, elements: count, first }
        }
        Kind::Array { element, .. } if **element == Kind::Number("u8") => raw(bytes),
        Kind::Array { element, bytes: each, count } => {
            let shown = bytes.chunks_exact(*each as usize).take(ELEMENTS as usize);
            let mut values: Vec<Value> = shown.map(|one| value(heap, element, one)).collect();
            if u64::from(*count) > ELEMENTS {
                values.push(Value::More(u64::from(*count) - ELEMENTS));
            }
            Value::Array(values)
        }
        Kind::Struct { fields, .. } => Value::Struct(
            fields
                .iter()
                .filter_map(|(at, size, name, kind)| {
                    let one = bytes.get(*at as usize..*at as usize + *size as usize)?;
                    Some((name.clone(), value(heap, kind, one)))
                })
                .collect(),
        ),
        Kind::Bytes => raw(bytes),
    }
}

fn raw(bytes: &[u8]) -> Value {
    if bytes.len() <= BYTES {
        return Value::Bytes(bytes.to_vec());
    }
    let more = Value::More((bytes.len() - BYTES) as u64);
    Value::Array(vec![Value::Bytes(bytes[..BYTES].to_vec()), more])
}

/// The first elements of the array that a pointer leads to; not those of what they point to.
fn first(heap: &Heap<'_>, tags: &[u32], offset: u64, count: u64) -> Vec<Value> {
    let Some(place) = heap.place(offset).filter(|place| place.used && count > 0) else { return Vec::new() };
    let Some(known) = heap.types.get(place.tag).filter(|known| known.slice && known.bytes > 0) else {
        return Vec::new();
    };
    let inside = offset - place.start;
    let fits = count.checked_mul(known.bytes).is_some_and(|bytes| bytes <= place.room - inside);
    if !fits || !(tags.is_empty() || tags.contains(&place.tag)) || known.kind.points() {
        return Vec::new();
    }
    match elements(heap, &known.kind, offset, known.bytes, count) {
        Ok(Value::Array(values)) => values,
        Ok(bytes) => vec![bytes],
        Err(_) => Vec::new(),
    }
}

/// The text that bytes are, but for zeros behind it.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    (end > 0 && !text.chars().any(char::is_control)).then_some(text)
}

impl Value {
    /// Bytes as text in quotes, or as digits; without zeros at their end.
    pub fn of_bytes(bytes: &[u8]) -> String {
        if let Some(text) = text(bytes) {
            return format!("{text:?}");
        }
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut digits = String::with_capacity(end * 2 + 16);
        bytes[..end].iter().for_each(|byte| digits.push_str(&format!("{byte:02x}")));
        match bytes.len() - end {
            0 => format!("0x{digits}"),
            zeros if end == 0 => format!("0 × {zeros}"),
            zeros => format!("0x{digits} 0 × {zeros}"),
        }
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    all: &[T],
    one: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (at, item) in all.iter().enumerate() {
        f.write_str(if at == 0 { "" } else { ", " })?;
        one(f, item)?;
    }
    Ok(())
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::Signed(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number:?}"),
            Value::Double(number) => write!(f, "{number:?}"),
            Value::Pointer { offset: 0, .. } => f.write_str("null"),
            Value::Pointer { name, offset } => write!(f, "{name} {offset:#x}"),
            Value::Slice { elements: 0, .. } => f.write_str("[]"),
            Value::Slice { name, offset, elements, first } => {
                write!(f, "{elements} {name} {offset:#x}")?;
                if first.is_empty() {
                    return Ok(());
                }
                f.write_str(" [")?;
                list(f, first, |f, one| write!(f, "{one}"))?;
                f.write_str("]")
            }
            Value::Array(values) => {
                f.write_str("[")?;
                list(f, values, |f, one| write!(f, "{one}"))?;
                f.write_str("]")
            }
            Value::Struct(fields) => {
                f.write_str("{ ")?;
                list(f, fields, |f, (name, value)| write!(f, "{name}: {value}"))?;
                f.write_str(" }")
            }
            Value::Bytes(bytes) => f.write_str(&Value::of_bytes(bytes)),
            Value::Nothing => f.write_str("None"),
            Value::Truth(truth) => write!(f, "{truth}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Map { pairs, more } => {
                f.write_str("{")?;
                list(f, pairs, |f, (key, value)| write!(f, "{key}: {value}"))?;
                if *more > 0 {
                    write!(f, ", … {more} more")?;
                }
                f.write_str("}")
            }
            Value::Tagged { name, values } => {
                write!(f, "{name}(")?;
                list(f, values, |f, one| write!(f, "{one}"))?;
                f.write_str(")")
            }
            Value::More(more) => write!(f, "… {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_sign_and_width() {
        assert_eq!(number("i16", &[0xff, 0xff]), Value::Signed(-1));
        assert_eq!(number("u16", &[0xff, 0xff]), Value::Unsigned(65535));
        assert_eq!(number("i128", &[0xff; 16]), Value::Signed(-1));
        assert_eq!(number("u128", &[0xff; 16]), Value::Unsigned(u128::MAX));
        assert_eq!(number("f32", &1.5f32.to_le_bytes()), Value::Float(1.5));
    }

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(Value::of_bytes(b"a name\0\0"), "\"a name\"");
        assert_eq!(Value::of_bytes(&[0xff, 1, 0, 0]), "0xff01 0 × 2");
        assert_eq!(Value::of_bytes(&[0; 4]), "0 × 4");
        assert_eq!(Value::of_bytes(b"\x1b[31m"), "0x1b5b33316d", "no control characters reach a terminal");
    }
}
