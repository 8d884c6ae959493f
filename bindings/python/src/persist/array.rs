// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrays in a pool: stored, viewed without a copy, changed by copying.
//!
//! - **Layout** an object of type [`TYPE`]: 48 zero bytes, then the elements in C order. So the elements begin at a multiple of 16; from
//!   16 KiB on, of 64.
//! - **Rule** the bytes of a view never change: replacing or changing a pinned array makes a new object. Python never gets writable
//!   memory of the pool, because it cannot guarantee that nobody else reads it.
//! - **Order** the program changes a copy. At the end it is compared with the array: the differences are logged, or, if they are many, a
//!   new object is written, which does not go through the log.
//! - **Not here** numpy: the Python side adds shape and type to the bytes.

use std::ffi::c_int;
use std::sync::Arc;

use memlift::persist::layout::crc32c;
use memlift::persist::raw::{ARRAY_PAD, ARRAY_TYPE, Looking, PoolRef, read_raw};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::pool::{Inner, Kind, Named, Trouble, Writing};
use crate::memory::Input;

/// Type of the object that holds an array.
pub const TYPE: u64 = ARRAY_TYPE;
/// Zero bytes before the elements.
const PAD: usize = ARRAY_PAD;
/// Unit of the comparison for differences: a cache line, bytes.
const LINE: usize = 64;
/// With more runs of differing lines than this, a new object is cheaper than a log record of that many ranges.
const RUNS_MAX: usize = 10_000;
/// Most dimensions of an array, those of NumPy 2.
const DIMENSIONS_MAX: usize = 64;
/// New arrays of at least this size are stored past the log, bytes.
const LARGE_BYTES: usize = 16 << 10;

/// Element type and extents.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape {
    kind: u8,
    element_bytes: u8,
    extents: Vec<u64>,
}

impl Shape {
    pub fn new((kind, element_bytes): (char, u8), extents: Vec<u64>) -> Shape {
        Shape { kind: u8::try_from(kind).unwrap_or(b'?'), element_bytes, extents }
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&[self.kind, self.element_bytes, self.extents.len() as u8]);
        self.extents.iter().for_each(|extent| into.extend_from_slice(&extent.to_le_bytes()));
    }

    pub fn decode(bytes: &[u8]) -> Option<Shape> {
        let (head, rest) = bytes.split_at_checked(3)?;
        let (words, left) = rest.as_chunks::<8>();
        if !left.is_empty() || words.len() != usize::from(head[2]) {
            return None;
        }
        let extents = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let shape = Shape { kind: head[0], element_bytes: head[1], extents };
        shape.bytes().is_some().then_some(shape)
    }

    /// Returns the size of the whole array; `None` if the shape is invalid.
    fn bytes(&self) -> Option<usize> {
        let known = match self.kind {
            b'b' => self.element_bytes == 1,
            b'i' | b'u' => matches!(self.element_bytes, 1 | 2 | 4 | 8),
            b'f' => matches!(self.element_bytes, 2 | 4 | 8),
            b'c' => matches!(self.element_bytes, 8 | 16),
            _ => false,
        };
        if !known || self.extents.len() > DIMENSIONS_MAX {
            return None;
        }
        let bytes = self
            .extents
            .iter()
            .try_fold(u64::from(self.element_bytes), |bytes, extent| bytes.checked_mul(*extent))?;
        usize::try_from(bytes).ok().filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    fn dtype(&self) -> String {
        format!("{}{}", char::from(self.kind), self.element_bytes)
    }
}

fn not_an_array(name: &str) -> Trouble {
    Trouble::Argument(format!("{name:?} is a dict: pool.dict gives it"))
}

fn spoilt(name: &str) -> Trouble {
    Trouble::Gone(format!("the array {name:?} has another length than its shape says: the pool is damaged"))
}

