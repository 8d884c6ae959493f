// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deaths that are seen before the socket's hang-up: each side of a session has a robust word in the control segment.
//!
//! - **Flow** our thread owns our words, and sleeps on those of the peers ─▶ a peer dies, and the kernel marks its word and wakes the thread
//!   ─▶ the session's socket is shut down here ─▶ whoever waits for the session sees the hang-up, in every mode
//! - **Order** a side writes its word before the other can look: the client before its greeting, the server before its welcome. From then
//!   on a word changes once
//! - **Owner** one thread for [`WORDS_MAX`] sessions of a process, made with the first of them. A fork's child has threads of its own
//! - **Limits** a peer of an earlier version has no word (0). Before Linux 5.16, or where the kernel refuses, the hang-up alone tells of a
//!   death. A peer that changes its own word ends its own session
//! - **Not here** the list that the kernel reads (`memlift_ground::robust`)

use crate::fork::{self, SessionSocket};
use crate::rank::{Lock, Rank, holds_none};
use memlift_ground::region::{Region, RegionOffset};
use memlift_ground::robust::{OWNER_DIED, RobustWord, Roll, WORDS_MAX};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Weak};

/// How many forks may lie between the first process with a session and one whose sessions have words.
const FORKS: usize = 16;

/// Time after which a word whose page could not be read is tried again.
const AGAIN: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The threads of a process, per fork generation: a child must not wait for a lock that its parent held when it forked.
static KEEPERS: [Lock<Vec<&'static Keeper>>; FORKS] = [const { Lock::new(Rank::Keepers, Vec::new()) }; FORKS];

/// A thread that owns words and sleeps on others. It lives as long as its process.
struct Keeper {
    roll: Roll,
    state: Lock<State>,
    started: Condvar,
    /// Counts changes of `state`; the thread sleeps on it, too.
    changes: AtomicU32,
}

#[derive(Default)]
struct State {
    /// The thread has been asked whether it can own words. None: not yet.
    owns: Option<bool>,
    sessions: usize,
    watched: Vec<Watched>,
    next: u64,
}

/// A word of a peer.
struct Watched {
    number: u64,
    control: Arc<Region>,
    at: u64,
    /// Its value while the peer lives.
    alive: u32,
    socket: Weak<SessionSocket>,
}

impl Watched {
    fn word(&self) -> &AtomicU32 {
        self.control.layout(RegionOffset(self.at)).expect("the control segment has its full length")
    }

    /// Returns true if the word changed, or was marked before it was looked at first.
    fn has_ended(&self) -> bool {
        let word = self.word().load(Ordering::Acquire);
        word != self.alive || word & OWNER_DIED != 0
    }
}

/// A session's word, until it is dropped.
pub(crate) struct Robust {
    keeper: &'static Keeper,
    generation: u32,
    word: Option<RobustWord<'static>>,
    watched: Option<u64>,
}

impl Robust {
    /// Enters our word of the control segment. None: a death of this process will be told by the hang-up alone.
    pub fn enter(control: BorrowedFd<'_>, at: u64) -> Option<Robust> {
        holds_none("entering a robust word");
        let generation = fork::generation();
        let keeper = Keeper::with_room(KEEPERS.get(generation as usize)?)?;
        match keeper.roll.enter(control, at) {
            Some(word) => Some(Robust { keeper, generation, word: Some(word), watched: None }),
            None => {
                keeper.state.with(|state| state.sessions -= 1);
                None
            }
        }
    }

    /// Has the socket shut down when the peer's word is marked.
    pub fn watch(&mut self, control: &Arc<Region>, at: u64, socket: &Arc<SessionSocket>) {
        let mut watched =
            Watched { number: 0, control: Arc::clone(control), at, alive: 0, socket: Arc::downgrade(socket) };
        watched.alive = watched.word().load(Ordering::Acquire);
        if watched.alive == 0 {
            return;
        }
        self.watched = Some(self.keeper.state.with(|state| {
            state.next += 1;
            watched.number = state.next;
            state.watched.push(watched);
            state.next
        }));
        self.keeper.wake();
    }
}

impl Drop for Robust {
    fn drop(&mut self) {
        let word = self.word.take();
        if self.generation != fork::generation() {
            // A child has neither the thread nor the page.
            return std::mem::forget(word);
        }
        holds_none("leaving a robust word");
        drop(word);
        let left = self.keeper.state.with(|state| {
            state.sessions -= 1;
            let at = state.watched.iter().position(|watched| Some(watched.number) == self.watched);
            at.map(|at| state.watched.swap_remove(at))
        });
        if left.is_some() {
            self.keeper.wake();
        }
    }
}

impl Keeper {
    /// A keeper with room for one more session, which is counted. None: the system gives no thread or no addresses, or the kernel
    /// refuses the list.
    fn with_room(keepers: &'static Lock<Vec<&'static Keeper>>) -> Option<&'static Keeper> {
        // One that owns nothing takes every session, so that no second one is tried.
        let takes = |keeper: &&'static Keeper| {
            keeper.state.with(|state| {
                let takes = state.owns == Some(false) || state.sessions < WORDS_MAX;
                state.sessions += usize::from(takes);
                takes
            })
        };
        let found = keepers.with(|keepers| keepers.iter().copied().find(takes));
        let keeper = match found {
            Some(keeper) => keeper,
            None => {
                let fresh = Keeper::start()?;
                keepers.with(|keepers| keepers.push(fresh));
                fresh
            }
        };
        let mut state = keeper.state.lock();
        while state.owns.is_none() {
            state = state.wait(&keeper.started, None);
        }
        state.owns?.then_some(keeper)
    }

    /// A keeper with one session counted, and with a thread if the system gives one.
    fn start() -> Option<&'static Keeper> {
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper {
            roll: Roll::new().ok()?,
            state: Lock::new(Rank::Keeper, State { sessions: 1, ..State::default() }),
            started: Condvar::new(),
            changes: AtomicU32::new(0),
        }));
        let thread = std::thread::Builder::new().name("memlift-robust".into()).stack_size(256 << 10);
        if thread.spawn(|| keeper.roll.own(|owns| keeper.run(owns))).is_err() {
            keeper.state.with(|state| state.owns = Some(false));
        }
        Some(keeper)
    }

    fn wake(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        // A failed wake can only mean that nobody sleeps on the word.
        let _ = futex::wake(&self.changes, futex::Flags::PRIVATE, 1);
    }

    fn sleep_on_changes(&self, seen: u32, timeout: Option<&futex::Timespec>) {
        let _ = futex::wait(&self.changes, futex::Flags::PRIVATE, seen, timeout);
    }

    fn run(&self, owns: bool) {
        self.state.with(|state| state.owns = Some(owns));
        self.started.notify_all();
        if !owns {
            return;
        }
        loop {
            let seen = self.changes.load(Ordering::Acquire);
            let mut words = vec![wait(&self.changes, seen, futex::WaitFlags::PRIVATE)];
            let ended: Vec<Watched> = self.state.with(|state| {
                let ended = state.watched.extract_if(.., |watched| watched.has_ended()).collect();
                let shared = futex::WaitFlags::empty();
                words.extend(state.watched.iter().map(|own| wait(own.word(), own.alive, shared)));
                ended
            });
            for socket in ended.into_iter().filter_map(|watched| watched.socket.upgrade()) {
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            }
            match sleep(&words) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                // A word left meanwhile, or its page cannot be read now.
                Err(Errno::FAULT) => self.sleep_on_changes(seen, Some(&AGAIN)),
                // The kernel cannot sleep on several words.
                Err(_) => self.sleep_on_changes(seen, None),
            }
        }
    }
}

/// Describes one word to sleep on.
fn wait(word: &AtomicU32, seen: u32, flags: futex::WaitFlags) -> futex::Wait {
    let mut wait = futex::Wait::new();
    wait.val = u64::from(seen);
    wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
    wait.flags = futex::WaitFlags::SIZE_U32 | flags;
    wait
}

/// Sleeps until one of the words is woken. The kernel reads at their addresses and gives an error where a mapping is gone.
fn sleep(words: &[futex::Wait]) -> Result<usize, Errno> {
    futex::waitv(words, futex::WaitvFlags::empty(), None, rustix::thread::ClockId::Monotonic)
}
