// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of copies past the cache: measured per size class, stored in the calibration, set in the kernels.
//!
//! - **Flow** every candidate at the middle size ─▶ the best few at all sizes ─▶ [`ShapeFrom`] in the calibration ──
//!   [`apply`] ──▶ the kernels' table, for copies and for all other routines, which start from these shapes (`refine`)
//! - **Rule** the built-in shape stays unless another is faster by [`REPLACE_BELOW`].
//! - **Method** cold windows, one run of each candidate per round, lower quartiles.

use super::arena::{Arena, time};
use super::fit::lower_quartile;
use super::quiet::Watch;
use memlift_kernels::{Isa, Kernels, Routine, SHAPE_CLASSES, Shape, set_shape, shape_class_bytes};
use serde::{Deserialize, Serialize};

/// A shape must take less than this share of the built-in one's time to replace it.
const REPLACE_BELOW: f64 = 0.97;
/// Candidates that are measured at every size.
const FINALISTS: usize = 6;

/// The shape of copies past the cache for sizes from `from_bytes` on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ShapeFrom {
    /// Smallest size for which the shape is meant, bytes.
    pub from_bytes: u64,
    /// Name of the shape, as [`Shape`] writes it.
    pub shape: String,
    /// Measured rate, bytes per nanosecond; 0: not measured.
    pub gb_per_s: f64,
}

/// Measures copies of `kernels` at these sizes, which must ascend and fit into the arena.
pub(super) fn measure(
    kernels: &Kernels,
    arena: &mut Arena,
    watch: &mut Watch,
    sizes: [usize; 3],
) -> Vec<ShapeFrom> {
    let candidates = Shape::candidates(kernels.isa);
    let first = times(kernels, arena, &candidates, sizes[1], 3);
    let built_in = candidates[0];
    let mut ranking: Vec<(f64, Shape)> = first
        .into_iter()
        .zip(candidates)
        .map(|(mut times, shape)| (lower_quartile(&mut times), shape))
        .collect();
    ranking.sort_by(|a, b| a.0.total_cmp(&b.0));
    let best = ranking.into_iter().map(|(_, shape)| shape).filter(|shape| *shape != built_in);
    let finalists: Vec<Shape> = [built_in].into_iter().chain(best.take(FINALISTS)).collect();

    let mut found = Vec::new();
    for (index, bytes) in sizes.into_iter().enumerate() {
        watch.sample();
        let mut measured = times(kernels, arena, &finalists, bytes, 5);
        measured.iter_mut().for_each(|times| watch.point(times));
        let ns: Vec<f64> = measured.iter_mut().map(|times| lower_quartile(times)).collect();
        let best = choose(&ns);
        found.push(ShapeFrom {
            // Each size stands for the sizes around it, down to half way to the size before.
            from_bytes: if index == 0 { 0 } else { (sizes[index - 1] * 2).next_power_of_two() as u64 },
            shape: finalists[best].to_string(),
            gb_per_s: bytes as f64 / ns[best].max(1.0),
        });
    }
    found
}

/// Returns the index of the fastest shape, or 0 (the built-in one) if that is nearly as fast.
fn choose(ns: &[f64]) -> usize {
    let best = (0..ns.len()).min_by(|&a, &b| ns[a].total_cmp(&ns[b])).unwrap_or(0);
    if ns[best] < ns[0] * REPLACE_BELOW { best } else { 0 }
}

fn times(
    kernels: &Kernels,
    arena: &mut Arena,
    shapes: &[Shape],
    bytes: usize,
    rounds: usize,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); shapes.len()];
    for _ in 0..rounds {
        for (shape, times) in shapes.iter().zip(&mut times) {
            let (target, source) = arena.cold(bytes);
            // SAFETY: the window lies in the two buffers of the arena, which are mapped and do not overlap.
            times.push(time(|| unsafe { (kernels.shaped.copy)(target, source, bytes, *shape) }));
        }
    }
    times
}

/// Returns the shape for a size; the built-in one if the list names none.
pub(super) fn at(shapes: &[ShapeFrom], bytes: usize, isa: Isa) -> Shape {
    let shape = shapes.iter().rev().find(|shape| shape.from_bytes <= bytes as u64);
    shape.and_then(|shape| Shape::from_name(&shape.shape)).unwrap_or(Shape::built_in(isa))
}

/// Makes every routine of this process use these shapes. Entries with an unknown name are skipped, and without any
/// shape the built-in ones are used.
pub(super) fn apply(shapes: &[ShapeFrom]) {
    for class in 0..SHAPE_CLASSES {
        let bytes = shape_class_bytes(class) as u64;
        let shape = shapes.iter().rev().find(|shape| shape.from_bytes <= bytes);
        let shape = shape.and_then(|shape| Shape::from_name(&shape.shape));
        Routine::ALL.into_iter().for_each(|routine| set_shape(routine, class, shape));
    }
}

/// Returns true if every entry names a shape and the sizes ascend.
pub(super) fn are_sane(shapes: &[ShapeFrom]) -> bool {
    shapes.iter().all(|shape| Shape::from_name(&shape.shape).is_some() && shape.gb_per_s.is_finite())
        && shapes.windows(2).all(|pair| pair[0].from_bytes < pair[1].from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_shape_must_be_clearly_faster() {
        assert_eq!(choose(&[100.0, 98.0, 120.0]), 0);
        assert_eq!(choose(&[100.0, 90.0, 80.0]), 2);
        assert_eq!(choose(&[100.0]), 0);
    }

    #[test]
    fn names_that_are_none_are_not_sane() {
        let shape = |from_bytes, shape: &str| ShapeFrom { from_bytes, shape: shape.into(), gb_per_s: 1.0 };
        assert!(are_sane(&[shape(0, "1x32+512"), shape(1 << 20, "rep")]));
        assert!(!are_sane(&[shape(0, "3x32+512")]));
        assert!(!are_sane(&[shape(4, "1x32+512"), shape(4, "rep")]));
        assert!(!are_sane(&[ShapeFrom { gb_per_s: f64::NAN, ..shape(0, "rep") }]));
    }
}
