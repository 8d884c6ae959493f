// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how busy the machine is: at this moment, for a copy that wants a second core; and during a calibration.
//!
//! - **Source** the run queue is the fourth field of /proc/loadavg, which counts the tasks that run or want to run at this
//!   moment. The time that this thread had to wait for its core is the second field of its schedstat. The time taken by a
//!   hypervisor is `steal` in /proc/stat. A file that cannot be read counts as quiet.
//! - **Cost** reading the run queue takes some microseconds.
//! - **Method** a [`Watch`] samples the run queue once per step of a calibration and collects the spread of every measured
//!   point: the machine was busy if tasks queued up, if this thread waited, or if repeats of the same work differ.

use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::time::Instant;

/// Largest accepted ratio of third to first quartile of a point's repeats, for the median point.
const SPREAD_MAX: f64 = 1.35;
/// Largest accepted share of its time that the measuring thread waited for a core, or that a hypervisor took.
const WAITED_MAX: f64 = 0.05;

/// Judgement if decisions may use the numbers of a calibration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trust {
    /// True if the machine was quiet during the measurement.
    pub trusted: bool,
    /// Reason that the numbers are not trusted; empty if they are.
    pub why: String,
    /// Ratio of third to first quartile of the repeats of one point: the median over all points.
    pub spread: f64,
    /// Other tasks that ran or wanted to run, on average.
    pub others_running: f64,
    /// Share of its time that the measuring thread waited for a core.
    pub waited: f64,
}

impl Trust {
    /// Returns a trusted judgement, for numbers that are assumed and not measured.
    pub(super) fn assumed() -> Trust {
        Trust { trusted: true, why: String::new(), spread: 1.0, others_running: 0.0, waited: 0.0 }
    }
}

/// Returns the tasks that run or want to run on this machine at this moment, including the caller; `None`: the kernel
/// does not say.
pub fn running_tasks() -> Option<usize> {
    running(&std::fs::read_to_string("/proc/loadavg").ok()?)
}

fn running(loadavg: &str) -> Option<usize> {
    let (running, _) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    // The reader itself runs, so 0 is not a valid answer.
    running.parse().ok().filter(|&running| running > 0)
}

/// Returns the number of cores that this process may use. Quotas are read once, because that takes several files; the
/// affinity is read each time.
pub(super) fn cores() -> usize {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    let allowed =
        *ALLOWED.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()));
    let pinned = rustix::thread::sched_getaffinity(None).map_or(allowed, |set| set.count() as usize);
    allowed.min(pinned).max(1)
}

/// Returns the number of this process's cores without work at this moment. `mine` running tasks do not count: the caller,
/// and engine threads that only wait. Tasks of other processes count as if they ran on this process's cores.
pub fn idle_cores(mine: usize) -> usize {
    let spare = cores() - 1;
    if spare == 0 {
        return 0;
    }
    spare.saturating_sub(running_tasks().map_or(0, |running| running.saturating_sub(mine.max(1))))
}

/// Returns the time that the hypervisor took from all CPUs (`steal` in `/proc/stat`), in ticks.
fn stolen_ticks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// Returns the nanoseconds that the calling thread has been on a core, and those it has waited for one.
fn scheduled_ns() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut words = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    Some((words.next()??, words.next()??))
}

/// Watches the machine while the calling thread measures it.
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    scheduled: Option<(u64, u64)>,
    stolen: Option<u64>,
    /// Numbers of other tasks, one per sample.
    others: Vec<f64>,
    spreads: Vec<f64>,
    /// Average number of other tasks from which the machine counts as busy.
    others_max: f64,
}

impl Watch {
    /// Starts watching. With `for_sharing` half of the cores must be idle, otherwise copies shared by several cores
    /// cannot be measured; without it, it is enough that no task has to wait.
    pub fn new(for_sharing: bool) -> Watch {
        let cores = cores() as f64;
        Watch {
            start: Instant::now(),
            scheduled: scheduled_ns(),
            stolen: stolen_ticks(),
            others: Vec::new(),
            spreads: Vec::new(),
            others_max: if for_sharing { (cores - 1.0) / 2.0 } else { cores - 0.5 },
        }
    }

