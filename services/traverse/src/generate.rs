// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates random programs to test verifier, interpreter and compiler.
//!
//! - **Flow** seed ──[`Random`]──▶ [`instruction`]: any that can be encoded; [`program`]: loads, arithmetic, spills, branches and
//!   loops that mostly fit together; [`memory`]: contents for such a program to read
//! - **Order** equal seeds give equal programs. The verifier need not accept a program: offsets reach a little too far; indices
//!   are bounded by a mask, a remainder, a comparison or not at all; and now and then a rule is broken on purpose
//! - **Not here** the properties that are tested (`tests/walks/generated.rs`, the fuzz target `walk_bytecode`)

use crate::bpf::{End, Instruction, Source};
use crate::builder::{Builder, Condition, NODE, R0, R4, SCRATCH, STACK, at, compare};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use crate::step::Verdict;

/// Seeded random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns any 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns one of `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// Returns true with a chance of 1 in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn between(&mut self, first: i32, last: i32) -> i32 {
        first + self.below((last - first + 1) as u64) as i32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a number near the limits of a width, or any number.
    fn constant(&mut self) -> i32 {
        match self.below(6) {
            0 => self.word() as i32,
            1 => self.pick(&[0, 1, -1, i32::MAX, i32::MIN, 255, 256, 65535, -256]),
            _ => self.between(-4, 40),
        }
    }
}

/// Returns any instruction that has an encoding; its jumps lead anywhere.
pub fn instruction(random: &mut Random) -> Instruction {
    let target = Reg(random.below(10) as u8);
    let any = Reg(random.below(11) as u8);
    let width = random.pick(&Width::ALL);
    let source = if random.once_in(2) { Source::Reg(any) } else { Source::Imm(random.word() as i32) };
    let (size, offset) = (random.pick(&Size::ALL), random.word() as i16);
    match random.below(11) {
        0 => Instruction::Move { width, target, source },
        1 => {
            let most = if width == Width::W64 { 3 } else { 2 };
            let bits = [8, 16, 32][random.below(most) as usize];
            Instruction::MoveSigned { width, target, source: any, bits }
        }
        2 => Instruction::Negate { width, target },
        3 => {
            let end = random.pick(&[End::Little, End::Big, End::Swap]);
            Instruction::Bytes { end, target, bits: random.pick(&[16, 32, 64]) }
        }
        4 => Instruction::LoadImmediate { target, value: random.word() },
        5 => {
            let signed = size != Size::B8 && random.once_in(2);
            Instruction::Load { size, signed, target, base: any, offset }
        }
        6 => Instruction::Store { size, base: any, offset, source },
        7 => match random.once_in(2) {
            true => Instruction::Jump { offset: random.word() as i32, long: true },
            false => Instruction::Jump { offset: offset.into(), long: false },
        },
        8 => Instruction::Branch { cmp: random.pick(&Cmp::ALL), width, left: any, right: source, offset },
        9 => Instruction::Exit,
        _ => Instruction::Alu { op: random.pick(&Alu::ALL), width, target, source },
    }
}

/// Content of a register, as far as the generator tracks it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    Number,
    Pointer(Reg),
}

struct Generator {
    random: Random,
    builder: Builder,
    held: [Held; 10],
    /// Bit mask of the stack slots of eight bytes, from -8 down, that are set.
    slots: u16,
    depth: u32,
    scratch_bytes: i32,
}

impl Generator {
    fn free(&mut self) -> Reg {
        self.random.pick(&[R0, R4, Reg(5), Reg(6), Reg(7), Reg(8), Reg(9)])
    }

    fn hold(&mut self, reg: Reg, held: Held) {
        self.held[usize::from(reg.0)] = held;
    }

    /// Returns a register with a number; makes one if there is none.
    fn number(&mut self) -> Reg {
        let numbers: Vec<Reg> =
            (0..10).map(Reg).filter(|reg| self.held[usize::from(reg.0)] == Held::Number).collect();
        if self.random.once_in(300) {
            return self.free();
        }
        if numbers.is_empty() {
            let target = self.free();
            let value = self.random.constant();
            self.builder.set(target, value);
            self.hold(target, Held::Number);
            return target;
        }
        self.random.pick(&numbers)
    }

    fn source(&mut self) -> Source {
        if self.random.once_in(2) { Source::Reg(self.number()) } else { Source::Imm(self.random.constant()) }
    }

    fn condition(&mut self) -> Condition {
        let (cmp, left, right) = (self.random.pick(&Cmp::ALL), self.number(), self.source());
        let condition = compare(cmp, left, right);
        if self.random.once_in(3) { condition.low() } else { condition }
    }

