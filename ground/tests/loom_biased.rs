// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Model of the lock that its usual holder enters with two plain stores: never two writers, never a writer beside a reader,
//! and nobody waits for ever, while ownership is given, used and taken away.
//!
//! - **Goal** `Biased` as shipped, with loom's atomics, lock and condition variable, under every interleaving of two threads, and
//!   of three with up to two preemptions.
//! - **Method** the value is a loom cell, which reports two accesses that nothing orders; a lost wake-up shows as a deadlock. A
//!   thread that had the lock once owns it, so that each thread's second entry is the short way.
//! - **Model** a fence on either side stands for membarrier(2) and the compiler fence that it pairs with: the kernel documents
//!   that its call acts as a fence on every thread.
//! - **Run** RUSTFLAGS="--cfg loom" cargo test -p memlift-ground --test loom_biased --release
//! - **Place** the lock is persist's; only the ground is built for loom, so its file is included here
#![cfg(loom)]
#![allow(unsafe_code, reason = "the lock guards a value by itself")]

#[path = "../../services/persist/src/biased.rs"]
#[allow(dead_code, reason = "the model uses a part")]
mod biased;

use biased::Biased;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Value(UnsafeCell<u32>);

// SAFETY: the cell is only touched under a guard of the lock, which is what the model checks.
#[expect(unsafe_code, reason = "shares a cell whose accesses the model checks")]
unsafe impl Sync for Value {}

fn add(lock: &Biased<Value>) {
    let value = lock.write();
    // SAFETY: the guard keeps everybody else out; loom checks that.
    #[expect(unsafe_code, reason = "a cell of the model")]
    value.0.with_mut(|value| unsafe { *value += 1 });
}

fn read(lock: &Biased<Value>) -> u32 {
    let value = lock.read();
    // SAFETY: the guard keeps writers out; loom checks that.
    #[expect(unsafe_code, reason = "a cell of the model")]
    value.0.with(|value| unsafe { *value })
}

fn lock() -> Arc<Biased<Value>> {
    Arc::new(Biased::new(Value(UnsafeCell::new(0))))
}

#[test]
fn two_writers_take_turns() {
    loom::model(|| {
        let lock = lock();
        add(&lock); // owned from here on
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || add(&lock))
        };
        add(&lock);
        other.join().unwrap();
        assert_eq!(read(&lock), 3);
    });
}

#[test]
fn a_reader_takes_the_ownership_away_and_sees_whole_values() {
    loom::model(|| {
        let lock = lock();
        add(&lock);
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || read(&lock))
        };
        add(&lock);
        assert!((1..=2).contains(&other.join().unwrap()));
    });
}

#[test]
fn nested_readers_of_the_owner_pass_who_waits() {
    loom::model(|| {
        let lock = lock();
        add(&lock);
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || add(&lock))
        };
        let outer = lock.read();
        if lock.entered_as_owner() {
            read(&lock);
        }
        drop(outer);
        other.join().unwrap();
        assert_eq!(read(&lock), 2);
    });
}

#[test]
fn who_tries_is_refused_or_alone() {
    loom::model(|| {
        let lock = lock();
        add(&lock);
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || match lock.try_write() {
                None => 0,
                Some(value) => {
                    // SAFETY: the guard keeps everybody else out; loom checks that.
                    #[expect(unsafe_code, reason = "a cell of the model")]
                    value.0.with_mut(|value| unsafe { *value += 1 });
                    1
                }
            })
        };
        add(&lock);
        let added = other.join().unwrap();
        assert_eq!(read(&lock), 2 + added);
    });
}

#[test]
fn three_threads_with_bounded_preemptions() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let lock = lock();
        add(&lock);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || add(&lock))
            })
            .collect();
        add(&lock);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(read(&lock), 4);
    });
}
