// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The speed of every routine at every level: GB/s of source (or target, for fills), medians of interleaved rounds.
//!
//! - **Flow** for each size: rounds; in each round every level runs every routine ──▶ one table per size
//! - **Not here** the rival of the copies: see `copy_speed`.
//!
//! `cargo run --release -p memlift-kernels --example routine_speed -- [BYTES…]`

use memlift_kernels::{Isa, Kernels, for_isa};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;
const ROUTINES: [&str; 15] = [
    "copy",
    "copy_nt",
    "move_overlapping",
    "fill",
    "fill_nt",
    "compare",
    "compare_pattern",
    "crc32c",
    "copy_crc32c",
    "copy_crc32c_nt",
    "dualcast",
    "dualcast_nt",
    "delta_create",
    "strided/120",
    "strided_nt/120",
];
const ROW_BYTES: usize = 120;

/// Three buffers of `bytes` and one for records.
struct Buffers {
    source: *mut u8,
    target: *mut u8,
    target2: *mut u8,
    record: *mut u8,
    bytes: usize,
}

/// One call of a routine; `buffers` are what they say.
unsafe fn call(kernels: &Kernels, routine: usize, buffers: &Buffers) {
    let Buffers { source, target, target2, record, bytes } = *buffers;
    let rows = bytes / (ROW_BYTES + 8);
    // SAFETY: the caller promises `bytes` bytes in three buffers, and 4096 in the record.
    unsafe {
        match routine {
            0 => (kernels.copy)(target, source, bytes),
            1 => (kernels.copy_nt)(target, source, bytes),
            2 => (kernels.move_overlapping)(target, target.add(8), bytes - 8),
            3 => (kernels.fill)(target, 0, bytes),
            4 => (kernels.fill_nt)(target, 0, bytes),
            5 => assert_eq!(black_box((kernels.compare)(source, target2, bytes)), None),
            6 => assert_eq!(black_box((kernels.compare_pattern)(source, 0, bytes)), None),
            7 => _ = black_box((kernels.crc32c)(source, bytes, 0)),
            8 => _ = black_box((kernels.copy_crc32c)(target, source, bytes, 0)),
            9 => _ = black_box((kernels.copy_crc32c_nt)(target, source, bytes, 0)),
            10 => (kernels.dualcast)(target, target2, source, bytes),
            11 => (kernels.dualcast_nt)(target, target2, source, bytes),
            12 => _ = black_box((kernels.delta_create)(record, 4096, source, target2, bytes)),
            13 => (kernels.copy_strided)(target, source, rows, ROW_BYTES, ROW_BYTES as i64 + 8),
            _ => (kernels.copy_strided_nt)(target, source, rows, ROW_BYTES, ROW_BYTES as i64 + 8),
        }
    }
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![64, 1024, 16384, 1 << 20, 1 << 26] } else { sizes };
    let levels: Vec<&Kernels> = Isa::ALL.into_iter().filter_map(for_isa).collect();
    for bytes in sizes {
        let bytes = bytes.max(16);
        let mut memory =
            [vec![0u8; bytes + 64], vec![0; bytes + 64], vec![0; bytes + 64], vec![0; 4096 + 64]];
        // The buffers are written here, so that every page is there, and differ in their line offsets by nothing.
        let mut aligned = memory.iter_mut().map(|buffer| {
            buffer.fill(0);
            buffer.as_mut_ptr().wrapping_add(buffer.as_ptr().align_offset(64) % 64)
        });
        let mut next = || aligned.next().expect("four buffers");
        let buffers = Buffers { source: next(), target: next(), target2: next(), record: next(), bytes };
        let repeat = (200_000 / (bytes + 50)).clamp(1, 2000);
        println!("{bytes} bytes, GB/s");
        for (routine, name) in ROUTINES.iter().enumerate() {
            let mut times = vec![Vec::new(); levels.len()];
            for round in 0..ROUNDS {
                for turn in 0..levels.len() {
                    let index = (turn + round) % levels.len();
                    let start = Instant::now();
                    for _ in 0..repeat {
                        // SAFETY: three buffers of `bytes` (with room to align them) and a record of 4096 bytes.
                        unsafe { call(black_box(levels[index]), routine, black_box(&buffers)) };
                    }
                    times[index].push(start.elapsed().as_nanos() as f64 / repeat as f64);
                }
            }
            print!("{name:>18}");
            for (kernels, times) in levels.iter().zip(&mut times) {
                times.sort_by(f64::total_cmp);
                print!("  {} {:>7.2}", kernels.isa, bytes as f64 / times[ROUNDS / 2]);
            }
            println!();
        }
    }
}