    fn arithmetic(&mut self) {
        let (op, width, target, source) =
            (self.random.pick(&Alu::ALL), self.random.pick(&Width::ALL), self.number(), self.source());
        self.builder.push(match self.random.below(8) {
            0 => Instruction::Negate { width, target },
            1 => Instruction::Bytes { end: End::Big, target, bits: 32 },
            2 => Instruction::MoveSigned { width, target, source: target, bits: 8 },
            3 => Instruction::Move { width, target, source },
            _ => Instruction::Alu { op, width, target, source },
        });
    }

    /// Returns a register with a pointer into a space, and the offsets that are mostly inside the space.
    fn space(&mut self) -> (Reg, i32, i32) {
        match self.random.below(5) {
            0..2 => (NODE, -40, 200),
            2..4 => (SCRATCH, 0, self.scratch_bytes),
            _ => (STACK, -64, 0),
        }
    }

    fn constant_access(&mut self) {
        let (base, first, end) = self.space();
        let size = self.random.pick(&Size::ALL);
        let mut offset = self.random.between(first, end - size.bytes() as i32) as i16;
        if self.random.once_in(200) {
            offset = self.random.word() as i16;
        }
        if base == STACK {
            let slot = self.random.below(8) as u16;
            let written = self.slots >> slot & 1 == 1;
            let offset = -8 - 8 * slot as i16;
            if !written || self.random.once_in(3) {
                let source = self.source();
                self.builder.push(Instruction::Store { size: Size::B8, base, offset, source });
                self.slots |= 1 << slot;
            } else {
                let target = self.free();
                self.builder.push(Instruction::Load { size: Size::B8, signed: false, target, base, offset });
                self.hold(target, Held::Number);
            }
        } else if base == SCRATCH && self.random.once_in(2) {
            let source = self.source();
            self.builder.push(Instruction::Store { size, base, offset, source });
        } else {
            let (target, signed) = (self.free(), size != Size::B8 && self.random.once_in(4));
            self.builder.push(Instruction::Load { size, signed, target, base, offset });
            self.hold(target, Held::Number);
        }
    }

    /// Emits an access with an index that is bounded in one of many ways.
    fn indexed_access(&mut self) {
        let index = self.free();
        let from = self.number();
        self.builder.set(index, from);
        self.hold(index, Held::Number);
        let bound = self.random.pick(&[7, 15, 31, 12, 20]);
        match self.random.below(6) {
            0 | 1 => {
                self.builder.and(index, bound);
            }
            2 => {
                self.builder.alu(Alu::Rem, index, bound);
            }
            3 => {
                let behind = self.builder.label();
                let cmp = self.random.pick(&[Cmp::Le, Cmp::Lt, Cmp::SLt]);
                self.builder.jump_if(compare(cmp, index, bound), behind);
                self.builder.set(index, 0).bind(behind);
            }
            4 => {
                self.builder.shr(index, 59);
            }
            _ => {}
        }
        if self.random.once_in(2) {
            let by = self.random.between(1, 3);
            self.builder.shl(index, by);
        }
        let base = self.random.pick(&[NODE, NODE, SCRATCH, SCRATCH, STACK]);
        let size = self.random.pick(&Size::ALL);
        if base == STACK {
            // A load from the stack is only accepted for bytes that were stored before.
            if self.slots & 0xff != 0xff || self.random.once_in(2) {
                self.builder.add(index, STACK);
                let (source, offset) = (self.random.constant(), self.random.between(-64, -8) as i16);
                self.builder.push(Instruction::Store { size, base: index, offset, source: source.into() });
                self.hold(index, Held::Nothing);
                return;
            }
        }
        self.builder.add(index, base);
        let offset = if base == STACK { -64 } else { self.random.between(0, 24) as i16 };
        if base == SCRATCH && self.random.once_in(2) {
            let source = self.random.constant();
            self.builder.push(Instruction::Store { size, base: index, offset, source: source.into() });
            self.hold(index, Held::Pointer(base));
        } else {
            self.builder.push(Instruction::Load { size, signed: false, target: index, base: index, offset });
            self.hold(index, Held::Number);
        }
    }

    /// Stores a pointer on the stack and loads it again.
    fn spill(&mut self) {
        let base = self.random.pick(&[NODE, SCRATCH]);
        let target = self.free();
        let by = self.random.between(-8, 16);
        self.builder.set(target, base).add(target, by).store(at(STACK, -72), target).set(target, 0);
        self.builder.load(target, at(STACK, -72));
        let offset = self.random.between(8, 32);
        self.builder.load(target, at(target, offset));
        self.hold(target, Held::Number);
        // The slot gets a number again, so that the stack may be indexed.
        self.builder.store(at(STACK, -72), 0);
    }

