// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--export`: the lines of memory that recorded calls touch, as simulators of memory read them.
//!
//! - **Layout** of files: `loadstore` (Ramulator2's LoadStoreTrace): `LD 0x…`, `ST 0x…`, no time · `simpleo3` (Ramulator2's SimpleO3): a file per
//!   thread, `instructions load [store]`, decimal: time is instructions that use no memory · `gem5`: packets with ticks of a picosecond
//! - **Order** `loadstore`: calls by the time they began, over all threads. `gem5`: lines by their time, over all threads; a call's lines are
//!   spread evenly over the time that it took. Of a call each line is read before it is written
//! - **Rule** a file whose name ends in .gz is packed with gzip
//! - **Not here** a service's own work, which has no addresses. What calls found in a cache is not left out: a simulator has its own

mod access;
mod gem5;
mod sink;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use memlift_model::whatif::Trace;
use serde_json::json;

use memlift_cli::failure::Failure;
use memlift_cli::print;

use access::{Access, Frames, Line, by_line, by_start};
use sink::Sink;

/// Largest count of instructions in a line of SimpleO3, which reads it as a 32-bit integer.
const INSTRUCTIONS_MAX: u64 = i32::MAX as u64;

/// Form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Ramulator2's LoadStoreTrace: `LD 0x…` and `ST 0x…`, one a line, without time
    Loadstore,
    /// Ramulator2's SimpleO3: one file per thread, FILE.1, FILE.2 …; instructions before each access
    Simpleo3,
    /// gem5's packet trace for its traffic generator: ticks of a picosecond, the thread's number as the packet's id
    Gem5,
}

/// Addresses in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pages {
    /// The program's own
    Virtual,
    /// Frames of 4 KiB from 0 on, in the order in which recorded calls touch a process's pages first
    FirstTouch,
}

/// Arguments of an export.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The file; with `simpleo3` the beginning of its files' names.
    pub path: &'a Path,
    pub format: Format,
    /// None: the program's own, and frames for gem5, whose memory begins at 0.
    pub pages: Option<Pages>,
    /// Instructions that SimpleO3's core retires in a nanosecond.
    pub instructions: f64,
    /// True to replace files that are there.
    pub force: bool,
}

/// Sums of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    loads: u64,
    stores: u64,
}

impl Written {
    fn count(&mut self, access: Access) {
        if access.store { self.stores += 1 } else { self.loads += 1 }
    }
}

/// Writes the files and says what is in them.
///
/// # Errors
/// A file is there and may not be replaced, or cannot be written.
pub fn write(trace: &Trace, request: &Request<'_>, as_json: bool) -> Result<(), Failure> {
    let pages = request.pages.unwrap_or(match request.format {
        Format::Gem5 => Pages::FirstTouch,
        Format::Loadstore | Format::Simpleo3 => Pages::Virtual,
    });
    let mut frames = Frames::new(pages == Pages::FirstTouch);
    let (files, written) = match request.format {
        Format::Loadstore => loadstore(trace, request, &mut frames)?,
        Format::Simpleo3 => simpleo3(trace, request, &mut frames)?,
        Format::Gem5 => packets(trace, request, &mut frames)?,
    };
    let calls = by_start(trace).len();
    let frames = (pages == Pages::FirstTouch).then(|| frames.count());
    let format = request.format.to_possible_value().map(|value| value.get_name().to_owned());
    if as_json {
        return print::json(&json!({
            "file": request.path.display().to_string(), "format": format, "calls": calls, "loads": written.loads,
            "stores": written.stores, "frames": frames,
            "files": files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        }));
    }
    let (loads, stores) = (written.loads, written.stores);
    let addresses = match frames {
        Some(frames) => format!("in {frames} frames of 4 KiB from 0 on"),
        None => "at the program's addresses".to_owned(),
    };
    for file in &files {
        print::line(&file.display().to_string())?;
    }
    print::line(&format!("{calls} calls, {loads} loads and {stores} stores of 64 bytes, {addresses}"))
}

type Done = (Vec<PathBuf>, Written);

fn loadstore(trace: &Trace, request: &Request<'_>, frames: &mut Frames) -> Result<Done, Failure> {
    let mut sink = Sink::create(request.path, request.force)?;
    let (mut written, mut text) = (Written::default(), String::new());
    for (_, process, call) in by_start(trace) {
        for line in Line::of(call) {
            for access in line.accesses() {
                let access = frames.place(process, access);
                written.count(access);
                text.clear();
                let _ = writeln!(text, "{} {:#x}", if access.store { "ST" } else { "LD" }, access.address);
                sink.write(text.as_bytes())?;
            }
        }
    }
    Ok((vec![sink.finish()?], written))
}

