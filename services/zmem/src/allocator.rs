// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An allocator on a job's arena, for the `Vec`, `Box` and hash tables of a program that asks for it explicitly.
//!
//! - **Flow** [`Allocator::new`] (takes the pager of [`crate::arena::enter`]) ──▶ [`Vec::new_in`], [`Box::new_in`], or any
//!   other container that takes the `Allocator` of `allocator_api2` (hashbrown's tables do) ──▶ cold pages are compressed
//! - **Layout** blocks of up to [`LARGEST_SMALL`] bytes are slots of a size class (multiples of 16, four classes per
//!   doubling), cut from runs of [`RUN_BYTES`]; each larger block is a mapping of its own. The addresses of free slots lie in
//!   stacks outside the arena, so that freeing an object does not bring its page back
//! - **Order** one lock per class; no arena memory is touched while it is held
//! - **Owner** runs stay with the process, which takes its next objects of that size from there. The mapping of a large block
//!   is given back when the block is freed
//! - **Not here** all memory of a program: as `#[global_allocator]` every buffer would lie in the arena, and `read(2)` into
//!   an absent page fails. The preloaded library covers whole programs; [`Allocator::pinned`] is for single system calls

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator as Allocate};
pub use allocator_api2::{boxed::Box, vec::Vec};

use crate::lock::Lock;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::pager::{Pager, Pins};
use crate::{Error, Result};

/// Size of the largest block that shares its run with other blocks, bytes.
pub const LARGEST_SMALL: usize = 32 << 10;
/// Size of one run, the mapping that small blocks are cut from, bytes.
pub const RUN_BYTES: usize = 256 << 10;

const STEP: usize = 16;
/// Up to this size, each multiple of [`STEP`] is a class of its own. Larger classes are four per doubling.
const LINEAR_UP_TO_BYTES: usize = 8 * STEP;
const CLASSES: usize = class_of(LARGEST_SMALL).0 + 1;
/// Number of free slots that a class can remember; slots freed beyond that are never used again.
const REMEMBERED: usize = 1 << 27;
const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Returns the class of a size, and the size of its slots in bytes.
const fn class_of(bytes: usize) -> (usize, usize) {
    if bytes <= LINEAR_UP_TO_BYTES {
        let steps = if bytes == 0 { 1 } else { bytes.div_ceil(STEP) };
        return (steps - 1, steps * STEP);
    }
    let power = (bytes - 1).ilog2();
    let quarter = 1 << (power - 2);
    let quarters = (bytes - (1 << power)).div_ceil(quarter);
    (
        LINEAR_UP_TO_BYTES / STEP - 1 + 4 * (power - LINEAR_UP_TO_BYTES.ilog2()) as usize + quarters,
        (1 << power) + quarters * quarter,
    )
}

/// The free and unused slots of one size class.
struct Class {
    /// Stack of the addresses of freed slots.
    free: Option<Mapping>,
    free_count: usize,
    /// Address of the first slot of the newest run that was never used; `end` is the end of that run.
    next: usize,
    end: usize,
}

impl Class {
    const fn new() -> Class {
        Class { free: None, free_count: 0, next: 0, end: 0 }
    }

    fn take(&mut self, pager: &Pager, slot: usize) -> Option<usize> {
        if let (Some(free), 1..) = (&self.free, self.free_count) {
            self.free_count -= 1;
            // SAFETY: the mapping has room for REMEMBERED addresses, and every address below the old count was written by
            // `give`.
            return Some(unsafe { free.pointer().as_ptr().cast::<usize>().add(self.free_count).read() });
        }
        if self.end - self.next < slot {
            self.next = pager.map(RUN_BYTES, ACCESS, None).ok()?;
            self.end = self.next + RUN_BYTES;
        }
        self.next += slot;
        Some(self.next - slot)
    }

