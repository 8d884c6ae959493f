// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue's lock: one word that names its holder, so that it can be taken over when the holder is dead.
//!
//! - **Flow** 0 → identity by one exchange; else mark the word, sleep on it for a moment, ask whether its holder lives
//! - **Order** Acquire at lock, Release at unlock. Whoever takes it over from the dead makes the table whole before he goes on
//! - **Owner** within a process its threads first take turns at a mutex of their own, so that the word names a process
//! - **Limits** a holder that is stopped (SIGSTOP) lives, so the others wait for it, each for as long as it may. Critical sections run no
//!   foreign code

use super::member::Member;
use memlift_ground::region::Region;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Bit of the word: somebody sleeps on it.
const SLEEPERS: u32 = 1 << 31;
const SPINS: u32 = 200;
/// How long to sleep before the holder is looked at: much longer than a critical section.
const MOMENT: Duration = Duration::from_millis(10);
/// Shortest time after which the lock is given up: much longer than a critical section, and not long for a caller.
const GRACE: Duration = Duration::from_millis(50);
/// Time between two looks at a lock of another thread of this process.
const NAP: Duration = Duration::from_micros(100);

/// A timeout as the kernel takes it.
pub fn timespec(time: Duration) -> futex::Timespec {
    futex::Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}

/// The right to change the table, until dropped.
#[must_use]
pub struct Guard<'a> {
    word: &'a AtomicU32,
    _turn: MutexGuard<'a, ()>,
    /// The last holder died: the table may be half changed.
    pub inherited: bool,
}

/// Takes the lock of the threads of one process; `None`: another thread had it until then.
fn take_turn(turn: &Mutex<()>, until: Option<Instant>) -> Option<MutexGuard<'_, ()>> {
    let Some(until) = until else { return Some(turn.lock().unwrap_or_else(PoisonError::into_inner)) };
    loop {
        match turn.try_lock() {
            Ok(turn) => return Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(NAP),
        }
    }
}

/// Takes the lock; `None`: it was not free by `until`, nor for [`GRACE`] from now, whichever is later.
pub fn lock<'a>(
    word: &'a AtomicU32,
    turn: &'a Mutex<()>,
    member: &Member,
    region: &Region,
    until: Option<Instant>,
) -> Option<Guard<'a>> {
    let until = until.map(|until| until.max(Instant::now() + GRACE));
    let turn = take_turn(turn, until)?;
    let mine = member.identity;
    let mut inherited = false;
    let free = |to| word.compare_exchange(0, to, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let mut held = (0..SPINS).any(|_| {
        let got = free(mine);
        if !got {
            std::hint::spin_loop();
        }
        got
    });
    while !held {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            held = free(mine | SLEEPERS);
            continue;
        }
        let marked = seen | SLEEPERS;
        if seen != marked
            && word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            // Whoever unlocks wakes somebody in vain.
            return None;
        }
        let slept = futex::wait(word, futex::Flags::empty(), marked, Some(&timespec(MOMENT)));
        if slept == Err(rustix::io::Errno::TIMEDOUT)
            && !member.is_alive(region, seen & !SLEEPERS)
            && word.compare_exchange(marked, mine | SLEEPERS, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            (held, inherited) = (true, true);
        }
    }
    Some(Guard { word, _turn: turn, inherited })
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.word.swap(0, Ordering::Release) & SLEEPERS != 0 {
            // A failed wake can only mean that nobody sleeps on the word.
            let _ = futex::wake(self.word, futex::Flags::empty(), 1);
        }
    }
}
