// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of types that are known at run time only.
//!
//! - **Layout** u64 type · u64 bytes · payload. Objects start at multiples of 16, those of 16 KiB and more at pages
//! - **Order** freeing writes type 0 first, so that an old pointer finds no object; the slot may be used again after that
//! - **Rule** lengths are bounded before they are added to anything

use crate::error::{Error, Result};
use crate::persist::slice_tag;
use crate::persist::{Field, HASH_START, Persist, PointerField, hash_bytes, hash_u64};
use crate::ptr::{PPtr, PSlice};
use crate::tx::Tx;
use crate::view::View;

/// Bytes before the payload.
pub const OBJECT_HEADER_BYTES: u64 = 16;
/// No object is larger.
pub const FOREIGN_BYTES_MAX: u64 = 1 << 40;

const WANTED: &str = "object of this type";

/// A field, for tools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignField {
    /// The field's name.
    pub name: String,
    /// Bytes from the start of the payload.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its type in the words of C or Rust: `u32`, `double`, `char`, `account *` for the place of an object, the name of another type. Empty: not
    /// known. A field of several times its type's size is an array. No part of the layout.
    pub kind: String,
}

/// A type as another language describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignType {
    /// The type's name.
    pub name: String,
    /// Bytes of one object; 0: each has its own length.
    pub bytes: u64,
    /// Its fields; may be left out.
    pub fields: Vec<ForeignField>,
}

impl ForeignType {
    /// The hash that stands in front of each object: FNV-1a over name, size and fields, never 0.
    pub fn layout(&self) -> u64 {
        let mut hash =
            hash_u64(hash_bytes(hash_bytes(HASH_START, b"foreign "), self.name.as_bytes()), self.bytes);
        for field in &self.fields {
            hash = hash_u64(hash_u64(hash_bytes(hash, field.name.as_bytes()), field.offset), field.bytes);
        }
        hash.max(1)
    }

    /// Checks that the description makes sense.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] that names what does not.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Argument { what });
        if self.name.is_empty() || self.name.len() > 255 || self.name.contains('\n') {
            return wrong("a type's name has 1 to 255 bytes and no line break".to_owned());
        }
        if self.bytes > FOREIGN_BYTES_MAX {
            return wrong(format!("type {}: {} bytes are too many", self.name, self.bytes));
        }
        for field in &self.fields {
            let breaks = |text: &str| text.contains(['\n', '\t']);
            if breaks(&field.name) || breaks(&field.kind) || field.kind.len() > 255 {
                let name = &field.name;
                return wrong(format!(
                    "type {}: field {name:?} has a line break or a tab in its name or type",
                    self.name
                ));
            }
            let end = field.offset.checked_add(field.bytes);
            if self.bytes != 0 && end.is_none_or(|end| end > self.bytes) {
                return wrong(format!("type {}: field {} ends behind the object", self.name, field.name));
            }
        }
        Ok(())
    }
}

impl ForeignType {
    /// The text of its record in the table of types: a line `bytes name`, then for each field a line `offset bytes name`, to which a tab and
    /// the type are added where that is known.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}\n", self.bytes, self.name);
        for field in &self.fields {
            text += &format!("{} {} {}", field.offset, field.bytes, field.name);
            if !field.kind.is_empty() {
                text += &format!("\t{}", field.kind);
            }
            text.push('\n');
        }
        text
    }

    /// Reads such a text; None: it is none.
    pub fn parse(text: &str) -> Option<ForeignType> {
        let mut lines = text.lines();
        let (bytes, name) = lines.next()?.split_once(' ')?;
        let field = |line: &str| {
            let (line, kind) = line.rsplit_once('\t').unwrap_or((line, ""));
            let mut words = line.splitn(3, ' ');
            Some(ForeignField {
                offset: words.next()?.parse().ok()?,
                bytes: words.next()?.parse().ok()?,
                name: words.next()?.to_owned(),
                kind: kind.to_owned(),
            })
        };
        let fields = lines.map(field).collect::<Option<_>>()?;
        Some(ForeignType { name: name.to_owned(), bytes: bytes.parse().ok()?, fields })
    }

    /// Returns true if the type of a field is known.
    pub fn is_typed(&self) -> bool {
        self.fields.iter().any(|field| !field.kind.is_empty())
    }
}

