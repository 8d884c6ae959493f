// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work on logs, heaps and pages as descriptors on a queue.
//!
//! - **Flow** [`NearData`] ─▶ `submit::Operation` ─▶ any executor ─▶ completion record
//! - **Layout** `memlift_kernels::persist` the routines · `operation` queued work · `run/persist` its execution
//! - **Owner** memory is named by address and vouched for by whoever names it: logs and heaps outlive every operation on
//!   them, which no buffer that an operation could own does
//! - **Not here** where logs lie, which record comes next, when to fence: `services/persist`
//!
//! The fence orders the stores of the core that executes it. So the stores of an operation that was queued are
//! durable with its completion only if the operation itself fences; the submitter's fence does nothing for them.

#[expect(unsafe_code, reason = "names memory by address, for which its callers vouch")]
mod operation;

pub(crate) use operation::Block;
pub use operation::{Fence, NearData};
