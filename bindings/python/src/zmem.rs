// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.zmem`: makes this process a job with an exact amount of memory, and puts numpy's arrays into its arena.
//!
//! - **Flow** `zmem_enter` (once) starts the pager; `zmem_handler` returns numpy's allocator (NEP 49): large arrays come from
//!   `zmem::blocks`, small ones from `malloc`.
//! - **Owner** an array keeps the allocator that made it, so it may outlive the `with` block.
//! - **Order** numpy calls the allocator with or without the GIL, so nothing in it uses Python objects.
//! - **Not here** the `with` block, sizes given as text (`memlift/zmem.py`).

use std::ffi::{c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;

use memlift::zmem::block::{Objectives, OnOverflow};
use memlift::zmem::pager::{Pager, Pins};
use memlift::zmem::{arena, blocks};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Arrays of fewer bytes are allocated by `malloc`.
const LARGE_BYTES: usize = 64 << 10;

/// numpy's C type `PyDataMemAllocator`.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// numpy's C type `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

// SAFETY: the table is never written, and its context is null.
unsafe impl Sync for Handler {}

const _: () = assert!(std::mem::offset_of!(Handler, allocator) == 128);

static HANDLER: Handler = Handler {
    name: name(b"memlift_zmem"),
    version: 1,
    allocator: Allocator { context: null_mut(), malloc, calloc, realloc, free },
};

const fn name(text: &[u8]) -> [c_char; 127] {
    let mut name = [0; 127];
    let mut at = 0;
    while at < text.len() {
        name[at] = text[at] as c_char;
        at += 1;
    }
    name
}

fn address(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(null_mut(), |block| block.as_ptr().cast())
}

unsafe extern "C" fn malloc(_: *mut c_void, bytes: usize) -> *mut c_void {
    match Pager::get() {
        Some(pager) if bytes >= LARGE_BYTES => address(blocks::allocate(pager, bytes)),
        // SAFETY: malloc takes any size.
        _ => unsafe { libc::malloc(bytes.max(1)) },
    }
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // A new block is already zero.
        // SAFETY: `malloc` takes any size.
        Some(bytes) if bytes >= LARGE_BYTES && Pager::get().is_some() => unsafe { malloc(context, bytes) },
        // SAFETY: calloc takes any numbers, and refuses a product that is too large.
        _ => unsafe { libc::calloc(count.max(1), bytes.max(1)) },
    }
}

unsafe extern "C" fn realloc(context: *mut c_void, old: *mut c_void, bytes: usize) -> *mut c_void {
    let (pager, block) = match (Pager::get(), NonNull::new(old.cast::<u8>())) {
        // SAFETY: `malloc` takes any size.
        (_, None) => return unsafe { malloc(context, bytes) },
        (None, Some(_)) => {
            // SAFETY: numpy passes one of its own allocations; without a pager it came from `malloc`.
            return unsafe { libc::realloc(old, bytes.max(1)) };
        }
        (Some(pager), Some(block)) => (pager, block),
    };
    // SAFETY: numpy passes an address that this allocator returned, and nobody uses it during the call: in the arena it is a
    // block, elsewhere it came from `malloc`. Copies are limited to the smaller of the two sizes.
    unsafe {
        if Pager::contains(old.addr()) {
            return address(blocks::resize(pager, block, bytes));
        }
        if bytes < LARGE_BYTES {
            return libc::realloc(old, bytes.max(1));
        }
        let new = malloc(context, bytes);
        if !new.is_null() {
            let kept = libc::malloc_usable_size(old).min(bytes);
            new.cast::<u8>().copy_from_nonoverlapping(old.cast(), kept);
            libc::free(old);
        }
        new
    }
}

unsafe extern "C" fn free(_: *mut c_void, old: *mut c_void, _bytes: usize) {
    // SAFETY: as in `realloc`: a block of the arena, or memory of `malloc`, which nobody uses any more.
    unsafe {
        match (Pager::get(), NonNull::new(old.cast::<u8>())) {
            (Some(pager), Some(block)) if Pager::contains(old.addr()) => blocks::release(pager, block),
            _ => libc::free(old),
        }
    }
}

