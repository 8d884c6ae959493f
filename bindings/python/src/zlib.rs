// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.zlib`: the interface of the standard library's module, with memlift's libz.
//!
//! - **Flow** any contiguous buffer ──▶ [`Stream`] ──▶ a bytes object that grows in place ([`Growing`]).
//! - **Order** the GIL is released for inputs of 16 KiB and more; each stream has a lock, so one thread uses it at a time.
//! - **Source** arguments, results and exceptions of each function: the documentation of `zlib` of Python 3.11 to 3.14, and its tests.
//! - **Not here** names, defaults and constants (`memlift/zlib.py`); gzip files (`memlift/gzip.py`).

#[expect(unsafe_code, reason = "loads a C library and calls it")]
mod libz;

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{
    PyEOFError, PyImportError, PyMemoryError, PyOverflowError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyBytes, PyType};

use crate::convert::DETACH_BYTES;
use crate::memory::{Input, Output, Span};
use libz::{
    Failed, Packing, Ran, Stream, Z_BUF_ERROR, Z_FINISH, Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK,
    Z_STREAM_END, Z_STREAM_ERROR, Z_SYNC_FLUSH,
};

/// First room for output if no better estimate is known, bytes.
const ROOM_BYTES: usize = 16 * 1024;
/// Ratio that is expected of packed bytes. Memory that turns out not to be needed was not touched, and costs little.
const GUESSED_RATIO: usize = 8;
/// About the highest ratio of deflate; a larger size in a gzip trailer is not believed.
const RATIO_MAX: usize = 1032;

/// Loads the library at this path.
#[pyfunction]
fn _zlib_load(path: PathBuf) -> PyResult<()> {
    libz::load(path.as_os_str()).map_err(PyImportError::new_err)
}

/// Returns the version of zlib that the library replaces.
#[pyfunction]
fn _zlib_version() -> String {
    libz::version()
}

/// Returns the class `zlib.error` of the standard library.
fn error_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "zlib", "error")
}

/// Returns the exception for an error of zlib, with the text of the standard library.
fn zlib_error(py: Python<'_>, failed: &Failed, what: &str) -> PyErr {
    let known = match failed.code {
        Z_BUF_ERROR => Some("incomplete or truncated stream"),
        Z_STREAM_ERROR => Some("inconsistent stream state"),
        -3 => Some("invalid input data"),
        _ => None,
    };
    let text = match failed.text.as_deref().or(known) {
        Some(text) => format!("Error {} {what}: {text}", failed.code),
        None => format!("Error {} {what}", failed.code),
    };
    plain_error(py, text)
}

/// Returns a `zlib.error` with this text.
fn plain_error(py: Python<'_>, text: String) -> PyErr {
    match error_class(py) {
        Ok(class) => PyErr::from_type(class.clone(), text),
        Err(error) => error,
    }
}

/// Borrows the buffer of an argument.
fn bytes_like(object: &Bound<'_, PyAny>) -> PyResult<Input> {
    Input::new(object).or_else(|_| {
        // Another function with such an argument has the interpreter's own error for it.
        object.py().import("binascii")?.call_method1("crc32", (object,))?;
        Err(PyTypeError::new_err("a bytes-like object is required"))
    })
}

/// Returns an integer argument, with the interpreter's text if it does not fit.
fn integer<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>, kind: &str) -> PyResult<T> {
    object.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            PyOverflowError::new_err(format!("Python int too large to convert to C {kind}"))
        } else {
            error
        }
    })
}

fn int(object: &Bound<'_, PyAny>) -> PyResult<c_int> {
    integer(object, "int")
}

/// Returns the lowest 32 bits of an integer argument.
fn word(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    if let Ok(value) = object.extract() {
        return Ok(value);
    }
    let number = object.py().import("operator")?.call_method1("index", (object,))?;
    number.call_method1("__and__", (u32::MAX,))?.extract()
}

fn ssize(object: &Bound<'_, PyAny>) -> PyResult<isize> {
    integer(object, "ssize_t")
}

/// A bytes object that grows while a stream writes to it.
struct Growing<'py> {
    py: Python<'py>,
    output: Output<'py>,
    room: usize,
    written: usize,
    /// Most bytes that the object may have.
    limit: usize,
}

