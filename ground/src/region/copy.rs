// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies between private memory and memory into which others may store at the same time.
//!
//! The compiler must not derive facts from such bytes nor read them twice, so the copy is opaque to it: a string move
//! on x86-64, volatile accesses elsewhere. It is for messages and headers; payloads are copied by the kernels.

/// Copies `bytes` bytes.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`, and they do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn opaque(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller promises both ranges; the direction flag is clear by the ABI. The block is neither
    // `readonly` nor `pure`, so it is executed exactly once.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `bytes` bytes.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn opaque(target: *mut u8, source: *const u8, bytes: usize) {
    const WORD: usize = size_of::<u64>();
    let mut done = 0;
    if source.addr() % WORD == target.addr() % WORD {
        while done < bytes && !(source.addr() + done).is_multiple_of(WORD) {
            // SAFETY: `done < bytes`, and the caller promises both ranges of `bytes` bytes.
            unsafe { target.add(done).write_volatile(source.add(done).read_volatile()) };
            done += 1;
        }
        while bytes - done >= WORD {
            // SAFETY: a whole word is left in both ranges, and both addresses are aligned to it.
            unsafe {
                let word = source.add(done).cast::<u64>().read_volatile();
                target.add(done).cast::<u64>().write_volatile(word);
            }
            done += WORD;
        }
    }
    while done < bytes {
        // SAFETY: `done < bytes`, and the caller promises both ranges of `bytes` bytes.
        unsafe { target.add(done).write_volatile(source.add(done).read_volatile()) };
        done += 1;
    }
}
