// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomics of this module: std's, or loom's when the handshake is model-checked.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, Ordering, fence};
