// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registry: admits blocks, changes objectives, hands out slots to processes and takes them back from dead ones.
//!
//! - **Flow** [`Registry::open`] (folder) / [`Registry::create`] / [`Registry::from_fd`] ─▶ [`Registry::admit`]: the total is
//!   taken from block 0, the implicit one, or refused ─▶ [`Admission`], which frees the block when dropped
//! - **Order** admission is one conditional subtraction from block 0's unused: no lock, and never more than the machine has
//! - **Owner** block 0 belongs to the machine: its total is set once, when the registry is made

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::control::signed;
use super::ledger::{Ledger, OnOverflow};
use super::pid::Process;
use super::shared::Shared;
use super::slot::{CLAIMED, FREE, LIVE, Slot};
use super::{ControlBlock, directory, overflow, shared, turn};
use crate::{Error, Result};

pub use super::shared::{BLOCKS, SLOTS};

/// Index of the implicit block: memory that no job was given.
pub const IMPLICIT: usize = 0;

const BLOCK_FREE: u32 = 0;
const BLOCK_CLAIMED: u32 = 1;
const BLOCK_LIVE: u32 = 2;

/// Pages to Compress During a Visit (the paper's name) of a new job.
const PAGES_PER_VISIT: u32 = 64;

/// The registry of all jobs of a user.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(super) shared: Arc<Shared>,
}

/// Objectives and overflow behaviour of a new job.
#[derive(Clone, Copy, Debug)]
pub struct Objectives {
    /// Total Allocation Objective, bytes.
    pub total: usize,
    /// Unused Allocation Objective, bytes.
    pub unused: usize,
    /// Min Uncompressed Objective, bytes.
    pub min_uncompressed: usize,
    /// Behaviour of the job when it does not fit.
    pub on_overflow: OnOverflow,
}

impl Registry {
    /// Returns the registry that the file in `folder` names, or makes a new one and names it there.
    ///
    /// # Errors
    ///
    /// The folder is not this user's alone, or the kernel refuses a memfd.
    pub fn open(folder: &Path) -> Result<Registry> {
        let registry = Registry { shared: Arc::new(directory::open(folder, || new(machine_bytes()))?) };
        registry.sweep();
        Ok(registry)
    }

    /// Returns the user's registry in its usual folder, [`Registry::folder`].
    ///
    /// # Errors
    ///
    /// The errors of [`Registry::open`].
    pub fn of_user() -> Result<Registry> {
        Registry::open(&Registry::folder())
    }

    /// Returns the usual folder: `$XDG_RUNTIME_DIR`, else `/tmp/memlift-UID`.
    pub fn folder() -> std::path::PathBuf {
        directory::folder()
    }

    /// Makes a registry for `machine_bytes` of memory. It can be found only by processes that inherit its descriptor.
    ///
    /// # Errors
    ///
    /// The kernel refuses a memfd.
    pub fn create(machine_bytes: usize) -> Result<Registry> {
        Ok(Registry { shared: Arc::new(new(machine_bytes)?) })
    }

    /// Returns the registry behind a descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::NotARegistry`].
    pub fn from_fd(file: OwnedFd) -> Result<Registry> {
        Ok(Registry { shared: Arc::new(Shared::open(file)?) })
    }

    /// Returns the registry behind a descriptor number that the environment gave. The number stays open for programs that are
    /// started later.
    ///
    /// # Errors
    ///
    /// [`Error::NotARegistry`].
    pub fn from_inherited(number: RawFd) -> Result<Registry> {
        Ok(Registry { shared: Arc::new(Shared::inherited(number)?) })
    }

    /// Returns the registry that process `owner` has open as `number`, for a program whose own descriptors were closed before
    /// it started.
    ///
    /// # Errors
    ///
    /// [`Error::NotARegistry`].
    pub fn from_owner(owner: Process, number: RawFd) -> Result<Registry> {
        Ok(Registry { shared: Arc::new(directory::reopen(owner, number).ok_or(Error::NotARegistry)?) })
    }

