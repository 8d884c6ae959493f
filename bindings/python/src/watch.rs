// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's session for an event loop, for `memlift/aio.py`: no function waits.
//!
//! - **Flow** `submit` sends, checks for answers for a moment, and returns those that have arrived; `turn` returns answers when the
//!   descriptor is readable.
//! - **Owner** answers are converted to Python objects here, under the GIL, in the thread of the loop.

use crate::client::Client;
use crate::convert::{Argument, DETACH_BYTES, payload_into};
use crate::errors::raise;
use crate::options::CallArguments;
use crate::values::Allow;
use memlift::ipc::Watch;
use memlift::ipc::client::Answered;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A session whose answers an event loop collects. Use `memlift.ipc.AsyncClient`.
#[pyclass(module = "memlift._native", frozen)]
pub struct Session {
    watch: Watch,
    timeout: Option<Duration>,
    allow: Allow,
    /// Caller's memory for the answers that have not arrived yet, by call.
    outs: Mutex<HashMap<u64, Py<PyAny>>>,
}

/// Returned instead of a value for a failed call. A class of its own, because an exception may also be a value if pickles are
/// allowed.
#[pyclass(module = "memlift._native", frozen)]
pub struct Failed(Mutex<Option<Py<PyAny>>>);

impl Failed {
    fn lock(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Failed {
    /// Gives the exception away, once: one that is raised refers, by its traceback, to the frames that have this object.
    fn take(&self) -> PyResult<Py<PyAny>> {
        self.lock().take().ok_or_else(|| PyRuntimeError::new_err("this exception was raised already"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&*self.lock())
    }

    fn __clear__(&self) {
        let error = self.lock().take();
        drop(error);
    }
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.outs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of<'py>(&self, py: Python<'py>, id: u64) -> Option<Bound<'py, PyAny>> {
        let mut outs = self.lock();
        if outs.is_empty() { None } else { outs.remove(&id).map(|out| out.into_bound(py)) }
    }

    /// Returns the answers as a list of (id, value or Failed).
    fn to_python<'py>(&self, py: Python<'py>, answered: Vec<Answered>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (id, answer) in answered {
            let out = self.out_of(py, id);
            let value = match answer {
                Ok(payload) => payload_into(py, payload, out.as_ref(), self.allow),
                Err(error) => Err(raise(py, error)),
            };
            let value = match value {
                Ok(value) => value,
                Err(error) => {
                    let error = error.into_value(py).into_any();
                    Bound::new(py, Failed(Mutex::new(Some(error))))?.into_any()
                }
            };
            list.append((id, value))?;
        }
        Ok(list)
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(py: Python<'_>, client: &Bound<'_, Client>) -> PyResult<Session> {
        let (client, timeout, allow) = client.get().parts();
        let watch = Watch::new(client).map_err(|error| raise(py, error))?;
        Ok(Session { watch, timeout, allow, outs: Mutex::default() })
    }

    /// Returns a descriptor that is readable when `turn` has something to do.
    fn fileno(&self) -> i32 {
        self.watch.as_fd().as_raw_fd()
    }

    /// Time limit in seconds of calls that have no limit of their own.
    #[getter]
    fn timeout(&self) -> Option<f64> {
        self.timeout.map(|timeout| timeout.as_secs_f64())
    }

    /// Sends a call. Returns its id, or None if there is no room, and the answers so far. Call `flush` before the loop sleeps.
    #[pyo3(signature = (operation, data, timeout=None, out=None, device=None, cache=None, crc=false, pack=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn submit<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        data: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        out: Option<Py<PyAny>>,
        device: Option<&str>,
        cache: Option<&str>,
        crc: bool,
        pack: bool,
    ) -> PyResult<(Option<u64>, Bound<'py, PyList>)> {
        let mut options = CallArguments { timeout, device, cache, defer: true, crc, pack }.options()?;
        options.timeout = options.timeout.or(self.timeout);
        let argument = Argument::new(data, self.allow)?;
        let outgoing = argument.outgoing();
        let send = || self.watch.post(operation, &outgoing, options);
        let id = match outgoing.bytes() < DETACH_BYTES as u64 {
            true => send(),
            false => py.detach(send),
        };
        let id = id.map_err(|error| raise(py, error))?;
        if let (Some(id), Some(out)) = (id, out) {
            self.lock().insert(id, out);
        }
        let answered = py.detach(|| {
            if id.is_some() {
                self.watch.linger();
            }
            self.watch.turn(false)
        });
        let answers = self.to_python(py, answered.map_err(|error| raise(py, error))?)?;
        Ok((id, answers))
    }

    /// Makes the server notice all calls now.
    fn flush(&self) {
        self.watch.flush();
    }

    /// Returns the answers that have arrived. After all of them were returned, raises the reason for which the session has ended.
    fn turn<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let answered = self.watch.turn(true).map_err(|error| raise(py, error))?;
        self.to_python(py, answered)
    }

    /// Drops the answer of `id`, which is not wanted any more.
    fn abandon(&self, py: Python<'_>, id: u64) {
        drop(self.out_of(py, id));
        py.detach(|| self.watch.abandon(id));
    }

    /// Number of calls without an answer.
    #[getter]
    fn outstanding(&self) -> usize {
        self.watch.outstanding()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.lock().values().try_for_each(|out| visit.call(out))
    }

    fn __clear__(&self) {
        let outs = std::mem::take(&mut *self.lock());
        drop(outs);
    }
}