impl Writing<'_, '_> {
    fn put_elements(&mut self, name: &str, elements: &[u8], shape: Shape) -> Result<(), Trouble> {
        let before = Inner::find(self.tx, name)?;
        if before.as_ref().is_some_and(|named| named.kind != Kind::Array) {
            return Err(not_an_array(name));
        }
        let offset = match elements {
            [] => 0,
            _ => self.tx.alloc_raw(TYPE, &[&[0; PAD], elements])?,
        };
        self.fresh.insert(offset);
        self.name(name, &Named { kind: Kind::Array, offset, shape: Some(shape) })?;
        if let Some(before) = before {
            self.retire(before.offset)?;
        }
        Ok(())
    }

    fn change_elements(&mut self, name: &str, now: &[u8]) -> Result<(), Trouble> {
        let Some(Named { kind: Kind::Array, offset, shape: Some(shape) }) = Inner::find(self.tx, name)?
        else {
            return Err(Trouble::Gone(format!("there is no array {name:?} in the pool any more")));
        };
        if shape.bytes() != Some(now.len()) {
            return Err(Trouble::Argument(format!(
                "the array {name:?} was replaced by one of another size while it was changed"
            )));
        }
        if now.is_empty() {
            return Ok(());
        }
        let payload = read_raw(self.tx, offset, TYPE)?;
        let before =
            payload.get(PAD..).filter(|before| before.len() == now.len()).ok_or_else(|| spoilt(name))?;
        let runs = differences(before, now);
        let changed: usize = runs.iter().map(|(_, bytes)| bytes).sum();
        if runs.is_empty() {
            return Ok(());
        }
        let much = now.len() >= LARGE_BYTES && (runs.len() > RUNS_MAX || changed > now.len() / 4);
        if much || self.inner.pins.contains(offset) {
            return self.put_elements(name, now, shape);
        }
        for (from, bytes) in runs {
            self.tx.write_raw(offset, TYPE, (PAD + from) as u64, &now[from..from + bytes])?;
        }
        self.fresh.insert(offset);
        Ok(())
    }
}

/// Returns the runs of lines that differ, as offset and length in bytes.
fn differences(before: &[u8], now: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (at, (old, new)) in before.chunks(LINE).zip(now.chunks(LINE)).enumerate() {
        if old == new {
            continue;
        }
        match runs.last_mut() {
            Some((from, bytes)) if *from + *bytes == at * LINE => *bytes += new.len(),
            _ => runs.push((at * LINE, new.len())),
        }
    }
    runs
}

/// Stores `data` as an array under a name.
pub fn put(inner: &Inner, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>, shape: Shape) -> PyResult<()> {
    let input = Input::new(data)?;
    if shape.bytes() != Some(input.span().bytes()) {
        let text =
            format!("{} bytes are no array of {} with that shape", input.span().bytes(), shape.dtype());
        return Err(Trouble::Argument(text).raise(py));
    }
    let span = input.span();
    inner.write(py, move |writing| {
        // SAFETY: the buffer is exported while `input` lives, which is until after this call. The documentation requires
        // programs not to change it during the call.
        let elements = unsafe { std::slice::from_raw_parts(span.start().cast_const(), span.bytes()) };
        writing.put_elements(name, elements, shape)
    })
}

/// Replaces the contents of an array by `data`.
pub fn change(inner: &Inner, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let input = Input::new(data)?;
    let span = input.span();
    inner.write(py, move |writing| {
        // SAFETY: the conditions of `put`: an exported buffer that the program does not change during the call.
        let now = unsafe { std::slice::from_raw_parts(span.start().cast_const(), span.bytes()) };
        writing.change_elements(name, now)
    })
}

/// Returns the CRC-32C of an array's bytes as they are stored; `None` if there is no such array.
pub fn crc(inner: &Inner, py: Python<'_>, name: &str) -> PyResult<Option<u32>> {
    inner.read(py, |looking| {
        let (offset, shape) = match Inner::find(looking, name)? {
            None => return Ok(None),
            Some(Named { kind: Kind::Array, offset, shape: Some(shape) }) => (offset, shape),
            Some(_) => return Err(not_an_array(name)),
        };
        let bytes = shape.bytes().ok_or_else(|| spoilt(name))?;
        if bytes == 0 {
            return Ok(Some(0));
        }
        let payload = read_raw(looking, offset, TYPE)?;
        let elements = payload.get(PAD..).filter(|all| all.len() == bytes).ok_or_else(|| spoilt(name))?;
        Ok(Some(crc32c(&[elements])))
    })
}

