// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delta records, word by word: the reference for creating them, and the way to apply them on every level.
//!
//! - **Layout** see [`delta`](crate::delta).
//! - **Owner** `Writer` stays within the record it was given; a word of the second buffer that goes into the record is read once.

use crate::delta::WORDS_MAX;
use crate::{DELTA_ENTRY_BYTES, Delta, DeltaError};

/// Writes entries until the record is full.
pub(crate) struct Writer {
    record: *mut u8,
    bytes_max: usize,
    bytes: usize,
}

impl Writer {
    /// Returns a writer at the start of a record.
    ///
    /// # Safety
    ///
    /// `bytes_max` bytes at `record` are writable while the writer is used.
    #[inline(always)]
    pub(crate) unsafe fn new(record: *mut u8, bytes_max: usize) -> Writer {
        Writer { record, bytes_max, bytes: 0 }
    }

    /// Adds a word; returns false if it does not fit.
    #[inline(always)]
    pub(crate) fn push(&mut self, word_index: usize, word: u64) -> bool {
        if self.bytes_max - self.bytes < DELTA_ENTRY_BYTES || word_index >= WORDS_MAX {
            return false;
        }
        // SAFETY: the line above checked that an entry fits into `bytes_max`, which the caller of `new` guaranteed.
        unsafe {
            let entry = self.record.add(self.bytes);
            entry.cast::<[u8; 2]>().write_unaligned((word_index as u16).to_le_bytes());
            entry.add(2).cast::<u64>().write_unaligned(word);
        }
        self.bytes += DELTA_ENTRY_BYTES;
        true
    }

    /// Returns the result for a record that is full.
    pub(crate) fn overflow(&self) -> Delta {
        Delta::Overflow(self.bytes)
    }

    /// Returns the result after all words were compared.
    pub(crate) fn finish(&self) -> Delta {
        if self.bytes == 0 { Delta::Equal } else { Delta::Delta(self.bytes) }
    }
}

/// See [`Kernels::delta_create`](crate::Kernels::delta_create).
pub(crate) unsafe fn create(
    record: *mut u8,
    record_bytes_max: usize,
    first: *const u8,
    second: *const u8,
    bytes: usize,
) -> Delta {
    // SAFETY: the caller guarantees the record, and `bytes` readable bytes of both buffers; every word lies within.
    unsafe {
        let mut writer = Writer::new(record, record_bytes_max);
        for index in 0..bytes / 8 {
            let word = second.cast::<u64>().add(index).read_unaligned();
            if first.cast::<u64>().add(index).read_unaligned() != word && !writer.push(index, word) {
                return writer.overflow();
            }
        }
        writer.finish()
    }
}

/// See [`Kernels::delta_apply`](crate::Kernels::delta_apply).
pub(crate) unsafe fn apply(
    target: *mut u8,
    target_bytes: usize,
    record: *const u8,
    record_bytes: usize,
) -> Result<(), DeltaError> {
    if !record_bytes.is_multiple_of(DELTA_ENTRY_BYTES) {
        return Err(DeltaError::Size { record_bytes });
    }
    let words = target_bytes / 8;
    let mut lowest = 0;
    for entry in 0..record_bytes / DELTA_ENTRY_BYTES {
        // SAFETY: the entry lies within `record_bytes`, which the caller guarantees to be readable. The offset is read
        // once and is below `words` when it is used, so the write stays within `target_bytes`.
        unsafe {
            let source = record.add(entry * DELTA_ENTRY_BYTES);
            let index = usize::from(u16::from_le_bytes(source.cast::<[u8; 2]>().read_unaligned()));
            if index < lowest {
                return Err(DeltaError::Order { entry });
            }
            if index >= words {
                return Err(DeltaError::Range { entry });
            }
            let word = source.add(2).cast::<u64>().read_unaligned();
            target.cast::<u64>().add(index).write_unaligned(word);
            lowest = index + 1;
        }
    }
    Ok(())
}
