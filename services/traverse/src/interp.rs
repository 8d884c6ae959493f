// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interprets the IR, one instruction at a time. It runs programs where there is no compiler, and is the reference for the
//! compiler's tests.
//!
//! - **Flow** [`step`] runs on addresses, as a compiled step does. [`Checked::step`] runs on slices and distrusts the verifier:
//!   it checks every access, every proof and every byte of the stack, and reports a proof that does not hold
//! - **Order** registers start at 0. Fuel is read from the [`Walk`] once, at the start, and not written back. The node may change
//!   while it is read: eight aligned bytes are read in one load, unaligned ones byte by byte
//! - **Not here** the effect of a verdict on the walk (`node`)

use crate::ir::{Address, Alu, Cmp, End, Function, Inst, Operand, REGS, Reg, Size, Space, Width};
use crate::step::{Verdict, Walk};
use memlift_spec::formats::walk::STACK_BYTES;

/// Returns `a op b`, as the IR defines it.
#[must_use]
pub fn alu(op: Alu, width: Width, a: u64, b: u64) -> u64 {
    match width {
        Width::W64 => match op {
            Alu::Add => a.wrapping_add(b),
            Alu::Sub => a.wrapping_sub(b),
            Alu::Mul => a.wrapping_mul(b),
            Alu::Div => a.checked_div(b).unwrap_or(0),
            Alu::SDiv if b == 0 => 0,
            Alu::SDiv => (a as i64).wrapping_div(b as i64) as u64,
            Alu::Rem => a.checked_rem(b).unwrap_or(a),
            Alu::SRem if b == 0 => a,
            Alu::SRem => (a as i64).wrapping_rem(b as i64) as u64,
            Alu::And => a & b,
            Alu::Or => a | b,
            Alu::Xor => a ^ b,
            Alu::Shl => a.wrapping_shl(b as u32),
            Alu::Shr => a.wrapping_shr(b as u32),
            Alu::Sar => (a as i64).wrapping_shr(b as u32) as u64,
        },
        Width::W32 => {
            let (a, b) = (a as u32, b as u32);
            u64::from(match op {
                Alu::Add => a.wrapping_add(b),
                Alu::Sub => a.wrapping_sub(b),
                Alu::Mul => a.wrapping_mul(b),
                Alu::Div => a.checked_div(b).unwrap_or(0),
                Alu::SDiv if b == 0 => 0,
                Alu::SDiv => (a as i32).wrapping_div(b as i32) as u32,
                Alu::Rem => a.checked_rem(b).unwrap_or(a),
                Alu::SRem if b == 0 => a,
                Alu::SRem => (a as i32).wrapping_rem(b as i32) as u32,
                Alu::And => a & b,
                Alu::Or => a | b,
                Alu::Xor => a ^ b,
                Alu::Shl => a.wrapping_shl(b),
                Alu::Shr => a.wrapping_shr(b),
                Alu::Sar => (a as i32).wrapping_shr(b) as u32,
            })
        }
    }
}

/// Returns true if a comparison holds.
#[must_use]
pub fn compare(cmp: Cmp, width: Width, a: u64, b: u64) -> bool {
    let (a, b, x, y) = match width {
        Width::W64 => (a, b, a as i64, b as i64),
        Width::W32 => (u64::from(a as u32), u64::from(b as u32), i64::from(a as i32), i64::from(b as i32)),
    };
    match cmp {
        Cmp::Eq => a == b,
        Cmp::Ne => a != b,
        Cmp::Gt => a > b,
        Cmp::Ge => a >= b,
        Cmp::Lt => a < b,
        Cmp::Le => a <= b,
        Cmp::SGt => x > y,
        Cmp::SGe => x >= y,
        Cmp::SLt => x < y,
        Cmp::SLe => x <= y,
        Cmp::Set => a & b != 0,
    }
}

/// Sign-extends the low 8, 16 or 32 bits.
#[must_use]
pub fn sign_extend(width: Width, value: u64, bits: u8) -> u64 {
    let by = 64 - u32::from(bits);
    let wide = (((value << by) as i64) >> by) as u64;
    if width == Width::W32 { wide & u64::from(u32::MAX) } else { wide }
}

fn byte_swap(value: u64, bits: u8, reverse: bool) -> u64 {
    match (bits, reverse) {
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, true) => u64::from((value as u32).swap_bytes()),
        (_, true) => value.swap_bytes(),
        (16, false) => u64::from(value as u16),
        (32, false) => u64::from(value as u32),
        (_, false) => value,
    }
}

