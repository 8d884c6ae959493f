// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decodes values from bytes that are not trusted.
//!
//! - **Order** the description is copied once and read from the copy. A count is accepted only if enough bytes are left for it. A piece
//!   must lie in the received memory and be exactly as long as its type and shape require.
//! - **Owner** arrays are views of `slot`; bytes are copied.

use super::{
    ALIGN, ARGUMENTS, Allow, DEPTH_MAX, DESCRIPTION_MAX, END, HEAD_BYTES, MAGIC, REF, helpers, ref_class, tag,
};
use crate::convert::{array_class, numpy};
use crate::errors::corrupt;
use crate::exit::Inside;
use crate::slot::Slot;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

struct Decoder<'a, 'py> {
    py: Python<'py>,
    description: &'a [u8],
    slot: &'a Bound<'py, Slot>,
    pieces_at: u64,
    allow: Allow,
}

/// One of numpy's types that most arrays have.
pub(super) struct CommonType {
    pub(super) dtype: Py<PyAny>,
    pub(super) name: String,
    itemsize: u64,
}

/// Returns the types that most arrays have. numpy has one object for each of them.
pub(super) fn common_types(py: Python<'_>) -> PyResult<&Vec<CommonType>> {
    static COMMON: PyOnceLock<Vec<CommonType>> = PyOnceLock::new();
    COMMON.get_or_try_init(py, || {
        ["f4", "f8", "u1", "i8", "i4", "b1", "f2", "i1", "u2", "i2", "u4", "u8", "c8", "c16"]
            .iter()
            .map(|name| {
                let dtype = numpy(py)?.call_method1("dtype", (name,))?;
                let (name, itemsize) =
                    (dtype.getattr("str")?.extract()?, dtype.getattr("itemsize")?.extract()?);
                PyResult::Ok(CommonType { dtype: dtype.unbind(), name, itemsize })
            })
            .collect()
    })
}

/// Decodes the value in a slot.
pub fn decode<'py>(slot: &Bound<'py, Slot>, allow: Allow) -> PyResult<Bound<'py, PyAny>> {
    let py = slot.py();
    let _inside = Inside::enter(py);
    let held = slot.get();
    let mut head = [0; HEAD_BYTES];
    held.read_into(0, &mut head).map_err(|_| corrupt(py, "shorter than its head"))?;
    let [a, b, c, d, e, f, g, h] = head;
    if u32::from_le_bytes([a, b, c, d]) != MAGIC {
        return Err(corrupt(py, "not made by memlift, or by one of another version"));
    }
    let described = u32::from_le_bytes([e, f, g, h]) as usize;
    if described > DESCRIPTION_MAX || (described + HEAD_BYTES) as u64 > held.bytes() {
        return Err(corrupt(py, "cut off"));
    }
    let mut description = vec![0; described];
    held.read_into(HEAD_BYTES as u64, &mut description).map_err(|_| corrupt(py, "cut off"))?;
    let pieces_at = ((described + HEAD_BYTES) as u64).next_multiple_of(ALIGN);
    let mut decoder = Decoder { py, description: &description, slot, pieces_at, allow };
    let value = decoder.value(0)?;
    match decoder.description {
        [] => Ok(value),
        _ => Err(corrupt(py, "followed by something else")),
    }
}

