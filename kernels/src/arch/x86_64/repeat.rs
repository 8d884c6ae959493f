// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies by `rep movsb`, after aligning the target to a line: the microcode is fast only then.

use crate::arch::generic::stream::{LINE_BYTES, head_bytes};
use crate::vector::Vector;
use core::arch::asm;

/// Copies more than a line between buffers that do not overlap.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let head = head_bytes(target);
    // SAFETY: the caller guarantees both buffers of `bytes` and more than a line, so the first line fits. The ABI guarantees
    // that the direction flag is clear.
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
