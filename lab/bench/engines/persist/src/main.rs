// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rivals that are crates: SQLite, redb and LMDB, one process per row.
//!
//!   memlift-persist-rivals FOLDER STORE WORKLOAD
//!
//! - **Store** `sqlite`, `redb`, `lmdb`; a new one in FOLDER, which is removed at the end
//! - **Workload** `commit`: one insert per durable commit · `group16`: the same from 16 threads, each commit its own transaction ·
//!   `batched16`: 16 threads hand their inserts to one writer, which commits what waits at once · `get`: random reads of
//!   1,000,000 · `scan`: 100 neighbours from a random key · `readers4` (LMDB): four processes read behind a commit of 16 inserts
//! - **Flow** one line says how the store is configured ─▶ `run SEED COUNT` ─▶ a JSON line: seconds, cpu_s, checksum. It ends when
//!   its stdin does.
//! - **Window** COUNT commits over all threads, COUNT gets, or COUNT scans; opening, loading and checksums of inserts lie outside
#![deny(unsafe_code)]

mod lmdb;
mod readers;
mod redb;
mod sqlite;
#[expect(unsafe_code, reason = "calls the C reference routines")]
mod workload;

use std::io::{BufRead, Write};
use std::path::Path;

use workload::{Draw, Failure, Sum, Timed};

/// Entries per scan.
const SCANNED: usize = 100;
const THREADS: u64 = 16;

/// A store of 64-byte values under 64-bit keys.
trait Store {
    /// Its version and configuration.
    fn about(&self) -> String;
    /// Inserts many in one transaction.
    fn load(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<(), Failure>;
    /// One insert per durable commit, on this thread.
    fn commits(&mut self, keys: &[u64]) -> Result<(), Failure>;
    /// The same, each slice on a thread of its own; returns when all are durable.
    fn group(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure>;
    /// All threads hand theirs to one writer and wait until it is durable.
    fn batched(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure>;
    /// Reads the values of these keys.
    fn gets(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure>;
    /// Reads [`SCANNED`] entries from each of these keys on, fewer at the end.
    fn scans(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure>;
    /// Reads every entry of the store.
    fn all(&mut self) -> Result<Sum, Failure>;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    Commit,
    Group,
    Batched,
    Get,
    Scan,
    /// Four processes read behind a commit of the writer.
    Readers,
}

fn run(
    store: &mut dyn Store,
    workload: Workload,
    loaded: u64,
    seed: u64,
    count: u64,
) -> Result<(Timed, u64), Failure> {
    let mut draw = Draw::new(seed);
    let known = |draw: &mut Draw| workload::loaded_key(draw.next() % loaded);
    match workload {
        Workload::Commit => {
            let keys: Vec<u64> = (0..count).map(|_| draw.next()).collect();
            let timed = workload::time(|| store.commits(&keys))?.0;
            Ok((timed, store.all()?.checksum))
        }
        Workload::Group | Workload::Batched => {
            let keys: Vec<Vec<u64>> =
                (0..THREADS).map(|_| (0..count / THREADS).map(|_| draw.next()).collect()).collect();
            let group = workload == Workload::Group;
            let timed = workload::time(|| if group { store.group(&keys) } else { store.batched(&keys) })?.0;
            Ok((timed, store.all()?.checksum))
        }
        Workload::Get => {
            let (timed, sum) = workload::time(|| store.gets(&mut (0..count).map(|_| known(&mut draw))))?;
            if sum.count != count {
                Err("a loaded key was not found".into())
            } else {
                Ok((timed, sum.checksum))
            }
        }
        Workload::Readers => Err("readers are processes".into()),
        Workload::Scan => {
            let (timed, sum) = workload::time(|| store.scans(&mut (0..count).map(|_| known(&mut draw))))?;
            Ok((timed, sum.checksum))
        }
    }
}

fn serve(folder: &Path, store: &str, workload: &str, loaded: &str) -> Result<(), Failure> {
    let loaded: u64 = loaded.parse()?;
    if loaded == 0 {
        return Err("a store without rows has none to read".into());
    }
    let workload = match workload {
        "commit" => Workload::Commit,
        "group16" => Workload::Group,
        "batched16" => Workload::Batched,
        "get" => Workload::Get,
        "scan" => Workload::Scan,
        "readers4" => Workload::Readers,
        _ => return Err(format!("there is no workload `{workload}`").into()),
    };
    let mut store: Box<dyn Store> = match store {
        "sqlite" => Box::new(sqlite::Sqlite::open(folder, workload == Workload::Commit)?),
        "redb" => Box::new(redb::Redb::open(folder)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(folder)?),
        _ => return Err(format!("there is no store `{store}`").into()),
    };
    store.load(&mut (0..loaded).map(workload::loaded_key))?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{{\"about\": \"{}\"}}", store.about())?;
    stdout.flush()?;
    let mut readers = if workload == Workload::Readers { readers::start(folder, loaded)? } else { Vec::new() };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["run", seed, count] = words[..] else {
            return Err(format!("`{line}` is not `run SEED COUNT`").into());
        };
        let (seed, count) = (seed.parse()?, count.parse()?);
        let (timed, checksum) = match workload {
            Workload::Readers => readers::run(store.as_mut(), &mut readers, seed, count)?,
            _ => run(store.as_mut(), workload, loaded, seed, count)?,
        };
        writeln!(
            stdout,
            "{{\"seconds\": {:.9}, \"cpu_s\": {:.9}, \"checksum\": \"{checksum:016x}\"}}",
            timed.seconds, timed.cpu_s
        )?;
        stdout.flush()?;
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [reader, folder, loaded] = &arguments[..]
        && reader == readers::NAME
    {
        return match readers::read(Path::new(folder), loaded) {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("a reader: {error}");
                std::process::ExitCode::FAILURE
            }
        };
    }
    let [folder, store, workload, loaded] = &arguments[..] else {
        eprintln!("usage: memlift-persist-rivals FOLDER sqlite|redb|lmdb commit|group16|batched16|get|scan|readers4 ROWS");
        return std::process::ExitCode::from(2);
    };
    let folder = Path::new(folder);
    let served =
        std::fs::create_dir_all(folder).map_err(Failure::from).and_then(|()| serve(folder, store, workload, loaded));
    // The store's files are of no use after the run.
    let removed = std::fs::remove_dir_all(folder);
    match served.and(removed.map_err(Failure::from)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{store}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
