// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One iteration of a walk, as a function call: three addresses in, a verdict out.
//!
//! - **Layout** in C `long step(const void *node, void *scratch, struct walk *walk)`: r1 is the node at `cur_ptr`, read-only; r2
//!   the scratchpad; r3 a [`Walk`], write-only; r10 a stack of 512 bytes
//! - **Owner** the caller. It has checked that the program's window around `node` may be read and that the scratchpad is as long
//!   as the program asks for; while the step runs nobody else refers to scratchpad and [`Walk`]
//! - **Not here** translating a global address to that of a node (`memory`); a step never follows `next` itself
//!
//! This is PULSE's iterator (§3: `next()` and `end()` in one call) with a return code in place of a trap.

/// Output of a step besides its verdict; 64 bytes. The program stores to it and cannot load from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Walk {
    /// Global address of the node to continue at ([`Verdict::Next`], [`Verdict::Emit`]).
    pub next: u64,
    /// Number of the change to make at `address` ([`Verdict::Apply`]), from `spec`.
    pub apply: u64,
    /// Global address that an apply changes: eight bytes, aligned.
    pub address: u64,
    /// First operand: the expected value, or the addend.
    pub a: u64,
    /// Second operand: the new value.
    pub b: u64,
    /// Offset in the scratchpad of the bytes that [`Verdict::Emit`] appends to the result.
    pub emit_offset: u32,
    /// Number of these bytes.
    pub emit_bytes: u32,
    /// Backward jumps that one step may make. The runtime sets it; programs that store here are refused.
    pub fuel: u64,
    /// Padding; holds 0.
    pub reserved: u64,
}

const _: () = {
    assert!(size_of::<Walk>() == 64 && align_of::<Walk>() == 8);
    assert!(core::mem::offset_of!(Walk, emit_offset) == 40 && core::mem::offset_of!(Walk, fuel) == 48);
};

/// Return value of a step. Values from 0x80 on are faults: the walk ends, with the fault as its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// Continue at `next`.
    Next = 0,
    /// The scratchpad is the answer.
    Done = 1,
    /// Append a piece of the scratchpad to the result, then continue at `next`.
    Emit = 2,
    /// Change eight bytes at the node that owns them, exactly once; the outcome is the answer.
    Apply = 3,
    /// A writer has interfered: start again from the first node.
    Retry = 4,
    /// The walk is done and found nothing.
    Missing = 5,
    /// Fault: more backward jumps than the fuel allowed.
    OutOfFuel = 0x80,
    /// Fault: the program returned a number that is no verdict.
    BadVerdict = 0x81,
    /// Fault: the piece to emit does not lie in the scratchpad.
    BadEmit = 0x82,
    /// Fault: an offset that could not be proved was outside the window or the scratchpad.
    Guard = 0x83,
}

impl Verdict {
    /// Decodes the value that a program returned; an unknown number is a fault.
    #[must_use]
    pub fn from_return(value: u32) -> Verdict {
        match value {
            0 => Verdict::Next,
            1 => Verdict::Done,
            2 => Verdict::Emit,
            3 => Verdict::Apply,
            4 => Verdict::Retry,
            5 => Verdict::Missing,
            0x80 => Verdict::OutOfFuel,
            0x82 => Verdict::BadEmit,
            0x83 => Verdict::Guard,
            _ => Verdict::BadVerdict,
        }
    }
}

/// A compiled step. It relies on the conditions in the module's *Owner*.
pub type StepFn = unsafe extern "C" fn(node: *const u8, scratch: *mut u8, walk: *mut Walk) -> u32;
