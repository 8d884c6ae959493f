// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reading side: a session with an arena, leases, and subscriptions.
//!
//! - **Flow** handle ─▶ this process's session with that arena, opened at the first need ─▶ lease ─▶ view; the last view ends the lease.
//!   Neither takes a system call
//! - **Order** a lease is stored before the generation is looked at ([`super::layout`])
//! - **Owner** a view keeps the mapping and the lease. A forked child has its parent's views in front of it, too: leases that exist at a
//!   fork therefore last until parent and child have both let go of that session. Both open a new one for what they take later
//! - **Not here** trust: what the arena says is checked against the mapped memory. Its process may change a value under a view

use super::handle::{BlockId, Handle};
use super::layout::{
    BLOCKS_MAX, BYTES_AT, CLOSED_AT, ENTRIES_AT, ENTRY_BYTES, GENERATION_MAX, Lease, MAGIC, OFFSET_AT,
    VERSION, WAITING_AT, directory_bytes, table_bytes,
};
use super::packet::{
    self, DESCRIPTORS, FOLLOWS, NEXT, PUBLISHED, Packet, RELEASE, ROOM, SUBSCRIBE, TAKEN, Welcome,
};
use crate::address::Address;
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork;
use crate::handshake::{self, Opening, Received};
use crate::message::Shape;
use crate::payload::Payload;
use crate::rank::{Lock, Rank, holds_none};
use crate::row::ArenaRow;
use memlift_ground::region::{Access, Region, RegionOffset};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How many forks may lie between the process that first read from an arena and one that reads.
const FORKS: usize = 16;

/// Sessions of this process, by the number of the arena.
type Sessions = HashMap<[u64; 2], Arc<Session>>;

/// One registry for each generation of forks: a child must not wait for a lock that its parent held when it forked.
static SESSIONS: [OnceLock<Lock<Sessions>>; FORKS] = [const { OnceLock::new() }; FORKS];

/// A session with an arena.
struct Session {
    arena: [u64; 2],
    /// User of the arena's process.
    uid: u32,
    socket: OwnedFd,
    directory: Region,
    data: Arc<Region>,
    table: Region,
    blocks: u32,
    /// Generation of forks of the process that opened it.
    generation: u32,
    leases: Lock<Leases>,
    row: ArenaRow,
}

/// Views of this session.
struct Leases {
    /// Value and number of views, by block.
    held: HashMap<u32, (u64, u32)>,
    /// Forks of this process when the session began, or when it last had no lease.
    forks: u32,
    /// Some lease lasts as long as the session: a child may view its value.
    lasting: bool,
}

/// A view's right to its memory.
struct View {
    session: Arc<Session>,
    id: BlockId,
}

impl Drop for View {
    fn drop(&mut self) {
        self.session.end(self.id);
    }
}

/// Takes a value: a read-only view of it, where it lies. It may be dropped on any thread. `opening` limits the opening of the
/// session with its arena, which the first value needs.
///
/// # Errors
///
/// [`Error::Expired`] if the value is gone; [`Error::ServerUnavailable`] if its arena is; [`Error::Closed`] after the arena was closed;
/// [`Error::Refused`], [`Error::DeadlineExceeded`], [`Error::PeerFault`].
pub fn get(handle: &Handle, opening: impl Into<Opening>) -> Result<Payload, Error> {
    value(&Session::of(handle, &opening.into())?, handle)
}

/// Does the same if this process has a session with the value's arena, and waits for nobody. `None`: it has none.
///
/// # Errors
///
/// [`Error::Expired`], [`Error::Closed`], [`Error::PeerFault`], as [`get`].
pub fn get_now(handle: &Handle) -> Result<Option<Payload>, Error> {
    Session::known(handle)?.map(|session| value(&session, handle)).transpose()
}

fn value(session: &Arc<Session>, handle: &Handle) -> Result<Payload, Error> {
    let view = session.take(handle.id)?;
    match view.bytes() == handle.bytes {
        true => Ok(view),
        false => Err(Error::peer_fault("a handle of a value of another length")),
    }
}

/// Tells the arena that a value is not needed any more. Whoever has a view keeps it. A value that is gone, or whose arena is, needs nothing.
///
/// # Errors
///
/// [`Error::Refused`], [`Error::DeadlineExceeded`], [`Error::PeerFault`] of opening the session with its arena.
pub fn release(handle: &Handle, opening: impl Into<Opening>) -> Result<(), Error> {
    let opening = opening.into();
    let session = match Session::of(handle, &opening) {
        Err(Error::ServerUnavailable { .. } | Error::Expired { .. }) => return Ok(()),
        session => session?,
    };
    let packet = Packet { block: handle.id.block, generation: handle.id.generation, ..Packet::new(RELEASE) };
    match handshake::send(&session.socket, &packet, &[]) {
        // The arena is gone, and the value with it as soon as nobody views it.
        Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
        Err(rustix::io::Errno::AGAIN) => {
            Err(Error::DeadlineExceeded { limit: opening.timeout.unwrap_or_default() })
        }
        Err(errno) => Err(Error::system("releasing a value of an arena")(errno)),
    }
}

