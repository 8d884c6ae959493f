// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of the catalog's type names: where a type holds numbers, pointers, arrays and other types.
//!
//! - **Flow** a field's type as written (`[PPtr<Node>;4]`) ─▶ [`Kind`]; a name is looked up among the catalog's types
//! - **Rule** the catalog is not trusted: fields that overlap or lie outside their type, types inside themselves and types of
//!   more than 65536 parts count as plain bytes
//! - **Not here** values: `dump`; following pointers: `objects`

use std::collections::HashMap;

use crate::catalog::{MOVING, TypeRecord};
use crate::layout::{Entry, SLAB_BYTES, STRIDE_MAX, slice_stride};

/// The way to read a type's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A number of the language, by name; 1 to 16 bytes.
    Number(&'static str),
    /// A pointer to one of these tags; none: it is not known to which.
    Pointer { name: String, tags: Vec<u32> },
    /// A pointer to an array of one of these tags, and the bytes of an element.
    Slice { name: String, tags: Vec<u32> },
    /// Elements of one kind and size.
    Array { element: Box<Kind>, bytes: u32, count: u32 },
    /// Fields: offset, bytes, name, kind.
    Struct { name: String, fields: Vec<(u32, u32, String, Kind)> },
    /// Bytes of unknown meaning.
    Bytes,
}

/// A type that has, or had, objects in this pool.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The catalog's name; an array's is in brackets.
    pub name: String,
    /// Bytes of a value, or of an element.
    pub bytes: u64,
    pub layout: u64,
    /// True if it is an array's tag.
    pub slice: bool,
    pub kind: Kind,
}

/// The catalog's types by tag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Types(HashMap<u32, Known>);

const NUMBERS: [(&str, u32); 12] = [
    ("u8", 1),
    ("i8", 1),
    ("u16", 2),
    ("i16", 2),
    ("u32", 4),
    ("i32", 4),
    ("f32", 4),
    ("u64", 8),
    ("i64", 8),
    ("f64", 8),
    ("u128", 16),
    ("i128", 16),
];
const DEPTH_MAX: u32 = 16;
const PARTS_MAX: u32 = 1 << 16;

impl Types {
    pub fn new(records: &[TypeRecord]) -> Types {
        let mut known = HashMap::new();
        for record in records {
            let slice = record.name.starts_with('[');
            let mut parts = PARTS_MAX;
            let kind = of_record(record, records, 0, &mut parts);
            let (name, bytes, layout) = (record.name.clone(), record.bytes, record.layout);
            known.insert(record.tag, Known { name, bytes, layout, slice, kind });
        }
        Types(known)
    }

