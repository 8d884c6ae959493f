// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size from which `copy` uses `rep movsb`: state that calibration may set.
//!
//! - **Flow** cpuid ──first table──▶ `FROM` ◀──`set_rep_movsb_from`── the engine's calibration; `copy` loads it for
//!   sizes that are long anyway
//! - **Order** relaxed: any value is correct, only speed differs.
//!
//! `rep movsb` lets the CPU move whole lines without reading the target first. Intel CPUs with FSRM do that well;
//! on AMD Zen 3 it is slower by an order of magnitude for targets that are not aligned. So: off, unless the vendor
//! is Intel and FSRM is there.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Not known yet. As good as "never" for every size that memory can have.
const UNKNOWN: usize = usize::MAX - 1;

/// Where Intel CPUs with FSRM start, in bytes; measured on Sapphire Rapids (`examples/copy_speed.rs`).
#[cfg(target_arch = "x86_64")]
const FROM_INTEL: usize = 32 * 1024;

static FROM: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Lets `copy` use `rep movsb` from this size on, in bytes; `usize::MAX` for never. Ignored where there is no such
/// instruction.
pub fn set_rep_movsb_from(bytes: usize) {
    FROM.store(bytes, Ordering::Relaxed);
}

/// The size from which `copy` uses `rep movsb`, in bytes; `usize::MAX` for never.
#[inline(always)]
pub fn rep_movsb_from() -> usize {
    let from = FROM.load(Ordering::Relaxed);
    if from == UNKNOWN { usize::MAX } else { from }
}

/// For the copy itself: one load. The unknown value is above every size.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn from_bytes() -> usize {
    FROM.load(Ordering::Relaxed)
}

/// Sets the default for this CPU, unless a value was set already.
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
