// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of walks, run one instruction after the other on bounded memories: what a step must do, written a second time.
//!
//! - **Flow** encoding ──[`Program::read`]──▶ instructions ──[`Program::step`]──▶ [`Stepped`]
//! - **Layout** `docs/formats/walk.md`; constants in `memlift_spec::formats::walk`
//! - **Order** nothing is proved: every access, jump and register number is checked when it comes, and what is outside ends the step
//! - **Owner** node, scratchpad, walk and stack lie in four parts of one imagined address space, [`SPACE`] apart; a register knows which
//!   of them it came from ([`Part`]), so that no number read from memory leads from one to another
//! - **Not here** the proofs by which a service accepts a program (it refuses some that run here); what verdicts lead to (`rack`)

use memlift_spec::formats::walk::*;
use std::fmt;

/// Distance between the starts of the four memories of a step.
const SPACE: u64 = 1 << 60;
const NODE: u64 = SPACE;
const SCRATCH: u64 = 2 * SPACE;
const WALK: u64 = 3 * SPACE;
/// The end of the stack.
const STACK: u64 = 4 * SPACE;
/// Backward jumps of a step.
const FUEL: u32 = 1024;
/// Bytes of the walk that a step may write.
const WALK_BYTES: usize = 48;

/// Reason why an encoding is no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadProgram(String);

impl fmt::Display for BadProgram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadProgram {}

/// Verdict of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on at `next`.
    Next,
    /// The scratchpad is the answer.
    Done,
    /// Append a piece of the scratchpad to the result, go on at `next`.
    Emit,
    /// Change eight bytes at their owner.
    Apply,
    /// Start the walk again.
    Retry,
    /// Done, nothing found.
    Missing,
    /// More than 1024 backward jumps.
    OutOfFuel,
    /// A number that is no verdict.
    BadVerdict,
    /// An access outside of its memory, or an instruction that is none.
    Guard,
}

/// A step's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepped {
    /// See [`Verdict`].
    pub verdict: Verdict,
    /// Instructions that ran.
    pub instructions: u64,
    /// Words that it wrote to the walk: next, apply, address, a, b; offset and length to emit.
    pub walk: [u64; 6],
}

/// A program as its bytes say. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    code: Vec<[u8; INSTRUCTION_BYTES]>,
    scratch_bytes: usize,
    window: (i64, usize),
}

/// The memory that a register's value leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing: it is a number.
    Number,
    Node,
    Scratch,
    Walk,
    Stack,
}

struct Memories<'a> {
    node: &'a [u8],
    first: i64,
    scratch: &'a mut [u8],
    walk: [u8; WALK_BYTES],
    stack: [u8; STACK_BYTES],
    /// The memory that whole slots of the stack lead to.
    kept: [Part; STACK_BYTES / 8],
}

impl Memories<'_> {
    fn place(&mut self, part: Part, at: u64, bytes: usize, write: bool) -> Option<&mut [u8]> {
        let (start, memory): (u64, &mut [u8]) = match part {
            Part::Scratch => (SCRATCH, self.scratch),
            Part::Walk if write => (WALK, &mut self.walk),
            Part::Stack => (STACK - STACK_BYTES as u64, &mut self.stack),
            _ => return None,
        };
        let offset = usize::try_from(at.checked_sub(start)?).ok()?;
        memory.get_mut(offset..offset.checked_add(bytes)?)
    }

    /// The slots of the stack that an access touches.
    fn slots(&mut self, part: Part, at: u64, bytes: usize) -> &mut [Part] {
        let offset = at.wrapping_sub(STACK - STACK_BYTES as u64) as usize;
        match part {
            Part::Stack if offset < STACK_BYTES => {
                &mut self.kept[offset / 8..((offset + bytes).div_ceil(8)).min(STACK_BYTES / 8)]
            }
            _ => &mut [],
        }
    }

    fn load(&mut self, part: Part, at: u64, bytes: usize) -> Option<(u64, Part)> {
        let mut word = [0; 8];
        if part == Part::Node {
            let offset = usize::try_from(at.checked_sub(NODE.wrapping_add_signed(self.first))?).ok()?;
            word[..bytes].copy_from_slice(self.node.get(offset..offset.checked_add(bytes)?)?);
            return Some((u64::from_le_bytes(word), Part::Number));
        }
        word[..bytes].copy_from_slice(self.place(part, at, bytes, false)?);
        let kept = match self.slots(part, at, bytes) {
            [kept] if bytes == 8 => *kept,
            _ => Part::Number,
        };
        Some((u64::from_le_bytes(word), kept))
    }

    fn store(&mut self, part: Part, at: u64, bytes: usize, value: u64, source: Part) -> Option<()> {
        self.place(part, at, bytes, true)?.copy_from_slice(&value.to_le_bytes()[..bytes]);
        let slots = self.slots(part, at, bytes);
        let whole = bytes == 8 && slots.len() == 1;
        slots.fill(if whole { source } else { Part::Number });
        Some(())
    }
}

