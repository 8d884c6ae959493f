// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines that recorded calls touch, as Ramulator2's load/store trace: `LD 0x…` and `ST 0x…`, one a line, decimal-free.
//!
//! - **Order** calls by the time they began, over all threads; of a call each line is read before it is written
//! - **Not here** a service's own work, which has no addresses; physical addresses: a trace has the program's. What calls found in a cache is not left out: a simulator has its own

use std::io::{BufWriter, Write};
use std::path::Path;

use memlift_model::whatif::{Trace, What};
use serde_json::json;

use memlift_cli::failure::Failure;
use memlift_cli::output::Output;
use memlift_cli::print;

const LINE: u64 = 64;

/// Writes the file.
pub fn write(trace: &Trace, path: &Path, force: bool, as_json: bool) -> Result<(), Failure> {
    let output = Output::create(path, "--export", force)?;
    let mut calls = Vec::new();
    for thread in &trace.threads {
        for step in &thread.steps {
            if let What::Call(index) = step.what
                && !thread.calls[index].kind.is_work()
            {
                calls.push((step.at_ns, thread.calls[index]));
            }
        }
    }
    calls.sort_by_key(|(at, _)| *at);
    let (mut loads, mut stores) = (0u64, 0u64);
    let mut all = || -> std::io::Result<()> {
        let mut file = BufWriter::new(output.file());
        for (_, call) in &calls {
            let lines = |address: u64, bytes: u64| {
                let first = address / LINE;
                (first, address.saturating_add(bytes).div_ceil(LINE).saturating_sub(first))
            };
            let (source, reads) = lines(call.source, call.read);
            let second = if call.written == 0 && call.target != 0 { call.read } else { call.written };
            let (target, writes) = lines(call.target, second);
            for index in 0..reads.max(writes) {
                if index < reads && call.read > 0 {
                    writeln!(file, "LD {:#x}", (source + index) * LINE)?;
                    loads += 1;
                }
                if index < writes && second > 0 {
                    let store = call.written > 0;
                    writeln!(file, "{} {:#x}", if store { "ST" } else { "LD" }, (target + index) * LINE)?;
                    if store { stores += 1 } else { loads += 1 }
                }
            }
        }
        file.flush()
    };
    all().map_err(|error| Failure::Failed(format!("--export {}: {error}", path.display())))?;
    output.finish()?;
    if as_json {
        return print::json(
            &json!({ "file": path.display().to_string(), "calls": calls.len(), "loads": loads, "stores": stores }),
        );
    }
    print::line(&format!(
        "{}: {} calls, {loads} loads and {stores} stores of 64 bytes, at the program's addresses",
        path.display(),
        calls.len()
    ))
}
