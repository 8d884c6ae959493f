// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of Python and C, by what the pool says of them: the table of types, the names, the headers of objects.
//!
//! - **Flow** root ─▶ table of types, table of names ─▶ [`Foreign`] ─▶ `dump` prints an object by it; [`Foreign::walk`] follows the fields that
//!   name objects, from the root object that a C program set ─▶ what is not met, leads nowhere, or has another length than its type
//! - **Rule** a description is a claim: fields outside of their object are not read. A field without a type may be anything: one of 8 bytes may be
//!   the place of an object, so nothing is said of objects that only such a field could lead to
//! - **Not here** links of tables: `owned`; values: `dump`

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::objects::Place;
use super::owned::{Audit, each_pair};
use crate::error::Result;
use crate::persist::Persist;
use crate::persist::slice_tag;
use crate::raw::{ARRAY_TYPE, ForeignRoot, ForeignType, OBJECT_HEADER_BYTES, Table, TablePart, root};

/// Types within types, at most.
const DEPTH_MAX: u32 = 8;
/// Bytes of an object that are read at once.
const PIECE: u64 = 1 << 20;
/// Pointers that lead nowhere and are told one by one.
const TOLD: usize = 1000;

/// The way to read a field, or an element of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FieldKind {
    /// A number, by its name in Rust.
    Number(&'static str),
    Truth,
    Text,
    /// The place of an object of a type of this name; None: of any type.
    Object(Option<String>),
    /// A type of this name.
    Struct(String),
    /// Bytes of unknown meaning.
    Bytes,
}

/// A field as tools read it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadField {
    pub name: String,
    pub offset: u64,
    pub bytes: u64,
    pub kind: FieldKind,
    /// Bytes of an element; as many as the field's where it is none.
    pub each: u64,
    /// The description names its type.
    pub typed: bool,
}

/// A type as tools read it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadType {
    pub name: String,
    /// Bytes of an object; 0: each has its own length, and the last field goes on to its end.
    pub bytes: u64,
    pub fields: Vec<ReadField>,
}

/// Object that a name of the pool leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Dict(Vec<u8>),
    /// Name; letter of the element type, bytes of an element, extents.
    Array(Vec<u8>, Option<Shape>),
}

/// Shape of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub letter: u8,
    pub each: u8,
    pub extents: Vec<u64>,
}

/// Header of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub id: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// The payload lies within the object's place.
    pub fits: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Foreign {
    types: HashMap<u64, ReadType>,
    names: BTreeMap<u64, Named>,
    /// The pool's own tables by place, and their entries, whose keys are as the pool writes them.
    tables: BTreeMap<u64, &'static str>,
    entries: BTreeMap<u64, &'static str>,
    /// The object that a C program set as root, and the id of its type.
    root: (u64, u64),
}

/// Result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub met: BTreeSet<u64>,
    /// The object that holds it, and a sentence.
    pub dangling: Vec<(u64, String)>,
    pub dangling_count: u64,
    /// Names of types that were met and have fields without a type which could be places of objects.
    pub opaque: BTreeSet<String>,
}

fn kind_of(written: &str, bytes: u64, types: &[ForeignType]) -> (FieldKind, u64) {
    let plain = written.trim().trim_start_matches("const ").trim();
    let number = |name: &'static str, each: u64| (FieldKind::Number(name), each);
    let (kind, each) = match plain {
        "u8" | "uint8_t" | "unsigned char" => number("u8", 1),
        "i8" | "int8_t" | "signed char" => number("i8", 1),
        "u16" | "uint16_t" | "unsigned short" => number("u16", 2),
        "i16" | "int16_t" | "short" => number("i16", 2),
        "u32" | "uint32_t" | "unsigned" | "unsigned int" => number("u32", 4),
        "i32" | "int32_t" | "int" => number("i32", 4),
        "u64" | "uint64_t" | "unsigned long" | "unsigned long long" | "size_t" => number("u64", 8),
        "i64" | "int64_t" | "long" | "long long" | "ssize_t" => number("i64", 8),
        "u128" => number("u128", 16),
        "i128" => number("i128", 16),
        "f32" | "float" => number("f32", 4),
        "f64" | "double" => number("f64", 8),
        "bool" | "_Bool" => (FieldKind::Truth, 1),
        "char" => (FieldKind::Text, bytes),
        "memlift_object" | "void *" => (FieldKind::Object(None), 8),
        _ => match plain.strip_suffix('*') {
            Some(name) => {
                let name = name.trim().trim_start_matches("struct ").trim();
                (FieldKind::Object(Some(name.to_owned())), 8)
            }
            None => {
                let name = plain.trim_start_matches("struct ").trim();
                let known = types.iter().find(|one| one.name == name && one.bytes > 0);
                known.map_or((FieldKind::Bytes, bytes), |one| (FieldKind::Struct(name.to_owned()), one.bytes))
            }
        },
    };
    if each > 0 && bytes.is_multiple_of(each) { (kind, each) } else { (FieldKind::Bytes, bytes) }
}

