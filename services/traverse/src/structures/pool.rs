// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for nodes of collections: taken from the heap in slabs, and used again when no walk can be at it any more.
//!
//! Flow     [`Pool::take`] ─▶ … the node is linked, removed, unlinked … ─▶ [`Pool::retire`] ──grace──▶ [`Pool::take`]
//! Order    what is retired was unlinked: no new walk comes to it. It is used again when the nodes' clock is more than [`GRACE`]
//!          further; a request that may have found it before is refused from then on, whenever it comes (`node/clock`)
//! Owner    one client of one process: a forked child has none of its parent's memory, and takes its own. What a client has
//!          taken and not linked is lost to the node when it ends
//! Not here who unlinks

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use memlift_engine::region::process_mark;

use super::heap::Heap;
use crate::client::{ClientError, Result};

/// How long retired memory rests, by the nodes' clock. A request that takes longer than that is made again, or ends with
/// [`ClientError::Outdated`].
pub const GRACE: Duration = Duration::from_secs(crate::node::GRACE as u64);
/// What is taken from the heap at a time.
pub const SLAB_BYTES: u64 = 64 << 10;
/// Nodes start at a multiple of the least power of two that holds them, of this at most.
const ALIGN_MAX: u64 = 256;

/// See the module.
#[derive(Debug)]
pub struct Pool {
    /// Whose memory it is.
    process: u64,
    grace_s: u32,
    /// The rest of the newest slab.
    rest: (u64, u64),
    resting: VecDeque<(u32, u64, u64)>,
    free: HashMap<u64, Vec<u64>>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new(GRACE)
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(16).next_multiple_of(16)
}

impl Pool {
    /// A pool whose retired memory rests for so long.
    #[must_use]
    pub fn new(grace: Duration) -> Pool {
        let grace_s = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        Pool {
            process: process_mark(),
            grace_s,
            rest: (0, 0),
            resting: VecDeque::new(),
            free: HashMap::new(),
        }
    }

    /// In a forked child all of it is the parent's.
    fn own(&mut self) {
        if self.process != process_mark() {
            *self = Pool::new(Duration::from_secs(self.grace_s.into()));
        }
    }

    fn ripen(&mut self, clock: u32) {
        self.own();
        while let Some(&(since, address, bytes)) = self.resting.front() {
            if self.grace_s > 0 && clock <= since.saturating_add(self.grace_s) {
                break;
            }
            self.resting.pop_front();
            self.free.entry(bytes).or_default().push(address);
        }
    }

    /// Memory for a node; what it holds is not said.
    ///
    /// # Errors
    /// [`ClientError::Full`]
    pub fn take(&mut self, heap: &mut impl Heap, bytes: u64) -> Result<u64> {
        let bytes = rounded(bytes);
        self.ripen(heap.clock());
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(address);
        }
        if bytes > SLAB_BYTES / 4 {
            return heap.allocate(bytes);
        }
        let align = bytes.next_power_of_two().min(ALIGN_MAX);
        loop {
            let (start, end) = self.rest;
            let address = start.next_multiple_of(align);
            if start != 0 && address + bytes <= end {
                self.rest.0 = address + bytes;
                return Ok(address);
            }
            match heap.allocate(SLAB_BYTES) {
                Ok(slab) => self.rest = (slab, slab + SLAB_BYTES),
                Err(ClientError::Full { .. }) => {
                    // A last piece, if there is one.
                    let piece = heap.allocate(bytes + align)?;
                    return Ok(piece.next_multiple_of(align));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Memory that was never linked: it can be used again at once.
    pub fn put_back(&mut self, address: u64, bytes: u64) {
        self.own();
        self.free.entry(rounded(bytes)).or_default().push(address);
    }

    /// Memory that was unlinked before the heap's clock was asked.
    pub fn retire(&mut self, clock: u32, address: u64, bytes: u64) {
        self.own();
        self.resting.push_back((clock, address, rounded(bytes)));
    }

    /// How many pieces rest.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.resting.len()
    }
}
