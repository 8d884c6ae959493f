// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversion between Python objects and payloads: bytes in, bytes out; arrays in, arrays out.
//!
//! - **Flow** bytes objects are sent as bytes, None as an empty payload, numpy arrays of plain types as arrays, and everything else by
//!   `values`. Subclasses are "everything else". For one more version, an object that `values` cannot encode but that has a buffer is
//!   sent as bytes or as an array, with a warning.
//! - **Owner** an [`Argument`] keeps the buffer exported, so the memory cannot move while the GIL is released.

use crate::errors::{is, raise, unsupported};
use crate::slot::Slot;
use crate::values::{Allow, Encoded, decode, is_of_bytes, type_name};
use memlift::ipc::message::Shape;
use memlift::ipc::{ElementType, Outgoing, Payload, Tensor};
use pyo3::Borrowed;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyTuple};
use std::convert::Infallible;
use std::ffi::CStr;

/// For smaller copies it is not worth releasing the GIL, bytes.
pub const DETACH_BYTES: usize = 16 * 1024;

/// An argument that may be left out, which differs from None.
pub struct Given<'py>(pub Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Given(Some(object.to_owned())))
    }
}

/// A Python object that is to be sent.
pub struct Argument<'py> {
    outgoing: Outgoing<'py>,
    encoded: Option<Encoded<'py>>,
    _buffer: Option<PyUntypedBuffer>,
    _bytes: Option<Bound<'py, PyBytes>>,
}

impl<'py> Argument<'py> {
    /// Describes `object` without copying it: None, bytes and arrays of plain types directly, everything else as a value.
    ///
    /// # Errors
    ///
    /// `UnsupportedTypeError`, and exceptions that the object's own code raises.
    pub fn new(object: &Bound<'py, PyAny>, allow: Allow) -> PyResult<Argument<'py>> {
        if let Some(argument) = Argument::plain(object)? {
            return Ok(argument);
        }
        let encoded = match Encoded::new(object, allow) {
            Ok(encoded) => encoded,
            Err(error) if is(object.py(), &error, "UnsupportedTypeError") => {
                return Argument::from_other_buffer(object)?.ok_or(error);
            }
            Err(error) => return Err(error),
        };
        Ok(Argument { outgoing: Outgoing::none(), encoded: Some(encoded), _buffer: None, _bytes: None })
    }

    /// Describes None, bytes and plain arrays. The class must match exactly; a subclass is not plain.
    fn plain(object: &Bound<'py, PyAny>) -> PyResult<Option<Argument<'py>>> {
        let py = object.py();
        if object.is_none() {
            return Ok(Some(Argument {
                outgoing: Outgoing::none(),
                encoded: None,
                _buffer: None,
                _bytes: None,
            }));
        }
        if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            let slice = bytes.as_bytes();
            // SAFETY: bytes objects never change, and the reference in `_bytes` keeps this one alive.
            let outgoing =
                unsafe { Outgoing::from_raw(Shape::Bytes, slice.as_ptr(), slice.len() as u64, None) };
            let _bytes = Some(bytes.clone());
            return Ok(Some(Argument { outgoing, encoded: None, _buffer: None, _bytes }));
        }
        if object.is_exact_instance_of::<PyByteArray>() || object.is_exact_instance_of::<PyMemoryView>() {
            return Argument::from_other_buffer(object);
        }
        if !object.is_exact_instance(array_class(py)?) || type_name(&object.getattr("dtype")?)?.is_none() {
            return Ok(None);
        }
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Argument::from_buffer(py, buffer, false),
            Err(_) if object.getattr("ndim")?.eq(0)? => {
                // A buffer without dimensions has no shape, so it is reshaped to one dimension of one element.
                match PyUntypedBuffer::get(&object.call_method1("reshape", (1,))?) {
                    Ok(buffer) => match Argument::from_buffer(py, buffer, false)? {
                        Some(argument) => Ok(Some(argument.into_scalar(py)?)),
                        None => Ok(None),
                    },
                    Err(_) => Ok(None),
                }
            }
            Err(_) => Ok(None),
        }
    }

