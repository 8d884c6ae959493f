// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The GAP Benchmark Suite's own programs as jobs: a graph is made, a kernel runs once, and the suite verifies the result.
//!
//! - **Flow** the suite's sources, in the folder that [`SOURCES`] names ─▶ built once by g++ into the folder for temporary files, without
//!   OpenMP ─▶ a command that prints one JSON line
//! - **Rule** the sum is over the size of the graph; a result that the suite finds wrong ends the job with an error
//! - **Needs** a clone of the suite, and g++ on the PATH ([`missing`])

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::BenchError;

/// Name of the environment variable with the folder of a clone of the suite.
const SOURCES: &str = "MEMLIFT_BENCH_GAPBS";
const KERNELS: [&str; 6] = ["bfs", "sssp", "pr", "cc", "bc", "tc"];

/// Returns what to fetch or install if the programs cannot be built.
pub(super) fn missing() -> Option<String> {
    let sources = sources().filter(|folder| folder.join("bfs.cc").is_file());
    if sources.is_none() {
        return Some(format!(
            "the suite's sources are not here: git clone https://github.com/sbeamer/gapbs, and name the folder in {SOURCES}"
        ));
    }
    let found = Command::new("g++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success())).then(|| "g++ is not here: apt install g++".to_owned())
}

fn sources() -> Option<PathBuf> {
    std::env::var_os(SOURCES).map(|folder| PathBuf::from(folder).join("src"))
}

/// The kernel's program, built now if this process has not built it before.
fn program(kernel: &str) -> Result<PathBuf, BenchError> {
    let source = sources().ok_or_else(|| BenchError::Engine { reason: format!("{SOURCES} is not set") })?;
    let built = std::env::temp_dir().join(format!("memlift-bench-gapbs-{}-{kernel}", std::process::id()));
    if built.is_file() {
        return Ok(built);
    }
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++11", "-O3", "-o"]).arg(&built).arg(source.join(format!("{kernel}.cc")));
    let output = compiler.output().map_err(BenchError::system("starting g++"))?;
    if !output.status.success() {
        let reason = format!("g++ {kernel}.cc: {}", String::from_utf8_lossy(&output.stderr));
        return Err(BenchError::Engine { reason });
    }
    Ok(built)
}

/// A kernel on a Kronecker graph of 2^`scale` nodes, as a command that prints a report.
///
/// # Errors
///
/// When there is no such kernel, or it cannot be built.
pub(super) fn command(kernel: &str, scale: u64) -> Result<Command, BenchError> {
    if !KERNELS.contains(&kernel) {
        return Err(super::unknown(&["gapbs", kernel]));
    }
    let mut command = Command::new("/bin/sh");
    let text = "out=$(\"$0\" -g \"$1\" -n 1 -v) || exit; case $out in *PASS*) ;; *) printf '%s\\n' \"$out\" >&2; exit 1 ;; esac; \
                sum=$(printf '%s\\n' \"$out\" | grep '^Graph has' | cksum); \
                printf '{\"checksum\":\"%s\",\"built_s\":0,\"worked_s\":0}\\n' \"${sum%% *}\"";
    command.args(["-c", text]).arg(program(kernel)?).arg(scale.to_string());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_suite_is_built_and_verifies_its_result() {
        if let Some(what) = missing() {
            println!("not run: {what}");
            return;
        }
        for kernel in KERNELS {
            let run = |scale| {
                let output = command(kernel, scale).expect("built").output().expect("it starts");
                assert!(output.status.success(), "{kernel}: {output:?}");
                super::super::parse(&output.stdout, &[kernel]).expect("a report").checksum
            };
            assert_eq!(run(8), run(8), "{kernel}");
            assert_ne!(run(8), run(9), "{kernel}");
        }
        assert!(command("dfs", 8).is_err());
    }
}
