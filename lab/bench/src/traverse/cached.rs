// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rival "Cache": a client that reads node by node and keeps what it read.
//!
//! - **Flow** questions ─▶ so many walkers under way ─▶ each steps on pieces that are cached, until one is missing: a read ─▶ answer: the
//!   piece is kept, its walker steps on
//! - **Order** the cache has room for [`SHARE`] of all pieces; before anything is timed it has turned over twice, by walks that read the
//!   memory itself
//! - **Check** as `drive`: one checksum over all answers

use std::sync::Arc;
use std::time::{Duration, Instant};

use memlift_traverse::node::Node;
use memlift_traverse::program::Program;
use memlift_traverse::wire::{Header, Kind, Packet, Status};

use super::drive::{Ask, Ran, share};
use super::lru::Lru;
use super::serve::{Handler, Link, failed};
use super::view::View;
use crate::{BenchError, machine};

/// Share of all pieces that the cache holds.
pub const SHARE: f64 = 0.06;
const BATCH: usize = 64;
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS_MAX: u32 = 25;

/// Most bytes that a native handler reads at once: a page.
pub const READ_BYTES_MAX: u64 = 4096;

/// Follows a structure at the client.
pub trait Walker<Piece> {
    /// Where the piece lies that the next step needs.
    fn place(&self) -> u64;
    /// Takes a step; the value, if it was the last one.
    fn step(&mut self, piece: &Piece) -> Option<u64>;
}

/// Data on one node, and numbered questions about it.
pub trait Data {
    /// Unit that a client reads at once.
    type Piece: Copy + Default + AsRef<[u64]> + AsMut<[u64]>;
    /// Type that follows the data at a client.
    type Walker: Walker<Self::Piece>;
    /// Returns the memory node.
    fn node(&self) -> &Node;
    /// Returns the node's memory, for native code.
    fn view(&self) -> &View;
    /// The program of the walks, and where its value lies in the scratchpad.
    fn program(&self) -> (Arc<Program>, usize);
    /// How many questions there are.
    fn questions(&self) -> u64;
    /// How many pieces there are.
    fn pieces(&self) -> u64;
    /// A question to a node, and the right answer.
    fn ask(&self, number: u64) -> (Ask, u64);
    /// The same for a client that walks itself.
    fn walker(&self, number: u64) -> Self::Walker;
    /// The same natively, and reads.
    fn handler(&self) -> Box<dyn Handler>;
}

/// A client with a cache.
pub struct Reader<'d, D: Data> {
    data: &'d D,
    link: Link,
    cache: Lru<D::Piece>,
    turn: u64,
    packet: Vec<u8>,
}

/// A walker under way: its question's number in the run, and the sequence of the read that it waits for.
struct Way<W> {
    number: usize,
    walker: W,
    sequence: u64,
}

