// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses how a walk runs: at the nodes, at the client over its cache, or at the client after it has fetched the whole range.
//!
//! - **Flow** [`Chooser::walk`] takes the way with the shortest measured time; from time to time it takes each way in turn, to
//!   measure it again. [`Chooser::explain`] gives the same measurements as text
//! - **Order** each program has its own measurements, smoothed over about eight walks; a way that was never tried is tried first
//! - **Not here** the ways themselves (`local`, and `super::Client`)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cache::{Cache, PIECE_BYTES};
use super::{Client, Result};
use crate::structures::heap::{Heap, Walk, Walked};

/// One in `EXPLORE` walks of a program takes the next way in turn, so that all ways are measured again.
const EXPLORE: u64 = 64;
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

/// Measurements of one program's walks: per way the smoothed time; for [`Way::Cached`] also the smoothed numbers of steps
/// and reads.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    taken: [Option<Duration>; 3],
    steps: f64,
    reads: f64,
    walks: u64,
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

    fn ways(range: Option<(u64, u64)>) -> impl Iterator<Item = Way> {
        let bulk = range.is_some_and(|(_, bytes)| bytes <= BULK_BYTES_MAX);
        WAYS.into_iter().filter(move |&way| way != Way::Bulk || bulk)
    }

    fn choose(&self, hash: &[u8; 32], range: Option<(u64, u64)>) -> Way {
        let Some(measured) = self.by_program.get(hash) else { return Way::Remote };
        let taken = |way: Way| measured.taken[way as usize];
        if let Some(untried) = Chooser::ways(range).find(|&way| taken(way).is_none()) {
            return untried;
        }
        if measured.walks % EXPLORE == EXPLORE - 1 {
            let turn = measured.walks / EXPLORE;
            let count = Chooser::ways(range).count() as u64;
            return Chooser::ways(range).nth((turn % count) as usize).unwrap_or(Way::Remote);
        }
        Chooser::ways(range).min_by_key(|&way| taken(way)).unwrap_or(Way::Remote)
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
        let hash = walk.program.hash();
        let way = self.choose(&hash, range);
        let walked = self.walk_by(client, walk, range, way)?;
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
        let begun = Instant::now();
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
        let took = begun.elapsed();
        let measured = self.by_program.entry(walk.program.hash()).or_default();
        measured.walks += 1;
        let slot = &mut measured.taken[way as usize];
        *slot = Some(slot.map_or(took, |smooth| smooth * 7 / 8 + took / 8));
        if let (Way::Cached, Some(gone)) = (way, gone) {
            measured.steps += (gone.steps as f64 - measured.steps) / 8.0;
            measured.reads += (gone.reads as f64 - measured.reads) / 8.0;
        }
        Ok(walked)
    }

    /// Explains the choice for a walk of this program: the time of each way, or the reason that the way is not possible.
    #[must_use]
    pub fn explain(&self, client: &Client, walk: &Walk, range: Option<(u64, u64)>) -> String {
        use std::fmt::Write;
        let hash = walk.program.hash();
        let measured = self.by_program.get(&hash).copied().unwrap_or_default();
        let mut text = format!("{}: {:?}\n", walk.program.name(), self.choose(&hash, range));
        for way in WAYS {
            let said = match (measured.taken[way as usize], way) {
                (_, Way::Bulk) if range.is_none() => "not possible: the range is not known".to_owned(),
                (_, Way::Bulk) if !Chooser::ways(range).any(|one| one == way) => {
                    format!("not possible: more than {BULK_BYTES_MAX} bytes")
                }
                (None, _) => "not measured yet: tried next".to_owned(),
                (Some(taken), Way::Cached) => format!(
                    "{taken:?} ({:.1} steps, {:.1} reads of {PIECE_BYTES} bytes; {} hits, {} misses)",
                    measured.steps, measured.reads, self.cache.hits, self.cache.misses
                ),
                (Some(taken), _) => format!("{taken:?}"),
            };
            let _ = writeln!(text, "  {way:?}: {said}");
        }
        if let Some(trip) = client.round_trip() {
            let _ = writeln!(text, "  a round trip: {trip:?}");
        }
        text
    }
}
