// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store against a plain map: contents, counts to the page, compaction, threads.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use memlift_zmem::store::{Handle, MAX_OBJECT_BYTES, Store};
use proptest::prelude::*;

fn object(seed: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|index| (seed.wrapping_mul(2_654_435_761).wrapping_add(index as u32 * 31) >> 7) as u8)
        .collect()
}

fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*random >> 33) as usize
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Free(usize),
    Compact(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..=MAX_OBJECT_BYTES).prop_map(Step::Put),
        2 => (1..200usize).prop_map(Step::Put),
        6 => any::<usize>().prop_map(Step::Free),
        1 => (1..200usize).prop_map(Step::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_holds_what_was_put(steps in proptest::collection::vec(step(), 1..600)) {
        let store = Store::new(64 << 20).expect("address space");
        let mut held: Vec<(Handle, Vec<u8>)> = Vec::new();
        let mut seed = 0;
        for step in steps {
            match step {
                Step::Put(bytes) => {
                    seed += 1;
                    let bytes = object(seed, bytes);
                    let before = store.bytes();
                    let mut charged = 0;
                    let charge = |more| {
                        charged = more;
                        true
                    };
                    let handle = store.put_charged(&bytes, charge).expect("room");
                    prop_assert_eq!(store.bytes(), before + charged);
                    held.push((handle, bytes));
                }
                Step::Free(at) if !held.is_empty() => {
                    let (handle, _) = held.swap_remove(at % held.len());
                    let before = store.bytes();
                    let released = store.free(handle);
                    prop_assert_eq!(store.bytes(), before - released);
                }
                Step::Free(_) => {}
                Step::Compact(budget) => {
                    let before = store.bytes();
                    let released = store.compact(budget);
                    prop_assert_eq!(store.bytes(), before - released);
                }
            }
        }
        prop_assert_eq!(store.bytes(), store.resident_bytes());
        let handles: HashSet<Handle> = held.iter().map(|(handle, _)| *handle).collect();
        prop_assert_eq!(handles.len(), held.len());
        for (handle, bytes) in &held {
            store.get(*handle, |object| assert_eq!(object, &bytes[..]));
        }
        let numbers = store.numbers();
        prop_assert_eq!(numbers.objects, held.len());
        prop_assert_eq!(numbers.object_bytes, held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
        for (handle, _) in held {
            store.free(handle);
        }
        prop_assert_eq!(store.numbers().data_bytes, 0);
    }
}

/// A slot may lie in two pages while its object ends in the first.
#[test]
fn what_is_counted_is_touched() {
    for bytes in 1..=MAX_OBJECT_BYTES {
        let store = Store::new(64 << 20).expect("address space");
        for count in 0..(65536 / bytes).min(300) {
            store.put(&object(count as u32, bytes)).expect("room");
            assert_eq!(store.bytes(), store.resident_bytes(), "{count} objects of {bytes} bytes");
        }
    }
}

#[test]
fn compaction_gives_back_what_random_frees_left() {
    let store = Store::new(256 << 20).expect("address space");
    let mut random = 1u64;
    let mut held: Vec<_> = (0..20_000u32)
        .map(|seed| {
            let bytes = object(seed, 200 + next(&mut random) % 3000);
            (store.put(&bytes).expect("room"), bytes)
        })
        .collect();
    let full = store.numbers();
    assert!(full.object_bytes as f64 > 0.95 * full.data_bytes as f64, "{full:?}");
    held.retain(|(handle, _)| {
        let keep = !next(&mut random).is_multiple_of(4);
        if !keep {
            store.free(*handle);
        }
        keep
    });
    while store.compact(1000) > 0 {}
    let after = store.numbers();
    assert!(after.object_bytes as f64 > 0.90 * after.data_bytes as f64, "{after:?}");
    assert_eq!(store.bytes(), store.resident_bytes());
    for (handle, bytes) in &held {
        store.get(*handle, |object| assert_eq!(object, &bytes[..]));
    }
}

#[test]
fn a_charge_that_is_refused_changes_nothing() {
    let store = Store::new(1 << 20).expect("address space");
    assert_eq!(store.put_charged(&[1; 100], |_| false), None);
    assert_eq!((store.bytes(), store.numbers().objects), (0, 0));
    assert_eq!(store.put(&[]), None);
    assert_eq!(store.put(&[0; MAX_OBJECT_BYTES + 1]), None);
    let first = store.put(&[2; 100]).expect("room");
    let before = store.bytes();
    // The page has room for a second one: nobody is asked.
    assert!(store.put_charged(&[3; 100], |_| false).is_some());
    assert_eq!(store.bytes(), before);
    store.get(first, |object| assert_eq!(object, [2; 100]));
    store.free(first);
    assert_eq!(store.get(first, <[u8]>::len), 0);
    assert_eq!(store.free(first), 0);
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    let store = Store::new(1).expect("address space");
    let mut held = Vec::new();
    while let Some(handle) = store.put(&object(held.len() as u32, 4000)) {
        held.push(handle);
    }
    assert!(held.len() > 100);
    store.free(held.pop().expect("many"));
    assert!(store.put(&object(7, 4000)).is_some());
}

#[test]
fn threads_put_read_free_and_compact_at_once() {
    let store = Store::new(64 << 20).expect("address space");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let store = &store;
        let worker = |thread: u32| {
            let mut held: Vec<(Handle, u32, usize)> = Vec::new();
            let mut random = u64::from(thread) + 1;
            for round in 0..30_000u32 {
                let pick = next(&mut random);
                if held.len() < 200 || pick.is_multiple_of(3) {
                    let bytes = 1 + pick / 7 % 3500;
                    let seed = thread * 1_000_000 + round;
                    held.push((store.put(&object(seed, bytes)).expect("room"), seed, bytes));
                }
                let (handle, seed, bytes) = held[pick % held.len()];
                store.get(handle, |found| assert_eq!(found, object(seed, bytes)));
                if held.len() > 200 || pick.is_multiple_of(5) {
                    store.free(held.swap_remove(pick / 3 % held.len()).0);
                }
            }
            for (handle, seed, bytes) in held {
                store.get(handle, |found| assert_eq!(found, object(seed, bytes)));
                store.free(handle);
            }
        };
        let workers: Vec<_> = (0..3).map(|thread| scope.spawn(move || worker(thread))).collect();
        let compactor = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.compact(100);
            }
        });
        let failed = workers.into_iter().any(|worker| worker.join().is_err());
        done.store(true, Ordering::Relaxed);
        compactor.join().expect("compaction does not panic");
        assert!(!failed);
    });
    assert_eq!((store.numbers().objects, store.numbers().data_bytes), (0, 0));
}

