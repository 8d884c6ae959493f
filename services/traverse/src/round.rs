// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A round in Rust, not compiled from a program: one step for each walk in state [`RUN`], by any stepper.
//!
//! - **Flow** slots ──[`round`]──▶ for each [`RUN`] slot: step; on `Next` translate, prefetch and continue, otherwise stop
//! - **Not here** the same loop as machine code, with the step inside: `jit::round`. Both follow the contract in `slot`

use crate::slot::{RUN, Region, STOPPED, Slot};
use crate::step::{Verdict, Walk};

/// Prefetches the cache line of an address, which need not be valid.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of the architecture.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM never faults, whatever the address, and this form changes no register.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Prefetches the cache line of an address, to write to it; the address need not be valid.
#[inline(always)]
pub fn prefetch_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; processors without PREFETCHW execute it as a no-op.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM never faults, whatever the address, and this form changes no register.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Runs one step with `step` for each slot in state [`RUN`]. `prefetch_offsets` are the offsets from `cur_ptr` to prefetch at the
/// next node. Returns how many slots stopped.
///
/// # Safety
/// For each slot in state [`RUN`], `host` and `scratch` are valid arguments of `step`, and so is every host address to which
/// `region` maps.
pub unsafe fn round(
    slots: &mut [Slot],
    region: &Region,
    prefetch_offsets: &[i16],
    mut step: impl FnMut(*const u8, *mut u8, &mut Walk) -> u32,
) -> usize {
    let mut stopped = 0;
    for number in 0..slots.len() {
        let slot = &mut slots[number];
        if slot.state != RUN {
            continue;
        }
        let verdict = step(slot.host, slot.scratch, &mut slot.walk);
        if verdict == Verdict::Next as u32 {
            slot.hops_left = slot.hops_left.wrapping_sub(1);
            slot.cur = slot.walk.next;
            let offset = slot.cur.wrapping_sub(region.base);
            if offset < region.bytes && slot.hops_left != 0 {
                slot.host = region.host.wrapping_add(offset as usize);
                for &touch in prefetch_offsets {
                    prefetch(slot.host.wrapping_offset(isize::from(touch)));
                }
                continue;
            }
        }
        slot.state = STOPPED;
        slot.verdict = verdict;
        slots[stopped].nth_stopped = number as u32;
        stopped += 1;
    }
    stopped
}
