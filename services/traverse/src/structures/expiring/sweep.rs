// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sweep of an expiring map: step by step over all chains, so that expired entries give their memory back without a client that asks.
//!
//! - **Flow** [`ExpiringMap::sweep`]: some chains ─▶ stamps ─▶ expired entries are removed ─▶ … ─▶ after the last chain the size in the
//!   terms is corrected, a map that is too large evicts, and the sweep begins again
//! - **Bound** a step scans about [`STEP_NODES`] nodes, and one chain at least
//! - **Order** a sweep does what any client could do, by the same requests; any number of them may run over one map at the same time
//! - **Not here** who sweeps, and how often (`crate::sweep`)

use super::super::chain::Chain;
use super::super::heap::Heap;
use super::room::{StampedNode, make_room, remove, stamps};
use super::terms::{self, Size, Terms};
use super::{ExpiringMap, Handle};
use crate::client::Result;

/// Nodes that a step scans, as a rule.
const STEP_NODES: u64 = 512;
/// Most chains of a step.
const HEADS_MAX: u64 = 4096;
/// A size that differs from the counted one by more than this part of the bound is corrected even while clients change the map, if the
/// counted one has stayed within that part.
const DRIFT: u64 = 16;
/// While clients replace a map's entries, each chain is seen at another moment: what is found differs from the size by chance, by as much
/// as the square root of the sum of the entries' squares. It is believed if it differs by more than this many times that.
const DEVIATIONS: f64 = 6.0;

/// Place and counts of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    next: u64,
    /// Chains of the next step.
    span: u64,
    /// Size of what was found since the sweep began.
    found: Size,
    /// Size in the terms when the sweep began.
    began: Option<Size>,
    /// Sum of the squares of what the entries take.
    squares: f64,
    /// Of all entries that were found.
    fingerprint: u64,
    /// The fingerprint of the sweep before.
    before: Option<u64>,
}

/// A word that differs for other nodes and other keys; of many nodes they are added.
fn fingerprint(node: &StampedNode) -> u64 {
    let mixed = |word: u64| {
        let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^ (word >> 29)
    };
    mixed(mixed(node.node.address) ^ node.node.key_word)
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were looked at.
    pub seen: u64,
    /// Entries that had expired, and were removed.
    pub expired: u64,
    /// True if this was the sweep's last step; the next one begins again.
    pub ended: bool,
}

impl ExpiringMap {
    /// Opens the map whose terms are at this address; `None`: it was dropped.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn find(heap: &mut impl Heap, terms: u64) -> Result<Option<ExpiringMap>> {
        let found = terms::read(heap, terms)?;
        Ok(found.map(|(map, known, _)| ExpiringMap::of(Handle { map, terms }, known)))
    }

    /// Sweeps some chains.
    ///
    /// # Errors
    /// The reason that there was no answer. The next step may go on with the same chains.
    pub fn sweep(&self, heap: &mut impl Heap, sweep: &mut Sweep) -> Result<Swept> {
        let (map, at) = (self.handle().map, self.handle().terms);
        let is_bounded = self.terms().is_bounded();
        if sweep.next == 0 {
            let size = if is_bounded { terms::read(heap, at)?.map(|(_, _, size)| size) } else { None };
            let (span, before) = (sweep.span.max(1), sweep.before);
            *sweep = Sweep { span, began: size, before, ..Sweep::default() };
        }
        let heads = 1_u64 << map.log2;
        let last = sweep.next.saturating_add(sweep.span).min(heads) - 1;
        let seen = Chain(map.heads + 8 * sweep.next).scan(heap, map.heads + 8 * last)?;
        let seen = stamps(heap, &seen)?;
        let (expired, live): (Vec<_>, Vec<_>) = seen.iter().copied().partition(|one| one.is_expired());
        if !expired.is_empty() {
            let removed = remove(heap, map, &expired)?;
            if is_bounded {
                terms::count(heap, at, -removed.entries, -removed.bytes)?;
            }
            if let Some(began) = &mut sweep.began {
                began.add(-removed.entries, -removed.bytes);
            }
        }
        for one in &live {
            sweep.found.add(1, one.taken());
            sweep.squares += (one.taken() as f64).powi(2);
            sweep.fingerprint = sweep.fingerprint.wrapping_add(fingerprint(one));
        }
        let most = HEADS_MAX.min(heads);
        sweep.span =
            (sweep.span * STEP_NODES / (seen.len() as u64).max(1)).clamp(1, (sweep.span * 2).min(most));
        sweep.next = last + 1;
        let ended = sweep.next >= heads;
        if ended {
            sweep.next = 0;
            if let Some(began) = sweep.began {
                self.correct(heap, began, sweep)?;
            }
            sweep.before = Some(sweep.fingerprint);
        }
        Ok(Swept { seen: seen.len() as u64, expired: expired.len() as u64, ended })
    }

    /// Corrects the size in the terms, and evicts if the map is too large. `began` is the size in the terms when the sweep began,
    /// less what the sweep has removed.
    fn correct(&self, heap: &mut impl Heap, began: Size, sweep: &Sweep) -> Result<()> {
        let (at, found) = (self.handle().terms, sweep.found);
        let Some((_, _, mut now)) = terms::read(heap, at)? else { return Ok(()) };
        let Terms { entries_max, bytes_max, .. } = *self.terms();
        // A map that grew or shrank by as much meanwhile is none of which the sweep knows the size.
        let far = |found: i64, began: i64, now: i64, most: u64, squares: f64| {
            let (drift, chance) = (most / DRIFT, DEVIATIONS * squares.sqrt());
            let differs = found.abs_diff(now);
            most != 0 && differs > drift && differs as f64 > chance && began.abs_diff(now) <= drift
        };
        // The map rests if the sweep before has found the same entries; then their sum is its size. A counted size that stays the same proves
        // nothing: a map at its bound has it after each put.
        let is_quiet = sweep.before == Some(sweep.fingerprint) && began == now && found != now;
        let is_far = far(found.entries, began.entries, now.entries, entries_max, found.entries as f64)
            || far(found.bytes, began.bytes, now.bytes, bytes_max, sweep.squares);
        if is_quiet || is_far {
            now = terms::count(heap, at, found.entries - now.entries, found.bytes - now.bytes)?;
        }
        make_room(heap, (self.handle().map, at), self.terms(), now, None)
    }
}