impl<'py> Growing<'py> {
    fn new(py: Python<'py>, room: usize, limit: usize) -> PyResult<Growing<'py>> {
        let room = room.clamp(1, limit.max(1));
        Ok(Growing { py, output: Output::new(py, None, room)?, room, written: 0, limit })
    }

    fn is_full(&self) -> bool {
        self.written == self.room
    }

    fn grow(&mut self) -> PyResult<()> {
        let room = self.room.saturating_mul(2).max(ROOM_BYTES).min(self.limit);
        self.output.grow(self.py, room)?;
        self.room = room;
        Ok(())
    }

    fn finish(self) -> PyResult<Bound<'py, PyAny>> {
        self.output.finish(self.py, self.written)
    }

    /// Runs the stream until the source is used up, an error occurs, or the end of the stream or the limit is reached. Returns
    /// the last code, and how many bytes of the source were read.
    fn fill(
        &mut self,
        stream: &mut Stream,
        source: Span,
        flush: c_int,
        dictionary: Option<&[u8]>,
    ) -> PyResult<Ran> {
        let (mut read, start) = (0, self.written);
        loop {
            if self.written >= self.limit {
                return Ok(Ran { code: Z_OK, read, written: self.written - start });
            }
            if self.is_full() {
                self.grow()?;
            }
            let target = self.output.span().after(self.written);
            let rest = source.after(read);
            let mut run = || {
                // SAFETY: the source is exported by its owner during the call, and the target is a bytes object that nobody
                // else has; the documentation requires that nobody changes the source during the call.
                #[expect(unsafe_code, reason = "hands the memory of two Python objects to the library")]
                unsafe {
                    stream.run(rest, target, flush)
                }
            };
            let is_short = rest.bytes() < DETACH_BYTES && target.bytes() <= ROOM_BYTES;
            let ran = if is_short { run() } else { self.py.detach(run) };
            read += ran.read;
            self.written += ran.written;
            if ran.code == Z_NEED_DICT
                && let Some(dictionary) = dictionary
            {
                let code = stream.set_dictionary(dictionary);
                if code < 0 {
                    return Err(zlib_error(self.py, &stream.failed(code), "while setting zdict"));
                }
                continue;
            }
            let goes_on = matches!(ran.code, Z_OK | Z_BUF_ERROR)
                && (self.is_full() || read < source.bytes() && ran.read > 0);
            if !goes_on {
                return Ok(Ran { code: ran.code, read, written: self.written - start });
            }
        }
    }
}

/// Returns the unpacked length in the trailer of a gzip member, if it is plausible.
fn stated_length(source: &[u8], wbits: c_int) -> Option<usize> {
    let [.., a, b, c, d] = source else { return None };
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    (wbits >= 24 && source.starts_with(&[0x1f, 0x8b]) && length / RATIO_MAX <= source.len()).then_some(length)
}

/// The function of `zlib.compress`.
#[pyfunction]
fn _zlib_compress<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = bytes_like)] input: Input,
    #[pyo3(from_py_with = int)] level: c_int,
    #[pyo3(from_py_with = int)] wbits: c_int,
) -> PyResult<Bound<'py, PyAny>> {
    let packing = Packing { level, method: 8, wbits, mem_level: 8, strategy: 0 };
    let mut stream = Stream::packs(packing).map_err(|failed| match failed.code {
        Z_MEM_ERROR => PyMemoryError::new_err("Out of memory while compressing data"),
        Z_STREAM_ERROR => plain_error(py, "Bad compression level".to_owned()),
        _ => zlib_error(py, &failed, "while compressing data"),
    })?;
    // About the value of deflateBound: pages that are not written cost nothing.
    let bytes = input.span().bytes();
    let mut growing = Growing::new(py, bytes + bytes / 1000 + 64, usize::MAX)?;
    let ran = growing.fill(&mut stream, input.span(), Z_FINISH, None)?;
    if ran.code != Z_STREAM_END {
        return Err(zlib_error(py, &stream.failed(ran.code), "while compressing data"));
    }
    growing.finish()
}

