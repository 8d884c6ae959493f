// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python class `Server`. Its threads are Python threads (`memlift/ipc.py` starts them), so that taking the GIL creates no new
//! thread state per request.
//!
//! - **Exit** when the interpreter ends, threads that run handlers are not stopped: see `exit`.
//! - **Order** the handler's result is copied, then request and result are dropped, then the reply is sent. So the request's slot is free
//!   when the client has its answer.

use crate::client::{configuration, own_uid, seconds, wait_policy};
use crate::convert::{Argument, DETACH_BYTES, payload_to_python};
use crate::errors::{raise, traceback};
use crate::exit;
use crate::handler::{Handler, Handlers, handler_is_gone};
use crate::reply::hand_over;
use crate::values::Allow;
use memlift::ipc::message::Shape;
use memlift::ipc::{self, Behaviour, Pace, Progress, Request, Responder, ServerOptions, Trust};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::cell::RefCell;

/// The server's end of a connection. Use `memlift.ipc.Server`.
#[pyclass(module = "memlift._native", frozen, subclass)]
pub struct Server {
    server: ipc::Server,
    allow_pickle: bool,
    handlers: Handlers,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (address, *, handlers=None, allowed_uids=None, sessions_max=None, outstanding=None,
                        message_bytes_max=None, pool_bytes_max=None, wait=None, allow_pickle=false,
                        allowed_gids=Vec::new(), trust="view", ready=true, shared=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        handlers: Option<usize>,
        allowed_uids: Option<Vec<u32>>,
        sessions_max: Option<usize>,
        outstanding: Option<u32>,
        message_bytes_max: Option<u64>,
        pool_bytes_max: Option<u64>,
        wait: Option<&str>,
        allow_pickle: bool,
        allowed_gids: Vec<u32>,
        trust: &str,
        ready: bool,
        shared: bool,
    ) -> PyResult<Server> {
        let config = configuration()?;
        let mut options = ServerOptions::from_config(&config);
        options.handlers = handlers.unwrap_or(options.handlers);
        options.allowed_uids = allowed_uids.map(Some).unwrap_or(options.allowed_uids);
        options.allowed_gids = allowed_gids;
        options.ready = ready;
        options.shared = shared;
        options.trust = match trust {
            "view" => Trust::View,
            "copy" => Trust::Copy,
            other => return Err(PyValueError::new_err(format!("trust is 'view' or 'copy', not {other:?}"))),
        };
        options.sessions_max = sessions_max.unwrap_or(options.sessions_max);
        options.outstanding_max = outstanding.unwrap_or(options.outstanding_max);
        options.message_bytes_max = message_bytes_max.unwrap_or(options.message_bytes_max);
        options.pool_bytes_max = pool_bytes_max.unwrap_or(options.pool_bytes_max);
        if let Some(wait) = wait {
            options.wait = wait_policy(wait)?;
        }
        let address = crate::options::address(address)?;
        let server = ipc::Server::bind(&address, options).map_err(|error| raise(py, error))?;
        Ok(Server { server, allow_pickle, handlers: Handlers::default() })
    }

    /// Sets the handler of an operation.
    fn register(&self, py: Python<'_>, name: &str, function: Py<PyAny>) -> PyResult<()> {
        if !function.bind(py).is_callable() {
            return Err(PyTypeError::new_err(format!("the handler of {name:?} is not callable")));
        }
        let (allow_pickle, function) = (self.allow_pickle, self.handlers.add(function));
        self.server
            .register_raw(name, move |request, responder| {
                // Unpickling can run code, so it is only allowed between processes of the same user.
                let pickle = allow_pickle && request.peer_uid() == own_uid();
                answer(&function, request, responder, Allow { pickle, arguments: true })
            })
            .map_err(|error| raise(py, error))
    }

    /// Sets the handler of an operation that answers by the `Reply` that it gets as its second argument. long: a handler's thread runs
    /// it; else the thread that reads the messages does, and it must return at once.
    /// outlasts_drain: it is taken also while the server drains.
    #[pyo3(signature = (name, function, *, long=false, outlasts_drain=false))]
    fn register_deferred(
        &self,
        py: Python<'_>,
        name: &str,
        function: Py<PyAny>,
        long: bool,
        outlasts_drain: bool,
    ) -> PyResult<()> {
        let (allow_pickle, function) = (self.allow_pickle, self.handlers.add(function));
        let behaviour = Behaviour { pace: if long { Pace::Long } else { Pace::Short }, outlasts_drain };
        self.server
            .register_with(name, behaviour, move |request, responder| {
                let pickle = allow_pickle && request.peer_uid() == own_uid();
                hand_over(&function, request, responder, Allow { pickle, arguments: true });
            })
            .map_err(|error| raise(py, error))
    }

