// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole collections loaded into a node: sorted, unsorted, from CSV, more than fits; and walks at the client over what was
//! loaded, interpreted first and as machine code later.

use crate::running::{Running, options};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlift_traverse::client::cache::Cache;
use memlift_traverse::client::{Client, ClientError, Config, OnWait, Request, Result};
use memlift_traverse::structures::load::{self, OwnedKey};
use memlift_traverse::structures::{HashMap, OrderedMap, bulk};

fn start(bytes: u64) -> (Running, Client) {
    let node = Running::udp(None, options(bytes));
    let client = Client::udp(&[node.at()], Config::default()).expect("a node");
    (node, client)
}

fn value(key: u64) -> [u8; 8] {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

#[test]
fn what_is_loaded_is_there_in_any_order() {
    let (_node, mut client) = start(64 << 20);
    let keys: Vec<u64> = (0..40_000_u64).map(|index| index * 7919 % 40_009).collect();
    let mut told = Vec::new();
    let pairs = keys.iter().map(|&key| Ok((key, value(key))));
    let handle = load::ordered_unsorted(&mut client, pairs, 8, |taken| told.push(taken)).expect("room");
    assert_eq!(told.last(), Some(&40_000));
    let map = OrderedMap::open(handle);
    let range = map.range(&mut client, 100..=130, 1000).expect("an answer");
    let model: BTreeMap<u64, [u8; 8]> = keys.iter().map(|&key| (key, value(key))).collect();
    let right: Vec<(u64, Vec<u8>)> =
        model.range(100..=130).map(|(&key, value)| (key, value.to_vec())).collect();
    assert_eq!(range, right);
    assert_eq!(
        map.aggregate_wrapping(&mut client, 0..=u64::MAX).expect("an answer").count,
        model.len() as u64
    );

    // Records, keys of bytes, keys that come twice.
    let long = |key: u64| vec![key as u8; 200];
    let sorted = (0..3000_u64).map(|key| Ok((key * 2, long(key))));
    let records = OrderedMap::open(load::ordered(&mut client, sorted, 200, |_| {}).expect("room"));
    assert_eq!(records.get(&mut client, 4000).expect("an answer"), Some(long(2000)));
    assert_eq!(records.get(&mut client, 4001).expect("an answer"), None);
    let named = (0..2000_u64).chain(0..10).enumerate().map(|(turn, key)| {
        Ok((OwnedKey::Bytes(format!("key {key}").into_bytes()), (turn as u64).to_le_bytes()))
    });
    let mut named = HashMap::open(load::hash(&mut client, named, None, |_| {}).expect("room"));
    assert_eq!(named.get(&mut client, "key 1999").expect("an answer"), Some(1999_u64.to_le_bytes().to_vec()));
    assert_eq!(named.get(&mut client, "key 3").expect("an answer"), Some(2003_u64.to_le_bytes().to_vec()));
    assert!(named.remove(&mut client, "key 3").expect("an answer"));
    assert_eq!(named.get(&mut client, "key 3").expect("an answer"), None, "there was one of it only");
}

#[test]
fn a_load_is_all_or_nothing() {
    let (node, mut client) = start(8 << 20);
    let free = || node.node.writer().size().0;
    load::ordered(&mut client, (0..100_u64).map(|key| Ok((key, value(key)))), 8, |_| {}).expect("room");
    let before = free();
    for _ in 0..5 {
        let endless = (0_u64..).map(|key| Ok((key, value(key))));
        let full = load::ordered(&mut client, endless, 8, |_| {});
        assert!(matches!(full, Err(ClientError::Full { .. })), "{full:?}");
        assert!(free() + (1 << 20) > before, "{} of {before} bytes are free", free());
    }
    let csv = "time,price\n1,1.5\n2,2.5\n3,oops\n";
    let error =
        load::ordered(&mut client, bulk::csv(csv.as_bytes(), 0, 1, bulk::Numbers::Scaled(10.0)), 8, |_| {})
            .expect_err("a word");
    assert!(matches!(error, ClientError::Input { line: 4, .. }), "{error}");
    let good = bulk::csv(&csv.as_bytes()[..23], 0, 1, bulk::Numbers::Scaled(10.0));
    let map = OrderedMap::open(load::ordered(&mut client, good, 8, |_| {}).expect("room"));
    assert_eq!(map.aggregate(&mut client, 0..=9).expect("an answer").sum, 40);
}

#[test]
fn walks_at_the_client_become_machine_code_and_answer_the_same() {
    let (_node, mut client) = start(64 << 20);
    let pairs = (0..20_000_u64).map(|key| Ok((key * 3, value(key))));
    let handle = load::ordered(&mut client, pairs, 8, |_| {}).expect("room");
    let mut cache = Cache::new(16 << 20, Duration::from_secs(600));
    let mut kinds = [0_u32; 2];
    for turn in 0..1500_u64 {
        let key = turn * 7919 % 60_000;
        let (here, gone) = client.walk_locally(&mut cache, &handle.get_walk(key)).expect("an answer");
        let right = key.is_multiple_of(3).then(|| value(key / 3).to_vec());
        assert_eq!(handle.found(&here), right, "{key}");
        kinds[usize::from(gone.compiled)] += 1;
    }
    assert!(kinds[0] > 0, "the first ones are interpreted");
    assert_eq!(kinds[1] > 0, cfg!(feature = "jit"), "{kinds:?}");
    // Ranges emit, and stop at the same place.
    for first in [0, 1000, 59_000] {
        let walk = handle.range_walk(first..=first + 500, 1000);
        for _ in 0..80 {
            let (here, _) = client.walk_locally(&mut cache, &walk).expect("an answer");
            let there = client.call(Request::walk(&walk)).expect("an answer");
            assert_eq!(here.result, there.result);
        }
    }
}

#[test]
fn a_wait_can_be_interrupted_and_slept_through_elsewhere() -> Result<()> {
    let node = Running::udp(None, options(8 << 20));
    let wanted = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&wanted);
    let on_wait = Some(OnWait::new(move || asked.load(Ordering::SeqCst)));
    let config = Config { on_wait, ..Config::default() };
    let mut client = Client::udp(&[node.at()], config.clone())?;
    // In somebody's event loop: armed, the descriptor becomes readable, and polling brings the answer.
    let ticket = client.submit(Request::map(0))?;
    let mut turns = 0;
    let answer = loop {
        while client.poll()? > 0 {}
        if let Some(answer) = client.take(ticket) {
            break answer?;
        }
        if client.arm()? {
            client.disarm();
            continue;
        }
        let due = client.due().expect("something is under way");
        let left = due.saturating_duration_since(std::time::Instant::now());
        let left = rustix::time::Timespec { tv_sec: 0, tv_nsec: left.as_nanos().min(900_000_000) as _ };
        let mut descriptors =
            [rustix::event::PollFd::from_borrowed_fd(client.descriptor()?, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut descriptors, Some(&left));
        client.disarm();
        turns += 1;
        assert!(turns < 10_000, "it never comes");
    };
    assert_eq!(answer.value, 8 << 20);
    let place = node.at();
    drop(node);
    wanted.store(false, Ordering::SeqCst);
    let interrupted = client.call(Request::map(0));
    assert!(matches!(interrupted, Err(ClientError::Interrupted)), "{interrupted:?}");
    // While it connects, too: there, too, nobody may ever answer.
    let interrupted = Client::udp(&[place], config);
    assert!(matches!(interrupted, Err(ClientError::Interrupted)), "{interrupted:?}");
    assert!(matches!(client.result(ticket), Err(ClientError::NotUnderWay(_))), "its answer was taken");
    Ok(())
}
