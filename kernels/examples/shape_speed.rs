// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every shape of every routine past the cache, cold, in one process, turn by turn.
//!
//! - **Flow** rounds; in each round every shape of every routine runs once over a window that was last touched a whole round
//!   of the arena ago ──▶ medians ──▶ GB/s of the target, best first
//! - **Not here** verdicts: see the `bench` crate.
//!
//! `cargo run --release -p memlift-kernels --example shape_speed -- [LEVEL] [BYTES]`

use memlift_kernels::{Isa, Kernels, Routine, Shape, active, for_isa};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 7;
const ARENA_BYTES: usize = 512 << 20;

/// One run. The second target of a dualcast follows the first.
///
/// # Safety
///
/// `source` is readable for `2 * bytes`, `target` writable for as many, and they are apart.
unsafe fn run(k: &Kernels, routine: Routine, target: *mut u8, source: *const u8, bytes: usize, shape: Shape) {
    // SAFETY: the caller vouches for `2 * bytes` on both sides, apart. Rows of 4096 bytes every 4160 stay inside.
    unsafe {
        match routine {
            Routine::Copy => (k.shaped.copy)(target, source, bytes, shape),
            Routine::CopyCrc => _ = black_box((k.shaped.copy_crc32c)(target, source, bytes, 0, shape)),
            Routine::Dualcast => (k.shaped.dualcast)(target, target.add(bytes), source, bytes, shape),
            Routine::Fill => (k.shaped.fill)(target, 7, bytes, shape),
            Routine::Strided => (k.shaped.copy_strided)(target, source, bytes / 4096, 4096, 4160, shape),
        }
    }
}

/// The same through the cache.
///
/// # Safety
///
/// As for [`run`].
unsafe fn ordinary(k: &Kernels, routine: Routine, target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: both ranges have `2 * bytes` and are apart.
    unsafe {
        match routine {
            Routine::Copy => (k.copy)(target, source, bytes),
            Routine::CopyCrc => _ = black_box((k.copy_crc32c)(target, source, bytes, 0)),
            Routine::Dualcast => (k.dualcast)(target, target.add(bytes), source, bytes),
            Routine::Fill => (k.fill)(target, 7, bytes),
            Routine::Strided => (k.copy_strided)(target, source, bytes / 4096, 4096, 4160),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kernels = arguments.iter().find_map(|a| for_isa(Isa::from_name(a)?)).unwrap_or(active());
    let bytes: usize = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(8 << 20);
    assert!(2 * bytes <= ARENA_BYTES, "at most {} bytes", ARENA_BYTES / 2);
    let source = vec![1u8; ARENA_BYTES];
    let mut target = vec![2u8; ARENA_BYTES];
    let mut cursor = 0;
    let mut window = || {
        if cursor + 2 * bytes > ARENA_BYTES {
            cursor = 0;
        }
        cursor += 2 * bytes;
        cursor - 2 * bytes
    };
    for routine in Routine::ALL {
        let shapes: Vec<Option<Shape>> =
            [None].into_iter().chain(Shape::candidates(kernels.isa).into_iter().map(Some)).collect();
        let mut times = vec![Vec::new(); shapes.len()];
        for _ in 0..ROUNDS {
            for (shape, times) in shapes.iter().zip(&mut times) {
                let at = window();
                let (target, source) = (target[at..].as_mut_ptr(), source[at..].as_ptr());
                let start = Instant::now();
                // SAFETY: the window is twice as long as `bytes` in both buffers.
                unsafe {
                    match shape {
                        Some(shape) => run(kernels, routine, target, source, bytes, *shape),
                        None => ordinary(kernels, routine, target, source, bytes),
                    }
                }
                times.push(start.elapsed().as_nanos() as f64);
            }
        }
        let mut rows: Vec<(f64, String)> = shapes
            .iter()
            .zip(&mut times)
            .map(|(shape, times)| {
                times.sort_by(f64::total_cmp);
                let name = shape.map_or("ordinary".to_owned(), |shape| shape.to_string());
                (bytes as f64 / times[times.len() / 2], name)
            })
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        println!("{} {}, {bytes} bytes:", kernels.isa, routine.name());
        for row in rows.chunks(7) {
            println!(
                "{}",
                row.iter().map(|(speed, name)| format!("{name:>11} {speed:>5.1}")).collect::<String>()
            );
        }
    }
}
