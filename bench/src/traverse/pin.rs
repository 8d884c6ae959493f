// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which core is whose: nodes have the first one that this process may use, clients the second.
//!
//! Order    on one core both share it, and `qualifies` says so

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A memory node, or who stands in for one.
    Node,
    /// Who asks.
    Client,
}

/// The calling thread, held to its role's core until this is dropped.
#[derive(Debug)]
pub struct Held(Option<CpuSet>);

impl Held {
    /// Holds the calling thread.
    pub fn new(role: Role) -> Held {
        cores();
        Held(hold(role))
    }
}

fn hold(role: Role) -> Option<CpuSet> {
    let before = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
    let (first, second) = (cores.next()?, cores.next()?);
    let mut set = CpuSet::new();
    set.set(if role == Role::Node { first } else { second });
    sched_setaffinity(None, &set).ok()?;
    Some(before)
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // Where it fails the thread stays on its core, which is no error of a bench that ends.
            let _ = sched_setaffinity(None, &before);
        }
    }
}

/// Cores that this process may use, as long as none of its threads is held.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(crate::machine::cores)
}

/// In words, for `qualifies`.
pub fn text() -> &'static str {
    if cores() > 1 { "node on one core, client on another, pinned" } else { "one core for all" }
}
