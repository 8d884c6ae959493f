// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several servers at one address, in processes that die, stop, or should not be there.
//!
//! - **Goal** a client reaches one of those that live; a dead one is left out, and its clients learn of its death; nobody of another user is
//!   given the listening socket
//! - **Method** failpoints and signals for some of the servers while others live; packets that are not what they should be

use crate::alone;
use crate::kills::{ends, says_gone, signal};
use crate::peer::{NOBODY, Peer, exercise, serve, unique};
use memlift_ground::rights;
use memlift_ipc::failpoint::{Act, Side};
use memlift_ipc::{Server, ServerOptions};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use std::os::fd::AsFd;

/// A request to join: magic, version 1, zero.
pub const JOIN: [u8; 16] = *b"memlift\x01\x01\0\0\0\0\0\0\0";

fn sharing() -> ServerOptions {
    ServerOptions { shared: true, ..ServerOptions::default() }
}

fn member(address: &str) -> Peer {
    let mut peer = Peer::spawn("shared server", address, None);
    assert_eq!(peer.line().as_deref(), Some("ready"));
    peer
}

/// Sends a packet to the socket file, and counts the descriptors that come back.
pub fn join(path: &str, packet: &[u8]) -> usize {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rights::send(&socket, packet, &[event.as_fd(); 2], SendFlags::empty()).unwrap();
    // A hang-up is an answer, too.
    let answer = rights::receive(&socket, &mut [0; 256], RecvFlags::empty());
    answer.map_or(0, |answer| answer.descriptors.len())
}

#[test]
fn a_member_may_die_at_any_step() {
    let _alone = alone();
    let address = unique("member-dies");
    let _stays = member(&address);
    for end in ends(Side::Server).filter(|end| end.act == Act::Kill) {
        let mut doomed = Peer::spawn("shared server", &address, Some(end));
        // Going to sleep, it may be dead before it says that it is ready.
        let _ready = doomed.line();
        // It has no session and the other one may have some, so it is reached soon.
        while !doomed.has_ended() {
            if let Err(error) = exercise(&address) {
                assert!(says_gone(&error), "{end:?}: {error:?}");
            }
        }
        assert_eq!(doomed.wait(), signal(end.act), "{end:?}");
        drop(exercise(&address).unwrap());
    }
    let last = serve(&address, sharing());
    assert_eq!(last.stats().members, 2, "the dead are not counted");
}

#[test]
fn when_all_are_dead_the_next_one_begins_anew() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.sock").display().to_string();
    for address in [unique("all-die"), path] {
        for _ in 0..3 {
            let members = [member(&address), member(&address), member(&address)];
            drop(exercise(&address).unwrap());
            // Killed, and waited for.
            drop(members);
            assert!(says_gone(&exercise(&address).err().unwrap()));
        }
        let server = serve(&address, sharing());
        assert_eq!(server.stats().members, 1);
        drop(exercise(&address).unwrap());
    }
}

#[test]
fn a_stopped_member_delays_a_client_and_no_more() {
    let _alone = alone();
    let address = unique("member-stops");
    let (stopped, mut stays) = (member(&address), member(&address));
    stopped.signal(Signal::STOP);
    stopped.is_stopped();
    for _ in 0..4 {
        drop(exercise(&address).unwrap());
    }
    // Others join through the one that runs.
    let third = serve(&address, sharing());
    assert_eq!(third.stats().members, 3);
    stays.end();
    assert_eq!(stays.wait(), None);
    drop(exercise(&address).unwrap());
    drop(third);
    stopped.signal(Signal::CONT);
    drop(exercise(&address).unwrap());
}

#[test]
fn only_processes_of_the_same_user_join() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("open.sock").display().to_string();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let options = ServerOptions { allowed_uids: Some(vec![NOBODY]), ..sharing() };
    let server = serve(&path, options);
    assert_eq!(join(&path, &JOIN), 2, "one of this user gets socket and table");
    let mut stranger = Peer::spawn_as_nobody("joiner", &path);
    assert_eq!(stranger.line().as_deref(), Some("0"));
    let mut client = Peer::spawn_as_nobody("client", &path);
    assert_eq!(client.line().as_deref(), Some("done"), "a client of that user is served");
    assert_eq!(server.stats().members, 1);
}

#[test]
fn nothing_that_is_said_in_the_place_of_a_request_to_join_does_any_harm() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("said.sock").display().to_string();
    let server: Server = serve(&path, sharing());
    for at in 0..12 {
        for bit in 0..8 {
            let mut lie = JOIN;
            lie[at] ^= 1 << bit;
            assert_eq!(join(&path, &lie), 0, "byte {at}, bit {bit}");
        }
    }
    for bytes in 1..JOIN.len() {
        assert_eq!(join(&path, &JOIN[..bytes]), 0, "{bytes} bytes");
    }
    assert_eq!(join(&path, &[&JOIN[..], b"more"].concat()), 0);
    drop(exercise(&path).unwrap());
    assert_eq!(join(&path, &JOIN), 2);
    // The one that asked has closed both again, and was no member.
    assert_eq!(server.stats().members, 1);
}
