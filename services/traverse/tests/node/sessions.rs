// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions at a node: they end, those that come back are refused, and a number has one owner; also over restarts and short logs.
//!
//! - **Flow** `node_world`'s client sends packets by hand, so that old ones can be sent again
#![forbid(unsafe_code)]

use crate::node_world::{Client, Net, Weather, address, small};
use memlift_traverse::node::{Alone, Durability, Node, NodeOptions, Shard};
use memlift_traverse::transport::Peer;
use memlift_traverse::wire::{ApplyOperands, Header, Kind, Status};

const ADD: u64 = 2;

/// A node with room for a few sessions, and its net.
fn open(options: NodeOptions) -> (Node, Shard, Net) {
    let net = Net::new(Weather::default());
    let (node, _) = Node::open(options).expect("a small node");
    let shard = node.shard(Box::new(net.end(1000)), Box::new(Alone));
    (node, shard, net)
}

fn client(net: &Net, port: u16, id: u64, session: u64) -> Client {
    let mut client = Client::new(Box::new(net.end(port)), Peer::Socket(address(1000)), id);
    client.session = session;
    client
}

fn add(client: &mut Client, at: u64) -> Header {
    Header { address: at, ..client.request(Kind::Apply) }
}

fn one(at: u64) -> [u8; 32] {
    ApplyOperands { kind: ADD, address: at, a: 1, b: 0 }.bytes()
}

/// Ends a client's session, as a client does that goes.
fn goodbye(client: &mut Client, turn: &mut impl FnMut()) {
    let end = client.request(Kind::End);
    client.send(&end, &[]);
    turn();
}

/// Many more clients than there is room for come, change something, and go: all of them are served, and what one of them sent
/// is not carried out again when it arrives once more.
#[test]
fn clients_that_came_and_went_leave_room_and_their_packets_are_refused() {
    let (node, mut shard, net) = open(NodeOptions { clients: 8, ..small(1 << 32) });
    let mut turn = || assert!(shard.turn().is_ok());
    let mut first = client(&net, 2000, 1, 1);
    let at = first.allocate(64, &mut turn).header.address;
    first.write(at, &[0], &mut turn);
    goodbye(&mut first, &mut turn);
    let mut old = Vec::new();
    for number in 0..200_u64 {
        let mut one_of = client(&net, 2001, 100 + number, 2 + number);
        let header = add(&mut one_of, at);
        let heard = one_of.ask(header, &one(at), &mut turn);
        assert_eq!((heard.header.status, heard.header.value), (Status::Applied, number), "client {number}");
        old.push((one_of.id, one_of.session, header));
        goodbye(&mut one_of, &mut turn);
        assert!(node.writer().size().2.0 <= 8);
    }
    for (id, session, header) in old {
        let mut again = client(&net, 2002, id, session);
        let heard = again.ask(Header { attempt: 1, ..header }, &one(at), &mut turn);
        assert!(matches!(heard.header.status, Status::Expired | Status::Stale), "{:?}", heard.header.status);
    }
    assert_eq!(client(&net, 2003, 9, 300).read(at, &mut turn), 200, "nothing was added twice");
}

/// A session of the past is refused by a node that was started again with its log, also when the log was made short between.
#[test]
fn what_was_forgotten_stays_so_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let options =
        || NodeOptions { clients: 4, log: Some((log.clone(), Durability::Process)), ..small(1 << 32) };
    let (old, living, at);
    {
        let (node, mut shard, net) = open(options());
        let mut turn = || assert!(shard.turn().is_ok());
        let mut first = client(&net, 2000, 1, 1);
        at = first.allocate(64, &mut turn).header.address;
        first.write(at, &[0], &mut turn);
        let header = add(&mut first, at);
        assert_eq!(first.ask(header, &one(at), &mut turn).header.status, Status::Applied);
        old = header;
        goodbye(&mut first, &mut turn);
        for number in 0..20 {
            let mut other = client(&net, 2001, 10 + number, 10 + number);
            let header = add(&mut other, at);
            assert_eq!(other.ask(header, &one(at), &mut turn).header.status, Status::Applied);
            goodbye(&mut other, &mut turn);
        }
        let mut stays = client(&net, 2002, 99, 99);
        living = add(&mut stays, at);
        assert_eq!(stays.ask(living, &one(at), &mut turn).header.value, 21);
        assert!(node.compact().expect("short again").is_some());
    }
    let (_node, mut shard, net) = open(options());
    let mut turn = || assert!(shard.turn().is_ok());
    let heard = client(&net, 2000, 1, 1).ask(Header { attempt: 1, ..old }, &one(at), &mut turn);
    assert!(matches!(heard.header.status, Status::Expired | Status::Stale), "{:?}", heard.header.status);
    let heard = client(&net, 2001, 99, 99).ask(Header { attempt: 1, ..living }, &one(at), &mut turn);
    assert_eq!(
        (heard.header.status, heard.header.value),
        (Status::Applied, 21),
        "the living one hears again"
    );
    let mut new = client(&net, 2003, 500, 500);
    let header = add(&mut new, at);
    assert_eq!(new.ask(header, &one(at), &mut turn).header.status, Status::Applied);
    assert_eq!(new.read(at, &mut turn), 23);
}