impl Program {
    /// Reads an encoding; `window` is what a step reads of a node: the first byte's distance from `cur_ptr`, and how many.
    ///
    /// # Errors
    /// What is wrong with the header, the sizes or the window.
    pub fn read(encoding: &[u8], window: (i64, usize)) -> Result<Program, BadProgram> {
        let bad = |text: String| Err(BadProgram(text));
        let Some((header, rest)) = encoding.split_first_chunk::<PROGRAM_HEADER_BYTES>() else {
            return bad(format!("{} bytes are too few for a header", encoding.len()));
        };
        let header = ProgramHeader::from_bytes(*header);
        if (header.magic, header.version, header.reserved) != (PROGRAM_MAGIC, PROGRAM_VERSION, 0) {
            return bad(format!("the header is none of version {PROGRAM_VERSION}: encode the program again"));
        }
        let (code, odd) = rest.as_chunks::<INSTRUCTION_BYTES>();
        if !odd.is_empty()
            || code.len() != header.instructions as usize
            || !(1..=INSTRUCTIONS_MAX).contains(&code.len())
        {
            return bad(format!(
                "the header says {} instructions, {} bytes follow",
                header.instructions,
                rest.len()
            ));
        }
        let scratch_bytes = header.scratch_bytes as usize;
        if scratch_bytes > SCRATCH_BYTES_MAX || !scratch_bytes.is_multiple_of(8) {
            return bad(format!(
                "{scratch_bytes} bytes of scratchpad: a multiple of 8, at most {SCRATCH_BYTES_MAX}"
            ));
        }
        let (first, bytes) = window;
        let most = WINDOW_BYTES_MAX as i64;
        if bytes > WINDOW_BYTES_MAX || !(-most..=0).contains(&first) || first + bytes as i64 > most {
            return bad(format!(
                "a window of {bytes} bytes at {first}: at most {most}, and it holds cur_ptr"
            ));
        }
        Ok(Program { code: code.to_vec(), scratch_bytes, window })
    }

    /// Bytes of its scratchpad.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Returns the window that a step reads of a node.
    #[must_use]
    pub fn window(&self) -> (i64, usize) {
        self.window
    }

