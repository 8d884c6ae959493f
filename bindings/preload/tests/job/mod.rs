// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a program under a budget, as `memlift run` does: a block in a registry of its own, the environment that names it,
//! the library in `LD_PRELOAD`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use memlift_zmem::block::{Admission, Objectives, OnOverflow, Registry};

pub const MIB: usize = 1 << 20;

/// The library that cargo built beside this test.
pub fn library() -> PathBuf {
    let mut folder = std::env::current_exe().expect("this program has a path");
    while folder.pop() {
        let library = folder.join("libmemlift_preload.so");
        if library.exists() {
            return library;
        }
    }
    panic!("libmemlift_preload.so is not beside the test: build the package first");
}

/// A folder for programs that were compiled, once per test program.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder")).path()
}

/// Compiles `tests/programs/NAME.c`.
#[allow(dead_code, reason = "not every test program compiles")]
pub fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let program = folder().join(name);
    if !program.exists() {
        let mine = folder().join(format!("{name}.{:?}", std::thread::current().id()));
        let status = Command::new("cc")
            .args(["-O2", "-g", "-Wall", "-Wno-stringop-overflow", "-pthread", "-o"])
            .arg(&mine)
            .arg(&source)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "{} compiles", source.display());
        std::fs::rename(mine, &program).expect("the program in its place");
    }
    program
}

pub struct Job {
    #[allow(dead_code, reason = "as above")]
    pub admission: Admission,
    #[allow(dead_code, reason = "not every test program changes the budget")]
    pub registry: &'static Registry,
    fd: OwnedFd,
}

impl Job {
    #[allow(dead_code, reason = "one test program says what happens then")]
    /// A job with a total; its processes fail when nothing helps.
    pub fn new(total: usize) -> Job {
        Job::with(total, OnOverflow::Fail)
    }

    /// A job with a total, and what happens when nothing helps.
    pub fn with(total: usize, on_overflow: OnOverflow) -> Job {
        let registry: &'static Registry = Box::leak(Box::new(Registry::create(1 << 40).expect("a registry")));
        let objectives = Objectives { total, unused: 0, min_uncompressed: 0, on_overflow };
        let admission = registry.admit("test", &objectives).expect("admitted");
        let fd = admission.inheritable().expect("a descriptor to inherit");
        Job { admission, registry, fd }
    }

    /// A program of this job.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).stdin(Stdio::null());
        for (name, value) in self.admission.environment(self.fd.as_raw_fd()) {
            command.env(name, value);
        }
        command
    }

    /// Runs a compiled program to its end and checks that it was content.
    #[allow(dead_code, reason = "not every test program runs C")]
    pub fn check(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.command(compile(name)).args(arguments).output().expect("it starts");
        content(name, arguments, &output)
    }
}

/// Fails with everything that was said, unless the program ended well.
pub fn content(name: &str, arguments: &[&str], output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{name} {arguments:?}: {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
