// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Portable routines: plain Rust for every CPU, simple enough to be the reference in tests of all other levels.
//!
//! - **Layout** `plain` copy, fill, compare, strided copy · `crc` CRC-32C by tables · `polynomial` its arithmetic ·
//!   `delta` delta records
//! - **Not here** non-temporal stores: the `_nt` entries are the ordinary routines.

pub(crate) mod crc;
pub(crate) mod delta;
pub(crate) mod plain;
pub(crate) mod polynomial;

use crate::{Isa, Kernels, Shaped};

/// Table of this level.
pub(crate) static KERNELS: Kernels = Kernels {
    isa: Isa::Scalar,
    copy: plain::copy,
    copy_nt: plain::copy,
    move_overlapping: plain::move_overlapping,
    fill: plain::fill,
    fill_nt: plain::fill,
    compare: plain::compare,
    compare_pattern: plain::compare_pattern,
    crc32c: crc::crc32c,
    copy_crc32c: crc::copy_crc32c,
    copy_crc32c_nt: crc::copy_crc32c,
    dualcast: plain::dualcast,
    dualcast_nt: plain::dualcast,
    delta_create: delta::create,
    delta_apply: delta::apply,
    copy_strided: plain::copy_strided,
    copy_strided_nt: plain::copy_strided,
    shaped: Shaped {
        // SAFETY: the caller guarantees that both buffers hold `bytes` bytes and do not overlap.
        copy: |target, source, bytes, _| unsafe { plain::copy(target, source, bytes) },
        // SAFETY: the caller guarantees that the target is writable for `bytes`.
        fill: |target, pattern, bytes, _| unsafe { plain::fill(target, pattern, bytes) },
        // SAFETY: the caller guarantees that both buffers hold `bytes` bytes and do not overlap.
        copy_crc32c: |target, source, bytes, seed, _| unsafe {
            crc::copy_crc32c(target, source, bytes, seed)
        },
        // SAFETY: the caller guarantees that all three buffers hold `bytes` bytes and that the targets do not overlap.
        dualcast: |target1, target2, source, bytes, _| unsafe {
            plain::dualcast(target1, target2, source, bytes)
        },
        // SAFETY: the caller guarantees that every row is readable and the target holds `rows * row_bytes` bytes.
        copy_strided: |target, source, rows, row_bytes, stride, _| unsafe {
            plain::copy_strided(target, source, rows, row_bytes, stride)
        },
    },
};