    /// Bytes of its encoding.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        PROGRAM_HEADER_BYTES + self.code.len() * INSTRUCTION_BYTES
    }

    /// One step: `node` is the window's bytes.
    pub fn step(&self, node: &[u8], scratch: &mut [u8]) -> Stepped {
        let mut memories = Memories {
            node,
            first: self.window.0,
            scratch,
            walk: [0; WALK_BYTES],
            stack: [0; STACK_BYTES],
            kept: [Part::Number; STACK_BYTES / 8],
        };
        let mut instructions = 0;
        let verdict = self.run(&mut memories, &mut instructions).unwrap_or(Verdict::Guard);
        let word = |at: usize| {
            memories.walk[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        Stepped { verdict, instructions, walk: [word(0), word(8), word(16), word(24), word(32), word(40)] }
    }

    /// `None` if an access is outside or an instruction is none.
    fn run(&self, memories: &mut Memories<'_>, instructions: &mut u64) -> Option<Verdict> {
        let mut registers = [0_u64; 11];
        (registers[1], registers[2], registers[3], registers[10]) = (NODE, SCRATCH, WALK, STACK);
        let mut parts = [Part::Number; 11];
        (parts[1], parts[2], parts[3], parts[10]) = (Part::Node, Part::Scratch, Part::Walk, Part::Stack);
        let (mut at, mut fuel) = (0_usize, FUEL);
        loop {
            let bytes = *self.code.get(at)?;
            *instructions += 1;
            let opcode = bytes[0];
            let (target, source) = (usize::from(bytes[1] & 15), usize::from(bytes[1] >> 4));
            let offset = i64::from(i16::from_le_bytes([bytes[2], bytes[3]]));
            let immediate = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let (left, right) = (*registers.get(target)?, *registers.get(source)?);
            let operand = if opcode & SOURCE_REGISTER != 0 { right } else { i64::from(immediate) as u64 };
            let size = match opcode & SIZE_MASK {
                SIZE_B => 1,
                SIZE_H => 2,
                SIZE_W => 4,
                _ => 8,
            };
            let mut next = at + 1;
            match opcode & CLASS_MASK {
                CLASS_LD if opcode == LOAD_IMMEDIATE => {
                    let high = self.code.get(at + 1)?;
                    let high = u32::from_le_bytes([high[4], high[5], high[6], high[7]]);
                    registers[target] = u64::from(immediate as u32) | u64::from(high) << 32;
                    parts[target] = Part::Number;
                    next = at + 2;
                }
                CLASS_LDX => {
                    let (value, part) =
                        memories.load(parts[source], right.wrapping_add_signed(offset), size)?;
                    let empty = 64 - 8 * size as u32;
                    (registers[target], parts[target]) = match opcode & MODE_MASK {
                        MODE_MEM => (value, part),
                        MODE_MEMSX => (((value << empty) as i64 >> empty) as u64, Part::Number),
                        _ => return None,
                    };
                }
                CLASS_ST => {
                    let value = i64::from(immediate) as u64;
                    memories.store(
                        parts[target],
                        left.wrapping_add_signed(offset),
                        size,
                        value,
                        Part::Number,
                    )?;
                }
                CLASS_STX => {
                    let to = left.wrapping_add_signed(offset);
                    memories.store(parts[target], to, size, right, parts[source])?;
                }
                CLASS_ALU64 => {
                    let from = if opcode & SOURCE_REGISTER != 0 { parts[source] } else { Part::Number };
                    parts[target] = match (opcode & CODE_MASK, parts[target], from) {
                        (MOV, _, from) if offset == 0 => from,
                        (ADD, Part::Number, from) => from,
                        (ADD | SUB, part, Part::Number) => part,
                        _ => Part::Number,
                    };
                    registers[target] = wide(opcode, offset, immediate, left, operand)?;
                }
                CLASS_ALU => {
                    let little = opcode & SOURCE_REGISTER == 0;
                    registers[target] = match (opcode & CODE_MASK, immediate, little) {
                        (END, 16, true) => u64::from(left as u16),
                        (END, 32, true) => u64::from(left as u32),
                        (END, 64, true) => left,
                        (END, ..) => wide(opcode, offset, immediate, left, operand)?,
                        _ => u64::from(narrow(opcode, offset, immediate, left, operand)?),
                    };
                    parts[target] = Part::Number;
                }
                class => {
                    let short = class == CLASS_JMP32;
                    let code = opcode & CODE_MASK;
                    if code == EXIT {
                        return Some(verdict(registers[0] as u32));
                    }
                    let by = if code == JA && short { i64::from(immediate) } else { offset };
                    if code == JA || holds(code, short, left, operand)? {
                        next = usize::try_from(at as i64 + 1 + by).ok()?;
                        if next <= at {
                            let Some(left) = fuel.checked_sub(1) else { return Some(Verdict::OutOfFuel) };
                            fuel = left;
                        }
                    }
                }
            }
            at = next;
        }
    }
}

fn verdict(number: u32) -> Verdict {
    match number {
        0 => Verdict::Next,
        1 => Verdict::Done,
        2 => Verdict::Emit,
        3 => Verdict::Apply,
        4 => Verdict::Retry,
        5 => Verdict::Missing,
        _ => Verdict::BadVerdict,
    }
}

/// Computes one 64-bit arithmetic instruction; `None` if it is none.
fn wide(opcode: u8, offset: i64, immediate: i32, a: u64, b: u64) -> Option<u64> {
    let signed = offset == 1;
    Some(match opcode & CODE_MASK {
        ADD => a.wrapping_add(b),
        SUB => a.wrapping_sub(b),
        MUL => a.wrapping_mul(b),
        DIV if b == 0 => 0,
        DIV if signed => (a as i64).wrapping_div(b as i64) as u64,
        DIV => a / b,
        MOD if b == 0 => a,
        MOD if signed => (a as i64).wrapping_rem(b as i64) as u64,
        MOD => a % b,
        OR => a | b,
        AND => a & b,
        XOR => a ^ b,
        LSH => a << (b & 63),
        RSH => a >> (b & 63),
        ARSH => (a as i64 >> (b & 63)) as u64,
        NEG => a.wrapping_neg(),
        MOV => match offset {
            0 => b,
            8 => i64::from(b as i8) as u64,
            16 => i64::from(b as i16) as u64,
            32 => i64::from(b as i32) as u64,
            _ => return None,
        },
        END => match immediate {
            16 => u64::from((a as u16).swap_bytes()),
            32 => u64::from((a as u32).swap_bytes()),
            64 => a.swap_bytes(),
            _ => return None,
        },
        _ => return None,
    })
}

/// 32-bit arithmetic, the order of bytes aside.
fn narrow(opcode: u8, offset: i64, immediate: i32, a: u64, b: u64) -> Option<u32> {
    let (x, y) = (a as u32, b as u32);
    let signed = offset == 1;
    Some(match opcode & CODE_MASK {
        DIV if y == 0 => 0,
        DIV if signed => (x as i32).wrapping_div(y as i32) as u32,
        DIV => x / y,
        MOD if y == 0 => x,
        MOD if signed => (x as i32).wrapping_rem(y as i32) as u32,
        MOD => x % y,
        LSH => x << (y & 31),
        RSH => x >> (y & 31),
        ARSH => (x as i32 >> (y & 31)) as u32,
        _ => wide(opcode, offset, immediate, u64::from(x), u64::from(y))? as u32,
    })
}

/// Evaluates a comparison; `None`: an unknown code.
fn holds(code: u8, short: bool, a: u64, b: u64) -> Option<bool> {
    let (a, b) = if short { (u64::from(a as u32), u64::from(b as u32)) } else { (a, b) };
    let (x, y) = if short { (i64::from(a as i32), i64::from(b as i32)) } else { (a as i64, b as i64) };
    Some(match code {
        JEQ => a == b,
        JNE => a != b,
        JGT => a > b,
        JGE => a >= b,
        JLT => a < b,
        JLE => a <= b,
        JSET => a & b != 0,
        JSGT => x > y,
        JSGE => x >= y,
        JSLT => x < y,
        JSLE => x <= y,
        _ => return None,
    })
}
