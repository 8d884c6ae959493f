// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations: what a program wishes, with the buffers it gives away for it.
//!
//! Flow    `check` (sizes fit, before anything is given away) ──▶ `describe` (addresses into a `Descriptor`)
//! Owner   the operation owns or leases its buffers; see `buffer`

use super::buffer::{Source, Target};
use super::operand::Operand;
use super::{Cache, Reason};
#[cfg(feature = "transform")]
use crate::codec::SealKey;
#[cfg(feature = "persist")]
use crate::persist::NearData;
use memlift_spec::limits::{DELTA_RECORD_BYTES_MIN, DELTA_SOURCE_BYTES_MAX, TRANSFER_BYTES_MAX};
#[cfg(feature = "transform")]
use memlift_spec::operand::HINT_PRIVATE;
use memlift_spec::{Descriptor, Flags, Opcode, StridedCopy};
#[cfg(feature = "transform")]
use memlift_spec::{Effort, Format, PackBlock, SealBlock};
#[cfg(feature = "transform")]
use std::sync::Arc;

/// What FILL repeats, least significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// 8 bytes.
    Eight(u64),
    /// 16 bytes.
    Sixteen(u128),
}

/// One wish. Variants' buffers come back in the outcome.
#[derive(Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Does nothing.
    Noop,
    /// Completes when everything submitted before it to the same queue has. Not in batches.
    Drain,
    /// Copies all of `source` to the start of `target`.
    Copy {
        /// Read.
        source: Source,
        /// Written.
        target: Target,
        /// Whether the target is read soon.
        cache: Cache,
    },
    /// Fills all of `target`.
    Fill {
        /// Written.
        target: Target,
        /// Repeated.
        pattern: Pattern,
        /// Whether the target is read soon.
        cache: Cache,
    },
    /// Finds the first difference of two buffers of one size.
    Compare {
        /// Read.
        first: Source,
        /// Read.
        second: Source,
    },
    /// Finds the first difference from a repeated 8-byte pattern.
    ComparePattern {
        /// Read.
        source: Source,
        /// Repeated, least significant byte first.
        pattern: u64,
    },
    /// CRC-32C.
    Crc {
        /// Read.
        source: Source,
        /// 0, or the value of the bytes before.
        seed: u32,
    },
    /// Copies and gives the CRC-32C of what was copied.
    CopyCrc {
        /// Read.
        source: Source,
        /// Written.
        target: Target,
        /// 0, or the value of the bytes before.
        seed: u32,
        /// Whether the target is read soon.
        cache: Cache,
    },
    /// Copies to two targets whose addresses agree modulo 4096.
    Dualcast {
        /// Read.
        source: Source,
        /// Written.
        target: Target,
        /// Written.
        target2: Target,
        /// Whether the targets are read soon.
        cache: Cache,
    },
    /// Writes into `record` what must change in `first` to make it `second`. Buffers are 8-byte aligned, at most
    /// 512 KiB, a multiple of 8 bytes; the record has room for 10 bytes per changed 8, a multiple of 10.
    DeltaCreate {
        /// Read.
        first: Source,
        /// Read.
        second: Source,
        /// Written.
        record: Target,
    },
    /// Applies such a record.
    DeltaApply {
        /// Read; all of it.
        record: Source,
        /// Changed.
        target: Target,
    },
    /// Gathers `rows` rows of `row_bytes`, the first at `first_offset` in `source` and each next one
    /// `source_stride` bytes further, to the start of `target`.
    CopyStrided {
        /// Read.
        source: Source,
        /// Where in the source the first row starts, bytes.
        first_offset: usize,
        /// How many rows.
        rows: usize,
        /// Bytes of one row.
        row_bytes: usize,
        /// Bytes from row to row; may be negative.
        source_stride: i64,
        /// Written.
        target: Target,
        /// Whether the target is read soon.
        cache: Cache,
    },
    /// Writes a range back from the caches and evicts it.
    CacheFlush {
        /// The range.
        target: Target,
    },
    /// Encrypts all of `source` to the start of `target` with AES-GCM. The outcome has the tag.
    #[cfg(feature = "transform")]
    Seal {
        /// Read; may be empty.
        source: Source,
        /// Written, as many bytes.
        target: Target,
        /// Key, nonce, additional data.
        seal: Box<SealOptions>,
    },
    /// Decrypts. With a wrong tag the target is zeroed and the operation fails.
    #[cfg(feature = "transform")]
    Open {
        /// Read; may be empty.
        source: Source,
        /// Written, as many bytes.
        target: Target,
        /// Key, nonce, additional data.
        seal: Box<SealOptions>,
        /// What sealing gave.
        tag: [u8; 16],
    },
    /// Packs all of `source`. The outcome says into how many bytes, and cuts a vector to them.
    #[cfg(feature = "transform")]
    Pack {
        /// Read; may be empty.
        source: Source,
        /// Written; its size is the capacity.
        target: Target,
        /// How it is encoded.
        format: Format,
        /// How hard to try.
        effort: Effort,
    },
    /// Unpacks the stream at the start of `source`. The outcome says into how many bytes, and cuts a vector to them.
    #[cfg(feature = "transform")]
    Unpack {
        /// Read.
        source: Source,
        /// Written; its size is the capacity.
        target: Target,
        /// How it is encoded.
        format: Format,
    },
    /// Appends or applies a log record, copies lines of a page, or resets a lane's head.
    #[cfg(feature = "persist")]
    Near(NearData),
}

