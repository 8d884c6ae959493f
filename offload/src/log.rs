// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work on logs, heaps and pages as descriptors on a queue.
//!
//! - **Flow** [`NearData`] ─▶ `submit::Operation` ─▶ any executor ─▶ completion record
//! - **Layout** `memlift_kernels::persist` the routines · `operation` queued work · `run/persist` its execution
//! - **Owner** memory is named by address, and the caller that names it promises its validity: logs and heaps outlive
//!   every operation on them, so an operation cannot own them like a buffer
//! - **Not here** the position of logs, the next record, the time of fences: `services/persist`
//!
//! A fence orders the stores of the core that executes it. So the stores of a queued operation are durable with its
//! completion only if the operation itself fences; a fence of the submitter does not affect them.

#[expect(unsafe_code, reason = "names memory by address, for which its callers vouch")]
mod operation;

pub(crate) use operation::Block;
pub use operation::{Fence, NearData};
