// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client as the memory that collections lie in.
//!
//! Flow     reads and writes longer than a packet are cut, and all pieces are under way together; memory is allocated from the
//!          nodes in turn, from the next one when one is full or silent

use super::{Answer, Client, ClientError, Request, Result};
use crate::structures::heap::{Heap, Outcome, Walk, Walked};
use crate::wire::Status;
use memlift_spec::operand::walk::ApplyKind;

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
        // A multiple of eight: aligned words stay whole.
        let most = (self.packet_bytes() & !7).max(8);
        let pieces = writes.iter().flat_map(|(address, bytes)| {
            bytes.chunks(most).enumerate().map(move |(index, piece)| (address + (index * most) as u64, piece))
        });
        let requests: Vec<Request> = pieces.map(|(address, piece)| Request::write(address, piece)).collect();
        self.call_many(requests).into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        self.allocate_anywhere(bytes)
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
        let answer = self.call(request)?;
        match answer.status {
            Status::Applied => Ok(Ok(())),
            _ => Ok(Err(answer.value)),
        }
    }
}
