// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interpreter's end while other threads run Python code for memlift.
//!
//! Before Python 3.14 a thread that asks for the interpreter after its end is unwound by `pthread_exit`, and Rust aborts the process
//! when that reaches its frames. Waits are safe: PyO3 lets such a thread sleep when a wait of it is over.
//!
//! - **Flow** `atexit` ─▶ `end`: no other thread begins with Python code of memlift any more, and those that run some finish it.
//!   Handlers are not waited for
//! - **Order** a thread counts itself in before it looks whether the end has come; `end` says so before it looks at the count
//! - **Owner** a handler's thread that wants to go on after the end sleeps for ever, in a frame of this file. The process ends around it
//! - **Fork** a child has one thread: it begins with a count of none

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The interpreter is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Threads that run Python code for memlift, outside handlers.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// `end` waits no longer for them: reading a value may run code of others, which may never return.
const PATIENCE: Duration = Duration::from_secs(5);

thread_local! {
    /// Sections of this thread inside each other; the outermost is counted.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// This thread ends the interpreter.
    static ENDER: Cell<bool> = const { Cell::new(false) };
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Counts this thread in. Does not return once another one ends the interpreter.
fn count_in(py: Python<'_>) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    if ENDING.load(Ordering::SeqCst) && !ENDER.get() {
        count_out();
        py.detach(|| sleep_for_ever());
    }
}

fn count_out() {
    // A fork's child may leave what its parent had entered.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |inside| inside.checked_sub(1));
}

/// A section in which Rust calls Python code that ends soon.
pub struct Inside(());

impl Inside {
    /// Enters it; does not return if the interpreter ends.
    pub fn enter(py: Python<'_>) -> Inside {
        if DEPTH.get() == 0 {
            count_in(py);
        }
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }

    /// Calls a handler, which may take as long as it likes, and is not counted meanwhile. Does not return if the interpreter ends.
    pub fn call_handler<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        argument: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let arguments = PyTuple::new(py, [argument])?;
        let depth = DEPTH.replace(0);
        count_out();
        let guard = SleepForEver;
        // SAFETY: the interpreter is held, and function and arguments live until the call returns. If Python unwinds this thread, the
        // guard stops it in this frame, which then never ends.
        let result = unsafe { PyObject_CallObject(function.as_ptr(), arguments.as_ptr()) };
        std::mem::forget(guard);
        count_in(py);
        DEPTH.set(depth);
        // SAFETY: a new reference, or null with the exception set.
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

/// Ends a forced unwinding in the frame that holds it.
struct SleepForEver;

impl Drop for SleepForEver {
    fn drop(&mut self) {
        sleep_for_ever();
    }
}

unsafe extern "C-unwind" {
    /// Python's own. PyO3 declares it as a function that cannot unwind, and then the guard above would not run.
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// Lets no other thread begin with Python code of memlift, and waits for those that run some.
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

/// In a fork's child: its one thread is counted, if it is inside.
#[pyfunction]
fn _forked() {
    INSIDE.store(usize::from(DEPTH.get() > 0), Ordering::SeqCst);
}

/// Has both called when their time comes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(_end, module)?,))?;
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", wrap_pyfunction!(_forked, module)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
