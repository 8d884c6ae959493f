// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a server comes to an address that it shares.
//!
//! - **Flow** bind the address ─▶ somebody is there: connect to it, ask ([`Join`]) ─▶ listening socket and table of members ([`Joined`]) ─▶ a
//!   number in the table (`group.rs`). Whoever was there ends meanwhile: bind it again
//! - **Order** the last member closes the table before it removes the socket file, so nobody joins servers that clients cannot reach
//! - **Owner** what a member gives is checked. It is of this process's own user, and so could do as it likes with this process anyway
//! - **Not here** the answer: `dispatch.rs`

use super::group::Group;
use super::listen::Listener;
use crate::address::Address;
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork::SessionSocket;
use crate::handshake::{self, GROUP_VERSION, Join, Joined, Opening, Received, Welcome};
use crate::layout::MAGIC;
use memlift_ground::socket_file::{Occupant, SocketFile};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a server tries to join those that are there.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Time for which one member may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Hang-ups in a row after which those at the address count as strangers.
const HANG_UPS_MAX: u32 = 20;
/// Sleep between two tries to join.
const PAUSE: Duration = Duration::from_millis(2);

/// Outcome of asking those at an address to let this server join.
enum Asked {
    Joined(Listener),
    /// Nobody answered in a way that could be understood: the one that was asked has ended, say.
    Again,
    /// It hung up without a word.
    HungUp,
    /// Somebody who shares the address with nobody.
    Alone,
    /// Somebody who is no server of memlift.
    Stranger,
}

/// Binds the address, or joins the servers that share it.
pub(super) fn join(address: &Address, lets_others_in: bool) -> Result<Listener, Error> {
    let until = Instant::now() + JOIN_LIMIT;
    let taken = |by| Error::AddressInUse { address: address.to_string(), by };
    let mut hang_ups = 0;
    loop {
        match Listener::bind(address, lets_others_in) {
            Ok(listener) => return listener.with_group(Group::found),
            Err(Error::AddressInUse { by: Occupant::Bound, .. }) => {}
            Err(error) => return Err(error),
        }
        match ask(address)? {
            Asked::Joined(listener) => return Ok(listener),
            Asked::Alone => return Err(taken(Occupant::Unshared)),
            Asked::Stranger => return Err(taken(Occupant::Bound)),
            Asked::HungUp => hang_ups += 1,
            Asked::Again => hang_ups = 0,
        }
        if Instant::now() >= until || hang_ups == HANG_UPS_MAX {
            return Err(taken(Occupant::Bound));
        }
        std::thread::sleep(PAUSE);
    }
}

fn ask(address: &Address) -> Result<Asked, Error> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("socket"))?;
    let opening = Opening::from(Some(ANSWER_LIMIT));
    let patience = opening.begin();
    match patience.connect(&socket, address, &address.socket()?) {
        Ok(()) => {}
        // A socket of another type.
        Err(Error::ServerUnavailable { source, .. })
            if source.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) =>
        {
            return Ok(Asked::Stranger);
        }
        Err(_) => return Ok(Asked::Again),
    }
    // Anybody can bind an abstract name, and whoever gave the socket could serve in our place.
    let (peer, own) = (Peer::of(&socket)?, rustix::process::getuid().as_raw());
    if peer.uid != own {
        let by = Occupant::OtherUser(peer.uid);
        return Err(Error::AddressInUse { address: address.to_string(), by });
    }
    let join = Join { magic: MAGIC, version: GROUP_VERSION, reserved: 0 };
    let _ = handshake::send(&socket, &join, &[]);
    let mut answer = patience.receive::<256>(&socket);
    if matches!(answer, Ok(Received::HangUp)) {
        // A server that refuses does not wait for the request. Its refusal lies behind the error that this makes.
        answer = patience.receive(&socket);
    }
    let (packet, length, descriptors) = match answer {
        Ok(Received::Packet(packet, length, descriptors)) => (packet, length, descriptors),
        Ok(Received::HangUp) => return Ok(Asked::HungUp),
        Ok(Received::Nothing) | Err(_) => return Ok(Asked::Again),
    };
    if handshake::parse::<Welcome>(&packet[..length]).is_ok_and(|welcome| welcome.refused != 0) {
        return Ok(Asked::Alone);
    }
    let Ok(joined) = handshake::parse::<Joined>(&packet[..length]) else { return Ok(Asked::Stranger) };
    if joined.version != GROUP_VERSION {
        return Ok(Asked::Alone);
    }
    let [socket, table] = handshake::expect(descriptors)?;
    Ok(enter(address, socket, table)?.map_or(Asked::Again, Asked::Joined))
}

/// Checks what a member gave, and makes this server one of them; `None`: they have ended meanwhile.
fn enter(address: &Address, socket: OwnedFd, table: OwnedFd) -> Result<Option<Listener>, Error> {
    let listens = socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && socket_type(&socket) == Ok(SocketType::SEQPACKET)
        && socket_acceptconn(&socket) == Ok(true)
        && rustix::io::ioctl_fionbio(&socket, true).is_ok();
    if !listens {
        return Err(Error::peer_fault("something else than a listening socket"));
    }
    let Some(group) = Group::enter(table)? else { return Ok(None) };
    let file = match address {
        Address::Abstract(_) => None,
        Address::Path(path) => SocketFile::at(path).ok().filter(|file| group.is_of(file)),
    };
    if file.is_none() && matches!(address, Address::Path(_)) {
        // Somebody has removed the file, and clients do not come here any more.
        group.leave();
        return Ok(None);
    }
    Ok(Some(Listener::joined(SessionSocket::new(socket), file, Arc::new(group))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_ground::region::{Region, RegionOptions};

    #[test]
    fn what_is_given_to_one_that_joins_is_checked() {
        let name = format!("test-{}-enter", std::process::id());
        let address = Address::parse(&name, None).unwrap();
        let group = Group::found(None).unwrap();
        let table = || rustix::io::dup(group.table().unwrap()).unwrap();
        let socket = || {
            let flags = SocketFlags::CLOEXEC;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        assert!(matches!(enter(&address, socket(), table()), Err(Error::PeerFault { .. })), "not listening");
        let listener = Listener::bind(&address, false).unwrap();
        let listening = || rustix::io::dup(&listener).unwrap();
        let unlike = [
            Region::memfd("short", 2048, &RegionOptions::default()).unwrap(),
            Region::memfd("zero", 4096, &RegionOptions::default()).unwrap(),
        ];
        for mut table in unlike {
            assert!(enter(&address, listening(), table.take_fd().unwrap()).is_err());
        }
        assert!(enter(&address, listening(), socket()).is_err());
        let joined = enter(&address, listening(), table()).unwrap().unwrap();
        assert_eq!(group.living(), 2);
        drop(joined);
        assert_eq!(group.living(), 1);
    }
}
