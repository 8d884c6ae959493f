// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes programs in Rust, without a compiler for BPF.
//!
//! - **Flow** [`Builder`] ──instructions, labels──▶ [`Builder::bytecode`] ──▶ [`Builder::program`], verified
//! - **Order** instructions come out in the order of the calls. Every step starts with [`NODE`], [`SCRATCH`] and [`WALK`] in these
//!   registers; a program that overwrites one loses its value. Verdicts ([`Builder::next`] and similar calls) set R0
//! - **Not here** allocation of registers
//!
//! A walk along a bucket of a hash map, whose nodes are key, value, next (8 bytes each). The scratchpad holds the key, and receives
//! the value:
//!
//! ```
//! use memlift_traverse::builder::{Builder, R4, R5, equal, node, scratch};
//!
//! let mut b = Builder::new();
//! b.load(R4, node(0)).load(R5, scratch(0));
//! b.when(equal(R4, R5), |b| {
//!     b.load(R4, node(8)).store(scratch(8), R4).done();
//! });
//! b.load(R4, node(16));
//! b.when(equal(R4, 0), |b| {
//!     b.missing();
//! });
//! b.next(R4);
//! let find = b.program("find", 16)?;
//! assert_eq!((find.window().first, find.window().bytes), (0, 24));
//! # Ok::<(), memlift_traverse::error::Error>(())
//! ```

use crate::bpf::{Instruction, Source, encode};
use crate::error::{Error, Result};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use crate::program::Program;
use crate::step::{Verdict, Walk};
use memlift_spec::formats::walk::ApplyKind;
use std::mem::offset_of;

/// Register that holds the verdict when the step returns.
pub const R0: Reg = Reg(0);
/// Register that points to the node at `cur_ptr`.
pub const NODE: Reg = Reg(1);
/// Register that points to the start of the scratchpad.
pub const SCRATCH: Reg = Reg(2);
/// Register that points to the walk's state, where the builder's verdicts store their operands.
pub const WALK: Reg = Reg(3);
/// Free for the program's use.
pub const R4: Reg = Reg(4);
/// Free for the program's use.
pub const R5: Reg = Reg(5);
/// Free for the program's use.
pub const R6: Reg = Reg(6);
/// Free for the program's use.
pub const R7: Reg = Reg(7);
/// Free for the program's use.
pub const R8: Reg = Reg(8);
/// Free for the program's use.
pub const R9: Reg = Reg(9);
/// Register that points to the end of the stack.
pub const STACK: Reg = Reg(10);

impl From<Reg> for Source {
    fn from(reg: Reg) -> Source {
        Source::Reg(reg)
    }
}

impl From<i32> for Source {
    fn from(value: i32) -> Source {
        Source::Imm(value)
    }
}

/// A place in memory: eight bytes, unsigned, unless narrowed by `Place::u8` and similar calls.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    base: Reg,
    offset: i32,
    size: Size,
    signed: bool,
}

/// Returns the place `offset` bytes behind the address in a register.
#[must_use]
pub fn at(base: Reg, offset: i32) -> Place {
    Place { base, offset, size: Size::B8, signed: false }
}

/// Returns the place `offset` bytes behind `cur_ptr`.
#[must_use]
pub fn node(offset: i32) -> Place {
    at(NODE, offset)
}

/// Returns the place `offset` bytes into the scratchpad.
#[must_use]
pub fn scratch(offset: i32) -> Place {
    at(SCRATCH, offset)
}

/// Returns the place at `offset` from the end of the stack: -512 to -1.
#[must_use]
pub fn stack(offset: i32) -> Place {
    at(STACK, offset)
}

impl Place {
    fn of(self, size: Size, signed: bool) -> Place {
        Place { size, signed, ..self }
    }

    /// Narrows the place to one byte, zero-extended when it is loaded.
    #[must_use]
    pub fn u8(self) -> Place {
        self.of(Size::B1, false)
    }

    /// Narrows the place to two bytes, zero-extended when they are loaded.
    #[must_use]
    pub fn u16(self) -> Place {
        self.of(Size::B2, false)
    }

    /// Narrows the place to four bytes, zero-extended when they are loaded.
    #[must_use]
    pub fn u32(self) -> Place {
        self.of(Size::B4, false)
    }

    /// Narrows the place to one byte, sign-extended when it is loaded.
    #[must_use]
    pub fn i8(self) -> Place {
        self.of(Size::B1, true)
    }

    /// Narrows the place to two bytes, sign-extended when they are loaded.
    #[must_use]
    pub fn i16(self) -> Place {
        self.of(Size::B2, true)
    }

