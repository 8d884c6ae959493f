// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each algorithm once, over [`Vector`](crate::vector::Vector); the levels instantiate it.
//!
//! - **Layout** `small` below one vector · `copy` copy and memmove · `stream` non-temporal walks and what is built on
//!   them · `fill` · `compare` · `crc` copy+CRC by blocks · `delta` · `strided`
//! - **Owner** every function is `unsafe` and `#[inline(always)]`: the caller is a function with the target features of
//!   the vector, and makes the promises of [`Kernels`](crate::Kernels).

pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod crc;
pub(crate) mod delta;
pub(crate) mod dualcast;
pub(crate) mod fill;
pub(crate) mod small;
pub(crate) mod stream;
pub(crate) mod strided;
