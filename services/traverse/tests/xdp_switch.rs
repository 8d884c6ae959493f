// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch in the kernel, between a client and two nodes in network namespaces of their own.
//!
//! - **Needs** root, `ip` (iproute2) and a kernel that lets XDP be loaded; without one of them the test says so and is skipped
//! - **Owner** each test makes its namespaces, named by the process, and removes them, also when it fails
#![cfg(feature = "xdp")]

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use memlift_spec::formats::packet::{KIND_ANSWER, KIND_WALK, PACKET_HEADER_BYTES, PACKET_MAGIC, at};
use memlift_traverse::map::{Address, Map, Node, NodeId, Permissions, Range, State};
use memlift_traverse::xdp::Switch;
use memlift_traverse::xdp::lab::{Lab, SERVICE, ip_of};

/// Beside this file, wherever the crate is.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/xdp/switch.c");
const HOSTS: [&str; 3] = ["client", "a", "b"];

fn socket(lab: &Lab, index: usize) -> UdpSocket {
    let bind = || UdpSocket::bind((ip_of(index), SERVICE.port()));
    let socket = lab.within(HOSTS[index], bind).expect("entered").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    socket
}

fn walk(kind: u8, address: u64, sequence: u64) -> Vec<u8> {
    let mut packet = vec![0; PACKET_HEADER_BYTES];
    packet[..4].copy_from_slice(&PACKET_MAGIC);
    packet[at::KIND] = kind;
    packet[at::SEQUENCE..at::SEQUENCE + 8].copy_from_slice(&sequence.to_le_bytes());
    packet[at::ADDRESS..at::ADDRESS + 8].copy_from_slice(&address.to_le_bytes());
    packet
}

fn map(epoch: u64, owners: &[(u64, u16)]) -> Map {
    let node = |id: u16| Node {
        id: NodeId(id),
        name: HOSTS[usize::from(id) + 1].to_owned(),
        addresses: vec![Address::Udp(SocketAddr::new(ip_of(usize::from(id) + 1).into(), 7700))],
        incarnation: 0,
        state: State::Up,
    };
    let permissions = Permissions::READ_WRITE;
    let ranges = owners.iter().map(|(base, owner)| {
        let owner = Some(NodeId(*owner));
        Range { base: *base, bytes: 1 << 20, owner, since: 1, permissions, tenant: 0 }
    });
    Map::new(epoch, vec![node(0), node(1)], ranges.collect()).expect("a map")
}

fn heard(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = [0; 2048];
    let (count, from) = socket.recv_from(&mut bytes).expect("a packet within ten seconds");
    (bytes[..count].to_vec(), from)
}

