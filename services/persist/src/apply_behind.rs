// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applies the log on an engine thread while commits go on: [`crate::Options::apply_behind`], redo and checkpoint.
//!
//! - **Flow** a lane is half full ─▶ the next records in order become a batch of LOG_APPLY on the engine's queue ─▶ commits go on
//!   …… a later commit finds the batch done, or a caller that needs room or wants everything applied waits ─▶ [`Store::settle`]
//! - **Order** one batch at a time, each of its members behind a fence: records are stored in the order of their sequences, and
//!   none after one that failed. The batch fences before its completion; heads are written after it
//! - **Rule** code that stores to the heap in the file without the log, or drops the mirror's pages, first applies everything,
//!   and so waits for the batch: nobody else touches what it writes. Its records stay in their lanes until `settle` gives
//!   the room back
//! - **Owner** the applier, under its lock. A store that is dropped waits for the batch before the mapping goes
//! - **Pressure** when the queue is full, the records are applied by the caller at once, as without this option
//! - **Not here** files without one mapping (interleaved, simulated): their batch is put off and stored when it is waited for. An
//!   engine thread may finish as late as that, so the simulator tries these orders as well

use std::sync::TryLockError;

use memlift_offload::Engine;
use memlift_offload::log::{Fence, NearData};
use memlift_offload::submit::{BatchTicket, Operation};

use crate::apply::{Applier, next};
use crate::error::{Error, Result};
use crate::far::PARTS_FAR;
use crate::lane::Lane;
use crate::options::Mechanism;
use crate::store::{Store, lock};
use memlift_spec::operand::log::RecordHeader;

/// Most records of one batch. A lane of a megabyte that is half full has some thousand small ones.
const MEMBERS_MAX: usize = 256;

/// A batch under way.
#[derive(Debug)]
pub(crate) struct Flight {
    work: Work,
    /// How far each lane is applied with it.
    positions: Vec<u64>,
    /// The last sequence of it.
    applied: u64,
}

#[derive(Debug)]
enum Work {
    Queued(BatchTicket),
    /// Put off: lanes and positions of the records.
    Later(Vec<(usize, u64, u64)>),
}

/// Records in the order of their sequences: lane, position, bytes.
#[derive(Debug, Default)]
struct Next {
    records: Vec<(usize, u64, u64)>,
    positions: Vec<u64>,
    applied: u64,
}

impl Store {
    /// Applies the log behind the commits, if no batch is under way; called when a lane is half full.
    #[cold]
    pub(crate) fn apply_behind(&self) -> Result<()> {
        let mut applier = match self.applier.try_lock() {
            Ok(applier) => applier,
            Err(TryLockError::WouldBlock) => return Ok(()), // somebody is at it
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        match &applier.flight {
            Some(Flight { work: Work::Queued(ticket), .. }) if !ticket.is_done() => return Ok(()),
            _ => {}
        }
        self.running()?;
        self.land(&mut applier)?;
        if self.medium.watches_stores() {
            drop(applier);
            return self.apply(); // an engine thread copies no old pages and marks none
        }
        let next = self.next_records(&applier);
        if next.records.len() >= 2
            && let Some(work) = self.launch(&next.records)
        {
            applier.flight = Some(Flight { work, positions: next.positions, applied: next.applied });
            return Ok(());
        }
        drop(applier);
        self.apply()
    }

    /// Waits for the batch under way, if there is one; its room is free then.
    pub(crate) fn land(&self, applier: &mut Applier) -> Result<()> {
        let Some(Flight { work, positions, applied }) = applier.flight.take() else { return Ok(()) };
        match work {
            Work::Later(records) => {
                for (at, position, bytes) in records {
                    let record = self.record(at, position, bytes);
                    self.apply_record(record, applier).map_err(|error| self.stop(error))?;
                }
            }
            Work::Queued(ticket) => {
                let failed = |what: String| self.stop(Error::corrupt(format!("applying the log: {what}")));
                let batch = ticket.wait().map_err(|error| failed(error.to_string()))?;
                for outcome in batch.members {
                    let outcome = outcome.map_err(|error| failed(error.to_string()))?;
                    applier.counters.home_bytes += u64::from(outcome.completion().bytes_completed);
                }
            }
        }
        applier.positions = positions;
        applier.applied = applied;
        self.settle(applier).map_err(|error| self.stop(error))
    }

    fn record(&self, at: usize, position: u64, bytes: u64) -> &[u8] {
        match at {
            0 => self.shared.lane.published(position, bytes),
            _ => self.lanes[at - 1].published(position, bytes),
        }
    }

    /// The records that follow the last applied sequence without a gap, [`MEMBERS_MAX`] at most.
    fn next_records(&self, applier: &Applier) -> Next {
        let mut found =
            Next { records: Vec::new(), positions: applier.positions.clone(), applied: applier.applied };
        let mut left = found.positions.len();
        let mut at = 0;
        // Lanes in turn, until none has the next one.
        while left > 0 && found.records.len() < MEMBERS_MAX {
            let any = match at {
                0 => found.take_lane(&self.shared.lane, at),
                _ => found.take_lane(&self.lanes[at - 1], at),
            };
            left = if any { found.positions.len() } else { left - 1 };
            at = (at + 1) % found.positions.len();
        }
        found
    }

    /// Hands records to the engine's queue; None: it is full.
    fn launch(&self, records: &[(usize, u64, u64)]) -> Option<Work> {
        let heap = match self.medium.heap(self.heap_start) {
            Some(heap) if self.mechanism != Mechanism::Shadow => heap,
            _ => return Some(Work::Later(records.to_vec())),
        };
        let heap_bytes = self.image.len();
        let operations = records.iter().map(|(at, position, bytes)| {
            let record = self.record(*at, *position, *bytes);
            let (salt, available) = (self.salts[*at], record.len());
            // SAFETY: the record stays as it is until its lane's room is given back, and the heap is mapped until the store is
            // dropped: both after the batch was waited for (`land`, `Drop`). Nobody else stores to these ranges of the
            // file (this module's rule).
            let near = unsafe {
                NearData::log_apply(
                    heap,
                    heap_bytes,
                    record.as_ptr(),
                    available,
                    salt,
                    *position,
                    Fence::Batch,
                )
            };
            Operation::from(near)
        });
        let fences: Vec<usize> = (1..records.len()).collect();
        Engine::global().submit_batch(operations.collect(), &fences).ok().map(Work::Queued)
    }
}

impl Next {
    /// Takes a lane's records as long as they are the next in order.
    fn take_lane<S>(&mut self, lane: &Lane<S>, at: usize) -> bool {
        let mut any = false;
        while self.records.len() < MEMBERS_MAX {
            let mut position = self.positions[at];
            let wanted = self.applied + 1;
            let is_next = |header: &RecordHeader| header.sequence == wanted && header.parts != PARTS_FAR;
            let Some(header) = next(lane, &mut position).filter(is_next) else {
                return any;
            };
            self.records.push((at, position, u64::from(header.bytes)));
            self.positions[at] = position + u64::from(header.bytes);
            self.applied = wanted;
            any = true;
        }
        any
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A batch writes to the mapping; a ticket that is dropped waits.
        drop(lock(&self.applier).flight.take());
    }
}
