// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: one system-call instruction at an address that is the same in every process. By that address the filter
//! recognises this library's own calls.
//!
//! - **Layout** [`GATE`] is a page below the arena with `syscall; ret`, readable and executable only. The filter allows calls
//!   made from there. The address is fixed because a filter outlives `exec`: the next program's gate must lie where the
//!   filters of its ancestors expect it
//! - **Flow** [`call`] uses an instruction of this library before [`open`], and the gate after it. Results are the kernel's:
//!   `-errno` after a failure
//! - **Errors** only [`to_libc_result`] sets `errno`, for functions that replace libc's

use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the gate's page.
pub const GATE: usize = 0x1fff_0000_0000;
/// Address that the kernel reports for a call through the gate: the one after the instruction.
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
    // The instruction of `probe`: a call made here comes neither from the gate nor from the program's text.
    ".p2align 4",
    ".globl memlift_preload_probe",
    ".hidden memlift_preload_probe",
    ".type memlift_preload_probe,@function",
    "memlift_preload_probe:",
    "syscall",
    "ret",
    ".size memlift_preload_probe, .-memlift_preload_probe",
    // The return from a signal handler; debuggers and unwinders recognise it by these bytes.
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

/// Address that the kernel reports for a call of [`probe`]: the one after the instruction.
pub fn probe_return() -> usize {
    memlift_preload_probe as *const () as usize + 2
}

static ENTRY: AtomicUsize = AtomicUsize::new(0);

/// Returns the address that this library's handlers have as their `sa_restorer`.
pub fn restorer() -> usize {
    memlift_preload_return as *const () as usize
}

/// Makes system call `number`. Returns the kernel's result, `-errno` if it failed.
///
/// # Safety
///
/// The promises that this system call needs for its arguments.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let entry = match ENTRY.load(Ordering::Relaxed) {
        0 => memlift_preload_gate as *const () as usize,
        entry => entry,
    };
    // SAFETY: both entries are `syscall; ret`; the caller makes the promises that the system call needs.
    unsafe { call_from(entry, number, arguments) }
}

/// Makes a system call that every filter of this library checks. If the call is trapped and the handler leaves the registers
/// alone, the result is the call's own number.
///
/// # Safety
///
/// The promises that this system call needs for its arguments.
pub unsafe fn probe(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the entry is `syscall; ret`; the caller makes the promises that the system call needs.
    unsafe { call_from(memlift_preload_probe as *const () as usize, number, arguments) }
}

/// Makes a system call by the instruction at `entry`.
///
/// # Safety
///
/// The code at `entry` is `syscall; ret`, and the arguments fulfil the promises that this system call needs.
#[inline(always)]
unsafe fn call_from(entry: usize, number: usize, arguments: [usize; 6]) -> isize {
    let result;
    // SAFETY: the code at `entry` is `syscall; ret`, as the caller promises, so it changes only rax, rcx and r11.
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

/// Extends `given` to six arguments with zeros.
pub const fn pad<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut arguments = [0; 6];
    let mut index = 0;
    while index < N {
        arguments[index] = given[index];
        index += 1;
    }
    arguments
}

/// Calls [`call`] with up to six arguments.
#[macro_export]
macro_rules! sys {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::gate::call($number as usize, $crate::gate::pad([$($argument as usize),*]))
    };
}

/// Maps the gate. It cannot be there already, because `exec` unmaps an inherited one.
///
/// # Errors
///
/// The error number, if the address is in use or memory is short.
pub fn open() -> Result<(), i32> {
    // SAFETY: the page is new, at an address where nothing is mapped, and its contents are written before any call goes
    // through it.
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

/// Converts a result of the kernel to libc's form: `-1` and `errno`, or the value.
pub fn to_libc_result(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// Sets `errno` of this thread.
pub fn set_errno(number: i32) {
    // SAFETY: glibc's errno lies in the thread's static block, which exists as long as the thread, and only this thread uses
    // it.
    unsafe { *libc::__errno_location() = number };
}

/// Returns `errno` of this thread.
pub fn errno() -> i32 {
    // SAFETY: glibc's errno lies in the thread's static block, which exists as long as the thread, and only this thread uses
    // it.
    unsafe { *libc::__errno_location() }
}
