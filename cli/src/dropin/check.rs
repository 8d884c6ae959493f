// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin check`: lists the copies of zlib and OpenSSL that a program uses, and finds out if a drop-in replaces them and
//! would be faster on this machine.
//!
//! - **Work** a typical server's messages or, with a trace of the program, its own sizes, levels and flushes, weighted by their
//!   shares of the time
//! - **Flow** subject ─▶ files (of a running process those in its maps, otherwise those that the program needs) ─▶ copies ─▶ each
//!   shared library that a drop-in replaces is measured beside it for a tenth of a second ─▶ table or JSON
//! - **Exit** 0 the check ran, whatever its result · 3 there is nothing to check
//! - **Not here** changes: this verb changes nothing

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use memlift_cli::libraries::Dropin;
use memlift_cli::probe::{Calls, Compared, Shape};
use serde_json::{Value, json};

use super::copies::{self, Copy, Found};
use super::original;
use super::root::Root;
use super::shape::Uses;
use super::subject::{self, Subject};
use super::unit::Place;
use crate::failure::Failure;
use crate::print;

/// Least speed-up over the original at which a drop-in counts as a help.
pub const HELPS: f64 = 1.05;

/// Prints the copies of the libraries that the subject uses and, with `measures`, a comparison with the
/// drop-in.
pub fn check(
    subject: &str,
    place: &Place,
    measures: bool,
    trace: Option<&Path>,
    as_json: bool,
) -> Result<(), Failure> {
    let subject = Subject::find(subject, place)?;
    let uses = trace.map(Uses::read).transpose()?;
    let mut found = search(&subject, &place.root)?;
    found.remarks.extend(subject.program().and_then(|program| privileged(&place.root.outside(&program))));
    found.remarks.extend(original::outdated_remark(&subject, &place.root));
    if let Some(uses) = &uses {
        found.remarks.extend(uses.remarks.iter().cloned());
        let unused = Dropin::ALL.into_iter().filter(|one| !uses.has(*one));
        found.remarks.extend(unused.map(|one| format!("the trace has no call that {} would do", one.file())));
    }
    let uses = uses.unwrap_or_default();
    let measured: Vec<Option<Result<Measured, String>>> = found
        .copies
        .iter()
        .map(|copy| {
            (measures && copy.reached).then(|| {
                print::progress(&format!("measuring {} …", copy.path.display()));
                Measured::new(copy, &uses)
            })
        })
        .collect();
    let entries: Vec<(&Copy, Option<&Result<Measured, String>>)> =
        found.copies.iter().zip(measured.iter().map(Option::as_ref)).collect();
    if as_json {
        let copies: Vec<Value> = entries.iter().map(|(copy, measured)| document(copy, *measured)).collect();
        return print::json(&json!({
            "subject": subject.name(), "kind": subject.kind(), "program": subject.program(), "copies": copies,
            "remarks": found.remarks,
        }));
    }
    print::line(&text(&subject, &entries, &found.remarks))
}

fn search(subject: &Subject, root: &Root) -> Result<Found, Failure> {
    if !matches!(subject, Subject::Command(_)) && root.is_this_machine() {
        // All files that any of its processes has loaded, except for this command, which may be a child of
        // the subject.
        let pids = subject.processes().into_iter().filter(|pid| *pid != std::process::id());
        let maps: Vec<_> = pids.map(subject::mapped).collect();
        let mut files: Vec<_> = maps.iter().flatten().flatten().cloned().collect();
        files.sort();
        files.dedup();
        if !files.is_empty() {
            return Ok(copies::of_files(&files));
        }
        if let (Subject::Process(_), Some(Err(failure))) = (subject, maps.into_iter().next()) {
            return Err(failure);
        }
    }
    let program = subject
        .program()
        .ok_or_else(|| Failure::Unavailable(format!("{} names no program", subject.name())))?;
    copies::of_program(&program, root).map_err(Failure::Unavailable)
}

/// Returns a remark if the program has more rights than its caller: then loader and OpenSSL ignore the
/// environment.
fn privileged(program: &Path) -> Option<String> {
    let mode = std::fs::metadata(program).ok()?.permissions().mode();
    let mut capabilities = [0_u8; 64];
    let has_capabilities =
        rustix::fs::getxattr(program, "security.capability", &mut capabilities[..]).is_ok();
    let rights = match mode & 0o6000 {
        0 if !has_capabilities => return None,
        0 => "file capabilities",
        0o4000 => "the rights of its owner (set-uid)",
        0o2000 => "the rights of its group (set-gid)",
        _ => "the rights of its owner and its group (set-uid, set-gid)",
    };
    Some(format!("{} runs with {rights}: it ignores LD_PRELOAD and OPENSSL_CONF", program.display()))
}

/// Comparison of a drop-in with the program's own library, for each shape of the program's calls.
#[derive(Debug)]
pub struct Measured {
    /// Each shape with its share of the time with the program's own library, and the comparison.
    parts: Vec<(Shape, f64, Compared)>,
}

