// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Payloads: what goes out (borrowed, copied once into a pool) and what came in (viewed where it lies).
//!
//! - **Flow** `Outgoing` ──gathered by the engine──▶ slot in a pool ──message──▶ `Payload` in the other process
//! - **Owner** an `Outgoing` borrows its bytes until the call has copied them; a `Payload` keeps its segment mapped and
//!   its slot leased until the last clone of it is dropped
//! - **Not here** `&[u8]` to a payload: the peer can change it at any time. Copy it out, or go through the raw pointer.
#![expect(unsafe_code, reason = "copies between this process's arrays and memory shared with a peer")]

use crate::error::Error;
use crate::message::{DIMENSIONS_MAX, Shape, Tensor};
use crate::transfer::crc_of;
use memlift_ground::region::{Region, RegionOffset, RegionOptions};
use memlift_offload::Engine;
use memlift_place::Cache;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// Data to send: bytes or an array, borrowed for as long as the copy takes.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    pub(crate) shape: Shape,
    source: *const u8,
    bytes: u64,
    strides: Option<Vec<i64>>,
    /// Parts of a value, each with its offset in the value, bytes.
    parts: Vec<(u64, Outgoing<'a>)>,
    borrowed: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared borrow of bytes, which other threads may read too.
unsafe impl Send for Outgoing<'_> {}
// SAFETY: a shared reference only reads the bytes, which are borrowed and which nobody writes meanwhile.
unsafe impl Sync for Outgoing<'_> {}

impl<'a> Outgoing<'a> {
    /// Makes a payload of nothing.
    pub fn none() -> Outgoing<'static> {
        Outgoing {
            shape: Shape::None,
            source: std::ptr::null(),
            bytes: 0,
            strides: None,
            parts: Vec::new(),
            borrowed: PhantomData,
        }
    }

    /// An array, C-contiguous in `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedType`] if the shape and the bytes do not agree.
    pub fn tensor(tensor: Tensor, bytes: &'a [u8]) -> Result<Outgoing<'a>, Error> {
        if tensor.bytes() != bytes.len() as u64 {
            return Err(Error::UnsupportedType(format!(
                "an array of {} bytes in {} bytes of memory",
                tensor.bytes(),
                bytes.len()
            )));
        }
        let mut outgoing = Outgoing::from(bytes);
        outgoing.shape = Shape::Tensor(tensor);
        Ok(outgoing)
    }

    /// Bytes or an array anywhere in memory.
    ///
    /// `strides`: bytes from one element to the next along each dimension, `None` for C order.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, every byte that shape and strides reach from `source` is readable, and nobody
    /// writes it.
    pub unsafe fn from_raw(
        shape: Shape,
        source: *const u8,
        bytes: u64,
        strides: Option<Vec<i64>>,
    ) -> Outgoing<'a> {
        let bytes = match &shape {
            Shape::None => 0,
            Shape::Bytes | Shape::Value => bytes,
            Shape::Tensor(tensor) => tensor.bytes(),
        };
        let contiguous = match (&shape, &strides) {
            (Shape::Tensor(tensor), Some(strides)) => is_contiguous(tensor, strides),
            _ => true,
        };
        let strides = if contiguous { None } else { strides };
        Outgoing { shape, source, bytes, strides, parts: Vec::new(), borrowed: PhantomData }
    }

    /// A value that describes itself, gathered from parts: each with its place, bytes from the start. What lies between them
    /// is left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedType`] if a part reaches beyond `bytes`.
    pub fn value(parts: Vec<(u64, Outgoing<'a>)>, bytes: u64) -> Result<Outgoing<'a>, Error> {
        let fits =
            |(at, part): &(u64, Outgoing<'a>)| at.checked_add(part.bytes).is_some_and(|end| end <= bytes);
        if !parts.iter().all(fits) {
            return Err(Error::UnsupportedType("a value whose parts are longer than the whole".to_owned()));
        }
        Ok(Outgoing { shape: Shape::Value, bytes, parts, ..Outgoing::none() })
    }

    /// Shape of the data.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes it takes in a pool.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of its first byte.
    pub(crate) fn source(&self) -> *const u8 {
        self.source
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        self.strides.is_none() && self.parts.is_empty()
    }

    /// Parts of a value, each with its offset in the value, bytes.
    pub(crate) fn parts(&self) -> &[(u64, Outgoing<'a>)] {
        &self.parts
    }

    /// Bytes from one element to the next, unless it is contiguous.
    pub(crate) fn strides(&self) -> Option<&[i64]> {
        self.strides.as_deref()
    }
}

impl<'a> From<&'a [u8]> for Outgoing<'a> {
    fn from(bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing {
            shape: Shape::Bytes,
            source: bytes.as_ptr(),
            bytes: bytes.len() as u64,
            strides: None,
            parts: Vec::new(),
            borrowed: PhantomData,
        }
    }
}

fn is_contiguous(tensor: &Tensor, strides: &[i64]) -> bool {
    let mut expected = i64::from(tensor.element().bytes);
    for (&extent, &stride) in tensor.shape().iter().zip(strides).rev() {
        if extent == 0 {
            return true;
        }
        if extent != 1 && stride != expected {
            return false;
        }
        expected *= extent as i64;
    }
    true
}

/// Data received, viewed in the pool where it lies. Clones share the lease.
#[derive(Clone)]
pub struct Payload {
    bytes: u64,
    pointer: *const u8,
    /// `None`: there is no payload at all.
    held: Option<Arc<Held<dyn Any + Send + Sync>>>,
}

// It is moved more often than it is looked into.
const _: () = assert!(size_of::<Payload>() == 32);

/// State that a payload and its clones share.
struct Held<L: ?Sized> {
    shape: Shape,
    /// Unmapped before the lease ends: the field lies in front of `lease`.
    region: Option<Arc<Region>>,
    /// Owner of the bytes (of a leased slot, or of private memory), which gives them back when it is dropped.
    lease: L,
}

// SAFETY: the pointer lies in `held.region` or in memory that `held.lease` owns, both Send + Sync; it is only read, and never
// through a reference to memory that a peer can write.
unsafe impl Send for Payload {}
// SAFETY: a shared reference only reads, through the pointer; `held` is Sync and keeps the bytes in place.
unsafe impl Sync for Payload {}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payload").field("shape", self.shape()).field("bytes", &self.bytes).finish()
    }
}

/// Bytes that elements of every type may lie in.
#[repr(align(16))]
struct Aligned([u8; size_of::<[u64; DIMENSIONS_MAX]>()]);

impl Payload {
    /// A payload of no bytes: nothing, empty bytes, or an array with an extent of zero.
    pub(crate) fn empty(shape: Shape) -> Payload {
        match shape {
            Shape::None => Payload { bytes: 0, pointer: std::ptr::null(), held: None },
            shape => Payload::held(shape, 0, None, (), |()| std::ptr::null()),
        }
    }

    /// A copy of what lay in a message.
    pub(crate) fn embedded(shape: Shape, bytes: &[u8]) -> Payload {
        let mut own = [0; size_of::<[u64; DIMENSIONS_MAX]>()];
        own[..bytes.len()].copy_from_slice(bytes);
        Payload::held(shape, bytes.len() as u64, None, Aligned(own), |own| own.0.as_ptr())
    }

    pub(crate) fn view(
        shape: Shape,
        bytes: u64,
        pointer: *const u8,
        region: Arc<Region>,
        lease: impl Any + Send + Sync,
    ) -> Payload {
        Payload::held(shape, bytes, Some(region), lease, |_| pointer)
    }

    /// `pointer` gives the place of the bytes, from where the lease lies now.
    fn held<L: Any + Send + Sync>(
        shape: Shape,
        bytes: u64,
        region: Option<Arc<Region>>,
        lease: L,
        pointer: impl FnOnce(&L) -> *const u8,
    ) -> Payload {
        let held = Arc::new(Held { shape, region, lease });
        Payload { bytes, pointer: pointer(&held.lease), held: Some(held) }
    }

    fn region(&self) -> Option<&Arc<Region>> {
        self.held.as_ref()?.region.as_ref()
    }

    /// A copy of it in memory of this process alone, which the peer cannot change.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if there is no room for it.
    pub(crate) fn to_private(&self) -> Result<Payload, Error> {
        Payload::private(self.shape().clone(), self.bytes, |target| {
            self.read_into(target);
            Ok(())
        })
    }

    /// Makes a payload in memory of this process alone, which `write` fills.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if there is no room for it, and the error of `write`.
    pub(crate) fn private(
        shape: Shape,
        bytes: u64,
        write: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<Payload, Error> {
        /// From this size on, bytes, the room is checked first, which costs a read of the memory cgroup.
        const LARGE: u64 = 1 << 20;
        if bytes < LARGE {
            let mut copy = vec![0; bytes as usize];
            write(&mut copy)?;
            let start = |copy: &Vec<u8>| if bytes == 0 { std::ptr::null() } else { copy.as_ptr() };
            return Ok(Payload::held(shape, bytes, None, copy, start));
        }
        let options = RegionOptions { prefault: false, ..RegionOptions::default() };
        let region = Region::anonymous(bytes, &options)?;
        // SAFETY: the region is new, zeroed, as long as that, and nobody else's.
        write(unsafe { std::slice::from_raw_parts_mut(region.base().cast_mut(), bytes as usize) })?;
        let pointer = region.base();
        Ok(Payload::view(shape, bytes, pointer, Arc::new(region), ()))
    }

    /// Shape of the data.
    pub fn shape(&self) -> &Shape {
        self.held.as_ref().map_or(&Shape::None, |held| &held.shape)
    }

    /// Element type and shape, if it is an array.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self.shape() {
            Shape::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of the first byte, valid while this payload or a clone of it lives. The peer may change the bytes:
    /// read them through raw pointers only.
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    /// Copies it into `target`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn read_into(&self, target: &mut [u8]) {
        assert_eq!(target.len() as u64, self.bytes, "target has another length than the payload");
        if !target.is_empty() {
            // SAFETY: the view was bounds-checked against its region when it was made, and both are as long.
            unsafe {
                Engine::global().copy_raw(target.as_mut_ptr(), self.pointer, target.len(), Cache::Auto)
            };
        }
    }

    /// CRC-32C of its bytes as they are now.
    pub fn crc32c(&self) -> u32 {
        if self.bytes == 0 {
            return 0;
        }
        // SAFETY: the view was bounds-checked against its region when it was made, and the region is kept mapped.
        unsafe { crc_of(self.pointer, self.bytes) }
    }

    /// Maps it once more, so that this process may write it: pages that are written become its own (copy on write), and nobody else sees
    /// it. It is leased as before.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the mapping fails, or if the data does not lie in an arena.
    pub fn into_writable(self) -> Result<Writable, Error> {
        let mut writable = Writable { region: None, at: RegionOffset(0), payload: self };
        if let Some(region) = &writable.payload.region()
            && writable.payload.bytes != 0
        {
            let offset = writable.payload.pointer.addr() - region.base().addr();
            let (region, at) = region.copy_on_write(RegionOffset(offset as u64), writable.payload.bytes)?;
            (writable.region, writable.at) = (Some(region), at);
        }
        Ok(writable)
    }

    /// Copies the bytes into a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes as usize];
        self.read_into(&mut copy);
        copy
    }
}

