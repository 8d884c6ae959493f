// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One system-call instruction at an address that is the same in every process: the filter knows our own calls by it.
//!
//! - **Layout** [`GATE`] is a page of `syscall; ret`, read and execute only, below the arena. The filter lets through what was
//!   called from there. The address is fixed because a filter outlives `exec`: the next program's gate has to be
//!   the one that its ancestors' filters know.
//! - **Flow** [`call`] ──▶ before [`open`]: an instruction of this library; after: the gate. Results are the kernel's: `-errno`
//! - **Errors** `errno` is set by [`give`] alone, for functions that take libc's place

use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the gate's page.
pub const GATE: usize = 0x1fff_0000_0000;
/// Where the kernel says that a call through the gate came from: behind the instruction.
pub const GATE_RETURN: usize = GATE + 2;
const PAGE_BYTES: usize = 4096;

core::arch::global_asm!(
    ".pushsection .text.memlift_gate,\"ax\",@progbits",
    ".p2align 4",
    ".globl memlift_preload_gate",
    ".hidden memlift_preload_gate",
    ".type memlift_preload_gate,@function",
    "memlift_preload_gate:",
    "syscall",
    "ret",
    ".size memlift_preload_gate, .-memlift_preload_gate",
    // A call that comes neither from the gate nor from the program's text.
    ".p2align 4",
    ".globl memlift_preload_probe",
    ".hidden memlift_preload_probe",
    ".type memlift_preload_probe,@function",
    "memlift_preload_probe:",
    "syscall",
    "ret",
    ".size memlift_preload_probe, .-memlift_preload_probe",
    // Returns from a signal handler; debuggers and unwinders know it by these bytes.
    ".p2align 4",
    ".globl memlift_preload_return",
    ".hidden memlift_preload_return",
    ".type memlift_preload_return,@function",
    "memlift_preload_return:",
    "mov rax, 15",
    "syscall",
    ".size memlift_preload_return, .-memlift_preload_return",
    ".popsection",
);

unsafe extern "C" {
    fn memlift_preload_gate();
    fn memlift_preload_probe();
    fn memlift_preload_return();
}

/// Where the kernel says that a call of [`probe`] came from: behind the instruction.
pub fn probe_return() -> usize {
    memlift_preload_probe as *const () as usize + 2
}

static ENTRY: AtomicUsize = AtomicUsize::new(0);

/// The address that `sa_restorer` has in handlers of ours.
pub fn restorer() -> usize {
    memlift_preload_return as *const () as usize
}

/// The system call `number`; the result is the kernel's, `-errno` when it failed.
///
/// # Safety
///
/// As for the call itself.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let entry = match ENTRY.load(Ordering::Relaxed) {
        0 => memlift_preload_gate as *const () as usize,
        entry => entry,
    };
    // SAFETY: both entries are `syscall; ret`; the call is the caller's affair.
    unsafe { call_from(entry, number, arguments) }
}

/// Makes a system call that every filter of this library looks at. A trapped call returns its own number, if the handler of the
/// trap leaves the registers alone.
///
/// # Safety
///
/// As for the call itself.
pub unsafe fn probe(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the entry is `syscall; ret`; the call is the caller's affair.
    unsafe { call_from(memlift_preload_probe as *const () as usize, number, arguments) }
}

/// Makes a system call by the instruction at `entry`.
///
/// # Safety
///
/// The code at `entry` is `syscall; ret`; and as for the call itself.
#[inline(always)]
unsafe fn call_from(entry: usize, number: usize, arguments: [usize; 6]) -> isize {
    let result;
    // SAFETY: the code at `entry` is `syscall; ret`, as the caller promises: it changes rax, rcx and r11 only.
    unsafe {
        core::arch::asm!(
            "call {entry}",
            entry = in(reg) entry,
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Fills up to six arguments with zeros.
pub const fn pad<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut arguments = [0; 6];
    let mut index = 0;
    while index < N {
        arguments[index] = given[index];
        index += 1;
    }
    arguments
}

/// As [`call`] with fewer arguments.
#[macro_export]
macro_rules! sys {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::gate::call($number as usize, $crate::gate::pad([$($argument as usize),*]))
    };
}

/// Maps the gate. An inherited gate cannot be there: `exec` unmapped it.
///
/// # Errors
///
/// The error number, where the address is taken or memory is short.
pub fn open() -> Result<(), i32> {
    // SAFETY: a new page at an address where nothing is; its contents are written before anyone can call it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let page =
            sys!(libc::SYS_mmap, GATE, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, usize::MAX, 0);
        if page < 0 {
            return Err(-page as i32);
        }
        if page as usize != GATE {
            sys!(libc::SYS_munmap, page, PAGE_BYTES);
            return Err(libc::EEXIST);
        }
        std::ptr::copy_nonoverlapping([0x0fu8, 0x05, 0xc3].as_ptr(), GATE as *mut u8, 3);
        let result = sys!(libc::SYS_mprotect, GATE, PAGE_BYTES, libc::PROT_READ | libc::PROT_EXEC);
        if result < 0 {
            return Err(-result as i32);
        }
    }
    ENTRY.store(GATE, Ordering::Release);
    Ok(())
}

/// Converts a result to libc's form: `-1` and `errno`, or the value.
pub fn give(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// Sets `errno` of this thread.
pub fn set_errno(number: i32) {
    // SAFETY: glibc's errno lies in the thread's static block, which is always there.
    unsafe { *libc::__errno_location() = number };
}

/// Reads `errno` of this thread.
pub fn errno() -> i32 {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}
