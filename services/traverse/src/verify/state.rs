// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The facts at one point of a function: the range of every register, and the stack bytes that are set.
//!
//! - **Flow** [`State::entry`] ──[`State::run`] per instruction──▶ at the end of a block ──[`State::branch`]──▶ its successors
//! - **Layout** a value stored to the stack at a constant offset is remembered until any of its bytes is written again. Contents
//!   of window and scratchpad are not remembered: others may change them
//! - **Order** an access out of bounds ends the step (by a guard), so after an access its index is known to be inside. The need
//!   for a guard, and the permission for one, are decided after the fixpoint (`verify`)
//! - **Not here** loops

use super::ranges::Range;
use crate::ir::{Address, BlockId, End, Inst, Operand, REGS, Reg, Size, Space, Width};
use memlift_spec::formats::walk::{STACK_BYTES, WINDOW_BYTES_MAX};

/// Bytes of [`crate::step::Walk`] that a program may store to.
pub const WALK_BYTES: i64 = 48;

/// A value on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    at: i32,
    size: Size,
    range: Range,
}

impl Slot {
    fn end(&self) -> i32 {
        self.at + self.size.bytes() as i32
    }
}

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    registers: [Range; REGS],
    /// One bit per stack byte, from offset -512 up: true if the byte is set.
    set: [u64; STACK_BYTES / 64],
    /// Known values on the stack, sorted by `at`, without overlaps.
    slots: Vec<Slot>,
}

/// Returns the values of an access's index that keep all of its bytes in its space; `None` if there are none.
#[must_use]
pub fn index_bounds(address: &Address, size: Size, scratch_bytes: u32) -> Option<Range> {
    let (first, end) = match address.space {
        Space::Window => (-(WINDOW_BYTES_MAX as i64), WINDOW_BYTES_MAX as i64),
        Space::Scratch => (0, i64::from(scratch_bytes)),
        Space::Stack => (-(STACK_BYTES as i64), 0),
        Space::Walk => (0, WALK_BYTES),
    };
    let offset = i64::from(address.offset);
    let (first, last) = (first - offset, end - offset - i64::from(size.bytes()));
    (first <= last).then(|| Range::signed(first, last))
}

impl State {
    /// Returns the state at the start of a step.
    #[must_use]
    pub fn entry() -> State {
        State { registers: [Range::constant(0); REGS], set: [0; STACK_BYTES / 64], slots: Vec::new() }
    }

    /// Returns the range of a register.
    #[must_use]
    pub fn register(&self, reg: Reg) -> Range {
        self.registers[usize::from(reg.0)].narrowed()
    }

    fn put(&mut self, reg: Reg, range: Range) {
        self.registers[usize::from(reg.0)] = range;
    }

    fn value(&self, operand: Operand) -> Range {
        match operand {
            Operand::Reg(reg) => self.register(reg),
            Operand::Imm(value) => Range::constant(value),
        }
    }

    /// Returns the values of an access's index before any guard: those of its register, or 0 without an index.
    #[must_use]
    pub fn index(&self, address: &Address) -> Range {
        address.index.map_or(Range::constant(0), |index| self.register(index.reg))
    }

    /// Returns true if all bytes of the stack from offset `first` up to `end` are set.
    #[must_use]
    pub fn is_set(&self, first: i64, end: i64) -> bool {
        (first.max(-(STACK_BYTES as i64))..end.min(0)).all(|at| {
            let bit = (at + STACK_BYTES as i64) as usize;
            self.set[bit / 64] >> (bit % 64) & 1 == 1
        })
    }

    /// Narrows an access's index to the values that do not end the step, and returns the offsets at which the access can
    /// then start.
    fn access(&mut self, address: &Address, size: Size, scratch_bytes: u32) -> Option<(i64, i64)> {
        let inside = self.index(address).intersect(index_bounds(address, size, scratch_bytes)?)?;
        if let Some(index) = address.index {
            self.put(index.reg, inside);
        }
        let offset = i64::from(address.offset);
        Some((inside.signed.0 + offset, inside.signed.1 + offset))
    }

    fn loaded(&self, space: Space, first: i64, last: i64, size: Size, signed: bool) -> Range {
        let known = (space == Space::Stack && first == last && !signed)
            .then(|| self.slots.iter().find(|slot| i64::from(slot.at) == first && slot.size == size))
            .flatten();
        known.map_or(Range::loaded(size, signed), |slot| slot.range)
    }

