// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs under the preloaded library, each as a process with a budget.

mod calls;
mod dormant;
#[path = "../job/mod.rs"]
mod job;
mod kinds;
mod masks;
mod memory;
mod odd;
mod python;
mod refused;
mod rings;
mod torture;
