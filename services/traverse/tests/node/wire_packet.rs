// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets of any content come out of their bytes as they went in; bytes of any content are refused or come out the same.
#![forbid(unsafe_code)]

use memlift_traverse::wire::{
    ApplyOperands, FLAG_AUTHENTICATED, FLAG_CONFIRMED, FLAG_CONTINUED, FLAG_SINCE, FLAG_STALE, FLAG_WRITES,
    Header, Keys, Kind, PACKET_BYTES_FRAME, PACKET_BYTES_MAX, Packet, PacketError, Reply, Status, used,
};
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = Header> {
    let numbers = prop::array::uniform8(any::<u64>());
    let kind = prop_oneof![1u8..=13, 16u8..=18].prop_map(|byte| Kind::from_byte(byte).expect("a kind"));
    (kind, any::<u8>(), numbers, any::<[u8; 16]>(), any::<[u8; 16]>(), 1u64..u64::MAX, any::<u16>()).prop_map(
        |(kind, hops, numbers, program, address, sequence, port)| Header {
            flags: [0, FLAG_WRITES, FLAG_CONTINUED, FLAG_SINCE, FLAG_CONFIRMED, FLAG_STALE]
                [usize::from(port) % 6],
            status: Status::from_byte(hops % 22).expect("below 22"),
            hops,
            client: numbers[0],
            incarnation: numbers[1] as u32,
            attempt: (numbers[1] >> 32) as u32,
            sequence,
            settled: numbers[2] % sequence,
            tenant: (numbers[2] >> 32) as u32 % 3,
            iterations: numbers[3] as u32,
            epoch: numbers[4],
            address: numbers[5],
            value: numbers[6],
            program,
            piece: (numbers[7] as u32) % 9,
            pieces: 9 + (numbers[7] >> 40) as u32,
            reply: Reply { address, port },
            sender: numbers[0].rotate_left(7),
            nonce: numbers[3].rotate_left(9),
            clock: numbers[4] as u32,
            cluster: numbers[5].rotate_left(11),
            session: numbers[6].rotate_left(13),
            ..Header::new(kind)
        },
    )
}

/// A header and a body that belong together.
fn any_packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    (any_header(), prop::collection::vec(any::<u8>(), 0..1200)).prop_map(|(mut header, mut body)| {
        if matches!(header.kind, Kind::Apply | Kind::Decided) && body.len() < 32 {
            body.resize(32, 7);
        }
        header.scratch_bytes = body.len() as u16;
        (header, body)
    })
}

fn keys() -> Keys {
    Keys::none().with(0, [1; 32]).with(1, [2; 32]).with(2, [3; 32])
}

proptest! {
    #[test]
    fn what_went_in_comes_out((header, body) in any_packet(), authenticated: bool) {
        let keys = if authenticated { keys() } else { Keys::none() };
        let mut bytes = vec![0xee; 3];
        keys.seal(&header, &body, &mut bytes);
        let bytes = &bytes[3..];
        prop_assert!(bytes.len() <= PACKET_BYTES_MAX);
        let packet = keys.open(bytes).expect("just made");
        let flags = if authenticated { header.flags | FLAG_AUTHENTICATED } else { header.flags };
        prop_assert_eq!(packet.header, Header { flags, ..header });
        prop_assert_eq!(packet.body, &body[..]);
    }

    #[test]
    fn a_packet_that_was_cut_or_is_longer_is_refused((header, body) in any_packet(), cut in 0usize..1400, authenticated: bool) {
        let keys = if authenticated { keys() } else { Keys::none() };
        let mut bytes = Vec::new();
        keys.seal(&header, &body, &mut bytes);
        prop_assert!(Packet::parse(&bytes[..cut % bytes.len()]).is_err());
        bytes.push(0);
        prop_assert!(Packet::parse(&bytes).is_err());
    }

    #[test]
    fn with_a_key_no_bit_can_be_changed((header, body) in any_packet(), bit in any::<usize>()) {
        let keys = keys();
        let mut bytes = Vec::new();
        keys.seal(&header, &body, &mut bytes);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(keys.open(&bytes).is_err());
    }

    #[test]
    fn without_a_key_a_changed_bit_gives_another_packet_or_none((header, body) in any_packet(), bit in any::<usize>()) {
        let mut bytes = Vec::new();
        header.format(&body, &mut bytes);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = Vec::new();
            packet.header.format(packet.body, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_bytes_at_all_are_refused_or_are_a_packet(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if bytes.len() > 5 {
            bytes[..5].copy_from_slice(b"MLPK\x01");
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = Vec::new();
            packet.header.format(packet.body, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

#[test]
fn a_walk_with_one_kibibyte_fits_into_every_frame() {
    let mut bytes = Vec::new();
    let header = Header { scratch_bytes: 1024, sequence: 1, ..Header::new(Kind::Apply) };
    let body = [&ApplyOperands::default().bytes()[..], &[9; 1024]].concat();
    keys().seal(&header, &body, &mut bytes);
    assert!(bytes.len() <= PACKET_BYTES_FRAME, "{} bytes", bytes.len());
}

#[test]
fn only_the_scratchpad_before_the_zeros_travels() {
    assert_eq!(used(&[0, 1, 0, 2, 0, 0]), [0, 1, 0, 2]);
    assert!(used(&[0; 8]).is_empty());
}

#[test]
fn each_field_that_cannot_be_is_named() {
    let header = Header { sequence: 5, settled: 2, scratch_bytes: 8, ..Header::new(Kind::Walk) };
    let mut good = Vec::new();
    header.format(&[1, 2, 3], &mut good);
    assert!(Packet::parse(&good).is_ok());
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Packet::parse(&bytes).map(|_| ()).expect_err("a field that cannot be")
    };
    assert_eq!(changed(0, b'X'), PacketError::Magic);
    assert_eq!(changed(4, 1), PacketError::Version(1));
    assert_eq!(changed(5, 0), PacketError::Field("kind"));
    assert_eq!(changed(7, 0x80), PacketError::Field("flags"));
    assert_eq!(changed(8, 1), PacketError::Field("packet bytes"));
    assert_eq!(changed(12, 2), PacketError::Field("scratchpad bytes"));
    assert_eq!(changed(13, 0x7f), PacketError::Field("scratchpad bytes"));
    assert_eq!(changed(14, 0x7f), PacketError::Field("status"));
    assert_eq!(changed(32, 0), PacketError::Field("sequence"));
    assert_eq!(changed(40, 6), PacketError::Field("sequence"));
    assert_eq!(changed(6, 4), PacketError::Field("reply port"));
    assert_eq!(changed(123, 1), PacketError::Field("reserved"));
    let (tenant, mut sealed) = (9, Vec::new());
    Header { tenant, ..header }.format(&[1], &mut sealed);
    assert_eq!(keys().open(&sealed).expect_err("no such tenant"), PacketError::Forged(9));
}