/// The memory that a step accesses. Offsets are distances from the start of the space.
trait Memory {
    /// Reason that an access failed.
    type Broken;
    fn load(&mut self, space: Space, at: i64, size: Size) -> Result<u64, Self::Broken>;
    fn store(&mut self, space: Space, at: i64, size: Size, value: u64) -> Result<(), Self::Broken>;
    /// Reports that a register is used; `set` is true if it was set before.
    fn used(&self, reg: Reg, set: bool) -> Result<(), Self::Broken>;
    /// Reports that an index lies outside the bounds that the verifier proved.
    fn unproved(&self, reg: Reg, value: i64, first: i64, last: i64) -> Result<(), Self::Broken>;
    /// True if each proof of the verifier is checked again at run time.
    const DISTRUST: bool;
}

struct Machine<'a, M> {
    memory: &'a mut M,
    registers: [u64; REGS],
    set: u16,
}

impl<M: Memory> Machine<'_, M> {
    fn get(&self, reg: Reg) -> Result<u64, M::Broken> {
        if M::DISTRUST {
            self.memory.used(reg, self.set >> reg.0 & 1 == 1)?;
        }
        Ok(self.registers[usize::from(reg.0)])
    }

    fn value(&self, operand: Operand) -> Result<u64, M::Broken> {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(value) => Ok(value),
        }
    }

    fn put(&mut self, reg: Reg, value: u64) {
        self.registers[usize::from(reg.0)] = value;
        self.set |= 1 << reg.0;
    }

    /// Returns the offset that is accessed; `None` if a guard refuses the access.
    fn place(&self, address: &Address) -> Result<Option<i64>, M::Broken> {
        let offset = i64::from(address.offset);
        let Some(index) = address.index else { return Ok(Some(offset)) };
        let value = self.get(index.reg)? as i64;
        let inside = (index.first..=index.last).contains(&value);
        if index.guard && !inside {
            return Ok(None);
        }
        if M::DISTRUST && !inside {
            self.memory.unproved(index.reg, value, index.first, index.last)?;
        }
        Ok(Some(offset.wrapping_add(value)))
    }

    /// Runs one instruction; returns false if a guard ends the step.
    fn run(&mut self, inst: &Inst) -> Result<bool, M::Broken> {
        match *inst {
            Inst::Move { width, target, source } => {
                let value = self.value(source)?;
                self.put(target, if width == Width::W32 { value & u64::from(u32::MAX) } else { value });
            }
            Inst::SignExtend { width, target, source, bits } => {
                let value = sign_extend(width, self.get(source)?, bits);
                self.put(target, value);
            }
            Inst::Alu { op, width, target, a, b } => {
                let value = alu(op, width, self.value(a)?, self.value(b)?);
                self.put(target, value);
            }
            Inst::ByteSwap { target, bits, reverse } => {
                let value = byte_swap(self.get(target)?, bits, reverse);
                self.put(target, value);
            }
            Inst::Load { size, signed, target, ref address } => {
                let Some(at) = self.place(address)? else { return Ok(false) };
                let mut value = self.memory.load(address.space, at, size)?;
                if signed {
                    value = sign_extend(Width::W64, value, (size.bytes() * 8) as u8);
                }
                self.put(target, value);
            }
            Inst::Store { size, ref address, source } => {
                let value = self.value(source)?;
                let Some(at) = self.place(address)? else { return Ok(false) };
                self.memory.store(address.space, at, size, value)?;
            }
        }
        Ok(true)
    }
}

/// Runs a function from block 0 to a return or a fault.
fn run<M: Memory>(function: &Function, memory: &mut M, mut fuel: u64) -> Result<u32, M::Broken> {
    let mut machine = Machine { memory, registers: [0; REGS], set: 1 << 1 | 1 << 2 | 1 << 3 | 1 << 10 };
    let mut at = crate::ir::BlockId(0);
    loop {
        let block = &function.blocks[at.0 as usize];
        for inst in &block.insts {
            if !machine.run(inst)? {
                return Ok(Verdict::Guard as u32);
            }
        }
        let next = match block.end {
            End::Return => return Ok(machine.get(Reg(0))? as u32),
            End::Jump(next) => next,
            End::Branch { cmp, width, a, b, then, or } => {
                if compare(cmp, width, machine.value(a)?, machine.value(b)?) { then } else { or }
            }
        };
        if Function::is_back_edge(at, next) {
            let Some(left) = fuel.checked_sub(1) else { return Ok(Verdict::OutOfFuel as u32) };
            fuel = left;
        }
        at = next;
    }
}

