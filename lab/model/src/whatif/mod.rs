// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Estimates the effect of a device on a program that was recorded.
//!
//! - **Flow** [`Trace::read`]: bytes of a trace ─▶ threads, each a list of what it computed, waited for and called ─▶ [`replay()`]: the
//!   same once more, with calls as long as a [`Cpu`] or a device takes for them ─▶ [`Outcome`]: time, CPU time, memory traffic
//! - **Layout** `input` chunks, `read` from records to threads, `interval` from a thread's records to its steps, [`timeline`] threads and events between them, [`site`] the places that call · [`cpu`] what calls cost on the
//!   CPU, [`reuse`] how long ago their bytes were used · [`device`] who takes which call, and for how long, [`service`] the work of memlift's own services · [`mod@replay`] the calendar ·
//!   [`load`] requests of servers · [`cores`] the run on another number of cores · [`vary`] one parameter changed · [`experiment`] a trace to measure with ·
//!   [`change`] a program that submits calls and goes on, [`mod@callers`] which of its places call how often
//! - **Order** a thread's steps in their order; a thread begins when its parent has come as far as it had then; who waited for
//!   another thread's end waits for it again. Other waits stay as long as they were: what they were for is not in a trace
//! - **Rule** a program that was not changed waits for each call, so a device shortens calls and never overlaps them with the
//!   thread that made them; one that was changed ([`Change`]) overlaps them, up to where a result is needed. A copy into pages that were not there yet stays with the CPU
//! - **Not here** what the bytes were: a trace has sizes and addresses

pub mod callers;
pub mod change;
pub mod cores;
pub mod cpu;
pub mod device;
pub mod experiment;
mod input;
mod interval;
pub mod load;
mod ranges;
mod read;
pub mod replay;
pub mod reuse;
pub mod service;
pub mod site;
pub mod timeline;
pub mod vary;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod tests;

pub use callers::{Dependent, Needed, Summary, callers, needed};
pub use change::{Caller, Change, Limits};
pub use cores::on_cores;
pub use cpu::{Cpu, Curve, Estimate, Line};
pub use device::{Device, parameters};
pub use input::TraceError;
pub use load::{Limit, Load, LoadOutcome, Served};
pub use replay::{Outcome, Timing, replay, replay_changed};
pub use service::{Hardware, Service};
pub use site::Site;
pub use timeline::{Call, Step, Thread, Trace, What};
pub use vary::{neighbours, rounded, varied};
