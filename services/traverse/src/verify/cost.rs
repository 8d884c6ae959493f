// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Estimated cost of a step on a core, before it has run: PULSE's t_c (§4.1), along the heaviest path and not over all code.
//!
//! - **Flow** [`Function`] ──weights──▶ [`Cost`]
//! - **Layout** weights are picoseconds at 3 GHz, for code whose data is in the cache; for better values scale them by a
//!   measurement
//! - **Order** the heaviest path takes no backward jumps; [`Cost::most_ps`] includes the most that they can add
//! - **Not here** rejection: an expensive program is slow, not invalid

use super::FUEL;
use crate::ir::{Alu, BlockId, End, Function, Inst};

/// An estimate, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// t_c: the cost of the heaviest path without backward jumps.
    pub straight_ps: u64,
    /// `straight_ps` plus all the fuel spent on the heaviest loop; equal to `straight_ps` if there is no loop.
    pub most_ps: u64,
}

impl Cost {
    /// Returns t_c in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> f64 {
        self.straight_ps as f64 / 1000.0
    }

    /// Returns true if the program may jump backward.
    #[must_use]
    pub fn loops(&self) -> bool {
        self.most_ps != self.straight_ps
    }
}

/// Cost of calling the step and returning.
const STEP: u64 = 2000;
const SIMPLE: u64 = 100;
const GUARD: u64 = 200;
const JUMP: u64 = 300;

fn weight(inst: &Inst) -> u64 {
    let guard = |guarded: bool| if guarded { GUARD } else { 0 };
    match inst {
        Inst::Alu { op: Alu::Mul, .. } => 1000,
        Inst::Alu { op: Alu::Div | Alu::SDiv | Alu::Rem | Alu::SRem, .. } => 6000,
        Inst::Move { .. } | Inst::SignExtend { .. } | Inst::Alu { .. } | Inst::ByteSwap { .. } => SIMPLE,
        Inst::Load { address, .. } => 700 + guard(address.index.is_some_and(|index| index.guard)),
        Inst::Store { address, .. } => 300 + guard(address.index.is_some_and(|index| index.guard)),
    }
}

/// Estimates the cost of a verified function.
#[must_use]
pub fn cost(function: &Function) -> Cost {
    let mut heaviest = vec![0_u64; function.blocks.len()];
    let mut loops = Vec::new();
    for (number, block) in function.blocks.iter().enumerate().rev() {
        let from = BlockId(number as u32);
        let mut onward = |next: BlockId| {
            if Function::is_back_edge(from, next) {
                loops.push(next);
                return 0;
            }
            heaviest[next.0 as usize]
        };
        let rest = match block.end {
            End::Return => 0,
            End::Jump(next) => onward(next),
            End::Branch { then, or, .. } => JUMP + onward(then).max(onward(or)),
        };
        heaviest[number] = rest + block.insts.iter().map(weight).sum::<u64>();
    }
    let straight_ps = STEP + heaviest.first().copied().unwrap_or(0);
    let round = loops.iter().map(|target| JUMP + heaviest[target.0 as usize]).max().unwrap_or(0);
    Cost { straight_ps, most_ps: straight_ps + round * FUEL }
}
