// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deflate, zlib and gzip for messages of a few KiB: a packer that is fast for such sizes, a stream, an unpacker.
//!
//! ```
//! use memlift_kernels::deflate::{Effort, Format, Packer, Unpacker, bound};
//! let text = b"a page, a page, and one more page";
//! let mut packed = vec![0; bound(Format::Gzip, text.len())];
//! let bytes = Packer::new().pack(Format::Gzip, Effort::Default, text, &mut packed)?;
//! let mut again = [0; 33];
//! let unpacked = Unpacker::new().unpack(Format::Gzip, &packed[..bytes], &mut again)?;
//! assert_eq!((unpacked.read, unpacked.written), (bytes, 33));
//! assert_eq!(&again, text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Flow** [`segment`] splits a message into pieces of at most 32 KiB; [`matcher`] and [`search`] make tokens and count them;
//!   [`block`] chooses the smallest of stored, fixed and dynamic; [`bits`] writes it. [`frame`] adds the bytes of the format,
//!   [`checksum`] computes its checksum. `Effort::Small` of whole messages and all unpacking are done by libdeflate.
//! - **Order** the output depends only on the bytes, the effort and the pieces, never on the instruction set.
//! - **Owner** a [`Packer`] or [`PackStream`] belongs to one thread at a time; source and target are the caller's.
//! - **Not here** levels and return codes of zlib: the drop-in library maps them.

#[expect(unsafe_code, reason = "stores whole words into memory that is not initialized")]
mod bits;
mod block;
#[expect(unsafe_code, reason = "works in memory that its owner brings")]
mod chain;
#[expect(unsafe_code, reason = "calls libdeflate")]
mod checksum;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls code for CPUs that have BMI2, after asking")
)]
mod code_table;
mod codes;
mod contents;
#[expect(unsafe_code, reason = "reads wide and writes without a look at the room, after one look at both")]
mod direct;
mod effort;
mod frame;
mod header;
mod huffman;
mod isa;
#[expect(unsafe_code, reason = "starts the search after one check of the buffers")]
mod matcher;
#[expect(unsafe_code, reason = "calls libdeflate; a view of initialized memory as memory to write")]
mod pack;
mod preset;
#[expect(unsafe_code, reason = "allocates")]
mod room;
#[expect(unsafe_code, reason = "vector instructions")]
mod same;
#[expect(unsafe_code, reason = "reads wide and counts without bounds checks")]
mod search;
mod segment;
#[expect(unsafe_code, reason = "the same memory as integers of several sizes")]
mod slot;
mod survey;
#[expect(unsafe_code, reason = "a view of initialized memory as memory to write")]
mod stream;
#[expect(unsafe_code, reason = "calls libdeflate")]
mod unpack;

pub use chain::{Chains, Io, Level, Strategy, Until, memory_bytes};
pub use checksum::{adler32, crc32};
pub use contents::Contents;
pub use effort::Effort;
pub use frame::{Format, bound};
pub use pack::{Packer, TargetTooSmall};
pub use stream::{Flush, PackStream, Pushed};
pub use unpack::{UnpackError, Unpacked, Unpacker};
