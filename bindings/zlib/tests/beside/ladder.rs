// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes by level: no level writes more than a lower one, levels 7 to 9 and streams that are flushed write no more than zlib.
//!
//! - **Flow** files of this repository and tables, logs and messages made here ──▶ pieces of 256 B to 64 KiB and whole files, at each level ──▶
//!   unpacked, compared by size with the level below and with the system's zlib
//! - **Not here** noise: a stored block takes 5 bytes, and the levels cut noise into blocks of different lengths. Tables of binary numbers are
//!   compared with zlib, but levels 7 to 9 may be up to 1 % larger than 2 to 6 there. Time: `memlift bench transform`.

use crate::both::{Libz, Random, deflate_init, empty, ours, system, unpack};
use libz_rs_sys::{Z_FINISH, Z_OK, Z_STREAM_END, Z_SYNC_FLUSH};
use std::path::Path;

const PIECES: [usize; 6] = [256, 1024, 4096, 16_384, 65_536, usize::MAX];

/// Files: a name and the bytes.
fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read(root.join(file)).expect("a file of this repository");
    vec![
        ("prose", read("docs/design/transform.md")),
        ("toml", read("Cargo.lock")),
        ("source", read("bindings/zlib/src/inflate/decoder.rs")),
        ("log", log()),
        ("chat", chat()),
        ("numbers", numbers()),
        ("records", records()),
    ]
}

fn is_binary(name: &str) -> bool {
    matches!(name, "numbers" | "records")
}

fn log() -> Vec<u8> {
    let mut random = Random(1);
    let mut line = |second: u32| {
        let state = random.pick(&["half-configured", "unpacked", "installed", "triggers-pending"]);
        let (package, version) = (random.pick(&["libc6", "zlib1g", "openssl", "nginx"]), random.below(40));
        format!(
            "2026-11-{:02} 10:{:02}:{:02} status {state} {package}:amd64 1.{version}-2\n",
            1 + second / 3600,
            second / 60 % 60,
            second % 60
        )
    };
    (0..4000).flat_map(|second| line(second).into_bytes()).collect()
}

fn chat() -> Vec<u8> {
    let mut random = Random(2);
    let words =
        ["we", "packed", "it", "again", "and", "the", "stream", "was", "shorter", "than", "yesterday", "why"];
    let mut line = |id: u32| {
        let text: Vec<&str> = (0..3 + random.below(12)).map(|_| random.pick(&words)).collect();
        let user = random.pick(&["anna", "bob", "chandra", "dmitri"]);
        format!("{{\"id\": {}, \"user\": \"{user}\", \"text\": \"{}\"}}\n", 70_000 + id, text.join(" "))
    };
    (0..2500).flat_map(|id| line(id).into_bytes()).collect()
}

/// Numbers that repeat for three or four bytes.
fn numbers() -> Vec<u8> {
    (0..40_000u32).flat_map(|n| (n * 7 + n * n % 301).to_le_bytes()).collect()
}

/// Records of few kinds, whose fields repeat one by one.
fn records() -> Vec<u8> {
    let mut random = Random(3);
    let mut record = || {
        [
            random.pick(&[1u8, 2, 3, 9]),
            0,
            random.below(200) as u8,
            random.pick(&[16, 32]),
            random.below(8) as u8,
        ]
    };
    (0..30_000).flat_map(|_| record()).collect()
}

/// Packs pieces, each as a message of its own or flushed in one stream. Returns the bytes written.
fn packed(libz: &Libz, level: i32, file: &[u8], piece: usize, flushed: bool) -> usize {
    let mut strm = empty();
    assert_eq!(deflate_init(libz, &mut strm, level, -15, 8, 0), Z_OK);
    let mut all = Vec::new();
    for message in file.chunks(piece.min(file.len())) {
        let mut target = vec![0u8; message.len() + message.len() / 8 + 64];
        (strm.next_in, strm.avail_in) = (message.as_ptr(), message.len() as u32);
        (strm.next_out, strm.avail_out) = (target.as_mut_ptr(), target.len() as u32);
        let (flush, wanted) = if flushed { (Z_SYNC_FLUSH, Z_OK) } else { (Z_FINISH, Z_STREAM_END) };
        // SAFETY: the stream is initialized, its buffers are those of vectors that live on.
        unsafe {
            assert_eq!((libz.deflate)(&mut *strm, flush), wanted);
            target.truncate(target.len() - strm.avail_out as usize);
            if !flushed {
                let (code, out, _) = unpack(libz, -15, &target, &[], usize::MAX, message.len() + 1, 0);
                assert!(code == Z_STREAM_END && out == message);
                assert_eq!((libz.deflateReset)(&mut *strm), Z_OK);
            }
        }
        all.extend_from_slice(&target);
    }
    if flushed {
        let (_, out, _) = unpack(libz, -15, &all, &[], usize::MAX, 1 << 16, 0);
        assert!(out == file);
    }
    // SAFETY: initialized above.
    unsafe { (libz.deflateEnd)(&mut *strm) };
    all.len()
}

#[test]
fn no_level_writes_more_than_a_lower_one() {
    let (ours, zlib) = (ours(), system());
    let mut wrong = Vec::new();
    for (name, file) in corpus() {
        for piece in PIECES {
            let sizes: Vec<usize> = (1..=9).map(|level| packed(&ours, level, &file, piece, false)).collect();
            if !is_binary(name) && !sizes.is_sorted_by(|lower, higher| lower >= higher) {
                wrong.push(format!("{name} by {piece}: {sizes:?}"));
            }
            let Some(zlib) = &zlib else { continue };
            for level in 1..=9 {
                let (size, stock) = (sizes[level - 1], packed(zlib, level as i32, &file, piece, false));
                let most = match level {
                    7..=9 => stock + stock / 100,
                    _ if piece <= 1024 => stock + stock / 20,
                    1..=3 => stock + stock / 20,
                    _ => usize::MAX,
                };
                if size > most {
                    wrong.push(format!("{name} by {piece}, level {level}: {size}, zlib {stock}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn flushed_messages_are_no_larger_than_zlibs() {
    let (ours, Some(zlib)) = (ours(), system()) else { return };
    let mut wrong = Vec::new();
    for (name, file) in corpus() {
        for piece in [60, 1024, 4096] {
            for level in [1, 6] {
                let (size, stock) =
                    (packed(&ours, level, &file, piece, true), packed(&zlib, level, &file, piece, true));
                let most = stock + stock / if is_binary(name) { 200 } else { 1000 };
                if size > most {
                    wrong.push(format!("{name} by {piece}, level {level}: {size}, zlib {stock}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
