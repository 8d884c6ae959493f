// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU routines that copy, fill, compare and check, one folder per instruction set.
//!
//! There is one table of raw routines per instruction set, [`Kernels`]. [`active`] returns the table of this process: the best one that
//! this CPU can run, or the one that the environment variable `MEMLIFT_ISA` names.
//!
//! ```
//! let source = [7u8; 1000];
//! let mut target = [0u8; 1000];
//! let kernels = memlift_kernels::active();
//! // SAFETY: both buffers are 1000 bytes long, and they are not the same.
//! unsafe { (kernels.copy)(target.as_mut_ptr(), source.as_ptr(), 1000) };
//! assert_eq!(source, target);
//! ```
//!
//! - **Flow** `active()` ──▶ `Kernels` ──call through a pointer──▶ `arch/x86_64/<level>` (entry points, target features) ──inlined──▶
//!   `arch/generic` (the algorithm, once, over `vector::Vector`) or `arch/all` (portable code, also the reference in tests).
//! - **Order** a routine that uses non-temporal stores ends with a store fence: when it returns, its bytes are as visible to other cores
//!   as those of ordinary stores.
//! - **Owner** all arguments are raw pointers, because the memory may be shared with another process: no slice is ever made of it, and
//!   every routine stays inside the given bounds whatever the bytes become. The work of a drop-in library is counted in [`counters`].
//! - **Not here** threads, allocation, file input or output, panics: these routines run inside other people's programs. The choice of a
//!   routine by size is the caller's.
#![deny(unsafe_code)]

#[cfg(feature = "aead")]
#[expect(unsafe_code, reason = "ciphers raw memory through a C library")]
pub mod aead;
#[cfg(feature = "deflate")]
pub mod deflate;
#[cfg(feature = "lz4")]
pub mod lz4;
#[cfg(feature = "pages")]
#[expect(unsafe_code, reason = "calls kernels and vector instructions on borrowed pages")]
pub mod pages;
#[cfg(feature = "log")]
#[expect(unsafe_code, reason = "stores past the caches and writes lines back by address")]
pub mod log;
#[cfg(feature = "zstd")]
pub mod zstd;
mod isa;
mod table;
mod delta;
#[expect(unsafe_code, reason = "reads the environment without allocating")]
mod choice;
mod repeat;
mod shape;
#[expect(unsafe_code, reason = "maps a page that other processes may read")]
pub mod counters;
#[expect(unsafe_code, reason = "flushes cache lines by address")]
mod flush;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an interface to vector instructions")]
mod vector;
#[expect(unsafe_code, reason = "reads and writes raw memory, with instructions that not every CPU has")]
mod arch;

pub use choice::{ISA_VARIABLE, active, for_isa};
pub use delta::{DELTA_ENTRY_BYTES, Delta, DeltaError};
pub use flush::{CACHE_LINE_BYTES, cache_flush};
pub use isa::Isa;
pub use repeat::{rep_movsb_from, set_rep_movsb_from};
pub use shape::{Routine, SHAPE_CLASSES, Shape, set_shape, shape, shape_class, shape_class_bytes};
pub use table::{
    CompareFn, ComparePatternFn, CopyCrcFn, CopyFn, CopyStridedFn, CrcFn, DeltaApplyFn, DeltaCreateFn,
    DualcastFn, FillFn, Kernels, Shaped, repeat_8,
};
