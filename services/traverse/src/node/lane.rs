// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walks of one program in flight on one shard: workspaces side by side, and the requests that wait for a workspace.
//!
//! - **Flow** request ──[`Lane::take`]──▶ slot ─▶ rounds ─▶ stopped ─▶ `shard` decides how the walk continues ─▶ [`Lane::free_slot`]
//! - **Order** free slots with low numbers are taken first, and a round ends behind the last slot in use. Only the part of a
//!   scratchpad that the program or its request can have written is cleared and searched for the answer; the rest is zero and
//!   stays out of the cache
//! - **Layout** slot i, scratchpad i (a multiple of 64 bytes, so that two never share a cache line) and context i belong together
//! - **Owner** the shard's thread; slots point into the lane's scratchpads, which never move

use std::collections::VecDeque;
use std::sync::Arc;

use super::registry::Runner;
use crate::slot::{FREE, RUN, Region, STOPPED, Slot};
use crate::transport::Peer;
use crate::verify::FUEL;
use crate::wire::{Header, used};

/// Request that a slot works for.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub header: Header,
    pub peer: Peer,
    /// Contents of the scratchpad that the request brought.
    pub start: Vec<u8>,
    /// Bytes at the start of the scratchpad that the request or the program can have written; the rest is zero.
    pub dirty: usize,
    /// Bytes that the walk has emitted and that were not sent yet.
    pub emitted: Vec<u8>,
    /// Number of the next chunk; `visit_bytes` are the bytes emitted on this visit.
    pub chunk: u32,
    pub visit_bytes: usize,
    /// Times that the walk has started again.
    pub restarts: u32,
    /// Steps that this visit may make.
    pub step_budget: u32,
}

