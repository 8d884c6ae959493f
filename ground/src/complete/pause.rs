// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pause of a spinning core: PAUSE everywhere, or a wait for a write to a cache line if the CPU has such an
//! instruction.
//!
//! - **Flow** `HardwareWait::detect` (cpuid, minus MEMLIFT_DISABLE) ─▶ `pause_on_line` in each turn of the spin loop
//! - **Order** arm the monitor ─▶ check the condition again ─▶ wait: a store between the check and the wait ends the
//!   wait immediately
//! - **Source** Intel SDM (UMONITOR, UMWAIT, C0.1); AMD APM (MONITORX, MWAITX)
//!
//! The WAITPKG and MONITORX paths are chosen by cpuid only; virtual machines usually hide both. They have been
//! assembled, but not run, on the machines this was developed on.

use crate::facility::{self, Facility};
use std::sync::OnceLock;

/// Instruction by which a thread waits for a store without leaving user space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HardwareWait {
    /// Only PAUSE (or the architecture's equivalent).
    Pause,
    /// UMONITOR / UMWAIT.
    Waitpkg,
    /// MONITORX / MWAITX.
    Mwaitx,
}

impl HardwareWait {
    /// Returns the best instruction that this CPU has and the user has not masked; detected once per process.
    pub fn detect() -> HardwareWait {
        static FOUND: OnceLock<HardwareWait> = OnceLock::new();
        *FOUND.get_or_init(|| {
            if facility::usable(Facility::Waitpkg) {
                HardwareWait::Waitpkg
            } else if facility::usable(Facility::Mwaitx) {
                HardwareWait::Mwaitx
            } else {
                HardwareWait::Pause
            }
        })
    }

    /// Waits briefly: until the cache line at `line` is written or some microseconds have passed. `ready` is
    /// called after the monitor is armed.
    pub(super) fn pause_on_line(self, line: *const u8, ready: impl FnOnce() -> bool) {
        #[cfg(target_arch = "x86_64")]
        if !line.is_null() {
            match self {
                HardwareWait::Waitpkg => return x86::umwait(line, ready),
                HardwareWait::Mwaitx => return x86::mwaitx(line, ready),
                HardwareWait::Pause => {}
            }
        }
        let _ = (line, ready);
        std::hint::spin_loop();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::_rdtsc;

    /// Most cycles of one hardware wait; short, so that deadlines and budgets are checked in time.
    const CYCLES: u64 = 20_000;

    pub fn umwait(line: *const u8, ready: impl FnOnce() -> bool) {
        // SAFETY: WAITPKG was found by cpuid. UMONITOR only arms a monitor on the address; it faults only where
        // a load would, and the caller's line is mapped.
        unsafe { asm!("umonitor {line}", line = in(reg) line, options(nostack, preserves_flags)) };
        if ready() {
            return;
        }
        // SAFETY: RDTSC has no preconditions.
        let until = unsafe { _rdtsc() } + CYCLES;
        // SAFETY: WAITPKG was found by cpuid; state 1 asks for C0.1, EDX:EAX is the TSC deadline.
        unsafe {
            asm!("umwait {state:e}", state = in(reg) 1u32, in("eax") until as u32, in("edx") (until >> 32) as u32,
                 options(nostack, nomem));
        }
    }

    pub fn mwaitx(line: *const u8, ready: impl FnOnce() -> bool) {
        // SAFETY: MONITORX was found by cpuid; it arms a monitor on a mapped line, ECX and EDX are zero.
        unsafe {
            asm!("monitorx", in("rax") line, in("ecx") 0u32, in("edx") 0u32, options(nostack, preserves_flags))
        };
        if ready() {
            return;
        }
        // SAFETY: MWAITX was found by cpuid; ECX bit 1 enables the timer whose cycles are in EBX. LLVM reserves
        // rbx, so it is exchanged around the instruction.
        unsafe {
            asm!("xchg rbx, {t}", "mwaitx", "xchg rbx, {t}", t = inout(reg) CYCLES => _,
                 in("eax") 0xf0u32, in("ecx") 2u32, options(nostack, preserves_flags));
        }
    }
}
