// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of each thread that this library keeps, reachable from a signal handler.
//!
//! - **Layout** a block of static TLS (initial-exec: at a fixed distance from the thread pointer), so that no allocation and no
//!   table of the loader, which may lie in the arena, is between a fault handler and its state
//! - **Flow** [`Quiet`] marks a stretch of our own code: signals wait (but the three that faults send, which cannot happen
//!   there), and every function that takes libc's place goes straight to the kernel
//! - **Order** only the thread itself and its handlers use a block; a child of vfork uses its waiting parent's
//! - **Not here** the three signals' dispositions: `signal`

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
    /// How many stretches of our own code are open.
    inside: AtomicU32,
    /// Those of the three signals that the program believes blocked: bits as in a mask's low 32.
    pub believed: AtomicU32,
    /// Those of the three signals that were sent while our own code ran: bits as in `believed`.
    pub pending: AtomicU32,
    /// 1 while a fork of a dormant process is under way.
    pub forking: AtomicU32,
    /// Address of a mapping with a copy of an exec's strings.
    pub exec_address: AtomicUsize,
    /// Bytes of the mapping at `exec_address`.
    pub exec_bytes: AtomicUsize,
    /// The alternate stack that the program believes to have: address, bytes (0: none), flags.
    pub alternate: [AtomicUsize; 3],
    /// Record of our alternate stack for this thread: address, or 0.
    pub stack: AtomicUsize,
    /// First of the calls that hold pins: address, or 0.
    pub held: AtomicUsize,
    /// Mask to return to when the outermost stretch closes.
    mask: AtomicU64,
}

const _: () = assert!(size_of::<Thread>() <= 128);

/// A signal's bit in a mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals that must never be blocked.
pub const OURS: u64 = bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGSYS);

/// This thread's block.
pub fn current() -> &'static Thread {
    let address: usize;
    // SAFETY: the loader gave this library a part of each thread's static block, 128 zeroed bytes at this offset; atomics
    // may be used by the thread and its handlers alike, and the block lives as long as code runs on the thread.
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

/// Returns true if our own code runs on this thread.
pub fn inside() -> bool {
    current().inside.load(Relaxed) != 0
}

/// Sets the thread's mask; returns the one before.
pub fn set_mask(how: i32, mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both masks live on this stack.
    unsafe { sys!(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut old, 8) };
    old
}

/// A stretch of our own code, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Quiet {
    masked: bool,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Quiet {
    /// Blocks signals (but ours) and opens a stretch.
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

    /// Opens a stretch in a handler, where the kernel blocked the signals and will unblock them.
    pub fn in_handler() -> Quiet {
        current().inside.fetch_add(1, Relaxed);
        Quiet { masked: false, not_send: std::marker::PhantomData }
    }

    /// Lets the program's signals in for the length of one system call.
    pub fn interruptible<R>(&mut self, mask: u64, body: impl FnOnce() -> R) -> R {
        let thread = current();
        let depth = thread.inside.swap(0, Relaxed);
        set_mask(libc::SIG_SETMASK, mask & !OURS);
        let result = body();
        set_mask(libc::SIG_BLOCK, !OURS);
        thread.inside.store(depth, Relaxed);
        result
    }

    /// Closes a stretch whose mark was forgotten: the outermost one.
    pub fn resume() {
        drop(Quiet { masked: true, not_send: std::marker::PhantomData });
    }

    /// The mask that the program has, when this stretch is the outermost and not in a handler.
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

/// Sends again the signals that could not be handled when they came.
fn deliver_pending(thread: &Thread) {
    let pending = thread.pending.swap(0, Relaxed);
    for signal in [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS] {
        if u64::from(pending) & bit(signal) != 0 {
            // SAFETY: a signal to this very thread.
            unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), sys!(libc::SYS_gettid), signal) };
        }
    }
}

/// Makes all of this thread's code ours for good: the evictor.
pub fn stay_inside() {
    set_mask(libc::SIG_BLOCK, !OURS);
    current().inside.fetch_add(1, Relaxed);
}
