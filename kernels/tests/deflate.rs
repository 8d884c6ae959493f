// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages through `Packer` and `Unpacker`: every size, every format, every effort, hostile input.
#![cfg(feature = "deflate")]

use memlift_kernels::deflate::{Effort, Format, Packer, Unpacker, bound};

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

fn messages(bytes: usize) -> Vec<Vec<u8>> {
    let period: Vec<u8> = noise(300, 3).into_iter().cycle().take(bytes).collect();
    vec![vec![0; bytes], vec![b'x'; bytes], noise(bytes, bytes as u64), text(bytes), period]
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
