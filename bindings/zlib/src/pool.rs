// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that are lent for the length of one call, and wait for the next one: no malloc, no page faults, no memset.
//!
//! - **Layout** [`SLOTS`] pointers per kind. A thread starts to look at a slot of its own; a borrower that finds none empty
//!   allocates, and one that finds all full frees.
//! - **Order** a slot is emptied by a swap and filled by a compare-and-swap: whoever takes a pointer is its only owner. No
//!   lock, so a fork in the middle of a call loses at most what was lent at that moment.
//! - **Owner** memory stays with the process: at most [`SLOTS`] of each kind, about 450 KiB for each thread that ever packed
//!   at the same time as others.

use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use memlift_kernels::deflate::{Effort, Format, PackStream, Packer};

/// The most that waits.
pub const SLOTS: usize = 32;

/// Values of one kind that wait.
pub struct Pool<T: 'static> {
    slots: [AtomicPtr<T>; SLOTS],
    make: fn() -> Option<T>,
}

/// A packer of whole messages, with room for a packed one.
pub struct Whole {
    pub packer: Packer,
    pub scratch: Vec<u8>,
}

/// For messages that come at once.
pub static WHOLE: Pool<Whole> = Pool::new(|| Some(Whole { packer: Packer::try_new()?, scratch: Vec::new() }));
/// For messages in pieces.
pub static STREAM: Pool<PackStream> = Pool::new(|| PackStream::try_new(Format::Raw, Effort::Default));

/// A value that goes back when this is dropped.
pub struct Lent<T: 'static> {
    value: *mut T,
    pool: &'static Pool<T>,
}

impl<T> Pool<T> {
    const fn new(make: fn() -> Option<T>) -> Pool<T> {
        Pool { slots: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS], make }
    }

    /// Takes one that waits, or makes one. `None`: there is no memory.
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
        // SAFETY: the layout is that of a T, which is not empty; what is allocated is written before anybody sees it.
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

    /// All slots, this thread's favourite first: stacks tell threads apart. A thread-local variable of a library that was loaded late would have to be
    /// allocated, and glibc ends the process where that fails.
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
            return; // half-changed tables are not for the next one; they are lost
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
        // SAFETY: it came from a box and nobody else has it.
        drop(unsafe { Box::from_raw(self.value) });
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: it came from a box, and this is its only owner.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it came from a box, and this is its only owner.
        unsafe { &mut *self.value }
    }
}
