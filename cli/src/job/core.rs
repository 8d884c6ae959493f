// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift job core`: a whole core of a process under a budget, which takes none of the job's memory.
//!
//! - **Flow** all threads are stopped, again until none of them is just moving a page ─▶ segments from the mappings, those of the arena
//!   from the pager's tables ─▶ present pages are read, absent ones unpacked here ─▶ the program headers ─▶ the threads go on
//! - **Order** pages that take no memory are not read, since reading would make the kernel map them; they are holes of the file. The file
//!   has its name only when it is complete
//! - **Left out** as by the kernel: memory that the program left out (`MADV_DONTDUMP`), unchanged pages of files. A page that cannot be
//!   read is in no segment, so that a debugger says so
//! - **Not here** the process's tables: services/zmem; the bytes of the file: elf.rs

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlift::zmem::pager::outside::{Chunk, Contents, Outside, Run};
use memlift::zmem::stop::{Stopped, Thread};
use memlift::zmem::supervise::Deferred;
use serde_json::json;

use super::elf::{self, PAGE_BYTES, Segment};
use super::maps::{self, Mapping};
use crate::failure::Failure;
use crate::output::Output;
use crate::print;

/// Time for which threads that move pages are let go on and stopped again.
const MOVING_LIMIT: Duration = Duration::from_secs(5);
/// Bytes that are read and written together.
const BLOCK_BYTES: usize = 2 << 20;
const PAGE: usize = PAGE_BYTES as usize;
/// Largest rest of a mapping, behind the last page that takes memory, that is in the file: as a hole.
const MOST_UNTOUCHED_BYTES: u64 = 64 << 20;

/// Arguments of `memlift job core`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The process; `memlift job list --json` names those of each job
    pid: u32,
    /// The core file [default: core.PID]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

/// Source of a segment's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// No page is written.
    Nothing,
    /// The pages that take memory; the others are zeros.
    Memory,
    /// The pages that the process has touched; a debugger reads the others from the mapped file, or not at all.
    Mapped,
    /// The first bytes, as they are: the header of a program or library.
    First(u64),
    /// The arena, by the tables of its pager.
    Arena,
}

/// Counts of a core.
#[derive(Default)]
struct Counts {
    written: u64,
    absent: u64,
    lost: u64,
}

/// Writes the core of a process.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let pid = args.pid;
    let target = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("core.{pid}")));
    let mut outside = super::outside_at(pid, super::view_of(pid)?)?;
    let deferred = Deferred::begin();
    let output = Output::create(&target, "--output", args.force)?;
    let refused = |error: io::Error| super::refused(pid, &error);
    let began = Instant::now();
    let (stopped, moving) = stop(&outside, &deferred).map_err(refused)?;
    let mappings = maps::read(pid).map_err(refused)?;
    let notes = elf::notes(&about(pid, stopped.threads(), &mappings));
    let mut core = Core {
        output: &output,
        deferred: &deferred,
        segments: Vec::new(),
        end: (elf::HEADER_BYTES + notes.len() as u64).next_multiple_of(PAGE_BYTES),
        counts: Counts::default(),
        shown: Instant::now(),
        done: 0,
        all: 0,
    };
    let parts = parts(&outside, &mappings).map_err(refused)?;
    core.all = parts.iter().map(|(_, start, end, _)| end - start).sum();
    for (source, start, end, prot) in parts {
        core.part(&mut outside, source, (start, end), prot).map_err(|error| failed(&target, &error))?;
    }
    core.finish(&notes).map_err(|error| failed(&target, &error))?;
    let Core { counts, segments, end, .. } = core;
    let threads = stopped.threads().len();
    drop(stopped);
    let stopped_s = began.elapsed().as_secs_f64();
    output.finish()?;
    drop(deferred);
    if counts.lost > 0 {
        let why = if moving { "a thread was moving them for too long" } else { "their copies are damaged" };
        print::warn(&format!("{} pages could not be read ({why}); the core does not have them", counts.lost));
    }
    let name = target.display();
    if json {
        return print::json(&json!({
            "file": target,
            "pid": pid,
            "bytes": end,
            "bytes_written": counts.written,
            "segments": segments.len(),
            "threads": threads,
            "pages_away": counts.absent,
            "pages_lost": counts.lost,
            "stopped_s": stopped_s,
        }));
    }
    print::line(&format!(
        "{name}: {} ({} without holes), {threads} thread{}, {} of memory that was away; the process was stopped for {stopped_s:.1} s",
        print::bytes(end),
        print::bytes(counts.written),
        if threads == 1 { "" } else { "s" },
        print::bytes(counts.absent * PAGE_BYTES),
    ))
}

