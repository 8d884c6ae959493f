// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verifier proves before a step runs that it accesses only permitted memory and ends, whatever the memory contains.
//!
//! - **Flow** [`Function`] ──[`state`] over all paths, until a fixpoint is reached──▶ every access: constant, proved or guarded
//!   ──[`window`]──▶ the bytes that are read of a node ──[`cost`]──▶ [`Verified`]
//! - **Order** a block that is the target of a backward jump is widened: its ranges grow to the constants with which the program
//!   compares, then to all numbers, which bounds the number of passes. An access to window, scratchpad or stack that cannot be
//!   proved is guarded. An unproved access to the walk is refused, and so is a read of a stack byte that some path leaves unset.
//!   Unreachable code is replaced by a fault
//! - **Owner** the proofs are about the IR that is run, so safety does not depend on the lowering
//! - **Not here** the kinds of pointers (`types`, used by `lower`); limits on the number of walks (`node`)
//!
//! Termination: every cycle takes a backward jump, and each costs a unit of [`FUEL`].

pub mod cfg;
pub mod cost;
pub mod ranges;
pub mod state;
pub mod types;
pub mod window;

use crate::ir::{Address, Block, BlockId, End, Function, Index, Inst, Operand, Reg, Size, Space, Width};
use crate::step::Verdict;
use cost::Cost;
use state::State;
use types::space_name;
use window::{Access, Window};

/// Most backward jumps of one step: the runtime sets [`crate::step::Walk::fuel`] to this before each step.
pub const FUEL: u64 = 1024;

/// Reason that a program is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Place of the instruction, counted in units of eight bytes.
    pub at: u32,
    /// Rule that the instruction breaks, for people to read.
    pub reason: String,
}

impl Rejection {
    /// Makes a rejection of the instruction at `at`.
    #[must_use]
    pub fn new(at: u32, reason: impl Into<String>) -> Rejection {
        Rejection { at, reason: reason.into() }
    }
}

/// Result of verifying a program.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The function, with all addresses bounded.
    pub function: Function,
    /// Bytes of a node that a step reads.
    pub window: Window,
    /// 64-byte lines that a step can read, as [`window::lines`] numbers them.
    pub lines: u8,
    /// Estimated cost of a step.
    pub cost: Cost,
    /// True if the program stores to the fields of an apply.
    pub uses_apply: bool,
    /// True if the program stores to the fields of an emit.
    pub uses_emit: bool,
}

/// Visits of a block after which growing ranges are widened to the program's constants; the next constant is the number
/// after which they are widened to all numbers.
const WIDEN: u32 = 3;
const WIDEN_FULLY: u32 = 40;
/// Most instructions visited before a fixpoint is reached; each visit of a block counts again.
const WORK: usize = 400_000;
/// Most constants to which ranges are widened.
const THRESHOLDS: usize = 64;

/// Returns the constants at which a loop may end, ascending: those of comparisons, and other small ones, because the program
/// may compare with them in a register.
fn thresholds(function: &Function) -> Vec<i64> {
    let mut found = vec![0];
    for block in &function.blocks {
        if let End::Branch { b: Operand::Imm(value), width, .. } = block.end {
            let value = if width == Width::W32 { i64::from(value as u32) } else { value as i64 };
            found.extend([value.saturating_sub(1), value, value.saturating_add(1)]);
        }
        for inst in &block.insts {
            let (Inst::Move { source: operand, .. } | Inst::Alu { b: operand, .. }) = inst else { continue };
            if let Operand::Imm(value) = *operand
                && value <= 4096
            {
                found.extend([value as i64 - 1, value as i64]);
            }
        }
    }
    // The smallest constants are kept, because the memory of a step is small.
    found.sort_unstable_by_key(|value| value.unsigned_abs());
    found.dedup();
    found.truncate(THRESHOLDS);
    found.sort_unstable();
    found
}

