// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock that costs its usual holder two plain stores.
//!
//! - **Why** a locked instruction waits until the stores before it are visible, the log's among them: after each fence that is
//!   100 ns and more in which the core does nothing. Without one, the next transaction is computed while the fence drains
//! - **States** unowned: `inner` decides, as with any lock. Owned by a thread: that thread enters by `busy` alone; everybody else takes
//!   `inner` for writing, takes the ownership away, and waits until the owner has left
//! - **Order** the owner stores `busy`, then loads `owner`; who takes it away stores `owner`, then loads `busy`. Of the two, one sees the
//!   other's store: the owner has a compiler fence between, and the other one membarrier(2), which is a full
//!   fence on every thread of the process (Dekker with an asymmetric fence; biased locking as in Kawachiya et al. 2002)
//! - **Rule** ownership is given and taken with `inner` held for writing only. It is given to who had the lock [`STREAK`] times in
//!   a row, twice as many after each time that it was taken away. A kernel without membarrier never gives it
//! - **Rule** a thread that would wait for itself panics: a transaction inside a transaction or a read of the same thread
//! - **Owner** guards stay on their thread

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

#[cfg(loom)]
use self::modelled::{
    AtomicU32, AtomicU64, Condvar, Mutex, Ordering, RawRwLock, fence_everywhere, fence_here, fences, me,
};
#[cfg(not(loom))]
use self::shipped::{
    AtomicU32, AtomicU64, Condvar, Mutex, Ordering, RawRwLock, fence_everywhere, fence_here, fences, me,
};
#[cfg(not(loom))]
use parking_lot::lock_api::RawRwLock as _;

/// How often in a row a thread has the lock before it owns it.
const STREAK: u32 = if cfg!(loom) { 1 } else { 64 };
/// Most that becomes of it by doubling: taking the ownership away takes some microseconds, which is little beside as many entries. A
/// pool's thread takes it every 50 ms, so a thread that writes in between has to get it back soon.
const STREAK_MAX: u32 = 1 << 12;

/// Value of `busy` while the owner writes; otherwise `busy` counts the owner's readers.
const WRITES: u32 = u32::MAX;

/// Number of no thread: nobody owns the lock.
const NONE: u64 = 0;

#[cfg(not(loom))]
mod shipped {
    pub(super) use parking_lot::RawRwLock;
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(super) use std::sync::{Condvar, Mutex};

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
    use std::sync::OnceLock;
    use std::sync::atomic::compiler_fence;

    /// This thread's number: never given twice, never 0.
    #[inline]
    pub(super) fn me() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static ME: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        ME.with(|me| *me)
    }

    /// Returns true if the kernel fences all threads of the process when asked.
    pub(super) fn fences() -> bool {
        static FENCES: OnceLock<bool> = OnceLock::new();
        *FENCES.get_or_init(|| {
            membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
                && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        })
    }

    /// The owner's side of the fence: it only keeps the compiler from reordering.
    #[inline(always)]
    pub(super) fn fence_here() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The other side of the fence: membarrier(2), a full fence on every thread of the process.
    pub(super) fn fence_everywhere() {
        membarrier(MembarrierCommand::PrivateExpedited).expect("it was there when ownership was given");
    }
}

