// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies, moves, fills and dualcasts of every level equal the scalar level's, at every size and misalignment of the
//! sweep and around the thresholds of long routines; guard bytes stay as they are.
//!
//! Not here reads beyond a buffer: see `guard_pages.rs`.

mod memory;

use memlift_kernels::{CopyFn, DualcastFn, FillFn, repeat_8, set_rep_movsb_from};
use memory::{Bytes, LONG_BYTES, Random, SWEEP_BYTES, Target, long, scalar, sweep, vector_levels};

const LONGEST: usize = LONG_BYTES[LONG_BYTES.len() - 1];

fn copies(name: &str, copy: CopyFn, cases: impl Fn(&mut dyn FnMut(usize, usize, usize))) {
    let source = Bytes::random(LONGEST + 64, 1);
    let mut target = Target::new(LONGEST);
    cases(&mut |bytes, from, to| {
        // SAFETY: both buffers have room for the longest case at every misalignment.
        unsafe { copy(target.at(to), source.at(from), bytes) };
        target.expect(to, &source.slice()[from..from + bytes], || {
            format!("{name}: {bytes} bytes from +{from} to +{to}")
        });
    });
}

fn all_cases(each: &mut dyn FnMut(usize, usize, usize)) {
    sweep(&mut *each);
    long(&mut *each);
}

#[test]
fn scalar_copies() {
    copies("scalar copy", scalar().copy, all_cases);
    copies("scalar move", scalar().move_overlapping, |each| long(each));
}

#[test]
fn copy_equals_scalar() {
    for kernels in vector_levels() {
        for from in [usize::MAX, 600] {
            set_rep_movsb_from(from);
            copies(&format!("{} copy, rep from {from}", kernels.isa), kernels.copy, all_cases);
        }
    }
}

#[test]
fn copy_nt_equals_scalar() {
    for kernels in vector_levels() {
        copies(&format!("{} copy_nt", kernels.isa), kernels.copy_nt, all_cases);
    }
}

#[test]
fn move_without_overlap_equals_scalar() {
    for kernels in vector_levels() {
        copies(&format!("{} move", kernels.isa), kernels.move_overlapping, all_cases);
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

fn fills(name: &str, fill: FillFn, pattern: u128) {
    let mut expected = vec![0; LONGEST];
    for (i, byte) in expected.iter_mut().enumerate() {
        *byte = (pattern >> (i % 16 * 8)) as u8;
    }
    let mut target = Target::new(LONGEST);
    for bytes in (0..=SWEEP_BYTES).chain(LONG_BYTES) {
        for to in 0..64 {
            // SAFETY: the target has room for the longest case at every misalignment.
            unsafe { fill(target.at(to), pattern, bytes) };
            target.expect(to, &expected[..bytes], || format!("{name}: {bytes} bytes at +{to}"));
        }
    }
}

#[test]
fn scalar_fills() {
    fills("scalar fill", scalar().fill, PATTERN);
}

#[test]
fn fill_equals_scalar() {
    for kernels in vector_levels() {
        for pattern in [PATTERN, repeat_8(0x0102_0304_0506_0708)] {
            fills(&format!("{} fill", kernels.isa), kernels.fill, pattern);
            fills(&format!("{} fill_nt", kernels.isa), kernels.fill_nt, pattern);
        }
    }
}

fn dualcasts(name: &str, dualcast: DualcastFn) {
    let source = Bytes::random(LONGEST + 64, 4);
    let mut target1 = Target::new(LONGEST);
    let mut target2 = Target::new(LONGEST);
    all_cases(&mut |bytes, from, to| {
        // Both targets alike in half of the cases, so that the non-temporal path runs.
        let to2 = if from % 2 == 0 { to } else { (to + from) % 64 };
        // SAFETY: all three buffers have room for the longest case at every misalignment.
        unsafe { dualcast(target1.at(to), target2.at(to2), source.at(from), bytes) };
        let expected = &source.slice()[from..from + bytes];
        target1.expect(to, expected, || format!("{name}: {bytes} bytes from +{from} to first +{to}"));
        target2.expect(to2, expected, || format!("{name}: {bytes} bytes from +{from} to second +{to2}"));
    });
}

#[test]
fn scalar_dualcasts() {
    dualcasts("scalar dualcast", scalar().dualcast);
}

#[test]
fn dualcast_equals_scalar() {
    for kernels in vector_levels() {
        dualcasts(&format!("{} dualcast", kernels.isa), kernels.dualcast);
        dualcasts(&format!("{} dualcast_nt", kernels.isa), kernels.dualcast_nt);
    }
}

#[test]
fn strided_copies_equal_row_by_row() {
    const SPAN: usize = 1 << 18;
    let source = Bytes::random(2 * SPAN, 5);
    let mut target = Target::new(SPAN);
    let mut random = Random(6);
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
        }
    }
}
