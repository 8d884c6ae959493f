// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.transform`: copies that seal, open, pack, unpack or check on the way.
//!
//! - **Flow** a Step, a Chain or a list of steps ──[`with_op`]──▶ operation ──▶ `Transform::copy_raw` between the memory of two Python
//!   objects ──▶ [`Outcome`].
//! - **Order** the GIL is released from 16 KiB on. The nonce of a step seals one message; a second one is refused.
//! - **Owner** keys and additional data are copied into their steps.
//! - **Not here** messages in pieces (`pieces`), and the names and texts of the interface (`memlift/transform.py`).

use crate::convert::DETACH_BYTES;
use crate::errors::transform_error;
use crate::memory::{Input, Output, Span};
use memlift::spec::Opcode;
use memlift::transform::{self, Chain, Error, Format, Key, Op, Options, Packing, Transform};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

enum Kind {
    Copy,
    Crc32c { seed: u32 },
    Seal { key: Arc<Key>, nonce: [u8; 12], aad: Vec<u8>, spent: AtomicBool },
    Open { key: Arc<Key>, nonce: [u8; 12], aad: Vec<u8>, tag: [u8; 16] },
    Pack { format: Format, packing: Packing },
    Unpack { format: Format },
}

/// One operation on the bytes that are copied.
#[pyclass(module = "memlift.transform", frozen)]
pub struct Step {
    kind: Kind,
    name: &'static str,
}

pub fn format(name: &str) -> PyResult<Format> {
    Format::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "no format {name:?}: \"deflate\", \"zlib\", \"gzip\", \"lz4\", \"zstd\" or \"pages\""
        ))
    })
}

pub fn packing(effort: &str) -> PyResult<Packing> {
    Ok(match effort {
        "fast" => Packing::Fast,
        "default" => Packing::Default,
        "small" => Packing::Small,
        "adaptive" => Packing::Adaptive,
        _ => {
            return Err(PyValueError::new_err(format!(
                "no effort {effort:?}: \"fast\", \"default\", \"small\" or \"adaptive\""
            )));
        }
    })
}

pub fn bytes_of<const N: usize>(object: &Bound<'_, PyAny>, what: &str) -> PyResult<[u8; N]> {
    let bytes = vec_of(object)?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| PyValueError::new_err(format!("{what} has {N} bytes, not {length}")))
}

pub fn vec_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let input = Input::new(object)?;
    // SAFETY: the bytes are copied here, while the GIL is held.
    Ok(unsafe { input.slice() }.to_vec())
}

pub fn key_of(object: &Bound<'_, PyAny>) -> PyResult<Arc<Key>> {
    let input = Input::new(object)?;
    // SAFETY: the bytes are read here, while the GIL is held.
    Key::new(unsafe { input.slice() }).map_err(|error| transform_error(object.py(), Error::from(error)))
}

#[pymethods]
impl Step {
    /// A step that only copies.
    #[staticmethod]
    fn copy() -> Step {
        Step { kind: Kind::Copy, name: "copy" }
    }

    #[staticmethod]
    #[pyo3(signature = (seed=0))]
    fn crc32c(seed: u32) -> Step {
        Step { kind: Kind::Crc32c { seed }, name: "crc32c" }
    }

