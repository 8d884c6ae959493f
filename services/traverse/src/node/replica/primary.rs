// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The primary's side: it copies the node to a process that asks for it, then sends it each record.
//!
//! - **Flow** a connection ─▶ hello ─▶ snapshot and records, without anybody waiting ─▶ answers wait for the backup ([`Gate::hold`]) ─▶ it has all
//!   records ─▶ it is listed in etcd ─▶ … ─▶ the connection ends, or the backup is silent ─▶ etcd lists none ─▶ answers pass again
//! - **Order** answers wait from before the request to list the backup is sent until after the answer that none is listed has come. What
//!   became of a request is read from etcd before anything passes
//! - **Owner** one thread accepts connections, and serves one at a time; the others wait until that one ends. Two more threads per connection send
//!   and receive, where the shards do not do so themselves ([`Gate::push`], [`Gate::sleep`])
//! - **Peer** everything that the other side sends is checked; a peer that breaks the rules is cut off

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::message::{CHUNK_BYTES, FromBackup, FromPrimary, VERSION, address_of};
use crate::map::frame::{Frames, Protocol, Side};
use crate::map::{Address, BackupOrder, MapError, Member, Secret};
use crate::node::gate::{Gate, Inlet, Outlet};
use crate::node::log::Durability;
use crate::node::snapshot::Snapshot;
use crate::node::{Node, locked};

/// Pause between two looks at a state that another thread changes.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause before a request to etcd is made again.
const AGAIN: Duration = Duration::from_millis(100);
/// A backup that lacks at most this many records is nearly there: answers may wait for it.
const NEARLY: u64 = 1000;
/// Longest time for which records are sent to a backup that falls back, before answers wait for it.
const CATCH_UP: Duration = Duration::from_secs(30);

/// Settings of a primary.
#[derive(Debug)]
pub(in crate::node) struct PrimaryOptions {
    pub name: String,
    /// Incarnation and number of this copy.
    pub primary: (u64, u64),
    /// Addresses at which this process listens.
    pub addresses: Vec<Address>,
    pub secret: Option<Secret>,
    /// A backup that says nothing for this long is given up.
    pub patience: Duration,
}

/// State of a node's backup, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum BackupState {
    /// There is none.
    #[default]
    None,
    /// There is none, and the process that asked last was refused: its address, and the reason.
    Refused(String, String),
    /// A process at this address gets a copy.
    Copying(SocketAddr),
    /// The process at this address has all that was answered.
    Listed(SocketAddr),
    /// The backup is gone, and answers wait until etcd lists none.
    Dropping,
}

/// The threads of a primary. Dropping it ends them; what answers wait for is not changed by that.
#[derive(Debug)]
pub(in crate::node) struct Primary {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    node: Node,
    member: Arc<Member>,
    gate: Arc<Gate>,
    options: PrimaryOptions,
    /// Epoch in which the copies were listed last.
    epoch: Arc<AtomicU64>,
    state: Mutex<BackupState>,
    stop: AtomicBool,
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Primary {
    pub(in crate::node) fn start(
        node: Node,
        member: Arc<Member>,
        gate: Arc<Gate>,
        listener: TcpListener,
        options: PrimaryOptions,
    ) -> io::Result<Primary> {
        listener.set_nonblocking(true)?;
        let epoch = Arc::new(AtomicU64::new(member.shared().map().epoch()));
        let (state, stop) = (Mutex::default(), AtomicBool::new(false));
        let inner = Arc::new(Inner { node, member, gate, options, epoch, state, stop });
        let runs = inner.clone();
        let run = move || {
            while !runs.is_over() {
                match listener.accept() {
                    // After any error the connection is closed, which the other side sees.
                    Ok((stream, from)) => drop(runs.serve(stream, from)),
                    Err(_) => std::thread::sleep(PAUSE * 4),
                }
            }
        };
        let thread = std::thread::Builder::new().name("memlift-replica".to_owned()).spawn(run)?;
        Ok(Primary { inner, thread: Some(thread) })
    }

    pub(in crate::node) fn state(&self) -> BackupState {
        locked(&self.inner.state).clone()
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // The join fails only if the thread panicked; then nothing passes the gate that must not.
            let _ = thread.join();
        }
    }
}

/// State that the threads of one connection share.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Number of messages with records before the first one of this connection.
    first_message: u64,
    /// Records that the backup has.
    has: AtomicU64,
    /// True once it has the whole snapshot.
    is_complete: AtomicBool,
    is_over: AtomicBool,
}

impl Connection {
    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Fails only if the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The connection's sending half, once the snapshot is sent.
#[derive(Debug)]
struct Records {
    frames: Frames<TcpStream>,
    epoch: Arc<AtomicU64>,
}

impl Outlet for Records {
    fn send(&mut self, gate: &Gate, records: &[u8]) -> io::Result<()> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let none = records.is_empty().then_some(records);
        for bytes in records.chunks(CHUNK_BYTES).chain(none) {
            gate.begin_message();
            let sent = self.frames.send(&FromPrimary::Records { epoch, bytes: bytes.to_vec() }.encode());
            if sent.is_err() {
                // The threads of the connection end, whoever sent this.
                let _ = self.frames.stream().shutdown(Shutdown::Both);
                return sent;
            }
        }
        Ok(())
    }
}

