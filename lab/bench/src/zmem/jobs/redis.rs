// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Redis server that saves in the background while half of its keys are written anew: a fork whose child reads everything.
//!
//! - **Flow** redis-server on a socket ─▶ SET all ─▶ BGSAVE ─▶ SET every second key ─▶ saved ─▶ GET all ─▶ stopped ─▶ a second server loads
//!   what was saved ─▶ GET all: the values before the save
//! - **Rule** the sum is over the values of both; the save began between two batches of one connection, so both are known
//! - **Needs** redis-server on the PATH ([`missing`])

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Done, Draw, Sum};
use crate::BenchError;
use crate::child::Bound;

/// Keys of a batch.
const BATCH: u64 = 64;

/// Returns what to install if redis-server cannot be started.
pub(super) fn missing() -> Option<String> {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success()))
        .then(|| "redis-server is not here: apt install redis-server".to_owned())
}

fn refused(what: &str, answer: &str) -> BenchError {
    BenchError::Answer { program: format!("redis-server, asked to {what}"), answer: answer.to_owned() }
}

/// A server and a connection to it.
#[derive(Debug)]
struct Server {
    process: Bound,
    stream: BufReader<UnixStream>,
}

impl Server {
    /// Starts it in a folder, where it finds and leaves `dump.rdb`.
    fn start(folder: &Path) -> Result<Server, BenchError> {
        let socket = folder.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        let mut process = Bound::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        // The server listens before it has loaded the dump, and answers LOADING until then.
        loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                let mut server = Server { process, stream: BufReader::new(stream) };
                while server.ask("PING")? != b"PONG" {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Ok(server);
            }
            if let Ok(Some(status)) = process.process().try_wait() {
                return Err(refused("start", &status.to_string()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.get_mut().write_all(bytes).map_err(BenchError::system("writing to redis-server"))
    }

    /// One answer: the text of a line, or a value's bytes.
    fn answer(&mut self) -> Result<Vec<u8>, BenchError> {
        let system = || BenchError::system("reading from redis-server");
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).map_err(system())?;
        let line = line.strip_suffix(b"\r\n").unwrap_or(&line);
        let text = String::from_utf8_lossy(line).into_owned();
        match line.split_first() {
            Some((b'+', word)) => Ok(word.to_vec()),
            // Loading is no failure.
            Some((b'-', error)) if error.starts_with(b"LOADING") => Ok(error.to_vec()),
            Some((b'$', length)) => {
                let length: usize = std::str::from_utf8(length)
                    .ok()
                    .and_then(|length| length.parse().ok())
                    .ok_or_else(|| refused("answer", &text))?;
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value).map_err(system())?;
                value.truncate(length);
                Ok(value)
            }
            _ => Err(refused("answer", &text)),
        }
    }

    fn ask(&mut self, command: &str) -> Result<Vec<u8>, BenchError> {
        self.send(format!("{command}\r\n").as_bytes())?;
        self.answer()
    }

    /// Writes keys in batches; `step` is the distance from one to the next.
    fn set(&mut self, keys: u64, step: u64, version: u64) -> Result<(), BenchError> {
        let all: Vec<u64> = (0..keys).step_by(step as usize).collect();
        for batch in all.chunks(BATCH as usize) {
            let mut bytes = Vec::new();
            for key in batch {
                let (name, value) = (format!("user:{key:08}"), value(*key, version));
                bytes.extend_from_slice(
                    format!(
                        "*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n",
                        name.len(),
                        value.len()
                    )
                    .as_bytes(),
                );
            }
            self.send(&bytes)?;
            for _ in batch {
                let answer = self.answer()?;
                if answer != b"OK" {
                    return Err(refused("SET", &String::from_utf8_lossy(&answer)));
                }
            }
        }
        Ok(())
    }

    /// Reads all keys into the sum.
    fn get(&mut self, keys: u64, sum: &mut Sum) -> Result<(), BenchError> {
        for first in (0..keys).step_by(BATCH as usize) {
            let batch = first..keys.min(first + BATCH);
            let commands: String = batch.clone().map(|key| format!("GET user:{key:08}\r\n")).collect();
            self.send(commands.as_bytes())?;
            for _ in batch {
                for word in self.answer()?.chunks(8) {
                    sum.add(word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
                }
            }
        }
        Ok(())
    }

    /// Waits for the save to end well.
    fn saved(&mut self) -> Result<(), BenchError> {
        loop {
            let info = self.ask("INFO persistence")?;
            let info = String::from_utf8_lossy(&info);
            if info.contains("rdb_bgsave_in_progress:0") {
                return match info.contains("rdb_last_bgsave_status:ok") {
                    true => Ok(()),
                    false => Err(refused("BGSAVE", "rdb_last_bgsave_status is not ok")),
                };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(mut self) -> Result<(), BenchError> {
        self.send(b"SHUTDOWN NOSAVE\r\n")?;
        self.process.wait()?;
        Ok(())
    }
}

/// A profile as JSON, about 1 KiB.
fn value(key: u64, version: u64) -> String {
    let mut draw = Draw(key << 8 | version);
    let seen: Vec<String> = (0..24)
        .map(|_| {
            format!("{{\"item\":{},\"at\":{}}}", draw.below(90_000), 1_700_000_000 + draw.below(40_000_000))
        })
        .collect();
    format!("{{\"id\":{key},\"version\":{version},\"seen\":[{}]}}", seen.join(","))
}

/// Saves and loads `keys` keys, in a server whose files lie in a new folder below `place`.
pub(super) fn work(place: &Path, keys: u64) -> Result<Done, BenchError> {
    let begun = Instant::now();
    let folder = tempfile::Builder::new().prefix("redis-").tempdir_in(place);
    let folder = folder.map_err(BenchError::system("making a folder"))?;
    let mut sum = Sum::new();
    let mut server = Server::start(folder.path())?;
    server.set(keys, 1, 0)?;
    let built = Instant::now();
    server.ask("BGSAVE")?;
    server.set(keys, 2, 1)?;
    server.saved()?;
    server.get(keys, &mut sum)?;
    server.stop()?;
    // The dump stays in the page cache until it is on the disk, and its dirty pages count until then.
    let dump = folder.path().join("dump.rdb");
    fs::File::open(&dump).and_then(|file| file.sync_all()).map_err(BenchError::file(&dump))?;
    let mut loaded = Server::start(folder.path())?;
    loaded.get(keys, &mut sum)?;
    loaded.stop()?;
    Ok(Done {
        checksum: format!("{:016x}", sum.0),
        built_s: (built - begun).as_secs_f64(),
        worked_s: built.elapsed().as_secs_f64(),
        cpu_s: 0.0,
    })
}
