// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The built-in coordinator: one process that keeps the map in a file, and tracks the leases of nodes.
//!
//! - **Flow** request ─▶ one function from map to map (`change`) ─▶ written to a file beside the map's, synced, renamed over it ─▶
//!   sent to all who wait. A node that does not renew its lease in time is marked down, by a change like any other
//! - **Order** no map is sent before it is on disk. When the coordinator is restarted, all leases start anew: it cannot know which
//!   nodes tried to renew while it was away
//! - **Owner** the file's lock, `FILE.lock`: a second coordinator on one file is refused. There is one coordinator; while it is away
//!   nodes and clients continue with the map they have, and no range moves. For a map that survives the loss of a machine use etcd
//! - **Not here** walks: none of their packets pass through the coordinator

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlift_ground::locked_file::LockedFile;
use memlift_ground::own_file;
use memlift_ground::socket_file::SocketFile;

use super::MapError;
use super::change::{Join, Order};
use super::encode::{MAGIC, MAP_BYTES_MAX};
use super::frame::{Frames, Protocol, Secret, Side};
use super::message::{Answer, Request};
use super::node::{NodeId, State};
use super::range::Map;
use super::remote::Peer;
use super::shared::Shared;

/// Most connections at a time: two for each node and client.
pub const CONNECTIONS_MAX: usize = 8192;
/// A connection without a request for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Settings that a coordinator is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// File in which the map is kept.
    pub file: PathBuf,
    /// Length of a lease.
    pub lease: Duration,
    /// Secret that clients must know; required if the coordinator listens beyond this machine.
    pub secret: Option<Secret>,
}

/// A running coordinator. Dropping it stops it; the map stays in its file.
#[derive(Debug)]
pub struct Coordinator {
    state: Arc<CoordinatorState>,
    address: Peer,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct CoordinatorState {
    shared: Arc<Shared>,
    leases: Mutex<HashMap<NodeId, (u64, Instant)>>,
    options: Options,
    stop: AtomicBool,
    connections: AtomicUsize,
    _lock: LockedFile,
}

enum Listener {
    Tcp(TcpListener),
    /// With its socket file, which is removed when the listening thread ends.
    Unix(UnixListener, SocketFile),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, file) = self {
            file.remove();
        }
    }
}

impl Coordinator {
    /// Starts a coordinator at `HOST:PORT` (port 0: any) or `unix:PATH`.
    ///
    /// # Errors
    ///
    /// [`MapError::File`], [`MapError::Refused`], and errors of the map in the file
    pub fn start(listen: &Peer, mut options: Options) -> Result<Coordinator, MapError> {
        // If the path is a symbolic link, its target is replaced.
        options.file = options.file.canonicalize().unwrap_or(options.file);
        let lock = lock(&options.file)?;
        let map = load(&options.file)?;
        let (listener, address) = bind(listen, options.secret.is_some())?;
        let leases = map.nodes().iter().filter(|node| node.state == State::Up);
        let until = Instant::now() + options.lease;
        let leases = leases.map(|node| (node.id, (node.incarnation, until))).collect();
        let state = Arc::new(CoordinatorState {
            shared: Shared::new(map, None),
            leases: Mutex::new(leases),
            options,
            stop: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            _lock: lock,
        });
        let (one, two) = (state.clone(), state.clone());
        let threads =
            vec![std::thread::spawn(move || one.listen(&listener)), std::thread::spawn(move || two.expire())];
        Ok(Coordinator { state, address, threads })
    }

    /// Returns the address at which the coordinator listens.
    #[must_use]
    pub fn address(&self) -> &Peer {
        &self.address
    }

