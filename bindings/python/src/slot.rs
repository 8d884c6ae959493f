// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slot of a pool as a Python object: what numpy views of received data and loans are based on.
//!
//! Owner   Python. Every view (numpy array, memoryview) holds a reference; the last one gone drops the payload or loan,
//!         and that gives the slot back.
//! Layout  exported as one dimension of bytes; numpy puts type and shape on top

use memlift::ipc::{Loan, Payload};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

enum Held {
    Received(Payload),
    Lent(Loan),
}

/// Memory of a pool. Made by the library; use the array on top of it.
#[pyclass(module = "memlift._native", frozen)]
pub struct Slot {
    held: Held,
}

impl Slot {
    pub fn received(payload: Payload) -> Slot {
        Slot { held: Held::Received(payload) }
    }

    pub fn lent(loan: Loan) -> Slot {
        Slot { held: Held::Lent(loan) }
    }
}

#[pymethods]
impl Slot {
    fn __len__(&self) -> usize {
        match &self.held {
            Held::Received(payload) => payload.bytes() as usize,
            Held::Lent(loan) => loan.bytes() as usize,
        }
    }

    fn __repr__(&self) -> String {
        let kind = match &self.held {
            Held::Received(_) => "received",
            Held::Lent(_) => "lent",
        };
        format!("<memlift pool memory, {} bytes, {kind}>", self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (pointer, readonly): (*mut c_void, bool) = match &this.held {
            Held::Received(payload) => (payload.as_ptr().cast_mut().cast(), true),
            Held::Lent(loan) => (loan.as_mut_ptr().cast(), false),
        };
        let length = this.__len__() as ffi::Py_ssize_t;
        if readonly && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("received data is read-only: copy it to change it"));
        }
        // SAFETY: `view` is the consumer's buffer struct, to be filled. The memory stays mapped and leased while `slf`
        // lives, and PyBuffer_FillInfo takes the reference to `slf` that keeps it so. A peer may change received bytes
        // meanwhile, as documented; Python code reads them like any buffer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, length, c_int::from(readonly), flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