/// Finds the state at the start of every block; `None` for an unreachable block.
fn fixpoint(function: &Function, scratch_bytes: u32) -> Result<Vec<Option<State>>, Rejection> {
    let count = function.blocks.len();
    let thresholds = thresholds(function);
    let mut entries: Vec<Option<State>> = vec![None; count];
    let mut visits = vec![0_u32; count];
    let mut waiting = std::collections::BTreeSet::from([0_usize]);
    let mut work = 0;
    entries[0] = Some(State::entry());
    while let Some(number) = waiting.pop_first() {
        let block = &function.blocks[number];
        work += block.origin.len();
        if work > WORK {
            let reason = "too much to prove: the loops around this instruction are too many, or too deep in each other";
            return Err(Rejection::new(block.origin[0], reason));
        }
        let Some(entry) = entries[number].clone() else { continue };
        let run = |state: State, inst| state.run(inst, scratch_bytes);
        let Some(state) = block.insts.iter().try_fold(entry, run) else { continue };
        for (next, state) in state.branch(&block.end) {
            let target = next.0 as usize;
            let back = Function::is_back_edge(BlockId(number as u32), next);
            let changed = match &mut entries[target] {
                None => {
                    entries[target] = Some(state);
                    true
                }
                Some(entry) => {
                    visits[target] += u32::from(back);
                    let widening = match visits[target] {
                        _ if !back => None,
                        0..WIDEN => None,
                        WIDEN..WIDEN_FULLY => Some(&thresholds[..]),
                        _ => Some(&[][..]),
                    };
                    entry.join(&state, widening)
                }
            };
            if changed {
                waiting.insert(target);
            }
        }
    }
    Ok(entries)
}

/// Returns address, size, and true for a store, if an instruction touches memory.
fn access(inst: &mut Inst) -> Option<(&mut Address, Size, bool)> {
    match inst {
        Inst::Load { address, size, .. } => Some((address, *size, false)),
        Inst::Store { address, size, .. } => Some((address, *size, true)),
        _ => None,
    }
}

/// Returns a text for messages that describes a range of bytes.
fn reach(first: i64, last: i64, size: Size) -> String {
    let end = last.saturating_add(i64::from(size.bytes()));
    match (first, last) {
        (i64::MIN, _) | (_, i64::MAX) => "bytes at an offset that is not bounded".into(),
        _ if first == last => format!("bytes {first}..{end}"),
        _ => format!("{} bytes somewhere in {first}..{end}", size.bytes()),
    }
}

/// Results of the verifier, besides the function.
struct Findings {
    scratch_bytes: u32,
    window: Vec<Access>,
    /// The first instruction that names a change; `emit` is the first that names bytes to emit.
    apply: Option<u32>,
    emit: Option<u32>,
}

impl Findings {
    /// Bounds one access as far as that is possible before the window is known.
    fn bound(
        &mut self,
        address: &mut Address,
        size: Size,
        store: bool,
        state: &State,
        at: u32,
    ) -> Result<(), Rejection> {
        let (space, offset) = (address.space, i64::from(address.offset));
        let (does, name) = (if store { "writes" } else { "reads" }, space_name(space));
        let range = state.index(address);
        let (least, most) = (range.signed.0.saturating_add(offset), range.signed.1.saturating_add(offset));
        let touched = reach(least, most, size);
        if (space == Space::Window && store) || (space == Space::Walk && !store) {
            return Err(Rejection::new(at, format!("{does} {touched} of the {name}, which no step may")));
        }
        let allowed = state::index_bounds(address, size, self.scratch_bytes);
        let inside = allowed.and_then(|allowed| range.intersect(allowed));
        let (Some(allowed), Some(inside)) = (allowed, inside) else {
            return Err(Rejection::new(at, format!("{does} {touched} of the {name}; {}", self.limit(space))));
        };
        let proved = allowed.signed.0 <= range.signed.0 && range.signed.1 <= allowed.signed.1;
        let (first, last) = (inside.signed.0 + offset, inside.signed.1 + offset);
        let end = last + i64::from(size.bytes());
        match space {
            Space::Walk if !proved => {
                let reason = format!(
                    "{does} {touched} of the walk, and must be proved to stay inside: {}",
                    self.limit(space)
                );
                return Err(Rejection::new(at, reason));
            }
            Space::Walk => {
                if first < 16 && end > 8 {
                    self.apply.get_or_insert(at);
                }
                if end > 40 {
                    self.emit.get_or_insert(at);
                }
            }
            Space::Stack if !store && !state.is_set(first, end) => {
                let reason =
                    format!("{does} {touched} of the stack, which not every path to here has written before");
                return Err(Rejection::new(at, reason));
            }
            Space::Window => self.window.push(Access { at, first, end, proved }),
            Space::Stack | Space::Scratch => {}
        }
        let Some(index) = &mut address.index else { return Ok(()) };
        if let Some(value) = range.value().filter(|_| proved) {
            address.offset += value as i64 as i32;
            address.index = None;
        } else if proved {
            (index.first, index.last, index.guard) = (range.signed.0, range.signed.1, false);
        } else {
            (index.first, index.last, index.guard) = (allowed.signed.0, allowed.signed.1, true);
        }
        Ok(())
    }

