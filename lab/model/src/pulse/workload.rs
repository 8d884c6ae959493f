// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work of the rack: programs in the walk encoding, and the structures in memory that they walk through.
//!
//! - **Layout** chain node (256 B): 0 key · 8 address of the value · 16 address of the next node or 0;
//!   leaf (256 B): 0 address of the next leaf or 0 · 8 how many values · 16 the values, up to 30
//! - **Order** a seed decides where nodes lie; walks meet them in another order than memory has them
//! - **Not here** how fast it goes (`rack`)

use super::memory::{BadEntry, NodeMemory, Permission};
use super::program::Program;
use super::request::Job;
use crate::event::Random;
use memlift_spec::formats::walk::*;
use std::sync::Arc;

/// Bytes of a chain node and of a leaf.
pub const NODE_BYTES: u64 = 256;
/// Scratchpad of the programs here.
const SCRATCH: u32 = 64;
/// Addresses between two memory nodes.
const STRIDE: u64 = 1 << 40;
/// Where data begins: 0 is nobody's address.
const BASE: u64 = 1 << 20;

fn instruction(opcode: u8, target: u8, source: u8, offset: i16, immediate: i32) -> [u8; INSTRUCTION_BYTES] {
    let (o, i) = (offset.to_le_bytes(), immediate.to_le_bytes());
    [opcode, target | source << 4, o[0], o[1], i[0], i[1], i[2], i[3]]
}

const LOAD: u8 = CLASS_LDX | MODE_MEM | SIZE_DW;
const STORE: u8 = CLASS_STX | MODE_MEM | SIZE_DW;
const MOVE: u8 = CLASS_ALU64 | MOV;
const LEAVE: u8 = CLASS_JMP | EXIT;

fn program(code: &[[u8; INSTRUCTION_BYTES]], window: (i64, usize)) -> Arc<Program> {
    let header = ProgramHeader::new(SCRATCH, code.len() as u32).to_bytes();
    let encoding = [&header[..], &code.concat()].concat();
    Arc::new(
        Program::read(&encoding, window).unwrap_or_else(|error| panic!("a program of this file: {error}")),
    )
}

/// Finds a key in a chain: scratch has it at 0, and gets the value's address at 8. Eight instructions where it goes on.
#[must_use]
pub fn hash_find() -> Arc<Program> {
    let other = CLASS_JMP | JNE | SOURCE_REGISTER;
    program(
        &[
            instruction(LOAD, 4, 1, 0, 0),
            instruction(LOAD, 5, 2, 0, 0),
            instruction(other, 4, 5, 4, 0),
            instruction(LOAD, 4, 1, 8, 0),
            instruction(STORE, 2, 4, 8, 0),
            instruction(MOVE, 0, 0, 0, 1),
            instruction(LEAVE, 0, 0, 0, 0),
            instruction(LOAD, 4, 1, 16, 0),
            instruction(CLASS_JMP | JEQ, 4, 0, 3, 0),
            instruction(STORE, 3, 4, 0, 0),
            instruction(MOVE, 0, 0, 0, 0),
            instruction(LEAVE, 0, 0, 0, 0),
            instruction(MOVE, 0, 0, 0, 5),
            instruction(LEAVE, 0, 0, 0, 0),
        ],
        (0, NODE_BYTES as usize),
    )
}

/// Adds up the values of leaves into scratch 0, counts them in 8: six instructions for each value and 15 around them.
#[must_use]
pub fn leaf_sum() -> Arc<Program> {
    let add = CLASS_ALU64 | ADD | SOURCE_REGISTER;
    program(
        &[
            instruction(LOAD, 6, 2, 0, 0),
            instruction(LOAD, 7, 1, 8, 0),
            instruction(CLASS_ALU64 | AND, 7, 0, 0, 31),
            instruction(MOVE | SOURCE_REGISTER, 8, 1, 0, 0),
            instruction(MOVE, 5, 0, 0, 0),
            instruction(CLASS_JMP | JGE | SOURCE_REGISTER, 5, 7, 5, 0),
            instruction(LOAD, 4, 8, 16, 0),
            instruction(add, 6, 4, 0, 0),
            instruction(CLASS_ALU64 | ADD, 8, 0, 0, 8),
            instruction(CLASS_ALU64 | ADD, 5, 0, 0, 1),
            instruction(CLASS_JMP | JA, 0, 0, -6, 0),
            instruction(STORE, 2, 6, 0, 0),
            instruction(LOAD, 4, 2, 8, 0),
            instruction(add, 4, 7, 0, 0),
            instruction(STORE, 2, 4, 8, 0),
            instruction(LOAD, 4, 1, 0, 0),
            instruction(MOVE, 0, 0, 0, 1),
            instruction(CLASS_JMP | JEQ, 4, 0, 2, 0),
            instruction(STORE, 3, 4, 0, 0),
            instruction(MOVE, 0, 0, 0, 0),
            instruction(LEAVE, 0, 0, 0, 0),
        ],
        (0, NODE_BYTES as usize),
    )
}

