// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of a cluster: its model, its file, its coordinator, etcd.

mod coordinator;
mod etcd;
#[path = "../etcd_world/mod.rs"]
mod etcd_world;
mod file;
mod migrate;
mod model;