/// A real fork, whose child compares what it was charged with what the kernel says is its own.
#[test]
fn what_a_fork_shares_is_charged_again_before_it_is_written() {
    let store = Store::new(8 << 20).expect("address space");
    let mut handles: Vec<Handle> =
        (0..1500).map(|seed| store.put(&object(seed, 1000)).expect("room")).collect();
    // Every second object goes: there is room in pages that both sides will have.
    let freed: Vec<Handle> = handles.iter().copied().step_by(2).collect();
    handles = handles.into_iter().skip(1).step_by(2).collect();
    for handle in freed {
        store.free(handle);
    }
    assert_eq!(store.take_unshared(), 0);
    store.set_shared(true);
    store.lock_all();
    // SAFETY: the child uses the store alone, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    // SAFETY: this thread locked it, and each side has one copy of the lock.
    unsafe { store.unlock_all() };
    if child == 0 {
        let before = store.bytes();
        let (mut charged, mut unshared) = (0, 0);
        for seed in 0..400 {
            let put = store.put_charged(&object(seed, 1000), |bytes| {
                charged += bytes;
                true
            });
            unshared += store.take_unshared();
            if put.is_none() {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
        }
        // The charges are the pages that were copied, and those that are new.
        let right = charged > 0 && unshared > 64 << 10 && charged - unshared == store.bytes() - before;
        // Giving up pages that others have too frees nothing.
        let freed: usize = handles.iter().map(|handle| store.free(*handle)).sum();
        let right = right && store.take_unshared() > freed;
        // SAFETY: ends the child.
        unsafe { libc::_exit(if right { 0 } else { 2 }) };
    }
    let mut status = -1;
    // SAFETY: the status is a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    store.set_shared(false);
    // Alone again, what is free is free.
    assert!(store.put_charged(&object(1, 1000), |_| false).is_some(), "a page of its own has room");
    for (index, handle) in handles.iter().enumerate() {
        store.get(*handle, |bytes| assert_eq!(bytes, object(2 * index as u32 + 1, 1000)));
    }
}
