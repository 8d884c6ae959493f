// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control blocks: the real memory that each job may use and has left, shared by all processes of a user.
//!
//! ```text
//! Registry (sealed memfd, one per user)
//!   Header            totals of the machine, the ring (a bit per block), the turn
//!   ControlBlock[i]   64 bytes, as in the paper          ◀── Job: this process's membership of block i
//!   Ledger[i]         beside it: overflow, grace, activation, counters of the report
//!   Slot[j]           one process: pid, bytes charged, bytes that it reports as present
//! ```
//!
//! - **Flow** [`Registry::open`] finds or makes the registry ──[`Registry::admit`]──▶ [`Admission`] (a block with a total)
//!   ──the memfd is inherited──▶ [`Job::attach`] in each process ──▶ charge, visit, overflow
//! - **Order** a charge is taken from `unused` before it is noted in the process's slot; giving it back goes the other way
//!   round. A process that is killed in between therefore leaves the sum of charges too high, never too low
//! - **Owner** the process that admitted a block frees it. If it died and the block has no live process, the next process
//!   that opens the registry frees the block. Every word of the registry is an atomic that any process of the same user may
//!   write, so indices are masked or compared before use, and loops are bounded
//! - **Not here** the charges themselves (the pager), memory outside the arenas (the watcher)

mod atomic;
mod control;
mod directory;
#[cfg(test)]
mod interleave;
#[cfg(test)]
mod interleavings;
mod job;
mod ledger;
pub(crate) mod looks;
mod overflow;
mod pid;
mod registry;
#[expect(unsafe_code, reason = "maps memory that other processes write; all of it is atomics")]
mod shared;
mod slot;
mod turn;

pub use control::{Charge, ControlBlock};
pub(crate) use job::NEAR;
pub use job::{Fork, Job};
pub use ledger::{ABSENCES, Counter, GRACE_BYTES, Ledger, OnOverflow, longest_absence};
pub use overflow::{OVERFLOW_EXIT_CODE, Verdict};
pub use pid::Process;
pub use registry::{Admission, BLOCKS, IMPLICIT, Objectives, Registry, SLOTS};
pub use slot::Slot;
pub use turn::Visit;

/// Number of the registry's descriptor, inherited by every process of a job.
pub const ENV_FD: &str = "MEMLIFT_ZMEM_FD";
/// Index of the job's block.
pub const ENV_BLOCK: &str = "MEMLIFT_ZMEM_BLOCK";
/// `PID:START:DESCRIPTOR` of the process that owns the job, for programs whose descriptors were closed on the way.
pub const ENV_OWNER: &str = "MEMLIFT_ZMEM_OWNER";
/// Folder of the job's spill file.
pub const ENV_SPILL: &str = "MEMLIFT_ZMEM_SPILL";
/// `pause` or `fail`, and after a colon the limit of a pause in seconds: `pause:60`.
pub const ENV_ON_OVERFLOW: &str = "MEMLIFT_ZMEM_ON_OVERFLOW";