impl Measured {
    fn new(copy: &Copy, uses: &Uses) -> Result<Measured, String> {
        let parts = uses.of(copy.dropin).into_iter().map(|(shape, share)| {
            memlift_cli::probe::compare(copy.dropin, &copy.path, shape)
                .map(|compared| (shape, share, compared))
        });
        Ok(Measured { parts: parts.collect::<Result<_, String>>()? })
    }

    /// Returns the speed-up over all shapes; greater than 1: the drop-in takes less time.
    fn ratio(&self) -> f64 {
        1.0 / self.parts.iter().map(|(_, share, compared)| share / compared.ratio()).sum::<f64>()
    }
}

/// Returns the name of a shape's work.
pub fn work(dropin: Dropin, shape: Shape) -> String {
    let bytes = print::bytes(shape.bytes as u64);
    match (dropin, shape.calls) {
        (Dropin::OpenSsl, _) => format!("AES-128-GCM, {bytes}"),
        (_, Calls::Whole) => format!("gzip level {}, {bytes}", shape.level),
        (_, Calls::Flushed) => format!("deflate level {}, flushed each {bytes}", shape.level),
        (_, Calls::Pieces) => format!("deflate level {}, pieces of {bytes}", shape.level),
    }
}

fn document(copy: &Copy, measured: Option<&Result<Measured, String>>) -> Value {
    let part = |(shape, share, one): &(Shape, f64, Compared)| {
        json!({
            "work": work(copy.dropin, *shape), "share": share, "bytes": shape.bytes, "level": shape.level,
            "ours_us": one.ours_us, "theirs_us": one.theirs_us, "ratio": one.ratio(),
            "ours_bytes": one.ours_bytes, "theirs_bytes": one.theirs_bytes,
        })
    };
    let measurement = match measured {
        Some(Ok(measured)) => {
            let mut all = part(&measured.parts[0]);
            all["ratio"] = json!(measured.ratio());
            all["helps"] = json!(measured.ratio() >= HELPS);
            all["shapes"] = measured.parts.iter().map(part).collect();
            all
        }
        Some(Err(reason)) => {
            json!({ "work": work(copy.dropin, Shape::SERVER), "error": reason })
        }
        None => Value::Null,
    };
    json!({
        "dropin": copy.dropin.file(), "kind": copy.kind.name(), "path": copy.path, "version": copy.version,
        "reached": copy.reached, "remark": copy.remark, "measured": measurement,
    })
}

/// Returns a measurement as text.
pub fn verdict(dropin: Dropin, shape: Shape, measured: &Result<Compared, String>) -> String {
    match measured {
        Ok(one) => {
            let word = if one.ratio() >= HELPS { "helps" } else { "does not help" };
            let size = one.ours_bytes as f64 / one.theirs_bytes as f64;
            let size = if dropin == Dropin::Libz { format!(", size × {size:.2}") } else { String::new() };
            format!(
                "{word}: {} in {:.1} µs instead of {:.1} (× {:.2}{size})",
                work(dropin, shape),
                one.ours_us,
                one.theirs_us,
                one.ratio()
            )
        }
        Err(reason) => format!("not measured: {reason}"),
    }
}

/// Returns the lines about a copy's measurement: one per shape, and a total if there are several.
fn verdicts(dropin: Dropin, measured: &Result<Measured, String>) -> Vec<String> {
    let measured = match measured {
        Ok(measured) => measured,
        Err(reason) => return vec![format!("{} not measured: {reason}", dropin.file())],
    };
    let mut lines: Vec<String> = Vec::new();
    for (shape, share, compared) in &measured.parts {
        let share = if measured.parts.len() > 1 {
            format!(" {:.0} % of the time:", share * 100.0)
        } else {
            String::new()
        };
        lines.push(format!("{}{share} {}", dropin.file(), verdict(dropin, *shape, &Ok(*compared))));
    }
    if measured.parts.len() > 1 {
        let word = if measured.ratio() >= HELPS { "yes" } else { "no" };
        lines.push(format!("{} for this program: {word}, × {:.2}", dropin.file(), measured.ratio()));
    }
    lines
}

fn text(
    subject: &Subject,
    entries: &[(&Copy, Option<&Result<Measured, String>>)],
    remarks: &[String],
) -> String {
    let mut lines = vec![subject.name()];
    for (copy, measured) in entries {
        let mark = if copy.reached { '✓' } else { '–' };
        lines.push(format!("  {mark} {} ({}), {}", copy.version, copy.kind.name(), copy.path.display()));
        lines.push(format!("      {}", copy.remark));
        if let Some(measured) = measured {
            lines.extend(verdicts(copy.dropin, measured).iter().map(|line| format!("      {line}")));
        }
    }
    if entries.is_empty() {
        lines.push("  – no zlib and no OpenSSL in it".to_owned());
    }
    lines.extend(remarks.iter().map(|remark| format!("  – {remark}")));
    if entries.iter().any(|(copy, _)| copy.reached) && !matches!(subject, Subject::Process(_)) {
        lines.push("  → memlift dropin enable attaches it".to_owned());
    }
    lines.join("\n")
}
