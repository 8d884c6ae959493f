// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing cache lines back by address, with the best instruction that the CPU has; and the fence that waits for it.
//!
//! - **Flow** first use ──cpuid──▶ `INSTRUCTION`; then one load and one branch for each range
//! - **Order** `clwb` and `clflushopt` are ordered by a later fence only; `clflush` also among themselves
//! - **Not here** dropping lines so that later loads miss: see [`cache_flush`](crate::cache_flush)
//!
//! x86-64: CLWB keeps the line in the cache, CLFLUSHOPT and CLFLUSH drop it. AArch64: `DC CVAP` cleans a line to the
//! point of persistence, where the CPU has it (`dpb`); elsewhere there is no instruction for programs that promises
//! as much, so nothing is done and nothing is claimed.
//!
//! Sources: Intel SDM volume 2 (CLWB, CLFLUSHOPT, CLFLUSH), CPUID.(EAX=7,ECX=0):EBX bits 24 and 23; Arm ARM, DC CVAP.

use super::LINE_BYTES;
use core::sync::atomic::{AtomicU8, Ordering};

/// How lines are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBack {
    /// x86-64: written back, kept in the cache.
    Clwb,
    /// x86-64: written back and dropped, unordered.
    Clflushopt,
    /// x86-64: written back and dropped, one after the other.
    Clflush,
    /// AArch64: cleaned to the point of persistence.
    DcCvap,
    /// Not at all: [`write_back`] does nothing.
    None,
}

impl WriteBack {
    /// The instruction's name in lower case; `"none"` without one.
    pub const fn name(self) -> &'static str {
        match self {
            WriteBack::Clwb => "clwb",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clflush => "clflush",
            WriteBack::DcCvap => "dc cvap",
            WriteBack::None => "none",
        }
    }
}

/// 1 + the instruction's place in the order of the variants; 0 before the first use.
static INSTRUCTION: AtomicU8 = AtomicU8::new(0);

/// How this CPU writes lines back.
#[inline]
pub fn instruction() -> WriteBack {
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

/// Writes back every 64-byte line that the range touches; no byte changes. No fence. Does nothing where
/// [`instruction`] is [`WriteBack::None`].
///
/// # Safety
///
/// The range is mapped.
#[inline]
pub unsafe fn write_back(address: *const u8, bytes: usize) {
    // SAFETY: the range is mapped, as the caller vouches; the instruction is one that this CPU has.
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
        // SAFETY: each line holds a byte of the range, which the caller promises is mapped.
        unsafe { line(instruction, first.wrapping_add(offset)) };
        offset += LINE_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn line(instruction: WriteBack, line: *const u8) {
    use core::arch::asm;
    // SAFETY: the caller promises a mapped line and an instruction that this CPU has. None changes a byte. They
    // count as reads of memory for the compiler, so that earlier stores are not moved behind them.
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
    // SAFETY: the caller promises a mapped line and a CPU that has DC CVAP, spelled as the system instruction that it
    // is, for assemblers that know it only with an extension enabled. It changes no byte.
    unsafe {
        core::arch::asm!("sys #3, c7, c12, #1, {line}", line = in(reg) line, options(nostack, preserves_flags))
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn line(_instruction: WriteBack, _line: *const u8) {}

/// Waits until this thread's earlier non-temporal stores and write-backs have reached the memory, or a buffer that
/// survives with it; and makes them visible to other threads before what this thread stores next.
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
