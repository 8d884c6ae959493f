// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool info`: prints header, durability guarantee, log and types of a pool, without writing to it.

use std::path::{Path, PathBuf};

use memlift::persist::check::{Report, Tail, summary};
use memlift::persist::layout::{Header, SLAB_BYTES};
use memlift::persist::{Guarantee, Mechanism, Survives};
use serde_json::{Value, json};

use super::failure;
use crate::failure::Failure;
use crate::print;

/// Prints the properties of a pool.
pub fn info(files: &[PathBuf], as_json: bool) -> Result<(), Failure> {
    let (report, path) = (summary(files).map_err(failure(&files[0]))?, &*files[0]);
    if as_json {
        return print::json(&document(path, &report));
    }
    print::line(&text(path, &report))
}

fn mechanism(header: &Header) -> &'static str {
    Mechanism::ALL.into_iter().find(|one| *one as u8 == header.mechanism).map_or("unknown", Mechanism::name)
}

/// Returns a pool header's fields as JSON.
pub fn header(header: &Header) -> Value {
    let uuid: String = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "version": memlift::persist::layout::MAJOR, "uuid": uuid, "mechanism": mechanism(header), "lanes": header.lanes,
        "lane_bytes": header.lane_bytes, "heap_start": header.heap_start, "heap_bytes": header.heap_bytes,
        "sections": header.sections, "generation": header.generation, "epoch": header.epoch, "clean": header.clean,
        "devices": header.devices, "checksums": header.has_checksums(),
    })
}

/// Returns a durability guarantee as JSON.
pub fn guarantee(guarantee: &Guarantee) -> Value {
    json!({
        "survives_power_failure": guarantee.survives == Survives::PowerFailure, "by": guarantee.by,
        "reason": guarantee.reason, "text": guarantee.to_string(),
    })
}

/// Returns a report, without its findings, as JSON.
pub fn document(path: &Path, report: &Report) -> Value {
    let lanes: Vec<Value> = report
        .lanes
        .iter()
        .map(|lane| {
            let tail = match lane.tail {
                Tail::Torn => "torn",
                Tail::Epoch(_) => "earlier epoch",
                _ => "end",
            };
            json!({ "lane": lane.lane, "records": lane.records, "bytes": lane.bytes, "end": lane.end, "tail": tail })
        })
        .collect();
    let types: Vec<Value> = report
        .types
        .iter()
        .map(|one| {
            json!({ "type": one.name, "tag": one.tag, "objects": one.objects, "bytes": one.bytes, "slabs": one.slabs })
        })
        .collect();
    json!({
        "path": path, "file_bytes": report.file_bytes, "header": report.header().map(header),
        "guarantee": guarantee(&report.guarantee), "waiting": { "transactions": report.waiting.0, "bytes": report.waiting.1 },
        "lanes": lanes, "slabs": { "all": report.slabs.0, "free": report.slabs.1, "bytes": SLAB_BYTES }, "types": types,
        "root": report.root.as_ref().map(|(offset, name)| json!({ "offset": offset, "type": name })),
    })
}

/// Returns a report, without its findings, as text.
pub fn text(path: &Path, report: &Report) -> String {
    let mut lines = vec![path.display().to_string()];
    let mut line = |what: &str, found: String| lines.push(format!("  {what:<10}  {found}"));
    match report.header() {
        Some(header) => {
            line("mechanism", format!("{}, {} sections", mechanism(header), header.sections));
            let free = report.slabs.1 * SLAB_BYTES;
            line(
                "heap",
                format!(
                    "{}, of which {} in slabs that nobody uses",
                    print::bytes(header.heap_bytes),
                    print::bytes(free)
                ),
            );
            line("file", print::bytes(report.file_bytes));
            if header.devices > 1 {
                line(
                    "devices",
                    format!(
                        "interleaved over {} files, {} each in turn",
                        header.devices,
                        print::bytes(header.stripe_bytes)
                    ),
                );
            }
            line("checksums", if header.has_checksums() { "of each page" } else { "none" }.to_owned());
            let all = u64::from(header.lanes) * header.lane_bytes;
            let filled: u64 = report.lanes.iter().map(|lane| lane.bytes).sum();
            let (lanes, each) = (header.lanes, print::bytes(header.lane_bytes));
            let percent = filled as f64 * 100.0 / all.max(1) as f64;
            line("log", format!("{lanes} lanes of {each}, {percent:.1} % filled"));
            line("state", state(header, report));
        }
        None => line("header", "neither of the two is good: memlift pool check says more".to_owned()),
    }
    line("guarantee", report.guarantee.to_string());
    if let Some((offset, name)) = &report.root {
        line("root", format!("{name} at {offset:#x}"));
    }
    if !report.types.is_empty() {
        let rows: Vec<Vec<String>> = report
            .types
            .iter()
            .map(|one| vec![format!("  {}", one.name), one.objects.to_string(), print::bytes(one.bytes)])
            .collect();
        lines.push(String::new());
        lines.push(print::table(&["  type", ">objects", ">bytes"], &rows));
    }
    if !report.sound() {
        lines.push(format!("\n  ✗ damaged: memlift pool check {} says how", path.display()));
    }
    lines.join("\n")
}

fn state(header: &Header, report: &Report) -> String {
    let (count, bytes) = report.waiting;
    let undone = header.mechanism == Mechanism::Undo as u8;
    match (header.clean, count) {
        (true, 0) => "closed; nothing to recover".to_owned(),
        (false, 0) => "not closed; nothing to recover".to_owned(),
        (_, count) => format!(
            "not closed: {count} {} ({}) wait in the log and are {} at the next open; shown here as they will be",
            if undone { "records of what was under way" } else { "transactions" },
            print::bytes(bytes),
            if undone { "taken back" } else { "brought to their place" }
        ),
    }
}
