// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of each thread: its counts, the chunk that it writes, the time of its last mark.
//!
//! - **Layout** a block of static TLS (initial-exec: at a fixed distance from the thread pointer), zeroed. So a call of memcpy that only
//!   counts itself takes a few instructions and calls neither the loader nor an allocator.
//! - **Order** only the thread and its signal handlers use the block: loads and stores are relaxed. A count that a handler makes between
//!   a load and its store is lost.
//! - **Owner** in a forked child the block is a copy of its parent's: [`crate::sink`] recognises that by `process` and resets it.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use memlift_spec::formats::trace::Kind;

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

/// Kinds of calls that are counted below their threshold.
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

/// Counts of the calls of one kind that were not recorded.
#[repr(C)]
pub struct Count {
    /// Number of calls since the block was made; it is never reset, because every 4096 calls the clock is read.
    pub calls: AtomicU32,
    /// Number of these calls that are already in the trace.
    pub recorded: AtomicU32,
    /// Bytes of the calls that are not in the trace yet.
    pub bytes: AtomicU64,
}

/// Block of one thread: its counts, its chunk of the trace, its marks.
#[repr(C)]
pub struct Thread {
    /// Counts of each function, in the order of [`COUNTED`].
    pub counts: [Count; COUNTED.len()],
    /// Address of the chunk; 0 if there is none.
    pub chunk: AtomicUsize,
    /// Size of the chunk, bytes.
    pub bytes: AtomicU32,
    /// Bytes of the chunk that are used.
    pub used: AtomicU32,
    /// Number of chunks that this thread has had.
    pub chunks: AtomicU32,
    /// The thread's number in the trace.
    pub number: AtomicU32,
    /// Number of the process that this block belongs to.
    pub process: AtomicU32,
    /// 1 while code of this library runs, during which calls of a signal handler are not recorded.
    pub in_own_code: AtomicU32,
    /// Stack address of the outermost library call that is being recorded; 0 if there is none.
    pub outer: AtomicUsize,
    /// Time of the last mark.
    pub marked_ns: AtomicU64,
    /// Start of a wait for several descriptors, of which it is not known yet which one ended it, plus 1; 0 if there is none.
    pub polled_ns: AtomicU64,
    /// Requests that are not in the trace yet.
    pub served: Served,
}

/// Requests that a thread has answered.
#[repr(C)]
pub struct Served {
    /// Number of requests.
    pub requests: AtomicU64,
    /// Bytes read from accepted connections.
    pub read: AtomicU64,
    /// Bytes written to accepted connections.
    pub written: AtomicU64,
    /// Time at which the first request was read.
    pub first_ns: AtomicU64,
    /// Time at which the last request was answered.
    pub last_ns: AtomicU64,
    /// Time between reading and answering, summed over requests.
    pub inside_ns: AtomicU64,
}

impl Served {
    /// Returns the words of a record at this time, and resets the counts; `None` if there is nothing to record.
    pub fn take(&self, time_ns: u64) -> Option<[u64; 7]> {
        let requests = self.requests.swap(0, Relaxed);
        if requests == 0 {
            return None;
        }
        let of = |word: &AtomicU64| word.swap(0, Relaxed);
        let (read, written) = (of(&self.read), of(&self.written));
        Some([time_ns, requests, read, written, of(&self.first_ns), of(&self.last_ns), of(&self.inside_ns)])
    }
}

const _: () = assert!(size_of::<Thread>() <= 256);

/// Returns this thread's block.
#[inline(always)]
pub fn current() -> &'static Thread {
    let address: usize;
    // SAFETY: the loader gave this library a part of each thread's static block, 256 zeroed bytes at this offset. The fields are
    // atomics, which the thread and its handlers may both use, and the block lives as long as code runs on the thread.
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
    /// Counts a call; returns true every 4096 calls, when the caller should check if a mark is due.
    #[inline(always)]
    pub fn count(&self, place: usize, bytes: usize) -> bool {
        let count = &self.counts[place];
        let calls = count.calls.load(Relaxed).wrapping_add(1);
        count.calls.store(calls, Relaxed);
        count.bytes.store(count.bytes.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
        calls & 4095 == 0
    }

    /// Resets the block, because it is a copy of another process's.
    pub fn renew(&self, process: u32) {
        for count in &self.counts {
            count.recorded.store(count.calls.load(Relaxed), Relaxed);
            count.bytes.store(0, Relaxed);
        }
        self.chunk.store(0, Relaxed);
        self.chunks.store(0, Relaxed);
        self.number.store(0, Relaxed);
        self.outer.store(0, Relaxed);
        self.marked_ns.store(0, Relaxed);
        self.polled_ns.store(0, Relaxed);
        self.served.take(0);
        self.process.store(process, Relaxed);
    }
}
