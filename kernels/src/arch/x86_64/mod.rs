// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The levels of x86-64.
//!
//! - **Layout** `sse2/`, `avx2/`, `avx512/` vector type and entry points · `entry` the macro that writes the entry points ·
//!   `crc_instruction` CRC-32C with SSE4.2 · `repeat` `rep movsb`

#[macro_use]
mod entry;
pub(crate) mod crc_instruction;
mod repeat;

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod sse2;
