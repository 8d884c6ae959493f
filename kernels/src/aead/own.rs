// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of one message in order, for our own routines; where aws-lc is used, its cipher context has this role.
//!
//! - **Flow** `restart` ──▶ `aad`* ──▶ `update`* ──▶ `tag`; [`Stream`](super::Stream) ensures the order of the calls.
//! - **Layout** whole blocks go through [`Prepared::pass`]. If a piece ends inside a block, the block's key stream and its sealed bytes
//!   are kept here for the next piece. A nonce of another length than 12 bytes is hashed to the first counter, whose last 32 bits may
//!   have any value, and wrap (SP 800-38D, algorithm 4).
//! - **Owner** overwritten with zeros on drop.

use super::TAG_BYTES;
use super::field::Element;
use super::prepared::{Direction, Prepared, Store};
use super::scatter::first_counter;
use aws_lc_sys as lc;

pub(super) struct Own {
    prepared: Box<Prepared>,
    direction: Direction,
    state: State,
}

/// State of one message between two calls: plain numbers, which `drop` overwrites.
#[derive(Clone, Default)]
struct State {
    first_counter: u128,
    /// The counter block of the next whole block.
    counter: u128,
    /// The hash of the whole blocks so far.
    hash: Element,
    /// The sealed bytes, or the additional data, of the incomplete block, then zeros.
    block: [u8; 16],
    block_bytes: usize,
    /// Key stream of the incomplete block.
    pad: [u8; 16],
    aad_bytes: u64,
    message_bytes: u64,
}

impl Own {
    pub(super) fn new(prepared: Box<Prepared>, direction: Direction) -> Own {
        Own { prepared, direction, state: State::default() }
    }

    /// Replaces the key by another of 16 or 32 bytes.
    pub(super) fn rekey(&mut self, key: &[u8]) {
        self.prepared.fill(key);
    }

    pub(super) fn restart(&mut self, nonce: &[u8]) {
        let first_counter = match <&[u8; 12]>::try_from(nonce) {
            Ok(nonce) => first_counter(nonce),
            Err(_) => {
                let hash = self.prepared.hash(0, nonce);
                u128::from_be_bytes(self.prepared.tag(0, hash, 0, nonce.len() as u64))
            }
        };
        self.state = State { first_counter, counter: after(first_counter, 1), ..State::default() };
    }

    pub(super) fn aad(&mut self, mut bytes: &[u8]) {
        self.state.aad_bytes += bytes.len() as u64;
        if self.state.block_bytes > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(16 - self.state.block_bytes));
            self.absorb(head);
            bytes = rest;
        }
        if self.state.block_bytes == 0 {
            let (whole, rest) = bytes.split_at(bytes.len() & !15);
            self.state.hash = self.prepared.hash(self.state.hash, whole);
            self.absorb(rest);
        }
    }

    /// Adds bytes to the incomplete block, which has room for them, and hashes the block once it is full.
    fn absorb(&mut self, bytes: &[u8]) {
        let state = &mut self.state;
        state.block[state.block_bytes..][..bytes.len()].copy_from_slice(bytes);
        state.block_bytes += bytes.len();
        if state.block_bytes == 16 {
            self.close();
        }
    }

    /// Hashes the incomplete block as it is, filled up with zeros.
    fn close(&mut self) {
        let state = &mut self.state;
        if state.block_bytes > 0 {
            state.hash = self.prepared.hash(state.hash, &state.block);
            state.block = [0; 16];
            state.block_bytes = 0;
        }
    }

    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes; they must be equal or disjoint.
    pub(super) unsafe fn update(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        if self.state.message_bytes == 0 {
            self.close();
        }
        self.state.message_bytes += bytes as u64;
        let mut done = 0;
        // SAFETY: all pieces lie inside the `bytes` bytes that the caller guarantees on both sides.
        unsafe {
            if self.state.block_bytes > 0 {
                done = bytes.min(16 - self.state.block_bytes);
                self.update_partial_block(source, target, done);
            }
            let whole = (bytes - done) & !15;
            if whole > 0 {
                let State { counter, hash, .. } = self.state;
                let way = (self.direction, Store::Cached);
                self.state.hash =
                    self.prepared.pass(way, counter, hash, source.add(done), target.add(done), whole);
                self.state.counter = after(counter, (whole / 16) as u64);
                done += whole;
            }
            if bytes > done {
                self.state.pad = self.prepared.pad(self.state.counter).to_be_bytes();
                self.state.counter = after(self.state.counter, 1);
                self.update_partial_block(source.add(done), target.add(done), bytes - done);
            }
        }
    }

    /// Processes bytes of the incomplete block, which has room for them.
    ///
    /// # Safety
    /// The conditions of [`update`](Own::update).
    unsafe fn update_partial_block(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        let mut sealed = [0; 16];
        let pad = &self.state.pad[self.state.block_bytes..];
        for (i, (sealed, pad)) in sealed.iter_mut().zip(pad).enumerate().take(bytes) {
            // SAFETY: `i` is below `bytes`, so both addresses are in the caller's ranges. Each source byte is read once.
            unsafe {
                let text = source.add(i).read();
                target.add(i).write(text ^ pad);
                *sealed = if self.direction == Direction::Seal { text ^ pad } else { text };
            }
        }
        self.absorb(&sealed[..bytes]);
    }

    pub(super) fn tag(&mut self) -> [u8; TAG_BYTES] {
        self.close();
        let state = &self.state;
        let pad = self.prepared.pad(state.first_counter);
        self.prepared.tag(pad, state.hash, state.aad_bytes, state.message_bytes)
    }
}

/// Returns the counter block that is `blocks` blocks further on: only the last 32 bits count.
fn after(counter: u128, blocks: u64) -> u128 {
    let low = (counter as u32).wrapping_add(blocks as u32);
    counter & !u128::from(u32::MAX) | u128::from(low)
}

impl Clone for Own {
    fn clone(&self) -> Own {
        Own { prepared: self.prepared.duplicate(), direction: self.direction, state: self.state.clone() }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: the state is plain data that this owns and that nobody reads any more.
        unsafe { lc::OPENSSL_cleanse(core::ptr::from_mut(&mut self.state).cast(), size_of::<State>()) };
    }
}
