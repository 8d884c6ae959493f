// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocations that may fail, for programs that must continue without the memory.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// Allocates `count` zeros; returns `None` if there is no memory.
pub fn zeros<T: Copy + Default>(count: usize) -> Option<Box<[T]>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).ok()?;
    zeros.resize(count, T::default());
    Some(zeros.into_boxed_slice())
}

/// Allocates a value of zero bytes; returns `None` if there is no memory.
///
/// # Safety
/// Zero bytes are a valid value of the type, and its size is not 0.
pub unsafe fn zeroed<T>() -> Option<Box<T>> {
    // SAFETY: the layout is that of the type; the caller guarantees that zeros are a valid value.
    unsafe {
        let memory = alloc_zeroed(Layout::new::<T>()).cast::<T>();
        (!memory.is_null()).then(|| Box::from_raw(memory))
    }
}

/// Ends the process in the way of a failed allocation.
pub fn no_memory<T>() -> ! {
    handle_alloc_error(Layout::new::<T>())
}
