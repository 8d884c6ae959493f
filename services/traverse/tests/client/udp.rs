// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams over sockets: what is sent in trains and alone, to several peers, comes whole, once and in order.

use std::time::Duration;

use memlift_spec::formats::packet::{PACKET_BYTES_FRAME, PACKET_BYTES_MAX};
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::transport::{Peer, Transport};

fn socket() -> Udp {
    Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port")
}

/// Everything that comes until `count` datagrams are there, handed out `most` at a time.
fn heard(socket: &mut Udp, count: usize, most: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut quiet = 0;
    while all.len() < count && quiet < 100 {
        let got = socket.receive(most, &mut |_, bytes| all.push(bytes.to_vec())).expect("a socket");
        assert!(got <= most, "{got} datagrams, {most} at most");
        if got == 0 {
            quiet += 1;
            socket.wait(Duration::from_millis(50)).expect("a socket");
        }
    }
    all
}

fn datagram(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (seed * 31 + at * 7) as u8).collect()
}

#[test]
fn trains_and_single_datagrams_come_whole_once_and_in_order() {
    let [mut from, mut first, mut second] = [socket(), socket(), socket()];
    // Runs of one length, a shorter one behind them, lengths that change each time, the longest, and two peers in turn.
    let mut lengths = vec![168; 150];
    lengths.extend([40, 168, 168, 1, 2, 3, 3, 3, 2, PACKET_BYTES_FRAME, PACKET_BYTES_FRAME, 5, 168]);
    lengths.extend([PACKET_BYTES_MAX, PACKET_BYTES_MAX, PACKET_BYTES_FRAME + 1, 144]);
    for (most, apart) in [(64, false), (7, false), (1, true)] {
        let mut sent = [Vec::new(), Vec::new()];
        for (seed, &bytes) in lengths.iter().enumerate() {
            let to = if apart { seed % 2 } else { usize::from(seed % 50 > 40) };
            let address = [&first, &second][to].address();
            let packet = datagram(seed, bytes);
            assert!(from.send(Peer::Socket(address), &packet).expect("a socket"));
            sent[to].push(packet);
        }
        from.flush().expect("a socket");
        assert!(heard(&mut first, sent[0].len(), most) == sent[0], "{most} at a time");
        assert!(heard(&mut second, sent[1].len(), most) == sent[1], "{most} at a time");
        // It would be there: both sockets are of this machine.
        assert_eq!(first.receive(64, &mut |_, _| ()).expect("a socket"), 0, "nothing more came");
    }
}

#[test]
fn what_is_too_long_is_not_sent_and_nobody_else_loses_by_it() {
    let [mut from, mut to] = [socket(), socket()];
    let peer = Peer::Socket(to.address());
    let gone = socket().address();
    for seed in 0..3 {
        assert!(from.send(peer, &datagram(seed, 200)).expect("a socket"));
        assert!(!from.send(peer, &datagram(seed, PACKET_BYTES_MAX + 1)).expect("a socket"));
        assert!(from.send(Peer::Socket(gone), &datagram(seed, 200)).expect("a socket"));
    }
    from.flush().expect("a socket");
    let expected: Vec<_> = (0..3).map(|seed| datagram(seed, 200)).collect();
    assert_eq!(heard(&mut to, 3, 64), expected);
}

#[test]
fn a_datagram_longer_than_any_packet_is_dropped() {
    let mut to = socket();
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    plain.send_to(&datagram(1, PACKET_BYTES_MAX + 1), to.address()).expect("sent");
    plain.send_to(&datagram(2, PACKET_BYTES_MAX), to.address()).expect("sent");
    plain.send_to(&[], to.address()).expect("sent");
    plain.send_to(&datagram(3, 9), to.address()).expect("sent");
    assert_eq!(heard(&mut to, 3, 64), [datagram(2, PACKET_BYTES_MAX), Vec::new(), datagram(3, 9)]);
}
