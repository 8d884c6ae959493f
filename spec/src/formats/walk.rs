// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The encoding of a walk's program: a header, then BPF instructions of eight bytes; also the kinds of changes that a walk can request.
//!
//! - **Layout** header (16 bytes): 0 magic `MLWK` · 4 version u16 · 6 reserved u16 · 8 scratch bytes u32 · 12 instructions u32.
//!   Instruction: 0 opcode u8 · 1 target u4, source u4 · 2 offset i16 · 4 immediate i32. One opcode ([`LOAD_IMMEDIATE`]) takes two
//!   instructions, the second of which has the upper 32 bits in `immediate` and zeros elsewhere.
//! - **Order** little endian; jumps count instructions of eight bytes from the one after the jump; unused fields are 0.
//! - **Owner** the client that registers the program. Its name is not part of it: the hash of header and instructions identifies the program.
//! - **Not here** the rules for programs: `docs/formats/walk.md`.
//!
//! Source: RFC 9669 (BPF Instruction Set Architecture), §3 to §5.

/// First bytes of a program.
pub const PROGRAM_MAGIC: [u8; 4] = *b"MLWK";
/// Version of the encoding.
pub const PROGRAM_VERSION: u16 = 1;
/// Bytes of [`ProgramHeader`].
pub const PROGRAM_HEADER_BYTES: usize = 16;
/// Bytes of an instruction.
pub const INSTRUCTION_BYTES: usize = 8;
/// Most instructions of a program; a [`LOAD_IMMEDIATE`] counts as two.
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Most bytes of a scratchpad.
pub const SCRATCH_BYTES_MAX: usize = 4096;
/// Bytes of the scratchpad of a program that does not set it.
pub const SCRATCH_BYTES_DEFAULT: usize = 1024;
/// Most bytes of a window, which is the memory that a step may read around `cur_ptr`; `cur_ptr` lies in it or at one of its ends.
pub const WINDOW_BYTES_MAX: usize = 256;
/// Bytes of the terms of a map whose entries expire; their layout is in `docs/formats/packet.md`.
pub const TERMS_BYTES: u64 = 64;
/// Bytes of a step's stack.
pub const STACK_BYTES: usize = 512;

/// The first bytes of a program; see the header of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ProgramHeader {
    /// [`PROGRAM_MAGIC`].
    pub magic: [u8; 4],
    /// [`PROGRAM_VERSION`].
    pub version: u16,
    /// Reserved, must be 0.
    pub reserved: u16,
    /// Bytes of the scratchpad that the program needs, a multiple of 8.
    pub scratch_bytes: u32,
    /// Number of instructions that follow.
    pub instructions: u32,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<ProgramHeader>() == PROGRAM_HEADER_BYTES && align_of::<ProgramHeader>() == 4);
    assert!(offset_of!(ProgramHeader, version) == 4);
    assert!(offset_of!(ProgramHeader, scratch_bytes) == 8);
    assert!(offset_of!(ProgramHeader, instructions) == 12);
};

impl ProgramHeader {
    /// Returns a header of this version.
    pub const fn new(scratch_bytes: u32, instructions: u32) -> ProgramHeader {
        ProgramHeader {
            magic: PROGRAM_MAGIC,
            version: PROGRAM_VERSION,
            reserved: 0,
            scratch_bytes,
            instructions,
        }
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; PROGRAM_HEADER_BYTES] {
        let mut bytes = [0; PROGRAM_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.magic);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.reserved.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.scratch_bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.instructions.to_le_bytes());
        bytes
    }

    /// Decodes a header; nothing is checked.
    pub fn from_bytes(bytes: [u8; PROGRAM_HEADER_BYTES]) -> ProgramHeader {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        ProgramHeader {
            magic: four(0),
            version: u16::from_le_bytes([bytes[4], bytes[5]]),
            reserved: u16::from_le_bytes([bytes[6], bytes[7]]),
            scratch_bytes: u32::from_le_bytes(four(8)),
            instructions: u32::from_le_bytes(four(12)),
        }
    }
}

/// A change of eight bytes that a walk requests from the node that owns them, to be made exactly once. Any other number
/// requests nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum ApplyKind {
    /// If the eight bytes are equal to `a`, they become `b`; the result is their old value.
    CompareSwap = 1,
    /// Adds `a` to the eight bytes, wrapping unless a request asks otherwise by `b`; the result is their old value.
    FetchAdd = 2,
}

impl ApplyKind {
    /// Returns the kind of this number.
    pub const fn from_number(number: u64) -> Option<ApplyKind> {
        match number {
            1 => Some(ApplyKind::CompareSwap),
            2 => Some(ApplyKind::FetchAdd),
            _ => None,
        }
    }
}

