// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of a block beside the paper's 64 bytes: overflow, activation, memory outside the arenas, counters.
//!
//! - **Layout** 768 bytes per block: words that processes wait on (from 0), sums (from 64), counters of the exit report (from
//!   128), returns of pages by their absence (from 512)
//! - **Order** `unused` of the block includes `outside` and `borrowed`: a change of either is followed by a change of
//!   `unused` by the same amount. A fork moves the inherited charge from `outside` to the child's slot, and the child's end
//!   moves it back, so neither changes `unused`
//! - **Owner** the watcher writes `outside`, `unmet_reserve`, its peaks, the time of its next look, and the owner. Processes
//!   write the rest, and also `outside` when one joins by fork or leaves

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::atomic::{AtomicI64, AtomicU32, AtomicU64};
use crate::lock::now_ms;

/// Value of `overdue_ms` while no process waits for a look.
pub(super) const NEVER: u64 = u64::MAX;
/// Bytes by which a job may go below zero while it spills (the paper's example).
pub const GRACE_BYTES: i64 = 10 << 20;

/// Behaviour of a job that does not fit even when compressed and spilled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnOverflow {
    /// The job waits until there is room, at most this many seconds.
    Pause {
        /// Longest wait, seconds.
        limit_s: u32,
    },
    /// The job ends with exit code 75.
    Fail,
}

impl OnOverflow {
    /// Parses `pause`, `pause:SECONDS` or `fail`.
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

/// Counters of the exit report, summed over all processes of a job.
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
    /// Time in which faults made room, without pauses.
    RoomNs,
    /// Time in which faults read the spill file.
    UnspillNs,
    /// Time in which faults waited because the job was paused.
    PausedNs,
}

/// Number of classes of absence that a ledger has room for.
pub const ABSENCES: usize = 30;
/// Upper bounds of the first and second kind of classes of absence, in the job's total.
const SHORT_ABSENCE: u64 = 1;
const MIDDLE_ABSENCE: u64 = 4;
/// Classes per total among short and middle absences.
const SHORT_CLASSES: u64 = 16;
const MIDDLE_CLASSES: u64 = 4;

/// Returns the class of an absence during which `bytes` came in, under a total of `total` bytes.
fn absence_class(bytes: u64, total: u64) -> usize {
    let total = total.max(1);
    let in_classes = |classes: u64| (u128::from(bytes) * u128::from(classes) / u128::from(total)) as u64;
    let short = SHORT_ABSENCE * SHORT_CLASSES;
    let middle = (MIDDLE_ABSENCE - SHORT_ABSENCE) * MIDDLE_CLASSES;
    let class = match bytes {
        _ if bytes < SHORT_ABSENCE.saturating_mul(total) => in_classes(SHORT_CLASSES),
        _ if bytes < MIDDLE_ABSENCE.saturating_mul(total) => {
            short + in_classes(MIDDLE_CLASSES) - SHORT_ABSENCE * MIDDLE_CLASSES
        }
        _ if bytes < total.saturating_mul(2 * MIDDLE_ABSENCE) => short + middle,
        _ => short + middle + 1,
    };
    (class as usize).min(ABSENCES - 1)
}

/// Returns the longest absence of a class, as a multiple of the job's total; infinite for the last class.
pub fn longest_absence(class: usize) -> f64 {
    let (short, middle) = (
        (SHORT_ABSENCE * SHORT_CLASSES) as usize,
        ((MIDDLE_ABSENCE - SHORT_ABSENCE) * MIDDLE_CLASSES) as usize,
    );
    match class {
        _ if class < short => (class + 1) as f64 / SHORT_CLASSES as f64,
        _ if class < short + middle => {
            SHORT_ABSENCE as f64 + (class - short + 1) as f64 / MIDDLE_CLASSES as f64
        }
        _ if class == short + middle => 2.0 * MIDDLE_ABSENCE as f64,
        _ => f64::INFINITY,
    }
}

/// Number of [`Counter`]s that a ledger has room for.
const COUNTERS: usize = 32;

/// The second part of a block's state, beside its control block.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Ledger {
    /// Bit 0: the processes must be active. Processes wait on this word (futex).
    pub(super) active: AtomicU32,
    /// Incremented when `unused` falls below its objective. Evictors wait on this word (futex).
    pub(super) demand: AtomicU32,
    /// State of the block's overflow, see [`super::overflow`].
    pub(super) overflow: AtomicU32,
    /// [`OnOverflow`] as one word.
    pub(super) on_overflow: AtomicU32,
    /// Incremented when memory came back to a block that was short. Paused processes wait on this word (futex).
    pub(super) relief: AtomicU32,
    /// Number of processes that wait on `relief`.
    pub(super) waiting: AtomicU32,
    /// Pid of the block's owner, which runs the watcher.
    pub(super) owner_pid: AtomicU32,
    /// Number of processes that the block has ever had.
    pub(super) processes: AtomicU32,
    /// Start time of the owner, clock ticks since boot.
    pub(super) owner_started: AtomicU64,
    /// Start of the current pause, milliseconds of the monotonic clock; 0 if the job is not paused.
    pub(super) paused_since_ms: AtomicU64,
    /// The part of the watcher's reserve that did not fit into `unused`, bytes. Charges leave it unused, and eviction makes
    /// room for it.
    pub(super) unmet_reserve: AtomicI64,
    /// Incremented when a process joins by fork or leaves. A measurement during which it changed is taken again.
    pub(super) membership: AtomicU64,
    /// Grace that `unused` includes, bytes.
    pub(super) borrowed: AtomicI64,
    /// Bytes outside the arenas; may be negative while pages shared by a fork are charged twice.
    pub(super) outside: AtomicI64,
    /// Number of compressed-memory faults: changes of `unused` from zero or more to below zero.
    pub(super) events: AtomicU64,
    /// Smallest value that `unused` has had, without the grace in it.
    pub(super) least_unused: AtomicI64,
    /// Most memory of the job that the killer has seen, bytes.
    pub(super) peak: AtomicU64,
    sums: [AtomicU64; 3],
    counters: [AtomicU64; COUNTERS],
    /// The job's name for people: the program's name, UTF-8, cut to what fits.
    pub(super) name: [AtomicU64; 8],
    /// Time at which the watcher's next look is overdue, milliseconds of the monotonic clock; [`NEVER`] while no watcher
    /// looks.
    pub(super) overdue_ms: AtomicU64,
    /// Incremented to ask for a look now. The watcher waits on this word (futex).
    pub(super) ask: AtomicU32,
    /// Number of looks so far. Processes wait on this word (futex).
    pub(super) looks: AtomicU32,
    /// Time of the last line about the current pause, milliseconds of the monotonic clock.
    pub(super) said_ms: AtomicU64,
    /// Time since which no thread that lacked room has got any, milliseconds of the monotonic clock; 0 if none lacks room.
    pub(super) short_since_ms: AtomicU64,
    /// Bytes charged ahead for processes and threads that start, since the job began; the watcher gives them back once it has
    /// measured the memory itself.
    pub(super) starting: AtomicU64,
    rest: [AtomicU64; 3],
    /// Pages that came back, by the class of their absence.
    absences: [AtomicU64; ABSENCES],
    more: [AtomicU64; 2],
}