/// The same for the model checker, in which both sides are full fences.
#[cfg(loom)]
mod modelled {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex};

    use loom::sync::atomic::fence;
    use std::hash::{DefaultHasher, Hash, Hasher};

    pub(super) fn me() -> u64 {
        let mut hasher = DefaultHasher::new();
        loom::thread::current().id().hash(&mut hasher);
        hasher.finish() | 1
    }

    pub(super) fn fences() -> bool {
        true
    }

    pub(super) fn fence_here() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn fence_everywhere() {
        fence(Ordering::SeqCst);
    }

    /// Readers, or −1 for a writer.
    #[derive(Debug)]
    pub(super) struct RawRwLock {
        state: Mutex<i32>,
        changed: Condvar,
    }

    impl RawRwLock {
        pub(super) fn new() -> RawRwLock {
            RawRwLock { state: Mutex::new(0), changed: Condvar::new() }
        }

        pub(super) fn lock_exclusive(&self) {
            let mut state = self.state.lock().unwrap();
            while *state != 0 {
                state = self.changed.wait(state).unwrap();
            }
            *state = -1;
        }

        pub(super) fn try_lock_exclusive(&self) -> bool {
            let mut state = self.state.lock().unwrap();
            let free = *state == 0;
            if free {
                *state = -1;
            }
            free
        }

        pub(super) fn lock_shared(&self) {
            let mut state = self.state.lock().unwrap();
            while *state < 0 {
                state = self.changed.wait(state).unwrap();
            }
            *state += 1;
        }

        /// # Safety
        ///
        /// None is needed: as the shipped one's.
        pub(super) unsafe fn unlock_exclusive(&self) {
            *self.state.lock().unwrap() = 0;
            self.changed.notify_all();
        }

        /// # Safety
        ///
        /// None is needed: as the shipped one's.
        pub(super) unsafe fn unlock_shared(&self) {
            *self.state.lock().unwrap() -= 1;
            self.changed.notify_all();
        }
    }
}

/// A lock that its owner enters with plain stores; see the module's header.
pub struct Biased<T> {
    owner: AtomicU64,
    busy: AtomicU32,
    /// The thread that `busy` counts for: the owner, or a former owner until it has left.
    inside: AtomicU64,
    inner: RawRwLock,
    /// Only read and changed with `inner` held for writing.
    tenure: UnsafeCell<Tenure>,
    left: Mutex<()>,
    leaves: Condvar,
    value: UnsafeCell<T>,
}

/// The thread that has locked it last, how often in a row, and how often is needed for ownership.
struct Tenure {
    last: u64,
    times: u32,
    wanted: u32,
}

// SAFETY: the value is reached through guards only, which keep writers apart from everybody, as the module's header says.
unsafe impl<T: Send> Send for Biased<T> {}
// SAFETY: guards keep writers apart from everybody; readers share `&T` between threads, hence T: Sync.
unsafe impl<T: Send + Sync> Sync for Biased<T> {}

