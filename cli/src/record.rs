// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift record`: writes a trace of a program's work on memory while the program runs unchanged.
//!
//! - **Flow** the trace is made, with its whole limit reserved ─▶ the program starts with libmemlift_tap.so before its libraries ─▶ signals
//!   are passed on to it ─▶ it ends ─▶ its duration is written to the header, and the unused rest of the file is cut off
//! - **Order** the disk is reserved first: otherwise a write into the mapping could find the disk full, which would kill the program.
//!   Nothing is cut off while a process that outlives the program has the file mapped
//! - **Exit** the program's own code, 128 + signal if a signal ended it; 1–3 as in all commands if it was not started
//! - **Owner** if any process is killed, including this command, the trace stays readable: docs/formats/trace.md
//! - **Not here** writing records (`bindings/tap`), reading them (`memlift-lab whatif`)

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use memlift::ground::size;
use memlift::spec::formats::trace::{
    CHUNKS_AT, COMMAND_TEXT, CPU_TEXT, HEADER_BYTES, LIMIT_BYTES, MAGIC, VERSION, word,
};
use memlift::zmem::supervise::Supervised;
use rustix::fs::{FallocateFlags, fallocate};

use crate::failure::Failure;
use crate::output::Output;
use crate::run::{children_cpu_s, program};
use crate::{lab, print};

/// Examples for the help.
pub const EXAMPLES: &str = "\
Examples:
  memlift record -- python train.py
  memlift record -o server.trace --limit 1G -- ./server
  memlift whatif --device dsa memlift.trace          what would an accelerator buy it?

Recorded: memcpy, memmove, memset, memcmp from --threshold on; deflate, inflate and OpenSSL's EVP updates from 256 bytes on;
smaller calls are counted. Copies that a program makes itself, without libc, are not seen.
Exit codes: the program's own; 128 + N when signal N ended it.";

/// Smallest size, in bytes, of a transforming call that is recorded: such a call takes longer than its record.
const TRANSFORM_THRESHOLD: u64 = 256;

/// Arguments of `memlift record`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The trace that is written
    #[arg(long, short, value_name = "TRACE", default_value = "memlift.trace")]
    output: PathBuf,
    /// Replace a trace that is there
    #[arg(long)]
    force: bool,
    /// Most bytes of the trace, on disk and in memory: bytes, or with K, M, G
    #[arg(long, value_name = "SIZE", value_parser = limit, default_value = "128M")]
    limit: u64,
    /// Calls of the memcpy family below this many bytes are counted, not recorded
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4K")]
    threshold: u64,
    /// Say nothing at the end
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

fn limit(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?.next_multiple_of(HEADER_BYTES as u64);
    if (LIMIT_BYTES.0..=LIMIT_BYTES.1).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("give 1M to 1T; a recorded call takes 64 bytes".to_owned())
    }
}

/// Records a program; returns the program's exit code.
pub fn run(args: &Args, json: bool) -> Result<u8, Failure> {
    let program = program::find(&args.command[0])?;
    if let Some(why) = &program.uncovered {
        return Err(Failure::Unavailable(why.clone()));
    }
    let library = memlift_cli::libraries::tap().ok_or_else(|| {
        Failure::Unavailable(memlift_cli::libraries::advice("libmemlift_tap.so", "memlift-tap"))
    })?;
    let (file, path) = create(args)?;
    let mut command = Command::new(&args.command[0]);
    let mut preload = library.into_os_string();
    if let Some(already) = std::env::var_os("LD_PRELOAD").filter(|already| !already.is_empty()) {
        preload.push(":");
        preload.push(already);
    }
    command.args(&args.command[1..]).env("LD_PRELOAD", preload).env("MEMLIFT_TRACE", &path);
    let (began, cpu_before) = (Instant::now(), children_cpu_s());
    let child = Supervised::spawn(command)
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", program.path.display())))?;
    let ended = child.wait(|_| false).map_err(|error| Failure::Failed(error.to_string()))?;
    let wall_ns = began.elapsed().as_nanos() as u64;
    let cpu_ns = ((children_cpu_s() - cpu_before) * 1e9) as u64;
    let finish = [1, wall_ns, cpu_ns, ended.code().into()];
    finish
        .iter()
        .zip([word::FINISHED, word::WALL_NS, word::CPU_NS, word::EXIT_CODE])
        .try_for_each(|(value, index)| put(&file, index, *value))
        .and_then(|()| cut(&file, &path, args.limit))
        .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    if !args.quiet {
        lab::summary(&path, json)?;
    }
    Ok(ended.code())
}

