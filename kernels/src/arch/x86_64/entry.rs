// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A macro that generates the entry points of a level: one function per field of the table, with the level's target features, into
//! which the generic algorithm is inlined.
//!
//! - **Not here** any computation.

macro_rules! entry_points {
    (
        isa: $isa:expr,
        features: $features:literal,
        vector: $vector:ty,
        crc: $crc:path, $copy_crc:path, $copy_crc_nt:path $(,)?
    ) => {
        entry_points!(@functions $features;
            copy => generic::copy::copy::<$vector>, (target: *mut u8, source: *const u8, bytes: usize);
            copy_nt => generic::stream::copy_nt::<$vector>,
                (target: *mut u8, source: *const u8, bytes: usize, shape: $crate::Shape);
            move_overlapping => generic::copy::move_overlapping::<$vector>,
                (target: *mut u8, source: *const u8, bytes: usize);
            fill => generic::fill::fill::<$vector>, (target: *mut u8, pattern: u128, bytes: usize);
            fill_nt => generic::fill::fill_nt::<$vector>,
                (target: *mut u8, pattern: u128, bytes: usize, shape: $crate::Shape);
            compare => generic::compare::compare::<$vector>,
                (first: *const u8, second: *const u8, bytes: usize) -> Option<usize>;
            compare_pattern => generic::compare::compare_pattern::<$vector>,
                (source: *const u8, pattern: u64, bytes: usize) -> Option<usize>;
            crc32c => $crc, (source: *const u8, bytes: usize, seed: u32) -> u32;
            copy_crc32c => $copy_crc, (target: *mut u8, source: *const u8, bytes: usize, seed: u32) -> u32;
            copy_crc32c_nt => $copy_crc_nt,
                (target: *mut u8, source: *const u8, bytes: usize, seed: u32, shape: $crate::Shape) -> u32;
            dualcast => generic::dualcast::dualcast::<$vector>,
                (target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize);
            dualcast_nt => generic::dualcast::dualcast_nt::<$vector>, (
                target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize, shape: $crate::Shape
            );
            delta_create => generic::delta::create::<$vector>, (
                record: *mut u8, record_bytes_max: usize, first: *const u8, second: *const u8, bytes: usize
            ) -> $crate::Delta;
            copy_strided => generic::strided::copy_strided::<$vector>,
                (target: *mut u8, source: *const u8, rows: usize, row_bytes: usize, source_stride: i64);
            copy_strided_nt => generic::strided::copy_strided_nt::<$vector>, (
                target: *mut u8, source: *const u8, rows: usize, row_bytes: usize, source_stride: i64,
                shape: $crate::Shape
            );
        );

        /// Table of this level.
        pub(crate) static KERNELS: $crate::Kernels = $crate::Kernels {
            isa: $isa,
            copy,
            copy_nt: |target, source, bytes| {
                let shape = $crate::shape($crate::Routine::Copy, bytes, $isa);
                // SAFETY: both buffers hold `bytes` bytes and are apart, as the caller guarantees.
                unsafe { copy_nt(target, source, bytes, shape) }
            },
            move_overlapping,
            fill,
            fill_nt: |target, pattern, bytes| {
                let shape = $crate::shape($crate::Routine::Fill, bytes, $isa);
                // SAFETY: the target is writable for `bytes`, as the caller guarantees.
                unsafe { fill_nt(target, pattern, bytes, shape) }
            },
            compare,
            compare_pattern,
            crc32c,
            copy_crc32c,
            copy_crc32c_nt: |target, source, bytes, seed| {
                let shape = $crate::shape($crate::Routine::CopyCrc, bytes, $isa);
                // SAFETY: both buffers hold `bytes` bytes and are apart, as the caller guarantees.
                unsafe { copy_crc32c_nt(target, source, bytes, seed, shape) }
            },
            dualcast,
            dualcast_nt: |target1, target2, source, bytes| {
                let shape = $crate::shape($crate::Routine::Dualcast, bytes, $isa);
                // SAFETY: all three buffers hold `bytes` bytes, and the targets are apart, as the caller guarantees.
                unsafe { dualcast_nt(target1, target2, source, bytes, shape) }
            },
            delta_create,
            delta_apply: $crate::arch::all::delta::apply,
            copy_strided,
            copy_strided_nt: |target, source, rows, row_bytes, source_stride| {
                let shape = $crate::shape($crate::Routine::Strided, rows.wrapping_mul(row_bytes), $isa);
                // SAFETY: every row is readable, and the target holds `rows * row_bytes` bytes, as the caller guarantees.
                unsafe { copy_strided_nt(target, source, rows, row_bytes, source_stride, shape) }
            },
            shaped: $crate::Shaped {
                copy: copy_nt,
                fill: fill_nt,
                copy_crc32c: copy_crc32c_nt,
                dualcast: dualcast_nt,
                copy_strided: copy_strided_nt,
            },
        };
    };
    (@functions $features:literal;
        $($name:ident => $routine:path, ($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    ) => {
        $(
            #[target_feature(enable = $features)]
            unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller guarantees the conditions of the table's field, which are those of the routine. The target
                // features are enabled here, and the table is only given out if the CPU has them.
                unsafe { $routine($($argument),*) }
            }
        )*
    };
}