/// The memory of one step by raw addresses. Accesses are not checked: the verifier has proved their bounds.
struct Addresses {
    node: *const u8,
    scratch: *mut u8,
    walk: *mut u8,
    stack: [u8; STACK_BYTES],
}

#[expect(unsafe_code, reason = "reads and writes what the caller of `step` answers for")]
mod addresses {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
    use std::convert::Infallible;

    impl Addresses {
        fn at(&mut self, space: Space, at: i64) -> *mut u8 {
            let at = at as isize;
            match space {
                Space::Window => self.node.cast_mut().wrapping_offset(at),
                Space::Scratch => self.scratch.wrapping_offset(at),
                Space::Walk => self.walk.wrapping_offset(at),
                Space::Stack => self.stack.as_mut_ptr().wrapping_offset(at + STACK_BYTES as isize),
            }
        }
    }

    /// Reads bytes that other threads may be changing.
    ///
    /// # Safety
    /// The bytes may be read, and other threads write them only atomically.
    unsafe fn shared(at: *mut u8, size: Size) -> u64 {
        // SAFETY: the caller promises that the bytes may be read and are only written atomically; each cast is to the
        // alignment that the match arm has checked.
        unsafe {
            match size {
                Size::B8 if at.addr().is_multiple_of(8) => AtomicU64::from_ptr(at.cast()).load(Relaxed),
                Size::B4 if at.addr().is_multiple_of(4) => {
                    u64::from(AtomicU32::from_ptr(at.cast()).load(Relaxed))
                }
                Size::B2 if at.addr().is_multiple_of(2) => {
                    u64::from(AtomicU16::from_ptr(at.cast()).load(Relaxed))
                }
                _ => (0..size.bytes()).fold(0, |value, byte| {
                    let one = AtomicU8::from_ptr(at.wrapping_add(byte as usize)).load(Relaxed);
                    value | u64::from(one) << (8 * byte)
                }),
            }
        }
    }

    impl Memory for Addresses {
        type Broken = Infallible;
        const DISTRUST: bool = false;

        fn load(&mut self, space: Space, at: i64, size: Size) -> Result<u64, Infallible> {
            let at = self.at(space, at);
            let mut bytes = [0; 8];
            // SAFETY: the verifier proved, or a guard has just checked, that the access lies in its space. The caller of
            // `step` promises that node, scratchpad and walk are there; the stack belongs to `self`.
            unsafe {
                if space == Space::Window {
                    return Ok(shared(at, size));
                }
                core::ptr::copy_nonoverlapping(at.cast_const(), bytes.as_mut_ptr(), size.bytes() as usize);
            }
            Ok(u64::from_le_bytes(bytes))
        }

        fn store(&mut self, space: Space, at: i64, size: Size, value: u64) -> Result<(), Infallible> {
            let at = self.at(space, at);
            // SAFETY: the verifier or a guard has bounded the access to its space, which is never the window. The caller of
            // `step` gave scratchpad and walk for writing; the stack belongs to `self`.
            unsafe {
                core::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), at, size.bytes() as usize);
            }
            Ok(())
        }

        fn used(&self, _: Reg, _: bool) -> Result<(), Infallible> {
            Ok(())
        }

        fn unproved(&self, _: Reg, _: i64, _: i64, _: i64) -> Result<(), Infallible> {
            Ok(())
        }
    }

    /// Runs one iteration on raw addresses.
    ///
    /// # Safety
    /// `function` was returned by the verifier for a [`crate::program::Program`]. The program's window around `node` may be
    /// read, and others write to it only atomically meanwhile. `scratch` has the program's scratch bytes and `walk` is a
    /// [`Walk`]; both are writable and used by nobody else while this runs.
    pub unsafe fn step(function: &Function, node: *const u8, scratch: *mut u8, walk: *mut Walk) -> u32 {
        // SAFETY: the caller gives a readable `Walk` that nobody else uses while this runs.
        let fuel = unsafe { (*walk).fuel };
        let mut memory = Addresses { node, scratch, walk: walk.cast(), stack: [0; STACK_BYTES] };
        match run(function, &mut memory, fuel) {
            Ok(verdict) => verdict,
            Err(never) => match never {},
        }
    }
}

