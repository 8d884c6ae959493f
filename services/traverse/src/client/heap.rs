// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Implements [`Heap`], the memory that collections live in, for a client.
//!
//! - **Flow** reads and writes longer than a packet are split, and all pieces are in flight together. Memory is allocated from
//!   the nodes in turn; a node that is full or silent is skipped

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Answer, Client, ClientError, Request, Result};
use crate::structures::Addend;
use crate::structures::heap::{Heap, Outcome, Swap, Walk, Walked};
use crate::structures::pool::GRACE;
use crate::wire::Status;
use memlift_spec::formats::walk::ApplyKind;

fn walked(answer: Answer) -> Result<Walked> {
    let outcome = match answer.status {
        Status::Done => Outcome::Done,
        Status::Missing => Outcome::Missing,
        Status::Applied => Outcome::Applied(answer.value),
        Status::Differs => Outcome::Differs(answer.value),
        status => return Err(ClientError::Rejected { status, reason: "no answer to a walk".to_owned() }),
    };
    let scratch = crate::structures::Scratch(answer.body);
    Ok(Walked { outcome, scratch, result: answer.result, since: answer.since })
}

/// Returns the result of a compare-and-swap: success, or the value that was there instead.
fn swapped(answer: Result<Answer>) -> Result<std::result::Result<(), u64>> {
    let answer = answer?;
    Ok(if answer.status == Status::Applied { Ok(()) } else { Err(answer.value) })
}

/// Longest pause before full nodes are asked again.
const REST: Duration = Duration::from_millis(250);
/// Most blocks in one request.
const PLACES: usize = 64;
/// Bytes allocated from one node before the next node's turn, so that memory allocated together lies together.
const TURN_BYTES: u64 = 64 << 10;

/// Returns the addresses in the answer to [`Request::place`].
fn blocks(answer: &Answer, count: usize) -> Result<Vec<u64>> {
    let words = answer.body.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let all: Vec<u64> = words.collect();
    let missing = ClientError::Corrupt { address: answer.address, what: "address for each block" };
    if all.len() == count { Ok(all) } else { Err(missing) }
}

