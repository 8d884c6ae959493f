// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every instruction of the IR, compiled, against the interpreter, at the numbers where arithmetic changes what it does.
//!
//! - **Order** where the two could be wrong together (division, shifts, byte order), the results are also written down
#![cfg(feature = "jit")]
#![allow(unsafe_code)]

use crate::jit_programs;
use crate::jit_programs::{EDGES, at, block, branch, constant, indexed, load, returns, store};
use memlift_traverse::interp;
use memlift_traverse::ir::{Alu, Cmp, End, Function, Inst, Operand, Reg, Size, Space, Width};
use memlift_traverse::jit::{CompileError, Compiled, Limits};
use memlift_traverse::step::{Verdict, Walk};

const LIMITS: Limits = Limits { window_first: -64, window_bytes: 128, scratch_bytes: 64 };

fn one(insts: &[Inst]) -> Function {
    Function { blocks: vec![returns(insts, 1)] }
}

fn compile(function: &Function) -> Compiled {
    Compiled::new(function, &LIMITS).unwrap_or_else(|error| panic!("{error}: {function:?}"))
}

/// Results of a step: verdict, scratchpad, walk.
type Left = (u32, [u64; 8], Walk);

/// Runs both on the same memory, and returns what both leave.
fn both(function: &Function, compiled: &Compiled, scratch: [u64; 8], fuel: u64) -> Left {
    let node: Vec<u64> =
        (0..16_u64).map(|word| 0x8182_8384_8586_8788_u64.wrapping_mul(word * 2 + 1)).collect();
    let cur = node.as_ptr().cast::<u8>().wrapping_add(64);
    let run = |compile: bool| {
        let mut scratch = scratch;
        let mut walk = Walk { fuel, next: 9, ..Walk::default() };
        let words = scratch.as_mut_ptr().cast();
        // SAFETY: 64 bytes before and behind `cur`, 64 of scratch, and a walk: those are LIMITS, which both are held against.
        let verdict = unsafe {
            if compile {
                compiled.step(cur, words, &raw mut walk)
            } else {
                interp::step(function, cur, words, &raw mut walk)
            }
        };
        (verdict, scratch, walk)
    };
    let (ours, oracle) = (run(true), run(false));
    assert_eq!(ours, oracle, "compiled and interpreted differ: {function:?}, scratch {scratch:x?}");
    ours
}

fn scratch(a: u64, b: u64) -> [u64; 8] {
    [a, b, 0, 0, 0, 0, 0, 0]
}

/// r4 and r5 from scratch 0 and 8, something that leaves a result in r6, which goes to scratch 16.
fn binary(inst: Inst) -> Function {
    one(&[
        load(4, at(Space::Scratch, 0)),
        load(5, at(Space::Scratch, 8)),
        inst,
        store(at(Space::Scratch, 16), 6),
    ])
}

#[test]
fn arithmetic() {
    for op in Alu::ALL {
        for width in Width::ALL {
            let registers =
                Inst::Alu { op, width, target: Reg(6), a: Operand::Reg(Reg(4)), b: Operand::Reg(Reg(5)) };
            let function = binary(registers);
            let compiled = compile(&function);
            for a in EDGES {
                for b in EDGES {
                    let (_, left, _) = both(&function, &compiled, scratch(a, b), 0);
                    assert_eq!(left[2], interp::alu(op, width, a, b));
                }
            }
            for constant in EDGES {
                for swapped in [false, true] {
                    let (a, b) = (Operand::Reg(Reg(4)), Operand::Imm(constant));
                    let (a, b) = if swapped { (b, a) } else { (a, b) };
                    let function = binary(Inst::Alu { op, width, target: Reg(6), a, b });
                    let compiled = compile(&function);
                    for value in EDGES {
                        both(&function, &compiled, scratch(value, 0), 0);
                    }
                }
            }
        }
    }
}