impl<T> std::fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Biased").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<T> Biased<T> {
    /// Makes a lock that no thread owns.
    pub fn new(value: T) -> Biased<T> {
        Biased {
            owner: AtomicU64::new(NONE),
            busy: AtomicU32::new(0),
            inside: AtomicU64::new(NONE),
            #[cfg(not(loom))]
            inner: RawRwLock::INIT,
            #[cfg(loom)]
            inner: RawRwLock::new(),
            tenure: UnsafeCell::new(Tenure { last: NONE, times: 0, wanted: STREAK }),
            left: Mutex::new(()),
            leaves: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns true if this thread is inside and entered as the owner: then readers may nest, even if another thread waits.
    #[cfg(loom)]
    pub fn entered_as_owner(&self) -> bool {
        self.inside.load(Ordering::Relaxed) == me() && self.busy.load(Ordering::Relaxed) != 0
    }

    /// Enters as the owner; `None`: this thread is not the owner, or not any more.
    #[inline(always)]
    fn enter(&self, me: u64, as_writer: bool) -> Option<()> {
        if self.owner.load(Ordering::Relaxed) != me {
            return self.enter_again(me, as_writer);
        }
        let busy = self.busy.load(Ordering::Relaxed);
        if busy != 0 && (as_writer || busy == WRITES) {
            itself();
        }
        self.busy.store(if as_writer { WRITES } else { busy + 1 }, Ordering::Relaxed);
        fence_here();
        if busy != 0 || self.owner.load(Ordering::Relaxed) == me {
            fence_here();
            return Some(());
        }
        self.leave(me, busy);
        None
    }

    /// Nests in a read that began when this thread was the owner. A thread that took the ownership away waits for its end.
    #[inline]
    fn enter_again(&self, me: u64, as_writer: bool) -> Option<()> {
        if self.inside.load(Ordering::Relaxed) != me {
            return None;
        }
        let busy = self.busy.load(Ordering::Relaxed);
        if busy == 0 {
            return None;
        }
        if as_writer || busy == WRITES {
            itself();
        }
        self.busy.store(busy + 1, Ordering::Relaxed);
        Some(())
    }

    /// Leaves, with so many readers left.
    #[inline(always)]
    fn leave(&self, me: u64, busy: u32) {
        self.busy.store(busy, Ordering::Release);
        fence_here();
        if busy == 0 && self.owner.load(Ordering::Relaxed) != me {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        drop(self.left.lock().unwrap_or_else(PoisonError::into_inner));
        self.leaves.notify_all();
    }

    /// After `inner` was locked for writing: takes the ownership away, if there is one, and waits for the owner to leave.
    fn evict(&self) {
        if self.owner.load(Ordering::Relaxed) == NONE {
            return;
        }
        self.owner.store(NONE, Ordering::SeqCst);
        fence_everywhere();
        // SAFETY: `inner` is held for writing by this thread.
        let tenure = unsafe { &mut *self.tenure.get() };
        (tenure.last, tenure.times) = (NONE, 0);
        tenure.wanted = (tenure.wanted * 2).min(STREAK_MAX);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while self.busy.load(Ordering::Acquire) != 0 {
            left = self.leaves.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        self.inside.store(NONE, Ordering::Relaxed);
    }

    /// Before `inner` is unlocked after writing: makes this thread the owner when it has been here often enough.
    fn stay(&self) {
        let me = me();
        // SAFETY: `inner` is held for writing by this thread.
        let tenure = unsafe { &mut *self.tenure.get() };
        if tenure.last != me {
            (tenure.last, tenure.times) = (me, 0);
        }
        tenure.times += 1;
        if tenure.times >= tenure.wanted {
            tenure.times = 0;
            if fences() {
                self.inside.store(me, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
            }
        }
    }

    /// Waits until nobody else has it.
    #[inline(always)]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let me = me();
        match self.enter(me, true) {
            Some(()) => WriteGuard { lock: self, me, thread: PhantomData },
            None => self.write_slow(),
        }
    }

    #[cold]
    fn write_slow(&self) -> WriteGuard<'_, T> {
        self.inner.lock_exclusive();
        self.evict();
        WriteGuard { lock: self, me: NONE, thread: PhantomData }
    }

    /// Enters if nobody else is there, and nobody else owns it.
    #[inline(always)]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let me = me();
        if self.owner.load(Ordering::Relaxed) == me
            && self.busy.load(Ordering::Relaxed) == 0
            && self.enter(me, true).is_some()
        {
            return Some(WriteGuard { lock: self, me, thread: PhantomData });
        }
        self.try_write_slow()
    }

    #[cold]
    fn try_write_slow(&self) -> Option<WriteGuard<'_, T>> {
        if self.owner.load(Ordering::Relaxed) != NONE || !self.inner.try_lock_exclusive() {
            return None;
        }
        self.evict();
        Some(WriteGuard { lock: self, me: NONE, thread: PhantomData })
    }

    /// Waits until nobody writes.
    #[inline(always)]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let me = me();
        match self.enter(me, false) {
            Some(()) => ReadGuard { lock: self, me, thread: PhantomData },
            None => self.read_slow(),
        }
    }

    #[cold]
    fn read_slow(&self) -> ReadGuard<'_, T> {
        loop {
            if self.owner.load(Ordering::Relaxed) != NONE {
                drop(self.write_slow());
            }
            self.inner.lock_shared();
            let guard = ReadGuard { lock: self, me: NONE, thread: PhantomData };
            // With `inner` held, nobody is made owner.
            if self.owner.load(Ordering::Relaxed) == NONE {
                return guard;
            }
        }
    }
}

