// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that the pager makes on arena memory. They are made directly, because `mmap` and similar functions may be
//! those of the preloaded library.
//!
//! - **Order** none of them touches arena memory from user mode
//! - **Not here** userfaultfd ([`crate::uffd`])

use crate::uffd::{Errno, errno};

const MAP_RESERVED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn outcome(result: i64) -> Result<(), Errno> {
    if result == -1 { Err(errno()) } else { Ok(()) }
}

/// Reserves the range at exactly `address`, where nothing may be mapped yet.
pub(super) fn reserve(address: usize, bytes: usize) -> Result<(), Errno> {
    let flags = MAP_RESERVED | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses the call if anything is mapped in the range.
    let got = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, libc::PROT_NONE, flags, -1, 0) };
    outcome(got)?;
    if got as usize == address {
        return Ok(());
    }
    // A kernel before 4.17 takes the address as a hint.
    // SAFETY: the range was just mapped by this call alone.
    unsafe { libc::syscall(libc::SYS_munmap, got, bytes) };
    Err(libc::EEXIST)
}

/// Makes a range of the arena a mere reservation again: its memory, page tables and registration go.
pub(super) fn vacate(address: usize, bytes: usize) -> Result<(), Errno> {
    let flags = MAP_RESERVED | libc::MAP_FIXED;
    // SAFETY: the range lies in the arena, and its tables say that nothing is mapped there any more.
    outcome(unsafe { libc::syscall(libc::SYS_mmap, address, bytes, libc::PROT_NONE, flags, -1, 0) })
}

/// Sets the access of a range of the arena (`mprotect`).
pub(super) fn protect(address: usize, bytes: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the range lies in the arena, and the access is what the program asked for or less.
    outcome(unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, prot) })
}

/// Gives advice for a range of the pager's memory (`madvise`).
pub(super) fn advise(address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the range is the pager's; the contents that the advice drops are no longer needed, as the tables say.
    outcome(unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) })
}

/// Sets bit 0 of the page's byte in `present` for each page of the range that is present.
pub(super) fn mincore(address: usize, bytes: usize, present: &mut [u8]) -> Result<(), Errno> {
    if present.len() < bytes.div_ceil(4096) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `present` has a byte for each page, as checked above.
    outcome(unsafe { libc::syscall(libc::SYS_mincore, address, bytes, present.as_mut_ptr()) })
}

/// Moves the pages of a mapping to `target`, and leaves the old range mapped and empty.
pub(super) fn relocate(address: usize, bytes: usize, target: usize) -> Result<(), Errno> {
    const DONTUNMAP: i32 = 4;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
    // SAFETY: both ranges lie in the arena, and the tables say that the target is free.
    outcome(unsafe { libc::syscall(libc::SYS_mremap, address, bytes, bytes, flags, target) })
}

/// Drops the memory of a range of the arena.
pub(super) fn drop_range(address: usize, bytes: usize) {
    const DONTNEED_LOCKED: i32 = 24;
    if advise(address, bytes, libc::MADV_DONTNEED).is_err()
        && advise(address, bytes, DONTNEED_LOCKED).is_err()
    {
        // If a page stayed although the table says that it is gone, its old contents would be read for those of another page.
        end("memlift: the kernel keeps a page that was put away (is it locked?); the job ends\n", 71);
    }
}

/// A range of memory, with the layout of `iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub address: usize,
    pub bytes: usize,
}

/// Drops the memory of many ranges of the arena with one call. Returns false if the kernel has no such call.
pub(super) fn drop_ranges(ranges: &[Range]) -> bool {
    const PIDFD_SELF: i32 = -10000;
    let wanted: usize = ranges.iter().map(|range| range.bytes).sum();
    // SAFETY: the ranges lie in the arena, and the tables say that their contents are stored elsewhere.
    let dropped = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF,
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_DONTNEED,
            0,
        )
    };
    dropped as usize == wanted
}

/// Opens a file.
pub(super) fn open(path: &std::ffi::CStr, flags: i32) -> Result<i32, Errno> {
    let result = crate::descriptor::open(|| {
        // SAFETY: the path ends with a zero byte.
        let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
        if opened == -1 { -(errno() as isize) } else { opened as isize }
    });
    if result < 0 { Err(-result as Errno) } else { Ok(result as i32) }
}

