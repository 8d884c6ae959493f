// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key-value store under the load of YCSB: GETs and SETs of records that are there.
//!
//! - **Draw** before the window: kind, record by Zipf's law with exponent 1 (YCSB: 0.99), the value's seed
//! - **Record** key: "user" and twelve digits; value: its seed, then the reference pattern of it, so that a torn one is seen
//! - **Store** a hash map for each part of the keys, in a section of its own, as the rival's: [`memlift_persist::structures::HashMap`]
//! - **Not here** the ordered store with scans and expiry sweeps, `memlift_persist::kv`: it does more than the rival's program does

use memlift_persist::structures::{HashMap, HashMapRoot};
use memlift_persist::{Durability, Error, PPtr, Persist, Pool, TxOptions, View};

use super::{PARTS, Program, Tally, broken, filling, mix};
use crate::persist::draw::Draw;
use crate::reference;

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
/// Records that one transaction fills in.
const FILLED_AT_ONCE: usize = 64;
/// Factor from a record's rank in popularity to its number: popular records are no neighbours in the store.
const SCATTER: u64 = 7919;

#[derive(Clone, Copy, Debug)]
struct Request {
    seed: u64,
    record: u64,
    sets: bool,
}

/// The program on its maps.
#[derive(Debug)]
pub struct Store {
    maps: Vec<Map>,
    records: u64,
    sets_of_100: u64,
    /// Running sums of the records' weights, the most popular one first.
    weights: Vec<u64>,
    requests: Vec<Vec<Request>>,
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

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Entry {
    expires: u64,
    value: [u8; VALUE_BYTES],
}

type Map = HashMap<[u8; KEY_BYTES], Entry>;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Root {
    maps: [PPtr<HashMapRoot<[u8; KEY_BYTES], Entry>>; PARTS as usize],
}

fn part(key: &[u8; KEY_BYTES]) -> usize {
    let (words, _) = key.as_chunks::<8>();
    let hash = mix(mix(16, u64::from_ne_bytes(words[0])), u64::from_ne_bytes(words[1]));
    ((hash >> 32) % PARTS) as usize
}

/// Returns the section of a part; with commits by pages there is one section for all.
fn section(pool: &Pool, part: usize) -> u16 {
    (part as u32 % pool.header().sections) as u16
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
    let mut root = Root { maps: [PPtr::NULL; PARTS as usize] };
    let mut records_of = vec![Vec::new(); PARTS as usize];
    (0..records).for_each(|record| records_of[part(&key(record))].push(record));
    for (at, records) in records_of.iter().enumerate() {
        let section = section(pool, at);
        let map = pool.tx_with(filling(&[section]), |t| Map::create_in(t, section))?;
        root.maps[at] = map.pointer();
        for records in records.chunks(FILLED_AT_ONCE) {
            pool.tx_with(filling(&[section]), |t| {
                records.iter().try_for_each(|record| {
                    let entry = Entry { expires: 0, value: value(record_seed(*record)) };
                    map.insert(t, key(*record), entry).map(drop)
                })
            })?;
        }
    }
    pool.tx_with(filling(&[0]), |t| {
        let place = t.alloc(root)?;
        t.set_root(place)
    })
}

impl Store {
    /// Opens the store on a pool that was filled with `records`, for a load with `sets_of_100` SETs of a hundred.
    pub fn open(pool: &Pool, records: u64, sets_of_100: u64) -> Result<Store, Error> {
        let root = pool.read_in(&[0], |r| {
            Ok::<_, Error>(*r.get(r.root::<Root>()?.ok_or_else(|| broken("there is no root"))?)?)
        })?;
        let weights = (1..=records).scan(0, |sum, rank| {
            *sum += (1 << 40) / rank;
            Some(*sum)
        });
        let maps = root.maps.into_iter().map(Map::open).collect();
        Ok(Store { maps, records, sets_of_100, weights: weights.collect(), requests: Vec::new() })
    }

    /// A record's checksum and length; None: it is torn.
    fn get(&self, pool: &Pool, key: &[u8; KEY_BYTES]) -> Result<Option<(u64, u64)>, Error> {
        let part = part(key);
        pool.read_in(&[section(pool, part)], |r| {
            let entry = self.maps[part].get(r, key)?.ok_or_else(|| broken("a record is missing"))?;
            let whole = seed_of(&entry.value).is_some_and(|seed| value(seed) == entry.value);
            Ok(whole.then(|| (reference::checksum_of(&entry.value), entry.value.len() as u64)))
        })
    }

    fn request(&self, draw: &mut Draw) -> Request {
        let sets = draw.next() % 100 < self.sets_of_100;
        let weight = draw.next() % self.weights.last().copied().unwrap_or(1);
        let rank = self.weights.partition_point(|sum| *sum <= weight) as u64;
        Request { seed: draw.next(), record: rank * SCATTER % self.records, sets }
    }
}

impl Program for Store {
    fn prepare(&mut self, thread: usize, state: u64, count: u64) {
        let mut draw = Draw::new(state);
        let requests = (0..count).map(|_| self.request(&mut draw)).collect();
        if self.requests.len() <= thread {
            self.requests.resize_with(thread + 1, Vec::new);
        }
        self.requests[thread] = requests;
    }

    fn work(
        &self,
        pool: &Pool,
        thread: usize,
        _state: u64,
        count: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        for request in &self.requests[thread][..count as usize] {
            let key = key(request.record);
            let part = part(&key);
            let sections = [section(pool, part)];
            if request.sets {
                let options = TxOptions { durability: Durability::Sync, sections: Some(&sections) };
                let value = value(request.seed);
                pool.tx_with(options, |t| {
                    let entry = self.maps[part].get_mut(t, &key)?;
                    entry.ok_or_else(|| broken("a record is missing"))?.value = value;
                    Ok::<_, Error>(())
                })?;
                continue;
            }
            let (sum, bytes) = pool.read_in(&sections, |r| {
                let entry = self.maps[part].get(r, &key)?.ok_or_else(|| broken("a record is missing"))?;
                Ok::<_, Error>((reference::checksum_of(&entry.value), entry.value.len() as u64))
            })?;
            tally.race(sum);
            tally.settle(mix(request.record, bytes));
        }
        Ok(())
    }

    fn audit(&self, pool: &Pool, tally: &mut Tally) -> Result<(), Error> {
        let records = pool.read(|r| self.maps.iter().map(|map| map.len(r)).sum::<Result<u64, Error>>())?;
        if records != self.records {
            return Err(broken("there are more or fewer records than were filled in"));
        }
        for record in 0..self.records {
            let (sum, bytes) = self.get(pool, &key(record))?.ok_or_else(|| broken("a value is torn"))?;
            tally.settle(mix(record, bytes));
            tally.race(mix(record, sum));
        }
        Ok(())
    }
}
