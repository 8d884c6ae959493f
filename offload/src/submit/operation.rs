// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations: work on memory, with the buffers that the operation owns until it is done.
//!
//! - **Flow** `check` (sizes fit, before anything is submitted) ──▶ `describe` (addresses into a `Descriptor`)
//! - **Owner** the operation owns or leases its buffers; see `buffer`

use super::buffer::{Source, Target};
use super::{Cache, Reason};
use memlift_spec::limits::{DELTA_RECORD_BYTES_MIN, DELTA_SOURCE_BYTES_MAX, TRANSFER_BYTES_MAX};
use memlift_spec::{Descriptor, Flags, Opcode};

/// The pattern that FILL repeats, least significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// A pattern of 8 bytes.
    Eight(u64),
    /// A pattern of 16 bytes.
    Sixteen(u128),
}

/// One operation. Its outcome returns the buffers of its variant.
#[derive(Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Does nothing, and completes.
    Noop,
    /// Completes when everything submitted before it to the same queue has. Not in batches.
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
    /// Fills all of `target`.
    Fill {
        /// Buffer that is filled completely.
        target: Target,
        /// The pattern that is repeated.
        pattern: Pattern,
        /// Hint: hot if the target is read soon.
        cache: Cache,
    },
    /// Finds the first difference of two buffers of one size.
    Compare {
        /// The first buffer, only read.
        first: Source,
        /// The second buffer, only read.
        second: Source,
    },
    /// Finds the first difference from a repeated 8-byte pattern.
    ComparePattern {
        /// The buffer, only read.
        source: Source,
        /// Pattern that is repeated, least significant byte first.
        pattern: u64,
    },
    /// Computes the CRC-32C of `source`.
    Crc {
        /// Bytes whose CRC is computed.
        source: Source,
        /// 0, or the CRC-32C of the preceding bytes.
        seed: u32,
    },
    /// Copies, and computes the CRC-32C of the copied bytes.
    CopyCrc {
        /// Bytes to copy.
        source: Source,
        /// Receives the copy.
        target: Target,
        /// 0, or the CRC-32C of the preceding bytes.
        seed: u32,
        /// Hint: hot if the target is read soon.
        cache: Cache,
    },
    /// Copies to two targets whose addresses agree modulo 4096.
    Dualcast {
        /// Bytes to copy.
        source: Source,
        /// Receives the first copy.
        target: Target,
        /// Receives the second copy.
        target2: Target,
        /// Hint: hot if the targets are read soon.
        cache: Cache,
    },
    /// Writes into `record` the differences that turn `first` into `second`. The sources are 8-byte aligned, at
    /// most 512 KiB long, a multiple of 8 bytes; the record has room for 10 bytes per changed 8, a multiple of
    /// 10.
    DeltaCreate {
        /// Bytes before the change.
        first: Source,
        /// Bytes after the change.
        second: Source,
        /// Receives the delta record.
        record: Target,
    },
    /// Applies a record of DELTA_CREATE.
    DeltaApply {
        /// The delta record; all of it is read.
        record: Source,
        /// The buffer that is changed in place.
        target: Target,
    },
    /// Writes a range back from the caches and evicts it.
    CacheFlush {
        /// The range to write back.
        target: Target,
    },
}