    /// Describes another object with a buffer as bytes or as an array, with a warning. Numpy objects are not sent in this way, nor are
    /// objects that have more than their buffer.
    fn from_other_buffer(object: &Bound<'py, PyAny>) -> PyResult<Option<Argument<'py>>> {
        let py = object.py();
        let Ok(buffer) = PyUntypedBuffer::get(object) else { return Ok(None) };
        if object.is_instance(array_class(py)?)? || object.is_instance(numpy_scalar(py)?)? {
            return Ok(None);
        }
        // Its bare bytes would arrive, of another type or shape.
        if object.is_instance_of::<PyMemoryView>() && buffer.item_size() == 1 && !is_of_bytes(&buffer) {
            return Ok(None);
        }
        if py.import("memlift._values")?.call_method1("is_more_than_buffer", (object,))?.is_truthy()? {
            return Ok(None);
        }
        let is_bytes = object.is_instance_of::<PyByteArray>()
            || object.is_instance_of::<PyMemoryView>()
            || object.is_instance_of::<PyBytes>();
        let bytes_only = is_bytes && buffer.item_size() == 1 && buffer.is_c_contiguous();
        let made = Argument::from_buffer(py, buffer, is_bytes)?;
        if made.is_some() {
            let into = if bytes_only { "bytes" } else { "a numpy array" };
            let arguments = (object, into, "bytes() of it, or numpy.frombuffer(), which copies nothing", 2);
            py.import("memlift._tensors")?.call_method1("changes", arguments)?;
        }
        Ok(made)
    }

    fn from_buffer(
        py: Python<'py>,
        buffer: PyUntypedBuffer,
        is_bytes: bool,
    ) -> PyResult<Option<Argument<'py>>> {
        let pointer = buffer.buf_ptr().cast::<u8>();
        if buffer.suboffsets().is_some() {
            return Err(unsupported(py, "an array of pointers to rows"));
        }
        if is_bytes && buffer.is_c_contiguous() && buffer.item_size() == 1 {
            // SAFETY: the buffer is exported while this argument lives, and has `len_bytes` bytes.
            let outgoing =
                unsafe { Outgoing::from_raw(Shape::Bytes, pointer, buffer.len_bytes() as u64, None) };
            return Ok(Some(Argument { outgoing, encoded: None, _buffer: Some(buffer), _bytes: None }));
        }
        let Some(element) = element_type(buffer.format(), buffer.item_size()) else { return Ok(None) };
        let shape: Vec<u64> = buffer.shape().iter().map(|&extent| extent as u64).collect();
        // An array with more dimensions than a message can describe is sent as a value.
        let Ok(tensor) = Tensor::new(element, &shape) else { return Ok(None) };
        let strides = buffer.strides().iter().map(|&stride| stride as i64).collect();
        // SAFETY: the exporter guarantees shape and strides while the buffer is exported, which it is while this argument
        // lives. Another thread of the program may write to the array during the copy; the copy then has old and new elements,
        // as with any numpy operation that releases the GIL.
        let outgoing =
            unsafe { Outgoing::from_raw(Shape::Tensor(tensor), pointer, tensor.bytes(), Some(strides)) };
        Ok(Some(Argument { outgoing, encoded: None, _buffer: Some(buffer), _bytes: None }))
    }

    /// Describes the same single element without dimensions.
    fn into_scalar(mut self, py: Python<'py>) -> PyResult<Argument<'py>> {
        let Shape::Tensor(tensor) = self.outgoing.shape().clone() else { return Ok(self) };
        let scalar = Tensor::new(tensor.element(), &[]).map_err(|error| raise(py, error))?;
        let pointer =
            self._buffer.as_ref().map_or(std::ptr::null(), |buffer| buffer.buf_ptr().cast_const().cast());
        // SAFETY: there is one element, in the buffer that stays exported while this argument lives.
        self.outgoing = unsafe { Outgoing::from_raw(Shape::Tensor(scalar), pointer, scalar.bytes(), None) };
        Ok(self)
    }

    /// Returns the data to send, valid as long as the argument lives.
    pub fn outgoing(&self) -> Outgoing<'_> {
        match &self.encoded {
            Some(encoded) => encoded.outgoing(),
            None => self.outgoing.clone(),
        }
    }
}

/// Returns the element type for a format of the struct module, if both sides of a session know it.
fn element_type(format: &CStr, bytes: usize) -> Option<ElementType> {
    let format = format.to_bytes();
    let letters = match format {
        [b'>' | b'!', ..] if bytes > 1 => return None,
        [b'@' | b'=' | b'<' | b'>' | b'!', rest @ ..] => rest,
        all => all,
    };
    let kind = match letters {
        b"?" => b'b',
        b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => b'i',
        b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" => b'u',
        b"e" | b"f" | b"d" => b'f',
        b"Zf" | b"Zd" => b'c',
        _ => return None,
    };
    let element = ElementType { kind, bytes: u8::try_from(bytes).ok()? };
    element.is_known().then_some(element)
}

/// Returns numpy's name of an element type.
fn dtype_name(element: ElementType) -> String {
    let kind = char::from(element.kind);
    format!("{kind}{}", element.bytes)
}

/// Returns the module `numpy`, imported once.
pub fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind)).map(|module| module.bind(py))
}

