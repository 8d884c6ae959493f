// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of a block beside the paper's 64 bytes: overflow, activation, memory outside the arenas, counters.
//!
//! - **Layout** 512 bytes per block: words that processes wait on (0), sums (64), counters of the exit report (128…)
//! - **Order** `outside` and `borrowed` are part of the block's `unused`: a change of one is followed by a change of `unused` by
//!   the same amount. A fork moves the inherited charge from `outside` to the child's slot, and the child's end moves it back:
//!   that leaves `unused` as it is
//! - **Owner** the watcher writes `outside`, `keep`, its peaks, the time of its next look, and the owner; processes write the rest,
//!   and `outside` when one joins by fork or leaves

use std::sync::atomic::Ordering;

use super::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// No look is awaited.
pub(super) const NEVER: u64 = u64::MAX;
/// How far a job may go below zero while it spills (the paper's example).
pub const GRACE_BYTES: i64 = 10 << 20;

/// Behaviour of a job that does not fit even compressed and spilled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnOverflow {
    /// It waits until there is room, at most this many seconds.
    Pause {
        /// Longest wait, seconds.
        limit_s: u32,
    },
    /// It ends with exit code 75.
    Fail,
}

impl OnOverflow {
    /// From `pause`, `pause:SECONDS` or `fail`.
    pub fn parse(text: &str) -> Option<OnOverflow> {
        match text.split_once(':') {
            None if text == "fail" => Some(OnOverflow::Fail),
            None if text == "pause" => Some(OnOverflow::Pause { limit_s: 60 }),
            Some(("pause", limit)) => limit.parse().ok().map(|limit_s| OnOverflow::Pause { limit_s }),
            _ => None,
        }
    }

    pub(super) fn word(self) -> u32 {
        match self {
            OnOverflow::Pause { limit_s } => limit_s.min(u32::MAX - 1),
            OnOverflow::Fail => u32::MAX,
        }
    }

    pub(super) fn from_word(word: u32) -> OnOverflow {
        if word == u32::MAX { OnOverflow::Fail } else { OnOverflow::Pause { limit_s: word } }
    }
}

impl std::fmt::Display for OnOverflow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OnOverflow::Pause { limit_s } => write!(formatter, "pause:{limit_s}"),
            OnOverflow::Fail => formatter.write_str("fail"),
        }
    }
}

/// Counters of the exit report, over all processes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
#[expect(missing_docs, reason = "each name is its sentence; units are in it")]
pub enum Counter {
    Faults,
    FaultNs,
    PagesStored,
    BytesStored,
    PagesFilled,
    PagesIncompressible,
    PagesSpilled,
    PagesUnspilled,
    SynchronousEvictions,
    BackgroundEvictions,
    Visits,
    TrappedCalls,
    PinnedBytes,
    ArmedChunks,
    RefusedBytes,
    PagesColdPacked,
    BytesColdPacked,
}

/// Number of [`Counter`]s that a ledger has room for.
const COUNTERS: usize = 32;

/// The second half of a block, beside its control block.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Ledger {
    /// Bit 0: processes must be active. Futex.
    pub(super) active: AtomicU32,
    /// Bumped when `unused` falls below its objective. Futex.
    pub(super) demand: AtomicU32,
    /// State of the block's overflow, see [`super::overflow`].
    pub(super) overflow: AtomicU32,
    /// [`OnOverflow`] as one word.
    pub(super) on_overflow: AtomicU32,
    /// Bumped when memory came back to a block that was short. Futex.
    pub(super) relief: AtomicU32,
    /// Processes that wait on `relief`.
    pub(super) waiting: AtomicU32,
    /// Pid of the block's owner, which watches it.
    pub(super) owner_pid: AtomicU32,
    /// How many processes the block ever had.
    pub(super) processes: AtomicU32,
    /// When the owner started, clock ticks since boot.
    pub(super) owner_started: AtomicU64,
    /// When the current pause began, milliseconds of the monotonic clock.
    pub(super) paused_since_ms: AtomicU64,
    /// The part of the watcher's reserve that did not fit into `unused`, bytes: charges leave it, eviction makes it.
    pub(super) keep: AtomicI64,
    /// Bumped when a process joins by fork or leaves: a measurement across that is taken again.
    pub(super) membership: AtomicU64,
    /// Grace that is in `unused`, bytes.
    pub(super) borrowed: AtomicI64,
    /// Bytes outside the arenas; negative while pages are shared by a fork and charged twice.
    pub(super) outside: AtomicI64,
    /// Compressed-memory faults: flips of `unused` from zero or more to below.
    pub(super) events: AtomicU64,
    /// The least that `unused` ever was, less the grace in it.
    pub(super) least_unused: AtomicI64,
    /// Most memory that the killer saw, bytes.
    pub(super) peak: AtomicU64,
    sums: [AtomicU64; 3],
    counters: [AtomicU64; COUNTERS],
    /// The job's name for people: the program, cut to what fits, UTF-8.
    pub(super) name: [AtomicU64; 8],
    /// When the watcher's next look is overdue, milliseconds of the monotonic clock; [`NEVER`] while nobody looks.
    pub(super) overdue_ms: AtomicU64,
    /// Bumped to ask for a look now. Futex.
    pub(super) ask: AtomicU32,
    /// Number of looks so far. Futex.
    pub(super) looks: AtomicU32,
    rest: [AtomicU64; 6],
}

