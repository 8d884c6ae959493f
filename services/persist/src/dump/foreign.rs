// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of Python and C as values: by the types that the pool describes, and the names that lead to them.
//!
//! - **Rule** what an object's header or description contradicts is shown as bytes
//! - **Not here** reading descriptions: `check::foreign`; values of Python: `python`

use super::python::{array_element, decode};
use super::{BYTES, ELEMENTS, Value, number, raw};
use crate::check::foreign::{FieldKind, Foreign, Head, Named, ReadField, ReadType, Shape, named};
use crate::check::objects::Place;
use crate::check::owned::Audit;
use crate::error::Result;
use crate::raw::{ARRAY_PAD, ARRAY_TYPE, ForeignRoot, OBJECT_HEADER_BYTES, Table, TablePart};

/// Types within types, at most.
const DEPTH_MAX: u32 = 8;
/// Bytes of an object that are read for its value.
const READ_MAX: u64 = 1 << 20;

/// The name of an object's type, and its value.
pub(super) fn describe(
    foreign: &Foreign,
    audit: &Audit<'_>,
    place: &Place,
    head: Head,
) -> Result<(String, Value)> {
    let name = foreign.name_of(head.id);
    let text = |text: &str| Value::Text(text.to_owned());
    let value = match (Table::part(head.id), foreign.get(head.id)) {
        _ if !head.fits || head.id == 0 => payload(audit, place, place.room)?,
        (Some(TablePart::Head), _) => {
            let entries = Table::at(place.start)
                .len(audit)
                .map_or(Value::Nothing, |count| Value::Unsigned(count.into()));
            let mut fields = vec![("entries".to_owned(), entries)];
            if let Some(Named::Dict(name)) = foreign.named(place.start) {
                fields.insert(0, ("name".to_owned(), raw_text(name)));
            } else if let Some(own) = foreign.own_table(place.start) {
                fields.insert(0, ("table".to_owned(), text(own)));
            }
            Value::Struct(fields)
        }
        (Some(TablePart::Segment), _) => {
            Value::Struct(vec![("buckets".to_owned(), Value::Unsigned(u128::from(head.bytes / 8)))])
        }
        (Some(TablePart::Entry), _) => match Table::pair_at(audit, place.start) {
            Ok((key, value)) => entry(foreign, place, key, value),
            Err(_) => payload(audit, place, head.bytes)?,
        },
        (None, _) if head.id == ARRAY_TYPE => match foreign.named(place.start) {
            Some(Named::Array(name, Some(shape))) => array(audit, place, head, name, shape)?,
            _ => payload(audit, place, head.bytes)?,
        },
        (None, Some(known)) => object(foreign, audit, place, head, known)?,
        (None, None) => payload(audit, place, head.bytes)?,
    };
    Ok((name, value))
}

/// The root of such a pool.
pub(super) fn root(root: &ForeignRoot, foreign: &Foreign) -> Value {
    let place = |name: &str, offset| Value::Pointer { name: name.to_owned(), offset };
    let fields = [
        ("names", place("dict", root.names)),
        ("limbo", place("dict", root.limbo)),
        ("types", place("dict", root.types)),
        ("object", place(&foreign.name_of(root.object_type), root.object)),
    ];
    Value::Struct(fields.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// The first bytes of an object's payload.
fn payload(audit: &Audit<'_>, place: &Place, bytes: u64) -> Result<Value> {
    let bytes = bytes.min(place.room.saturating_sub(OBJECT_HEADER_BYTES));
    let mut shown = vec![0; bytes.min(BYTES as u64) as usize];
    audit.heap().snapshot.heap(place.start + OBJECT_HEADER_BYTES, &mut shown)?;
    if bytes <= shown.len() as u64 {
        return Ok(Value::Bytes(shown));
    }
    let more = Value::More(bytes - shown.len() as u64);
    Ok(Value::Array(vec![Value::Bytes(shown), more]))
}

fn raw_text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| raw(bytes), |text| Value::Text(text.to_owned()))
}

/// A pair of a dict, or of one of the pool's own tables.
fn entry(foreign: &Foreign, place: &Place, key: &[u8], value: &[u8]) -> Value {
    let (key, value) = match foreign.own_table(place.start) {
        Some("names") => {
            let leads = match named(key, value) {
                Some((offset, Named::Dict(_))) => Value::Pointer { name: "dict".to_owned(), offset },
                Some((offset, Named::Array(_, shape))) => {
                    let kind = shape.map(|shape| shape.text()).unwrap_or_default();
                    Value::Pointer { name: format!("array {kind}").trim_end().to_owned(), offset }
                }
                None => raw(value),
            };
            (raw_text(key), leads)
        }
        Some("types") => {
            let id = key
                .try_into()
                .map_or_else(|_| raw(key), |id| Value::Text(format!("{:016x}", u64::from_le_bytes(id))));
            (id, raw_text(value))
        }
        Some(_) => {
            let place =
                |offset| Value::Pointer { name: "array".to_owned(), offset: u64::from_le_bytes(offset) };
            (key.try_into().map_or_else(|_| raw(key), place), raw(value))
        }
        None => (decode(key).unwrap_or_else(|| raw(key)), decode(value).unwrap_or_else(|| raw(value))),
    };
    Value::Struct(vec![("key".to_owned(), key), ("value".to_owned(), value)])
}

