// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thin layer over the ioctls of userfaultfd, with only the calls that zmem needs.
//!
//! - **Flow** [`Uffd::open`] (API handshake with the features asked for) ──▶ [`Uffd::register`] a range ──fault──▶
//!   [`Uffd::copy`] · [`Uffd::relocate`] · [`Uffd::protect`] ──▶ [`Uffd::unregister`]
//! - **Layout** structures and numbers as in `include/uapi/linux/userfaultfd.h` of Linux 6.8 and later, which every kernel that
//!   offers the feature shares
//! - **Owner** only [`Uffd::close`] closes the descriptor. After a fork the child closes its copy before it does anything
//!   else, because the copy acts on the memory of the parent
//! - **Order** every call is one system call, except that [`Uffd::protect`] repeats EAGAIN and [`Uffd::relocate`] goes on behind what was
//!   moved; nothing is allocated, so that a fault handler may call them
//! - **Not here** the meaning of the pages: `pager`

use std::sync::atomic::{AtomicI32, Ordering};

use crate::mapping::PAGE_BYTES;

/// An error number of the C library.
pub type Errno = i32;

/// Only faults from user mode are reported; an unprivileged process gets no others.
pub const USER_MODE_ONLY: i32 = 1;
/// The kernel reports writes to protected pages as faults.
pub const FEATURE_WP: u64 = 1 << 0;
/// A fault sends SIGBUS to the thread that made it.
pub const FEATURE_SIGBUS: u64 = 1 << 7;
/// The kernel can move pages, as [`Uffd::relocate`] does.
pub const FEATURE_MOVE: u64 = 1 << 16;

/// Reports faults on pages that are missing.
pub const REGISTER_MISSING: u64 = 1 << 0;
/// Reports writes to protected pages as faults.
pub const REGISTER_WP: u64 = 1 << 1;

const API: u64 = 0xAA;
const COPY_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;

