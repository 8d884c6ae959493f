// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No routine touches a byte outside its buffers: every buffer ends right before, or starts right after, a page that
//! cannot be accessed, so that one byte too many ends the test with a fault.

use crate::memory::SWEEP_BYTES;
use memlift_kernels::{Isa, Kernels, Shape, cache_flush, for_isa, set_rep_movsb_from};

const PAGE_BYTES: usize = 4096;
/// Between the guard pages: the longest case.
const ROOM_BYTES: usize = 64 * PAGE_BYTES;

/// Memory between two pages that cannot be accessed.
struct Fenced(*mut u8);

impl Fenced {
    fn new() -> Fenced {
        // SAFETY: a new anonymous mapping touches no other memory; the part opened lies within it.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let bytes = ROOM_BYTES + 2 * PAGE_BYTES;
            let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let room = start.cast::<u8>().add(PAGE_BYTES);
            let opened = libc::mprotect(room.cast(), ROOM_BYTES, libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(opened, 0);
            Fenced(room)
        }
    }

    /// `bytes` bytes that start right after a closed page, or end right before one.
    fn buffer(&self, bytes: usize, at_end: bool) -> *mut u8 {
        self.0.wrapping_add(if at_end { ROOM_BYTES - bytes } else { 0 })
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; nobody uses it any more.
        unsafe { libc::munmap(self.0.sub(PAGE_BYTES).cast(), ROOM_BYTES + 2 * PAGE_BYTES) };
    }
}

fn run_all(kernels: &Kernels, rooms: &[Fenced; 3], bytes: usize, source_at_end: bool, target_at_end: bool) {
    let source = rooms[0].buffer(bytes, source_at_end);
    let target = rooms[1].buffer(bytes, target_at_end);
    let target2 = rooms[2].buffer(bytes, target_at_end);
    // SAFETY: each buffer lies in a room of its own, and all are `bytes` long.
    unsafe {
        (kernels.fill)(source, 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10, bytes);
        (kernels.copy)(target, source, bytes);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.fill_nt)(target, 0, bytes);
        assert_eq!((kernels.compare_pattern)(target, 0, bytes), None);
        (kernels.copy_nt)(target, source, bytes);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.move_overlapping)(target, source, bytes);
        if bytes > 1 {
            (kernels.move_overlapping)(target, target.add(1), bytes - 1);
            (kernels.move_overlapping)(target.add(1), target, bytes - 1);
        }
        let value = (kernels.crc32c)(source, bytes, 0);
        assert_eq!((kernels.copy_crc32c)(target, source, bytes, 0), value);
        assert_eq!((kernels.copy_crc32c_nt)(target, source, bytes, 0), value);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.dualcast)(target, target2, source, bytes);
        (kernels.dualcast_nt)(target, target2, source, bytes);
        assert_eq!((kernels.compare)(target, target2, bytes), None);
        let rows = if bytes.is_multiple_of(3) { 3 } else { 1 };
        let row_bytes = bytes / rows;
        (kernels.copy_strided)(target, source, rows, row_bytes, row_bytes as i64);
        (kernels.copy_strided_nt)(target, source, rows, row_bytes, row_bytes as i64);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.fill)(target, 0, bytes);
        let record_bytes = bytes / 8 * 10;
        let record = rooms[2].buffer(record_bytes.min(ROOM_BYTES), target_at_end);
        let _ = (kernels.delta_create)(record, record_bytes.min(ROOM_BYTES), target, source, bytes);
        if record_bytes <= ROOM_BYTES && bytes / 8 <= 1 << 16 {
            assert_eq!((kernels.delta_apply)(target, bytes, record, record_bytes), Ok(()));
            assert_eq!((kernels.compare)(source, target, bytes / 8 * 8), None);
        }
        cache_flush(source, bytes);
    }
}

#[test]
fn no_level_leaves_its_buffers() {
    let rooms = [Fenced::new(), Fenced::new(), Fenced::new()];
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        for from in [usize::MAX, 600] {
            set_rep_movsb_from(from);
            let long = [8191, 12345, 16384, 16447, 32768, 33333, 65535, 65536, 131_072, 200_001, ROOM_BYTES];
            for bytes in (0..=SWEEP_BYTES).chain(long) {
                for at_end in 0..4 {
                    run_all(kernels, &rooms, bytes, at_end & 1 != 0, at_end & 2 != 0);
                }
            }
        }
    }
}

/// Runs every routine past the cache in one shape, with each buffer against a closed page.
fn run_shape(kernels: &Kernels, rooms: &[Fenced; 3], bytes: usize, shape: Shape, at_end: usize) {
    let source = rooms[0].buffer(bytes, at_end & 1 != 0);
    let target = rooms[1].buffer(bytes, at_end & 2 != 0);
    let target2 = rooms[2].buffer(bytes, at_end & 2 != 0);
    let shaped = &kernels.shaped;
    // SAFETY: each buffer lies in a room of its own, and all are `bytes` long.
    unsafe {
        (shaped.fill)(source, 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10, bytes, shape);
        (shaped.copy)(target, source, bytes, shape);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.fill)(target, 0, bytes);
        let value = (kernels.crc32c)(source, bytes, 0);
        assert_eq!((shaped.copy_crc32c)(target, source, bytes, 0, shape), value);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        (kernels.fill)(target, 0, bytes);
        (shaped.dualcast)(target, target2, source, bytes, shape);
        assert_eq!((kernels.compare)(source, target, bytes), None);
        assert_eq!((kernels.compare)(target, target2, bytes), None);
        (kernels.fill)(target, 0, bytes);
        let rows = if bytes.is_multiple_of(3) { 3 } else { 1 };
        (shaped.copy_strided)(target, source, rows, bytes / rows, (bytes / rows) as i64, shape);
        assert_eq!((kernels.compare)(source, target, bytes), None);
    }
}

#[test]
fn no_shape_leaves_its_buffers() {
    let rooms = [Fenced::new(), Fenced::new(), Fenced::new()];
    let pages = |count: usize| count * PAGE_BYTES;
    let sizes: Vec<usize> = (500..=640)
        .chain([1, 2, 3, 4, 5, 8, 9, 16].into_iter().flat_map(|count| {
            [
                pages(count) - 65,
                pages(count) - 64,
                pages(count) - 1,
                pages(count),
                pages(count) + 1,
                pages(count) + 64,
            ]
        }))
        .chain([12345, 33333, 200_001, ROOM_BYTES])
        .collect();
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        for shape in Shape::candidates(isa) {
            for &bytes in &sizes {
                for at_end in 0..4 {
                    run_shape(kernels, &rooms, bytes, shape, at_end);
                }
            }
        }
    }
}