impl Client {
    /// Asks the node whose turn it is for `bytes` bytes, then the next ones if nodes are full or silent. If all are full and
    /// retired memory will be free soon, waits for that. Adds `turn_bytes` to the bytes of the node's turn.
    fn in_turn(&mut self, bytes: u64, turn_bytes: u64, request: impl Fn(usize) -> Request) -> Result<Answer> {
        let begun = Instant::now();
        loop {
            let mut soonest: Option<Duration> = None;
            let (mut is_full, mut silent) = (false, None);
            // If no node seems to be alive, all are asked anyway: they may only be slow.
            for asks_all in [false, true] {
                for _ in 0..self.nodes() {
                    let node = self.node_in_turn();
                    if asks_all || self.is_there(node)? {
                        match self.call(request(node)) {
                            Ok(answer) => {
                                self.turn_bytes += turn_bytes;
                                if self.turn_bytes >= TURN_BYTES {
                                    (self.turn_bytes, self.next_node) = (0, node + 1);
                                }
                                return Ok(answer);
                            }
                            Err(ClientError::Resting { wait, .. }) => {
                                soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
                            }
                            Err(ClientError::Full { .. }) => is_full = true,
                            Err(error @ (ClientError::Silent { .. } | ClientError::Busy(_))) => {
                                self.mark_silent(node);
                                silent = Some(error);
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    (self.turn_bytes, self.next_node) = (0, node + 1);
                }
                if is_full || soonest.is_some() || silent.is_some() {
                    break;
                }
            }
            match soonest {
                // At most twice the grace time, because others may take the memory that becomes free.
                Some(wait) if begun.elapsed() < 2 * GRACE => self.rest(wait.min(REST))?,
                None if !is_full => return Err(silent.unwrap_or(ClientError::Full { bytes })),
                _ => return Err(ClientError::Full { bytes }),
            }
        }
    }
}

impl Heap for Client {
    fn walk(&mut self, walk: &Walk) -> Result<Walked> {
        walked(self.call(Request::walk(walk))?)
    }

    fn walk_many(&mut self, walks: &[Walk]) -> Vec<Result<Walked>> {
        self.call_many(walks.iter().map(Request::walk)).into_iter().map(|answer| walked(answer?)).collect()
    }

    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        self.read_since(address, bytes, 0)
    }

    fn read_since(&mut self, address: u64, bytes: usize, since: u32) -> Result<Vec<u8>> {
        let most = self.packet_bytes();
        let piece = |at: usize| Request::read(address + at as u64, most.min(bytes - at)).since(since);
        let mut read = Vec::with_capacity(bytes);
        for answer in self.call_many((0..bytes).step_by(most.max(1)).map(piece)) {
            read.extend_from_slice(&answer?.body);
        }
        if read.len() != bytes {
            return Err(ClientError::Corrupt { address, what: "answer of as many bytes as were asked for" });
        }
        Ok(read)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.write_many(&[(address, bytes.to_vec())])
    }

    fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()> {
        // A multiple of eight, so that no aligned word is split.
        let most = (self.packet_bytes() & !7).max(8);
        let pieces = writes.iter().flat_map(|(address, bytes)| {
            bytes.chunks(most).enumerate().map(move |(index, piece)| (address + (index * most) as u64, piece))
        });
        let requests: Vec<Request> = pieces.map(|(address, piece)| Request::write(address, piece)).collect();
        self.call_many(requests).into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        // A single allocation ends the node's turn: the next one is made at the next node.
        self.in_turn(bytes, TURN_BYTES, |node| Request::allocate(node, bytes)).map(|answer| answer.address)
    }

    fn allocate_many(&mut self, count: usize, bytes: u64) -> Result<Vec<u64>> {
        let mut addresses = Vec::with_capacity(count);
        while addresses.len() < count {
            let some = (count - addresses.len()).min(PLACES) as u32;
            let request = |node| Request::place(node, bytes, some, &[]);
            let all = bytes * u64::from(some);
            let answer = self.in_turn(all, all, request);
            let got = answer.and_then(|answer| blocks(&answer, some as usize));
            match got {
                Ok(got) => addresses.extend(got),
                Err(error) => {
                    for address in addresses {
                        let _ = self.free(address, bytes);
                    }
                    return Err(error);
                }
            }
        }
        Ok(addresses)
    }

    fn walk_and_allocate(&mut self, walk: &Walk, count: usize, bytes: u64) -> Result<(Walked, Vec<u64>)> {
        if count == 0 || count > PLACES {
            let walked = self.walk(walk)?;
            return Ok((walked, self.allocate_many(count, bytes)?));
        }
        let node = self.node_in_turn();
        if !self.is_there(node)? {
            let walked = self.walk(walk)?;
            return Ok((walked, self.allocate_many(count, bytes)?));
        }
        let walk = self.submit(Request::walk(walk))?;
        let memory = self.submit(Request::place(node, bytes, count as u32, &[]));
        let walk = self.result(walk).and_then(walked);
        let addresses = match self.result(memory?) {
            Ok(answer) => blocks(&answer, count)?,
            Err(ClientError::Full { .. } | ClientError::Resting { .. }) => {
                self.allocate_many(count, bytes)?
            }
            Err(ClientError::Silent { .. } | ClientError::Busy(_)) => {
                self.mark_silent(node);
                self.allocate_many(count, bytes)?
            }
            Err(error) => return Err(error),
        };
        match walk {
            Ok(walked) => Ok((walked, addresses)),
            Err(error) => {
                for address in addresses {
                    let _ = self.free(address, bytes);
                }
                Err(error)
            }
        }
    }

    fn place(&mut self, bytes: &[u8]) -> Result<u64> {
        let first = &bytes[..bytes.len().min(self.packet_bytes() & !7)];
        let length = bytes.len() as u64;
        let address = self.in_turn(length, length, |node| Request::place(node, length, 1, first))?.address;
        if first.len() < bytes.len() {
            self.write(address + first.len() as u64, &bytes[first.len()..])?;
        }
        Ok(address)
    }

    fn place_many(&mut self, blocks: &[Vec<u8>]) -> Vec<Result<u64>> {
        let packet = self.packet_bytes() & !7;
        let node = self.node_in_turn();
        let together = matches!(self.is_there(node), Ok(true));
        let requests: Vec<Request> = blocks
            .iter()
            .filter(|bytes| together && bytes.len() <= packet)
            .map(|bytes| Request::place(node, bytes.len() as u64, 1, bytes))
            .collect();
        let mut answers = self.call_many(requests).into_iter();
        let placed = blocks
            .iter()
            .map(|bytes| {
                let answer = if together && bytes.len() <= packet { answers.next() } else { None };
                match answer {
                    Some(Ok(answer)) => {
                        self.turn_bytes += bytes.len() as u64;
                        Ok(answer.address)
                    }
                    // The next nodes may have room, or this one may have room soon.
                    None | Some(Err(ClientError::Full { .. } | ClientError::Resting { .. })) => {
                        self.place(bytes)
                    }
                    Some(Err(ClientError::Silent { .. } | ClientError::Busy(_))) => {
                        self.mark_silent(node);
                        self.place(bytes)
                    }
                    Some(Err(error)) => Err(error),
                }
            })
            .collect();
        if self.turn_bytes >= TURN_BYTES {
            (self.turn_bytes, self.next_node) = (0, node + 1);
        }
        placed
    }

    fn retire(&mut self, blocks: &[(u64, u64)]) -> Result<()> {
        let mut by_node: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for &block in blocks {
            by_node.entry(self.route(block.0)?).or_default().push(block);
        }
        for blocks in by_node.values().flat_map(|blocks| blocks.chunks(PLACES)) {
            // No caller waits for the answer; the client repeats the request until an answer comes.
            let ticket = self.submit(Request::retire(blocks))?;
            self.abandon(ticket);
        }
        self.flush()
    }

    fn declare(&mut self, address: u64) -> Result<()> {
        self.call(Request::declare(address)).map(|_| ())
    }

    fn settle(&mut self) -> Result<()> {
        // Ends: an unanswered request is given up at its deadline.
        while self.under_way() > 0 {
            if self.poll()? == 0 {
                self.pause(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }

    fn read_many(&mut self, pieces: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let most = self.packet_bytes();
        if pieces.iter().any(|(_, bytes)| *bytes > most) {
            return pieces.iter().map(|&(address, bytes)| self.read(address, bytes)).collect();
        }
        let requests = pieces.iter().map(|&(address, bytes)| Request::read(address, bytes));
        self.call_many(requests).into_iter().map(|answer| answer.map(|answer| answer.body)).collect()
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<()> {
        self.call(Request::free(address, bytes)).map(|_| ())
    }

    fn compare_swap(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
    ) -> Result<std::result::Result<(), u64>> {
        self.compare_swap_since(address, expected, fresh, 0)
    }

    fn clock(&mut self) -> u32 {
        self.heard.now()
    }

    fn compare_swap_since(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
        since: u32,
    ) -> Result<std::result::Result<(), u64>> {
        let request = Request::apply(ApplyKind::CompareSwap, address, expected, fresh).since(since);
        swapped(self.call(request))
    }

    fn compare_swap_many(&mut self, swaps: &[Swap]) -> Vec<Result<std::result::Result<(), u64>>> {
        let request = |one: &Swap| {
            Request::apply(ApplyKind::CompareSwap, one.address, one.expected, one.fresh).since(one.since)
        };
        let answers = self.call_many(swaps.iter().map(request));
        answers.into_iter().map(swapped).collect()
    }

    /// Waits for `time`, and handles packets that arrive meanwhile.
    fn rest(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.poll()? == 0 {
                self.pause(left.min(Duration::from_millis(10)))?;
            }
        }
    }

    fn fetch_add(&mut self, address: u64, addend: Addend) -> Result<u64> {
        let (bits, how) = addend.operands();
        let answer = self.call(Request::apply(ApplyKind::FetchAdd, address, bits, how))?;
        if answer.status == Status::Differs { Err(addend.overflow(answer.value)) } else { Ok(answer.value) }
    }
}
