// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python side of benches and tour, and the sources of rivals: embedded here, unpacked into the user's cache folder; the
//! former run by the right Python.
//!
//! - **Flow** [`unpack`] ─▶ folder ─▶ [`Script::run`] ─▶ JSON lines of its stdout, one by one
//! - **Layout** $XDG_CACHE_HOME/memlift/bench-VERSION-HASH/ with the folders of bench/; the hash is of the contents, so a
//!   folder never changes and two versions never meet
//! - **Order** files are written into a folder of another name and renamed: a process that sees the folder sees all of it
//! - **Python** $VIRTUAL_ENV, the folder of this program (as in a virtual environment), .venv in the current folder or
//!   above it, .venv above this program, python3 on the PATH

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::BenchError;
use crate::child::Bound;

const FILES: &[(&str, &[u8])] = &[
    ("engines/ipc/ipc_bench.py", include_bytes!("../engines/ipc/ipc_bench.py")),
    ("engines/ipc/method.py", include_bytes!("../engines/ipc/method.py")),
    ("engines/ipc/rows_calls.py", include_bytes!("../engines/ipc/rows_calls.py")),
    ("engines/ipc/rows_arena.py", include_bytes!("../engines/ipc/rows_arena.py")),
    ("engines/ipc/rows_life.py", include_bytes!("../engines/ipc/rows_life.py")),
    ("engines/ipc/rows_options.py", include_bytes!("../engines/ipc/rows_options.py")),
    ("engines/ipc/rows_paper.py", include_bytes!("../engines/ipc/rows_paper.py")),
    ("engines/ipc/rows_torch.py", include_bytes!("../engines/ipc/rows_torch.py")),
    ("engines/ipc/rivals_memory.py", include_bytes!("../engines/ipc/rivals_memory.py")),
    ("engines/ipc/rivals_sockets.py", include_bytes!("../engines/ipc/rivals_sockets.py")),
    ("engines/ipc/rivals.txt", include_bytes!("../engines/ipc/rivals.txt")),
    ("engines/ipc/rust/Cargo.toml", include_bytes!("../engines/ipc/rust/Cargo.toml")),
    ("engines/ipc/rust/Cargo.lock", include_bytes!("../engines/ipc/rust/Cargo.lock")),
    ("engines/ipc/rust/src/main.rs", include_bytes!("../engines/ipc/rust/src/main.rs")),
    ("engines/ipc/transports.py", include_bytes!("../engines/ipc/transports.py")),
    ("engines/ipc/rivals.py", include_bytes!("../engines/ipc/rivals.py")),
    ("engines/ipc/reference.py", include_bytes!("../engines/ipc/reference.py")),
    ("engines/ipc/requirements.txt", include_bytes!("../engines/ipc/requirements.txt")),
    ("engines/nginx/nginx_bench.py", include_bytes!("../engines/nginx/nginx_bench.py")),
    ("engines/nginx/server.py", include_bytes!("../engines/nginx/server.py")),
    ("engines/nginx/debian.py", include_bytes!("../engines/nginx/debian.py")),
    ("engines/nginx/load", include_bytes!(concat!(env!("OUT_DIR"), "/nginx_load"))),
    ("engines/zlib/zlib_bench.py", include_bytes!("../engines/zlib/zlib_bench.py")),
    ("engines/persist/serve_bench.py", include_bytes!("../engines/persist/serve_bench.py")),
    ("engines/persist/fetch", include_bytes!("../engines/persist/fetch")),
    ("engines/persist/pmdk.c", include_bytes!("../engines/persist/pmdk.c")),
    ("engines/persist/map.c", include_bytes!("../engines/persist/map.c")),
    ("engines/persist/workload.h", include_bytes!("../engines/persist/workload.h")),
    ("engines/persist/draw.h", include_bytes!("../engines/persist/draw.h")),
    ("engines/persist/apps.c", include_bytes!("../engines/persist/apps.c")),
    ("engines/persist/app.h", include_bytes!("../engines/persist/app.h")),
    ("engines/persist/store.h", include_bytes!("../engines/persist/store.h")),
    ("engines/persist/store_pmemobj.h", include_bytes!("../engines/persist/store_pmemobj.h")),
    ("engines/persist/store_pages.h", include_bytes!("../engines/persist/store_pages.h")),
    ("engines/persist/tpcc.h", include_bytes!("../engines/persist/tpcc.h")),
    ("engines/persist/tatp.h", include_bytes!("../engines/persist/tatp.h")),
    ("engines/persist/kv.h", include_bytes!("../engines/persist/kv.h")),
    ("engines/persist/Cargo.toml", include_bytes!("../engines/persist/Cargo.toml")),
    ("engines/persist/Cargo.lock", include_bytes!("../engines/persist/Cargo.lock")),
    ("engines/persist/build.rs", include_bytes!("../engines/persist/build.rs")),
    ("engines/persist/src/main.rs", include_bytes!("../engines/persist/src/main.rs")),
    ("engines/persist/src/workload.rs", include_bytes!("../engines/persist/src/workload.rs")),
    ("engines/persist/src/sqlite.rs", include_bytes!("../engines/persist/src/sqlite.rs")),
    ("engines/persist/src/redb.rs", include_bytes!("../engines/persist/src/redb.rs")),
    ("engines/persist/src/lmdb.rs", include_bytes!("../engines/persist/src/lmdb.rs")),
    ("engines/persist/src/readers.rs", include_bytes!("../engines/persist/src/readers.rs")),
    ("engines/traverse/fetch", include_bytes!("../engines/traverse/fetch")),
    ("limits/reference.c", include_bytes!("../limits/reference.c")),
    ("limits/durable.c", include_bytes!("../limits/durable.c")),
    ("corpora/rmat.c", include_bytes!("../corpora/rmat.c")),
    ("engines/ipc/libreference.so", include_bytes!(concat!(env!("OUT_DIR"), "/libreference.so"))),
    ("engines/zmem/jobs.py", include_bytes!("../engines/zmem/jobs.py")),
    ("tour/ipc_chapter.py", include_bytes!("../tour/ipc_chapter.py")),
    ("tour/transform_chapter.py", include_bytes!("../tour/transform_chapter.py")),
    ("tour/persist_chapter.py", include_bytes!("../tour/persist_chapter.py")),
];

