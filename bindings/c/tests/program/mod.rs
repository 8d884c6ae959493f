// SPDX-License-Identifier: Apache-2.0 OR MIT
//! C programs for tests: compiled against this crate's headers, linked with its libraries, run.
//!
//! - **Order** without a C compiler they are not run; one line says so

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of this crate.
pub fn crate_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Where cargo put the libraries.
pub fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("deps").to_owned();
    if folder.join("libmemlift_c.so").exists() {
        folder
    } else {
        folder.parent().expect("profile").to_owned()
    }
}

/// Returns true if there is such a compiler.
pub fn have(compiler: &str) -> bool {
    let there = Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("not run: there is no {compiler}");
    }
    there
}

/// Runs it; what it said. It must succeed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Every warning is an error.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

/// Compiles a C program to `program`, with the shared library or the static one. False: there is no compiler.
pub fn compile(source: &str, program: &Path, with_static: bool) -> bool {
    if !have("cc") {
        return false;
    }
    let mut command = Command::new("cc");
    command.args(STRICT).args(["-std=c11", "-O1", "-D_POSIX_C_SOURCE=200809L", "-I"]);
    command.arg(crate_file("include")).arg(crate_file(source)).arg("-o").arg(program);
    if with_static {
        command.arg(libraries().join("libmemlift_c.a"));
        command.args(["-lpthread", "-ldl", "-lm", "-lrt", "-lgcc_s", "-lutil"]);
    } else {
        command.arg(libraries().join("libmemlift_c.so")).arg("-lpthread");
    }
    run(&mut command);
    true
}

/// A compiled program, ready to be given arguments.
pub fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

/// Compiles a C program and runs it in a folder of its own, which it is told; what it said.
pub fn compiled(source: &str, with_static: bool) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    compile(source, &program, with_static).then(|| run(start(&program).arg(folder.path())))
}
