// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flushes cache lines: writes back and drops the cached lines of a range.
//!
//! - **Flow** range ──▶ whole lines ──`clflushopt` or `clflush`──▶ fence
//! - **Order** there is a fence before (so that earlier stores are flushed) and after (so that later loads miss).

/// Bytes of one cache line.
pub const CACHE_LINE_BYTES: usize = 64;

/// Writes back and drops every cache line that the range touches, from all caches of all cores. No byte changes. Returns false
/// and does nothing if the CPU has no such instruction.
///
/// # Safety
///
/// The range is mapped.
#[cfg(target_arch = "x86_64")]
pub unsafe fn cache_flush(address: *const u8, bytes: usize) -> bool {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_mfence};
    if bytes == 0 {
        return true;
    }
    let leaf0 = __cpuid(0);
    let clflushopt = leaf0.eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 23 != 0;
    let head_bytes = address.addr() % CACHE_LINE_BYTES;
    // SAFETY: the first line starts in the same page as the range, and each flushed line holds a byte of the range, which the
    // caller guarantees to be mapped. The instruction changes no byte.
    unsafe {
        let first = address.wrapping_sub(head_bytes);
        _mm_mfence();
        let mut offset = 0;
        while offset < bytes + head_bytes {
            let line = first.wrapping_add(offset);
            if clflushopt {
                asm!("clflushopt [{line}]", line = in(reg) line, options(nostack, preserves_flags));
            } else {
                _mm_clflush(line);
            }
            offset += CACHE_LINE_BYTES;
        }
        _mm_mfence();
    }
    true
}

/// Does nothing and returns false: on this architecture programs cannot flush lines.
///
/// # Safety
///
/// There is no condition; the signature is that of the other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn cache_flush(_address: *const u8, _bytes: usize) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::cache_flush;

    #[test]
    fn flushing_changes_no_byte() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        for (offset, count) in [(0, 10_000), (1, 1), (63, 2), (5, 0), (77, 9_000)] {
            // SAFETY: the range lies in the vector.
            let flushed = unsafe { cache_flush(bytes.as_ptr().add(offset), count) };
            assert_eq!(flushed, cfg!(target_arch = "x86_64"));
        }
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }
}