    #[staticmethod]
    #[pyo3(signature = (key, nonce, aad=None))]
    fn seal(
        key: &Bound<'_, PyAny>,
        nonce: &Bound<'_, PyAny>,
        aad: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Step> {
        let (key, nonce) = (key_of(key)?, bytes_of(nonce, "a nonce")?);
        let aad = aad.map_or(Ok(Vec::new()), vec_of)?;
        Ok(Step { kind: Kind::Seal { key, nonce, aad, spent: AtomicBool::new(false) }, name: "seal" })
    }

    #[staticmethod]
    #[pyo3(signature = (key, nonce, tag=None, aad=None))]
    fn open(
        key: &Bound<'_, PyAny>,
        nonce: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        aad: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Step> {
        let (key, nonce) = (key_of(key)?, bytes_of(nonce, "a nonce")?);
        let aad = aad.map_or(Ok(Vec::new()), vec_of)?;
        let tag = tag.map_or(Ok([0; 16]), |tag| bytes_of(tag, "a tag"))?;
        Ok(Step { kind: Kind::Open { key, nonce, aad, tag }, name: "open" })
    }

    #[staticmethod]
    #[pyo3(signature = (format="gzip", effort="default"))]
    fn pack(format: &str, effort: &str) -> PyResult<Step> {
        Ok(Step {
            kind: Kind::Pack { format: self::format(format)?, packing: packing(effort)? },
            name: "pack",
        })
    }

    #[staticmethod]
    #[pyo3(signature = (format="gzip"))]
    fn unpack(format: &str) -> PyResult<Step> {
        Ok(Step { kind: Kind::Unpack { format: self::format(format)? }, name: "unpack" })
    }

    fn __repr__(&self) -> String {
        format!("<memlift.transform.Step {}>", self.name)
    }
}

impl Step {
    fn step(&self) -> transform::Step<'_> {
        match &self.kind {
            Kind::Copy => transform::Step::Copy,
            Kind::Crc32c { seed } => transform::Step::Crc32c { seed: *seed },
            Kind::Seal { key, nonce, aad, .. } => transform::Step::Seal { key, nonce: *nonce, aad },
            Kind::Open { key, nonce, aad, tag } => {
                transform::Step::Open { key, nonce: *nonce, aad, tag: *tag }
            }
            Kind::Pack { format, packing } => transform::Step::Pack { format: *format, packing: *packing },
            Kind::Unpack { format } => transform::Step::Unpack { format: *format },
        }
    }
}

/// Steps that are run together, block by block.
#[pyclass(module = "memlift.transform", name = "Chain", frozen)]
pub struct PyChain {
    steps: Vec<Py<Step>>,
    block_bytes: Option<usize>,
}

#[pymethods]
impl PyChain {
    #[new]
    #[pyo3(signature = (steps, block_bytes=None))]
    fn new(py: Python<'_>, steps: Vec<Py<Step>>, block_bytes: Option<usize>) -> PyResult<PyChain> {
        let chain = PyChain { steps, block_bytes };
        chain.with_op(|_| Ok(())).map_err(|error| transform_error(py, error))?;
        Ok(chain)
    }

    /// Target bytes that always suffice, or None for a chain that unpacks.
    fn bound(&self, py: Python<'_>, source_bytes: usize) -> PyResult<Option<usize>> {
        self.with_op(|op| Ok(op.bound(source_bytes))).map_err(|error| transform_error(py, error))
    }

