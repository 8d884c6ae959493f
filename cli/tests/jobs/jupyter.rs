// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift jupyter install`: a real kernel that Jupyter's own client starts, restarts and ends, in less memory than its
//! cell needs.
//!
//! - **Method** ipykernel of the interpreter in `PYTHON`. Without it the test says so and is skipped

use std::process::Command;

use crate::place::{Place, python, text};
use serde_json::Value;

/// The steps of a notebook server with a kernel.
const SERVER: &str = r#"
import sys, time
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=120)

def run(code, timeout=240):
    said = []
    def hook(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])
    reply = client.execute_interactive(code, output_hook=hook, timeout=timeout)
    return reply["content"]["status"], "".join(said)

print(*run("""
parts = [bytearray(b''.join((part * 7919 + i).to_bytes(8, 'little') for i in range(256)) * 512) for part in range(160)]
print(sum(sum(part[::509]) for part in parts), any('libmemlift_preload' in line for line in open('/proc/self/maps')))
"""))
print(*run("print(len(parts))"))
manager.restart_kernel()
client.wait_for_ready(timeout=120)
print(*run("print('parts' in globals())"))
client.stop_channels()
manager.shutdown_kernel()
print("ended", manager.is_alive())
"#;

#[test]
fn a_real_kernel_runs_a_cell_that_is_larger_than_its_budget() {
    let place = Place::new();
    let python = python();
    let prefix = Command::new(&python)
        .args(["-c", "import ipykernel, jupyter_client, sys; print(sys.prefix)"])
        .output()
        .expect("python starts");
    if !prefix.status.success() {
        eprintln!("skipped: {python} has no ipykernel");
        return;
    }
    let base = std::path::Path::new(text(&prefix.stdout).trim()).join("share/jupyter");
    let data = place.folder.path().join("data");
    let jupyter = |arguments: &[&str]| {
        let mut command = place.memlift(&[&["--json", "jupyter"], arguments].concat());
        command.env("JUPYTER_DATA_DIR", &data).env("JUPYTER_PATH", &base).output().expect("it runs")
    };
    let output = jupyter(&["install", "--memory", "160M"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(made["name"], "python3-160m");
    let output = Command::new(&python)
        .args(["-c", SERVER, "python3-160m"])
        .env("JUPYTER_DATA_DIR", &data)
        .env("XDG_RUNTIME_DIR", place.folder.path())
        .env("MEMLIFT_DROPINS", place.library("libmemlift_preload.so").parent().expect("a folder"))
        .output()
        .expect("python starts");
    let sum: u64 = (0..160u64)
        .map(|part| {
            let block: Vec<u8> = (0..256u64).flat_map(|i| (part * 7919 + i).to_le_bytes()).collect();
            (0..1u64 << 20).step_by(509).map(|at| u64::from(block[at as usize % block.len()])).sum::<u64>()
        })
        .sum();
    let wanted = format!("ok {sum} True\n\nok 160\n\nok False\n\nended False\n");
    assert_eq!(text(&output.stdout), wanted, "{}", text(&output.stderr));
    assert!(jupyter(&["remove", "python3-160m"]).status.success());
    assert_eq!(jupyter(&["remove", "python3-160m"]).status.code(), Some(3));
    let output = jupyter(&["install", "--memory", "1G", "--kernel", "nothing-here"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("pip install ipykernel"), "{}", text(&output.stderr));
}
