// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of each thread: its counts, the chunk that it writes, the time of its last mark.
//!
//! - **Layout** a block of static TLS (initial-exec: at a fixed distance from the thread pointer), zeroed, so that a call of memcpy that
//!   counts itself is a few instructions and never meets the loader or an allocator
//! - **Order** the thread and its signal handlers use it, nobody else: relaxed loads and stores; a count that a handler makes between
//!   the two is lost
//! - **Owner** in a forked child the block is a copy of its parent's: [`crate::sink`] tells by `process` and begins anew

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use memlift_spec::trace::Kind;

core::arch::global_asm!(
    ".pushsection .tbss.memlift_tap,\"awT\",@nobits",
    ".p2align 6",
    ".globl memlift_tap_thread",
    ".hidden memlift_tap_thread",
    ".type memlift_tap_thread,@object",
    "memlift_tap_thread:",
    ".zero 256",
    ".size memlift_tap_thread, 256",
    ".popsection",
);

/// Kinds that are counted below their threshold.
pub const COUNTED: [Kind; 9] = [
    Kind::Copy,
    Kind::Move,
    Kind::Fill,
    Kind::Compare,
    Kind::Deflate,
    Kind::Inflate,
    Kind::Encrypt,
    Kind::Decrypt,
    Kind::Digest,
];

/// Calls that were only counted.
#[repr(C)]
pub struct Count {
    /// Number of calls since the block was made; never set back, because every so many calls there is a look.
    pub calls: AtomicU32,
    /// Number of these calls that are in the trace.
    pub told: AtomicU32,
    /// Bytes of the calls that are not in the trace.
    pub bytes: AtomicU64,
}

/// Block of one thread: its counts, its chunk of the trace, its marks.
#[repr(C)]
pub struct Thread {
    /// Counts of each function, in the order of [`COUNTED`].
    pub counts: [Count; COUNTED.len()],
    /// Address of the chunk; 0: none.
    pub chunk: AtomicUsize,
    /// Bytes of the chunk.
    pub bytes: AtomicU32,
    /// Bytes of the chunk that are in use.
    pub used: AtomicU32,
    /// Chunks that this thread has had.
    pub chunks: AtomicU32,
    /// The thread's number in the trace.
    pub number: AtomicU32,
    /// Number of the process that this block is of.
    pub process: AtomicU32,
    /// 1 while our own code writes: a signal handler's calls pass by.
    pub inside: AtomicU32,
    /// Where on the stack the outermost call of a library is that is under way; 0: none.
    pub outer: AtomicUsize,
    /// Time of the last mark.
    pub marked_ns: AtomicU64,
    /// Start of an epoll_wait whose descriptor is not known yet, plus 1; 0: none.
    pub polled_ns: AtomicU64,
}

const _: () = assert!(size_of::<Thread>() <= 256);

/// This thread's block.
#[inline(always)]
pub fn current() -> &'static Thread {
    let address: usize;
    // SAFETY: the loader gave this library a part of each thread's static block, 256 zeroed bytes at this offset; the fields are
    // atomics, which the thread and its handlers may use alike, and the block lives as long as code runs on the thread.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + memlift_tap_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(nostack, pure, readonly),
        );
        &*(address as *const Thread)
    }
}

impl Thread {
    /// Counts a call; true every 4096 calls: then it is time for a look at the clock.
    #[inline(always)]
    pub fn count(&self, place: usize, bytes: usize) -> bool {
        let count = &self.counts[place];
        let calls = count.calls.load(Relaxed).wrapping_add(1);
        count.calls.store(calls, Relaxed);
        count.bytes.store(count.bytes.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
        calls & 4095 == 0
    }

    /// Forgets everything: the block is of another process.
    pub fn renew(&self, process: u32) {
        for count in &self.counts {
            count.told.store(count.calls.load(Relaxed), Relaxed);
            count.bytes.store(0, Relaxed);
        }
        self.chunk.store(0, Relaxed);
        self.chunks.store(0, Relaxed);
        self.number.store(0, Relaxed);
        self.outer.store(0, Relaxed);
        self.marked_ns.store(0, Relaxed);
        self.polled_ns.store(0, Relaxed);
        self.process.store(process, Relaxed);
    }
}
