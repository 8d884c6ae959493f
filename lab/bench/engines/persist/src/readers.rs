// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four processes that read an LMDB environment beside the one that writes it.
//!
//! - **Flow** this program again as `reader FOLDER ROWS` ─▶ `SEED COUNT` ─▶ a line with the sum of what it read, in a transaction of its own
//! - **Window** from the writer's commit of 16 inserts to the last process's answer

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Store;
use crate::lmdb::Lmdb;
use crate::workload::{self, Draw, Failure, Timed};

/// Word that starts this program as a reader.
pub const NAME: &str = "reader";
const PROCESSES: u64 = 4;
const COMMITTED: u64 = 16;

/// A process that reads; it ends with its stdin.
pub struct Reader {
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    child: Child,
}

impl Reader {
    fn hear(&mut self) -> Result<u64, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait(); // it may have failed, which it has said
    }
}

pub fn start(folder: &Path, loaded: u64) -> Result<Vec<Reader>, Failure> {
    let one = |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(NAME).arg(folder).arg(loaded.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("stdout is piped")?;
        let mut reader = Reader { stdin: child.stdin.take(), stdout: BufReader::new(stdout), child };
        reader.hear()?;
        Ok(reader)
    };
    (0..PROCESSES).map(one).collect()
}

/// This program as a reader.
pub fn read(folder: &Path, loaded: &str) -> Result<(), Failure> {
    let loaded: u64 = loaded.parse()?;
    let mut store = Lmdb::open_reading(folder)?;
    let answer = |sum: u64| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{sum}").and_then(|()| stdout.flush())
    };
    answer(0)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (seed, count) = line.split_once(' ').ok_or("`SEED COUNT`")?;
        let (mut draw, count) = (Draw::new(seed.parse()?), count.parse::<u64>()?);
        let sum = store.gets(&mut (0..count).map(|_| workload::loaded_key(draw.next() % loaded)))?;
        if sum.count != count {
            return Err("a loaded key was not found".into());
        }
        answer(sum.checksum)?;
    }
    Ok(())
}

pub fn run(store: &mut dyn Store, readers: &mut [Reader], seed: u64, count: u64) -> Result<(Timed, u64), Failure> {
    let mut draw = Draw::new(seed);
    let keys: Vec<u64> = (0..COMMITTED).map(|_| draw.next()).collect();
    workload::time(|| {
        store.load(&mut keys.iter().copied())?;
        for (seed, reader) in (seed..).zip(readers.iter_mut()) {
            let stdin = reader.stdin.as_mut().ok_or("it was closed")?;
            writeln!(stdin, "{seed} {}", count / PROCESSES)?;
            stdin.flush()?;
        }
        readers.iter_mut().try_fold(0u64, |sum, reader| Ok(sum.wrapping_add(reader.hear()?)))
    })
}
