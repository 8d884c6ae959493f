// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The form to which bytecode is lowered before it is verified or run: blocks of instructions on 64-bit integers, without pointers.
//!
//! - **Flow** bytecode ──`lower`──▶ [`Function`] ──`verify`──▶ the same function, its addresses bounded ──▶ `interp` or `jit`
//! - **Layout** a register that holds a pointer in the bytecode holds, in the IR, the pointer's distance from the start of its
//!   [`Space`] (for [`Space::Window`] from `cur_ptr`, for [`Space::Stack`] from r10, so that both may be negative). The instruction
//!   of an access names the space. So no host address is ever a value, and none can leak
//! - **Order** blocks are numbered in the order of the bytecode; an edge to the same or an earlier block costs one unit of fuel
//! - **Not here** proofs: an [`Index`] records what was proved about it, and what must be checked at run time
//!
//! The instructions are those of PULSE, Table 2 (load, store, arithmetic, compare and jump, return, next), with widths.

/// A 64-bit integer: r0 to r10 of the bytecode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u8);

/// Number of registers.
pub const REGS: usize = 11;

/// A register, or a constant; 32-bit operations use its low half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Reg(Reg),
    /// A constant of 64 bits.
    Imm(u64),
}

/// Memory that a step may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The node, relative to `cur_ptr`; read-only.
    Window,
    /// The scratchpad, from its start.
    Scratch,
    /// 512 bytes below r10: offsets −512 to −1.
    Stack,
    /// The [`crate::step::Walk`]; write-only.
    Walk,
}

/// Number of bytes that an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One byte, of any alignment.
    B1,
    /// Two bytes, little-endian, of any alignment. The same holds for the larger sizes.
    B2,
    /// Four bytes, little-endian.
    B4,
    /// Eight bytes, little-endian.
    B8,
}

impl Size {
    /// All sizes, the smallest first.
    pub const ALL: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Size::B1 => 1,
            Size::B2 => 2,
            Size::B4 => 4,
            Size::B8 => 8,
        }
    }
}

/// The variable part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// The register, read as a signed number.
    pub reg: Reg,
    /// Least value of the register that keeps the access in its space.
    pub first: i64,
    /// Greatest value of the register that keeps the access in its space.
    pub last: i64,
    /// False: the verifier has proved that the register lies between `first` and `last`. True: this is checked at run time, and
    /// a value outside ends the step with [`crate::step::Verdict::Guard`].
    pub guard: bool,
}

/// Address of an access: `offset` plus the index, from the start of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Memory that the access goes to.
    pub space: Space,
    /// Constant part, in bytes.
    pub offset: i32,
    /// Variable part, in bytes; `None`: the address is constant.
    pub index: Option<Index>,
}

/// Width of an operation. 32-bit operations zero the upper half of their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The low half.
    W32,
    /// The whole register.
    W64,
}

impl Width {
    /// Both widths, the smaller first.
    pub const ALL: [Width; 2] = [Width::W32, Width::W64];
}

/// Arithmetic: `target = a op b`, wrapping; shifts use the low 5 or 6 bits of `b`; x / 0 = 0 and x % 0 = x (RFC 9669 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named by what they do")]
pub enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    SDiv,
    Rem,
    SRem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Sar,
}

impl Alu {
    /// All operations, in the order of the enum.
    pub const ALL: [Alu; 13] = [
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::SDiv,
        Alu::Rem,
        Alu::SRem,
        Alu::And,
        Alu::Or,
        Alu::Xor,
        Alu::Shl,
        Alu::Shr,
        Alu::Sar,
    ];
}

/// Compares two operands of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the bytecode")]
pub enum Cmp {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
    SGt,
    SGe,
    SLt,
    SLe,
    /// `a & b != 0`.
    Set,
}

impl Cmp {
    /// All comparisons, in the order of the enum.
    pub const ALL: [Cmp; 11] = [
        Cmp::Eq,
        Cmp::Ne,
        Cmp::Gt,
        Cmp::Ge,
        Cmp::Lt,
        Cmp::Le,
        Cmp::SGt,
        Cmp::SGe,
        Cmp::SLt,
        Cmp::SLe,
        Cmp::Set,
    ];