    /// Notes from now on which sessions end, for `ended`.
    fn watch_ends(&self) {
        self.server.watch_ends();
    }

    /// Waits until sessions have ended and returns their numbers; None: the server was stopped.
    fn ended(&self, py: Python<'_>) -> Option<Vec<u64>> {
        py.detach(|| self.server.ended())
    }

    /// Makes ready to serve, as the first `serve` does. A server that shares its address takes its place there.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.server.open()).map_err(|error| raise(py, error))
    }

    /// Serves requests on this thread until the server is stopped. Run it on `threads` threads at the same time.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.server.serve()).map_err(|error| raise(py, error))
    }

    /// Sets if the server says that it is ready for calls (`Client.ping`). It takes calls in any case.
    #[pyo3(signature = (is_ready=true))]
    fn ready(&self, is_ready: bool) {
        self.server.set_ready(is_ready);
    }

    /// Gives the address up and refuses new calls; those that run or wait are answered.
    fn begin_drain(&self, py: Python<'_>) {
        py.detach(|| self.server.begin_drain());
    }

    /// Waits until all calls are answered, for at most `timeout` seconds; returns False if some are not.
    fn drained(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(Some(timeout))?.unwrap_or_default();
        Ok(py.detach(|| self.server.drained(timeout)))
    }

    /// Makes all serving threads end.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }

    /// Number of threads that should serve.
    #[getter]
    fn threads(&self) -> usize {
        self.server.threads()
    }

    /// Address of the server.
    #[getter]
    fn address(&self) -> String {
        self.server.address().to_string()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.handlers.visit(&visit)
    }

    fn __clear__(&self) {
        self.handlers.clear();
    }

    /// Counters of the server so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.server.stats();
        let dict = PyDict::new(py);
        dict.set_item("sessions", stats.sessions)?;
        dict.set_item("requests", stats.requests)?;
        dict.set_item("faults", stats.faults)?;
        dict.set_item("refused", stats.refused)?;
        dict.set_item("queued", stats.queued)?;
        dict.set_item("busy_handlers", stats.busy_handlers)?;
        dict.set_item("members", stats.members)?;
        Ok(dict)
    }
}

thread_local! {
    /// Progress of the request that the handler of this thread works on.
    static PROGRESS: RefCell<Option<Progress>> = const { RefCell::new(None) };
}

/// Reports a handler's progress, in any unit; clients read it by `Future.state`.
#[pyfunction]
pub fn progress(done: u64, total: u64) -> PyResult<()> {
    PROGRESS.with_borrow(|progress| match progress {
        Some(progress) => {
            progress.report(done, total);
            Ok(())
        }
        None => Err(PyRuntimeError::new_err("this thread runs no handler: call progress() inside one")),
    })
}

/// Runs a Python handler for one request.
fn answer(handler: &Handler, request: Request, responder: Responder, allow: Allow) {
    PROGRESS.set(Some(request.progress()));
    let staged = exit::attach(|py, inside| {
        let is_value = *request.payload().shape() == Shape::Value;
        let called = payload_to_python(py, request.payload().clone(), allow).and_then(|argument| {
            drop(request);
            let function = handler.function(py).ok_or_else(handler_is_gone)?;
            match is_value && argument.is_exact_instance(arguments_class(py)?) {
                // The object of all arguments calls the handler with them.
                true => inside.call_handler(&argument.getattr("call")?, &PyTuple::new(py, [function])?),
                false => inside.call_handler(&function, &PyTuple::new(py, [argument])?),
            }
        });
        PROGRESS.set(None);
        let result = match called {
            Ok(result) => result,
            Err(error) => return Err(traceback(py, &error)),
        };
        let argument = Argument::new(&result, allow)
            .map_err(|error| format!("the handler's result cannot be sent. {}", error.value(py)))?;
        let outgoing = argument.outgoing();
        Ok(match outgoing.bytes() as usize {
            0..DETACH_BYTES => responder.stage(&outgoing),
            _ => py.detach(|| responder.stage(&outgoing)),
        })
    });
    match staged {
        Ok(staged) => responder.commit(staged),
        Err(text) => responder.fail(&text),
    }
}

/// Returns the class of the object that has several arguments, looked up once.
fn arguments_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS
        .get_or_try_init(py, || py.import("memlift._kind")?.getattr("Arguments").map(Bound::unbind))
        .map(|class| class.bind(py))
}
