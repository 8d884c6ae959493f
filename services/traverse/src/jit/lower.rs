// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Emits the body of a step in Cranelift's IR, at the caller's position: into a function of its own or into a loop.
//!
//! - **Layout** each register is a variable; a register with a pointer holds its distance, and `Bases` holds the addresses to
//!   add
//! - **Flow** [`Body::emit`]: block by block, instruction by instruction; every exit sets `verdict` and jumps to one block
//! - **Order** fuel is a variable too: loaded from the walk at the start, counted down on back edges, never written back
//! - **Not here** the check that accesses are inside their spaces: `reach`. [`Body::address`] clamps the index in any case

use super::reach::Reach;
use crate::ir::{Address, Alu, BlockId, Cmp, End, Function, Inst, Operand, REGS, Reg, Size, Space, Width};
use crate::step::Verdict;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self as clif, Endianness, InstBuilder, MemFlagsData, StackSlot, StackSlotData, StackSlotKind, Type,
    Value, types,
};
use cranelift_frontend::{FunctionBuilder, Variable};

/// Flags of accesses that are neither aligned nor constant. The accesses stay inside their areas: `reach` has checked them
/// against the declared areas, and the caller of the step promises that the areas are there.
pub(super) const PLAIN: MemFlagsData =
    MemFlagsData::new().with_trap_code(None).with_endianness(Endianness::Little);

/// Addresses at which the spaces of one step are mapped.
#[derive(Clone, Copy)]
pub(super) struct Bases {
    /// Address of the node.
    pub node: Value,
    /// Address of the scratchpad's start.
    pub scratch: Value,
    /// Address that lies `walk_offset` bytes before the walk.
    pub walk: Value,
    /// Bytes from `walk` to the walk.
    pub walk_offset: i32,
}

/// Variables defined once per compiled function, however often a body is entered.
pub(super) struct Body {
    regs: [Variable; REGS],
    fuel: Variable,
    /// The step's verdict, 32 bits; set before the jump to the exit block.
    pub verdict: Variable,
    stack: Option<(StackSlot, i32)>,
}

impl Body {
    /// Declares the variables, and the part of the stack that is in use.
    pub fn declare(builder: &mut FunctionBuilder, reach: &Reach) -> Body {
        let bytes = u32::try_from(reach.stack.end - reach.stack.start).unwrap_or(0);
        let stack = (bytes > 0).then(|| {
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 3);
            (builder.create_sized_stack_slot(data), i32::try_from(-reach.stack.start).unwrap_or(0))
        });
        Body {
            regs: core::array::from_fn(|_| builder.declare_var(types::I64)),
            fuel: builder.declare_var(types::I64),
            verdict: builder.declare_var(types::I32),
            stack,
        }
    }

    /// Emits the body, starting in the builder's current block; it ends with jumps to `exit`.
    pub fn emit(
        &self,
        builder: &mut FunctionBuilder,
        function: &Function,
        reach: &Reach,
        bases: Bases,
        exit: clif::Block,
    ) {
        let zero = builder.ins().iconst(types::I64, 0);
        for reg in self.regs {
            builder.def_var(reg, zero);
        }
        if reach.loops {
            let offset = bases.walk_offset + core::mem::offset_of!(crate::step::Walk, fuel) as i32;
            let fuel = builder.ins().load(types::I64, PLAIN, bases.walk, offset);
            builder.def_var(self.fuel, fuel);
        }
        let blocks = function.blocks.iter().map(|_| builder.create_block()).collect();
        let mut faults = Vec::new();
        let mut writer = Writer { body: self, builder, bases, exit, blocks, faults: &mut faults };
        writer.builder.ins().jump(writer.blocks[0], &[]);
        for (number, block) in function.blocks.iter().enumerate() {
            writer.builder.switch_to_block(writer.blocks[number]);
            for inst in &block.insts {
                writer.inst(inst);
            }
            writer.end(BlockId(number as u32), &block.end);
        }
        for (verdict, block) in faults {
            builder.switch_to_block(block);
            let value = builder.ins().iconst(types::I32, i64::from(verdict as u32));
            builder.def_var(self.verdict, value);
            builder.ins().jump(exit, &[]);
        }
    }
}

