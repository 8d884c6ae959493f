// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps written in the IR: the kernels of the paper's structures, and the pieces to write more.
//!
//! - **Layout** hash and list nodes: key, value, next, eight bytes each. B+tree nodes: count, then 15 keys, then 16 children
#![allow(dead_code)] // not every test uses every piece

use memlift_traverse::ir::{
    Address, Alu, Block, BlockId, Cmp, End, Function, Index, Inst, Operand, Reg, Size, Space, Width,
};
use memlift_traverse::jit::Limits;

/// For programs that read a node of three words.
pub const THREE_WORDS: Limits = Limits { window_first: 0, window_bytes: 24, scratch_bytes: 1024 };
/// For [`tree_search`].
pub const TREE: Limits = Limits { window_first: 0, window_bytes: 256, scratch_bytes: 1024 };

/// An address without an index.
pub fn at(space: Space, offset: i32) -> Address {
    Address { space, offset, index: None }
}

/// An address with a register that lies in first..=last.
pub fn indexed(space: Space, offset: i32, reg: u8, first: i64, last: i64, guard: bool) -> Address {
    Address { space, offset, index: Some(Index { reg: Reg(reg), first, last, guard }) }
}

/// Loads eight bytes.
pub fn load(target: u8, address: Address) -> Inst {
    Inst::Load { size: Size::B8, signed: false, target: Reg(target), address }
}

/// Stores eight bytes.
pub fn store(address: Address, source: u8) -> Inst {
    Inst::Store { size: Size::B8, address, source: Operand::Reg(Reg(source)) }
}

/// Sets a register to a constant.
pub fn constant(target: u8, value: u64) -> Inst {
    Inst::Move { width: Width::W64, target: Reg(target), source: Operand::Imm(value) }
}

/// 64-bit arithmetic with a constant.
pub fn alu(op: Alu, target: u8, a: u8, b: u64) -> Inst {
    Inst::Alu { op, width: Width::W64, target: Reg(target), a: Operand::Reg(Reg(a)), b: Operand::Imm(b) }
}

/// A block, with origins that mean nothing.
pub fn block(insts: &[Inst], end: End) -> Block {
    Block { insts: insts.to_vec(), origin: vec![0; insts.len() + 1], end }
}

/// A block that ends the step.
pub fn returns(insts: &[Inst], verdict: u64) -> Block {
    block(&[insts, &[constant(0, verdict)]].concat(), End::Return)
}

/// A 64-bit comparison.
pub fn branch(cmp: Cmp, a: u8, b: Operand, then: u32, or: u32) -> End {
    let (then, or) = (BlockId(then), BlockId(or));
    End::Branch { cmp, width: Width::W64, a: Operand::Reg(Reg(a)), b, then, or }
}

/// Finds the key at scratch 0 in a hash bucket; the value goes to scratch 8.
pub fn hash_find() -> Function {
    use Space::{Scratch, Walk, Window};
    let key = Operand::Reg(Reg(5));
    Function {
        blocks: vec![
            block(&[load(4, at(Window, 0)), load(5, at(Scratch, 0))], branch(Cmp::Eq, 4, key, 3, 1)),
            block(&[load(6, at(Window, 16))], branch(Cmp::Eq, 6, Operand::Imm(0), 4, 2)),
            returns(&[store(at(Walk, 0), 6)], 0),
            returns(&[load(7, at(Window, 8)), store(at(Scratch, 8), 7)], 1),
            returns(&[], 5),
        ],
    }
}

/// Goes along a list, with sum at scratch 8 and count at scratch 16, to the element whose key is at scratch 0.
pub fn list_find() -> Function {
    use Space::{Scratch, Walk, Window};
    let key = Operand::Reg(Reg(5));
    let sum = Inst::Alu {
        op: Alu::Add,
        width: Width::W64,
        target: Reg(8),
        a: Operand::Reg(Reg(8)),
        b: Operand::Reg(Reg(7)),
    };
    let insts = [
        load(7, at(Window, 8)),
        load(8, at(Scratch, 8)),
        sum,
        store(at(Scratch, 8), 8),
        load(9, at(Scratch, 16)),
        alu(Alu::Add, 9, 9, 1),
        store(at(Scratch, 16), 9),
        load(4, at(Window, 0)),
        load(5, at(Scratch, 0)),
    ];
    Function {
        blocks: vec![
            block(&insts, branch(Cmp::Eq, 4, key, 3, 1)),
            block(&[load(6, at(Window, 16))], branch(Cmp::Eq, 6, Operand::Imm(0), 4, 2)),
            returns(&[store(at(Walk, 0), 6)], 0),
            returns(&[], 1),
            returns(&[], 5),
        ],
    }
}

/// Goes down a B+tree: the first of up to 15 keys above the one at scratch 0, by a loop of backward jumps and a guarded index.
pub fn tree_search() -> Function {
    use Space::{Scratch, Walk, Window};
    // r4 count, r5 key, r6 index, r7 offset, r8 key of the node
    let key = indexed(Window, 8, 7, 0, 14 * 8, true);
    let child = indexed(Window, 128, 7, 0, 15 * 8, true);
    let times_eight = Inst::Alu {
        op: Alu::Shl,
        width: Width::W64,
        target: Reg(7),
        a: Operand::Reg(Reg(6)),
        b: Operand::Imm(3),
    };
    Function {
        blocks: vec![
            block(&[load(4, at(Window, 0)), load(5, at(Scratch, 0)), constant(6, 0)], End::Jump(BlockId(1))),
            block(&[], branch(Cmp::Ge, 6, Operand::Reg(Reg(4)), 4, 2)),
            block(&[times_eight, load(8, key)], branch(Cmp::Gt, 8, Operand::Reg(Reg(5)), 4, 3)),
            block(&[alu(Alu::Add, 6, 6, 1)], End::Jump(BlockId(1))),
            block(&[times_eight, load(9, child)], branch(Cmp::Eq, 9, Operand::Imm(0), 6, 5)),
            returns(&[store(at(Walk, 0), 9)], 0),
            returns(&[store(at(Scratch, 8), 8)], 1),
        ],
    }
}

/// Numbers at whose sides arithmetic changes what it does.
pub const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0x8000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];