/// A name as it is printed: what a file says does not reach a terminal as it is.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn read_type(described: &ForeignType, all: &[ForeignType]) -> ReadType {
    let field = |field: &crate::raw::ForeignField| {
        let typed = !field.kind.is_empty();
        let (kind, each) = match (typed, field.bytes) {
            (true, bytes) => kind_of(&field.kind, bytes, all),
            (false, 1) => (FieldKind::Number("u8"), 1),
            (false, 2) => (FieldKind::Number("u16"), 2),
            (false, 4) => (FieldKind::Number("u32"), 4),
            (false, 8) => (FieldKind::Number("u64"), 8),
            (false, bytes) => (FieldKind::Bytes, bytes),
        };
        ReadField {
            name: printable(&field.name),
            offset: field.offset,
            bytes: field.bytes,
            kind,
            each,
            typed,
        }
    };
    let fields = described.fields.iter().map(field).collect();
    ReadType { name: printable(&described.name), bytes: described.bytes, fields }
}

impl ReadType {
    /// Bytes of a field in an object of so many bytes: in a type without a size, the last one goes on to the object's end.
    pub fn bytes_of(&self, field: usize, object_bytes: u64) -> u64 {
        let read = &self.fields[field];
        if self.bytes == 0 && field + 1 == self.fields.len() {
            return object_bytes.saturating_sub(read.offset);
        }
        read.bytes
    }
}

impl Shape {
    fn decode(bytes: &[u8]) -> Option<Shape> {
        let (head, rest) = bytes.split_at_checked(3)?;
        let (words, left) = rest.as_chunks::<8>();
        if !left.is_empty() || words.len() != usize::from(head[2]) {
            return None;
        }
        let extents = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Shape { letter: head[0], each: head[1], extents })
    }
}

/// Reads the value of a name: u8 kind · u64 place · an array's shape.
pub(crate) fn named(name: &[u8], value: &[u8]) -> Option<(u64, Named)> {
    let (head, rest) = value.split_at_checked(9)?;
    let place = u64::from_le_bytes(head[1..].try_into().expect("8 bytes"));
    match head[0] {
        super::owned::DICT => Some((place, Named::Dict(name.to_vec()))),
        super::owned::ARRAY => Some((place, Named::Array(name.to_vec(), Shape::decode(rest)))),
        _ => None,
    }
}

impl Foreign {
    /// Of a pool whose root says that it is one of Python or C; None for others. Tables that cannot be read are left out: `owned` says so.
    pub fn read(audit: &Audit<'_>) -> Option<Foreign> {
        if audit.heap().root().ok()?.1 != ForeignRoot::LAYOUT {
            return None;
        }
        let root = root(audit).ok()?;
        let mut foreign = Foreign {
            types: HashMap::new(),
            names: BTreeMap::new(),
            tables: BTreeMap::new(),
            entries: BTreeMap::new(),
            root: (root.object, root.object_type),
        };
        for (offset, what) in [(root.names, "names"), (root.limbo, "limbo"), (root.types, "types")] {
            if offset != 0 {
                foreign.tables.insert(offset, what);
                let entries = &mut foreign.entries;
                let _ = Table::at(offset).each_place(audit, |place| entries.insert(place, what).is_none());
            }
        }
        let mut described: Vec<(u64, ForeignType)> = Vec::new();
        if root.types != 0 {
            let _ = each_pair(Table::at(root.types), audit, |id, text| {
                let text = std::str::from_utf8(text).ok().and_then(ForeignType::parse);
                described.extend(id.try_into().ok().map(u64::from_le_bytes).zip(text));
            });
        }
        let all: Vec<ForeignType> = described.iter().map(|(_, one)| one.clone()).collect();
        foreign.types = described.iter().map(|(id, one)| (*id, read_type(one, &all))).collect();
        if root.names != 0 {
            let names = &mut foreign.names;
            let _ = each_pair(Table::at(root.names), audit, |name, value| names.extend(named(name, value)));
        }
        Some(foreign)
    }

    /// The type of an id.
    pub fn get(&self, id: u64) -> Option<&ReadType> {
        self.types.get(&id)
    }

    /// A type with a size, by name and size.
    pub fn by_name(&self, name: &str, bytes: u64) -> Option<&ReadType> {
        self.types.values().find(|one| one.name == name && one.bytes == bytes)
    }

    /// The dict or array at a place, if a name leads there.
    pub fn named(&self, place: u64) -> Option<&Named> {
        self.names.get(&place)
    }

