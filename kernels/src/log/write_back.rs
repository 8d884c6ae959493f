// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes cache lines back by address, with the best instruction of the CPU, and provides the fence that waits for it.
//!
//! - **Flow** the first use asks cpuid and sets `INSTRUCTION`; later uses are one load and one branch per range.
//! - **Order** `clwb` and `clflushopt` are ordered only by a later fence; `clflush` also among themselves.
//! - **Not here** dropping lines so that later loads miss: see [`cache_flush`](crate::cache_flush).
//!
//! x86-64: CLWB keeps the line in the cache, CLFLUSHOPT and CLFLUSH drop it. AArch64: `DC CVAP` cleans a line to the point of
//! persistence, if the CPU has it (`dpb`). Without it no instruction available to programs gives that guarantee, so nothing is done
//! and `instruction` returns `WriteBack::None`.
//!
//! Sources: Intel SDM volume 2 (CLWB, CLFLUSHOPT, CLFLUSH), CPUID.(EAX=7,ECX=0):EBX bits 24 and 23; Arm ARM, DC CVAP.

use super::LINE_BYTES;
use core::sync::atomic::{AtomicU8, Ordering};

/// Instruction that writes lines back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteBack {
    /// x86-64: writes the line back and keeps it in the cache.
    Clwb,
    /// x86-64: writes the line back and drops it; not ordered among each other.
    Clflushopt,
    /// x86-64: writes the line back and drops it; ordered among each other.
    Clflush,
    /// AArch64: cleans the line to the point of persistence.
    DcCvap,
    /// There is no instruction: `write_back` does nothing.
    None,
}

/// 1 + the index of the variant; 0 before the first use.
static INSTRUCTION: AtomicU8 = AtomicU8::new(0);

/// Returns the instruction by which this CPU writes lines back.
#[inline]
pub(super) fn instruction() -> WriteBack {
    match INSTRUCTION.load(Ordering::Relaxed) {
        1 => WriteBack::Clwb,
        2 => WriteBack::Clflushopt,
        3 => WriteBack::Clflush,
        4 => WriteBack::DcCvap,
        5 => WriteBack::None,
        _ => detect(),
    }
}

#[cold]
fn detect() -> WriteBack {
    let found = best();
    INSTRUCTION.store(found as u8 + 1, Ordering::Relaxed);
    found
}

#[cfg(target_arch = "x86_64")]
fn best() -> WriteBack {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    if features & 1 << 24 != 0 {
        WriteBack::Clwb
    } else if features & 1 << 23 != 0 {
        WriteBack::Clflushopt
    } else {
        WriteBack::Clflush
    }
}

#[cfg(target_arch = "aarch64")]
fn best() -> WriteBack {
    if std::arch::is_aarch64_feature_detected!("dpb") { WriteBack::DcCvap } else { WriteBack::None }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn best() -> WriteBack {
    WriteBack::None
}

/// Writes back every 64-byte line that the range touches; no byte changes. There is no fence. Does nothing on a CPU without an
/// instruction for it.
///
/// # Safety
///
/// The range is mapped.
#[inline]
pub unsafe fn write_back(address: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees that the range is mapped; this CPU has the instruction.
    unsafe { write_back_with(instruction(), address, bytes) }
}

#[inline(always)]
pub(super) unsafe fn write_back_with(instruction: WriteBack, address: *const u8, bytes: usize) {
    if bytes == 0 || instruction == WriteBack::None {
        return;
    }
    let head_bytes = address.addr() % LINE_BYTES;
    let first = address.wrapping_sub(head_bytes);
    let mut offset = 0;
    while offset < bytes + head_bytes {
        // SAFETY: each line holds a byte of the range, which the caller guarantees to be mapped.
        unsafe { line(instruction, first.wrapping_add(offset)) };
        offset += LINE_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn line(instruction: WriteBack, line: *const u8) {
    use core::arch::asm;
    // SAFETY: the caller guarantees a mapped line and an instruction that this CPU has. None of them changes a byte. For the
    // compiler they read memory, so earlier stores are not moved behind them.
    unsafe {
        match instruction {
            WriteBack::Clwb => asm!("clwb [{line}]", line = in(reg) line, options(nostack, preserves_flags)),
            WriteBack::Clflushopt => {
                asm!("clflushopt [{line}]", line = in(reg) line, options(nostack, preserves_flags));
            }
            _ => asm!("clflush [{line}]", line = in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn line(_instruction: WriteBack, line: *const u8) {
    // SAFETY: the caller guarantees a mapped line and a CPU with DC CVAP. It is written as the generic system instruction,
    // because some assemblers know its name only with an extension enabled. It changes no byte.
    unsafe {
        core::arch::asm!("sys #3, c7, c12, #1, {line}", line = in(reg) line, options(nostack, preserves_flags))
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn line(_instruction: WriteBack, _line: *const u8) {}

/// Waits until this thread's earlier non-temporal stores and write-backs have reached the memory, or a buffer that is flushed
/// on power loss; also makes them visible to other threads before this thread's later stores.
#[inline]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SFENCE has no operands and belongs to every x86-64 CPU.
    unsafe {
        core::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the barrier has no operands and belongs to every AArch64 CPU.
    unsafe {
        core::arch::asm!("dsb sy", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}
