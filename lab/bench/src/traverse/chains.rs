// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash table whose buckets hold chains of [`HOPS`] nodes, scattered over a node's memory: the hash48 rows walk it.
//!
//! - **Layout** nodes are those of our hash map (`services/traverse/programs/collections/chain.h`): 0 next · 8 key · 16 value bytes ·
//!   24 value; each has a line of 64 bytes to itself. Buckets are words, side by side, behind the nodes
//! - **Order** node i of chain c lies at a place that a bijection of its number gives: no two hops are near each other, and memory is
//!   written from its start to its end all the same
//! - **Check** a key's value is a function of the key: every answer is known before it is asked for

use std::sync::Arc;

use memlift_traverse::node::{Node, NodeOptions};
use memlift_traverse::program::Program;
use memlift_traverse::structures::shipped;
use memlift_traverse::wire::{Header, Kind, Status};

use super::cached::{Data, READ_BYTES_MAX, Walker};
use super::drive::{Ask, share, word};
use super::places::Places;
use super::serve::{Handler, failed};
use super::view::{Question, View};
use super::ycsb::Random;
use crate::{BenchError, machine};

/// Hops of a walk: from the bucket to its last node.
pub const HOPS: u64 = 48;
/// Where the walk's program leaves a value in the scratchpad.
pub const VALUE_AT: usize = 32;
/// Bytes of a chain's node.
pub const NODE_BYTES: u64 = 64;
/// Bytes of all chains in a full run, and in `--quick`.
const BYTES: u64 = 2 << 30;
const BYTES_QUICK: u64 = 64 << 20;
/// Bytes of memory that a memory node has beyond its chains and buckets.
const SPARE_BYTES: u64 = 8 << 20;

/// Bytes of nodes.
pub fn data_bytes(quick: bool) -> u64 {
    if quick { BYTES_QUICK } else { BYTES }
}

/// A node that holds the chains.
#[derive(Debug)]
pub struct Chains {
    /// The memory node.
    pub node: Node,
    /// The node's memory, for native code.
    pub view: View,
    places: Places,
    buckets: u64,
}

fn value_of(key: u64) -> u64 {
    key.wrapping_mul(0xff51_afd7_ed55_8ccd) | 1
}

impl Chains {
    /// Starts a node without a thread and fills it.
    pub fn new(quick: bool) -> Result<Chains, BenchError> {
        let bytes = data_bytes(quick);
        let count = bytes / NODE_BYTES;
        let chains = count / HOPS;
        let whole = (bytes + chains * 8 + SPARE_BYTES).next_multiple_of(2 << 20);
        let available = machine::available_bytes();
        if whole > available {
            return Err(BenchError::Memory { needed_bytes: whole, available_bytes: available });
        }
        let options = NodeOptions { bytes: whole, ..NodeOptions::default() };
        let (node, _) = Node::open(options).map_err(failed)?;
        let given = node.writer().allocator().allocate(0, bytes + chains * 8 + NODE_BYTES);
        let base = given.ok_or_else(|| failed("a node has no room for its chains"))?.next_multiple_of(64);
        let places = Places::new(base, count.ilog2(), NODE_BYTES);
        let memory = Arc::clone(node.memory());
        for place in 0..count {
            let number = places.number(place);
            let last = number % HOPS == HOPS - 1;
            let next = if last || number >= chains * HOPS { 0 } else { places.address(number + 1) };
            let key = number + 1;
            let mut line = [0; 32];
            for (to, from) in line.chunks_exact_mut(8).zip([next, key, 8, value_of(key)]) {
                to.copy_from_slice(&from.to_le_bytes());
            }
            memory.store(base + place * NODE_BYTES, &line);
        }
        let buckets = base + bytes;
        for chain in 0..chains {
            memory.store(buckets + chain * 8, &places.address(chain * HOPS).to_le_bytes());
        }
        node.register(0, Program::clone(&Chains::program())).map_err(failed)?;
        Ok(Chains { view: View::new(&memory), node, places, buckets })
    }

    /// The walk: our hash map's.
    pub fn program() -> Arc<Program> {
        shipped::HASH_FIND.program()
    }

    /// How many chains there are.
    pub fn count(&self) -> u64 {
        self.places.count() / HOPS
    }