    /// Returns the comparison that holds exactly where this one does not; `None` for `Set`, which has no such comparison.
    #[must_use]
    pub fn negated(self) -> Option<Cmp> {
        Some(match self {
            Cmp::Eq => Cmp::Ne,
            Cmp::Ne => Cmp::Eq,
            Cmp::Gt => Cmp::Le,
            Cmp::Ge => Cmp::Lt,
            Cmp::Lt => Cmp::Ge,
            Cmp::Le => Cmp::Gt,
            Cmp::SGt => Cmp::SLe,
            Cmp::SGe => Cmp::SLt,
            Cmp::SLt => Cmp::SGe,
            Cmp::SLe => Cmp::SGt,
            Cmp::Set => return None,
        })
    }
}

/// One instruction that is not the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inst {
    /// `target = source`.
    Move {
        /// With 32 bits the upper half is cleared.
        width: Width,
        /// Register that is set.
        target: Reg,
        /// Value that is copied.
        source: Operand,
    },
    /// `target = sign-extended low bits of source`: 8, 16 or 32 of them.
    SignExtend {
        /// With 32 bits the upper half is cleared afterwards.
        width: Width,
        /// Register that is set.
        target: Reg,
        /// Register that is read.
        source: Reg,
        /// Number of low bits that are extended.
        bits: u8,
    },
    /// `target = a op b`.
    Alu {
        /// Operation that is done.
        op: Alu,
        /// Width of operands and result.
        width: Width,
        /// Register that is set.
        target: Reg,
        /// Operand on the left.
        a: Operand,
        /// Operand on the right.
        b: Operand,
    },
    /// Takes the low `bits` of the register (16, 32, 64), reverses the order of their bytes, and zero-extends them; without
    /// `reverse` it only truncates.
    ByteSwap {
        /// Register that is read and set.
        target: Reg,
        /// Bits that stay: 16, 32 or 64.
        bits: u8,
        /// True if the order of the bytes is reversed.
        reverse: bool,
    },
    /// `target = bytes at address`, zero-extended, or sign-extended to 64 bits.
    Load {
        /// Number of bytes read.
        size: Size,
        /// True if the bytes are sign-extended.
        signed: bool,
        /// Register that is set.
        target: Reg,
        /// Address that is read; never in [`Space::Walk`].
        address: Address,
    },
    /// Stores the low bytes of `source` at `address`.
    Store {
        /// Number of bytes written.
        size: Size,
        /// Address that is written; never in [`Space::Window`].
        address: Address,
        /// Value whose low bytes are stored.
        source: Operand,
    },
}

/// A block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// End of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Continues at a block.
    Jump(BlockId),
    /// Continues at one of two blocks.
    Branch {
        /// Comparison that decides.
        cmp: Cmp,
        /// Width of the compared values.
        width: Width,
        /// Operand on the left.
        a: Operand,
        /// Operand on the right.
        b: Operand,
        /// Block to continue at if the comparison holds.
        then: BlockId,
        /// Block to continue at if it does not hold.
        or: BlockId,
    },
    /// The step is over; the low 32 bits of r0 are its verdict.
    Return,
}

/// A run of instructions that is entered at its start only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The instructions, in the order in which they run.
    pub insts: Vec<Inst>,
    /// For each of `insts`, and last for `end`, the index of the bytecode instruction from which it was lowered.
    pub origin: Vec<u32>,
    /// End of the block: return, or the next blocks.
    pub end: End,
}

/// A step. It starts at block 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The blocks, indexed by [`BlockId`].
    pub blocks: Vec<Block>,
}

impl Function {
    /// Returns true if going from one block to the other costs fuel.
    #[must_use]
    pub fn is_back_edge(from: BlockId, to: BlockId) -> bool {
        to <= from
    }
}
