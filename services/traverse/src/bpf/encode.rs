// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes instructions as bytecode; each instruction has one encoding.
//!
//! - **Order** [`super::decode`] of the encoding gives the same instructions

use super::{End, Instruction, Source};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use memlift_spec::formats::walk::*;

fn raw(opcode: u8, target: u8, source: u8, offset: i16, immediate: i32) -> [u8; INSTRUCTION_BYTES] {
    let mut bytes = [opcode, target | source << 4, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_le_bytes());
    bytes[4..].copy_from_slice(&immediate.to_le_bytes());
    bytes
}

fn size(size: Size) -> u8 {
    match size {
        Size::B1 => SIZE_B,
        Size::B2 => SIZE_H,
        Size::B4 => SIZE_W,
        Size::B8 => SIZE_DW,
    }
}

fn operand(source: Source) -> (u8, u8, i32) {
    match source {
        Source::Reg(Reg(number)) => (SOURCE_REGISTER, number, 0),
        Source::Imm(value) => (0, 0, value),
    }
}

fn arithmetic(op: Alu) -> (u8, i16) {
    match op {
        Alu::Add => (ADD, 0),
        Alu::Sub => (SUB, 0),
        Alu::Mul => (MUL, 0),
        Alu::Div => (DIV, 0),
        Alu::SDiv => (DIV, 1),
        Alu::Rem => (MOD, 0),
        Alu::SRem => (MOD, 1),
        Alu::And => (AND, 0),
        Alu::Or => (OR, 0),
        Alu::Xor => (XOR, 0),
        Alu::Shl => (LSH, 0),
        Alu::Shr => (RSH, 0),
        Alu::Sar => (ARSH, 0),
    }
}

fn comparison(cmp: Cmp) -> u8 {
    match cmp {
        Cmp::Eq => JEQ,
        Cmp::Ne => JNE,
        Cmp::Gt => JGT,
        Cmp::Ge => JGE,
        Cmp::Lt => JLT,
        Cmp::Le => JLE,
        Cmp::SGt => JSGT,
        Cmp::SGe => JSGE,
        Cmp::SLt => JSLT,
        Cmp::SLe => JSLE,
        Cmp::Set => JSET,
    }
}

fn alu_class(width: Width) -> u8 {
    if width == Width::W32 { CLASS_ALU } else { CLASS_ALU64 }
}

/// Appends an instruction's eight or sixteen bytes.
pub fn push(bytecode: &mut Vec<u8>, instruction: &Instruction) {
    let bytes = match *instruction {
        Instruction::Move { width, target, source } => {
            let (bit, number, value) = operand(source);
            raw(alu_class(width) | MOV | bit, target.0, number, 0, value)
        }
        Instruction::MoveSigned { width, target, source, bits } => {
            raw(alu_class(width) | MOV | SOURCE_REGISTER, target.0, source.0, i16::from(bits), 0)
        }
        Instruction::Alu { op, width, target, source } => {
            let ((code, offset), (bit, number, value)) = (arithmetic(op), operand(source));
            raw(alu_class(width) | code | bit, target.0, number, offset, value)
        }
        Instruction::Negate { width, target } => raw(alu_class(width) | NEG, target.0, 0, 0, 0),
        Instruction::Bytes { end, target, bits } => {
            let opcode = match end {
                End::Little => CLASS_ALU | END,
                End::Big => CLASS_ALU | END | SOURCE_REGISTER,
                End::Swap => CLASS_ALU64 | END,
            };
            raw(opcode, target.0, 0, 0, i32::from(bits))
        }
        Instruction::LoadImmediate { target, value } => {
            bytecode.extend(raw(LOAD_IMMEDIATE, target.0, 0, 0, value as i32));
            raw(0, 0, 0, 0, (value >> 32) as i32)
        }
        Instruction::Load { size: bytes, signed, target, base, offset } => {
            let mode = if signed { MODE_MEMSX } else { MODE_MEM };
            raw(CLASS_LDX | mode | size(bytes), target.0, base.0, offset, 0)
        }
        Instruction::Store { size: bytes, base, offset, source: Source::Reg(source) } => {
            raw(CLASS_STX | MODE_MEM | size(bytes), base.0, source.0, offset, 0)
        }
        Instruction::Store { size: bytes, base, offset, source: Source::Imm(value) } => {
            raw(CLASS_ST | MODE_MEM | size(bytes), base.0, 0, offset, value)
        }
        Instruction::Jump { offset, long: true } => raw(CLASS_JMP32 | JA, 0, 0, 0, offset),
        Instruction::Jump { offset, long: false } => raw(CLASS_JMP | JA, 0, 0, offset as i16, 0),
        Instruction::Branch { cmp, width, left, right, offset } => {
            let class = if width == Width::W32 { CLASS_JMP32 } else { CLASS_JMP };
            let (bit, number, value) = operand(right);
            raw(class | comparison(cmp) | bit, left.0, number, offset, value)
        }
        Instruction::Exit => raw(CLASS_JMP | EXIT, 0, 0, 0, 0),
    };
    bytecode.extend(bytes);
}

/// Encodes instructions as bytes.
#[must_use]
pub fn encode(instructions: &[Instruction]) -> Vec<u8> {
    let mut bytecode = Vec::with_capacity(instructions.len() * INSTRUCTION_BYTES);
    for instruction in instructions {
        push(&mut bytecode, instruction);
    }
    bytecode
}