    fn limit(&self, space: Space) -> String {
        match space {
            Space::Window => "a window is at most 256 B around the node's address".into(),
            Space::Scratch => format!("it has {} B, which is the program's to choose", self.scratch_bytes),
            Space::Stack => "it lies at -512..0 from r10".into(),
            Space::Walk => format!("a step may write bytes 0..{} of it", state::WALK_BYTES),
        }
    }
}

/// Makes the block that replaces an unreachable one: it ends the step with a fault.
fn fault(block: &Block) -> Block {
    let source = Operand::Imm(Verdict::Guard as u64);
    let origin = *block.origin.last().unwrap_or(&0);
    Block {
        insts: vec![Inst::Move { width: Width::W64, target: Reg(0), source }],
        origin: vec![origin; 2],
        end: End::Return,
    }
}

/// Narrows the guards of window accesses, now that the window is known; returns the lines that are read.
fn guard(function: &mut Function, window: Window, reached: &[Access]) -> Result<u8, Rejection> {
    let (first, end) = (i64::from(window.first), i64::from(window.first) + i64::from(window.bytes));
    let (mut lines, mut accesses) = (0, reached.iter());
    for inst in function.blocks.iter_mut().flat_map(|block| &mut block.insts) {
        let Some((address, size, _)) = access(inst) else { continue };
        if address.space != Space::Window {
            continue;
        }
        let Some(found) = accesses.next() else { continue };
        let (from, to) = (found.first.max(first), found.end.min(end));
        if to - from < i64::from(size.bytes()) {
            let reason = format!(
                "reads {} of the node, outside of the window {first}..{end} that the other instructions make",
                reach(found.first, found.end - i64::from(size.bytes()), size)
            );
            return Err(Rejection::new(found.at, reason));
        }
        lines |= window::lines(from, to);
        if let Some(index) = &mut address.index
            && index.guard
        {
            let offset = i64::from(address.offset);
            *index = Index { first: first - offset, last: end - offset - i64::from(size.bytes()), ..*index };
        }
    }
    Ok(lines)
}

/// Verifies a function that has a scratchpad of `scratch_bytes` bytes.
///
/// # Errors
/// The first instruction found that is not permitted.
pub fn verify(mut function: Function, scratch_bytes: u32) -> Result<Verified, Rejection> {
    let entries = fixpoint(&function, scratch_bytes)?;
    let mut findings = Findings { scratch_bytes, window: Vec::new(), apply: None, emit: None };
    for (block, entry) in function.blocks.iter_mut().zip(entries) {
        let Some(mut state) = entry else {
            *block = fault(block);
            continue;
        };
        for (inst, &at) in block.insts.iter_mut().zip(&block.origin) {
            let before = *inst;
            if let Some((address, size, store)) = access(inst) {
                findings.bound(address, size, store, &state, at)?;
            }
            // An access that was not refused has values of its index for which it is inside; `None` means that it has none.
            let Some(after) = state.run(&before, scratch_bytes) else {
                return Err(Rejection::new(at, "always leaves its memory"));
            };
            state = after;
        }
    }
    let window = window::window_of(&findings.window)?;
    let lines = guard(&mut function, window, &findings.window)?;
    let cost = cost::cost(&function);
    let Findings { apply, emit, .. } = findings;
    if let (Some(apply), Some(emit)) = (apply, emit) {
        // The answer to a change is remembered and may be sent again, but pieces of a result are sent only once.
        let reason =
            "emits in a program that changes memory too: return what is found in the scratchpad instead";
        return Err(Rejection::new(apply.max(emit), reason));
    }
    Ok(Verified { function, window, lines, cost, uses_apply: apply.is_some(), uses_emit: emit.is_some() })
}
