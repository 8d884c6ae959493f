// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes this process's stats page at its first use, and again in a forked child.
//!
//! - **Flow** [`installed`] ──does this process own a page? yes──▶ the page ──no──▶ [`install`]: memfd ──▶ header ──▶
//!   magic (Release) ──▶ published
//! - **Order** the pointer is published with Release and loaded with Acquire. The lock holds the pid of its holder: a
//!   child that inherited a held lock sees another process's pid and takes the lock over.
//! - **Owner** pages are never unmapped, so references to them are `'static`. A child keeps its parent's page mapped,
//!   but never writes it: every writer checks [`Installed::is_own`] first.
//! - **Not here** retries: a process that fails to make a page (no memfd, no memory) runs without one, and does not try
//!   again.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::fs::fstat;
use rustix::time::{ClockId, clock_gettime};

use super::layout::{
    BUCKETS, DECISIONS, EXECUTOR_ROWS, Header, MAGIC, NAME, OPCODE_SLOTS, OPCODE_TABLE, ROWS, StatsPage,
    VERSION, store_text,
};
use crate::region::{ForkMark, HugePages, Region, RegionError, RegionOffset, RegionOptions, own_pid};

/// A page of this process, or of the process that it was forked from.
#[derive(Debug)]
pub(super) struct Installed {
    region: Region,
    mark: ForkMark,
    /// Device and inode of the memfd, to recognize its descriptor later.
    identity: Option<(u64, u64)>,
}

impl Installed {
    fn make() -> Result<Installed, RegionError> {
        let options = RegionOptions {
            prefault: false,
            huge_pages: HugePages::Never,
            headroom: false,
            ..RegionOptions::default()
        };
        let region = Region::memfd(NAME, size_of::<StatsPage>() as u64, &options)?;
        fill(&region.layout::<StatsPage>(RegionOffset(0))?.header);
        let identity = region.as_fd().and_then(identity);
        let mark = ForkMark::new();
        mark.claim();
        Ok(Installed { region, mark, identity })
    }

    /// Returns the mapped page.
    pub(super) fn page(&self) -> &StatsPage {
        self.region.layout(RegionOffset(0)).expect("made with this layout")
    }

    /// Returns true if this process, and not its parent before a fork, made the page.
    pub(super) fn is_own(&self) -> bool {
        self.mark.is_own()
    }

    /// Returns a word that reads zero in a forked child; `None` if the kernel cannot wipe pages on fork.
    pub(super) fn wiped_mark(&self) -> Option<&AtomicU64> {
        self.mark.wiped_word()
    }

    /// In a child: closes the fd of the parent's page, so that readers do not find it among the child's fds.
    fn close_parents_fd(&self) {
        let Some(fd) = self.region.as_fd() else { return };
        if self.identity.is_some() && identity(fd) == self.identity {
            let raw: RawFd = fd.as_raw_fd();
            // SAFETY: the number still is the memfd of the parent's page, as its inode shows. The region that
            // owns it is leaked and is never asked for its fd again, so nobody closes it twice.
            unsafe { rustix::io::close(raw) };
        }
    }
}

fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn fill(header: &Header) {
    let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    set(&header.version, VERSION);
    set(&header.page_bytes, size_of::<StatsPage>() as u64);
    set(&header.pid, own_pid());
    set(&header.start_unix_ns, unix_ns());
    set(&header.start_monotonic_ns, now_ns());
    set(&header.executor_rows, EXECUTOR_ROWS as u64);
    set(&header.opcode_slots, OPCODE_SLOTS as u64);
    set(&header.buckets, BUCKETS as u64);
    set(&header.decision_slots, DECISIONS as u64);
    set(&header.rows, ROWS as u64);
    store_text(&header.isa, memlift_kernels::active().isa.name().as_bytes());
    store_text(&header.opcodes, &OPCODE_TABLE);
    let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let command: Vec<u8> = command.iter().map(|&byte| if byte == 0 { b' ' } else { byte }).collect();
    store_text(&header.command, command.trim_ascii_end());
    header.magic.store(MAGIC, Ordering::Release);
}

static INSTALLED: AtomicPtr<Installed> = AtomicPtr::new(ptr::null_mut());
/// Pid of the installing process, or 0.
static LOCK: AtomicU64 = AtomicU64::new(0);
/// Pid of the process that failed to make a page.
static FAILED: AtomicU64 = AtomicU64::new(0);

fn current() -> Option<&'static Installed> {
    // SAFETY: the pointer is null, or that of a box that `install` leaked and nobody frees.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

/// Returns this process's page, and makes it if there is none. Costs two loads if there is one.
#[inline]
pub(super) fn installed() -> Option<&'static Installed> {
    match current() {
        Some(installed) if installed.is_own() => Some(installed),
        _ => install(),
    }
}

#[cold]
fn install() -> Option<&'static Installed> {
    let pid = own_pid();
    if FAILED.load(Ordering::Relaxed) == pid {
        return None;
    }
    loop {
        let holder = LOCK.load(Ordering::Relaxed);
        if holder == pid {
            std::thread::yield_now();
        } else if LOCK.compare_exchange(holder, pid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    let inherited = current();
    let installed = match inherited {
        Some(installed) if installed.is_own() => Some(installed),
        _ => match Installed::make() {
            Ok(installed) => {
                if let Some(parent) = inherited {
                    parent.close_parents_fd();
                }
                let installed: &'static Installed = Box::leak(Box::new(installed));
                INSTALLED.store(ptr::from_ref(installed).cast_mut(), Ordering::Release);
                Some(installed)
            }
            Err(_) => {
                FAILED.store(pid, Ordering::Relaxed);
                None
            }
        },
    };
    LOCK.store(0, Ordering::Release);
    installed
}

/// Returns the nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
