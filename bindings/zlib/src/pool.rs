// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packers that are lent for one call and then kept for the next one: no malloc, no page faults, no memset per call.
//!
//! - **Layout** [`SLOTS`] pointers per kind of packer. Each thread starts its search at another slot. If all slots are empty, a packer is
//!   allocated; if all are full, a returned packer is freed.
//! - **Order** a slot is emptied by a swap and filled by a compare-and-swap, so the thread that takes a pointer is its only owner. There
//!   is no lock, so a fork in the middle of a call loses at most the packers lent at that moment.
//! - **Owner** the memory stays with the process: at most [`SLOTS`] packers of each kind, about 450 KiB for each thread that packed at
//!   the same time as others.

use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use memlift_kernels::deflate::{Effort, Format, PackStream, Packer};

/// Most packers of one kind that are kept.
pub const SLOTS: usize = 32;

/// Kept packers of one kind.
pub struct Pool<T: 'static> {
    slots: [AtomicPtr<T>; SLOTS],
    make: fn() -> Option<T>,
}

/// A packer of whole messages, with scratch memory for a packed message.
pub struct Whole {
    pub packer: Packer,
    pub scratch: Vec<u8>,
}

/// Packers for messages that are given in one call.
pub static WHOLE: Pool<Whole> = Pool::new(|| Some(Whole { packer: Packer::try_new()?, scratch: Vec::new() }));
/// Packers for messages in pieces.
pub static STREAM: Pool<PackStream> = Pool::new(|| PackStream::try_new(Format::Raw, Effort::Default));

/// A lent packer, which goes back to the pool on drop.
pub struct Lent<T: 'static> {
    value: *mut T,
    pool: &'static Pool<T>,
}

impl<T> Pool<T> {
    const fn new(make: fn() -> Option<T>) -> Pool<T> {
        Pool { slots: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS], make }
    }

    /// Takes a kept packer, or makes one; returns `None` if there is no memory.
    pub fn take(&'static self) -> Option<Lent<T>> {
        for slot in self.mine() {
            if !slot.load(Ordering::Relaxed).is_null() {
                let value = slot.swap(ptr::null_mut(), Ordering::Acquire);
                if !value.is_null() {
                    return Some(Lent { value, pool: self });
                }
            }
        }
        let made = (self.make)()?;
        // SAFETY: the layout is that of a `T`, whose size is not 0; the memory is written before anybody reads it.
        let value = unsafe {
            let value = std::alloc::alloc(std::alloc::Layout::new::<T>()).cast::<T>();
            if value.is_null() {
                return None;
            }
            value.write(made);
            value
        };
        Some(Lent { value, pool: self })
    }

    /// Returns all slots, beginning with one chosen by the thread's stack address. A thread-local variable would have to be
    /// allocated in a library that was loaded late, and glibc ends the process if that fails.
    fn mine(&self) -> impl Iterator<Item = &AtomicPtr<T>> {
        let here = 0u8;
        let stack = ptr::from_ref(&here).addr() as u64 >> 16;
        let first = (stack.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59) as usize % SLOTS;
        self.slots[first..].iter().chain(&self.slots[..first])
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // tables that a panic left half changed are not reused
        }
        for slot in self.pool.mine() {
            if slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(ptr::null_mut(), self.value, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        // SAFETY: the pointer came from a box, and nobody else has it.
        drop(unsafe { Box::from_raw(self.value) });
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the pointer came from a box, and this is its only owner.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the pointer came from a box, and this is its only owner.
        unsafe { &mut *self.value }
    }
}
