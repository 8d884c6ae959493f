// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mlock` of the arena: locked memory is present and never goes to the spill file.
//!
//! - **Flow** [`lock`] brings the range back and pins it ──▶ the kernel's own call, for its limit and for `VmLck` ──▶ the
//!   range is noted ──`munlock`, or the range is unmapped, moved or mapped over──▶ [`release`]
//! - **Layout** one list of ranges that do not overlap; each has its pins, except for those of `MLOCK_ONFAULT`: they have only
//!   the kernel's lock, which makes pages stay if pages are moved out (UFFDIO_MOVE)
//! - **Owner** the child of a fork begins with an empty list, as locks are not inherited
//! - **Not here** `mlockall`: `whole`

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::{Pager, Pins};

use crate::sys;
use crate::thread::Quiet;

const PAGE_BYTES: usize = 4096;
const ONFAULT: usize = 1;

struct Locked {
    start: usize,
    end: usize,
    /// The pins of the range, held as long as it is locked; none with `MLOCK_ONFAULT`.
    pins: Option<Pins<'static>>,
}

static LOCKED: Lock<Vec<Locked>> = Lock::new(Vec::new());

/// Clears the list in the child of a fork.
pub fn forked() {
    // SAFETY: the child has one thread, and no fork happens while this library's own code holds the lock.
    unsafe { LOCKED.reset() };
    std::mem::forget(std::mem::take(&mut *LOCKED.lock()));
}

/// Returns the start of a range's first page and the end of its last page.
fn pages(address: usize, bytes: usize) -> (usize, usize) {
    (address & !(PAGE_BYTES - 1), address.saturating_add(bytes).next_multiple_of(PAGE_BYTES))
}

/// Performs `mlock` or `mlock2` on a range in the arena; returns the result that the kernel would. `flags` is the third
/// argument of `mlock2`, and 0 for `mlock`.
pub fn lock(pager: &'static Pager, address: usize, bytes: usize, flags: usize) -> isize {
    let (start, end) = pages(address, bytes);
    if start == end {
        return 0;
    }
    let _quiet = Quiet::begin();
    if let Err(number) = pager.mapped(start, end - start) {
        return -(number as isize);
    }
    let pins = match flags & ONFAULT {
        0 => match pager.pin(start, end - start, false) {
            Ok(pins) => Some(pins),
            // The range contains memory without access; the kernel fails with the same error.
            Err(_) => return -(libc::ENOMEM as isize),
        },
        _ => None,
    };
    // The kernel touches each page with the access that the program has, so pages that may be written must be writable now.
    let mut writable = Vec::new();
    let mut at = if pins.is_some() { start } else { end };
    while at < end {
        let bytes = pager.accessible(at, end - at, true);
        if bytes > 0 {
            writable.push(pager.pin(at, bytes, true));
        }
        at += bytes.max(PAGE_BYTES);
    }
    // SAFETY: the call locks mapped memory of the program; all of it is present, unless it is to be locked when it is
    // touched.
    let result = unsafe { sys!(libc::SYS_mlock2, start, end - start, flags) };
    drop(writable);
    if result == 0 {
        // Pages of an older lock stay present, because the new pins are already there.
        take(pager, start, end);
        LOCKED.lock().push(Locked { start, end, pins });
    }
    result
}

/// Returns true if the kernel refuses this advice for locked memory.
pub fn forbids(advice: i32) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_COLD | libc::MADV_PAGEOUT
    )
}

/// Returns the start of the first locked part of a range, if a part of it is locked.
pub fn first_locked(address: usize, bytes: usize) -> Option<usize> {
    let (start, end) = pages(address, bytes);
    let _quiet = Quiet::begin();
    let list = LOCKED.lock();
    let locked = list.iter().filter(|one| one.start < end && start < one.end);
    locked.map(|one| one.start.max(start)).min()
}

/// Returns the flags with which memory at an address is locked, as for `mlock2`, or `None` if it is not locked.
pub fn mode_at(address: usize) -> Option<usize> {
    let _quiet = Quiet::begin();
    let list = LOCKED.lock();
    let locked = list.iter().find(|one| (one.start..one.end).contains(&address))?;
    Some(if locked.pins.is_some() { 0 } else { ONFAULT })
}

/// Removes a range from the list and releases its pins; the rest of a longer range stays pinned. Returns true if part of the
/// range was in the list.
fn take(pager: &'static Pager, start: usize, end: usize) -> bool {
    let mut found = Vec::new();
    {
        let mut list = LOCKED.lock();
        let mut index = 0;
        while index < list.len() {
            if list[index].start < end && start < list[index].end {
                found.push(list.swap_remove(index));
            } else {
                index += 1;
            }
        }
    }
    for locked in &found {
        for (from, to) in [(locked.start, start), (end, locked.end)] {
            if from >= to {
                continue;
            }
            // The rest is still present, because the old pins are released only afterwards.
            let pins = locked.pins.as_ref().and_then(|_| pager.pin(from, to - from, false).ok());
            LOCKED.lock().push(Locked { start: from, end: to, pins });
        }
    }
    !found.is_empty()
}

/// Unlocks a range in the arena, for `munlock` or a call with the same effect: the range is unmapped, moved or mapped over.
pub fn release(pager: &'static Pager, address: usize, bytes: usize) {
    let (start, end) = pages(address, bytes);
    let _quiet = Quiet::begin();
    let locked = !LOCKED.lock().is_empty();
    if start < end && locked && take(pager, start, end) {
        // SAFETY: the range is the program's. If part of it is not mapped, the call unlocks the rest and fails.
        unsafe { sys!(libc::SYS_munlock, start, end - start) };
    }
}