/// Bits of an opcode that contain its class.
pub const CLASS_MASK: u8 = 0x07;
/// Class: loads of 64-bit immediates.
pub const CLASS_LD: u8 = 0x00;
/// Class: loads to a register.
pub const CLASS_LDX: u8 = 0x01;
/// Class: stores of an immediate.
pub const CLASS_ST: u8 = 0x02;
/// Class: stores of a register.
pub const CLASS_STX: u8 = 0x03;
/// Class: 32-bit arithmetic.
pub const CLASS_ALU: u8 = 0x04;
/// Class: 64-bit comparisons, jumps.
pub const CLASS_JMP: u8 = 0x05;
/// Class: 32-bit comparisons.
pub const CLASS_JMP32: u8 = 0x06;
/// Class: 64-bit arithmetic.
pub const CLASS_ALU64: u8 = 0x07;

/// Bit of arithmetic and jumps: the source is a register, not the immediate.
pub const SOURCE_REGISTER: u8 = 0x08;
/// Bits of arithmetic and jump opcodes that contain the operation.
pub const CODE_MASK: u8 = 0xf0;

/// Arithmetic code: add.
pub const ADD: u8 = 0x00;
/// Arithmetic code: subtract.
pub const SUB: u8 = 0x10;
/// Arithmetic code: multiply.
pub const MUL: u8 = 0x20;
/// Arithmetic code: divide; signed if the offset is 1.
pub const DIV: u8 = 0x30;
/// Arithmetic code: or.
pub const OR: u8 = 0x40;
/// Arithmetic code: and.
pub const AND: u8 = 0x50;
/// Arithmetic code: shift left.
pub const LSH: u8 = 0x60;
/// Arithmetic code: shift right, filling with zeros.
pub const RSH: u8 = 0x70;
/// Arithmetic code: negate.
pub const NEG: u8 = 0x80;
/// Arithmetic code: remainder; signed if the offset is 1.
pub const MOD: u8 = 0x90;
/// Arithmetic code: exclusive or.
pub const XOR: u8 = 0xa0;
/// Arithmetic code: move; with an offset of 8, 16 or 32 sign-extended from that many bits.
pub const MOV: u8 = 0xb0;
/// Arithmetic code: shift right, filling with the sign.
pub const ARSH: u8 = 0xc0;
/// Arithmetic code: byte order conversion.
pub const END: u8 = 0xd0;

/// Jump code: unconditional.
pub const JA: u8 = 0x00;
/// Jump code: equal.
pub const JEQ: u8 = 0x10;
/// Jump code: greater, unsigned.
pub const JGT: u8 = 0x20;
/// Jump code: greater or equal, unsigned.
pub const JGE: u8 = 0x30;
/// Jump code: both operands have a set bit in common.
pub const JSET: u8 = 0x40;
/// Jump code: not equal.
pub const JNE: u8 = 0x50;
/// Jump code: greater, signed.
pub const JSGT: u8 = 0x60;
/// Jump code: greater or equal, signed.
pub const JSGE: u8 = 0x70;
/// Jump code: call, which a walk may not contain.
pub const CALL: u8 = 0x80;
/// Jump code: return.
pub const EXIT: u8 = 0x90;
/// Jump code: less, unsigned.
pub const JLT: u8 = 0xa0;
/// Jump code: less or equal, unsigned.
pub const JLE: u8 = 0xb0;
/// Jump code: less, signed.
pub const JSLT: u8 = 0xc0;
/// Jump code: less or equal, signed.
pub const JSLE: u8 = 0xd0;

/// Bits of loads and stores that hold the access size.
pub const SIZE_MASK: u8 = 0x18;
/// Access size: four bytes.
pub const SIZE_W: u8 = 0x00;
/// Access size: two bytes.
pub const SIZE_H: u8 = 0x08;
/// Access size: one byte.
pub const SIZE_B: u8 = 0x10;
/// Access size: eight bytes.
pub const SIZE_DW: u8 = 0x18;
/// Bits of loads and stores that hold the addressing mode.
pub const MODE_MASK: u8 = 0xe0;
/// Mode: a 64-bit immediate.
pub const MODE_IMM: u8 = 0x00;
/// Mode: memory at a register plus an offset.
pub const MODE_MEM: u8 = 0x60;
/// Mode: memory at a register plus an offset, sign-extended.
pub const MODE_MEMSX: u8 = 0x80;
/// Opcode of the pair of instructions that loads 64 bits.
pub const LOAD_IMMEDIATE: u8 = CLASS_LD | SIZE_DW | MODE_IMM;
