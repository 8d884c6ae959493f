// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How finished work tells its submitter, and how the submitter waits: one waiter for everything.
//!
//! - **Flow** publish data ──▶ fence ──▶ `ParkWord` says PARKED? ──yes──▶ wake by futex or event fd
//!   wait: ready? ─▶ predicted sleep ─▶ spin within a budget ─▶ publish PARKED, look again, sleep
//! - **Order** both sides put a SeqCst fence between their own store and their look at the other's word, so at
//!   least one of them sees the other: a wake-up is never lost. Modelled in `tests/loom_park.rs`.
//! - **Owner** a word belongs to one waiter; any number of producers may wake it.
//! - **Not here** what is waited for: `ready` is the caller's closure over a completion record, a ring or a queue.

mod budget;
mod park;
mod primitive;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "UMONITOR/UMWAIT and MONITORX/MWAITX have no intrinsics on stable Rust")
)]
mod pause;
mod waiter;

pub use budget::{Budget, WaitPolicy};
#[cfg(not(loom))]
pub use park::{FdParker, FutexParker, ring};
pub use park::{ParkWord, Parker};
pub use pause::HardwareWait;
pub use waiter::{Waited, Waiter, WaiterStats};
