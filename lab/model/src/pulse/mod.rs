// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE as a machine that can be run: accelerators at memory nodes, the switch between them, and their clients.
//!
//! - **Flow** client ─▶ switch ─▶ network stack ─▶ scheduler: a context in a workspace ─▶ memory pipeline ─▶ logic pipeline ─┬─▶ next
//!   iteration, or ─▶ network stack ─▶ client; an address of another node ─▶ switch ─▶ that node, or back over the client
//! - **Layout** [`program`] what a step does · [`memory`] translation and protection · [`timing`] durations and shapes ·
//!   [`request`] walks and answers · [`rack`] clients, switch, nodes · `accelerator` a node's pipelines · [`workload`] programs and data · [`experiment`] what the paper measured, measured here
//! - **Order** integer picoseconds; equal inputs give equal bytes and equal times everywhere
//! - **Owner** all state is the [`Rack`]'s; it shares no code with the service that runs walks on CPUs
//! - **Not here** the figures and what the paper says (`reproduce`)
//!
//! Source: Tang et al., PULSE: Accelerating Distributed Pointer-Traversals on Disaggregated Memory, ASPLOS '25. Values:
//! `parameters/pulse.toml`.

mod accelerator;
pub mod experiment;
pub mod memory;
pub mod program;
pub mod rack;
pub mod request;
pub mod timing;
pub mod workload;

pub use memory::{NodeMemory, Permission};
pub use program::Program;
pub use rack::Rack;
pub use request::{Answer, Job, Outcome, Report};
pub use timing::{Shape, Style, Timing};
