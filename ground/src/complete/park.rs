// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parking: one 32-bit word says whether its owner sleeps, and a [`Parker`] is the means to sleep.
//!
//! - **Flow** owner: `prepare` ─▶ look again ─▶ `Parker::park` ─▶ `finish`      producer: publish ─▶ `wake`
//! - **Layout** the word: 0 RUNNING · 1 PARKED. It may lie in memory shared with another process.
//! - **Order** `prepare` stores PARKED then fences; `wake` fences then loads. See the module header.
//! - **Owner** only the owner stores PARKED; whoever wakes it swaps it back, so one sleep gets one wake.

use super::primitive::{AtomicU32, Ordering, fence};
use std::io;
use std::time::Instant;

const RUNNING: u32 = 0;
const PARKED: u32 = 1;

/// Says whether a waiter sleeps. Four bytes; a hostile writer can only cost its own session wake-ups.
#[derive(Debug)]
#[repr(transparent)]
pub struct ParkWord(AtomicU32);

impl Default for ParkWord {
    fn default() -> Self {
        Self::new()
    }
}

impl ParkWord {
    /// A word whose owner is awake.
    pub fn new() -> ParkWord {
        ParkWord(AtomicU32::new(RUNNING))
    }

    /// The same word, seen in memory that holds it as a plain atomic.
    #[cfg(not(loom))]
    #[expect(unsafe_code, reason = "repr(transparent) view of an atomic in a shared page")]
    pub fn from_atomic(word: &std::sync::atomic::AtomicU32) -> &ParkWord {
        // SAFETY: ParkWord is repr(transparent) over AtomicU32, so layout and validity are the same.
        unsafe { &*std::ptr::from_ref(word).cast::<ParkWord>() }
    }

    /// Owner: announces sleep. Look at the awaited condition once more after this and before sleeping.
    pub fn prepare(&self) {
        self.0.store(PARKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Owner: awake again.
    pub fn finish(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Returns true if the owner has announced sleep and nobody has woken it yet.
    pub fn is_parked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PARKED
    }

    /// Producer: call after publishing. Runs `unpark` if the owner sleeps and no other producer is waking it, and returns true
    /// if it did.
    pub fn wake(&self, unpark: impl FnOnce()) -> bool {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == PARKED && self.0.swap(RUNNING, Ordering::Relaxed) == PARKED {
            unpark();
            return true;
        }
        false
    }
}

/// A means to sleep until woken. It knows the word (or words) by which producers learn that its owner sleeps.
pub trait Parker {
    /// Announces sleep; see [`ParkWord::prepare`].
    fn prepare(&self);

    /// Sleeps until woken, spuriously or at `until`. Must return at once if it has been woken since
    /// [`prepare`](Parker::prepare).
    ///
    /// # Errors
    ///
    /// When sleeping is impossible or the peer is gone; the wait ends as [`Waited::Broken`](super::Waited).
    fn park(&self, until: Option<Instant>) -> io::Result<()>;

    /// Awake again; see [`ParkWord::finish`].
    fn finish(&self);
}

#[cfg(not(loom))]
pub use os::{FdParker, FutexParker, ring};

#[cfg(not(loom))]
mod os {
    use super::{AtomicU32, PARKED, ParkWord, Parker};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::thread::futex;
    use rustix::time::Timespec;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Instant;

    /// Sleeps on the word itself by futex. `shared` when the word lies in memory that another process maps.
    #[derive(Clone, Copy, Debug)]
    pub struct FutexParker<'a> {
        word: &'a ParkWord,
        shared: bool,
    }

    impl<'a> FutexParker<'a> {
        /// Parks on `word`; `shared` if producers may live in another process.
        pub fn new(word: &'a ParkWord, shared: bool) -> FutexParker<'a> {
            FutexParker { word, shared }
        }

        /// Producer: wakes the owner if it sleeps. Call after publishing.
        pub fn wake(self) {
            self.word.wake(|| {
                // A failed wake can only mean that nobody sleeps on the word.
                let _ = futex::wake(self.atomic(), self.flags(), 1);
            });
        }

        fn flags(self) -> futex::Flags {
            if self.shared { futex::Flags::empty() } else { futex::Flags::PRIVATE }
        }

        fn atomic(&self) -> &'a AtomicU32 {
            &self.word.0
        }
    }

    impl Parker for FutexParker<'_> {
        fn prepare(&self) {
            self.word.prepare();
        }

        fn park(&self, until: Option<Instant>) -> io::Result<()> {
            let timeout = until.map(timespec_from_now);
            match futex::wait(self.atomic(), self.flags(), PARKED, timeout.as_ref()) {
                Ok(())
                | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => {
                    Ok(())
                }
                Err(error) => Err(error.into()),
            }
        }

        fn finish(&self) {
            self.word.finish();
        }
    }

    /// Sleeps on an event fd that the producer rings, and on a socket whose hang-up means that the peer died.
    #[derive(Clone, Copy, Debug)]
    pub struct FdParker<'a> {
        word: &'a ParkWord,
        event: BorrowedFd<'a>,
        socket: BorrowedFd<'a>,
    }

    impl<'a> FdParker<'a> {
        /// `event` must be non-blocking.
        pub fn new(word: &'a ParkWord, event: &'a impl AsFd, socket: &'a impl AsFd) -> FdParker<'a> {
            FdParker { word, event: event.as_fd(), socket: socket.as_fd() }
        }
    }

    impl Parker for FdParker<'_> {
        fn prepare(&self) {
            self.word.prepare();
        }

        fn park(&self, until: Option<Instant>) -> io::Result<()> {
            let timeout = until.map(timespec_from_now);
            // Of the socket only hang-up and error matter, and those are always reported.
            let mut fds = [
                PollFd::from_borrowed_fd(self.event, PollFlags::IN),
                PollFd::from_borrowed_fd(self.socket, PollFlags::empty()),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                // Only the count is taken; an empty counter (EAGAIN) means another thread took it.
                let _ = rustix::io::read(self.event, &mut [0u8; 8]);
            }
            if fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Ok(())
        }

        fn finish(&self) {
            self.word.finish();
        }
    }

    /// Rings an event fd: what a producer passes to [`ParkWord::wake`]. A full counter still reads as rung.
    pub fn ring(event: impl AsFd) {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }

    fn timespec_from_now(until: Instant) -> Timespec {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
    }
}
