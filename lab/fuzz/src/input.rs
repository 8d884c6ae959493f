// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Choices out of bytes, and buffers that show a write outside of them.
//!
//! - **Order** bytes that are not there any more are zeros: every input means something

/// Bytes that are used up from the front.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(data)
    }

    /// Returns true if all is used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes.
    pub fn word(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// Up to `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as the next word says, below `most`.
    pub fn piece(&mut self, most: usize) -> &'a [u8] {
        let count = self.word() % most;
        self.take(count)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// One of `of`.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }
}

const GUARD: u8 = 0xa7;
const GUARD_BYTES: usize = 64;

/// A buffer between two guards.
#[derive(Debug)]
pub struct Guarded(Vec<u8>);

impl Guarded {
    /// `bytes` bytes that hold `fill`.
    pub fn new(bytes: usize, fill: u8) -> Guarded {
        let mut all = vec![GUARD; bytes + 2 * GUARD_BYTES];
        all[GUARD_BYTES..GUARD_BYTES + bytes].fill(fill);
        Guarded(all)
    }

    /// Returns the buffer between the guards.
    pub fn get(&mut self) -> &mut [u8] {
        let end = self.0.len() - GUARD_BYTES;
        &mut self.0[GUARD_BYTES..end]
    }

    /// The buffer, once nothing outside of it was written.
    ///
    /// # Panics
    ///
    /// Otherwise.
    pub fn checked(&self) -> &[u8] {
        let (front, rest) = self.0.split_at(GUARD_BYTES);
        let (buffer, back) = rest.split_at(rest.len() - GUARD_BYTES);
        assert!(front.iter().chain(back).all(|&byte| byte == GUARD), "written outside of the target");
        buffer
    }
}
