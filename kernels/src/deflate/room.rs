// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocations that may fail, for a program that must go on without the memory.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// Zeros. `None`: there is no memory.
pub fn zeros<T: Copy + Default>(count: usize) -> Option<Box<[T]>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).ok()?;
    zeros.resize(count, T::default());
    Some(zeros.into_boxed_slice())
}

/// A value of zeros. `None`: there is no memory.
///
/// # Safety
/// Zeros are a value of the type, which is not empty.
pub unsafe fn zeroed<T>() -> Option<Box<T>> {
    // SAFETY: the layout is that of the type; the caller vouches for the value.
    unsafe {
        let memory = alloc_zeroed(Layout::new::<T>()).cast::<T>();
        (!memory.is_null()).then(|| Box::from_raw(memory))
    }
}

/// Ends the process as a failed allocation does.
pub fn no_memory<T>() -> ! {
    handle_alloc_error(Layout::new::<T>())
}