/// Two processes with one number: the second one is refused, and does not get the first one's outcomes for its own.
#[test]
fn a_second_owner_of_a_number_is_refused() {
    let (_node, mut shard, net) = open(small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    let (mut one_of, mut other) = (client(&net, 2000, 7, 1), client(&net, 2001, 7, 2));
    let at = one_of.allocate(64, &mut turn).header.address;
    one_of.write(at, &[0], &mut turn);
    for round in 0..5 {
        let header = add(&mut one_of, at);
        assert_eq!(one_of.ask(header, &one(at), &mut turn).header.value, round);
        other.sequence = header.sequence - 1;
        let header = add(&mut other, at);
        assert_eq!(other.ask(header, &one(at), &mut turn).header.status, Status::Taken);
    }
    goodbye(&mut one_of, &mut turn);
    let header = add(&mut other, at);
    assert_eq!(other.ask(header, &one(at), &mut turn).header.value, 5, "it is free again");
    one_of.incarnation = 2;
    one_of.session = 3;
    let header = add(&mut one_of, at);
    assert_eq!(one_of.ask(header, &one(at), &mut turn).header.value, 6, "a later life takes its number over");
}

/// A request that went on by what it had read is refused when the clock is too far on, once and for all its attempts.
#[test]
fn what_is_too_old_changes_nothing_and_stays_refused() {
    let (_node, mut shard, net) = open(small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    let mut client = client(&net, 2000, 7, 1);
    let at = client.allocate(64, &mut turn).header.address;
    let now = client.write(at, &[5], &mut turn).header.session as u32;
    let swap = ApplyOperands { kind: 1, address: at, a: 5, b: 6 }.bytes();
    let since = |client: &mut Client, clock| Header {
        flags: memlift_traverse::wire::FLAG_SINCE,
        clock,
        address: at,
        ..client.request(Kind::Apply)
    };
    let request = since(&mut client, now);
    // Whatever brings a clock moves the node's.
    let map = Header { clock: now + 40, ..client.request(Kind::Map) };
    assert_eq!(client.ask(map, &[], &mut turn).header.session, u64::from(now) + 40);
    assert_eq!(client.ask(request, &swap, &mut turn).header.status, Status::Outdated);
    assert_eq!(client.read(at, &mut turn), 5);
    for (clock, right) in [(now + 9, Status::Outdated), (now + 10, Status::Done)] {
        let read = Header { kind: Kind::Read, value: 8, ..since(&mut client, clock) };
        assert_eq!(client.ask(read, &[], &mut turn).header.status, right, "since {clock}");
    }
    let request = since(&mut client, now + 10);
    assert_eq!(client.ask(request, &swap, &mut turn).header.status, Status::Applied);
    let map = Header { clock: now + 90, ..client.request(Kind::Map) };
    client.ask(map, &[], &mut turn);
    let mut again = client_of(&net, &client);
    let heard = again.ask(Header { attempt: 7, ..request }, &swap, &mut turn);
    assert_eq!(heard.header.status, Status::Applied, "what was done in time was done");
    let beyond = Header { clock: u32::MAX, ..client.request(Kind::Map) };
    assert_eq!(client.ask(beyond, &[], &mut turn).header.status, Status::BadRequest);
}

fn client_of(net: &Net, other: &Client) -> Client {
    client(net, 2009, other.id, other.session)
}
