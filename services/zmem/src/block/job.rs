// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process's membership of a block: charge, visit, overflow.
//!
//! - **Flow** [`Job::attach`] (start-up) or [`Job::from_environment`] ─▶ charge / try_charge / uncharge on every page ─▶
//!   [`Job::visit`] in the evictor ─▶ [`Job::overflow`] when nothing helps ─▶ [`Job::leave`], or death
//! - **Order** charge: `unused` first, then the slot; uncharge: the slot first. fork: [`Job::before_fork`] in the parent,
//!   [`Job::fork_child`] in the child before any of the program's code
//! - **Owner** the slot is the process's; the first process that finds it dead gives its charge back, once. Nothing here
//!   allocates after attach: all of it may run in a fault handler
//! - **Not here** making the block ([`super::Admission`])

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use super::atomic::futex_wait;
use super::control::{Charge, ControlBlock, signed};
use super::ledger::{Counter, Ledger};
use super::looks;
use super::overflow::{self, Verdict};
use super::pid::Process;
use super::registry::{Registry, SLOTS};
use super::slot::Slot;
use super::turn::{self, Visit};
use super::{ENV_BLOCK, ENV_FD, ENV_OWNER};
use crate::{Error, Result};

/// Length and number of the waits for other processes to make room before this one overflows: the number while none of them
/// is at it, the same where they share pages with it, and while one is at it.
const OTHERS_WAIT: Duration = Duration::from_millis(1);
const OTHERS_IDLE: u32 = 20;
const OTHERS_SHARE: u32 = 200;
const OTHERS_BUSY: u32 = 2000;

/// Part of the total that is little when it is all that is left: 1/8.
pub(crate) const NEAR: i64 = 8;

/// Most pages of a visit while memory is missing.
const URGENT_PAGES: u32 = 1024;

/// Outcome of a fork for the charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The child has a slot of its own. The parent's charge is charged to the child too, and taken from `outside` at once,
    /// since the pages are still shared: the watcher adds the pages that are copied later.
    Joined,
    /// All slots are taken: the child's charges are given back only when the job ends.
    NoSlot,
}

/// This process's membership of a block.
#[derive(Debug)]
pub struct Job {
    registry: Registry,
    block: usize,
    /// Slot plus one; 0 without.
    slot: AtomicU32,
    /// The process that attached or was forked last.
    pid: AtomicU32,
    /// Bytes that were charged when the current fork began.
    at_fork: AtomicI64,
    /// Slot plus one of the child that last shared less; 0 without.
    child: AtomicU32,
}

impl Job {
    /// Makes this process a member of block `block`. One that was a member before (an exec) gives back what its earlier
    /// image had charged.
    ///
    /// # Errors
    ///
    /// [`Error::NoBlock`] when there is no such job; [`Error::Processes`] when the registry is full.
    pub fn attach(registry: Registry, block: usize) -> Result<Job> {
        if !registry.is_live(block) {
            return Err(Error::NoBlock { block });
        }
        let process = Process::current();
        let slot = registry.claim_slot(block, process).ok_or(Error::Processes)?;
        Ok(Job {
            registry,
            block,
            slot: AtomicU32::new(slot as u32 + 1),
            pid: AtomicU32::new(process.pid),
            at_fork: AtomicI64::new(0),
            child: AtomicU32::new(0),
        })
    }

    /// The job that the environment names; none when it names none.
    ///
    /// # Errors
    ///
    /// The descriptor or the block that the environment names is no registry or no job.
    pub fn from_environment() -> Result<Option<Job>> {
        let Some(fd) = std::env::var_os(ENV_FD) else { return Ok(None) };
        let number = |text: &std::ffi::OsStr| text.to_str().and_then(|text| text.parse::<u32>().ok());
        let fd = number(&fd).and_then(|fd| RawFd::try_from(fd).ok()).ok_or(Error::NotARegistry)?;
        let block = std::env::var_os(ENV_BLOCK).as_deref().and_then(number).ok_or(Error::NotARegistry)?;
        let registry = match Registry::from_inherited(fd) {
            Ok(registry) => registry,
            Err(error) => std::env::var(ENV_OWNER).ok().as_deref().and_then(owned).ok_or(error)?,
        };
        Job::attach(registry, block as usize).map(Some)
    }

