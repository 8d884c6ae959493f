// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Model of publish, park, wake: no interleaving loses a wake-up.
//!
//! - **Goal** `ParkWord` as shipped, with loom's atomics, under every interleaving of one waiter and its producers.
//! - **Method** the kernel's part (futex: sleep only if the word still says PARKED; event fd: a counter) is modelled by
//!   a mutex and a condition variable; a lost wake-up shows as a deadlock, which loom reports.
//! - **Run** RUSTFLAGS="--cfg loom" cargo test -p memlift-ground --test loom_park --release
//! - **Not here** the budget and the clock, which only decide how long to spin before this handshake.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use memlift_ground::complete::ParkWord;

struct Shared {
    data: AtomicU32,
    word: ParkWord,
    kernel: Mutex<u32>,
    sleepers: Condvar,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            data: AtomicU32::new(0),
            word: ParkWord::new(),
            kernel: Mutex::new(0),
            sleepers: Condvar::new(),
        })
    }

    /// futex: the compare and the sleep are one step for the kernel.
    fn futex_park(&self) {
        let mut guard = self.kernel.lock().unwrap();
        while self.word.is_parked() {
            guard = self.sleepers.wait(guard).unwrap();
        }
    }

    fn futex_unpark(&self) {
        drop(self.kernel.lock().unwrap());
        self.sleepers.notify_one();
    }

    /// event fd: sleeps while the count is zero, then takes it.
    fn event_park(&self) {
        let mut count = self.kernel.lock().unwrap();
        while *count == 0 {
            count = self.sleepers.wait(count).unwrap();
        }
        *count = 0;
    }

    fn event_unpark(&self) {
        *self.kernel.lock().unwrap() += 1;
        self.sleepers.notify_one();
    }
}

fn check(park: fn(&Shared), unpark: fn(&Shared), producers: u32) {
    let mut model = loom::model::Builder::new();
    // Two producers: every interleaving with up to three preemptions. One: every interleaving.
    model.preemption_bound = (producers > 1).then_some(3);
    model.check(move || {
        let shared = Shared::new();
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    shared.data.fetch_add(1, Ordering::Release);
                    shared.word.wake(|| unpark(&shared));
                })
            })
            .collect();
        while shared.data.load(Ordering::Acquire) < producers {
            shared.word.prepare();
            if shared.data.load(Ordering::Acquire) >= producers {
                shared.word.finish();
                break;
            }
            park(&shared);
            shared.word.finish();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.data.load(Ordering::Acquire), producers);
    });
}

#[test]
fn futex_one_producer() {
    check(Shared::futex_park, Shared::futex_unpark, 1);
}

#[test]
fn futex_two_producers() {
    check(Shared::futex_park, Shared::futex_unpark, 2);
}

#[test]
fn event_fd_one_producer() {
    check(Shared::event_park, Shared::event_unpark, 1);
}

#[test]
fn event_fd_two_producers() {
    check(Shared::event_park, Shared::event_unpark, 2);
}
