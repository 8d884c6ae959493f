// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of up to 8 vectors, in the registers 16 to 31.
//!
//! These registers have no SSE form, so a function that uses only them need not clear the upper halves of the lower sixteen
//! (`vzeroupper`) before it returns, which takes a third of the time of a copy of 128 bytes. The compiler prefers the lower registers;
//! hence assembly. Without it the code would be that of [`generic::copy`](crate::arch::generic::copy).
//!
//! - **Order** everything is loaded before anything is stored, so source and target may overlap.

use crate::arch::generic::small::{copy_16, ends};
use core::arch::asm;
use core::arch::x86_64::__m128i;

/// Makes the compiler place the branch that calls this behind the others. Long copies then fall through without a taken branch,
/// which matters more to them than to the short ones.
#[cold]
#[inline(always)]
fn out_of_line() {}

/// Copies 0 to 512 bytes; returns false and copies nothing for more.
#[inline(always)]
pub(super) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) -> bool {
    // SAFETY: each branch has checked that its pieces, one row from the start and one from the end, fit into `bytes`,
    // for which the caller guarantees both buffers of `bytes`.
    unsafe {
        if bytes <= 64 {
            out_of_line();
            if bytes > 32 {
                ends_32(target, source, bytes);
            } else if bytes >= 16 {
                ends::<__m128i>(target, source, bytes);
            } else {
                copy_16(target, source, bytes);
            }
        } else if bytes <= 128 {
            ends_64(target, source, bytes);
        } else if bytes <= 256 {
            ends_128(target, source, bytes);
        } else if bytes <= 512 {
            ends_256(target, source, bytes);
        } else {
            return false;
        }
        true
    }
}

#[inline(always)]
unsafe fn ends_32(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees at least 32 bytes on both sides.
    unsafe {
        asm!(
            "vmovdqu64 ymm16, [{source}]",
            "vmovdqu64 ymm17, [{source} + {bytes} - 32]",
            "vmovdqu64 [{target}], ymm16",
            "vmovdqu64 [{target} + {bytes} - 32], ymm17",
            source = in(reg) source, target = in(reg) target, bytes = in(reg) bytes,
            out("ymm16") _, out("ymm17") _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn ends_64(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees at least 64 bytes on both sides.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{source}]",
            "vmovdqu64 zmm17, [{source} + {bytes} - 64]",
            "vmovdqu64 [{target}], zmm16",
            "vmovdqu64 [{target} + {bytes} - 64], zmm17",
            source = in(reg) source, target = in(reg) target, bytes = in(reg) bytes,
            out("zmm16") _, out("zmm17") _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn ends_128(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees at least 128 bytes on both sides.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{source}]",
            "vmovdqu64 zmm17, [{source} + 64]",
            "vmovdqu64 zmm18, [{source} + {bytes} - 128]",
            "vmovdqu64 zmm19, [{source} + {bytes} - 64]",
            "vmovdqu64 [{target}], zmm16",
            "vmovdqu64 [{target} + 64], zmm17",
            "vmovdqu64 [{target} + {bytes} - 128], zmm18",
            "vmovdqu64 [{target} + {bytes} - 64], zmm19",
            source = in(reg) source, target = in(reg) target, bytes = in(reg) bytes,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn ends_256(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees at least 256 bytes on both sides.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{source}]",
            "vmovdqu64 zmm17, [{source} + 64]",
            "vmovdqu64 zmm18, [{source} + 128]",
            "vmovdqu64 zmm19, [{source} + 192]",
            "vmovdqu64 zmm20, [{source} + {bytes} - 256]",
            "vmovdqu64 zmm21, [{source} + {bytes} - 192]",
            "vmovdqu64 zmm22, [{source} + {bytes} - 128]",
            "vmovdqu64 zmm23, [{source} + {bytes} - 64]",
            "vmovdqu64 [{target}], zmm16",
            "vmovdqu64 [{target} + 64], zmm17",
            "vmovdqu64 [{target} + 128], zmm18",
            "vmovdqu64 [{target} + 192], zmm19",
            "vmovdqu64 [{target} + {bytes} - 256], zmm20",
            "vmovdqu64 [{target} + {bytes} - 192], zmm21",
            "vmovdqu64 [{target} + {bytes} - 128], zmm22",
            "vmovdqu64 [{target} + {bytes} - 64], zmm23",
            source = in(reg) source, target = in(reg) target, bytes = in(reg) bytes,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            options(nostack, preserves_flags),
        );
    }
}
