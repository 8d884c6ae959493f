// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A B-tree scattered over a node's memory, and sums over key ranges of it: what btree25 walks.
//!
//! - **Layout** nodes are those of our ordered map (`services/traverse/programs/collections/ordered.h`): 256 bytes, fifteen keys, sixteen
//!   places; here all are full. Keys are 1, 3, 5, …; behind the nodes is the cell with the root's address
//! - **Walk** `ordered_aggregate` over [`RANGE_KEYS`] keys: down to a leaf, along the leaves of its parent, down again for the rest: 25
//!   nodes on average
//! - **Check** a key's value is a function of the key: every sum is known before it is asked for

use std::sync::Arc;

use memlift_traverse::node::{Node, NodeOptions};
use memlift_traverse::program::Program;
use memlift_traverse::structures::shipped;
use memlift_traverse::wire::{Header, Kind, Status};

use super::cached::{Data, READ_BYTES_MAX, Walker};
use super::chains::data_bytes;
use super::drive::{Ask, word};
use super::places::Places;
use super::serve::{Handler, failed};
use super::view::View;
use crate::{BenchError, machine};

const NODE_BYTES: u64 = 256;
const KEYS: u64 = 15;
const FAN: u64 = 16;
/// Keys of a range: about fourteen leaves.
const RANGE_KEYS: u64 = 200;
/// Where the walk's program leaves the sum in the scratchpad.
const SUM_AT: usize = 96;

/// A node that holds the tree.
#[derive(Debug)]
pub struct Tree {
    node: Node,
    view: View,
    places: Places,
    cell: u64,
    root: u64,
    leaves: u64,
}

fn key_of(index: u64) -> u64 {
    index * 2 + 1
}

fn value_of(index: u64) -> u64 {
    key_of(index).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 8
}

impl Tree {
    /// Starts a node without a thread and fills it.
    pub fn new(quick: bool) -> Result<Tree, BenchError> {
        let bytes = data_bytes(quick);
        let whole = (bytes + (8 << 20)).next_multiple_of(2 << 20);
        let available = machine::available_bytes();
        if whole > available {
            return Err(BenchError::Memory { needed_bytes: whole, available_bytes: available });
        }
        let options = NodeOptions { bytes: whole, ..NodeOptions::default() };
        let (node, _) = Node::open(options).map_err(failed)?;
        let given = node.writer().allocator().allocate(0, bytes + 2 * NODE_BYTES);
        let base =
            given.ok_or_else(|| failed("a node has no room for its tree"))?.next_multiple_of(NODE_BYTES);
        let places = Places::new(base, (bytes / NODE_BYTES).ilog2(), NODE_BYTES);
        let leaves = places.count() / FAN * (FAN - 1) - FAN;
        let memory = Arc::clone(node.memory());
        let mut next = 0;
        let (mut level, mut count, mut first_of_level) = (0_u64, leaves, 0);
        loop {
            // Leaves under one child of this level's nodes.
            let under = FAN.pow(level.saturating_sub(1) as u32);
            for index in 0..count {
                let mut words = [u64::MAX; 32];
                if level == 0 {
                    words[0] = KEYS;
                    for slot in 0..KEYS {
                        words[1 + slot as usize] = key_of(index * KEYS + slot);
                        words[16 + slot as usize] = value_of(index * KEYS + slot);
                    }
                } else {
                    let below = leaves.div_ceil(under);
                    let children = (below - index * FAN).min(FAN);
                    words[0] = (children - 1) | (level << 16);
                    for slot in 0..children {
                        let child = index * FAN + slot;
                        words[16 + slot as usize] = places.address(first_of_level + child);
                        if slot + 1 < children {
                            words[1 + slot as usize] = key_of((child + 1) * under * KEYS - 1);
                        }
                    }
                }
                let address = places.address(next + index);
                memory.store(address, &words.map(u64::to_le_bytes).concat());
            }
            if level > 0 {
                first_of_level = next;
            }
            next += count;
            if count == 1 {
                break;
            }
            (level, count) = (level + 1, count.div_ceil(FAN));
        }
        let (cell, root) = (base + bytes, places.address(next - 1));
        memory.store(cell, &root.to_le_bytes());
        node.register(0, Program::clone(&shipped::ORDERED_AGGREGATE.program())).map_err(failed)?;
        Ok(Tree { view: View::new(&memory), node, places, cell, root, leaves })
    }

