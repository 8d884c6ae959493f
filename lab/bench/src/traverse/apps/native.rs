// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rival "RPC": the applications' operations as native code beside the data, one request at a time.
//!
//! - **Flow** packet, in the nodes' own format ─▶ which program it names ─▶ the same operation, compiled with this crate ─▶ pieces of
//!   the result and the answer, as a node sends them ─▶ next packet
//! - **Layout** nodes of the collections as `services/traverse/programs/collections/{chain,ordered}.h` have them
//! - **Order** a request is carried out to its end before the next one begins: this is what interleaving is compared with.
//!   Nothing is verified and no address checked but for being memory of the node
//! - **Owner** the memory is a node's, whose own thread sleeps meanwhile; no thread changes it while a request is under way
//!   here
//! - **Not here** changes: clients send those to the node, on both sides of a row

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memlift_traverse::memory::Memory;
use memlift_traverse::structures::shipped::{self, Shipped};
use memlift_traverse::transport::{Peer, Transport};
use memlift_traverse::wire::{Hash, Header, Kind, Packet, Status};

use super::nodes::{Over, Place, Serving};
use crate::BenchError;
use crate::traverse::view::View;

/// Bytes of a piece of a result, as nodes have it over rings and loopback.
const CHUNK_BYTES: usize = 4096;
/// Packets taken at a time.
const BATCH: usize = 64;
const SLEEP: Duration = Duration::from_millis(50);
/// Bytes of a chain node before its value, and keys of a tree node.
const VALUE_AT: u64 = 24;
const KEYS: u64 = 15;

/// A running server.
#[derive(Debug)]
pub struct Native {
    /// Where it listens.
    pub place: Place,
    _serving: Serving,
}