fn failed(target: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::Interrupted => Failure::Failed("interrupted: no core was written".to_owned()),
        _ => Failure::Failed(format!("{}: {error}", target.display())),
    }
}

/// Stops all threads at a moment when none of them moves a page. Returns true beside them if there was no such moment.
fn stop(outside: &Outside, deferred: &Deferred) -> io::Result<(Stopped, bool)> {
    let (began, mut pause) = (Instant::now(), Duration::from_micros(500));
    loop {
        let stopped = Stopped::all(outside.pid())?;
        let moving = moves(outside)?;
        if !moving || began.elapsed() > MOVING_LIMIT {
            return Ok((stopped, moving));
        }
        drop(stopped);
        if deferred.waits() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}

/// Returns true if a page is in no place where it can be read.
fn moves(outside: &Outside) -> io::Result<bool> {
    for index in 0..outside.chunk_count()? {
        let chunk = outside.chunk(index)?;
        if chunk.is_changing() || chunk.is_busy() && (0..Chunk::PAGES).any(|page| chunk.is_moving(page)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the parts of the address space in order: source, start, end, access.
fn parts(outside: &Outside, mappings: &[Mapping]) -> io::Result<Vec<(Source, u64, u64, u32)>> {
    let mut parts = Vec::new();
    let mut left_out = Vec::new();
    for mapping in mappings {
        if outside.contains(mapping.start) {
            if mapping.left_out {
                left_out.push((mapping.start, mapping.end));
            }
        } else {
            parts.push((source_of(outside, mapping), mapping.start, mapping.end, mapping.prot));
        }
    }
    for run in arena_runs(outside)? {
        let mut start = run.start;
        for &(from, to) in left_out.iter().filter(|&&(from, to)| from < run.end && run.start < to) {
            if start < from {
                parts.push((Source::Arena, start, from, run.prot as u32));
            }
            parts.push((Source::Nothing, from.max(start), to.min(run.end), run.prot as u32));
            start = to.min(run.end);
        }
        if start < run.end {
            parts.push((Source::Arena, start, run.end, run.prot as u32));
        }
    }
    parts.sort_by_key(|(_, start, ..)| *start);
    Ok(parts)
}

/// Returns the runs of mapped pages of the arena with the same access.
fn arena_runs(outside: &Outside) -> io::Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for index in 0..outside.chunk_count()? {
        let chunk = outside.chunk(index)?;
        for run in chunk.runs() {
            match runs.last_mut() {
                Some(last) if last.end == run.start && last.prot == run.prot => last.end = run.end,
                _ => runs.push(run),
            }
        }
    }
    Ok(runs)
}

/// Decides which pages of a mapping outside the arena are written.
fn source_of(outside: &Outside, mapping: &Mapping) -> Source {
    if mapping.left_out || matches!(mapping.path.as_str(), "[vvar]" | "[vvar_vclock]" | "[vsyscall]") {
        return Source::Nothing;
    }
    let mut magic = [0; 4];
    match () {
        () if mapping.path == "[vdso]" => Source::First(mapping.end - mapping.start),
        () if mapping.shared && mapping.is_of_named_file() => Source::Nothing,
        () if mapping.shared || mapping.file && mapping.changed_bytes > 0 => Source::Mapped,
        () if !mapping.file => Source::Memory,
        () if mapping.offset == 0
            && outside.read(mapping.start, &mut magic).is_ok()
            && &magic == b"\x7fELF" =>
        {
            Source::First(PAGE_BYTES)
        }
        () => Source::Nothing,
    }
}

/// Returns the runs of pages of a range that take memory.
fn present_runs(outside: &Outside, (start, end): (u64, u64)) -> io::Result<Vec<(u64, u64)>> {
    let (mut runs, mut at): (Vec<(u64, u64)>, u64) = (Vec::new(), start);
    let mut words = vec![0; 1 << 15];
    while at < end {
        let pages = words.len().min(((end - at) / PAGE_BYTES) as usize);
        outside.pagemap(at, &mut words[..pages])?;
        for (index, _) in words[..pages].iter().enumerate().filter(|(_, word)| Outside::is_present(**word)) {
            let page = at + (index * PAGE) as u64;
            match runs.last_mut() {
                Some((_, last)) if *last == page => *last += PAGE_BYTES,
                _ => runs.push((page, page + PAGE_BYTES)),
            }
        }
        at += (pages * PAGE) as u64;
    }
    Ok(runs)
}

/// Reads what a core says about the process beside its memory.
fn about<'a>(pid: u32, threads: &'a [Thread], mappings: &[Mapping]) -> elf::Process<'a> {
    let text = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&text("stat")).into_owned();
    let status = String::from_utf8_lossy(&text("status")).into_owned();
    let id = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|id| id.parse().ok()).unwrap_or(0)
    };
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    elf::Process {
        pid,
        stat: fields.split_whitespace().map(str::to_owned).collect(),
        user: [id("Uid:"), id("Gid:")],
        name: String::from_utf8_lossy(&text("comm")).trim_end().to_owned(),
        arguments: text("cmdline"),
        vector: text("auxv"),
        threads,
        files: mappings
            .iter()
            .filter(|mapping| mapping.file && !mapping.path.starts_with("/memfd:"))
            .map(|mapping| (mapping.start, mapping.end, mapping.offset, mapping.path.clone()))
            .collect(),
    }
}