fn failed(error: memlift::zmem::Error) -> PyErr {
    PyMemoryError::new_err(error.to_string())
}

/// Makes this process a job of `total` bytes; a second call changes the job's total.
#[pyfunction]
fn zmem_enter(
    py: Python<'_>,
    name: &str,
    total: usize,
    min_uncompressed: usize,
    on_overflow: &str,
) -> PyResult<()> {
    let on_overflow = OnOverflow::parse(on_overflow).ok_or_else(|| {
        PyValueError::new_err(format!("on_overflow is \"pause\" or \"fail\", not {on_overflow:?}"))
    })?;
    py.detach(|| {
        if let Some(pager) = Pager::get() {
            let job = pager.job();
            job.registry().set_min_uncompressed(job.block(), min_uncompressed);
            return job.registry().set_total(job.block(), total).map_err(failed);
        }
        // This amount of memory is kept free in advance.
        let unused = (total / 64).max(1 << 20);
        let objectives = Objectives { total, unused, min_uncompressed, on_overflow };
        arena::enter(name, &objectives).map(drop).map_err(failed)
    })
}

/// Returns numpy's allocator over the arena, in the form of `PyDataMem_SetHandler`.
#[pyfunction]
fn zmem_handler(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: the table and its name live as long as the process, and the capsule has no destructor.
    unsafe {
        let table = (&raw const HANDLER).cast_mut().cast();
        let capsule = ffi::PyCapsule_New(table, c"mem_handler".as_ptr(), None);
        Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
    }
}

/// Returns the pager's counters and memory use; `None` if there is no pager.
#[pyfunction]
fn zmem_numbers(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(pager) = Pager::get() else { return Ok(None) };
    let (numbers, job) = (pager.numbers(), pager.job());
    let dict = PyDict::new(py);
    dict.set_item("total", job.total())?;
    dict.set_item("unused", job.unused())?;
    dict.set_item("faults", numbers.faults)?;
    dict.set_item("pages_in", numbers.pages_in)?;
    dict.set_item("pages_packed", numbers.pages_packed)?;
    dict.set_item("pages_spilled", numbers.pages_spilled)?;
    dict.set_item("present_bytes", numbers.present_bytes + numbers.native_bytes)?;
    dict.set_item("store_bytes", numbers.store_bytes)?;
    dict.set_item("mapped_bytes", numbers.mapped_bytes)?;
    Ok(Some(dict))
}

/// Pages that are kept in memory, for system calls.
#[pyclass(module = "memlift.zmem", frozen)]
struct PinnedPages(Mutex<Option<Pins<'static>>>);

#[pymethods]
impl PinnedPages {
    /// Releases the pages.
    fn release(&self) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }
}

/// Faults a range in and keeps its pages in memory; memory outside of the arena needs no pin.
#[pyfunction]
fn zmem_pin(py: Python<'_>, address: usize, bytes: usize, write: bool) -> PyResult<PinnedPages> {
    let Some(pager) = Pager::get() else { return Ok(PinnedPages(Mutex::new(None))) };
    let pins = py.detach(|| pager.pin(address, bytes, write));
    let pins = pins.map_err(|errno| {
        let reason = std::io::Error::from_raw_os_error(errno);
        PyMemoryError::new_err(format!(
            "{bytes} bytes cannot be kept present: {reason}; pin less, or give the job more"
        ))
    })?;
    Ok(PinnedPages(Mutex::new(Some(pins))))
}

/// Adds classes and functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PinnedPages>()?;
    module.add_function(wrap_pyfunction!(zmem_enter, module)?)?;
    module.add_function(wrap_pyfunction!(zmem_handler, module)?)?;
    module.add_function(wrap_pyfunction!(zmem_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(zmem_pin, module)?)?;
    Ok(())
}
