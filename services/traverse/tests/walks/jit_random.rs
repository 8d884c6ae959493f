// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random programs, compiled, against the interpreter: the same verdict, walk and scratchpad, on the same random memory.
//!
//! - **Flow** bytecode that the verifier accepts (`generate`), and functions written straight in the IR ([`function`]), which the
//!   verifier might never produce: every instruction, loops, guards that fail, masked indices
//!   `cargo test -p memlift-traverse --release --test walks jit_random:: -- --ignored` runs until `MEMLIFT_WALK_PROGRAMS` (200 000) from
//!   `MEMLIFT_WALK_SEED` (1) on
#![cfg(feature = "jit")]
#![allow(unsafe_code)]

use crate::jit_programs::{EDGES, alu, at, block, constant, indexed, store};
use memlift_traverse::generate::{self, Random};
use memlift_traverse::interp;
use memlift_traverse::ir::{
    Address, Alu, BlockId, Cmp, End, Function, Inst, Operand, Reg, Size, Space, Width,
};
use memlift_traverse::jit::{Compiled, Limits};
use memlift_traverse::program::Program;
use memlift_traverse::step::Walk;
use proptest::prelude::*;

const LIMITS: Limits = Limits { window_first: -40, window_bytes: 120, scratch_bytes: 128 };
const STACK: i32 = 64;

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn number(random: &mut Random) -> u64 {
    if random.once_in(2) { pick(random, &EDGES) } else { random.word() }
}

fn width(random: &mut Random) -> Width {
    pick(random, &[Width::W32, Width::W64])
}

fn register(random: &mut Random) -> Reg {
    Reg(random.below(10) as u8)
}

fn operand(random: &mut Random) -> Operand {
    if random.once_in(3) { Operand::Imm(number(random)) } else { Operand::Reg(register(random)) }
}

/// An access of some bytes inside a space, with what has to run before it.
fn access(random: &mut Random, space: Space, size: Size) -> (Vec<Inst>, Address) {
    let (start, end) = match space {
        Space::Window => (-40, 80),
        Space::Scratch => (0, 128),
        Space::Stack => (-STACK, 0),
        Space::Walk => (0, 48),
    };
    let room = i64::from(end - start) - i64::from(size.bytes());
    let offset = start + random.below(room as u64 + 1) as i32;
    if space == Space::Walk || random.once_in(2) {
        return (Vec::new(), at(space, offset));
    }
    let reg = register(random);
    let (below, above) = (i64::from(start - offset), room - i64::from(offset - start));
    if random.once_in(2) {
        // Guarded: often outside, sometimes a range of one, rarely none at all.
        let first = below + random.below(3) as i64;
        let last = (above - random.below(3) as i64).min(above);
        let near = Inst::Alu {
            op: Alu::And,
            width: Width::W64,
            target: reg,
            a: Operand::Reg(reg),
            b: Operand::Imm(pick(random, &[15, 63, u64::MAX])),
        };
        return (vec![near], indexed(space, offset, reg.0, first, last, true));
    }
    // Proved: masked to what fits.
    let mask = (above as u64 + 1).next_power_of_two() / 2;
    let mask = mask.saturating_sub(1);
    (vec![alu(Alu::And, reg.0, reg.0, mask)], indexed(space, offset, reg.0, 0, mask as i64, false))
}

fn insts(random: &mut Random) -> Vec<Inst> {
    let mut out = Vec::new();
    for _ in 0..random.below(9) {
        let target = register(random);
        let width = width(random);
        match random.below(10) {
            0 => out.push(Inst::Move { width, target, source: operand(random) }),
            1 => {
                let bits = pick(random, &[8, 16, 32]);
                out.push(Inst::SignExtend { width, target, source: register(random), bits });
            }
            2 => out.push(Inst::ByteSwap {
                target,
                bits: pick(random, &[16, 32, 64]),
                reverse: random.once_in(2),
            }),
            3..=5 => {
                let (op, a, b) = (pick(random, &Alu::ALL), operand(random), operand(random));
                out.push(Inst::Alu { op, width, target, a, b });
            }
            6 | 7 => {
                let size = pick(random, &Size::ALL);
                let space = pick(random, &[Space::Window, Space::Scratch, Space::Stack]);
                let (before, address) = access(random, space, size);
                out.extend(before);
                out.push(Inst::Load { size, signed: random.once_in(2), target, address });
            }
            _ => {
                let size = pick(random, &Size::ALL);
                let space = pick(random, &[Space::Walk, Space::Scratch, Space::Stack]);
                let (before, address) = access(random, space, size);
                out.extend(before);
                out.push(Inst::Store { size, address, source: operand(random) });
            }
        }
    }
    out
}

