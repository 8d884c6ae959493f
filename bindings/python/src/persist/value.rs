// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes Python values as bytes, and decodes them.
//!
//! - **Layout** a tag, then its contents. 0 None, 1 False, 2 True: nothing · 3 int: length, shortest two's complement · 4 float: 8 bytes
//!   · 5 str (UTF-8), 6 bytes: length, bytes · 7 list, 8 tuple, 9 dict: count, then that many values, or keys and values alternating · 10
//!   pickle: length, bytes · 11 NumPy scalar: length and text of its dtype as NumPy writes it, then length and its bytes · 12 numpy.str_,
//!   13 numpy.bytes_: like 5 and 6 · 14 complex: two floats · 15 set, 16 frozenset: like 7 · 17 bytearray: like 6. Lengths are LEB128;
//!   everything is little endian. A key is a value of kind int, str or bytes. Equal keys have equal bytes, so a NumPy integer or string
//!   is stored as the key that it equals.
//! - **Rule** types are matched exactly, so that a value comes back with the type it had; other types are refused, not converted.
//! - **Order** contents of a file are checked: lengths against the remaining bytes, depth against a limit.

use crate::errors::new;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString,
    PyTuple,
};

const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const STR: u8 = 5;
const BYTES: u8 = 6;
const LIST: u8 = 7;
const TUPLE: u8 = 8;
const DICT: u8 = 9;
const PICKLE: u8 = 10;
const SCALAR: u8 = 11;
const SCALAR_STR: u8 = 12;
const SCALAR_BYTES: u8 = 13;
const COMPLEX: u8 = 14;
const SET: u8 = 15;
const FROZENSET: u8 = 16;
const BYTEARRAY: u8 = 17;

/// Deepest nesting of containers.
const DEPTH_MAX: usize = 64;

fn refused(py: Python<'_>, what: String) -> PyErr {
    new(py, "UnsupportedValueError", (what,))
}

fn length(into: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn sized(into: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    into.push(tag);
    length(into, bytes.len());
    into.extend_from_slice(bytes);
}

/// Appends the shortest two's complement.
fn int(into: &mut Vec<u8>, value: &Bound<'_, PyInt>) -> PyResult<()> {
    if let Ok(small) = value.extract::<i64>() {
        let bytes = small.to_le_bytes();
        let mut used = 8;
        while used > 1 && bytes[used - 1] == (bytes[used - 2] as i8 >> 7) as u8 {
            used -= 1;
        }
        sized(into, INT, &bytes[..used]);
        return Ok(());
    }
    let bits: usize = value.call_method0("bit_length")?.extract()?;
    let arguments = PyDict::new(value.py());
    arguments.set_item("signed", true)?;
    let bytes = value.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&arguments))?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    let mut used = bytes.len();
    while used > 1 && bytes[used - 1] == (bytes[used - 2] as i8 >> 7) as u8 {
        used -= 1;
    }
    sized(into, INT, &bytes[..used]);
    Ok(())
}

/// Returns the bytes of a key.
pub fn key(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Ok(text) = object.cast_exact::<PyString>() {
        sized(&mut bytes, STR, text.to_str()?.as_bytes());
    } else if let Ok(raw) = object.cast_exact::<PyBytes>() {
        sized(&mut bytes, BYTES, raw.as_bytes());
    } else if let Ok(number) = object.cast_exact::<PyInt>() {
        int(&mut bytes, number)?;
    } else if let Some(name) = numpy_type(object)? {
        // NumPy's times also count as its integers, and `item` may turn one into an int.
        if !matches!(object.getattr("dtype")?.getattr("kind")?.extract::<char>()?, 'i' | 'u' | 'U' | 'S') {
            let what = format!("a key is a str, bytes or int, not a numpy.{name}");
            return Err(refused(object.py(), what));
        }
        return key(&object.call_method0("item")?);
    } else {
        let kind = object.get_type().name()?;
        return Err(refused(object.py(), format!("a key is a str, bytes or int, not a {kind}")));
    }
    Ok(bytes)
}

