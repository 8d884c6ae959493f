// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model in plain Rust of what the rivals must leave and read: their checksums are compared with the model's.
//!
//! - **Loaded** the key of row i of a store that is read is draw number i from [`LOADED_SEED`]; the value of a key is the pattern
//!   seeded with it
//! - **Sum** of a set of entries: the wrapping sum of checksum(value) ^ key, so that their order does not matter

use std::collections::BTreeSet;

use super::draw::{Draw, RECORD_BYTES};
use super::serve::checksum;
use super::{Kind, Place, theirs};
use crate::reference;

const LOADED_SEED: u64 = 0x6b65_7973;
const RECORDS: u64 = 16_384;

fn loaded(count: usize) -> BTreeSet<u64> {
    let mut draw = Draw::new(LOADED_SEED);
    (0..count).map(|_| draw.next()).collect()
}

fn sum(keys: impl IntoIterator<Item = u64>) -> u64 {
    keys.into_iter().fold(0, |sum: u64, key| {
        let mut value = [0; RECORD_BYTES];
        reference::pattern_of(&mut value, key);
        sum.wrapping_add(reference::checksum_of(&value) ^ key)
    })
}

/// Runs a rival twice and compares with what `expected` says of each run's seed and count.
fn agrees(kind: Kind, rival: &str, count: u64, mut expected: impl FnMut(u64, u64) -> u64) {
    let mut place = Place::default();
    let (mut party, compares) = theirs(kind, rival, &mut place, true).expect("the rival is here");
    assert!(compares);
    for seed in [1, 2] {
        let ran = party.run(seed, count).expect("runs");
        assert_eq!(ran.checksum, checksum(expected(seed, count)), "{kind:?} of {rival}, run {seed}");
    }
    party.end().expect("ends well");
}

#[test]
#[ignore = "soak"]
fn soak_libpmemobj_leaves_what_plain_rust_leaves() {
    for ranges in [1, 4, 16] {
        let mut records = vec![0; RECORDS as usize * RECORD_BYTES];
        agrees(Kind::Records { ranges, per_range: false }, "libpmemobj", 500, |seed, count| {
            let mut draw = Draw::new(seed);
            for _ in 0..count * ranges {
                let at = (draw.next() % RECORDS) as usize * RECORD_BYTES;
                reference::pattern_of(&mut records[at..at + RECORD_BYTES], draw.next());
            }
            reference::checksum_of(&records)
        });
    }
    for kind in ["btree", "hashmap", "rbtree", "skiplist"] {
        agrees(Kind::Map { kind, inserts: 3000 }, "libpmemobj", 3000, |seed, count| {
            let mut draw = Draw::new(seed);
            sum((0..count).map(|_| draw.next()))
        });
    }
}

#[test]
#[ignore = "soak"]
fn soak_stores_leave_and_read_what_plain_rust_does() {
    let rows = loaded(1_000_000);
    for store in ["sqlite_wal_full", "redb", "lmdb"] {
        for workload in ["commit", "group16"] {
            let mut keys = loaded(10_000);
            agrees(Kind::Store { workload }, store, 32, |seed, count| {
                let mut draw = Draw::new(seed);
                keys.extend((0..count).map(|_| draw.next()));
                sum(keys.iter().copied())
            });
        }
        let keys = loaded_keys;
        agrees(Kind::Store { workload: "get" }, store, 1000, |seed, count| sum(keys(seed, count)));
        agrees(Kind::Store { workload: "scan" }, store, 100, |seed, count| {
            keys(seed, count)
                .into_iter()
                .fold(0, |all: u64, key| all.wrapping_add(sum(rows.range(key..).take(100).copied())))
        });
    }
}

/// The keys that a run reads.
fn loaded_keys(seed: u64, count: u64) -> Vec<u64> {
    let mut draw = Draw::new(seed);
    let key = |row: u64| Draw::new(LOADED_SEED).skip(row).next();
    (0..count).map(|_| key(draw.next() % 1_000_000)).collect()
}
