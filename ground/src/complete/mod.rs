// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion: how finished work wakes its submitter, and how the submitter waits. All waits of the project use this
//! waiter.
//!
//! - **Flow** finishing: publish data ──▶ fence ──▶ is the `ParkWord` PARKED? ──yes──▶ wake by futex or event fd.
//!   Waiting: ready? ─▶ predicted sleep ─▶ spin within a budget ─▶ store PARKED, check again, sleep
//! - **Order** both sides execute a SeqCst fence between their own store and their load of the other side's word, so at
//!   least one of them sees the other's store: a wake-up is never lost. Modelled in `tests/loom_park.rs`.
//! - **Owner** a word belongs to one waiter; any number of producers may wake it.
//! - **Not here** the awaited condition: `ready` is the caller's closure over a completion record, a ring or a queue.

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
