// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inserts into a map of a pool: one transaction each, durable when it returns.
//!
//! - **Flow** `run`: a new pool, every page touched, an empty map, all outside the window ─▶ inserts: key = draw, 64 bytes of value =
//!   pattern(key) ─▶ what is left of the log goes to its place, within the window ─▶ the sum over all entries, outside
//! - **Steady** a lane wraps more than ten times in a run, which its count `log_wraps` shows
//! - **Value** kept in the map's node or entry, as the structure does by itself; the rival's maps point to an object of its own

use std::path::{Path, PathBuf};

use memlift_persist::structures::{BTree, HashMap, RbTree, SkipList};
use memlift_persist::{Error, Options, Persist, Pool, Tx, View};

use super::{about, create, failed};
use crate::persist::draw::{Draw, RECORD_BYTES};
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::{BenchError, reference};

/// Bytes of heap for each insert: enough for any of the maps.
const HEAP_BYTES_EACH: u64 = 512;
const HEAP_BYTES_MIN: u64 = 8 << 20;
/// One for the thread and one that groups would share.
const LANES: u32 = 2;
/// Small enough that ten thousand inserts fill it more than ten times.
const LANE_BYTES: u64 = 128 << 10;
/// Inserts that are stepped through, and those before them; the rival has the same numbers.
const STEPPED: u64 = 16;
const BEFORE_STEPS: u64 = 1000;

/// A value, as the reference routine fills it.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C, align(8))]
pub struct Value {
    /// Bytes of the pattern.
    pub bytes: [u8; RECORD_BYTES],
}

impl Value {
    /// Returns the value of this key.
    #[inline]
    pub fn of(key: u64) -> Value {
        let mut bytes = [0; RECORD_BYTES];
        reference::pattern_of(&mut bytes, key);
        Value { bytes }
    }

    /// Returns the entry's share of a sum.
    #[inline]
    pub fn sum(&self, key: u64) -> u64 {
        reference::checksum_of(&self.bytes) ^ key
    }
}

/// One of the maps.
#[derive(Clone, Copy, Debug)]
enum Map {
    BTree(BTree<u64, Value>),
    Hash(HashMap<u64, Value>),
    RbTree(RbTree<u64, Value>),
    SkipList(SkipList<u64, Value>),
}

impl Map {
    /// Makes an empty map; None for an unknown kind.
    fn create(kind: &str, t: &mut Tx<'_>) -> Result<Option<Map>, Error> {
        Ok(Some(match kind {
            "btree" => Map::BTree(BTree::create(t)?),
            "hashmap" => Map::Hash(HashMap::create(t)?),
            "rbtree" => Map::RbTree(RbTree::create(t)?),
            "skiplist" => Map::SkipList(SkipList::create(t)?),
            _ => return Ok(None),
        }))
    }

    #[inline]
    fn insert(self, t: &mut Tx<'_>, key: u64, value: Value) -> Result<(), Error> {
        match self {
            Map::BTree(map) => map.insert(t, &key, value).map(drop),
            Map::Hash(map) => map.insert(t, key, value).map(drop),
            Map::RbTree(map) => map.insert(t, key, value).map(drop),
            Map::SkipList(map) => map.insert(t, key, value).map(drop),
        }
    }

    /// Returns the sum over all entries, and how many they are.
    fn sum<W: View>(self, view: &W) -> Result<(u64, u64), Error> {
        let (mut sum, mut count) = (0u64, 0);
        macro_rules! all {
            ($map:expr) => {
                for entry in $map.iter(view)? {
                    let (key, value) = entry?;
                    sum = sum.wrapping_add(value.sum(*key));
                    count += 1;
                }
            };
        }
        match self {
            Map::BTree(map) => all!(map),
            Map::Hash(map) => all!(map),
            Map::RbTree(map) => all!(map),
            Map::SkipList(map) => all!(map),
        }
        Ok((sum, count))
    }
}

/// Makes maps of one kind.
#[derive(Debug)]
pub struct Maps {
    kind: String,
    path: PathBuf,
    about: String,
}

