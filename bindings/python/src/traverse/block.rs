// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that came from a node, as an object that numpy and memoryview can use without a copy.
//!
//! - **Owner** Python: the bytes are freed after the last view. They never change.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes that came from a node.
#[pyclass(module = "memlift._native", frozen)]
pub struct Block {
    bytes: Vec<u8>,
}

impl Block {
    /// Creates a block that owns these bytes.
    pub fn new(bytes: Vec<u8>) -> Block {
        Block { bytes }
    }
}

#[pymethods]
impl Block {
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn __repr__(&self) -> String {
        format!("<memlift bytes of a walk, {}>", self.bytes.len())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("what a walk brought is read-only: copy it to change it"));
        }
        let bytes = &slf.get().bytes;
        let (pointer, length) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: `view` is the consumer's buffer struct, which is to be filled. The bytes neither move nor change while `slf`
        // lives, to which PyBuffer_FillInfo takes a reference; the view is read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, length, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