impl<'d, D: Data> Reader<'d, D> {
    /// Reads over this link.
    pub fn new(data: &'d D, link: Link) -> Reader<'d, D> {
        let cache = Lru::new((data.pieces() as f64 * SHARE) as usize);
        Reader { data, link, cache, turn: 0, packet: Vec::new() }
    }

    /// Fills the cache as these questions do, until it has turned over twice.
    pub fn warm(&mut self, mut questions: impl FnMut() -> u64) {
        let (mut kept, enough) = (0, (self.data.pieces() as f64 * SHARE * 2.0) as u64);
        let mut bytes = Vec::new();
        // Questions whose pieces are all cached fill nothing, so their number is bounded.
        for _ in 0..self.data.questions() {
            if kept >= enough {
                break;
            }
            let mut walker = self.data.walker(questions());
            loop {
                let place = walker.place();
                let piece = self.cache.get(place).unwrap_or_else(|| {
                    bytes.clear();
                    self.data.view().copy(place, size_of::<D::Piece>(), &mut bytes);
                    let piece = piece_of::<D::Piece>(&bytes);
                    self.cache.put(place, piece);
                    kept += 1;
                    piece
                });
                if walker.step(&piece).is_some() {
                    break;
                }
            }
        }
    }

    /// Answers all questions, `out` at a time. Returns the run, with `again` counting reads sent again, and the number of reads
    /// without those.
    pub fn run(&mut self, questions: &[u64], out: usize) -> Result<(Ran, u64), BenchError> {
        let (mut ran, mut messages) = (Ran::default(), 0);
        let (cpu, start) = (machine::cpu_seconds(), Instant::now());
        let mut ways: Vec<Way<D::Walker>> = Vec::new();
        let (mut next, mut heard, mut attempt) = (0, start, 0);
        let mut due: Vec<usize> = Vec::new();
        while next < questions.len().min(out) {
            ways.push(Way { number: next, walker: self.data.walker(questions[next]), sequence: 0 });
            due.push(next);
            next += 1;
        }
        let mut open = ways.len();
        while open > 0 {
            for slot in due.drain(..) {
                loop {
                    let place = ways[slot].walker.place();
                    let Some(piece) = self.cache.get(place) else {
                        self.turn += 1;
                        ways[slot].sequence = self.turn * out as u64 + slot as u64 + 1;
                        self.read(ways[slot].sequence, place, 0)?;
                        messages += 1;
                        break;
                    };
                    let Some(value) = ways[slot].walker.step(&piece) else { continue };
                    ran.checksum = ran.checksum.wrapping_add(share(ways[slot].number as u64, value));
                    if next == questions.len() {
                        ways[slot].sequence = 0;
                        open -= 1;
                        break;
                    }
                    ways[slot] = Way { number: next, walker: self.data.walker(questions[next]), sequence: 0 };
                    next += 1;
                }
            }
            if open == 0 {
                break;
            }
            self.link.transport.flush().map_err(failed)?;
            let (cache, mut wrong) = (&mut self.cache, None);
            let got = self.link.transport.receive(BATCH, &mut |_, bytes| {
                let Ok(packet) = Packet::parse(bytes) else { return };
                let sequence = packet.header.sequence;
                let slot = (sequence.wrapping_sub(1) % out as u64) as usize;
                match ways.get(slot) {
                    Some(way) if way.sequence == sequence => {
                        if packet.header.status != Status::Done || packet.body.len() != size_of::<D::Piece>()
                        {
                            wrong = Some(format!("{:?}", packet.header.status));
                            return;
                        }
                        cache.put(way.walker.place(), piece_of(packet.body));
                        due.push(slot);
                    }
                    _ => {} // an answer that has come twice
                }
            });
            let got = got.map_err(failed)?;
            if let Some(answer) = wrong {
                return Err(BenchError::Answer { program: "a server of the row".to_owned(), answer });
            }
            if got > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > AGAIN {
                attempt += 1;
                if attempt > ATTEMPTS_MAX {
                    return Err(failed("a server of the row does not answer"));
                }
                for way in ways.iter().filter(|way| way.sequence != 0) {
                    self.read(way.sequence, way.walker.place(), attempt)?;
                    ran.again += 1;
                }
                heard = Instant::now();
            } else {
                self.link.transport.wait(Duration::from_millis(1)).map_err(failed)?;
            }
        }
        ran.seconds = start.elapsed().as_secs_f64();
        ran.cpu_s = machine::cpu_seconds() - cpu;
        Ok((ran, messages))
    }

    fn read(&mut self, sequence: u64, place: u64, attempt: u32) -> Result<(), BenchError> {
        let header = Header {
            client: 1,
            sequence,
            attempt,
            settled: 1,
            address: place,
            value: size_of::<D::Piece>() as u64,
            ..Header::new(Kind::Read)
        };
        self.packet.clear();
        header.format(&[], &mut self.packet);
        self.link.transport.send(self.link.to, &self.packet).map_err(failed)?;
        Ok(())
    }
}

fn piece_of<Piece: Default + AsMut<[u64]>>(bytes: &[u8]) -> Piece {
    let mut piece = Piece::default();
    for (word, bytes) in piece.as_mut().iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    piece
}
