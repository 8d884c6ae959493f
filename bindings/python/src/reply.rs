// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Reply`: the answer of a handler that returns before it has one. `memlift/_service.py` builds streams, coroutines and batches on it.
//!
//! - **Flow** request ─▶ handler(argument, reply) ─▶ later, on any thread: `send` or `fail`
//! - **Owner** a reply that is dropped unanswered fails its call, so no client waits for an answer that nobody has
//! - **Order** a value that cannot be sent leaves the reply as it was: it can still fail

use crate::convert::{Argument, DETACH_BYTES, payload_to_python};
use crate::errors::traceback;
use crate::exit;
use crate::handler::{Handler, handler_is_gone};
use crate::values::Allow;
use memlift::ipc::{Request, Responder};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The answer to one call, to be given later.
#[pyclass(module = "memlift._native", frozen)]
pub struct Reply {
    responder: Mutex<Option<Responder>>,
    session: u64,
    allow: Allow,
}

impl Reply {
    fn lock(&self) -> MutexGuard<'_, Option<Responder>> {
        self.responder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> PyResult<Responder> {
        self.lock().take().ok_or_else(|| PyRuntimeError::new_err("this call has been answered"))
    }
}

#[pymethods]
impl Reply {
    /// Sends the answer. Raises UnsupportedTypeError for what cannot be sent; then the call is still open.
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let argument = Argument::new(value, self.allow)?;
        let outgoing = argument.outgoing();
        let responder = self.take()?;
        let answer = || {
            let staged = responder.stage(&outgoing);
            responder.commit(staged);
        };
        match outgoing.bytes() as usize {
            0..DETACH_BYTES => answer(),
            _ => py.detach(answer),
        }
        Ok(())
    }

    /// Fails the call with an exception: the client gets its traceback.
    fn fail(&self, py: Python<'_>, error: &Bound<'_, PyAny>) -> PyResult<()> {
        let error = PyErr::from_value(error.clone());
        let text = traceback(py, &error);
        let responder = self.take()?;
        py.detach(|| responder.fail(&text));
        Ok(())
    }

    /// Fails the call as one of an operation that there is not; `known` names those that there are.
    fn fail_unknown(&self, py: Python<'_>, known: &str) -> PyResult<()> {
        let responder = self.take()?;
        py.detach(|| responder.fail_unknown(known));
        Ok(())
    }

    /// Number of the client's session; no other session of this process has it.
    #[getter]
    fn session(&self) -> u64 {
        self.session
    }

    /// True if nobody waits for the answer: it was given, or the client is gone.
    #[getter]
    fn over(&self) -> bool {
        self.lock().as_ref().is_none_or(Responder::is_pointless)
    }
}

/// Runs a handler that gets the argument and a `Reply`. What it raises, or what cannot be read, fails the call.
pub fn hand_over(handler: &Handler, request: Request, responder: Responder, allow: Allow) {
    let session = responder.session_number();
    // A reply to the client never is what only a request may be.
    let answers = Allow { arguments: false, ..allow };
    exit::attach(|py, inside| {
        let reply = Reply { responder: Mutex::new(Some(responder)), session, allow: answers };
        let Ok(reply) = Bound::new(py, reply) else { return };
        let called = payload_to_python(py, request.payload().clone(), allow).and_then(|argument| {
            drop(request);
            let function = handler.function(py).ok_or_else(handler_is_gone)?;
            let arguments = PyTuple::new(py, [argument, reply.clone().into_any()])?;
            inside.call_handler(&function, &arguments)
        });
        // It was answered already if the handler did so before it raised.
        if let Err(error) = called
            && let Ok(responder) = reply.get().take()
        {
            responder.fail(&traceback(py, &error));
        }
    });
}