    fn __repr__(&self) -> String {
        let names: Vec<_> = self.steps.iter().map(|step| step.get().name).collect();
        format!("<memlift.transform.Chain {}>", names.join(", "))
    }
}

impl PyChain {
    fn with_op<R>(&self, body: impl FnOnce(Op<'_>) -> Result<R, Error>) -> Result<R, Error> {
        let steps: Vec<_> = self.steps.iter().map(|step| step.get().step()).collect();
        match (&steps[..], self.block_bytes) {
            ([step], None) => body(Op::Step(*step)),
            (steps, None) => body(Op::Chain(Chain::new(steps)?)),
            (steps, Some(block_bytes)) => body(Op::Chain(Chain::framed(steps, block_bytes)?)),
        }
    }

    /// Returns the flag that the nonce was used, if a step seals.
    fn spent(&self) -> Option<&AtomicBool> {
        self.steps.iter().find_map(|step| match &step.get().kind {
            Kind::Seal { spent, .. } => Some(spent),
            _ => None,
        })
    }

    fn unpacks(&self) -> Option<Format> {
        self.steps.iter().find_map(|step| match step.get().kind {
            Kind::Unpack { format } => Some(format),
            _ => None,
        })
    }

    fn run(&self, source: Span, target: Span) -> Result<transform::Outcome, Error> {
        if let Some(spent) = self.spent()
            && spent.swap(true, Ordering::Relaxed)
        {
            return Err(Error::Order(
                "this step's nonce has sealed a message: make a step with the next nonce",
            ));
        }
        let result = self.with_op(|op| {
            // SAFETY: both spans are buffers of Python objects that the caller keeps exported; the documentation requires that
            // nobody changes them during the call.
            unsafe {
                let (from, to) =
                    ((source.start().cast_const(), source.bytes()), (target.start(), target.bytes()));
                Transform::global().copy_raw(op, from, to, &Options::default())
            }
        });
        let nothing_sealed = matches!(
            result,
            Err(Error::Overlap
                | Error::TargetTooSmall { .. }
                | Error::Incompressible { .. }
                | Error::TooLong { .. }
                | Error::Chain(_)
                | Error::Unsupported { .. })
        );
        if let Some(spent) = self.spent()
            && nothing_sealed
        {
            spent.store(false, Ordering::Relaxed);
        }
        result
    }
}

/// Returns a step, a chain, or a list of steps as a chain.
fn chain_of<'py>(op: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyChain>> {
    if let Ok(chain) = op.cast::<PyChain>() {
        return Ok(chain.clone());
    }
    let steps = match op.cast::<Step>() {
        Ok(step) => vec![step.clone().unbind()],
        Err(_) => op
            .extract::<Vec<Py<Step>>>()
            .map_err(|_| PyTypeError::new_err("op is a Step, a Chain or a list of Steps"))?,
    };
    Bound::new(op.py(), PyChain::new(op.py(), steps, None)?)
}

/// Result of a transform.
#[pyclass(module = "memlift.transform", frozen, get_all)]
pub struct Outcome {
    data: Py<PyAny>,
    read: usize,
    written: usize,
    tag: Option<Py<PyBytes>>,
    crc: Option<u32>,
    crc_after: Option<u32>,
    store: &'static str,
    why: String,
    contended: bool,
}

#[pymethods]
impl Outcome {
    /// Shows the target to the collector: it may be an object that has this one as an attribute.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)
    }

    fn __repr__(&self) -> String {
        format!(
            "<memlift.transform.Outcome read={} written={} store={}>",
            self.read, self.written, self.store
        )
    }
}

/// Returns a first guess of the unpacked size.
fn guess(format: Format, source: &[u8], bytes_max: usize) -> usize {
    let bytes = match (format, source) {
        // The size in the gzip trailer, modulo 2^32. It may be forged, so it is limited like the other guesses.
        (Format::Gzip, [_, .., a, b, c, d]) => {
            (u32::from_le_bytes([*a, *b, *c, *d]) as usize).min(source.len().saturating_mul(1032))
        }
        _ => source.len().saturating_mul(4),
    };
    bytes.max(256).min(bytes_max)
}

