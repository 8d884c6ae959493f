// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Learns the shapes of routines that calibration does not measure: they start from copy's, and learn from the costs of
//! calls.
//!
//! - **Flow** `pick` ─▶ a piece of the call is done in a shape on trial, the rest in the shape in use ─▶ `learn` both
//!   costs ─▶ the next `pick` stores a shape that is clearly better in the kernels' table, which every caller of the
//!   routine reads
//! - **Limits** one call in [`Rules::try_every`] tries a shape, on at most [`PIECE_BYTES`] of its bytes, so
//!   that even a shape ten times slower costs a large call little
//! - **Order** one lock per routine and size class; a call that finds it locked neither tries nor learns
//! - **Not here** copies: calibration measures those

use super::{Bandit, Rules};
use memlift_kernels::{Isa, Routine, SHAPE_CLASSES, Shape, set_shape, shape, shape_class};
use std::sync::Mutex;

/// Most bytes of a call on which a shape is tried.
pub const PIECE_BYTES: usize = 1 << 20;
/// Number of shapes among which a routine chooses.
const WAYS: usize = 8;

/// Search for the best shape of one routine and size class.
#[derive(Debug)]
struct Search {
    shapes: [Shape; WAYS],
    /// False for a shape that is another one's repetition.
    allowed: [bool; WAYS],
    bandit: Bandit<WAYS>,
}

impl Search {
    /// Starts from the shape in use; similar shapes and a plain loop are tried.
    fn new(start: Shape, isa: Isa) -> Search {
        let vector_bytes = Shape::built_in(isa).vector_bytes();
        let shapes = [
            start,
            Shape::walk(1, vector_bytes, 0),
            Shape::walk(1, vector_bytes, 512),
            Shape::walk(1, vector_bytes, 4096),
            Shape::walk(1, vector_bytes / 2, 512),
            Shape::walk(2, vector_bytes, 4096),
            Shape::walk(4, vector_bytes, 512),
            Shape::walk(4, vector_bytes, 4096),
        ];
        let allowed = std::array::from_fn(|way| !shapes[..way].contains(&shapes[way]));
        Search { shapes, allowed, bandit: Bandit::starting_with(0, &Rules::CALLS) }
    }

    fn in_use(&self) -> Shape {
        self.shapes[self.bandit.in_use().unwrap_or(0)]
    }
}

/// Shapes for one call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Picked {
    /// The shape in use.
    pub shape: Shape,
    /// A shape to try on a piece of the call.
    pub tried: Option<Shape>,
}

/// The searches for all routines and size classes of an engine.
#[derive(Debug)]
pub struct Refine {
    isa: Isa,
    searches: Box<[Mutex<Option<Search>>]>,
}

impl Refine {
    /// Makes searches that have learned nothing.
    pub fn new(isa: Isa) -> Refine {
        let places = Routine::ALL.len() * SHAPE_CLASSES;
        Refine { isa, searches: (0..places).map(|_| Mutex::new(None)).collect() }
    }

    fn search(&self, routine: Routine, bytes: usize) -> &Mutex<Option<Search>> {
        &self.searches[routine as usize * SHAPE_CLASSES + shape_class(bytes)]
    }

    /// Forgets everything, because the initial shapes have changed.
    pub fn reset(&self) {
        for search in &self.searches {
            *search.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        }
    }

    /// Returns the shape for a call of `bytes` and, in some calls, one to try.
    pub fn pick(&self, routine: Routine, bytes: usize) -> Picked {
        let in_use = shape(routine, bytes, self.isa);
        let Ok(mut search) = self.search(routine, bytes).try_lock() else {
            return Picked { shape: in_use, tried: None };
        };
        let search = search.get_or_insert_with(|| Search::new(in_use, self.isa));
        let before = search.in_use();
        let pick = search.bandit.pick_of(&search.allowed);
        let shape = search.in_use();
        if shape != before {
            set_shape(routine, shape_class(bytes), Some(shape));
        }
        Picked { shape, tried: pick.explores().then(|| search.shapes[pick.way]) }
    }

    /// Adds the measured cost of a shape, nanoseconds per byte.
    pub fn learn(&self, routine: Routine, bytes: usize, used: Shape, ns_per_byte: f64) {
        let Ok(search) = self.search(routine, bytes).try_lock() else { return };
        let Some(search) = search.as_ref() else { return };
        let Some(way) = search.shapes.iter().position(|shape| *shape == used) else { return };
        search.bandit.learn(way, ns_per_byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays calls of one size in a world where `best` costs a fifth of every other shape; returns the share of all
    /// bytes that was spent on trials.
    fn play(refine: &Refine, routine: Routine, bytes: usize, best: Shape, calls: usize) -> f64 {
        let mut spent = 0;
        for _ in 0..calls {
            let picked = refine.pick(routine, bytes);
            let cost = |shape| if shape == best { 0.1 } else { 0.5 };
            if let Some(tried) = picked.tried {
                spent += PIECE_BYTES.min(bytes);
                refine.learn(routine, bytes, tried, cost(tried));
            }
            refine.learn(routine, bytes, picked.shape, cost(picked.shape));
        }
        spent as f64 / (bytes * calls) as f64
    }

    /// A single test, because the shapes in use are global to the process.
    #[test]
    fn a_routine_finds_its_best_shape_within_the_budget_and_forgets_it() {
        let isa = Isa::Avx2;
        let refine = Refine::new(isa);
        let (bytes, best) = (32 << 20, Shape::walk(4, 32, 4096));
        assert_eq!(refine.pick(Routine::Dualcast, bytes).shape, Shape::built_in(isa));
        let spent = play(&refine, Routine::Dualcast, bytes, best, 2000);
        assert_eq!(shape(Routine::Dualcast, bytes, isa), best, "the kernels were told");
        assert_eq!(refine.pick(Routine::Dualcast, bytes).shape, best);
        assert!(spent <= 1.0 / 16.0 / 32.0, "{spent}");
        assert_eq!(shape(Routine::Fill, bytes, isa), Shape::built_in(isa), "another routine");
        assert_eq!(shape(Routine::Dualcast, bytes / 8, isa), Shape::built_in(isa), "another class");

        set_shape(Routine::Dualcast, shape_class(bytes), Some(Shape::walk(2, 32, 0)));
        refine.reset();
        assert_eq!(refine.pick(Routine::Dualcast, bytes).shape, Shape::walk(2, 32, 0));
        set_shape(Routine::Dualcast, shape_class(bytes), None);
    }
}
