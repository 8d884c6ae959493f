// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backup's side: it connects to the primary, takes over its state and each record, and says what it has.
//!
//! - **Flow** hello ─▶ snapshot ─▶ [`Change::Replica`]: from here on the copy has a number ─▶ records, each carried out as a log's start would, and
//!   logged, before they are acknowledged
//! - **Order** the connection is closed before this process asks for the node ([`follow`] has returned then)
//! - **Peer** only a process with the nodes' key can be the primary; still each entry is checked before it is carried out
//! - **Not here** packets of clients: [`Answerer`] tells them which node is the primary, and passes on the reads that may be stale (`stale`)

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use memlift_spec::formats::packet::{MAP_BACKUP, PACKET_HEADER_BYTES, PACKET_MAC_BYTES};
use rustix::event::{PollFd, PollFlags, poll};

use super::message::{FromBackup, FromPrimary, VERSION};
use super::stale::StaleReads;
use crate::map::frame::{Frames, Protocol, Side};
use crate::map::{ADDRESS_END, Entry as MapEntry, Secret, Shared, State};
use crate::memory::AllocatorState;
use crate::node::Node;
use crate::node::clock::Clock;
use crate::node::log::{Change, Durability, Entry, RangeStep};
use crate::node::shard::is_stale_read;
use crate::wire::{FLAG_FORWARDED, FLAG_RELAY, Header, Keys, Kind, PACKET_BYTES_MAX, Senders, Status};

/// Longest entry: an allocator's data about all addresses.
const ENTRY_BYTES_MAX: usize = 1 << 31;
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait for room on the disk of the log.
const ROOM: Duration = Duration::from_secs(1);

/// Data of a process that asks the primary to be its backup.
#[derive(Debug)]
pub(in crate::node) struct Following<'f> {
    pub name: &'f str,
    /// Number of the new copy.
    pub replica: u64,
    /// Address at which clients reach this process.
    pub address: SocketAddr,
    /// Bytes of memory of this process.
    pub bytes: u64,
    pub secret: Option<&'f Secret>,
    /// Epoch of the copies that etcd had last: a primary of an older one is refused.
    pub epoch: u64,
    /// Clock of the newest record of the copy.
    pub clock: &'f Clock,
}

/// Step of a copy, for the caller of [`follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Step {
    /// The primary has taken this process, and sends its state.
    Begun,
    /// The copy is complete.
    Complete,
    /// etcd lists this process, which has every record up to there.
    Listed,
}

/// Reason that a process follows its primary no more.
#[derive(Debug)]
pub(in crate::node) enum FollowError {
    /// The primary does not take this process as its backup, for the reason in the text.
    Refused(String),
    /// The connection has ended, or the primary breaks the rules.
    Broken(io::Error),
}