impl<'py> Decoder<'_, 'py> {
    fn take(&mut self, bytes: usize) -> PyResult<&[u8]> {
        match self.description.split_at_checked(bytes) {
            Some((taken, rest)) => {
                self.description = rest;
                Ok(taken)
            }
            None => Err(corrupt(self.py, "cut off")),
        }
    }

    fn fixed<const N: usize>(&mut self) -> PyResult<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn byte(&mut self) -> PyResult<u8> {
        Ok(self.fixed::<1>()?[0])
    }

    fn number(&mut self) -> PyResult<u64> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    /// Reads the number of following values, each of at least `least` bytes.
    fn count(&mut self, least: usize) -> PyResult<usize> {
        let count = u32::from_le_bytes(self.fixed()?) as usize;
        if count.saturating_mul(least) > self.description.len() {
            return Err(corrupt(self.py, "with more values than bytes"));
        }
        Ok(count)
    }

    fn text(&mut self, bytes: usize) -> PyResult<String> {
        let py = self.py;
        String::from_utf8(self.take(bytes)?.to_vec()).map_err(|_| corrupt(py, "with text that is not UTF-8"))
    }

    /// Reads the position of a piece: offset in the slot, and bytes.
    fn piece(&mut self) -> PyResult<(u64, u64)> {
        let (at, bytes) = (self.number()?, self.number()?);
        if bytes == 0 {
            return Ok((0, 0));
        }
        let start = self.pieces_at.checked_add(at);
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.slot.get().bytes() && at.is_multiple_of(ALIGN) => {
                Ok((start, bytes))
            }
            _ => Err(corrupt(self.py, "with a piece outside of it")),
        }
    }

    fn piece_bytes(&mut self) -> PyResult<Vec<u8>> {
        let (at, bytes) = self.piece()?;
        let mut own = vec![0; bytes as usize];
        if bytes > 0 {
            self.slot.get().read_into(at, &mut own).map_err(|_| corrupt(self.py, "cut off"))?;
        }
        Ok(own)
    }

    fn many(&mut self, depth: u32) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let count = self.count(1)?;
        (0..count).map(|_| self.value(depth + 1)).collect()
    }

    fn value(&mut self, depth: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if depth > DEPTH_MAX {
            return Err(corrupt(py, "nested more than 100 deep"));
        }
        let unhashable = |_| corrupt(py, "with a key that cannot be one");
        Ok(match self.byte()? {
            tag::NONE => py.None().into_bound(py),
            tag::FALSE => false.into_pyobject(py)?.to_owned().into_any(),
            tag::TRUE => true.into_pyobject(py)?.to_owned().into_any(),
            tag::INT => i64::from_le_bytes(self.fixed()?).into_pyobject(py)?.into_any(),
            tag::LONG => {
                let length = self.count(1)?;
                let bytes = PyBytes::new(py, self.take(length)?);
                let signed = PyDict::new(py);
                signed.set_item("signed", true)?;
                py.get_type::<PyInt>().call_method("from_bytes", (bytes, "little"), Some(&signed))?
            }
            tag::FLOAT => PyFloat::new(py, f64::from_le_bytes(self.fixed()?)).into_any(),
            tag::COMPLEX => {
                let (real, imag) = (f64::from_le_bytes(self.fixed()?), f64::from_le_bytes(self.fixed()?));
                PyComplex::from_doubles(py, real, imag).into_any()
            }
            tag::STR => {
                let length = self.count(1)?;
                PyString::new(py, &self.text(length)?).into_any()
            }
            tag::BYTES => {
                let length = self.count(1)?;
                PyBytes::new(py, self.take(length)?).into_any()
            }
            tag::BYTES_PIECE => {
                let (at, bytes) = self.piece()?;
                let held = self.slot.get();
                let bytes = PyBytes::new_with(py, bytes as usize, |target| {
                    match target.len() {
                        0 => Ok(()),
                        _ => py.detach(|| held.read_into(at, target)),
                    }
                    .map_err(|_| corrupt(py, "cut off"))
                });
                bytes?.into_any()
            }
            tag::BYTEARRAY => PyByteArray::new(py, &self.piece_bytes()?).into_any(),
            tag::LIST => PyList::new(py, self.many(depth)?)?.into_any(),
            tag::TUPLE => PyTuple::new(py, self.many(depth)?)?.into_any(),
            tag::SET => PySet::new(py, self.many(depth)?).map_err(unhashable)?.into_any(),
            tag::FROZENSET => PyFrozenSet::new(py, self.many(depth)?).map_err(unhashable)?.into_any(),
            tag::DICT => {
                let dict = PyDict::new(py);
                for _ in 0..self.count(2)? {
                    let key = self.value(depth + 1)?;
                    dict.set_item(key, self.value(depth + 1)?).map_err(unhashable)?;
                }
                dict.into_any()
            }
            tag::SURROGATES => {
                let length = self.count(1)?;
                let bytes = PyBytes::new(py, self.take(length)?);
                let decoded = bytes.call_method1("decode", ("utf-8", "surrogatepass"));
                decoded.map_err(|_| corrupt(py, "with text that is not UTF-8"))?
            }
            tag::ARRAY => self.array(false)?,
            tag::SCALAR => self.array(true)?,
            tag::SCALAR_HERE => self.scalar()?,
            tag::SPECIAL => {
                let length = usize::from(self.byte()?);
                let kind = self.text(length)?;
                if kind == ARGUMENTS && !(self.allow.arguments && depth == 0) {
                    return Err(corrupt(py, "with arguments of a call where none can be"));
                }
                if kind == END && depth > 0 {
                    return Err(corrupt(py, "with the end of a stream inside of a value"));
                }
                let inner = self.value(depth + 1)?;
                if kind == REF
                    && inner.is_exact_instance_of::<PyBytes>()
                    && let Ok(reference) = ref_class(py)?.call1((&inner,))
                {
                    return Ok(reference);
                }
                helpers(py)?.call_method1("restore", (kind, inner, self.allow.pickle))?
            }
            other => return Err(corrupt(py, &format!("with a value of kind {other}"))),
        })
    }

    /// Reads one of numpy's plain types by its name: order, kind, bytes, and a unit for times. Returns it and the bytes of an element.
    fn dtype(&mut self) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let py = self.py;
        let length = usize::from(self.byte()?);
        let name = self.take(length)?;
        if let Some(common) = common_types(py)?.iter().find(|common| common.name.as_bytes() == name) {
            return Ok((common.dtype.bind(py).clone(), common.itemsize));
        }
        let name =
            String::from_utf8(name.to_vec()).map_err(|_| corrupt(py, "with text that is not UTF-8"))?;
        let mut letters = name.bytes();
        let ordered = letters.next().is_some_and(|order| b"<>|=".contains(&order));
        let kind = letters.next().unwrap_or(0);
        let rest = name.get(2..).unwrap_or("");
        let plain = rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"[]/".contains(&b));
        if !ordered
            || !b"biufcmMSUV".contains(&kind)
            || !rest.starts_with(|c: char| c.is_ascii_digit())
            || !plain
        {
            return Err(corrupt(py, &format!("with an array of type {name:?}")));
        }
        let bad_type = |_| corrupt(py, &format!("with an array of type {name:?}"));
        let dtype = numpy(py)?.call_method1("dtype", (&name,)).map_err(bad_type)?;
        let itemsize = dtype.getattr("itemsize")?.extract()?;
        Ok((dtype, itemsize))
    }

    /// Reads a numpy scalar whose bytes follow.
    fn scalar(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let (dtype, itemsize) = self.dtype()?;
        let length = self.count(1)?;
        let bytes = PyBytes::new(py, self.take(length)?);
        if itemsize != length as u64 {
            return Err(corrupt(py, "with a scalar of another length"));
        }
        let class = array_class(py)?;
        let array = match length {
            0 => class.call1(((), dtype))?,
            _ => class.call1(((), dtype, bytes))?,
        };
        array.get_item(())
    }

    fn array(&mut self, scalar: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let (dtype, itemsize) = self.dtype()?;
        let fortran = match self.byte()? {
            0 => false,
            1 => true,
            other => return Err(corrupt(py, &format!("with an array in order {other}"))),
        };
        let dimensions = usize::from(self.byte()?);
        let shape = (0..dimensions).map(|_| self.number()).collect::<PyResult<Vec<u64>>>()?;
        let (at, bytes) = self.piece()?;
        let described = shape.iter().try_fold(itemsize, |bytes, &extent| bytes.checked_mul(extent));
        // An extent of zero must not hide other extents that are too large.
        let sane =
            shape.iter().filter(|&&extent| extent != 0).try_fold(itemsize.max(1), |n, &e| n.checked_mul(e));
        // numpy gives elements of no bytes a size of one, so a short message must not become a huge array.
        let empty = itemsize == 0 && sane.is_none_or(|n| n > 1 << 16);
        if empty || described != Some(bytes) || sane.is_none_or(|n| n > isize::MAX as u64) || dimensions > 64
        {
            return Err(corrupt(py, "with an array whose shape and bytes do not agree"));
        }
        let bad_array = |_| corrupt(py, "with an array that numpy refuses");
        let shape = PyTuple::new(py, shape)?;
        let class = array_class(py)?;
        if scalar || bytes == 0 {
            let array = class.call1((&shape, &dtype)).map_err(bad_array)?;
            if bytes > 0 {
                let from = numpy(py)?.call_method1("frombuffer", (self.slot, &dtype, 1, at))?;
                array.set_item((), from.get_item(0)?)?;
            }
            return if scalar { array.get_item(()) } else { Ok(array) };
        }
        let order = if fortran { intern!(py, "F") } else { intern!(py, "C") };
        let strides = py.None();
        class.call1((&shape, &dtype, self.slot, at, strides, order)).map_err(bad_array)
    }
}
