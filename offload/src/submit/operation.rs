// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that are queued: requests with their buffers.
//!
//! - **Flow** constructor ──▶ `check` (the buffers fit, before anything is submitted) ──▶ `describe` (addresses into a `Descriptor`)
//! - **Owner** the operation owns its buffers; see `buffer`

use super::buffer::{Source, Target};
use super::{Cache, Reason};
use memlift_spec::limits::TRANSFER_BYTES_MAX;
use memlift_spec::{Descriptor, Flags, Opcode};

/// One operation. Its outcome returns the target.
#[derive(Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Completes when everything submitted before it to the same queue has.
    Drain,
    /// Copies all of `source` to the start of `target`.
    Copy {
        /// Bytes to copy.
        source: Source,
        /// Receives the copy.
        target: Target,
        /// Hint: hot if the target is read soon.
        cache: Cache,
    },
}

const EMPTY: Reason = Reason::Invalid("the buffer is empty: there is nothing to do");
const LARGE: Reason = Reason::Invalid("one operation moves at most 2 GiB: submit it in parts");
const SHORT: Reason = Reason::Invalid("the target is shorter than what is to be written to it");

impl Operation {
    /// Copies `source` into a new vector.
    pub fn copy(source: impl Into<Source>) -> Operation {
        let source = source.into();
        let target = Target::zeroed(source.bytes());
        Operation::Copy { source, target, cache: Cache::Auto }
    }

    /// Returns the opcode of the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Operation::Drain => Opcode::DRAIN,
            Operation::Copy { .. } => Opcode::MEMMOVE,
        }
    }

    /// Returns the size of the operation in bytes, which becomes the descriptor's size.
    pub fn bytes(&self) -> usize {
        match self {
            Operation::Drain => 0,
            Operation::Copy { source, .. } => source.bytes(),
        }
    }

    /// Returns the buffer that is written, if any; the other buffers are dropped.
    pub fn into_target(self) -> Option<Target> {
        match self {
            Operation::Copy { target, .. } => Some(target),
            Operation::Drain => None,
        }
    }

    /// Checks that the buffers fit: all conditions for memory safety, and limits that every backend has.
    pub(super) fn check(&self) -> Result<(), Reason> {
        match self {
            Operation::Drain => Ok(()),
            Operation::Copy { source, .. } if source.bytes() == 0 => Err(EMPTY),
            Operation::Copy { source, .. } if source.bytes() > TRANSFER_BYTES_MAX as usize => Err(LARGE),
            Operation::Copy { source, target, .. } if target.bytes() < source.bytes() => Err(SHORT),
            Operation::Copy { .. } => Ok(()),
        }
    }

    /// Makes the descriptor, complete except for the completion address.
    pub(super) fn describe(&mut self) -> Descriptor {
        let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        let mut descriptor = Descriptor::new(self.opcode(), flags);
        descriptor.size = self.bytes() as u32;
        if let Operation::Copy { source, target, cache } = self {
            (descriptor.source, descriptor.target) = (source.address(), target.address());
            if *cache == Cache::Hot {
                descriptor.add_flags(Flags::CACHE_CONTROL);
            }
        }
        descriptor
    }
}
