// SPDX-License-Identifier: Apache-2.0 OR MIT
//! BPF bytecode: the instructions that a walk may have, and their forms as bytes, as text and in object files.
//!
//! - **Flow** bytes ──[`decode`]──▶ [`Code`] ──`lower`──▶ IR; text ──[`asm`]──▶ [`Instruction`] ──[`encode`]──▶ bytes;
//!   `clang -target bpf` ──▶ object ──[`elf`]──▶ bytes
//! - **Order** an instruction has one encoding and one text, so that equal programs have equal hashes
//! - **Not here** calls, maps, atomics, packet access: decoding and `elf` refuse them
//!
//! Source: RFC 9669. Numbers are in `memlift_spec::formats::walk`.

pub mod asm;
pub mod decode;
pub mod disasm;
pub mod elf;
pub mod encode;

use crate::ir::{Alu, Cmp, Reg, Size, Width};

/// A register, or the instruction's 32-bit immediate (sign-extended where 64 bits are wanted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The value of a register.
    Reg(Reg),
    /// A constant in the instruction.
    Imm(i32),
}

/// Conversion of byte order by an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// To little endian. The machines that run walks are little-endian, so this only truncates.
    Little,
    /// To big endian.
    Big,
    /// Reverses the bytes, whatever their order was.
    Swap,
}

/// One instruction of bytecode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields: the encoding's own names")]
pub enum Instruction {
    /// `target = source`.
    Move { width: Width, target: Reg, source: Source },
    /// `target = sign-extended low bits of source`; 8, 16 or (64-bit wide) 32 of them.
    MoveSigned { width: Width, target: Reg, source: Reg, bits: u8 },
    /// `target op= source`.
    Alu { op: Alu, width: Width, target: Reg, source: Source },
    /// `target = -target`.
    Negate { width: Width, target: Reg },
    /// Converts the byte order of the low 16, 32 or 64 bits.
    Bytes { end: End, target: Reg, bits: u8 },
    /// `target = value`; takes two places of eight bytes.
    LoadImmediate { target: Reg, value: u64 },
    /// `target = *(base + offset)`.
    Load { size: Size, signed: bool, target: Reg, base: Reg, offset: i16 },
    /// `*(base + offset) = source`.
    Store { size: Size, base: Reg, offset: i16, source: Source },
    /// Continues `offset` places after the next instruction. `long`: the encoding with a 32-bit offset.
    Jump { offset: i32, long: bool },
    /// Continues `offset` places after the next instruction if the comparison holds.
    Branch { cmp: Cmp, width: Width, left: Reg, right: Source, offset: i16 },
    /// Ends the step and returns r0.
    Exit,
}

impl Instruction {
    /// Returns the number of places (eight bytes each) that the instruction takes.
    #[must_use]
    pub fn places(&self) -> u32 {
        if matches!(self, Instruction::LoadImmediate { .. }) { 2 } else { 1 }
    }

    /// Returns the place to which this instruction, at place `at`, may jump; `None` if it is not a jump.
    #[must_use]
    pub fn target(&self, at: u32) -> Option<i64> {
        match *self {
            Instruction::Jump { offset, .. } => Some(i64::from(at) + 1 + i64::from(offset)),
            Instruction::Branch { offset, .. } => Some(i64::from(at) + 1 + i64::from(offset)),
            _ => None,
        }
    }
}

/// Instructions in order, with the place of each.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Code {
    /// The instructions in order.
    pub instructions: Vec<Instruction>,
    /// The place of each instruction.
    pub places: Vec<u32>,
    /// For every place, the index of the instruction that starts there; [`Code::MIDDLE`] for the second half of one.
    pub starts: Vec<u32>,
}

impl Code {
    /// See [`Code::starts`].
    pub const MIDDLE: u32 = u32::MAX;

    /// Lays out instructions one after the other.
    #[must_use]
    pub fn new(instructions: Vec<Instruction>) -> Code {
        let (mut places, mut starts) = (Vec::with_capacity(instructions.len()), Vec::new());
        for (index, instruction) in instructions.iter().enumerate() {
            places.push(starts.len() as u32);
            starts.push(index as u32);
            if instruction.places() == 2 {
                starts.push(Code::MIDDLE);
            }
        }
        Code { instructions, places, starts }
    }

    /// Returns the index of the instruction that starts at a place; `None` if none starts there.
    #[must_use]
    pub fn at_place(&self, place: i64) -> Option<usize> {
        let start = *self.starts.get(usize::try_from(place).ok()?)?;
        (start != Code::MIDDLE).then_some(start as usize)
    }
}
