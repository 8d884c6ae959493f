// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `table1/…`: the paper's thirteen structures, laid out as their libraries lay them out, walked on one core.
//!
//! - **Flow** a row's name ─▶ the kernel that serves it and its offsets ─▶ nodes scattered over a node's memory ─▶ the shipped program,
//!   and the same walk in Rust one at a time, over shared memory ─▶ one client thread asks both the same
//! - **Layout** services/traverse/programs/table1/*.c: a list node is next · (previous ·) key; tree and chain nodes by the offsets below;
//!   Google's B-tree: nodes of 256 bytes, children behind them. Values are functions of keys
//! - **Scale** lists and chains of [`CHAIN`] nodes, of which the last is asked for; trees of as many keys as places, any is asked for
//! - **Not here** whether real libraries' memory is walked right (services/traverse/tests/structures/table1.rs)

use std::sync::Arc;

use memlift_traverse::node::{Node, NodeOptions};
use memlift_traverse::program::Program;
use memlift_traverse::structures::shipped;
use memlift_traverse::wire::{Header, Kind, Status};

use super::drive::{Ask, share, word};
use super::node::{Question, Served, against_rpc};
use super::places::Places;
use super::serve::{Handler, Over, failed};
use super::view::View;
use super::ycsb::Random;
use super::{Stop, unknown};
use crate::definition::Definition;
use crate::{BenchError, Row};

/// Nodes of a list, and of a bucket's chain.
const CHAIN: u64 = 48;
/// Nodes of a structure, as a power of two.
const BITS: u32 = 22;
const BITS_QUICK: u32 = 14;
/// Where all programs leave what they find.
const FOUND_AT: usize = 16;

/// How a structure is laid out and walked; places in words.
#[derive(Clone, Copy, Debug)]
enum Shape {
    List {
        key: usize,
    },
    Hash {
        next: usize,
        key: usize,
        value: usize,
        bucket: Option<usize>,
    },
    /// A bimap's node in the left index: the value found lies before it.
    Bimap,
    Tree {
        left: usize,
        key: usize,
        value: usize,
    },
    Btree,
}

impl Shape {
    fn of(name: &str) -> Option<Shape> {
        let red_black = |value| Shape::Tree { left: 2, key: 4, value };
        Some(match name {
            "stl_list" => Shape::List { key: 2 },
            "stl_forward_list" => Shape::List { key: 1 },
            "stl_map" | "stl_multimap" => red_black(5),
            "stl_set" | "stl_multiset" => red_black(4),
            "boost_avl" => Shape::Tree { left: 1, key: 4, value: 5 },
            "boost_splay" | "boost_scapegoat" => Shape::Tree { left: 1, key: 3, value: 4 },
            "stl_unordered_map" => Shape::Hash { next: 0, key: 1, value: 2, bucket: None },
            "boost_unordered_map" => Shape::Hash { next: 0, key: 2, value: 3, bucket: Some(1) },
            "boost_unordered_set" => Shape::Hash { next: 0, key: 2, value: 2, bucket: Some(1) },
            "boost_bimap" => Shape::Bimap,
            "google_btree" => Shape::Btree,
            _ => return None,
        })
    }

    fn stride(self) -> u64 {
        if matches!(self, Shape::Btree) { 384 } else { 64 }
    }

    /// The same walk natively; its answer.
    fn walk(self, view: &View, start: u64, body: &[u8]) -> Option<u64> {
        let wanted = word(body, 0);
        match self {
            Shape::List { key } => {
                let (mut at, end) = (start, word(body, 8));
                while at != end {
                    let node: [u64; 3] = view.words(at);
                    if node[key] == wanted {
                        return Some(at);
                    }
                    at = node[0];
                }
                None
            }
            Shape::Hash { next, key, value, .. } => {
                let mut at = start;
                while at != 0 {
                    let node: [u64; 4] = view.words(at);
                    if node[key] == wanted {
                        return Some(node[value]);
                    }
                    at = node[next];
                }
                None
            }
            Shape::Bimap => {
                let (mut at, mut before) = (start, 0);
                loop {
                    let [key, value, prior, next] = view.words(at - 16);
                    if before != 0 && prior != before {
                        return None;
                    }
                    if key == wanted {
                        return Some(value);
                    }
                    (before, at) = (at, next);
                }
            }
            Shape::Tree { left, key, value } => {
                let (mut at, mut bound) = (start, None);
                while at != 0 {
                    let node: [u64; 6] = view.words(at);
                    if node[key] < wanted {
                        at = node[left + 1];
                    } else {
                        bound = Some((node[key], node[value]));
                        at = node[left];
                    }
                }
                bound.filter(|(key, _)| *key == wanted).map(|(_, value)| value)
            }
            Shape::Btree => {
                let (mut at, mut bound) = (start, None);
                loop {
                    let node: [u64; 32] = view.words(at);
                    let count = (node[0] >> 24 & 0xff).min(15) as usize;
                    let place = (0..count).take_while(|index| node[2 + index * 2] < wanted).count();
                    if place < count {
                        bound = Some((node[2 + place * 2], node[3 + place * 2]));
                    }
                    if node[0] & 0xff != 0 {
                        return bound.filter(|(key, _)| *key == wanted).map(|(_, value)| value);
                    }
                    at = view.word(at + 256 + place as u64 * 8);
                }
            }
        }
    }
}

