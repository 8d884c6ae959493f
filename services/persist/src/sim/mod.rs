// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulator of crashes: which bytes of memory or of a file may be left, and whether recovery copes with each.
//!
//! - **Flow** a workload runs on a [`World`] ([`Memory`]: stores, write-backs, fences; or pwrite, fdatasync) and is
//!   recorded with thread and call site ─▶ [`explore`] crashes it before and after every fence and sync, and
//!   at the end ─▶ for each image that the rules of the [`Mode`] allow, a check recovers and judges ─▶
//!   recovery is crashed in as well ─▶ a [`Report`], with the first [`Finding`] in words
//! - **Order** the rules: `machine`; the selection among images that are too many: `select`
//! - **Not here** the pool: [`pool`] puts it on a [`Memory`], as one user among others. There is no hardware, no unsafe code and
//!   no second process: bugs of the program are found, not those of a disk or a processor
//!
//! It works for any structure that does its writing through [`Memory`]:
//!
//! ```
//! use memlift_persist::sim::{Config, Device, Mode, explore};
//!
//! let config = Config::new(Device::new("record", Mode::Lines, 4096));
//! let report = explore(
//!     &config,
//!     |world, acks| {
//!         let memory = world.memory(0);
//!         acks.begin(1);
//!         memory.store(64, &7u64.to_le_bytes()); // the value
//!         memory.write_back(64, 8);
//!         // a fence is missing here
//!         memory.store(0, &1u64.to_le_bytes()); // "the value is valid"
//!         memory.write_back(0, 8);
//!         memory.fence();
//!         acks.done(1);
//!     },
//!     |world, acked, _in_flight| {
//!         let (mut valid, mut value) = ([0; 8], [0; 8]);
//!         world.memory(0).load(0, &mut valid);
//!         world.memory(0).load(64, &mut value);
//!         match (u64::from_le_bytes(valid), u64::from_le_bytes(value)) {
//!             (1, 7) => Ok(()),
//!             (0, _) if acked.is_empty() => Ok(()),
//!             other => Err(format!("valid flag and value are {other:?}")),
//!         }
//!     },
//! );
//! let finding = report.finding.expect("the missing fence is found");
//! assert!(finding.reason.contains("(1, 0)"));
//! println!("{finding}"); // the lost store with file and line, and a replay
//! ```
//!
//! [`mutation_score`] tells whether a test would notice a missing write-back, fence or sync; [`Counters`] let a test
//! state an exact budget of them.

mod config;
mod explore;
mod finding;
mod lint;
mod machine;
mod memory;
mod mutate;
mod pages;
pub mod pool;
mod reads;
mod select;
mod trace;
mod world;

pub use config::{Config, Faults};
pub use explore::{Report, explore};
pub use finding::{Finding, Replay, ReplayError};
pub use lint::{Lint, LintKind};
pub use machine::Tear;
pub use memory::Memory;
pub use mutate::{Score, mutation_score};
pub use trace::{Action, Call, Event, Site, Thread};
pub use world::{Acks, Counters, Device, Mode, ThreadScope, World, as_thread};
