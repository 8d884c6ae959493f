// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes values: writes the description, and only records the memory of arrays, which is copied once to its destination.
//!
//! - **Order** one pass. A value that contains itself ends at the limit of depth.
//! - **Owner** an [`Encoded`] keeps every array exported, so that its memory stays valid while the GIL is released.

use super::decode::common_types;
use super::{
    ALIGN, Allow, DEPTH_MAX, DESCRIPTION_MAX, HEAD_BYTES, MAGIC, PIECE_MIN, REF, dtypes, helpers, ref_class,
    tag,
};
use crate::convert::{array_class, numpy};
use crate::errors::unsupported;
use crate::exit::Inside;
use memlift::ipc::message::Shape;
use memlift::ipc::{ElementType, Outgoing, Tensor};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView,
    PySet, PyString, PyTuple,
};

/// Memory that is to be copied.
struct Piece {
    at: u64,
    address: *const u8,
    bytes: u64,
    /// For an array with gaps: its elements, and the strides of its dimensions in bytes.
    gaps: Option<(Tensor, Vec<i64>)>,
}

// SAFETY: the address is that of memory that `Encoded::kept` keeps exported; it is only read.
unsafe impl Send for Piece {}
// SAFETY: any thread may read the memory, which `Encoded::kept` keeps exported.
unsafe impl Sync for Piece {}

/// An encoded value that is ready to be copied.
pub struct Encoded<'py> {
    /// The head and the description.
    head: Vec<u8>,
    pieces: Vec<Piece>,
    pieces_bytes: u64,
    kept: Vec<Kept<'py>>,
    /// True if the value is nested deeper, or has a longer description, than a reader accepts.
    too_much: bool,
}

#[expect(dead_code, reason = "held so that their memory stays")]
enum Kept<'py> {
    Buffer(PyUntypedBuffer),
    Object(Bound<'py, PyAny>),
}

/// A part of the message, and its offset from the start in bytes.
pub type Part<'a> = (u64, Outgoing<'a>);

impl<'py> Encoded<'py> {
    /// Describes `value` without copying arrays. A value that is nested too deep or has too long a description is pickled as a
    /// whole if that is allowed.
    ///
    /// # Errors
    ///
    /// `UnsupportedTypeError`, and exceptions that the value's own code raises.
    pub fn new(value: &Bound<'py, PyAny>, allow: Allow) -> PyResult<Encoded<'py>> {
        let _inside = Inside::enter(value.py());
        let mut encoded = Encoded::empty();
        let written = encoded.value(value, allow, 0).and_then(|()| encoded.check_length(value.py()));
        if encoded.too_much && allow.pickle {
            encoded = Encoded::empty();
            let parts = helpers(value.py())?.call_method1("pickled", (value,))?;
            encoded.reduced(&parts, allow, 0)?;
            return Ok(encoded.finished());
        }
        written?;
        Ok(encoded.finished())
    }

    fn empty() -> Encoded<'py> {
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(&MAGIC.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        Encoded { head, pieces: Vec::new(), pieces_bytes: 0, kept: Vec::new(), too_much: false }
    }

    fn finished(mut self) -> Encoded<'py> {
        let described = (self.head.len() - HEAD_BYTES) as u32;
        self.head[4..HEAD_BYTES].copy_from_slice(&described.to_le_bytes());
        self
    }

