// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key-value store under the load of YCSB: GETs and SETs of records that are there.
//!
//! Draw     before the window: kind, record by Zipf's law with exponent 1 (YCSB: 0.99), the value's seed
//! Record   key: "user" and twelve digits; value: its seed, then the reference pattern of it, so that a torn one is seen
//! Store    [`memlift_persist::kv::Kv`]: keys in order, a B+tree for each section

use memlift_persist::kv::Kv;
use memlift_persist::{Durability, Error, Pool};

use super::{Program, Tally, broken, mix};
use crate::persist::draw::Draw;
use crate::reference;

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
/// Records that one transaction fills in.
const FILLED_AT_ONCE: u64 = 64;
/// What a record's number in the order of popularity is multiplied with: neighbours there are none in the store.
const SCATTER: u64 = 7919;

#[derive(Clone, Copy, Debug)]
struct Wish {
    seed: u64,
    record: u64,
    sets: bool,
}

/// The program; the store is opened where it is needed.
#[derive(Debug)]
pub struct Store {
    records: u64,
    sets_of_100: u64,
    /// Sums of the records' weights, the most popular one first.
    weights: Vec<u64>,
    wishes: Vec<Vec<Wish>>,
}

fn key(mut record: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user000000000000";
    for at in (4..KEY_BYTES).rev() {
        key[at] = b'0' + (record % 10) as u8;
        record /= 10;
    }
    key
}

fn value(seed: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&seed.to_ne_bytes());
    reference::pattern_of(&mut value[8..], seed);
    value
}

fn seed_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*value.first_chunk()?))
}

/// The seed of the value that a record has at first.
fn record_seed(record: u64) -> u64 {
    1 << 40 | record
}

/// The records of a new pool.
pub fn fill(pool: &Pool, records: u64) -> Result<(), Error> {
    let store = Kv::open(pool, Durability::Buffered)?;
    for first in (0..records).step_by(FILLED_AT_ONCE as usize) {
        let entries: Vec<_> = (first..records.min(first + FILLED_AT_ONCE))
            .map(|record| (key(record), value(record_seed(record))))
            .collect();
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        store.set_many(&entries)?;
    }
    Ok(())
}

impl Store {
    /// Of so many records, under a load with so many SETs of a hundred.
    pub fn new(records: u64, sets_of_100: u64) -> Store {
        let weights = (1..=records).scan(0, |sum, rank| {
            *sum += (1 << 40) / rank;
            Some(*sum)
        });
        Store { records, sets_of_100, weights: weights.collect(), wishes: Vec::new() }
    }

    fn wish(&self, draw: &mut Draw) -> Wish {
        let sets = draw.next() % 100 < self.sets_of_100;
        let weight = draw.next() % self.weights.last().copied().unwrap_or(1);
        let rank = self.weights.partition_point(|sum| *sum <= weight) as u64;
        Wish { seed: draw.next(), record: rank * SCATTER % self.records, sets }
    }
}

impl Program for Store {
    fn prepare(&mut self, thread: usize, state: u64, count: u64) {
        let mut draw = Draw::new(state);
        let wishes = (0..count).map(|_| self.wish(&mut draw)).collect();
        if self.wishes.len() <= thread {
            self.wishes.resize_with(thread + 1, Vec::new);
        }
        self.wishes[thread] = wishes;
    }

    fn work(
        &self,
        pool: &Pool,
        thread: usize,
        _state: u64,
        count: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let store = Kv::open(pool, Durability::Sync)?;
        for wish in &self.wishes[thread][..count as usize] {
            let key = key(wish.record);
            if wish.sets {
                store.set(&key, &value(wish.seed), 0)?;
                continue;
            }
            let found = store.look(&key, |value, _| (reference::checksum_of(value), value.len() as u64))?;
            let (sum, bytes) = found.ok_or_else(|| broken("a record is missing"))?;
            tally.race(sum);
            tally.settle(mix(wish.record, bytes));
        }
        Ok(())
    }

    fn look(&self, pool: &Pool, tally: &mut Tally) -> Result<(), Error> {
        let store = Kv::open(pool, Durability::Sync)?;
        if store.len()? != self.records {
            return Err(broken("there are more or fewer records than were filled in"));
        }
        for record in 0..self.records {
            let sum = store.look(&key(record), |there, _| {
                let whole = seed_of(there).is_some_and(|seed| value(seed) == *there);
                whole.then(|| (reference::checksum_of(there), there.len() as u64))
            })?;
            let (sum, bytes) =
                sum.ok_or_else(|| broken("a record is missing"))?.ok_or_else(|| broken("a value is torn"))?;
            tally.settle(mix(record, bytes));
            tally.race(mix(record, sum));
        }
        Ok(())
    }
}
