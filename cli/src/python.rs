// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which Python the command runs.
//!
//! Order   `--python` or MEMLIFT_PYTHON ─▶ the active virtual environment ─▶ the folder that this command lies in
//!         (a wheel puts it beside its Python) ─▶ `.venv` here ─▶ `python3` on the path

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// The variable that names it.
pub const VARIABLE: &str = "MEMLIFT_PYTHON";

/// The interpreter to use.
pub fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(named.into());
    }
    let mut candidates = Vec::new();
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        candidates.push(PathBuf::from(environment).join("bin/python"));
    }
    if let Some(folder) = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())) {
        candidates.push(folder.join("python"));
    }
    if let Ok(here) = std::env::current_dir() {
        candidates.push(here.join(".venv/bin/python"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    candidates.extend(std::env::split_paths(&path).map(|folder| folder.join("python3")));
    candidates.into_iter().find(|candidate| candidate.is_file()).ok_or_else(|| {
        Failure::Unavailable(
            "there is no Python: sudo apt install python3 python3-venv, or name one with MEMLIFT_PYTHON".into(),
        )
    })
}

/// What `program` prints, without its line end.
pub fn ask(interpreter: &Path, program: &str) -> Result<String, Failure> {
    let output = Command::new(interpreter)
        .args(["-c", program])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", interpreter.display())))?;
    if !output.status.success() {
        return Err(Failure::Unavailable(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