/// `_IOC(direction, 0xAA, number, size)` of the kernel's generic encoding.
const fn ioc(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xAA << 8 | number
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;

const IOCTL_API: u64 = ioc(READ_WRITE, 0x3F, size_of::<ApiArgument>());
const IOCTL_REGISTER: u64 = ioc(READ_WRITE, 0x00, size_of::<RegisterArgument>());
const IOCTL_UNREGISTER: u64 = ioc(READ, 0x01, size_of::<Range>());
const IOCTL_WAKE: u64 = ioc(READ, 0x02, size_of::<Range>());
const IOCTL_COPY: u64 = ioc(READ_WRITE, 0x03, size_of::<CopyArgument>());
const IOCTL_MOVE: u64 = ioc(READ_WRITE, 0x05, size_of::<CopyArgument>());
const IOCTL_WRITEPROTECT: u64 = ioc(READ_WRITE, 0x06, size_of::<WriteprotectArgument>());

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct RegisterArgument {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// COPY and MOVE have the same layout.
#[repr(C)]
struct CopyArgument {
    target: u64,
    source: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteprotectArgument {
    range: Range,
    mode: u64,
}

const _: () = {
    assert!(IOCTL_API == 0xc018_aa3f);
    assert!(IOCTL_REGISTER == 0xc020_aa00);
    assert!(IOCTL_UNREGISTER == 0x8010_aa01);
    assert!(IOCTL_COPY == 0xc028_aa03);
    assert!(IOCTL_MOVE == 0xc028_aa05);
    assert!(IOCTL_WRITEPROTECT == 0xc018_aa06);
};

/// The progress of a call over several pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done from the start of the range, whole pages.
    pub bytes: usize,
    /// 0, or the error number that ended the call.
    pub error: Errno,
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Uffd {
    descriptor: AtomicI32,
}

impl Uffd {
    /// A value without a descriptor, until [`Uffd::open`].
    pub const fn closed() -> Uffd {
        Uffd { descriptor: AtomicI32::new(-1) }
    }

    /// Opens a userfaultfd with `flags` ([`USER_MODE_ONLY`] or 0) and negotiates `features`; closes the one that was open
    /// before.
    ///
    /// # Errors
    ///
    /// The kernel's error number: EPERM (seccomp, sysctl), ENOSYS, or EINVAL (the kernel lacks a feature).
    pub fn open(&self, flags: i32, features: u64) -> Result<(), Errno> {
        let result = crate::descriptor::open(|| {
            // SAFETY: the call takes no pointer.
            let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | flags) };
            if opened == -1 { -(errno() as isize) } else { opened as isize }
        });
        let descriptor = result as i32;
        if descriptor < 0 {
            return Err(-descriptor as Errno);
        }
        self.close();
        self.descriptor.store(descriptor, Ordering::Release);
        let mut argument = ApiArgument { api: API, features, ioctls: 0 };
        // SAFETY: the argument is the structure that the request is encoded for.
        let outcome = unsafe { self.ioctl(IOCTL_API, &raw mut argument) };
        if outcome.is_err() {
            self.close();
        }
        outcome
    }

    /// Closes the descriptor. That unregisters all its ranges, unless the descriptor is a copy that a fork made.
    pub fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            // SAFETY: the descriptor was this value's own.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        }
    }

    /// Returns the descriptor, or −1 if none is open.
    pub fn descriptor(&self) -> i32 {
        self.descriptor.load(Ordering::Acquire)
    }

    /// Registers `[start, start + bytes)`.
    ///
    /// # Errors
    ///
    /// The kernel's error number.
    pub fn register(&self, start: usize, bytes: usize, mode: u64) -> Result<(), Errno> {
        let mut argument = RegisterArgument { range: Range::new(start, bytes), mode, ioctls: 0 };
        // SAFETY: the argument is the structure that the request is encoded for.
        unsafe { self.ioctl(IOCTL_REGISTER, &raw mut argument) }
    }

    /// Unregisters a range: pages that are missing read as zeros again, and protected ones become writable.
    ///
    /// # Errors
    ///
    /// The kernel's error number.
    pub fn unregister(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        let mut range = Range::new(start, bytes);
        // SAFETY: the argument is the structure that the request is encoded for.
        unsafe { self.ioctl(IOCTL_UNREGISTER, &raw mut range) }
    }

    /// Wakes the threads that wait for faults in the range (used with the handler thread).
    pub fn wake(&self, start: usize, bytes: usize) {
        let mut range = Range::new(start, bytes);
        // SAFETY: the argument is the structure that the request is encoded for.
        let _ = unsafe { self.ioctl(IOCTL_WAKE, &raw mut range) };
    }

    /// Fills missing pages with a copy of `source`, write-protected if `protected` is true.
    ///
    /// # Safety
    ///
    /// `source` is readable for `bytes` bytes; the target lies in an arena whose page states say that the pages are absent.
    pub unsafe fn copy(&self, target: usize, source: *const u8, bytes: usize, protected: bool) -> Progress {
        let mode = if protected { COPY_MODE_WP } else { 0 };
        let mut argument =
            CopyArgument { target: target as u64, source: source as u64, bytes: bytes as u64, mode, done: 0 };
        // SAFETY: the argument is the structure that the request is encoded for; the caller promises both ranges.
        let outcome = unsafe { self.ioctl(IOCTL_COPY, &raw mut argument) };
        Progress::of(outcome, argument.done, bytes)
    }

    /// Moves pages: afterwards they are missing at `source`, and present and writable at `target`, where pages were missing
    /// before. Goes on until a page cannot be moved.
    ///
    /// Linux 6.18 moves a page that is just migrating (as when memory is compacted), tries the same page again within the call, and
    /// fails with EEXIST, since the page is there. Such a page is counted as moved.
    ///
    /// # Safety
    ///
    /// Nothing in the program relies on the contents of `source` afterwards, and the page states of both ranges say so.
    pub unsafe fn relocate(&self, target: usize, source: usize, bytes: usize) -> Progress {
        let mut done = 0;
        loop {
            let (to, from) = (target + done, source + done);
            let mut argument = CopyArgument {
                target: to as u64,
                source: from as u64,
                bytes: (bytes - done) as u64,
                mode: 0,
                done: 0,
            };
            // SAFETY: the argument is the structure that the request is encoded for; the caller promises both ranges.
            let outcome = unsafe { self.ioctl(IOCTL_MOVE, &raw mut argument) };
            let step = Progress::of(outcome, argument.done, bytes - done);
            done += step.bytes;
            if step.error == libc::EEXIST && is_present(to) && !is_present(from) {
                done += PAGE_BYTES;
            } else if step.error == 0 || step.bytes == 0 {
                return Progress { bytes: done, error: step.error };
            }
            if done == bytes {
                return Progress { bytes, error: 0 };
            }
        }
    }

    /// Sets or lifts the write-protection of the pages that are present in the range.
    ///
    /// # Errors
    ///
    /// The kernel's error number. EAGAIN is not returned: the call is repeated.
    pub fn protect(&self, start: usize, bytes: usize, on: bool) -> Result<(), Errno> {
        loop {
            let mode = if on { WRITEPROTECT_MODE_WP } else { 0 };
            let mut argument = WriteprotectArgument { range: Range::new(start, bytes), mode };
            // SAFETY: the argument is the structure that the request is encoded for.
            match unsafe { self.ioctl(IOCTL_WRITEPROTECT, &raw mut argument) } {
                Err(libc::EAGAIN) => {}
                outcome => return outcome,
            }
        }
    }

    /// # Safety
    ///
    /// `argument` is the structure that `request` is encoded for, and lives as long as the call.
    unsafe fn ioctl<T>(&self, request: u64, argument: *mut T) -> Result<(), Errno> {
        let descriptor = self.descriptor.load(Ordering::Relaxed);
        // SAFETY: the caller promises that the argument fits the request and lives over the call.
        match unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}

impl Range {
    fn new(start: usize, bytes: usize) -> Range {
        Range { start: start as u64, bytes: bytes as u64 }
    }
}

impl Progress {
    /// Reads the outcome: the kernel sets `done` to the number of bytes done, or to the negative error if none was.
    fn of(outcome: Result<(), Errno>, done: i64, bytes: usize) -> Progress {
        match outcome {
            Ok(()) => Progress { bytes, error: 0 },
            Err(error) => Progress { bytes: usize::try_from(done).unwrap_or(0).min(bytes), error },
        }
    }
}

/// Returns true if the kernel has memory for the page at `address`.
fn is_present(address: usize) -> bool {
    let mut word = 0_u8;
    // SAFETY: the kernel writes one byte for one page.
    let outcome = unsafe { libc::syscall(libc::SYS_mincore, address, PAGE_BYTES, &raw mut word) };
    outcome == 0 && word & 1 != 0
}

/// Returns the error number of the last system call that failed.
pub(crate) fn errno() -> Errno {
    // SAFETY: the C library's own accessor; the word is this thread's.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn pages_are_copied_protected_and_moved() {
        let uffd = Uffd::closed();
        let features = FEATURE_SIGBUS | FEATURE_WP | FEATURE_MOVE;
        if uffd.open(USER_MODE_ONLY, features).is_err() {
            eprintln!("not run: this machine has no userfaultfd with MOVE");
            return;
        }
        let mapping = Mapping::reserve("a test", 8 * PAGE_BYTES).expect("address space");
        let start = mapping.pointer().as_ptr() as usize;
        uffd.register(start, 8 * PAGE_BYTES, REGISTER_MISSING | REGISTER_WP).expect("registered");
        let source = [7u8; 2 * PAGE_BYTES];
        // SAFETY: the source is an array; the target is this test's mapping, and missing.
        let progress = unsafe { uffd.copy(start, source.as_ptr(), source.len(), true) };
        assert_eq!(progress, Progress { bytes: source.len(), error: 0 });
        // SAFETY: the source is an array; the target is this test's mapping, whose pages nobody else uses.
        let again = unsafe { uffd.copy(start, source.as_ptr(), source.len(), true) };
        assert_eq!(again, Progress { bytes: 0, error: libc::EEXIST });
        uffd.protect(start, PAGE_BYTES, false).expect("writable");
        // SAFETY: the page is present, writable and this test's.
        unsafe { (start as *mut u8).write(9) };
        // SAFETY: the pages are this test's; the target is missing.
        let moved = unsafe { uffd.relocate(start + 4 * PAGE_BYTES, start, PAGE_BYTES) };
        assert_eq!(moved, Progress { bytes: PAGE_BYTES, error: 0 });
        // SAFETY: the page was moved here.
        assert_eq!(unsafe { ((start + 4 * PAGE_BYTES) as *const [u8; 2]).read() }, [9, 7]);
        uffd.unregister(start, 8 * PAGE_BYTES).expect("unregistered");
        uffd.close();
        assert_eq!(uffd.descriptor(), -1);
    }
}