    pub fn get(&self, tag: u32) -> Option<&Known> {
        self.0.get(&tag)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of types that may hold pointers which the catalog does not show, in order.
    pub fn opaque(&self) -> Vec<&str> {
        let hides = |known: &&Known| known.kind.opaque() && known.name != "array" && known.name != "[array]";
        let mut names: Vec<&str> = self.0.values().filter(hides).map(|known| &*known.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns true if objects of this tag are on their way to another type.
    pub fn moving(&self, tag: u32) -> bool {
        self.get(tag).is_some_and(|known| known.name.trim_matches(['[', ']']) == MOVING)
    }

    /// Returns true if a root of this layout says that a migration is not done.
    pub fn migrating(&self, layout: u64) -> bool {
        self.0.values().any(|known| known.layout == layout && known.name == MOVING)
    }

    /// The name of a tag.
    pub fn name(&self, tag: u32) -> String {
        self.get(tag).map_or_else(|| format!("type {tag:08x}"), |known| known.name.clone())
    }

    /// Returns Some(true) if slots of this stride fit the type; None: the type is not known.
    pub fn stride_fits(&self, tag: u32, stride: u64) -> Option<bool> {
        let known = self.get(tag)?;
        Some(if known.slice {
            [true, false].iter().any(|checksums| slice_stride(stride, *checksums) == stride)
                || stride.is_multiple_of(32)
        } else {
            known.bytes.max(16).checked_next_multiple_of(16) == Some(stride)
        })
    }

    /// Says how a directory entry contradicts the catalog's record of its type. None: it does not, or the catalog lacks the type.
    pub fn misfit(&self, entry: Entry) -> Option<String> {
        let fits = match entry.state {
            Entry::SLOTS => self.stride_fits(entry.tag, entry.stride.into()),
            Entry::RUN | Entry::SPAN => self.run_fits(entry.tag, entry.stride, entry.run),
            _ => None,
        };
        let known = self.get(entry.tag).filter(|_| fits == Some(false))?;
        let has = match entry.state {
            Entry::RUN | Entry::SPAN => format!("{} slabs for elements of {} bytes", entry.run, entry.stride),
            _ => format!("slots of {} bytes", entry.stride),
        };
        Some(format!("{has} for {}, whose size is {} in the list of types", known.name, known.bytes))
    }

    /// Returns Some(true) if a run of `run` slabs fits the type; None: the type is not known.
    pub fn run_fits(&self, tag: u32, stride: u32, run: u32) -> Option<bool> {
        let known = self.get(tag)?;
        let fits = known.slice || known.bytes.div_ceil(SLAB_BYTES) == u64::from(run);
        let large = u64::from(run) * SLAB_BYTES > STRIDE_MAX;
        Some(fits && large && known.bytes == u64::from(stride))
    }
}

impl Kind {
    pub fn opaque(&self) -> bool {
        match self {
            Kind::Bytes => true,
            Kind::Array { element, .. } => element.opaque(),
            Kind::Struct { fields, .. } => fields.iter().any(|(.., kind)| kind.opaque()),
            Kind::Number(_) | Kind::Pointer { .. } | Kind::Slice { .. } => false,
        }
    }

    /// Returns true if there is a pointer in it.
    pub fn points(&self) -> bool {
        match self {
            Kind::Pointer { .. } | Kind::Slice { .. } => true,
            Kind::Array { element, .. } => element.points(),
            Kind::Struct { fields, .. } => fields.iter().any(|(.., kind)| kind.points()),
            Kind::Number(_) | Kind::Bytes => false,
        }
    }
}

fn number(name: &str, bytes: u64) -> Option<Kind> {
    let (name, _) = NUMBERS.iter().find(|(one, size)| *one == name && u64::from(*size) == bytes)?;
    Some(Kind::Number(name))
}

/// A path's last part, without parameters.
fn base(written: &str) -> &str {
    if written.starts_with('[') {
        return "array";
    }
    let plain = written.split('<').next().unwrap_or(written);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// The text between the brackets of `Name<…>`.
fn parameter(written: &str) -> &str {
    written.split_once('<').and_then(|(_, rest)| rest.strip_suffix('>')).unwrap_or("")
}

fn tags(name: &str, records: &[TypeRecord]) -> Vec<u32> {
    records.iter().filter(|record| record.name == name).map(|record| record.tag).collect()
}

fn of_record(record: &TypeRecord, records: &[TypeRecord], depth: u32, parts: &mut u32) -> Kind {
    let name = record.name.trim_start_matches('[').trim_end_matches(']');
    if record.fields.is_empty() {
        return match (name, record.bytes) {
            ("PPtr", 8) => Kind::Pointer { name: "?".to_owned(), tags: Vec::new() },
            ("PSlice", 16) => Kind::Slice { name: "?".to_owned(), tags: Vec::new() },
            _ => number(name, record.bytes).unwrap_or(Kind::Bytes),
        };
    }
    let mut fields = Vec::with_capacity(record.fields.len());
    let mut end = 0;
    for (offset, bytes, written, field) in &record.fields {
        let next = u64::from(*offset) + u64::from(*bytes);
        if u64::from(*offset) < end || next > record.bytes {
            return Kind::Bytes;
        }
        end = next;
        fields.push((
            *offset,
            *bytes,
            field.clone(),
            of_written(written, *bytes, name, records, depth, parts),
        ));
    }
    Kind::Struct { name: name.to_owned(), fields }
}

/// Bytes of a type as written, if they are known.
fn size_of_written(written: &str, records: &[TypeRecord]) -> Option<u32> {
    match base(written) {
        "PPtr" => Some(8),
        "PSlice" => Some(16),
        name => NUMBERS.iter().find(|(number, _)| *number == name).map(|(_, size)| *size).or_else(|| {
            let same = |record: &&TypeRecord| record.name == name && !record.fields.is_empty();
            let bytes = records.iter().find(same)?.bytes;
            u32::try_from(bytes).ok().filter(|bytes| *bytes > 0)
        }),
    }
}

fn of_written(
    written: &str,
    bytes: u32,
    owner: &str,
    records: &[TypeRecord],
    depth: u32,
    parts: &mut u32,
) -> Kind {
    if depth >= DEPTH_MAX || *parts == 0 || bytes == 0 {
        return Kind::Bytes;
    }
    *parts -= 1;
    if let Some(inner) = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let Some((element, count)) = inner.rsplit_once(';') else { return Kind::Bytes };
        // A length by name is told by the size of an element, where that is known.
        let known = size_of_written(element, records);
        let count = count.parse().ok().or_else(|| known.map(|size| bytes / size)).unwrap_or(0);
        if count == 0 || !bytes.is_multiple_of(count) {
            return Kind::Bytes;
        }
        let each = bytes / count;
        let element = of_written(element, each, owner, records, depth + 1, parts);
        return Kind::Array { element: Box::new(element), bytes: each, count };
    }
    let target = |written: &str| match base(parameter(written)) {
        "Self" => owner.to_owned(),
        name => name.to_owned(),
    };
    match (base(written), bytes) {
        ("PPtr", 8) => {
            let name = target(written);
            Kind::Pointer { tags: tags(&name, records), name }
        }
        ("PSlice", 16) => {
            let name = target(written);
            Kind::Slice { tags: tags(&format!("[{name}]"), records), name }
        }
        (name, _) => number(name, bytes.into()).unwrap_or_else(|| {
            let same = |record: &&TypeRecord| {
                record.name.trim_start_matches('[').trim_end_matches(']') == name
                    && record.bytes == u64::from(bytes)
                    && !record.fields.is_empty()
            };
            match records.iter().find(same) {
                Some(record) => of_record(record, records, depth + 1, parts),
                None => Kind::Bytes,
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u32, name: &str, bytes: u64, fields: &[(u32, u32, &str, &str)]) -> TypeRecord {
        let fields = fields.iter().map(|(at, size, kind, name)| (*at, *size, (*kind).into(), (*name).into()));
        TypeRecord { tag, layout: u64::from(tag), bytes, name: name.into(), fields: fields.collect() }
    }

    #[test]
    fn type_names_are_understood() {
        let records = [
            record(
                20,
                "Node",
                120,
                &[
                    (0, 8, "u64", "key"),
                    (8, 8, "crate::PPtr<Self>", "next"),
                    (16, 16, "PSlice<u8>", "text"),
                    (32, 16, "[PPtr<Other>;2]", "both"),
                    (48, 16, "Pair", "pair"),
                    (64, 24, "[PPtr<Node>;LINKS]", "links"),
                    (88, 32, "[Pair;PAIRSasusize]", "pairs"),
                ],
            ),
            record(21, "[u8]", 1, &[]),
            record(22, "Pair", 16, &[(0, 8, "f64", "x"), (8, 8, "T", "y")]),
        ];
        let types = Types::new(&records);
        let Kind::Struct { name, fields } = &types.get(20).expect("known").kind else { panic!("a struct") };
        assert_eq!(name, "Node");
        let kinds: Vec<&Kind> = fields.iter().map(|(.., kind)| kind).collect();
        assert_eq!(*kinds[0], Kind::Number("u64"));
        assert_eq!(*kinds[1], Kind::Pointer { name: "Node".into(), tags: vec![20] });
        assert_eq!(*kinds[2], Kind::Slice { name: "u8".into(), tags: vec![21] });
        let other = Kind::Pointer { name: "Other".into(), tags: Vec::new() };
        assert_eq!(*kinds[3], Kind::Array { element: Box::new(other), bytes: 8, count: 2 });
        assert!(
            matches!(kinds[4], Kind::Struct { name, fields } if name == "Pair" && fields[1].3 == Kind::Bytes)
        );
        let link = Kind::Pointer { name: "Node".into(), tags: vec![20] };
        assert_eq!(*kinds[5], Kind::Array { element: Box::new(link), bytes: 8, count: 3 });
        assert!(matches!(kinds[6], Kind::Array { bytes: 16, count: 2, .. }));
        assert_eq!(types.opaque(), ["Node", "Pair"], "Pair's T may be anything");
        assert_eq!(types.stride_fits(20, 128), Some(true));
        assert_eq!(types.stride_fits(20, 112), Some(false));
        assert_eq!(types.stride_fits(23, 64), None);
    }

    #[test]
    fn a_hostile_catalog_becomes_bytes() {
        let overlapping = record(20, "A", 16, &[(0, 8, "u64", "x"), (4, 8, "u64", "y")]);
        let outside = record(21, "B", 16, &[(12, 8, "u64", "x")]);
        let itself = record(22, "C", 16, &[(0, 16, "C", "x")]);
        let types = Types::new(&[overlapping, outside, itself]);
        assert_eq!(types.get(20).expect("known").kind, Kind::Bytes);
        assert_eq!(types.get(21).expect("known").kind, Kind::Bytes);
        assert!(types.get(22).expect("known").kind.opaque());
    }
}
