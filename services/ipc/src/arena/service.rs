// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arena's thread: it greets readers, hears them, and notices their end.
//!
//! - **Flow** connect ─▶ `Welcome` with descriptors ─▶ packets ─▶ hang-up, by which all leases of the reader end
//! - **Order** it sleeps until a socket has something to say; only memory that can go back makes it wake up by itself
//! - **Owner** a packet names a value at most: knowing a handle is the right to take the value and to release it

use super::books::Seat;
use super::layout::table_bytes;
use super::packet::{self, NEXT, Packet, RELEASE, ROOM, SUBSCRIBE, TAKEN, Welcome};
use super::{BlockId, Shared};
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork::SessionSocket;
use crate::handshake::{self, Received};
use crate::server::{Listener, is_allowed};
use memlift_ground::region::{Region, RegionOptions};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::RecvFlags;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Memory that no value needs goes back after so long without a put.
const QUIET: Duration = Duration::from_secs(5);
/// Interval at which the thread looks whether there is memory to give back, while the arena has some.
const TICK: Duration = Duration::from_secs(1);
/// That interval grows to this while nothing is put.
const TICK_MAX: Duration = Duration::from_secs(8);
/// Packets of one reader that are read before the next one's turn.
const PACKETS: usize = 64;

/// The thread, and the way to end it.
#[derive(Debug)]
pub struct Service {
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Binds the arena's address and begins to listen there.
    pub fn start(shared: &Arc<Shared>) -> Result<Service, Error> {
        let listener = Listener::bind(
            &shared.address,
            shared.options.allowed_uids.as_ref().is_none_or(|uids| !uids.is_empty()),
        )?;
        let bell = Arc::clone(&shared.bell);
        let shared = Arc::downgrade(shared);
        let doing = "starting an arena's thread";
        let thread = std::thread::Builder::new()
            .name("memlift-arena".to_owned())
            .spawn(move || serve(&listener, &shared))
            .map_err(|source| Error::System { doing, source })?;
        Ok(Service { bell, thread: Some(thread) })
    }
}

/// Makes the counter by which the thread is woken.
pub fn bell() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))
}

/// Wakes the thread: the arena was closed, or has memory after it had none.
pub fn ring(bell: &OwnedFd) {
    // A counter of 64 bits does not overflow by ones.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

impl Drop for Service {
    fn drop(&mut self) {
        ring(&self.bell);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &Listener, shared: &Weak<Shared>) {
    let mut number = 0;
    let mut activity = (0, Instant::now());
    let mut tick = TICK;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let (sockets, memory) = shared.books.with(|books| {
            let sockets: Vec<_> =
                books.seats.iter().map(|seat| (seat.number, Arc::clone(&seat.socket))).collect();
            (sockets, books.memory_bytes() != 0)
        });
        let mut polled =
            vec![PollFd::new(&*shared.bell, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        polled.extend(sockets.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN)));
        let wait = Timespec { tv_sec: tick.as_secs() as i64, tv_nsec: 0 };
        let polls = poll(&mut polled, memory.then_some(&wait));
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            let _ = rustix::io::read(&*shared.bell, &mut [0; 8]);
            if shared.books.with(|books| books.closed) {
                return;
            }
        }
        if polls.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
            // Without memory for the kernel's tables: it is tried again, not at full speed.
            std::thread::sleep(TICK);
            continue;
        }
        if ready[1] {
            number += 1;
            // A reader that cannot be taken in has been told why, or is gone.
            let _ = shared.greet(listener, number);
        }
        for ((number, socket), _) in sockets.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            if !shared.hear(*number, socket) {
                let seat = shared.books.with(|books| books.leave(*number));
                drop(seat);
                shared.room.notify_all();
            }
        }
        let puts = shared.row.puts();
        if puts != activity.0 || !memory {
            activity = (puts, Instant::now());
            tick = TICK;
        } else if activity.1.elapsed() > QUIET {
            shared.books.with(|books| books.reclaim(true));
            shared.trim();
            tick = (tick * 2).min(TICK_MAX);
        }
    }
}

impl Shared {
    /// Takes a reader in, or tells it why not.
    fn greet(&self, listener: &Listener, number: u64) -> Result<(), Error> {
        let Some(socket) = listener.accept()? else { return Ok(()) };
        let refuse = |reason: &str| {
            // The reader may be gone already.
            let _ = handshake::send_now(&socket, &Welcome::refused(reason), &[]);
        };
        let peer = Peer::of(&socket)?;
        let readers = self.books.with(|books| books.seats.len());
        if !is_allowed(peer, self.options.allowed_uids.as_deref(), &[]) {
            refuse(&format!("user {} may not read here: allow it with allowed_uids", peer.uid));
            return Ok(());
        }
        if readers >= self.options.readers_max {
            refuse(&format!("{readers} readers are connected, which is the limit; raise readers_max"));
            return Ok(());
        }
        let blocks = self.options.values_max.clamp(1, super::BLOCKS_MAX);
        let options = RegionOptions { prefault: false, headroom: false, ..RegionOptions::default() };
        let table = match Region::memfd("memlift-arena-leases", table_bytes(blocks), &options) {
            Ok(table) => table,
            Err(error) => {
                refuse(&error.to_string());
                return Err(error.into());
            }
        };
        let welcome = Welcome::new(self.id, self.data.bytes(), blocks);
        let shown = self.shown.each_ref().map(AsFd::as_fd);
        let mut table = table;
        // The mapping is enough: a reader costs the arena one descriptor.
        let table_fd = table.take_fd().ok_or(Error::Closed { what: "arena" })?;
        let socket = Arc::new(SessionSocket::new(socket));
        let seat = Seat { number, socket: Arc::clone(&socket), peer, table, following: None };
        // Before the reader has its table: a lease that is looked for must be seen.
        self.books.with(|books| books.seats.push(seat));
        let descriptors = [shown[0], shown[1], table_fd.as_fd()];
        handshake::send_now(&*socket, &welcome, &descriptors)
            .map_err(Error::system("greeting a reader"))
            .inspect_err(|_| drop(self.books.with(|books| books.leave(number))))
    }

    /// Reads what a reader says; false if it is gone, or says what no reader says.
    fn hear(&self, number: u64, socket: &SessionSocket) -> bool {
        for _ in 0..PACKETS {
            let packet: Packet =
                match handshake::receive::<{ size_of::<Packet>() }>(socket, RecvFlags::DONTWAIT) {
                    Ok(Received::Packet(bytes, length, _)) => match packet::parse(&bytes[..length]) {
                        Ok(packet) => packet,
                        Err(_) => return false,
                    },
                    Ok(Received::Nothing) => return true,
                    Ok(Received::HangUp) | Err(_) => return false,
                };
            let id = BlockId { block: packet.block, generation: packet.generation };
            let mut parcel = None;
            let (room, understood) = self.books.with(|books| match packet.kind {
                ROOM => (books.reclaim(true), true),
                RELEASE => (books.release(id), true),
                TAKEN => (books.took(number), true),
                SUBSCRIBE => {
                    let follows =
                        packet.topic().is_ok_and(|topic| books.follow(number, &topic, packet.number));
                    parcel = books.acknowledge(number);
                    (false, follows)
                }
                NEXT => {
                    parcel = books.ask(number);
                    (true, true)
                }
                _ => (false, false),
            });
            if room {
                self.room.notify_all();
            }
            self.send(parcel.into_iter().collect());
            if !understood {
                return false;
            }
        }
        true
    }
}
