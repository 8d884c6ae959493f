// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process's membership of a block: charges, visits, overflow.
//!
//! - **Flow** [`Job::attach`] (start-up) or [`Job::from_environment`] ─▶ charge / try_charge / uncharge on every page ─▶
//!   [`Job::visit`] in the evictor ─▶ [`Job::overflow`] when nothing helps ─▶ [`Job::leave`], or death
//! - **Order** a charge changes `unused` first and the slot second; giving it back changes the slot first. At a fork, the
//!   parent calls [`Job::before_fork`], and the child calls [`Job::fork_child`] before any of the program's code runs
//! - **Owner** the slot is the process's own. The first process that finds its owner dead gives the slot's charge back, once.
//!   Nothing here allocates after attach, because all of it may run in a fault handler
//! - **Not here** making the block ([`super::Admission`])

use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

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

/// A process that must overflow first waits for other processes to make room, in waits of this length. Below: the number of
/// waits while no other process wants to evict, the same while others share pages with it, and the limit for all waits
/// together.
const OTHERS_WAIT: Duration = Duration::from_millis(1);
const OTHERS_IDLE: u32 = 20;
const OTHERS_SHARE: u32 = 200;
const OTHERS_BUSY: u32 = 2000;

/// Longest times for which a process or thread waits for room before it starts: since a process of the job last began or
/// ended, and in all. Others of the job may wait for it, as the reader of a pipe is waited for, so it starts then in any case.
const START_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// The part of the total that counts as little if no more is left: 1/8.
pub(crate) const NEAR: i64 = 8;

/// Upper bound of the pages of a visit while memory is missing.
const URGENT_PAGES: u32 = 1024;

/// Outcome of a fork for the charge of the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The child has a slot of its own. The parent's charge is charged to the child too, and subtracted from `outside` in the
    /// same step because the pages are still shared. The watcher adds the pages that are copied later.
    Joined,
    /// All slots are taken: the child's charges are given back only when the job ends.
    NoSlot,
}

/// This process's membership of a block.
#[derive(Debug)]
pub struct Job {
    registry: Registry,
    block: usize,
    /// Index of this process's slot plus one; 0 if it has none.
    slot: AtomicU32,
    /// Pid of the process that attached, or of the last child that called [`Job::fork_child`].
    pid: AtomicU32,
    /// Bytes that were charged when the current fork began, for its child.
    at_fork: AtomicI64,
    /// Slot plus one of the child from whose inherited bytes [`Job::unshare`] last subtracted; 0 if none.
    child: AtomicU32,
}

impl Job {
    /// Makes this process a member of block `block`. If it was a member before (it called exec), the charge of its earlier
    /// program is given back.
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

    /// Returns the job that the environment names, or `None` if it names none.
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

