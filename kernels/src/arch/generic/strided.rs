// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies rows at a stride into a packed target.
//!
//! - **Flow** temporal: one copy per row. Non-temporal: the packed target is divided into lines, not into rows. Long rows are streamed
//!   directly; short ones (and the ends of long ones) are first gathered in a page on the stack, so that every line of the target is
//!   written once and whole.
//! - **Owner** `Rows` stores the current position of the gathering; it never points outside a row.

use super::copy::copy;
use super::stream::{LANE_BYTES, LINE_BYTES, STREAM_FROM, head_bytes, lines};
use crate::shape::Shape;
use crate::vector::Vector;
use core::mem::MaybeUninit;

/// See [`Kernels::copy_strided`](crate::Kernels::copy_strided).
#[inline(always)]
pub(crate) unsafe fn copy_strided<V: Vector>(
    target: *mut u8,
    source: *const u8,
    rows: usize,
    row_bytes: usize,
    source_stride: i64,
) {
    let (mut target, mut source) = (target, source);
    let mut row = 0;
    while row < rows {
        // SAFETY: the caller guarantees every row of the source, and `rows * row_bytes` writable bytes.
        unsafe { copy::<V>(target, source, row_bytes) };
        target = target.wrapping_add(row_bytes);
        source = source.wrapping_offset(source_stride as isize);
        row += 1;
    }
}

/// Position in the rows: `left_bytes` of the row at `row` are still to be read.
struct Rows {
    row: *const u8,
    row_bytes: usize,
    left_bytes: usize,
    stride: isize,
}

impl Rows {
    /// Returns the address of the next byte.
    #[inline(always)]
    fn source(&self) -> *const u8 {
        self.row.wrapping_add(self.row_bytes - self.left_bytes)
    }

    /// Advances by bytes of the current row.
    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.left_bytes -= bytes;
        if self.left_bytes == 0 {
            self.row = self.row.wrapping_offset(self.stride);
            self.left_bytes = self.row_bytes;
        }
    }

    /// Copies the next `bytes` bytes, across rows.
    #[inline(always)]
    unsafe fn gather<V: Vector>(&mut self, target: *mut u8, bytes: usize) {
        let mut done = 0;
        while done < bytes {
            let piece_bytes = self.left_bytes.min(bytes - done);
            // SAFETY: the piece lies within the current row, and within `bytes` of the target.
            unsafe { copy::<V>(target.add(done), self.source(), piece_bytes) };
            self.advance(piece_bytes);
            done += piece_bytes;
        }
    }
}

/// One line of a page of gathered bytes.
#[repr(C, align(64))]
struct Page(MaybeUninit<[u8; LANE_BYTES]>);

/// See [`Shaped::copy_strided`](crate::Shaped::copy_strided).
#[inline(always)]
pub(crate) unsafe fn copy_strided_nt<V: Vector>(
    target: *mut u8,
    source: *const u8,
    rows: usize,
    row_bytes: usize,
    source_stride: i64,
    shape: Shape,
) {
    let bytes = rows.wrapping_mul(row_bytes);
    // SAFETY: the caller guarantees every row of the source, and `bytes` writable bytes. `Rows` stays within rows, and each piece
    // within the rest of the target; streamed pieces are whole lines at aligned addresses.
    unsafe {
        if bytes < STREAM_FROM {
            copy_strided::<V>(target, source, rows, row_bytes, source_stride);
            V::fence();
            return;
        }
        let mut rows = Rows { row: source, row_bytes, left_bytes: row_bytes, stride: source_stride as isize };
        let mut page = Page(MaybeUninit::uninit());
        let page = page.0.as_mut_ptr().cast::<u8>();
        let mut done = head_bytes(target);
        rows.gather::<V>(target, done);
        while bytes - done >= LINE_BYTES {
            if rows.left_bytes >= LANE_BYTES {
                let streamed = lines::<V>(target.add(done), rows.source(), rows.left_bytes, shape);
                rows.advance(streamed);
                done += streamed;
            } else {
                let piece_bytes = (bytes - done).min(LANE_BYTES) / LINE_BYTES * LINE_BYTES;
                rows.gather::<V>(page, piece_bytes);
                done +=
                    lines::<V>(target.add(done), page, piece_bytes, Shape::walk(1, shape.vector_bytes(), 0));
            }
        }
        rows.gather::<V>(target.add(done), bytes - done);
        V::fence();
    }
}
