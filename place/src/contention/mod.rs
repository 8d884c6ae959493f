// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures contention, that is, how busy other programs keep the caches.
//!
//! - **Flow** [`Contention::note_message`] is called after each message. It samples once some MiB have passed and the time since the last sample is
//!   a hundred times what that sample cost. A sample gives a level (1: as good as it ever was), and the level sets the contended state,
//!   with hysteresis and a shortest time between two changes.
//! - **Order** one thread samples at a time (the lock is only tried, never waited for); all threads read atomic words.
//! - **Owner** there is no thread of its own: a process that transforms nothing measures nothing.
//!
//! Sources, of which the first that works is taken: memory bandwidth counters of the kernel (`resctrl`), cache misses of this process
//! (`perf`), a dense sweep of own memory (`sweep`). The sweep works everywhere.

mod knee;
#[expect(unsafe_code, reason = "reads counters of the kernel")]
mod perf;
mod resctrl;
mod ring;
mod source;
mod sweep;

pub(crate) use sweep::second_level_bytes;

use knee::Knee;
use memlift_ground::observe::now_ns;
use perf::Perf;
use resctrl::Resctrl;
use source::Source;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sweep::Sweep;

/// Measuring may take at most 1/`DUTY` of the time.
const DUTY: u64 = 100;
const SAMPLE_EVERY_NS: u64 = 100_000_000;
const KNEE_EVERY_NS: u64 = 30_000_000_000;
/// Bytes that must have passed since the last measurement.
const BYTES_BETWEEN: usize = 4 << 20;
/// Shortest time between two changes of the contended state, nanoseconds.
const STAY_NS: u64 = 200_000_000;
/// While contended, contention ends when the level exceeds 1 by less than this part of the threshold.
const LEAVE_AT: f64 = 0.5;

#[derive(Debug)]
struct Tools {
    source: Box<dyn Source>,
    knee: Knee,
    knee_round_ns: u64,
}

/// Samples a source now and then, and judges if the caches are contended.
#[derive(Debug)]
pub(crate) struct Contention {
    tools: Mutex<Option<Tools>>,
    threshold: f64,
    enabled: bool,
    bytes: AtomicUsize,
    next_ns: AtomicU64,
    contended: AtomicBool,
    changed_ns: AtomicU64,
    level: AtomicU32,
    knee_bytes: AtomicUsize,
    spent_ns: AtomicU64,
    samples: AtomicU64,
}

fn best_source() -> Box<dyn Source> {
    if let Some(source) = Resctrl::open() {
        return Box::new(source);
    }
    if let Some(source) = Perf::open() {
        return Box::new(source);
    }
    Box::new(Sweep::default())
}

impl Contention {
    pub fn new(threshold: f64, enabled: bool) -> Contention {
        Contention {
            tools: Mutex::new(None),
            threshold,
            enabled,
            bytes: AtomicUsize::new(0),
            next_ns: AtomicU64::new(0),
            contended: AtomicBool::new(false),
            changed_ns: AtomicU64::new(0),
            level: AtomicU32::new(0),
            knee_bytes: AtomicUsize::new(0),
            spent_ns: AtomicU64::new(0),
            samples: AtomicU64::new(0),
        }
    }

    pub fn contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// Returns the last level; 0 if none was measured yet.
    pub fn level(&self) -> f64 {
        f64::from(f32::from_bits(self.level.load(Ordering::Relaxed)))
    }

    pub fn knee_bytes(&self) -> usize {
        self.knee_bytes.load(Ordering::Relaxed)
    }

    pub fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed)
    }

    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    pub fn source_name(&self) -> &'static str {
        match self.tools.try_lock() {
            Ok(tools) => tools.as_ref().map_or("none yet", |tools| tools.source.name()),
            Err(_) => "busy",
        }
    }

    #[cfg(test)]
    fn replace(&self, source: Box<dyn Source>) {
        let mut tools = self.tools.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &mut *tools {
            Some(tools) => tools.source = source,
            none => *none = Some(Tools { source, knee: Knee::default(), knee_round_ns: 0 }),
        }
    }

    /// Counts a message of `bytes` that ended at `start_ns`, and measures contention if it is time.
    pub fn note_message(&self, bytes: usize, start_ns: u64) {
        let passed = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if !self.enabled || passed < BYTES_BETWEEN {
            return;
        }
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        if next_ns == 0 {
            // The first 100 ms are not measured, so that short-lived users pay nothing.
            self.next_ns.store(start_ns + SAMPLE_EVERY_NS, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
            return;
        }
        if start_ns < next_ns {
            return;
        }
        let Ok(mut tools) = self.tools.try_lock() else { return };
        if start_ns < self.next_ns.load(Ordering::Relaxed) {
            return;
        }
        let tools = tools.get_or_insert_with(|| Tools {
            source: best_source(),
            knee: Knee::default(),
            knee_round_ns: 0,
        });
        let knee_is_due = start_ns.saturating_sub(tools.knee_round_ns) > KNEE_EVERY_NS;
        if knee_is_due && self.samples() % 4 == 3 {
            if tools.knee.measure_next_size() {
                tools.knee_round_ns = start_ns;
                self.knee_bytes.store(tools.knee.bytes(), Ordering::Relaxed);
            }
        } else if let Some(level) = tools.source.sample() {
            self.update_contended(level, start_ns);
        }
        self.samples.fetch_add(1, Ordering::Relaxed);
        let end_ns = now_ns();
        let cost_ns = end_ns.saturating_sub(start_ns);
        self.spent_ns.fetch_add(cost_ns, Ordering::Relaxed);
        self.next_ns.store(end_ns + SAMPLE_EVERY_NS.max(cost_ns * DUTY), Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Sets the contended state above the threshold, clears it below half of the threshold; at most one change per `STAY_NS`.
    fn update_contended(&self, level: f64, at_ns: u64) {
        self.level.store((level as f32).to_bits(), Ordering::Relaxed);
        let contended = self.contended();
        let limit = 1.0 + if contended { self.threshold * LEAVE_AT } else { self.threshold };
        let stayed_ns = at_ns.saturating_sub(self.changed_ns.load(Ordering::Relaxed));
        if (level > limit) != contended && stayed_ns >= STAY_NS {
            self.contended.store(!contended, Ordering::Relaxed);
            self.changed_ns.store(at_ns, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_turns_with_hysteresis_and_stays() {
        let contention = Contention::new(0.35, true);
        let mut at_ns = 10 * STAY_NS;
        let mut contended_after = |level, later_ns| {
            at_ns += later_ns;
            contention.update_contended(level, at_ns);
            contention.contended()
        };
        assert!(!contended_after(1.34, STAY_NS));
        assert!(contended_after(1.40, STAY_NS));
        assert!(contended_after(1.20, STAY_NS), "between the two limits nothing turns");
        assert!(!contended_after(1.10, STAY_NS));
        assert!(!contended_after(1.90, STAY_NS / 2), "not before the least stay");
        assert!(contended_after(1.90, STAY_NS));
    }

    #[derive(Debug)]
    struct Loud;

    impl Source for Loud {
        fn name(&self) -> &'static str {
            "loud"
        }
        fn sample(&mut self) -> Option<f64> {
            Some(9.0)
        }
    }

    #[test]
    fn who_transforms_little_measures_nothing() {
        let contention = Contention::new(0.35, true);
        contention.replace(Box::new(Loud));
        for _ in 0..100 {
            contention.note_message(4096, now_ns());
        }
        assert_eq!((contention.samples(), contention.spent_ns()), (0, 0));
        assert!(!contention.contended());
    }
}
