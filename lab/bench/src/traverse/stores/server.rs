// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis and memcached as processes of this bench: found or fetched, started without persistence, ended with the row.
//!
//! - **Flow** `engines/traverse/fetch` ─▶ program ─▶ started on a Unix socket in a folder of its own, or a free port of loopback ─▶
//!   [`Server::line`] until it answers
//! - **Owner** [`Server`] ends the process by its handle and removes the folder; the kernel ends it if this process dies
//! - **Missing** neither installed nor to be had: the text says what to install

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::line::Line;
use crate::child::Bound;
use crate::traverse::Stop;
use crate::traverse::pin::{Held, Role};
use crate::{BenchError, python};

/// Time that a store may take to listen.
const START_TIME: Duration = Duration::from_secs(20);

/// Store that is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// Redis, version 7.
    Redis,
    /// memcached, version 1.6.
    Memcached,
}

/// Where it listens.
#[derive(Clone, Debug)]
pub enum Place {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of loopback.
    Tcp(SocketAddr),
}

/// A running store.
#[derive(Debug)]
pub struct Server {
    child: Option<Bound>,
    process: u32,
    place: Place,
    folder: PathBuf,
    /// Name and version, as the program states them.
    pub version: String,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Redis => "redis",
            Store::Memcached => "memcached",
        }
    }

    /// The program, ready for arguments; what to install if there is none.
    fn command(self) -> Result<Command, Stop> {
        let script = python::unpack()?.join("engines/traverse/fetch");
        let output = Command::new("sh").arg(&script).arg(self.name()).stdin(Stdio::null()).output();
        let output = output.map_err(BenchError::file(&script))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Stop::Missing(said));
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = said.lines();
        let mut command = Command::new(lines.next().unwrap_or_default());
        if let Some(libraries) = lines.next().filter(|libraries| !libraries.is_empty()) {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        Ok(command)
    }

    fn version(self) -> Result<String, Stop> {
        let output = self.command()?.arg("--version").output();
        let output = output.map_err(BenchError::system("asking a store for its version"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = said
            .split_whitespace()
            .map(|word| word.trim_start_matches("v="))
            .find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        Ok(format!("{} {}", self.name(), version.unwrap_or("of unknown version")))
    }
}

impl Server {
    /// Starts one with room for so many bytes of data, without persistence.
    pub fn start(store: Store, tcp: bool, bytes: u64) -> Result<Server, Stop> {
        Server::start_with(store, tcp, bytes, &[])
    }

    /// The same with more arguments, which count before the usual ones.
    pub fn start_with(store: Store, tcp: bool, bytes: u64, more: &[&str]) -> Result<Server, Stop> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let version = store.version()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("memlift-bench-store-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).map_err(BenchError::file(&folder))?;
        let only_us = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&folder, only_us).map_err(BenchError::file(&folder))?;
        let path = folder.join("socket");
        let place = if tcp {
            // If another process takes the port first, the store ends and the row fails.
            let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
            Place::Tcp(free.map_err(BenchError::system("finding a free port"))?)
        } else {
            Place::Unix(path)
        };
        let mut command = store.command()?;
        let megabytes = (bytes >> 20) + 64;
        match store {
            Store::Redis => {
                // In huge pages, as the memory of a node is.
                command.env("MALLOC_CONF", "thp:always");
                command.args([
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--loglevel",
                    "warning",
                    "--disable-thp",
                    "no",
                ]);
                command.args(["--io-threads", "1", "--databases", "1"]).arg("--dir").arg(&folder);
                match &place {
                    Place::Unix(path) => command.args(["--port", "0", "--unixsocket"]).arg(path),
                    Place::Tcp(at) => {
                        command.args(["--bind", "127.0.0.1", "--port"]).arg(at.port().to_string())
                    }
                };
            }
            Store::Memcached => {
                command.args(["-t", "1", "-U", "0", "-m"]).arg(megabytes.to_string());
                if rustix::process::getuid().is_root() {
                    command.args(["-u", "root"]);
                }
                match &place {
                    Place::Unix(path) => command.args(["-a", "700", "-s"]).arg(path),
                    Place::Tcp(at) => command.args(["-l", "127.0.0.1", "-p"]).arg(at.port().to_string()),
                };
            }
        }
        command.args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // It is held to the nodes' core, because it starts there.
        let held = Held::new(Role::Node);
        let mut child = Bound::start(&mut command)?;
        drop(held);
        let process = child.process().id();
        let mut server = Server { child: Some(child), process, place, folder, version };
        server.wait()?;
        Ok(server)
    }

    /// Waits until it listens.
    fn wait(&mut self) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            if Line::connect(&self.place).is_ok() {
                return Ok(());
            }
            let child = self.child.as_mut().expect("it runs until it is dropped").process();
            let ended = child.try_wait().map_err(BenchError::system("waiting for a store"))?;
            if let Some(status) = ended {
                return Err(BenchError::Child { program: self.version.clone(), status: status.to_string() });
            }
            if begun.elapsed() > START_TIME {
                let status = "nothing: it does not listen".to_owned();
                return Err(BenchError::Child { program: self.version.clone(), status });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens a connection to the store.
    pub fn line(&self) -> Result<Line, BenchError> {
        Line::connect(&self.place).map_err(BenchError::system("connecting to a store"))
    }

    /// Returns its port; 0: it has none.
    pub fn port(&self) -> u16 {
        match &self.place {
            Place::Tcp(at) => at.port(),
            Place::Unix(_) => 0,
        }
    }

    /// Returns its process number, with which its CPU time is read.
    pub fn process(&self) -> u32 {
        self.process
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.take());
        // Its contents are of no use any more, so an error here does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
