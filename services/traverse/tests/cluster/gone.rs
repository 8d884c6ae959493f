// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes that stand still, die or come back, and what their clients hear: who is waited for, within the deadline, in every mode.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use crate::cluster_world::{SHORT, World};
use crate::node_world::{add, find};
use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Answer, Client, ClientError, Config, Request, Routing};
use memlift_traverse::map::{MapError, State};
use memlift_traverse::program::Program;
use memlift_traverse::structures::{Scratch, Walk};
use memlift_traverse::wire::Status;
use rustix::process::Signal;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Six nodes of a list, two on each of three memory nodes in turn: a, b, c, a, b, c.
fn list(client: &mut Client) -> Vec<u64> {
    let mut allocate = |node| client.call(Request::allocate(node, 32)).expect("memory").address;
    let list: Vec<u64> = (0..6).map(|index| allocate(index % 3)).collect();
    for (key, at) in list.iter().enumerate() {
        let next = list.get(key + 1).copied().unwrap_or(0);
        client
            .call(Request::write(*at, &words(&[key as u64, 70 + key as u64, next, at + 8])))
            .expect("written");
    }
    list
}

fn client(world: &World, routing: Routing, deadline: Duration) -> Client {
    let config = Config { routing, deadline, ..Config::default() };
    Client::udp(&world.at, config).unwrap_or_else(|error| panic!("{error}"))
}

fn walk(program: &Arc<Program>, start: u64, key: u64) -> Request {
    Request::walk(&Walk { program: program.clone(), start, scratch: Scratch(words(&[key, 1])) })
}

fn found(answer: &Answer) -> u64 {
    // Without the zeros at its end.
    let mut body = answer.body.clone();
    body.resize(16, 0);
    u64::from_le_bytes(body[8..].try_into().expect("a word"))
}

#[test]
fn a_node_that_stands_still_is_named_whoever_was_asked() {
    let world = World::start(3, &[], SHORT);
    let long = Duration::from_secs(60);
    let list = list(&mut client(&world, Routing::Peer, long));
    let (find, add) = (Arc::new(find()), Arc::new(add()));
    for routing in [Routing::Peer, Routing::Bounce] {
        let mut client = client(&world, routing, long);
        assert_eq!(found(&client.call(walk(&find, list[0], 5)).expect("found")), 75);
        assert_eq!(client.call(walk(&add, list[0], 2)).expect("added").status, Status::Applied);
    }
    // Nobody says that it is down: the map's keeper stands still too.
    world.coordinator.signal(Signal::STOP);
    world.nodes[2].signal(Signal::STOP);
    let third = [String::from("c"), world.at[2].to_string()];
    for routing in [Routing::Peer, Routing::Bounce] {
        let requests = [
            walk(&find, list[0], 5),
            walk(&add, list[0], 2),
            Request::read(list[2], 8),
            Request::apply(ApplyKind::FetchAdd, list[2] + 8, 1, 0),
        ];
        for (index, request) in requests.into_iter().enumerate() {
            let config = Config { routing, deadline: Duration::from_secs(2), ..Config::default() };
            // Connected while all could answer.
            world.nodes[2].signal(Signal::CONT);
            let mut client = Client::udp(&world.at, config).unwrap_or_else(|error| panic!("{error}"));
            client.call(walk(&find, list[0], 4)).expect("all are there");
            client.call(walk(&add, list[0], 4)).expect("all are there");
            world.nodes[2].signal(Signal::STOP);
            match client.call(request) {
                Err(ClientError::Silent { node, .. }) => {
                    assert!(third.contains(&node), "{routing:?}, request {index}: {node} is waited for");
                }
                other => panic!("{routing:?}, request {index}: {other:?}"),
            }
            // Requests that do not need it go on.
            assert_eq!(found(&client.call(walk(&find, list[0], 1)).expect("found")), 71);
        }
    }
    world.nodes[2].signal(Signal::CONT);
    world.coordinator.signal(Signal::CONT);
    let mut client = client(&world, Routing::Peer, long);
    while let Err(error) = client.call(walk(&find, list[0], 5)) {
        assert!(matches!(error, ClientError::Map(MapError::Down { .. })), "until its lease is back: {error}");
    }
}

#[test]
fn a_node_that_died_is_said_to_be_down_and_comes_back_with_its_data() {
    let mut world = World::start(3, &[], SHORT);
    let long = Duration::from_secs(60);
    let mut client = client(&world, Routing::Peer, long);
    let list = list(&mut client);
    let (find, add) = (Arc::new(find()), Arc::new(add()));
    assert_eq!(client.call(walk(&add, list[0], 5)).expect("added").value, 75);
    world.nodes[2].kill();
    world.map(|map| map.node_named("c").is_some_and(|node| node.state == State::Down));
    for request in [walk(&find, list[0], 5), Request::read(list[5], 8)] {
        match client.call(request) {
            Err(ClientError::Map(MapError::Down { node, .. })) => assert_eq!(node, "c"),
            other => panic!("{other:?}"),
        }
    }
    // A change waits until its outcome is known.
    let again = client.submit(walk(&add, list[0], 5)).expect("sent");
    world.nodes[2] = world.node(2, "never");
    let answer = loop {
        client.poll().expect("the transport is there");
        if let Some(answer) = client.take(again) {
            break answer.unwrap_or_else(|error| panic!("{error}"));
        }
        client.wait(Duration::from_millis(5)).expect("the transport is there");
    };
    assert_eq!(answer.value, 76, "the first addition is remembered");
    assert_eq!(found(&client.call(walk(&find, list[0], 5)).expect("found")), 77);
}