#[test]
fn arithmetic_that_could_trap_or_shift_too_far_has_the_results_of_rfc_9669() {
    let minimum = i64::MIN as u64;
    let minimum32 = u64::from(i32::MIN as u32);
    let negative = |value: i64| value as u64;
    let cases = [
        (Alu::Div, Width::W64, 7, 0, 0),
        (Alu::Div, Width::W32, 7, 1 << 32, 0),
        (Alu::Div, Width::W64, u64::MAX, 2, u64::MAX / 2),
        (Alu::SDiv, Width::W64, minimum, u64::MAX, minimum),
        (Alu::SDiv, Width::W32, minimum32, u64::MAX, minimum32),
        (Alu::SDiv, Width::W64, negative(-7), 2, negative(-3)),
        (Alu::SDiv, Width::W32, negative(-7), 2, u64::from(-3_i32 as u32)),
        (Alu::SDiv, Width::W64, 7, 0, 0),
        (Alu::Rem, Width::W64, 7, 0, 7),
        (Alu::Rem, Width::W32, 0x5_0000_0007, 0, 7),
        (Alu::SRem, Width::W64, minimum, u64::MAX, 0),
        (Alu::SRem, Width::W64, negative(-7), 2, negative(-1)),
        (Alu::SRem, Width::W32, negative(-7), 0, u64::from(-7_i32 as u32)),
        (Alu::Shl, Width::W64, 1, 64, 1),
        (Alu::Shl, Width::W64, 1, 63, 1 << 63),
        (Alu::Shl, Width::W32, 1, 33, 2),
        (Alu::Shr, Width::W32, u64::MAX, 31, 1),
        (Alu::Sar, Width::W32, 0x8000_0000, 31, 0xffff_ffff),
        (Alu::Sar, Width::W64, minimum, 63, u64::MAX),
    ];
    for (op, width, a, b, result) in cases {
        let inst = Inst::Alu { op, width, target: Reg(6), a: Operand::Reg(Reg(4)), b: Operand::Reg(Reg(5)) };
        let function = binary(inst);
        let (_, left, _) = both(&function, &compile(&function), scratch(a, b), 0);
        assert_eq!(left[2], result, "{op:?} {width:?} {a:#x} {b:#x}");
    }
}

#[test]
fn moves_extensions_and_byte_swaps() {
    let mut insts = Vec::new();
    for width in Width::ALL {
        insts.push(Inst::Move { width, target: Reg(6), source: Operand::Reg(Reg(4)) });
        insts.extend(EDGES.map(|value| Inst::Move { width, target: Reg(6), source: Operand::Imm(value) }));
        insts.extend([8, 16, 32].map(|bits| Inst::SignExtend {
            width,
            target: Reg(6),
            source: Reg(4),
            bits,
        }));
    }
    for inst in insts {
        let function = binary(inst);
        let compiled = compile(&function);
        for value in EDGES {
            both(&function, &compiled, scratch(value, 0), 0);
        }
    }
    let swaps = [
        (16, true, 0xefcd),
        (32, true, 0xefcd_ab89),
        (64, true, 0xefcd_ab89_6745_2301),
        (16, false, 0xcdef),
        (32, false, 0x89ab_cdef),
        (64, false, 0x0123_4567_89ab_cdef),
    ];
    for (bits, reverse, result) in swaps {
        let insts = [
            load(4, at(Space::Scratch, 0)),
            Inst::ByteSwap { target: Reg(4), bits, reverse },
            store(at(Space::Scratch, 16), 4),
        ];
        let function = one(&insts);
        let (_, left, _) = both(&function, &compile(&function), scratch(0x0123_4567_89ab_cdef, 0), 0);
        assert_eq!(left[2], result, "{bits} bits, reversed {reverse}");
    }
}