    fn control(&self) -> &ControlBlock {
        self.registry.shared.block(self.block)
    }

    /// The block's ledger: its sums and counters beside the control block.
    pub fn ledger(&self) -> &Ledger {
        self.registry.shared.ledger(self.block)
    }

    /// The registry that the block is in.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Index of the block.
    pub fn block(&self) -> usize {
        self.block
    }

    fn own(&self) -> Option<&Slot> {
        let slot = self.slot.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.registry.shared.slot(slot as usize))
    }

    fn slot_index(&self) -> Option<usize> {
        self.slot.load(Ordering::Relaxed).checked_sub(1).map(|slot| slot as usize)
    }

    /// Takes `bytes`, whether there is room or not.
    pub fn charge(&self, bytes: usize) -> Charge {
        let bytes = signed(bytes);
        let step = self.control().add(-bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::lowered(self.control(), self.ledger(), self.registry.implicit(), step);
        step.charge()
    }

    /// Takes `bytes` for something that gives them back soon, whether there is room or not. That is no event: the reserve is
    /// there for it.
    pub fn charge_ahead(&self, bytes: usize) {
        let bytes = signed(bytes);
        let step = self.control().add(-bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::pushed(self.control(), self.ledger(), step);
    }

    /// Takes `bytes` only if at least `keep` bytes stay unused.
    pub fn try_charge(&self, bytes: usize, keep: usize) -> bool {
        let bytes = signed(bytes);
        let Some(step) = self.control().try_charge(bytes, signed(keep)) else { return false };
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::lowered(self.control(), self.ledger(), self.registry.implicit(), step);
        true
    }

    /// Gives `bytes` back, after the memory was freed.
    pub fn uncharge(&self, bytes: usize) {
        let bytes = signed(bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_sub(bytes, Ordering::AcqRel);
        }
        let step = self.control().add(bytes);
        overflow::raised(self.control(), self.ledger(), self.registry.implicit(), step);
    }

    /// Moves `bytes` of this process's charge to what lies outside: pages that a fork shares left this process and are others'
    /// still, or are about to be copied and were charged for that. `unused` stays as it is.
    pub fn unshare(&self, bytes: usize) {
        let Some(slot) = self.own().filter(|_| bytes > 0) else { return };
        let bytes = signed(bytes);
        slot.charged.fetch_sub(bytes, Ordering::AcqRel);
        self.ledger().outside.fetch_add(bytes, Ordering::AcqRel);
        // A child's end gives back to `outside` only the bytes that it still shares.
        if !slot.share_less(bytes) {
            self.child_shares_less(bytes);
        }
    }

    /// As [`Slot::share_less`], of a process that has something from a fork. Which one, if there are several, is not known: the
    /// watcher's next look makes up for it.
    fn child_shares_less(&self, bytes: i64) {
        let last = self.child.load(Ordering::Relaxed).checked_sub(1);
        if last.is_some_and(|slot| {
            self.registry.shared.slot(slot as usize).of_block_shares_less(self.block, bytes)
        }) {
            return;
        }
        for index in 0..SLOTS {
            if self.registry.shared.slot(index).of_block_shares_less(self.block, bytes) {
                return self.child.store(index as u32 + 1, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if little of the budget is left, when all that forks share is copied; `more` bytes that are about to be
    /// shared included.
    pub fn is_near(&self, more: i64) -> bool {
        let copies = self.ledger().outside().saturating_sub(more).min(0);
        let left = self.unused().saturating_sub(self.ledger().keep()).saturating_add(copies);
        left < self.unused_objective().max(self.total() / NEAR)
    }

    /// Near the end of the budget: waits for the watcher's look if that is overdue, so that what came outside meanwhile is known
    /// before `bytes` more are taken. The watcher's own process does not wait.
    pub fn await_look(&self, bytes: usize) {
        let left = self.unused().saturating_sub(self.ledger().keep()).saturating_sub(signed(bytes));
        if left < self.total() / NEAR
            && self.ledger().owner_pid.load(Ordering::Relaxed) != self.pid.load(Ordering::Relaxed)
        {
            looks::wait_for_one(self.ledger());
        }
    }

    /// Returns true if the job has no other process, as of the last sweep.
    pub fn is_alone(&self) -> bool {
        self.registry.processes(self.block).nth(1).is_none()
    }

    /// Bytes left; negative while the job borrows.
    pub fn unused(&self) -> i64 {
        self.control().unused()
    }

    /// Bytes that a charge that can wait leaves unused.
    pub fn keep(&self) -> usize {
        usize::try_from(self.ledger().keep()).unwrap_or(usize::MAX)
    }

    /// Returns true if less is left than eviction shall keep unused.
    pub fn is_short(&self) -> bool {
        self.unused() < self.unused_objective().saturating_add(self.ledger().keep())
    }

    /// For a process that has nothing more to put away: takes `bytes` as soon as the job's other processes have made room or
    /// ended. Returns false if there are no others, or none makes room in time.
    /// `shared`: what they have in common with this one makes room once they let go of it too, which is waited for longer.
    pub fn charge_by_others(&self, bytes: usize, shared: bool) -> bool {
        let Some(own) = self.slot_index() else { return false };
        let (mut idle, patience) = (0, if shared { OTHERS_SHARE } else { OTHERS_IDLE });
        for _ in 0..OTHERS_BUSY {
            self.registry.sweep_block(self.block);
            if self.try_charge(bytes, 0) {
                return true;
            }
            if self.is_alone() || idle == patience {
                return false;
            }
            idle += u32::from(!turn::others_want(&self.registry.shared, self.block, own));
            overflow::wake_demand(self.ledger());
            let relief = self.ledger().relief.load(Ordering::Acquire);
            futex_wait(&self.ledger().relief, relief, true, Some(OTHERS_WAIT));
        }
        false
    }

    /// The budget, bytes.
    pub fn total(&self) -> i64 {
        self.control().total()
    }

    /// Bytes that eviction shall keep unused, ahead of need.
    pub fn unused_objective(&self) -> i64 {
        self.control().unused_objective()
    }

    /// Bytes that shall stay uncompressed at the very least.
    pub fn min_uncompressed(&self) -> u64 {
        self.control().min_uncompressed()
    }

    /// Notes an access to a compressed page.
    pub fn compressed_access(&self) {
        self.control().compressed_accesses.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to a counter of the exit report.
    pub fn count(&self, counter: Counter, by: u64) {
        self.ledger().count(counter, by);
    }

    /// Joins the ring or leaves it.
    pub fn want_eviction(&self, wanted: bool) {
        let Some(slot) = self.slot_index() else { return };
        if wanted {
            turn::join(&self.registry.shared, self.block, slot);
        } else {
            turn::leave(&self.registry.shared, self.block, slot);
        }
    }

    /// Waits for this process's turn; `None` when it is not in the ring. Dropping the visit passes the turn.
    pub fn visit(&self) -> Option<Visit<'_>> {
        let mut visit = turn::wait(&self.registry.shared, self.block, self.slot_index()?)?;
        // Where memory is missing already, a visit is as long as that takes, within reason.
        let missing = i64::try_from(self.keep()).unwrap_or(0).saturating_sub(self.unused()) / 4096;
        visit.pages = visit.pages.max(u32::try_from(missing).unwrap_or(0).min(URGENT_PAGES));
        self.count(Counter::Visits, 1);
        Some(visit)
    }

    /// Waits until `unused` is or falls below its objective, at most `limit`; may return early.
    pub fn wait_for_demand(&self, limit: Duration) {
        let demand = self.ledger().demand.load(Ordering::Acquire);
        if !self.is_short() {
            futex_wait(&self.ledger().demand, demand, true, Some(limit));
        }
    }

    /// Returns true if the job's processes must be active.
    pub fn active(&self) -> bool {
        self.ledger().active()
    }

    /// Tells all processes of the job to be active.
    pub fn activate(&self) {
        overflow::activate(self.ledger());
    }

    /// Waits until the job's processes must be active.
    pub fn wait_for_active(&self) {
        while !self.active() {
            futex_wait(&self.ledger().active, 0, true, None);
        }
    }

    /// Gives back the charges of the job's processes that have ended: their memory is gone by then.
    pub fn sweep(&self) {
        self.registry.sweep_block(self.block);
    }

    /// Decides what the process does when `by` bytes are missing and nothing more can be compressed. Charges of processes
    /// that have ended are given back first: there may be no supervisor, or it has not swept yet.
    pub fn overflow(&self, by: usize) -> Verdict {
        self.registry.sweep_block(self.block);
        overflow::verdict(self.control(), self.ledger(), by)
    }

    /// Publishes the bytes that this process really has present: pages of its arena, its store, its tables. They are subtracted
    /// from what the killer sees, so too little is safe and too much is not.
    pub fn publish(&self, arena: u64, store: u64, tables: u64) {
        let Some(slot) = self.own() else { return };
        slot.arena.store(arena, Ordering::Relaxed);
        slot.store.store(store, Ordering::Relaxed);
        slot.tables.store(tables, Ordering::Relaxed);
        let present = arena.saturating_add(store).saturating_add(tables);
        slot.slack.store(slot.charged().saturating_sub(signed(present as usize)).max(0), Ordering::Release);
    }

    /// Notes that `bytes` which are about to be charged will not be present yet; the next [`Job::publish`] counts anew.
    pub fn slacken(&self, bytes: usize) {
        if let Some(slot) = self.own() {
            slot.slack.fetch_add(signed(bytes), Ordering::AcqRel);
        }
    }

    /// Notes that this process is active from now on: what it publishes is exact.
    pub fn set_active(&self) {
        if let Some(slot) = self.own() {
            slot.flags.fetch_or(1, Ordering::Release);
        }
    }

    /// Bytes that this process has charged.
    pub fn charged(&self) -> i64 {
        self.own().map_or(0, Slot::charged)
    }

    /// Notes the charge for [`Job::fork_child`]: in the parent, when nobody charges any more and before the fork.
    pub fn before_fork(&self) {
        self.at_fork.store(self.charged(), Ordering::Relaxed);
    }

    /// Gives the child of a fork a slot of its own with the parent's charge: before any other call.
    pub fn fork_child(&self) -> Fork {
        let process = Process::current();
        let parent = self.slot.swap(0, Ordering::Relaxed).checked_sub(1);
        self.pid.store(process.pid, Ordering::Relaxed);
        let Some(slot) = self.registry.claim_slot(self.block, process) else { return Fork::NoSlot };
        let own = self.registry.shared.slot(slot);
        if let Some(parent) = parent {
            let parent = self.registry.shared.slot(parent as usize);
            // The charge when the fork began: the parent's may have changed since.
            let inherited = self.at_fork.load(Ordering::Relaxed);
            own.inherited.store(inherited, Ordering::Release);
            self.ledger().membership.fetch_add(1, Ordering::AcqRel);
            own.charged.store(inherited, Ordering::Release);
            self.ledger().outside.fetch_sub(inherited, Ordering::AcqRel);
            own.slack.store(parent.slack.load(Ordering::Relaxed), Ordering::Relaxed);
            for (to, from) in
                [(&own.arena, &parent.arena), (&own.store, &parent.store), (&own.tables, &parent.tables)]
            {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            own.flags.store(parent.flags.load(Ordering::Relaxed), Ordering::Release);
        }
        self.slot.store(slot as u32 + 1, Ordering::Relaxed);
        Fork::Joined
    }

    /// Leaves the job: everything that this process charged goes back.
    pub fn leave(&self) {
        if let Some(slot) = self.slot.swap(0, Ordering::Relaxed).checked_sub(1) {
            self.registry.release_slot(slot as usize);
        }
    }
}

/// The registry of `PID:START:DESCRIPTOR`.
fn owned(text: &str) -> Option<Registry> {
    let mut fields = text.split(':');
    let mut next = || fields.next();
    let owner = Process { pid: next()?.parse().ok()?, started: next()?.parse().ok()? };
    Registry::from_owner(owner, next()?.parse().ok()?).ok()
}

impl Drop for Job {
    fn drop(&mut self) {
        // The copy in a fork's child that never called `fork_child` is not the owner.
        if self.pid.load(Ordering::Relaxed) == rustix::process::getpid().as_raw_nonzero().get() as u32 {
            self.leave();
        }
    }
}
