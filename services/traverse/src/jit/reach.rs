// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the memory that a function accesses, and checks it against the declared areas before any machine code is made.
//!
//! - **Flow** [`Function`] + [`Limits`] ──[`Reach::of`]──▶ [`Reach`]: the part of the stack in use, and the cache lines of a
//!   node
//! - **Not here** proofs about registers: the code clamps an index to its ends, so only these ends matter

use super::{CompileError, Limits};
use crate::ir::{Address, End, Function, Inst, Operand, REGS, Reg, Size, Space};
use core::ops::Range;

/// Bytes of the stack, below r10.
const STACK_BYTES: i64 = 512;
/// Bytes of the walk that a program may store to: all before its fuel.
const WALK_BYTES: i64 = core::mem::offset_of!(crate::step::Walk, fuel) as i64;
/// Bytes of a cache line.
const LINE: i64 = 64;
/// Most instructions. Cranelift numbers instructions with 24 bits in some places; a verified program stays
/// far below.
const INSTS: usize = 1 << 16;

/// Memory that a well-formed function accesses.
#[derive(Debug)]
pub(super) struct Reach {
    /// Bytes of the stack in use, as offsets from r10.
    pub stack: Range<i64>,
    /// True if a block can be entered again.
    pub loops: bool,
    /// Bytes of the node that are accessed, as offsets from `cur_ptr`.
    window: Vec<Range<i64>>,
}

impl Reach {
    /// Checks every instruction, and records the memory that it accesses.
    pub fn of(function: &Function, limits: &Limits) -> Result<Reach, CompileError> {
        let mut reach = Reach { stack: 0..0, loops: false, window: Vec::new() };
        let blocks = u32::try_from(function.blocks.len()).unwrap_or(u32::MAX);
        let total: usize = function.blocks.iter().map(|block| block.insts.len() + 1).sum();
        let malformed = |block, what| Err(CompileError::Malformed { block, what });
        if blocks == 0 || total > INSTS {
            return malformed(0, "no blocks, or more than 65536 instructions");
        }
        for (number, block) in (0..blocks).zip(&function.blocks) {
            for inst in &block.insts {
                if let Err(what) = reach.inst(inst, limits) {
                    return malformed(number, what);
                }
            }
            let (targets, operands): (&[_], &[_]) = match &block.end {
                End::Jump(to) => (&[*to], &[]),
                End::Branch { a, b, then, or, .. } => (&[*then, *or], &[*a, *b]),
                End::Return => (&[], &[]),
            };
            for to in targets {
                if to.0 >= blocks {
                    return malformed(number, "jumps to a block that does not exist");
                }
                reach.loops |= Function::is_back_edge(crate::ir::BlockId(number), *to);
            }
            if !operands.iter().copied().all(operand) {
                return malformed(number, "names a register that does not exist");
            }
        }
        Ok(reach)
    }

    fn inst(&mut self, inst: &Inst, limits: &Limits) -> Result<(), &'static str> {
        const NO_REGISTER: &str = "names a register that does not exist";
        let named = |ok: bool| if ok { Ok(()) } else { Err(NO_REGISTER) };
        match *inst {
            Inst::Move { target, source, .. } => named(register(target) && operand(source)),
            Inst::SignExtend { target, source, bits, .. } => {
                named(register(target) && register(source))?;
                if matches!(bits, 8 | 16 | 32) { Ok(()) } else { Err("extends neither 8, 16 nor 32 bits") }
            }
            Inst::Alu { target, a, b, .. } => named(register(target) && operand(a) && operand(b)),
            Inst::ByteSwap { target, bits, .. } => {
                named(register(target))?;
                if matches!(bits, 16 | 32 | 64) { Ok(()) } else { Err("swaps neither 16, 32 nor 64 bits") }
            }
            Inst::Load { size, target, address, .. } => {
                named(register(target))?;
                if address.space == Space::Walk {
                    return Err("loads from the walk");
                }
                self.access(size, &address, limits)
            }
            Inst::Store { size, address, source } => {
                named(operand(source))?;
                if address.space == Space::Window {
                    return Err("stores to the node");
                }
                self.access(size, &address, limits)
            }
        }
    }

    fn access(&mut self, size: Size, address: &Address, limits: &Limits) -> Result<(), &'static str> {
        let (first, last) = match address.index {
            None => (0, 0),
            Some(index) if !register(index.reg) => return Err("names a register that does not exist"),
            // No value is allowed: the guard always refuses the access.
            Some(index) if index.first > index.last && index.guard => return Ok(()),
            Some(index) if index.first > index.last => return Err("an index without a value"),
            Some(index) => (index.first, index.last),
        };
        let limit = match address.space {
            Space::Window => {
                let first = i64::from(limits.window_first);
                first..first + i64::from(limits.window_bytes)
            }
            Space::Scratch => 0..i64::from(limits.scratch_bytes),
            Space::Stack => -STACK_BYTES..0,
            Space::Walk => 0..WALK_BYTES,
        };
        let offset = i64::from(address.offset);
        let start = offset.checked_add(first).ok_or("an address that wraps")?;
        let end = offset.checked_add(last).and_then(|at| at.checked_add(i64::from(size.bytes())));
        let end = end.ok_or("an address that wraps")?;
        if start < limit.start || end > limit.end {
            return Err("an access outside of its space");
        }
        match address.space {
            Space::Window => self.window.push(start..end),
            Space::Stack if self.stack.is_empty() => self.stack = start..end,
            Space::Stack => self.stack = self.stack.start.min(start)..self.stack.end.max(end),
            Space::Scratch | Space::Walk => {}
        }
        Ok(())
    }

    /// Returns one offset for each cache line of a node that starts at a line, and the last byte, for nodes
    /// that do not.
    pub fn prefetch_offsets(&self) -> Vec<i16> {
        let mut prefetch_offsets: Vec<i64> = Vec::new();
        for range in &self.window {
            for line in range.start.div_euclid(LINE)..=(range.end - 1).div_euclid(LINE) {
                let at = range.start.max(line * LINE);
                match prefetch_offsets.iter_mut().find(|touch| touch.div_euclid(LINE) == line) {
                    Some(touch) => *touch = at.min(*touch),
                    None => prefetch_offsets.push(at),
                }
            }
        }
        prefetch_offsets.extend(self.window.iter().map(|range| range.end - 1).max());
        prefetch_offsets.sort_unstable();
        prefetch_offsets.dedup();
        // Cannot drop any: the window was checked against limits of 16 bits.
        prefetch_offsets.into_iter().filter_map(|touch| i16::try_from(touch).ok()).collect()
    }
}

fn register(reg: Reg) -> bool {
    usize::from(reg.0) < REGS
}

fn operand(operand: Operand) -> bool {
    match operand {
        Operand::Reg(reg) => register(reg),
        Operand::Imm(_) => true,
    }
}
