// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys that damage costs, one by one: those that a reader gets an error for.
//!
//! - **Flow** damaged pages ─▶ every key that the links lead to ─▶ looked up as a reader does it, who stops at a damaged
//!   page ─▶ the name of each that is not found
//! - **Rule** a list of keys is made of the bytes as they are; a structure whose links make no sense cannot list its keys, and is named
//!   itself. A key whose own bytes changed is named by what they are now
//! - **Layout** keys of Python's dicts are values ([`key_text`]); a name of a pool leads to a dict (1) or an array (2): u8 kind, u64 place
//! - **Not here** types of programs: which key leads to one of their objects is theirs to know

use std::collections::BTreeSet;

use super::foreign::Foreign;
use super::owned::{ARRAY, Audit, DICT, each_pair, names};
use crate::error::Result;
use crate::kv;
use crate::persist::Persist;
use crate::persist::slice_tag;
use crate::raw::{ForeignRoot, OBJECT_HEADER_BYTES, Table, root};

/// Something that a reader gets an error for.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The key, or the structure, in words.
    pub what: String,
    /// Its links make no sense: which of its keys are lost cannot be told.
    unlisted: bool,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unlisted {
            false => write!(formatter, "{} is lost", self.what),
            true => write!(formatter, "more of {} may be lost: its links make no sense", self.what),
        }
    }
}

/// Returns each key that cannot be read while these pages of the heap are damaged.
pub(crate) fn lost_keys<'h>(all: &Audit<'h>, pages: &'h BTreeSet<u64>) -> Result<Vec<Lost>> {
    let (heap, words) = (all.heap(), all.heap().root()?);
    if pages.is_empty() || !(words.1 == ForeignRoot::LAYOUT || words.1 == kv::LAYOUT) {
        return Ok(Vec::new());
    }
    let whole = all.reader(pages);
    let mut lost = Vec::new();
    if words.1 == kv::LAYOUT {
        let listed = kv::each_key(all, |key| {
            if !kv::has(&whole, key).unwrap_or(false) {
                lost.push(Lost { what: format!("the key {}", text(key)), unlisted: false });
            }
        });
        if listed.is_err() {
            lost.push(Lost { what: "the store".to_owned(), unlisted: true });
        }
        return Ok(lost);
    }
    let names = names(all);
    // Tables that are led to are there, whatever their heads say that they are.
    let mut tables: BTreeSet<u64> =
        names.iter().filter(|(_, named)| named.0 == DICT).map(|(at, _)| *at).collect();
    let listed = root(all).map_or(0, |root| root.names);
    tables.extend((listed != 0).then_some(listed));
    for place in heap.in_use().filter(|place| place.tag == slice_tag::<u8>()) {
        if Table::is_head(heap.snapshot.word(place.start)?) {
            tables.insert(place.start);
        }
    }
    // A reader goes by the root and the names.
    let led = root(&whole).is_ok();
    let finds = |name: &[u8]| led && Table::at(listed).get(&whole, name).is_ok();
    for table in tables {
        let led = names.get(&table).map_or(led, |(_, name)| finds(name));
        let name = match names.get(&table) {
            Some((_, name)) => format!("the dict {}", text(name)),
            None if table == listed => "the pool's names".to_owned(),
            None => format!("the table at {table:#x} of the heap"),
        };
        let outcome = each_pair(Table::at(table), all, |key, _| {
            if !led || !matches!(Table::at(table).get(&whole, key), Ok(Some(_))) {
                lost.push(Lost { what: format!("the key {} of {name}", key_text(key)), unlisted: false });
            }
        });
        if outcome.is_err() {
            lost.push(Lost { what: name, unlisted: true });
        }
    }
    if lost.iter().any(|lost| lost.unlisted) {
        // Nothing leads to these any more; what lies in the damaged pages still says its key.
        for place in heap.in_use().filter(|place| place.tag == slice_tag::<u8>()) {
            if whole.is_damaged(place.start, place.room)
                && let Ok(key) = Table::key_of_entry(all, place.start)
            {
                lost.push(Lost { what: format!("the key {} of a table", key_text(key)), unlisted: false });
            }
        }
    }
    if let Some(foreign) = Foreign::read(all) {
        for place in heap.in_use().filter(|place| whole.is_damaged(place.start, place.room)) {
            let head = foreign.head(all, &place)?.filter(|head| head.fits);
            let Some((head, known)) = head.and_then(|head| Some((head, foreign.get(head.id)?))) else {
                continue;
            };
            if whole.is_damaged(place.start, OBJECT_HEADER_BYTES + head.bytes) {
                let what = format!("the {} at {:#x} of the heap", known.name, place.start);
                lost.push(Lost { what, unlisted: false });
            }
        }
    }
    for (offset, (_, name)) in names.iter().filter(|(_, named)| named.0 == ARRAY) {
        let room = heap.place(*offset).map_or(0, |place| place.room);
        let bytes =
            heap.snapshot.word(*offset + 8).unwrap_or(0).saturating_add(OBJECT_HEADER_BYTES).min(room);
        if !finds(name) || whole.is_damaged(*offset, bytes) {
            lost.push(Lost { what: format!("the array {}", text(name)), unlisted: false });
        }
    }
    Ok(lost)
}

fn text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("b\"{}\"", key.escape_ascii()),
    }
}

/// A key as Python wrote it: a tag (3 int, 5 str, 6 bytes), its length as LEB128, its bytes. Others as they are.
fn key_text(key: &[u8]) -> String {
    let value = || {
        let (tag, rest) = key.split_first()?;
        let digits = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
        let (length, bytes) = rest.split_at(digits);
        let mut wanted = 0;
        for (at, byte) in length.iter().enumerate().take(9) {
            wanted |= usize::from(byte & 0x7f) << (7 * at);
        }
        (wanted == bytes.len()).then_some((*tag, bytes))
    };
    match value() {
        Some((3, bytes)) if (1..=16).contains(&bytes.len()) => {
            let sign = if bytes[bytes.len() - 1] & 0x80 == 0 { 0 } else { 0xff };
            let mut number = [sign; 16];
            number[..bytes.len()].copy_from_slice(bytes);
            i128::from_le_bytes(number).to_string()
        }
        Some((5, bytes)) => text(bytes),
        Some((6, bytes)) => format!("b\"{}\"", bytes.escape_ascii()),
        _ => text(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_python_prints_them() {
        for (key, wanted) in [
            (&b"\x05\x04rate"[..], "\"rate\""),
            (b"\x06\x02\x00a", "b\"\\x00a\""),
            (b"\x03\x01\xff", "-1"),
            (b"\x03\x02\xe8\x03", "1000"),
            (b"plain", "\"plain\""),
            (b"\x05\x09rate", "\"\\u{5}\\trate\""),
            (b"", "\"\""),
            (b"\xff", "b\"\\xff\""),
        ] {
            assert_eq!(key_text(key), wanted);
        }
    }
}