/// Type of the object that holds an array of Python: [`ARRAY_PAD`] zero bytes, then the elements in C order.
pub const ARRAY_TYPE: u64 = crate::persist::hash_name("memlift.Array 1", 0);
/// Zero bytes before an array's elements.
pub const ARRAY_PAD: usize = 48;

/// The root object of a pool that other languages use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct ForeignRoot {
    /// The table of names, or 0.
    pub names: u64,
    /// The table of objects that are freed as soon as nobody looks at them, or 0.
    pub limbo: u64,
    /// The root object that a C program set, or 0.
    pub object: u64,
    /// The `id` of its type in C, or 0.
    pub object_type: u64,
    /// The table of types, or 0.
    pub types: u64,
    /// Always 0 in the file.
    pub reserved: [u64; 3],
}

// SAFETY: eight u64 without padding; every pattern is a value.
unsafe impl Persist for ForeignRoot {
    const LAYOUT: u64 = hash_u64(hash_bytes(HASH_START, b"memlift.ForeignRoot 1"), 64);
    const NAME: &'static str = "ForeignRoot";
    const FIELDS: &'static [Field] = &[];

    fn pointers(_: u64, _: &mut dyn FnMut(PointerField)) {}
}

const _: () = assert!(size_of::<ForeignRoot>() == 64);

/// The root; all zero when there is none yet.
///
/// # Errors
///
/// [`Error::Layout`] when the pool has another kind of root.
pub fn root<V: View>(view: &V) -> Result<ForeignRoot> {
    view.root::<ForeignRoot>()?.map_or(Ok(ForeignRoot::default()), |root| view.get(root).copied())
}

/// Where the root is; made when there is none yet.
///
/// # Errors
///
/// As [`root`]; [`Error::Full`].
pub fn root_or(tx: &mut Tx<'_>) -> Result<PPtr<ForeignRoot>> {
    tx.root_or(|_| Ok(ForeignRoot::default()))
}

