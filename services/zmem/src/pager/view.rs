// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The view of a pager: addresses of its tables, by which another process finds pages that are absent.
//!
//! - **Layout** 15 words of 8 bytes in the pager's memory ([`View`]); the process's slot in the registry has its address
//! - **Order** the words are written before the slot has the address; those of the spill file when there is one
//! - **Not here** the reader ([`super::outside`])

use std::sync::atomic::{AtomicU64, Ordering};

use super::{ARENA_BASE, Mechanism, Pager};

/// First word of a view.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"memlview");
/// Version of everything that a reader relies on: these words, entries, records of chunks, words of handles, packed pages
/// and checksums. Incremented with each change of one of them.
pub(super) const VERSION: u64 = 1;
/// Number of words.
pub(super) const WORDS: usize = 15;

/// Addresses in this process, for a reader in another one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct View {
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<View>() == 8 * WORDS);

/// The words of a view.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// Number of bytes of the arena.
    pub arena_bytes: u64,
    /// 1 if pages are made absent by taking their access away.
    pub revokes_access: u64,
    /// Address of the index after the last chunk that was used.
    pub reached: u64,
    /// Addresses of the entries, the records of chunks, and the access bytes.
    pub tables: [u64; 3],
    /// Address and bytes of the store's data, and of the words of its handles.
    pub store: [u64; 4],
    /// Address and bytes of the checksums of spilled pages, and address of the descriptors of the files; zeros without a
    /// spill file.
    pub spill: [u64; 3],
}

impl Words {
    fn to_words(self) -> [u64; WORDS] {
        let [entries, chunks, access] = self.tables;
        let [data, data_bytes, handles, handle_bytes] = self.store;
        let [sums, sum_bytes, files] = self.spill;
        [
            MAGIC,
            VERSION,
            self.arena_bytes,
            self.revokes_access,
            self.reached,
            entries,
            chunks,
            access,
            data,
            data_bytes,
            handles,
            handle_bytes,
            sums,
            sum_bytes,
            files,
        ]
    }

    /// Reads the words; `None` if they are not those of a view of this version.
    pub fn read(words: [u64; WORDS]) -> Option<Words> {
        let [
            MAGIC,
            VERSION,
            arena_bytes,
            revokes_access,
            reached,
            entries,
            chunks,
            access,
            data,
            data_bytes,
            handles,
            handle_bytes,
            sums,
            sum_bytes,
            files,
        ] = words
        else {
            return None;
        };
        Some(Words {
            arena_bytes,
            revokes_access,
            reached,
            tables: [entries, chunks, access],
            store: [data, data_bytes, handles, handle_bytes],
            spill: [sums, sum_bytes, files],
        })
    }
}

impl Pager {
    /// Writes the view anew, and publishes its address.
    pub(super) fn publish_view(&self) {
        let words = Words {
            arena_bytes: self.bytes as u64,
            revokes_access: u64::from(self.mechanism() == Mechanism::Protect),
            reached: self.reached.as_ptr() as u64,
            tables: self.table.addresses().map(|address| address as u64),
            store: self.store.ranges().map(|word| word as u64),
            spill: self.spill.file().map_or([0; 3], |spill| spill.ranges().map(|word| word as u64)),
        };
        for (word, value) in self.view.words.iter().zip(words.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.job.publish_view(self.view.words.as_ptr() as u64);
    }
}

const _: () = assert!(ARENA_BASE.is_multiple_of(super::CHUNK_BYTES));