    /// Samples the run queue. The worker threads must be asleep.
    pub fn sample(&mut self) {
        if let Some(running) = running_tasks() {
            self.others.push((running - 1) as f64);
        }
    }

    /// Adds the repeats of one point, and sorts them.
    pub fn point(&mut self, times: &mut [f64]) {
        if times.len() >= 4 {
            times.sort_unstable_by(f64::total_cmp);
            self.spreads.push(times[times.len() * 3 / 4] / times[times.len() / 4].max(1.0));
        }
    }

    /// Returns the judgement of the measurement.
    pub fn verdict(&self) -> Trust {
        let waited = match (self.scheduled, scheduled_ns()) {
            (Some((ran, waited)), Some((ran_now, waited_now))) => {
                let (ran, waited) = (ran_now - ran, waited_now - waited);
                waited as f64 / (ran + waited).max(1) as f64
            }
            _ => 0.0,
        };
        let stolen = match (self.stolen, stolen_ticks()) {
            // A tick is 10 ms on every Linux, as far as programs can see.
            (Some(before), Some(now)) => {
                now.saturating_sub(before) as f64 * 0.01 / self.start.elapsed().as_secs_f64().max(0.01)
            }
            _ => 0.0,
        };
        let others = self.others.iter().sum::<f64>() / self.others.len().max(1) as f64;
        let mut spreads = self.spreads.clone();
        spreads.sort_unstable_by(f64::total_cmp);
        judge(self.others_max, others, waited, stolen, spreads.get(spreads.len() / 2).copied().unwrap_or(1.0))
    }
}

fn judge(others_max: f64, others: f64, waited: f64, stolen: f64, spread: f64) -> Trust {
    let why = if others >= others_max.max(0.25) {
        format!("{others:.1} other tasks were running on average while it measured")
    } else if waited > WAITED_MAX {
        format!("it waited for a core for {:.0} % of its time", waited * 100.0)
    } else if stolen > WAITED_MAX {
        format!("the hypervisor took {:.0} % of its time", stolen * 100.0)
    } else if spread > SPREAD_MAX {
        format!("repeats of the same work differ by {:.0} %", (spread - 1.0) * 100.0)
    } else {
        String::new()
    };
    Trust { trusted: why.is_empty(), why, spread, others_running: others, waited }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_queue_is_read() {
        assert_eq!(running("0.52 0.58 0.59 3/789 12345\n"), Some(3));
        for nonsense in ["", "0.5", "0.52 0.58 0.59 0/0 1", "0.52 0.58 0.59 x/789 1", "0.52 0.58 0.59 3 1"] {
            assert_eq!(running(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn each_sign_of_a_busy_machine_is_named() {
        assert!(judge(0.5, 0.2, 0.01, 0.01, 1.1).trusted);
        for (trust, word) in [
            (judge(0.5, 0.9, 0.0, 0.0, 1.0), "other tasks"),
            (judge(0.5, 0.0, 0.3, 0.0, 1.0), "waited"),
            (judge(0.5, 0.0, 0.0, 0.3, 1.0), "hypervisor"),
            (judge(0.5, 0.0, 0.0, 0.0, 2.0), "differ by 100 %"),
        ] {
            assert!(!trust.trusted && trust.why.contains(word), "{trust:?}");
        }
    }

    #[test]
    fn points_that_scatter_are_seen() {
        let mut watch = Watch::new(false);
        for _ in 0..9 {
            watch.point(&mut [100.0, 300.0, 100.0, 310.0, 100.0, 320.0, 100.0, 300.0]);
        }
        let trust = watch.verdict();
        assert!(trust.spread >= 3.0 && !trust.trusted, "{trust:?}");
    }

    /// Busy threads must appear as running tasks, and once there is one per core no core may count as idle.
    #[test]
    fn busy_threads_leave_no_core_idle() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let Some(_) = running_tasks() else {
            println!("not run: this kernel tells no run queue");
            return;
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // Threads that are starting may sleep for a moment, so it is enough to see it once.
            let seen = (0..10_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                idle_cores(1) == 0
            });
            stop.store(true, Ordering::Relaxed);
            assert!(seen, "{cores} busy threads were never seen");
        });
    }
}