    /// Emits code that breaks a rule, or nearly.
    fn mischief(&mut self) {
        let (a, b) = (Reg(self.random.below(10) as u8), Reg(self.random.below(11) as u8));
        match self.random.below(6) {
            0 => self.builder.load(R4, at(a, 0)),
            1 => self.builder.store(at(SCRATCH, 0), b),
            2 => self.builder.store(at(Reg(3), 48), 1),
            3 => self.builder.load(R4, at(Reg(3), 0)),
            4 => self.builder.alu(Alu::Mul, a, b),
            _ => self.builder.store(at(NODE, 0), 1),
        };
    }

    /// Emits code that a run may skip: registers set in it count as set only inside it.
    fn inside(&mut self, body: impl FnOnce(&mut Generator)) {
        let (held, slots) = (self.held, self.slots);
        self.depth += 1;
        body(self);
        self.depth -= 1;
        for (mine, before) in self.held.iter_mut().zip(held) {
            if *mine != before {
                *mine = Held::Nothing;
            }
        }
        self.slots &= slots;
    }

    fn when(&mut self) {
        let (condition, behind) = (self.condition(), self.builder.label());
        self.builder.jump_if(condition, behind);
        self.inside(|generator| {
            generator.statements();
            if generator.random.once_in(4) {
                generator.verdict();
            }
        });
        self.builder.bind(behind);
    }

    /// Emits a loop whose counter is kept on the stack or in a register.
    fn repeat(&mut self) {
        let counter = self.random.pick(&[Reg(8), Reg(9)]);
        let rounds = self.random.between(1, 20);
        let step = self.random.pick(&[1, 1, 1, 2, 3]);
        self.builder.set(counter, 0);
        self.hold(counter, Held::Number);
        let head = self.builder.here();
        let held = self.held;
        self.inside(|generator| {
            // Registers may hold other kinds of values in the second round than in the first, so the body
            // sets those that it uses.
            let index = generator.random.pick(&[R4, Reg(5), Reg(6)]);
            let shift = generator.random.between(0, 3);
            let base = generator.random.pick(&[NODE, SCRATCH]);
            let offset = generator.random.between(0, 16);
            generator
                .builder
                .set(index, counter)
                .shl(index, shift)
                .add(index, base)
                .load(index, at(index, offset));
            generator.hold(index, Held::Number);
            if generator.random.once_in(2) {
                generator.builder.store(at(SCRATCH, 0), index);
            }
        });
        self.builder.add(counter, step);
        let cmp = self.random.pick(&[Cmp::Lt, Cmp::Lt, Cmp::Ne, Cmp::SLt]);
        self.builder.jump_if(compare(cmp, counter, rounds), head);
        for (mine, before) in self.held.iter_mut().zip(held) {
            if *mine != before {
                *mine = Held::Nothing;
            }
        }
    }

    fn statements(&mut self) {
        for _ in 0..self.random.between(1, if self.depth == 0 { 24 } else { 4 }) {
            match self.random.below(40) {
                0..12 => self.arithmetic(),
                12..22 => self.constant_access(),
                22..27 => self.indexed_access(),
                27..29 => self.spill(),
                29..36 if self.depth < 3 => self.when(),
                36..39 if self.depth < 2 => self.repeat(),
                39 if self.random.once_in(3) => self.mischief(),
                _ => {}
            }
        }
    }

    fn verdict(&mut self) {
        let next = self.number();
        match self.random.below(8) {
            0 => self.builder.done(),
            1 => self.builder.missing(),
            2 => self.builder.retry(),
            3 => self.builder.emit(0, 8, next),
            4 => self.builder.compare_swap(next, 0, 1),
            5 => self.builder.set(R0, next).verdict(Verdict::Done),
            _ => self.builder.next(next),
        };
    }
}

/// Bytes of the scratchpad that a program of [`program`] uses.
pub const SCRATCH_BYTES: usize = 128;

/// Returns the bytecode of a random program.
pub fn program(seed: u64) -> Vec<u8> {
    let mut held = [Held::Nothing; 10];
    for base in [NODE, SCRATCH, Reg(3)] {
        held[usize::from(base.0)] = Held::Pointer(base);
    }
    let mut generator = Generator {
        random: Random(seed),
        builder: Builder::new(),
        held,
        slots: 0,
        depth: 0,
        scratch_bytes: SCRATCH_BYTES as i32,
    };
    generator.statements();
    generator.verdict();
    // Cannot fail: all labels are bound, and no jump is too long.
    generator.builder.bytecode().unwrap_or_default()
}

/// Fills memory with values that programs are likely to mishandle: zeros, ones, small numbers, random words.
pub fn memory(random: &mut Random, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let word = match random.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => random.below(40),
            3 => random.below(40).wrapping_neg(),
            4 => random.below(64) << 32 | random.below(64),
            _ => random.word(),
        };
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
