// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading and changing objects inside a transaction.

use std::ptr;
use std::slice;

use super::Tx;
use super::overwrite::Overwrite;
use crate::error::{Error, Result};
use crate::layout::SUPERBLOCK_OFFSET;
use crate::persist::Persist;
use crate::persist::slice_tag;
use crate::ptr::{PPtr, PSlice};
use crate::section::Held;
use crate::store::Store;
use crate::view::{Place, TakenBits, View, locate, prefetch_place, prefetch_to_write, root_words};

/// Longest range that is kept as one.
const PIECE_BYTES: u64 = 1 << 30;

impl View for Tx<'_> {
    #[inline]
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8> {
        let place = locate(self.store, offset, bytes, align, tag, |section| self.held.has(section), name)?;
        Ok(self.store.image.at(place.offset))
    }

    #[inline]
    fn taken_bits(&self) -> Option<TakenBits<'_>> {
        Some(TakenBits(&self.store.image))
    }

    #[inline]
    fn read_soon(&self, offset: u64, bytes: usize) {
        prefetch_place(&self.store.image, offset, bytes);
    }

    fn root_words(&self) -> (u64, u64) {
        root_words(&self.store.image)
    }

    #[inline]
    fn heap_bytes(&self) -> u64 {
        self.store.image.len()
    }
}