/// A script of the unpacked folder and its arguments.
pub struct Script<'a> {
    /// Path below bench/.
    pub path: &'a str,
    /// Arguments of the script.
    pub arguments: Vec<String>,
}

impl Script<'_> {
    /// Runs it and hands every JSON line of its stdout to `line`; its stderr goes to ours. Gives whether it ended
    /// without an error.
    pub fn run(&self, mut line: impl FnMut(Value)) -> Result<bool, BenchError> {
        let mut command = self.command()?;
        let mut child = Bound::start(command.stdout(Stdio::piped()))?;
        let stdout = child.process().stdout.take().expect("stdout is piped");
        for text in BufReader::new(stdout).lines() {
            let text = text.map_err(BenchError::system("reading what Python measured"))?;
            let value = serde_json::from_str(&text)
                .map_err(|_| BenchError::Answer { program: self.path.to_owned(), answer: text.clone() })?;
            line(value);
        }
        self.ended(&command, child)
    }

    /// Runs it with our stdout and stderr. Gives whether it ended without an error.
    pub fn show(&self) -> Result<bool, BenchError> {
        let mut command = self.command()?;
        let child = Bound::start(&mut command)?;
        self.ended(&command, child)
    }

    fn command(&self) -> Result<Command, BenchError> {
        let mut command = command(self.path)?;
        command.args(&self.arguments).env("PYTHONUNBUFFERED", "1").stdin(Stdio::null());
        Ok(command)
    }

    /// Waits for its end. Status 1 is a row that failed, and said so.
    fn ended(&self, command: &Command, child: Bound) -> Result<bool, BenchError> {
        let status = child.wait()?;
        match status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(BenchError::Child {
                program: format!("{} {}", Path::new(command.get_program()).display(), self.path),
                status: status.to_string(),
            }),
        }
    }
}

