// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Advice of `madvise` that stays with a range of the arena: left out of core dumps, wiped or absent in the child of a fork.
//!
//! - **Flow** [`advise`] notes the range; leaving it out of dumps is also asked of the kernel ──`munmap`, or mapped over──▶
//!   [`forget`] ──`mremap`──▶ [`moved`] ──fork──▶ [`forked`] wipes or unmaps the child's ranges before any of the program's code
//!   runs
//! - **Layout** one list of ranges that do not overlap; each has its marks
//! - **Owner** the child of a fork inherits the list. Compressed copies are in no dump at all, as the pager asks for its own
//!   mappings
//! - **Not here** the contents, which the pager drops

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::sys;
use crate::thread::Quiet;

const PAGE_BYTES: usize = 4096;

/// The range is left out of core dumps.
const NO_DUMP: u8 = 1;
/// The range reads as zeros in the child of a fork.
const WIPED: u8 = 2;
/// The range is not mapped in the child of a fork.
const ABSENT: u8 = 4;

#[derive(Clone, Copy)]
struct Marked {
    start: usize,
    end: usize,
    marks: u8,
}

static MARKED: Lock<Vec<Marked>> = Lock::new(Vec::new());

/// Adds marks to a range, and removes others from it.
fn change(list: &mut Vec<Marked>, start: usize, end: usize, set: u8, clear: u8) {
    let mut inside: Vec<Marked> = Vec::new();
    let mut index = 0;
    while index < list.len() {
        let one = list[index];
        if one.start < end && start < one.end {
            list.swap_remove(index);
            let rest = [Marked { end: start, ..one }, Marked { start: end, ..one }];
            list.extend(rest.into_iter().filter(|rest| rest.start < rest.end));
            inside.push(Marked { start: one.start.max(start), end: one.end.min(end), marks: one.marks });
        } else {
            index += 1;
        }
    }
    inside.sort_unstable_by_key(|one| one.start);
    let mut at = start;
    for one in inside.iter().copied().chain([Marked { start: end, end, marks: 0 }]) {
        if set != 0 && at < one.start {
            list.push(Marked { start: at, end: one.start, marks: set });
        }
        let marks = (one.marks | set) & !clear;
        if marks != 0 && one.start < one.end {
            list.push(Marked { marks, ..one });
        }
        at = one.end;
    }
}

/// Returns the parts of marked ranges that lie in a range.
fn parts(list: &[Marked], start: usize, end: usize) -> Vec<Marked> {
    let overlap =
        |one: &Marked| Marked { start: one.start.max(start), end: one.end.min(end), marks: one.marks };
    list.iter().map(overlap).filter(|one| one.start < one.end).collect()
}

fn kernel_advice(start: usize, end: usize, advice: i32) -> isize {
    // SAFETY: the range is mapped memory of the arena, and this advice changes no contents.
    unsafe { sys!(libc::SYS_madvise, start, end - start, advice) }
}

/// Performs `madvise` with advice that stays with the range; returns the result that the kernel would. Returns `None` for other
/// advice.
pub fn advise(pager: &Pager, address: usize, bytes: usize, advice: i32) -> Option<isize> {
    let (set, clear) = match advice {
        libc::MADV_DONTDUMP => (NO_DUMP, 0),
        libc::MADV_DODUMP => (0, NO_DUMP),
        libc::MADV_WIPEONFORK => (WIPED, 0),
        libc::MADV_KEEPONFORK => (0, WIPED),
        libc::MADV_DONTFORK => (ABSENT, 0),
        libc::MADV_DOFORK => (0, ABSENT),
        _ => return None,
    };
    let Some(bytes) = bytes.checked_next_multiple_of(PAGE_BYTES) else {
        return Some(-(libc::EINVAL as isize));
    };
    if !address.is_multiple_of(PAGE_BYTES) {
        return Some(-(libc::EINVAL as isize));
    }
    if bytes == 0 {
        return Some(0);
    }
    let _quiet = Quiet::begin();
    if let Err(number) = pager.mapped(address, bytes) {
        return Some(-(number as isize));
    }
    let end = address + bytes;
    let mut list = MARKED.lock();
    if (set | clear) & NO_DUMP != 0 {
        let result = kernel_advice(address, end, advice);
        if result < 0 {
            return Some(result);
        }
    }
    change(&mut list, address, end, set, clear);
    Some(0)
}

