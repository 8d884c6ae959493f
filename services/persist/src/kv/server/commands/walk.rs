// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that go through keys: SCAN, KEYS, RANDOMKEY.
//!
//! - **Owner** [`Cursors`] remembers where walks are: a client's cursor is a number, a walk's place is a key

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::{Bound, ControlFlow};
use std::sync::PoisonError;

use super::{Call, NOT_A_NUMBER, Outcome, REPLY_BYTES, Refused, SYNTAX, TOO_LARGE};
use crate::kv::after_prefix;
use crate::kv::server::pattern::{literal_prefix, matches};
use crate::kv::server::protocol::number;

/// Walks that are remembered, and bytes of their keys.
const CURSORS: usize = 4096;
const CURSOR_BYTES: usize = 16 << 20;
/// Keys that one SCAN looks at, at most.
const COUNT_MAX: i64 = 10_000;
/// Entries that RANDOMKEY goes through, at most.
const WALK_MAX: u64 = 10_000;

/// Places of walks, the oldest first.
#[derive(Debug, Default)]
pub struct Cursors {
    next: u64,
    bytes: usize,
    places: VecDeque<(u64, Vec<u8>)>,
}

impl Cursors {
    fn remember(&mut self, key: Vec<u8>) -> u64 {
        while self.places.len() >= CURSORS || self.bytes > CURSOR_BYTES {
            let Some((_, old)) = self.places.pop_front() else { break };
            self.bytes -= old.len();
        }
        self.next += 1;
        self.bytes += key.len();
        self.places.push_back((self.next, key));
        self.next
    }

    fn find(&self, cursor: u64) -> Option<&[u8]> {
        let at = self.places.binary_search_by_key(&cursor, |(number, _)| *number).ok()?;
        Some(&self.places[at].1)
    }
}

pub fn scan(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (cursor, options) = (call.arguments[0], &call.arguments[1..]);
    let invalid = Refused::new("ERR invalid cursor");
    let cursor: u64 = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok()).ok_or(invalid)?;
    let (mut pattern, mut count, mut strings) = (&b"*"[..], 10, true);
    let (pairs, odd) = options.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(SYNTAX);
    }
    for [option, value] in pairs {
        match &option.to_ascii_uppercase()[..] {
            b"MATCH" => pattern = value,
            b"COUNT" => {
                count = number(value).ok_or(NOT_A_NUMBER)?;
                if count < 1 {
                    return Err(SYNTAX);
                }
                count = count.min(COUNT_MAX);
            }
            b"TYPE" => strings = value.eq_ignore_ascii_case(b"string"),
            _ => return Err(SYNTAX),
        }
    }
    let cursors = &call.shared.cursors;
    let prefix = literal_prefix(pattern);
    let place = match cursor {
        0 => None,
        _ => {
            let cursors = cursors.lock().unwrap_or_else(PoisonError::into_inner);
            let found = cursors.find(cursor).map(<[u8]>::to_vec);
            let gone = Refused::new("ERR this cursor is too old or was never given: start again at 0");
            Some(found.ok_or(gone)?)
        }
    };
    let start = place.as_deref().map_or(Bound::Included(prefix), Bound::Excluded);
    let end = after_prefix(prefix);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let (mut keys, mut seen, mut last, mut more) = (Vec::new(), 0, Vec::new(), false);
    let empty = matches!((start, end), (Bound::Excluded(start), Bound::Excluded(end)) if start >= end);
    if !empty {
        call.at.scan((start, end), |key, _| {
            if seen == count {
                more = true;
                return ControlFlow::Break(());
            }
            seen += 1;
            last.clear();
            last.extend_from_slice(key);
            if strings && matches(pattern, key) {
                keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
    }
    let next = if more { cursors.lock().unwrap_or_else(PoisonError::into_inner).remember(last) } else { 0 };
    call.out.array(2);
    call.out.bulk(next.to_string().as_bytes());
    call.out.array(keys.len());
    keys.iter().for_each(|key| call.out.bulk(key));
    Ok(())
}

pub fn keys(call: &mut Call<'_, '_, '_>) -> Outcome {
    let pattern = call.arguments[0];
    let prefix = literal_prefix(pattern);
    let end = after_prefix(prefix);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let (mut keys, mut bytes) = (Vec::new(), 0);
    call.at.scan((Bound::Included(prefix), end), |key, _| {
        if matches(pattern, key) {
            bytes += key.len() + 16;
            keys.push(key.to_vec());
        }
        if bytes > REPLY_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if bytes > REPLY_BYTES {
        return Err(TOO_LARGE);
    }
    call.out.array(keys.len());
    keys.iter().for_each(|key| call.out.bulk(key));
    Ok(())
}

/// Some key. Each has the same chance while there are few; of many it is one of those that follow a place which is drawn between the first
/// and the last by their bytes.
pub fn randomkey(call: &mut Call<'_, '_, '_>) -> Outcome {
    let drawn = std::hash::RandomState::new().hash_one(0);
    let there = call.at.len()?.max(1);
    let first = nth(call, Bound::Unbounded, 0)?;
    let found = match &first {
        Some(first) if there > WALK_MAX => {
            let place = between(first, &call.at.last_key()?.unwrap_or_default(), drawn);
            nth(call, Bound::Included(&place), drawn % 64)?
        }
        _ => nth(call, Bound::Unbounded, drawn % there)?,
    };
    match found.or(first) {
        Some(key) => call.out.bulk(&key),
        None => call.out.nothing(),
    }
    Ok(())
}

/// The key that lies `n` behind the first from `start` on; the last, if there are fewer.
fn nth(call: &Call<'_, '_, '_>, start: Bound<&[u8]>, n: u64) -> Result<Option<Vec<u8>>, Refused> {
    let (mut left, mut found) = (n, None);
    call.at.scan((start, Bound::Unbounded), |key, _| {
        found = Some(key.to_vec());
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Bytes between two keys: what they have in common, then bytes of the range where they part.
fn between(first: &[u8], last: &[u8], drawn: u64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(one, other)| one == other).count();
    let low = first.get(common).copied().unwrap_or(0);
    let high = last.get(common).copied().unwrap_or(u8::MAX).max(low);
    let mut place = first[..common].to_vec();
    place.extend(drawn.to_le_bytes().map(|byte| low + (u16::from(byte) % (u16::from(high - low) + 1)) as u8));
    place
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn a_place_lies_between_the_keys() {
        for drawn in (0..1000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let place = between(b"key:100", b"key:900", drawn);
            assert!(place >= b"key:1".to_vec() && place < b"key:9a".to_vec(), "{place:?}");
        }
        assert_eq!(between(b"a", b"a", 7), [&b"a"[..], &[7, 0, 0, 0, 0, 0, 0, 0]].concat());
    }
}
