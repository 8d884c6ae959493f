// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values to bytes: the description is written here, the memory of arrays only noted, to be copied once where it goes.
//!
//! Order   one pass. A value that refers to itself ends at the limit of depth
//! Owner   an [`Encoded`] keeps every array exported, so that its memory stays while the GIL is released

use super::{ALIGN, Allow, DEPTH_MAX, DESCRIPTION_MAX, HEAD_BYTES, MAGIC, PIECE_MIN, helpers, tag};
use crate::convert::{array_class, numpy};
use crate::errors::unsupported;
use memlift::ipc::Outgoing;
use memlift::ipc::message::Shape;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView,
    PySet, PyString, PyTuple,
};

/// Memory to be copied.
struct Piece {
    at: u64,
    address: *const u8,
    bytes: u64,
}

// SAFETY: an address of memory that `Encoded::kept` keeps exported; it is only read.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// A value, ready to be copied.
pub struct Encoded<'py> {
    /// Head and description.
    head: Vec<u8>,
    pieces: Vec<Piece>,
    pieces_bytes: u64,
    kept: Vec<Kept<'py>>,
}

#[expect(dead_code, reason = "held so that their memory stays")]
enum Kept<'py> {
    Buffer(PyUntypedBuffer),
    Object(Bound<'py, PyAny>),
}

/// A part and where it goes, bytes from the start.
pub type Part<'a> = (u64, Outgoing<'a>);

impl<'py> Encoded<'py> {
    /// Looks at `value` without copying arrays.
    pub fn new(value: &Bound<'py, PyAny>, allow: Allow) -> PyResult<Encoded<'py>> {
        let mut encoded =
            Encoded { head: Vec::with_capacity(64), pieces: Vec::new(), pieces_bytes: 0, kept: Vec::new() };
        encoded.head.extend_from_slice(&MAGIC.to_le_bytes());
        encoded.head.extend_from_slice(&[0; 4]);
        encoded.value(value, allow, 0)?;
        let described = encoded.head.len() - HEAD_BYTES;
        if described > DESCRIPTION_MAX {
            return Err(unsupported(value.py(), "so many small values at once (send them as arrays)"));
        }
        encoded.head[4..HEAD_BYTES].copy_from_slice(&(described as u32).to_le_bytes());
        Ok(encoded)
    }

    /// Head and description: all there is, if `bytes` is their length.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    fn pieces_at(&self) -> u64 {
        (self.head.len() as u64).next_multiple_of(ALIGN)
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        if self.pieces.is_empty() { self.head.len() as u64 } else { self.pieces_at() + self.pieces_bytes }
    }

