// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of an operation: owned, shared, static, or leased from a region.
//!
//! - **Owner** a buffer moves into the operation and comes back with the outcome. A lease keeps its region mapped.
//! - **Order** addresses are taken once, when the flight has its final place on the heap; the buffers are not accessed
//!   again until the flight is settled.

use memlift_ground::region::{Region, RegionError, RegionOffset};
use std::sync::Arc;

/// A range of a region that an operation reads or writes. Others may store into it meanwhile, as into any region.
#[derive(Clone, Debug)]
pub struct Lease {
    region: Arc<Region>,
    offset: RegionOffset,
    bytes: usize,
}

impl Lease {
    /// Makes a lease on `bytes` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`].
    pub fn new(region: Arc<Region>, offset: RegionOffset, bytes: usize) -> Result<Lease, RegionError> {
        region.window(offset, bytes as u64)?;
        Ok(Lease { region, offset, bytes })
    }

    /// Returns the region of the lease.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the offset of the lease in the region.
    pub fn offset(&self) -> RegionOffset {
        self.offset
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn address(&self) -> u64 {
        self.region.base().wrapping_add(self.offset.0 as usize).expose_provenance() as u64
    }
}

/// Buffer that an operation reads.
#[derive(Debug)]
pub enum Source {
    /// An owned vector.
    Vec(Vec<u8>),
    /// An owned slice.
    Boxed(Box<[u8]>),
    /// Shared, immutable bytes.
    Shared(Arc<[u8]>),
    /// A slice that lives for the whole program.
    Static(&'static [u8]),
    /// Part of a region.
    Lease(Lease),
}

/// Buffer that an operation writes.
#[derive(Debug)]
pub enum Target {
    /// An owned vector; its length counts, not its capacity.
    Vec(Vec<u8>),
    /// An owned slice.
    Boxed(Box<[u8]>),
    /// Part of a writable region.
    Lease(Lease),
}

impl Source {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Source::Vec(owned) => owned.len(),
            Source::Boxed(owned) => owned.len(),
            Source::Shared(shared) => shared.len(),
            Source::Static(bytes) => bytes.len(),
            Source::Lease(lease) => lease.bytes,
        }
    }

    /// Returns the bytes; `None` if they lie in a region.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Source::Vec(owned) => Some(owned),
            Source::Boxed(owned) => Some(owned),
            Source::Shared(shared) => Some(shared),
            Source::Static(bytes) => Some(bytes),
            Source::Lease(_) => None,
        }
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Source::Vec(owned) => owned.as_ptr().expose_provenance() as u64,
            Source::Boxed(owned) => owned.as_ptr().expose_provenance() as u64,
            Source::Shared(shared) => shared.as_ptr().expose_provenance() as u64,
            Source::Static(bytes) => bytes.as_ptr().expose_provenance() as u64,
            Source::Lease(lease) => lease.address(),
        }
    }
}

impl Target {
    /// Makes a zeroed vector of `bytes` bytes.
    pub fn zeroed(bytes: usize) -> Target {
        Target::Vec(vec![0; bytes])
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Target::Vec(owned) => owned.len(),
            Target::Boxed(owned) => owned.len(),
            Target::Lease(lease) => lease.bytes,
        }
    }

    /// Returns the bytes; `None` if they lie in a region.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Target::Vec(owned) => Some(owned),
            Target::Boxed(owned) => Some(owned),
            Target::Lease(_) => None,
        }
    }

    /// Returns the bytes as a vector; `None` if they lie in a region.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self {
            Target::Vec(owned) => Some(owned),
            Target::Boxed(owned) => Some(owned.into_vec()),
            Target::Lease(_) => None,
        }
    }

    pub(super) fn writable(&self) -> bool {
        !matches!(self, Target::Lease(lease) if !lease.region.writable())
    }

    pub(super) fn address(&mut self) -> u64 {
        match self {
            Target::Vec(owned) => owned.as_mut_ptr().expose_provenance() as u64,
            Target::Boxed(owned) => owned.as_mut_ptr().expose_provenance() as u64,
            Target::Lease(lease) => lease.address(),
        }
    }
}

macro_rules! from {
    ($($buffer:ident :: $variant:ident from $type:ty;)*) => {$(
        impl From<$type> for $buffer {
            fn from(buffer: $type) -> $buffer {
                $buffer::$variant(buffer)
            }
        }
    )*};
}

from! {
    Source::Vec from Vec<u8>;
    Source::Boxed from Box<[u8]>;
    Source::Shared from Arc<[u8]>;
    Source::Static from &'static [u8];
    Source::Lease from Lease;
    Target::Vec from Vec<u8>;
    Target::Boxed from Box<[u8]>;
    Target::Lease from Lease;
}
