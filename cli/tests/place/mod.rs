// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the command in a folder and a registry of its own.
//!
//! - **Method** libraries and `memlift-lab` are built by this workspace beside the command; they are built here if they are not there yet

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The command. It lies beside `memlift-lab`, whose tests use this file, too.
fn program() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_memlift").or(option_env!("CARGO_BIN_EXE_memlift-lab"));
    Path::new(built.expect("cargo builds the programs of a package for its tests")).with_file_name("memlift")
}

/// The folder that holds the libraries and programs.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // `cargo xtask test` has built all libraries and says where.
        if let Some(built) = std::env::var_os("MEMLIFT_BUILT") {
            return PathBuf::from(built);
        }
        let folder = program().parent().expect("a folder").to_owned();
        // Nothing is done where the one that is there is new enough.
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args([
                "build",
                "-p",
                "memlift-cli",
                "-p",
                "memlift-lab",
                "-p",
                "memlift-preload",
                "-p",
                "memlift-tap",
                "-p",
                "memlift-c",
                "-p",
                "memlift-zlib",
                "-p",
                "memlift-openssl",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.env("CARGO_TARGET_DIR", folder.parent().expect("the target folder"));
        assert!(cargo.status().expect("cargo starts").success(), "the library is built");
        folder
    })
}

pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    /// A registry of its own, so that tests do not see each other.
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder") }
    }

    /// A folder with the command and every library that was built: cargo leaves them in two.
    pub fn built(&self) -> PathBuf {
        let folder = self.folder.path().join("built");
        std::fs::create_dir(&folder).expect("a folder");
        let libraries = ["c", "z", "openssl", "preload", "tap"].map(|name| format!("libmemlift_{name}.so"));
        let libraries = libraries.iter().map(String::as_str).chain(["libmemlift_c.a"]);
        let files = libraries.map(|name| library().join(name)).chain([program()]);
        for file in files {
            let name = file.file_name().expect("a name").to_owned();
            std::os::unix::fs::symlink(file, folder.join(name)).expect("linked");
        }
        folder
    }

    /// A library that was built.
    pub fn library(&self, name: &str) -> PathBuf {
        library().join(name)
    }

    pub fn memlift(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.folder.path()).env("MEMLIFT_DROPINS", library());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.memlift(arguments).output().expect("the command starts")
    }

    pub fn report(&self, arguments: &[&str]) -> (Output, Value) {
        let file = self.folder.path().join("report.json");
        let mut all = vec!["run", "--report", file.to_str().expect("UTF-8")];
        all.extend(arguments);
        let output = self.run(&all);
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("no report: {error}; {}", text(&output.stderr)));
        (output, serde_json::from_str(&text).expect("JSON"))
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The interpreter that the tests run.
pub fn python() -> String {
    let python = std::env::var("PYTHON").unwrap_or_default();
    if python.is_empty() { "python3".to_owned() } else { python }
}
