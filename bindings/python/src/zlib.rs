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

use pyo3::exceptions::{PyEOFError, PyImportError, PyMemoryError, PyTypeError, PyValueError};
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
    // For these two codes libz's own text says less.
    let own = failed.text.as_deref().filter(|_| !matches!(failed.code, Z_BUF_ERROR | Z_STREAM_ERROR));
    let text = match own.or(known) {
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

fn bytes_like<'py>(object: &Bound<'py, PyAny>) -> PyResult<Input> {
    Input::new(object).map_err(|_| {
        let name = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("a bytes-like object is required, not '{name}'"))
    })
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
    data: &Bound<'py, PyAny>,
    level: c_int,
    wbits: c_int,
) -> PyResult<Bound<'py, PyAny>> {
    let input = bytes_like(data)?;
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
    data: &Bound<'py, PyAny>,
    wbits: c_int,
    bufsize: isize,
) -> PyResult<Bound<'py, PyAny>> {
    let input = bytes_like(data)?;
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
    let guess = stated.map_or_else(|| room.max(span.bytes().saturating_mul(4)), |length| length + 1);
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
fn _zlib_crc32(py: Python<'_>, data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    sum(py, data, |bytes| libz::crc32(value, bytes))
}

/// The function of `zlib.adler32`.
#[pyfunction]
fn _zlib_adler32(py: Python<'_>, data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    sum(py, data, |bytes| libz::adler32(value, bytes))
}

fn sum(py: Python<'_>, data: &Bound<'_, PyAny>, of: impl Fn(&[u8]) -> u32 + Sync + Send) -> PyResult<u32> {
    let input = bytes_like(data)?;
    // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
    #[expect(unsafe_code, reason = "reads the memory of a Python object")]
    let bytes = unsafe { input.slice() };
    Ok(if bytes.len() < DETACH_BYTES { of(bytes) } else { py.detach(|| of(bytes)) })
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
    level: c_int,
    method: c_int,
    wbits: c_int,
    mem_level: c_int,
    strategy: c_int,
    zdict: Option<&Bound<'_, PyAny>>,
) -> PyResult<Compress> {
    let zdict = zdict.map(dictionary).transpose()?;
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
    // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
    #[expect(unsafe_code, reason = "reads the memory of a Python object")]
    Ok(unsafe { input.slice() }.to_vec())
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
    fn compress<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let input = bytes_like(data)?;
        let mut stream = locked!(self.stream, py);
        let mut growing = Growing::new(py, input.span().bytes().min(ROOM_BYTES) + 64, usize::MAX)?;
        let ran = growing.fill(&mut stream, input.span(), Z_NO_FLUSH, None)?;
        if ran.code == Z_STREAM_ERROR {
            return Err(zlib_error(py, &stream.failed(ran.code), "while compressing data"));
        }
        growing.finish()
    }

    #[pyo3(signature = (mode=Z_FINISH, /))]
    fn flush<'py>(&self, py: Python<'py>, mode: c_int) -> PyResult<Bound<'py, PyAny>> {
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
    /// Stores the rest of a call's source: bytes behind the end of the stream, or left because of a limit.
    fn take(&mut self, rest: &[u8], code: c_int) {
        self.unconsumed.clear();
        if code == Z_STREAM_END {
            self.is_at_end = true;
            self.unused.extend_from_slice(rest);
        } else {
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
    wbits: c_int,
    zdict: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decompress> {
    let zdict = zdict.map(dictionary).transpose()?.filter(|zdict| !zdict.is_empty());
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
        data: &Bound<'py, PyAny>,
        max_length: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ok(limit) = usize::try_from(max_length) else {
            return Err(PyValueError::new_err("max_length must be non-negative"));
        };
        let limit = if limit == 0 { usize::MAX } else { limit };
        let input = bytes_like(data)?;
        let mut stream = locked!(self.stream, py);
        // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
        #[expect(unsafe_code, reason = "reads the memory of a Python object")]
        let source = unsafe { input.slice() };
        let guess = source.len().saturating_mul(4).clamp(256, ROOM_BYTES.max(source.len().saturating_mul(4)));
        let mut growing = Growing::new(py, guess, limit)?;
        let ran = growing.fill(&mut stream, input.span(), Z_SYNC_FLUSH, self.zdict.as_deref())?;
        self.tails().take(&source[ran.read..], ran.code);
        match ran.code {
            Z_OK | Z_BUF_ERROR | Z_STREAM_END => growing.finish(),
            code => Err(zlib_error(py, &stream.failed(code), "while decompressing data")),
        }
    }

    #[pyo3(signature = (length=ROOM_BYTES as isize, /))]
    fn flush<'py>(&self, py: Python<'py>, length: isize) -> PyResult<Bound<'py, PyAny>> {
        let Some(room) = usize::try_from(length).ok().filter(|length| *length > 0) else {
            return Err(PyValueError::new_err("length must be greater than zero"));
        };
        let mut stream = locked!(self.stream, py);
        let source = std::mem::take(&mut self.tails().unconsumed);
        let mut growing = Growing::new(py, room, usize::MAX)?;
        let ran = growing.fill(&mut stream, Span::of(&source), Z_FINISH, self.zdict.as_deref())?;
        self.tails().take(&source[ran.read..], ran.code);
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
    fn new(py: Python<'_>, wbits: c_int, zdict: Option<&Bound<'_, PyAny>>) -> PyResult<Decompressor> {
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
        data: &Bound<'py, PyAny>,
        max_length: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let input = bytes_like(data)?;
        let mut state = locked!(self.state, py);
        if state.tails.is_at_end {
            return Err(PyEOFError::new_err("End of stream already reached"));
        }
        let limit = usize::try_from(max_length).unwrap_or(usize::MAX);
        // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
        #[expect(unsafe_code, reason = "reads the memory of a Python object")]
        let new = unsafe { input.slice() };
        let kept = std::mem::take(&mut state.tails.unconsumed);
        let joined = if kept.is_empty() { kept } else { [&kept[..], new].concat() };
        let source = if joined.is_empty() { new } else { &joined[..] };
        let mut growing = Growing::new(py, source.len().saturating_mul(4).max(256), limit)?;
        let ran = growing.fill(&mut state.stream, Span::of(source), Z_SYNC_FLUSH, self.zdict.as_deref())?;
        state.tails.take(&source[ran.read..], ran.code);
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
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