impl Tx<'_> {
    #[inline]
    fn place<T: Persist>(&self, pointer: PPtr<T>) -> Result<Place> {
        let (bytes, align) = (size_of::<T>() as u64, align_of::<T>() as u64);
        locate(self.store, pointer.offset(), bytes, align, T::TAG, |section| self.held.has(section), T::NAME)
    }

    /// Whole words that cover [offset, offset + bytes): slots start and end at multiples of 16.
    #[inline(always)]
    fn touch(&mut self, offset: u64, bytes: u64) -> Result<()> {
        let from = offset / 8 * 8;
        let length = (offset + bytes).next_multiple_of(8) - from;
        if length <= PIECE_BYTES {
            self.writes.touch(&self.store.image, from, length as u32);
        } else {
            self.touch_long(from, length);
        }
        self.store.before_store(self.lane, &mut self.writes)
    }

    #[cold]
    fn touch_long(&mut self, from: u64, length: u64) {
        let mut at = from;
        while at < from + length {
            let piece = (from + length - at).min(PIECE_BYTES);
            self.writes.touch(&self.store.image, at, piece as u32);
            at += piece;
        }
    }

    /// The object, to be changed. What it was is kept for an abort; what changed is logged at commit.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`], [`Error::Section`].
    #[inline]
    pub fn get_mut<T: Persist>(&mut self, pointer: PPtr<T>) -> Result<&mut T> {
        let place = self.place(pointer)?;
        self.touch(place.offset, size_of::<T>() as u64)?;
        // SAFETY: `place` checked type, bounds, alignment, and that this transaction holds the section; `&mut self` is borrowed
        // for as long as the reference lives, so nothing else of this transaction refers to it.
        Ok(unsafe { &mut *self.store.image.at(place.offset).cast::<T>() })
    }

    /// A part of an object, to be changed: the `P` that starts `at` bytes into it, as `offset_of!` says. Only the part is saved
    /// and compared, so a large object may be changed in one word at the cost of one word.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when no aligned `P` lies there; else as [`Tx::get_mut`].
    #[inline]
    pub fn part_mut<T: Persist, P: Persist>(&mut self, pointer: PPtr<T>, at: usize) -> Result<&mut P> {
        const { assert!(P::TAG >= 16) }; // evaluates LAYOUT, which asserts that a P has no padding
        let place = self.place(pointer)?;
        let start = place.offset + at as u64;
        if at.checked_add(size_of::<P>()).is_none_or(|end| end > size_of::<T>())
            || !start.is_multiple_of(align_of::<P>() as u64)
        {
            return Err(no_part::<T, P>(at));
        }
        self.touch(start, size_of::<P>() as u64)?;
        // SAFETY: as in `get_mut`. The part lies within the object and is aligned (above); both are Persist, so every pattern of
        // initialised bytes is a value of either, and a P has no padding that would leave bytes of the T uninitialised.
        Ok(unsafe { &mut *self.store.image.at(start).cast::<P>() })
    }

    /// Two objects to be changed at once.
    ///
    /// # Errors
    ///
    /// [`Error::Same`] when they are one; else as [`Tx::get_mut`].
    pub fn two_mut<A: Persist, B: Persist>(&mut self, a: PPtr<A>, b: PPtr<B>) -> Result<(&mut A, &mut B)> {
        let (first, second) = (self.place(a)?, self.place(b)?);
        let apart = first.offset + size_of::<A>() as u64 <= second.offset
            || second.offset + size_of::<B>() as u64 <= first.offset;
        if !apart {
            return Err(Error::Same { offset: first.offset });
        }
        self.touch(first.offset, size_of::<A>() as u64)?;
        self.touch(second.offset, size_of::<B>() as u64)?;
        // SAFETY: as in `get_mut`, and the two do not overlap (above).
        unsafe {
            Ok((
                &mut *self.store.image.at(first.offset).cast::<A>(),
                &mut *self.store.image.at(second.offset).cast::<B>(),
            ))
        }
    }

    /// Says beforehand which objects will be changed: with an undo log, one fence serves all of them.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn declare<T: Persist>(&mut self, pointers: &[PPtr<T>]) -> Result<()> {
        for pointer in pointers {
            let place = self.place(*pointer)?;
            let from = place.offset / 8 * 8;
            let length = (place.offset + size_of::<T>() as u64).next_multiple_of(8) - from;
            self.writes.declare(&self.store.image, from, length as u32);
        }
        self.store.before_store(self.lane, &mut self.writes)
    }

    /// Overwrites an object.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    #[inline]
    pub fn set<T: Persist>(&mut self, pointer: PPtr<T>, value: T) -> Result<()> {
        *self.get_mut(pointer)? = value;
        Ok(())
    }

    /// The elements of an array, to be changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn slice_mut<T: Persist>(&mut self, slice: PSlice<T>) -> Result<&mut [T]> {
        self.slice_part_mut(slice, 0, slice.len())
    }

    /// Elements [from, from + count) of an array, to be changed: only these are saved and compared.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    #[inline(always)]
    pub fn slice_part_mut<T: Persist>(
        &mut self,
        slice: PSlice<T>,
        from: u64,
        count: u64,
    ) -> Result<&mut [T]> {
        if count == 0 {
            return Ok(&mut []);
        }
        let (element, align) = (size_of::<T>() as u64, align_of::<T>() as u64);
        let within = from.checked_add(count).is_some_and(|end| end <= slice.len());
        let Some(bytes) = slice.len().checked_mul(element).filter(|_| within) else {
            return Err(no_elements::<T>(slice.offset()));
        };
        let tag = slice_tag::<T>();
        let has = |section| self.held.has(section);
        let place = locate(self.store, slice.offset(), bytes, align, tag, has, T::NAME)?;
        let start = place.offset + from * element;
        self.touch(start, count * element)?;
        // SAFETY: as in `get_mut`, for `count` elements within the array.
        Ok(unsafe { slice::from_raw_parts_mut(self.store.image.at(start).cast::<T>(), count as usize) })
    }

    /// Checks a part of an array that is to be overwritten. Returns its place and its length in bytes; None for a part without values.
    /// `seen` is the array that was checked last, which is not checked again while the sections are held.
    #[inline(always)]
    pub(super) fn locate_part<T: Persist>(
        store: &Store,
        held: &Held<'_>,
        part: &Overwrite<'_, T>,
        seen: &mut PSlice<T>,
    ) -> Result<Option<(u64, u64)>> {
        let (array, count) = (part.array, part.values.len() as u64);
        if count == 0 {
            return Ok(None);
        }
        let (element, align) = (size_of::<T>() as u64, align_of::<T>() as u64);
        let within = part.from.checked_add(count).is_some_and(|end| end <= array.len());
        if !within || count * element > PIECE_BYTES {
            return Err(no_elements::<T>(array.offset()));
        }
        if array != *seen {
            let bytes = array.len().checked_mul(element).ok_or_else(|| no_elements::<T>(array.offset()))?;
            let has = |section| held.has(section);
            locate(store, array.offset(), bytes, align, slice_tag::<T>(), has, T::NAME)?;
            *seen = array;
        }
        let (offset, bytes) = (array.offset() + part.from * element, count * element);
        prefetch_to_write(store.image.at(offset), bytes);
        Ok(Some((offset, bytes)))
    }

    /// The bytes of values.
    #[inline(always)]
    pub(super) fn bytes_of<T: Persist>(values: &[T]) -> &[u8] {
        // SAFETY: the same memory, borrowed for as long; a value has no padding and every byte of it is initialised (Persist).
        unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// Makes an object the pool's root. Needs section 0.
    ///
    /// # Errors
    ///
    /// [`Error::Section`] when section 0 is not held; as [`View::get`] for the pointer.
    pub fn set_root<T: Persist>(&mut self, pointer: PPtr<T>) -> Result<()> {
        self.place(pointer)?;
        if !self.held.has(0) {
            return Err(Error::Section { wanted: T::NAME, offset: pointer.offset(), section: 0 });
        }
        self.touch(SUPERBLOCK_OFFSET, 16)?;
        self.store.image.set_word(SUPERBLOCK_OFFSET, pointer.offset());
        self.store.image.set_word(SUPERBLOCK_OFFSET + 8, T::LAYOUT);
        Ok(())
    }

    /// The root object; made with `first` when there is none yet.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] when there is one of another type; as [`Tx::alloc`].
    pub fn root_or<T: Persist>(&mut self, first: impl FnOnce(&mut Self) -> Result<T>) -> Result<PPtr<T>> {
        if let Some(root) = self.root::<T>()? {
            return Ok(root);
        }
        let value = first(self)?;
        let root = self.alloc_in(0, value)?;
        self.set_root(root)?;
        Ok(root)
    }

    /// Writes a new object's value; its place is this transaction's alone.
    pub(super) fn fill<T: Persist>(&mut self, offset: u64, value: &T) {
        let bytes = (size_of::<T>() as u64).next_multiple_of(8);
        assert!(offset + bytes <= self.store.image.len());
        // SAFETY: in bounds (above) and aligned: slots are, for their type. The slot is free, so nobody refers to it. Reading the
        // value as bytes is sound: a Persist has no padding (which `T::TAG`, used by the caller, has asserted).
        unsafe {
            let target = self.store.image.at(offset);
            if const { align_of::<T>() == 8 && size_of::<T>().is_multiple_of(8) && size_of::<T>() <= 256 } {
                // Word by word, volatile: the value was made a moment ago (see `Words`).
                let source = ptr::from_ref(value).cast::<u64>();
                for at in 0..size_of::<T>() / 8 {
                    target.cast::<u64>().add(at).write_volatile(source.add(at).read_volatile());
                }
            } else {
                ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), target, size_of::<T>());
                ptr::write_bytes(target.add(size_of::<T>()), 0, bytes as usize - size_of::<T>());
            }
        }
        self.writes.fresh(offset, bytes as u32);
    }

    /// As [`Tx::fill`], for an array.
    pub(super) fn fill_slice<T: Persist>(&mut self, offset: u64, values: &[T]) {
        let bytes = size_of_val(values);
        let whole = bytes.next_multiple_of(8);
        assert!(offset + whole as u64 <= self.store.image.len());
        // SAFETY: as in `fill`.
        unsafe {
            let target = self.store.image.at(offset);
            ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), target, bytes);
            ptr::write_bytes(target.add(bytes), 0, whole - bytes);
        }
        self.fresh(offset, whole);
    }

    /// As [`Tx::fill`], for bytes that come in parts, with zeros behind them.
    pub(super) fn fill_parts(&mut self, offset: u64, bytes: u64, parts: &[&[u8]]) {
        let whole = bytes.next_multiple_of(8) as usize;
        let filled: usize = parts.iter().map(|part| part.len()).sum();
        assert!(offset + whole as u64 <= self.store.image.len() && filled <= whole);
        // SAFETY: as in `fill`; the parts and the zeros fill `whole` bytes together.
        unsafe {
            let mut target = self.store.image.at(offset);
            for part in parts {
                ptr::copy_nonoverlapping(part.as_ptr(), target, part.len());
                target = target.add(part.len());
            }
            ptr::write_bytes(target, 0, whole - filled);
        }
        self.fresh(offset, whole);
    }

    /// A new object's bytes, in ranges that are not too long.
    fn fresh(&mut self, offset: u64, whole: usize) {
        let mut at = 0;
        while at < whole {
            let piece = (whole - at).min(1 << 30);
            self.writes.fresh(offset + at as u64, piece as u32);
            at += piece;
        }
    }
}

#[cold]
fn no_elements<T: Persist>(offset: u64) -> Error {
    Error::Pointer { wanted: T::NAME, offset }
}

#[cold]
fn no_part<T: Persist, P: Persist>(at: usize) -> Error {
    Error::Argument { what: format!("no {} lies {at} bytes into a {}", P::NAME, T::NAME) }
}