impl Session {
    /// The sessions of this process, by arena.
    fn all() -> Result<&'static Lock<Sessions>, Error> {
        let registry = SESSIONS.get(fork::generation() as usize).ok_or(Error::Closed { what: "arena" })?;
        Ok(registry.get_or_init(|| Lock::new(Rank::ArenaSessions, HashMap::new())))
    }

    /// This process's session with the arena of a handle, if there is one.
    fn known(handle: &Handle) -> Result<Option<Arc<Session>>, Error> {
        fork::watch();
        let known = Session::all()?.with(|sessions| sessions.get(&handle.arena).map(Arc::clone));
        Ok(known.filter(|session| session.uid == handle.uid && session.is_usable()))
    }

    /// This process's session with the arena of a handle.
    fn of(handle: &Handle, opening: &Opening) -> Result<Arc<Session>, Error> {
        if let Some(session) = Session::known(handle)? {
            return Ok(session);
        }
        let session = Arc::new(Session::open(&handle.address, Some(handle.uid), opening)?);
        if session.arena != handle.arena {
            return Err(Error::Expired {
                what: format!("its arena has ended, and {} is another one now", handle.address),
            });
        }
        // Sessions with arenas that have ended go, unless there still is a view.
        let ended = Session::all()?.with(|sessions| {
            let ended: Vec<_> =
                sessions.values().filter(|session| session.has_hung_up()).map(|s| s.arena).collect();
            let mut out: Vec<_> = ended.iter().filter_map(|arena| sessions.remove(arena)).collect();
            out.extend(sessions.insert(session.arena, Arc::clone(&session)));
            out
        });
        drop(ended);
        Ok(session)
    }

    fn open(address: &Address, uid: Option<u32>, opening: &Opening) -> Result<Session, Error> {
        holds_none("connects to an arena");
        let patience = opening.begin();
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(Error::system("socket"))?;
        let own = rustix::process::getuid().as_raw();
        patience.connect(&socket, address, &address.socket_of(uid.unwrap_or(own))?)?;
        // Anybody can bind an abstract name, also one with another user in it.
        let peer = Peer::of(&socket)?;
        let expected = uid.unwrap_or(own);
        if peer.uid != expected && (uid.is_some() || matches!(address, Address::Abstract(_))) {
            return Err(Error::Refused {
                address: address.to_string(),
                reason: format!("it runs as user {}, not as {expected}", peer.uid),
            });
        }
        let received = patience.receive::<{ size_of::<Welcome>() }>(&socket)?;
        patience.end(&socket)?;
        let (welcome, descriptors) = match received {
            Received::Packet(bytes, length, descriptors) => {
                (packet::parse::<Welcome>(&bytes[..length])?, descriptors)
            }
            Received::Nothing | Received::HangUp => {
                return Err(Error::PeerDied { peer: "arena", doing: Some("opening the session") });
            }
        };
        if welcome.version != VERSION {
            return Err(Error::Refused {
                address: address.to_string(),
                reason: format!(
                    "it speaks version {} of the arena's protocol, and this one {VERSION}",
                    welcome.version
                ),
            });
        }
        if welcome.refused != 0 {
            return Err(Error::Refused { address: address.to_string(), reason: welcome.reason() });
        }
        if welcome.blocks == 0 || welcome.blocks > BLOCKS_MAX {
            return Err(Error::peer_fault(format!("an arena of {} blocks", welcome.blocks)));
        }
        let [data, directory, table] = handshake::expect::<DESCRIPTORS>(descriptors)?;
        let data = Region::from_fd(data, Access::ReadOnly, welcome.data_bytes)?;
        let mut directory = Region::from_fd(directory, Access::ReadOnly, directory_bytes(welcome.blocks))?;
        let mut table = Region::from_fd(table, Access::ReadWrite, table_bytes(welcome.blocks))?;
        // The mappings are enough. Only the data may be mapped once more, for a view that is written.
        drop((directory.take_fd(), table.take_fd()));
        if directory.whole().load_u64(0, Ordering::Acquire)? != MAGIC {
            return Err(Error::peer_fault("a directory that is none"));
        }
        Ok(Session {
            arena: welcome.id,
            uid: peer.uid,
            socket,
            directory,
            data: Arc::new(data),
            table,
            blocks: welcome.blocks,
            generation: fork::generation(),
            leases: Lock::new(
                Rank::ArenaLeases,
                Leases { held: HashMap::new(), forks: fork::forks(), lasting: false },
            ),
            row: ArenaRow::open(&address.to_string()),
        })
    }

    /// True if new leases may be taken in it: this process opened it, and has not forked while it had views.
    fn is_usable(&self) -> bool {
        self.generation == fork::generation()
            && self.leases.with(|leases| {
                if leases.held.is_empty() {
                    leases.forks = fork::forks();
                }
                leases.forks == fork::forks() && !leases.lasting
            })
    }

    fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok()
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// A word of the directory.
    fn directory(&self, at: u64, order: Ordering) -> u64 {
        self.directory.whole().load_u64(at, order).expect("the directory has its full length")
    }

    fn word(&self, block: u32) -> &AtomicU64 {
        self.table.layout(RegionOffset(u64::from(block) * 8)).expect("a table has a word for each block")
    }

    /// Takes a lease of a value, and gives a view.
    fn take(self: &Arc<Self>, id: BlockId) -> Result<Payload, Error> {
        let expired = |what: &str| Error::Expired { what: what.to_owned() };
        const GONE: &str = "it was released, taken as often as was said, or evicted";
        if id.block >= self.blocks || id.generation == 0 || id.generation > GENERATION_MAX {
            return Err(Error::peer_fault("a handle of a value that cannot be"));
        }
        let entry = ENTRIES_AT + u64::from(id.block) * ENTRY_BYTES;
        self.leases
            .with(|leases| {
                let (generation, views) = leases.held.get(&id.block).copied().unwrap_or((id.generation, 0));
                if generation != id.generation {
                    return Err(expired(GONE));
                }
                let word = self.word(id.block);
                let before = Lease::from_word(word.load(Ordering::Relaxed));
                let takes = if before.generation == id.generation { before.takes } else { 0 };
                let lease = Lease { takes: (takes + 1).min(Lease::TAKES_MAX), live: true, generation };
                word.store(lease.to_word(), Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if self.directory(entry, Ordering::SeqCst) != id.generation {
                    word.store(Lease { takes, live: views != 0, generation }.to_word(), Ordering::SeqCst);
                    return Err(match self.directory(CLOSED_AT, Ordering::Relaxed) {
                        0 => expired(GONE),
                        _ => Error::Closed { what: "arena" },
                    });
                }
                leases.held.insert(id.block, (generation, views + 1));
                Ok(())
            })
            .inspect_err(|_| self.tell_of_room())?;
        let view = View { session: Arc::clone(self), id };
        let [offset, bytes] = [OFFSET_AT, BYTES_AT].map(|at| self.directory(entry + at, Ordering::Relaxed));
        if bytes == 0 {
            return Ok(Payload::empty(Shape::Bytes));
        }
        let pointer = self.data.window(RegionOffset(offset), bytes)?.as_ptr();
        self.row.got(bytes);
        Ok(Payload::view(Shape::Bytes, bytes, pointer, Arc::clone(&self.data), view))
    }

    /// Ends one view.
    fn end(&self, id: BlockId) {
        if self.generation != fork::generation() {
            // The view was made by the process that forked this one, and the lease is that one's.
            return;
        }
        let last = self.leases.with(|leases| {
            let Some((generation, views)) = leases.held.get_mut(&id.block) else { return false };
            *views -= 1;
            if *views != 0 {
                return false;
            }
            let generation = *generation;
            leases.held.remove(&id.block);
            if leases.forks != fork::forks() {
                // A child may have this view, too. The lease ends with the session.
                leases.lasting = true;
                return false;
            }
            let word = self.word(id.block);
            let takes = Lease::from_word(word.load(Ordering::Relaxed)).takes;
            word.store(Lease { takes, live: false, generation }.to_word(), Ordering::SeqCst);
            true
        });
        if last {
            self.tell_of_room();
            if self.directory(CLOSED_AT, Ordering::Relaxed) != 0 {
                self.forget();
            }
        }
    }

    /// Takes the session of a closed arena out of the registry once it has no view: its memory is unmapped with the session.
    fn forget(&self) {
        let registry = SESSIONS.get(self.generation as usize).and_then(OnceLock::get);
        let forgotten = registry.and_then(|registry| {
            registry.with(|sessions| {
                let here = sessions.get(&self.arena).is_some_and(|known| std::ptr::eq(&**known, self));
                let unused = here && self.leases.with(|leases| leases.held.is_empty());
                if unused { sessions.remove(&self.arena) } else { None }
            })
        });
        drop(forgotten);
    }

    /// Wakes the arena if it waits for room.
    fn tell_of_room(&self) {
        fence(Ordering::SeqCst);
        if self.directory(WAITING_AT, Ordering::SeqCst) != 0 {
            // If the socket is full, the arena has enough to look at; if it is closed, nobody waits.
            let _ = handshake::send_now(&self.socket, &Packet::new(ROOM), &[]);
        }
    }
}