/// Received data that this process may write; what it writes is its own.
#[derive(Debug)]
pub struct Writable {
    /// Unmapped before the lease ends: the field lies in front of `payload`. None for no bytes.
    region: Option<Region>,
    at: RegionOffset,
    payload: Payload,
}

impl Writable {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.payload.bytes
    }

    /// Address of the first byte, valid while this lives; null for no bytes. The owner of the memory may change bytes of pages that were
    /// not written here: read and write them through raw pointers only.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        let base = self.region.as_ref().map_or(std::ptr::null(), Region::base);
        base.cast_mut().wrapping_add(self.at.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ElementType;
    use crate::transfer::Transfer;
    use proptest::prelude::*;

    fn naive(source: &[u8], base: usize, shape: &[u64], strides: &[i64], element: usize) -> Vec<u8> {
        let mut packed = Vec::new();
        let total: u64 = shape.iter().product();
        for mut flat in 0..total {
            let mut at = base as i64;
            for (&extent, &stride) in shape.iter().zip(strides).rev() {
                at += (flat % extent) as i64 * stride;
                flat /= extent;
            }
            packed.extend_from_slice(&source[at as usize..at as usize + element]);
        }
        packed
    }

    proptest! {
        #[test]
        fn strided_arrays_arrive_packed(
            shape in proptest::collection::vec(1u64..6, 1..5),
            order in Just(()).prop_perturb(|(), mut rng| rng.next_u64()),
            steps in proptest::collection::vec(1i64..4, 4),
            flips in proptest::collection::vec(any::<bool>(), 4),
        ) {
            // A memory order by permuting the axes, each with a gap factor, some of them reversed.
            let mut axes: Vec<usize> = (0..shape.len()).collect();
            let mut seed = order;
            for i in (1..axes.len()).rev() {
                axes.swap(i, (seed % (i as u64 + 1)) as usize);
                seed /= 7;
            }
            let mut strides = vec![0i64; shape.len()];
            let mut span = 4i64;
            for &axis in &axes {
                strides[axis] = span * steps[axis % 4];
                span = strides[axis] * shape[axis] as i64;
            }
            let source: Vec<u8> = (0..span as usize + 4).map(|i| (i * 31 % 251) as u8).collect();
            let mut base = 0i64;
            for axis in 0..shape.len() {
                if flips[axis % 4] {
                    base += strides[axis] * (shape[axis] as i64 - 1);
                    strides[axis] = -strides[axis];
                }
            }
            let tensor = Tensor::new(ElementType::F32, &shape).unwrap();
            let expected = naive(&source, base as usize, &shape, &strides, 4);
            // SAFETY: strides and base were built to stay inside `source`.
            let outgoing = unsafe {
                Outgoing::from_raw(Shape::Tensor(tensor), source.as_ptr().add(base as usize), 0, Some(strides))
            };
            let mut target = vec![0u8; expected.len()];
            // SAFETY: the target is as long as the tensor.
            unsafe { outgoing.copy_here(target.as_mut_ptr(), Transfer::PLAIN) };
            prop_assert_eq!(target, expected);
        }
    }
}
