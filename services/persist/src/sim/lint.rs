// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds work that a run did for nothing and steps that it acknowledged too early: in the trace, without a crash.
//!
//! - **Flow** each event of the workload, before it takes effect ─▶ findings, summed by kind and call site
//!
//! The kinds are those of pmemcheck (Valgrind's persistent-memory tool).
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::machine::{Key, Kind, Machine, cells, line};
use super::trace::{Action, Site};
use super::world::Mode;

/// A fault at a site that is not by itself a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LintKind {
    /// The write was not durable when its step was acknowledged. Right for buffered durability; else a loss.
    AckedBeforeDurable,
    /// A write-back of lines that hold nothing to write back, or were written back already since the thread's
    /// last fence.
    CleanWriteBack,
    /// A fence, or a sync, with nothing to wait for.
    RedundantFence,
}

/// A finding at a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lint {
    /// The kind of fault.
    pub kind: LintKind,
    /// The call's place in the source.
    pub site: Site,
    /// How often: writes, lines or calls.
    pub count: u64,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lint { kind, site, count } = self;
        match kind {
            LintKind::AckedBeforeDurable => {
                write!(f, "{site}: {count} × not durable when its step was acknowledged")
            }
            LintKind::CleanWriteBack => write!(f, "{site}: {count} clean lines written back"),
            LintKind::RedundantFence => write!(f, "{site}: {count} × nothing to wait for"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Lints {
    found: BTreeMap<(LintKind, Site), u64>,
    /// Where each step in flight began, and by whom.
    began: HashMap<u64, (u32, u32)>,
}

impl Lints {
    pub(crate) fn check(&mut self, machine: &Machine, index: u32) {
        let event = machine.trace.events[index as usize];
        let thread = event.thread.0;
        match event.action {
            Action::WriteBack { device, offset, len } if machine.mode(device) == Mode::Lines => {
                let clean =
                    cells(offset, len, 64).filter(|c| machine.line_is_clean(thread, line(device, *c)));
                self.add(LintKind::CleanWriteBack, event.site, clean.count() as u64);
            }
            Action::Fence if machine.has_memory() && machine.fence_is_idle(thread) => {
                self.add(LintKind::RedundantFence, event.site, 1);
            }
            Action::Fdatasync { device, within, .. } => {
                let dirty = |k: &Key| k.device == device && k.kind != Kind::Limbo && k.is_within(within);
                if !machine.uncertain().iter().any(|(key, _)| dirty(key)) {
                    self.add(LintKind::RedundantFence, event.site, 1);
                }
            }
            Action::Begin { step } => {
                self.began.insert(step, (index, thread));
            }
            Action::Done { step } => self.acked(machine, step),
            _ => {}
        }
    }

    fn acked(&mut self, machine: &Machine, step: u64) {
        let Some((began, thread)) = self.began.remove(&step) else { return };
        let mut events: Vec<u32> = machine
            .slots
            .values()
            .flat_map(|slot| &slot.pending)
            .map(|write| write.event)
            .filter(|e| *e > began && machine.trace.events[*e as usize].thread.0 == thread)
            .collect();
        events.sort_unstable();
        events.dedup();
        for event in events {
            self.add(LintKind::AckedBeforeDurable, machine.trace.events[event as usize].site, 1);
        }
    }

    fn add(&mut self, kind: LintKind, site: Site, count: u64) {
        if count > 0 {
            *self.found.entry((kind, site)).or_default() += count;
        }
    }

    pub(crate) fn found(self) -> Vec<Lint> {
        self.found.into_iter().map(|((kind, site), count)| Lint { kind, site, count }).collect()
    }
}
