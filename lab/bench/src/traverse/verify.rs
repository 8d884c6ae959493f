// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Row `verify_compile`: what it costs to trust a program, and whether the trust is earned.
//!
//! - **Flow** generated programs ─▶ decoded, lowered, verified, compiled: timed ─▶ each that was accepted makes its hops over random
//!   memory under the interpreter that checks every access
//! - **Count** unsafe: programs that did what the verifier had ruled out; the row fails if there is one
//! - **Not here** whether compiler and interpreter agree (services/traverse/tests/walks/generated.rs)

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memlift_traverse::generate::{self, Random};
use memlift_traverse::interp::Checked;
use memlift_traverse::jit::{Compiled, Limits};
use memlift_traverse::program::Program;
use memlift_traverse::step::Walk;
use memlift_traverse::verify::FUEL;

use super::serve::failed;
use super::{Stop, unknown};
use crate::definition::Definition;
use crate::statistics::{Pair, median};
use crate::{BenchError, Row};

/// Time that loading a program may take: decoding, lowering, verifying and compiling it.
const BUDGET_S: f64 = 2e-3;
const BATCHES: u64 = 31;
const PROGRAMS_PER_BATCH: u64 = 4;
const HOPS: u64 = 1_000_000;
const HOPS_QUICK: u64 = 2000;

/// Measures the row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    if definition.rival != "budget" {
        return Err(unknown(definition));
    }
    let (batches, hops) = if quick { (2, HOPS_QUICK) } else { (BATCHES, HOPS) };
    let (mut pairs, mut accepted, mut generated, mut cpu) = (Vec::<Pair>::new(), Vec::new(), 0, Vec::new());
    for batch in 0..batches {
        let mut times = Vec::new();
        for seed in batch * PROGRAMS_PER_BATCH.. {
            // Batches are whole; one in which nothing was accepted goes on until something is.
            if seed >= (batch + 1) * PROGRAMS_PER_BATCH && !times.is_empty() {
                break;
            }
            // The further seeds of such a batch belong to no other one.
            let seed = if seed < (batch + 1) * PROGRAMS_PER_BATCH { seed } else { seed + (1 << 32) };
            let bytecode = generate::program(seed);
            generated += 1;
            let (start, spent) = (Instant::now(), crate::machine::thread_cpu_seconds());
            let Ok(program) = Program::new("generated", &bytecode, generate::SCRATCH_BYTES) else { continue };
            let limits = Limits {
                window_first: program.window().first,
                window_bytes: program.window().bytes,
                scratch_bytes: program.scratch_bytes() as u32,
            };
            Compiled::new(program.function(), &limits).map_err(failed)?;
            times.push(start.elapsed().as_secs_f64());
            cpu.push(crate::machine::thread_cpu_seconds() - spent);
            accepted.push(program);
        }
        pairs.push((median(times), BUDGET_S));
    }
    let broken = hop_all(&accepted, hops)?;
    let mut row = Row::new(definition);
    let rejected = generated - accepted.len() as u64;
    for (name, count) in [
        ("programs", generated),
        ("accepted", accepted.len() as u64),
        ("rejected_percent", rejected * 100 / generated),
        ("hops_of_each", hops),
        ("unsafe", broken),
    ] {
        row.count.insert(name.to_owned(), count);
    }
    row.cpu_s.ours = Some(median(cpu));
    row.qualifies =
        "decode, lower, verify, hash, compile; of programs that were accepted; theirs: the budget".to_owned();
    Ok(row.measured(definition, &pairs, quick))
}

/// Lets each program make its hops, on all cores; returns how many did something that the verifier had ruled out.
fn hop_all(programs: &[Program], hops: u64) -> Result<u64, BenchError> {
    let (next, broken) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            if let Err(promise) = hop(program, hops) {
                eprintln!("the verifier was wrong: {promise}\n{}", program.listing());
                broken.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..crate::machine::cores() {
            scope.spawn(work);
        }
        work();
    });
    Ok(broken.into_inner())
}

fn hop(program: &Program, hops: u64) -> Result<(), String> {
    let mut random = Random(u64::from_le_bytes(program.hash()[..8].try_into().expect("eight bytes")));
    let window = program.window();
    let mut node = vec![0; usize::from(window.bytes)];
    let mut scratch = vec![0; program.scratch_bytes()];
    for hop in 0..hops {
        // The memory is new every few hops; in between the scratchpad stays as the program leaves it.
        if hop % 4 == 0 {
            generate::memory(&mut random, &mut node);
        }
        if hop % 16 == 0 {
            generate::memory(&mut random, &mut scratch);
        }
        let mut walk = Walk { fuel: FUEL, ..Walk::default() };
        Checked::new(&node, i64::from(window.first), &mut scratch, &mut walk).step(program.function())?;
    }
    Ok(())
}
