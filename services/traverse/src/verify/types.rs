// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of registers and stack slots before each instruction: numbers, or pointers with their space.
//!
//! - **Flow** [`Graph`] ──until a fixpoint is reached──▶ [`Types`] at the start of every block ──▶ `lower`, which repeats
//!   [`Types::step`] inside each block
//! - **Layout** a stack slot is eight bytes, aligned from r10 down. A pointer is spilled to a whole slot, at a constant distance
//!   from r10, and keeps its kind there; storing a number over any part of it makes the slot a number
//! - **Order** at the start r1 is the node, r2 the scratchpad, r3 the walk, r10 the stack; all others are unset. A register that
//!   is set on one path only is unset; one that is a number on one path and a pointer on another is neither
//! - **Not here** offsets: `ranges`. These rules give pointers a meaning; the proof that accesses stay inside their memory does
//!   not depend on them

use super::Rejection;
use super::cfg::Graph;
use crate::bpf::{Code, Instruction, Source};
use crate::ir::{Alu, Cmp, REGS, Reg, Size, Space, Width};
use memlift_spec::formats::walk::STACK_BYTES;

/// Kind of value in a register or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not set yet, on at least one path.
    Unset,
    /// A number, not a pointer.
    Scalar,
    /// A number on one path and a pointer on another, or pointers to different memory.
    Mixed,
    /// An address in a space, with its distance from the space's start if that is a constant.
    Pointer(Space, Option<i32>),
}

impl Kind {
    fn join(self, other: Kind) -> Kind {
        match (self, other) {
            _ if self == other => self,
            (Kind::Unset, _) | (_, Kind::Unset) => Kind::Unset,
            (Kind::Pointer(a, _), Kind::Pointer(b, _)) if a == b => Kind::Pointer(a, None),
            _ => Kind::Mixed,
        }
    }
}

/// Returns the name of a space for messages.
#[must_use]
pub fn space_name(space: Space) -> &'static str {
    match space {
        Space::Window => "node",
        Space::Scratch => "scratchpad",
        Space::Stack => "stack",
        Space::Walk => "walk",
    }
}

const SLOTS: usize = STACK_BYTES / 8;

/// The kinds of all registers and slots at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Types {
    registers: [Kind; REGS],
    slots: [Kind; SLOTS],
}

impl Types {
    fn entry() -> Types {
        let mut registers = [Kind::Unset; REGS];
        for (register, space) in
            [(1, Space::Window), (2, Space::Scratch), (3, Space::Walk), (10, Space::Stack)]
        {
            registers[register] = Kind::Pointer(space, Some(0));
        }
        Types { registers, slots: [Kind::Scalar; SLOTS] }
    }

    fn join(&mut self, other: &Types) -> bool {
        let mut changed = false;
        let all = self.registers.iter_mut().chain(&mut self.slots);
        for (mine, theirs) in all.zip(other.registers.iter().chain(&other.slots)) {
            let joined = mine.join(*theirs);
            changed |= joined != *mine;
            *mine = joined;
        }
        changed
    }

    fn read(&self, reg: Reg) -> Result<Kind, String> {
        match self.registers[usize::from(reg.0)] {
            Kind::Unset => Err(format!("r{} is read before it is set on every path to here", reg.0)),
            Kind::Mixed => {
                Err(format!("r{} is a pointer on one path to here and something else on another", reg.0))
            }
            kind => Ok(kind),
        }
    }

    fn source(&self, source: Source) -> Result<Kind, String> {
        match source {
            Source::Reg(reg) => self.read(reg),
            Source::Imm(_) => Ok(Kind::Scalar),
        }
    }

    /// Returns the space of a register that is used as an address.
    ///
    /// # Errors
    /// The register holds a number.
    pub fn base(&self, reg: Reg) -> Result<(Space, Option<i32>), String> {
        match self.read(reg)? {
            Kind::Pointer(space, at) => Ok((space, at)),
            _ => Err(format!(
                "r{} is a number, not a pointer; only r1 (node), r2 (scratchpad), r3 (walk) and r10 (stack) lead to memory: \
                 to read another node return NEXT with its address",
                reg.0
            )),
        }
    }

