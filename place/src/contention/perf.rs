// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures contention by this thread's last-level cache misses, where the kernel and the machine allow to count them.
//!
//! - **Flow** two counters (references, misses) of the thread that opened them; the miss rate is taken from their differences.
//! - **Level** 1 + miss rate, so the threshold is a miss rate, as in the paper.
//! - **Limits** the counters count only the thread that opened them, so they show nothing of messages of other threads.
//!
//! Source: `perf_event_open(2)`.

use super::source::Source;
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::thread::ThreadId;

const HARDWARE: u32 = 0;
const CACHE_REFERENCES: u64 = 2;
const CACHE_MISSES: u64 = 3;
/// Bytes of the first published version of `perf_event_attr`.
const ATTRIBUTE_BYTES: u32 = 64;
/// Bits of `perf_event_attr` that exclude the kernel (5) and the hypervisor (6).
const EXCLUDE: u64 = 1 << 5 | 1 << 6;
/// With fewer references than this there is no sample.
const REFERENCES_MIN: u64 = 1000;

#[derive(Debug)]
pub(super) struct Perf {
    references: File,
    misses: File,
    last: (u64, u64),
    thread: ThreadId,
}

/// The first 64 bytes of `struct perf_event_attr`.
#[repr(C)]
struct Attribute {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attribute>() == ATTRIBUTE_BYTES as usize);

fn open(config: u64) -> Option<File> {
    let attribute = Attribute {
        kind: HARDWARE,
        size: ATTRIBUTE_BYTES,
        config,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: EXCLUDE,
        wakeup: 0,
        breakpoint: 0,
        config1: 0,
    };
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    // SAFETY: `attribute` lives during the call and is as long as its `size` says; the other arguments mean this thread, any
    // CPU, no group.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attribute, 0, -1, -1, CLOSE_ON_EXEC) };
    // SAFETY: a descriptor that is not negative was just opened, and nothing else owns it.
    (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor as i32) })
}

fn read(mut file: &File) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

impl Perf {
    /// Opens the counters; returns `None` if the machine has none or they are not permitted.
    pub fn open() -> Option<Perf> {
        let (references, misses) = (open(CACHE_REFERENCES)?, open(CACHE_MISSES)?);
        let last = (read(&references)?, read(&misses)?);
        Some(Perf { references, misses, last, thread: std::thread::current().id() })
    }
}

impl Source for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn sample(&mut self) -> Option<f64> {
        if std::thread::current().id() != self.thread {
            return None;
        }
        let now = (read(&self.references)?, read(&self.misses)?);
        let references = now.0.saturating_sub(self.last.0);
        let misses = now.1.saturating_sub(self.last.1);
        if references < REFERENCES_MIN {
            return None;
        }
        self.last = now;
        Some(1.0 + (misses as f64 / references as f64).min(1.0))
    }
}