fn stale(offset: u64) -> Error {
    Error::Pointer { wanted: WANTED, offset }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The whole object as the heap sees it, its type and length checked.
fn whole<V: View>(view: &V, offset: u64, layout: u64) -> Result<PSlice<u8>> {
    if !offset.is_multiple_of(16) {
        return Err(stale(offset));
    }
    let header = view.slice(PSlice::<u8>::from_raw(offset, OBJECT_HEADER_BYTES))?;
    let (kind, bytes) = (word(header, 0), word(header, 8));
    if kind != layout || layout == 0 || bytes > FOREIGN_BYTES_MAX {
        return Err(stale(offset));
    }
    Ok(PSlice::from_raw(offset, OBJECT_HEADER_BYTES + bytes))
}

/// The payload of an object.
///
/// # Errors
///
/// [`Error::Pointer`] when there is none of this type.
pub fn read_raw<V: View>(view: &V, offset: u64, layout: u64) -> Result<&[u8]> {
    let all = view.slice(whole(view, offset, layout)?)?;
    Ok(&all[OBJECT_HEADER_BYTES as usize..])
}

impl Tx<'_> {
    /// A new object; its payload is `parts`, one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::Full`]; [`Error::Argument`] when it is larger than the mechanism takes.
    pub fn alloc_raw(&mut self, layout: u64, parts: &[&[u8]]) -> Result<u64> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.alloc_raw_bytes(layout, bytes, parts)
    }

    fn alloc_raw_bytes(&mut self, layout: u64, bytes: u64, parts: &[&[u8]]) -> Result<u64> {
        if bytes > FOREIGN_BYTES_MAX {
            let what = format!("an object of {bytes} bytes is too large: {FOREIGN_BYTES_MAX} are the most");
            return Err(Error::Argument { what });
        }
        let (kind, length) = (layout.to_le_bytes(), bytes.to_le_bytes());
        let all = OBJECT_HEADER_BYTES + bytes;
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(parts.len() + 2);
        pieces.extend([&kind[..], &length[..]]);
        pieces.extend(parts);
        Ok(self.alloc_bytes(all, &pieces)?.offset())
    }

    /// As [`Tx::alloc_raw`] with `bytes` bytes, those behind `parts` zero, and lends the payload to be filled: it is new, so
    /// nothing of it has to be kept or compared.
    ///
    /// # Errors
    ///
    /// As [`Tx::alloc_raw`]; [`Error::Argument`] when `parts` are longer.
    pub fn alloc_raw_lent(&mut self, layout: u64, bytes: u64, parts: &[&[u8]]) -> Result<(u64, &mut [u8])> {
        let filled: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if filled > bytes {
            return Err(Error::Argument { what: format!("{filled} bytes do not fit an object of {bytes}") });
        }
        let offset = self.alloc_raw_bytes(layout, bytes, parts)?;
        let all = OBJECT_HEADER_BYTES + bytes;
        let start = self.find(offset, all, 1, slice_tag::<u8>(), WANTED)?.cast_mut();
        // SAFETY: `find` checked that the object has `all` bytes and that its section is held for writing; the object was made
        // just now, so nobody else refers to it, and `&mut self` is borrowed for as long as the slice lives.
        let payload = unsafe {
            std::slice::from_raw_parts_mut(start.add(OBJECT_HEADER_BYTES as usize), bytes as usize)
        };
        Ok((offset, payload))
    }

    /// Gives an object back.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when there is none of this type, or it was given back already.
    pub fn free_raw(&mut self, offset: u64, layout: u64) -> Result<()> {
        let all = whole(self, offset, layout)?;
        self.slice_part_mut(all, 0, 8)?.fill(0);
        self.free_slice(all)
    }

    /// Gives an object back without writing into it: for those that nobody has a pointer to.
    pub(super) fn free_raw_unmarked(&mut self, offset: u64, layout: u64) -> Result<()> {
        let all = whole(self, offset, layout)?;
        self.free_slice(all)
    }

    /// Bytes [from, from + bytes) of an object's payload, to be changed: only the words that differ at the end are logged.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when there is no such object, or it is shorter.
    pub fn range_raw(&mut self, offset: u64, layout: u64, from: u64, bytes: u64) -> Result<&mut [u8]> {
        let all = whole(self, offset, layout)?;
        let inside = from.checked_add(bytes).is_some_and(|end| end <= all.len() - OBJECT_HEADER_BYTES);
        if !inside {
            return Err(stale(offset));
        }
        self.slice_part_mut(all, OBJECT_HEADER_BYTES + from, bytes)
    }

    /// Overwrites bytes of an object's payload from `from` on.
    ///
    /// # Errors
    ///
    /// As [`Tx::range_raw`].
    pub fn write_raw(&mut self, offset: u64, layout: u64, from: u64, source: &[u8]) -> Result<()> {
        self.range_raw(offset, layout, from, source.len() as u64)?.copy_from_slice(source);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_as_they_were_written_with_types_and_without() {
        let field = |name: &str, offset, bytes, kind: &str| ForeignField {
            name: name.to_owned(),
            offset,
            bytes,
            kind: kind.to_owned(),
        };
        let mut kind = ForeignType {
            name: "bank account".to_owned(),
            bytes: 32,
            fields: vec![field("owner", 0, 8, "account *"), field("a note", 8, 24, "")],
        };
        assert_eq!(kind.text(), "32 bank account\n0 8 owner\taccount *\n8 24 a note\n");
        assert_eq!(ForeignType::parse(&kind.text()), Some(kind.clone()));
        assert!(kind.is_typed());
        // As earlier releases wrote it, and objects of that are of this type.
        let before = ForeignType::parse("32 bank account\n0 8 owner\n8 24 a note\n").unwrap();
        assert!(!before.is_typed() && before.layout() == kind.layout());
        for odd in ["", "x y\n", "8\n", "8 a\n0 8\n", "8 a\n0 b c\n"] {
            assert_eq!(ForeignType::parse(odd), None, "{odd:?}");
        }
        kind.fields[0].name = "a\tb".to_owned();
        assert!(kind.check().is_err());
    }
}