    /// Charges `bytes` even if there is no room.
    pub fn charge(&self, bytes: usize) -> Charge {
        let bytes = signed(bytes);
        let step = self.control().add(-bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::after_charge(self.control(), self.ledger(), self.registry.implicit(), step);
        step.charge()
    }

    /// Charges `bytes`, even without room, for something that gives them back soon. That raises no event, because the reserve
    /// is meant for it.
    pub fn charge_ahead(&self, bytes: usize) {
        let bytes = signed(bytes);
        let step = self.control().add(-bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::after_tolerated_decrease(self.control(), self.ledger(), step);
    }

    /// Charges `bytes` only if at least `keep` bytes stay unused.
    pub fn try_charge(&self, bytes: usize, keep: usize) -> bool {
        let bytes = signed(bytes);
        let Some(step) = self.control().try_charge(bytes, signed(keep)) else { return false };
        if let Some(slot) = self.own() {
            slot.charged.fetch_add(bytes, Ordering::AcqRel);
        }
        overflow::after_charge(self.control(), self.ledger(), self.registry.implicit(), step);
        true
    }

    /// Gives back the charge of `bytes`, after the memory was freed.
    pub fn uncharge(&self, bytes: usize) {
        let bytes = signed(bytes);
        if let Some(slot) = self.own() {
            slot.charged.fetch_sub(bytes, Ordering::AcqRel);
        }
        let step = self.control().add(bytes);
        overflow::after_increase(self.control(), self.ledger(), self.registry.implicit(), step);
    }

    /// Moves `bytes` of this process's charge to `outside`. They belong to pages shared by a fork that this process gave up
    /// and others still have, or that are about to be copied and were charged for the copy. `unused` stays as it is.
    pub fn unshare(&self, bytes: usize) {
        let Some(slot) = self.own().filter(|_| bytes > 0) else { return };
        let bytes = signed(bytes);
        slot.charged.fetch_sub(bytes, Ordering::AcqRel);
        self.ledger().outside.fetch_add(bytes, Ordering::AcqRel);
        // When a child ends, only the bytes that it still shares are given back to `outside`.
        if !slot.share_less(bytes) {
            self.child_shares_less(bytes);
        }
    }

    /// Calls [`Slot::share_less`] for one process of the block that has inherited bytes. If there are several, the right one
    /// is not known; the watcher's next look corrects the sum.
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

    /// Returns true if little of the budget would be left after all pages that forks share were copied, including `more`
    /// bytes that are about to be shared.
    pub fn is_near(&self, more: i64) -> bool {
        let copies = self.ledger().outside().saturating_sub(more).min(0);
        let left = self.unused().saturating_sub(self.ledger().reserved_bytes()).saturating_add(copies);
        left < self.unused_objective().max(self.total() / NEAR)
    }

    /// If little of the budget would be left after `bytes` more, waits for the watcher's look if that is overdue, so that
    /// memory that came outside meanwhile is known before the bytes are taken. The watcher's own process does not wait.
    pub fn await_watcher(&self, bytes: usize) {
        let left = self.unused().saturating_sub(self.ledger().reserved_bytes()).saturating_sub(signed(bytes));
        if left < self.total() / NEAR
            && self.ledger().owner_pid.load(Ordering::Relaxed) != self.pid.load(Ordering::Relaxed)
        {
            looks::wait_for_one(self.ledger());
        }
    }

    /// Returns true if the job had no other process at the last sweep.
    pub fn is_alone(&self) -> bool {
        self.registry.processes(self.block).nth(1).is_none()
    }

    /// Returns the bytes left; negative while the job uses more than its total.
    pub fn unused(&self) -> i64 {
        self.control().unused()
    }

    /// Returns the bytes that a charge must leave unused if it can wait instead.
    pub fn reserved_bytes(&self) -> usize {
        usize::try_from(self.ledger().reserved_bytes()).unwrap_or(usize::MAX)
    }

    /// Returns true if fewer bytes are unused than eviction shall keep unused.
    pub fn is_short(&self) -> bool {
        self.unused() < self.unused_objective().saturating_add(self.ledger().reserved_bytes())
    }

    /// Charges `bytes` as soon as the job's other processes have made room or ended, for a process that has nothing left to
    /// evict. Returns false if there are no others, or if they do not make room in time. `shared` is true if the others have
    /// pages in common with this process: those become free only when the others evict them too, so this waits longer.
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

    /// Returns true if a watcher measures the job.
    pub fn is_measured(&self) -> bool {
        looks::has_watcher(self.ledger())
    }

    /// Charges the bytes that a process or thread which starts now will take outside the arenas, before it takes them; the
    /// watcher gives the charge back once it has measured the memory. If there is no room, waits until the job's processes
    /// have made some or ended, up to [`START_WAITS`]. `evict` makes room in this process; it returns false if it made none, and
    /// breaks if this wait has to end. Without a watcher nothing is charged, since nothing outside the arenas is counted.
    pub fn charge_start(&self, bytes: usize, mut evict: impl FnMut() -> ControlFlow<(), bool>) {
        let ledger = self.ledger();
        if !self.is_measured() || self.try_charge_start(bytes) {
            return;
        }
        self.activate();
        let (began, mut changed, mut membership) = (Instant::now(), Instant::now(), ledger.membership());
        while changed.elapsed() < START_WAITS[0] && began.elapsed() < START_WAITS[1] {
            self.registry.sweep_block(self.block);
            // Charges of earlier starts are given back at a look.
            looks::ask(ledger);
            let ControlFlow::Continue(evicted) = evict() else { break };
            if self.try_charge_start(bytes) {
                return;
            }
            if !evicted && self.is_alone() {
                break;
            }
            let now = ledger.membership();
            if now != membership {
                (changed, membership) = (Instant::now(), now);
            }
            overflow::wake_demand(ledger);
            let relief = ledger.relief.load(Ordering::Acquire);
            futex_wait(&ledger.relief, relief, true, Some(OTHERS_WAIT));
        }
        self.charge_begun(bytes);
    }

    /// Does the same as [`Job::charge_start`] for a process that has begun: it does not wait. If those that have begun waited
    /// too, each might hold memory that another one waits for.
    pub fn charge_begun(&self, bytes: usize) {
        let ledger = self.ledger();
        if !self.is_measured() {
            return;
        }
        let step = self.control().add(-signed(bytes));
        ledger.starting.fetch_add(bytes as u64, Ordering::AcqRel);
        overflow::after_tolerated_decrease(self.control(), ledger, step);
    }

    fn try_charge_start(&self, bytes: usize) -> bool {
        self.await_watcher(bytes);
        let (control, ledger) = (self.control(), self.ledger());
        let Some(step) = control.try_charge(signed(bytes), ledger.reserved_bytes()) else { return false };
        ledger.starting.fetch_add(bytes as u64, Ordering::AcqRel);
        overflow::after_charge(control, ledger, self.registry.implicit(), step);
        true
    }

    /// Returns the job's total, bytes.
    pub fn total(&self) -> i64 {
        self.control().total()
    }

    /// Returns the bytes that eviction shall keep unused ahead of need.
    pub fn unused_objective(&self) -> i64 {
        self.control().unused_objective()
    }

    /// Returns the bytes that shall always stay uncompressed.
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

    /// Joins the ring of processes that want to evict, or leaves it.
    pub fn want_eviction(&self, wanted: bool) {
        let Some(slot) = self.slot_index() else { return };
        if wanted {
            turn::join(&self.registry.shared, self.block, slot);
        } else {
            turn::leave(&self.registry.shared, self.block, slot);
        }
    }

    /// Waits for this process's turn. Returns `None` if it is not in the ring. Dropping the visit passes the turn on.
    pub fn visit(&self) -> Option<Visit<'_>> {
        let mut visit = turn::wait(&self.registry.shared, self.block, self.slot_index()?)?;
        // If memory is missing, the visit is long enough to evict that many pages, up to a limit.
        let missing = i64::try_from(self.reserved_bytes()).unwrap_or(0).saturating_sub(self.unused()) / 4096;
        visit.pages = visit.pages.max(u32::try_from(missing).unwrap_or(0).min(URGENT_PAGES));
        self.count(Counter::Visits, 1);
        Some(visit)
    }

    /// Waits until `unused` is below its objective, at most `limit`; may return early.
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

    /// Gives back the charges of the job's processes that have ended; the kernel has freed their memory by then.
    pub fn sweep(&self) {
        self.registry.sweep_block(self.block);
    }

    /// Decides the next step of a process that lacks `by` bytes and can compress nothing more. Gives back the charges of
    /// ended processes first, because there may be no supervisor, or it has not done so yet.
    pub fn overflow(&self, by: usize) -> Verdict {
        self.registry.sweep_block(self.block);
        overflow::verdict(self.control(), self.ledger(), by)
    }

    /// Publishes the bytes that this process really has present: pages of its arena, its store, its tables. They are
    /// subtracted from what the killer sees, so publishing too little is safe, and too much is not.
    pub fn publish(&self, arena: u64, store: u64, tables: u64) {
        let Some(slot) = self.own() else { return };
        slot.arena.store(arena, Ordering::Relaxed);
        slot.store.store(store, Ordering::Relaxed);
        slot.tables.store(tables, Ordering::Relaxed);
        let present = arena.saturating_add(store).saturating_add(tables);
        slot.slack.store(slot.charged().saturating_sub(signed(present as usize)).max(0), Ordering::Release);
    }

    /// Publishes the bytes of this process's pages that are kept compressed or in the spill file.
    pub fn publish_away(&self, bytes: u64) {
        if let Some(slot) = self.own() {
            slot.away.store(bytes, Ordering::Relaxed);
        }
    }

    /// Publishes the address of the view by which this process's memory is read from outside.
    pub(crate) fn publish_view(&self, address: u64) {
        if let Some(slot) = self.own() {
            slot.view.store(address, Ordering::Relaxed);
        }
    }

    /// Notes that `pages` came back, since whose leaving `bytes` have come in.
    pub fn note_return(&self, bytes: u64, pages: u64) {
        self.ledger().note_return(bytes, self.total().max(0) as u64, pages);
    }

    /// Notes that a thread lacks room. The time is kept until [`Job::note_room`] says that a thread got some.
    pub fn note_shortage(&self) {
        overflow::note_shortage(self.ledger());
    }

    /// Notes that a thread that lacked room got some.
    pub fn note_room(&self) {
        self.ledger().short_since_ms.store(0, Ordering::Relaxed);
    }

    /// Notes that `bytes` which are about to be charged will not be present yet. The next [`Job::publish`] computes the sum
    /// again.
    pub fn slacken(&self, bytes: usize) {
        if let Some(slot) = self.own() {
            slot.slack.fetch_add(signed(bytes), Ordering::AcqRel);
        }
    }

    /// Notes that this process is active: the sizes that it publishes are exact from now on.
    pub fn set_active(&self) {
        if let Some(slot) = self.own() {
            slot.flags.fetch_or(1, Ordering::Release);
        }
    }

    /// Returns the bytes that this process has charged.
    pub fn charged(&self) -> i64 {
        self.own().map_or(0, Slot::charged)
    }

    /// Notes the charge for [`Job::fork_child`]. The parent calls this before the fork, when no thread charges any more.
    pub fn before_fork(&self) {
        self.at_fork.store(self.charged(), Ordering::Relaxed);
    }

    /// Gives the child of a fork a slot of its own with the parent's charge. The child calls this before any other method.
    pub fn fork_child(&self) -> Fork {
        let process = Process::current();
        let parent = self.slot.swap(0, Ordering::Relaxed).checked_sub(1);
        self.pid.store(process.pid, Ordering::Relaxed);
        let Some(slot) = self.registry.claim_slot(self.block, process) else { return Fork::NoSlot };
        let own = self.registry.shared.slot(slot);
        if let Some(parent) = parent {
            let parent = self.registry.shared.slot(parent as usize);
            // This is the charge at the start of the fork; the parent's own may have changed since.
            let inherited = self.at_fork.load(Ordering::Relaxed);
            own.inherited.store(inherited, Ordering::Release);
            self.ledger().membership.fetch_add(1, Ordering::AcqRel);
            own.charged.store(inherited, Ordering::Release);
            self.ledger().outside.fetch_sub(inherited, Ordering::AcqRel);
            own.slack.store(parent.slack.load(Ordering::Relaxed), Ordering::Relaxed);
            for (to, from) in [
                (&own.arena, &parent.arena),
                (&own.store, &parent.store),
                (&own.tables, &parent.tables),
                (&own.view, &parent.view),
            ] {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            own.flags.store(parent.flags.load(Ordering::Relaxed), Ordering::Release);
        }
        self.slot.store(slot as u32 + 1, Ordering::Relaxed);
        Fork::Joined
    }

    /// Leaves the job and gives back everything that this process charged.
    pub fn leave(&self) {
        if let Some(slot) = self.slot.swap(0, Ordering::Relaxed).checked_sub(1) {
            self.registry.release_slot(slot as usize);
        }
    }
}

/// Returns the registry named by `PID:START:DESCRIPTOR`.
fn owned(text: &str) -> Option<Registry> {
    let mut fields = text.split(':');
    let mut next = || fields.next();
    let owner = Process { pid: next()?.parse().ok()?, started: next()?.parse().ok()? };
    Registry::from_owner(owner, next()?.parse().ok()?).ok()
}

impl Drop for Job {
    fn drop(&mut self) {
        // A copy in the child of a fork that never called `fork_child` does not own the slot.
        if self.pid.load(Ordering::Relaxed) == rustix::process::getpid().as_raw_nonzero().get() as u32 {
            self.leave();
        }
    }
}
