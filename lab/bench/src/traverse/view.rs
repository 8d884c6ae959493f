// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's memory as native code reads it: the rivals' handlers and the reference loops walk on it.
//!
//! - **Order** reads are plain loads of aligned words; no thread writes while a view is read: rows fill memory before they ask
//! - **Owner** a view holds the memory that it shows

use std::sync::Arc;

use memlift_traverse::memory::Memory;

use crate::BenchError;

/// A node's first stretch of memory.
#[derive(Clone, Debug)]
pub struct View {
    _memory: Arc<Memory>,
    base: u64,
    bytes: u64,
    host: usize,
}

impl View {
    /// Shows the whole stretch that a node was made with.
    pub fn new(memory: &Arc<Memory>) -> View {
        let (base, bytes) = (memory.base(), memory.bytes());
        View { host: memory.host(base).expose_provenance(), base, bytes, _memory: Arc::clone(memory) }
    }

    /// First address, and where it is mapped.
    pub fn origin(&self) -> (u64, *const u8) {
        (self.base, std::ptr::with_exposed_provenance(self.host))
    }

    /// `N` words from an address on.
    ///
    /// # Panics
    /// When they do not lie in the memory, or the address is no multiple of eight.
    #[inline]
    pub fn words<const N: usize>(&self, address: u64) -> [u64; N] {
        let offset = address.wrapping_sub(self.base);
        let inside = offset < self.bytes && N as u64 * 8 <= self.bytes - offset;
        assert!(inside && offset.is_multiple_of(8), "{address:#x} is no word of this node");
        let place: *const [u64; N] = std::ptr::with_exposed_provenance(self.host + offset as usize);
        // SAFETY: all N words lie in the mapping (asserted), which `_memory` keeps and which starts at a page, so they are aligned;
        // nobody writes to them now (see the module's Order).
        unsafe { place.read() }
    }

    /// Returns the word at an address.
    #[inline]
    pub fn word(&self, address: u64) -> u64 {
        self.words::<1>(address)[0]
    }

    /// Appends `bytes` from an address on.
    ///
    /// # Panics
    /// When they do not lie in the memory.
    #[inline]
    pub fn copy(&self, address: u64, bytes: usize, target: &mut Vec<u8>) {
        let offset = address.wrapping_sub(self.base);
        assert!(
            offset < self.bytes && bytes as u64 <= self.bytes - offset,
            "{address:#x} is not this node's"
        );
        let place: *const u8 = std::ptr::with_exposed_provenance(self.host + offset as usize);
        // SAFETY: all of them lie in the mapping (asserted), which `_memory` keeps; nobody writes to them now.
        target.extend_from_slice(unsafe { std::slice::from_raw_parts(place, bytes) });
    }
}

mod c {
    use core::ffi::c_uchar;

    use super::Question;

    unsafe extern "C" {
        pub fn memlift_reference_walks(
            host: *const c_uchar,
            base: u64,
            questions: *const Question,
            count: usize,
            width: usize,
        ) -> u64;
    }
}

/// Question to the reference loop: a bucket, and a key of its chain.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Question {
    /// The bucket's address.
    pub bucket: u64,
    /// A key in its chain.
    pub key: u64,
}

/// The reference loop of limits/walks.c, `width` walks in turn; the sum of the values found.
///
/// # Errors
/// A bucket that is none of this memory.
pub fn reference_walks(view: &View, questions: &[Question], width: usize) -> Result<u64, BenchError> {
    let inside = |question: &Question| question.bucket.wrapping_sub(view.base) <= view.bytes - 8;
    if !questions.iter().all(inside) {
        return Err(BenchError::Engine { reason: "a bucket outside of the memory".to_owned() });
    }
    let (base, host) = view.origin();
    // SAFETY: buckets lie in the mapping (checked); they and the nodes behind them were laid out by `chains`, whose addresses all
    // do; nobody writes meanwhile; the routine only reads, and `questions` holds as many as it is told.
    Ok(unsafe { c::memlift_reference_walks(host, base, questions.as_ptr(), questions.len(), width) })
}
