// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps as machine code: one [`Function`] becomes a step and a round, by Cranelift, without calls, traps or jumps outside.
//!
//! - **Flow** [`Function`] ──`reach`──▶ every access is proved to be in the declared areas, or there is no code ──`lower`──▶
//!   Cranelift IR of the body, once as a function of its own ([`Compiled::step`]), once inside the loop over slots
//!   ([`Compiled::round`]) ──Cranelift──▶ bytes ──`prefetch`──▶ placeholders become prefetches ──`code`──▶ pages that are never
//!   writable and executable at the same time
//! - **Order** node memory changes during the step, so a barrier precedes each load of the node: without it Cranelift would reuse
//!   an earlier load of the same word (its pass does not read the setting `enable_alias_analysis`, 0.135). On x86-64 the barrier
//!   emits no instruction, elsewhere a fence
//! - **Owner** code lives until the last clone of its [`Compiled`] is dropped
//! - **Not here** the safety of programs (`verify`): `reach` repeats only the checks on which the machine code itself depends
//!
//! Each variable part of an address is clamped without a branch, even if it is proved: so a mispredicted branch reads nothing
//! outside its area.

mod code;
mod lower;
mod prefetch;
mod reach;
mod round;

use crate::ir::Function;
use crate::slot::{Region, Slot};
use crate::step::{StepFn, Walk};
use std::sync::Arc;

/// Reason that a function was not compiled. For a function that the verifier accepted, only the last two are possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The verifier would not accept the function.
    #[error("block {block}: {what}: verify the program first")]
    Malformed {
        /// Number of the block.
        block: u32,
        /// Rule that the block breaks.
        what: &'static str,
    },
    /// Cranelift refused the function, or produced unexpected code.
    #[error("the compiler says: {0}; run the program in the interpreter and report this")]
    Compiler(String),
    /// There is no compiler for this processor.
    #[error(
        "no compiler for this processor: build without the feature `jit`, or run the program in the interpreter"
    )]
    Unsupported,
}

/// Memory that a function may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Offset of the window's first byte from `cur_ptr`.
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
    prefetch_offsets: Arc<[i16]>,
}

impl Compiled {
    /// Compiles a function that was verified for these `limits`.
    ///
    /// # Errors
    /// [`CompileError::Malformed`] for a function that the verifier would not accept, or that accesses memory outside its
    /// `limits`.
    pub fn new(function: &Function, limits: &Limits) -> Result<Compiled, CompileError> {
        let reach = reach::Reach::of(function, limits)?;
        let prefetch_offsets = reach.prefetch_offsets().into();
        Ok(Compiled { code: Arc::new(code::Code::build(function, &reach)?), prefetch_offsets })
    }

    /// Runs one step; returns what the program returned, or a fault.
    ///
    /// # Safety
    /// The window around `node` can be read (others may write it meanwhile), `scratch` has the declared bytes, and `walk` is a
    /// [`Walk`]; nobody else uses the latter two during the call.
    #[inline]
    pub unsafe fn step(&self, node: *const u8, scratch: *mut u8, walk: *mut Walk) -> u32 {
        // SAFETY: the code was compiled for this signature, is executable while `self.code` lives, and accesses only the
        // three areas (`Reach`), which the caller promises.
        unsafe { (self.code.step)(node, scratch, walk) }
    }

    /// Returns the address of the step.
    ///
    /// # Safety
    /// A call must meet the conditions of [`Self::step`], and may only happen while a clone of `self` lives.
    #[must_use]
    pub unsafe fn step_fn(&self) -> StepFn {
        self.code.step
    }

    /// Runs one step for each slot in state [`crate::slot::RUN`]; returns how many of them stopped, for the slow path.
    ///
    /// # Safety
    /// For each slot in state `RUN`, `host`, `scratch` and `walk` meet the conditions of [`Self::step`]. `region` maps only
    /// addresses whose window can be read, for as long as slots are stepped with a `host` translated by it.
    #[inline]
    pub unsafe fn round(&self, slots: &mut [Slot], region: &Region) -> usize {
        // SAFETY: the code is executable while `self.code` lives, and accesses only the areas of slots and `region` that the
        // caller promises; `slots` and its length describe one array of 128-byte slots.
        unsafe { (self.code.round)(slots.as_mut_ptr(), slots.len(), region) }
    }

    /// Returns the offsets from `cur_ptr` that a round prefetches.
    #[must_use]
    pub fn prefetch_offsets(&self) -> &[i16] {
        &self.prefetch_offsets
    }

    /// Returns the number of bytes of machine code.
    #[must_use]
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }
}
