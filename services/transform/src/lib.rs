// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copy that seals, opens, packs, unpacks or checks on the way: one read and one write of memory.
//!
//! ```
//! use memlift_transform::{self as transform, Chain, Format, Key, Packing, Step};
//!
//! let key = Key::new(&[7; 16])?;
//! let source = vec![b'a'; 200_000];
//! let nonce = [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0];
//! let chain = Chain::framed(
//!     &[
//!         Step::Crc32c { seed: 0 },
//!         Step::Pack { format: Format::Deflate, packing: Packing::Default },
//!         Step::Seal { key: &key, nonce, aad: b"" },
//!     ],
//!     64 * 1024,
//! )?;
//! let mut target = vec![0; chain.bound(source.len()).unwrap()];
//! let done = transform::copy(&chain, &source, &mut target)?;
//! assert!(done.written < 2_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Flow** `copy` / `Transfer` / `compcpy` ──▶ `request` (checks steps and chains) ──▶ `place` (through the cache or past it) ──▶
//!   `flat` or `transfer` (block by block through one slab of `scratch`) ──▶ the kernels; `codec` packs and unpacks whole messages.
//! - **Layout** frames: `frame`, `docs/formats/transform.md`.
//! - **Owner** buffers are the caller's. Scratch memory is one bounded pool; if all of it is in use, a call waits or gives `Busy`.
//! - **Not here** the routines themselves (crate kernels), and threads: a chain runs on the core of its caller.
//!
//! The interface is that of SmartDIMM's CompCpy; the work is done by this CPU's vector units.
#![deny(unsafe_code)]

pub mod codec;
#[expect(unsafe_code, reason = "the paper's call takes addresses")]
mod compcpy;
mod error;
#[expect(unsafe_code, reason = "works on addresses that callers vouch for")]
mod flat;
mod frame;
mod key;
mod request;
mod scratch;
#[expect(unsafe_code, reason = "copies between addresses that callers vouch for")]
mod store;
#[expect(unsafe_code, reason = "hands slices to routines that take addresses")]
mod stream;
#[expect(unsafe_code, reason = "works on addresses that callers vouch for")]
mod transfer;
#[expect(unsafe_code, reason = "hands slices to routines that take addresses")]
mod transform;

pub use codec::{bound, supported};
pub use compcpy::{PAGE_BYTES, compcpy};
pub use error::Error;
pub use frame::{HEADER_BYTES, RECORD_BYTES};
pub use key::Key;
pub use memlift_kernels::{aead, deflate};
pub use memlift_place::{
    Cache, MessageExplanation as Explanation, Store, StoreChoice as Decision, StoreReason as PlacementReason,
};
pub use memlift_spec::{Effort, Format};
pub use request::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Chain, Op, Options, Outcome, Packing, Patience, Step};
pub use scratch::{SLAB_BYTES, Scratch, ScratchStats};
pub use stream::{OpenStream, SealStream, Untrusted};
pub use transfer::{Progress, Transfer};
pub use transform::{Transform, copy};
