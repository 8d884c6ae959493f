// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock of one word that works in signal handlers and across fork; the futex calls, also for words that processes share;
//! and a clock for waits.
//!
//! - **Flow** [`Lock::lock`] changes the word from 0 to 1 by one exchange; if it is taken, it sets 2 and waits on the futex
//!   ──▶ [`Guard`] ──drop──▶ 0, and one waiter is woken if the word was 2
//! - **Order** Acquire at lock, Release at unlock. Not reentrant; a holder runs no foreign code and touches no arena memory
//! - **Owner** [`Lock::reset`] is for the child of a fork, where no other thread exists
//! - **Not here** locks in memory that processes share: a holder that died would never release them

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Waits while `word` holds `expected`, until woken; may return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, shared: bool, timeout: Option<std::time::Duration>) {
    let flags = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    let time = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(time.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time live as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | flags, expected, time) };
}

/// Wakes up to `count` waiters of `word`.
pub fn futex_wake(word: &AtomicU32, count: i32, shared: bool) {
    let flags = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word lives as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | flags, count) };
}

/// Returns the time of a clock that never goes back, milliseconds.
pub fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// A value that one thread at a time may use.
#[derive(Debug, Default)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Makes an unlocked lock around the value.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    /// Takes the lock only if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // The guard must be made only if the lock was taken, because dropping a guard unlocks.
        self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| Guard(self))
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.word.load(Ordering::Relaxed) == 0
                && self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(2, Ordering::Acquire) != 0 {
            futex_wait(&self.word, 2, false, None);
        }
    }

    /// Unlocks a lock whose holder forgot its guard, as the handlers before and after a fork do.
    ///
    /// # Safety
    ///
    /// The caller locked this lock, forgot the guard, and no longer uses the value.
    pub unsafe fn unlock(&self) {
        drop(Guard(self));
    }

    /// Unlocks the lock, no matter which thread holds it.
    ///
    /// # Safety
    ///
    /// The caller is the only thread of the process, as after a fork, and the holder had left the value in a consistent
    /// state.
    pub unsafe fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }
}

/// The right to use the value; dropping it unlocks.
#[must_use]
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock has only one guard at a time, and this is it.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock has only one guard at a time; this is it, and it is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.0.word.swap(0, Ordering::Release) == 2 {
            futex_wake(&self.0.word, 1, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_are_not_lost() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "a failed try leaves it locked");
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
