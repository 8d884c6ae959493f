// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Following pointers: one check, for transactions and readers alike.
//!
//! - **Rule** a pointer is followed when its slab's directory entry names the pointer's type and a section that is held, the
//!   place is aligned, and the object lies within its slab or run. Then the bytes are mapped, initialised, and every
//!   pattern of them is a value: the reference is sound whatever the file says
//! - **Owner** references live as long as the borrow of the view that gave them, which holds the section's lock

use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{Entry, SLAB_BYTES, SUPERBLOCK_OFFSET, slots, stride};
use crate::persist::{Persist, slice_tag};
use crate::ptr::{PPtr, PSlice};
use crate::store::Store;

/// A place that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub offset: u64,
    pub section: u16,
}

/// Finds what `offset` claims to be.
#[inline(always)]
pub(crate) fn locate(
    store: &Store,
    offset: u64,
    bytes: u64,
    align: u64,
    tag: u32,
    has: impl Fn(u16) -> bool,
    name: &'static str,
) -> Result<Place> {
    let image = &store.image;
    let slab = offset / SLAB_BYTES;
    let word = image.entry_word(slab);
    let state = (word >> 48) as u8;
    let section = (word >> 32) as u16;
    let inside = offset % SLAB_BYTES;
    if bytes > image.len() || offset > image.len() - bytes {
        return Err(wrong(name, offset)); // so that no sum below overflows
    }
    let fits = match state {
        Entry::SLOTS => inside + bytes <= SLAB_BYTES && inside >= 64,
        Entry::RUN | Entry::SPAN => inside == 0 && bytes <= (image.entry_rest(slab) >> 32) * SLAB_BYTES,
        _ => false,
    };
    if word as u32 != tag || !fits || !offset.is_multiple_of(align) {
        return Err(wrong(name, offset));
    }
    if !has(section) {
        return Err(other_section(name, offset, section));
    }
    if let Some(verified) = &store.verified
        && !verified.has(slab)
    {
        store.verify(offset, bytes)?;
    }
    Ok(Place { offset, section })
}

#[cold]
fn wrong(wanted: &'static str, offset: u64) -> Error {
    Error::Pointer { wanted, offset }
}

#[cold]
fn other_section(wanted: &'static str, offset: u64, section: u16) -> Error {
    Error::Section { wanted, offset, section }
}

/// Bytes of a node that are prefetched: as many lines as may be on their way at once.
const AHEAD_BYTES: usize = 1024;

/// Prefetches the lines of an object, so that they come at the same time and not one after the other.
#[inline(always)]
pub(crate) fn prefetch<T>(object: &T) {
    prefetch_at(std::ptr::from_ref(object).cast(), size_of::<T>());
}

/// The same for a place that was not checked.
#[inline]
pub(crate) fn prefetch_place(image: &Image, offset: u64, bytes: usize) {
    if offset < image.len() {
        prefetch_at(image.at(offset), bytes);
    }
}

#[inline(always)]
fn prefetch_at(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes.min(AHEAD_BYTES)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that anybody can see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes, AHEAD_BYTES);
}

/// Prefetches lines that are stored to soon, as far as [`prefetch`] does.
#[inline(always)]
pub(crate) fn prefetch_to_write(start: *mut u8, bytes: u64) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..(bytes as usize).min(AHEAD_BYTES)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that anybody can see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(start.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// See [`View::is_taken`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct TakenBits<'v>(pub(crate) &'v Image);

/// Reads that transactions and readers can do.
pub trait View {
    #[doc(hidden)]
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8>;

    /// The image whose bits say which slots are taken; None: that is not known here.
    #[doc(hidden)]
    fn taken_bits(&self) -> Option<TakenBits<'_>> {
        None
    }

    /// Prefetches an object that may be read soon, if it is in memory: nothing is checked or fetched for that.
    #[doc(hidden)]
    fn read_soon(&self, _offset: u64, _bytes: usize) {}

    #[doc(hidden)]
    fn root_words(&self) -> (u64, u64);

    #[doc(hidden)]
    fn heap_bytes(&self) -> u64;

    /// Returns true if the object that [`View::get`] found at `offset` was allocated and not freed. False where that is not known.
    #[doc(hidden)]
    #[inline]
    fn is_taken<T: Persist>(&self, _: &T, offset: u64) -> bool {
        let Some(TakenBits(image)) = self.taken_bits() else { return false };
        let (count, first) = const { slots(stride::<T>()) };
        let inside = (offset % SLAB_BYTES).wrapping_sub(first);
        let slot = inside / stride::<T>();
        let at = offset / SLAB_BYTES * SLAB_BYTES + slot / 64 * 8;
        inside.is_multiple_of(stride::<T>())
            && slot < count
            && offset < image.len()
            && image.word(at) >> (slot % 64) & 1 == 1
    }

    /// The object that `pointer` points to.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when there is none of this type; [`Error::Section`] when its section is not held.
    #[inline]
    fn get<T: Persist>(&self, pointer: PPtr<T>) -> Result<&T> {
        let at =
            self.find(pointer.offset(), size_of::<T>() as u64, align_of::<T>() as u64, T::TAG, T::NAME)?;
        // SAFETY: `find` checked type, bounds and alignment, and that the section is held, so nobody writes there while `self`
        // is borrowed; every pattern of initialised bytes is a T (Persist).
        Ok(unsafe { &*at.cast::<T>() })
    }

    /// The elements of an array.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    #[inline]
    fn slice<T: Persist>(&self, slice: PSlice<T>) -> Result<&[T]> {
        if slice.is_empty() {
            return Ok(&[]);
        }
        let bytes =
            slice.len().checked_mul(size_of::<T>() as u64).ok_or_else(|| wrong(T::NAME, slice.offset()))?;
        let at = self.find(slice.offset(), bytes, align_of::<T>() as u64, slice_tag::<T>(), T::NAME)?;
        // SAFETY: as in `get`, for as many elements as fit the bytes.
        Ok(unsafe { std::slice::from_raw_parts(at.cast::<T>(), slice.len() as usize) })
    }

    /// The root object, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] when it is not a T.
    fn root<T: Persist>(&self) -> Result<Option<PPtr<T>>> {
        match self.root_words() {
            (0, _) => Ok(None),
            (offset, layout) if layout == T::LAYOUT => Ok(Some(PPtr::from_offset(offset))),
            _ => Err(Error::Layout { wanted: T::NAME }),
        }
    }
}

/// Reads the superblock's root: place and layout.
pub(crate) fn root_words(image: &Image) -> (u64, u64) {
    (image.word(SUPERBLOCK_OFFSET), image.word(SUPERBLOCK_OFFSET + 8))
}
