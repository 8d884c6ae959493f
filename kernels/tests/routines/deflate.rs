// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages through `Packer` and `Unpacker`: every size, every format, every effort, hostile input.
#![cfg(feature = "deflate")]

use memlift_kernels::Isa;
use memlift_kernels::deflate::{Effort, Format, Packer, TargetTooSmall, UnpackError, Unpacker, bound};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

const FORMATS: [Format; 3] = [Format::Raw, Format::Zlib, Format::Gzip];
const EFFORTS: [Effort; 3] = [Effort::Fast, Effort::Default, Effort::Small];

fn noise(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn text(bytes: usize) -> Vec<u8> {
    let words =
        ["<p>", "</p>\n", "the ", "memory ", "class=\"", "of ", "a ", "page ", "href=\"#", "\">", "and "];
    let order = noise(bytes + 1, 7);
    order.iter().flat_map(|&pick| words[pick as usize % words.len()].bytes()).take(bytes).collect()
}

/// Text, numbers, zeros, noise and what was there before, by turns: each asks for another search.
fn patchwork(bytes: usize) -> Vec<u8> {
    let (text, noise) = (text(30_000), noise(30_000, 5));
    let numbers: Vec<u8> = (0..8192u32).flat_map(|n| (n * 7 + n * n % 301).to_le_bytes()).collect();
    let mut message = Vec::new();
    for round in 0.. {
        for piece in
            [&text[..], &numbers, &[0; 60_000], &noise, &text[7..20_007], &[7; 300], &numbers[..9_000]]
        {
            message.extend(piece);
            if message.len() >= bytes {
                message.truncate(bytes);
                return message;
            }
        }
        message.push(round as u8);
    }
    message
}

fn messages(bytes: usize) -> Vec<Vec<u8>> {
    let period: Vec<u8> = noise(300, 3).into_iter().cycle().take(bytes).collect();
    vec![vec![0; bytes], vec![b'x'; bytes], noise(bytes, bytes as u64), text(bytes), period, patchwork(bytes)]
}

#[test]
fn every_message_comes_back() {
    let (mut packer, mut unpacker) = (Packer::new(), Unpacker::new());
    let sizes = (0..=80).chain((81..5000).step_by(97)).chain([
        16384,
        24575,
        24576,
        24577,
        32767,
        32768,
        32769,
        57344,
        65535,
        65536,
        65537,
        200_000,
        1 << 20,
    ]);
    for bytes in sizes {
        for message in messages(bytes) {
            for format in FORMATS {
                for effort in EFFORTS {
                    let mut packed = vec![0; bound(format, bytes)];
                    let used = packer.pack(format, effort, &message, &mut packed).expect("bound is enough");
                    let mut again = vec![0; bytes];
                    let unpacked = unpacker.unpack(format, &packed[..used], &mut again).expect("valid");
                    assert_eq!((unpacked.read, unpacked.written), (used, bytes));
                    assert!(again == message, "{format:?} {effort:?} {bytes}");
                }
            }
        }
    }
}

#[test]
fn repeats_at_the_very_start_come_back() {
    let (mut packer, mut unpacker) = (Packer::new(), Unpacker::new());
    let noise = noise(7000, 2);
    for period in 1..=16 {
        for run in 3..=70 {
            let repeated: Vec<u8> = noise[..period].iter().copied().cycle().take(period + run).collect();
            for rest in [100, 6900] {
                let message = [&repeated[..], &noise[100..100 + rest]].concat();
                for effort in [Effort::Fast, Effort::Default] {
                    let mut packed = vec![0; bound(Format::Raw, message.len())];
                    let used =
                        packer.pack(Format::Raw, effort, &message, &mut packed).expect("bound is enough");
                    let mut again = vec![0; message.len()];
                    unpacker.unpack(Format::Raw, &packed[..used], &mut again).expect("valid");
                    assert!(again == message, "{effort:?} {period} {run}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_writes_the_same() {
    let mut packers: Vec<Packer> =
        Isa::ALL.into_iter().filter(|isa| isa.available()).map(Packer::for_isa).collect();
    for bytes in [0, 1, 39, 40, 41, 100, 1000, 4096, 6144, 6145, 16384, 100_000] {
        for message in messages(bytes) {
            for effort in EFFORTS {
                let mut packed: Vec<Vec<u8>> = packers
                    .iter_mut()
                    .map(|packer| {
                        let mut target = vec![0; bound(Format::Zlib, bytes)];
                        let used = packer
                            .pack(Format::Zlib, effort, &message, &mut target)
                            .expect("bound is enough");
                        target.truncate(used);
                        target
                    })
                    .collect();
                packed.dedup();
                assert_eq!(packed.len(), 1, "{effort:?} {bytes}");
            }
        }
    }
}

#[test]
fn a_target_that_is_too_small_is_refused_and_its_end_is_kept() {
    let mut packer = Packer::new();
    for bytes in [0, 3, 50, 700, 5000, 40_000] {
        for message in messages(bytes) {
            for format in FORMATS {
                for effort in EFFORTS {
                    let mut target = vec![0; bound(format, bytes) + 64];
                    let used = packer.pack(format, effort, &message, &mut target).expect("bound is enough");
                    let step = (used / 40).max(1);
                    for room in (0..used + 12).step_by(step).chain([used - 1, used]) {
                        target.fill(0xA5);
                        let result = packer.pack(format, effort, &message, &mut target[..room]);
                        assert!(target[room..].iter().all(|&byte| byte == 0xA5), "wrote past {room}");
                        match result {
                            Ok(again) => assert!(again <= room),
                            Err(TargetTooSmall) => assert!(room < bound(format, bytes)),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn other_inflates_read_it() {
    let mut packer = Packer::new();
    for bytes in [0, 1, 300, 4096, 30_000, 200_000] {
        for message in messages(bytes) {
            for effort in EFFORTS {
                let mut packed = vec![0; bound(Format::Zlib, bytes)];
                let used = packer.pack(Format::Zlib, effort, &message, &mut packed).expect("bound is enough");
                let mut again = vec![0; bytes];
                let (read, code) = zlib_rs::decompress_slice(&mut again, &packed[..used], Default::default());
                assert_eq!(code, zlib_rs::ReturnCode::Ok);
                assert!(*read == *message);
            }
        }
    }
}

#[test]
fn corrupt_and_cut_streams_never_write_past_the_target() {
    let mut packer = Packer::new();
    let mut unpacker = Unpacker::new();
    let message = text(3000);
    for format in FORMATS {
        let mut packed = vec![0; bound(format, message.len())];
        let used = packer.pack(format, Effort::Default, &message, &mut packed).expect("bound is enough");
        packed.truncate(used);
        let mut target = vec![0xA5; 3064];
        for cut in 0..used {
            let result = unpacker.unpack(format, &packed[..cut], &mut target[..3000]);
            assert!(result.is_err(), "{format:?} cut at {cut}");
        }
        for room in [0, 1, 2999] {
            let result = unpacker.unpack(format, &packed, &mut target[..room]);
            assert_eq!(result, Err(UnpackError::TargetTooSmall));
            assert!(target[3000..].iter().all(|&byte| byte == 0xA5));
        }
        for at in 0..used {
            for bit in [0, 3, 7] {
                let mut corrupt = packed.clone();
                corrupt[at] ^= 1 << bit;
                if let Ok(unpacked) = unpacker.unpack(format, &corrupt, &mut target[..3000]) {
                    assert!(unpacked.written <= 3000 && unpacked.read <= used);
                }
                assert!(target[3000..].iter().all(|&byte| byte == 0xA5));
            }
        }
    }
}

#[test]
fn markup_is_as_small_as_promised() {
    let mut packer = Packer::new();
    let message = text(16384);
    let mut target = vec![0; bound(Format::Raw, message.len())];
    let mut size = |effort| packer.pack(Format::Raw, effort, &message, &mut target).expect("bound is enough");
    let (fast, default, small) = (size(Effort::Fast), size(Effort::Default), size(Effort::Small));
    assert!(small <= default && default <= fast, "{small} {default} {fast}");
    assert!(fast < message.len() / 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_come_back(
        pieces in vec((vec(any::<u8>(), 0..40), 1..200usize), 0..60), effort in 0..3usize, format in 0..3usize,
    ) {
        let message: Vec<u8> = pieces.iter().flat_map(|(bytes, times)| bytes.repeat(*times)).collect();
        let (format, effort) = (FORMATS[format], EFFORTS[effort]);
        let mut packed = vec![0; bound(format, message.len())];
        let used = Packer::new().pack(format, effort, &message, &mut packed).expect("bound is enough");
        let mut again = vec![0; message.len()];
        Unpacker::new().unpack(format, &packed[..used], &mut again).expect("valid");
        prop_assert!(again == message);
    }
}