impl Maps {
    /// Makes maps of this kind, in new files at `path`; None for an unknown kind.
    pub fn open(kind: &str, path: &Path) -> Result<Option<Maps>, BenchError> {
        let mut maps = Maps { kind: kind.to_owned(), path: path.to_owned(), about: String::new() };
        let options = options(0);
        let pool = create(path, &options)?;
        maps.about = about(&pool, &options);
        let made = pool.tx(|t| Map::create(kind, t)).map_err(failed)?;
        Ok(made.map(|_| maps))
    }

    fn fresh(&self, inserts: u64) -> Result<(Pool, Map), BenchError> {
        let pool = create(&self.path, &options(inserts))?;
        let map = pool.tx(|t| Map::create(&self.kind, t)).map_err(failed)?;
        Ok((pool, map.expect("the kind was asked for before")))
    }
}

fn options(inserts: u64) -> Options {
    let heap_bytes = HEAP_BYTES_MIN + (inserts * HEAP_BYTES_EACH).next_multiple_of(1 << 20);
    Options { heap_bytes, max_bytes: heap_bytes, lanes: LANES, lane_bytes: LANE_BYTES, ..Options::default() }
}

fn inserts(pool: &Pool, map: Map, draw: &mut Draw, count: u64) -> Result<(), BenchError> {
    for _ in 0..count {
        let key = draw.next();
        pool.tx(|t| map.insert(t, key, Value::of(key))).map_err(failed)?;
    }
    Ok(())
}

impl Work for Maps {
    fn about(&self) -> String {
        format!("{}; heap {} B per insert more", self.about, HEAP_BYTES_EACH)
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let (pool, map) = self.fresh(count)?;
        let mut draw = Draw::new(seed);
        let before = pool.counters();
        let ran = serve::timed(|| {
            inserts(&pool, map, &mut draw, count)?;
            pool.apply().map_err(failed)
        })?;
        let after = pool.counters();
        let (sum, found) = pool.read(|r| map.sum(r)).map_err(failed)?;
        if found != count {
            let reason = format!("{found} of {count} inserts are in the map");
            return Err(BenchError::Engine { reason });
        }
        let log_bytes = after.log_bytes - before.log_bytes;
        let counts = [
            ("inserts", count),
            ("all_fences", after.hardens - before.hardens),
            ("applier_fences", pool.applier_counters().hardens),
            ("log_bytes", log_bytes),
            ("log_wraps", log_bytes / LANE_BYTES),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
        Ok(Ran { checksum: serve::checksum(sum), counts, ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        let (pool, map) = self.fresh(BEFORE_STEPS)?;
        let mut draw = Draw::new(1);
        inserts(&pool, map, &mut draw, BEFORE_STEPS)?;
        // Empties the log first: how full it would be is chance, and applying it is timed in the runs.
        pool.apply().map_err(failed)?;
        stop();
        stop();
        inserts(&pool, map, &mut draw, STEPPED)?;
        stop();
        Ok(STEPPED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::disk::Shared;

    #[test]
    fn a_run_leaves_what_plain_rust_leaves() {
        for kind in ["btree", "hashmap", "rbtree", "skiplist"] {
            let place = Shared::new(256 << 20).expect("room in memory");
            let mut maps = Maps::open(kind, &place.path).expect("opens").expect("a kind");
            for seed in [1, 2] {
                let mut draw = Draw::new(seed);
                let expected = (0..700).map(|_| draw.next()).fold(0, |sum: u64, key| {
                    let value = Value::of(key);
                    sum.wrapping_add(value.sum(key))
                });
                let ran = maps.run(seed, 700).expect("runs");
                assert_eq!(ran.checksum, serve::checksum(expected), "{kind}");
                // The first object of a type costs one more, once: its description becomes durable before it.
                let types = ran.counts["all_fences"] - 700;
                assert!(ran.counts["inserts"] == 700 && types <= 3, "{kind}: {types}");
            }
        }
    }

    #[test]
    fn there_is_no_other_kind() {
        let place = Shared::new(64 << 20).expect("room in memory");
        assert!(Maps::open("trie", &place.path).expect("opens").is_none());
    }
}
