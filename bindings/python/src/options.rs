// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of a call as keyword arguments, and states and explanations of calls as dicts.

use crate::client::seconds;
use crate::errors::unsupported;
use memlift::ipc::{CallOptions, Explanation, JobState};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Keyword arguments as the caller gave them.
#[derive(Default)]
pub struct CallArguments<'a> {
    pub timeout: Option<f64>,
    pub device: Option<&'a str>,
    pub cache: Option<&'a str>,
    pub defer: bool,
    pub crc: bool,
    pub pack: bool,
}

impl CallArguments<'_> {
    /// Checks the arguments and returns the options of the call.
    pub fn options(&self) -> PyResult<CallOptions> {
        Ok(CallOptions {
            timeout: seconds(self.timeout)?,
            device: named("device", self.device)?,
            cache: named("cache", self.cache)?,
            defer: self.defer,
            crc: self.crc,
            pack: self.pack,
        })
    }
}

/// Returns the address of a server: a name, or a path (also of `pathlib`). A path without a "/" is one in the current folder.
pub fn address(given: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = given.py();
    if given.is_instance_of::<PyString>() {
        return given.extract();
    }
    let path: PathBuf = given.extract().map_err(|_| {
        let class = given.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("an address is a str or a path, not {class}"))
    })?;
    let path = match path.is_absolute() || path.components().count() > 1 {
        true => path,
        false => Path::new(".").join(path),
    };
    let text = path.into_os_string().into_string();
    text.map_err(|path| unsupported(py, &format!("a socket at {path:?}: its path is not UTF-8")))
}

fn named<T: FromStr<Err = String> + Default>(what: &str, name: Option<&str>) -> PyResult<T> {
    let wrong = |text| PyValueError::new_err(format!("{what}={text}"));
    name.map_or_else(|| Ok(T::default()), |name| name.parse().map_err(wrong))
}

/// Returns the state of a call as a dict.
pub fn state(py: Python<'_>, state: JobState) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    match state {
        JobState::Queued { ahead } => {
            dict.set_item("state", "queued")?;
            dict.set_item("ahead", ahead)?;
        }
        JobState::Taken { done, total } => {
            dict.set_item("state", "taken")?;
            dict.set_item("done", done)?;
            dict.set_item("total", total)?;
        }
        JobState::Answered => dict.set_item("state", "answered")?,
    }
    Ok(dict)
}

/// Returns the explanation of a placement as a dict.
pub fn explanation<'py>(py: Python<'py>, said: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let candidates = PyList::empty(py);
    for candidate in &said.candidates {
        let one = PyDict::new(py);
        one.set_item("device", candidate.device.name())?;
        one.set_item("cache", candidate.cache.name())?;
        one.set_item("ns_per_byte", candidate.ns_per_byte)?;
        one.set_item("samples", candidate.samples)?;
        candidates.append(one)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("operation", &said.operation)?;
    dict.set_item("bytes", said.bytes)?;
    dict.set_item("mode", said.mode.name())?;
    dict.set_item("device", said.device.name())?;
    dict.set_item("cache", said.cache.name())?;
    dict.set_item("reason", &said.reason)?;
    dict.set_item("candidates", candidates)?;
    dict.set_item("decisions", said.decisions)?;
    dict.set_item("explorations", said.explorations)?;
    dict.set_item("batch", said.batch)?;
    dict.set_item("expected_ns", said.expected_ns)?;
    dict.set_item("placement", said.placement.chosen)?;
    dict.set_item("placement_reason", &said.placement.reason)?;
    Ok(dict)
}
