// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Python under a budget: its heap, and numpy where it is installed.

use crate::job;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::job::{Job, MIB};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

/// The project's Python where it is there, else the system's.
fn python() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    if own.exists() { own } else { "python3".into() }
}

#[test]
fn a_heap_of_objects_keeps_its_contents() {
    let output = Job::new(72 * MIB).command(python()).arg(script("heap.py")).output().expect("python starts");
    assert_eq!(job::content("heap.py", &[], &output), "right\n");
}

#[test]
fn arrays_keep_their_contents() {
    let there = Command::new(python()).args(["-c", "import numpy"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: numpy is not installed for {}", python().display());
        return;
    }
    let output =
        Job::new(100 * MIB).command(python()).arg(script("numpy_heap.py")).output().expect("python starts");
    assert_eq!(job::content("numpy_heap.py", &[], &output), "right\n");
}
