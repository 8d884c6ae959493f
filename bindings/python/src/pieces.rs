// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages in pieces: `Packer`, `Sealer`, `Opener`.
//!
//! - **Flow** `push`(data), any number of times ──▶ `finish`.
//! - **Order** only one call at a time uses an object; after `finish` no further call is allowed.
//! - **Owner** an `Opener` gives out the opened bytes only if the tag was right, and zeroes them otherwise.

use crate::convert::DETACH_BYTES;
use crate::errors::transform_error;
use crate::memory::{Input, Output, Span};
use crate::transform::{bytes_of, format, key_of, packing, vec_of};
use memlift::transform::deflate::{self, Flush, PackStream};
use memlift::transform::{Error, Format, OpenStream, Packing, SealStream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const OVER: Error = Error::Order("this message is finished: make a new object for the next one");

fn unless_over<'a, T>(py: Python<'_>, stream: &'a mut Option<T>) -> PyResult<&'a mut T> {
    stream.as_mut().ok_or_else(|| transform_error(py, OVER))
}

/// Packs one message that comes in pieces.
#[pyclass(module = "memlift.transform")]
pub struct Packer {
    stream: Option<Box<PackStream>>,
}

#[pymethods]
impl Packer {
    #[new]
    #[pyo3(signature = (format="gzip", effort="default"))]
    fn new(py: Python<'_>, format: &str, effort: &str) -> PyResult<Packer> {
        let format = match self::format(format)? {
            Format::Deflate => deflate::Format::Raw,
            Format::Zlib => deflate::Format::Zlib,
            Format::Gzip => deflate::Format::Gzip,
            other => return Err(transform_error(py, Error::Unsupported { format: other.name() })),
        };
        let effort = match packing(effort)? {
            Packing::Fast => deflate::Effort::Fast,
            Packing::Small => deflate::Effort::Small,
            _ => deflate::Effort::Default,
        };
        Ok(Packer { stream: Some(Box::new(PackStream::new(format, effort))) })
    }

    /// Packs a piece; returns the bytes packed so far, which may be none.
    fn push<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.write(py, Some(data), Flush::None)
    }

    /// Returns the bytes that a reader needs to unpack everything pushed so far.
    fn flush<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.write(py, None, Flush::Sync)
    }

    /// Ends the message; returns the rest of the packed bytes.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let end = self.write(py, None, Flush::Finish)?;
        self.stream = None;
        Ok(end)
    }
}

impl Packer {
    fn write<'py>(
        &mut self,
        py: Python<'py>,
        data: Option<&Bound<'py, PyAny>>,
        flush: Flush,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let input = data.map(Input::new).transpose()?;
        let stream = unless_over(py, &mut self.stream)?;
        let source = match &input {
            // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the
            // call.
            Some(input) => unsafe { input.slice() },
            None => &[],
        };
        let mut packed = Vec::new();
        let mut work = || {
            let mut room = [0; 32 * 1024];
            let mut at = 0;
            loop {
                let pushed = stream.push(&source[at..], &mut room, flush);
                at += pushed.read;
                packed.extend_from_slice(&room[..pushed.written]);
                if !pushed.more && at == source.len() {
                    break;
                }
            }
        };
        if source.len() < DETACH_BYTES {
            work()
        } else {
            py.detach(work)
        }
        Ok(PyBytes::new(py, &packed))
    }
}

/// Seals one message that comes in pieces.
#[pyclass(module = "memlift.transform")]
pub struct Sealer {
    stream: Option<SealStream>,
}

#[pymethods]
impl Sealer {
    #[new]
    #[pyo3(signature = (key, nonce, aad=None))]
    fn new(
        key: &Bound<'_, PyAny>,
        nonce: &Bound<'_, PyAny>,
        aad: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Sealer> {
        let aad = aad.map_or(Ok(Vec::new()), vec_of)?;
        let stream = SealStream::new(&*key_of(key)?, &bytes_of(nonce, "a nonce")?, &aad);
        Ok(Sealer { stream: Some(stream) })
    }

    /// Seals a piece; returns it as bytes, or as a memoryview of `out`. The result is as long as the piece.
    #[pyo3(signature = (data, out=None))]
    fn push<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let input = Input::new(data)?;
        let (source, output) = (input.span(), Output::new(py, out, input.span().bytes())?);
        let target = output.span();
        apart(py, source, target)?;
        let stream = unless_over(py, &mut self.stream)?;
        let mut work = move || {
            // SAFETY: both buffers are exported while `input` and `output` live, and were checked not to overlap; the
            // documentation requires that nobody changes them during the call. The target's bytes are only written.
            unsafe {
                let target = std::slice::from_raw_parts_mut(target.start(), target.bytes());
                stream.push(std::slice::from_raw_parts(source.start(), source.bytes()), target)
            }
        };
        let result = if source.bytes() < DETACH_BYTES { work() } else { py.detach(work) };
        result.map_err(|error| transform_error(py, error))?;
        output.finish(py, source.bytes())
    }

    /// Ends the message; returns its tag of 16 bytes.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match self.stream.take() {
            Some(stream) => Ok(PyBytes::new(py, &stream.finish())),
            None => Err(transform_error(py, OVER)),
        }
    }
}

fn apart(py: Python<'_>, source: Span, target: Span) -> PyResult<()> {
    let (from, to) = (source.start().addr(), target.start().addr());
    if source.bytes() > 0 && target.bytes() > 0 && from < to + target.bytes() && to < from + source.bytes() {
        return Err(transform_error(py, Error::Overlap));
    }
    Ok(())
}

/// Opens one message that comes in pieces.
#[pyclass(module = "memlift.transform")]
pub struct Opener {
    stream: Option<OpenStream>,
}

#[pymethods]
impl Opener {
    #[new]
    #[pyo3(signature = (key, nonce, aad=None))]
    fn new(
        key: &Bound<'_, PyAny>,
        nonce: &Bound<'_, PyAny>,
        aad: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Opener> {
        let aad = aad.map_or(Ok(Vec::new()), vec_of)?;
        let stream = OpenStream::new(&*key_of(key)?, &bytes_of(nonce, "a nonce")?, &aad);
        Ok(Opener { stream: Some(stream) })
    }

    /// Opens a sealed piece. Nothing of it is given out before `finish` has compared the tag.
    fn push(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let input = Input::new(data)?;
        let stream = unless_over(py, &mut self.stream)?;
        // SAFETY: the buffer is exported while `input` lives; the documentation requires that nobody changes it during the call.
        let source = unsafe { input.slice() };
        let mut work = || stream.push(source).map(|untrusted| untrusted.bytes());
        let result = if source.len() < DETACH_BYTES { work() } else { py.detach(work) };
        result.map_err(|error| transform_error(py, error))?;
        Ok(())
    }

    /// Compares the tag of 16 bytes and returns the message. Raises WrongTagError if it does not match.
    fn finish<'py>(&mut self, py: Python<'py>, tag: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let tag = bytes_of(tag, "a tag")?;
        let Some(stream) = self.stream.take() else { return Err(transform_error(py, OVER)) };
        let opened = stream.finish(&tag).map_err(|error| transform_error(py, error))?;
        Ok(PyBytes::new(py, &opened))
    }
}
