// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the Python interpreter that the command runs.
//!
//! - **Order** the active virtual environment ─▶ the folder of this command (a wheel puts it beside its Python) ─▶ .venv
//!   in the current folder or above it ─▶ .venv above this command ─▶ the path. Bench and tour use the same order

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// Returns the interpreter to use.
pub fn find() -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let above =
        |folder: &Path| -> Vec<PathBuf> { folder.ancestors().map(|at| at.join(".venv/bin")).collect() };
    let mut places = Vec::new();
    places.extend(std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin")));
    places.extend(beside.clone());
    places.extend(std::env::current_dir().iter().flat_map(|folder| above(folder)));
    places.extend(beside.iter().flat_map(|folder| above(folder)));
    places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    places
        .iter()
        .flat_map(|place| ["python3", "python"].map(|name| place.join(name)))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            Failure::Unavailable(
                "there is no Python: sudo apt install python3 python3-venv, or make build".into(),
            )
        })
}

/// Runs `program` with `arguments` in the interpreter; returns its output.
pub fn ask(interpreter: &Path, program: &str, arguments: &[String]) -> Result<String, Failure> {
    let output = Command::new(interpreter)
        .args(["-c", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", interpreter.display())))?;
    if !output.status.success() {
        return Err(Failure::Unavailable(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