/// A request that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub header: Header,
    pub peer: Peer,
    pub body: Vec<u8>,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Lane {
    pub tenant: u32,
    pub runner: Arc<Runner>,
    pub slots: Box<[Slot]>,
    pub contexts: Vec<Context>,
    pub region: Region,
    pub running: usize,
    pub waiting: VecDeque<Waiting>,
    pub first: i16,
    pub window: u16,
    free: Vec<u32>,
    scratch: Box<[Line]>,
    scratch_lines: usize,
    scratch_bytes: usize,
    /// Bytes at the start of a scratchpad that the program can store to.
    stored_bytes: usize,
    /// All slots from here on are free.
    slots_end: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: the pointers in `slots` lead into `scratch`, a heap allocation that keeps its address when the lane moves, and
// into the node's memory, which any thread may read and which the shard that owns the lane keeps mapped.
unsafe impl Send for Lane {}

impl Lane {
    pub(super) fn new(tenant: u32, runner: Arc<Runner>, workspaces: usize) -> Lane {
        let scratch_bytes = runner.program().scratch_bytes();
        let scratch_lines = scratch_bytes.div_ceil(64).max(1);
        let mut scratch = vec![Line([0; 64]); scratch_lines * workspaces].into_boxed_slice();
        let base: *mut u8 = scratch.as_mut_ptr().cast();
        let slot = |index: usize| {
            let mut slot = Slot { scratch: base.wrapping_add(index * scratch_lines * 64), ..Slot::default() };
            slot.walk.fuel = FUEL;
            slot
        };
        let window = runner.program().window();
        Lane {
            tenant,
            slots: (0..workspaces).map(slot).collect(),
            contexts: Vec::with_capacity(workspaces),
            region: Region::NONE,
            running: 0,
            waiting: VecDeque::new(),
            first: window.first,
            window: window.bytes,
            free: (0..workspaces as u32).rev().collect(),
            scratch,
            scratch_lines,
            scratch_bytes,
            stored_bytes: runner.program().scratch_stored(),
            slots_end: 0,
            runner,
        }
    }

    /// Returns the number of free slots.
    pub(super) fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot for a request and fills its scratchpad. The slot is not ready to run yet. Returns `None` if no slot is
    /// free.
    pub(super) fn take(
        &mut self,
        header: &Header,
        peer: Peer,
        body: &[u8],
        step_budget: u32,
    ) -> Option<usize> {
        let index = self.free.pop()? as usize;
        while self.contexts.len() <= index {
            self.contexts.push(Context {
                header: *header,
                peer,
                start: Vec::new(),
                dirty: 0,
                emitted: Vec::new(),
                chunk: 0,
                visit_bytes: 0,
                restarts: 0,
                step_budget: 0,
            });
        }
        let context = &mut self.contexts[index];
        context.header = *header;
        context.peer = peer;
        context.start.clear();
        context.start.extend_from_slice(body);
        context.emitted.clear();
        context.chunk = header.piece;
        context.visit_bytes = 0;
        context.restarts = 0;
        context.step_budget = step_budget;
        self.slots[index].state = STOPPED;
        self.running += 1;
        self.slots_end = self.slots_end.max(index + 1);
        self.refill(index);
        Some(index)
    }

    /// Fills a slot's scratchpad with the contents that its request brought.
    pub(super) fn refill(&mut self, index: usize) {
        let Lane { contexts, scratch, scratch_lines, scratch_bytes, stored_bytes, .. } = self;
        let pad = pad(scratch, *scratch_lines, *scratch_bytes, index);
        let Context { start, dirty, .. } = &mut contexts[index];
        pad[..start.len()].copy_from_slice(start);
        // Bytes from `dirty` on were never written, so they are zero already.
        pad[start.len()..(*dirty).max(start.len())].fill(0);
        *dirty = start.len().max(*stored_bytes);
    }

    pub(super) fn pad(&mut self, index: usize) -> &mut [u8] {
        pad(&mut self.scratch, self.scratch_lines, self.scratch_bytes, index)
    }

    /// Returns a slot's context, and its scratchpad without the zeros at the end.
    pub(super) fn used(&mut self, index: usize) -> (&Context, &[u8]) {
        let context = &self.contexts[index];
        let pad = pad(&mut self.scratch, self.scratch_lines, self.scratch_bytes, index);
        (context, used(&pad[..context.dirty]))
    }

    /// Frees a slot of the lane.
    pub(super) fn free_slot(&mut self, index: usize) {
        self.slots[index].state = FREE;
        self.free.push(index as u32);
        self.running -= 1;
        while self.slots_end > 0 && self.slots[self.slots_end - 1].state == FREE {
            self.slots_end -= 1;
        }
    }

    /// Prefetches the memory that the next step of a slot reads.
    pub(super) fn prefetch(&self, index: usize) {
        for &touch in self.runner.prefetch_offsets() {
            crate::round::prefetch(self.slots[index].host.wrapping_offset(touch.into()));
        }
    }

    /// Runs one step for each slot in state `RUN`; returns the number of slots that stopped.
    pub(super) fn round(&mut self) -> usize {
        // SAFETY: a slot is `RUN` only after `shard` translated its `cur` and checked the whole window against the tenant's
        // ranges, or after a round checked it against `region`, which was made from such a range. Node memory stays mapped
        // while the shard lives. Each scratchpad belongs to its slot and is as long as the program asks for.
        unsafe { self.runner.round(&mut self.slots[..self.slots_end], &self.region) }
    }

    /// Steps the only slot in state `RUN` until it stops, at most `most` times; returns the number of slots that stopped (0
    /// or 1).
    pub(super) fn run_alone(&mut self, most: usize) -> usize {
        let Some(index) = self.slots.iter().position(|slot| slot.state == RUN) else { return 0 };
        for _ in 0..most {
            // SAFETY: the slot is RUN, so `shard` or a round checked its whole window against the tenant's ranges, from which
            // `region` was made too; node memory stays mapped while the shard lives, and the scratchpad is the slot's own.
            if unsafe { self.runner.round(&mut self.slots[index..=index], &self.region) } > 0 {
                self.slots[0].nth_stopped = index as u32;
                return 1;
            }
        }
        0
    }

    /// Returns the number of the slot that was the `place`-th to stop in the last round.
    pub(super) fn stopped(&self, place: usize) -> usize {
        self.slots[place].nth_stopped as usize
    }
}

fn pad(scratch: &mut [Line], lines: usize, bytes: usize, index: usize) -> &mut [u8] {
    let own = &mut scratch[index * lines..(index + 1) * lines];
    // SAFETY: `own` consists of whole `Line`s of 64 plain bytes without gaps, and stays borrowed for as long as the result.
    let all = unsafe { std::slice::from_raw_parts_mut(own.as_mut_ptr().cast::<u8>(), lines * 64) };
    &mut all[..bytes]
}
