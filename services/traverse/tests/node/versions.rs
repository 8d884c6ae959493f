// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes and clients of other versions of the packets: they are told so, and nothing of them is read as something else.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::node_world::{Weather, alone, small};
use memlift_spec::formats::packet::{KIND_ANSWER, PACKET_HEADER_BYTES, PACKET_VERSION, at};
use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::node::Counter;
use memlift_traverse::wire::{Header, Keys, Kind};

#[test]
fn a_node_answers_a_packet_of_another_version_with_its_own_and_does_nothing() {
    for version in [0, 1, PACKET_VERSION + 1, u8::MAX] {
        let (node, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
        let header = Header { value: 64, ..client.request(Kind::Allocate) };
        let free = node.writer().usage().free;
        let mut packet = Vec::new();
        Keys::none().seal(&header, &[0; 64], &mut packet);
        packet[at::VERSION] = version;
        client.send_bytes(&packet);
        shard.turn().expect("it serves");
        let heard = client.drain_bytes();
        assert_eq!(heard.len(), 1);
        assert_eq!(heard[0][..6], [b'M', b'L', b'P', b'K', PACKET_VERSION, KIND_ANSWER]);
        assert!(heard[0].len() <= packet.len(), "no longer than the request");
        assert_eq!(node.writer().usage().free, free, "nothing was allocated");
        assert_eq!(node.stats().read().get(Counter::Malformed), 1);
        // An answer of another version, and bytes too few for an answer of this one, are dropped.
        packet[at::KIND] = KIND_ANSWER;
        client.send_bytes(&packet);
        packet[at::KIND] = Kind::Read as u8;
        client.send_bytes(&packet[..PACKET_HEADER_BYTES - 1]);
        shard.turn().expect("it serves");
        assert!(client.drain_bytes().is_empty());
        assert_eq!(node.stats().read().get(Counter::Malformed), 3);
    }
}

#[test]
fn a_client_says_which_node_has_which_version() {
    for version in [1, PACKET_VERSION + 1] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let place = socket.local_addr().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // Sends what a node of that version would send: its own version, whatever came.
        let node = std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((_, from)) = socket.recv_from(&mut bytes) else { continue };
                let mut answer = Vec::new();
                Header { sequence: 1, ..Header::new(Kind::Answer) }.format(&[], &mut answer);
                answer[at::VERSION] = version;
                let _ = socket.send_to(&answer, from);
            }
        });
        let config = Config { deadline: Duration::from_millis(300), ..Config::default() };
        let error = Client::udp(&[place], config).expect_err("it cannot be spoken with");
        stop.store(true, Ordering::Relaxed);
        node.join().expect("no panic");
        let text = error.to_string();
        assert!(
            matches!(error, ClientError::OtherVersion { version: told, own, .. } if (told, own) == (version, PACKET_VERSION)),
            "{text}"
        );
        assert!(text.contains(&place.to_string()) && text.contains("update the older side"), "{text}");
    }
}
