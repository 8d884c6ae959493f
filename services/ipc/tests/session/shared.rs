// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several servers at one address.
//!
//! - **Goal** each client has a session with one of them, those with few sessions first; one that ends is not missed; nobody's file is touched
//! - **Method** servers in this process, which share as processes do; those that are killed are in `tests/processes/shared.rs`

use crate::{small, unique};
use memlift_ipc::{Client, ClientOptions, Error, Outgoing, RemoteFailure, Reply, Server, ServerOptions};
use std::path::Path;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn sharing() -> ServerOptions {
    ServerOptions { shared: true, ..ServerOptions::default() }
}

/// A server that says its number.
fn numbered(address: &str, number: u8, options: ServerOptions) -> Server {
    let server = Server::bind(address, options).unwrap();
    server.register("number", move |_| Ok(Reply::bytes([number]))).unwrap();
    server
}

fn started(address: &str, number: u8) -> Server {
    let server = numbered(address, number, sharing());
    server.start().unwrap();
    server
}

fn number_of(client: &Client) -> u8 {
    client.call("number", Outgoing::none(), Some(LONG)).unwrap().to_vec()[0]
}

fn addresses(folder: &Path) -> [String; 2] {
    [unique("shared"), folder.join("shared.sock").display().to_string()]
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn sessions_are_spread_over_all_servers_of_an_address() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        let servers: Vec<Server> = (0..3).map(|number| started(&address, number)).collect();
        assert_eq!(servers[0].stats().members, 3);
        let clients: Vec<Client> = (0..30).map(|_| Client::connect(&address, small()).unwrap()).collect();
        let mut counts = [0; 3];
        clients.iter().for_each(|client| counts[number_of(client) as usize] += 1);
        // Equal ones, unless a server had no core for 20 ms: then another one took its turn.
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        assert_eq!(servers.iter().map(|server| server.stats().sessions).sum::<usize>(), 30);
    }
}

#[test]
fn the_others_go_on_when_one_stops_and_the_last_one_removes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        let mut servers: Vec<Server> = (0..3).map(|number| started(&address, number)).collect();
        while !servers.is_empty() {
            // The first one made the socket.
            drop(servers.remove(0));
            assert_eq!(servers.is_empty(), Client::connect(&address, small()).is_err());
            if address.contains('/') {
                assert_eq!(servers.is_empty(), std::fs::symlink_metadata(&address).is_err());
            }
        }
        // The address is free, for one alone as well.
        let alone = numbered(&address, 9, ServerOptions::default());
        alone.start().unwrap();
        assert_eq!(number_of(&Client::connect(&address, small()).unwrap()), 9);
    }
}

#[test]
fn servers_come_and_go_and_no_client_notices() {
    let address = unique("coming");
    let _stays = started(&address, 0);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut sessions = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let client = Client::connect(&address, small()).unwrap();
                        // Its server may have stopped since.
                        match client.call("number", Outgoing::none(), Some(LONG)) {
                            Ok(_)
                            | Err(Error::PeerDied { .. } | Error::Remote(RemoteFailure::Draining { .. })) => {
                                sessions += 1;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    sessions
                })
            })
            .collect();
        for number in 1..20 {
            let server = started(&address, number);
            std::thread::sleep(Duration::from_millis(5));
            match number % 2 {
                0 => server.stop(),
                _ => assert!(server.drain(LONG)),
            }
            assert_eq!(server.stats().members, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
}

#[test]
fn many_that_start_at_once_are_all_members() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        let servers: Vec<Server> = std::thread::scope(|scope| {
            let starters: Vec<_> = (0..8)
                .map(|number| {
                    let address = &address;
                    scope.spawn(move || started(address, number))
                })
                .collect();
            starters.into_iter().map(|starter| starter.join().unwrap()).collect()
        });
        assert!(servers.iter().all(|server| server.stats().members == 8));
    }
}

#[test]
fn who_does_not_share_keeps_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    std::fs::write(&file, "data").unwrap();
    let over_a_file = numbered(file.to_str().unwrap(), 1, sharing());
    assert!(matches!(over_a_file.start(), Err(Error::AddressInUse { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "data");
    for address in addresses(folder.path()) {
        let alone = numbered(&address, 1, ServerOptions::default());
        alone.start().unwrap();
        assert_eq!(alone.stats().members, 1);
        let error = numbered(&address, 2, sharing()).start().err().unwrap();
        assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
        assert!(error.to_string().contains("with nobody"), "{error}");
        assert_eq!(number_of(&Client::connect(&address, small()).unwrap()), 1);
        drop(alone);
        // Nor does a server alone come into the place of those who share.
        let shared = started(&address, 3);
        let second = Server::bind(&address, ServerOptions::default());
        assert!(matches!(second.err().unwrap(), Error::AddressInUse { .. }));
        assert_eq!(number_of(&Client::connect(&address, small()).unwrap()), 3);
        drop(shared);
    }
}

#[test]
fn a_server_that_shares_is_not_there_before_its_start_and_not_after_its_end() {
    let address = unique("start");
    let server = numbered(&address, 1, sharing());
    assert!(matches!(Client::connect(&address, small()), Err(Error::ServerUnavailable { .. })));
    assert_eq!(server.stats().members, 0);
    server.start().unwrap();
    assert_eq!(server.stats().members, 1);
    server.stop();
    assert!(matches!(server.start(), Err(Error::Closed { .. })));
    assert_eq!(server.stats().members, 0);
    drop(numbered(&address, 2, sharing()));
}

#[test]
fn one_that_is_not_ready_or_full_leaves_clients_to_the_others() {
    let address = unique("ready");
    let unready = numbered(&address, 0, ServerOptions { ready: false, ..sharing() });
    unready.start().unwrap();
    let small_one = numbered(&address, 1, ServerOptions { sessions_max: 1, ..sharing() });
    small_one.start().unwrap();
    let first = Client::connect(&address, small()).unwrap();
    // A third one joins, whoever of the two answers.
    let third = started(&address, 2);
    let clients: Vec<Client> = (0..8).map(|_| Client::connect(&address, small()).unwrap()).collect();
    let mut numbers: Vec<u8> = clients.iter().map(number_of).collect();
    numbers.push(number_of(&first));
    numbers.sort_unstable();
    // Unless the ready one had no core for 20 ms.
    assert!(numbers.iter().filter(|&&number| number == 2).count() >= 1, "{numbers:?}");
    assert!(numbers.iter().filter(|&&number| number == 1).count() <= 1, "{numbers:?}");
    unready.set_ready(true);
    drop((clients, first, small_one, third));
    eventually(|| number_of(&Client::connect(&address, small()).unwrap()) == 0);
}

#[test]
fn an_opening_whose_server_dies_goes_to_the_next_one() {
    // Somebody takes connections and hangs up, as a server does that is killed after it accepted.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dying.sock");
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let address = path.display().to_string();
    std::thread::scope(|scope| {
        let options = ClientOptions { timeout: Some(LONG), ..small() };
        let client = scope.spawn(|| Client::connect(&address, options));
        for _ in 0..2 {
            drop(rustix::net::accept(&listener).unwrap());
        }
        let third = rustix::net::accept(&listener).unwrap();
        // Nobody is there any more: what the client has seen last counts.
        drop(listener);
        drop(third);
        let error = client.join().unwrap().err().unwrap();
        assert!(matches!(error, Error::PeerDied { .. }), "{error}");
    });
}
