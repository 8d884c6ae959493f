// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies, moves, fills and dualcasts of every level equal the scalar level's, at every size and misalignment of the
//! sweep and around the thresholds of long routines; guard bytes stay as they are.
//!
//! - **Not here** reads beyond a buffer: see `routines/guard_pages.rs`.

use crate::memory::{Bytes, LONG_BYTES, Random, SWEEP_BYTES, Target, long, scalar, sweep, vector_levels};
use memlift_kernels::{
    CopyFn, DualcastFn, FillFn, Isa, Routine, Shape, repeat_8, set_rep_movsb_from, set_shape, shape,
    shape_class,
};

const LONGEST: usize = LONG_BYTES[LONG_BYTES.len() - 1];

fn copies(
    name: &str,
    copy: impl Fn(*mut u8, *const u8, usize),
    cases: impl Fn(&mut dyn FnMut(usize, usize, usize)),
) {
    let source = Bytes::random(LONGEST + 64, 1);
    let mut target = Target::new(LONGEST);
    cases(&mut |bytes, from, to| {
        copy(target.at(to), source.at(from), bytes);
        target.expect(to, &source.slice()[from..from + bytes], || {
            format!("{name}: {bytes} bytes from +{from} to +{to}")
        });
    });
}

/// A routine that may be given the buffers of [`copies`], which have room for the longest case at every misalignment.
fn of(copy: CopyFn) -> impl Fn(*mut u8, *const u8, usize) {
    // SAFETY: `copies` gives buffers of `bytes` that are apart.
    move |target, source, bytes| unsafe { copy(target, source, bytes) }
}

fn all_cases(each: &mut dyn FnMut(usize, usize, usize)) {
    sweep(&mut *each);
    long(&mut *each);
}

#[test]
fn scalar_copies() {
    copies("scalar copy", of(scalar().copy), all_cases);
    copies("scalar move", of(scalar().move_overlapping), |each| long(each));
}

#[test]
fn copy_equals_scalar() {
    for kernels in vector_levels() {
        for from in [usize::MAX, 600] {
            set_rep_movsb_from(from);
            copies(&format!("{} copy, rep from {from}", kernels.isa), of(kernels.copy), all_cases);
        }
    }
}

#[test]
fn copy_nt_equals_scalar() {
    for kernels in vector_levels() {
        copies(&format!("{} copy_nt", kernels.isa), of(kernels.copy_nt), all_cases);
    }
}

/// Sizes around blocks of one, two and four pages, and what is left after them: every tail shorter than two lines, and
/// every misalignment of the target within a line.
fn around_blocks(each: &mut dyn FnMut(usize, usize, usize)) {
    for blocks in [0usize, 1, 2, 3, 4, 5, 8, 9, 12] {
        for tail in (0..=130).chain([511, 512, 513, 4000]) {
            each(blocks * 4096 + tail, tail % 64, (tail * 7) % 64);
        }
    }
    for offset in 0..64 {
        each(9 * 4096 + 777, offset, 0);
        each(9 * 4096 + 777, 0, offset);
        each(9 * 4096 + 777, 63 - offset, offset);
    }
}

fn shaped_cases(each: &mut dyn FnMut(usize, usize, usize)) {
    around_blocks(&mut *each);
    long(&mut *each);
}

/// Every shape a level may be given, also those it has no vectors for.
fn shapes() -> Vec<Shape> {
    let mut all: Vec<Shape> = Isa::ALL.into_iter().flat_map(Shape::candidates).collect();
    all.extend([(1, 64), (2, 32), (4, 16), (4, 64)].map(|(lanes, vector)| Shape::walk(lanes, vector, 64)));
    all.sort_by_key(Shape::to_string);
    all.dedup();
    all
}

#[test]
fn copy_equals_scalar_in_every_shape() {
    for kernels in vector_levels().into_iter().chain([scalar()]) {
        for shape in shapes() {
            // SAFETY: `copies` gives buffers of `bytes` that are apart.
            let copy = |target, source, bytes| unsafe { (kernels.shaped.copy)(target, source, bytes, shape) };
            copies(&format!("{} copy {shape}", kernels.isa), copy, shaped_cases);
        }
    }
}

#[test]
fn copy_with_crc_equals_scalar_in_every_shape() {
    for kernels in vector_levels().into_iter().chain([scalar()]) {
        for shape in shapes() {
            // SAFETY: `copies` gives buffers of `bytes` that are apart.
            let copy = |target, source, bytes| unsafe {
                let value = (kernels.shaped.copy_crc32c)(target, source, bytes, 0x1234_5678, shape);
                let expected = (scalar().crc32c)(source, bytes, 0x1234_5678);
                assert_eq!(value, expected, "{} {shape}: {bytes} bytes", kernels.isa);
            };
            copies(&format!("{} copy_crc {shape}", kernels.isa), copy, shaped_cases);
        }
    }
}

