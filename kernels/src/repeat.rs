// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores the size from which `copy` uses `rep movsb`, which calibration may set.
//!
//! - **Flow** the first table that is chosen sets `FROM` by cpuid; a calibration may change it by `set_rep_movsb_from`; `copy`
//!   loads it for long copies only.
//! - **Order** relaxed: every value is correct, only the speed differs.
//!
//! `rep movsb` lets the CPU move whole lines without reading the target first. Intel CPUs with FSRM do that well; on AMD Zen 3 it is
//! slower by an order of magnitude if the target is not aligned. So it is off unless the vendor is Intel and the CPU has FSRM.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Value before detection. It is above every size that memory can have, so it also means "never".
const UNKNOWN: usize = usize::MAX - 1;

/// Default for Intel CPUs with FSRM, bytes; measured on Sapphire Rapids (`examples/copy_speed.rs`).
#[cfg(target_arch = "x86_64")]
const FROM_INTEL: usize = 32 * 1024;

static FROM: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Makes `copy` use `rep movsb` from this size on, in bytes; `usize::MAX` means never. Ignored on CPUs without the instruction.
pub fn set_rep_movsb_from(bytes: usize) {
    FROM.store(bytes, Ordering::Relaxed);
}

/// Returns the size from which `copy` uses `rep movsb`, in bytes; `usize::MAX` means never.
#[inline(always)]
pub fn rep_movsb_from() -> usize {
    let from = FROM.load(Ordering::Relaxed);
    if from == UNKNOWN { usize::MAX } else { from }
}

/// Returns the stored value, for the copy itself: one load, since the value before detection is above every size.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn from_bytes() -> usize {
    FROM.load(Ordering::Relaxed)
}

/// Sets the default for this CPU, unless a value was already set.
pub(crate) fn detect() {
    if FROM.load(Ordering::Relaxed) == UNKNOWN {
        let _ = FROM.compare_exchange(UNKNOWN, default_from(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
fn default_from() -> usize {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let fsrm = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 4 != 0;
    if crate::isa::is_intel() && fsrm { FROM_INTEL } else { usize::MAX }
}

#[cfg(not(target_arch = "x86_64"))]
fn default_from() -> usize {
    usize::MAX
}
