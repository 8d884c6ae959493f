// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs under `memlift run`, and the verbs that look at them.

mod copies;
mod debug;
#[path = "../place/group.rs"]
mod group;
mod install;
mod jupyter;
mod limits;
mod observe;
mod outputs;
#[path = "../place/mod.rs"]
mod place;
mod programs;
mod recipes;
mod run;
mod spill;
