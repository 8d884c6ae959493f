// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses how a walk runs: at the nodes, at the client over its cache, or at the client after it has fetched the whole range.
//!
//! - **Flow** [`Chooser::walk`] asks the program's [`Bandit`] for the way with the shortest measured time, runs the walk, teaches the
//!   bandit its time and records the decision for `memlift explain`. [`Chooser::explain`] gives the same measurements as text
//! - **Order** each program has its own measurements; a way that was never tried is tried first
//! - **Not here** the rules of the decision (`memlift_place`), and the ways themselves (`local`, and `super::Client`)

use std::collections::HashMap;
use std::time::Duration;

use memlift_ground::observe::{self, CacheState, DecisionRecord, Executor};
use memlift_place::{Bandit, Rules, Turn, WalkReason};
use memlift_spec::Opcode;

use super::cache::{Cache, PIECE_BYTES};
use super::{Client, Result};
use crate::structures::heap::{Heap, Walk, Walked};

/// Most bytes of a range that is fetched before a walk.
const BULK_BYTES_MAX: u64 = 1 << 20;

/// A way to run a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The walk runs at the nodes.
    Remote,
    /// The walk runs at the client; bytes that are not in its cache are read hop by hop.
    Cached,
    /// The walk runs at the client, after the whole range was read.
    Bulk,
}

/// All ways, indexed by `Way as usize`.
const WAYS: [Way; 3] = [Way::Remote, Way::Cached, Way::Bulk];

/// Measurements of one program's walks: the times of each way, in nanoseconds; for [`Way::Cached`] also the smoothed numbers of
/// steps and reads.
#[derive(Debug)]
struct Measured {
    ways: Bandit<{ WAYS.len() }>,
    steps: f64,
    reads: f64,
}

impl Measured {
    fn new() -> Measured {
        Measured { ways: Bandit::new(&Rules::WALKS), steps: 0.0, reads: 0.0 }
    }

    fn taken(&self, way: Way) -> Option<Duration> {
        self.ways.known(way as usize).map(|known| Duration::from_nanos(known.cost as u64))
    }
}

/// Marks the ways that are possible, by their indices in [`WAYS`].
fn possible(range: Option<(u64, u64)>) -> [bool; WAYS.len()] {
    WAYS.map(|way| way != Way::Bulk || range.is_some_and(|(_, bytes)| bytes <= BULK_BYTES_MAX))
}

/// See the module's header.
#[derive(Debug)]
pub struct Chooser {
    /// Pieces of nodes' memory that the client has read; [`Way::Cached`] and [`Way::Bulk`] walk over them.
    pub cache: Cache,
    by_program: HashMap<[u8; 32], Measured>,
}

impl Chooser {
    /// Makes a chooser over this cache.
    #[must_use]
    pub fn new(cache: Cache) -> Chooser {
        Chooser { cache, by_program: HashMap::new() }
    }

    fn measured(&mut self, walk: &Walk) -> &mut Measured {
        self.by_program.entry(walk.program.hash()).or_insert_with(Measured::new)
    }

    /// Runs a walk the fastest way. `range` (first address, bytes) covers everything that the walk can touch; `None` if
    /// unknown.
    ///
    /// # Errors
    /// Those of the walk.
    pub fn walk(
        &mut self,
        client: &mut Client,
        walk: &Walk,
        range: Option<(u64, u64)>,
    ) -> Result<(Walked, Way)> {
        let pick = self.measured(walk).ways.pick_of(&possible(range));
        let why = match pick.turn {
            Turn::Explored => WalkReason::Explored,
            Turn::Cheapest | Turn::Held => WalkReason::Fastest,
        };
        let way = WAYS[pick.way];
        let walked = self.run(client, walk, range, way, (why, pick.cost as u64))?;
        Ok((walked, way))
    }

    /// Runs a walk this way, and measures its time.
    ///
    /// # Errors
    /// Those of the walk.
    pub fn walk_by(
        &mut self,
        client: &mut Client,
        walk: &Walk,
        range: Option<(u64, u64)>,
        way: Way,
    ) -> Result<Walked> {
        let predicted = self.measured(walk).taken(way).unwrap_or_default();
        self.run(client, walk, range, way, (WalkReason::Requested, predicted.as_nanos() as u64))
    }

    fn run(
        &mut self,
        client: &mut Client,
        walk: &Walk,
        range: Option<(u64, u64)>,
        way: Way,
        (why, predicted_ns): (WalkReason, u64),
    ) -> Result<Walked> {
        let begun_ns = observe::now_ns();
        let (walked, gone) = match (way, range) {
            (Way::Remote, _) => (client.walk(walk)?, None),
            (Way::Bulk, Some((base, bytes))) => {
                client.fetch_range(&mut self.cache, base, bytes)?;
                let (walked, gone) = client.walk_locally(&mut self.cache, walk)?;
                (walked, Some(gone))
            }
            _ => {
                let (walked, gone) = client.walk_locally(&mut self.cache, walk)?;
                (walked, Some(gone))
            }
        };
        let took_ns = observe::now_ns().saturating_sub(begun_ns);
        let measured = self.measured(walk);
        measured.ways.learn(way as usize, took_ns.max(1) as f64);
        if let (Way::Cached, Some(gone)) = (way, gone) {
            measured.steps += (gone.steps as f64 - measured.steps) / 8.0;
            measured.reads += (gone.reads as f64 - measured.reads) / 8.0;
        }
        observe::decide(DecisionRecord {
            time_ns: begun_ns,
            opcode: Opcode::WALK,
            executor: if way == Way::Remote { Executor::Remote } else { Executor::InlineTemporal },
            cache_state: match gone {
                None => CacheState::Unknown,
                Some(gone) if gone.reads == 0 => CacheState::Hot,
                Some(_) => CacheState::Cold,
            },
            size: walked.result.len() as u64,
            predicted_ns,
            measured_ns: took_ns,
            reason: why as u16,
        });
        Ok(walked)
    }

    /// Explains the choice for a walk of this program: the time of each way, or the reason that the way is not possible.
    #[must_use]
    pub fn explain(&self, client: &Client, walk: &Walk, range: Option<(u64, u64)>) -> String {
        use std::fmt::Write;
        let measured = self.by_program.get(&walk.program.hash());
        let taken = |way| measured.and_then(|measured| measured.taken(way));
        let possible = possible(range);
        let left = WAYS.into_iter().filter(|&way| possible[way as usize]);
        // `None` is less than any time: a way that was never tried is next.
        let next = left.min_by_key(|&way| taken(way)).unwrap_or(Way::Remote);
        let mut text = format!("{}: {next:?}\n", walk.program.name());
        for way in WAYS {
            let said = match (taken(way), way, measured) {
                (_, Way::Bulk, _) if range.is_none() => "not possible: the range is not known".to_owned(),
                (_, Way::Bulk, _) if !possible[way as usize] => {
                    format!("not possible: more than {BULK_BYTES_MAX} bytes")
                }
                (Some(taken), Way::Cached, Some(measured)) => format!(
                    "{taken:?} ({:.1} steps, {:.1} reads of {PIECE_BYTES} bytes; {} hits, {} misses)",
                    measured.steps, measured.reads, self.cache.hits, self.cache.misses
                ),
                (Some(taken), _, _) => format!("{taken:?}"),
                (None, _, _) => "not measured yet: tried next".to_owned(),
            };
            let _ = writeln!(text, "  {way:?}: {said}");
        }
        if let Some(trip) = client.round_trip() {
            let _ = writeln!(text, "  a round trip: {trip:?}");
        }
        text
    }
}
