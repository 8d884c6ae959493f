// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for a server, and another session after its end.
//!
//! - **Goal** a wait ends when the server is there, and by its time when it is not; the error names the address
//! - **Method** servers that start while a client waits; a socket on which nobody accepts

use crate::{server, small, unique};
use memlift_ipc::{Client, ClientOptions, Error, ServerOptions};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(60);

fn waiting(wait: Duration) -> ClientOptions {
    ClientOptions { server_wait: Some(wait), ..small() }
}

#[test]
fn a_client_waits_for_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.sock").display().to_string();
    for address in [unique("later"), path] {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| Client::connect(&address, waiting(LONG)));
            std::thread::sleep(SHORT);
            let _server = server(&address, ServerOptions::default());
            let client = client.join().unwrap().unwrap();
            assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
        });
        assert!(begun.elapsed() >= SHORT);
    }
}

#[test]
fn a_wait_for_nobody_ends_in_time_and_names_the_address() {
    // A listener that nobody serves: the kernel connects, and no greeting is answered.
    let folder = tempfile::tempdir().unwrap();
    let stopped = folder.path().join("stopped.sock");
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&stopped).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    for address in [unique("never"), stopped.display().to_string()] {
        let begun = Instant::now();
        let error = Client::connect(&address, waiting(SHORT)).err().unwrap();
        let took = begun.elapsed();
        assert!(matches!(error, Error::ServerUnavailable { .. }), "{error}");
        assert!(error.to_string().contains(&address), "{error}");
        assert!((SHORT..LONG / 2).contains(&took), "{took:?}");
    }
}

#[test]
fn a_session_is_opened_anew_when_the_server_is_back() {
    let address = unique("back");
    let first = server(&address, ServerOptions::default());
    let client = Client::connect(&address, small()).unwrap();
    drop(first);
    let error = client.call("echo", b"x".as_slice(), Some(LONG)).err().unwrap();
    assert!(matches!(error, Error::PeerDied { .. }), "{error}");
    std::thread::scope(|scope| {
        let again = scope.spawn(|| client.reconnect(LONG));
        std::thread::sleep(SHORT);
        let _second = server(&address, ServerOptions::default());
        let again = again.join().unwrap().unwrap();
        assert!(!again.is_same(&client));
        assert_eq!(again.call("echo", b"y".as_slice(), None).unwrap().to_vec(), b"y");
    });
}
