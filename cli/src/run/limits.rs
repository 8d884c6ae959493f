// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the limits of the memory cgroup while the job runs: a scheduler may change them, and the budget changes with them.
//!
//! - **Flow** [`Limits::new`] records each limit and the memory that others hold below it ─▶ [`Limits::follow`] reads the limits
//!   again every [`PERIOD`] ─▶ if one changed: the new budget is set, and a line says so
//! - **Order** a budget that was given (`--memory`, `memlift job set`) is never exceeded; only limits that changed since it was
//!   given make it smaller. A limit that was removed sets no budget
//! - **Owner** the watcher's thread reads the limits; the kernel backend needs none of this, since its group lies below them
//! - **Not here** the first budget ([`super::budget`])

use std::time::{Duration, Instant};

use memlift::ground::region::MemoryGroup;
use memlift::zmem::block::Registry;

use super::budget::{LEAST_BYTES, less_headroom};
use crate::print;

/// Time between two readings of the limits.
const PERIOD: Duration = Duration::from_millis(200);

/// One cgroup that can limit the job.
#[derive(Clone, Debug)]
struct Level {
    group: MemoryGroup,
    /// Bytes that the group held before the job.
    others: u64,
    /// Limit when the budget was given; `None`: there was none.
    at_start: Option<u64>,
    /// Limit when it was last read.
    now: Option<u64>,
}

/// The limits of a job, and its budget under them.
#[derive(Debug)]
pub struct Limits {
    levels: Vec<Level>,
    /// Budget that was given, bytes; `None`: it came from the limits.
    given: Option<u64>,
    /// Budget that was last set here, bytes.
    set: u64,
    /// Budget that the limits allow and that the machine had no room for, bytes.
    refused: Option<u64>,
    next: Instant,
}

impl Limits {
    /// Records the limits of this process's cgroups. `given` is the budget that the user asked for, `budget` the one that the
    /// job has.
    pub fn new(given: Option<u64>, budget: u64) -> Limits {
        Limits::of(MemoryGroup::own_and_above(), given, budget)
    }

    fn of(groups: Vec<MemoryGroup>, given: Option<u64>, budget: u64) -> Limits {
        let level = |group: MemoryGroup| {
            // A folder that is no memory group has no usage.
            let (others, limit) = (group.held()?, group.limit());
            Some(Level { group, others, at_start: limit, now: limit })
        };
        let levels = groups.into_iter().filter_map(level).collect();
        Limits { levels, given, set: budget, refused: None, next: Instant::now() + PERIOD }
    }

    /// Changes the job's budget if a limit changed.
    pub fn follow(&mut self, registry: &Registry, block: usize, quiet: bool) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PERIOD;
        let total = registry.control(block).total().max(0) as u64;
        if let Some((budget, file)) = self.changed(total) {
            let said = |what: String| {
                if !quiet {
                    print::note(&what);
                }
            };
            let wanted = usize::try_from(budget).unwrap_or(usize::MAX);
            match registry.set_total(block, wanted) {
                Ok(()) => {
                    (self.set, self.refused) = (budget, None);
                    let (before, now) = (print::bytes(total), print::bytes(budget));
                    said(format!("{file} changed: the budget is {now} now, {before} before"));
                }
                // Other jobs have the memory. It is asked for again each time, and said once.
                Err(error) if self.refused != Some(budget) => {
                    self.refused = Some(budget);
                    said(format!("{file} changed, but the budget stays {}: {error}", print::bytes(total)));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the budget under the limits as they are now and the file of the limit that binds, if the budget must change.
    fn changed(&mut self, total: u64) -> Option<(u64, String)> {
        if total != self.set {
            // The user changed the budget: this is the given one from now on.
            (self.given, self.set, self.refused) = (Some(total), total, None);
            for level in &mut self.levels {
                level.at_start = level.now;
            }
        }
        let mut changed = self.refused.is_some();
        let mut last = None;
        for level in &mut self.levels {
            let limit = level.group.limit();
            if limit != level.now {
                (level.now, changed) = (limit, true);
                last = Some(level.group.limit_file());
            }
        }
        if !changed {
            return None;
        }
        let binds = |level: &&Level| self.given.is_none() || level.now != level.at_start;
        let left = |level: &Level| Some((level.now?.saturating_sub(level.others), level.group.limit_file()));
        let tightest = self.levels.iter().filter(binds).filter_map(left).min();
        let (budget, file) = match (tightest, self.given) {
            (Some((bytes, file)), given) => {
                let bytes = less_headroom(bytes).max(LEAST_BYTES);
                match given.filter(|given| *given <= bytes) {
                    Some(given) => (given, last.unwrap_or(file)),
                    None => (bytes, file),
                }
            }
            (None, Some(given)) => (given, last?),
            (None, None) => return None,
        };
        (budget != total).then(|| (budget, file.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(limit: &str, held: u64) -> Fake {
            let fake = Fake(tempfile::tempdir().expect("a folder"));
            std::fs::write(fake.0.path().join("memory.current"), held.to_string()).expect("written");
            fake.set(limit);
            fake
        }

        fn set(&self, limit: &str) {
            std::fs::write(self.0.path().join("memory.max"), limit).expect("written");
        }

        fn group(&self) -> MemoryGroup {
            MemoryGroup { directory: self.0.path().to_owned(), version: 2 }
        }
    }

    fn mib(bytes: u64) -> String {
        (bytes * MIB).to_string()
    }

    #[test]
    fn a_budget_from_a_limit_follows_it_and_a_given_one_is_never_exceeded() {
        let (own, above) = (Fake::new(&mib(1000), 10 * MIB), Fake::new("max", 500 * MIB));
        let groups = || vec![own.group(), above.group()];
        let mut limits = Limits::of(groups(), None, 958 * MIB);
        assert_eq!(limits.changed(958 * MIB), None);
        own.set(&mib(522));
        assert_eq!(limits.changed(958 * MIB).map(|(bytes, _)| bytes), Some(496 * MIB));
        limits.set = 496 * MIB;
        // A group above, of which others hold 500 MiB, binds now.
        above.set(&mib(628));
        let (bytes, file) = limits.changed(496 * MIB).expect("it changed");
        assert!(bytes == 112 * MIB && file.starts_with(above.0.path().to_str().expect("UTF-8")));
        limits.set = 112 * MIB;
        above.set("max");
        own.set(&mib(2058));
        assert_eq!(limits.changed(112 * MIB).map(|(bytes, _)| bytes), Some(1984 * MIB));
        limits.set = 1984 * MIB;
        own.set("max");
        assert_eq!(limits.changed(1984 * MIB), None, "no limit, no budget");

        own.set(&mib(100));
        let mut limits = Limits::of(groups(), Some(300 * MIB), 300 * MIB);
        assert_eq!(limits.changed(300 * MIB), None, "the limit was there when the budget was given");
        own.set(&mib(138));
        assert_eq!(limits.changed(300 * MIB).map(|(bytes, _)| bytes), Some(112 * MIB));
        limits.set = 112 * MIB;
        own.set(&mib(5000));
        assert_eq!(limits.changed(112 * MIB).map(|(bytes, _)| bytes), Some(300 * MIB));
        limits.set = 300 * MIB;
        // Another budget, given while the job runs.
        assert_eq!(limits.changed(200 * MIB), None);
        own.set(&mib(6000));
        assert_eq!(limits.changed(200 * MIB), None);
        own.set(&mib(1));
        assert_eq!(limits.changed(200 * MIB).map(|(bytes, _)| bytes), Some(LEAST_BYTES));
    }
}