#[test]
fn a_routine_uses_the_shape_that_was_set_for_its_size() {
    let bytes = 3 << 16;
    let other = Shape::walk(2, 32, 128);
    for routine in Routine::ALL {
        for isa in Isa::ALL {
            assert_eq!(shape(routine, bytes, isa), Shape::built_in(isa));
        }
        set_shape(routine, shape_class(bytes), Some(other));
        assert_eq!(shape(routine, bytes, Isa::Avx2), other);
        assert_eq!(shape(routine, bytes / 2, Isa::Avx2), Shape::built_in(Isa::Avx2), "another class");
        set_shape(routine, usize::MAX, Some(other));
        set_shape(routine, shape_class(bytes), None);
        assert_eq!(shape(routine, bytes, Isa::Avx2), Shape::built_in(Isa::Avx2));
    }
}

#[test]
fn move_without_overlap_equals_scalar() {
    for kernels in vector_levels() {
        copies(&format!("{} move", kernels.isa), of(kernels.move_overlapping), all_cases);
    }
}

#[test]
fn move_with_overlap_equals_scalar() {
    const MARGIN: usize = 4500;
    let near = (1..=70).chain([95, 96, 97, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 2048, 4096]);
    let distances: Vec<isize> = near.flat_map(|d| [d, -d]).chain([0]).collect();
    let original = Bytes::random(2 * MARGIN + (1 << 17), 2);
    let mut expected = Bytes::random(original.slice().len(), 2);
    let mut moved = Bytes::random(original.slice().len(), 2);
    for kernels in vector_levels() {
        let mut random = Random(3);
        let sizes = (0..=600).chain((601..=SWEEP_BYTES).step_by(7)).chain([4096, 4097, 65537, 131_000]);
        for bytes in sizes {
            for distance in &distances {
                let from = MARGIN + random.below(64);
                let to = from.checked_add_signed(*distance).expect("within the margin");
                // SAFETY: source and target lie within the buffers, whose margins are wider than any distance.
                unsafe {
                    let buffer = expected.slice_mut().as_mut_ptr();
                    (scalar().move_overlapping)(buffer.add(to), buffer.add(from), bytes);
                    let buffer = moved.slice_mut().as_mut_ptr();
                    (kernels.move_overlapping)(buffer.add(to), buffer.add(from), bytes);
                }
                let around = from.min(to) - 128..from.max(to) + bytes + 128;
                assert!(
                    expected.slice()[around.clone()] == moved.slice()[around.clone()],
                    "{} move of {bytes} bytes by {distance} from +{}",
                    kernels.isa,
                    from % 64
                );
                expected.slice_mut()[around.clone()].copy_from_slice(&original.slice()[around.clone()]);
                moved.slice_mut()[around.clone()].copy_from_slice(&original.slice()[around]);
            }
        }
    }
}

const PATTERN: u128 = 0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0;

fn fills(name: &str, fill: impl Fn(*mut u8, u128, usize), pattern: u128, sizes: impl Iterator<Item = usize>) {
    let mut expected = vec![0; LONGEST];
    for (i, byte) in expected.iter_mut().enumerate() {
        *byte = (pattern >> (i % 16 * 8)) as u8;
    }
    let mut target = Target::new(LONGEST);
    for bytes in sizes {
        for to in 0..64 {
            fill(target.at(to), pattern, bytes);
            target.expect(to, &expected[..bytes], || format!("{name}: {bytes} bytes at +{to}"));
        }
    }
}

/// A routine that may be given the target of [`fills`], which has room for the longest case at every misalignment.
fn of_fill(fill: FillFn) -> impl Fn(*mut u8, u128, usize) {
    // SAFETY: `fills` gives a target of `bytes`.
    move |target, pattern, bytes| unsafe { fill(target, pattern, bytes) }
}

fn all_sizes() -> impl Iterator<Item = usize> {
    (0..=SWEEP_BYTES).chain(LONG_BYTES)
}

#[test]
fn scalar_fills() {
    fills("scalar fill", of_fill(scalar().fill), PATTERN, all_sizes());
}

#[test]
fn fill_equals_scalar_in_every_shape() {
    let sizes = [512, 4096 + 63, 8192, 12288 + 1, 16384 - 1, 16384 + 64, 49152 + 777];
    for kernels in vector_levels().into_iter().chain([scalar()]) {
        for shape in shapes() {
            // SAFETY: `fills` gives a target of `bytes`.
            let fill =
                |target, pattern, bytes| unsafe { (kernels.shaped.fill)(target, pattern, bytes, shape) };
            fills(&format!("{} fill {shape}", kernels.isa), fill, PATTERN, sizes.into_iter());
        }
    }
}

#[test]
fn fill_equals_scalar() {
    for kernels in vector_levels() {
        for pattern in [PATTERN, repeat_8(0x0102_0304_0506_0708)] {
            fills(&format!("{} fill", kernels.isa), of_fill(kernels.fill), pattern, all_sizes());
            fills(&format!("{} fill_nt", kernels.isa), of_fill(kernels.fill_nt), pattern, all_sizes());
        }
    }
}

