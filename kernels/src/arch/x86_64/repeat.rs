// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `rep movsb`, with the target aligned to a line first: that is the case that its microcode is fast for.

use crate::arch::generic::stream::{LINE_BYTES, head_bytes};
use crate::vector::Vector;
use core::arch::asm;

/// Copies more than a line; the buffers do not overlap.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let head = head_bytes(target);
    // SAFETY: the caller promises both buffers, and more than a line: the first line fits. The direction flag is
    // clear, as the ABI demands.
    unsafe {
        let mut i = 0;
        while i < LINE_BYTES {
            V::load(source.add(i)).store(target.add(i));
            i += V::BYTES;
        }
        asm!(
            "rep movsb",
            inout("rcx") bytes - head => _,
            inout("rdi") target.add(head) => _,
            inout("rsi") source.add(head) => _,
            options(nostack, preserves_flags),
        );
    }
}