    /// Name of one of the pool's own tables, by its place or that of an entry.
    pub fn own_table(&self, place: u64) -> Option<&'static str> {
        self.tables.get(&place).or_else(|| self.entries.get(&place)).copied()
    }

    /// Names that objects may have, for those who ask for one.
    pub fn type_names(&self) -> Vec<String> {
        let own = ["dict", "dict entry", "dict segment", "array"].map(str::to_owned);
        let mut names: Vec<String> = self.types.values().map(|one| one.name.clone()).chain(own).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Name of an object's type.
    pub fn name_of(&self, id: u64) -> String {
        match (Table::part(id), self.types.get(&id)) {
            (Some(TablePart::Head), _) => "dict".to_owned(),
            (Some(TablePart::Segment), _) => "dict segment".to_owned(),
            (Some(TablePart::Entry), _) => "dict entry".to_owned(),
            (None, _) if id == ARRAY_TYPE => "array".to_owned(),
            (None, Some(known)) => known.name.clone(),
            (None, None) => format!("object of type {id:016x}"),
        }
    }

    /// The header of an object; None: the place is no such object's.
    pub fn head(&self, audit: &Audit<'_>, place: &Place) -> Result<Option<Head>> {
        if place.tag != slice_tag::<u8>() {
            return Ok(None);
        }
        let snapshot = audit.heap().snapshot;
        let (id, bytes) = (snapshot.word(place.start)?, snapshot.word(place.start + 8)?);
        Ok(Some(Head { id, bytes, fits: bytes <= place.room.saturating_sub(OBJECT_HEADER_BYTES) }))
    }

    /// Returns true if objects of a type may hold places of objects that no field's type shows.
    fn is_opaque(&self, known: &ReadType, depth: u32) -> bool {
        // Bytes between fields are the compiler's, unless a place would fit there.
        let (mut end, mut gap) = (0, known.bytes == 0 && known.fields.is_empty());
        for field in &known.fields {
            gap |= field.offset >= end + 8;
            end = end.max(field.offset + field.bytes);
        }
        gap |= known.bytes >= end + 8;
        let hides = |field: &ReadField| match &field.kind {
            FieldKind::Struct(name) => {
                let inner = self.by_name(name, field.each).filter(|_| depth > 0);
                inner.is_none_or(|inner| self.is_opaque(inner, depth - 1))
            }
            FieldKind::Bytes => field.bytes >= 8,
            _ => !field.typed && field.bytes == 8,
        };
        gap || known.fields.iter().any(hides)
    }

    /// Follows the fields that name objects, from the root object on.
    pub fn walk(&self, audit: &Audit<'_>) -> Result<Walked> {
        let mut walk = Walk { foreign: self, audit, walked: Walked::default(), stack: Vec::new() };
        if self.root.0 != 0 {
            let wanted = self.types.get(&self.root.1).map(|known| &*known.name);
            walk.follow(self.root.0, wanted, (0, "the root"))?;
        }
        while let Some((place, head)) = walk.stack.pop() {
            if let Some(known) = self.types.get(&head.id) {
                walk.object(place.start, head, known)?;
            }
        }
        Ok(walk.walked)
    }
}

struct Walk<'w, 'h> {
    foreign: &'w Foreign,
    audit: &'w Audit<'h>,
    walked: Walked,
    stack: Vec<(Place, Head)>,
}

impl Walk<'_, '_> {
    fn object(&mut self, start: u64, head: Head, known: &ReadType) -> Result<()> {
        if self.foreign.is_opaque(known, DEPTH_MAX) {
            self.walked.opaque.insert(known.name.clone());
        }
        for (at, field) in known.fields.iter().enumerate() {
            let bytes = known.bytes_of(at, head.bytes);
            if field.offset.saturating_add(bytes) <= head.bytes {
                let at = start + OBJECT_HEADER_BYTES + field.offset;
                let name = format!("{}.{}", known.name, field.name);
                self.field(&field.kind, Range { at, bytes, each: field.each }, (start, &name), DEPTH_MAX)?;
            }
        }
        Ok(())
    }

