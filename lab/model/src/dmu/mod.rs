// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DMU in a TMCC-like memory controller: machine-physical memory that is compressed by recency, with and without control blocks.
//!
//! - **Flow** a job's visit of a page ─▶ [`kernel`]: page table, page fault ─▶ [`controller`]: translation, unpacked if it was packed,
//!   its node to the young end of its blade ─▶ the block's unused allocation falls ─▶ the block joins the ring ─▶ the
//!   compressor comes round. Below zero: a compressed memory fault, once; the kernel gives grace, spills and caps the job
//! - **Layout** [`layout`] control blocks, recency nodes, translation table in reserved memory (figure 14) · [`frames`] machine pages and
//!   free lists by size · [`pack`] LZ · [`fan`] who is packed next · [`controller`] allocations, faults · [`kernel`] the OS
//!   beside it · [`contents`] what pages hold · [`timing`] durations and jobs · [`experiment`] two jobs beside each other
//! - **Order** integer picoseconds; equal inputs give equal bytes and equal times everywhere
//! - **Rule** pages are bytes: packed ones lie packed in the machine's memory, spilled ones in storage, and what comes back is compared
//! - **Owner** the OS writes allocations, objectives and which block a page belongs to, all by stores; the controller writes the rest
//! - **Not here** the figures and what the paper says (`reproduce`); the user-space service of the same name (`services/zmem`)
//!
//! Source: Laghari et al., Memory Allocation under Hardware Compression (DMU), and TMCC as it describes it. Values:
//! `parameters/dmu.toml`. How the model reads the paper: `docs/design/model.md`.

pub mod contents;
pub mod controller;
pub mod experiment;
pub mod fan;
pub mod frames;
pub mod kernel;
pub mod layout;
pub mod pack;
pub mod timing;

pub use controller::Controller;
pub use timing::Timing;

/// Bytes of a page, physical or machine.
pub const PAGE: usize = 4096;