/// The function of `zlib.decompress`.
#[pyfunction]
fn _zlib_decompress<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = bytes_like)] input: Input,
    #[pyo3(from_py_with = int)] wbits: c_int,
    #[pyo3(from_py_with = ssize)] bufsize: isize,
) -> PyResult<Bound<'py, PyAny>> {
    let Ok(room) = usize::try_from(bufsize) else {
        return Err(PyValueError::new_err("bufsize must be non-negative"));
    };
    let what = "while decompressing data";
    let mut stream = Stream::unpacks(wbits).map_err(|failed| match failed.code {
        Z_MEM_ERROR => PyMemoryError::new_err("Out of memory while decompressing data"),
        _ => zlib_error(py, &failed, "while preparing to decompress data"),
    })?;
    let span = input.span();
    // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
    #[expect(unsafe_code, reason = "reads the memory of a Python object")]
    let stated = stated_length(unsafe { input.slice() }, wbits);
    let guess =
        stated.map_or_else(|| room.max(span.bytes().saturating_mul(GUESSED_RATIO)), |length| length + 1);
    let mut growing = Growing::new(py, guess, usize::MAX)?;
    let ran = growing.fill(&mut stream, span, Z_FINISH, None)?;
    match ran.code {
        Z_STREAM_END => growing.finish(),
        Z_MEM_ERROR => Err(PyMemoryError::new_err("Out of memory while decompressing data")),
        // The stream needs more input, so it is cut off.
        Z_OK => Err(zlib_error(py, &stream.failed(Z_BUF_ERROR), what)),
        code => Err(zlib_error(py, &stream.failed(code), what)),
    }
}

/// The function of `zlib.crc32`.
#[pyfunction]
fn _zlib_crc32(
    py: Python<'_>,
    #[pyo3(from_py_with = bytes_like)] input: Input,
    #[pyo3(from_py_with = word)] value: u32,
) -> u32 {
    sum(py, &input, |bytes| libz::crc32(value, bytes))
}

/// The function of `zlib.adler32`.
#[pyfunction]
fn _zlib_adler32(
    py: Python<'_>,
    #[pyo3(from_py_with = bytes_like)] input: Input,
    #[pyo3(from_py_with = word)] value: u32,
) -> u32 {
    sum(py, &input, |bytes| libz::adler32(value, bytes))
}

fn sum(py: Python<'_>, input: &Input, of: impl Fn(&[u8]) -> u32 + Sync + Send) -> u32 {
    // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
    #[expect(unsafe_code, reason = "reads the memory of a Python object")]
    let bytes = unsafe { input.slice() };
    if bytes.len() < DETACH_BYTES { of(bytes) } else { py.detach(|| of(bytes)) }
}

/// The object that `zlib.compressobj` returns.
#[pyclass(module = "memlift.zlib", frozen)]
struct Compress {
    stream: Mutex<Stream>,
}

/// The function of `zlib.compressobj`.
#[pyfunction]
fn _zlib_compressobj(
    py: Python<'_>,
    #[pyo3(from_py_with = int)] level: c_int,
    #[pyo3(from_py_with = int)] method: c_int,
    #[pyo3(from_py_with = int)] wbits: c_int,
    #[pyo3(from_py_with = int)] mem_level: c_int,
    #[pyo3(from_py_with = int)] strategy: c_int,
    zdict: Option<&Bound<'_, PyAny>>,
) -> PyResult<Compress> {
    let zdict = zdict.map(bytes_like).transpose()?.as_ref().map(copied_bytes);
    let packing = Packing { level, method, wbits, mem_level, strategy };
    let mut stream = Stream::packs(packing).map_err(|failed| match failed.code {
        Z_MEM_ERROR => PyMemoryError::new_err("Can't allocate memory for compression object"),
        Z_STREAM_ERROR => PyValueError::new_err("Invalid initialization option"),
        _ => zlib_error(py, &failed, "while creating compression object"),
    })?;
    match zdict.map_or(Z_OK, |zdict| stream.set_dictionary(&zdict)) {
        Z_OK => Ok(Compress { stream: Mutex::new(stream) }),
        Z_STREAM_ERROR => Err(PyValueError::new_err("Invalid dictionary")),
        _ => Err(PyValueError::new_err("deflateSetDictionary()")),
    }
}

fn dictionary(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let input = Input::new(object)
        .map_err(|_| PyTypeError::new_err("zdict argument must support the buffer protocol"))?;
    Ok(copied_bytes(&input))
}

fn copied_bytes(input: &Input) -> Vec<u8> {
    // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
    #[expect(unsafe_code, reason = "reads the memory of a Python object")]
    unsafe { input.slice() }.to_vec()
}

/// Locks a stream. A panic does not damage zlib's state, so a poisoned lock is used like any other.
macro_rules! locked {
    ($mutex:expr, $py:expr) => {
        $mutex.lock_py_attached($py).unwrap_or_else(std::sync::PoisonError::into_inner)
    };
}