    /// The parts to copy, for as long as the value lives.
    pub fn parts(&self) -> Vec<Part<'_>> {
        let base = self.pieces_at();
        let mut parts = vec![(0, Outgoing::from(self.head.as_slice()))];
        for piece in &self.pieces {
            // SAFETY: `kept` holds what exports the memory. Another thread of the program may write an array while it is
            // copied; then the copy has some of both, as with any numpy operation that releases the GIL.
            let part = unsafe { Outgoing::from_raw(Shape::Bytes, piece.address, piece.bytes, None) };
            parts.push((base + piece.at, part));
        }
        parts
    }

    /// As one thing to send.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing::value(self.parts(), self.bytes()).expect("the parts lie within the bytes that they make up")
    }

    /// Copies everything into bytes of the process itself, `bytes()` long.
    pub fn copy_to(&self, target: &mut [u8]) {
        target[..self.head.len()].copy_from_slice(&self.head);
        let base = self.pieces_at();
        for piece in &self.pieces {
            let start = (base + piece.at) as usize;
            let target = &mut target[start..start + piece.bytes as usize];
            // SAFETY: `kept` keeps the source exported; the target is a unique borrow of as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(piece.address, target.as_mut_ptr(), target.len()) };
        }
    }

    fn byte(&mut self, byte: u8) {
        self.head.push(byte);
    }

    fn count(&mut self, py: Python<'_>, count: usize) -> PyResult<()> {
        let count = u32::try_from(count).map_err(|_| unsupported(py, "2^32 values at once"))?;
        self.head.extend_from_slice(&count.to_le_bytes());
        Ok(())
    }

    /// Notes memory to be copied, and says where it will be.
    fn piece(&mut self, address: *const u8, bytes: u64) {
        self.joined(&[(address, bytes)]);
    }

    /// The same for memory that will lie there as one piece.
    fn joined(&mut self, parts: &[(*const u8, u64)]) {
        let start = self.pieces_bytes.next_multiple_of(ALIGN);
        let mut at = start;
        for &(address, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0) {
            self.pieces.push(Piece { at, address, bytes });
            at += bytes;
            self.pieces_bytes = at;
        }
        self.head.extend_from_slice(&start.to_le_bytes());
        self.head.extend_from_slice(&(at - start).to_le_bytes());
    }

    fn value(&mut self, value: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = value.py();
        if depth > DEPTH_MAX {
            return Err(unsupported(py, "a value nested more than 100 deep, or one that contains itself"));
        }
        if value.is_none() {
            self.byte(tag::NONE);
        } else if value.is_exact_instance_of::<PyBool>() {
            self.byte(if value.is_truthy()? { tag::TRUE } else { tag::FALSE });
        } else if value.is_exact_instance_of::<PyInt>() {
            self.int(value)?;
        } else if value.is_exact_instance_of::<PyFloat>() {
            self.byte(tag::FLOAT);
            self.head.extend_from_slice(&value.extract::<f64>()?.to_le_bytes());
        } else if let Ok(text) = value.cast_exact::<PyString>() {
            let text = text.to_str().map_err(|_| unsupported(py, "a str with lone surrogates"))?;
            self.byte(tag::STR);
            self.count(py, text.len())?;
            self.head.extend_from_slice(text.as_bytes());
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            let slice = bytes.as_bytes();
            if slice.len() < PIECE_MIN {
                self.byte(tag::BYTES);
                self.count(py, slice.len())?;
                self.head.extend_from_slice(slice);
            } else {
                self.byte(tag::BYTES_PIECE);
                self.piece(slice.as_ptr(), slice.len() as u64);
                self.kept.push(Kept::Object(value.clone()));
            }
        } else if value.is_exact_instance(array_class(py)?) {
            self.array(value, allow, depth)?;
        } else if let Ok(list) = value.cast_exact::<PyList>() {
            self.byte(tag::LIST);
            let items: Vec<_> = list.iter().collect();
            self.many(py, &items, allow, depth)?;
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            self.byte(tag::TUPLE);
            let items: Vec<_> = tuple.iter().collect();
            self.many(py, &items, allow, depth)?;
        } else if let Ok(dict) = value.cast_exact::<PyDict>() {
            self.byte(tag::DICT);
            let pairs: Vec<_> = dict.iter().collect();
            self.count(py, pairs.len())?;
            for (key, value) in pairs {
                self.value(&key, allow, depth + 1)?;
                self.value(&value, allow, depth + 1)?;
            }
        } else if let Ok(set) = value.cast_exact::<PySet>() {
            self.byte(tag::SET);
            let items: Vec<_> = set.iter().collect();
            self.many(py, &items, allow, depth)?;
        } else if let Ok(set) = value.cast_exact::<PyFrozenSet>() {
            self.byte(tag::FROZENSET);
            let items: Vec<_> = set.iter().collect();
            self.many(py, &items, allow, depth)?;
        } else if value.is_exact_instance_of::<PyComplex>() {
            self.byte(tag::COMPLEX);
            for part in ["real", "imag"] {
                self.head.extend_from_slice(&value.getattr(part)?.extract::<f64>()?.to_le_bytes());
            }
        } else if value.is_instance_of::<PyMemoryView>() || value.is_exact_instance_of::<PyByteArray>() {
            self.buffer(value)?;
        } else {
            self.special(value, allow, depth)?;
        }
        Ok(())
    }

    fn many(
        &mut self,
        py: Python<'py>,
        items: &[Bound<'py, PyAny>],
        allow: Allow,
        depth: u32,
    ) -> PyResult<()> {
        self.count(py, items.len())?;
        items.iter().try_for_each(|item| self.value(item, allow, depth + 1))
    }

    fn int(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if let Ok(small) = value.extract::<i64>() {
            self.byte(tag::INT);
            self.head.extend_from_slice(&small.to_le_bytes());
            return Ok(());
        }
        let py = value.py();
        let bits: usize = value.call_method0("bit_length")?.extract()?;
        let signed = PyDict::new(py);
        signed.set_item("signed", true)?;
        let bytes = value.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?;
        let bytes = bytes.cast::<PyBytes>()?;
        self.byte(tag::LONG);
        self.count(py, bytes.as_bytes().len())?;
        self.head.extend_from_slice(bytes.as_bytes());
        Ok(())
    }

    /// A memoryview or bytearray: its bytes.
    fn buffer(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let buffer = PyUntypedBuffer::get(value)?;
        self.byte(if value.is_exact_instance_of::<PyByteArray>() {
            tag::BYTEARRAY
        } else {
            tag::BYTES_PIECE
        });
        if !buffer.is_c_contiguous() || buffer.suboffsets().is_some() {
            let bytes = value.call_method0("tobytes")?;
            let slice = bytes.cast::<PyBytes>()?.as_bytes();
            self.piece(slice.as_ptr(), slice.len() as u64);
            self.kept.push(Kept::Object(bytes));
            return Ok(());
        }
        self.piece(buffer.buf_ptr().cast_const().cast(), buffer.len_bytes() as u64);
        self.kept.push(Kept::Buffer(buffer));
        Ok(())
    }

    fn array(&mut self, array: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = array.py();
        // Times have no buffer, records need their fields named: both as bytes, with their type beside them.
        let Ok(buffer) = PyUntypedBuffer::get(array) else { return self.special(array, allow, depth) };
        let format = buffer.format().to_bytes();
        if format.first() == Some(&b'T') || format.contains(&b'O') {
            return self.special(array, allow, depth);
        }
        let (buffer, fortran) = if buffer.is_c_contiguous() {
            (buffer, false)
        } else if buffer.is_fortran_contiguous() {
            (buffer, true)
        } else {
            let packed = numpy(py)?.call_method1("ascontiguousarray", (array,))?;
            (PyUntypedBuffer::get(&packed)?, false)
        };
        let dtype = array.getattr("dtype")?.getattr("str")?;
        self.byte(tag::ARRAY);
        self.described(py, &dtype, array, fortran)?;
        self.piece(buffer.buf_ptr().cast_const().cast(), buffer.len_bytes() as u64);
        self.kept.push(Kept::Buffer(buffer));
        Ok(())
    }

    fn described(
        &mut self,
        py: Python<'py>,
        dtype: &Bound<'py, PyAny>,
        array: &Bound<'py, PyAny>,
        fortran: bool,
    ) -> PyResult<()> {
        self.short(py, &dtype.extract::<String>()?)?;
        self.byte(u8::from(fortran));
        let shape: Vec<u64> = array.getattr("shape")?.extract()?;
        self.byte(shape.len() as u8);
        shape.iter().for_each(|extent| self.head.extend_from_slice(&extent.to_le_bytes()));
        Ok(())
    }

    fn short(&mut self, py: Python<'_>, text: &str) -> PyResult<()> {
        let length =
            u8::try_from(text.len()).map_err(|_| unsupported(py, &format!("a type named {text:?}")))?;
        self.byte(length);
        self.head.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// What Python takes apart: `(kind, value)`, where a kind of "" stands for the value itself.
    fn special(&mut self, value: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = value.py();
        let parts = helpers(py)?.call_method1("reduce", (value, allow.pickle))?;
        let (kind, inner): (String, Bound<'py, PyAny>) = parts.extract()?;
        // Whatever it made lives until the bytes are copied.
        self.kept.push(Kept::Object(inner.clone()));
        if kind == "scalar" {
            self.byte(tag::SCALAR);
            let dtype = inner.getattr("dtype")?.getattr("str")?;
            self.described(py, &dtype, &inner, false)?;
            let bytes = inner.call_method0("tobytes")?;
            let slice = bytes.cast::<PyBytes>()?.as_bytes();
            self.piece(slice.as_ptr(), slice.len() as u64);
            self.kept.push(Kept::Object(bytes));
            return Ok(());
        }
        if !kind.is_empty() {
            self.byte(tag::SPECIAL);
            self.short(py, &kind)?;
        }
        if kind.starts_with("arrow.") {
            return self.stream(&inner);
        }
        self.value(&inner, allow, depth + 1)
    }

    /// The buffers of a stream, as one array of bytes.
    fn stream(&mut self, buffers: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = buffers.py();
        let buffers: Vec<_> =
            buffers.try_iter()?.map(|buffer| PyUntypedBuffer::get(&buffer?)).collect::<PyResult<_>>()?;
        let parts: Vec<_> = buffers
            .iter()
            .map(|buffer| (buffer.buf_ptr().cast_const().cast::<u8>(), buffer.len_bytes() as u64))
            .collect();
        self.byte(tag::ARRAY);
        self.short(py, "|u1")?;
        self.head.extend_from_slice(&[0, 1]);
        let bytes: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        self.head.extend_from_slice(&bytes.to_le_bytes());
        self.joined(&parts);
        self.kept.extend(buffers.into_iter().map(Kept::Buffer));
        Ok(())
    }
}
