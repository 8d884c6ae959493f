// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Near-data work for a queue: the four opcodes, on memory that is named by address.
//!
//! - **Flow** `NearData::log_apply(…)` ─▶ `Operation::Near` ─▶ `Queue::submit`, or a batch ─▶ `Ticket::wait` ─▶
//!   [`Outcome::completion`](crate::submit::Outcome::completion): checksum, sequence, bytes
//! - **Order** what an operation stored is durable, where the memory is, when its ticket has been waited for. In a batch
//!   that is the batch's ticket, and one fence serves all members.
//! - **Owner** not the operation: whoever makes one vouches that the addresses stay good until it has completed
//! - **Not here** ordering against others who touch the same memory: the submitter waits for the ticket first

use crate::submit::Operation;
use memlift_spec::operand::log::PAGE_BYTES;
use memlift_spec::operand::{HINT_STORE_FENCE, HINT_WRITE_BACK};
use memlift_spec::{AppendBlock, ApplyBlock, Opcode, PageCopyBlock, ResetBlock};

/// The operand block of one of the four opcodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block {
    Append(AppendBlock),
    Apply(ApplyBlock),
    PageCopy(PageCopyBlock),
    Reset(ResetBlock),
}

impl Block {
    /// The address of the block where it lies now.
    pub(crate) fn address(&mut self) -> u64 {
        let address = match self {
            Block::Append(block) => std::ptr::from_mut(block).expose_provenance(),
            Block::Apply(block) => std::ptr::from_mut(block).expose_provenance(),
            Block::PageCopy(block) => std::ptr::from_mut(block).expose_provenance(),
            Block::Reset(block) => std::ptr::from_mut(block).expose_provenance(),
        };
        address as u64
    }
}

/// One of LOG_APPEND, LOG_APPLY, PAGE_COPY, LOG_RESET with its addresses.
#[derive(Clone, Debug)]
pub struct NearData {
    opcode: Opcode,
    source: u64,
    target: u64,
    size: u32,
    block: Block,
}

/// When a member of a batch is durable. An operation that is submitted by itself always is with its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fence {
    /// With the batch: one fence for all members.
    #[default]
    Batch,
    /// Before what later members store: a fence of its own.
    Own,
}

impl Fence {
    const fn hints(self) -> u32 {
        match self {
            Fence::Batch => 0,
            Fence::Own => HINT_STORE_FENCE,
        }
    }
}

fn address(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

/// Sizes beyond what a descriptor can say become one that is refused (BAD_SIZE) when it runs.
fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl NearData {
    /// LOG_APPEND: see [`append`](memlift_kernels::persist::append). The completion's value is the checksum.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `record` is readable and writable and `target` writable for `bytes`, they do
    /// not overlap, and nobody else touches either.
    pub unsafe fn log_append(
        target: *mut u8,
        record: *mut u8,
        bytes: usize,
        salt: u32,
        fence: Fence,
    ) -> NearData {
        let block = Block::Append(AppendBlock::new(salt).with_hints(fence.hints()));
        let (source, target) = (address(record), address(target));
        NearData { opcode: Opcode::LOG_APPEND, source, target, size: size(bytes), block }
    }

    /// LOG_APPLY: see [`apply`](memlift_kernels::persist::apply). The completion says which sequence was applied, how many bytes were
    /// stored and how large the record is; a record that is none fails with TORN_RECORD, STALE_RECORD or RECORD_RANGE.
    /// The lines that were stored to are written back.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `record` is readable for `available` bytes, `heap` (aligned to 64) is
    /// writable for `heap_bytes`, and nobody else touches the ranges that the record names, or changes the record.
    pub unsafe fn log_apply(
        heap: *mut u8,
        heap_bytes: u64,
        record: *const u8,
        available: usize,
        salt: u32,
        position: u64,
        fence: Fence,
    ) -> NearData {
        let block = ApplyBlock::new(salt, position, heap_bytes).with_hints(fence.hints() | HINT_WRITE_BACK);
        NearData {
            opcode: Opcode::LOG_APPLY,
            source: address(record),
            target: address(heap),
            size: size(available),
            block: Block::Apply(block),
        }
    }

    /// PAGE_COPY: see [`copy_lines`](memlift_kernels::persist::copy_lines); with `checksum` also [`copy_lines_crc`](memlift_kernels::persist::copy_lines_crc),
    /// seeded with it: the completion's value.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `source` is readable and `target` writable in the lines that are named, both
    /// pages are aligned to 64 and do not overlap, and nobody else writes those lines of either.
    pub unsafe fn page_copy(
        target: *mut u8,
        source: *const u8,
        lines: u64,
        checksum: Option<u32>,
        fence: Fence,
    ) -> NearData {
        let mut block = PageCopyBlock::new(lines).with_hints(fence.hints());
        if let Some(seed) = checksum {
            block = block.with_checksum(seed);
        }
        let (source, target) = (address(source), address(target));
        let block = Block::PageCopy(block);
        NearData { opcode: Opcode::PAGE_COPY, source, target, size: PAGE_BYTES as u32, block }
    }

    /// LOG_RESET: stores `head` at `target`, past the caches and fenced.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `target` (aligned to 64) is writable for 64 bytes and nobody else touches it.
    pub unsafe fn log_reset(target: *mut u8, head: [u8; 64]) -> NearData {
        let block = Block::Reset(ResetBlock::new(head));
        NearData { opcode: Opcode::LOG_RESET, source: 0, target: address(target), size: 64, block }
    }

    /// The opcode: one of the four.
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The descriptor's size: bytes of the record, bytes that may be read of one, of a page, or of a head.
    pub const fn bytes(&self) -> usize {
        self.size as usize
    }

    /// Source, target, block.
    pub(crate) const fn parts(&self) -> (u64, u64, Block) {
        (self.source, self.target, self.block)
    }
}

impl From<NearData> for Operation {
    fn from(near: NearData) -> Operation {
        Operation::Near(near)
    }
}
