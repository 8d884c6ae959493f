// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Range maps of walks at hostile bytes: maps, entries, what coordinators and migrations say, map files.
//!
//! - **Order** what decodes encodes to the same bytes; every lookup gives an answer; every change of a map that decoded is refused or
//!   gives a map that decodes again
//! - **Layout** what it is u8, bit 7: length and checksum are made good, as somebody hostile would · the bytes

use std::path::Path;

use memlift_offload::Engine;
use memlift_traverse::map::message::{Answer, Request};
use memlift_traverse::map::migrate::Message;
use memlift_traverse::map::{Address, Cursor, Entry, Join, Map, MapError, Order, Source, State, file};

use crate::Input;

fn forge_map(bytes: &mut [u8]) {
    if bytes.len() >= 32 {
        let count = bytes.len() as u32;
        bytes[12..16].copy_from_slice(&count.to_le_bytes());
        let crc = Engine::global().crc32c(&bytes[12..], 0);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

fn join(name: &str, port: u16) -> Join {
    let addresses = vec![Address::resolve(&format!("127.9.9.9:{port}")).expect("an address")];
    Join {
        name: name.to_owned(),
        addresses,
        incarnation: 99,
        bytes: 1 << 20,
        recovered: false,
        epoch: 0,
        tenant: 0,
        cluster: 0,
    }
}

fn sound(map: &Map) {
    let bytes = map.encode();
    assert_eq!(&Map::decode(&bytes).expect("its own bytes"), map);
    let mut cursor = Cursor::default();
    let mut end = 0;
    for range in map.ranges() {
        assert!(range.base >= end, "sorted, none overlapping");
        end = range.end();
        for address in [range.base - 1, range.base, range.end() - 1, range.end(), 0, u64::MAX] {
            assert_eq!(cursor.find(map, address), map.ranges().iter().find(|range| range.contains(address)));
            let _ = map.node_of(address).map_err(|error| error.to_string());
        }
        assert!(
            Entry::of(map, range.base)
                .is_some_and(|entry| Entry::decode(&entry.encode()).is_ok_and(|same| same == entry))
        );
    }
}

fn changes(map: &Map) {
    let next = |changed: Result<Map, MapError>| {
        if let Ok(later) = changed {
            assert!(later.epoch() >= map.epoch());
            sound(&later);
            let _ = later.since(map).to_string();
        }
    };
    next(map.join(&join("newcomer", 1)).map(|(map, _)| map));
    for node in map.nodes().iter().take(8) {
        next(map.down(node.id, node.incarnation));
        next(map.forget(&node.name));
        next(map.join(&join(&node.name, 2)).map(|(map, _)| map));
        if node.state == State::Up {
            for range in map.ranges().iter().take(4) {
                let plan = Order::Plan { base: range.base, bytes: 4096, to: node.name.clone() };
                let Ok((planned, id)) = plan.carry_out(map) else { continue };
                sound(&planned);
                next(planned.commit(id));
                next(planned.cancel(id));
            }
        }
    }
    for one in map.moves() {
        next(map.commit(one.id));
        next(map.cancel(one.id));
    }
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    let mut bytes = input.rest().to_vec();
    let forged = what & 0x80 != 0;
    match what & 0x7f {
        0 | 1 => {
            if forged {
                forge_map(&mut bytes);
            }
            if let Ok(entry) = Entry::decode(&bytes) {
                assert_eq!(entry.encode(), bytes);
            }
            if let Ok(map) = Map::decode(&bytes) {
                assert_eq!(map.encode(), bytes);
                sound(&map);
                changes(&map);
            }
        }
        2 => {
            if let Ok(request) = Request::decode(&bytes) {
                assert_eq!(request.encode(), bytes);
            }
        }
        3 => {
            if let Ok(answer) = Answer::decode(&bytes) {
                assert_eq!(answer.encode(), bytes);
            }
        }
        4 => {
            if forged && bytes.len() >= 4 {
                let crc = Engine::global().crc32c(&bytes[4..], 0);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(message) = Message::decode(&bytes) {
                assert_eq!(message.encode(), bytes);
            }
        }
        5 => {
            let text = String::from_utf8_lossy(&bytes);
            match file::parse(&text, Path::new("map.toml")) {
                Ok(map) => {
                    sound(&map);
                    assert!(file::parse(&file::print(&map), Path::new("printed")).is_ok());
                }
                Err(MapError::Text { line, .. }) => assert!(line >= 1 && line <= text.lines().count() + 1),
                Err(other) => panic!("{other}"),
            }
        }
        _ => {
            let _ = Source::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| error.to_string());
        }
    }
}

const FILE: &str = "epoch = 4\n[[node]]\nname = \"a\"\naddresses = [\"127.0.0.1:7700\", \"shm:/run/a\"]\n[[range]]\nbase = \"0x100000000\"\nbytes = \"1G\"\nnode = \"a\"\npermissions = \"r\"\ntenant = 3\n[[range]]\nbase = 4096\nbytes = \"64K\"\nnode = \"a\"\n";

/// One of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let (map, _) = Map::empty().join(&join("a", 7)).expect("joined");
    let (map, b) = map.join(&join("b", 8)).expect("joined");
    let base = map.ranges()[0].base;
    let (planned, id) = map.plan(base, 8192, "b").expect("planned");
    let moved = planned.commit(id).expect("committed");
    let lost = moved.down(b, 99).expect("down").forget("b").expect("forgotten");
    let mut seeds = Vec::new();
    for map in [&Map::empty(), &map, &planned, &moved, &lost] {
        for kind in [0, 0x80] {
            seeds.push([&[kind][..], &map.encode()].concat());
        }
        if let Some(entry) = Entry::of(map, base) {
            seeds.push([&[0x81][..], &entry.encode()].concat());
        }
        seeds.push([&[3][..], &Answer::Map(map.clone(), 7, 5000).encode()].concat());
    }
    let orders = [
        Order::Plan { base, bytes: 4096, to: "b".to_owned() },
        Order::Commit(id),
        Order::Forget("b".to_owned()),
        Order::Leave(b, 99),
    ];
    let mut requests =
        vec![Request::Read, Request::Wait(3, 100), Request::Join(join("c", 9)), Request::Renew(b, 99)];
    requests.extend(orders.map(Request::Order));
    seeds.extend(requests.iter().map(|request| [&[2][..], &request.encode()].concat()));
    seeds.push([&[3][..], &Answer::Refused("no".to_owned()).encode()].concat());
    let messages = [
        Message::Offer { id, base, bytes: 8192 },
        Message::Piece { id, index: 3, version: 300, bytes: vec![7; 1024] },
        Message::Piece { id, index: 3, version: 1, bytes: vec![] },
        Message::Record { id, index: 0, total: 2, bytes: vec![1; 32] },
        Message::Seal { id, records: 2 },
        Message::Refuse { id, why: "full".to_owned() },
        Message::Got { id, pieces: vec![(1, 2), (3, 400)] },
        Message::Sealed { id },
    ];
    seeds.extend(messages.iter().map(|message| [&[0x84][..], &message.encode()].concat()));
    seeds.push([&[5][..], FILE.as_bytes()].concat());
    for text in [
        "coordinator:127.0.0.1:7600",
        "coordinator:unix:/run/c",
        "etcd:http://h:2379,http://i:1/a",
        "file:map.toml",
    ] {
        seeds.push([&[6][..], text.as_bytes()].concat());
    }
    seeds
}
