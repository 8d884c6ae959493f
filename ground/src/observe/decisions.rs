// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring of the last decisions: many writers in one process, readers in others, and no torn record.
//!
//! - **Flow** [`push`]: number = head++ ──▶ cell[number % 256], by the protocol of [`seqlock`]. [`read`]: the same cell
//!   through [`Words`], with some attempts, then skipped
//! - **Owner** a writer that is overtaken by 256 others, or finds its cell in use, drops its record and counts that.
//! - **Not here** the reason of a decision: `reason` is a code of the placement.

use std::sync::atomic::{AtomicU64, Ordering};

use memlift_spec::Opcode;

use super::layout::{DECISIONS, DecisionCell, Executor, Ring};
use super::seqlock::{self, Unread};

/// The cache state that a decision assumed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum CacheState {
    /// Nothing is known.
    #[default]
    Unknown = 0,
    /// The bytes are in the cache.
    Hot = 1,
    /// The bytes are not in the cache.
    Cold = 2,
}

impl CacheState {
    /// Returns the name used in all reports.
    pub const fn name(self) -> &'static str {
        match self {
            CacheState::Unknown => "unknown",
            CacheState::Hot => "hot",
            CacheState::Cold => "cold",
        }
    }

    fn from_code(code: u8) -> CacheState {
        match code {
            1 => CacheState::Hot,
            2 => CacheState::Cold,
            _ => CacheState::Unknown,
        }
    }
}

/// One decision: the executor that was chosen for an operation, its predicted time and its measured time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecisionRecord {
    /// Time of the decision, by [`now_ns`](super::now_ns).
    pub time_ns: u64,
    /// Opcode of the operation.
    pub opcode: Opcode,
    /// Executor that was chosen.
    pub executor: Executor,
    /// State of the cache that the decision assumed.
    pub cache_state: CacheState,
    /// Bytes of the operation.
    pub size: u64,
    /// Time that the cost model predicted, nanoseconds.
    pub predicted_ns: u64,
    /// Time that the operation took, nanoseconds.
    pub measured_ns: u64,
    /// Reason of the decision, as a code of the placement.
    pub reason: u16,
}

impl DecisionRecord {
    fn to_words(self) -> [u64; 7] {
        let codes = u64::from(self.opcode.0)
            | (self.executor as u64) << 8
            | (self.cache_state as u64) << 16
            | u64::from(self.reason) << 32;
        [self.time_ns, codes, self.size, self.predicted_ns, self.measured_ns, 0, 0]
    }

    /// Decodes a record; `None` if the executor is unknown.
    fn from_words(words: [u64; 7]) -> Option<DecisionRecord> {
        let [time_ns, codes, size, predicted_ns, measured_ns, _, _] = words;
        Some(DecisionRecord {
            time_ns,
            opcode: Opcode(codes as u8),
            executor: Executor::from_code((codes >> 8) as u8)?,
            cache_state: CacheState::from_code((codes >> 16) as u8),
            size,
            predicted_ns,
            measured_ns,
            reason: (codes >> 32) as u16,
        })
    }
}

/// Writes a record; `dropped` counts records that could not be written.
pub(super) fn push(ring: &Ring, dropped: &AtomicU64, record: DecisionRecord) {
    let number = ring.head.fetch_add(1, Ordering::Relaxed);
    let cell = &ring.cells[number as usize % DECISIONS];
    if !seqlock::write(&cell.sequence, &cell.words, number, record.to_words()) {
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A source of words: the page of another process, mapped or copied.
pub(super) trait Words {
    /// Returns the word at `offset` bytes from the start of the page.
    fn word(&self, offset: usize, order: Ordering) -> u64;
}

/// Reads the cell at `offset`: its number and record, or `None` if it is empty or being written.
pub(super) fn read(page: &impl Words, offset: usize) -> Option<(u64, DecisionRecord)> {
    const WORDS: usize = core::mem::offset_of!(DecisionCell, words);
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let seen = seqlock::read(
            |order| page.word(offset, order),
            |index| page.word(offset + WORDS + index * 8, Ordering::Relaxed),
        );
        match seen {
            Ok((number, words)) => {
                return DecisionRecord::from_words(words).map(|record| (number, record));
            }
            Err(Unread::Empty) => return None,
            Err(Unread::BeingWritten) => std::hint::spin_loop(),
        }
    }
    None
}