/// A core that is being written.
struct Core<'a> {
    output: &'a Output,
    deferred: &'a Deferred,
    segments: Vec<Segment>,
    /// Offset of the next segment's pages.
    end: u64,
    counts: Counts,
    /// The time of the last line of progress.
    shown: Instant,
    done: u64,
    all: u64,
}

impl Core<'_> {
    /// Writes the pages of a part of the address space.
    fn part(
        &mut self,
        outside: &mut Outside,
        source: Source,
        (start, end): (u64, u64),
        prot: u32,
    ) -> io::Result<()> {
        self.progress()?;
        match source {
            Source::Nothing => self.add((start, start, end), prot, &[]),
            Source::First(bytes) => {
                let until = end.min(start + bytes);
                let lost = self.copy(outside, start, &[(start, until)])?;
                self.add((start, until, end), prot, &lost);
            }
            Source::Memory => {
                let runs = present_runs(outside, (start, end))?;
                let lost = self.copy(outside, start, &runs)?;
                self.add((start, cut(start, end, runs.last().map(|run| run.1)), end), prot, &lost);
            }
            Source::Mapped => {
                let mut at = start;
                for run in present_runs(outside, (start, end))? {
                    self.add((at, at, run.0), prot, &[]);
                    let lost = self.copy(outside, run.0, &[run])?;
                    self.add((run.0, run.1, run.1), prot, &lost);
                    at = run.1;
                }
                self.add((at, at, end), prot, &[]);
            }
            Source::Arena => self.arena(outside, (start, end), prot)?,
        }
        self.done += end - start;
        Ok(())
    }

    /// Adds the segments of a part whose pages up to `until` are in the file, but for the `lost` ones, and moves to the next
    /// part of the file.
    fn add(&mut self, (start, until, end): (u64, u64, u64), prot: u32, lost: &[u64]) {
        let mut push = |from: u64, to: u64, in_file: bool| {
            if from < to {
                let file_bytes = if in_file { to - from } else { 0 };
                self.segments.push(Segment {
                    start: from,
                    end: to,
                    prot,
                    offset: self.end + (from - start),
                    file_bytes,
                });
            }
        };
        let mut at = start;
        for page in lost {
            push(at, *page, true);
            push(*page, page + PAGE_BYTES, false);
            at = page + PAGE_BYTES;
        }
        push(at, until, true);
        push(until.max(at), end, false);
        self.end += until - start;
        self.counts.lost += lost.len() as u64;
    }

    /// Copies the pages of the runs; `start` is the address of the first page of the part that they belong to. Returns the
    /// pages that could not be read.
    fn copy(&mut self, outside: &Outside, start: u64, runs: &[(u64, u64)]) -> io::Result<Vec<u64>> {
        let mut lost = Vec::new();
        let mut bytes = Vec::new();
        for &(from, to) in runs {
            let mut at = from;
            while at < to {
                self.progress()?;
                bytes.resize(BLOCK_BYTES.min((to - at) as usize), 0);
                if outside.read(at, &mut bytes).is_ok() {
                    self.pages(at - start, &bytes)?;
                } else {
                    for (index, page) in bytes.as_chunks_mut::<PAGE>().0.iter_mut().enumerate() {
                        let address = at + (index * PAGE) as u64;
                        match outside.read(address, page) {
                            Ok(()) => self.pages(address - start, page)?,
                            Err(_) => lost.push(address),
                        }
                    }
                }
                at += bytes.len() as u64;
            }
        }
        Ok(lost)
    }

    /// Writes a part of the arena.
    fn arena(&mut self, outside: &mut Outside, (start, end): (u64, u64), prot: u32) -> io::Result<()> {
        let (mut lost, mut last) = (Vec::new(), None);
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut at = start;
        while at < end {
            let chunk = outside.chunk_of(at)?;
            let (first, count) = (
                chunk.index_of(at),
                (Chunk::PAGES - chunk.index_of(at)).min(((end - at) / PAGE_BYTES) as usize),
            );
            if (first..first + count).any(|index| chunk.holds(index)) {
                self.progress()?;
                let bytes = &mut bytes[..count * PAGE];
                for (index, page) in bytes.as_chunks_mut::<PAGE>().0.iter_mut().enumerate() {
                    let contents = outside.page(&chunk, first + index, page);
                    let address = at + (index * PAGE) as u64;
                    match contents {
                        Contents::None | Contents::Zeros => continue,
                        Contents::Present => {}
                        Contents::Absent => self.counts.absent += 1,
                        Contents::Moving | Contents::Lost => lost.push(address),
                    }
                    last = Some(address + PAGE_BYTES);
                }
                self.pages(at - start, bytes)?;
            }
            at += (count * PAGE) as u64;
        }
        self.add((start, cut(start, end, last), end), prot, &lost);
        Ok(())
    }

    /// Writes pages at an offset from the start of the current part; pages of zeros become holes.
    fn pages(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let pages = bytes.as_chunks::<PAGE>().0;
        let is_zero = |page: &[u8; PAGE]| *page == [0; PAGE];
        let mut first = 0;
        while first < pages.len() {
            let zero = is_zero(&pages[first]);
            let count = pages[first..].iter().take_while(|page| is_zero(page) == zero).count();
            if !zero {
                let part = pages[first..first + count].as_flattened();
                self.output.file().write_all_at(part, self.end + offset + (first * PAGE) as u64)?;
                self.counts.written += part.len() as u64;
            }
            first += count;
        }
        Ok(())
    }

    fn progress(&mut self) -> io::Result<()> {
        if self.deferred.waits() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.shown.elapsed() > Duration::from_secs(1) {
            self.shown = Instant::now();
            let done = 100.0 * self.done as f64 / self.all.max(1) as f64;
            print::progress(&format!("core: {done:.0} %, {}", print::bytes(self.counts.written)));
        }
        Ok(())
    }

    /// Writes what can be written only at the end.
    fn finish(&mut self, notes: &[u8]) -> io::Result<()> {
        let file = self.output.file();
        let headers = elf::program_headers(notes.len(), &self.segments);
        file.write_all_at(notes, elf::HEADER_BYTES)?;
        file.write_all_at(&headers, self.end)?;
        file.write_all_at(&elf::header(self.end, self.segments.len() + 1), 0)?;
        self.counts.written += elf::HEADER_BYTES + (notes.len() + headers.len()) as u64;
        self.end += headers.len() as u64;
        Ok(())
    }
}

/// Returns the address up to which a part's pages are in the file. `last` is the address after the last page that takes memory.
/// What follows is mere address space if it is long; a file would seem to be as large.
fn cut(start: u64, end: u64, last: Option<u64>) -> u64 {
    let last = last.unwrap_or(start);
    if last == start || end - last > MOST_UNTOUCHED_BYTES { last } else { end }
}
