// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mlockall`: the program's memory is locked, and this library's is not.
//!
//! - **Flow** [`lock`] checks the limit as the kernel does ──▶ each accessible range of the arena is locked as by `mlock`
//!   (`locked`) ──▶ each mapping outside the arena that is not this library's is locked by the kernel. With `MCL_FUTURE`,
//!   [`mapped`] locks what is mapped from then on
//! - **Order** the kernel's own call is never made: it would give memory to the whole arena and to the pager's tables, which
//!   are reservations
//! - **Owner** the child of a fork begins without, as locks are not inherited
//! - **Not here** stacks of threads that start later, which libc maps by itself

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memlift_zmem::mapping::Mapping;
use memlift_zmem::pager::{ARENA_BASE, ARENA_BYTES, Pager};

use crate::activate::{after, for_lines, hexadecimal};
use crate::thread::Quiet;
use crate::{heap, locked, sys};

const CURRENT: usize = 1;
const FUTURE: usize = 2;
const ONFAULT: usize = 4;
/// The flag of `mlock2` that stands for [`ONFAULT`].
const LOCK_ONFAULT: usize = 1;
const LOCK_CAPABILITY: u32 = 14;
const BUFFER_BYTES: usize = 64 << 10;

/// The flags of the last call that had [`FUTURE`], or 0.
static FROM_NOW_ON: AtomicUsize = AtomicUsize::new(0);

/// Ends the locking of new memory in the child of a fork.
pub fn forked() {
    FROM_NOW_ON.store(0, Relaxed);
}

/// Returns true if this process has a right of the superuser's, by its number.
pub fn has_capability(capability: u32) -> bool {
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: both arrays have the layout of this version, and live over the call.
    let result = unsafe { sys!(libc::SYS_capget, &raw const header, &raw mut sets) };
    result == 0 && sets[0] >> capability & 1 != 0
}

/// Calls `act` with start and end of each mapping outside the arena that is not this library's.
fn for_mappings(mut act: impl FnMut(usize, usize)) {
    let Ok(buffer) = Mapping::reserve("a list of mappings", BUFFER_BYTES) else { return };
    // SAFETY: the mapping is of this size, zeroed, and used by this call alone.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.pointer().as_ptr(), BUFFER_BYTES) };
    let mut now = None;
    for_lines(c"/proc/self/smaps", buffer, |line| {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let has = |flag: &[u8]| flags.windows(flag.len()).any(|window| window == flag);
            // All reservations of the pager are left out of dumps and not counted as committed.
            if let Some((start, end)) = now.take().filter(|_| !(has(b" nr") && has(b" dd"))) {
                act(start, end);
            }
        } else if let Some(dash) = line.iter().position(|&byte| byte == b'-').filter(|&dash| dash <= 16) {
            let (start, end) = (hexadecimal(line) as usize, hexadecimal(&line[dash + 1..]) as usize);
            let named = !after(line, b"memlift").is_empty() || line.ends_with(b"[vsyscall]");
            let within = start >= heap::BASE && end <= ARENA_BASE + ARENA_BYTES;
            now = (start < end && !named && !within).then_some((start, end));
        }
    });
}

/// Returns the accessible ranges of the arena.
fn accessible(pager: &Pager) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = ARENA_BASE;
    while let Some((start, bytes)) = pager.accessible_from(at) {
        ranges.push((start, bytes));
        at = start + bytes;
    }
    ranges
}

/// Performs `mlockall`; returns the result that the kernel would.
pub fn lock(pager: &'static Pager, flags: usize) -> isize {
    if flags & (CURRENT | FUTURE) == 0 || flags & !(CURRENT | FUTURE | ONFAULT) != 0 {
        return -(libc::EINVAL as isize);
    }
    let _quiet = Quiet::begin();
    let ranges = accessible(pager);
    if !has_capability(LOCK_CAPABILITY) {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives over the call.
        unsafe { sys!(libc::SYS_getrlimit, libc::RLIMIT_MEMLOCK, &raw mut limit) };
        if limit.rlim_cur == 0 {
            return -(libc::EPERM as isize);
        }
        let mut bytes: usize = ranges.iter().map(|(_, bytes)| bytes).sum();
        for_mappings(|start, end| bytes += end - start);
        if flags & CURRENT != 0 && bytes as u64 > limit.rlim_cur {
            return -(libc::ENOMEM as isize);
        }
    }
    FROM_NOW_ON.store(if flags & FUTURE != 0 { flags } else { 0 }, Relaxed);
    if flags & CURRENT != 0 {
        let mode = if flags & ONFAULT != 0 { LOCK_ONFAULT } else { 0 };
        for (start, bytes) in ranges {
            // The kernel's call goes on too, if a range cannot be locked.
            locked::lock(pager, start, bytes, mode);
        }
        for_mappings(|start, end| {
            // SAFETY: the range is memory of the program, whose contents stay.
            unsafe { sys!(libc::SYS_mlock2, start, end - start, mode) };
        });
    }
    0
}

/// Performs `munlockall`.
pub fn unlock(pager: &'static Pager) -> isize {
    FROM_NOW_ON.store(0, Relaxed);
    locked::release(pager, ARENA_BASE, ARENA_BYTES);
    // SAFETY: the call takes no argument.
    unsafe { sys!(libc::SYS_munlockall) }
}

/// Locks a new mapping if `MCL_FUTURE` or `MAP_LOCKED` asks for it. Returns the result of `mmap`: the address, or the error if
/// the limit forbids the lock.
pub fn mapped(pager: &'static Pager, address: usize, bytes: usize, flags: i32) -> isize {
    let future = FROM_NOW_ON.load(Relaxed);
    if future == 0 && flags & libc::MAP_LOCKED == 0 {
        return address as isize;
    }
    let mode = if future & ONFAULT != 0 { LOCK_ONFAULT } else { 0 };
    let result = if Pager::contains(address) {
        locked::lock(pager, address, bytes, mode)
    } else {
        // SAFETY: the mapping is new, and the program's.
        unsafe { sys!(libc::SYS_mlock2, address, bytes, mode) }
    };
    // Memory without access is locked but not present, which the call reports as an error.
    if result == -(libc::EPERM as isize) || result == -(libc::EAGAIN as isize) {
        return -(libc::EAGAIN as isize);
    }
    address as isize
}

/// Behaves as libc's `mlockall`.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: std::ffi::c_int) -> std::ffi::c_int {
    crate::memory::of_all(libc::SYS_mlockall, flags as u32 as usize)
}

/// Behaves as libc's `munlockall`.
#[unsafe(no_mangle)]
pub extern "C" fn munlockall() -> std::ffi::c_int {
    crate::memory::of_all(libc::SYS_munlockall, 0)
}