    fn give(&mut self, address: usize) {
        if self.free.is_none() {
            self.free = Mapping::reserve("addresses of free memory", REMEMBERED * size_of::<usize>()).ok();
        }
        if let (Some(free), ..REMEMBERED) = (&self.free, self.free_count) {
            // SAFETY: the mapping has room for REMEMBERED addresses, and the count is below that.
            unsafe { free.pointer().as_ptr().cast::<usize>().add(self.free_count).write(address) };
            self.free_count += 1;
        }
    }
}

/// One [`Class`] per size class for the whole process, which has only one pager.
static SLOTS: [Lock<Class>; CLASSES] = [const { Lock::new(Class::new()) }; CLASSES];

/// Location of a block, derived from its layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// The class, and the bytes of a slot.
    Slot(usize, usize),
    /// The bytes of the mapping.
    Mapping(usize),
}

fn place_of(layout: Layout) -> Option<Place> {
    // A slot whose size is a power of two is aligned to that size, since runs begin at a page boundary.
    let bytes = if layout.align() <= STEP {
        layout.size()
    } else {
        layout.size().max(layout.align()).checked_next_power_of_two()?
    };
    if layout.size() == 0 {
        Some(Place::Nowhere)
    } else if bytes <= LARGEST_SMALL && layout.align() <= PAGE_BYTES {
        let (class, slot) = class_of(bytes);
        Some(Place::Slot(class, slot))
    } else {
        layout.size().checked_next_multiple_of(PAGE_BYTES).map(Place::Mapping)
    }
}

/// An allocator of memory in the process's arena.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    pager: &'static Pager,
}

impl Allocator {
    /// Makes an allocator on this process's pager.
    pub fn new(pager: &'static Pager) -> Allocator {
        Allocator { pager }
    }

    /// Pins the memory of `values` until the result is dropped. A system call needs that, because it fails on a page that is
    /// absent.
    ///
    /// # Errors
    ///
    /// The job has no room for the pinned pages.
    pub fn pinned<T>(&self, values: &[T], write: bool) -> Result<Pins<'static>> {
        let bytes = size_of_val(values);
        self.pager.pin(values.as_ptr() as usize, bytes, write).map_err(|errno| Error::Map {
            what: "a pinned range",
            bytes,
            source: std::io::Error::from_raw_os_error(errno),
        })
    }

    /// Makes a mapping that starts at a multiple of `alignment`; what was mapped beyond its ends is given back.
    fn map(&self, bytes: usize, alignment: usize) -> Option<usize> {
        if alignment <= PAGE_BYTES {
            return self.pager.map(bytes, ACCESS, None).ok();
        }
        let whole = bytes.checked_add(alignment)?;
        let start = self.pager.map(whole, ACCESS, None).ok()?;
        let address = start.next_multiple_of(alignment);
        for (part, end) in [(start, address), (address + bytes, start + whole)] {
            // If a part cannot be unmapped, it stays mapped, and nobody touches it.
            let _ = if part < end { self.pager.unmap(part, end - part) } else { Ok(()) };
        }
        Some(address)
    }

    fn take(&self, layout: Layout) -> Option<NonNull<u8>> {
        let address = match place_of(layout)? {
            Place::Nowhere => layout.align(),
            Place::Slot(class, slot) => SLOTS[class].lock().take(self.pager, slot)?,
            Place::Mapping(bytes) => self.map(bytes, layout.align())?,
        };
        NonNull::new(address as *mut u8)
    }

    /// Resizes the block in place, or moves its mapping without copying. Returns `None` if neither is possible.
    ///
    /// # Safety
    ///
    /// `block` was allocated by this allocator with layout `old`.
    unsafe fn resize(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        match (place_of(old)?, place_of(new)?) {
            (Place::Slot(before, _), Place::Slot(after, _)) if before == after => Some(block),
            (Place::Mapping(before), Place::Mapping(after))
                if before == after && old.align() >= new.align() =>
            {
                Some(block)
            }
            (Place::Mapping(before), Place::Mapping(after)) if new.align() <= PAGE_BYTES => {
                let address = block.as_ptr() as usize;
                let address = self.pager.remap(address, before, after, libc::MREMAP_MAYMOVE, 0).ok()?;
                NonNull::new(address as *mut u8)
            }
            _ => None,
        }
    }
}

