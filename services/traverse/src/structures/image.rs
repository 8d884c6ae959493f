// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A range of global addresses in this process: for building structures that are then sent to a node unchanged, and for walks
//! without a node.
//!
//! - **Layout** the bytes of addresses `base` to `base + len`; memory is allocated from the start on, at multiples of 64
//! - **Order** walks are run by the checking interpreter, one after the other: their answers are those that any node must give
//! - **Owner** one thread
//! - **Not here** joining of free blocks: a freed block is only reused for the same size. Retired memory is never reused, except
//!   with [`Image::reuse`]

use std::collections::HashMap;

use super::heap::{Heap, Outcome, Scratch, Walk, Walked};
use crate::client::{ClientError, Result};
use crate::interp::Checked;
use crate::step::{self, Verdict};
use crate::verify::FUEL;
use memlift_spec::formats::walk::ApplyKind;

/// Iterations after which a walk is stopped.
const ITERATIONS_MAX: u32 = 1 << 22;

/// See the module's header.
#[derive(Debug)]
pub struct Image {
    base: u64,
    bytes: Vec<u8>,
    used: usize,
    free: HashMap<u64, Vec<u64>>,
    /// Steps of all walks so far.
    pub steps: u64,
    /// Number of walks so far.
    pub walks: u64,
    /// True: retired memory becomes free immediately, for a single user whose walks are over by then.
    pub reuse: bool,
}

impl Image {
    /// Makes an image of `bytes` zeros from address `base` on.
    #[must_use]
    pub fn new(base: u64, bytes: usize) -> Image {
        Image { base, bytes: vec![0; bytes], used: 0, free: HashMap::new(), steps: 0, walks: 0, reuse: false }
    }

    /// Returns the first address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the bytes from the first address to the end of all memory that was ever allocated.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    fn at(&self, address: u64, bytes: usize) -> Result<usize> {
        let nowhere = ClientError::Nowhere { address, epoch: 0 };
        let start = address.checked_sub(self.base).and_then(|start| usize::try_from(start).ok());
        match start {
            Some(start) if start.checked_add(bytes).is_some_and(|end| end <= self.bytes.len()) => Ok(start),
            _ => Err(nowhere),
        }
    }

    /// Returns the bytes at an address.
    ///
    /// # Errors
    /// [`ClientError::Nowhere`]
    pub fn get(&self, address: u64, bytes: usize) -> Result<&[u8]> {
        let start = self.at(address, bytes)?;
        Ok(&self.bytes[start..start + bytes])
    }

    fn word(&self, address: u64) -> Result<u64> {
        Ok(u64::from_le_bytes(self.get(address, 8)?.try_into().expect("eight bytes")))
    }

    fn set(&mut self, address: u64, value: u64) -> Result<()> {
        let start = self.at(address, 8)?;
        self.bytes[start..start + 8].copy_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn apply(&mut self, walk: &step::Walk) -> Result<Outcome> {
        let old = self.word(walk.address)?;
        match ApplyKind::from_number(walk.apply) {
            Some(ApplyKind::CompareSwap) if old != walk.a => return Ok(Outcome::Differs(old)),
            Some(ApplyKind::CompareSwap) => self.set(walk.address, walk.b)?,
            Some(ApplyKind::FetchAdd) => self.set(walk.address, old.wrapping_add(walk.a))?,
            None => {
                let reason = format!("a change of kind {}", walk.apply);
                return Err(ClientError::Rejected { status: crate::wire::Status::BadRequest, reason });
            }
        }
        Ok(Outcome::Applied(old))
    }
}

impl Heap for Image {
    fn walk(&mut self, request: &Walk) -> Result<Walked> {
        self.walks += 1;
        let (program, window) = (&request.program, request.program.window());
        let mut scratch = request.scratch.0.clone();
        scratch.resize(program.scratch_bytes(), 0);
        let (mut cur, mut result) = (request.start, Vec::new());
        for _ in 0..ITERATIONS_MAX {
            let first = cur.wrapping_add_signed(i64::from(window.first));
            let node = self.get(first, usize::from(window.bytes))?.to_vec();
            let mut walk = step::Walk { fuel: FUEL, ..step::Walk::default() };
            let stepped = Checked::new(&node, i64::from(window.first), &mut scratch, &mut walk)
                .step(program.function())
                .unwrap_or_else(|broken| panic!("the verifier let {} do this: {broken}", program.name()));
            self.steps += 1;
            let done = |outcome, scratch, result| {
                Ok(Walked { outcome, scratch: Scratch(scratch), result, since: 0 })
            };
            match Verdict::from_return(stepped) {
                Verdict::Next => {}
                Verdict::Emit => {
                    let (from, bytes) = (walk.emit_offset as usize, walk.emit_bytes as usize);
                    let fault = ClientError::Fault {
                        program: program.name().to_owned(),
                        address: cur,
                        verdict: Verdict::BadEmit,
                    };
                    let end = from.checked_add(bytes).filter(|&end| end <= scratch.len()).ok_or(fault)?;
                    result.extend_from_slice(&scratch[from..end]);
                }
                Verdict::Done => return done(Outcome::Done, scratch, result),
                Verdict::Missing => return done(Outcome::Missing, scratch, result),
                Verdict::Apply => {
                    let outcome = self.apply(&walk)?;
                    return done(outcome, scratch, result);
                }
                Verdict::Retry => return Err(ClientError::Contended { what: "a walk", times: 1 }),
                verdict => {
                    return Err(ClientError::Fault {
                        program: program.name().to_owned(),
                        address: cur,
                        verdict,
                    });
                }
            }
            cur = walk.next;
        }
        Err(ClientError::Budget { program: program.name().to_owned(), iterations: ITERATIONS_MAX })
    }

    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        Ok(self.get(address, bytes)?.to_vec())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let start = self.at(address, bytes.len())?;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        let bytes = bytes.next_multiple_of(64);
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(address);
        }
        let full = ClientError::Full { bytes };
        let end = usize::try_from(bytes).ok().and_then(|bytes| self.used.checked_add(bytes));
        // A program's window may extend past its node, so some bytes stay unused behind the last one.
        let end = end.filter(|end| end + 256 <= self.bytes.len()).ok_or(full)?;
        let address = self.base + self.used as u64;
        self.used = end;
        Ok(address)
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<()> {
        self.at(address, bytes as usize)?;
        self.free.entry(bytes.next_multiple_of(64)).or_default().push(address);
        Ok(())
    }

    fn retire(&mut self, blocks: &[(u64, u64)]) -> Result<()> {
        match self.reuse {
            true => blocks.iter().try_for_each(|&(address, bytes)| self.free(address, bytes)),
            false => Ok(()),
        }
    }

    fn compare_swap(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
    ) -> Result<std::result::Result<(), u64>> {
        let old = self.word(address)?;
        if old != expected {
            return Ok(Err(old));
        }
        self.set(address, fresh)?;
        Ok(Ok(()))
    }
}
