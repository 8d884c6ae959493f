// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of a cluster: its model, its file, its coordinator, etcd.

mod coordinator;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
#[path = "../etcd_world/mod.rs"]
mod etcd_world;
mod file;
mod migrate;
mod model;

use std::time::Duration;

use memlift_traverse::map::{Address, Join, Map, Member};

fn join(name: &str, port: u16, incarnation: u64) -> Join {
    Join {
        name: name.to_owned(),
        addresses: vec![Address::resolve(&format!("127.0.0.1:{port}")).expect("an address")],
        incarnation,
        bytes: 64 << 20,
        recovered: false,
        epoch: 0,
        tenant: 0,
        cluster: 0,
    }
}

/// Waits until a map is as wanted, however long that takes.
fn until(member: &Member, wanted: impl Fn(&Map) -> bool) {
    let mut map = member.shared().map();
    while !wanted(&map) {
        map = member.shared().wait_newer(map.epoch(), Duration::from_millis(200));
    }
}
