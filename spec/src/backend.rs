// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trait that everything that executes descriptors implements: the calling core, other cores, a device, a model.

use crate::{Descriptor, Opcode, limits};

/// The backend accepted fewer descriptors than it was given, because its queue is full. The others are queued nowhere: poll,
/// wait, or use another backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a full queue took nothing: retry after a completion, or run the work elsewhere"]
pub struct Busy {
    /// Number of descriptors that were accepted, counted from the first.
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
    /// Most members in one batch; 0 or 1 if there are no batches.
    pub batch_max: u32,
    /// Number of descriptors that the queue holds.
    pub queue_depth: u32,
}

impl Capabilities {
    /// Returns capabilities without any operation, with the widest limits.
    pub const fn none(queue_depth: u32) -> Capabilities {
        Capabilities {
            opcodes: [0; 4],
            transfer_bytes_max: limits::TRANSFER_BYTES_MAX,
            batch_max: limits::BATCH_MAX,
            queue_depth,
        }
    }

    /// Returns these capabilities with `opcode` added.
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

/// Executes descriptors.
///
/// # Safety
///
/// An implementor does not access a descriptor's memory (source, target, operand block, completion record) after the status of
/// its completion has become non-zero; the status is stored last, with Release. There is one exception: after
/// [`DEVICE_LOST`](crate::Status::DEVICE_LOST) all of it but the record stays lent for ever. Nothing is completed inside
/// [`submit`](Backend::submit).
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
    /// [`Busy`] if the queue could not take all of them; those before `accepted` are in flight.
    ///
    /// # Safety
    ///
    /// Every address in a descriptor must be valid for its use until the descriptor's completion status is non-zero; completion
    /// records are zeroed, aligned to 32 bytes, and flagged as valid and requested.
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy>;

    /// Makes progress on the calling thread; returns how many descriptors it completed. A backend with threads or a device of
    /// its own returns 0.
    fn poll(&self) -> usize;
}

impl core::fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name()).finish_non_exhaustive()
    }
}