    fn set(&mut self, reg: Reg, kind: Kind) {
        self.registers[usize::from(reg.0)] = kind;
    }

    /// Returns the slots that an access at a constant distance covers, and true if it is exactly one slot.
    fn slots(at: i32, size: Size) -> (std::ops::Range<usize>, bool) {
        let first = i64::from(at) + STACK_BYTES as i64;
        let end = first + i64::from(size.bytes());
        let clip = |byte: i64| byte.clamp(0, STACK_BYTES as i64) as usize;
        (clip(first) / 8..clip(end).div_ceil(8), first % 8 == 0 && size == Size::B8 && first >= 0)
    }

    fn arithmetic(&self, op: Alu, width: Width, target: Reg, source: Source) -> Result<Kind, String> {
        let (a, b) = (self.read(target)?, self.source(source)?);
        let constant = if let Source::Imm(value) = source { Some(value) } else { None };
        match (op, a, b) {
            (_, Kind::Scalar, Kind::Scalar) => Ok(Kind::Scalar),
            _ if width == Width::W32 => Err("half of a pointer is computed with; use the 64-bit instruction".into()),
            (Alu::Add, Kind::Pointer(space, at), Kind::Scalar) => {
                Ok(Kind::Pointer(space, at.zip(constant).and_then(|(at, by)| at.checked_add(by))))
            }
            (Alu::Sub, Kind::Pointer(space, at), Kind::Scalar) => {
                Ok(Kind::Pointer(space, at.zip(constant).and_then(|(at, by)| at.checked_sub(by))))
            }
            (Alu::Add, Kind::Scalar, Kind::Pointer(space, _)) => Ok(Kind::Pointer(space, None)),
            (Alu::Sub, Kind::Pointer(a, _), Kind::Pointer(b, _)) if a == b => Ok(Kind::Scalar),
            _ => Err("of a pointer only this can be computed: pointer + number, pointer - number, and the distance of two \
                      pointers to the same memory"
                .into()),
        }
    }

    fn load(&self, base: Reg, offset: i16, size: Size, signed: bool) -> Result<Kind, String> {
        let (space, at) = self.base(base)?;
        match (space, at) {
            (Space::Walk, _) => Err("nothing can be read from the walk (r3); keep state in the scratchpad".into()),
            (Space::Stack, Some(at)) => {
                let (slots, whole) = Types::slots(at.saturating_add(offset.into()), size);
                match self.slots.get(slots.clone()).unwrap_or(&[]) {
                    [kind] if whole && !signed => Ok(*kind),
                    kinds if kinds.iter().all(|kind| *kind == Kind::Scalar) => Ok(Kind::Scalar),
                    _ => Err("a part of a pointer kept on the stack is read as a number".into()),
                }
            }
            (Space::Stack, None) if self.slots.iter().any(|kind| *kind != Kind::Scalar) => {
                Err("the stack is read at a variable offset while it holds a pointer; keep the array in the scratchpad".into())
            }
            _ => Ok(Kind::Scalar),
        }
    }

    fn store(&mut self, base: Reg, offset: i16, size: Size, source: Source) -> Result<(), String> {
        let (space, at) = self.base(base)?;
        let kind = self.source(source)?;
        let pointer = matches!(kind, Kind::Pointer(..));
        match (space, at) {
            (Space::Window, _) => Err("the node is read-only; to change it return APPLY".into()),
            (Space::Scratch | Space::Walk, _) if pointer => {
                Err(format!("a pointer would leave the step through the {}", space_name(space)))
            }
            (Space::Scratch | Space::Walk, _) => Ok(()),
            (Space::Stack, Some(at)) => {
                let (slots, whole) = Types::slots(at.saturating_add(offset.into()), size);
                if pointer && !whole {
                    return Err("a pointer is kept in a whole, aligned slot of the stack only".into());
                }
                self.slots[slots].fill(kind);
                Ok(())
            }
            (Space::Stack, None) if pointer => {
                Err("a pointer is kept on the stack at a constant offset only".into())
            }
            (Space::Stack, None) => {
                for slot in self.slots.iter_mut().filter(|slot| **slot != Kind::Scalar) {
                    *slot = Kind::Mixed;
                }
                Ok(())
            }
        }
    }

