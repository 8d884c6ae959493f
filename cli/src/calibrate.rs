// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift calibrate`: measures this machine once and keeps the result on disk for every program that uses memlift.

use memlift::engine::Engine;
use memlift::engine::place::{Calibration, Line};
use serde_json::json;

use crate::failure::Failure;
use crate::{config, print};

/// Measures, keeps and prints it.
pub fn run(as_json: bool) -> Result<(), Failure> {
    let engine = open()?;
    print::progress("measuring this machine, about a second; leave it alone meanwhile");
    let calibrated = engine.calibrate().map_err(|error| Failure::Unavailable(error.to_string()))?;
    let calibration = &calibrated.loaded.calibration;
    let path = calibrated.saved.as_ref().map(|path| path.display().to_string());
    if as_json {
        let saved = path.as_ref().ok();
        print::json(&json!({ "calibration": calibration, "saved": saved }))?;
    } else {
        print::line(&text(calibration))?;
        if let Ok(path) = &path {
            print::line(&format!("\nkept in {path}; measured in {} ms", calibration.took_ms))?;
        }
    }
    match calibrated.saved {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Failed(format!("measured, but not kept: {error}"))),
    }
}

/// An engine of the configuration of this process.
pub fn open() -> Result<Engine, Failure> {
    Engine::open(&config::load()?).map_err(|error| Failure::Failed(error.to_string()))
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

/// Where behaviour changes.
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
        format!("gate         below {} a copy is not looked at", print::bytes(found.gate_bytes)),
    ]
    .join("\n")
}

fn speed(line: &Line) -> String {
    if line.ns_per_byte > 0.0 { format!("{:.1} GB/s", 1.0 / line.ns_per_byte) } else { "–".to_owned() }
}