/// Removes the marks of a range that is about to be unmapped or mapped over.
pub fn forget(address: usize, bytes: usize) {
    let _quiet = Quiet::begin();
    let mut list = MARKED.lock();
    if list.is_empty() {
        return;
    }
    let (start, end) = (address, address.saturating_add(bytes).next_multiple_of(PAGE_BYTES));
    for one in parts(&list, start, end) {
        if one.marks & NO_DUMP != 0 {
            kernel_advice(one.start, one.end, libc::MADV_DODUMP);
        }
    }
    change(&mut list, start, end, 0, u8::MAX);
}

/// Moves the marks of a range with its contents. If the range grew, the new part gets the marks of the last page. With `stays`,
/// the old range stays mapped and keeps its marks.
pub fn moved((old, old_bytes): (usize, usize), (new, new_bytes): (usize, usize), stays: bool) {
    let _quiet = Quiet::begin();
    let mut list = MARKED.lock();
    if list.is_empty() {
        return;
    }
    let (old_end, new_end) =
        (old + old_bytes.next_multiple_of(PAGE_BYTES), new + new_bytes.next_multiple_of(PAGE_BYTES));
    let kept = (old_end - old).min(new_end - new);
    let mut marked = parts(&list, old, old + kept);
    let last = marked.iter().find(|one| one.end == old_end).map_or(0, |one| one.marks);
    if last != 0 && new_end - new > kept {
        marked.push(Marked { start: old + kept, end: old + (new_end - new), marks: last });
    }
    if new != old && !stays {
        change(&mut list, old, old_end, 0, u8::MAX);
    } else if new == old && kept < old_end - old {
        change(&mut list, old + kept, old_end, 0, u8::MAX);
    }
    for one in marked {
        let (start, end) = (new + (one.start - old), new + (one.end - old));
        change(&mut list, start, end, one.marks, !one.marks);
        if one.marks & NO_DUMP != 0 {
            kernel_advice(start, end, libc::MADV_DONTDUMP);
        }
    }
}

/// Wipes or unmaps the marked ranges in the child of a fork. Called when the child's pager works.
pub fn forked(pager: &Pager) {
    let _quiet = Quiet::begin();
    // SAFETY: the child has one thread, and no fork happens while this library's own code holds the lock.
    unsafe { MARKED.reset() };
    let list = MARKED.lock().clone();
    for one in list {
        let bytes = one.end - one.start;
        if one.marks & ABSENT != 0 {
            // The range is mapped, so unmapping it cannot fail.
            let _ = pager.unmap(one.start, bytes);
            change(&mut MARKED.lock(), one.start, one.end, 0, u8::MAX);
        } else if one.marks & WIPED != 0 {
            let _ = pager.advise(one.start, bytes, libc::MADV_DONTNEED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(list: &[Marked]) -> Vec<(usize, usize, u8)> {
        let mut all: Vec<_> = list.iter().map(|one| (one.start, one.end, one.marks)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn marks_are_set_and_removed_for_parts_of_ranges() {
        let mut list = Vec::new();
        change(&mut list, 10, 20, WIPED, 0);
        change(&mut list, 15, 30, NO_DUMP, 0);
        assert_eq!(sorted(&list), [(10, 15, WIPED), (15, 20, WIPED | NO_DUMP), (20, 30, NO_DUMP)]);
        change(&mut list, 0, 17, 0, WIPED);
        assert_eq!(sorted(&list), [(15, 17, NO_DUMP), (17, 20, WIPED | NO_DUMP), (20, 30, NO_DUMP)]);
        change(&mut list, 18, 25, 0, u8::MAX);
        assert_eq!(sorted(&list), [(15, 17, NO_DUMP), (17, 18, WIPED | NO_DUMP), (25, 30, NO_DUMP)]);
        change(&mut list, 0, 100, ABSENT, 0);
        assert_eq!(list.iter().map(|one| one.end - one.start).sum::<usize>(), 100);
        assert!(list.iter().all(|one| one.marks & ABSENT != 0));
        assert_eq!(parts(&list, 16, 19).len(), 3);
    }
}