fn dualcasts(
    name: &str,
    dualcast: impl Fn(*mut u8, *mut u8, *const u8, usize),
    cases: impl Fn(&mut dyn FnMut(usize, usize, usize)),
) {
    let source = Bytes::random(LONGEST + 64, 4);
    let mut target1 = Target::new(LONGEST);
    let mut target2 = Target::new(LONGEST);
    cases(&mut |bytes, from, to| {
        // Both targets alike in half of the cases, so that the non-temporal path runs.
        let to2 = if from % 2 == 0 { to } else { (to + from) % 64 };
        dualcast(target1.at(to), target2.at(to2), source.at(from), bytes);
        let expected = &source.slice()[from..from + bytes];
        target1.expect(to, expected, || format!("{name}: {bytes} bytes from +{from} to first +{to}"));
        target2.expect(to2, expected, || format!("{name}: {bytes} bytes from +{from} to second +{to2}"));
    });
}

/// A routine that may be given the buffers of [`dualcasts`], which have room for the longest case at every misalignment.
fn of_dualcast(dualcast: DualcastFn) -> impl Fn(*mut u8, *mut u8, *const u8, usize) {
    // SAFETY: `dualcasts` gives buffers of `bytes` that are apart.
    move |target1, target2, source, bytes| unsafe { dualcast(target1, target2, source, bytes) }
}

#[test]
fn scalar_dualcasts() {
    dualcasts("scalar dualcast", of_dualcast(scalar().dualcast), all_cases);
}

#[test]
fn dualcast_equals_scalar_in_every_shape() {
    for kernels in vector_levels().into_iter().chain([scalar()]) {
        for shape in shapes() {
            // SAFETY: `dualcasts` gives buffers of `bytes` that are apart.
            let dualcast = |target1, target2, source, bytes| unsafe {
                (kernels.shaped.dualcast)(target1, target2, source, bytes, shape);
            };
            dualcasts(&format!("{} dualcast {shape}", kernels.isa), dualcast, shaped_cases);
        }
    }
}

#[test]
fn dualcast_equals_scalar() {
    for kernels in vector_levels() {
        dualcasts(&format!("{} dualcast", kernels.isa), of_dualcast(kernels.dualcast), all_cases);
        dualcasts(&format!("{} dualcast_nt", kernels.isa), of_dualcast(kernels.dualcast_nt), all_cases);
    }
}

#[test]
fn strided_copies_equal_row_by_row() {
    const SPAN: usize = 1 << 18;
    let source = Bytes::random(2 * SPAN, 5);
    let mut target = Target::new(SPAN);
    let mut random = Random(6);
    let walks = shapes();
    let mut shapes: Vec<(usize, usize, i64)> =
        vec![(0, 8, 8), (8, 0, 8), (1, 1, 0), (100, 120, 128), (10, 4096, 5000)];
    for _ in 0..3000 {
        let row_bytes = match random.below(4) {
            0 => random.below(17),
            1 => random.below(300),
            2 => random.below(6000),
            _ => 4096 + random.below(30_000),
        };
        let rows = random.below(40).min((SPAN / 2) / row_bytes.max(1));
        let stride_max = (SPAN / rows.max(1)) as i64;
        let stride = random.below(2 * stride_max as usize) as i64 - stride_max;
        shapes.push((rows, row_bytes, stride));
    }
    for (rows, row_bytes, stride) in shapes {
        let (from, to) = (SPAN - 64 * 1024 + random.below(64), random.below(64));
        let from = if stride < 0 { from.max((-stride) as usize * rows) } else { from };
        if from as i64 + stride * rows as i64 + row_bytes as i64 > 2 * SPAN as i64 {
            continue;
        }
        let mut expected = Vec::new();
        for row in 0..rows {
            let start = (from as i64 + stride * row as i64) as usize;
            expected.extend_from_slice(&source.slice()[start..start + row_bytes]);
        }
        for kernels in vector_levels().into_iter().chain([scalar()]) {
            for (name, copy) in [("", kernels.copy_strided), ("_nt", kernels.copy_strided_nt)] {
                // SAFETY: the loop above has read every row; the target has room for half of `SPAN`.
                unsafe { copy(target.at(to), source.at(from), rows, row_bytes, stride) };
                target.expect(to, &expected, || {
                    format!("{} strided{name}: {rows} rows of {row_bytes} bytes every {stride}", kernels.isa)
                });
            }
            let shape = walks[random.below(walks.len())];
            // SAFETY: as for the routines before.
            unsafe {
                let (target, source) = (target.at(to), source.at(from));
                (kernels.shaped.copy_strided)(target, source, rows, row_bytes, stride, shape);
            }
            target.expect(to, &expected, || {
                format!("{} strided {shape}: {rows} rows of {row_bytes} bytes every {stride}", kernels.isa)
            });
        }
    }
}