impl Shape {
    /// The type in NumPy's words, and the extents: `f8[3, 4]`.
    fn text(&self) -> String {
        let extents: Vec<String> = self.extents.iter().map(u64::to_string).collect();
        format!("{}{}[{}]", char::from(self.letter), self.each, extents.join(", "))
    }
}

fn array(audit: &Audit<'_>, place: &Place, head: Head, name: &[u8], shape: &Shape) -> Result<Value> {
    let each = u64::from(shape.each).max(1);
    let bytes = head.bytes.saturating_sub(ARRAY_PAD as u64);
    let shown = (bytes / each).min(ELEMENTS);
    let mut content = vec![0; (shown * each) as usize];
    audit.heap().snapshot.heap(place.start + OBJECT_HEADER_BYTES + ARRAY_PAD as u64, &mut content)?;
    let mut elements: Vec<Value> =
        content.chunks_exact(each as usize).map(|one| array_element(shape.letter, one)).collect();
    if bytes / each > shown {
        elements.push(Value::More(bytes / each - shown));
    }
    Ok(Value::Struct(vec![
        ("name".to_owned(), raw_text(name)),
        ("type".to_owned(), Value::Text(shape.text())),
        ("elements".to_owned(), Value::Array(elements)),
    ]))
}

fn object(
    foreign: &Foreign,
    audit: &Audit<'_>,
    place: &Place,
    head: Head,
    known: &ReadType,
) -> Result<Value> {
    if known.fields.is_empty() || (known.bytes != 0 && known.bytes != head.bytes) {
        return payload(audit, place, head.bytes);
    }
    let mut bytes = vec![0; head.bytes.min(READ_MAX) as usize];
    audit.heap().snapshot.heap(place.start + OBJECT_HEADER_BYTES, &mut bytes)?;
    Ok(fields(foreign, known, &bytes, head.bytes, DEPTH_MAX))
}

/// Fields of a type, of which the first bytes were read.
fn fields(foreign: &Foreign, known: &ReadType, bytes: &[u8], whole: u64, depth: u32) -> Value {
    let one = |(at, read): (usize, &ReadField)| {
        let length = known.bytes_of(at, whole);
        let end = read.offset.checked_add(length).filter(|end| *end <= whole);
        let value = match end {
            None => Value::Nothing,
            Some(end) => {
                let from = (read.offset as usize).min(bytes.len());
                let there = &bytes[from..(end as usize).min(bytes.len())];
                field(foreign, read, there, length, depth)
            }
        };
        (read.name.clone(), value)
    };
    Value::Struct(known.fields.iter().enumerate().map(one).collect())
}

/// A field of `length` bytes, of which the first ones were read.
fn field(foreign: &Foreign, read: &ReadField, bytes: &[u8], length: u64, depth: u32) -> Value {
    let each = read.each.max(1);
    let one = |bytes: &[u8]| match &read.kind {
        FieldKind::Number(name) => number(name, bytes),
        FieldKind::Truth => Value::Truth(bytes.iter().any(|byte| *byte != 0)),
        FieldKind::Object(name) => {
            let offset = bytes.try_into().map_or(0, u64::from_le_bytes);
            Value::Pointer { name: name.clone().unwrap_or_else(|| "object".to_owned()), offset }
        }
        FieldKind::Struct(name) => match foreign.by_name(name, each).filter(|_| depth > 0) {
            Some(inner) => fields(foreign, inner, bytes, each, depth - 1),
            None => raw(bytes),
        },
        FieldKind::Text | FieldKind::Bytes => raw(bytes),
    };
    if matches!(read.kind, FieldKind::Text | FieldKind::Bytes) {
        return raw(bytes);
    }
    if each == length {
        return if bytes.len() as u64 == each { one(bytes) } else { Value::More(1) };
    }
    let mut values: Vec<Value> = bytes.chunks_exact(each as usize).take(ELEMENTS as usize).map(one).collect();
    let count = length / each;
    if count > values.len() as u64 {
        values.push(Value::More(count - values.len() as u64));
    }
    Value::Array(values)
}
