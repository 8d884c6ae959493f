// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread of a pool that does one task each time that it is armed, and sleeps meanwhile: it makes buffered transactions durable
//! ([`crate::Options::buffered_wait`]), or applies the log behind the commits ([`crate::Options::apply_behind`]).
//!
//! - **Flow** a commit arms it ─▶ it waits as long as the commit says ─▶ its task ─▶ sleeps
//! - **Order** `flush` disarms itself before it syncs, and a commit appends before it checks that the thread is armed. Both take the
//!   lock of the appended position in between. So a commit that finds it armed is in that sync, and a later one arms it again
//! - **Order** `apply` disarms itself after its work, which promises no commit anything. It applies records that have a sequence when
//!   it starts, no later ones, so a caller that needs room waits for the lock of the applier no longer than one apply takes
//! - **Rule** no thread before the first commit that arms it, and no wake-up without one. An error stops the pool, whose next
//!   caller gets the error
//! - **Owner** the thread holds the store while it works only; closing stops and joins it first. In a forked child there is no
//!   thread

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lock::lock;

/// Does the task once; false: the pool is closed. It disarms the thread before or after its work, as the header says.
type Task = Arc<dyn Fn() -> bool + Send + Sync>;

/// See the module's header.
pub(crate) struct PoolThread {
    name: &'static str,
    /// Unset: no thread is started (simulated pools).
    task: OnceLock<Task>,
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
    /// How long the thread waits before it does its task; None: there is nothing to do.
    wait: Option<Duration>,
    stop: bool,
}

impl std::fmt::Debug for PoolThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolThread")
            .field("name", &self.name)
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl PoolThread {
    /// A thread of this name that is started when it is first armed.
    pub fn new(name: &'static str) -> PoolThread {
        PoolThread { name, task: OnceLock::new(), thread: OnceLock::new(), armed: AtomicBool::new(false) }
    }

    /// Sets its task.
    pub fn bind(&self, task: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.task.set(Arc::new(task)); // once
    }

    /// Has the task done after `wait`. Returns false if the system has no thread for it. For a pool without threads (the
    /// simulator's) it returns true: there the task is as late as it can be, and callers do it when they can wait no longer.
    #[inline]
    pub fn arm(&self, wait: Duration) -> bool {
        self.armed.load(Ordering::Relaxed) || self.wake(wait)
    }

    #[cold]
    fn wake(&self, wait: Duration) -> bool {
        let Some(task) = self.task.get() else { return true };
        if self.armed.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.thread.get_or_init(|| start(self.name, Arc::clone(task))) {
            Some(running) if running.process == std::process::id() => {
                lock(&running.signal.state).wait = Some(wait);
                running.signal.changed.notify_one();
                true
            }
            _ => {
                self.disarm();
                false
            }
        }
    }

    /// From now on a commit arms it again.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Ends the thread, after the task that is under way. A task that it was armed for is left to the caller.
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

/// Starts the thread. None if the system has none.
fn start(name: &str, task: Task) -> Option<Running> {
    let signal = Arc::new(Signal::default());
    let theirs = Arc::clone(&signal);
    let handle =
        std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&*task, &theirs)).ok()?;
    Some(Running { signal, handle: Mutex::new(Some(handle)), process: std::process::id() })
}

fn run(task: &dyn Fn() -> bool, signal: &Signal) {
    let mut state = lock(&signal.state);
    loop {
        let wait = loop {
            match state.wait {
                _ if state.stop => return,
                Some(wait) => break wait,
                None => state = signal.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        if !wait.is_zero() {
            let waited = signal.changed.wait_timeout_while(state, wait, |state| !state.stop);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.stop {
                return;
            }
        }
        state.wait = None;
        drop(state);
        if !task() {
            return;
        }
        state = lock(&signal.state);
    }
}
