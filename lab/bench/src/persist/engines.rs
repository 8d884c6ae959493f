// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rivals' programs: sources that are embedded here, built on demand in the user's cache folder.
//!
//! - **Flow** `engines/persist/` unpacked ─▶ [`pmdk`]: its script fetches Debian's libpmemobj and compiles the programs on it ·
//!   [`pages`]: the same applications on copies of pages, which need a compiler only · [`stores`]: cargo builds SQLite, redb and LMDB, a workspace of their own with a lock file of its own
//! - **Place** $XDG_CACHE_HOME/memlift/persist-rivals/; what is there and newer than its sources is kept
//! - **Missing** no package, no compiler, no network: the text says what to install, and the rows are `missing`

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::python;

/// The rival on libpmemobj; beside it lies `apps`, the applications on it. The error says what to install.
pub fn pmdk() -> Result<&'static Path, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&BUILT, || {
        let (sources, folder) = folders()?;
        eprintln!("building the rival on libpmemobj in {} …", folder.display());
        let mut command = Command::new("sh");
        command.arg(sources.join("fetch")).arg(&folder);
        let program = folder.join("pmdk");
        built(&mut command, "libpmemobj", "sh").map(|()| program)
    })
}

/// The applications on copies of pages. The error says what to install.
pub fn pages() -> Result<&'static Path, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&BUILT, || {
        let (sources, folder) = folders()?;
        let mut command = Command::new("sh");
        command.arg(sources.join("fetch")).arg(&folder).arg("pages");
        let program = folder.join("apps_pages");
        built(&mut command, "missing", "sh and a C compiler").map(|()| program)
    })
}

/// The rivals that are crates. The error says what to install.
pub fn stores() -> Result<&'static Path, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&BUILT, || {
        let (sources, folder) = folders()?;
        eprintln!("building SQLite, redb and LMDB in {}; the first time takes minutes …", folder.display());
        crates(&sources, &folder, "memlift-persist-rivals")
    })
}

/// The program of a workspace of its own, built below `folder`. The error says what to install.
pub fn crates(sources: &Path, folder: &Path, program: &str) -> Result<PathBuf, String> {
    let target = folder.join("target");
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]);
    command.arg(sources.join("Cargo.toml")).arg("--target-dir").arg(&target);
    // Settings of the cargo that started this process are not meant for that build.
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    built(&mut command, "error", "cargo (Rust 1.90 or newer) and a C compiler")?;
    Ok(target.join("release").join(program))
}

fn once(
    built: &'static OnceLock<Result<PathBuf, String>>,
    build: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<&'static Path, String> {
    built.get_or_init(build).as_ref().map(PathBuf::as_path).map_err(String::clone)
}

/// Returns the folder of the sources and the folder in which programs are built.
fn folders() -> Result<(PathBuf, PathBuf), String> {
    let sources = python::unpack().map_err(|error| error.to_string())?.join("engines/persist");
    let folder = python::cache_folder().map_err(|error| error.to_string())?.join("persist-rivals");
    Ok((sources, folder))
}

/// Runs a build. Its output goes to stderr; the line that holds `word` says why it failed.
fn built(command: &mut Command, word: &str, needs: &str) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("install {needs}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    eprintln!("{}", said.trim_end());
    let line = said.lines().find(|line| line.contains(word)).unwrap_or("its build says nothing");
    Err(format!("{line} (needs {needs}; the build's output is above)"))
}
