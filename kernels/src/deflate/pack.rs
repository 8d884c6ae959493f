// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages: [`Packer`].
//!
//! - **Flow** start of the frame ──▶ our own encoder (`Fast`, `Default`) or libdeflate (`Small`) ──▶ end of the frame.
//! - **Order** libdeflate gets no more room than [`bound`](super::bound) says. If its output does not fit there, our encoder is used,
//!   whose output never exceeds the bound, because it knows the size of each block before it writes it.

use super::bits::Bits;
use super::block::Full;
use super::effort::Effort;
use super::room::no_memory;
use super::segment::Segments;
use super::{Format, bound, checksum, frame};
use crate::Isa;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use libdeflate_sys as sys;

/// The packed message does not fit: give it [`bound`](super::bound) bytes, or send the message unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the target has no room for the packed message: give it bound(format, bytes) bytes, or send it unpacked"
)]
pub struct TargetTooSmall;

impl From<Full> for TargetTooSmall {
    fn from(_: Full) -> TargetTooSmall {
        TargetTooSmall
    }
}

/// Packs whole messages. It owns its scratch memory (about 350 KiB; `Small` allocates more at its first use), so packing does not
/// allocate. Use one per thread.
pub struct Packer {
    segments: Segments,
    small: Option<Small>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

impl Packer {
    /// Allocates the scratch memory.
    pub fn new() -> Packer {
        Packer::for_isa(crate::active().isa)
    }

    /// Allocates the scratch memory; instructions beyond this level are not used. The output does not depend on the level.
    pub fn for_isa(isa: Isa) -> Packer {
        let segments = Segments::new(isa).unwrap_or_else(|| no_memory::<Packer>());
        Packer { segments, small: None }
    }

    /// Does the same as [`new`](Packer::new), but returns `None` if there is no memory.
    pub fn try_new() -> Option<Packer> {
        Some(Packer { segments: Segments::new(crate::active().isa)?, small: None })
    }

    /// Packs one message. Returns the number of bytes written, at most [`bound`](super::bound). The rest of `target` may also be
    /// overwritten.
    pub fn pack(
        &mut self,
        format: Format,
        effort: Effort,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<usize, TargetTooSmall> {
        let bytes = target.len();
        // SAFETY: the slice has the same bytes, and only initialized bytes are written to them.
        let target = unsafe { core::slice::from_raw_parts_mut(target.as_mut_ptr().cast(), bytes) };
        self.pack_uninit(format, effort, source, target)
    }

    /// Does the same as [`pack`](Packer::pack), into memory that need not be initialized. On success the returned number of
    /// bytes is.
    pub fn pack_uninit(
        &mut self,
        format: Format,
        effort: Effort,
        source: &[u8],
        target: &mut [MaybeUninit<u8>],
    ) -> Result<usize, TargetTooSmall> {
        if effort == Effort::Small
            && let Some(bytes) = self.pack_small(format, source, target)
        {
            return Ok(bytes);
        }
        let mut bits = Bits::new(target, 0, 0);
        frame::front(format, effort, 15, &mut bits);
        if !bits.fits() {
            return Err(TargetTooSmall);
        }
        self.segments.pack_message(effort, source, &mut bits)?;
        bits.align();
        let sum = checksum::update(format, checksum::initial(format), source);
        frame::back(format, sum, source.len() as u64, &mut bits);
        if bits.fits() { Ok(bits.bytes()) } else { Err(TargetTooSmall) }
    }

    fn pack_small(&mut self, format: Format, source: &[u8], target: &mut [MaybeUninit<u8>]) -> Option<usize> {
        if self.small.is_none() {
            self.small = Small::new();
        }
        let room = target.len().min(bound(format, source.len()));
        self.small.as_mut()?.pack(format, source, &mut target[..room])
    }
}

/// A compressor of libdeflate.
struct Small(NonNull<sys::libdeflate_compressor>);

// SAFETY: the compressor is plain memory that is bound to no thread, and it is used through `&mut` only.
unsafe impl Send for Small {}

impl Small {
    const LEVEL: i32 = 7;

    fn new() -> Option<Small> {
        // SAFETY: libdeflate has this level, and null is handled.
        NonNull::new(unsafe { sys::libdeflate_alloc_compressor(Small::LEVEL) }).map(Small)
    }

    fn pack(&mut self, format: Format, source: &[u8], target: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let pack = match format {
            Format::Raw => sys::libdeflate_deflate_compress,
            Format::Zlib => sys::libdeflate_zlib_compress,
            Format::Gzip => sys::libdeflate_gzip_compress,
        };
        let (source, target) =
            ((source.as_ptr().cast(), source.len()), (target.as_mut_ptr().cast(), target.len()));
        // SAFETY: the compressor is valid; pointers and lengths are those of two slices that do not overlap.
        let bytes = unsafe { pack(self.0.as_ptr(), source.0, source.1, target.0, target.1) };
        (bytes != 0).then_some(bytes)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: the compressor came from libdeflate and is not used any more.
        unsafe { sys::libdeflate_free_compressor(self.0.as_ptr()) };
    }
}