/// The name of a thread's file: its number before `.gz`, or at the end.
fn of_thread(path: &Path, number: usize) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(match name.strip_suffix(".gz") {
        Some(name) => format!("{name}.{number}.gz"),
        None => format!("{name}.{number}"),
    })
}

fn simpleo3(trace: &Trace, request: &Request<'_>, frames: &mut Frames) -> Result<Done, Failure> {
    let (mut files, mut written) = (Vec::new(), Written::default());
    for (thread, number) in trace.threads.iter().zip(1..) {
        let mut sink = None;
        let mut over_ns = thread.begin_ns;
        for (at_ns, ns, call) in access::calls(thread) {
            let gap_ns = at_ns.saturating_sub(over_ns);
            over_ns = at_ns.saturating_add(ns);
            let mut before = (gap_ns as f64 * request.instructions) as u64;
            for line in Line::of(call) {
                let sink = match &mut sink {
                    Some(sink) => sink,
                    none => none.insert(Sink::create(&of_thread(request.path, number), request.force)?),
                };
                let placed: Vec<Access> =
                    line.accesses().map(|access| frames.place(thread.process, access)).collect();
                sink.write(instructions(&mut before, &placed, &mut written).as_bytes())?;
            }
        }
        if let Some(sink) = sink {
            files.push(sink.finish()?);
        }
    }
    Ok((files, written))
}

/// Lines of SimpleO3 for the accesses of a line of memory, `before` instructions after the last ones. A line without a load reads the
/// line that it writes first, as a core does that overwrites it.
fn instructions(before: &mut u64, accesses: &[Access], written: &mut Written) -> String {
    let mut text = String::new();
    let mut line = |load: u64, store: Option<u64>| {
        // More than a line can count: the load comes often enough, and finds its line in the cache.
        while *before > INSTRUCTIONS_MAX {
            let _ = writeln!(text, "{INSTRUCTIONS_MAX} {load}");
            *before -= INSTRUCTIONS_MAX;
        }
        let _ = match store {
            Some(store) => writeln!(text, "{before} {load} {store}"),
            None => writeln!(text, "{before} {load}"),
        };
        *before = 0;
    };
    match *accesses {
        [load, store] if store.store => line(load.address, Some(store.address)),
        [store] if store.store => line(store.address, Some(store.address)),
        ref loads => loads.iter().for_each(|load| line(load.address, None)),
    }
    accesses.iter().for_each(|access| written.count(*access));
    text
}

fn packets(trace: &Trace, request: &Request<'_>, frames: &mut Frames) -> Result<Done, Failure> {
    let mut sink = Sink::create(request.path, request.force)?;
    sink.write(&gem5::header(trace))?;
    let mut written = Written::default();
    for (tick_ps, thread, line) in by_line(trace) {
        for access in line.accesses() {
            let access = frames.place(trace.threads[thread].process, access);
            written.count(access);
            sink.write(&gem5::packet(tick_ps, access, thread as u64 + 1))?;
        }
    }
    Ok((vec![sink.finish()?], written))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64, store: bool) -> Access {
        Access { address, store }
    }

    #[test]
    fn simpleo3_has_a_load_in_every_line_and_no_count_beyond_its_integer() {
        let mut written = Written::default();
        let mut of = |before: u64, accesses: &[Access]| {
            let mut before = before;
            let text = instructions(&mut before, accesses, &mut written);
            assert_eq!(before, 0);
            text
        };
        assert_eq!(of(7, &[access(64, false), access(128, true)]), "7 64 128\n");
        assert_eq!(of(0, &[access(128, true)]), "0 128 128\n");
        assert_eq!(of(3, &[access(64, false), access(128, false)]), "3 64\n0 128\n");
        assert_eq!(of((1 << 31) + 4, &[access(64, false)]), "2147483647 64\n5 64\n");
        assert_eq!(written, Written { loads: 4, stores: 2 });
    }

    #[test]
    fn a_threads_number_stands_before_the_end_that_says_it_is_packed() {
        assert_eq!(of_thread(Path::new("/a/b"), 3), Path::new("/a/b.3"));
        assert_eq!(of_thread(Path::new("b.txt.gz"), 12), Path::new("b.txt.12.gz"));
    }
}