/// Returns the name of one of NumPy's own scalar types, or `None`. A program that has not imported NumPy has no such values.
fn numpy_type(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let kind = object.get_type();
    // The attribute `__module__` of a class may have any value, or be missing.
    if !kind.module().is_ok_and(|module| module == "numpy") {
        return Ok(None);
    }
    let is_scalar = object.is_instance(&object.py().import("numpy")?.getattr("generic")?)?;
    Ok(if is_scalar { Some(kind.name()?.to_string()) } else { None })
}

/// Appends a NumPy scalar that consists of its bytes only; returns false for any other, such as a record.
fn scalar(into: &mut Vec<u8>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(name) = numpy_type(object)? else { return Ok(false) };
    match name.as_str() {
        "str_" => sized(into, SCALAR_STR, object.cast::<PyString>()?.to_str()?.as_bytes()),
        "bytes_" => sized(into, SCALAR_BYTES, object.cast::<PyBytes>()?.as_bytes()),
        _ => {
            let dtype: String = object.getattr("dtype")?.getattr("str")?.extract()?;
            if !is_plain(&dtype) {
                return Ok(false);
            }
            // Two types may share a dtype: numpy.longlong would come back as numpy.int64.
            let comes_back =
                object.py().import("numpy")?.call_method1("dtype", (&dtype,))?.getattr("type")?;
            if !comes_back.is(object.get_type()) {
                return Ok(false);
            }
            sized(into, SCALAR, dtype.as_bytes());
            let bytes = object.call_method0("tobytes")?;
            let bytes = bytes.cast::<PyBytes>()?.as_bytes();
            length(into, bytes.len());
            into.extend_from_slice(bytes);
        }
    }
    Ok(true)
}

/// Returns true for a dtype of numbers, booleans or times in NumPy's notation: `<f8`, `|b1`, `<M8[ns]`.
fn is_plain(dtype: &str) -> bool {
    let mut rest = dtype.chars();
    let order = matches!(rest.next(), Some('<' | '|' | '>'));
    let kind = matches!(rest.next(), Some('b' | 'i' | 'u' | 'f' | 'c' | 'm' | 'M'));
    order
        && kind
        && rest.as_str().len() <= 16
        && rest.all(|one| one.is_ascii_alphanumeric() || "[]".contains(one))
}

/// Returns the NumPy scalar with this dtype and these bytes; `None` if there is none.
fn numpy_scalar<'py>(py: Python<'py>, dtype: &[u8], bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    let dtype = std::str::from_utf8(dtype).ok().filter(|dtype| is_plain(dtype))?;
    let numpy = py.import("numpy").ok()?;
    let dtype = numpy.call_method1("dtype", (dtype,)).ok()?;
    if dtype.getattr("itemsize").ok()?.extract::<usize>().ok()? != bytes.len() {
        return None;
    }
    let array = numpy.call_method1("frombuffer", (PyBytes::new(py, bytes), dtype)).ok()?;
    array.get_item(0).ok()
}

/// Returns the bytes of a value. With `pickle`, values of other kinds are pickled.
pub fn encode(object: &Bound<'_, PyAny>, pickle: bool) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::new();
    put(&mut bytes, object, pickle, 0)?;
    Ok(bytes)
}

fn elements(
    into: &mut Vec<u8>,
    tag: u8,
    all: Vec<Bound<'_, PyAny>>,
    pickle: bool,
    depth: usize,
) -> PyResult<()> {
    into.push(tag);
    length(into, all.len());
    all.iter().try_for_each(|one| put(into, one, pickle, depth + 1))
}

