// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: what it costs, and that it knows how many cores there are.

use crate::alone;
use crate::peer::{serve, small, unique};
use memlift_ipc::{Client, ClientOptions, ServerOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[test]
fn on_one_core_nobody_spins() {
    let _alone = alone();
    let before = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    // Of this thread, and of those that it starts.
    sched_setaffinity(None, &one).unwrap();
    let address = unique("one-core");
    let server = serve(&address, ServerOptions::default());
    let client = Client::connect(&address, ClientOptions { request_pool_bytes: 4096, ..small() }).unwrap();
    for _ in 0..200 {
        assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    }
    let stats = client.stats();
    sched_setaffinity(None, &before).unwrap();
    assert_eq!((stats.waits_spun, stats.spin_ns), (0, 0));
    assert!(stats.parks > 0);
    drop(server);
}
