// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slot of shared memory as a Python object: the base of numpy views of received data and of loans.
//!
//! - **Owner** Python. Every view (numpy array, memoryview) holds a reference; after the last one the payload or loan is dropped, which
//!   frees the slot.
//! - **Layout** exported as one dimension of bytes; numpy adds type and shape.

use memlift::ipc::{Error, Item, Loan, Payload, Writable};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

enum SlotOwner {
    Received(Payload),
    Copied(Writable),
    Lent(Loan),
    Taken(Item, Address),
}

/// Address of the first byte of a taken item.
struct Address(*mut u8);

// SAFETY: the address points into the item stored beside it, which any thread may own; Python code synchronises its uses of
// buffers.
unsafe impl Send for Address {}
// SAFETY: a shared `Address` only gives a copy of the pointer; Python code synchronises its uses of the buffer.
unsafe impl Sync for Address {}

/// Shared memory of a pool, created by the library. Use the array over it.
#[pyclass(module = "memlift._native", frozen)]
pub struct Slot {
    owner: SlotOwner,
}

impl Slot {
    pub fn received(payload: Payload) -> Slot {
        Slot { owner: SlotOwner::Received(payload) }
    }

    /// Wraps a payload whose pages become this process's own when they are written.
    pub fn copied(payload: Payload) -> Result<Slot, Error> {
        Ok(Slot { owner: SlotOwner::Copied(payload.into_writable()?) })
    }

    pub fn lent(loan: Loan) -> Slot {
        Slot { owner: SlotOwner::Lent(loan) }
    }

    /// Wraps an item taken from a queue. Only this process has it, so it is writable.
    pub fn taken(mut item: Item) -> Result<Slot, Error> {
        let address = Address(item.as_mut_ptr()?);
        Ok(Slot { owner: SlotOwner::Taken(item, address) })
    }

    pub fn bytes(&self) -> u64 {
        match &self.owner {
            SlotOwner::Received(payload) => payload.bytes(),
            SlotOwner::Copied(payload) => payload.bytes(),
            SlotOwner::Lent(loan) => loan.bytes(),
            SlotOwner::Taken(item, _) => item.bytes(),
        }
    }

    /// Copies the bytes from offset `at` on.
    pub fn read_into(&self, at: u64, target: &mut [u8]) -> Result<(), Error> {
        let end = at.checked_add(target.len() as u64);
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(Error::PeerFault { what: "data that is too short".to_owned() });
        }
        let base = match &self.owner {
            SlotOwner::Received(payload) => payload.as_ptr(),
            SlotOwner::Copied(payload) => payload.as_mut_ptr().cast_const(),
            SlotOwner::Lent(loan) => loan.as_mut_ptr().cast_const(),
            SlotOwner::Taken(item, _) => return item.read_into(at, target),
        };
        // SAFETY: the range was checked against the memory's length, and the memory stays mapped while `self` lives. Another
        // process may write to it during the copy: then the copy has old and new bytes, and all checks are made on the copy.
        unsafe { std::ptr::copy_nonoverlapping(base.add(at as usize), target.as_mut_ptr(), target.len()) };
        Ok(())
    }
}

#[pymethods]
impl Slot {
    fn __len__(&self) -> usize {
        self.bytes() as usize
    }

    fn __repr__(&self) -> String {
        let kind = match &self.owner {
            SlotOwner::Received(_) => "received",
            SlotOwner::Copied(_) => "copied when written",
            SlotOwner::Lent(_) => "lent",
            SlotOwner::Taken(..) => "taken",
        };
        format!("<memlift pool memory, {} bytes, {kind}>", self.__len__())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (pointer, readonly): (*mut c_void, bool) = match &this.owner {
            SlotOwner::Received(payload) => (payload.as_ptr().cast_mut().cast(), true),
            SlotOwner::Copied(payload) => (payload.as_mut_ptr().cast(), false),
            SlotOwner::Lent(loan) => (loan.as_mut_ptr().cast(), false),
            SlotOwner::Taken(_, address) => (address.0.cast(), false),
        };
        let length = this.__len__() as ffi::Py_ssize_t;
        if readonly && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("received data is read-only: copy it to change it"));
        }
        // SAFETY: `view` is the consumer's buffer struct, which is to be filled. The memory stays mapped and leased while `slf`
        // lives, and PyBuffer_FillInfo takes the reference to `slf` that keeps it alive. A peer may change received bytes
        // meanwhile, as documented; Python code reads them like any buffer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, length, c_int::from(readonly), flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
