// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small heap outside the arena, for this library's own code, and for the program before this library has started.
//!
//! - **Layout** one reservation at [`BASE`], cut into blocks whose sizes are powers of two. The 16 bytes before a payload
//!   contain the block's class and the distance from the block's start to the payload
//! - **Flow** [`allocate`] takes the first block of the class's free list, or else a new one from the end ──▶ [`free`] adds
//!   the block to the list, and gives the pages of a large block back to the kernel
//! - **Owner** [`before_fork`] takes the lock; parent and child each release it
//! - **Not here** the program's own heap after the start: `allocator`

use std::sync::atomic::{AtomicUsize, Ordering};

use memlift_zmem::lock::Lock;

use crate::{carried, sys, words};

/// First address of the reservation; addresses of the heap are recognised by their high bits.
pub const BASE: usize = 0x1f00_0000_0000;
const BYTES: usize = 1 << 36;
const LEAST_BYTES: usize = 4 << 20;
const HEADER_BYTES: usize = 16;
const SMALLEST: u32 = 5;
const CLASSES: usize = 37;
const PAGE_BYTES: usize = 4096;
const MARK: u32 = 0x6d6c_6865;

#[repr(C)]
struct Header {
    mark: u32,
    class: u32,
    /// Distance from the block's start to the payload, bytes.
    distance: u64,
}

#[derive(Debug)]
struct State {
    end: usize,
    limit: usize,
    free: [usize; CLASSES],
}

static STATE: Lock<State> = Lock::new(State { end: 0, limit: 0, free: [0; CLASSES] });
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Returns true if the address lies in this heap.
pub fn contains(address: usize) -> bool {
    address.wrapping_sub(BASE) < BYTES
}

/// Returns the address space that this heap takes, bytes.
pub fn reserved_bytes() -> usize {
    RESERVED.load(Ordering::Relaxed)
}

/// Returns the largest size of the heap under the limit on address space: a sixteenth of the limit.
fn share_of_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives over the call.
    let result = unsafe { sys!(libc::SYS_getrlimit, libc::RLIMIT_AS, &raw mut limit) };
    if result < 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return usize::MAX;
    }
    usize::try_from(limit.rlim_cur / 16).unwrap_or(usize::MAX)
}

/// Reserves the heap. If there is no room even for the smallest one, the process ends with a message; without a heap it could
/// not print one later.
fn reserve(state: &mut State) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    carried::lift();
    let share = share_of_limit().max(LEAST_BYTES);
    let mut bytes = BYTES;
    while bytes >= LEAST_BYTES {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel maps the range only if nothing is mapped there.
        let reserved = bytes <= share
            && unsafe { sys!(libc::SYS_mmap, BASE, bytes, access, flags, usize::MAX, 0) } as usize == BASE;
        if reserved {
            state.end = BASE;
            state.limit = BASE + bytes;
            RESERVED.store(bytes, Ordering::Relaxed);
            return;
        }
        bytes /= 2;
    }
    words::die(&[
        c"memlift: no address space for the library's own heap; raise the limit (`ulimit -v`), or run the program without memlift\n",
    ]);
}

/// Returns `bytes` bytes at a multiple of `alignment` (a power of two), or null if there is no room. They are zero only if
/// they were never used before.
pub fn allocate(bytes: usize, alignment: usize) -> *mut u8 {
    let slack = if alignment > HEADER_BYTES { alignment } else { 0 };
    let Some(whole) = bytes.checked_add(HEADER_BYTES + slack).filter(|&whole| whole < BYTES) else {
        return std::ptr::null_mut();
    };
    let class = whole.next_power_of_two().trailing_zeros().max(SMALLEST);
    let start = {
        let mut state = STATE.lock();
        let head = state.free[class as usize];
        if head != 0 {
            // SAFETY: the first word of a free block of this heap is the address of the next free one.
            state.free[class as usize] = unsafe { (head as *const usize).read() };
            head
        } else {
            if state.limit == 0 {
                reserve(&mut state);
            }
            let start = state.end;
            if state.limit - start < 1 << class {
                return std::ptr::null_mut();
            }
            state.end = start + (1 << class);
            start
        }
    };
    let payload = (start + HEADER_BYTES).next_multiple_of(alignment.max(HEADER_BYTES));
    let header = Header { mark: MARK, class, distance: (payload - start) as u64 };
    // SAFETY: the header's 16 bytes lie in the block, before the payload, because the class was chosen with room for both.
    unsafe { ((payload - HEADER_BYTES) as *mut Header).write(header) };
    payload as *mut u8
}

fn header(payload: *const u8) -> Header {
    // SAFETY: the caller passes a payload of this heap, which has a header of 16 bytes before it.
    let header = unsafe { payload.sub(HEADER_BYTES).cast::<Header>().read() };
    if header.mark != MARK {
        crate::words::die(&[c"memlift: a pointer was freed that malloc did not give\n"]);
    }
    header
}

/// Returns the number of bytes that may be used from the payload on.
pub fn usable(payload: *const u8) -> usize {
    let header = header(payload);
    (1 << header.class) - header.distance as usize
}

/// Frees the block of a payload.
pub fn free(payload: *mut u8) {
    let header = header(payload);
    let start = payload as usize - header.distance as usize;
    let bytes = 1usize << header.class;
    if bytes >= 1 << 16 {
        let first = (start + size_of::<usize>()).next_multiple_of(PAGE_BYTES);
        let length = (start + bytes - first) & !(PAGE_BYTES - 1);
        // SAFETY: the range consists of whole pages of the freed block, behind its first word.
        unsafe { sys!(libc::SYS_madvise, first, length, libc::MADV_DONTNEED) };
    }
    let mut state = STATE.lock();
    // SAFETY: the block is free now, so its first word belongs to the free list.
    unsafe { (start as *mut usize).write(state.free[header.class as usize]) };
    state.free[header.class as usize] = start;
}

/// Takes the heap's lock before a fork and leaves it taken until [`after_fork`].
pub fn before_fork() {
    std::mem::forget(STATE.lock());
}

/// Releases the lock after a fork, in the parent and in the child.
pub fn after_fork() {
    // SAFETY: `before_fork` took the lock on this thread and forgot the guard.
    unsafe { STATE.unlock() };
}
