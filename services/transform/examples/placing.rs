// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost of deciding: messages that are in no cache, by every fixed placement and by the adaptive one, in turns.
//!
//! - **Flow** areas of 128 MiB ─▶ rounds: every placement passes once over them, in an order that no prefetcher knows ─▶ medians
//! - **Output** one line per operation and placement: nanoseconds per message, and how often the adaptive one took which way

use memlift_ground::config::{Config, Placement, TransformConfig};
use memlift_offload::Engine;
use memlift_transform::{Chain, Key, Op, Options, Step, Transform};
use std::collections::BTreeMap;
use std::time::Instant;

const AREA_BYTES: usize = 128 << 20;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::global();
    let key = Key::new(&[7; 16])?;
    let source = vec![1u8; AREA_BYTES];
    let mut target = vec![2u8; AREA_BYTES];
    let placements = [Placement::Streaming, Placement::Temporal, Placement::Isolated, Placement::Adaptive];
    let ways = placements.map(|placement| {
        Transform::new(engine, &TransformConfig { placement, ..Config::defaults().transform })
    });
    for (name, bytes) in [("seal", 16 << 10), ("crc, copy", 64 << 10), ("crc, seal", 64 << 20)] {
        let count = AREA_BYTES / bytes;
        let mut times = placements.map(|_| Vec::new());
        let mut taken = BTreeMap::new();
        let mut number = 0u64;
        for _ in 0..ROUNDS {
            for (way, times) in ways.iter().zip(&mut times) {
                let start = Instant::now();
                for index in 0..count {
                    let at = index * 1_000_003 % count * bytes;
                    number += 1;
                    let mut nonce = [0; 12];
                    nonce[..8].copy_from_slice(&number.to_le_bytes());
                    let seal = Step::Seal { key: &key, nonce, aad: b"" };
                    let crc = Step::Crc32c { seed: 0 };
                    let op: Op<'_> = match name {
                        "seal" => seal.into(),
                        "crc, copy" => Chain::new(&[crc, Step::Copy])?.into(),
                        _ => Chain::new(&[crc, seal])?.into(),
                    };
                    let (from, to) = (&source[at..at + bytes], &mut target[at..at + bytes]);
                    let outcome = way.copy_with(op, from, to, &Options::default())?;
                    let decision = outcome.decision;
                    *taken.entry(format!("{} {:?}", decision.store.name(), decision.why)).or_insert(0u64) +=
                        1;
                }
                times.push(start.elapsed().as_nanos() as f64 / count as f64);
            }
        }
        taken.retain(|way, _| !way.ends_with("Told"));
        println!("{name}, {} KiB: adaptive took {taken:?}", bytes >> 10);
        for (placement, times) in placements.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            println!("  {placement:?}: {:.0} ns", times[ROUNDS / 2]);
        }
        for opcode in [memlift_spec::Opcode::SEAL, memlift_spec::Opcode::COPY_CRC] {
            println!("  {}", ways[3].explain(opcode, bytes));
        }
    }
    Ok(())
}
