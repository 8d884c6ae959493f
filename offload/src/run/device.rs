// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA as an executor: opened at its first use; whatever the device leaves undone is finished by this engine's
//! own routines.
//!
//! - **Flow** `open_dsa` ─▶ the queues listed in sysfs, those of the CPU's own memory node first ─▶ portal ─▶ NOOP ─▶
//!   `Idxd`. A fault, a refusal, a full queue, a private opcode ─▶ `Finisher` ─▶ `execute`
//! - **Not here** portals, records, the remainder after a fault: `memlift-idxd`

use super::execute::{Context, perform};
use super::validate::Place;
use super::{ExecutorSettings, capabilities};
use memlift_ground::facility::{self, Facility};
use memlift_idxd::portal::{self, Instructions};
use memlift_idxd::{Cpu, DsaInventory, Idxd, Settings};
use memlift_spec::{Capabilities, Completion, Descriptor};
use std::path::Path;
use std::sync::Arc;

/// Executes on the calling core what a device has left undone.
#[derive(Clone, Debug)]
pub struct Finisher(Arc<ExecutorSettings>);

impl Finisher {
    /// Makes a finisher that works with `executor_settings`.
    pub fn new(executor_settings: Arc<ExecutorSettings>) -> Finisher {
        Finisher(executor_settings)
    }
}

// SAFETY: `perform` accesses only the memory that the descriptor names, and has finished with it when it
// returns.
unsafe impl Cpu for Finisher {
    fn capabilities(&self) -> Capabilities {
        capabilities(u32::MAX)
    }

    unsafe fn perform(&self, descriptor: &Descriptor, in_batch: bool) -> Completion {
        let context = Context { capabilities: self.capabilities(), executor_settings: &self.0 };
        let place = if in_batch { Place::Batch } else { Place::Queue };
        // SAFETY: the caller lends the descriptor's memory, and that of the members of a batch, for this call.
        unsafe { perform(descriptor, &context, place) }
    }
}

/// Reason that there is no usable DSA queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// `MEMLIFT_DISABLE` or `engine.disable` names the facility.
    #[error("dsa is masked by MEMLIFT_DISABLE or engine.disable: take it out of there")]
    Masked,
    /// No queue is configured for programs.
    #[error("no DSA work queue for user space on this machine: `memlift doctor` says why and what to do")]
    NoQueue,
    /// There are queues, but none works.
    #[error("no DSA work queue can be used ({0}): `memlift doctor` says what to do")]
    Unusable(String),
}

/// Returns the memory node of the CPU on which this thread runs.
pub fn node() -> Option<u32> {
    let mut node = 0u32;
    // SAFETY: getcpu writes one u32 to `node`, which is a valid local, and nothing to the null pointers.
    let failed =
        unsafe { libc::syscall(libc::SYS_getcpu, std::ptr::null_mut::<u32>(), &raw mut node, 0usize) };
    (failed == 0).then_some(node)
}

/// Returns the first queue below `root` (`/`) that opens and answers.
///
/// # Errors
/// [`Absent`].
pub fn open_dsa(root: &Path, executor_settings: &Arc<ExecutorSettings>) -> Result<Idxd, Absent> {
    if facility::detect(Facility::Dsa) == facility::Availability::Masked {
        return Err(Absent::Masked);
    }
    let machine = DsaInventory::discover(root);
    let allowed = Instructions {
        enqcmd: facility::usable(Facility::Enqcmd),
        movdir64b: facility::usable(Facility::Movdir64b),
    };
    let mut failures = Vec::new();
    for queue in machine.candidates(node()) {
        let cpu = Box::new(Finisher::new(Arc::clone(executor_settings)));
        let opened = portal::open(queue, allowed).map_err(|error| error.to_string()).and_then(|portal| {
            Idxd::new(queue, portal, cpu, Settings::default()).map_err(|error| error.to_string())
        });
        match opened {
            Ok(device) => return Ok(device),
            Err(error) => failures.push(format!("{}: {error}", queue.name)),
        }
    }
    if failures.is_empty() { Err(Absent::NoQueue) } else { Err(Absent::Unusable(failures.join("; "))) }
}