/// A value that was published.
#[derive(Debug)]
pub struct Update {
    /// View of the value.
    pub value: Payload,
    /// Number of the value in its topic, from 1 on.
    pub number: u64,
    /// Values that this subscription has missed so far.
    pub missed: u64,
}

/// Follows a topic of an arena.
pub struct Subscription {
    session: Arc<Session>,
    /// True if only the latest value is wanted.
    latest: bool,
    state: Lock<Asked>,
}

#[derive(Default)]
struct Asked {
    /// A value was asked for and has not come.
    asked: bool,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("latest", &self.latest).finish()
    }
}

impl Subscription {
    /// Follows `topic` of the arena at `address`, beginning with its latest value. `depth`: each value is given, and so many may wait here
    /// before the publisher waits or drops; `None`: only the latest is given. `opening` limits the opening of the session.
    ///
    /// # Errors
    ///
    /// [`Error::ServerUnavailable`], [`Error::Refused`], [`Error::DeadlineExceeded`], [`Error::PeerFault`]; [`Error::BadAddress`] for a
    /// topic's name that is too long.
    pub fn open(
        address: &Address,
        topic: &str,
        depth: Option<u32>,
        opening: impl Into<Opening>,
    ) -> Result<Subscription, Error> {
        let opening = opening.into();
        fork::watch();
        let number = depth.map_or(0, |depth| u64::from(depth.max(1)));
        let packet = Packet { number, ..Packet::new(SUBSCRIBE).named(topic)? };
        let session = Arc::new(Session::open(address, None, &opening)?);
        let subscription = Subscription {
            session,
            latest: depth.is_none(),
            state: Lock::new(Rank::ArenaAsked, Asked::default()),
        };
        subscription.say(packet)?;
        let patience = opening.begin();
        let received = patience.receive::<{ size_of::<Packet>() }>(&subscription.session.socket)?;
        patience.end(&subscription.session.socket)?;
        match received {
            Received::Packet(bytes, length, _)
                if packet::parse::<Packet>(&bytes[..length])?.kind == FOLLOWS => {}
            Received::Packet(..) => return Err(Error::peer_fault("a packet that no subscriber gets")),
            Received::Nothing | Received::HangUp => return Err(Subscription::died()),
        }
        if depth.is_some() {
            // The first value is on its way before it is wanted.
            subscription.ask()?;
        }
        Ok(subscription)
    }

