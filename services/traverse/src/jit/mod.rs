// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps as machine code: one [`Function`] becomes a step and a round, by Cranelift, without calls, traps or jumps outside.
//!
//! - **Flow** [`Function`] ──`reach`──▶ every access is inside what was declared, or there is no code ──`lower`──▶ Cranelift IR
//!   of the body, once as a function of its own ([`Compiled::step`]), once inside the loop over slots ([`Compiled::round`])
//!   ──Cranelift──▶ bytes ──`prefetch`──▶ placeholders become prefetches ──`code`──▶ pages that are never writable and executable
//!   at once
//! - **Order** node memory changes under the step: a barrier precedes each load of the node, so that Cranelift does not take it
//!   from an earlier load of the same word (its setting `enable_alias_analysis` is not read by the pass that does so, 0.135); on
//!   x86-64 the barrier is no instruction, elsewhere a fence
//! - **Owner** code lives until the last clone of its [`Compiled`] is dropped
//! - **Not here** what makes a program safe (`verify`): `reach` repeats only what the machine code itself depends on
//!
//! Each variable part of an address is clamped without a branch, even if proved: a mispredicted branch reads nothing outside.

mod code;
mod lower;
mod prefetch;
mod reach;
mod round;

use crate::ir::Function;
use crate::slot::{Region, Slot};
use crate::step::{StepFn, Walk};
use std::sync::Arc;

/// Why a function was not compiled. After the verifier accepted it, only the last two can happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The function is not one that the verifier lets through.
    #[error("block {block}: {what}: verify the program first")]
    Malformed {
        /// Number of the block.
        block: u32,
        /// Rule that the block breaks.
        what: &'static str,
    },
    /// Cranelift refused, or produced what is not expected of it.
    #[error("the compiler says: {0}; run the program in the interpreter and report this")]
    Compiler(String),
    /// This machine has no lowering.
    #[error(
        "no compiler for this processor: build without the feature `jit`, or run the program in the interpreter"
    )]
    Unsupported,
}

/// Memory that a function may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// First byte of the window, from `cur_ptr`.
    pub window_first: i16,
    /// Bytes of the window.
    pub window_bytes: u16,
    /// Bytes of the scratchpad.
    pub scratch_bytes: u32,
}

/// A step and its round, ready to be called.
#[derive(Clone, Debug)]
pub struct Compiled {
    code: Arc<code::Code>,
    touches: Arc<[i16]>,
}

impl Compiled {
    /// Compiles a function that was verified for these `limits`.
    ///
    /// # Errors
    /// [`CompileError::Malformed`] for a function that the verifier would not let through, or that leaves its `limits`.
    pub fn new(function: &Function, limits: &Limits) -> Result<Compiled, CompileError> {
        let reach = reach::Reach::of(function, limits)?;
        let touches = reach.touches().into();
        Ok(Compiled { code: Arc::new(code::Code::build(function, &reach)?), touches })
    }

    /// Runs one step; returns what the program returned, or a fault.
    ///
    /// # Safety
    /// The window around `node` can be read (others may write it meanwhile), `scratch` has the declared bytes, and `walk` is a
    /// [`Walk`]; nobody else uses the latter two during the call.
    #[inline]
    pub unsafe fn step(&self, node: *const u8, scratch: *mut u8, walk: *mut Walk) -> u32 {
        // SAFETY: the code was compiled for this signature, is executable while `self.code` lives, and stays inside the three
        // areas (`Reach`), which the caller vouches for.
        unsafe { (self.code.step)(node, scratch, walk) }
    }

    /// Returns the address of the step.
    ///
    /// # Safety
    /// It is called as [`Self::step`] may be, and only while a clone of `self` lives.
    #[must_use]
    pub unsafe fn step_fn(&self) -> StepFn {
        self.code.step
    }

    /// Runs one step for each slot that is [`crate::slot::RUN`]; returns how many of them stopped, for the slow path.
    ///
    /// # Safety
    /// For each slot that is `RUN`, `host`, `scratch` and `walk` are as [`Self::step`] needs them; `region` maps only addresses
    /// whose window can be read, for as long as slots are stepped with the `host` that it gave them.
    #[inline]
    pub unsafe fn round(&self, slots: &mut [Slot], region: &Region) -> usize {
        // SAFETY: the code is executable while `self.code` lives, and touches only the areas of slots and `region` that the
        // caller vouches for; `slots` and its length describe one array of 128-byte slots.
        unsafe { (self.code.round)(slots.as_mut_ptr(), slots.len(), region) }
    }

    /// The offsets from `cur_ptr` that a round prefetches.
    #[must_use]
    pub fn touches(&self) -> &[i16] {
        &self.touches
    }

    /// Bytes of machine code.
    #[must_use]
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }
}
