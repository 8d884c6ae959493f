// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of Python objects for transforms: borrowed sources, borrowed targets, and new bytes objects for results.
//!
//! - **Flow** any contiguous buffer ──[`Input`]──▶ address and length. `out` or nothing ──[`Output`]──▶ address and capacity. After the
//!   transform, [`Output::finish`] returns a memoryview of `out`, or a new `bytes` without a copy.
//! - **Owner** a buffer stays exported, and cannot move, until its `Input` or `Output` is dropped. If another thread changes it during a
//!   transform, the result is undefined.

use crate::errors::unsupported;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use std::marker::PhantomData;

unsafe extern "C" {
    /// Function of Python's stable interface; see `bytesobject.h`.
    fn _PyBytes_Resize(object: *mut *mut ffi::PyObject, bytes: ffi::Py_ssize_t) -> std::ffi::c_int;
}

/// A buffer to read from.
pub struct Input {
    buffer: PyUntypedBuffer,
}

/// An address and a length that may be passed to a section without the GIL.
#[derive(Clone, Copy)]
pub struct Span(*mut u8, usize);

// SAFETY: an address and a length are plain numbers; each access to the memory has its own justification.
unsafe impl Send for Span {}
// SAFETY: a shared `Span` only gives copies of its two numbers; each access to the memory has its own justification.
unsafe impl Sync for Span {}

impl Span {
    /// A span of no bytes.
    pub const EMPTY: Span = Span(std::ptr::NonNull::dangling().as_ptr(), 0);