struct Writer<'a, 'f> {
    body: &'a Body,
    builder: &'a mut FunctionBuilder<'f>,
    bases: Bases,
    exit: clif::Block,
    blocks: Vec<clif::Block>,
    faults: &'a mut Vec<(Verdict, clif::Block)>,
}

impl Writer<'_, '_> {
    /// Returns the block that ends the step with a fault.
    fn fault(&mut self, verdict: Verdict) -> clif::Block {
        if let Some(&(_, block)) = self.faults.iter().find(|(of, _)| *of == verdict) {
            return block;
        }
        let block = self.builder.create_block();
        self.builder.set_cold_block(block);
        self.faults.push((verdict, block));
        block
    }

    fn get(&mut self, reg: Reg) -> Value {
        self.builder.use_var(self.body.regs[usize::from(reg.0)])
    }

    /// Sets a register to a value of 64 bits, or to one of 32 that is zero-extended.
    fn set(&mut self, reg: Reg, value: Value) {
        let value = self.extend(value);
        self.builder.def_var(self.body.regs[usize::from(reg.0)], value);
    }

    fn extend(&mut self, value: Value) -> Value {
        if self.builder.func.dfg.value_type(value) == types::I64 {
            return value;
        }
        self.builder.ins().uextend(types::I64, value)
    }

    fn operand(&mut self, operand: Operand, width: Width) -> Value {
        match (operand, width) {
            (Operand::Reg(reg), Width::W64) => self.get(reg),
            (Operand::Reg(reg), Width::W32) => {
                let value = self.get(reg);
                self.builder.ins().ireduce(types::I32, value)
            }
            (Operand::Imm(value), Width::W64) => self.builder.ins().iconst(types::I64, value.cast_signed()),
            (Operand::Imm(value), Width::W32) => {
                self.builder.ins().iconst(types::I32, i64::from(value as u32))
            }
        }
    }

