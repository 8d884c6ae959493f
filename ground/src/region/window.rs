// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bounds-checked part of a region: raw pointers, copies in and out, and control words.
//!
//! - **Owner** a window borrows its region, so the mapping outlives it. Raw pointers taken from a window do not borrow:
//!   code that keeps one must keep the region too.
//! - **Not here** `&[u8]` and `&mut [u8]`: the bytes may change at any time. Atomics are the only exception, because
//!   others may change them.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Region, RegionError, RegionOffset, copy};

/// A type that can lie in memory that other processes write.
///
/// # Safety
///
/// Every byte of an implementor is part of an atomic integer (reserved bytes too), any bit pattern is valid,
/// and it is `repr(C)`.
pub unsafe trait AtomicLayout: Sync {}

// SAFETY: the type is an atomic integer, valid for all bit patterns.
unsafe impl AtomicLayout for AtomicU32 {}
// SAFETY: the type is an atomic integer, valid for all bit patterns.
unsafe impl AtomicLayout for AtomicU64 {}

/// A part of a [`Region`].
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    base: *mut u8,
    offset: RegionOffset,
    bytes: u64,
    writable: bool,
    region: PhantomData<&'a Region>,
}

// SAFETY: a window is an address and a length in a mapping that any thread may use while `'a` lasts. It only
// gives out raw pointers, copies and atomics, never a plain reference.
unsafe impl Send for Window<'_> {}
// SAFETY: the fields never change, and through `&Window` threads only get raw pointers, copies and atomics.
unsafe impl Sync for Window<'_> {}

impl<'a> Window<'a> {
    pub(super) fn new(
        region: &'a Region,
        offset: RegionOffset,
        bytes: u64,
    ) -> Result<Window<'a>, RegionError> {
        check(offset, bytes, region.bytes())?;
        Ok(Window {
            base: region.base().cast_mut().wrapping_add(offset.0 as usize),
            offset,
            bytes,
            writable: region.writable(),
            region: PhantomData,
        })
    }

    /// Returns a part of this window; `offset` counts from the start of this window.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`].
    pub fn window(&self, offset: u64, bytes: u64) -> Result<Window<'a>, RegionError> {
        check(RegionOffset(offset), bytes, self.bytes)?;
        Ok(Window {
            base: self.base.wrapping_add(offset as usize),
            offset: RegionOffset(self.offset.0 + offset),
            bytes,
            ..*self
        })
    }

    /// Returns the offset of the window in its region.
    pub fn offset(&self) -> RegionOffset {
        self.offset
    }

    /// Returns the bytes of the window.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of the first byte. Others may write the bytes at any time.
    pub fn as_ptr(&self) -> *const u8 {
        self.base
    }

    /// Returns the address of the first byte, for stores.
    ///
    /// # Errors
    ///
    /// [`RegionError::ReadOnly`].
    pub fn as_mut_ptr(&self) -> Result<*mut u8, RegionError> {
        if self.writable { Ok(self.base) } else { Err(RegionError::ReadOnly) }
    }

    /// Copies `target.len()` bytes out, from the start of the window. Stores that others make meanwhile may be
    /// seen in part: validate the copy, never the original.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`] if the window is shorter.
    pub fn read_into(&self, target: &mut [u8]) -> Result<(), RegionError> {
        check(RegionOffset(0), target.len() as u64, self.bytes)?;
        // SAFETY: the source is mapped for as long as `'a` and `check` has bounded it; the target is a unique
        // borrow, so they do not overlap.
        unsafe { copy::opaque(target.as_mut_ptr(), self.base, target.len()) };
        Ok(())
    }

    /// Copies `source` to the start of the window.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`] if the window is shorter, [`RegionError::ReadOnly`].
    pub fn write_from(&self, source: &[u8]) -> Result<(), RegionError> {
        check(RegionOffset(0), source.len() as u64, self.bytes)?;
        let target = self.as_mut_ptr()?;
        // SAFETY: the target is mapped writable for as long as `'a` and `check` has bounded it; `source` is
        // borrowed, and no slice of a region exists, so they do not overlap.
        unsafe { copy::opaque(target, source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Loads a 64-bit word, also from a read-only region.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`], [`RegionError::Misaligned`].
    pub fn load_u64(&self, offset: u64, order: Ordering) -> Result<u64, RegionError> {
        let word = self.window(offset, 8)?;
        word.check_align(align_of::<AtomicU64>())?;
        // SAFETY: the 8 bytes are mapped and aligned, as checked; they are only loaded.
        Ok(unsafe { AtomicU64::from_ptr(word.base.cast()) }.load(order))
    }

    /// Returns a typed view of the start of the window.
    pub(super) fn into_layout<T: AtomicLayout>(self) -> Result<&'a T, RegionError> {
        check(RegionOffset(0), size_of::<T>() as u64, self.bytes)?;
        self.check_align(align_of::<T>())?;
        let target = self.as_mut_ptr()?;
        // SAFETY: the window is mapped for `'a`, large enough and aligned, as checked. `AtomicLayout` promises
        // that any bytes are a valid `T` and that others may store into it.
        Ok(unsafe { &*target.cast::<T>() })
    }

    fn check_align(&self, align: usize) -> Result<(), RegionError> {
        if self.base.addr().is_multiple_of(align) {
            Ok(())
        } else {
            Err(RegionError::Misaligned { offset: self.offset, align })
        }
    }
}

fn check(offset: RegionOffset, bytes: u64, region_bytes: u64) -> Result<(), RegionError> {
    match offset.checked_add(bytes) {
        Some(end) if end.0 <= region_bytes => Ok(()),
        _ => Err(RegionError::Bounds { offset, bytes, region_bytes }),
    }
}
