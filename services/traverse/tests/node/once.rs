// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that are lost, doubled and reordered: nothing is applied twice, and no answer is wrong.
#![forbid(unsafe_code)]

use crate::node_world::{Client, Net, Weather, add, address, alone, find, small};
use memlift_traverse::map::{Address, Map, Node as MapNode, NodeId, Permissions, Range, Shared, State};
use memlift_traverse::node::{Counter, Node, Shard};
use memlift_traverse::transport::Peer;
use memlift_traverse::wire::{ApplyOperands, Header, Kind, Status};
use std::collections::BTreeSet;

fn storm(seed: u64) -> Weather {
    Weather { seed, lost: 20, doubled: 20, reordered: 30 }
}

#[test]
fn one_node_adds_once_per_request_whatever_the_network_does() {
    for seed in 1..8 {
        let (node, mut shard, mut client) = alone(storm(seed), small(1 << 32));
        let mut turn = || assert!(shard.turn().is_ok());
        assert_eq!(client.upload(&add(), &mut turn).header.status, Status::Done);
        assert_eq!(client.upload(&find(), &mut turn).header.status, Status::Done);
        let at = client.allocate(64, &mut turn).header.address;
        client.write(at, &[5, 100, 0, at + 8], &mut turn);
        let mut seen = BTreeSet::new();
        for round in 0..60 {
            let heard = client.walk(&add(), at, &[5, 1], &mut turn);
            assert_eq!(heard.header.status, Status::Applied, "seed {seed}, round {round}");
            assert!(seen.insert(heard.header.value), "seed {seed}: {} came twice", heard.header.value);
            let direct = ApplyOperands { kind: 2, address: at + 8, a: 1, b: 0 };
            let header = client.request(Kind::Apply);
            let heard = client.ask(header, &direct.bytes(), &mut turn);
            assert!(seen.insert(heard.header.value), "seed {seed}: {} came twice", heard.header.value);
            let found = client.walk(&find(), at, &[5, 0], &mut turn);
            assert_eq!((found.header.status, found.word(8)), (Status::Done, 102 + 2 * round));
        }
        assert_eq!(seen, (100..220).collect(), "seed {seed}");
        assert_eq!(client.read(at + 8, &mut turn), 220, "seed {seed}");
        assert!(node.stats().read().get(Counter::Repeated) > 0, "seed {seed}: the storm repeated nothing");
        let mut addresses = BTreeSet::new();
        for _ in 0..40 {
            let heard = client.allocate(48, &mut turn);
            assert!(addresses.insert(heard.header.address), "an address was given twice");
        }
        let (first, last) = (addresses.first().unwrap(), addresses.last().unwrap());
        assert_eq!(last - first, 39 * 48, "seed {seed}: memory was given that nobody has heard of");
    }
}

