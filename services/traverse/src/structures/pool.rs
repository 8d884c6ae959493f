// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for nodes of collections: taken from the heap in slabs, and used again when no walk can be at it any more.
//!
//! Flow     [`Pool::take`] ─▶ … the node is linked, removed, unlinked … ─▶ [`Pool::retire`] ──grace──▶ [`Pool::take`]
//! Order    what is retired was unlinked: no new walk comes to it. A walk that is there already is over, or its client has given
//!          up waiting, when [`GRACE`] has passed: so a client must not wait longer for a walk than that
//! Owner    one client of one process: a forked child has none of its parent's memory, and takes its own. What a client has
//!          taken and not linked is lost to the node when it ends
//! Not here who unlinks

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use memlift_engine::region::process_mark;

use super::heap::Heap;
use crate::client::{ClientError, Result};

/// How long retired memory rests: longer than a client waits for an answer ([`crate::client::Config::deadline`]).
pub const GRACE: Duration = Duration::from_secs(30);
/// What is taken from the heap at a time.
pub const SLAB_BYTES: u64 = 64 << 10;
/// Nodes start at a multiple of the least power of two that holds them, of this at most.
const ALIGN_MAX: u64 = 256;

/// See the module.
#[derive(Debug)]
pub struct Pool {
    /// Whose memory it is.
    process: u64,
    grace: Duration,
    /// The rest of the newest slab.
    rest: (u64, u64),
    resting: VecDeque<(Instant, u64, u64)>,
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
        Pool { process: process_mark(), grace, rest: (0, 0), resting: VecDeque::new(), free: HashMap::new() }
    }

    /// In a forked child all of it is the parent's.
    fn own(&mut self) {
        if self.process != process_mark() {
            *self = Pool::new(self.grace);
        }
    }

    fn ripen(&mut self) {
        self.own();
        while let Some(&(since, address, bytes)) = self.resting.front() {
            if since.elapsed() < self.grace {
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
        self.ripen();
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

    /// Memory that was unlinked just now.
    pub fn retire(&mut self, address: u64, bytes: u64) {
        self.own();
        self.resting.push_back((Instant::now(), address, rounded(bytes)));
    }

    /// How many pieces rest.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.resting.len()
    }
}