/// Returns the class `numpy.ndarray`, looked up once.
pub fn array_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ARRAY.get_or_try_init(py, || numpy(py)?.getattr("ndarray").map(Bound::unbind)).map(|class| class.bind(py))
}

/// Returns `numpy.generic`, the base class of numpy's scalars.
fn numpy_scalar(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static SCALAR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    SCALAR
        .get_or_try_init(py, || numpy(py)?.getattr("generic").map(Bound::unbind))
        .map(|class| class.bind(py))
}

fn dtype(py: Python<'_>, element: ElementType) -> PyResult<Bound<'_, PyAny>> {
    // One entry for each known type, by kind and log2 of its size.
    static TYPES: [PyOnceLock<Py<PyAny>>; 25] = [const { PyOnceLock::new() }; 25];
    let row = b"biufc".iter().position(|&kind| kind == element.kind).unwrap_or(0);
    let column = element.bytes.trailing_zeros().min(4) as usize;
    TYPES[row * 5 + column]
        .get_or_try_init(py, || numpy(py)?.call_method1("dtype", (dtype_name(element),)).map(Bound::unbind))
        .map(|dtype| dtype.bind(py).clone())
}

/// Returns a numpy array over a slot; it is read-only if the slot is.
fn array<'py>(
    py: Python<'py>,
    slot: Slot,
    element: ElementType,
    shape: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, shape)?;
    let slot = Bound::new(py, slot)?;
    array_class(py)?.call1((shape, dtype(py, element)?, slot))
}

/// Converts a payload to a Python object: None, bytes, or a read-only array over shared memory.
pub fn payload_to_python<'py>(
    py: Python<'py>,
    payload: Payload,
    allow: Allow,
) -> PyResult<Bound<'py, PyAny>> {
    match payload.shape().clone() {
        Shape::Value => decode(&Bound::new(py, Slot::received(payload))?, allow),
        Shape::None => Ok(py.None().into_bound(py)),
        Shape::Bytes => {
            let length = payload.bytes() as usize;
            let bytes = PyBytes::new_with(py, length, |target| {
                match length {
                    0..DETACH_BYTES => payload.read_into(target),
                    _ => py.detach(|| payload.read_into(target)),
                }
                Ok(())
            })?;
            Ok(bytes.into_any())
        }
        Shape::Tensor(tensor) if tensor.bytes() == 0 => {
            let shape = PyTuple::new(py, tensor.shape())?;
            array_class(py)?.call1((shape, dtype(py, tensor.element())?))
        }
        Shape::Tensor(tensor) => array(py, Slot::received(payload), tensor.element(), tensor.shape()),
    }
}

/// Copies a payload to `out`, the caller's memory, and releases the payload; without `out`, converts it in place.
pub fn payload_into<'py>(
    py: Python<'py>,
    payload: Payload,
    out: Option<&Bound<'py, PyAny>>,
    allow: Allow,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(out) = out else { return payload_to_python(py, payload, allow) };
    let came = match payload.shape() {
        // Converted to an array of bytes, to avoid a bytes object in between.
        Shape::Bytes if payload.bytes() > 0 => {
            let element = ElementType::U8;
            let shape = [payload.bytes()];
            array(py, Slot::received(payload), element, &shape)?
        }
        _ => payload_to_python(py, payload, allow)?,
    };
    put_into(&came, out)
}

/// Copies a received object into the caller's memory, and returns that.
pub fn put_into<'py>(came: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    came.py().import("memlift._values")?.call_method1("put_into", (came, out))
}

/// Returns shape and type of an array to lend.
pub fn loan_layout(shape: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<(Tensor, Vec<u64>)> {
    let py = shape.py();
    let dtype = numpy(py)?.call_method1("dtype", (dtype,))?;
    let shape: Vec<u64> = match shape.extract::<u64>() {
        Ok(extent) => vec![extent],
        Err(_) => shape.extract().map_err(|_| {
            PyTypeError::new_err("shape must be an int or a sequence of ints, none of them negative")
        })?,
    };
    let kind: String = dtype.getattr("kind")?.extract()?;
    let native: bool = dtype.getattr("isnative")?.extract()?;
    let bytes: usize = dtype.getattr("itemsize")?.extract()?;
    let element =
        ElementType { kind: kind.bytes().next().unwrap_or(b'?'), bytes: u8::try_from(bytes).unwrap_or(0) };
    if !element.is_known() || !native {
        return Err(unsupported(py, &format!("an array of dtype {dtype}")));
    }
    let tensor = Tensor::new(element, &shape).map_err(|error| raise(py, error))?;
    Ok((tensor, shape))
}

/// Returns a writable array over a loan.
pub fn loan_to_python<'py>(
    py: Python<'py>,
    loan: memlift::ipc::Loan,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    array(py, Slot::lent(loan), tensor.element(), tensor.shape())
}
