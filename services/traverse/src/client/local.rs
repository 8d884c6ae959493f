// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs walks at the client, over pieces of node memory that it reads. The bytecode is the same as at a node; it is run by `stepper`.
//!
//! - **Flow** cur ─▶ pieces of the window from the [`Cache`]; missing ones are read ─▶ a step ─▶ … ─▶ an apply is sent to its owner
//! - **Order** the first node is always read anew, so whatever it leads to is as new as the walk; see `cache` for the rest
//! - **Owner** a client and its cache. With an empty cache this is also the paper's rival design "Cache": one remote read per hop
//! - **Not here** the decision that this way is the fastest (`choice`)

use std::time::Instant;

use super::cache::{Cache, PIECE_BYTES};
use super::{Client, ClientError, Request, Result};
use crate::node::GRACE;
use crate::step::{self, Verdict};
use crate::structures::heap::{Heap, Outcome, Scratch, Walk, Walked};
use crate::verify::FUEL;
use crate::wire::Status;
use memlift_spec::formats::walk::ApplyKind;

/// Statistics of a walk at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalWalkStats {
    /// Steps that the walk made at the client.
    pub steps: u64,
    /// Pieces that had to be read.
    pub reads: u64,
    /// Nanoseconds spent in steps, without waiting.
    pub step_ns: u64,
    /// True if the steps ran as machine code.
    pub compiled: bool,
}

/// Nodes' clock at two points: when the oldest piece of a walk was requested, and one not earlier than the read of its
/// newest piece.
#[derive(Clone, Copy, Default)]
struct Clocks {
    since: u32,
    read: u32,
}

impl Clocks {
    /// Returns true if memory that the oldest piece points to may have been reused before the newest piece was read.
    fn may_be_stale(self) -> bool {
        self.since != 0 && self.read > self.since.saturating_add(GRACE)
    }
}

/// Copies the window's bytes out of the cache; returns false if one of its pieces is missing.
fn gather(
    cache: &mut Cache,
    epoch: u64,
    from: u64,
    bytes: u64,
    window: &mut Vec<u8>,
    clocks: &mut Clocks,
) -> bool {
    window.clear();
    for place in (from / PIECE_BYTES * PIECE_BYTES..from.saturating_add(bytes)).step_by(PIECE_BYTES as usize)
    {
        let Some((piece, of)) = cache.get(place, epoch) else { return false };
        clocks.since = if clocks.since == 0 { of.0 } else { of.0.min(clocks.since) };
        clocks.read = clocks.read.max(of.1);
        let (start, end) = (from.max(place) - place, (from + bytes).min(place + PIECE_BYTES) - place);
        let Some(piece) = piece.get(start as usize..end as usize) else { return false };
        window.extend_from_slice(piece);
    }
    true
}

