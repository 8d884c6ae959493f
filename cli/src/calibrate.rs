// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift calibrate`: measures this machine once and stores the result on disk for every program that uses memlift.
//!
//! - **Exit** 0 even if the machine was busy: then the built-in numbers stay in use, and `trust` in the JSON gives the
//!   reason

use memlift::offload::{Calibrated, Engine};
use memlift::place::{Calibration, Line, ShapeFrom};
use serde_json::json;

use crate::failure::Failure;
use crate::{config, print};

/// Measures this machine, and stores and prints the result.
pub fn run(as_json: bool) -> Result<(), Failure> {
    let engine = open()?;
    print::progress("measuring this machine, about a second; leave it alone meanwhile");
    let calibrated = engine.calibrate().map_err(|error| Failure::Unavailable(error.to_string()))?;
    let calibration = &calibrated.measured;
    let trust = &calibration.trust;
    let path = calibrated.saved.as_ref().map(|path| path.display().to_string());
    if as_json {
        let saved = path.as_ref().ok();
        print::json(&json!({ "calibration": calibration, "saved": saved }))?;
    } else {
        print::line(&text(calibration))?;
        print::line(&format!("\n{}", verdict(&calibrated)))?;
        if let (Ok(path), true) = (&path, trust.trusted) {
            print::line(&format!("kept in {path}; measured in {} ms", calibration.took_ms))?;
        }
    }
    match calibrated.saved {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Failed(format!("measured, but not kept: {error}"))),
    }
}

/// Opens an engine with the configuration of this process.
pub fn open() -> Result<Engine, Failure> {
    Engine::open(&config::load()?).map_err(|error| Failure::Failed(error.to_string()))
}

/// Returns a text that says which numbers memlift uses from now on.
fn verdict(calibrated: &Calibrated) -> String {
    let trust = &calibrated.measured.trust;
    if trust.trusted {
        return format!("trusted      repeats differ by {:.0} %", (trust.spread - 1.0) * 100.0);
    }
    let numbers =
        if calibrated.loaded.is_measured() { "the earlier calibration" } else { "built-in numbers" };
    format!("not trusted, {numbers} used: {}; run it again when the machine is quiet", trust.why)
}

/// Lists the shapes of copies past the cache, as `SHAPE from SIZE`.
pub fn shapes(calibration: &Calibration) -> String {
    let one = |shape: &ShapeFrom| {
        format!("{} from {} ({:.1} GB/s)", shape.shape, print::bytes(shape.from_bytes), shape.gb_per_s)
    };
    calibration.shapes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn text(calibration: &Calibration) -> String {
    let mut rows = Vec::new();
    for curve in &calibration.model.curves {
        for line in &curve.lines {
            rows.push(vec![
                curve.opcode.clone(),
                curve.executor.clone(),
                curve.cache.clone(),
                print::bytes(line.from_bytes),
                format!("{:.4}", line.ns_per_byte),
                format!("{:.0}", line.base_ns),
                speed(line),
            ]);
        }
    }
    let headings = ["opcode", "executor", "cache", ">from", ">a, ns/byte", ">b, ns", ">1/a"];
    format!("L = a·size + b\n\n{}\n\n{}", print::table(&headings, &rows), thresholds(calibration))
}

/// Lists the sizes at which behaviour changes.
fn thresholds(calibration: &Calibration) -> String {
    let found = &calibration.thresholds;
    let from = |bytes: Option<u64>| {
        bytes.map_or("never".to_owned(), |bytes| format!("from {}", print::bytes(bytes)))
    };
    [
        format!("cache        {} stay there", print::bytes(found.cache_bytes)),
        format!(
            "streaming    pays {} cold, {} hot",
            from(found.nt_from_cold_bytes),
            from(found.nt_from_hot_bytes)
        ),
        format!(
            "sharing      pays {} cold, {} hot",
            from(found.split_from_cold_bytes),
            from(found.split_from_hot_bytes)
        ),
        format!("shape        {}", shapes(calibration)),
        format!("gate         below {} a copy is not looked at", print::bytes(found.gate_bytes)),
    ]
    .join("\n")
}

fn speed(line: &Line) -> String {
    if line.ns_per_byte > 0.0 { format!("{:.1} GB/s", 1.0 / line.ns_per_byte) } else { "–".to_owned() }
}