const EMPTY: Reason = Reason::Invalid("the buffer is empty: there is nothing to do");
const LARGE: Reason = Reason::Invalid("one operation moves at most 2 GiB: submit it in parts");
const SHORT: Reason = Reason::Invalid("the target is shorter than what is to be written to it");
const UNEQUAL: Reason = Reason::Invalid("both sources must have the same size");
const READ_ONLY: Reason = Reason::Invalid("the target lies in a region that is mapped read-only");

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
            Operation::Noop => Opcode::NOOP,
            Operation::Drain => Opcode::DRAIN,
            Operation::Copy { .. } => Opcode::MEMMOVE,
            Operation::Fill { .. } => Opcode::FILL,
            Operation::Compare { .. } => Opcode::COMPARE,
            Operation::ComparePattern { .. } => Opcode::COMPARE_PATTERN,
            Operation::Crc { .. } => Opcode::CRC,
            Operation::CopyCrc { .. } => Opcode::COPY_CRC,
            Operation::Dualcast { .. } => Opcode::DUALCAST,
            Operation::DeltaCreate { .. } => Opcode::DELTA_CREATE,
            Operation::DeltaApply { .. } => Opcode::DELTA_APPLY,
            Operation::CacheFlush { .. } => Opcode::CACHE_FLUSH,
        }
    }

    /// Returns the size of the operation in bytes, which becomes the descriptor's size.
    pub fn bytes(&self) -> usize {
        match self {
            Operation::Noop | Operation::Drain => 0,
            Operation::Copy { source, .. }
            | Operation::Crc { source, .. }
            | Operation::CopyCrc { source, .. }
            | Operation::Dualcast { source, .. }
            | Operation::ComparePattern { source, .. } => source.bytes(),
            Operation::Compare { first, .. } | Operation::DeltaCreate { first, .. } => first.bytes(),
            Operation::Fill { target, .. }
            | Operation::DeltaApply { target, .. }
            | Operation::CacheFlush { target } => target.bytes(),
        }
    }

    /// Returns the buffer that is written (the first one of two), if any.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Operation::Copy { target, .. }
            | Operation::Fill { target, .. }
            | Operation::CopyCrc { target, .. }
            | Operation::Dualcast { target, .. }
            | Operation::DeltaApply { target, .. }
            | Operation::CacheFlush { target } => Some(target),
            Operation::DeltaCreate { record, .. } => Some(record),
            _ => None,
        }
    }

    /// Returns the buffer that is written (the first one of two), if any; the other buffers are dropped.
    pub fn into_target(self) -> Option<Target> {
        match self {
            Operation::Copy { target, .. }
            | Operation::Fill { target, .. }
            | Operation::CopyCrc { target, .. }
            | Operation::Dualcast { target, .. }
            | Operation::DeltaApply { target, .. }
            | Operation::CacheFlush { target } => Some(target),
            Operation::DeltaCreate { record, .. } => Some(record),
            _ => None,
        }
    }

    /// Checks that the buffers fit: all conditions for memory safety, and limits that every backend has.
    pub(super) fn check(&self) -> Result<(), Reason> {
        if matches!(self, Operation::Noop | Operation::Drain) {
            return Ok(());
        }
        let bytes = self.bytes();
        if bytes == 0 {
            return Err(EMPTY);
        }
        if bytes > TRANSFER_BYTES_MAX as usize {
            return Err(LARGE);
        }
        if self.target().is_some_and(|target| !target.writable()) {
            return Err(READ_ONLY);
        }
        let room = |target: &Target| if target.bytes() < bytes { Err(SHORT) } else { Ok(()) };
        match self {
            Operation::Copy { target, .. } | Operation::CopyCrc { target, .. } => room(target),
            Operation::Dualcast { target, target2, .. } if target2.writable() => {
                room(target).and_then(|()| room(target2))
            }
            Operation::Dualcast { .. } => Err(READ_ONLY),
            Operation::Compare { first, second } if first.bytes() != second.bytes() => Err(UNEQUAL),
            Operation::DeltaCreate { first, second, record } => {
                if first.bytes() != second.bytes() {
                    return Err(UNEQUAL);
                }
                let size_fits = bytes.is_multiple_of(8) && bytes <= DELTA_SOURCE_BYTES_MAX as usize;
                let room_fits = record.bytes().is_multiple_of(10)
                    && (DELTA_RECORD_BYTES_MIN as usize..=TRANSFER_BYTES_MAX as usize)
                        .contains(&record.bytes());
                if size_fits && room_fits { Ok(()) } else { Err(DELTA) }
            }
            Operation::DeltaApply { record, .. } => {
                let fits = record.bytes() > 0 && record.bytes().is_multiple_of(10) && bytes.is_multiple_of(8);
                let small = bytes <= DELTA_SOURCE_BYTES_MAX as usize && record.bytes() <= 10 << 16;
                if fits && small { Ok(()) } else { Err(DELTA) }
            }
            _ => Ok(()),
        }
    }

    /// Makes the descriptor, complete except for the completion address.
    pub(super) fn describe(&mut self) -> Descriptor {
        let mut flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        let hot = matches!(
            self,
            Operation::Copy { cache: Cache::Hot, .. }
                | Operation::Fill { cache: Cache::Hot, .. }
                | Operation::CopyCrc { cache: Cache::Hot, .. }
                | Operation::Dualcast { cache: Cache::Hot, .. }
        );
        if hot {
            flags = flags.with(Flags::CACHE_CONTROL);
        }
        let mut descriptor = Descriptor::new(self.opcode(), flags);
        descriptor.size = self.bytes() as u32;
        match self {
            Operation::Noop | Operation::Drain => {}
            Operation::Copy { source, target, .. } => {
                (descriptor.source, descriptor.target) = (source.address(), target.address());
            }
            Operation::Fill { target, pattern, .. } => {
                descriptor.target = target.address();
                match *pattern {
                    Pattern::Eight(pattern) => descriptor.source = pattern,
                    Pattern::Sixteen(pattern) => {
                        descriptor.add_flags(Flags::FILL_16);
                        descriptor.source = pattern as u64;
                        descriptor.operation[0] = (pattern >> 64) as u64;
                    }
                }
            }
            Operation::Compare { first, second } => {
                (descriptor.source, descriptor.target) = (first.address(), second.address());
            }
            Operation::ComparePattern { source, pattern } => {
                (descriptor.source, descriptor.target) = (source.address(), *pattern);
            }
            Operation::Crc { source, seed } => {
                descriptor.source = source.address();
                descriptor.operation[0] = u64::from(*seed);
            }
            Operation::CopyCrc { source, target, seed, .. } => {
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = u64::from(*seed);
            }
            Operation::Dualcast { source, target, target2, .. } => {
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = target2.address();
            }
            Operation::DeltaCreate { first, second, record } => {
                (descriptor.source, descriptor.target) = (first.address(), second.address());
                descriptor.operation = [record.address(), record.bytes() as u64, 0];
            }
            Operation::DeltaApply { record, target } => {
                (descriptor.source, descriptor.target) = (record.address(), target.address());
                descriptor.operation[0] = record.bytes() as u64;
            }
            Operation::CacheFlush { target } => descriptor.target = target.address(),
        }
        descriptor
    }
}

const DELTA: Reason = Reason::Invalid(
    "a delta needs a buffer of at most 512 KiB, a multiple of 8 bytes, and a record of at least 80 bytes to \
     write into (any whole number of entries to apply), a multiple of 10",
);
