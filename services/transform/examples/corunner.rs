// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slowdown of a neighbour that shares its core with a transform: how much slower the neighbour walks through 768 KiB after a
//! burst of messages, for every way to store results.
//!
//! - **Flow** neighbour's laps (its lines come back into the cache) ─▶ burst of messages from memory that is in no cache ─▶ one
//!   timed lap: its time over a lap without a burst is the slowdown. Stores take turns; medians.
//! - **Output** one line per store: nanoseconds per line of the neighbour, slowdown, and how fast the messages themselves were

use memlift_ground::config::{Config, Placement, TransformConfig};
use memlift_offload::Engine;
use memlift_transform::{Cache, Key, Options, Step, Transform};
use std::hint::black_box;
use std::time::Instant;

const POOL_BYTES: usize = 192 << 20;
const NEIGHBOUR_BYTES: usize = 3 << 18;
const ROUNDS: usize = 61;

fn cycle(bytes: usize) -> Vec<[u32; 16]> {
    let lines = bytes / 64;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut state = 7u64;
    for index in (1..lines).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(index, (state >> 33) as usize % (index + 1));
    }
    let mut next = vec![[0; 16]; lines];
    (0..lines).for_each(|index| next[order[index] as usize][0] = order[(index + 1) % lines]);
    next
}

fn lap(next: &[[u32; 16]]) -> f64 {
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..next.len() {
        at = next[at as usize][0];
    }
    black_box(at);
    start.elapsed().as_nanos() as f64 / next.len() as f64
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::global();
    let key = Key::new(&[7; 16])?;
    let source = vec![1u8; POOL_BYTES];
    let mut target = vec![2u8; POOL_BYTES];
    let neighbour = cycle(NEIGHBOUR_BYTES);
    let placements = [Placement::Temporal, Placement::Streaming, Placement::Isolated, Placement::Adaptive];
    let ways: Vec<Transform> = placements
        .iter()
        .map(|&placement| {
            Transform::new(engine, &TransformConfig { placement, ..Config::defaults().transform })
        })
        .collect();
    let (mut at, mut count) = (0, 0u64);
    for (name, seals) in [("copy", false), ("seal", true)] {
        for (message, burst) in [(16 << 10, 256 << 10), (64 << 10, 256 << 10), (64 << 10, 1 << 20)] {
            let mut laps = vec![Vec::new(); ways.len() + 1];
            let mut rates = vec![Vec::new(); ways.len()];
            let mut run = |way: &Transform| -> Result<f64, memlift_transform::Error> {
                let start = Instant::now();
                for _ in 0..burst / message {
                    at = if at + message > POOL_BYTES { 0 } else { at };
                    count += 1;
                    let mut nonce = [0; 12];
                    nonce[..8].copy_from_slice(&count.to_le_bytes());
                    let seal = Step::Seal { key: &key, nonce, aad: b"" };
                    let step = if seals { seal } else { Step::Crc32c { seed: 0 } };
                    let (from, to) = (&source[at..at + message], &mut target[at..at + message]);
                    way.copy_with(step, from, to, &Options { cache: Cache::Auto, ..Options::default() })?;
                    at += message + 4096;
                }
                Ok(burst as f64 / start.elapsed().as_nanos() as f64)
            };
            for _ in 0..200 {
                run(&ways[3])?;
            }
            for _ in 0..ROUNDS {
                for index in 0..=ways.len() {
                    lap(&neighbour);
                    lap(&neighbour);
                    if let Some(way) = ways.get(index) {
                        rates[index].push(run(way)?);
                    }
                    laps[index].push(lap(&neighbour));
                }
            }
            let alone = median(&mut laps[ways.len()]);
            println!(
                "{name} {} KiB, {} KiB at a time; neighbour alone {alone:.1} ns/line",
                message >> 10,
                burst >> 10
            );
            let temporal = median(&mut laps[0].clone()) / alone - 1.0;
            for (index, placement) in placements.iter().enumerate() {
                let ns = median(&mut laps[index]);
                let slowdown = ns / alone - 1.0;
                println!(
                    "  {placement:?}: {ns:.1} ns/line, slowed by {:.0} % ({:.1} times less than temporal), own {:.2} GB/s",
                    slowdown * 100.0,
                    temporal / slowdown.max(0.001),
                    median(&mut rates[index])
                );
            }
        }
    }
    println!("{}", ways[3].explain(memlift_spec::Opcode::SEAL, 64 << 10));
    Ok(())
}
