// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Model of the ranges in flight: two sides never work on conflicting ranges at once, and nobody waits for ever.
//!
//! Goal    `Conflicts` as shipped, with loom's atomics, lock and condition variable, under every interleaving of two
//!         threads, and of three with up to three preemptions.
//! Method  the bytes of a range are loom cells, which report two accesses that nothing orders; a lost wake-up shows as a
//!         deadlock, which loom reports.
//! Run     RUSTFLAGS="--cfg loom" cargo test -p memlift-engine --features persist --test loom_conflict --release
//! Not covered: spinning, which only looks before it sleeps.
#![cfg(all(loom, feature = "persist"))]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use memlift_engine::persist::{Access, Conflicts};

struct Shared {
    conflicts: Conflicts,
    bytes: UnsafeCell<u32>,
}

// SAFETY: the cell is only touched under a guard of the table, which is what the model checks.
#[expect(unsafe_code, reason = "shares a cell whose accesses the model checks")]
unsafe impl Sync for Shared {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "shares a cell whose accesses the model checks")]
unsafe impl Send for Shared {}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { conflicts: Conflicts::new(), bytes: UnsafeCell::new(0) })
}

fn add(shared: &Shared, range: std::ops::Range<u64>) {
    let _guard = shared.conflicts.enter(range, Access::Write);
    // SAFETY: the guard keeps everybody else out; loom checks that.
    #[expect(unsafe_code, reason = "a cell of the model")]
    shared.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
}

fn read(shared: &Shared, range: std::ops::Range<u64>) -> u32 {
    let _guard = shared.conflicts.enter(range, Access::Read);
    // SAFETY: the guard keeps writers out; loom checks that.
    #[expect(unsafe_code, reason = "a cell of the model")]
    shared.bytes.with(|bytes| unsafe { *bytes })
}

fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

#[test]
fn two_writers_take_turns() {
    check(None, || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let device = thread::spawn(move || add(&other, 0..128));
        add(&shared, 64..192);
        device.join().unwrap();
        assert_eq!(read(&shared, 0..192), 2);
        assert_eq!(shared.conflicts.in_flight(), 0);
    });
}

#[test]
fn a_writer_waits_for_readers_and_they_for_it() {
    check(Some(3), || {
        let shared = shared();
        let threads = [0, 1].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || assert!(read(&shared, 0..64) <= 1))
        });
        add(&shared, 32..40);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(read(&shared, 0..64), 1);
    });
}

#[test]
fn who_passes_sees_what_was_done_before() {
    check(None, || {
        let shared = shared();
        // Entered before the other side can pass, as work that was submitted under a lock is.
        let guard = shared.conflicts.enter(0..64, Access::Write);
        let other = Arc::clone(&shared);
        let core = thread::spawn(move || {
            other.conflicts.pass(0..64, Access::Read);
            // SAFETY: nobody enters after the first guard; loom checks the order.
            #[expect(unsafe_code, reason = "a cell of the model")]
            let seen = other.bytes.with(|bytes| unsafe { *bytes });
            assert_eq!(seen, 1);
        });
        // SAFETY: the guard holds back the other side; loom checks that.
        #[expect(unsafe_code, reason = "a cell of the model")]
        shared.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
        drop(guard);
        core.join().unwrap();
    });
}
