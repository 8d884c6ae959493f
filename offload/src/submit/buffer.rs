// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of an operation: owned, shared or static.
//!
//! - **Owner** a buffer moves into the operation; the target comes back with the outcome.
//! - **Order** addresses are taken once, when the flight has its final place on the heap; the buffers are not accessed
//!   again until the flight is settled.

use std::sync::Arc;

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
}

/// Buffer that an operation writes.
#[derive(Debug)]
pub enum Target {
    /// An owned vector; its length counts, not its capacity.
    Vec(Vec<u8>),
    /// An owned slice.
    Boxed(Box<[u8]>),
}

impl Source {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Source::Vec(owned) => owned.len(),
            Source::Boxed(owned) => owned.len(),
            Source::Shared(shared) => shared.len(),
            Source::Static(bytes) => bytes.len(),
        }
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Source::Vec(owned) => owned.as_ptr().expose_provenance() as u64,
            Source::Boxed(owned) => owned.as_ptr().expose_provenance() as u64,
            Source::Shared(shared) => shared.as_ptr().expose_provenance() as u64,
            Source::Static(bytes) => bytes.as_ptr().expose_provenance() as u64,
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
        }
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Target::Vec(owned) => owned,
            Target::Boxed(owned) => owned,
        }
    }

    pub(super) fn address(&mut self) -> u64 {
        match self {
            Target::Vec(owned) => owned.as_mut_ptr().expose_provenance() as u64,
            Target::Boxed(owned) => owned.as_mut_ptr().expose_provenance() as u64,
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
    Target::Vec from Vec<u8>;
    Target::Boxed from Box<[u8]>;
}