const _: () = {
    assert!(size_of::<Ledger>() == 768);
    assert!(std::mem::offset_of!(Ledger, absences) == 512);
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

    /// Notes that `pages` came back, since whose leaving `bytes` have come in.
    pub fn note_return(&self, bytes: u64, total: u64, pages: u64) {
        self.absences[absence_class(bytes, total)].fetch_add(pages, Ordering::Relaxed);
    }

    /// Returns the number of pages that came back, by the class of their absence ([`longest_absence`]).
    pub fn returns(&self) -> [u64; ABSENCES] {
        self.absences.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the least total that would do for what the job holds, bytes: compressed and spilled as far as it goes, with
    /// the part of the reserve that is missing. `total` and `unused` are those of the block.
    pub fn needed_bytes(&self, total: i64, unused: i64) -> i64 {
        let own = unused.saturating_sub(self.borrowed());
        total.saturating_sub(own).saturating_add(self.unmet_reserve.load(Ordering::Acquire).max(0))
    }

    /// Returns the smallest value that `unused` has had, without the grace; 0 if it was never below zero.
    pub fn least_unused(&self) -> i64 {
        self.least_unused.load(Ordering::Relaxed).min(0)
    }

    /// Returns the bytes outside the arenas; may be negative while pages shared by a fork are charged twice.
    pub fn outside(&self) -> i64 {
        self.outside.load(Ordering::Acquire)
    }

    /// Returns the bytes that a charge must leave unused if it can wait instead: the missing part of the reserve, and the
    /// grace. The grace is for pages that can neither be compressed nor spilled.
    pub fn reserved_bytes(&self) -> i64 {
        let unmet = self.unmet_reserve.load(Ordering::Acquire).max(0);
        unmet.saturating_add(self.borrowed().max(0))
    }

    /// Returns true if the job's processes now wait for room in their fault handlers, where they take no signal.
    pub fn paused(&self) -> bool {
        self.paused_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Returns the time for which no thread that lacks room has got any; `None` if none lacks room.
    pub fn lacks_room_for(&self) -> Option<Duration> {
        let since = self.short_since_ms.load(Ordering::Relaxed);
        (since != 0).then(|| Duration::from_millis(now_ms().saturating_sub(since)))
    }

    /// Returns the number of times that a process joined by fork or left.
    pub fn membership(&self) -> u64 {
        self.membership.load(Ordering::Acquire)
    }

    /// Returns the number of compressed-memory faults so far.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Returns the grace that the job has now, bytes.
    pub fn borrowed(&self) -> i64 {
        self.borrowed.load(Ordering::Acquire)
    }

    /// Returns the most memory that the killer has seen, bytes; 0 before the first look.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the number of processes that the block has ever had.
    pub fn processes(&self) -> u32 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that were ever charged ahead for processes and threads that start ([`super::Job::charge_start`]).
    pub fn starting(&self) -> u64 {
        self.starting.load(Ordering::Acquire)
    }

    /// Returns true if the job's processes must be active.
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
        for word in [&self.borrowed, &self.outside, &self.unmet_reserve] {
            word.store(0, Ordering::Relaxed);
        }
        self.least_unused.store(i64::MAX, Ordering::Relaxed);
        self.overdue_ms.store(NEVER, Ordering::Relaxed);
        let words = [&self.paused_since_ms, &self.said_ms, &self.short_since_ms, &self.events, &self.peak];
        self.starting.store(0, Ordering::Relaxed);
        for word in self.counters.iter().chain(&self.absences).chain(words) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_fall_into_the_class_whose_bound_is_next() {
        for total in [1, 4096, 3 << 30] {
            let mut last = 0;
            for step in 0..2000u64 {
                let bytes = total * step / 128;
                let class = absence_class(bytes, total);
                assert!(class >= last, "{bytes} of {total}");
                let share = bytes as f64 / total as f64;
                assert!(share < longest_absence(class) + 1e-9, "{bytes} of {total}: {class}");
                assert!(
                    class == 0 || share >= longest_absence(class - 1) - 1e-9,
                    "{bytes} of {total}: {class}"
                );
                last = class;
            }
            assert_eq!(last, ABSENCES - 1);
        }
        assert_eq!(absence_class(u64::MAX, 0), ABSENCES - 1);
    }

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