    /// Narrows the place to four bytes, sign-extended when they are loaded.
    #[must_use]
    pub fn i32(self) -> Place {
        self.of(Size::B4, true)
    }
}

/// A comparison of two numbers, of 64 bits or (after `low`) of 32.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    cmp: Cmp,
    width: Width,
    left: Reg,
    right: Source,
}

/// Makes a condition from any comparison: `left cmp right`, all 64 bits.
#[must_use]
pub fn compare(cmp: Cmp, left: Reg, right: impl Into<Source>) -> Condition {
    Condition { cmp, width: Width::W64, left, right: right.into() }
}

/// `left == right`.
#[must_use]
pub fn equal(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Eq, left, right)
}

/// `left != right`.
#[must_use]
pub fn different(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Ne, left, right)
}

/// `left < right`, unsigned.
#[must_use]
pub fn less(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Lt, left, right)
}

/// `left <= right`, unsigned.
#[must_use]
pub fn at_most(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Le, left, right)
}

/// `left > right`, unsigned.
#[must_use]
pub fn greater(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Gt, left, right)
}

/// `left >= right`, unsigned.
#[must_use]
pub fn at_least(left: Reg, right: impl Into<Source>) -> Condition {
    compare(Cmp::Ge, left, right)
}

impl Condition {
    /// Returns the same comparison of the low 32 bits.
    #[must_use]
    pub fn low(self) -> Condition {
        Condition { width: Width::W32, ..self }
    }
}

/// A jump target in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    instructions: Vec<Instruction>,
    /// Jumps whose offset is filled in later: index of the instruction, and its label.
    jumps: Vec<(usize, Label)>,
    /// Index of the instruction to which each label is bound.
    labels: Vec<Option<usize>>,
    /// The first mistake; [`Builder::instructions`] returns it as an error.
    mistake: Option<String>,
}

impl Builder {
    /// An empty program.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Appends any instruction. Offsets of jumps count places of eight bytes.
    pub fn push(&mut self, instruction: Instruction) -> &mut Builder {
        self.instructions.push(instruction);
        self
    }

    fn offset(&mut self, place: Place) -> i16 {
        i16::try_from(place.offset).unwrap_or_else(|_| {
            self.mistake.get_or_insert(format!("offset {} is not one of 16 bits", place.offset));
            0
        })
    }

    /// `target = *place`.
    pub fn load(&mut self, target: Reg, place: Place) -> &mut Builder {
        let offset = self.offset(place);
        let Place { base, size, signed, .. } = place;
        // Eight bytes have nothing to sign-extend.
        self.push(Instruction::Load { size, signed: signed && size != Size::B8, target, base, offset })
    }

    /// `*place = source`; a constant is sign-extended.
    pub fn store(&mut self, place: Place, source: impl Into<Source>) -> &mut Builder {
        let offset = self.offset(place);
        self.push(Instruction::Store { size: place.size, base: place.base, offset, source: source.into() })
    }

    /// `target = source`.
    pub fn set(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.push(Instruction::Move { width: Width::W64, target, source: source.into() })
    }

    /// `target = value`, all 64 bits.
    pub fn constant(&mut self, target: Reg, value: u64) -> &mut Builder {
        match i32::try_from(value as i64) {
            Ok(short) => self.set(target, short),
            Err(_) => self.push(Instruction::LoadImmediate { target, value }),
        }
    }

    /// `target op= source`.
    pub fn alu(&mut self, op: Alu, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.push(Instruction::Alu { op, width: Width::W64, target, source: source.into() })
    }