    /// Returns the current map.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.state.shared.map()
    }

    /// Waits until the map is newer than `epoch` or `timeout` is over, and returns the map.
    #[must_use]
    pub fn wait_newer(&self, epoch: u64, timeout: Duration) -> Arc<Map> {
        self.state.shared.wait_newer(epoch, timeout)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn file_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> MapError {
    let path = path.to_owned();
    move |source| MapError::File { action, path: path.clone(), source }
}

fn lock(file: &Path) -> Result<LockedFile, MapError> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    // NONBLOCK: opening a FIFO at this path must not block.
    let flags = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOFOLLOW).bits() as i32;
    let mut options = OpenOptions::new();
    let opened = options.create(true).truncate(false).write(true).custom_flags(flags).open(&path);
    let opened = opened.map_err(file_error("opening", &path))?;
    LockedFile::exclusive(opened).map_err(|_| {
        MapError::refused(format!(
            "another coordinator has {} open: there is one for each map",
            file.display()
        ))
    })
}

/// Reads the map of a file; returns an empty one if there is no file.
fn load(file: &Path) -> Result<Map, MapError> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Map::empty()),
        Err(error) => return Err(file_error("opening the map", file)(error)),
    };
    let mut bytes = Vec::new();
    opened
        .take(MAP_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(file_error("reading the map", file))?;
    Map::decode(&bytes)
}

/// Writes a map so that after a crash the file holds either this map or the one before, complete.
fn save(map: &Map, file: &Path) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut opened = own_file::open(&new, |start| start.starts_with(&MAGIC))?;
    opened.set_len(0)?;
    opened.write_all(&map.encode())?;
    opened.sync_all()?;
    std::fs::rename(&new, file)?;
    File::open(folder)?.sync_all()
}

fn bind(listen: &Peer, secret: bool) -> Result<(Listener, Peer), MapError> {
    let at =
        |source| MapError::File { action: "listening at", path: PathBuf::from(listen.to_string()), source };
    match listen {
        Peer::Unix(path) => {
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
                None,
            )
            .map_err(|errno| at(errno.into()))?;
            let file =
                SocketFile::listen(&socket, path, None, BACKLOG).map_err(|error| at(error.into_io()))?;
            Ok((Listener::Unix(socket.into(), file), listen.clone()))
        }
        Peer::Tcp(address) => {
            let listener = TcpListener::bind(address.as_str()).map_err(at)?;
            listener.set_nonblocking(true).map_err(at)?;
            let address: SocketAddr = listener.local_addr().map_err(at)?;
            if !address.ip().is_loopback() && !secret {
                return Err(MapError::refused(format!(
                    "{address} can be reached from other machines: give a key file (--key), or listen at 127.0.0.1"
                )));
            }
            Ok((Listener::Tcp(listener), Peer::Tcp(address.to_string())))
        }
    }
}