#[pymethods]
impl Compress {
    #[pyo3(signature = (data, /))]
    fn compress<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes_like)] data: Input,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut stream = locked!(self.stream, py);
        let mut growing = Growing::new(py, data.span().bytes().min(ROOM_BYTES) + 64, usize::MAX)?;
        let ran = growing.fill(&mut stream, data.span(), Z_NO_FLUSH, None)?;
        if ran.code == Z_STREAM_ERROR {
            return Err(zlib_error(py, &stream.failed(ran.code), "while compressing data"));
        }
        growing.finish()
    }

    #[pyo3(signature = (mode=Z_FINISH, /))]
    fn flush<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = int)] mode: c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        if mode == Z_NO_FLUSH {
            return Ok(PyBytes::new(py, b"").into_any());
        }
        let mut stream = locked!(self.stream, py);
        let mut growing = Growing::new(py, 1024, usize::MAX)?;
        let ran = growing.fill(&mut stream, Span::EMPTY, mode, None)?;
        match ran.code {
            Z_STREAM_END if mode == Z_FINISH => match stream.end() {
                Z_OK => {}
                code => return Err(zlib_error(py, &stream.failed(code), "while finishing compression")),
            },
            Z_OK | Z_BUF_ERROR | Z_STREAM_END => {}
            code => return Err(zlib_error(py, &stream.failed(code), "while flushing")),
        }
        growing.finish()
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Compress> {
        let copy = copied(py, &mut locked!(self.stream, py), "while copying compression object")?;
        Ok(Compress { stream: Mutex::new(copy) })
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Compress> {
        self.copy(py)
    }

    #[pyo3(signature = (memo, /))]
    fn __deepcopy__(&self, py: Python<'_>, memo: &Bound<'_, PyAny>) -> PyResult<Compress> {
        let _ = memo;
        self.copy(py)
    }
}

fn copied(py: Python<'_>, stream: &mut Stream, what: &str) -> PyResult<Stream> {
    stream.copy().map_err(|failed| match failed.code {
        Z_MEM_ERROR => PyMemoryError::new_err("Can't allocate memory for a copy"),
        Z_STREAM_ERROR => PyValueError::new_err("Inconsistent stream state"),
        _ => zlib_error(py, &failed, what),
    })
}

/// Results of a decompression in addition to its output.
#[derive(Clone, Default)]
struct Tails {
    unused: Vec<u8>,
    unconsumed: Vec<u8>,
    is_at_end: bool,
}

impl Tails {
    /// Stores the rest of a call's source: bytes behind the end of the stream, or left because of a limit. `had_rest` says that
    /// the call before had left some; then those behind the end are stored as left, too, as by `zlib.decompressobj`.
    fn take(&mut self, rest: &[u8], code: c_int, had_rest: bool) {
        self.unconsumed.clear();
        if code == Z_STREAM_END {
            self.is_at_end = true;
            self.unused.extend_from_slice(rest);
        }
        if code != Z_STREAM_END || had_rest {
            self.unconsumed.extend_from_slice(rest);
        }
    }
}

/// The object that `zlib.decompressobj` returns.
#[pyclass(module = "memlift.zlib", frozen)]
struct Decompress {
    stream: Mutex<Stream>,
    /// Held only for moments, and never while waiting for the GIL.
    tails: Mutex<Tails>,
    zdict: Option<Vec<u8>>,
}

fn unpacks(py: Python<'_>, wbits: c_int, zdict: Option<&Vec<u8>>) -> PyResult<Stream> {
    let mut stream = Stream::unpacks(wbits).map_err(|failed| match failed.code {
        Z_MEM_ERROR => PyMemoryError::new_err("Can't allocate memory for decompression object"),
        Z_STREAM_ERROR => PyValueError::new_err("Invalid initialization option"),
        _ => zlib_error(py, &failed, "while creating decompression object"),
    })?;
    // A raw stream does not ask for its dictionary, so it is set now.
    let code = zdict.filter(|_| wbits < 0).map_or(Z_OK, |zdict| stream.set_dictionary(zdict));
    if code == Z_OK { Ok(stream) } else { Err(zlib_error(py, &stream.failed(code), "while setting zdict")) }
}

