// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compatibility of packets: one of each kind as an earlier release sent it is read today, and today's release sends the same bytes.
//!
//! - **Layout** `golden/packets-VERSION.txt`: a line per packet, the kind's number and the packet's bytes in hexadecimal
//! - **Write** `MEMLIFT_GOLDEN=write cargo test -p memlift-traverse --test node wire_golden::` adds the kinds that are not there; a line that is
//!   there is a promise
//! - **Not here** packets of other versions: they are refused by name (`node/versions.rs`)
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memlift_spec::formats::packet::PACKET_VERSION;
use memlift_traverse::wire::{FLAG_SINCE, FLAG_WRITES, Header, Keys, Kind, Reply, Status};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/packets-{PACKET_VERSION}.txt"))
}

fn kinds() -> impl Iterator<Item = Kind> {
    (1..=u8::MAX).filter_map(Kind::from_byte)
}

/// A packet of this kind in which no two fields have the same value.
fn packet(kind: Kind) -> (Header, Vec<u8>) {
    let mut next = u64::from(kind as u8) << 8;
    let mut word = || {
        next += 1;
        next.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let sequence = word() >> 1;
    let body: Vec<u8> = (1..=40).collect();
    let header = Header {
        flags: FLAG_WRITES | FLAG_SINCE,
        status: if kind == Kind::Answer { Status::Applied } else { Status::Done },
        hops: 7,
        scratch_bytes: 1024,
        client: word(),
        incarnation: word() as u32,
        attempt: word() as u32,
        sequence,
        settled: sequence - 3,
        tenant: 2,
        iterations: word() as u32,
        epoch: word(),
        address: word(),
        value: word(),
        program: [word().to_le_bytes(), word().to_le_bytes()].concat().try_into().expect("16 bytes"),
        piece: 3,
        pieces: 9,
        reply: Reply::to("10.1.2.3:4567".parse().expect("an address")),
        sender: word(),
        nonce: word(),
        clock: word() as u32,
        cluster: word(),
        session: word(),
        ..Header::new(kind)
    };
    (header, body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

#[test]
fn packets_of_earlier_releases_are_read_and_sent_as_they_were() {
    let keys = Keys::none().with(2, [0x5a; 32]);
    let sent = |kind| {
        let (header, body) = packet(kind);
        let mut bytes = Vec::new();
        keys.seal(&header, &body, &mut bytes);
        bytes
    };
    let text = std::fs::read_to_string(golden()).unwrap_or_default();
    let line = |line: &str| {
        let (kind, digits) = line.split_once(' ').expect("a kind and a packet");
        (kind.parse::<u8>().expect("a number"), digits.to_owned())
    };
    let mut known: BTreeMap<u8, String> = text.lines().map(line).collect();
    if std::env::var("MEMLIFT_GOLDEN").as_deref() == Ok("write") {
        for kind in kinds() {
            known.entry(kind as u8).or_insert_with(|| hex(&sent(kind)));
        }
        let text: String = known.iter().map(|(kind, digits)| format!("{kind} {digits}\n")).collect();
        std::fs::write(golden(), text).expect("written");
    }
    assert_eq!(known.keys().copied().collect::<Vec<_>>(), kinds().map(|kind| kind as u8).collect::<Vec<_>>());
    for kind in kinds() {
        let digits = &known[&(kind as u8)];
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        assert_eq!(hex(&sent(kind)), *digits, "{kind:?} is sent as it was");
        let read = keys.open(&bytes).expect("it is read");
        let (header, body) = packet(kind);
        assert_eq!(
            (Header { flags: header.flags, ..read.header }, read.body),
            (header, &body[..]),
            "{kind:?}"
        );
    }
}