impl From<io::Error> for FollowError {
    fn from(error: io::Error) -> FollowError {
        FollowError::Broken(error)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Connects to the primary.
pub(in crate::node) fn connect(primary: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&primary, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Ends a connection that another thread follows.
pub(in crate::node) fn end(stream: &TcpStream) {
    // Fails only if the connection has ended already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Follows the primary until the connection ends, and returns why it ended. `node` must be empty. `told` hears each step.
pub(in crate::node) fn follow(
    node: &Node,
    stream: &TcpStream,
    following: &Following<'_>,
    told: &mut dyn FnMut(Step),
) -> Result<(), FollowError> {
    let mut frames = Frames::greet(stream.try_clone()?, Protocol::Replica, following.secret, Side::Client)?;
    let syncs = node.writer().log.as_ref().is_some_and(|log| log.durability == Durability::Disk);
    let hello = FromBackup::Hello {
        version: VERSION,
        replica: following.replica,
        syncs,
        bytes: following.bytes,
        name: following.name.to_owned(),
        address: following.address.to_string(),
    };
    frames.send(&hello.encode())?;
    let receive = |frames: &mut Frames<TcpStream>| {
        FromPrimary::decode(&frames.receive()?).ok_or_else(|| broken("a message of a primary"))
    };
    let (mut epoch, mut has) = match receive(&mut frames)? {
        FromPrimary::Begin { epoch, first, .. } if epoch >= following.epoch => (epoch, first),
        FromPrimary::Begin { .. } => return Err(broken("a primary of the newest epoch").into()),
        FromPrimary::Refused(why) => return Err(FollowError::Refused(why)),
        _ => return Err(broken("the begin of a copy").into()),
    };
    told(Step::Begun);
    let mut taker =
        Taker { node, clock: following.clock, most: following.bytes, given: 0, bytes: Vec::new() };
    let (mut is_complete, mut is_listed) = (false, false);
    loop {
        match receive(&mut frames)? {
            FromPrimary::Snapshot(bytes) if !is_complete => {
                taker.take(&bytes)?;
                frames.send(&FromBackup::Has(has).encode())?;
            }
            FromPrimary::Complete if !is_complete && taker.bytes.is_empty() => {
                taker.number(following.replica)?;
                is_complete = true;
                told(Step::Complete);
                frames.send(&FromBackup::Complete.encode())?;
                frames.send(&FromBackup::Has(has).encode())?;
            }
            FromPrimary::Records { epoch: of, bytes } if is_complete => {
                if of < epoch {
                    return Err(broken("records of the newest epoch").into());
                }
                let is_newer = of > epoch;
                epoch = of;
                has += taker.take(&bytes)?;
                frames.send(&FromBackup::Has(has).encode())?;
                // On one connection an epoch begins only when this process is listed.
                if is_newer && !is_listed {
                    is_listed = true;
                    told(Step::Listed);
                }
            }
            _ => return Err(broken("a message of a primary at this place").into()),
        }
    }
}

/// Takes entries over into the node.
struct Taker<'n> {
    node: &'n Node,
    clock: &'n Clock,
    /// Bytes of memory that the node may map, and has mapped.
    most: u64,
    given: u64,
    /// Received bytes that are no whole entry yet.
    bytes: Vec<u8>,
}

impl Taker<'_> {
    /// Takes over the entries that are whole now, and logs them; returns their number.
    fn take(&mut self, bytes: &[u8]) -> io::Result<u64> {
        self.bytes.extend_from_slice(bytes);
        let mut rest = &self.bytes[..];
        let mut entries = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > ENTRY_BYTES_MAX {
                return Err(broken("an entry"));
            }
            let Some((entry, behind)) = behind.split_at_checked(length) else { break };
            entries.push(Entry::read(entry).ok_or_else(|| broken("an entry"))?);
            rest = behind;
        }
        let used = self.bytes.len() - rest.len();
        self.bytes.drain(..used);
        let count = entries.len() as u64;
        let core = &self.node.core;
        let mut writer = self.node.writer();
        let mut registry = core.registry.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            if !is_plausible(&entry.change) {
                return Err(broken("an entry of a replicated node"));
            }
            match &entry.change {
                Change::RangeStep(RangeStep::Reserve | RangeStep::Grant, _, bytes) => {
                    self.given = self.given.saturating_add(*bytes);
                    if self.given > self.most {
                        return Err(broken("as much memory as this process has"));
                    }
                }
                Change::State(part, _) => {
                    let part = AllocatorState::decode(part, 0, ADDRESS_END).map_err(broken)?;
                    if !part.pages().all(|(base, bytes)| core.memory.holds_all(base, bytes)) {
                        return Err(broken("an allocator of memory that is there"));
                    }
                }
                // Before the records behind it, which may use memory again that was unlinked before.
                Change::Clock(clock) => self.clock.raise(*clock),
                _ => {}
            }
            let again = entry.clone();
            writer
                .again(again, &mut registry)
                .map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            // Counted when it was carried out.
            writer.queue(entry);
        }
        drop((registry, writer));
        self.commit()?;
        Ok(count)
    }

    /// Notes the number of the copy, which is complete.
    fn number(&self, replica: u64) -> io::Result<()> {
        let mut writer = self.node.writer();
        writer.number(replica);
        drop(writer);
        self.commit()
    }