#[cold]
fn itself() -> ! {
    panic!(
        "a transaction inside a transaction or a read of the same thread would wait for ever: use the one that is open"
    );
}

/// The lock, held for writing.
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    lock: &'a Biased<T>,
    /// The owner who entered; [`NONE`]: `inner` is locked.
    me: u64,
    thread: PhantomData<*const ()>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: nobody else holds the lock while this guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed uniquely.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.me != NONE {
            return self.lock.leave(self.me, 0);
        }
        self.unlock();
    }
}

impl<T> WriteGuard<'_, T> {
    #[cold]
    fn unlock(&self) {
        self.lock.stay();
        // SAFETY: locked when the guard was made, by this thread, which guards do not leave.
        unsafe { self.lock.inner.unlock_exclusive() };
    }
}

/// The lock, held for reading.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    lock: &'a Biased<T>,
    /// As in [`WriteGuard`].
    me: u64,
    thread: PhantomData<*const ()>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: nobody holds the lock for writing while this guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.me != NONE {
            let busy = self.lock.busy.load(Ordering::Relaxed);
            return self.lock.leave(self.me, busy - 1);
        }
        // SAFETY: locked when the guard was made, by this thread, which guards do not leave.
        unsafe { self.lock.inner.unlock_shared() };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn owned(lock: &Biased<u64>) -> bool {
        lock.owner.load(Ordering::Relaxed) != NONE
    }

    #[test]
    fn who_has_it_often_owns_it_and_loses_it_to_others() {
        let lock = Biased::new(0);
        for _ in 0..STREAK {
            assert!(!owned(&lock));
            *lock.write() += 1;
        }
        assert_eq!(owned(&lock), fences());
        *lock.write() += 1;
        drop((lock.read(), lock.read()));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*lock.write(), u64::from(STREAK) + 1)).join().unwrap();
        });
        assert!(!owned(&lock));
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn readers_of_the_owner_nest_and_a_writer_inside_is_told() {
        let lock = Biased::new(0);
        (0..=STREAK).for_each(|_| *lock.write() += 1);
        if !fences() {
            return;
        }
        let (outer, inner) = (lock.read(), lock.read());
        drop(outer);
        assert!(lock.try_write().is_none());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.write()))).is_err());
        drop(inner);
        let writing = lock.try_write().expect("free");
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.read()))).is_err());
        drop(writing);
        drop(lock.write());
    }

    #[test]
    fn a_nested_reader_enters_while_another_thread_waits() {
        let lock = Biased::new(0);
        (0..=STREAK).for_each(|_| *lock.write() += 1);
        let outer = lock.read();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *lock.write() = 7);
            while fences() && owned(&lock) {
                std::thread::yield_now();
            }
            if fences() {
                drop(lock.read());
            }
            drop(outer);
            waits.join().unwrap();
        });
        assert_eq!(*lock.write(), 7);
    }

    /// Threads take turns of random length, so that ownership comes and goes; each adds to two words that must stay equal.
    #[test]
    fn nobody_sees_a_half_done_change() {
        let lock = Biased::new([0u64; 2]);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3u64)
                .map(|seed| {
                    let lock = &lock;
                    scope.spawn(move || {
                        let mut random = seed * 77 + 1;
                        let mut added = 0;
                        while added < 60_000 {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            for _ in 0..random >> 33 & 0x1ff {
                                if random >> 50 & 7 == 0 {
                                    let now = lock.read();
                                    assert_eq!(now[0], now[1]);
                                } else {
                                    let mut both = lock.write();
                                    both[0] += 1;
                                    std::hint::black_box(&mut both);
                                    both[1] += 1;
                                    added += 1;
                                }
                            }
                            std::thread::yield_now();
                        }
                        added
                    })
                })
                .collect();
            let added: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
            assert_eq!(*lock.write(), [added; 2]);
        });
    }
}
