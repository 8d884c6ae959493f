// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each algorithm once, generic over [`Vector`](crate::vector::Vector); the levels instantiate it.
//!
//! - **Layout** `small` below one vector · `copy` copy and memmove · `stream` non-temporal walks and the routines built on them · `fill`
//!   · `compare` · `crc` copy and CRC by blocks · `delta` · `strided`.
//! - **Owner** every function is `unsafe` and `#[inline(always)]`: its caller is a function with the vector's target features, and
//!   guarantees the conditions of [`Kernels`](crate::Kernels).

pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod crc;
pub(crate) mod delta;
pub(crate) mod dualcast;
pub(crate) mod fill;
pub(crate) mod small;
pub(crate) mod stream;
pub(crate) mod strided;
