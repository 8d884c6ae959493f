// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replicas of pools in a build without the feature `replicate`: each call says how to get one that has it.

use std::path::PathBuf;
use std::time::Duration;

use memlift::persist::Pool;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::new;

/// Settings of a replica.
#[expect(dead_code, reason = "`open` has them in every build")]
pub struct Place {
    pub interval: Duration,
    pub retain: Duration,
    pub wait: Duration,
}

fn missing(py: Python<'_>) -> PyErr {
    let text = "replicas of pools are in the wheel memlift-server: pip install memlift-server (in a checkout `make wheel-server`, then pip install dist/memlift_server-*.whl), or copy pools with pool.backup";
    new(py, "Error", (text,))
}

/// The replica of a pool: there is none.
pub enum Replica {}

impl Replica {
    pub fn begin(py: Python<'_>, _: &Pool, _: &str, _: Place) -> PyResult<Replica> {
        Err(missing(py))
    }

    pub fn status<'py>(&self, _: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        match *self {}
    }

    pub fn wait(&self, _: Python<'_>, _: f64) -> PyResult<()> {
        match *self {}
    }

    pub fn end(&self, _: Python<'_>) -> PyResult<Option<String>> {
        match *self {}
    }
}

/// Refuses to restore.
#[pyfunction]
pub fn restore_replica(
    py: Python<'_>,
    _url: &str,
    _target: PathBuf,
    _at: Option<u64>,
    _progress: Option<Py<PyAny>>,
) -> PyResult<(u64, u64, u64, u64)> {
    Err(missing(py))
}

/// Refuses to list a replica.
#[pyfunction]
pub fn replica_history(py: Python<'_>, _url: &str) -> PyResult<Py<PyDict>> {
    Err(missing(py))
}
