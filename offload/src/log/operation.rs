// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Near-data work for a queue: the four opcodes, on memory that is named by address.
//!
//! - **Flow** `NearData::log_apply(…)` ─▶ `Operation::Near` ─▶ `Queue::submit`, or a batch ─▶ `Ticket::wait` ─▶
//!   [`Outcome::completion`](crate::submit::Outcome::completion): checksum, sequence, bytes
//! - **Order** once the ticket of an operation was waited for, its stores are durable, if the memory is persistent. In a
//!   batch that is the batch's ticket, and one fence serves all members.
//! - **Owner** not the operation: the code that makes one promises that the addresses stay valid until the operation has
//!   completed
//! - **Not here** ordering against other users of the same memory: the submitter waits for the ticket first

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
    /// Returns the present address of the block.
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

/// One LOG_APPEND, LOG_APPLY, PAGE_COPY or LOG_RESET, with its addresses.
#[derive(Clone, Debug)]
pub struct NearData {
    opcode: Opcode,
    source: u64,
    target: u64,
    size: u32,
    block: Block,
}

/// Time at which a member of a batch is durable. An operation that is submitted alone is always durable with its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fence {
    /// With the batch: one fence serves all members.
    #[default]
    Batch,
    /// Before the stores of later members: the member has a fence of its own.
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

/// Converts a size to the descriptor's field. A size that does not fit becomes one that is refused (BAD_SIZE) when it runs.
fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl NearData {
    /// LOG_APPEND: see [`append`](memlift_kernels::persist::append). The completion's value is the checksum.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `record` is readable and writable and `target` writable for `bytes`, they do not
    /// overlap, and nobody else accesses either.
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

    /// LOG_APPLY: see [`apply`](memlift_kernels::persist::apply). The completion contains the applied sequence, the number
    /// of bytes stored and the size of the record. Bytes that are not a valid record fail with TORN_RECORD, STALE_RECORD or
    /// RECORD_RANGE. The lines that were stored to are written back.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `record` is readable for `available` bytes, `heap` (aligned to 64) is writable for
    /// `heap_bytes`, and nobody else accesses the ranges that the record names, or changes the record.
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

    /// PAGE_COPY: see [`copy_lines`](memlift_kernels::persist::copy_lines). With `checksum` it also computes
    /// [`copy_lines_crc`](memlift_kernels::persist::copy_lines_crc) with this seed, which is the completion's value.
    ///
    /// # Safety
    ///
    /// Until the operation has completed, `source` is readable and `target` writable in the named lines, both pages are
    /// aligned to 64 and do not overlap, and nobody else writes those lines of either.
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
    /// Until the operation has completed, `target` (aligned to 64) is writable for 64 bytes and nobody else accesses it.
    pub unsafe fn log_reset(target: *mut u8, head: [u8; 64]) -> NearData {
        let block = Block::Reset(ResetBlock::new(head));
        NearData { opcode: Opcode::LOG_RESET, source: 0, target: address(target), size: 64, block }
    }

    /// Returns the opcode, one of the four.
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the descriptor's size: the bytes of a record, the bytes available for one, or the bytes of a page or a head.
    pub const fn bytes(&self) -> usize {
        self.size as usize
    }

    /// Returns source, target and block.
    pub(crate) const fn parts(&self) -> (u64, u64, Block) {
        (self.source, self.target, self.block)
    }
}

impl From<NearData> for Operation {
    fn from(near: NearData) -> Operation {
        Operation::Near(near)
    }
}
