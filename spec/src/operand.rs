// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodings that several crates read or write, and the operand blocks of the log's opcodes.
//!
//! - **Flow** descriptor bytes 40..48 ──address──▶ operand block (aligned to 64 bytes, in the submitter's memory).
//! - **Layout** every block starts with u8 opcode (equal to the descriptor's) · u8 version · u16 bytes of the block · u32 reserved, so
//!   that a backend can refuse an unknown block. The blocks of LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET are in `operand/persist`,
//!   the log record is in `operand/log`.
//! - **Owner** lent to the backend until completion, like the buffers.

pub mod log;
mod pack;
pub mod packet;
mod persist;
pub mod walk;

pub use pack::{Effort, Format};
pub use persist::{
    AppendBlock, ApplyBlock, HINT_CHECKSUM, HINT_STORE_FENCE, HINT_WRITE_BACK, PageCopyBlock, ResetBlock,
};
