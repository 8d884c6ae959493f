// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Python values as bytes, without pickle: what is read back can be nothing but data.
//!
//! - **Flow** value ──`encode`──▶ a description and the memory of its arrays, which is copied once, to where the receiver looks
//!   those bytes ──`decode`──▶ the value; arrays are views of the received memory
//! - **Layout** docs/formats/values.md: 0 [`MAGIC`] u32 · 4 bytes of the description u32 · 8 the description · from the next multiple
//!   of 64 the pieces, each at a multiple of 64
//! - **Owner** rare kinds (dataclasses, records, Arrow, pandas, pickles) are taken apart and put together by `memlift/_values.py`
//! - **Not here** trust: every number that is read is checked, the description is copied out before it is read

mod decode;
#[expect(unsafe_code, reason = "borrows memory of Python objects while they are exported")]
mod encode;

pub use decode::decode;
pub use encode::{Encoded, type_name};

use crate::errors::raise;
use crate::slot::Slot;
use memlift::ipc::Item;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// First four bytes, "mlv" and the version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"mlv\x01");
/// Bytes before the description.
pub const HEAD_BYTES: usize = 8;
/// Alignment of pieces, bytes.
pub const ALIGN: u64 = 64;
/// Deepest nesting of containers that is encoded or decoded.
pub const DEPTH_MAX: u32 = 100;
/// Longest description, bytes.
pub const DESCRIPTION_MAX: usize = 256 << 20;
/// Bytes objects from here on are pieces.
pub const PIECE_MIN: usize = 4096;

/// The first byte of a value in a description.
pub mod tag {
    pub const NONE: u8 = 0;
    pub const FALSE: u8 = 1;
    pub const TRUE: u8 = 2;
    /// Followed by an i64.
    pub const INT: u8 = 3;
    /// Followed by a u32 byte count and the number in two's complement, little endian.
    pub const LONG: u8 = 4;
    pub const FLOAT: u8 = 5;
    pub const COMPLEX: u8 = 6;
    /// Followed by a u32 byte count and UTF-8.
    pub const STR: u8 = 7;
    /// Followed by a u32 byte count and the bytes.
    pub const BYTES: u8 = 8;
    /// Followed by the place of a piece: u64 offset from the first piece, u64 bytes.
    pub const BYTES_PIECE: u8 = 9;
    /// Followed by a u32 count and the values.
    pub const LIST: u8 = 10;
    pub const TUPLE: u8 = 11;
    /// Followed by a u32 count and the pairs.
    pub const DICT: u8 = 12;
    pub const SET: u8 = 13;
    pub const FROZENSET: u8 = 14;
    /// u8 bytes of numpy's type string · u8 order (0 C, 1 Fortran) · u8 dimensions · u64 each · where.
    pub const ARRAY: u8 = 15;
    /// As an array without dimensions.
    pub const SCALAR: u8 = 16;
    /// u8 bytes of a name · a value: for `_values.restore`.
    pub const SPECIAL: u8 = 17;
    pub const BYTEARRAY: u8 = 18;
    /// u8 bytes of numpy's type string · u32 bytes · the element itself.
    pub const SCALAR_HERE: u8 = 19;
    /// u32 bytes of UTF-8 in which lone surrogates stand as if they were characters.
    pub const SURROGATES: u8 = 20;
}

/// Leave to send more than plain data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allow {
    pub pickle: bool,
}

/// The module `memlift._values`, imported once.
fn helpers(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static HELPERS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    HELPERS
        .get_or_try_init(py, || py.import("memlift._values").map(Bound::unbind))
        .map(|module| module.bind(py))
}

/// The module `memlift._dtypes`, imported once.
fn dtypes(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static DTYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    DTYPES
        .get_or_try_init(py, || py.import("memlift._dtypes").map(Bound::unbind))
        .map(|module| module.bind(py))
}

/// Raises what sending the value would raise; copies nothing.
#[pyfunction]
pub fn _check(value: &Bound<'_, PyAny>, allow_pickle: bool) -> PyResult<()> {
    Encoded::new(value, Allow { pickle: allow_pickle }).map(drop)
}

/// The bytes that a value becomes.
#[pyfunction]
#[pyo3(signature = (value, allow_pickle=false))]
pub fn _encode<'py>(value: &Bound<'py, PyAny>, allow_pickle: bool) -> PyResult<Bound<'py, PyBytes>> {
    let encoded = Encoded::new(value, Allow { pickle: allow_pickle })?;
    PyBytes::new_with(value.py(), encoded.bytes() as usize, |target| {
        target.fill(0);
        encoded.copy_to(target);
        Ok(())
    })
}

/// The value of some bytes, which are copied first.
#[pyfunction]
#[pyo3(signature = (data, allow_pickle=false))]
pub fn _decode<'py>(py: Python<'py>, data: Vec<u8>, allow_pickle: bool) -> PyResult<Bound<'py, PyAny>> {
    let slot = Slot::taken(Item::from(data)).map_err(|error| raise(py, error))?;
    decode(&Bound::new(py, slot)?, Allow { pickle: allow_pickle })
}