fn slice(block: NonNull<u8>, layout: Layout) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(block, layout.size())
}

// SAFETY: each block is a slot or a mapping that no other block overlaps. It is writable, as large and aligned as its layout
// says, and stays where it is until it is freed or resized. All copies of an allocator share one pager, so each may free the
// others' blocks.
unsafe impl Allocate for Allocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.take(layout).map(|block| slice(block, layout)).ok_or(AllocError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = self.take(layout).ok_or(AllocError)?;
        if !matches!(place_of(layout), Some(Place::Mapping(_))) {
            // SAFETY: the block was just taken and has at least `layout.size()` bytes. A new mapping is skipped since it is
            // zero.
            unsafe { block.as_ptr().write_bytes(0, layout.size()) };
        }
        Ok(slice(block, layout))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let address = block.as_ptr() as usize;
        match place_of(layout) {
            Some(Place::Slot(class, _)) => SLOTS[class].lock().give(address),
            // If the mapping cannot be unmapped, its memory is not given back; nothing else goes wrong.
            Some(Place::Mapping(bytes)) => drop(self.pager.unmap(address, bytes)),
            Some(Place::Nowhere) | None => {}
        }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller promises that `block` was allocated by this allocator with layout `old`.
        unsafe { self.change(block, old, new) }
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // New pages of a mapping are zero, but the rest of the last old page may not be.
        let end = match place_of(new) {
            Some(Place::Mapping(_)) => new.size().min(old.size().next_multiple_of(PAGE_BYTES)),
            _ => new.size(),
        };
        // SAFETY: the caller promises that `block` belongs to layout `old`; the grown block has `new.size()` bytes, and `end`
        // is not beyond.
        unsafe {
            let grown = self.change(block, old, new)?;
            grown.cast::<u8>().as_ptr().add(old.size()).write_bytes(0, end - old.size());
            Ok(grown)
        }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller promises that `block` was allocated by this allocator with layout `old`.
        unsafe { self.change(block, old, new) }
    }
}

impl Allocator {
    /// Resizes the block, or copies its contents to a new block and frees the old one.
    ///
    /// # Safety
    ///
    /// `block` was allocated by this allocator with layout `old`.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller promises that `block` belongs to layout `old`; the two blocks do not overlap, and the shorter
        // size fits both.
        unsafe {
            if let Some(block) = self.resize(block, old, new) {
                return Ok(slice(block, new));
            }
            let target = self.take(new).ok_or(AllocError)?;
            std::ptr::copy_nonoverlapping(block.as_ptr(), target.as_ptr(), old.size().min(new.size()));
            self.deallocate(block, old);
            Ok(slice(target, new))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_and_waste_at_most_a_quarter() {
        let (mut last, mut slots) = (0, 0);
        for bytes in 1..=LARGEST_SMALL {
            let (class, slot) = class_of(bytes);
            assert!(class == last || class == last + 1, "{bytes}: class {class} after {last}");
            assert!(
                slot >= bytes && slot.is_multiple_of(STEP) && (slot - bytes) * 4 < slot.max(4 * STEP),
                "{bytes}: {slot}"
            );
            (last, slots) = (class, slot);
        }
        assert_eq!((last + 1, slots), (CLASSES, LARGEST_SMALL));
    }

    #[test]
    fn aligned_blocks_lie_in_slots_that_are_aligned() {
        for align in [1, 8, 16, 32, 64, 4096] {
            for size in [1, 40, 100, 5000, 20000] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                match place_of(layout) {
                    Some(Place::Slot(_, slot)) => assert!(
                        slot >= size
                            && slot.is_multiple_of(align.min(slot))
                            && (align <= STEP || slot.is_power_of_two())
                    ),
                    Some(Place::Mapping(bytes)) => assert!(bytes >= size && align > STEP),
                    _ => panic!("{layout:?} lies nowhere"),
                }
            }
        }
    }
}