    fn say(&self, packet: Packet) -> Result<(), Error> {
        handshake::send(&self.session.socket, &packet, &[]).map_err(|errno| match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => Subscription::died(),
            errno => Error::system("speaking to an arena")(errno),
        })
    }

    fn died() -> Error {
        Error::PeerDied { peer: "arena", doing: Some("waiting for a value") }
    }

    fn ask(&self) -> Result<(), Error> {
        let ask = self.state.with(|state| !std::mem::replace(&mut state.asked, true));
        if ask { self.say(Packet::new(NEXT)) } else { Ok(()) }
    }

    /// Descriptor that is readable when a value is there, or the arena is gone. Of a subscription to the latest only: once it has been
    /// asked for, by a [`next`](Subscription::next) that found nothing.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.socket.as_fd()
    }

    /// Gives the next value. `None`: there was none until `until` (`None`: waits for ever).
    ///
    /// # Errors
    ///
    /// [`Error::PeerDied`] when the arena is gone, [`Error::Forked`] in a forked child, [`Error::PeerFault`].
    pub fn next(&self, until: Option<Instant>) -> Result<Option<Update>, Error> {
        if self.session.generation != fork::generation() {
            return Err(Error::Closed { what: "subscription" });
        }
        loop {
            self.ask()?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            let mut polled = [PollFd::new(&self.session.socket, PollFlags::IN)];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(None),
                Err(errno) => return Err(Error::system("waiting for a value of an arena")(errno)),
            }
            let received =
                handshake::receive::<{ size_of::<Packet>() }>(&self.session.socket, RecvFlags::DONTWAIT)?;
            let packet: Packet = match received {
                Received::Packet(bytes, length, _) => packet::parse(&bytes[..length])?,
                // Another thread has it.
                Received::Nothing => continue,
                Received::HangUp => return Err(Subscription::died()),
            };
            if packet.kind != PUBLISHED {
                return Err(Error::peer_fault("a packet that no subscriber gets"));
            }
            self.state.with(|state| state.asked = false);
            let id = BlockId { block: packet.block, generation: packet.generation };
            let value = self.session.take(id);
            self.say(Packet::new(TAKEN))?;
            if !self.latest {
                // The next one is on its way while this one is looked at.
                self.ask()?;
            }
            return Ok(Some(Update { value: value?, number: packet.number, missed: packet.missed }));
        }
    }
}
