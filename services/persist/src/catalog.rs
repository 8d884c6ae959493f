// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that have objects in a pool: names and fields for tools, and a guard against two types with one tag.
//!
//! - **Layout** records, one after the other, each: u32 bytes of the text · u32 CRC-32C of the text · the text, padded to 8. The
//!   text is lines: `tag layout bytes name`, then `offset bytes type name` for each field. A length of 0 or a wrong CRC
//!   ends the list
//! - **Order** append only, durable before the first object of the type is; a record that a crash tore is written again
//! - **Not here** durability: a pool with a damaged catalog works, and its tools show bytes

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::layout::{CATALOG_BYTES, CATALOG_START, crc32c};
use crate::medium::{Counters, Medium};
use crate::persist::{Field, Persist};

/// Name of the types of moving objects, in the catalog.
pub(crate) const MOVING: &str = "moving";

/// A type as the file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeRecord {
    /// The tag that directory entries name it by.
    pub tag: u32,
    /// Its layout hash.
    pub layout: u64,
    /// Bytes of a value.
    pub bytes: u64,
    /// Its name; an array's is in brackets.
    pub name: String,
    /// Fields: offset, bytes, type, name.
    pub fields: Vec<(u32, u32, String, String)>,
}

/// Types that are written already.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    known: HashMap<u32, u64>,
    end: u64,
    records: Vec<TypeRecord>,
}

fn text(tag: u32, layout: u64, bytes: usize, name: &str, fields: &[Field]) -> String {
    let mut text = format!("{tag:08x} {layout:016x} {bytes} {name}\n");
    for field in fields {
        let type_name = field.type_name.split_whitespace().collect::<String>();
        let _ = writeln!(text, "{} {} {type_name} {}", field.offset, field.bytes, field.name);
    }
    text
}

fn parse(text: &str) -> Option<TypeRecord> {
    let mut lines = text.lines();
    let mut words = lines.next()?.splitn(4, ' ');
    let mut record = TypeRecord {
        tag: u32::from_str_radix(words.next()?, 16).ok()?,
        layout: u64::from_str_radix(words.next()?, 16).ok()?,
        bytes: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
        fields: Vec::new(),
    };
    for line in lines {
        let mut words = line.splitn(4, ' ');
        record.fields.push((
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
            words.next()?.to_owned(),
            words.next()?.to_owned(),
        ));
    }
    Some(record)
}

impl Catalog {
    /// Reads the list.
    pub fn read(medium: &Medium) -> Result<Catalog> {
        let mut bytes = vec![0; CATALOG_BYTES as usize];
        medium.read(CATALOG_START, &mut bytes)?;
        let mut catalog = Catalog::default();
        while let Some(record) = catalog.next(&bytes) {
            catalog.known.insert(record.tag, record.layout);
            catalog.records.push(record);
        }
        Ok(catalog)
    }

    fn next(&mut self, bytes: &[u8]) -> Option<TypeRecord> {
        let at = self.end as usize;
        let head = bytes.get(at..at + 8)?;
        let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
        let text = bytes.get(at + 8..at.checked_add(8)?.checked_add(length)?)?;
        if length == 0 || crc32c(&[text]) != u32::from_le_bytes(head[4..].try_into().ok()?) {
            return None;
        }
        let record = parse(std::str::from_utf8(text).ok()?)?;
        self.end += 8 + (length as u64).next_multiple_of(8);
        Some(record)
    }

    /// Where the list ends, in bytes from its start.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The types, in the order of their records.
    pub fn records(&self) -> &[TypeRecord] {
        &self.records
    }

    /// Makes sure that a type with this tag is the one that is known by it, and writes it down when it is new.
    pub fn register<T: Persist>(
        &mut self,
        tag: u32,
        slice: bool,
        medium: &Medium,
        counters: &mut Counters,
    ) -> Result<()> {
        let layout = if slice { !T::LAYOUT } else { T::LAYOUT };
        match self.known.get(&tag) {
            Some(known) if *known == layout => return Ok(()),
            Some(_) => {
                return Err(Error::Argument {
                    what: format!("another type in this pool has the tag of {}: rename one of them", T::NAME),
                });
            }
            None => {}
        }
        let name = if slice { format!("[{}]", T::NAME) } else { T::NAME.to_owned() };
        let text = text(tag, layout, size_of::<T>(), &name, T::FIELDS);
        let whole = 8 + (text.len() as u64).next_multiple_of(8);
        if self.end + whole <= CATALOG_BYTES {
            let mut bytes = Vec::with_capacity(whole as usize);
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&crc32c(&[text.as_bytes()]).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(whole as usize, 0);
            medium.store(CATALOG_START + self.end, &bytes, counters)?;
            medium.write_back(CATALOG_START + self.end, whole, counters);
            medium.harden(counters)?;
            self.end += whole;
            self.records.extend(parse(&text));
        }
        self.known.insert(tag, layout);
        Ok(())
    }
}
