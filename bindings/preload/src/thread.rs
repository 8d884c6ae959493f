// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state that this library has for each thread, reachable from a signal handler.
//!
//! - **Layout** a block of static TLS (initial-exec: at a fixed distance from the thread pointer). So a fault handler reaches
//!   its state without an allocation and without a table of the loader, which may lie in the arena
//! - **Flow** [`Quiet`] marks a section of this library's own code. In it signals wait (except for the three that faults
//!   cause, and no fault happens there), and every function that replaces libc's calls the kernel directly
//! - **Order** only the thread itself and its handlers use a block; a child of vfork uses the block of its parent, which
//!   waits
//! - **Not here** the dispositions of the three signals: `signal`

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::sys;

core::arch::global_asm!(
    ".pushsection .tbss.memlift_preload,\"awT\",@nobits",
    ".p2align 6",
    ".globl memlift_preload_thread",
    ".hidden memlift_preload_thread",
    ".type memlift_preload_thread,@object",
    "memlift_preload_thread:",
    ".zero 128",
    ".size memlift_preload_thread, 128",
    ".popsection",
);

/// The block of one thread, in static TLS.
#[repr(C)]
#[derive(Debug)]
pub struct Thread {
    /// Number of sections of this library's own code that the thread is in, nested.
    inside: AtomicU32,
    /// The signals among the three that the program believes blocked: bits as in the low 32 bits of a mask.
    pub believed_blocked: AtomicU32,
    /// The signals among the three that were sent while this library's own code ran, or while the program believed them
    /// blocked. Bits as in `believed_blocked`.
    pub pending: AtomicU32,
    /// 1 while a dormant process forks.
    pub forking: AtomicU32,
    /// Address of a mapping with copies of an exec's strings.
    pub exec_address: AtomicUsize,
    /// Size of the mapping at `exec_address`, bytes.
    pub exec_bytes: AtomicUsize,
    /// Address of a mapping with copies of an exec's environment.
    pub list_address: AtomicUsize,
    /// Size of the mapping at `list_address`, bytes.
    pub list_bytes: AtomicUsize,
    /// The alternate stack that the program believes it has: address, bytes (0: none), flags.
    pub alternate: [AtomicUsize; 3],
    /// Address of the record of this library's alternate stack for this thread, or 0.
    pub stack: AtomicUsize,
    /// Address of the first record of the calls that hold pins, or 0.
    pub held: AtomicUsize,
    /// Signal mask to restore at the end of the outermost section.
    mask: AtomicU64,
}

const _: () = assert!(size_of::<Thread>() <= 128);

/// Returns a signal's bit in a mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The three signals that must never be blocked.
pub const OURS: u64 = bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGSYS);

/// Returns this thread's block.
pub fn current() -> &'static Thread {
    let address: usize;
    // SAFETY: the loader gave this library 128 zeroed bytes of each thread's static block at this offset. They live as long
    // as code runs on the thread, and are all atomics, which the thread and its handlers may use alike.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + memlift_preload_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(nostack, pure, readonly),
        );
        &*(address as *const Thread)
    }
}

/// Returns true if this library's own code runs on this thread.
pub fn inside() -> bool {
    current().inside.load(Relaxed) != 0
}

/// Returns true if this process has no thread of this number.
pub fn is_gone(thread: i32) -> bool {
    // SAFETY: the call takes numbers only; signal 0 only tests if the thread exists.
    unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), thread, 0) == -(libc::ESRCH as isize) }
}

/// Changes the thread's mask. Returns the old mask.
pub fn set_mask(how: i32, mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both masks are variables of 8 bytes, which is the size passed, and live over the call.
    unsafe { sys!(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut old, 8) };
    old
}

/// A section of this library's own code; it ends when this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Quiet {
    masked: bool,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Quiet {
    /// Blocks all signals except for [`OURS`] and begins a section.
    pub fn begin() -> Quiet {
        let thread = current();
        let masked = thread.inside.load(Relaxed) == 0;
        if masked {
            let old = set_mask(libc::SIG_BLOCK, !OURS);
            thread.mask.store(old, Relaxed);
        }
        thread.inside.fetch_add(1, Relaxed);
        Quiet { masked, not_send: std::marker::PhantomData }
    }

    /// Begins a section in a handler, where the kernel has blocked the signals and will unblock them.
    pub fn in_handler() -> Quiet {
        current().inside.fetch_add(1, Relaxed);
        Quiet { masked: false, not_send: std::marker::PhantomData }
    }

    /// Lets the program's signals in for the length of `body`, which makes one system call.
    pub fn interruptible<R>(&mut self, mask: u64, body: impl FnOnce() -> R) -> R {
        let thread = current();
        let depth = thread.inside.swap(0, Relaxed);
        set_mask(libc::SIG_SETMASK, mask & !OURS);
        let result = body();
        set_mask(libc::SIG_BLOCK, !OURS);
        thread.inside.store(depth, Relaxed);
        result
    }

    /// Ends the outermost section, whose [`Quiet`] was forgotten.
    pub fn resume() {
        drop(Quiet { masked: true, not_send: std::marker::PhantomData });
    }

    /// Returns the program's mask, if this section is the outermost and not in a handler.
    pub fn outer_mask(&self) -> u64 {
        current().mask.load(Relaxed)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let thread = current();
        let depth = thread.inside.fetch_sub(1, Relaxed);
        if self.masked {
            set_mask(libc::SIG_SETMASK, thread.mask.load(Relaxed));
        }
        if depth == 1 {
            deliver_pending(thread);
        }
    }
}

/// Sends those signals again that could not be handled when they came.
fn deliver_pending(thread: &Thread) {
    let pending = thread.pending.swap(0, Relaxed);
    for signal in [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS] {
        if u64::from(pending) & bit(signal) != 0 {
            // SAFETY: the call takes numbers only, and sends a signal to this thread.
            unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), sys!(libc::SYS_gettid), signal) };
        }
    }
}

/// Ends what [`stay_inside`] began: from now on the thread runs code of the program.
pub fn leave() {
    current().inside.store(0, Relaxed);
    set_mask(libc::SIG_SETMASK, 0);
}

/// Makes all code of this thread count as this library's own for good, as the evictor needs.
pub fn stay_inside() {
    set_mask(libc::SIG_BLOCK, !OURS);
    current().inside.fetch_add(1, Relaxed);
}
