// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that makes buffered transactions durable, and sleeps until there is one.
//!
//! - **Flow** a buffered commit arms it ─▶ it waits [`crate::Options::buffered_wait`] ─▶ disarms itself ─▶ `Store::sync` ─▶
//!   sleeps
//! - **Order** it disarms itself before it syncs, and a commit appends before it checks that it is armed. Both take the lock of
//!   the appended position in between. So a commit that finds it armed is in that sync, and a later one arms it again
//! - **Rule** no thread before the first buffered commit, and no wake-up while there is none. An error stops the pool, whose next
//!   caller hears of it
//! - **Owner** the thread holds the store while it syncs only; closing stops and joins it first. In a forked child there is no
//!   thread

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::store::{Store, lock};

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    /// The store that it flushes; unset: no thread is started (simulated pools).
    store: OnceLock<Weak<Store>>,
    thread: OnceLock<Option<Running>>,
    armed: AtomicBool,
}

#[derive(Debug)]
struct Running {
    signal: Arc<Signal>,
    handle: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    stop: bool,
}

impl Flusher {
    /// Sets the store that it flushes.
    pub fn bind(&self, store: &Arc<Store>) {
        let _ = self.store.set(Arc::downgrade(store)); // once
    }

    /// Arms the thread: a buffered transaction was appended.
    #[inline]
    pub fn arm(&self, wait: Duration) {
        if !self.armed.load(Ordering::Relaxed) && !wait.is_zero() {
            self.wake(wait);
        }
    }

    #[cold]
    fn wake(&self, wait: Duration) {
        let Some(store) = self.store.get() else { return };
        if self.armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(running) = self.thread.get_or_init(|| start(store.clone(), wait)) else { return };
        lock(&running.signal.state).wanted = true;
        running.signal.changed.notify_one();
    }

    /// Ends the thread. Buffered transactions are left to the caller.
    pub fn stop(&self) {
        let Some(Some(running)) = self.thread.get() else { return };
        if running.process != std::process::id() {
            return;
        }
        lock(&running.signal.state).stop = true;
        running.signal.changed.notify_one();
        if let Some(handle) = lock(&running.handle).take()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join(); // it does not panic
        }
    }
}

/// Starts the thread. None if the system has none: then buffered transactions wait for the next flush, as with a wait of zero.
fn start(store: Weak<Store>, wait: Duration) -> Option<Running> {
    let signal = Arc::new(Signal::default());
    let theirs = Arc::clone(&signal);
    let handle = std::thread::Builder::new()
        .name("memlift-flush".to_owned())
        .spawn(move || run(&store, &theirs, wait))
        .ok()?;
    Some(Running { signal, handle: Mutex::new(Some(handle)), process: std::process::id() })
}

fn run(store: &Weak<Store>, signal: &Signal, wait: Duration) {
    let mut state = lock(&signal.state);
    loop {
        while !state.wanted && !state.stop {
            state = signal.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state = signal
            .changed
            .wait_timeout_while(state, wait, |state| !state.stop)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if state.stop {
            return;
        }
        state.wanted = false;
        drop(state);
        let Some(store) = store.upgrade() else { return };
        store.flusher.armed.store(false, Ordering::SeqCst);
        let _ = store.sync(); // stopped, if this fails: callers hear of it
        drop(store);
        state = lock(&signal.state);
    }
}
