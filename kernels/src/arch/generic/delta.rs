// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creates a delta record: vector comparisons find the words that differ, and the writer takes them one by one.

use crate::Delta;
use crate::arch::all::delta::Writer;
use crate::vector::Vector;

/// See [`Kernels::delta_create`](crate::Kernels::delta_create).
#[inline(always)]
pub(crate) unsafe fn create<V: Vector>(
    record: *mut u8,
    record_bytes_max: usize,
    first: *const u8,
    second: *const u8,
    bytes: usize,
) -> Delta {
    let words = bytes / 8;
    let words_per_vector = V::BYTES / 8;
    // SAFETY: the caller guarantees the record, and `bytes` readable bytes of both buffers; every vector and word
    // lies within.
    unsafe {
        let mut writer = Writer::new(record, record_bytes_max);
        let mut index = 0;
        while words - index >= words_per_vector {
            let mut differing = V::load(first.add(index * 8)).differing_words(V::load(second.add(index * 8)));
            while differing != 0 {
                let at = index + differing.trailing_zeros() as usize;
                if !writer.push(at, second.cast::<u64>().add(at).read_unaligned()) {
                    return writer.overflow();
                }
                differing &= differing - 1;
            }
            index += words_per_vector;
        }
        while index < words {
            let word = second.cast::<u64>().add(index).read_unaligned();
            if first.cast::<u64>().add(index).read_unaligned() != word && !writer.push(index, word) {
                return writer.overflow();
            }
            index += 1;
        }
        writer.finish()
    }
}
