// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pointers that survive: offsets into the heap, typed.
//!
//! - **Layout** [`PPtr`]: u64, bytes from the start of the heap; 0 is null. [`PSlice`]: u64 offset, u64 elements
//! - **Rule** a pointer is a claim. Code that follows it ([`crate::Tx`], [`crate::Reader`]) checks type, bounds and section
//!   first, so a stale or forged one gives an error and never undefined behaviour

use std::fmt;
use std::marker::PhantomData;

use crate::Migrates;
use crate::persist::{Field, HASH_START, Persist, PointerField, TypeInfo, hash_bytes};

/// A typed pointer into a pool; null is a value.
#[repr(transparent)]
pub struct PPtr<T> {
    offset: u64,
    target: PhantomData<fn() -> T>,
}

impl<T> PPtr<T> {
    /// Points to nothing.
    pub const NULL: PPtr<T> = PPtr { offset: 0, target: PhantomData };

    /// The pointer to what lies `offset` bytes from the start of the heap. Following a wrong one is an error, not a fault.
    pub const fn from_offset(offset: u64) -> PPtr<T> {
        PPtr { offset, target: PhantomData }
    }

    /// Bytes from the start of the heap.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Returns true if it points to nothing.
    pub const fn is_null(self) -> bool {
        self.offset == 0
    }

    /// The same pointer, to what its target becomes: for `From` between two layouts. [`crate::Pool::migrate`] turns its place
    /// into the new one when the target has moved.
    pub const fn migrated<N: Migrates<From = T>>(self) -> PPtr<N> {
        PPtr::from_offset(self.offset)
    }
}

/// A typed array in a pool.
#[repr(C)]
pub struct PSlice<T> {
    offset: u64,
    elements: u64,
    target: PhantomData<fn() -> T>,
}

impl<T> PSlice<T> {
    /// An array without elements.
    pub const EMPTY: PSlice<T> = PSlice { offset: 0, elements: 0, target: PhantomData };

    /// The array of `elements` that lies `offset` bytes from the start of the heap.
    pub const fn from_raw(offset: u64, elements: u64) -> PSlice<T> {
        PSlice { offset, elements, target: PhantomData }
    }

    /// Bytes from the start of the heap; 0 when empty.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// How many elements.
    pub const fn len(self) -> u64 {
        self.elements
    }

    /// Returns true if there are none.
    pub const fn is_empty(self) -> bool {
        self.elements == 0
    }

    /// As [`PPtr::migrated`].
    pub const fn migrated<N: Migrates<From = T>>(self) -> PSlice<N> {
        PSlice::from_raw(self.offset, self.elements)
    }
}

macro_rules! value {
    ($name:ident, $($field:ident)*) => {
        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}
        impl<T> PartialEq for $name<T> {
            fn eq(&self, other: &Self) -> bool {
                $(self.$field == other.$field)&&*
            }
        }
        impl<T> Eq for $name<T> {}
        impl<T> std::hash::Hash for $name<T> {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                $(self.$field.hash(state);)*
            }
        }
    };
}

value!(PPtr, offset);
value!(PSlice, offset elements);

impl<T> Default for PPtr<T> {
    fn default() -> Self {
        PPtr::NULL
    }
}

impl<T> Default for PSlice<T> {
    fn default() -> Self {
        PSlice::EMPTY
    }
}

impl<T: Persist> fmt::Debug for PPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PPtr<{}>({:#x})", T::NAME, self.offset)
    }
}

impl<T: Persist> fmt::Debug for PSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PSlice<{}>({:#x}, {})", T::NAME, self.offset, self.elements)
    }
}

// SAFETY: eight initialised bytes, each pattern a value; PhantomData of a function type has no bytes.
unsafe impl<T: Persist> Persist for PPtr<T> {
    const LAYOUT: u64 = hash_bytes(hash_bytes(HASH_START, b"PPtr"), T::NAME.as_bytes());
    const NAME: &'static str = "PPtr";
    const FIELDS: &'static [Field] = &[];

    fn pointers(at: u64, each: &mut dyn FnMut(PointerField)) {
        each(PointerField { at, array: false, target: TypeInfo::of::<T> });
    }
}

// SAFETY: two words, each pattern a value.
unsafe impl<T: Persist> Persist for PSlice<T> {
    const LAYOUT: u64 = hash_bytes(hash_bytes(HASH_START, b"PSlice"), T::NAME.as_bytes());
    const NAME: &'static str = "PSlice";
    const FIELDS: &'static [Field] = &[];

    fn pointers(at: u64, each: &mut dyn FnMut(PointerField)) {
        each(PointerField { at, array: true, target: TypeInfo::of::<T> });
    }
}

const _: () = assert!(size_of::<PPtr<u64>>() == 8 && size_of::<PSlice<u64>>() == 16);