impl Native {
    /// Serves this memory.
    pub fn start(memory: &Arc<Memory>, over: Over) -> Result<Native, BenchError> {
        let (place, transport) = Place::listen(over)?;
        let (view, span) = (View::new(memory), (memory.base(), memory.bytes()));
        let serving = Serving::start(move |stop| {
            let hash = |shipped: &Shipped| -> Hash {
                shipped.program().hash()[..size_of::<Hash>()].try_into().expect("a hash is longer")
            };
            let mut server = Server {
                memory: view,
                span,
                get: hash(&shipped::HASH_GET),
                scan: hash(&shipped::ORDERED_SCAN_RECORDS),
                aggregate: hash(&shipped::ORDERED_AGGREGATE),
                transport,
                came: Vec::new(),
                packet: Vec::new(),
                result: Vec::new(),
            };
            while !stop.load(Ordering::Relaxed) {
                if !server.turn()? {
                    server.transport.wait(SLEEP).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })?;
        Ok(Native { place, _serving: serving })
    }
}

struct Server {
    memory: View,
    span: (u64, u64),
    get: Hash,
    scan: Hash,
    aggregate: Hash,
    transport: Box<dyn Transport>,
    came: Vec<(Peer, Header, Vec<u8>)>,
    packet: Vec<u8>,
    result: Vec<u8>,
}

/// Words of a scratchpad.
fn word(body: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(body.iter().skip(at)) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

impl Server {
    /// Takes the packets that have come and answers them; returns true if there were any.
    fn turn(&mut self) -> Result<bool, String> {
        let came = &mut self.came;
        let got = self.transport.receive(BATCH, &mut |peer, bytes| {
            if let Ok(packet) = Packet::parse(bytes) {
                came.push((peer, packet.header, packet.body.to_vec()));
            }
        });
        let got = got.map_err(|error| error.to_string())?;
        let mut came = std::mem::take(&mut self.came);
        for (peer, header, body) in came.drain(..) {
            self.answer(peer, &header, &body)?;
        }
        self.came = came;
        self.transport.flush().map_err(|error| error.to_string())?;
        Ok(got > 0)
    }

    fn answer(&mut self, peer: Peer, header: &Header, body: &[u8]) -> Result<(), String> {
        let memory = &self.memory;
        self.result.clear();
        let (mut status, mut scratch) = (Status::Done, Vec::new());
        let mut answer = header.answer(Status::Done);
        if header.kind == Kind::Map {
            (answer.address, answer.value) = self.span;
        } else if header.kind != Kind::Walk {
            status = Status::BadRequest;
        } else if header.program == self.get {
            match get(memory, header.address, word(body, 0), &mut self.result) {
                // Clients find the value's length here.
                Some(bytes) => {
                    scratch.resize(52, 0);
                    scratch[48..52].copy_from_slice(&bytes.to_le_bytes());
                }
                None => status = Status::Missing,
            }
        } else if header.program == self.scan {
            let mut range =
                Range { first: word(body, 0), last: word(body, 8), left: word(body, 16), over: false };
            let bytes = word(body, 40).min(30) as usize * 8 + 8;
            let result = &mut self.result;
            let root = memory.word(header.address);
            descend(memory, root, &mut range, &mut |place| memory.copy(place, bytes, result));
        } else if header.program == self.aggregate {
            let mut range = Range { first: word(body, 0), last: word(body, 8), left: u64::MAX, over: false };
            let (mut sum, mut count, mut least, mut most) = (0_i64, 0_u64, i64::MAX, i64::MIN);
            let root = memory.word(header.address);
            descend(memory, root, &mut range, &mut |value| {
                let value = value as i64;
                sum = sum.wrapping_add(value);
                count += 1;
                (least, most) = (least.min(value), most.max(value));
            });
            if count == 0 {
                status = Status::Missing;
            }
            scratch.resize(96, 0);
            for value in [sum as u64, count, least as u64, most as u64] {
                scratch.extend_from_slice(&value.to_le_bytes());
            }
        } else {
            status = Status::BadRequest;
        }
        let mut pieces = 0;
        for piece in self.result.chunks(CHUNK_BYTES) {
            let chunk = Header { kind: Kind::Chunk, piece: pieces, ..header.answer(Status::Done) };
            self.packet.clear();
            chunk.format(piece, &mut self.packet);
            self.transport.send(peer, &self.packet).map_err(|error| error.to_string())?;
            pieces += 1;
        }
        let answer = Header {
            status,
            pieces,
            iterations: header.iterations,
            scratch_bytes: header.scratch_bytes,
            ..answer
        };
        self.packet.clear();
        answer.format(&scratch, &mut self.packet);
        self.transport.send(peer, &self.packet).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Finds a key in a chain and takes its value; returns the value's length.
fn get(memory: &View, head: u64, key: u64, value: &mut Vec<u8>) -> Option<u32> {
    let mut next = memory.word(head) & !1;
    while next != 0 {
        let (link, found) = (memory.word(next), memory.word(next + 8));
        if found == key && link & 1 == 0 {
            let bytes = memory.word(next + 16) as u32;
            memory.copy(next + VALUE_AT, bytes as usize, value);
            return Some(bytes);
        }
        next = link & !1;
    }
    None
}

struct Range {
    first: u64,
    last: u64,
    left: u64,
    over: bool,
}

/// Hands out the entries of the leaves for the keys of a range, in order.
fn descend(memory: &View, node: u64, range: &mut Range, take: &mut impl FnMut(u64)) {
    if node == 0 {
        return;
    }
    let words = memory.words::<32>(node);
    let (count, level) = ((words[0] & 0xffff).min(KEYS), words[0] >> 16 & 0xff);
    let keys = &words[1..1 + count as usize];
    let mut at = keys.partition_point(|&key| key < range.first);
    while !range.over && at < count as usize + usize::from(level != 0) {
        if level != 0 {
            descend(memory, words[16 + at], range, take);
        } else if keys[at] > range.last || range.left == 0 {
            range.over = true;
        } else {
            take(words[16 + at]);
            range.left -= 1;
        }
        at += 1;
    }
}