/// A permutation of `0..count`.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for index in (1..count).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// The object of a key: a pattern that only this key has.
#[must_use]
pub fn object(key: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(key);
    let mut object: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.word().to_le_bytes()).collect();
    object.truncate(bytes);
    object
}

/// A web service's table (§6): `chains` of `length` nodes at one memory node, and lookups that walk a chain to its end.
///
/// # Errors
/// If it does not fit.
pub fn web_service(
    seed: u64,
    (chains, length, object_bytes): (usize, usize, usize),
    requests: usize,
    tcam: usize,
) -> Result<(NodeMemory, Vec<Job>), BadEntry> {
    let mut random = Random::new(seed);
    let order = shuffled(chains * length, &mut random);
    let place = |chain: usize, at: usize| BASE + order[chain * length + at] as u64 * NODE_BYTES;
    let mut nodes = vec![0; chains * length * NODE_BYTES as usize];
    let objects = BASE + nodes.len() as u64;
    let mut store = Vec::with_capacity(chains * object_bytes);
    for chain in 0..chains {
        for at in 0..length {
            let offset = (place(chain, at) - BASE) as usize;
            let key = (chain * length + at + 1) as u64;
            put(&mut nodes, offset, key);
            put(&mut nodes, offset + 8, objects + (chain * object_bytes) as u64);
            put(&mut nodes, offset + 16, if at + 1 < length { place(chain, at + 1) } else { 0 });
        }
        store.extend(object(((chain + 1) * length) as u64, object_bytes));
    }
    let mut memory = NodeMemory::new(tcam);
    memory.map(BASE, Permission::ReadWrite, nodes)?;
    memory.map(objects, Permission::Read, store)?;
    let program = hash_find();
    let jobs = (0..requests)
        .map(|_| {
            let chain = random.below(chains as u64) as usize;
            let key = ((chain + 1) * length) as u64;
            Job {
                program: Arc::clone(&program),
                start: place(chain, 0),
                scratch: key.to_le_bytes().to_vec(),
                object: (object_bytes > 0).then_some((8, object_bytes)),
            }
        })
        .collect();
    Ok((memory, jobs))
}

/// Scans over leaves of an index that lies on several memory nodes.
#[derive(Clone, Copy, Debug)]
pub struct Scans {
    /// Leaves of a scan.
    pub length: usize,
    /// Values of a leaf, at most 30.
    pub values: usize,
    /// Number of memory nodes.
    pub nodes: usize,
    /// Steps per million to a next leaf that go to another node, where there is one.
    pub elsewhere: u64,
}

/// A scan, and the sum that it must find.
pub type ScanJob = (Job, u64);

/// Memories and scans.
///
/// # Errors
/// If it does not fit.
pub fn scans(
    seed: u64,
    shape: Scans,
    requests: usize,
    tcam: usize,
) -> Result<(Vec<NodeMemory>, Vec<ScanJob>), BadEntry> {
    let Scans { length, values, nodes, elsewhere } = shape;
    let mut random = Random::new(seed);
    let mut parts: Vec<Vec<u8>> = vec![Vec::new(); nodes];
    let program = leaf_sum();
    let mut jobs = Vec::with_capacity(requests);
    for _ in 0..requests {
        let (mut sum, mut at) = (0_u64, random.below(nodes as u64) as usize);
        let mut leaves: Vec<(usize, usize)> = Vec::with_capacity(length);
        for _ in 0..length {
            leaves.push((at, parts[at].len()));
            let mut leaf = vec![0; NODE_BYTES as usize];
            put(&mut leaf, 8, values as u64);
            for value in 0..values {
                let word = random.word();
                sum = sum.wrapping_add(word);
                put(&mut leaf, 16 + value * 8, word);
            }
            parts[at].extend(leaf);
            if nodes > 1 && random.one_of_a_million(elsewhere) {
                at = (at + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
            }
        }
        let address = |&(node, offset): &(usize, usize)| BASE + node as u64 * STRIDE + offset as u64;
        for pair in leaves.windows(2) {
            put(&mut parts[pair[0].0], pair[0].1, address(&pair[1]));
        }
        let start = leaves.first().map_or(0, address);
        jobs.push((Job { program: Arc::clone(&program), start, scratch: Vec::new(), object: None }, sum));
    }
    let mut memories = Vec::with_capacity(nodes);
    for (node, bytes) in parts.into_iter().enumerate() {
        let mut memory = NodeMemory::new(tcam);
        if !bytes.is_empty() {
            memory.map(BASE + node as u64 * STRIDE, Permission::Read, bytes)?;
        }
        memories.push(memory);
    }
    Ok((memories, jobs))
}