/// The connection's receiving half.
#[derive(Debug)]
struct Answers {
    frames: Frames<TcpStream>,
    connection: Arc<Connection>,
    /// Records that the backup has.
    has: u64,
    /// Messages with records that it has answered: each by one number of records. The one before, at the end of the snapshot, counts as 0.
    answered: Option<u64>,
    patience: Duration,
    /// Time of the last message.
    heard: Instant,
}

impl Inlet for Answers {
    fn receive(&mut self, gate: &Gate, at_most: Duration) -> io::Result<()> {
        let mut received = self.frames.receive_within(at_most)?;
        if received.is_none() && self.heard.elapsed() >= self.patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
        while let Some(bytes) = received {
            self.heard = Instant::now();
            self.note(gate, &bytes)?;
            received = match self.frames.has_arrived() {
                true => self.frames.receive_within(Duration::ZERO)?,
                false => None,
            };
        }
        Ok(())
    }
}

impl Answers {
    fn note(&mut self, gate: &Gate, bytes: &[u8]) -> io::Result<()> {
        let connection = &self.connection;
        let records = match FromBackup::decode(bytes) {
            Some(FromBackup::Has(records)) => records,
            Some(FromBackup::Complete) => {
                connection.is_complete.store(true, Ordering::SeqCst);
                return Ok(());
            }
            _ => return Err(broken("a number of records")),
        };
        if records < self.has || records > gate.position() {
            return Err(broken("records that it can have"));
        }
        self.has = records;
        connection.has.store(records, Ordering::SeqCst);
        gate.acknowledge(records);
        if connection.is_complete.load(Ordering::SeqCst) {
            let count = self.answered.map_or(0, |count| count + 1);
            if connection.first_message + count > gate.messages() {
                return Err(broken("an answer to a message"));
            }
            gate.confirm(connection.first_message + count);
            self.answered = Some(count);
        }
        Ok(())
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.gate.is_replaced()
    }

    fn show(&self, state: BackupState) {
        *locked(&self.state) = state;
    }

    /// Returns the reason that a process cannot be the backup, for people to read.
    fn unfit(&self, hello: &FromBackup) -> Option<String> {
        let FromBackup::Hello { version, syncs, bytes, name, address, .. } = hello else {
            return Some("it says no hello".to_owned());
        };
        let writer = self.node.writer();
        let durability = writer.log.as_ref().map(|log| log.durability);
        let needed: u64 = writer.stretches().iter().map(|(_, bytes)| bytes).sum();
        drop(writer);
        if *version != VERSION {
            return Some(format!("version {version} of the replica's messages, here it is {VERSION}"));
        }
        if *name != self.options.name {
            return Some(format!("here is node {}", self.options.name));
        }
        if durability == Some(Durability::Disk) && !syncs {
            return Some("the primary has --durability disk: give the backup a log and the same".to_owned());
        }
        if *bytes < needed {
            return Some(format!("the node has {needed} bytes of memory, the backup {bytes}"));
        }
        let address = address_of(address);
        if address.is_none_or(|address| self.options.addresses.contains(&address)) {
            return Some("clients cannot reach it at the address that it names".to_owned());
        }
        None
    }

