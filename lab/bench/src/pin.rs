// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads held to one core, so that the scheduler's choice of a core is not part of a measurement.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A thread, held to one core until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    thread: Option<Pid>,
    before: CpuSet,
    /// Another core that the thread may use.
    pub other: usize,
}

impl Pinned {
    /// Holds a thread, or the calling one, to the first of its cores. None where it has only one.
    pub fn first(thread: Option<Pid>) -> Option<Pinned> {
        Self::one_of_two(thread, |first, second| (first, second))
    }

    /// Holds the calling thread to the second of its cores. None where it has only one.
    pub fn second() -> Option<Pinned> {
        Self::one_of_two(None, |first, second| (second, first))
    }

    fn one_of_two(thread: Option<Pid>, choose: fn(usize, usize) -> (usize, usize)) -> Option<Pinned> {
        let before = sched_getaffinity(thread).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        let (core, other) = choose(cores.next()?, cores.next()?);
        hold(thread, core).ok()?;
        Some(Pinned { thread, before, other })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It fails if the thread has ended, or the thread stays on its core: no error, because the bench ends.
        let _ = sched_setaffinity(self.thread, &self.before);
    }
}

/// Holds a thread, or the calling one, to a core for good.
pub fn hold(thread: Option<Pid>, core: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(thread, &set)
}
