// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sweep of a map whose entries expire goes where its terms go: after a range has moved, the node that has it now sweeps it alone.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::cluster_world::{LONG, MEMORY, World};
use memlift_traverse::client::Client;
use memlift_traverse::structures::expiring::{Handle, Terms, Ttl};
use memlift_traverse::structures::{ExpiringMap, HashMap};

const SECOND: Terms = Terms { ttl_s: 1, entries_max: 0, bytes_max: 0 };

/// Puts entries, and waits until a node has freed them.
fn put_and_wait(client: &mut Client, handle: Handle, keys: std::ops::Range<u64>) {
    let map = ExpiringMap::open(client, handle).expect("it is there");
    for key in keys {
        map.insert(client, key, b"value", Ttl::OfMap).expect("room");
    }
    let begun = Instant::now();
    while !HashMap::open(handle.map).scan(client).expect("read").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(90), "nobody sweeps it");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_gets_the_terms_with_a_range_sweeps_the_map() {
    let mut world = World::start(2, &[], LONG);
    let mut client = world.client();
    let handle = ExpiringMap::create(&mut client, 3, SECOND).expect("room").handle();
    put_and_wait(&mut client, handle, 0..50);
    let map = world.map(|_| true);
    let range = map.find(handle.terms).expect("a range");
    let owner = map.node(range.owner.expect("an owner")).expect("known").name.clone();
    let (source, target) = if owner == "a" { (0, "b") } else { (1, "a") };
    let id = world.plan(range.base, MEMORY, target);
    assert_eq!(world.over(id, range.base), target);
    // The source still sweeps it, and hands that on.
    put_and_wait(&mut client, handle, 100..150);
    std::thread::sleep(Duration::from_secs(5));
    world.nodes[source].kill();
    put_and_wait(&mut client, handle, 200..220);
}