    /// First and last key of a question's range, and the sum over it.
    fn range(&self, number: u64) -> (u64, u64, u64) {
        // Ranges begin anywhere in a leaf, and do not overlap.
        let first = number * (RANGE_KEYS + 7);
        let sum = (first..first + RANGE_KEYS).map(value_of).fold(0, u64::wrapping_add);
        (key_of(first), key_of(first + RANGE_KEYS - 1), sum)
    }
}

/// The keys of a node that lie below `key`.
fn below(piece: &[u64; 32], count: usize, key: u64) -> usize {
    piece[1..1 + count].partition_point(|one| *one < key)
}

/// A client that walks the tree itself; it knows the root.
#[derive(Clone, Debug)]
pub struct Sum {
    first: u64,
    last: u64,
    sum: u64,
    /// Addresses of the nodes still to read, the next one at the end.
    open: Vec<u64>,
}

impl Walker<[u64; 32]> for Sum {
    fn place(&self) -> u64 {
        self.open.last().copied().unwrap_or(0)
    }

    fn step(&mut self, piece: &[u64; 32]) -> Option<u64> {
        self.open.pop();
        let (count, level) = ((piece[0] & 0xffff).min(KEYS) as usize, piece[0] >> 16 & 0xff);
        let (begin, end) = (below(piece, count, self.first), below(piece, count, self.last));
        if level > 0 {
            self.open.extend(piece[16 + begin..=16 + end].iter().rev());
        } else {
            let values = piece[16..16 + count].iter().zip(&piece[1..1 + count]);
            let inside = values.filter(|(_, key)| (self.first..=self.last).contains(*key));
            self.sum = inside.map(|(value, _)| *value).fold(self.sum, u64::wrapping_add);
        }
        self.open.is_empty().then_some(self.sum)
    }
}

impl Data for Tree {
    type Piece = [u64; 32];
    type Walker = Sum;

    fn node(&self) -> &Node {
        &self.node
    }

    fn view(&self) -> &View {
        &self.view
    }

    fn program(&self) -> (Arc<Program>, usize) {
        (shipped::ORDERED_AGGREGATE.program(), SUM_AT)
    }

    fn questions(&self) -> u64 {
        self.leaves * KEYS / (RANGE_KEYS + 7) - 1
    }

    fn pieces(&self) -> u64 {
        self.places.count()
    }

    fn ask(&self, number: u64) -> (Ask, u64) {
        let (first, last, sum) = self.range(number);
        (Ask::words(self.cell, &[first, last]), sum)
    }

    fn walker(&self, number: u64) -> Sum {
        let (first, last, _) = self.range(number);
        Sum { first, last, sum: 0, open: vec![self.root] }
    }

    fn handler(&self) -> Box<dyn Handler> {
        let view = self.view.clone();
        Box::new(move |header: &Header, body: &[u8], answer: &mut Vec<u8>| match header.kind {
            Kind::Walk => {
                let open = vec![view.word(header.address)];
                let mut walk = Sum { first: word(body, 0), last: word(body, 8), sum: 0, open };
                let sum = loop {
                    if let Some(sum) = walk.step(&view.words(walk.place())) {
                        break sum;
                    }
                };
                answer.extend_from_slice(&sum.to_le_bytes());
                Status::Done
            }
            Kind::Read => {
                view.copy(header.address, header.value.min(READ_BYTES_MAX) as usize, answer);
                Status::Done
            }
            _ => Status::BadRequest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_values() {
        let tree = Tree::new(true).expect("64 MiB");
        let mut handler = tree.handler();
        for number in [0, 1, 77, tree.questions() - 1] {
            let (ask, sum) = tree.ask(number);
            let header = Header { address: ask.address, ..Header::new(Kind::Walk) };
            let mut answer = Vec::new();
            assert_eq!(handler.answer(&header, &ask.body, &mut answer), Status::Done);
            assert_eq!(word(&answer, 0), sum);
        }
    }
}