/// Closes a descriptor that the pager has opened.
pub(super) fn close(descriptor: i32) {
    // SAFETY: the caller has opened the descriptor and uses it no more.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// Calls `piece` with one piece of a file after the other; not at all if the file cannot be read.
fn read_file(path: &std::ffi::CStr, mut piece: impl FnMut(&[u8])) {
    let Ok(descriptor) = open(path, libc::O_RDONLY | libc::O_CLOEXEC) else { return };
    let mut bytes = [0u8; 4096];
    loop {
        // SAFETY: the array is borrowed for the call, and its length is passed.
        let got = unsafe { libc::syscall(libc::SYS_read, descriptor, bytes.as_mut_ptr(), bytes.len()) };
        match usize::try_from(got) {
            Ok(got @ 1..) => piece(&bytes[..got]),
            _ => break,
        }
    }
    close(descriptor);
}

/// Returns the size of the address space that the process has mapped, bytes.
pub(super) fn virtual_bytes() -> usize {
    let (mut pages, mut over) = (0usize, false);
    read_file(c"/proc/self/statm", |piece| {
        for byte in piece {
            over |= !byte.is_ascii_digit();
            if !over {
                pages = pages.saturating_mul(10).saturating_add(usize::from(byte - b'0'));
            }
        }
    });
    pages.saturating_mul(crate::mapping::PAGE_BYTES)
}

/// Returns the number of the process's mappings.
pub(super) fn mappings() -> usize {
    let mut lines = 0;
    read_file(c"/proc/self/maps", |piece| lines += piece.iter().filter(|byte| **byte == b'\n').count());
    lines
}

/// Returns the limit on the number of mappings of a process.
pub(super) fn mappings_limit() -> usize {
    const USUAL: usize = 65_530;
    let mut limit = 0usize;
    read_file(c"/proc/sys/vm/max_map_count", |piece| {
        for digit in piece.iter().filter(|byte| byte.is_ascii_digit()) {
            limit = limit.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
        }
    });
    if limit == 0 { USUAL } else { limit }
}

/// Blocks all signals of this thread until dropped. Needed by holders of a pager's lock outside a fault handler.
#[must_use]
pub(crate) struct Quiet(u64);

impl Quiet {
    pub fn new() -> Quiet {
        Quiet(sigmask(libc::SIG_SETMASK, u64::MAX))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sigmask(libc::SIG_SETMASK, self.0);
    }
}

/// Blocks signals in a thread of the pager's own, so that the program's handlers never run in it. The signal by which glibc
/// makes all threads take new credentials (SIGSETXID, 33) stays open, because `setuid` waits until each thread has handled
/// it.
pub(crate) fn own_thread() {
    const SETXID: u64 = 1 << (33 - 1);
    sigmask(libc::SIG_SETMASK, !SETXID);
}

/// Changes the signal mask of this thread (`rt_sigprocmask`). Returns the old mask.
pub(super) fn sigmask(how: i32, mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both masks live over the call and have 8 bytes, which is the size passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut old, size_of::<u64>()) };
    old
}

/// Returns true if a signal waits until this thread returns to the program. Signals that faults cause, and those that programs
/// ignore unless they ask for them, do not count.
pub(super) fn signal_waits() -> bool {
    const FAULTS: [i32; 3] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS];
    const IGNORED: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    let mut waiting = 0u64;
    // SAFETY: the mask lives over the call and has 8 bytes, which is the size passed.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, size_of::<u64>()) };
    let left_out = FAULTS.iter().chain(&IGNORED).fold(0, |mask, signal| mask | 1u64 << (signal - 1));
    waiting & !left_out != 0
}

/// Ends the process with a line on standard error, because data of the program is lost or there is no room.
pub(super) fn end(line: &str, code: i32) -> ! {
    // SAFETY: the line is borrowed for the first call; the second takes no pointer and does not return.
    unsafe {
        libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len());
        loop {
            libc::syscall(libc::SYS_exit_group, code);
        }
    }
}