/// Copies `source` to the start of `target`, or to new bytes, and does `op` (a Step, a Chain, or several) on the way. Returns an
/// Outcome.
///
/// bytes_max  without a target: the largest unpacked size that is accepted (1 GiB)
///
/// Raises the errors of the steps, see memlift.errors, and UnsupportedTypeError if an argument is no contiguous buffer.
#[pyfunction]
#[pyo3(signature = (op, source, target=None, *, bytes_max=1 << 30))]
pub fn copy<'py>(
    py: Python<'py>,
    op: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    target: Option<&Bound<'py, PyAny>>,
    bytes_max: usize,
) -> PyResult<Outcome> {
    let chain = chain_of(op)?;
    let chain = chain.get();
    let input = Input::new(source)?;
    let bound = chain.bound(py, input.span().bytes())?;
    let mut room = match chain.unpacks() {
        // SAFETY: the bytes are read here, while the GIL is held.
        Some(format) => guess(format, unsafe { input.slice() }, bytes_max),
        None => bound.unwrap_or(0),
    };
    loop {
        let output = Output::new(py, target, room)?;
        let (from, to) = (input.span(), output.span());
        let result = match from.bytes().max(to.bytes()) {
            0..DETACH_BYTES => chain.run(from, to),
            _ => py.detach(|| chain.run(from, to)),
        };
        let outcome = match result {
            // Our own target grows until the message fits.
            Err(Error::UnpackedTooLarge { .. }) if target.is_none() && room < bytes_max => {
                room = room.saturating_mul(4).min(bytes_max);
                continue;
            }
            Err(Error::TargetTooSmall { needed, .. })
                if target.is_none() && room < needed && needed <= bytes_max =>
            {
                room = needed;
                continue;
            }
            result => result.map_err(|error| transform_error(py, error))?,
        };
        return Ok(Outcome {
            data: output.finish(py, outcome.written)?.unbind(),
            read: outcome.read,
            written: outcome.written,
            tag: outcome.tag.map(|tag| PyBytes::new(py, &tag).unbind()),
            crc: outcome.crc,
            crc_after: outcome.crc_after,
            store: outcome.decision.store.name(),
            why: format!("{:?}", outcome.decision.why).to_lowercase(),
            contended: outcome.decision.contended,
        });
    }
}

/// CRC-32C of `data`; seed is 0, or the value of the preceding bytes.
#[pyfunction]
#[pyo3(signature = (data, seed=0))]
pub fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>, seed: u32) -> PyResult<u32> {
    let input = Input::new(data)?;
    let span = input.span();
    let sum = move || {
        // SAFETY: the buffer is exported while `input` lives.
        unsafe { Transform::global().engine().crc32c_raw(span.start(), span.bytes(), seed) }
    };
    Ok(if span.bytes() < DETACH_BYTES { sum() } else { py.detach(sum) })
}

/// Explains how messages of this kind and size are placed, as a dict; "text" has it as text.
#[pyfunction]
#[pyo3(signature = (operation, source_bytes))]
pub fn explain<'py>(py: Python<'py>, operation: &str, source_bytes: usize) -> PyResult<Bound<'py, PyDict>> {
    let opcode = match operation {
        "copy" => Opcode::MEMMOVE,
        "crc32c" => Opcode::COPY_CRC,
        "seal" => Opcode::SEAL,
        "open" => Opcode::OPEN,
        "pack" => Opcode::PACK,
        "unpack" => Opcode::UNPACK,
        _ => {
            return Err(PyValueError::new_err(format!(
                "no operation {operation:?}: \"copy\", \"crc32c\", \"seal\", \"open\", \"pack\" or \"unpack\""
            )));
        }
    };
    let why = Transform::global().explain(opcode, source_bytes);
    let answer = PyDict::new(py);
    answer.set_item("text", why.to_string())?;
    answer.set_item("operation", operation)?;
    answer.set_item("source_bytes", source_bytes)?;
    answer.set_item("placement", why.placement)?;
    answer.set_item("uncached", why.uncached)?;
    answer.set_item("effort", why.effort.name())?;
    answer.set_item("limit_cycles", why.limit_cycles)?;
    answer.set_item("knee_bytes", why.knee_bytes)?;
    answer.set_item("contention_source", why.source)?;
    answer.set_item("level", why.level)?;
    answer.set_item("contended_from", why.contended_from)?;
    answer.set_item("contended", why.contended)?;
    answer.set_item("probes", why.probes)?;
    answer.set_item("probe_ns", why.probe_ns)?;
    answer.set_item("slowdown_percent", why.slowdown_percent)?;
    let stores = PyDict::new(py);
    for (name, femtoseconds, price) in why.stores {
        let measured = (femtoseconds > 0).then(|| f64::from(femtoseconds) * 1e-6);
        stores.set_item(name, (measured, price))?;
    }
    answer.set_item("stores", stores)?;
    Ok(answer)
}
