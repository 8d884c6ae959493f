// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decodes bytecode, eight bytes at a time, into instructions or the reason why they are invalid.
//!
//! - **Order** accepts exactly the encodings that [`super::encode`] writes: unused fields must be 0, registers are r0 to r10,
//!   and r10 is never a target. Jumps are checked too: they must lead to the start of an instruction
//! - **Not here** the effect of a sequence of instructions: `lower` and `verify`

use super::{Code, End, Instruction, Source};
use crate::error::{Error, Result};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use memlift_spec::formats::walk::*;

/// The fields of eight bytes.
struct Raw {
    opcode: u8,
    target: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Raw {
    fn new(bytes: &[u8]) -> Raw {
        Raw {
            opcode: bytes[0],
            target: bytes[1] & 0x0f,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            immediate: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    fn unused(&self, target: bool, source: bool, offset: bool, immediate: bool) -> Result<(), String> {
        let named = [
            (target && self.target != 0, "target"),
            (source && self.source != 0, "source"),
            (offset && self.offset != 0, "offset"),
            (immediate && self.immediate != 0, "immediate"),
        ];
        match named.iter().find(|(set, _)| *set) {
            Some((_, field)) => Err(format!("opcode {:#04x} has no {field}; it must be 0", self.opcode)),
            None => Ok(()),
        }
    }

    fn unknown(&self) -> String {
        format!("opcode {:#04x} (offset {}) is none that a walk may have", self.opcode, self.offset)
    }

    fn read(number: u8) -> Result<Reg, String> {
        if number <= 10 { Ok(Reg(number)) } else { Err(format!("there is no register r{number}")) }
    }

    fn written(number: u8) -> Result<Reg, String> {
        match number {
            10 => Err("r10 is the stack's address and cannot be set".into()),
            _ => Raw::read(number),
        }
    }

    /// Returns the second operand of arithmetic and jumps.
    fn operand(&self) -> Result<Source, String> {
        if self.opcode & SOURCE_REGISTER != 0 {
            self.unused(false, false, false, true)?;
            Ok(Source::Reg(Raw::read(self.source)?))
        } else {
            self.unused(false, true, false, false)?;
            Ok(Source::Imm(self.immediate))
        }
    }

    fn size(&self) -> Size {
        match self.opcode & SIZE_MASK {
            SIZE_B => Size::B1,
            SIZE_H => Size::B2,
            SIZE_W => Size::B4,
            _ => Size::B8,
        }
    }

    fn arithmetic(&self, width: Width) -> Result<Instruction, String> {
        let target = Raw::written(self.target)?;
        let code = self.opcode & CODE_MASK;
        if code == END {
            self.unused(false, true, true, false)?;
            let end = match (width, self.opcode & SOURCE_REGISTER != 0) {
                (Width::W32, false) => End::Little,
                (Width::W32, true) => End::Big,
                (Width::W64, false) => End::Swap,
                (Width::W64, true) => return Err(self.unknown()),
            };
            let bits = match self.immediate {
                bits @ (16 | 32 | 64) => bits as u8,
                other => return Err(format!("the order of {other} bits; it is of 16, 32 or 64")),
            };
            return Ok(Instruction::Bytes { end, target, bits });
        }
        if code == NEG {
            self.unused(false, true, true, true)?;
            return match self.opcode & SOURCE_REGISTER {
                0 => Ok(Instruction::Negate { width, target }),
                _ => Err(self.unknown()),
            };
        }
        let source = self.operand()?;
        if code == MOV {
            return match (self.offset, source, width) {
                (0, ..) => Ok(Instruction::Move { width, target, source }),
                (8 | 16, Source::Reg(source), _) | (32, Source::Reg(source), Width::W64) => {
                    Ok(Instruction::MoveSigned { width, target, source, bits: self.offset as u8 })
                }
                _ => Err(self.unknown()),
            };
        }
        let op = match (code, self.offset) {
            (ADD, 0) => Alu::Add,
            (SUB, 0) => Alu::Sub,
            (MUL, 0) => Alu::Mul,
            (DIV, 0) => Alu::Div,
            (DIV, 1) => Alu::SDiv,
            (MOD, 0) => Alu::Rem,
            (MOD, 1) => Alu::SRem,
            (OR, 0) => Alu::Or,
            (AND, 0) => Alu::And,
            (XOR, 0) => Alu::Xor,
            (LSH, 0) => Alu::Shl,
            (RSH, 0) => Alu::Shr,
            (ARSH, 0) => Alu::Sar,
            _ => return Err(self.unknown()),
        };
        Ok(Instruction::Alu { op, width, target, source })
    }

    fn jump(&self, width: Width) -> Result<Instruction, String> {
        let code = self.opcode & CODE_MASK;
        let register = self.opcode & SOURCE_REGISTER != 0;
        match (code, width, register) {
            (JA, Width::W64, false) => {
                self.unused(true, true, false, true)?;
                return Ok(Instruction::Jump { offset: i32::from(self.offset), long: false });
            }
            (JA, Width::W32, false) => {
                self.unused(true, true, true, false)?;
                return Ok(Instruction::Jump { offset: self.immediate, long: true });
            }
            (EXIT, Width::W64, false) => {
                self.unused(true, true, true, true)?;
                return Ok(Instruction::Exit);
            }
            (CALL, ..) => return Err("a call; a walk has none: inline the function".into()),
            _ => {}
        }
        let cmp = match code {
            JEQ => Cmp::Eq,
            JNE => Cmp::Ne,
            JGT => Cmp::Gt,
            JGE => Cmp::Ge,
            JLT => Cmp::Lt,
            JLE => Cmp::Le,
            JSGT => Cmp::SGt,
            JSGE => Cmp::SGe,
            JSLT => Cmp::SLt,
            JSLE => Cmp::SLe,
            JSET => Cmp::Set,
            _ => return Err(self.unknown()),
        };
        let (left, right) = (Raw::read(self.target)?, self.operand()?);
        Ok(Instruction::Branch { cmp, width, left, right, offset: self.offset })
    }

    fn instruction(&self, second: Option<&[u8]>) -> Result<Instruction, String> {
        let (size, mode, offset) = (self.size(), self.opcode & MODE_MASK, self.offset);
        match self.opcode & CLASS_MASK {
            CLASS_ALU => self.arithmetic(Width::W32),
            CLASS_ALU64 => self.arithmetic(Width::W64),
            CLASS_JMP => self.jump(Width::W64),
            CLASS_JMP32 => self.jump(Width::W32),
            CLASS_LDX if mode == MODE_MEM || (mode == MODE_MEMSX && size != Size::B8) => {
                self.unused(false, false, false, true)?;
                let (target, base) = (Raw::written(self.target)?, Raw::read(self.source)?);
                Ok(Instruction::Load { size, signed: mode == MODE_MEMSX, target, base, offset })
            }
            CLASS_ST if mode == MODE_MEM => {
                self.unused(false, true, false, false)?;
                let (base, source) = (Raw::read(self.target)?, Source::Imm(self.immediate));
                Ok(Instruction::Store { size, base, offset, source })
            }
            CLASS_STX if mode == MODE_MEM => {
                self.unused(false, false, false, true)?;
                let (base, source) = (Raw::read(self.target)?, Source::Reg(Raw::read(self.source)?));
                Ok(Instruction::Store { size, base, offset, source })
            }
            CLASS_LD if self.opcode == LOAD_IMMEDIATE => {
                let target = Raw::written(self.target)?;
                if self.source != 0 {
                    return Err(
                        "an immediate that is a map, a function or a variable; a walk has numbers only"
                            .into(),
                    );
                }
                self.unused(false, false, true, false)?;
                let second = Raw::new(second.ok_or("its second half is missing")?);
                if second.opcode != 0 || second.target != 0 || second.source != 0 || second.offset != 0 {
                    return Err("its second half holds more than the upper 32 bits".into());
                }
                let (low, high) = (self.immediate as u32, second.immediate as u32);
                Ok(Instruction::LoadImmediate { target, value: u64::from(low) | u64::from(high) << 32 })
            }
            _ => Err(self.unknown()),
        }
    }
}

/// Decodes all of `bytecode`.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::Program`] name the invalid bytes, and the reason.
pub fn decode(bytecode: &[u8]) -> Result<Code> {
    let (chunks, rest) = bytecode.as_chunks::<INSTRUCTION_BYTES>();
    if !rest.is_empty() || chunks.is_empty() {
        return Err(Error::Program(format!(
            "{} bytes of instructions; they have {INSTRUCTION_BYTES} bytes each, and there is at least one",
            bytecode.len()
        )));
    }
    if chunks.len() > INSTRUCTIONS_MAX {
        return Err(Error::Program(format!("{} instructions; at most {INSTRUCTIONS_MAX}", chunks.len())));
    }
    let mut instructions = Vec::with_capacity(chunks.len());
    let mut at = 0;
    while at < chunks.len() {
        let next = chunks.get(at + 1).map(|bytes| &bytes[..]);
        let instruction = Raw::new(&chunks[at])
            .instruction(next)
            .map_err(|reason| Error::Malformed { at: at as u32, reason })?;
        instructions.push(instruction);
        at += instruction.places() as usize;
    }
    let code = Code::new(instructions);
    for (instruction, &at) in code.instructions.iter().zip(&code.places) {
        if let Some(target) = instruction.target(at)
            && code.at_place(target).is_none()
        {
            let reason = format!("it jumps to {target}, where no instruction starts");
            return Err(Error::Malformed { at, reason });
        }
    }
    Ok(code)
}