    fn commit(&self) -> io::Result<()> {
        let until = Instant::now() + ROOM;
        loop {
            let committed = self.node.writer().commit();
            match committed.map_err(|error| io::Error::other(error.to_string()))? {
                true => return Ok(()),
                false if Instant::now() >= until => return Err(io::ErrorKind::StorageFull.into()),
                false => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Returns true for changes that a replicated node makes, about addresses that can be.
fn is_plausible(change: &Change) -> bool {
    let within = |address: u64, bytes: u64| address.checked_add(bytes).is_some_and(|end| end <= ADDRESS_END);
    match change {
        Change::Write(address, bytes) => within(*address, bytes.len() as u64),
        Change::Allocate(_, bytes, address) | Change::Free(_, address, bytes) => within(*address, *bytes),
        Change::Place(_, bytes, addresses, _) => addresses.iter().all(|address| within(*address, *bytes)),
        Change::Retire(_, blocks) => blocks.iter().all(|(address, bytes)| within(*address, *bytes)),
        Change::Ripe(blocks) => blocks.iter().all(|(_, address, bytes)| within(*address, *bytes)),
        Change::RangeStep(step, base, bytes) => {
            matches!(step, RangeStep::Grant | RangeStep::Reserve | RangeStep::Keep) && within(*base, *bytes)
        }
        // Of ranges that move, of a log's start, and of this copy itself.
        Change::Take(..) | Change::Start(..) | Change::Replica(..) => false,
        _ => true,
    }
}

/// Answers clients of a process that is no primary: it says where the node is, and answers reads that may be stale.
#[derive(Debug)]
pub(in crate::node) struct Answerer<'a> {
    pub socket: &'a UdpSocket,
    pub keys: &'a Keys,
    pub shared: &'a Shared,
    pub name: &'a str,
    /// Reads of the copy that this process has, if it is a whole one.
    pub reads: &'a StaleReads,
}

impl Answerer<'_> {
    /// Answers until `stop`.
    pub(in crate::node) fn serve(&self, stop: &AtomicBool) {
        let identity = memlift_ground::region::random();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut nonce = now.as_nanos() as u64;
        let mut senders = Senders::new(1 << 16);
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        while !stop.load(Ordering::Relaxed) {
            let mut descriptors = [PollFd::new(self.socket, PollFlags::IN)];
            let pause = if self.reads.are_under_way() { Duration::ZERO } else { Duration::from_millis(20) };
            let pause = crate::transport::udp::timespec(pause);
            // An error is one of the next call, too.
            let _ = poll(&mut descriptors, Some(&pause));
            for _ in 0..64 {
                // The socket does not block: its file is that of a transport.
                let Ok((count, from)) = self.socket.recv_from(&mut bytes) else { break };
                let Ok(packet) = self.keys.open(&bytes[..count]) else { continue };
                let header = packet.header;
                let is_new =
                    self.keys.is_empty() || senders.first(header.tenant, header.sender, header.nonce);
                if !is_new || !header.kind.is_request() || header.has(FLAG_FORWARDED | FLAG_RELAY) {
                    continue;
                }
                if is_stale_read(&header) {
                    self.reads.put(from, &bytes[..count]);
                    continue;
                }
                let Some((answer, body)) = self.answer(&header) else { continue };
                nonce += 1;
                let answer = Header { sender: identity, nonce, ..answer };
                let mut packet = Vec::with_capacity(PACKET_HEADER_BYTES + body.len() + PACKET_MAC_BYTES);
                self.keys.seal(&answer, &body, &mut packet);
                // A lost answer is asked for again.
                let _ = self.socket.send_to(&packet, from);
            }
            self.reads.turn(self.socket);
        }
    }

    fn answer(&self, header: &Header) -> Option<(Header, Vec<u8>)> {
        // A client may ask for more while the node is away, and this process may be the next primary: it gets no answer until then.
        if header.kind != Kind::Map {
            return None;
        }
        let map = self.shared.map();
        // While nobody serves the node, clients wait: an answer that it is down would end their reads.
        let node = map.node_named(self.name).filter(|node| node.state == State::Up)?;
        // Without an address of its own the question is where the node is.
        let own =
            map.ranges().iter().find(|range| range.owner == Some(node.id)).map_or(0, |range| range.base);
        let address = if header.address == 0 { own } else { header.address };
        let entry = MapEntry::of(&map, address).map(|entry| entry.encode()).unwrap_or_default();
        let answer = Header {
            address: 0,
            iterations: MAP_BACKUP,
            epoch: map.epoch(),
            cluster: map.cluster(),
            // The clock of the primary may be ahead of it, and clients take the greater one.
            session: u64::from(u32::try_from(unix_s()).unwrap_or(u32::MAX)),
            ..header.answer(Status::Done)
        };
        Some((answer, entry))
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns true while the map shows this start of the node as the one that is up.
pub(in crate::node) fn is_up(shared: &Shared, name: &str, incarnation: u64) -> bool {
    let map = shared.map();
    map.node_named(name).is_some_and(|node| node.incarnation == incarnation && node.state == State::Up)
}