    fn field(&mut self, kind: &FieldKind, range: Range, holder: (u64, &str), depth: u32) -> Result<()> {
        match kind {
            FieldKind::Object(wanted) => {
                let mut bytes = Vec::new();
                for (at, count) in range.pieces() {
                    bytes.resize(count as usize, 0);
                    self.audit.heap().snapshot.heap(at, &mut bytes)?;
                    for word in bytes.as_chunks::<8>().0 {
                        let target = u64::from_le_bytes(*word);
                        if target != 0 {
                            self.follow(target, wanted.as_deref(), holder)?;
                        }
                    }
                }
            }
            FieldKind::Struct(name) if depth > 0 => {
                let Some(known) = self.foreign.by_name(name, range.each) else { return Ok(()) };
                let points =
                    |field: &&ReadField| matches!(field.kind, FieldKind::Object(_) | FieldKind::Struct(_));
                for field in known.fields.iter().filter(points) {
                    let name = format!("{}.{}", holder.1, field.name);
                    for element in 0..range.bytes / range.each {
                        let at = range.at + element * range.each + field.offset;
                        let inner = Range { at, bytes: field.bytes, each: field.each };
                        self.field(&field.kind, inner, (holder.0, &name), depth - 1)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Meets the object at `target`, which should be of the type `wanted`.
    fn follow(&mut self, target: u64, wanted: Option<&str>, (holder, field): (u64, &str)) -> Result<()> {
        let place = self.audit.heap().place(target).filter(|place| place.start == target);
        let head = match place {
            Some(place) if place.used => self.foreign.head(self.audit, &place)?.map(|head| (place, head)),
            _ => None,
        };
        let why = match (place, head) {
            (_, Some((_, Head { id: 0, .. }))) => "which was freed".to_owned(),
            (_, Some((place, head))) => {
                let name = self.foreign.name_of(head.id);
                if wanted.is_none_or(|wanted| wanted == name) {
                    if self.walked.met.insert(target) && head.fits {
                        self.stack.push((place, head));
                    }
                    return Ok(());
                }
                format!("which is of the type {name}")
            }
            (Some(place), None) if !place.used => "which is free".to_owned(),
            _ => "where there is none".to_owned(),
        };
        self.walked.dangling_count += 1;
        if self.walked.dangling.len() < TOLD {
            let wanted = wanted.map_or_else(|| "an object".to_owned(), |wanted| format!("a {wanted}"));
            let what = format!("{field} points to {wanted} at {target:#x} of the heap, {why}");
            self.walked.dangling.push((holder, what));
        }
        Ok(())
    }
}

/// Bytes of a field in the heap.
#[derive(Clone, Copy)]
struct Range {
    at: u64,
    bytes: u64,
    /// Of an element.
    each: u64,
}

impl Range {
    fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.bytes)
            .step_by(PIECE as usize)
            .map(move |from| (self.at + from, PIECE.min(self.bytes - from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::ForeignField;

    fn field(name: &str, offset: u64, bytes: u64, kind: &str) -> ForeignField {
        ForeignField { name: name.to_owned(), offset, bytes, kind: kind.to_owned() }
    }

    #[test]
    fn fields_are_read_by_the_words_of_c_and_of_rust() {
        let point = ForeignType {
            name: "point".to_owned(),
            bytes: 16,
            fields: vec![field("x", 0, 8, "double"), field("y", 8, 8, "f64")],
        };
        let all = ForeignType {
            name: "all".to_owned(),
            bytes: 200,
            fields: vec![
                field("count", 0, 4, "uint32_t"),
                field("text", 4, 12, "char"),
                field("corners", 16, 64, "struct point"),
                field("next", 80, 16, "struct all *"),
                field("any", 96, 8, "memlift_object"),
                field("odd", 104, 6, "uint32_t"),
                field("other", 112, 24, "nobody knows"),
                field("old", 136, 8, ""),
            ],
        };
        let types = [point, all];
        let read = read_type(&types[1], &types);
        let kinds: Vec<(&FieldKind, u64)> =
            read.fields.iter().map(|field| (&field.kind, field.each)).collect();
        let object = |name: &str| FieldKind::Object(Some(name.to_owned()));
        assert_eq!(
            kinds,
            [
                (&FieldKind::Number("u32"), 4),
                (&FieldKind::Text, 12),
                (&FieldKind::Struct("point".to_owned()), 16),
                (&object("all"), 8),
                (&FieldKind::Object(None), 8),
                (&FieldKind::Bytes, 6),
                (&FieldKind::Bytes, 24),
                (&FieldKind::Number("u64"), 8),
            ]
        );
    }

    #[test]
    fn names_lead_to_dicts_and_arrays() {
        let dict = [&[1][..], &80u64.to_le_bytes()].concat();
        assert_eq!(named(b"a", &dict), Some((80, Named::Dict(b"a".to_vec()))));
        let array = [&[2][..], &96u64.to_le_bytes(), b"f\x08\x01", &3u64.to_le_bytes()].concat();
        let shape = Shape { letter: b'f', each: 8, extents: vec![3] };
        assert_eq!(named(b"b", &array), Some((96, Named::Array(b"b".to_vec(), Some(shape)))));
        assert_eq!(
            named(b"c", &array[..array.len() - 1]).map(|one| one.1),
            Some(Named::Array(b"c".to_vec(), None))
        );
        assert_eq!((named(b"d", b""), named(b"d", &[9; 9])), (None, None));
    }
}
