// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs steps of walks at the client: interpreted at first, and as machine code once a program has run enough steps to pay for
//! compiling.
//!
//! - **Order** interpreter and machine code give the same verdicts. The interpreter checks every access; the machine code relies on
//!   the window and the scratchpad that it was compiled for, and gets exactly these
//! - **Owner** the client; at most [`PROGRAMS_MAX`] programs are kept, and then all are forgotten together
//! - **Not here** the source of the window's bytes (`local`)

use std::collections::HashMap;

use crate::interp::Checked;
use crate::program::Program;
use crate::step::{Verdict, Walk};

/// Steps after which a program is compiled: compiling takes about as long as interpreting a few thousand steps.
#[cfg(feature = "jit")]
const COMPILE_AFTER: u64 = 2000;
/// Most programs that are remembered.
const PROGRAMS_MAX: usize = 256;

/// Number of steps that a program has run here, and its machine code once it was compiled.
#[derive(Debug, Default)]
struct Stepper {
    steps: u64,
    #[cfg(feature = "jit")]
    compiled: Option<Option<crate::jit::Compiled>>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Steppers {
    programs: HashMap<[u8; 32], Stepper>,
}

impl Steppers {
    /// Returns the way to run steps of a program: machine code once it has made enough steps here, else the interpreter.
    pub fn of(&mut self, program: &Program) -> Stepping {
        if self.programs.len() >= PROGRAMS_MAX && !self.programs.contains_key(&program.hash()) {
            self.programs.clear();
        }
        #[cfg(feature = "jit")]
        let stepper = self.programs.entry(program.hash()).or_default();
        #[cfg(feature = "jit")]
        if stepper.steps >= COMPILE_AFTER && stepper.compiled.is_none() {
            let window = program.window();
            let limits = crate::jit::Limits {
                window_first: window.first,
                window_bytes: window.bytes,
                scratch_bytes: program.scratch_bytes() as u32,
            };
            stepper.compiled = Some(crate::jit::Compiled::new(program.function(), &limits).ok());
        }
        Stepping {
            #[cfg(feature = "jit")]
            compiled: stepper.compiled.clone().flatten(),
        }
    }

    /// Adds to the number of steps that a program has run.
    pub fn count(&mut self, program: &Program, steps: u64) {
        self.programs.entry(program.hash()).or_default().steps += steps;
    }
}

/// Runs steps of one program, compiled or interpreted.
#[derive(Debug)]
pub(super) struct Stepping {
    #[cfg(feature = "jit")]
    compiled: Option<crate::jit::Compiled>,
}

impl Stepping {
    /// Returns true if the steps run as machine code.
    pub fn is_compiled(&self) -> bool {
        #[cfg(feature = "jit")]
        return self.compiled.is_some();
        #[cfg(not(feature = "jit"))]
        false
    }

    /// Runs one step of `program`, for which this was made, on the bytes of its window and its scratchpad.
    pub fn step(&self, program: &Program, window: &[u8], scratch: &mut [u8], walk: &mut Walk) -> Verdict {
        let first = program.window().first;
        #[cfg(feature = "jit")]
        if let Some(compiled) = &self.compiled {
            let fits = window.len() == usize::from(program.window().bytes)
                && scratch.len() == program.scratch_bytes();
            if !fits {
                return Verdict::Guard;
            }
            let node = window.as_ptr().wrapping_offset(-isize::from(first));
            // SAFETY: the code was compiled for a window of `first` and `bytes`, which is exactly `window` around `node`,
            // and for as many scratch bytes as `scratch` has. The step writes only to `scratch` and `walk`, which are
            // borrowed exclusively.
            let stepped = unsafe { compiled.step(node, scratch.as_mut_ptr(), walk) };
            return Verdict::from_return(stepped);
        }
        Checked::new(window, i64::from(first), scratch, walk)
            .step(program.function())
            .map_or(Verdict::Guard, Verdict::from_return)
    }
}
