// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: what it costs, and that it knows how many cores there are.

use crate::alone;
use crate::peer::{Peer, cpu_of, serve, small, unique};
use memlift_ground::complete::WaitPolicy;
use memlift_ipc::{Client, ClientOptions, ClientStats, Outgoing, Reply, Request, ServerOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
    // A server that is woken may have answered before its client comes to wait; one that naps has not.
    let nap = |_: &Request| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(Reply::none())
    };
    server.register("nap", nap).unwrap();
    client.call("nap", Outgoing::none(), None).unwrap();
    let stats = client.stats();
    sched_setaffinity(None, &before).unwrap();
    assert!(
        memlift_ground::observe::waiting().parks.load(Ordering::Relaxed) >= stats.parks,
        "the stats page has them, too"
    );
    assert_eq!((stats.waits_spun, stats.spin_ns), (0, 0));
    assert!(stats.parks > 0);
    drop(server);
}

/// CPU time of both sides per call, at so many calls per second, and the client's waits.
fn cpu_per_call(role: &str, wait: WaitPolicy, gap: Duration, calls: u32) -> (Duration, ClientStats) {
    let address = unique("rate");
    let mut server = Peer::spawn(role, &address, None);
    assert_eq!(server.line().as_deref(), Some("ready"));
    let client = Client::connect(&address, ClientOptions { wait, ..small() }).unwrap();
    let call = || assert_eq!(client.call("echo", [1; 64].as_slice(), None).unwrap().bytes(), 64);
    (0..200).for_each(|_| call());
    let cpu = || server.cpu() + cpu_of(libc::CLOCK_PROCESS_CPUTIME_ID);
    let (before, start) = (cpu(), Instant::now());
    for index in 0..calls {
        std::thread::sleep((start + gap * index).saturating_duration_since(Instant::now()));
        call();
    }
    ((cpu() - before) / calls, client.stats())
}

/// Prints what waiting costs at 1 kHz. The bench row `ipc/rate/1000` judges it.
#[test]
#[ignore = "long: run by make soak"]
fn soak_at_a_thousand_calls_a_second_waiting_costs_little() {
    let _alone = alone();
    let gap = Duration::from_millis(1);
    for _ in 0..5 {
        let (blocking, _) = cpu_per_call("blocking server", WaitPolicy::BLOCK, gap, 2000);
        let (adaptive, stats) = cpu_per_call("server", WaitPolicy::AUTO.predicting(), gap, 2000);
        let ratio = adaptive.as_secs_f64() / blocking.as_secs_f64();
        println!("blocking {blocking:?}, adaptive {adaptive:?} of CPU per call: {ratio:.2}; {stats:?}");
    }
}
