// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytecode to IR: pointers become distances, and every access names its space.
//!
//! - **Flow** [`Code`] ──[`cfg`]──▶ blocks ──[`types`]──▶ the type of each register's content ──▶ [`Function`] for `verify`
//! - **Layout** registers keep their numbers and start at 0; for r1, r2, r3 and r10 that is the distance 0 in their spaces. The
//!   base register of an access becomes its [`Index`], guarded over all numbers until `verify` has narrowed it
//! - **Order** two pointers compare as signed distances, whatever the comparison's sign: they lie in the same memory
//! - **Not here** bounds; the check that no pointer leaves the step (`types`)

use crate::bpf::{Code, End as ByteOrder, Instruction, Source};
use crate::ir::{Address, Alu, Block, BlockId, Cmp, End, Function, Index, Inst, Operand, Reg, Width};
use crate::verify::Rejection;
use crate::verify::cfg::Graph;
use crate::verify::types::{self, Types};

/// Returns a constant as an operation of this width uses it.
fn constant(width: Width, value: i32) -> u64 {
    match width {
        Width::W32 => u64::from(value as u32),
        Width::W64 => i64::from(value) as u64,
    }
}

fn operand(width: Width, source: Source) -> Operand {
    match source {
        Source::Reg(reg) => Operand::Reg(reg),
        Source::Imm(value) => Operand::Imm(constant(width, value)),
    }
}

fn address(types: &Types, base: Reg, offset: i16) -> Result<Address, String> {
    let (space, _) = types.base(base)?;
    let index = Index { reg: base, first: i64::MIN, last: i64::MAX, guard: true };
    Ok(Address { space, offset: i32::from(offset), index: Some(index) })
}

/// Returns the IR of an instruction that does not end a block.
fn inst(types: &Types, instruction: &Instruction) -> Result<Option<Inst>, String> {
    Ok(Some(match *instruction {
        Instruction::Move { width, target, source } => {
            Inst::Move { width, target, source: operand(width, source) }
        }
        Instruction::MoveSigned { width, target, source, bits } => {
            Inst::SignExtend { width, target, source, bits }
        }
        Instruction::Alu { op, width, target, source } => {
            Inst::Alu { op, width, target, a: Operand::Reg(target), b: operand(width, source) }
        }
        Instruction::Negate { width, target } => {
            Inst::Alu { op: Alu::Sub, width, target, a: Operand::Imm(0), b: Operand::Reg(target) }
        }
        Instruction::Bytes { end, target, bits } => {
            Inst::ByteSwap { target, bits, reverse: end != ByteOrder::Little }
        }
        Instruction::LoadImmediate { target, value } => {
            Inst::Move { width: Width::W64, target, source: Operand::Imm(value) }
        }
        Instruction::Load { size, signed, target, base, offset } => {
            Inst::Load { size, signed, target, address: address(types, base, offset)? }
        }
        Instruction::Store { size, base, offset, source } => {
            Inst::Store { size, address: address(types, base, offset)?, source: operand(Width::W64, source) }
        }
        Instruction::Jump { .. } | Instruction::Branch { .. } | Instruction::Exit => return Ok(None),
    }))
}

fn signed(cmp: Cmp) -> Cmp {
    match cmp {
        Cmp::Gt => Cmp::SGt,
        Cmp::Ge => Cmp::SGe,
        Cmp::Lt => Cmp::SLt,
        Cmp::Le => Cmp::SLe,
        other => other,
    }
}

fn end(
    types: &Types,
    instruction: &Instruction,
    next: (Option<BlockId>, Option<BlockId>),
) -> Result<End, String> {
    Ok(match (*instruction, next) {
        (Instruction::Branch { cmp, width, left, right, .. }, (Some(then), Some(or))) => {
            let pointers = types.compares_pointers(cmp, width, left, right)?;
            let cmp = if pointers { signed(cmp) } else { cmp };
            End::Branch { cmp, width, a: Operand::Reg(left), b: operand(width, right), then, or }
        }
        (_, (Some(next), None) | (None, Some(next))) => End::Jump(next),
        _ => End::Return,
    })
}

/// Lowers a program.
///
/// # Errors
/// An instruction breaks a rule of [`types`], or the program can run past its end.
pub fn lower(code: &Code) -> Result<Function, Rejection> {
    let graph = Graph::new(code)?;
    let entries = types::infer(code, &graph)?;
    let mut blocks = Vec::with_capacity(entries.len());
    for (number, (span, mut types)) in graph.spans.iter().zip(entries).enumerate() {
        let (mut insts, mut origin) = (Vec::new(), Vec::new());
        let mut last = None;
        for index in span.first..span.end {
            let (instruction, place) = (&code.instructions[index], code.places[index]);
            let reject = |reason| Rejection::new(place, reason);
            if let Some(inst) = inst(&types, instruction).map_err(reject)? {
                insts.push(inst);
                origin.push(place);
            }
            if index + 1 == span.end {
                let next = graph.successors(code, number);
                last = Some(end(&types, instruction, next).map_err(reject)?);
                origin.push(place);
            }
            types.step(instruction).map_err(reject)?;
        }
        blocks.push(Block { insts, origin, end: last.unwrap_or(End::Return) });
    }
    Ok(Function { blocks })
}