/// A function of up to 12 blocks that jump anywhere. The stack is set before anything reads it.
fn function(random: &mut Random) -> Function {
    let count = 2 + random.below(11);
    let mut blocks = Vec::new();
    for number_of in 0..count {
        let to = |random: &mut Random| BlockId(1 + random.below(count - 1) as u32);
        let body = if number_of == 0 {
            let mut body: Vec<Inst> =
                (1..=STACK / 8).map(|word| store(at(Space::Stack, -8 * word), (word % 4) as u8)).collect();
            body.extend((0..10).map(|reg| constant(reg, number(random))));
            body
        } else {
            insts(random)
        };
        let end = match random.below(4) {
            0 if number_of > 0 => End::Return,
            1 => End::Jump(to(random)),
            _ => End::Branch {
                cmp: pick(
                    random,
                    &[
                        Cmp::Eq,
                        Cmp::Ne,
                        Cmp::Gt,
                        Cmp::Ge,
                        Cmp::Lt,
                        Cmp::Le,
                        Cmp::SGt,
                        Cmp::SGe,
                        Cmp::SLt,
                        Cmp::SLe,
                        Cmp::Set,
                    ],
                ),
                width: width(random),
                a: operand(random),
                b: operand(random),
                then: to(random),
                or: to(random),
            },
        };
        blocks.push(block(&body, end));
    }
    Function { blocks }
}

/// Steps of both on the same memory. Returns a digest of the verdicts, so that a test can tell that they vary.
fn same(function: &Function, limits: &Limits, random: &mut Random, hops: u64) -> u64 {
    let compiled = Compiled::new(function, limits).unwrap_or_else(|error| panic!("{error}: {function:#?}"));
    let mut node = vec![0; usize::from(limits.window_bytes)];
    let mut scratch = vec![0; limits.scratch_bytes as usize];
    let mut faults = 0;
    for _ in 0..hops {
        generate::memory(random, &mut node);
        generate::memory(random, &mut scratch);
        let cur = node.as_ptr().wrapping_offset(-isize::from(limits.window_first));
        let start = Walk { fuel: random.below(100), ..Walk::default() };
        let (mut ours, mut ours_walk) = (scratch.clone(), start);
        let (mut oracle, mut oracle_walk) = (scratch.clone(), start);
        // SAFETY: `node` is the window around `cur`, the scratchpads are as long as declared; `Compiled::new` has held the
        // function against both, and the interpreter runs the same one, whose indices are masked or guarded.
        let (verdict, expected) = unsafe {
            (
                compiled.step(cur, ours.as_mut_ptr(), &raw mut ours_walk),
                interp::step(function, cur, oracle.as_mut_ptr(), &raw mut oracle_walk),
            )
        };
        assert_eq!((verdict, ours_walk), (expected, oracle_walk), "{function:#?}");
        assert_eq!(ours, oracle, "{function:#?}");
        faults += u64::from(matches!(verdict, 0x80 | 0x83));
    }
    faults
}

fn verified(seed: u64, hops: u64) -> bool {
    let Ok(program) = Program::new("generated", &generate::program(seed), generate::SCRATCH_BYTES) else {
        return false;
    };
    let window = program.window();
    let limits = Limits {
        window_first: window.first,
        window_bytes: window.bytes,
        scratch_bytes: program.scratch_bytes() as u32,
    };
    same(program.function(), &limits, &mut Random(seed), hops);
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn functions_of_the_ir(seed: u64) {
        let mut random = Random(seed);
        let function = function(&mut random);
        same(&function, &LIMITS, &mut random, 20);
    }

    #[test]
    fn programs_that_the_verifier_accepts(seed: u64) {
        // About half are accepted; the next that is will do.
        let accepted = (0..64).find(|&next| verified(seed.wrapping_add(next), 20));
        prop_assert!(accepted.is_some(), "none of 64 programs is accepted");
    }
}

#[test]
#[ignore = "soak"]
fn soak_random_programs() {
    let get =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seed, programs) = (get("MEMLIFT_WALK_SEED", 1_u64), get("MEMLIFT_WALK_PROGRAMS", 200_000));
    let (mut accepted, mut faults) = (0_u64, 0);
    for index in 0..programs {
        let seed = seed.wrapping_mul(0x1_0000_0001).wrapping_add(index);
        let mut random = Random(seed);
        let function = function(&mut random);
        faults += same(&function, &LIMITS, &mut random, 40);
        accepted += u64::from(verified(seed, 40));
    }
    println!(
        "{programs} functions ({faults} of {} steps faulted), {accepted} verified programs",
        programs * 40
    );
    assert!(faults > 0 && accepted > 0);
}
