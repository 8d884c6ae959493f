// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compatibility of node logs: one that an earlier release wrote opens, and the node goes on with it.
//!
//! - **Layout** `golden/log-VERSION.txt`: where its maps are (from version 5 on also a map whose entries expire), then the file's bytes, 32 to a line, in hexadecimal
//! - **Write** `MEMLIFT_GOLDEN=write cargo test -p memlift-traverse --test node golden_log::`, for a new version only: what is there is a promise
//! - **Not here** logs of versions 1 to 3: they are refused, in words (`docs/formats/node-log.md`)
#![forbid(unsafe_code)]

use crate::running::{Running, options};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memlift_traverse::client::Client;
use memlift_traverse::node::{Durability, Node, NodeOptions};
use memlift_traverse::structures::expiring::{Terms, Ttl};
use memlift_traverse::structures::{ExpiringMap, HashMap, OrderedMap, expiring, hash, ordered};

const KEYS: u64 = 40;
/// Versions that are read.
const VERSIONS: &[u32] = &[4, 5, 7];

/// Where the maps of a log are.
#[derive(Clone, Copy)]
struct Maps {
    names: hash::Handle,
    series: ordered::Handle,
    expiring: Option<expiring::Handle>,
}

/// Runs `work` as the client of a node with this log, and ends both.
fn with_node<R>(log: &Path, work: impl FnOnce(&mut Client, &Node) -> R) -> R {
    let options = NodeOptions { log: Some((log.to_owned(), Durability::Process)), ..options(4 << 20) };
    let node = Running::udp(None, options);
    work(&mut node.client(), &node.node)
}

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/log-{version}.txt"))
}

/// Entries that come, change and go, and both kinds of maps.
fn fill(client: &mut Client, version: u32) -> Maps {
    let mut names = HashMap::create(client, 3).expect("room");
    let mut series = OrderedMap::create(client, 8).expect("room");
    for key in 0..KEYS {
        names
            .insert(client, format!("name {key}").as_str(), &vec![key as u8; key as usize])
            .expect("inserted");
        series.insert(client, key * 10, &key.to_le_bytes()).expect("inserted");
    }
    for key in (0..KEYS).filter(|key| key % 4 == 0) {
        assert!(names.remove(client, format!("name {key}").as_str()).expect("removed"));
        assert!(series.remove(client, key * 10).expect("removed"));
    }
    names.insert(client, "name 1", b"changed").expect("changed");
    let expiring = (version >= 5).then(|| {
        let terms = Terms { ttl_s: 60, entries_max: 100, bytes_max: 1 << 20 };
        let map = ExpiringMap::create(client, 2, terms).expect("room");
        map.insert(client, 1_u64, b"gone by now", Ttl::Seconds(1)).expect("inserted");
        map.insert(client, "kept", b"for ever", Ttl::Never).expect("inserted");
        map.handle()
    });
    Maps { names: names.handle(), series: series.handle(), expiring }
}

fn check(client: &mut Client, node: &Node, maps: Maps) {
    let (mut names, mut series) = (HashMap::open(maps.names), OrderedMap::open(maps.series));
    if let Some(handle) = maps.expiring {
        assert_eq!(node.declared(), [(0, handle.terms, true)]);
        let map = ExpiringMap::open(client, handle).expect("it is there");
        assert_eq!(*map.terms(), Terms { ttl_s: 60, entries_max: 100, bytes_max: 1 << 20 });
        assert_eq!(map.get(client, 1_u64).expect("read"), None);
        assert_eq!(map.get(client, "kept").expect("read").as_deref(), Some(&b"for ever"[..]));
    }
    for key in 0..KEYS {
        let value = names.get(client, format!("name {key}").as_str()).expect("read");
        let wanted = match key {
            1 => Some(b"changed".to_vec()),
            _ if key % 4 == 0 => None,
            _ => Some(vec![key as u8; key as usize]),
        };
        assert_eq!(value, wanted, "name {key}");
        let value = series.get(client, key * 10).expect("read");
        assert_eq!(value, (key % 4 != 0).then(|| key.to_le_bytes().to_vec()), "{key}");
    }
    // The memory goes on: what is new fits beside what was there.
    names.insert(client, "new", &[7; 1000]).expect("inserted");
    series.insert(client, 5, &[9; 8]).expect("inserted");
}

fn packed(bytes: &[u8], maps: Maps) -> String {
    let Maps { names, series, expiring } = maps;
    let mut text = format!("{} {} {} {}", names.heads, names.log2, series.cell, series.value_bytes);
    if let Some(expiring::Handle { map, terms }) = expiring {
        write!(text, " {} {} {terms}", map.heads, map.log2).expect("a string takes all");
    }
    text.push('\n');
    for line in bytes.chunks(32) {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
        text.push('\n');
    }
    text
}

fn unpacked(text: &str) -> (Vec<u8>, Maps) {
    let mut lines = text.lines();
    let numbers: Vec<u64> =
        lines.next().expect("places").split(' ').map(|number| number.parse().expect("a number")).collect();
    let digits: String = lines.collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    let names = hash::Handle { heads: numbers[0], log2: numbers[1] as u32 };
    let series = ordered::Handle { cell: numbers[2], value_bytes: numbers[3] as usize };
    let expiring = numbers.get(6).map(|&terms| expiring::Handle {
        map: hash::Handle { heads: numbers[4], log2: numbers[5] as u32 },
        terms,
    });
    ((0..digits.len()).step_by(2).map(byte).collect(), Maps { names, series, expiring })
}

#[test]
fn logs_of_earlier_releases_open_and_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    if std::env::var("MEMLIFT_GOLDEN").as_deref() == Ok("write") {
        for version in VERSIONS.iter().filter(|version| !golden(**version).exists()) {
            let log = folder.path().join("new.log");
            let maps = with_node(&log, |client, _| fill(client, *version));
            // Entries that expire in the new file must be gone when it is read below.
            std::thread::sleep(Duration::from_secs(4));
            let bytes = std::fs::read(&log).expect("a log");
            assert_eq!(bytes[8..12], version.to_le_bytes());
            std::fs::write(golden(*version), packed(&bytes, maps)).expect("written");
        }
    }
    for version in VERSIONS {
        let text = std::fs::read_to_string(golden(*version)).expect("a golden log");
        let (bytes, maps) = unpacked(&text);
        assert_eq!(bytes[8..12], version.to_le_bytes());
        let log = folder.path().join(format!("{version}.log"));
        std::fs::write(&log, bytes).expect("written");
        with_node(&log, |client, node| check(client, node, maps));
        // Today's node has appended to it.
        with_node(&log, |client, _| {
            let mut names = HashMap::open(maps.names);
            assert_eq!(names.get(client, "new").expect("read"), Some(vec![7; 1000]));
        });
    }
}
