// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small assembler for classic BPF, with labels for jumps forward.
//!
//! - **Flow** [`Assembler`] ──jumps to labels, which [`Assembler::place`] sets──▶ [`Assembler::finish`] fills the distances
//!   in
//! - **Layout** a conditional jump is a test that skips an unconditional jump, because conditional distances of classic BPF
//!   have only eight bits
//! - **Owner** the instructions lie in memory of the caller; nothing is allocated
//! - **Not here** the rules of the program: `filter`

/// One instruction in the kernel's layout (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Operation code, one of the constants of this module.
    pub code: u16,
    /// Number of instructions to skip if the test is true.
    pub jt: u8,
    /// Number of instructions to skip if the test is false.
    pub jf: u8,
    /// Operand: a constant, an offset into the data of the system call, or a distance.
    pub k: u32,
}

/// Load a word of the data of the system call.
pub const LOAD: u16 = 0x20;
/// Clear the bits of the loaded word that are not set in the operand.
pub const AND: u16 = 0x54;
/// Skip as many instructions as the operand says.
pub const JUMP: u16 = 0x05;
/// Test: the loaded word equals the operand.
pub const EQUAL: u16 = 0x15;
/// Test: the loaded word is at least the operand.
pub const AT_LEAST: u16 = 0x35;
/// Test: one of the operand's bits is set in the loaded word.
pub const ANY_BIT: u16 = 0x45;
/// Return the operand as the filter's answer.
pub const RETURN: u16 = 0x06;

/// A position in the program that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Upper bound of the labels of one program.
pub const LABELS: usize = 1024;
const NOWHERE: u32 = u32::MAX;

/// A program that is being written.
#[derive(Debug)]
pub struct Assembler<'a> {
    instructions: &'a mut [Instruction],
    length: usize,
    places: &'a mut [u32; LABELS],
    labels: usize,
    overflow: bool,
}

impl<'a> Assembler<'a> {
    /// Makes an empty program, with `instructions` as room for it.
    pub fn new(instructions: &'a mut [Instruction], places: &'a mut [u32; LABELS]) -> Assembler<'a> {
        places.fill(NOWHERE);
        Assembler { instructions, length: 0, places, labels: 0, overflow: false }
    }

    /// Makes a label that is not placed yet.
    pub fn label(&mut self) -> Label {
        if self.labels == LABELS {
            self.overflow = true;
            return Label(0);
        }
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places the label here, before the next instruction.
    pub fn place(&mut self, label: Label) {
        self.places[label.0] = self.length as u32;
    }

    /// Appends one instruction, or notes an overflow if there is no room.
    pub fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        match self.instructions.get_mut(self.length) {
            Some(place) => *place = Instruction { code, jt, jf, k },
            None => self.overflow = true,
        }
        self.length += 1;
    }

    /// Appends a jump to the label.
    pub fn jump(&mut self, label: Label) {
        self.push(JUMP, 0, 0, label.0 as u32);
    }

    /// Appends a jump to the label that is taken when the test is true.
    pub fn jump_if(&mut self, test: u16, operand: u32, label: Label) {
        self.push(test, 0, 1, operand);
        self.jump(label);
    }

    /// Appends a jump to the label that is taken when the test is false.
    pub fn jump_unless(&mut self, test: u16, operand: u32, label: Label) {
        self.push(test, 1, 0, operand);
        self.jump(label);
    }

    /// Fills in the distances of the jumps. Returns the number of instructions, or `None` if the program did not fit or a
    /// label is missing.
    pub fn finish(self) -> Option<usize> {
        if self.overflow {
            return None;
        }
        for (at, instruction) in self.instructions[..self.length].iter_mut().enumerate() {
            if instruction.code == JUMP {
                let target = self.places[instruction.k as usize];
                if target == NOWHERE || target as usize <= at {
                    return None;
                }
                instruction.k = target - at as u32 - 1;
            }
        }
        Some(self.length)
    }
}
