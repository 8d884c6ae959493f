// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Robust mutexes: when a thread ends, the kernel marks those that it holds, so their pages must be present then.
//!
//! - **Flow** a thread ends by `exit` (trapped) ──▶ [`hold_list`] walks the thread's list of robust futexes as the kernel
//!   will, and pins each entry and its futex word ──▶ the system call, in which the kernel marks the words and wakes the
//!   waiters ──▶ the next fault or trapped call of any thread finds the thread gone, and [`release`] drops its pins
//! - **Order** only `exit` ends a single thread, and the thread makes that call itself. Memory of the arena is private to the
//!   process, so nobody is left to be told when the whole process ends. `exit_group` is handled nevertheless: the list may
//!   contain mutexes in shared memory too, and the kernel stops at the first entry that it cannot read
//! - **Owner** pins by thread, in one list; the child of a fork forgets them
//! - **Not here** a process that a signal ends while it holds both a mutex in shared memory and one in the arena whose page
//!   is absent. Futexes with priority inheritance on which a thread waits: the waiter's own call pins them

use std::sync::atomic::{AtomicUsize, Ordering};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::{Pager, Pins};

use crate::sys;
use crate::thread::is_gone;

/// Upper bound of the entries of a list, as in the kernel.
const MOST_ENTRIES: usize = 2048;
/// Bit of a pointer to an entry that says that its futex has priority inheritance.
const PRIORITY_INHERITANCE: usize = 1;
const FUTEX_BYTES: usize = 4;

/// The head of a thread's list, as the kernel has it (`struct robust_list_head`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Head {
    first: usize,
    /// Distance from an entry to its futex word, bytes.
    futex_offset: isize,
    /// The entry that the thread is adding or removing, or null.
    pending: usize,
}

/// Pins of threads that were about to end.
static ENDING: Lock<Vec<(i32, Vec<Pins<'static>>)>> = Lock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Reads a plain value of this process, if the memory is there. Absent memory of the arena is pinned before.
fn read<T: Copy + Default>(address: usize) -> Option<T> {
    let mut value = T::default();
    let here = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<T>() };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: size_of::<T>() };
    // SAFETY: the kernel writes at most the size of `value` to it, and fails if the source is not mapped.
    let got = unsafe {
        sys!(libc::SYS_process_vm_readv, sys!(libc::SYS_getpid), &raw const here, 1, &raw const there, 1, 0)
    };
    if got == -(libc::EPERM as isize) || got == -(libc::ENOSYS as isize) {
        // SAFETY: the list is that of the thread's C library, whose entries are mapped and aligned; this container forbids
        // the call by which wrong ones would be found out.
        return Some(unsafe { (address as *const T).read_volatile() });
    }
    (got as usize == size_of::<T>()).then_some(value)
}

/// Pins a range if it lies in the arena. Returns false if the program may not write it.
fn pin(pager: &'static Pager, pins: &mut Vec<Pins<'static>>, address: usize, bytes: usize) -> bool {
    if !Pager::contains(address) {
        return true;
    }
    pager.pin(address, bytes, true).map(|new| pins.push(new)).is_ok()
}

/// Pins the robust futexes that this thread holds, before a call by which it ends.
pub fn hold_list(pager: &'static Pager) {
    let (mut head, mut bytes) = (0usize, 0usize);
    // SAFETY: both variables live over the call.
    let known = unsafe { sys!(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) } == 0;
    if !known || head == 0 || bytes != size_of::<Head>() {
        return;
    }
    let mut pins = Vec::new();
    if !pin(pager, &mut pins, head, size_of::<Head>()) {
        return;
    }
    let Some(list) = read::<Head>(head) else { return };
    let mut hold = |entry: usize| {
        let entry = entry & !PRIORITY_INHERITANCE;
        let word = entry.wrapping_add_signed(list.futex_offset);
        pin(pager, &mut pins, entry, size_of::<usize>()) && pin(pager, &mut pins, word, FUTEX_BYTES)
    };
    if list.pending != 0 {
        hold(list.pending);
    }
    let mut entry = list.first;
    for _ in 0..MOST_ENTRIES {
        if entry & !PRIORITY_INHERITANCE == head || !hold(entry) {
            break;
        }
        let Some(next) = read(entry & !PRIORITY_INHERITANCE) else { break };
        entry = next;
    }
    if !pins.is_empty() {
        // SAFETY: the call takes no argument.
        let own = unsafe { sys!(libc::SYS_gettid) } as i32;
        ENDING.lock().push((own, pins));
        COUNT.fetch_add(1, Ordering::Release);
    }
}

/// Releases the pins of threads that have ended.
pub fn release() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut gone = Vec::new();
    {
        let mut list = ENDING.lock();
        let mut index = 0;
        while index < list.len() {
            if is_gone(list[index].0) {
                gone.push(list.swap_remove(index));
            } else {
                index += 1;
            }
        }
    }
    COUNT.fetch_sub(gone.len(), Ordering::Release);
}

/// Clears the list in the child of a fork, which does not have those threads.
pub fn forked() {
    // SAFETY: the child has one thread, and the thread that forked did not hold the lock. `hold_list` and `release` release
    // the lock only when the list is consistent.
    unsafe { ENDING.reset() };
    std::mem::forget(std::mem::take(&mut *ENDING.lock()));
    COUNT.store(0, Ordering::Release);
}