pub use addresses::step;

/// Memory of a step that is checked at every access: the window's bytes and their offset, the scratchpad, the walk.
#[derive(Debug)]
pub struct Checked<'a> {
    /// Bytes of the program's window around the node.
    pub node: &'a [u8],
    /// Offset of the first byte of `node`, relative to `cur_ptr`.
    pub first: i64,
    /// The scratchpad, as long as the program asks for.
    pub scratch: &'a mut [u8],
    /// The step stores `next` and the operands of its verdict here; `fuel` is read at the start.
    pub walk: &'a mut Walk,
    stack: Box<[Option<u8>; STACK_BYTES]>,
}

impl<'a> Checked<'a> {
    /// Makes the memory for one step; the stack is empty.
    #[must_use]
    pub fn new(node: &'a [u8], first: i64, scratch: &'a mut [u8], walk: &'a mut Walk) -> Checked<'a> {
        Checked { node, first, scratch, walk, stack: Box::new([None; STACK_BYTES]) }
    }

    /// Runs one iteration.
    ///
    /// # Errors
    /// The verifier's proof that did not hold. No program may ever cause this.
    pub fn step(&mut self, function: &Function) -> Result<u32, String> {
        self.stack.fill(None);
        let fuel = self.walk.fuel;
        run(function, self, fuel)
    }

    fn field(&mut self, at: usize, byte: u8) -> Option<()> {
        let walk = &mut *self.walk;
        if let 40..48 = at {
            let word = if at < 44 { &mut walk.emit_offset } else { &mut walk.emit_bytes };
            let shift = 8 * (at % 4);
            *word = *word & !(0xff << shift) | u32::from(byte) << shift;
            return Some(());
        }
        let word = match at {
            0..8 => &mut walk.next,
            8..16 => &mut walk.apply,
            16..24 => &mut walk.address,
            24..32 => &mut walk.a,
            32..40 => &mut walk.b,
            _ => return None,
        };
        let shift = 8 * (at % 8);
        *word = *word & !(0xff << shift) | u64::from(byte) << shift;
        Some(())
    }
}

impl Memory for Checked<'_> {
    type Broken = String;
    const DISTRUST: bool = true;

    fn load(&mut self, space: Space, at: i64, size: Size) -> Result<u64, String> {
        let mut value = 0;
        for byte in 0..i64::from(size.bytes()) {
            let from = match space {
                Space::Window => at + byte - self.first,
                Space::Stack => at + byte + STACK_BYTES as i64,
                Space::Scratch | Space::Walk => at + byte,
            };
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let found = match space {
                Space::Window => self.node.get(from).copied(),
                Space::Scratch => self.scratch.get(from).copied(),
                Space::Stack => self.stack.get(from).copied().flatten(),
                Space::Walk => None,
            };
            let found = found.ok_or_else(|| format!("byte {} of {space:?} is read", at + byte))?;
            value |= u64::from(found) << (8 * byte);
        }
        Ok(value)
    }

    fn store(&mut self, space: Space, at: i64, size: Size, value: u64) -> Result<(), String> {
        for (byte, &new) in value.to_le_bytes()[..size.bytes() as usize].iter().enumerate() {
            let at = at + byte as i64;
            let to = usize::try_from(if space == Space::Stack { at + STACK_BYTES as i64 } else { at });
            let to = to.unwrap_or(usize::MAX);
            let stored = match space {
                Space::Window => None,
                Space::Scratch => self.scratch.get_mut(to).map(|byte| *byte = new),
                Space::Stack => self.stack.get_mut(to).map(|byte| *byte = Some(new)),
                Space::Walk => self.field(to, new),
            };
            stored.ok_or_else(|| format!("byte {at} of {space:?} is written"))?;
        }
        Ok(())
    }

    fn used(&self, reg: Reg, set: bool) -> Result<(), String> {
        if set { Ok(()) } else { Err(format!("r{} is used and was never set", reg.0)) }
    }

    fn unproved(&self, reg: Reg, value: i64, first: i64, last: i64) -> Result<(), String> {
        Err(format!("r{} is {value}, but was proved to be in {first}..={last}", reg.0))
    }
}
