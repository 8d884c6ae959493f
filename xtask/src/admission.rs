// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when the next test program may start: while few run, at once; beyond that, when cores idle and memory is available.
//!
//! - **Why** many test programs wait (for a lease, a dead peer, a disk). A fixed number at a time leaves cores idle while those
//!   wait, and a larger number is too much while all of them compute
//! - **Flow** [`Admission::wait`] ─▶ `/proc/stat` and `/proc/meminfo` over a short window ─▶ one more program, and a new window, so that
//!   it counts before the next one is admitted
//! - **Without `/proc`** the fixed number

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time over which the idle share of the cores is measured.
const WINDOW: Duration = Duration::from_millis(300);
/// Time between two looks at the number of running programs.
const TICK: Duration = Duration::from_millis(20);
/// Programs that run at a time whatever the cores do, beyond the number of cores.
const WAITING: usize = 1;
/// Programs that run at a time at most, for each core.
const MOST_PER_CORE: usize = 4;
/// Idle share of all cores that is room for one more program.
const ROOM: f64 = 0.3;
/// Share of the memory that stays available.
const MEMORY: f64 = 0.3;

/// State between two admissions.
pub struct Admission {
    cores: usize,
    window: Option<(Instant, Ticks)>,
}

/// Time of all cores since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Admission {
    pub fn new(cores: usize) -> Self {
        Self { cores, window: None }
    }

    /// Waits until one more program may start.
    pub fn wait(&mut self, running: &AtomicUsize) {
        while !self.admits(running.load(Ordering::Acquire)) {
            std::thread::sleep(TICK);
        }
        self.window = None;
    }

    fn admits(&mut self, running: usize) -> bool {
        if running < self.cores + WAITING {
            return true;
        }
        if running >= self.cores * MOST_PER_CORE {
            return false;
        }
        let Some(now) = read("/proc/stat").and_then(|text| ticks(&text)) else { return false };
        let (started, before) = *self.window.get_or_insert((Instant::now(), now));
        if started.elapsed() < WINDOW {
            return false;
        }
        self.window = None;
        idle_share(before, now) >= ROOM
            && read("/proc/meminfo")
                .and_then(|text| available_share(&text))
                .is_some_and(|share| share >= MEMORY)
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Reads the first line of `/proc/stat`. Time that a core idles while a disk works counts as idle.
fn ticks(stat: &str) -> Option<Ticks> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests' time is contained in user's.
    let (idle, iowait) = (fields.get(3)?, fields.get(4)?);
    Some(Ticks { idle: idle + iowait, all: fields.iter().take(8).sum() })
}

fn idle_share(before: Ticks, now: Ticks) -> f64 {
    let all = now.all.saturating_sub(before.all);
    if all == 0 { 0.0 } else { now.idle.saturating_sub(before.idle) as f64 / all as f64 }
}

fn available_share(meminfo: &str) -> Option<f64> {
    let of = |name: &str| -> Option<f64> {
        meminfo.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    Some(of("MemAvailable:")? / of("MemTotal:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_start_at_once_and_too_many_never() {
        let mut admission = Admission::new(2);
        assert!((0..3).all(|running| admission.admits(running)));
        assert!(!admission.admits(8) && !admission.admits(9));
        assert!(!admission.admits(3), "a window has to pass first");
    }

    #[test]
    fn shares_are_read_from_the_kernels_files() {
        let before = ticks("cpu  100 0 100 200 100 0 0 0 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
            .expect("a line of all cores");
        assert_eq!(before, Ticks { idle: 300, all: 500 });
        let now = ticks("cpu  130 0 110 240 120 0 0 0 60 0\n").expect("a line of all cores");
        assert!((idle_share(before, now) - 0.6).abs() < 1e-9 && idle_share(now, now) == 0.0);
        assert_eq!(available_share("MemTotal: 400 kB\nMemFree: 1 kB\nMemAvailable: 100 kB\n"), Some(0.25));
        assert_eq!((ticks("nothing"), available_share("MemTotal: 1 kB")), (None, None));
        let own = read("/proc/stat").expect("Linux");
        assert!(ticks(&own).is_some_and(|own| own.idle <= own.all));
    }
}
