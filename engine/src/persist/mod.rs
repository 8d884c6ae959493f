// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work on logs, heaps and pages: on the caller's core, or as descriptors on a queue.
//!
//! - **Flow** hot path: `append`, `copy_lines` … the kernel and no more, on the caller's core, fenced by the caller
//!   in the background: [`NearData`] ─▶ `submit::Operation` ─▶ any executor ─▶ completion record
//! - **Layout** `kernels::persist` the routines · `operation` queued work · `run/persist` its execution · `biased` a lock without a
//!   locked instruction
//! - **Owner** memory is named by address and vouched for by whoever names it: logs and heaps outlive every operation on
//!   them, which no buffer that an operation could own does
//! - **Not here** where logs lie, which record comes next, when to fence: `services/persist`
//!
//! The fence orders the stores of the core that executes it. So the stores of an operation that was queued are
//! durable with its completion only if the operation itself fences; the submitter's fence does nothing for them.

#[cfg(not(loom))]
#[expect(unsafe_code, reason = "names memory by address, for which its callers vouch")]
mod operation;
#[expect(unsafe_code, reason = "guards a value by itself")]
mod biased;

pub use biased::{Biased, ReadGuard, WriteGuard};
#[cfg(not(loom))]
pub(crate) use operation::Block;
#[cfg(not(loom))]
pub use operation::{Fence, NearData};

pub use memlift_kernels::persist::{
    Applied, Fault, RecordHeader, WriteBack, append, apply, check, copy_lines, copy_lines_crc, fence,
    instruction, nt_copy, write_back,
};