fn put(into: &mut Vec<u8>, object: &Bound<'_, PyAny>, pickle: bool, depth: usize) -> PyResult<()> {
    let py = object.py();
    if depth > DEPTH_MAX {
        let what =
            format!("the value has more than {DEPTH_MAX} containers in each other, or contains itself");
        return Err(refused(py, what));
    }
    if object.is_none() {
        into.push(NONE);
    } else if let Ok(text) = object.cast_exact::<PyString>() {
        sized(into, STR, text.to_str()?.as_bytes());
    } else if let Ok(raw) = object.cast_exact::<PyBytes>() {
        sized(into, BYTES, raw.as_bytes());
    } else if let Ok(number) = object.cast_exact::<PyInt>() {
        int(into, number)?;
    } else if let Ok(number) = object.cast_exact::<PyFloat>() {
        into.push(FLOAT);
        into.extend_from_slice(&number.value().to_le_bytes());
    } else if let Ok(truth) = object.cast_exact::<PyBool>() {
        into.push(if truth.is_true() { TRUE } else { FALSE });
    } else if let Ok(list) = object.cast_exact::<PyList>() {
        // The elements are collected first, because the conversion of an unusual element could change the list.
        elements(into, LIST, list.iter().collect(), pickle, depth)?;
    } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        elements(into, TUPLE, tuple.iter().collect(), pickle, depth)?;
    } else if let Ok(dict) = object.cast_exact::<PyDict>() {
        let pairs: Vec<_> = dict.iter().collect();
        into.push(DICT);
        length(into, pairs.len());
        for (key, value) in &pairs {
            put(into, key, pickle, depth + 1)?;
            put(into, value, pickle, depth + 1)?;
        }
    } else if let Ok(number) = object.cast_exact::<PyComplex>() {
        into.push(COMPLEX);
        into.extend_from_slice(&number.real().to_le_bytes());
        into.extend_from_slice(&number.imag().to_le_bytes());
    } else if let Ok(set) = object.cast_exact::<PySet>() {
        elements(into, SET, set.iter().collect(), pickle, depth)?;
    } else if let Ok(set) = object.cast_exact::<PyFrozenSet>() {
        elements(into, FROZENSET, set.iter().collect(), pickle, depth)?;
    } else if let Ok(raw) = object.cast_exact::<PyByteArray>() {
        sized(into, BYTEARRAY, &raw.to_vec());
    } else if scalar(into, object)? {
    } else if pickle {
        let dumped = py.import("pickle")?.call_method1("dumps", (object, 5))?;
        sized(into, PICKLE, dumped.cast::<PyBytes>()?.as_bytes());
    } else {
        let kind = object.get_type();
        let kind = kind.fully_qualified_name().or_else(|_| kind.name())?;
        return Err(refused(
            py,
            format!(
                "a value of type {kind} is not kept as it is: convert it to None, bool, int, float, complex, str, bytes, \
                 bytearray, list, tuple, set, frozenset, dict or a scalar of NumPy, put arrays with put_array, or open the dict with pickle=True"
            ),
        ));
    }
    Ok(())
}

/// Bytes that remain to be read.
struct Source<'a> {
    left: &'a [u8],
}

fn spoilt(py: Python<'_>) -> PyErr {
    new(
        py,
        "PoolDamagedError",
        ("a value in the pool cannot be read: it was not written by this module, or is damaged",),
    )
}

impl<'a> Source<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(bytes)?;
        self.left = left;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|one| one[0])
    }

    fn length(&mut self) -> Option<usize> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 56 {
                return None;
            }
        }
        // Every element has at least one byte, so a larger count is invalid.
        usize::try_from(value).ok().filter(|length| *length <= self.left.len())
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let bytes = self.length()?;
        self.take(bytes)
    }
}

/// Returns the value that the bytes encode. Pickled values are refused unless `pickle` is true.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8], pickle: bool) -> PyResult<Bound<'py, PyAny>> {
    let mut source = Source { left: bytes };
    let value = get(py, &mut source, pickle, 0)?;
    if source.left.is_empty() { Ok(value) } else { Err(spoilt(py)) }
}

fn many<'py>(
    py: Python<'py>,
    source: &mut Source<'_>,
    pickle: bool,
    depth: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let count = source.length().ok_or_else(|| spoilt(py))?;
    (0..count).map(|_| get(py, source, pickle, depth + 1)).collect()
}