    fn stored(&mut self, first: i64, last: i64, size: Size, value: Range) {
        let end = last + i64::from(size.bytes());
        self.slots.retain(|slot| i64::from(slot.end()) <= first || i64::from(slot.at) >= end);
        if first != last {
            return;
        }
        for at in first..end {
            let bit = (at + STACK_BYTES as i64) as usize;
            self.set[bit / 64] |= 1 << (bit % 64);
        }
        let fits = size == Size::B8 || value.unsigned.1 >> (8 * size.bytes()) == 0;
        let range = if fits { value } else { Range::loaded(size, false) };
        let at = self.slots.partition_point(|slot| i64::from(slot.at) < first);
        self.slots.insert(at, Slot { at: first as i32, size, range });
    }

    /// Returns the state after an instruction; `None` if the instruction always ends the step.
    #[must_use]
    pub fn run(mut self, inst: &Inst, scratch_bytes: u32) -> Option<State> {
        match *inst {
            Inst::Move { width, target, source } => {
                let range = self.value(source);
                self.put(target, if width == Width::W32 { range.low_half() } else { range });
            }
            Inst::SignExtend { width, target, source, bits } => {
                let range = self.register(source).sign_extended(bits, width);
                self.put(target, range);
            }
            Inst::Alu { op, width, target, a, b } => {
                let same = a == b && matches!(a, Operand::Reg(_));
                let range = match (same, op) {
                    (true, crate::ir::Alu::Xor | crate::ir::Alu::Sub) => Range::constant(0),
                    _ => Range::alu(op, width, self.value(a), self.value(b)),
                };
                self.put(target, range);
            }
            Inst::ByteSwap { target, bits, reverse } => {
                let (range, last) = (self.register(target), u64::MAX >> (64 - bits));
                let fits = !reverse && range.unsigned.1 <= last;
                self.put(target, if fits { range } else { Range::unsigned(0, last) });
            }
            Inst::Load { size, signed, target, ref address } => {
                let (first, last) = self.access(address, size, scratch_bytes)?;
                let range = self.loaded(address.space, first, last, size, signed);
                self.put(target, range);
            }
            Inst::Store { size, ref address, source } => {
                let (first, last) = self.access(address, size, scratch_bytes)?;
                if address.space == Space::Stack {
                    let value = self.value(source);
                    self.stored(first, last, size, value);
                }
            }
        }
        Some(self)
    }

    /// Returns the successors of a block, each with the state there.
    #[must_use]
    pub fn branch(self, end: &End) -> Vec<(BlockId, State)> {
        match *end {
            End::Return => Vec::new(),
            End::Jump(next) => vec![(next, self)],
            End::Branch { cmp, width, a, b, then, or } => {
                let (left, right) = (self.value(a), self.value(b));
                let held = Range::compared(cmp, width, left, right);
                let not = Range::refuted(cmp, width, left, right);
                let narrowed = |ranges: Option<(Range, Range)>, next: BlockId, mut state: State| {
                    let (left, right) = ranges?;
                    for (operand, range) in [(a, left), (b, right)] {
                        if let Operand::Reg(reg) = operand {
                            state.put(reg, range);
                        }
                    }
                    Some((next, state))
                };
                let states = [narrowed(held, then, self.clone()), narrowed(not, or, self)];
                states.into_iter().flatten().collect()
            }
        }
    }

    /// Joins the state of another path to the same point; returns true if anything changed. With `thresholds`, a range that
    /// grows is widened to the next of them; with an empty list, to the limit.
    pub fn join(&mut self, other: &State, thresholds: Option<&[i64]>) -> bool {
        let joined = |mine: Range, theirs: Range| match thresholds {
            _ if mine.join(theirs) == mine => mine,
            Some(thresholds) => mine.widen(theirs, thresholds),
            None => mine.join(theirs),
        };
        let mut changed = false;
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            let range = joined(*mine, theirs);
            changed |= range != *mine;
            *mine = range;
        }
        for (mine, theirs) in self.set.iter_mut().zip(other.set) {
            changed |= *mine & !theirs != 0;
            *mine &= theirs;
        }
        self.slots.retain_mut(|slot| {
            let same = other.slots.iter().find(|theirs| (theirs.at, theirs.size) == (slot.at, slot.size));
            let Some(theirs) = same else {
                changed = true;
                return false;
            };
            let range = joined(slot.range, theirs.range);
            changed |= range != slot.range;
            slot.range = range;
            true
        });
        changed
    }
}