/// Makes an empty trace of full length and returns it with its path. If it replaces a trace, processes that have that one
/// mapped keep its bytes.
fn create(args: &Args) -> Result<(File, PathBuf), Failure> {
    let output = Output::create(&args.output, "-o", args.force)?;
    let failed = |error: std::io::Error| Failure::Failed(format!("-o {}: {error}", args.output.display()));
    let file = output.file();
    if let Err(error) = reserve(file, args.limit) {
        return Err(Failure::Failed(format!(
            "-o {}: {error}: {} could not be reserved there; give a smaller --limit or another place",
            args.output.display(),
            print::bytes(args.limit)
        )));
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let words = [
        (word::VERSION, VERSION),
        (word::LIMIT, args.limit),
        (word::THRESHOLD, args.threshold.max(1)),
        (word::TRANSFORM_THRESHOLD, TRANSFORM_THRESHOLD),
        (word::START_UNIX_NS, unix),
        (word::START_MONOTONIC_NS, memlift::ground::observe::now_ns()),
        (word::CORES, cores),
        (word::CLAIMED, CHUNKS_AT as u64),
    ];
    let mut command = Vec::new();
    for argument in &args.command {
        if !command.is_empty() {
            command.push(b' ');
        }
        command.extend_from_slice(argument.as_bytes());
    }
    words
        .into_iter()
        .try_for_each(|(index, value)| put(file, index, value))
        .and_then(|()| text(file, CPU_TEXT, memlift_cli::machine::cpu_name().as_bytes()))
        .and_then(|()| text(file, COMMAND_TEXT, &command))
        .and_then(|()| put(file, word::MAGIC, MAGIC))
        .map_err(failed)?;
    let path = output.target().to_path_buf();
    output.finish().map(|file| (file, path))
}

/// Reserves the disk space of the whole file; writes zeros if the file system cannot reserve.
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            std::io::copy(&mut std::io::repeat(0).take(bytes), &mut &*file).map(|_| ())
        }
        other => other.map_err(std::io::Error::from),
    }
}

fn put(file: &File, index: usize, value: u64) -> std::io::Result<()> {
    file.write_all_at(&value.to_le_bytes(), 8 * index as u64)
}

fn text(file: &File, place: (usize, usize), bytes: &[u8]) -> std::io::Result<()> {
    file.write_all_at(&bytes[..bytes.len().min(place.1)], place.0 as u64)
}

/// Cuts off the part of the file that no process has used.
fn cut(file: &File, path: &Path, limit: u64) -> std::io::Result<()> {
    let mut claimed = [0; 8];
    file.read_exact_at(&mut claimed, 8 * word::CLAIMED as u64)?;
    let end = u64::from_le_bytes(claimed).min(limit);
    if !mapped_by_others(path) {
        return file.set_len(end);
    }
    print::warn(
        "processes that the program started still run: the trace has what they did so far, and keeps its full length",
    );
    Ok(())
}

/// Returns true if another process has the file mapped. Processes that cannot be inspected belong to other users, so this
/// command did not start them.
fn mapped_by_others(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    processes
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| fs::read(entry.path().join("maps")).ok())
        .any(|maps| maps.split(|byte| *byte == b'\n').any(|line| line.ends_with(path.as_os_str().as_bytes())))
}