impl CoordinatorState {
    fn leases(&self) -> MutexGuard<'_, HashMap<NodeId, (u64, Instant)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn listen(self: &Arc<Self>, listener: &Listener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        while !self.stopped() {
            let served = match listener {
                Listener::Tcp(listener) => listener.accept().map(|(stream, _)| self.spawn(stream)),
                Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| self.spawn(stream)),
            };
            match served {
                Ok(thread) => threads.extend(thread),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            threads.retain(|thread| !thread.is_finished());
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn spawn<S: Conversation>(self: &Arc<Self>, stream: S) -> Option<JoinHandle<()>> {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let state = self.clone();
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            // After any error the connection is closed, which the other side sees.
            let _ = state.serve(stream);
            state.connections.fetch_sub(1, Ordering::Relaxed);
        });
        thread.ok()
    }

    fn serve<S: Conversation>(&self, stream: S) -> io::Result<()> {
        stream.prepare()?;
        let mut frames = Frames::greet(stream, Protocol::Map, self.options.secret.as_ref(), Side::Server)?;
        let mut idle_since = Instant::now();
        while !self.stopped() {
            if !frames.has_arrived() && !frames.stream().readable(Duration::from_millis(100))? {
                if idle_since.elapsed() > IDLE_TIMEOUT {
                    return Ok(());
                }
                continue;
            }
            let Ok(request) = Request::decode(&frames.receive()?) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let answer = match self.answer(&request) {
                Ok(answer) => answer,
                Err(MapError::LeaseLost { .. }) => Answer::LeaseLost,
                Err(error) => Answer::Refused(error.to_string()),
            };
            frames.send(&answer.encode())?;
            idle_since = Instant::now();
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> Result<Answer, MapError> {
        match request {
            Request::Read => Ok(Answer::Map((*self.shared.map()).clone(), 0, 0)),
            Request::Wait(epoch, wait_ms) => {
                let until = Instant::now() + Duration::from_millis(*wait_ms).min(WAIT_MAX);
                loop {
                    let left = until.saturating_duration_since(Instant::now());
                    let map = self.shared.wait_newer(*epoch, left.min(Duration::from_millis(100)));
                    if map.epoch() > *epoch {
                        return Ok(Answer::Map((*map).clone(), 0, 0));
                    }
                    if left.is_zero() || self.stopped() {
                        return Ok(Answer::Nothing);
                    }
                }
            }
            Request::Join(join) => self.join(join),
            Request::Renew(node, incarnation) => self.renew(*node, *incarnation),
            Request::Order(order) => {
                let mut leases = self.leases();
                let (map, number) = order.carry_out(&self.shared.map())?;
                self.store_and_publish(map.clone())?;
                if let Order::Leave(node, _) = order {
                    leases.remove(node);
                }
                Ok(Answer::Map(map, number, 0))
            }
        }
    }

    /// Stores a map and publishes it. The caller holds the lock of the leases, so changes happen one at a
    /// time.
    fn store_and_publish(&self, map: Map) -> Result<(), MapError> {
        if map.epoch() == self.shared.map().epoch() {
            return Ok(());
        }
        save(&map, &self.options.file).map_err(file_error("writing the map", &self.options.file))?;
        self.shared.publish(map);
        Ok(())
    }

    fn join(&self, join: &Join) -> Result<Answer, MapError> {
        let mut leases = self.leases();
        let (map, id) = self.shared.map().join(join)?;
        self.store_and_publish(map.clone())?;
        leases.insert(id, (join.incarnation, Instant::now() + self.options.lease));
        Ok(Answer::Map(map, id.0.into(), self.options.lease.as_millis() as u64))
    }

    fn renew(&self, node: NodeId, incarnation: u64) -> Result<Answer, MapError> {
        match self.leases().get_mut(&node) {
            Some((of, until)) if *of == incarnation => {
                *until = Instant::now() + self.options.lease;
                Ok(Answer::Nothing)
            }
            _ => Err(MapError::LeaseLost { node: node.to_string() }),
        }
    }

    /// Marks the nodes down whose leases have run out.
    fn expire(&self) {
        let pause = (self.options.lease / 20).clamp(Duration::from_millis(5), Duration::from_millis(200));
        while !self.stopped() {
            std::thread::sleep(pause);
            let mut leases = self.leases();
            let now = Instant::now();
            let over: Vec<(NodeId, u64)> = leases
                .iter()
                .filter(|(_, (_, until))| *until < now)
                .map(|(id, (of, _))| (*id, *of))
                .collect();
            for (id, incarnation) in over {
                // If the map cannot be written the change is tried again; until then it is not published.
                let kept = self.shared.map().down(id, incarnation).map(|map| self.store_and_publish(map));
                if !matches!(kept, Ok(Err(_))) {
                    leases.remove(&id);
                }
            }
        }
    }
}

/// A connection over TCP or a Unix socket.
trait Conversation: Read + Write + Send + 'static {
    fn prepare(&self) -> io::Result<()>;
    fn readable(&self, timeout: Duration) -> io::Result<bool>;
}

fn poll(stream: &impl std::os::fd::AsFd, timeout: Duration) -> io::Result<bool> {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    let mut fds = [rustix::event::PollFd::new(stream, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Conversation for TcpStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(Duration::from_secs(5)))?;
        self.set_write_timeout(Some(Duration::from_secs(5)))
    }

    fn readable(&self, timeout: Duration) -> io::Result<bool> {
        poll(self, timeout)
    }
}

impl Conversation for UnixStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(Some(Duration::from_secs(5)))?;
        self.set_write_timeout(Some(Duration::from_secs(5)))
    }

    fn readable(&self, timeout: Duration) -> io::Result<bool> {
        poll(self, timeout)
    }
}
