// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NearPM as a machine that can be run: devices that keep logs, checkpoints and shadow copies beside persistent memory, and the
//! host threads that use them.
//!
//! - **Flow** transaction ─[`transaction`]─▶ steps of a thread ─▶ PCIe ─▶ a device's FIFO or host queue ─▶ dispatcher: translation,
//!   conflicts ─▶ unit: record or copy, burst by burst ─▶ the other devices are told ─▶ the log is deleted.
//!   Power may fail at any picosecond: [`recover()`] makes of what was persistent a heap of whole transactions
//! - **Layout** [`timing`] durations and shapes · [`layout`] interleaving, lanes, the address table · [`command`] the primitives and
//!   their records · [`device`] one device · [`machine`] threads, wires, devices · [`experiment`] what the paper measured
//! - **Order** integer picoseconds; equal inputs give equal bytes and equal times everywhere
//! - **Owner** all state is the [`Machine`]'s; log records are those of `docs/formats/log.md`, applied by `command`
//! - **Not here** the figures and what the paper says (`reproduce`)
//!
//! Source: Seneviratne, Liu, Seemakhupt, Khan, NearPM: A Near-Data Processing System for Storage-Class Applications, EuroSys '23.
//! Values: `parameters/nearpm.toml`. How the model reads the paper: `docs/design/model.md`.

pub mod command;
#[cfg(test)]
mod crash;
pub mod device;
pub mod experiment;
pub mod layout;
pub mod machine;
pub mod recover;
pub mod sync;
pub mod timing;
pub mod transaction;

pub use machine::{Machine, Report, Wreck};
pub use recover::{Recovered, recover};
pub use timing::{Shape, Sync, Timing};
pub use transaction::{Mechanism, Transaction};