    /// The last key of a chain, where its bucket is, and what is found.
    pub fn question(&self, chain: u64) -> (Question, u64) {
        let key = chain * HOPS + HOPS;
        (Question { bucket: self.buckets + chain * 8, key }, value_of(key))
    }

    /// Draws questions from a seed, uniformly; also returns the checksum of the right answers.
    pub fn draw(&self, seed: u64, count: u64) -> (Vec<Question>, u64) {
        let mut random = Random(seed);
        self.ask_for((0..count).map(|_| random.below(self.count())))
    }

    /// Returns questions for the last keys of these chains, and the checksum of the right answers.
    pub fn ask_for(&self, chains: impl Iterator<Item = u64>) -> (Vec<Question>, u64) {
        let (mut questions, mut sum) = (Vec::new(), 0u64);
        for (number, chain) in chains.enumerate() {
            let (question, value) = self.question(chain);
            questions.push(question);
            sum = sum.wrapping_add(share(number as u64, value));
        }
        (questions, sum)
    }

    /// The same walks by native code, for a server: one after the other.
    pub fn handler(&self) -> impl Handler + use<> {
        let view = self.view.clone();
        move |header: &Header, body: &[u8], answer: &mut Vec<u8>| match header.kind {
            Kind::Walk => match find(&view, header.address, word(body, 0)) {
                Some(value) => {
                    answer.extend_from_slice(&value.to_le_bytes());
                    Status::Done
                }
                None => Status::Missing,
            },
            Kind::Read => {
                view.copy(header.address, header.value.min(READ_BYTES_MAX) as usize, answer);
                Status::Done
            }
            _ => Status::BadRequest,
        }
    }
}

/// A client that follows a chain itself.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    place: u64,
    key: u64,
    inside: bool,
}

impl Walker<[u64; 8]> for Follow {
    fn place(&self) -> u64 {
        self.place & !(NODE_BYTES - 1)
    }

    fn step(&mut self, piece: &[u64; 8]) -> Option<u64> {
        let next = piece[self.place as usize / 8 % 8];
        if self.inside && piece[1] == self.key && next & 1 == 0 {
            return Some(piece[3]);
        }
        (self.place, self.inside) = (next & !1, true);
        // No key that is asked for is missing; the checksum would tell.
        (self.place == 0).then_some(0)
    }
}

impl Data for Chains {
    type Piece = [u64; 8];
    type Walker = Follow;

    fn node(&self) -> &Node {
        &self.node
    }

    fn view(&self) -> &View {
        &self.view
    }

    fn program(&self) -> (Arc<Program>, usize) {
        (Chains::program(), VALUE_AT)
    }

    fn questions(&self) -> u64 {
        self.count()
    }

    fn pieces(&self) -> u64 {
        self.places.count()
    }

    fn ask(&self, number: u64) -> (Ask, u64) {
        let (question, value) = self.question(number);
        (Ask::words(question.bucket, &[question.key]), value)
    }

    fn walker(&self, number: u64) -> Follow {
        let question = self.question(number).0;
        Follow { place: question.bucket, key: question.key, inside: false }
    }

    fn handler(&self) -> Box<dyn Handler> {
        Box::new(Chains::handler(self))
    }
}

/// Finds a key in a chain.
pub fn find(view: &View, bucket: u64, key: u64) -> Option<u64> {
    let mut place = view.word(bucket) & !1;
    while place != 0 {
        let [next, found, _, value] = view.words(place);
        if found == key && next & 1 == 0 {
            return Some(value);
        }
        place = next & !1;
    }
    None
}

/// As walks are asked for.
pub fn asks(questions: &[Question]) -> Vec<Ask> {
    questions.iter().map(|question| Ask::words(question.bucket, &[question.key])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_walks_find_what_is_there_after_all_hops() {
        let chains = Chains::new(true).expect("64 MiB");
        for chain in [0, 1, chains.count() - 1] {
            let (question, value) = chains.question(chain);
            assert_eq!(find(&chains.view, question.bucket, question.key), Some(value));
            assert_eq!(find(&chains.view, question.bucket, question.key + 1), None);
            let mut place = chains.view.word(question.bucket);
            for hop in 1..=HOPS {
                let next = chains.view.word(place);
                assert_eq!(next == 0, hop == HOPS, "one more hop");
                place = next;
            }
        }
    }
}