fn get<'py>(
    py: Python<'py>,
    source: &mut Source<'_>,
    pickle: bool,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    if depth > DEPTH_MAX {
        return Err(spoilt(py));
    }
    let wrong = || spoilt(py);
    Ok(match source.byte().ok_or_else(wrong)? {
        NONE => py.None().into_bound(py),
        FALSE => PyBool::new(py, false).to_owned().into_any(),
        TRUE => PyBool::new(py, true).to_owned().into_any(),
        INT => {
            let bytes = source.sized().filter(|bytes| !bytes.is_empty()).ok_or_else(wrong)?;
            if bytes.len() <= 8 {
                let sign = (bytes[bytes.len() - 1] as i8 >> 7) as u8;
                let mut whole = [sign; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                i64::from_le_bytes(whole).into_pyobject(py)?.into_any()
            } else {
                let arguments = PyDict::new(py);
                arguments.set_item("signed", true)?;
                let from = (PyBytes::new(py, bytes), "little");
                py.get_type::<PyInt>().call_method("from_bytes", from, Some(&arguments))?
            }
        }
        FLOAT => {
            let bytes = source.take(8).ok_or_else(wrong)?;
            PyFloat::new(py, f64::from_le_bytes(bytes.try_into().expect("8 bytes"))).into_any()
        }
        STR => {
            let text = std::str::from_utf8(source.sized().ok_or_else(wrong)?).map_err(|_| spoilt(py))?;
            PyString::new(py, text).into_any()
        }
        BYTES => PyBytes::new(py, source.sized().ok_or_else(wrong)?).into_any(),
        LIST => PyList::new(py, many(py, source, pickle, depth)?)?.into_any(),
        TUPLE => PyTuple::new(py, many(py, source, pickle, depth)?)?.into_any(),
        DICT => {
            let count = source.length().ok_or_else(wrong)?;
            let dict = PyDict::new(py);
            for _ in 0..count {
                let key = get(py, source, pickle, depth + 1)?;
                let value = get(py, source, pickle, depth + 1)?;
                dict.set_item(key, value).map_err(|_| spoilt(py))?;
            }
            dict.into_any()
        }
        SCALAR => {
            let dtype = source.sized().ok_or_else(wrong)?;
            let bytes = source.sized().ok_or_else(wrong)?;
            numpy_scalar(py, dtype, bytes).ok_or_else(wrong)?
        }
        tag @ (SCALAR_STR | SCALAR_BYTES) => {
            let bytes = source.sized().ok_or_else(wrong)?;
            let numpy = py.import("numpy")?;
            if tag == SCALAR_BYTES {
                numpy.call_method1("bytes_", (PyBytes::new(py, bytes),))?
            } else {
                numpy.call_method1("str_", (std::str::from_utf8(bytes).map_err(|_| spoilt(py))?,))?
            }
        }
        COMPLEX => {
            let mut part =
                || source.take(8).map(|bytes| f64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            let (real, imaginary) = (part().ok_or_else(wrong)?, part().ok_or_else(wrong)?);
            PyComplex::from_doubles(py, real, imaginary).into_any()
        }
        // A damaged set may contain values that cannot be hashed.
        SET => PySet::new(py, many(py, source, pickle, depth)?).map_err(|_| spoilt(py))?.into_any(),
        FROZENSET => {
            PyFrozenSet::new(py, many(py, source, pickle, depth)?).map_err(|_| spoilt(py))?.into_any()
        }
        BYTEARRAY => PyByteArray::new(py, source.sized().ok_or_else(wrong)?).into_any(),
        PICKLE => {
            let bytes = source.sized().ok_or_else(wrong)?;
            if !pickle {
                let what = "the value was pickled: open the dict with pickle=True if nobody else could write this file \
                            (unpickling runs whatever code the file says)";
                return Err(refused(py, what.to_owned()));
            }
            py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))?
        }
        _ => return Err(spoilt(py)),
    })
}
