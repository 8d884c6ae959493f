// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes Python values as bytes without pickle: decoding can only produce data, and runs no code of the sender.
//!
//! - **Flow** `encode` makes a description, and records the memory of the value's arrays, which is copied once, to the receiver's memory.
//!   `decode` makes the value from those bytes; its arrays are views of the received memory.
//! - **Layout** docs/formats/values.md: 0 [`MAGIC`] u32 · 4 bytes of the description u32 · 8 the description · from the next multiple of
//!   64 on the pieces, each at a multiple of 64.
//! - **Owner** `memlift/_values.py` splits rare kinds (dataclasses, records, Arrow, pandas, pickles) into parts and restores them.
//! - **Not here** trust: every number that is read is checked, and the description is copied before it is read.

mod decode;
#[expect(unsafe_code, reason = "borrows memory of Python objects while they are exported")]
mod encode;

pub use decode::decode;
pub use encode::{Encoded, is_of_bytes, type_name};

use crate::errors::raise;
use crate::slot::Slot;
use memlift::ipc::{Client, Item};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// The first four bytes: "mlv" and the version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"mlv\x01");
/// Bytes before the description.
pub const HEAD_BYTES: usize = 8;
/// Alignment of pieces, bytes.
pub const ALIGN: u64 = 64;
/// Deepest nesting of containers that is encoded or decoded.
pub const DEPTH_MAX: u32 = 100;
/// Longest description, bytes.
pub const DESCRIPTION_MAX: usize = 256 << 20;
/// Bytes objects of at least this size are stored as pieces.
pub const PIECE_MIN: usize = 4096;

/// First byte of a value in a description.
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
    /// Followed by the position of a piece: u64 offset from the first piece, u64 bytes.
    pub const BYTES_PIECE: u8 = 9;
    /// Followed by a u32 count and the values.
    pub const LIST: u8 = 10;
    pub const TUPLE: u8 = 11;
    /// Followed by a u32 count and the pairs.
    pub const DICT: u8 = 12;
    pub const SET: u8 = 13;
    pub const FROZENSET: u8 = 14;
    /// Followed by u8 bytes of numpy's type string · u8 order (0 C, 1 Fortran) · u8 dimensions · u64 each · position of a piece.
    pub const ARRAY: u8 = 15;
    /// Followed by the same as an array without dimensions.
    pub const SCALAR: u8 = 16;
    /// Followed by u8 bytes of a name · a value; `_values.restore` restores it.
    pub const SPECIAL: u8 = 17;
    pub const BYTEARRAY: u8 = 18;
    /// Followed by u8 bytes of numpy's type string · u32 bytes · the element itself.
    pub const SCALAR_HERE: u8 = 19;
    /// Followed by u32 bytes of UTF-8 in which lone surrogates are encoded like characters.
    pub const SURROGATES: u8 = 20;
}

/// Permission to send more than plain data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allow {
    pub pickle: bool,
    /// The whole message may be the arguments of a call.
    pub arguments: bool,
}

/// Kind of the value that stands for several arguments of one call (`memlift/_values.py`).
pub const ARGUMENTS: &str = "arguments";
/// Kind of the value that stands for the end of a stream (`memlift/_values.py`).
pub const END: &str = "end";

/// Kind of a ref of an arena; `_values.restore` restores it.
const REF: &str = "ref";

/// Returns the class `memlift.Ref`, looked up once.
fn ref_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS
        .get_or_try_init(py, || py.import("memlift._native")?.getattr("Ref").map(Bound::unbind))
        .map(|class| class.bind(py))
}

/// Checks that the server takes several arguments.
pub fn takes_several(py: Python<'_>, client: &Client) -> PyResult<()> {
    client.needs_services("takes several arguments").map_err(|error| raise(py, error))
}

/// Returns what a call sends: its one argument itself, or one value that has all of them.
pub fn joined<'py>(
    py: Python<'py>,
    client: &Client,
    first: Option<Bound<'py, PyAny>>,
    rest: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    if rest.is_empty() && named.is_none() {
        return Ok(first.unwrap_or_else(|| py.None().into_bound(py)));
    }
    takes_several(py, client)?;
    let all = PyTuple::new(py, first.into_iter().chain(rest.iter()).collect::<Vec<_>>())?;
    helpers(py)?.call_method1("arguments", (all, named))
}

/// Returns the module `memlift._values`, imported once.
fn helpers(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static HELPERS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    HELPERS
        .get_or_try_init(py, || py.import("memlift._values").map(Bound::unbind))
        .map(|module| module.bind(py))
}

/// Returns the module `memlift._dtypes`, imported once.
fn dtypes(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static DTYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    DTYPES
        .get_or_try_init(py, || py.import("memlift._dtypes").map(Bound::unbind))
        .map(|module| module.bind(py))
}

/// Raises the exception that sending the value would raise; copies nothing.
#[pyfunction]
pub fn _check(value: &Bound<'_, PyAny>, allow_pickle: bool) -> PyResult<()> {
    Encoded::new(value, Allow { pickle: allow_pickle, arguments: false }).map(drop)
}

/// Returns the bytes that a value is encoded to.
#[pyfunction]
#[pyo3(signature = (value, allow_pickle=false))]
pub fn _encode<'py>(value: &Bound<'py, PyAny>, allow_pickle: bool) -> PyResult<Bound<'py, PyBytes>> {
    let encoded = Encoded::new(value, Allow { pickle: allow_pickle, arguments: false })?;
    PyBytes::new_with(value.py(), encoded.bytes() as usize, |target| {
        target.fill(0);
        encoded.copy_to(target);
        Ok(())
    })
}

/// Returns the value that the bytes encode; the bytes are copied first.
#[pyfunction]
#[pyo3(signature = (data, allow_pickle=false))]
pub fn _decode<'py>(py: Python<'py>, data: Vec<u8>, allow_pickle: bool) -> PyResult<Bound<'py, PyAny>> {
    let slot = Slot::taken(Item::from(data)).map_err(|error| raise(py, error))?;
    decode(&Bound::new(py, slot)?, Allow { pickle: allow_pickle, arguments: false })
}