    fn serve(&self, stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.options.patience))?;
        stream.set_write_timeout(Some(self.options.patience))?;
        let secret = self.options.secret.as_ref();
        let wrong = |error: io::Error| {
            // A connection that ended, such as one of a port scanner, is not worth a word.
            if error.kind() == io::ErrorKind::InvalidData {
                self.show(BackupState::Refused(from.ip().to_string(), error.to_string()));
            }
            error
        };
        let mut frames =
            Frames::greet(stream.try_clone()?, Protocol::Replica, secret, Side::Server).map_err(wrong)?;
        let received = frames.receive().map_err(|error| {
            // With another key, the other side finds out by this frame.
            if error.kind() == io::ErrorKind::InvalidData {
                let _ = frames.send(&FromPrimary::Refused(error.to_string()).encode());
            }
            wrong(error)
        })?;
        let hello = FromBackup::decode(&received).ok_or_else(|| wrong(broken("a hello")))?;
        if let Some(why) = self.unfit(&hello) {
            let at = match hello {
                FromBackup::Hello { address, .. } => address,
                _ => from.ip().to_string(),
            };
            frames.send(&FromPrimary::Refused(why.clone()).encode())?;
            self.show(BackupState::Refused(at, why));
            return Ok(());
        }
        let FromBackup::Hello { replica, address, .. } = hello else { return Ok(()) };
        let (mut out, back) = frames.split()?;
        let writer = self.node.writer();
        let snapshot = Snapshot::of(&writer);
        let (first, cluster) = (self.gate.open(), writer.cluster);
        drop(writer);
        let connection = Arc::new(Connection {
            stream,
            first_message: self.gate.messages(),
            has: AtomicU64::new(first),
            is_complete: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        self.show(BackupState::Copying(from));
        std::thread::scope(|scope| {
            let connection = &connection;
            let begin = FromPrimary::Begin { epoch: self.epoch.load(Ordering::SeqCst), cluster, first };
            scope.spawn(move || {
                // After any error the connection ends, and the other threads with it.
                let _ = out
                    .send(&begin.encode())
                    .and_then(|()| self.send_snapshot(&mut out, snapshot))
                    .and_then(|()| self.send_records(out, connection));
                connection.end();
            });
            scope.spawn(move || {
                let _ = self.receive(back, connection, first);
                connection.end();
            });
            let was_held = self.list_when_there(connection, replica, &address, from);
            connection.end();
            self.gate.close();
            if was_held {
                self.drop_backup();
            }
        });
        self.show(BackupState::None);
        Ok(())
    }

    fn send_snapshot(&self, out: &mut Frames<TcpStream>, snapshot: Snapshot) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.pass_on(&self.node.core, (0, 0), &mut |entry| {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            entry.write(&mut bytes);
            let length = (bytes.len() - start - 4) as u32;
            bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
            if bytes.len() < CHUNK_BYTES {
                return Ok(());
            }
            if self.is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            for chunk in std::mem::take(&mut bytes).chunks(CHUNK_BYTES) {
                out.send(&FromPrimary::Snapshot(chunk.to_vec()).encode())?;
            }
            Ok(())
        })?;
        for chunk in bytes.chunks(CHUNK_BYTES) {
            out.send(&FromPrimary::Snapshot(chunk.to_vec()).encode())?;
        }
        out.send(&FromPrimary::Complete.encode())
    }

    fn send_records(&self, frames: Frames<TcpStream>, connection: &Arc<Connection>) -> io::Result<()> {
        self.gate.connect(Box::new(Records { frames, epoch: self.epoch.clone() }));
        // A message without records says that this side is there, and asks the backup for the same.
        let beat = self.options.patience / 4;
        while !connection.is_over.load(Ordering::SeqCst) {
            self.gate.send()?;
            let Some(is_idle) = self.gate.wait(beat) else { break };
            if is_idle {
                // Logs the clock, so that the backup knows how new its copy is. A log that fails stops the node at its next change.
                let _ = self.node.writer().commit();
            }
        }
        Ok(())
    }

    fn receive(&self, frames: Frames<TcpStream>, connection: &Arc<Connection>, first: u64) -> io::Result<()> {
        self.gate.listen(Box::new(Answers {
            frames,
            connection: Arc::clone(connection),
            has: first,
            answered: None,
            patience: self.options.patience,
            heard: Instant::now(),
        }));
        while !connection.is_over.load(Ordering::SeqCst) {
            self.gate.receive(self.options.patience)?;
        }
        Ok(())
    }

    /// Waits until the backup has nearly all records, lists it, and waits until the connection ends. Returns true if answers wait for the
    /// backup now.
    fn list_when_there(
        &self,
        connection: &Arc<Connection>,
        replica: u64,
        address: &str,
        from: SocketAddr,
    ) -> bool {
        let goes_on = || !connection.is_over.load(Ordering::SeqCst) && !self.is_over();
        let has = || connection.has.load(Ordering::SeqCst);
        let mut caught_up_by = None;
        while goes_on() {
            if connection.is_complete.load(Ordering::SeqCst) {
                let by = *caught_up_by.get_or_insert_with(|| Instant::now() + CATCH_UP);
                if self.gate.position().saturating_sub(has()) <= NEARLY || Instant::now() >= by {
                    break;
                }
            }
            std::thread::sleep(PAUSE);
        }
        if !goes_on() {
            return false;
        }
        let all = {
            let _writer = self.node.writer();
            self.gate.hold(has())
        };
        self.gate.acknowledge(has());
        self.gate.push();
        while goes_on() && has() < all {
            std::thread::sleep(PAUSE / 5);
        }
        if !goes_on() {
            return true;
        }
        let mut addresses = self.options.addresses.clone();
        addresses.truncate(crate::map::ADDRESSES_MAX - 1);
        addresses.extend(address_of(address));
        if self.order(replica, addresses).is_err() {
            return true;
        }
        self.show(BackupState::Listed(from));
        while goes_on() {
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn order(&self, backup: u64, addresses: Vec<Address>) -> Result<(), MapError> {
        let (name, primary) = (self.options.name.clone(), self.options.primary);
        let order = BackupOrder { name, primary, backup, addresses };
        match self.member.set_backup(&order) {
            Ok(replicas) => {
                self.epoch.store(replicas.epoch, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                if let MapError::Replaced { .. } = error {
                    self.gate.replace();
                }
                Err(error)
            }
        }
    }

    /// Has etcd list no backup, however long that takes; then answers pass.
    fn drop_backup(&self) {
        self.show(BackupState::Dropping);
        while !self.is_over() {
            if self.order(0, self.options.addresses.clone()).is_ok() {
                self.gate.release();
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }
}
