// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control flow of a program: its blocks, and the possible successors of each.
//!
//! - **Flow** [`Code`], its jumps checked ──▶ [`Graph`] ──▶ `types` and `lower`
//! - **Order** blocks are numbered in the order of the bytecode; blocks that cannot be reached from the first are left
//!   out
//! - **Not here** the effect of a block

use super::Rejection;
use crate::bpf::{Code, Instruction};
use crate::ir::BlockId;

/// Instructions `first..end`, entered at `first` only.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Index of the first instruction.
    pub first: usize,
    /// Index one past the last instruction.
    pub end: usize,
}

/// All blocks that can be reached.
#[derive(Debug)]
pub struct Graph {
    /// The blocks, in the order of the bytecode.
    pub spans: Vec<Span>,
    /// For each instruction that starts a block, that block.
    starts: Vec<Option<BlockId>>,
}

impl Graph {
    /// Finds the blocks.
    ///
    /// # Errors
    /// Execution can run past the last instruction.
    pub fn new(code: &Code) -> Result<Graph, Rejection> {
        let count = code.instructions.len();
        let mut leads = vec![false; count];
        leads[0] = true;
        for (index, instruction) in code.instructions.iter().enumerate() {
            if let Some(target) = Graph::target(code, index) {
                leads[target] = true;
            }
            let ends = instruction.target(0).is_some() || *instruction == Instruction::Exit;
            if ends && index + 1 < count {
                leads[index + 1] = true;
            }
        }
        let firsts: Vec<usize> = (0..count).filter(|&index| leads[index]).collect();
        let end = |first: usize| (first + 1..count).find(|&index| leads[index]).unwrap_or(count);
        let mut ends = vec![0; count];
        let mut reached = vec![false; count];
        let mut open = vec![0];
        for &first in &firsts {
            ends[first] = end(first);
        }
        while let Some(first) = open.pop() {
            if std::mem::replace(&mut reached[first], true) {
                continue;
            }
            let (then, or) = Graph::leaves(code, ends[first]);
            if or == Some(count) {
                let at = code.places[count - 1];
                return Err(Rejection::new(
                    at,
                    "the program goes on behind its last instruction; end it with exit",
                ));
            }
            open.extend(then.into_iter().chain(or));
        }
        let spans: Vec<Span> = firsts
            .into_iter()
            .filter(|&first| reached[first])
            .map(|first| Span { first, end: ends[first] })
            .collect();
        let mut starts = vec![None; count];
        for (number, span) in spans.iter().enumerate() {
            starts[span.first] = Some(BlockId(number as u32));
        }
        Ok(Graph { spans, starts })
    }

    fn target(code: &Code, index: usize) -> Option<usize> {
        let target = code.instructions[index].target(code.places[index])?;
        code.at_place(target)
    }

    /// Returns the instructions at which a block that ends before `end` continues: by its jump, and by
    /// falling through.
    fn leaves(code: &Code, end: usize) -> (Option<usize>, Option<usize>) {
        match code.instructions[end - 1] {
            Instruction::Exit => (None, None),
            Instruction::Jump { .. } => (Graph::target(code, end - 1), None),
            Instruction::Branch { .. } => (Graph::target(code, end - 1), Some(end)),
            _ => (None, Some(end)),
        }
    }

    /// Returns the blocks at which a block continues: by its jump, and by falling through.
    #[must_use]
    pub fn successors(&self, code: &Code, block: usize) -> (Option<BlockId>, Option<BlockId>) {
        let (then, or) = Graph::leaves(code, self.spans[block].end);
        let id = |index: Option<usize>| index.and_then(|index| self.starts[index]);
        (id(then), id(or))
    }
}
