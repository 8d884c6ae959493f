// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One AES-GCM message whose blocks arrive in any order, as the cache lines of SmartDIMM do (Patel et al., CompCpy).
//!
//! - **Flow** `seal`/`open` ──▶ `update(at, …)`*, in any order ──▶ `tag(length)` ──▶ `restart(nonce, aad)` ──▶ …
//! - **Layout** the counter follows from a block's position. In the hash, block j of n is multiplied by H^(n+1−j), and n is not known
//!   until the end. So each range is hashed by itself, divided by H to the power of its last block's position, and added; `tag`
//!   multiplies the sum by H to the power of the number of blocks. (If H is zero, every product is zero.)
//! - **Order** each byte may be given once: a second time would encrypt two texts with the same key stream, and is refused. Ranges begin
//!   at multiples of 16; only the last one of the message may end between two multiples.
//! - **Owner** the key outlives the message. Nothing is allocated per range while the message has few holes, see
//!   [`Coverage`](super::coverage).

use super::coverage::Coverage;
use super::field::Element;
use super::prepared::{Direction, Prepared, Store};
use super::{Key, NONCE_BYTES, Refused, TAG_BYTES, allowed};
use aws_lc_sys as lc;

/// A message that is sealed or opened by ranges in any order.
///
/// An opening message writes plaintext that is not verified before the tag is: use none of it until then.
pub struct Scatter<'key> {
    prepared: &'key Prepared,
    direction: Direction,
    /// The counter block before that of block 0, as a number.
    counter: u128,
    aad_hash: Element,
    aad_bytes: u64,
    /// Sum over all ranges: hash · H^−(position of the last block).
    sum: Element,
    coverage: Coverage,
}

impl<'key> Scatter<'key> {
    /// Begins a message to encrypt.
    pub fn seal(key: &'key Key, nonce: &[u8; NONCE_BYTES], aad: &[u8]) -> Scatter<'key> {
        Scatter::begin(key, Direction::Seal, nonce, aad)
    }

    /// Begins a message to decrypt.
    pub fn open(key: &'key Key, nonce: &[u8; NONCE_BYTES], aad: &[u8]) -> Scatter<'key> {
        Scatter::begin(key, Direction::Open, nonce, aad)
    }

    fn begin(key: &'key Key, direction: Direction, nonce: &[u8; NONCE_BYTES], aad: &[u8]) -> Scatter<'key> {
        let mut scatter = Scatter {
            prepared: key.prepared(),
            direction,
            counter: 0,
            aad_hash: 0,
            aad_bytes: 0,
            sum: 0,
            coverage: Coverage::default(),
        };
        scatter.restart(nonce, aad);
        scatter
    }

    /// Begins the next message with the same key and direction; the last message need not be finished.
    pub fn restart(&mut self, nonce: &[u8; NONCE_BYTES], aad: &[u8]) {
        self.counter = first_counter(nonce);
        self.aad_hash = self.prepared.hash(0, aad);
        self.aad_bytes = aad.len() as u64;
        self.sum = 0;
        self.coverage.clear();
    }

    /// Encrypts or decrypts the `bytes` bytes of the message that begin at its byte `at`, a multiple of 16. A refused range
    /// changes nothing.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    pub unsafe fn update(
        &mut self,
        at: u64,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), Refused> {
        if !at.is_multiple_of(16) {
            return Err(Refused::Misaligned);
        }
        allowed(source.addr(), target.addr(), bytes, at)?;
        if bytes == 0 {
            return Ok(());
        }
        if !self.coverage.add(at..at + bytes as u64) {
            return Err(Refused::Repeated);
        }
        let block = at / 16;
        let counter = self.counter + 1 + u128::from(block);
        // SAFETY: the caller guarantees `bytes` bytes on both sides; they are equal or disjoint, as checked.
        let hash =
            unsafe { self.prepared.pass((self.direction, Store::Cached), counter, 0, source, target, bytes) };
        let last_block = block + bytes.div_ceil(16) as u64 - 1;
        self.sum ^= self.prepared.divide_by_power(hash, last_block);
        Ok(())
    }

    /// Returns the tag of a message of `message_bytes` bytes, or [`Refused::Missing`] unless exactly these bytes were given.
    /// After opening, the caller compares it with the tag that came with the message, by [`tags_equal`](super::tags_equal).
    pub fn tag(&self, message_bytes: u64) -> Result<[u8; TAG_BYTES], Refused> {
        if !self.coverage.is_up_to(message_bytes) {
            return Err(Refused::Missing);
        }
        let blocks = message_bytes.div_ceil(16);
        let hash = match blocks {
            0 => self.aad_hash,
            _ => {
                let aad = self.prepared.multiply(self.aad_hash, self.prepared.power(1));
                self.prepared.multiply(aad ^ self.sum, self.prepared.power(blocks - 1))
            }
        };
        let pad = self.prepared.pad(self.counter);
        Ok(self.prepared.tag(pad, hash, self.aad_bytes, message_bytes))
    }
}

/// Returns the counter block that encrypts the hash, as a number; block 0 of the message has the next one.
pub(super) fn first_counter(nonce: &[u8; NONCE_BYTES]) -> u128 {
    let mut counter = [0; 16];
    counter[..NONCE_BYTES].copy_from_slice(nonce);
    counter[15] = 1;
    u128::from_be_bytes(counter)
}

impl Drop for Scatter<'_> {
    fn drop(&mut self) {
        // Both numbers depend on H and would help to forge tags. SAFETY: plain numbers of this struct, borrowed mutably.
        unsafe {
            for number in [&mut self.aad_hash, &mut self.sum] {
                lc::OPENSSL_cleanse(core::ptr::from_mut(number).cast(), size_of::<Element>());
            }
        }
    }
}

impl core::fmt::Debug for Scatter<'_> {
    /// Shows direction and progress, and no secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scatter")
            .field("direction", &self.direction)
            .field("coverage", &self.coverage)
            .finish_non_exhaustive()
    }
}