impl Client {
    /// Reads pieces into the cache, many at a time. Pieces that no node has, or that the tenant may not read, are left out.
    fn fetch(&mut self, cache: &mut Cache, places: &[u64], since: u32) -> Result<()> {
        let requests = places.iter().map(|&place| Request::read(place, PIECE_BYTES as usize).since(since));
        let answers = self.call_many(requests);
        for (&place, answer) in places.iter().zip(answers) {
            let epoch = self.epoch();
            match answer {
                Ok(answer) => cache.put(place, answer.body, epoch, (answer.since, self.heard.now())),
                Err(ClientError::Forbidden { .. } | ClientError::Nowhere { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads a whole range into the cache, with [`super::Config::window`] reads in flight.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn fetch_range(&mut self, cache: &mut Cache, base: u64, bytes: u64) -> Result<()> {
        let first = base / PIECE_BYTES * PIECE_BYTES;
        let places: Vec<u64> = (first..base.saturating_add(bytes)).step_by(PIECE_BYTES as usize).collect();
        self.fetch(cache, &places, 0)
    }

    #[expect(clippy::too_many_arguments, reason = "what a walk has, taken apart")]
    fn window(
        &mut self,
        cache: &mut Cache,
        from: u64,
        bytes: u64,
        anew: bool,
        stats: &mut LocalWalkStats,
        window: &mut Vec<u8>,
        clocks: &mut Clocks,
    ) -> Result<()> {
        let places =
            || (from / PIECE_BYTES * PIECE_BYTES..from.saturating_add(bytes)).step_by(PIECE_BYTES as usize);
        if anew {
            places().for_each(|place| cache.forget(place));
        } else if gather(cache, self.epoch(), from, bytes, window, clocks) {
            return if clocks.may_be_stale() { Err(ClientError::Outdated) } else { Ok(()) };
        }
        let epoch = self.epoch();
        let missing: Vec<u64> = places().filter(|&place| cache.get(place, epoch).is_none()).collect();
        stats.reads += missing.len() as u64;
        self.fetch(cache, &missing, clocks.since)?;
        // A cache smaller than one window cannot hold its pieces: then the window is read directly.
        if !gather(cache, self.epoch(), from, bytes, window, clocks) {
            let clock = self.heard.now();
            *window = self.read_since(from, bytes as usize, clocks.since)?;
            clocks.since = if clocks.since == 0 { clock } else { clocks.since };
            clocks.read = clocks.read.max(self.heard.now());
        }
        if clocks.may_be_stale() { Err(ClientError::Outdated) } else { Ok(()) }
    }

    /// Runs a walk at the client, over the cache.
    ///
    /// # Errors
    /// The errors of a walk at a node.
    pub fn walk_locally(&mut self, cache: &mut Cache, request: &Walk) -> Result<(Walked, LocalWalkStats)> {
        let mut stats = LocalWalkStats::default();
        let walked = self.walk_here(cache, request, &mut stats);
        self.steppers.count(&request.program, stats.steps);
        Ok((walked?, stats))
    }

    fn walk_here(&mut self, cache: &mut Cache, request: &Walk, stats: &mut LocalWalkStats) -> Result<Walked> {
        let (program, window) = (&request.program, request.program.window());
        let stepping = self.steppers.of(program);
        stats.compiled = stepping.is_compiled();
        let mut node = Vec::with_capacity(usize::from(window.bytes));
        let mut scratch = request.scratch.0.clone();
        scratch.resize(program.scratch_bytes(), 0);
        let (mut cur, mut result) = (request.start, Vec::new());
        let (mut restarts, mut clocks) = (0, Clocks::default());
        let again = |scratch: &mut Vec<u8>, result: &mut Vec<u8>| {
            scratch.clone_from(&request.scratch.0);
            scratch.resize(program.scratch_bytes(), 0);
            result.clear();
        };
        let fault =
            |cur, verdict| ClientError::Fault { program: program.name().to_owned(), address: cur, verdict };
        while stats.steps < u64::from(self.config().iterations) {
            let from = cur.wrapping_add_signed(i64::from(window.first));
            let anew = stats.steps == 0 || cur == request.start;
            match self.window(cache, from, u64::from(window.bytes), anew, stats, &mut node, &mut clocks) {
                Err(ClientError::Outdated) if restarts < self.config().restarts => {
                    // The cached pieces on the path are too old: the walk starts again, with an empty cache.
                    restarts += 1;
                    cache.clear();
                    again(&mut scratch, &mut result);
                    (cur, clocks) = (request.start, Clocks::default());
                    continue;
                }
                got => got?,
            }
            let mut walk = step::Walk { fuel: FUEL, ..step::Walk::default() };
            let begun = Instant::now();
            let verdict = stepping.step(program, &node, &mut scratch, &mut walk);
            stats.step_ns += begun.elapsed().as_nanos() as u64;
            stats.steps += 1;
            let outcome = match verdict {
                Verdict::Next => None,
                Verdict::Emit => {
                    let (at, bytes) = (walk.emit_offset as usize, walk.emit_bytes as usize);
                    let piece = at.checked_add(bytes).and_then(|end| scratch.get(at..end));
                    result.extend_from_slice(piece.ok_or_else(|| fault(cur, Verdict::BadEmit))?);
                    None
                }
                Verdict::Done => Some(Outcome::Done),
                Verdict::Missing => Some(Outcome::Missing),
                Verdict::Apply => {
                    let kind =
                        ApplyKind::from_number(walk.apply).ok_or_else(|| fault(cur, Verdict::BadVerdict))?;
                    let apply = Request::apply(kind, walk.address, walk.a, walk.b).since(clocks.since);
                    let answer = match self.call(apply) {
                        Err(ClientError::Outdated) if restarts < self.config().restarts => {
                            restarts += 1;
                            cache.clear();
                            again(&mut scratch, &mut result);
                            (cur, clocks) = (request.start, Clocks::default());
                            continue;
                        }
                        answer => answer?,
                    };
                    cache.forget(walk.address / PIECE_BYTES * PIECE_BYTES);
                    Some(match answer.status {
                        Status::Applied => Outcome::Applied(answer.value),
                        _ => Outcome::Differs(answer.value),
                    })
                }
                Verdict::Retry => {
                    restarts += 1;
                    if restarts > self.config().restarts {
                        return Err(ClientError::Contended { what: "a walk", times: restarts });
                    }
                    again(&mut scratch, &mut result);
                    clocks = Clocks::default();
                    walk.next = request.start;
                    None
                }
                verdict => return Err(fault(cur, verdict)),
            };
            if let Some(outcome) = outcome {
                return Ok(Walked { outcome, scratch: Scratch(scratch), result, since: clocks.since });
            }
            cur = walk.next;
        }
        Err(ClientError::Budget { program: program.name().to_owned(), iterations: self.config().iterations })
    }
}