    /// Returns the head and the description; this is the whole message if its length is `bytes`.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    fn pieces_at(&self) -> u64 {
        (self.head.len() as u64).next_multiple_of(ALIGN)
    }

    /// Returns the length of the whole message, bytes.
    pub fn bytes(&self) -> u64 {
        if self.pieces.is_empty() { self.head.len() as u64 } else { self.pieces_at() + self.pieces_bytes }
    }

    /// Returns the parts to copy, valid as long as this object lives.
    pub fn parts(&self) -> Vec<Part<'_>> {
        let base = self.pieces_at();
        let mut parts = vec![(0, Outgoing::from(self.head.as_slice()))];
        for piece in &self.pieces {
            // SAFETY: `kept` holds the exporters of the memory, which guarantee shape and strides. Another thread of the program
            // may write to an array during the copy; the copy then has old and new elements, as with any numpy operation that
            // releases the GIL.
            let part = unsafe {
                match &piece.gaps {
                    None => Outgoing::from_raw(Shape::Bytes, piece.address, piece.bytes, None),
                    Some((tensor, strides)) => Outgoing::from_raw(
                        Shape::Tensor(*tensor),
                        piece.address,
                        piece.bytes,
                        Some(strides.clone()),
                    ),
                }
            };
            parts.push((base + piece.at, part));
        }
        parts
    }

    /// Returns the whole message as one payload to send.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing::value(self.parts(), self.bytes()).expect("the parts lie within the bytes that they make up")
    }

    /// Copies the whole message to private memory, which is `bytes()` long.
    pub fn copy_to(&self, target: &mut [u8]) {
        target[..self.head.len()].copy_from_slice(&self.head);
        let base = self.pieces_at();
        for piece in &self.pieces {
            let start = (base + piece.at) as usize;
            let target = &mut target[start..start + piece.bytes as usize];
            // SAFETY: `kept` keeps the source exported; the target is a unique borrow of the same length.
            unsafe {
                match &piece.gaps {
                    None => std::ptr::copy_nonoverlapping(piece.address, target.as_mut_ptr(), target.len()),
                    Some((tensor, strides)) => {
                        let element = usize::from(tensor.element().bytes);
                        gather(target, piece.address, tensor.shape(), strides, element);
                    }
                }
            }
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

    /// Records memory to be copied, and writes its offset to the description.
    fn piece(&mut self, address: *const u8, bytes: u64) {
        self.joined(&[(address, bytes)]);
    }

    /// Does the same as `piece` for several ranges that become one piece.
    fn joined(&mut self, parts: &[(*const u8, u64)]) {
        let start = self.pieces_bytes.next_multiple_of(ALIGN);
        let mut at = start;
        for &(address, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0) {
            self.pieces.push(Piece { at, address, bytes, gaps: None });
            at += bytes;
            self.pieces_bytes = at;
        }
        self.head.extend_from_slice(&start.to_le_bytes());
        self.head.extend_from_slice(&(at - start).to_le_bytes());
    }

    /// Checks that a reader accepts the description so far. An object that a value contains twice is written twice, so a small value
    /// can have a description without an end.
    fn check_length(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.head.len() - HEAD_BYTES <= DESCRIPTION_MAX {
            return Ok(());
        }
        self.too_much = true;
        Err(unsupported(py, "so many small values at once (send them as arrays)"))
    }

    /// Checks that text or a number of this length can be a part of the description.
    fn check_part(&mut self, value: &Bound<'py, PyAny>, bytes: usize) -> PyResult<()> {
        if bytes <= DESCRIPTION_MAX {
            return Ok(());
        }
        self.too_much = true;
        let class = value.get_type().name()?;
        Err(unsupported(
            value.py(),
            &format!("an object of type {class} of {bytes} bytes (send it as bytes)"),
        ))
    }

    fn value(&mut self, value: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = value.py();
        if depth > DEPTH_MAX {
            self.too_much = true;
            return Err(unsupported(py, "a value nested more than 100 deep, or one that contains itself"));
        }
        self.check_length(py)?;
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
            match text.to_str() {
                Ok(text) => {
                    self.check_part(value, text.len())?;
                    self.byte(tag::STR);
                    self.count(py, text.len())?;
                    self.head.extend_from_slice(text.as_bytes());
                }
                Err(_) => self.surrogates(text)?,
            }
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
        } else if value.is_exact_instance_of::<PyMemoryView>() || value.is_exact_instance_of::<PyByteArray>()
        {
            self.buffer(value)?;
        } else if value.is_exact_instance(ref_class(py)?) {
            // As `memlift/_values.py` has it, which costs more than the rest of sending a ref.
            self.byte(tag::SPECIAL);
            self.short(py, REF)?;
            self.value(&value.call_method0(intern!(py, "__bytes__"))?, allow, depth + 1)?;
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

    /// Writes a str with lone surrogates, such as a file name that is not UTF-8.
    fn surrogates(&mut self, text: &Bound<'py, PyString>) -> PyResult<()> {
        let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
        let bytes = bytes.cast::<PyBytes>()?.as_bytes();
        self.check_part(text.as_any(), bytes.len())?;
        self.byte(tag::SURROGATES);
        self.count(text.py(), bytes.len())?;
        self.head.extend_from_slice(bytes);
        Ok(())
    }

    fn int(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if let Ok(small) = value.extract::<i64>() {
            self.byte(tag::INT);
            self.head.extend_from_slice(&small.to_le_bytes());
            return Ok(());
        }
        let py = value.py();
        let bits: usize = value.call_method0("bit_length")?.extract()?;
        self.check_part(value, bits / 8 + 1)?;
        let signed = PyDict::new(py);
        signed.set_item("signed", true)?;
        let bytes = value.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?;
        let bytes = bytes.cast::<PyBytes>()?;
        self.byte(tag::LONG);
        self.count(py, bytes.as_bytes().len())?;
        self.head.extend_from_slice(bytes.as_bytes());
        Ok(())
    }

    /// Writes the bytes of a memoryview or bytearray.
    fn buffer(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let buffer = PyUntypedBuffer::get(value)?;
        if value.is_exact_instance_of::<PyMemoryView>() {
            if !is_of_bytes(&buffer) {
                let what = format!(
                    "a memoryview with {} dimensions of the format {:?}: only its bare bytes would arrive",
                    buffer.dimensions(),
                    buffer.format(),
                );
                return Err(unsupported(value.py(), &what));
            }
            let advice = "bytes() of it, or numpy.frombuffer(), which copies nothing";
            let changes = value.py().import("memlift._tensors")?.getattr("changes")?;
            changes.call1((value, "bytes", advice, 2))?;
        }
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
        let dtype = array.getattr("dtype")?;
        // An array of any other dtype is sent with a description of the dtype, and its elements as bytes.
        let Some(name) = type_name(&dtype)? else { return self.special(array, allow, depth) };
        let shape: Vec<u64> = array.getattr("shape")?.extract()?;
        // PyO3 takes no buffer of times or of arrays without dimensions, so these are viewed as bytes.
        let buffer = match PyUntypedBuffer::get(array) {
            Ok(buffer) => buffer,
            Err(_) => PyUntypedBuffer::get(&bytes_of(array, &dtype)?)?,
        };
        self.byte(tag::ARRAY);
        let fortran = !buffer.is_c_contiguous() && buffer.is_fortran_contiguous();
        self.described(py, &name, &shape, fortran)?;
        if buffer.is_c_contiguous() || fortran {
            self.piece(buffer.buf_ptr().cast_const().cast(), buffer.len_bytes() as u64);
        } else if let Some(gaps) = with_gaps(&buffer) {
            self.gapped(buffer.buf_ptr().cast_const().cast(), gaps);
        } else {
            let packed = numpy(py)?.call_method1("ascontiguousarray", (array,))?;
            let packed = match PyUntypedBuffer::get(&packed) {
                Ok(packed) => packed,
                Err(_) => PyUntypedBuffer::get(&bytes_of(&packed, &dtype)?)?,
            };
            self.piece(packed.buf_ptr().cast_const().cast(), packed.len_bytes() as u64);
            self.kept.push(Kept::Buffer(packed));
        }
        self.kept.push(Kept::Buffer(buffer));
        Ok(())
    }

    /// Records an array with gaps, which is packed while it is copied.
    fn gapped(&mut self, address: *const u8, gaps: (Tensor, Vec<i64>)) {
        let (at, bytes) = (self.pieces_bytes.next_multiple_of(ALIGN), gaps.0.bytes());
        self.pieces.push(Piece { at, address, bytes, gaps: Some(gaps) });
        self.pieces_bytes = at + bytes;
        self.head.extend_from_slice(&at.to_le_bytes());
        self.head.extend_from_slice(&bytes.to_le_bytes());
    }

    fn described(&mut self, py: Python<'py>, name: &str, shape: &[u64], fortran: bool) -> PyResult<()> {
        self.short(py, name)?;
        self.byte(u8::from(fortran));
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

    /// Writes a value that the Python side splits into parts.
    fn special(&mut self, value: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = value.py();
        let parts = helpers(py)?.call_method1("reduce", (value, allow.pickle))?;
        let within = |error: PyErr| match helpers(py)?.call_method1("within", (value, error.value(py))) {
            Ok(made) => Err(PyErr::from_value(made)),
            Err(other) => Err(other),
        };
        self.reduced(&parts, allow, depth).or_else(within)
    }

    /// Writes a pair of kind and value; an empty kind means the value itself.
    fn reduced(&mut self, parts: &Bound<'py, PyAny>, allow: Allow, depth: u32) -> PyResult<()> {
        let py = parts.py();
        let (kind, inner): (String, Bound<'py, PyAny>) = parts.extract()?;
        if kind == "scalar" {
            let name: String = inner.getattr("dtype")?.getattr("str")?.extract()?;
            let bytes = inner.call_method0("tobytes")?;
            let bytes = bytes.cast::<PyBytes>()?.as_bytes();
            self.byte(tag::SCALAR_HERE);
            self.short(py, &name)?;
            self.count(py, bytes.len())?;
            self.head.extend_from_slice(bytes);
            return Ok(());
        }
        // Keeps the parts alive until their bytes are copied.
        self.kept.push(Kept::Object(inner.clone()));
        if !kind.is_empty() {
            self.byte(tag::SPECIAL);
            self.short(py, &kind)?;
        }
        if kind.starts_with("arrow.") {
            return self.stream(&inner);
        }
        self.value(&inner, allow, depth + 1)
    }

    /// Writes the buffers of a stream as one array of bytes.
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

/// Returns true for a buffer that is no more than its bytes.
pub fn is_of_bytes(buffer: &PyUntypedBuffer) -> bool {
    buffer.dimensions() == 1 && matches!(buffer.format().to_bytes(), b"B" | b"b" | b"c")
}

/// Returns numpy's type string if it describes the dtype completely.
pub fn type_name(dtype: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let py = dtype.py();
    // A type that differs in anything is another object.
    if let Some(common) = common_types(py)?.iter().find(|common| common.dtype.is(dtype)) {
        return Ok(Some(common.name.clone()));
    }
    dtypes(py)?.call_method1("plain", (dtype,))?.extract()
}

/// Returns the memory of an array whose elements have no buffer, as bytes with one more dimension.
fn bytes_of<'py>(array: &Bound<'py, PyAny>, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let size: usize = dtype.getattr("itemsize")?.extract()?;
    if size == 0 {
        return Ok(PyBytes::new(py, &[]).into_any());
    }
    // Viewed as void elements of that size, whose buffer has the array's own shape and strides.
    let elements = array.call_method1("view", (format!("V{size}"),))?;
    match elements.getattr("ndim")?.extract::<usize>()? {
        0 => elements.call_method1("reshape", (1,)),
        _ => Ok(elements),
    }
}

/// Returns shape and strides of an array with gaps, if the engine can pack it while copying; as bytes, if it does not know the
/// element type.
fn with_gaps(buffer: &PyUntypedBuffer) -> Option<(Tensor, Vec<i64>)> {
    if buffer.suboffsets().is_some() {
        return None;
    }
    let mut shape: Vec<u64> = buffer.shape().iter().map(|&extent| extent as u64).collect();
    let mut strides: Vec<i64> = buffer.strides().iter().map(|&stride| stride as i64).collect();
    let size = buffer.item_size();
    let kind = if size == 16 { b'c' } else { b'u' };
    let element = ElementType { kind, bytes: u8::try_from(size).unwrap_or(0) };
    if element.is_known() {
        return Some((Tensor::new(element, &shape).ok()?, strides));
    }
    shape.push(size as u64);
    strides.push(1);
    Some((Tensor::new(ElementType::U8, &shape).ok()?, strides))
}

/// Packs an array with gaps, element by element.
///
/// # Safety
///
/// Shape and strides only reach readable memory, and the target has room for all elements.
unsafe fn gather(target: &mut [u8], source: *const u8, shape: &[u64], strides: &[i64], element: usize) {
    let ([extent, shape @ ..], [stride, strides @ ..]) = (shape, strides) else {
        // SAFETY: the caller guarantees that this element is readable and that the target has room for it.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), element) };
        return;
    };
    if *extent == 0 {
        return;
    }
    let each = target.len() / *extent as usize;
    for (at, target) in target.chunks_exact_mut(each.max(1)).enumerate() {
        // SAFETY: `at` is below the extent, so the address is inside the array; this part of the target has room for it.
        unsafe { gather(target, source.offset(at as isize * *stride as isize), shape, strides, element) };
    }
}