    fn inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::Move { width, target, source } => {
                let value = self.operand(source, width);
                self.set(target, value);
            }
            Inst::SignExtend { width, target, source, bits } => {
                let value = self.get(source);
                let value = match (bits, width) {
                    (32, Width::W32) => self.builder.ins().ireduce(types::I32, value),
                    _ => {
                        let low = self.builder.ins().ireduce(integer(bits), value);
                        self.builder.ins().sextend(of(width), low)
                    }
                };
                self.set(target, value);
            }
            Inst::Alu { op, width, target, a, b } => {
                let a = self.operand(a, width);
                let b = self.operand(b, width);
                let value = self.alu(op, of(width), a, b);
                self.set(target, value);
            }
            Inst::ByteSwap { target, bits, reverse } => {
                let mut value = self.get(target);
                if bits < 64 {
                    value = self.builder.ins().ireduce(integer(bits), value);
                }
                if reverse {
                    value = self.builder.ins().bswap(value);
                }
                self.set(target, value);
            }
            Inst::Load { size, signed, target, address } => {
                // Other threads write the node, so a load must not be merged with an earlier one, nor be moved before it.
                if address.space == Space::Window && cfg!(target_arch = "x86_64") {
                    self.builder.ins().sequence_point(); // x86-64 keeps the order of loads; this emits no code
                } else if address.space == Space::Window {
                    self.builder.ins().fence();
                }
                let (base, offset) = self.address(&address);
                let ins = self.builder.ins();
                let value = match (size, signed) {
                    (Size::B1, false) => ins.uload8(types::I64, PLAIN, base, offset),
                    (Size::B1, true) => ins.sload8(types::I64, PLAIN, base, offset),
                    (Size::B2, false) => ins.uload16(types::I64, PLAIN, base, offset),
                    (Size::B2, true) => ins.sload16(types::I64, PLAIN, base, offset),
                    (Size::B4, false) => ins.uload32(PLAIN, base, offset),
                    (Size::B4, true) => ins.sload32(PLAIN, base, offset),
                    (Size::B8, _) => ins.load(types::I64, PLAIN, base, offset),
                };
                self.set(target, value);
            }
            Inst::Store { size, address, source } => {
                let value = self.operand(source, Width::W64);
                let (base, offset) = self.address(&address);
                match size {
                    Size::B1 => self.builder.ins().istore8(PLAIN, value, base, offset),
                    Size::B2 => self.builder.ins().istore16(PLAIN, value, base, offset),
                    Size::B4 => self.builder.ins().istore32(PLAIN, value, base, offset),
                    Size::B8 => self.builder.ins().store(PLAIN, value, base, offset),
                };
            }
        }
    }

    /// Returns base and offset of an access. Its index, if any, is compared unless it is proved, and clamped in any case.
    fn address(&mut self, address: &Address) -> (Value, i32) {
        let (base, start) = match address.space {
            Space::Window => (self.bases.node, 0),
            Space::Scratch => (self.bases.scratch, 0),
            Space::Walk => (self.bases.walk, self.bases.walk_offset),
            Space::Stack => match self.body.stack {
                Some((slot, start)) => (self.builder.ins().stack_addr(types::I64, slot, 0), start),
                // The stack is not in use: the guards of the remaining accesses always fail.
                None => (self.bases.scratch, 0),
            },
        };
        let offset = start.wrapping_add(address.offset);
        let Some(index) = address.index else { return (base, offset) };
        if index.first == index.last && !index.guard {
            return (base, offset.wrapping_add(index.first as i32));
        }
        let value = self.get(index.reg);
        if index.first > index.last {
            let (fault, go_on) = (self.fault(Verdict::Guard), self.builder.create_block());
            let always = self.builder.ins().iconst(types::I8, 1);
            self.builder.ins().brif(always, fault, &[], go_on, &[]);
            self.builder.switch_to_block(go_on);
            return (self.bases.scratch, 0);
        }
        let from_first = self.builder.ins().iadd_imm_s(value, index.first.wrapping_neg());
        let span = self.builder.ins().iconst(types::I64, index.last.wrapping_sub(index.first));
        let outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, from_first, span);
        if index.guard {
            let (fault, go_on) = (self.fault(Verdict::Guard), self.builder.create_block());
            self.builder.ins().brif(outside, fault, &[], go_on, &[]);
            self.builder.switch_to_block(go_on);
        }
        let zero = self.builder.ins().iconst(types::I64, 0);
        let clamped = self.builder.ins().select_spectre_guard(outside, zero, from_first);
        (self.builder.ins().iadd(base, clamped), offset.wrapping_add(index.first as i32))
    }

    fn alu(&mut self, op: Alu, ty: Type, a: Value, b: Value) -> Value {
        match op {
            Alu::Add => self.builder.ins().iadd(a, b),
            Alu::Sub => self.builder.ins().isub(a, b),
            Alu::Mul => self.builder.ins().imul(a, b),
            Alu::And => self.builder.ins().band(a, b),
            Alu::Or => self.builder.ins().bor(a, b),
            Alu::Xor => self.builder.ins().bxor(a, b),
            // Cranelift takes the shift amount modulo the width, as BPF does.
            Alu::Shl => self.builder.ins().ishl(a, b),
            Alu::Shr => self.builder.ins().ushr(a, b),
            Alu::Sar => self.builder.ins().sshr(a, b),
            Alu::Div | Alu::SDiv | Alu::Rem | Alu::SRem => self.divide(op, ty, a, b),
        }
    }

    /// Emits a division that never traps: the machine divides by 1 if the divisor is 0, or −1 in a signed division.
    fn divide(&mut self, op: Alu, ty: Type, a: Value, b: Value) -> Value {
        let ins = self.builder.ins();
        let by_zero = ins.icmp_imm_s(IntCC::Equal, b, 0);
        let one = self.builder.ins().iconst(ty, 1);
        let mut divisor = self.builder.ins().select(by_zero, one, b);
        match op {
            Alu::Div => {
                let quotient = self.builder.ins().udiv(a, divisor);
                let zero = self.builder.ins().iconst(ty, 0);
                self.builder.ins().select(by_zero, zero, quotient)
            }
            Alu::Rem => {
                let rest = self.builder.ins().urem(a, divisor);
                self.builder.ins().select(by_zero, a, rest)
            }
            Alu::SDiv => {
                let by_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, b, -1);
                divisor = self.builder.ins().select(by_minus_one, one, divisor);
                let quotient = self.builder.ins().sdiv(a, divisor);
                let negated = self.builder.ins().ineg(a);
                let zero = self.builder.ins().iconst(ty, 0);
                let quotient = self.builder.ins().select(by_minus_one, negated, quotient);
                self.builder.ins().select(by_zero, zero, quotient)
            }
            _ => {
                let by_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, b, -1);
                divisor = self.builder.ins().select(by_minus_one, one, divisor);
                let rest = self.builder.ins().srem(a, divisor); // x % 1 = 0 = x % −1
                self.builder.ins().select(by_zero, a, rest)
            }
        }
    }

    fn end(&mut self, from: BlockId, end: &End) {
        match *end {
            End::Return => {
                let value = self.get(Reg(0));
                let value = self.builder.ins().ireduce(types::I32, value);
                self.builder.def_var(self.body.verdict, value);
                self.builder.ins().jump(self.exit, &[]);
            }
            End::Jump(to) => self.edge(from, to),
            End::Branch { cmp, width, a, b, then, or } => {
                let a = self.operand(a, width);
                let b = self.operand(b, width);
                let condition = match cmp {
                    Cmp::Set => self.builder.ins().band(a, b),
                    _ => self.builder.ins().icmp(compare(cmp), a, b),
                };
                let [then_block, or_block] = [then, or].map(|to| self.target(from, to));
                self.builder.ins().brif(condition, then_block, &[], or_block, &[]);
                for (to, block) in [(then, then_block), (or, or_block)] {
                    if Function::is_back_edge(from, to) {
                        self.builder.switch_to_block(block);
                        self.edge(from, to);
                    }
                }
            }
        }
    }

    /// Returns the block that a branch jumps to: the target or, for a back edge, a new block that first takes the fuel.
    fn target(&mut self, from: BlockId, to: BlockId) -> clif::Block {
        if Function::is_back_edge(from, to) {
            self.builder.create_block()
        } else {
            self.blocks[to.0 as usize]
        }
    }

    /// Jumps to a block; a back edge costs a unit of fuel.
    fn edge(&mut self, from: BlockId, to: BlockId) {
        let target = self.blocks[to.0 as usize];
        if !Function::is_back_edge(from, to) {
            self.builder.ins().jump(target, &[]);
            return;
        }
        let fuel = self.builder.use_var(self.body.fuel);
        let (empty, go_on) = (self.fault(Verdict::OutOfFuel), self.builder.create_block());
        self.builder.ins().brif(fuel, go_on, &[], empty, &[]);
        self.builder.switch_to_block(go_on);
        let left = self.builder.ins().iadd_imm_s(fuel, -1);
        self.builder.def_var(self.body.fuel, left);
        self.builder.ins().jump(target, &[]);
    }
}

fn of(width: Width) -> Type {
    match width {
        Width::W32 => types::I32,
        Width::W64 => types::I64,
    }
}

fn integer(bits: u8) -> Type {
    match bits {
        8 => types::I8,
        16 => types::I16,
        32 => types::I32,
        _ => types::I64,
    }
}

fn compare(cmp: Cmp) -> IntCC {
    match cmp {
        Cmp::Eq => IntCC::Equal,
        Cmp::Ne | Cmp::Set => IntCC::NotEqual,
        Cmp::Gt => IntCC::UnsignedGreaterThan,
        Cmp::Ge => IntCC::UnsignedGreaterThanOrEqual,
        Cmp::Lt => IntCC::UnsignedLessThan,
        Cmp::Le => IntCC::UnsignedLessThanOrEqual,
        Cmp::SGt => IntCC::SignedGreaterThan,
        Cmp::SGe => IntCC::SignedGreaterThanOrEqual,
        Cmp::SLt => IntCC::SignedLessThan,
        Cmp::SLe => IntCC::SignedLessThanOrEqual,
    }
}
