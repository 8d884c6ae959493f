// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SmartDIMM's buffer device and the host in front of it: a copy whose lines the device seals or packs on their way, and which wait in
//! its scratchpad until the last-level cache writes the plain ones back.
//!
//! - **Flow** [`host`]: CompCpy's calls on cores ─▶ [`cache`]: fills and write-backs ─▶ [`controller`]: write queue, rows ─▶ DDR commands
//!   ─▶ [`ddr`]: slots and bank table give the address back ─▶ [`device`]: arbiter, translation, DSA, scratchpad ─▶ DRAM
//!   [`command`]: one call from a descriptor, without the cache
//! - **Layout** [`dsa`] AES-GCM and Deflate · [`cuckoo`] the translation table · [`scratchpad`] pages and their lines · [`timing`] durations and sizes
//! - **Order** integer picoseconds; equal inputs give equal bytes and equal times everywhere
//! - **Rule** the device sees DDR commands and nothing else; what DRAM holds after a page was recycled is compared
//! - **Not here** opening and unpacking
//!
//! Source: SmartDIMM: In-Memory Acceleration of Upper Layer Protocols. Values: `parameters/smartdimm.toml`. How the model reads the
//! paper: `docs/design/model.md`.

pub mod cache;
pub mod command;
pub mod controller;
pub mod cuckoo;
pub mod ddr;
pub mod device;
pub mod dsa;
pub mod host;
mod index;
mod message;
pub mod scratchpad;
pub mod timing;

pub use timing::Timing;

/// Bytes of a line.
pub const LINE: u64 = 64;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The bytes of a line.
pub type Line = [u8; LINE as usize];