fn value_of(key: u64) -> u64 {
    key.wrapping_mul(0xff51_afd7_ed55_8ccd) | 1
}

/// A structure on a node.
struct Structure {
    shape: Shape,
    node: Node,
    places: Places,
    /// Root of a tree.
    root: u64,
    /// Number of lists or chains; of trees: the number of keys.
    count: u64,
    /// Numbers of nodes given out so far.
    used: u64,
}

impl Structure {
    fn new(name: &str, shape: Shape, quick: bool) -> Result<Structure, BenchError> {
        let bits = if quick { BITS_QUICK } else { BITS };
        let bits = if matches!(shape, Shape::Btree) { bits - 2 } else { bits };
        let data = shape.stride() << bits;
        let bytes = (data + (4 << 20)).next_multiple_of(2 << 20);
        let (node, _) = Node::open(NodeOptions { bytes, ..NodeOptions::default() }).map_err(failed)?;
        let given = node.writer().allocator().allocate(0, data + 1024);
        let base = given.ok_or_else(|| failed("a node has no room for a structure"))? + 512;
        let places = Places::new(base.next_multiple_of(64), bits, shape.stride());
        let program = shipped::named(name).ok_or_else(|| failed(format!("no program is called {name}")))?;
        node.register(0, Program::clone(&program.program())).map_err(failed)?;
        let mut made = Structure { shape, node, places, root: 0, count: 0, used: 0 };
        made.fill();
        Ok(made)
    }

    fn store(&self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.node.memory().store(address, &bytes);
    }

    fn fresh(&mut self) -> u64 {
        self.used += 1;
        self.places.address(self.used - 1)
    }

    fn fill(&mut self) {
        let places = self.places.count();
        match self.shape {
            Shape::Tree { .. } => {
                self.count = places - 1;
                self.root = self.tree(0, self.count, 0);
            }
            Shape::Btree => {
                // Leaves have at least seven keys, and there is an inner node for fewer than seven of them.
                self.count = places * 5;
                self.root = self.btree(0, self.count);
            }
            _ => {
                // A place more per chain: a list's end.
                self.count = places / (CHAIN + 1);
                (0..self.count).for_each(|chain| self.chain(chain));
            }
        }
    }

    /// Key `index` of a chain: buckets are remainders, so all keys of one have the same.
    fn key(&self, chain: u64, index: u64) -> u64 {
        index * self.count + chain
    }

    fn place(&self, chain: u64, index: u64) -> u64 {
        let address = self.places.address(chain * (CHAIN + 1) + index);
        if matches!(self.shape, Shape::Bimap) { address + 16 } else { address }
    }

    fn chain(&mut self, chain: u64) {
        for index in 0..CHAIN {
            let (at, last) = (self.place(chain, index), index + 1 == CHAIN);
            let (next, key) = (self.place(chain, index + 1), self.key(chain, index));
            let before = if index == 0 { self.place(chain, CHAIN) } else { self.place(chain, index - 1) };
            match self.shape {
                Shape::List { key: 1 } => self.store(at, &[if last { 0 } else { next }, key]),
                Shape::List { .. } => self.store(at, &[next, before, key]),
                Shape::Hash { value, bucket, .. } => {
                    let mut words = vec![if last { 0 } else { next }];
                    words.extend(bucket.map(|_| chain));
                    words.extend([key, value_of(key)]);
                    words.truncate(value + 1);
                    self.store(at, &words);
                }
                _ => self.store(at - 16, &[key, value_of(key), before, next]),
            }
        }
    }

    /// A balanced tree of keys `from` to before `to`; its root.
    fn tree(&mut self, from: u64, to: u64, parent: u64) -> u64 {
        let Shape::Tree { left, key, value } = self.shape else { return 0 };
        if from == to {
            return 0;
        }
        let (middle, at) = ((from + to) / 2, self.fresh());
        let mut words = [0; 6];
        words[left - 1] = parent;
        words[key] = middle;
        if value != key {
            words[value] = value_of(middle);
        }
        words[left] = self.tree(from, middle, at);
        words[left + 1] = self.tree(middle + 1, to, at);
        self.store(at, &words);
        at
    }