    /// The memfd that holds the registry.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.shared.file()
    }

    /// Makes a job, whose total is taken from the implicit block.
    ///
    /// # Errors
    ///
    /// [`Error::Admission`] if the machine has less than the total left, [`Error::Blocks`] if all blocks are taken.
    pub fn admit(&self, name: &str, objectives: &Objectives) -> Result<Admission> {
        self.sweep();
        let total = signed(objectives.total);
        let implicit = self.shared.block(IMPLICIT);
        if implicit.try_charge(total, 0).is_none() {
            return Err(Error::Admission {
                total: objectives.total,
                left: implicit.unused().max(0) as usize,
            });
        }
        let mine = BLOCK_CLAIMED | std::process::id() << 2;
        let claim = |index: &usize| {
            let state = &self.shared.block(*index).state;
            state.compare_exchange(BLOCK_FREE, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(index) = (1..BLOCKS).find(claim) else {
            let _ = implicit.add(total);
            return Err(Error::Blocks);
        };
        let (block, ledger) = (self.shared.block(index), self.shared.ledger(index));
        block.generation.fetch_add(1, Ordering::AcqRel);
        ledger.clear();
        ledger.set_name(name);
        ledger.on_overflow.store(objectives.on_overflow.word(), Ordering::Relaxed);
        let owner = Process::current();
        ledger.owner_pid.store(owner.pid, Ordering::Relaxed);
        ledger.owner_started.store(owner.started, Ordering::Relaxed);
        block.total.store(total, Ordering::Relaxed);
        block.unused.store(total, Ordering::Relaxed);
        block.unused_objective.store(signed(objectives.unused), Ordering::Relaxed);
        block.min_uncompressed.store(objectives.min_uncompressed as u64, Ordering::Relaxed);
        block.compressed_accesses.store(0, Ordering::Relaxed);
        block.pages_per_visit.store(PAGES_PER_VISIT, Ordering::Relaxed);
        for word in [&block.lru, &block.mru, &block.ring_next] {
            word.store(0, Ordering::Relaxed);
        }
        block.state.store(BLOCK_LIVE, Ordering::Release);
        Ok(Admission { registry: self.clone(), block: index, owner })
    }

    /// Returns true if `block` belongs to a job.
    pub fn is_live(&self, block: usize) -> bool {
        block < BLOCKS
            && block != IMPLICIT
            && self.shared.block(block).state.load(Ordering::Acquire) == BLOCK_LIVE
    }

    /// Returns every job: its index, block and ledger.
    pub fn jobs(&self) -> impl Iterator<Item = (usize, &ControlBlock, &Ledger)> {
        let live = (1..BLOCKS).filter(|index| self.is_live(*index));
        live.map(|index| (index, self.shared.block(index), self.shared.ledger(index)))
    }

    /// Returns the implicit block: its total is the machine's memory, its unused part is what no job was given.
    pub fn implicit(&self) -> &ControlBlock {
        self.shared.block(IMPLICIT)
    }

    /// Returns a job's block.
    pub fn control(&self, block: usize) -> &ControlBlock {
        self.shared.block(block)
    }

    /// Returns the ledger of a block: its sums and counters beside the control block.
    pub fn ledger(&self, block: usize) -> &Ledger {
        self.shared.ledger(block)
    }

    /// Returns the slots of a block's live processes.
    pub fn processes(&self, block: usize) -> impl Iterator<Item = &Slot> {
        let of_block = move |slot: &&Slot| {
            slot.state.load(Ordering::Acquire) == LIVE && slot.block.load(Ordering::Relaxed) as usize == block
        };
        (0..SLOTS).map(|slot| self.shared.slot(slot)).filter(of_block)
    }

    /// Changes a job's total while the job runs; the unused objective keeps its share of it. Growth is taken from the implicit
    /// block.
    ///
    /// # Errors
    ///
    /// [`Error::Admission`] if the implicit block has too little, [`Error::NoBlock`] if there is no such job.
    pub fn set_total(&self, block: usize, total: usize) -> Result<()> {
        if !self.is_live(block) {
            return Err(Error::NoBlock { block });
        }
        let (control, implicit) = (self.shared.block(block), self.shared.block(IMPLICIT));
        let wanted = signed(total);
        loop {
            let now = control.total();
            let growth = wanted - now;
            if growth > 0 && implicit.try_charge(growth, 0).is_none() {
                return Err(Error::Admission { total, left: implicit.unused().max(0) as usize });
            }
            if control.total.compare_exchange(now, wanted, Ordering::AcqRel, Ordering::Acquire).is_err() {
                if growth > 0 {
                    let _ = implicit.add(growth);
                }
                continue;
            }
            // An objective for a larger total would leave a smaller one little memory to work with.
            let scale = |unused| Some(scaled(unused, now, wanted));
            let _ = control.unused_objective.fetch_update(Ordering::AcqRel, Ordering::Acquire, scale);
            self.changed(block, growth);
            if growth < 0 {
                let _ = implicit.add(-growth);
            }
            return Ok(());
        }
    }

    /// Takes `bytes` that a job does not use from its total. Returns false if the job has fewer bytes unused.
    pub fn steal(&self, block: usize, bytes: usize) -> bool {
        let bytes = signed(bytes);
        let control = self.shared.block(block);
        if !self.is_live(block) {
            return false;
        }
        let Some(step) = control.try_charge(bytes, 0) else { return false };
        overflow::after_charge(control, self.ledger(block), self.implicit(), step);
        control.total.fetch_sub(bytes, Ordering::AcqRel);
        let _ = self.implicit().add(bytes);
        true
    }

    /// Sets the bytes that eviction shall keep unused ahead of need.
    pub fn set_unused_objective(&self, block: usize, bytes: usize) {
        self.control(block).unused_objective.store(signed(bytes), Ordering::Release);
        overflow::wake_demand(self.ledger(block));
    }

    /// Sets the bytes that shall always stay uncompressed.
    pub fn set_min_uncompressed(&self, block: usize, bytes: usize) {
        self.control(block).min_uncompressed.store(bytes as u64, Ordering::Release);
    }

    /// Sets the bytes outside the arenas of a job.
    pub fn set_outside(&self, block: usize, bytes: i64) {
        let before = self.ledger(block).outside.swap(bytes, Ordering::AcqRel);
        self.changed(block, before.wrapping_sub(bytes));
    }

    /// Sets the bytes outside the arenas of a job as [`Registry::set_outside`] does, plus `reserve` bytes for growth before
    /// the next look. If part of the reserve does not fit into `unused` now, processes leave that part unused and eviction
    /// makes room for it, so that a reserve never causes an event.
    pub fn set_outside_with(&self, block: usize, outside: i64, reserve: i64) {
        let (control, ledger) = (self.control(block), self.ledger(block));
        let room = control.unused().saturating_add(ledger.outside()).saturating_sub(outside);
        let given = reserve.min(room.saturating_sub(ledger.borrowed()).max(0));
        ledger.unmet_reserve.store(reserve - given, Ordering::Release);
        self.set_outside(block, outside.saturating_add(given));
        if given < reserve {
            overflow::wake_demand(ledger);
        }
    }

    /// Gives back bytes that were charged ahead for starts ([`super::Job::charge_start`]) and are measured by now.
    pub fn give_back_starts(&self, block: usize, bytes: u64) {
        self.changed(block, i64::try_from(bytes).unwrap_or(i64::MAX / 2));
    }

    /// Reports that `unused` has been below zero for a while in spite of compression. This raises one event if `unused` is
    /// still below zero.
    pub fn report_lasting_shortage(&self, block: usize) {
        overflow::after_lasting_shortage(self.control(block), self.ledger(block), self.implicit());
    }

    /// Notes the bytes that the killer counts, for the job's peak.
    pub fn note_usage(&self, block: usize, bytes: u64) {
        self.ledger(block).peak.fetch_max(bytes, Ordering::Relaxed);
        overflow::note_least(self.ledger(block), self.control(block).unused());
    }

    /// Tells the processes of a job to be active.
    pub fn activate(&self, block: usize) {
        overflow::activate(self.ledger(block));
    }

    /// Empties the slots of those processes of the job that have ended.
    pub fn sweep_block(&self, block: usize) {
        for index in 0..SLOTS {
            let slot = self.shared.slot(index);
            let state = slot.state.load(Ordering::Acquire);
            if state == LIVE
                && slot.block.load(Ordering::Relaxed) as usize == block
                && !slot.process().lives()
            {
                self.release_slot(index);
            }
        }
    }

    fn changed(&self, block: usize, by: i64) {
        let (control, ledger) = (self.control(block), self.ledger(block));
        let step = control.add(by);
        if by < 0 {
            overflow::after_tolerated_decrease(control, ledger, step);
        } else if by > 0 {
            overflow::after_increase(control, ledger, self.implicit(), step);
        }
    }

    /// Takes a slot for `process` in `block`. If the process has one already (it called exec), that slot is emptied first.
    pub(super) fn claim_slot(&self, block: usize, process: Process) -> Option<usize> {
        let mut free = None;
        for index in 0..SLOTS {
            let slot = self.shared.slot(index);
            let state = slot.state.load(Ordering::Acquire);
            let same = || {
                slot.pid.load(Ordering::Relaxed) == process.pid
                    && slot.started.load(Ordering::Relaxed) == process.started
            };
            if state == LIVE && same() {
                self.release_slot(index);
                free = free.or(Some(index));
            } else if state == FREE {
                free = free.or(Some(index));
            }
        }
        let mine = CLAIMED | process.pid << 2;
        let index = (free?..SLOTS).find(|index| {
            let state = &self.shared.slot(*index).state;
            state.compare_exchange(FREE, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let slot = self.shared.slot(index);
        slot.block.store(block as u32, Ordering::Relaxed);
        slot.generation.store(self.control(block).generation(), Ordering::Relaxed);
        slot.pid.store(process.pid, Ordering::Relaxed);
        slot.started.store(process.started, Ordering::Relaxed);
        for word in [&slot.charged, &slot.inherited, &slot.slack] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&slot.arena, &slot.store, &slot.tables, &slot.away, &slot.view] {
            word.store(0, Ordering::Relaxed);
        }
        slot.flags.store(0, Ordering::Relaxed);
        slot.state.store(LIVE, Ordering::Release);
        self.ledger(block).processes.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Empties a live slot: its charge goes back to its block. If several processes try, only one succeeds.
    pub(super) fn release_slot(&self, index: usize) {
        let slot = self.shared.slot(index);
        let mine = CLAIMED | (std::process::id() << 2);
        if slot.state.compare_exchange(LIVE, mine, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let block = slot.block.load(Ordering::Relaxed) as usize;
        turn::leave(&self.shared, block, index);
        let charged = slot.charged.swap(0, Ordering::AcqRel);
        let inherited = slot.inherited.swap(0, Ordering::AcqRel);
        if self.control(block).generation() == slot.generation.load(Ordering::Relaxed) {
            // The part of the charge that was inherited by fork was subtracted from `outside` and is added again: the parent
            // still has those pages.
            let ledger = self.ledger(block);
            ledger.membership.fetch_add(1, Ordering::AcqRel);
            ledger.outside.fetch_add(inherited, Ordering::AcqRel);
            self.changed(block, charged.wrapping_sub(inherited));
        }
        slot.state.store(FREE, Ordering::Release);
    }

    /// Empties the slots of processes that ended, and frees the blocks of jobs without an owner and without processes.
    pub fn sweep(&self) {
        for index in 0..SLOTS {
            let slot = self.shared.slot(index);
            let state = slot.state.load(Ordering::Acquire);
            let process = Process {
                pid: slot.pid.load(Ordering::Relaxed),
                started: slot.started.load(Ordering::Relaxed),
            };
            if state == LIVE && !process.lives() {
                self.release_slot(index);
            } else if state & 3 == CLAIMED && !(Process { pid: state >> 2, started: 0 }).lives() {
                // The process was killed between claiming the slot and making it live, or while it emptied the slot.
                let _ = slot.state.compare_exchange(state, FREE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        for index in 1..BLOCKS {
            let (block, ledger) = (self.control(index), self.ledger(index));
            let state = block.state.load(Ordering::Acquire);
            let owner = match state & 3 {
                BLOCK_LIVE => Process {
                    pid: ledger.owner_pid.load(Ordering::Relaxed),
                    started: ledger.owner_started.load(Ordering::Relaxed),
                },
                BLOCK_CLAIMED => Process { pid: state >> 2, started: 0 },
                _ => continue,
            };
            if !owner.lives() && self.processes(index).next().is_none() {
                self.free_block(index, state);
            }
        }
    }

    fn free_block(&self, index: usize, state: u32) {
        let block = self.control(index);
        let mine = BLOCK_CLAIMED | std::process::id() << 2;
        if block.state.compare_exchange(state, mine, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let borrowed = self.ledger(index).borrowed.swap(0, Ordering::AcqRel);
        let total = block.total.swap(0, Ordering::AcqRel);
        let _ = self.implicit().add(total + borrowed);
        block.unused.store(0, Ordering::Relaxed);
        block.state.store(BLOCK_FREE, Ordering::Release);
    }
}

fn new(machine_bytes: usize) -> Result<Shared> {
    let shared = Shared::create()?;
    let implicit = shared.block(IMPLICIT);
    implicit.state.store(BLOCK_LIVE, Ordering::Relaxed);
    let _ = implicit.set_total(signed(machine_bytes));
    Ok(shared)
}

/// Returns the part of `new` that `bytes` is of `old`.
fn scaled(bytes: i64, old: i64, new: i64) -> i64 {
    if old <= 0 {
        return bytes;
    }
    i64::try_from(i128::from(bytes) * i128::from(new) / i128::from(old)).unwrap_or(bytes)
}

fn machine_bytes() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}

/// A job that this process made.
#[derive(Debug)]
pub struct Admission {
    registry: Registry,
    block: usize,
    owner: Process,
}

impl Admission {
    /// Returns the index of the job's block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// The registry that the block is in.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the job's block.
    pub fn control(&self) -> &ControlBlock {
        self.registry.control(self.block)
    }

    /// Returns the block's ledger: its sums and counters beside the control block.
    pub fn ledger(&self) -> &Ledger {
        self.registry.ledger(self.block)
    }

    /// Returns the registry under a descriptor number that programs inherit, high enough not to collide with numbers that
    /// programs choose. The job's first process can be listed with it as a holder ([`Admission::name_holder`]).
    ///
    /// # Errors
    ///
    /// The process has too many descriptors open.
    pub fn inheritable(&self) -> Result<OwnedFd> {
        let file = self.registry.file();
        shared::inheritable(file).map_err(|source| Error::Registry { source: source.into() })
    }

    /// Lists a process that inherited the registry as `number`, so that others find the registry while that process lives.
    ///
    /// # Errors
    ///
    /// The folder's file cannot be written.
    pub fn name_holder(&self, folder: &Path, pid: u32, number: RawFd) -> Result<()> {
        Process::of(pid).map_or(Ok(()), |process| directory::add(folder, process, number))
    }

    /// Returns the environment variables for the job's processes, except for the library to preload. The registry's
    /// descriptor must stay open over exec under `number`.
    pub fn environment(&self, number: RawFd) -> [(&'static str, String); 3] {
        [
            (super::ENV_FD, number.to_string()),
            (super::ENV_BLOCK, self.block.to_string()),
            (super::ENV_OWNER, format!("{}:{}:{}", self.owner.pid, self.owner.started, raw(&self.registry))),
        ]
    }
}

fn raw(registry: &Registry) -> RawFd {
    use std::os::fd::AsRawFd;
    registry.file().as_fd().as_raw_fd()
}

impl Drop for Admission {
    fn drop(&mut self) {
        // A copy in the child of a fork does not own the job.
        if self.owner.pid != std::process::id() {
            return;
        }
        for index in 0..SLOTS {
            let slot = self.registry.shared.slot(index);
            let of_block = slot.block.load(Ordering::Relaxed) as usize == self.block;
            let process = Process {
                pid: slot.pid.load(Ordering::Relaxed),
                started: slot.started.load(Ordering::Relaxed),
            };
            if of_block && slot.state.load(Ordering::Acquire) == LIVE && !process.lives() {
                self.registry.release_slot(index);
            }
        }
        if self.registry.processes(self.block).next().is_none() {
            self.registry.free_block(self.block, BLOCK_LIVE);
        } else {
            // If processes outlive their owner, they keep the block; the first sweep after their end frees it.
            self.ledger().owner_pid.store(0, Ordering::Relaxed);
        }
    }
}
