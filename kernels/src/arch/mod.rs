// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routines by instruction set.
//!
//! - **Layout** `all/` portable code for every CPU · `generic/` each algorithm once, over a vector type · `x86_64/<level>/` vector type
//!   and entry points of one level.
//! - **Not here** the choice of a level: see [`choice`](crate::choice).

pub(crate) mod all;
#[cfg(target_arch = "x86_64")]
pub(crate) mod generic;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use crate::{Isa, Kernels};

/// Returns the table of a level, which the caller knows to be available.
#[cfg(target_arch = "x86_64")]
pub(crate) fn table(isa: Isa) -> &'static Kernels {
    match isa {
        Isa::Scalar => &all::KERNELS,
        Isa::Sse2 => &x86_64::sse2::KERNELS,
        Isa::Avx2 => &x86_64::avx2::KERNELS,
        Isa::Avx512 => &x86_64::avx512::KERNELS,
    }
}

/// Returns the table of a level, which the caller knows to be available: here only `Scalar` is.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn table(_isa: Isa) -> &'static Kernels {
    &all::KERNELS
}