    /// Returns true if a comparison is between two pointers. These compare by their distance, which may be
    /// negative.
    ///
    /// # Errors
    /// A pointer is compared with a number, or with a pointer to other memory.
    pub fn compares_pointers(
        &self,
        cmp: Cmp,
        width: Width,
        left: Reg,
        right: Source,
    ) -> Result<bool, String> {
        match (self.read(left)?, self.source(right)?) {
            (Kind::Scalar, Kind::Scalar) => Ok(false),
            (Kind::Pointer(a, _), Kind::Pointer(b, _))
                if a == b && width == Width::W64 && cmp != Cmp::Set =>
            {
                Ok(true)
            }
            _ => Err("a pointer is compared with something that is no pointer to the same memory".into()),
        }
    }

    /// Updates the kinds as an instruction changes them.
    ///
    /// # Errors
    /// The rule that the instruction breaks.
    pub fn step(&mut self, instruction: &Instruction) -> Result<(), String> {
        match *instruction {
            Instruction::Move { width, target, source } => {
                let kind = self.source(source)?;
                if width == Width::W32 && kind != Kind::Scalar {
                    return Err("half of a pointer is moved; use the 64-bit instruction".into());
                }
                self.set(target, kind);
            }
            Instruction::MoveSigned { target, source, .. } => {
                self.number(source)?;
                self.set(target, Kind::Scalar);
            }
            Instruction::Alu { op, width, target, source } => {
                let kind = self.arithmetic(op, width, target, source)?;
                self.set(target, kind);
            }
            Instruction::Negate { target, .. } | Instruction::Bytes { target, .. } => self.number(target)?,
            Instruction::LoadImmediate { target, .. } => self.set(target, Kind::Scalar),
            Instruction::Load { size, signed, target, base, offset } => {
                let kind = self.load(base, offset, size, signed)?;
                self.set(target, kind);
            }
            Instruction::Store { size, base, offset, source } => self.store(base, offset, size, source)?,
            Instruction::Jump { .. } => {}
            Instruction::Branch { cmp, width, left, right, .. } => {
                self.compares_pointers(cmp, width, left, right)?;
            }
            Instruction::Exit => match self.read(Reg(0))? {
                Kind::Scalar => {}
                _ => return Err("a pointer is returned; r0 is the verdict".into()),
            },
        }
        Ok(())
    }

    fn number(&self, reg: Reg) -> Result<(), String> {
        match self.read(reg)? {
            Kind::Scalar => Ok(()),
            _ => Err(format!("r{} is a pointer; this takes numbers", reg.0)),
        }
    }
}

/// Infers the kinds at the start of every block.
///
/// # Errors
/// The first instruction found that breaks a rule.
pub fn infer(code: &Code, graph: &Graph) -> Result<Vec<Types>, Rejection> {
    let mut entries: Vec<Option<Types>> = vec![None; graph.spans.len()];
    let mut waiting = std::collections::BTreeSet::from([0_usize]);
    entries[0] = Some(Types::entry());
    while let Some(block) = waiting.pop_first() {
        let Some(mut types) = entries[block].clone() else { continue };
        let span = graph.spans[block];
        for index in span.first..span.end {
            types
                .step(&code.instructions[index])
                .map_err(|reason| Rejection::new(code.places[index], reason))?;
        }
        let (then, or) = graph.successors(code, block);
        for next in then.into_iter().chain(or) {
            let entry = &mut entries[next.0 as usize];
            let changed = match entry {
                None => {
                    *entry = Some(types.clone());
                    true
                }
                Some(entry) => entry.join(&types),
            };
            if changed {
                waiting.insert(next.0 as usize);
            }
        }
    }
    Ok(entries.into_iter().map(|entry| entry.unwrap_or_else(Types::entry)).collect())
}