/// Returns the right Python with a script of the unpacked folder as its argument.
pub(crate) fn command(path: &str) -> Result<Command, BenchError> {
    let folder = unpack()?;
    let mut command = Command::new(interpreter()?);
    command.arg(folder.join(path));
    Ok(command)
}

/// memlift's folder below the user's cache folder; it need not exist.
pub(crate) fn cache_folder() -> Result<PathBuf, BenchError> {
    Ok(env::var_os("XDG_CACHE_HOME")
        .filter(|value| Path::new(value).is_absolute())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or(BenchError::NoCacheFolder)?
        .join("memlift"))
}

/// The folder with the Python side, complete.
pub(crate) fn unpack() -> Result<PathBuf, BenchError> {
    let cache = cache_folder()?;
    let name = format!("bench-{}-{:016x}", env!("CARGO_PKG_VERSION"), hash());
    let folder = cache.join(&name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let partial = cache.join(format!("{name}.partial-{}", std::process::id()));
    for (path, contents) in FILES {
        let path = partial.join(path);
        let parent = path.parent().expect("every file lies in a folder");
        fs::create_dir_all(parent).map_err(BenchError::file(parent))?;
        fs::write(&path, contents).map_err(BenchError::file(&path))?;
    }
    if let Err(source) = fs::rename(&partial, &folder) {
        let _ = fs::remove_dir_all(&partial);
        // Another process was faster: its folder has the same contents.
        if !folder.is_dir() {
            return Err(BenchError::File { path: folder, source });
        }
    }
    Ok(folder)
}

/// FNV-1a over names and contents.
fn hash() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for (path, contents) in FILES {
        add(path.as_bytes());
        add(contents);
    }
    hash
}

/// The Python that has, or should have, memlift and its rivals.
fn interpreter() -> Result<PathBuf, BenchError> {
    let program = env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let mut places: Vec<PathBuf> = Vec::new();
    places.extend(env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin")));
    places.extend(beside.clone());
    let above =
        |folder: &Path| -> Vec<PathBuf> { folder.ancestors().map(|at| at.join(".venv/bin")).collect() };
    places.extend(env::current_dir().iter().flat_map(|folder| above(folder)));
    places.extend(beside.iter().flat_map(|folder| above(folder)));
    let path = env::var_os("PATH").unwrap_or_default();
    places.extend(env::split_paths(&path));
    first_python(&places).ok_or(BenchError::NoPython)
}

fn first_python(places: &[PathBuf]) -> Option<PathBuf> {
    places
        .iter()
        .flat_map(|place| ["python3", "python"].map(|name| place.join(name)))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_files_are_those_of_the_checkout() {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (path, contents) in FILES.iter().filter(|(_, contents)| !contents.starts_with(b"\x7fELF")) {
            assert_eq!(&fs::read(bench.join(path)).expect("in the checkout"), contents, "{path}");
        }
        assert!(
            FILES.iter().any(|(path, contents)| path.ends_with(".so") && contents.starts_with(b"\x7fELF"))
        );
    }

    #[test]
    fn the_first_place_with_a_python_wins() {
        let folder = env::temp_dir().join(format!("memlift-bench-python-{}", std::process::id()));
        let (first, second) = (folder.join("a"), folder.join("b"));
        fs::create_dir_all(&first).expect("temp dir");
        fs::create_dir_all(&second).expect("temp dir");
        fs::write(second.join("python3"), "").expect("temp file");
        let found = first_python(&[first.clone(), second.clone()]);
        fs::write(first.join("python"), "").expect("temp file");
        let found_first = first_python(&[first.clone(), second.clone()]);
        fs::remove_dir_all(&folder).expect("temp dir");
        assert_eq!(found, Some(second.join("python3")));
        assert_eq!(found_first, Some(first.join("python")));
    }
}
