// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytecode as text, in the form that LLVM prints: `r2 = *(u64 *)(r1 + 8)`, `if r2 == r4 goto +3`, `exit`.
//!
//! - **Order** [`super::asm`] reads this output back, to the same bytes
//! - **Not here** names: [`listing`] calls the target of a jump `L` and the number of its place

use super::{Code, End, Instruction, Source};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use std::fmt::{self, Display, Formatter, Write};

fn register(width: Width, Reg(number): Reg) -> String {
    format!("{}{number}", if width == Width::W32 { 'w' } else { 'r' })
}

fn operand(width: Width, source: Source) -> String {
    match source {
        Source::Reg(reg) => register(width, reg),
        Source::Imm(value) => value.to_string(),
    }
}

/// Returns the text of a memory type.
#[must_use]
pub fn type_name(size: Size, signed: bool) -> &'static str {
    match (size, signed) {
        (Size::B1, false) => "u8",
        (Size::B2, false) => "u16",
        (Size::B4, false) => "u32",
        (Size::B8, false) => "u64",
        (Size::B1, true) => "s8",
        (Size::B2, true) => "s16",
        (Size::B4, true) => "s32",
        (Size::B8, true) => "s64",
    }
}

/// Returns the text of an arithmetic operator, without the `=`.
#[must_use]
pub fn alu_name(op: Alu) -> &'static str {
    match op {
        Alu::Add => "+",
        Alu::Sub => "-",
        Alu::Mul => "*",
        Alu::Div => "/",
        Alu::SDiv => "s/",
        Alu::Rem => "%",
        Alu::SRem => "s%",
        Alu::And => "&",
        Alu::Or => "|",
        Alu::Xor => "^",
        Alu::Shl => "<<",
        Alu::Shr => ">>",
        Alu::Sar => "s>>",
    }
}

/// Returns the text of a comparison.
#[must_use]
pub fn cmp_name(cmp: Cmp) -> &'static str {
    match cmp {
        Cmp::Eq => "==",
        Cmp::Ne => "!=",
        Cmp::Gt => ">",
        Cmp::Ge => ">=",
        Cmp::Lt => "<",
        Cmp::Le => "<=",
        Cmp::SGt => "s>",
        Cmp::SGe => "s>=",
        Cmp::SLt => "s<",
        Cmp::SLe => "s<=",
        Cmp::Set => "&",
    }
}

fn memory(size: Size, signed: bool, Reg(base): Reg, offset: i16) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!("*({} *)(r{base} {sign} {})", type_name(size, signed), offset.unsigned_abs())
}

/// Returns the text of one instruction; `target` is the text of a jump's destination.
fn one(instruction: &Instruction, target: &str) -> String {
    match *instruction {
        Instruction::Move { width, target, source } => {
            format!("{} = {}", register(width, target), operand(width, source))
        }
        Instruction::MoveSigned { width, target, source, bits } => {
            format!("{} = (s{bits}){}", register(width, target), register(width, source))
        }
        Instruction::Alu { op, width, target, source } => {
            format!("{} {}= {}", register(width, target), alu_name(op), operand(width, source))
        }
        Instruction::Negate { width, target } => {
            format!("{0} = -{0}", register(width, target))
        }
        Instruction::Bytes { end, target: Reg(number), bits } => {
            let name = match end {
                End::Little => "le",
                End::Big => "be",
                End::Swap => "bswap",
            };
            format!("r{number} = {name}{bits} r{number}")
        }
        Instruction::LoadImmediate { target: Reg(number), value } => format!("r{number} = {value:#x} ll"),
        Instruction::Load { size, signed, target, base, offset } => {
            format!("r{} = {}", target.0, memory(size, signed, base, offset))
        }
        Instruction::Store { size, base, offset, source } => {
            format!("{} = {}", memory(size, false, base, offset), operand(Width::W64, source))
        }
        Instruction::Jump { long, .. } => format!("goto{} {target}", if long { "l" } else { "" }),
        Instruction::Branch { cmp, width, left, right, .. } => {
            let (left, right) = (register(width, left), operand(width, right));
            format!("if {left} {} {right} goto {target}", cmp_name(cmp))
        }
        Instruction::Exit => "exit".into(),
    }
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let target = match *self {
            Instruction::Jump { offset, .. } => format!("{offset:+}"),
            Instruction::Branch { offset, .. } => format!("{offset:+}"),
            _ => String::new(),
        };
        f.write_str(&one(self, &target))
    }
}

/// Returns the text of a program, one instruction a line, with labels at the targets of jumps.
#[must_use]
pub fn listing(code: &Code) -> String {
    let target = |index: usize| code.instructions[index].target(code.places[index]);
    let mut labels: Vec<i64> = (0..code.instructions.len()).filter_map(target).collect();
    labels.sort_unstable();
    let mut text = String::new();
    for (index, instruction) in code.instructions.iter().enumerate() {
        if labels.binary_search(&i64::from(code.places[index])).is_ok() {
            let _ = writeln!(text, "L{}:", code.places[index]);
        }
        let name = target(index).map(|place| format!("L{place}")).unwrap_or_default();
        let _ = writeln!(text, "    {}", one(instruction, &name));
    }
    text
}
