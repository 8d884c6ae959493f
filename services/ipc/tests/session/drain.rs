// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health of a server, and its orderly end.
//!
//! - **Goal** calls that are open when a server drains are answered; those that come are refused by name; its address is free at once
//! - **Method** handlers that wait for the test

use crate::{server, small, unique};
use memlift_ipc::{
    Behaviour, Client, Error, HealthState, Outgoing, Pace, RemoteFailure, Reply, Server, ServerOptions,
};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(60);

fn is_draining(answer: Result<memlift_ipc::Payload, Error>) -> bool {
    matches!(answer, Err(Error::Remote(RemoteFailure::Draining { .. })))
}

#[test]
fn a_server_says_how_it_is() {
    let address = unique("health");
    let options = ServerOptions { ready: false, ..ServerOptions::default() };
    let server = Server::bind(&address, options).unwrap();
    server.start().unwrap();
    let client = Client::connect(&address, small()).unwrap();
    let health = client.ping(Some(LONG)).unwrap();
    assert_eq!(
        (health.state, health.sessions, health.busy_handlers, health.queued),
        (HealthState::NotReady, 1, 0, 0)
    );
    server.set_ready(true);
    assert_eq!(client.ping(Some(LONG)).unwrap().state, HealthState::Ready);
    server.set_ready(false);
    assert_eq!(client.ping(Some(LONG)).unwrap().state, HealthState::NotReady);
    server.begin_drain();
    assert_eq!(client.ping(Some(LONG)).unwrap().state, HealthState::Draining);
}

#[test]
fn a_server_that_drains_answers_what_is_open_and_refuses_the_rest() {
    let address = unique("drain");
    let first = server(&address, ServerOptions::default());
    let gate = Arc::new(Barrier::new(2));
    let opened = Arc::clone(&gate);
    first
        .register("wait", move |_| {
            gate.wait();
            Ok(Reply::bytes(b"done".to_vec()))
        })
        .unwrap();
    let ends = Behaviour { pace: Pace::Short, outlasts_drain: true };
    first.register_with("end", ends, |_, responder| responder.fail("it was run")).unwrap();
    let client = Client::connect(&address, small()).unwrap();
    let mut open = client.call_async("wait", Outgoing::none(), Some(LONG)).unwrap();
    while client.ping(Some(LONG)).unwrap().busy_handlers == 0 {}
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| first.drain(LONG));
        // The address is free while the old server still answers.
        let second = loop {
            match Server::bind(&address, ServerOptions::default()) {
                Ok(second) => break second,
                Err(error) => assert!(matches!(error, Error::AddressInUse { .. }), "{error}"),
            }
        };
        assert!(is_draining(client.call("echo", b"x".as_slice(), Some(LONG))));
        assert!(is_draining(client.call("nothing", b"x".as_slice(), Some(LONG))));
        let run = client.call("end", b"x".as_slice(), Some(LONG)).err().unwrap();
        assert!(run.to_string().contains("it was run"), "{run}");
        second.register("echo", |_| Ok(Reply::bytes(b"second".to_vec()))).unwrap();
        second.start().unwrap();
        let other = client.reconnect(LONG).unwrap();
        assert_eq!(other.call("echo", b"x".as_slice(), Some(LONG)).unwrap().to_vec(), b"second");
        assert!(!drained.is_finished());
        opened.wait();
        assert_eq!(open.wait(Some(LONG)).unwrap().to_vec(), b"done");
        assert!(drained.join().unwrap());
    });
    assert!(matches!(client.call("echo", b"x".as_slice(), Some(LONG)), Err(Error::PeerDied { .. })));
}

#[test]
fn a_drain_ends_by_its_time() {
    let address = unique("overdue");
    let server = server(&address, ServerOptions::default());
    let client = Client::connect(&address, small()).unwrap();
    let mut open = client.call_async("sleep", b"1000".as_slice(), Some(LONG)).unwrap();
    while client.ping(Some(LONG)).unwrap().busy_handlers == 0 {}
    let begun = Instant::now();
    server.begin_drain();
    assert!(!server.drained(SHORT));
    assert!(begun.elapsed() < LONG / 2);
    assert!(server.drained(LONG));
    assert_eq!(open.wait(Some(LONG)).unwrap().to_vec(), b"1000");
    server.stop();
}

#[test]
fn a_server_with_nothing_to_do_ends_at_once() {
    for connected in [false, true] {
        let address = unique("idle");
        let server = server(&address, ServerOptions::default());
        let client = connected.then(|| Client::connect(&address, small()).unwrap());
        let begun = Instant::now();
        assert!(server.drain(LONG));
        assert!(begun.elapsed() < LONG / 2);
        drop(client);
        Server::bind(&address, ServerOptions::default()).unwrap();
    }
    // Nor does one that never served.
    let address = unique("never-served");
    let server = Server::bind(&address, ServerOptions::default()).unwrap();
    assert!(server.drain(LONG));
    Server::bind(&address, ServerOptions::default()).unwrap();
}

#[test]
fn every_answer_that_a_drain_waits_for_arrives() {
    for round in 0..50 {
        let address = unique("each");
        let server = server(&address, ServerOptions::default());
        let client = Client::connect(&address, small()).unwrap();
        let mut open: Vec<_> =
            (0..8).map(|_| client.call_async("sleep", b"1".as_slice(), Some(LONG)).unwrap()).collect();
        if round % 2 == 0 {
            // They have all been taken by then.
            client.ping(Some(LONG)).unwrap();
        }
        assert!(server.drain(LONG));
        for job in &mut open {
            match job.wait(Some(LONG)) {
                Ok(answer) => assert_eq!(answer.to_vec(), b"1"),
                Err(error) => {
                    assert!(round % 2 == 1 && !matches!(error, Error::DeadlineExceeded { .. }), "{error}")
                }
            }
        }
    }
}