/// The function of `zlib.decompressobj`.
#[pyfunction]
fn _zlib_decompressobj(
    py: Python<'_>,
    #[pyo3(from_py_with = int)] wbits: c_int,
    zdict: &Bound<'_, PyAny>,
) -> PyResult<Decompress> {
    let zdict = Some(dictionary(zdict)?).filter(|zdict| !zdict.is_empty());
    let stream = unpacks(py, wbits, zdict.as_ref())?;
    Ok(Decompress { stream: Mutex::new(stream), tails: Mutex::default(), zdict })
}

impl Decompress {
    fn tails(&self) -> std::sync::MutexGuard<'_, Tails> {
        self.tails.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl Decompress {
    #[pyo3(signature = (data, /, max_length=0))]
    fn decompress<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes_like)] data: Input,
        #[pyo3(from_py_with = ssize)] max_length: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ok(limit) = usize::try_from(max_length) else {
            return Err(PyValueError::new_err("max_length must be non-negative"));
        };
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut stream = locked!(self.stream, py);
        // SAFETY: the buffer is exported while `data` lives; the documentation requires that nobody changes it during the call.
        #[expect(unsafe_code, reason = "reads the memory of a Python object")]
        let source = unsafe { data.slice() };
        let guess = source.len().saturating_mul(4).clamp(256, ROOM_BYTES.max(source.len().saturating_mul(4)));
        let mut growing = Growing::new(py, guess, limit)?;
        let ran = growing.fill(&mut stream, data.span(), Z_SYNC_FLUSH, self.zdict.as_deref())?;
        let mut tails = self.tails();
        let had_rest = !tails.unconsumed.is_empty();
        tails.take(&source[ran.read..], ran.code, had_rest);
        drop(tails);
        match ran.code {
            Z_OK | Z_BUF_ERROR | Z_STREAM_END => growing.finish(),
            code => Err(zlib_error(py, &stream.failed(code), "while decompressing data")),
        }
    }

    #[pyo3(signature = (length=ROOM_BYTES as isize, /))]
    fn flush<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = ssize)] length: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(room) = usize::try_from(length).ok().filter(|length| *length > 0) else {
            return Err(PyValueError::new_err("length must be greater than zero"));
        };
        let mut stream = locked!(self.stream, py);
        let source = std::mem::take(&mut self.tails().unconsumed);
        let mut growing = Growing::new(py, room, usize::MAX)?;
        let ran = growing.fill(&mut stream, Span::of(&source), Z_FINISH, self.zdict.as_deref())?;
        self.tails().take(&source[ran.read..], ran.code, !source.is_empty());
        // With any other code the bytes so far are returned, as `flush` of `zlib.decompressobj` does.
        if ran.code == Z_STREAM_END && stream.is_open() {
            let code = stream.end();
            if code != Z_OK {
                return Err(zlib_error(py, &stream.failed(code), "while finishing decompression"));
            }
        }
        growing.finish()
    }

    #[getter]
    fn unused_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.tails().unused)
    }

    #[getter]
    fn unconsumed_tail<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.tails().unconsumed)
    }

    #[getter]
    fn eof(&self) -> bool {
        self.tails().is_at_end
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Decompress> {
        let copy = copied(py, &mut locked!(self.stream, py), "while copying decompression object")?;
        let tails = self.tails().clone();
        Ok(Decompress { stream: Mutex::new(copy), tails: Mutex::new(tails), zdict: self.zdict.clone() })
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Decompress> {
        self.copy(py)
    }

    #[pyo3(signature = (memo, /))]
    fn __deepcopy__(&self, py: Python<'_>, memo: &Bound<'_, PyAny>) -> PyResult<Decompress> {
        let _ = memo;
        self.copy(py)
    }
}

/// The class `zlib._ZlibDecompressor`, by which the standard library's `gzip` reads from Python 3.12 on. It keeps input that
/// was left over because of a limit.
#[pyclass(module = "memlift.zlib", name = "_ZlibDecompressor", frozen)]
struct Decompressor {
    state: Mutex<Kept>,
    zdict: Option<Vec<u8>>,
}

struct Kept {
    stream: Stream,
    tails: Tails,
    needs_input: bool,
}

#[pymethods]
impl Decompressor {
    #[new]
    #[pyo3(signature = (wbits=15, zdict=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = int)] wbits: c_int,
        zdict: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decompressor> {
        let zdict = zdict.map(dictionary).transpose()?.filter(|zdict| !zdict.is_empty());
        let stream = unpacks(py, wbits, zdict.as_ref())?;
        let state = Kept { stream, tails: Tails::default(), needs_input: true };
        Ok(Decompressor { state: Mutex::new(state), zdict })
    }

    /// Unpacks `data` to at most `max_length` bytes (-1: no limit); the rest waits for the next call.
    #[pyo3(signature = (data, max_length=-1))]
    fn decompress<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes_like)] data: Input,
        #[pyo3(from_py_with = ssize)] max_length: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut state = locked!(self.state, py);
        if state.tails.is_at_end {
            return Err(PyEOFError::new_err("End of stream already reached"));
        }
        let limit = usize::try_from(max_length).unwrap_or(usize::MAX);
        // SAFETY: the buffer is exported while `data` lives; the documentation requires that nobody changes it during the call.
        #[expect(unsafe_code, reason = "reads the memory of a Python object")]
        let new = unsafe { data.slice() };
        let kept = std::mem::take(&mut state.tails.unconsumed);
        let joined = if kept.is_empty() { kept } else { [&kept[..], new].concat() };
        let source = if joined.is_empty() { new } else { &joined[..] };
        let mut growing = Growing::new(py, source.len().saturating_mul(4).max(256), limit)?;
        let ran = growing.fill(&mut state.stream, Span::of(source), Z_SYNC_FLUSH, self.zdict.as_deref())?;
        state.tails.take(&source[ran.read..], ran.code, false);
        match ran.code {
            Z_OK | Z_BUF_ERROR | Z_STREAM_END => {}
            code => return Err(zlib_error(py, &state.stream.failed(code), "while decompressing data")),
        }
        let is_limited = growing.written == limit;
        state.needs_input = !state.tails.is_at_end && state.tails.unconsumed.is_empty() && !is_limited;
        growing.finish()
    }

    #[getter]
    fn unused_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &locked!(self.state, py).tails.unused)
    }

    #[getter]
    fn eof(&self, py: Python<'_>) -> bool {
        locked!(self.state, py).tails.is_at_end
    }

    #[getter]
    fn needs_input(&self, py: Python<'_>) -> bool {
        locked!(self.state, py).needs_input
    }
}

