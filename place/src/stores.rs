// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways in which a copy can store: through the cache, past it in a shape, or not at all.

use memlift_kernels::{Kernels, Shape};

/// The way in which a copy stores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StoreKind {
    /// Through the cache.
    Temporal,
    /// Past the cache, in this shape.
    Streaming(Shape),
    /// Not at all, to measure only the hand-off to a worker.
    None,
}

impl StoreKind {
    /// Copies `bytes`.
    ///
    /// # Safety
    /// `source` is readable and `target` writable for `bytes`, and they do not overlap.
    /// `source` is readable and `target` writable for `bytes`, and they are apart.
    pub unsafe fn copy(self, kernels: &Kernels, target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: the caller promises that both ranges have `bytes` and do not overlap.
        unsafe {
            match self {
                StoreKind::Temporal => (kernels.copy)(target, source, bytes),
                StoreKind::Streaming(shape) => (kernels.shaped.copy)(target, source, bytes, shape),
                StoreKind::None => {}
            }
        }
    }
}