#[test]
fn a_walk_goes_from_node_to_node_without_coming_back() {
    let lab = match Lab::start("s", &HOSTS) {
        Ok(lab) => lab,
        Err(why) => return println!("skipped: {why}"),
    };
    let (mut switch, _passes) = match lab.attach() {
        Ok(attached) => attached,
        Err(why) => return println!("skipped: {why}"),
    };
    const A: u64 = 1 << 32;
    const B: u64 = 2 << 32;
    switch.update(&map(1, &[(A, 0), (A + (1 << 20), 0), (B, 1)])).expect("taken");
    let (client, a, b) = (socket(&lab, 0), socket(&lab, 1), socket(&lab, 2));

    // Four crossings: client → a → b → a → b → client. Six packets, six passes, as k + 2 with peers that know the map.
    let before = switch.counts().expect("read");
    client.send_to(&walk(KIND_WALK, A + (3 << 19), 7), SERVICE).expect("sent");
    for (at_node, next) in [(&a, B), (&b, A), (&a, B + 4096)] {
        let (packet, from) = heard(at_node);
        assert_eq!(packet[at::SEQUENCE], 7);
        assert!(from.ip() != SocketAddr::from(SERVICE).ip(), "whoever sent it can be answered: {from}");
        at_node.send_to(&walk(KIND_WALK, next, 7), SERVICE).expect("sent");
    }
    let (_, from) = heard(&b);
    assert_eq!(from.ip(), ip_of(1), "the node that sent it on");
    b.send_to(&walk(KIND_ANSWER, 0, 7), (ip_of(0), 7700)).expect("sent");
    let (answer, from) = heard(&client);
    assert_eq!((answer[at::KIND], from.ip()), (KIND_ANSWER, ip_of(2).into()));
    let after = switch.counts().expect("read");
    assert_eq!((after.walks - before.walks, after.hosts - before.hosts, after.stray), (4, 1, 0));

    // A range that moved is the other node's with the next map; an older map changes nothing.
    switch.update(&map(3, &[(A, 1), (B, 1)])).expect("taken");
    switch.update(&map(2, &[(A, 0), (B, 0)])).expect("older");
    client.send_to(&walk(KIND_WALK, A, 8), SERVICE).expect("sent");
    assert_eq!(heard(&b).0[at::SEQUENCE], 8);

    // Nobody's address: one node hears of it and can say so. What is no walk is not sent anywhere.
    client.send_to(&walk(KIND_WALK, 42, 9), SERVICE).expect("sent");
    assert_eq!(heard(&b).0[at::SEQUENCE], 9);
    for hostile in [&b"MLPK"[..], &[0; 200], &walk(KIND_WALK, A, 10)[..71], b""] {
        client.send_to(hostile, SERVICE).expect("sent");
    }
    client.send_to(&walk(KIND_WALK, A, 11), SERVICE).expect("sent");
    assert_eq!(heard(&b).0[at::SEQUENCE], 11);
    let last = switch.counts().expect("read");
    assert_eq!((last.walks - after.walks, last.stray), (2, 1));
    assert!(last.passed >= after.passed + 4);
}

#[test]
fn a_map_that_a_switch_cannot_hold_is_refused() {
    let lab = match Lab::start("m", &HOSTS) {
        Ok(lab) => lab,
        Err(why) => return println!("skipped: {why}"),
    };
    let ports = lab.ports().expect("three")[1..].to_vec();
    let attached = lab.within("switch", || Switch::attach(&["p1"], SERVICE, &ports)).expect("entered");
    let mut switch = match attached {
        Ok(switch) => switch,
        Err(why) => return println!("skipped: {why}"),
    };
    let owners: Vec<(u64, u16)> = (1..=300).map(|index| (index << 20, (index % 2) as u16)).collect();
    assert!(switch.update(&map(1, &owners)).expect_err("too many").to_string().contains("300 ranges"));
    switch.update(&map(1, &owners[..256])).expect("as many as fit");
    let other = Node {
        addresses: vec![Address::resolve("10.77.0.9:7700").expect("an address")],
        ..map(1, &[]).nodes()[0].clone()
    };
    let stranger = Map::new(9, vec![other], map(1, &[(1 << 20, 0)]).ranges().to_vec()).expect("a map");
    assert!(switch.update(&stranger).expect_err("no port").to_string().contains("behind this switch"));
}

#[test]
fn the_object_is_what_clang_makes_of_its_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let version =
        Command::new("clang").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).into_owned();
    if !version.contains("clang version 14.") {
        return println!("skipped: clang 14 is not installed (sudo apt install clang-14)");
    }
    let object = folder.path().join("switch.o");
    let flags = "-O2 -g0 -target bpf -mcpu=v2 -ffreestanding -nostdinc -Wall -Werror -c switch.c -o";
    let status = Command::new("clang")
        .current_dir(std::path::Path::new(SOURCE).parent().expect("a folder"))
        .args(flags.split(' '))
        .arg(&object)
        .status();
    assert!(status.expect("clang runs").success());
    let committed = std::fs::read(SOURCE.replace("switch.c", "switch.o")).expect("committed");
    assert!(
        std::fs::read(&object).expect("made") == committed,
        "switch.o is not of this switch.c: {flags} switch.o"
    );
}
