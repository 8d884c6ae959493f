// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verified program of a walk: made from bytecode, text or an object file of clang, or one of those that memlift ships.

use std::sync::Arc;

use memlift::traverse::bpf::{asm, elf};
use memlift::traverse::error::Error;
use memlift::traverse::program::Program;
use memlift::traverse::structures::shipped;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::new;

/// A verified program of a walk.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkProgram {
    program: Arc<Program>,
}

impl WalkProgram {
    /// Returns the program, for a walk.
    pub fn program(&self) -> Arc<Program> {
        Arc::clone(&self.program)
    }
}

/// Returns the exception for a refused program, with the instruction that caused it.
fn refused(py: Python<'_>, error: &Error) -> PyErr {
    let at = match error {
        Error::Malformed { at, .. } | Error::Rejected { at, .. } => Some(*at),
        _ => None,
    };
    new(py, "BadProgramError", (error.to_string(), at))
}

fn made(py: Python<'_>, name: &str, bytecode: &[u8], scratch_bytes: usize) -> PyResult<WalkProgram> {
    let program = py.detach(|| Program::new(name, bytecode, scratch_bytes));
    Ok(WalkProgram { program: Arc::new(program.map_err(|error| refused(py, &error))?) })
}

#[pymethods]
impl WalkProgram {
    #[new]
    #[pyo3(signature = (name, bytecode, scratch_bytes=1024))]
    fn new(py: Python<'_>, name: &str, bytecode: &[u8], scratch_bytes: usize) -> PyResult<WalkProgram> {
        made(py, name, bytecode, scratch_bytes)
    }

    /// Assembles a program from text, in the form of `listing`.
    #[staticmethod]
    #[pyo3(signature = (name, text, scratch_bytes=1024))]
    fn assemble(py: Python<'_>, name: &str, text: &str, scratch_bytes: usize) -> PyResult<WalkProgram> {
        let bytecode = asm::assemble(text).map_err(|error| refused(py, &error))?;
        made(py, name, &bytecode, scratch_bytes)
    }

    /// Reads a program from an object file of `clang -target bpf`.
    #[staticmethod]
    #[pyo3(signature = (name, object, scratch_bytes=1024, function=None))]
    fn from_object(
        py: Python<'_>,
        name: &str,
        object: &[u8],
        scratch_bytes: usize,
        function: Option<&str>,
    ) -> PyResult<WalkProgram> {
        let bytecode = elf::function(object, function).map_err(|error| refused(py, &error))?;
        made(py, name, &bytecode, scratch_bytes)
    }

    /// Returns a program that is part of memlift, by its name.
    #[staticmethod]
    fn shipped(py: Python<'_>, name: &str) -> PyResult<WalkProgram> {
        let Some(found) = shipped::named(name) else {
            let names: Vec<&str> = shipped::ALL.iter().map(|one| one.name).collect();
            return Err(new(
                py,
                "BadProgramError",
                (format!("no program {name:?}: there are {}", names.join(", ")), None::<u32>),
            ));
        };
        Ok(WalkProgram { program: found.program() })
    }

    #[getter]
    fn name(&self) -> &str {
        self.program.name()
    }

    #[getter]
    fn bytecode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.program.bytecode())
    }

    #[getter]
    fn scratch_bytes(&self) -> usize {
        self.program.scratch_bytes()
    }

    /// Bytes of a node that the program reads: offset from the node's address, and number.
    #[getter]
    fn window(&self) -> (i16, u16) {
        (self.program.window().first, self.program.window().bytes)
    }

    /// BLAKE3 hash of the program's encoding, by which nodes identify it.
    #[getter]
    fn hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.program.hash())
    }

    /// Estimated cost of a step on a core, nanoseconds.
    #[getter]
    fn cost_ns(&self) -> f64 {
        self.program.cost().nanoseconds()
    }

    /// Returns true if the program can request a change.
    #[getter]
    fn writes(&self) -> bool {
        self.program.uses_apply()
    }

    /// Returns the program's instructions as text, one per line.
    fn listing(&self) -> String {
        self.program.listing()
    }

    fn __repr__(&self) -> String {
        format!("<memlift walk program {}, {} bytes>", self.program.name(), self.program.bytecode().len())
    }
}