#[test]
fn an_old_write_that_arrives_late_changes_nothing() {
    let (_, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    let at = client.allocate(64, &mut turn).header.address;
    let header = Header { address: at, ..client.request(Kind::Write) };
    let old = client.send(&header, &1u64.to_le_bytes());
    turn();
    client.write(at, &[2], &mut turn);
    client.send_bytes(&old);
    turn();
    assert_eq!(client.read(at, &mut turn), 2);
}

/// Two nodes with half a gibi-address each.
fn two(weather: Weather) -> (Vec<Node>, Vec<Shard>, Net) {
    let net = Net::new(weather);
    let node = |number: u16| MapNode {
        id: NodeId(number),
        name: format!("n{number}"),
        addresses: vec![Address::Udp(address(1000 + number))],
        incarnation: 1,
        state: State::Up,
    };
    let range = |number: u16| Range {
        base: (1 << 32) + (u64::from(number) << 28),
        bytes: 1 << 28,
        owner: Some(NodeId(number)),
        since: 1,
        permissions: Permissions::READ_WRITE,
        tenant: 0,
    };
    let map = Map::new(1, vec![node(0), node(1)], vec![range(0), range(1)]).expect("a map");
    let (mut nodes, mut shards) = (Vec::new(), Vec::new());
    for number in 0..2u16 {
        let shared = Shared::new(map.clone(), Some(NodeId(number)));
        let (node, _) = Node::open(small((1 << 32) + (u64::from(number) << 28))).expect("a small node");
        shards.push(node.shard(Box::new(net.end(1000 + number)), Box::new(shared.view())));
        nodes.push(node);
    }
    (nodes, shards, net)
}

#[test]
fn walks_go_on_at_the_other_node_and_come_back_right() {
    for seed in 0..6 {
        let weather = if seed == 0 { Weather::default() } else { storm(seed) };
        let (nodes, mut shards, net) = two(weather);
        let mut turn = || shards.iter_mut().for_each(|shard| assert!(shard.turn().is_ok()));
        let mut client = Client::new(Box::new(net.end(2000)), Peer::Socket(address(1000)), 5);
        let mut places = Vec::new();
        for number in 0..2u16 {
            client.to = Peer::Socket(address(1000 + number));
            client.upload(&find(), &mut turn);
            client.upload(&add(), &mut turn);
        }
        // A chain that changes nodes at each hop.
        for step in 0..10u16 {
            client.to = Peer::Socket(address(1000 + step % 2));
            places.push(client.allocate(64, &mut turn).header.address);
        }
        for (step, &at) in places.iter().enumerate() {
            client.to = Peer::Socket(address(1000 + step as u16 % 2));
            let next = places.get(step + 1).copied().unwrap_or(0);
            let heard = client.write(at, &[step as u64, 1000 * step as u64, next, at + 8], &mut turn);
            assert_eq!(heard.header.status, Status::Done);
        }
        client.to = Peer::Socket(address(1000));
        for key in 0..10u64 {
            let before = net.sent();
            let heard = client.walk(&find(), places[0], &[key, 0], &mut turn);
            assert_eq!(
                (heard.header.status, heard.word(8)),
                (Status::Done, 1000 * key),
                "seed {seed}, key {key}"
            );
            if seed == 0 {
                assert_eq!(
                    net.sent() - before,
                    key + 2,
                    "one message per crossing, the request and the answer"
                );
            }
            for round in 0..6 {
                let heard = client.walk(&add(), places[0], &[key, 7], &mut turn);
                let expected = (Status::Applied, 1000 * key + 7 * round);
                assert_eq!((heard.header.status, heard.header.value), expected, "seed {seed}, key {key}");
            }
            client.to = Peer::Socket(address(1000 + key as u16 % 2));
            assert_eq!(client.read(places[key as usize] + 8, &mut turn), 1000 * key + 42, "seed {seed}");
            client.to = Peer::Socket(address(1000));
        }
        let heard = client.walk(&find(), places[0], &[99, 0], &mut turn);
        assert_eq!(heard.header.status, Status::Missing);
        // A request may cross fewer borders than the chain has.
        let short = Header { hops: 3, ..client.walk_header(&find(), places[0]) };
        let heard = client.ask(short, &9u64.to_le_bytes(), &mut turn);
        assert_eq!((heard.header.status, heard.header.address), (Status::Hops, places[4]));
        // Memory that belongs to the other node is not written here.
        assert_eq!(client.write(places[1], &[1], &mut turn).header.status, Status::WrongNode);
        assert!(nodes[0].stats().read().get(Counter::Forwarded) > 0);
    }
}

#[test]
fn only_nodes_of_the_map_may_send_on() {
    let (nodes, mut shards, net) = two(Weather::default());
    let mut turn = || shards.iter_mut().for_each(|shard| assert!(shard.turn().is_ok()));
    let mut client = Client::new(Box::new(net.end(2000)), Peer::Socket(address(1000)), 5);
    let mut forged = client.request(Kind::Walk);
    forged.flags = memlift_traverse::wire::FLAG_FORWARDED;
    forged.reply = memlift_traverse::wire::Reply::to(address(9));
    client.send(&forged, &[]);
    let decided = client.request(Kind::Decided);
    client.send(&decided, &ApplyOperands::default().bytes());
    for _ in 0..4 {
        turn();
    }
    assert_eq!(nodes[0].stats().read().get(Counter::Foreign), 2);
}