const _: () = {
    assert!(size_of::<Ledger>() == 512);
    assert!(std::mem::offset_of!(Ledger, borrowed) == 64);
    assert!(std::mem::offset_of!(Ledger, counters) == 128);
};

impl Ledger {
    /// Adds to a counter.
    pub fn count(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// A counter's sum over all processes.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Bytes outside the arenas; negative while pages are shared by a fork and charged twice.
    pub fn outside(&self) -> i64 {
        self.outside.load(Ordering::Acquire)
    }

    /// Bytes that a charge that can wait leaves unused: the missing part of the reserve, and the grace. The grace is for pages
    /// that can neither be compressed nor spilled.
    pub fn keep(&self) -> i64 {
        let keep = self.keep.load(Ordering::Acquire).max(0);
        keep.saturating_add(self.borrowed().max(0))
    }

    /// Returns true if its processes wait for room now, in their fault handlers: they take no signal then.
    pub fn paused(&self) -> bool {
        self.paused_since_ms.load(Ordering::Relaxed) != 0
    }

    /// How often a process joined by fork or left.
    pub fn membership(&self) -> u64 {
        self.membership.load(Ordering::Acquire)
    }

    /// Compressed-memory faults so far.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Grace that the job has now, bytes.
    pub fn borrowed(&self) -> i64 {
        self.borrowed.load(Ordering::Acquire)
    }

    /// Most memory that the killer saw, bytes; 0 before the first look.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// How many processes the block ever had.
    pub fn processes(&self) -> u32 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Returns true if the processes must be active.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Acquire) != 0
    }

    /// The job's name.
    pub fn name(&self) -> String {
        let mut bytes = Vec::new();
        for word in &self.name {
            bytes.extend(word.load(Ordering::Relaxed).to_le_bytes());
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).chars().filter(|c| !c.is_control()).collect()
    }

    pub(super) fn set_name(&self, name: &str) {
        let mut bytes = [0u8; 64];
        let mut end = name.len().min(63);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        for (word, chunk) in self.name.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(chunk.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
    }

    /// Sets every word to its value in a new job.
    pub(super) fn clear(&self) {
        for word in [&self.active, &self.demand, &self.overflow, &self.relief, &self.waiting, &self.processes]
        {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.borrowed, &self.outside, &self.keep] {
            word.store(0, Ordering::Relaxed);
        }
        self.least_unused.store(i64::MAX, Ordering::Relaxed);
        self.overdue_ms.store(NEVER, Ordering::Relaxed);
        for word in self.counters.iter().chain([&self.paused_since_ms, &self.events, &self.peak]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_names_survive_the_words() {
        for policy in [OnOverflow::Fail, OnOverflow::Pause { limit_s: 0 }, OnOverflow::Pause { limit_s: 90 }]
        {
            assert_eq!(OnOverflow::parse(&policy.to_string()), Some(policy));
            assert_eq!(OnOverflow::from_word(policy.word()), policy);
        }
        assert_eq!(OnOverflow::parse("pause:x"), None);
        let ledger = Ledger::default();
        ledger.set_name(&"ä".repeat(40));
        assert_eq!(ledger.name(), "ä".repeat(31));
        ledger.count(Counter::RefusedBytes, 3);
        assert_eq!(ledger.counted(Counter::RefusedBytes), 3);
    }
}
