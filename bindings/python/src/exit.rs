// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles the end of the interpreter while other threads run Python code for memlift.
//!
//! Before Python 3.14, a thread that takes the GIL after the interpreter's end is unwound by `pthread_exit`, and Rust aborts the process
//! when the unwinding reaches its frames. Waits are safe: PyO3 makes such a thread sleep when its wait is over.
//!
//! - **Flow** `atexit` calls `_end`: from then on no other thread begins to run Python code of memlift, and those that already do may
//!   finish it. Handlers are not waited for.
//! - **Order** a thread increments the count before it checks if the end has come; `_end` announces the end before it reads the count. A
//!   handler's thread is counted before it asks for the GIL, so it asks for none that is gone.
//! - **Owner** a handler's thread that wants to continue after the end sleeps for ever, in a frame of this file, while the process ends.
//! - **Fork** a forked child has one thread, so its count is reset.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// True if the interpreter is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Number of threads that run Python code for memlift, not counting handlers.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Longest time that `_end` waits for these threads: converting a value may run foreign code, which may never return.
const PATIENCE: Duration = Duration::from_secs(5);

thread_local! {
    /// Number of nested sections of this thread; only the outermost is counted.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// True for the thread that ends the interpreter.
    static ENDER: Cell<bool> = const { Cell::new(false) };
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Counts this thread. Does not return if another thread ends the interpreter.
fn count_in(py: Python<'_>) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    if ENDING.load(Ordering::SeqCst) && !ENDER.get() {
        count_out();
        py.detach(|| sleep_for_ever());
    }
}

/// Runs a handler's code with the GIL, inside a section. Does not return if another thread ends the interpreter.
pub fn attach<R>(body: impl FnOnce(Python<'_>, &Inside) -> R) -> R {
    if DEPTH.get() == 0 {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if ENDING.load(Ordering::SeqCst) && !ENDER.get() {
            count_out();
            sleep_for_ever();
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let inside = Inside(());
    // `_end` waits for counted threads, but with a limit; after it there may be no interpreter.
    Python::try_attach(|py| body(py, &inside)).unwrap_or_else(|| sleep_for_ever())
}

fn count_out() {
    // A forked child may leave a section that its parent's other threads had entered, so the count may already be 0.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |inside| inside.checked_sub(1));
}

/// A section in which Rust calls Python code that returns soon.
pub struct Inside(());

impl Inside {
    /// Enters the section; does not return if the interpreter ends.
    pub fn enter(py: Python<'_>) -> Inside {
        if DEPTH.get() == 0 {
            count_in(py);
        }
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }

    /// Calls a handler, which may take any time and is not counted meanwhile. Does not return if the interpreter ends.
    pub fn call_handler<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let depth = DEPTH.replace(0);
        count_out();
        let guard = SleepForEver;
        // SAFETY: the GIL is held, and function and arguments live until the call returns. If Python unwinds this thread, the
        // guard stops the unwinding in this frame, which then never ends.
        let result = unsafe { PyObject_CallObject(function.as_ptr(), arguments.as_ptr()) };
        std::mem::forget(guard);
        count_in(py);
        DEPTH.set(depth);
        // SAFETY: the result is a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, result) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            count_out();
        }
    }
}

/// Stops a forced unwinding at the frame that holds this guard.
struct SleepForEver;

impl Drop for SleepForEver {
    fn drop(&mut self) {
        sleep_for_ever();
    }
}

unsafe extern "C-unwind" {
    /// Python's own function. PyO3 declares it as one that cannot unwind, and then the guard above would not run.
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// Keeps other threads from beginning to run Python code of memlift, and waits for those that already do.
#[pyfunction]
fn _end(py: Python<'_>) {
    ENDER.set(true);
    ENDING.store(true, Ordering::SeqCst);
    let own = usize::from(DEPTH.get() > 0);
    py.detach(|| {
        let until = Instant::now() + PATIENCE;
        while INSIDE.load(Ordering::SeqCst) > own && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Called in a forked child: sets the count to its only thread, if that is inside a section.
#[pyfunction]
fn _forked() {
    INSIDE.store(usize::from(DEPTH.get() > 0), Ordering::SeqCst);
}

/// Registers `_end` for the interpreter's end and `_forked` for forks.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(_end, module)?,))?;
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", wrap_pyfunction!(_forked, module)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