    /// `target += source`.
    pub fn add(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::Add, target, source)
    }

    /// `target -= source`.
    pub fn sub(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::Sub, target, source)
    }

    /// `target *= source`.
    pub fn mul(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::Mul, target, source)
    }

    /// `target &= source`.
    pub fn and(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::And, target, source)
    }

    /// `target <<= source`.
    pub fn shl(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::Shl, target, source)
    }

    /// `target >>= source`, filled with zeros.
    pub fn shr(&mut self, target: Reg, source: impl Into<Source>) -> &mut Builder {
        self.alu(Alu::Shr, target, source)
    }

    /// Makes a label, to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub fn bind(&mut self, label: Label) -> &mut Builder {
        if self.labels[label.0].replace(self.instructions.len()).is_some() {
            self.mistake.get_or_insert(format!("label {} is bound twice", label.0));
        }
        self
    }

    /// Makes a label bound to the next instruction: the head of a loop.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Jumps to a label.
    pub fn jump(&mut self, label: Label) -> &mut Builder {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::Jump { offset: 0, long: false })
    }

    /// Jumps to a label if a condition holds.
    pub fn jump_if(&mut self, condition: Condition, label: Label) -> &mut Builder {
        self.jumps.push((self.instructions.len(), label));
        let Condition { cmp, width, left, right } = condition;
        self.push(Instruction::Branch { cmp, width, left, right, offset: 0 })
    }

    fn jump_unless(&mut self, condition: Condition, label: Label) {
        if let Some(cmp) = condition.cmp.negated() {
            self.jump_if(Condition { cmp, ..condition }, label);
        } else {
            let inside = self.label();
            self.jump_if(condition, inside).jump(label).bind(inside);
        }
    }

    /// Runs `body` if a condition holds.
    pub fn when(&mut self, condition: Condition, body: impl FnOnce(&mut Builder)) -> &mut Builder {
        let behind = self.label();
        self.jump_unless(condition, behind);
        body(self);
        self.bind(behind)
    }

    /// Runs `body` as long as a condition holds; each round costs a unit of fuel.
    pub fn repeat_while(&mut self, condition: Condition, body: impl FnOnce(&mut Builder)) -> &mut Builder {
        let (head, behind) = (self.here(), self.label());
        self.jump_unless(condition, behind);
        body(self);
        self.jump(head).bind(behind)
    }

    /// Returns from the step with a verdict; its operands must have been stored.
    pub fn verdict(&mut self, verdict: Verdict) -> &mut Builder {
        self.set(R0, verdict as i32).push(Instruction::Exit)
    }

    fn tell(&mut self, field: usize, source: impl Into<Source>) -> &mut Builder {
        self.store(at(WALK, field as i32), source)
    }

    /// NEXT: continues at the node with the global address `address`.
    pub fn next(&mut self, address: impl Into<Source>) -> &mut Builder {
        self.tell(offset_of!(Walk, next), address).verdict(Verdict::Next)
    }

    /// DONE: the scratchpad is the answer.
    pub fn done(&mut self) -> &mut Builder {
        self.verdict(Verdict::Done)
    }

    /// MISSING: ends the walk; nothing was found.
    pub fn missing(&mut self) -> &mut Builder {
        self.verdict(Verdict::Missing)
    }

    /// RETRY: starts the walk again, because a writer has interfered.
    pub fn retry(&mut self) -> &mut Builder {
        self.verdict(Verdict::Retry)
    }

    /// EMIT: appends `bytes` bytes of the scratchpad from `offset` on to the result, then continues at
    /// `next`.
    pub fn emit(
        &mut self,
        offset: impl Into<Source>,
        bytes: impl Into<Source>,
        next: impl Into<Source>,
    ) -> &mut Builder {
        self.store(at(WALK, offset_of!(Walk, emit_offset) as i32).u32(), offset)
            .store(at(WALK, offset_of!(Walk, emit_bytes) as i32).u32(), bytes)
            .tell(offset_of!(Walk, next), next)
            .verdict(Verdict::Emit)
    }

    /// APPLY: if the eight bytes at `address` are `expected`, they become `new`.
    pub fn compare_swap(
        &mut self,
        address: impl Into<Source>,
        expected: impl Into<Source>,
        new: impl Into<Source>,
    ) -> &mut Builder {
        self.tell(offset_of!(Walk, apply), ApplyKind::CompareSwap as i32)
            .tell(offset_of!(Walk, address), address)
            .tell(offset_of!(Walk, a), expected)
            .tell(offset_of!(Walk, b), new)
            .verdict(Verdict::Apply)
    }

    /// APPLY: adds to the eight bytes at `address`.
    pub fn fetch_add(&mut self, address: impl Into<Source>, addend: impl Into<Source>) -> &mut Builder {
        self.tell(offset_of!(Walk, apply), ApplyKind::FetchAdd as i32)
            .tell(offset_of!(Walk, address), address)
            .tell(offset_of!(Walk, a), addend)
            .verdict(Verdict::Apply)
    }

    /// Returns the instructions, with the offsets of all jumps filled in.
    ///
    /// # Errors
    /// A label is not bound, or an offset is too large.
    pub fn instructions(&self) -> Result<Vec<Instruction>> {
        if let Some(mistake) = &self.mistake {
            return Err(Error::Program(mistake.clone()));
        }
        let mut place = 0_i64;
        let mut places: Vec<i64> = Vec::with_capacity(self.instructions.len() + 1);
        for instruction in &self.instructions {
            places.push(place);
            place += i64::from(instruction.places());
        }
        places.push(place);
        let mut instructions = self.instructions.clone();
        for &(from, label) in &self.jumps {
            let to = self.labels[label.0].ok_or_else(|| {
                Error::Program(format!("a jump to label {}, which is bound nowhere", label.0))
            })?;
            let far = places[to] - places[from] - 1;
            let short = i16::try_from(far)
                .map_err(|_| Error::Program(format!("a jump over {far} instructions; at most 32767")))?;
            match &mut instructions[from] {
                Instruction::Jump { offset, .. } => *offset = short.into(),
                Instruction::Branch { offset, .. } => *offset = short,
                _ => {}
            }
        }
        Ok(instructions)
    }

    /// Returns the program as bytecode.
    ///
    /// # Errors
    /// The errors of [`Builder::instructions`].
    pub fn bytecode(&self) -> Result<Vec<u8>> {
        Ok(encode::encode(&self.instructions()?))
    }

    /// Returns the verified program, with a scratchpad of `scratch_bytes` bytes.
    ///
    /// # Errors
    /// The errors of [`Builder::instructions`] and [`Program::new`].
    pub fn program(&self, name: &str, scratch_bytes: usize) -> Result<Program> {
        Program::new(name, &self.bytecode()?, scratch_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::Checked;

    fn step(program: &Program, node: &[u64], scratch: &mut [u8]) -> (Verdict, Walk) {
        let bytes: Vec<u8> = node.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut walk = Walk { fuel: crate::verify::FUEL, ..Walk::default() };
        let verdict =
            Checked::new(&bytes, 0, scratch, &mut walk).step(program.function()).expect("no promise broken");
        (Verdict::from_return(verdict), walk)
    }

    #[test]
    fn a_loop_over_an_array_sums_it_and_needs_no_guard() {
        let mut b = Builder::new();
        b.set(R4, 0).set(R5, 0);
        b.repeat_while(less(R5, 14), |b| {
            b.set(R6, R5).shl(R6, 3).add(R6, NODE).load(R7, at(R6, 16)).add(R4, R7).add(R5, 1);
        });
        b.store(scratch(0), R4).done();
        let program = b.program("sum", 8).expect("a program");
        assert_eq!(program.window(), crate::program::Window { first: 0, bytes: 16 + 14 * 8 });
        assert!(program.cost().loops());
        let guarded = program.function().blocks.iter().flat_map(|block| &block.insts).any(|inst| {
            matches!(inst, crate::ir::Inst::Load { address, .. } if address.index.is_some_and(|index| index.guard))
        });
        assert!(!guarded);
        let mut scratch = [0; 8];
        let node: Vec<u64> = (0..16).collect();
        assert_eq!(step(&program, &node, &mut scratch).0, Verdict::Done);
        assert_eq!(u64::from_le_bytes(scratch), (2..16_u64).sum::<u64>());
    }

    #[test]
    fn verdicts_say_what_they_need() {
        let mut b = Builder::new();
        b.load(R4, node(0).u32());
        b.emit(8, 16, R4);
        let program = b.program("emits", 0).expect("a program");
        assert!(program.uses_emit() && !program.uses_apply());
        let (verdict, walk) = step(&program, &[3], &mut []);
        assert_eq!((verdict, walk.emit_offset, walk.emit_bytes, walk.next), (Verdict::Emit, 8, 16, 3));
        let mut b = Builder::new();
        b.load(R4, node(0).u32());
        b.when(equal(R4, 2), |b| {
            b.compare_swap(R4, 7, -1);
        });
        b.when(equal(R4, 4), |b| {
            b.fetch_add(R4, 5);
        });
        b.retry();
        let program = b.program("verdicts", 0).expect("a program");
        assert!(program.uses_apply() && !program.uses_emit());
        let at = |word| step(&program, &[word], &mut []);
        let (verdict, walk) = at(2);
        assert_eq!((verdict, walk.apply, walk.address, walk.a, walk.b), (Verdict::Apply, 1, 2, 7, u64::MAX));
        let (verdict, walk) = at(4);
        assert_eq!((verdict, walk.apply, walk.address, walk.a), (Verdict::Apply, 2, 4, 5));
        assert_eq!(at(8).0, Verdict::Retry);
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let mut b = Builder::new();
        let label = b.label();
        b.jump(label);
        assert!(b.bytecode().is_err_and(|error| error.to_string().contains("bound nowhere")));
        let mut b = Builder::new();
        b.load(R4, node(1 << 20)).done();
        assert!(b.bytecode().is_err_and(|error| error.to_string().contains("16 bits")));
        let mut b = Builder::new();
        b.load(R4, node(300)).done();
        let error = b.program("far", 0).expect_err("too far").to_string();
        assert_eq!(
            error,
            "instruction 0 (r4 = *(u64 *)(r1 + 300)): reads bytes 300..308 of the node; a window is at most 256 B around \
             the node's address"
        );
    }
}