#[test]
fn comparisons() {
    for cmp in Cmp::ALL {
        for width in Width::ALL {
            let decide = |b| {
                let end = End::Branch {
                    cmp,
                    width,
                    a: Operand::Reg(Reg(4)),
                    b,
                    then: memlift_traverse::ir::BlockId(1),
                    or: memlift_traverse::ir::BlockId(2),
                };
                let insts = [load(4, at(Space::Scratch, 0)), load(5, at(Space::Scratch, 8))];
                Function { blocks: vec![block(&insts, end), returns(&[], 1), returns(&[], 5)] }
            };
            let function = decide(Operand::Reg(Reg(5)));
            let compiled = compile(&function);
            for a in EDGES {
                for b in EDGES {
                    let (verdict, _, _) = both(&function, &compiled, scratch(a, b), 0);
                    assert_eq!(
                        verdict == 1,
                        interp::compare(cmp, width, a, b),
                        "{cmp:?} {width:?} {a:#x} {b:#x}"
                    );
                }
            }
            for b in EDGES {
                let function = decide(Operand::Imm(b));
                let compiled = compile(&function);
                for a in EDGES {
                    both(&function, &compiled, scratch(a, 0), 0);
                }
            }
        }
    }
}

#[test]
fn loads_and_stores_of_every_size_and_alignment_in_every_space() {
    for size in Size::ALL {
        let bytes = size.bytes().cast_signed();
        for signed in [false, true] {
            for offset in [-64, -9, -8, -1, 0, 1, 3, 7, 64 - bytes] {
                let read = Inst::Load { size, signed, target: Reg(6), address: at(Space::Window, offset) };
                let function = binary(read);
                both(&function, &compile(&function), scratch(0, 0), 0);
            }
            for offset in [0, 1, 3, 5, 8] {
                let read = Inst::Load { size, signed, target: Reg(6), address: at(Space::Scratch, offset) };
                let function = binary(read);
                both(&function, &compile(&function), scratch(0xf0e1_d2c3_b4a5_9687, u64::MAX - 5), 0);
            }
            for offset in [-512, -511, -24, -13, -16] {
                let function = one(&[
                    load(4, at(Space::Scratch, 0)),
                    store(at(Space::Stack, offset), 4),
                    Inst::Load { size, signed, target: Reg(6), address: at(Space::Stack, offset) },
                    store(at(Space::Scratch, 16), 6),
                ]);
                both(&function, &compile(&function), scratch(0xf0e1_d2c3_b4a5_9687, 0), 0);
            }
        }
        for source in [Operand::Reg(Reg(4)), Operand::Imm(0xf1e2_d3c4_b5a6_9788)] {
            for (space, offset) in
                [(Space::Scratch, 17), (Space::Scratch, 24), (Space::Walk, 48 - bytes), (Space::Walk, 9)]
            {
                let insts = [
                    load(4, at(Space::Scratch, 0)),
                    Inst::Store { size, address: at(space, offset), source },
                ];
                let function = one(&insts);
                both(&function, &compile(&function), scratch(0x0102_0304_0506_0708, 0), 0);
            }
        }
    }
}

#[test]
fn guards_let_exactly_their_range_through() {
    for (space, offset, first, last) in [
        (Space::Window, 0, -64, 56),
        (Space::Window, 8, -8, 3),
        (Space::Scratch, 16, -16, 40),
        (Space::Scratch, 0, 5, 5),
        (Space::Scratch, -1000, 1000, 1056),
    ] {
        let function = one(&[
            load(4, at(Space::Scratch, 0)),
            load(6, indexed(space, offset, 4, first, last, true)),
            store(at(Space::Scratch, 16), 6),
        ]);
        let compiled = compile(&function);
        let ends = [first - 1, first, first + 1, 0, last - 1, last, last + 1, i64::MIN, i64::MAX, -1];
        for value in ends {
            let (verdict, left, _) = both(&function, &compiled, scratch(value as u64, 0), 0);
            if (first..=last).contains(&value) {
                assert_eq!(verdict, 1, "{value} in {first}..={last}");
            } else {
                assert_eq!(verdict, Verdict::Guard as u32, "{value} not in {first}..={last}");
                assert_eq!(left[2], 0, "nothing ran after the guard");
            }
        }
    }
    let never = one(&[load(6, indexed(Space::Window, 0, 4, 1, 0, true))]);
    assert_eq!(both(&never, &compile(&never), scratch(0, 0), 0).0, Verdict::Guard as u32);
}