/// What sealing and opening need beside their buffers.
#[cfg(feature = "transform")]
#[derive(Clone, Debug)]
pub struct SealOptions {
    /// The key.
    pub key: Arc<SealKey>,
    /// Seals one message under a key, ever.
    pub nonce: [u8; 12],
    /// Checked, not sealed.
    pub aad: Vec<u8>,
    /// Whether the target is read soon.
    pub cache: Cache,
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

    /// The opcode it becomes.
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
            Operation::CopyStrided { .. } => Opcode::STRIDED_COPY,
            Operation::CacheFlush { .. } => Opcode::CACHE_FLUSH,
            #[cfg(feature = "transform")]
            Operation::Seal { .. } => Opcode::SEAL,
            #[cfg(feature = "transform")]
            Operation::Open { .. } => Opcode::OPEN,
            #[cfg(feature = "transform")]
            Operation::Pack { .. } => Opcode::PACK,
            #[cfg(feature = "transform")]
            Operation::Unpack { .. } => Opcode::UNPACK,
            #[cfg(feature = "persist")]
            Operation::Near(near) => near.opcode(),
        }
    }

    /// Bytes it works on: the descriptor's size.
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
            Operation::CopyStrided { rows, row_bytes, .. } => rows.saturating_mul(*row_bytes),
            #[cfg(feature = "transform")]
            Operation::Seal { source, .. }
            | Operation::Open { source, .. }
            | Operation::Pack { source, .. }
            | Operation::Unpack { source, .. } => source.bytes(),
            #[cfg(feature = "persist")]
            Operation::Near(near) => near.bytes(),
        }
    }

    /// The buffer that is written first, if any.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Operation::Copy { target, .. }
            | Operation::Fill { target, .. }
            | Operation::CopyCrc { target, .. }
            | Operation::Dualcast { target, .. }
            | Operation::DeltaApply { target, .. }
            | Operation::CopyStrided { target, .. }
            | Operation::CacheFlush { target } => Some(target),
            Operation::DeltaCreate { record, .. } => Some(record),
            #[cfg(feature = "transform")]
            Operation::Seal { target, .. }
            | Operation::Open { target, .. }
            | Operation::Pack { target, .. }
            | Operation::Unpack { target, .. } => Some(target),
            _ => None,
        }
    }

    /// The buffer that is written first, if any, and the rest is dropped.
    pub fn into_target(self) -> Option<Target> {
        match self {
            Operation::Copy { target, .. }
            | Operation::Fill { target, .. }
            | Operation::CopyCrc { target, .. }
            | Operation::Dualcast { target, .. }
            | Operation::DeltaApply { target, .. }
            | Operation::CopyStrided { target, .. }
            | Operation::CacheFlush { target } => Some(target),
            Operation::DeltaCreate { record, .. } => Some(record),
            #[cfg(feature = "transform")]
            Operation::Seal { target, .. }
            | Operation::Open { target, .. }
            | Operation::Pack { target, .. }
            | Operation::Unpack { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether the buffers fit: everything that memory safety needs, and what no backend would take.
    pub(super) fn check(&self) -> Result<(), Reason> {
        if matches!(self, Operation::Noop | Operation::Drain) {
            return Ok(());
        }
        let bytes = self.bytes();
        if bytes == 0 && !self.takes_nothing() {
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
            Operation::CopyStrided {
                source, first_offset, rows, row_bytes, source_stride, target, ..
            } => {
                room(target)?;
                let last = i128::from(*source_stride) * (*rows as i128 - 1);
                let low = *first_offset as i128 + last.min(0);
                let high = *first_offset as i128 + last.max(0) + *row_bytes as i128;
                if low < 0 || high > source.bytes() as i128 { Err(ROWS) } else { Ok(()) }
            }
            #[cfg(feature = "transform")]
            Operation::Seal { target, seal, .. } | Operation::Open { target, seal, .. } => {
                let most = TRANSFER_BYTES_MAX as usize;
                if seal.aad.len() > most { Err(LARGE) } else { room(target) }
            }
            #[cfg(feature = "transform")]
            Operation::Pack { target, .. } | Operation::Unpack { target, .. } => {
                if target.bytes() > TRANSFER_BYTES_MAX as usize { Err(LARGE) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Whether an empty source is something to work on.
    fn takes_nothing(&self) -> bool {
        matches!(self.opcode(), Opcode::SEAL | Opcode::OPEN | Opcode::PACK)
    }

    /// Writes everything but the completion address. `operand` is where the operand block lies, if it needs one.
    pub(super) fn describe(&mut self, operand: &mut Operand) -> Descriptor {
        let mut flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        let hot = matches!(
            self,
            Operation::Copy { cache: Cache::Hot, .. }
                | Operation::Fill { cache: Cache::Hot, .. }
                | Operation::CopyCrc { cache: Cache::Hot, .. }
                | Operation::Dualcast { cache: Cache::Hot, .. }
                | Operation::CopyStrided { cache: Cache::Hot, .. }
        );
        #[cfg(feature = "transform")]
        let hot = hot
            || matches!(self, Operation::Seal { seal, .. } | Operation::Open { seal, .. } if seal.cache == Cache::Hot)
            || matches!(self, Operation::Pack { .. } | Operation::Unpack { .. });
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
            Operation::CopyStrided {
                source, first_offset, rows, row_bytes, source_stride, target, ..
            } => {
                descriptor.source = source.address() + *first_offset as u64;
                descriptor.target = target.address();
                let block = StridedCopy::new(*rows as u64, *row_bytes as u64, *source_stride);
                descriptor.operation[0] = operand.put(block.into());
            }
            Operation::CacheFlush { target } => descriptor.target = target.address(),
            #[cfg(feature = "transform")]
            Operation::Seal { source, target, seal } => {
                let private = source.is_private() && target.is_private();
                let block = seal.block(Opcode::SEAL, [0; 16], private);
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = operand.put(Operand::Seal(block));
            }
            #[cfg(feature = "transform")]
            Operation::Open { source, target, seal, tag } => {
                let private = source.is_private() && target.is_private();
                let block = seal.block(Opcode::OPEN, *tag, private);
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = operand.put(Operand::Seal(block));
            }
            #[cfg(feature = "transform")]
            Operation::Pack { source, target, format, effort } => {
                let block = PackBlock::pack(*format, *effort, target.bytes() as u64);
                let hints = if source.is_private() && target.is_private() { HINT_PRIVATE } else { 0 };
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = operand.put(Operand::Pack(block.with_hints(hints)));
            }
            #[cfg(feature = "transform")]
            Operation::Unpack { source, target, format } => {
                let block = PackBlock::unpack(*format, target.bytes() as u64);
                let hints = if source.is_private() && target.is_private() { HINT_PRIVATE } else { 0 };
                (descriptor.source, descriptor.target) = (source.address(), target.address());
                descriptor.operation[0] = operand.put(Operand::Pack(block.with_hints(hints)));
            }
            #[cfg(feature = "persist")]
            Operation::Near(near) => {
                let (source, target, block) = near.parts();
                (descriptor.source, descriptor.target) = (source, target);
                descriptor.operation[0] = operand.put(Operand::Near(block));
            }
        }
        descriptor
    }
}

const DELTA: Reason = Reason::Invalid(
    "a delta needs a buffer of at most 512 KiB, a multiple of 8 bytes, and a record of at least 80 bytes to \
     write into (any whole number of entries to apply), a multiple of 10",
);
const ROWS: Reason = Reason::Invalid("a row lies outside the source");

#[cfg(feature = "transform")]
impl SealOptions {
    /// The operand block: addresses of the key in both forms and of the additional data, which stay where they are.
    fn block(&self, opcode: Opcode, tag: [u8; 16], private: bool) -> SealBlock {
        let key = self.key.bytes();
        let key_address = key.as_ptr().expose_provenance() as u64;
        let mut block = SealBlock::open(key_address, key.len() as u32, self.nonce, tag);
        block.opcode = opcode.0;
        let expanded = std::ptr::from_ref(self.key.expanded()).expose_provenance() as u64;
        block
            .with_aad(self.aad.as_ptr().expose_provenance() as u64, self.aad.len() as u64)
            .with_prepared(memlift_spec::operand::PREPARED_KERNELS, expanded)
            .with_hints(if private { HINT_PRIVATE } else { 0 })
    }
}