/// Contents of an array, as [`view`] found them.
enum Found {
    Empty,
    Copy(Vec<u8>),
    Pinned { offset: u64, start: usize, bytes: usize, pool: PoolRef },
}

/// Returns a view of an array's current bytes, which keeps them unchanged as long as the view exists.
#[allow(clippy::type_complexity)] // a tuple for Python
pub fn view<'py>(
    inner: &Arc<Inner>,
    py: Python<'py>,
    name: &str,
) -> PyResult<Option<(Bound<'py, PyAny>, String, Vec<u64>)>> {
    // If the open transaction made or changed the array, a rollback could change it under its view, so it is copied.
    let copied = |offset| inner.is_fresh(offset);
    let found = inner.read(py, |looking| {
        let (offset, shape) = match Inner::find(looking, name)? {
            None => return Ok(None),
            Some(Named { kind: Kind::Array, offset, shape: Some(shape) }) => (offset, shape),
            Some(_) => return Err(not_an_array(name)),
        };
        let bytes = shape.bytes().ok_or_else(|| spoilt(name))?;
        if bytes == 0 {
            return Ok(Some((Found::Empty, shape)));
        }
        let payload = read_raw(looking, offset, TYPE)?;
        let elements = payload.get(PAD..).filter(|all| all.len() == bytes).ok_or_else(|| spoilt(name))?;
        let pool = match looking {
            Looking::Tx(_) if copied(offset) => return Ok(Some((Found::Copy(elements.to_vec()), shape))),
            Looking::Tx(_) => {
                inner.share().ok_or_else(|| Trouble::Closed("the pool is closed".to_owned()))?
            }
            Looking::Read(read) => read.pool(),
        };
        // The pin is added under the lock that is also needed to change or free the array.
        inner.pins.add(offset);
        Ok(Some((Found::Pinned { offset, start: elements.as_ptr().expose_provenance(), bytes, pool }, shape)))
    })?;
    let Some((found, shape)) = found else { return Ok(None) };
    let memory = match found {
        Found::Empty => PyBytes::new(py, b"").into_any(),
        Found::Copy(bytes) => PyBytes::new(py, &bytes).into_any(),
        Found::Pinned { offset, start, bytes, pool } => {
            let start = std::ptr::with_exposed_provenance(start);
            Bound::new(py, Pinned { start, bytes, offset, inner: Arc::clone(inner), _pool: pool })?.into_any()
        }
    };
    Ok(Some((memory, shape.dtype(), shape.extents)))
}

/// Memory of an array, pinned as long as this object exists.
#[pyclass(module = "memlift._native", frozen)]
pub struct Pinned {
    start: *const u8,
    bytes: usize,
    offset: u64,
    inner: Arc<Inner>,
    /// Keeps the pool's memory mapped.
    _pool: PoolRef,
}

// SAFETY: nobody writes to the memory while it is pinned, and `_pool` keeps it mapped, on whatever thread it is read.
unsafe impl Send for Pinned {}
// SAFETY: threads that share this only read the pinned memory, which nobody writes to; the pins are behind a mutex.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.inner.pins.remove(self.offset);
    }
}

#[pymethods]
impl Pinned {
    fn __len__(&self) -> usize {
        self.bytes
    }

    fn __repr__(&self) -> String {
        format!("<memlift pool memory, {} bytes, persistent>", self.bytes)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if flags & ffi::PyBUF_WRITABLE != 0 {
            let text = "a pool's memory is read-only: pool.edit gives a copy whose changes are kept";
            return Err(PyBufferError::new_err(text));
        }
        let (start, length) = (this.start.cast_mut().cast(), this.bytes as ffi::Py_ssize_t);
        // SAFETY: `view` is the consumer's buffer struct, which is to be filled. While `slf` lives, the memory stays mapped and
        // nobody writes to it (`pins`); PyBuffer_FillInfo takes the reference to `slf` that keeps it alive.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
