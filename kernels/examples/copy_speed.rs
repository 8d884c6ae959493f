// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the copies of every level with the C library's `memcpy`, in one process, turn by turn.
//!
//! - **Flow** for each size and misalignment: rounds; in each round every contender copies the same bytes for the same
//!   number of times, in an order that turns with the round ──▶ medians, and the median of the ratios per round
//! - **Not here** verdicts: see the `bench` crate. Hot means that both buffers stay where the copies leave them.
//!
//! `cargo run --release -p memlift-kernels --example copy_speed -- [hot|cold] [LEVEL…]`

use memlift_kernels::{CopyFn, Isa, active, for_isa, set_rep_movsb_from};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 31;
const HOT_SIZES: [usize; 19] = [
    8,
    16,
    31,
    64,
    128,
    256,
    512,
    1024,
    2048,
    4096,
    8192,
    16384,
    32768,
    65536,
    262_144,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 24,
];
const COLD_SIZES: [usize; 4] = [1 << 25, 1 << 26, 1 << 27, 1 << 28];
const MISALIGNMENTS: [(usize, usize); 9] =
    [(0, 0), (3, 0), (15, 0), (0, 7), (0, 15), (3, 15), (0, 64), (0, 256), (64, 0)];

/// A routine to measure: one of ours, or the C library's.
#[derive(Clone, Copy)]
enum Routine {
    Kernel(CopyFn),
    Libc(unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void),
}

struct Contender {
    name: String,
    routine: Routine,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds per call, after one call that is not counted.
#[inline(always)]
fn time(repeat: usize, mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    for _ in 0..repeat {
        call();
    }
    start.elapsed().as_nanos() as f64 / repeat as f64
}

/// Nanoseconds per copy, by contender and round.
fn measure(contenders: &[Contender], bytes: usize, source: *const u8, target: *mut u8) -> Vec<Vec<f64>> {
    let repeat = (1_000_000 / (bytes + 100)).clamp(1, 5000);
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            // SAFETY: the buffers are longer than `bytes` plus any misalignment.
            let elapsed_ns = unsafe {
                match black_box(contenders[index].routine) {
                    Routine::Kernel(copy) => time(repeat, || {
                        copy(black_box(target), black_box(source), black_box(bytes));
                    }),
                    Routine::Libc(copy) => time(repeat, || {
                        copy(black_box(target).cast(), black_box(source).cast(), black_box(bytes));
                    }),
                }
            };
            times[index].push(elapsed_ns);
        }
    }
    times
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let cold = arguments.iter().any(|a| a == "cold");
    let levels: Vec<Isa> = arguments.iter().filter_map(|a| Isa::from_name(a)).collect();
    let levels = if levels.is_empty() { vec![active().isa] } else { levels };
    if let Some(from) = arguments.iter().find_map(|a| a.strip_prefix("rep=")) {
        let _ = for_isa(Isa::Scalar);
        set_rep_movsb_from(from.parse().expect("rep=BYTES"));
    }
    let mut contenders = vec![Contender { name: "memcpy".to_owned(), routine: Routine::Libc(libc::memcpy) }];
    for kernels in levels.into_iter().filter_map(for_isa) {
        if cold {
            contenders.push(Contender {
                name: format!("{}_nt", kernels.isa),
                routine: Routine::Kernel(kernels.copy_nt),
            });
        } else {
            contenders
                .push(Contender { name: kernels.isa.to_string(), routine: Routine::Kernel(kernels.copy) });
        }
    }
    let sizes: &[usize] = if cold { &COLD_SIZES } else { &HOT_SIZES };
    let longest = sizes[sizes.len() - 1];
    let source = vec![1u8; longest + 8192];
    let mut target = vec![2u8; longest + 8192];
    let source_start = source.as_ptr().align_offset(4096);
    let target_start = target.as_ptr().align_offset(4096);
    print!("{:>10} {:>7}", "bytes", "offsets");
    for contender in &contenders {
        print!(" {:>12} GB/s   ratio", contender.name);
    }
    println!();
    let mut logarithms = vec![0.0; contenders.len()];
    let mut lowest = vec![f64::MAX; contenders.len()];
    let mut rows = 0.0;
    for &bytes in sizes {
        for (from, to) in MISALIGNMENTS {
            let source = source[source_start + from..].as_ptr();
            let target = target[target_start + to..].as_mut_ptr();
            let times = measure(&contenders, bytes, source, target);
            print!("{bytes:>10} {:>7}", format!("{from}>{to}"));
            rows += 1.0;
            for (index, of_contender) in times.iter().enumerate() {
                let ratio = median((0..ROUNDS).map(|round| times[0][round] / of_contender[round]).collect());
                logarithms[index] += ratio.ln();
                lowest[index] = lowest[index].min(ratio);
                print!(" {:>12.2}        {ratio:>5.2}", bytes as f64 / median(of_contender.clone()));
            }
            println!();
        }
    }
    for (index, contender) in contenders.iter().enumerate().skip(1) {
        let mean = (logarithms[index] / rows).exp();
        println!("{}: geometric mean {mean:.3}, lowest {:.3}", contender.name, lowest[index]);
    }
}