/// Most packed bytes that are read from a file at a time.
const PIECE_BYTES: usize = 128 * 1024;
/// Unpacked bytes after which they are added to the checksum, while they are in a near cache.
const SUMMED_BYTES: usize = 256 * 1024;

/// The deflate data of one gzip member, for the reader of `memlift.gzip`. It reads pieces from a file, unpacks them into the
/// reader's own buffer, and keeps the rest of a piece.
#[pyclass(module = "memlift.zlib", name = "_Member", frozen)]
struct Member {
    state: Mutex<MemberState>,
}

struct MemberState {
    stream: Stream,
    /// The last piece, of which `read` bytes were unpacked.
    piece: Option<Input>,
    read: usize,
    /// True if the last output filled its target, so there may be more without another piece.
    has_more: bool,
    is_at_end: bool,
    /// True for raw data, whose checksum the library does not compare.
    sums: bool,
    /// CRC-32 and number of the bytes unpacked.
    sum: u32,
    bytes: u64,
}

impl MemberState {
    fn rest(&self) -> Span {
        self.piece.as_ref().map_or(Span::EMPTY, |piece| piece.span().after(self.read))
    }

    /// Unpacks until the target is full, the piece is used up, or the member ends. Returns the bytes written.
    fn unpack(&mut self, py: Python<'_>, target: Span) -> PyResult<usize> {
        let rest = self.rest();
        let mut run = || {
            let (mut read, mut written) = (0, 0);
            let code = loop {
                let part = target.after(written).first(SUMMED_BYTES);
                // SAFETY: the piece is exported as long as `self` has it, and the target is a bytes object or a buffer that the
                // caller holds; the documentation requires that nobody changes either during the call.
                #[expect(unsafe_code, reason = "hands the memory of two Python objects to the library")]
                let ran = unsafe {
                    let ran = self.stream.run(rest.after(read), part, Z_SYNC_FLUSH);
                    if self.sums {
                        self.sum =
                            libz::crc32(self.sum, std::slice::from_raw_parts(part.start(), ran.written));
                    }
                    ran
                };
                read += ran.read;
                written += ran.written;
                if ran.code != Z_OK || written == target.bytes() || ran.written < part.bytes() {
                    break ran.code;
                }
            };
            (code, read, written)
        };
        let is_short = rest.bytes() < DETACH_BYTES && target.bytes() <= ROOM_BYTES;
        let (code, read, written) = if is_short { run() } else { py.detach(run) };
        self.read += read;
        self.bytes += written as u64;
        self.is_at_end = code == Z_STREAM_END;
        let is_wrong = !matches!(code, Z_OK | Z_BUF_ERROR | Z_STREAM_END);
        // The next call reports an error once more.
        self.has_more = written == target.bytes() || is_wrong;
        if is_wrong {
            return Err(zlib_error(py, &self.stream.failed(code), "while decompressing data"));
        }
        Ok(written)
    }
}

