// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring of the last decisions: many writers in one process, readers in others, and no torn record.
//!
//! Flow    writer: number = head++ ──▶ cell[number % 256]: sequence even → odd ──▶ words ──▶ sequence = 2·(number+1)
//!         reader: sequence (Acquire) ──▶ words ──▶ fence(Acquire) ──▶ sequence again; equal and even, or skip
//! Order   writer: the odd sequence is taken with a compare-exchange, then fence(Release), so that whoever sees
//!         one of the new words also sees the sequence odd or newer. The even one is stored with Release.
//! Owner   a cell belongs to the writer that made its sequence odd. A writer that is lapped by 256 others, or
//!         finds its cell taken, drops its record and counts that.
//! Not here why something was decided: `reason` is the placement's code.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use memlift_spec::Opcode;

use super::layout::{DECISIONS, DecisionCell, Executor, Ring};

/// What was known of the caches when a decision was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum CacheState {
    /// Nothing.
    #[default]
    Unknown = 0,
    /// The bytes are in cache.
    Hot = 1,
    /// They are not.
    Cold = 2,
}

impl CacheState {
    /// The name in every report.
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

/// Who was chosen for one operation, and how that went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecisionRecord {
    /// When, [`now_ns`](super::now_ns).
    pub time_ns: u64,
    /// What.
    pub opcode: Opcode,
    /// Who.
    pub executor: Executor,
    /// Where the bytes were.
    pub cache_state: CacheState,
    /// Bytes.
    pub size: u64,
    /// What the cost model said, nanoseconds.
    pub predicted_ns: u64,
    /// What it took, nanoseconds.
    pub measured_ns: u64,
    /// Why, as a code of the placement.
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

    /// None when the executor is none that we know.
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

/// Writes a record; `dropped` counts those that could not be.
pub(super) fn push(ring: &Ring, dropped: &AtomicU64, record: DecisionRecord) {
    let number = ring.head.fetch_add(1, Ordering::Relaxed);
    let cell = &ring.cells[number as usize % DECISIONS];
    let done = number.wrapping_add(1).wrapping_mul(2);
    let seen = cell.sequence.load(Ordering::Relaxed);
    let free = seen.is_multiple_of(2) && seen < done;
    if !free || cell.sequence.compare_exchange(seen, done - 1, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        dropped.fetch_add(1, Ordering::Relaxed);
        return;
    }
    fence(Ordering::Release);
    for (cell, word) in cell.words.iter().zip(record.to_words()) {
        cell.store(word, Ordering::Relaxed);
    }
    cell.sequence.store(done, Ordering::Release);
}

/// A place from which words can be loaded: the page of another process.
pub(super) trait Words {
    /// The word at `offset` bytes from the start of the page.
    fn word(&self, offset: usize, order: Ordering) -> u64;
}

/// Reads the cell at `offset`: its number and record, or none when it is empty or being written.
pub(super) fn read(page: &impl Words, offset: usize) -> Option<(u64, DecisionRecord)> {
    const WORDS: usize = core::mem::offset_of!(DecisionCell, words);
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let before = page.word(offset, Ordering::Acquire);
        if before == 0 {
            return None;
        }
        if before.is_multiple_of(2) {
            let words = std::array::from_fn(|index| page.word(offset + WORDS + index * 8, Ordering::Relaxed));
            fence(Ordering::Acquire);
            if page.word(offset, Ordering::Relaxed) == before {
                return DecisionRecord::from_words(words).map(|record| (before / 2 - 1, record));
            }
        }
        std::hint::spin_loop();
    }
    None
}
