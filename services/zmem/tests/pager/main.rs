// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager, each test in processes of its own.

mod allocator;
mod cold;
mod limits;
mod model;
mod outside;
#[path = "../pager_child/mod.rs"]
mod pager_child;
mod sigbus;
mod watch_group;