    /// A B-tree of keys `from` to before `to`; its root.
    fn btree(&mut self, from: u64, to: u64) -> u64 {
        let (at, count) = (self.fresh(), to - from);
        let mut words = [0; 48];
        let mut held = 0;
        let mut hold = |words: &mut [u64; 48], key: u64| {
            (words[2 + held * 2], words[3 + held * 2]) = (key, value_of(key));
            held += 1;
        };
        let leaf = count <= 15;
        if leaf {
            (from..to).for_each(|key| hold(&mut words, key));
        } else {
            let fan = (count / 8).clamp(2, 16);
            let mut first = from;
            for child in 0..fan {
                let last = if child + 1 == fan { to } else { from + count * (child + 1) / fan };
                words[32 + child as usize] = self.btree(first, last);
                if child + 1 < fan {
                    hold(&mut words, last);
                }
                first = last + 1;
            }
        }
        words[0] = u64::from(leaf) | 15 << 16 | (held as u64) << 24;
        self.store(at, &words[..if leaf { 32 } else { 48 }]);
        at
    }

    /// A question and its answer.
    fn question(&self, random: &mut Random) -> (Ask, u64) {
        let drawn = random.below(self.count);
        let (last, start) = (self.key(drawn, CHAIN - 1), self.place(drawn, 0));
        match self.shape {
            Shape::List { key } => {
                let end = if key == 1 { 0 } else { self.place(drawn, CHAIN) };
                (Ask::words(start, &[last, end, 0, start]), self.place(drawn, CHAIN - 1))
            }
            Shape::Hash { key, value, .. } => {
                let found = if key == value { last } else { value_of(last) };
                (Ask::words(start, &[last, drawn, 0, 0, self.count, start]), found)
            }
            Shape::Bimap => (Ask::words(start, &[last, drawn, 0, 0, self.count, start]), value_of(last)),
            Shape::Tree { key, value, .. } => {
                let found = if key == value { drawn } else { value_of(drawn) };
                (Ask::words(self.root, &[drawn, 1, 0, 0, 0, self.root]), found)
            }
            Shape::Btree => (Ask::words(self.root, &[drawn, 1, 0, 0, 0, self.root]), value_of(drawn)),
        }
    }
}

/// Measures a row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let name = definition.name.strip_prefix("table1/").unwrap_or_default();
    let Some(shape) = Shape::of(name).filter(|_| definition.rival == "rpc") else {
        return Err(unknown(definition));
    };
    let structure = Structure::new(name, shape, quick)?;
    let view = View::new(structure.node.memory());
    let handler: Box<dyn Handler> =
        Box::new(move |header: &Header, body: &[u8], answer: &mut Vec<u8>| {
            match (header.kind, shape.walk(&view, header.address, body)) {
                (Kind::Walk, Some(found)) => {
                    answer.extend_from_slice(&found.to_le_bytes());
                    Status::Done
                }
                (Kind::Walk, None) => Status::Missing,
                _ => Status::BadRequest,
            }
        });
    let program: Arc<Program> = shipped::named(name).ok_or_else(|| unknown(definition))?.program();
    let served = Served { node: &structure.node, program, value_at: FOUND_AT, handler };
    let draw = |seed: u64, count: u64| {
        let mut random = Random(seed);
        let (mut asks, mut sum) = (Vec::new(), 0u64);
        for number in 0..count {
            let (ask, found) = structure.question(&mut random);
            sum = sum.wrapping_add(share(number, found));
            asks.push(ask);
        }
        (asks, sum)
    };
    let question = Question { over: Over::Shm, out: super::node::OUT, cpu: false, count: 4000 };
    let mut row = against_rpc(definition, served, question, draw, quick)?;
    let scale = match shape {
        Shape::Tree { .. } | Shape::Btree => format!("{} keys", structure.count),
        _ => format!("{} lists or buckets of {CHAIN}", structure.count),
    };
    row.qualifies.push_str(&format!("; {scale} in the layout of the library"));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_walks_find_what_was_laid_out() {
        for row in crate::definition::all("traverse").expect("parses") {
            let Some(name) = row.name.strip_prefix("table1/") else { continue };
            let structure = Structure::new(name, Shape::of(name).expect(name), true).expect(name);
            let view = View::new(structure.node.memory());
            let mut random = Random(5);
            for _ in 0..50 {
                let (ask, found) = structure.question(&mut random);
                assert_eq!(structure.shape.walk(&view, ask.address, &ask.body), Some(found), "{name}");
            }
        }
    }
}