    /// Returns the span of a slice.
    pub fn of(bytes: &[u8]) -> Span {
        Span(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Returns the rest after the first `bytes` bytes; panics if there are fewer.
    pub fn after(self, bytes: usize) -> Span {
        let rest = self.1.checked_sub(bytes).expect("within the span");
        Span(self.0.wrapping_add(bytes), rest)
    }

    /// Returns the first `bytes` bytes, or all if there are fewer.
    pub fn first(self, bytes: usize) -> Span {
        Span(self.0, self.1.min(bytes))
    }

    /// Returns the address of the first byte.
    pub fn start(self) -> *mut u8 {
        self.0
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> usize {
        self.1
    }
}

impl Input {
    /// Borrows the buffer of `object`.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Input> {
        let py = object.py();
        let Ok(buffer) = PyUntypedBuffer::get(object) else {
            let kind = object.get_type().name()?;
            return Err(unsupported(py, &format!("an object of type {kind}, which has no buffer")));
        };
        if !buffer.is_c_contiguous() || buffer.suboffsets().is_some() {
            return Err(unsupported(py, "an array with gaps (numpy.ascontiguousarray makes one without)"));
        }
        Ok(Input { buffer })
    }

    /// Returns the buffer's address and length.
    pub fn span(&self) -> Span {
        match self.buffer.len_bytes() {
            0 => Span(std::ptr::NonNull::dangling().as_ptr(), 0),
            bytes => Span(self.buffer.buf_ptr().cast(), bytes),
        }
    }

    /// Returns the buffer's bytes.
    ///
    /// # Safety
    ///
    /// Nobody changes the bytes while the slice is used.
    pub unsafe fn slice(&self) -> &[u8] {
        let Span(start, bytes) = self.span();
        // SAFETY: the buffer is contiguous and exported as long as `self` lives; the caller guarantees that nobody changes the
        // bytes.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

/// A buffer to write to.
pub enum Output<'py> {
    /// The caller's writable buffer.
    Borrowed { buffer: PyUntypedBuffer, object: Bound<'py, PyAny> },
    /// A new bytes object to which nobody else has a reference.
    Fresh(Fresh<'py>),
}

/// A new bytes object, see [`Output::Fresh`].
pub struct Fresh<'py> {
    object: *mut ffi::PyObject,
    bytes: usize,
    /// Ensures that the GIL is held when this is dropped.
    gil: PhantomData<Python<'py>>,
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        // SAFETY: the GIL is held (`gil`), and this owns the reference; null is allowed.
        unsafe { ffi::Py_XDECREF(self.object) };
    }
}

/// Least memory for which huge pages are asked: as much as numpy has for its arrays.
const LEAST_BYTES: usize = 4 << 20;
/// Bytes of the smallest page of any kernel that runs this.
const PAGE_BYTES: usize = 4096;

/// Asks the kernel for huge pages in new memory. Much of the time to fill new memory goes into page faults, of which there are
/// then 512 times fewer. The range has the pages at both ends as well: if it had only a part of a mapping, malloc could not move
/// the mapping any more, and would copy its bytes to make it longer.
fn ask_for_huge_pages(memory: Span) {
    if memory.bytes() >= LEAST_BYTES {
        let start = memory.start().addr() / PAGE_BYTES * PAGE_BYTES;
        let end = (memory.start().addr() + memory.bytes()).next_multiple_of(PAGE_BYTES);
        // SAFETY: contents stay, and the pages hold the memory. An error only means pages of the usual size.
        unsafe {
            libc::madvise(memory.start().with_addr(start).cast(), end - start, libc::MADV_HUGEPAGE);
        }
    }
}

impl<'py> Output<'py> {
    /// Borrows the caller's `out`, or creates a bytes object of `bytes` bytes.
    pub fn new(py: Python<'py>, out: Option<&Bound<'py, PyAny>>, bytes: usize) -> PyResult<Output<'py>> {
        let Some(object) = out else { return Output::fresh(py, bytes) };
        let Ok(buffer) = PyUntypedBuffer::get(object) else {
            return Err(unsupported(py, "out, which has no buffer: give a bytearray or an array"));
        };
        if buffer.readonly() || !buffer.is_c_contiguous() || buffer.suboffsets().is_some() {
            return Err(unsupported(py, "out, which is read-only or has gaps: give a bytearray or an array"));
        }
        Ok(Output::Borrowed { buffer, object: object.clone() })
    }

    fn fresh(py: Python<'py>, bytes: usize) -> PyResult<Output<'py>> {
        let length =
            isize::try_from(bytes).map_err(|_| PyValueError::new_err("more bytes than memory has"))?;
        // SAFETY: the GIL is held. The bytes of the new object are not initialized, and nobody reads them before `finish`.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), length) };
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        let output = Output::Fresh(Fresh { object, bytes, gil: PhantomData });
        ask_for_huge_pages(output.span());
        Ok(output)
    }

    /// Returns the address and length of the memory to write to.
    pub fn span(&self) -> Span {
        match self {
            Output::Borrowed { buffer, .. } if buffer.len_bytes() == 0 => {
                Span(std::ptr::NonNull::dangling().as_ptr(), 0)
            }
            Output::Borrowed { buffer, .. } => Span(buffer.buf_ptr().cast(), buffer.len_bytes()),
            // SAFETY: only this has a reference to the bytes object.
            Output::Fresh(fresh) => unsafe { Span(ffi::PyBytes_AsString(fresh.object).cast(), fresh.bytes) },
        }
    }

    /// Makes a new bytes object longer and keeps its contents; its address may change.
    pub fn grow(&mut self, py: Python<'py>, bytes: usize) -> PyResult<()> {
        let Output::Fresh(fresh) = self else { return Err(PyValueError::new_err("out is too small")) };
        let length =
            isize::try_from(bytes).map_err(|_| PyMemoryError::new_err("more bytes than memory has"))?;
        // SAFETY: this has the only reference; on failure the object is freed and `object` set to null.
        if unsafe { _PyBytes_Resize(&raw mut fresh.object, length) } != 0 {
            fresh.bytes = 0;
            return Err(PyErr::fetch(py));
        }
        fresh.bytes = bytes;
        ask_for_huge_pages(self.span());
        Ok(())
    }

    /// Returns the first `written` bytes as a Python object; of a new bytes object, all of them must have been written.
    pub fn finish(self, py: Python<'py>, written: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Output::Borrowed { buffer, object } => {
                let all = PyMemoryView::from(&object)?;
                // Python cannot cast a memoryview of an array with an empty dimension.
                if buffer.len_bytes() == 0 {
                    return Ok(PyBytes::new(py, b"").into_any());
                }
                let bytes = all.call_method1("cast", ("B",))?;
                bytes.get_item(PySlice::new(py, 0, written as isize, 1))
            }
            Output::Fresh(mut fresh) => {
                let mut object = std::mem::replace(&mut fresh.object, std::ptr::null_mut());
                if written != fresh.bytes
                    // SAFETY: this has the only reference; on failure the object is freed and `object` set to null.
                    && unsafe { _PyBytes_Resize(&raw mut object, written as isize) } != 0
                {
                    return Err(PyErr::fetch(py));
                }
                // SAFETY: `object` is an owned reference, which is given away here.
                Ok(unsafe { Bound::from_owned_ptr(py, object) })
            }
        }
    }
}
