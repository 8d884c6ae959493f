// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python functions that a server calls, where Python's garbage collector can see them.
//!
//! - **Flow** `Handlers::add` ─▶ `Handler`, which the server's table has ─▶ `function` at each request
//! - **Owner** the server's object. A handler that is a method of what has the server refers back to it; the collector finds such a circle
//!   by `visit` and opens it by `clear`.
//! - **Order** every lock here is taken with the interpreter and released before Python code runs, so the collector never meets a held one.

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One function, until the collector frees the server.
#[derive(Clone)]
pub struct Handler(Arc<Mutex<Option<Py<PyAny>>>>);

impl Handler {
    fn lock(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the function; `None` while the server is being freed.
    pub fn function<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.lock().as_ref().map(|function| function.bind(py).clone())
    }
}

/// Returns the exception for a request that came while the server was being freed.
pub fn handler_is_gone() -> PyErr {
    PyRuntimeError::new_err("the server is being freed: keep it while it serves")
}

/// All functions of a server.
#[derive(Default)]
pub struct Handlers(Mutex<Vec<Handler>>);

impl Handlers {
    fn lock(&self) -> MutexGuard<'_, Vec<Handler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, function: Py<PyAny>) -> Handler {
        let handler = Handler(Arc::new(Mutex::new(Some(function))));
        self.lock().push(handler.clone());
        handler
    }

    /// Shows the functions to the collector.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.lock().iter().try_for_each(|handler| visit.call(&*handler.lock()))
    }

    /// Drops the functions.
    pub fn clear(&self) {
        let functions: Vec<_> = self.lock().iter().map(|handler| handler.lock().take()).collect();
        drop(functions);
    }
}
