// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parking: a 32-bit word says if its owner sleeps, and a [`Parker`] puts the owner to sleep.
//!
//! - **Flow** owner: `prepare` ─▶ check the condition again ─▶ `Parker::park` ─▶ `finish`. Producer: publish ─▶ `wake`
//! - **Layout** the word: 0 RUNNING · 1 PARKED. It may lie in memory shared with another process.
//! - **Order** `prepare` stores PARKED, then fences; `wake` fences, then loads. See the header of `complete`.
//! - **Owner** only the owner stores PARKED; the producer that wakes it swaps the word back, so each sleep gets one
//!   wake-up.

use super::primitive::{AtomicU32, Ordering, fence};
use std::io;
use std::time::Instant;

const RUNNING: u32 = 0;
const PARKED: u32 = 1;

/// Tells producers if a waiter sleeps. Four bytes; a hostile writer can only lose wake-ups of its own session.
#[derive(Debug)]
#[repr(transparent)]
pub struct ParkWord(AtomicU32);

impl Default for ParkWord {
    fn default() -> Self {
        Self::new()
    }
}

impl ParkWord {
    /// Makes a word whose owner is awake.
    pub fn new() -> ParkWord {
        ParkWord(AtomicU32::new(RUNNING))
    }

    /// Views a plain atomic in shared memory as a `ParkWord`.
    #[cfg(not(loom))]
    #[expect(unsafe_code, reason = "repr(transparent) view of an atomic in a shared page")]
    pub fn from_atomic(word: &std::sync::atomic::AtomicU32) -> &ParkWord {
        // SAFETY: ParkWord is repr(transparent) over AtomicU32, so layout and validity are the same.
        unsafe { &*std::ptr::from_ref(word).cast::<ParkWord>() }
    }

    /// Owner: announces sleep. Check the awaited condition once more after this and before sleeping.
    pub fn prepare(&self) {
        self.0.store(PARKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Owner: announces that it is awake again.
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

/// A way to sleep until woken. A parker knows the word (or words) in which producers see that its owner sleeps.
pub trait Parker {
    /// Announces sleep; see [`ParkWord::prepare`].
    fn prepare(&self);

    /// Sleeps until woken, until `until`, or spuriously. Must return immediately if it was woken since
    /// [`prepare`](Parker::prepare).
    ///
    /// # Errors
    ///
    /// Sleeping is impossible or the peer is gone; the wait ends as [`Waited::Broken`](super::Waited).
    fn park(&self, until: Option<Instant>) -> io::Result<()>;

    /// Announces that the owner is awake again; see [`ParkWord::finish`].
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

    /// Sleeps on the word itself by futex. `shared` is true if the word lies in memory that another process maps.
    #[derive(Clone, Copy, Debug)]
    pub struct FutexParker<'a> {
        word: &'a ParkWord,
        shared: bool,
    }

    impl<'a> FutexParker<'a> {
        /// Makes a parker on `word`; `shared` is true if producers may be in another process.
        pub fn new(word: &'a ParkWord, shared: bool) -> FutexParker<'a> {
            FutexParker { word, shared }
        }

        /// Producer: wakes the owner if it sleeps. Call after publishing.
        pub fn wake(self) {
            self.word.wake(|| {
                // A failed wake can only mean that no thread sleeps on the word.
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

    /// Sleeps on an event fd that the producer writes to, and on a socket whose hang-up means that the peer died.
    #[derive(Clone, Copy, Debug)]
    pub struct FdParker<'a> {
        word: &'a ParkWord,
        event: BorrowedFd<'a>,
        socket: BorrowedFd<'a>,
    }

    impl<'a> FdParker<'a> {
        /// Makes a parker; `event` must be non-blocking.
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
            // Only hang-up and error of the socket matter, and poll always reports those.
            let mut fds = [
                PollFd::from_borrowed_fd(self.event, PollFlags::IN),
                PollFd::from_borrowed_fd(self.socket, PollFlags::empty()),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                // The read only resets the counter; EAGAIN means that another thread has reset it.
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

    /// Writes to an event fd; producers pass this to [`ParkWord::wake`]. The write fails only if
    /// the counter is full, and then the event fd is readable anyway.
    pub fn ring(event: impl AsFd) {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }

    fn timespec_from_now(until: Instant) -> Timespec {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
    }
}
