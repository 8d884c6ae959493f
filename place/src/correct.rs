// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Online correction: the ratio of measured to predicted time, as a moving average per size class.
//!
//! - **Layout** one f32 (its bits in an atomic word) per executor × (opcode, cache state) × power of two of the size
//! - **Order** relaxed loads and stores; if two threads learn at the same time one of the two samples is lost
//! - **Limits** a sample counts as at most four times faster or slower, so that one descheduled copy (or a wrong clock)
//!   cannot change decisions for long

use super::model::{OPCODES, pair};
use memlift_ground::observe::{CacheState, Executor};
use memlift_spec::Opcode;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of size classes, which are powers of two.
pub(super) const CLASSES: usize = 40;
const EXECUTORS: usize = 4;
/// Weight of a new sample in the moving average.
const WEIGHT: f32 = 1.0 / 8.0;
const BOUND: f32 = 4.0;

#[derive(Debug)]
pub(super) struct Correction {
    factors: Box<[AtomicU32]>,
}

impl Default for Correction {
    fn default() -> Correction {
        let one = || AtomicU32::new(1f32.to_bits());
        Correction { factors: (0..EXECUTORS * 2 * OPCODES * CLASSES).map(|_| one()).collect() }
    }
}

fn class(bytes: usize) -> usize {
    (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Returns the index of (opcode, cache state, size class) in a table with one entry each.
pub(super) fn slot_of(opcode: Opcode, cache: CacheState, bytes: usize) -> usize {
    pair(opcode, cache) * CLASSES + class(bytes)
}

impl Correction {
    fn word(
        &self,
        executor: Executor,
        opcode: Opcode,
        cache: CacheState,
        bytes: usize,
    ) -> Option<&AtomicU32> {
        let executor = executor as usize;
        let index = executor * 2 * OPCODES * CLASSES + slot_of(opcode, cache, bytes);
        (executor < EXECUTORS).then(|| &self.factors[index])
    }

    /// Returns the factor by which a prediction is multiplied.
    pub fn factor(&self, executor: Executor, opcode: Opcode, cache: CacheState, bytes: usize) -> f64 {
        let word = self.word(executor, opcode, cache, bytes);
        word.map_or(1.0, |word| f64::from(f32::from_bits(word.load(Ordering::Relaxed))))
    }

    /// Adds one sample of measured over predicted time.
    pub fn learn(&self, executor: Executor, opcode: Opcode, cache: CacheState, bytes: usize, ratio: f64) {
        let Some(word) = self.word(executor, opcode, cache, bytes) else { return };
        if !ratio.is_finite() {
            return;
        }
        let old = f32::from_bits(word.load(Ordering::Relaxed));
        // A sample far off the average is mostly due to a preemption, so it moves the average by a bounded
        // step.
        let sample = (ratio as f32).clamp(old / 2.0, old * 2.0);
        let new = (old + (sample - old) * WEIGHT).clamp(1.0 / BOUND, BOUND);
        word.store(new.to_bits(), Ordering::Relaxed);
    }

    pub fn reset(&self) {
        self.factors.iter().for_each(|word| word.store(1f32.to_bits(), Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: (Executor, Opcode, CacheState, usize) =
        (Executor::InlineNt, Opcode::MEMMOVE, CacheState::Cold, 1 << 20);

    #[test]
    fn it_converges_and_stays_bounded() {
        let correction = Correction::default();
        let (executor, opcode, cache, bytes) = PLACE;
        (0..100).for_each(|_| correction.learn(executor, opcode, cache, bytes, 1.5));
        assert!((correction.factor(executor, opcode, cache, bytes) - 1.5).abs() < 0.01);
        (0..1000).for_each(|_| correction.learn(executor, opcode, cache, bytes, 1e9));
        assert_eq!(correction.factor(executor, opcode, cache, bytes), 4.0);
        (0..1000).for_each(|_| correction.learn(executor, opcode, cache, bytes, f64::NAN));
        assert_eq!(correction.factor(executor, opcode, cache, bytes), 4.0);
        assert_eq!(correction.factor(executor, opcode, cache, bytes * 2), 1.0);
    }

    #[test]
    fn one_outlier_hardly_matters() {
        let correction = Correction::default();
        let (executor, opcode, cache, bytes) = PLACE;
        correction.learn(executor, opcode, cache, bytes, 1000.0);
        assert!(correction.factor(executor, opcode, cache, bytes) <= 1.13);
    }
}
