// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA as Rocket uses it: work queue, engines, batches, cache control, and threads that wait with UMWAIT.
//!
//! - **Flow** a thread submits a descriptor, or a batch of them ─▶ work queue ─▶ an engine ─▶ the device's memory pipe, in turns ─▶
//!   the descriptor is run, byte by byte ─▶ its record wakes who waits
//! - **Layout** [`timing`] durations · [`device`] queue and engines · [`lists`] batches whose members touch no memory · `numbered` submissions that have not settled · [`cache`] the last-level cache · [`server`] a server's threads in
//!   Rocket's modes · [`experiment`] what the papers measured
//! - **Order** integer picoseconds; equal inputs give equal bytes and equal times everywhere
//! - **Not here** what a descriptor does (`execute`): the same code that every backend is checked against
//!
//! Source: Rethinking Inter-Process Communication with Memory Operation Offloading (Rocket); Intel Data Streaming Accelerator
//! Architecture Specification. Values: `parameters/dsa.toml`.

pub mod cache;
pub mod device;
pub mod experiment;
pub mod lists;
pub(crate) mod numbered;
pub mod server;
pub mod timing;

pub use timing::Timing;
