// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The background thread of a process: evicts ahead of need when the block has the turn, and publishes the memory that the
//! process holds.
//!
//! - **Flow** active ──▶ wait for demand ──▶ publish ──▶ if memory is short: wait for the block's turn ──▶ spill ahead,
//!   evict, pack cold pages
//! - **Not here** the ways in which pages leave ([`super::evict`])

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cold::COLD_ROUNDS;
use super::evict::{BATCH, LEAST_FLOAT_BYTES};
use super::{Pager, kernel};
use crate::block::Counter;
use crate::mapping::PAGE_BYTES;
use crate::spill::Spill;

/// Longest time between two publications of the memory that the process holds.
const LOOK: Duration = Duration::from_millis(5);

/// Ends the process if the evictor panics, because it may hold pages that other threads wait for.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kernel::end("memlift: the evictor failed; the job ends rather than hang\n", 70);
        }
    }
}

impl Pager {
    /// Body of the background thread: evicts ahead of need when the block has the turn, and publishes the memory that the
    /// process holds. Does not return.
    pub fn evictor(&self) {
        let _end_on_panic = EndOnPanic;
        kernel::own_thread();
        self.job.wait_for_active();
        self.activate();
        let (mut native, mut next_look) = (0, Instant::now());
        loop {
            self.job.wait_for_demand(LOOK);
            let now = Instant::now();
            if now >= next_look {
                native = self.native_present();
                self.engine.count_mappings();
                // Counting takes at most a fiftieth of a core, no matter how much there is to count.
                next_look = now + now.elapsed() * 50;
            }
            self.publish(native.min(self.native_bytes()));
            self.update_fork_protection();
            // Another process may wait for pages that it shares with this one.
            let starved = self.forked() && self.job.unused() < LEAST_FLOAT_BYTES as i64;
            let short = self.job.is_short() || self.engine.needs_fewer_mappings() || starved;
            self.job.want_eviction(short);
            if !short {
                continue;
            }
            let Some(visit) = self.job.visit() else { continue };
            let pages = (visit.pages as usize).max(1);
            let evicted = {
                let mut seat = self.seats.take();
                let spilled = self.spill_ahead(&mut seat);
                let evicted = self.evict(&mut seat, pages.saturating_sub(spilled) * PAGE_BYTES, BATCH);
                if self.job.is_short() && (evicted.steps == 0 || !self.keeps_copies()) {
                    self.pack_cold(&mut seat, COLD_ROUNDS);
                }
                // A page that processes share since a fork makes room only after all of them have evicted it.
                if evicted.steps == 0 && starved {
                    self.spill_cold(&mut seat, pages * PAGE_BYTES, 0);
                }
                evicted
            };
            drop(visit);
            if evicted.steps == 0 {
                self.job.want_eviction(false);
                std::thread::sleep(LOOK);
            } else {
                self.job.count(Counter::BackgroundEvictions, 1);
            }
        }
    }

    /// Publishes the bytes that the process really holds.
    fn publish(&self, native: usize) {
        let arena = self.counts.present.load(Ordering::Relaxed) * PAGE_BYTES;
        let tables = self.counts.tables.load(Ordering::Relaxed);
        self.job.publish((arena + native) as u64, self.store.bytes() as u64, tables as u64);
        // Copies of present pages are in both numbers; they are few.
        let spilled = self.spill.file().map_or(0, Spill::disk_bytes);
        self.job.publish_away((self.store.numbers().objects * PAGE_BYTES + spilled) as u64);
    }
}
