// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one trait that everything which runs descriptors implements: a core, other cores, a device, a model.

use crate::{Descriptor, Opcode, limits};

/// The backend took fewer descriptors than it was given, because its queue is full. Nothing is queued
/// elsewhere: poll, wait, or take another backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a full queue took nothing: retry after a completion, or run the work elsewhere"]
pub struct Busy {
    /// How many descriptors, counted from the first, were accepted.
    pub accepted: usize,
}

impl core::fmt::Display for Busy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "queue full after {} descriptors; collect completions and retry", self.accepted)
    }
}

impl core::error::Error for Busy {}

/// Operations and limits of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bit n set: opcode n is supported.
    pub opcodes: [u64; 4],
    /// Most bytes in one descriptor.
    pub transfer_bytes_max: u32,
    /// Most members in one batch; 0 or 1: no batches.
    pub batch_max: u32,
    /// Descriptors the queue holds.
    pub queue_depth: u32,
}

impl Capabilities {
    /// Nothing supported, limits at their widest.
    pub const fn none(queue_depth: u32) -> Capabilities {
        Capabilities {
            opcodes: [0; 4],
            transfer_bytes_max: limits::TRANSFER_BYTES_MAX,
            batch_max: limits::BATCH_MAX,
            queue_depth,
        }
    }

    /// The same with `opcode` supported.
    #[must_use]
    pub const fn with(mut self, opcode: Opcode) -> Capabilities {
        self.opcodes[(opcode.0 >> 6) as usize] |= 1 << (opcode.0 & 63);
        self
    }

    /// Returns true if `opcode` is supported.
    pub const fn supports(&self, opcode: Opcode) -> bool {
        self.opcodes[(opcode.0 >> 6) as usize] >> (opcode.0 & 63) & 1 == 1
    }
}

/// Runs descriptors.
///
/// # Safety
///
/// An implementor promises that a submitted descriptor's memory (source, target, operand block, completion
/// record) is not touched after its completion's status became non-zero, and that the status is stored last,
/// with Release. One status is excepted: after [`DEVICE_LOST`](crate::Status::DEVICE_LOST) all of it but the record stays lent for
/// ever. It must not complete anything inside [`submit`](Backend::submit).
#[expect(unsafe_code, reason = "implementors promise what the safety section says")]
pub unsafe trait Backend: Send + Sync {
    /// Short lower-case name: `inline`, `worker`, `idxd`, `model`.
    fn name(&self) -> &'static str;

    /// Returns the operations and limits of this backend.
    fn capabilities(&self) -> Capabilities;

    /// Queues descriptors in order.
    ///
    /// # Errors
    ///
    /// [`Busy`] when the queue could not take all of them; those before `accepted` are in flight.
    ///
    /// # Safety
    ///
    /// Every address in every descriptor must be valid for its use until that descriptor's completion status
    /// is non-zero; completion records are zeroed, 32-byte aligned, and flagged valid and requested.
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy>;

    /// Lets the backend make progress on the calling thread; gives how many descriptors it completed. Backends
    /// that run by themselves give 0.
    fn poll(&self) -> usize;
}

impl core::fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name()).finish_non_exhaustive()
    }
}