impl Member {
    /// Calls `take` until it has taken bytes or the member ends, and reads a piece of the file whenever there are none left.
    fn next<T>(
        &self,
        py: Python<'_>,
        read: &Bound<'_, PyAny>,
        mut take: impl FnMut(&mut MemberState) -> PyResult<(usize, T)>,
    ) -> PyResult<T> {
        loop {
            {
                let mut state = locked!(self.state, py);
                if state.rest().bytes() != 0 || state.has_more || state.is_at_end {
                    let (taken, value) = take(&mut state)?;
                    if taken != 0 || state.is_at_end {
                        return Ok(value);
                    }
                }
            }
            // Not under the lock: the file may be any Python object.
            let piece = bytes_like(&read.call1((PIECE_BYTES,))?)?;
            if piece.span().bytes() == 0 {
                let text = "Compressed file ended before the end-of-stream marker was reached";
                return Err(PyEOFError::new_err(text));
            }
            let mut state = locked!(self.state, py);
            (state.piece, state.read) = (Some(piece), 0);
        }
    }
}

#[pymethods]
impl Member {
    #[new]
    #[pyo3(signature = (wbits=-15))]
    fn new(py: Python<'_>, wbits: c_int) -> PyResult<Member> {
        let state = MemberState {
            stream: unpacks(py, wbits, None)?,
            piece: None,
            read: 0,
            has_more: false,
            is_at_end: false,
            sums: wbits < 0,
            sum: 0,
            bytes: 0,
        };
        Ok(Member { state: Mutex::new(state) })
    }

    /// Unpacks into `target`; `read` is called with a number of bytes if packed ones are needed. Returns the number of bytes, at
    /// least 1 unless the member has ended.
    fn readinto(
        &self,
        py: Python<'_>,
        read: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let output = Output::new(py, Some(target), 0)?;
        self.next(py, read, |state| {
            let written = state.unpack(py, output.span())?;
            Ok((written, written))
        })
    }

    /// Returns up to `size` unpacked bytes: all that one piece of the file gives.
    fn read<'py>(
        &self,
        py: Python<'py>,
        read: &Bound<'py, PyAny>,
        size: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.next(py, read, |state| {
            let guess = state.rest().bytes().saturating_mul(4).max(ROOM_BYTES);
            let mut growing = Growing::new(py, guess, size)?;
            loop {
                growing.written += state.unpack(py, growing.output.span().after(growing.written))?;
                if !growing.is_full() || growing.room == size || state.is_at_end {
                    break;
                }
                growing.grow()?;
            }
            Ok((growing.written, growing.finish()?))
        })
    }

    #[getter]
    fn eof(&self, py: Python<'_>) -> bool {
        locked!(self.state, py).is_at_end
    }

    /// Bytes of the last piece behind the member.
    #[getter]
    fn unused_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let state = locked!(self.state, py);
        let rest = state.rest();
        // SAFETY: the piece is exported as long as the state has it; the documentation requires that nobody changes it.
        #[expect(unsafe_code, reason = "reads the memory of a Python object")]
        PyBytes::new(py, unsafe { std::slice::from_raw_parts(rest.start(), rest.bytes()) })
    }

    /// CRC-32 and number of the bytes unpacked so far.
    #[getter]
    fn check(&self, py: Python<'_>) -> (u32, u64) {
        let state = locked!(self.state, py);
        (state.sum, state.bytes)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Member>()?;
    module.add_class::<Compress>()?;
    module.add_class::<Decompress>()?;
    module.add_class::<Decompressor>()?;
    module.add_function(wrap_pyfunction!(_zlib_load, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_version, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_compress, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_decompress, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_crc32, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_adler32, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_compressobj, module)?)?;
    module.add_function(wrap_pyfunction!(_zlib_decompressobj, module)?)?;
    Ok(())
}