#[test]
fn an_index_that_was_proved_wrongly_still_stays_inside() {
    // The interpreter trusts the proof; the machine code clamps to the first byte.
    let function = one(&[
        load(4, at(Space::Scratch, 0)),
        load(6, indexed(Space::Scratch, 8, 4, 0, 48, false)),
        store(at(Space::Scratch, 16), 6),
    ]);
    let compiled = compile(&function);
    assert_eq!(both(&function, &compiled, [8, 0, 77, 0, 0, 0, 0, 0], 0).1[2], 77);
    let mut words = [u64::MAX, 55, 0, 0, 0, 0, 0, 0];
    let mut walk = Walk::default();
    // SAFETY: 64 bytes of scratch; the node is not read.
    let verdict = unsafe { compiled.step(core::ptr::null(), words.as_mut_ptr().cast(), &raw mut walk) };
    assert_eq!((verdict, words[2]), (1, 55));
}

#[test]
fn each_backward_jump_costs_one_unit_of_fuel() {
    // Adds 1 to scratch 16 until it is r4.
    let add = jit_programs::alu(Alu::Add, 6, 6, 1);
    let function = Function {
        blocks: vec![
            block(
                &[load(4, at(Space::Scratch, 0)), add, store(at(Space::Scratch, 16), 6)],
                branch(Cmp::Lt, 6, Operand::Reg(Reg(4)), 0, 1),
            ),
            returns(&[], 1),
        ],
    };
    let compiled = compile(&function);
    for (times, fuel, verdict, reached) in
        [(1, 0, 1, 1), (2, 0, 0x80, 1), (2, 1, 1, 2), (10, 9, 1, 10), (10, 8, 0x80, 9)]
    {
        let (got, left, walk) = both(&function, &compiled, scratch(times, 0), fuel);
        assert_eq!((got, left[2]), (verdict, reached), "{times} times on {fuel} units");
        assert_eq!(walk.fuel, fuel, "the budget is the runtime's");
    }
    let forever = Function { blocks: vec![block(&[], End::Jump(memlift_traverse::ir::BlockId(0)))] };
    assert_eq!(both(&forever, &compile(&forever), scratch(0, 0), 1000).0, Verdict::OutOfFuel as u32);
}

#[test]
fn the_verdict_is_the_low_half_of_r0() {
    for value in [0, 3, 0xffff_ffff, 0x1_0000_0002, 0x8000_0000_0000_0081] {
        let function = one(&[]);
        let function = Function { blocks: vec![returns(&function.blocks[0].insts, value)] };
        assert_eq!(both(&function, &compile(&function), scratch(0, 0), 0).0, value as u32);
    }
}

#[test]
fn what_no_verifier_lets_through_is_refused() {
    let bad = [
        one(&[constant(11, 0)]),
        one(&[load(4, at(Space::Window, 57))]),
        one(&[load(4, at(Space::Window, -65))]),
        one(&[load(4, at(Space::Scratch, 57))]),
        one(&[load(4, at(Space::Scratch, -1))]),
        one(&[load(4, at(Space::Stack, -513))]),
        one(&[load(4, at(Space::Stack, -7))]),
        one(&[load(4, at(Space::Walk, 0))]),
        one(&[store(at(Space::Window, 0), 4)]),
        one(&[store(at(Space::Walk, 48), 4)]),
        one(&[load(4, indexed(Space::Scratch, 0, 5, 0, 57, true))]),
        one(&[load(4, indexed(Space::Scratch, 0, 5, 0, i64::MAX, true))]),
        one(&[load(4, indexed(Space::Scratch, 0, 12, 0, 8, true))]),
        one(&[load(4, indexed(Space::Scratch, 0, 5, 1, 0, false))]),
        one(&[Inst::SignExtend { width: Width::W64, target: Reg(4), source: Reg(4), bits: 64 }]),
        one(&[Inst::ByteSwap { target: Reg(4), bits: 8, reverse: true }]),
        Function { blocks: vec![] },
        Function { blocks: vec![block(&[], End::Jump(memlift_traverse::ir::BlockId(1)))] },
    ];
    for function in bad {
        let error = Compiled::new(&function, &LIMITS).expect_err("not a verified function");
        assert!(matches!(error, CompileError::Malformed { .. }), "{error}: {function:?}");
    }
}
