// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reproducible numbers: the model's, drawn as cases need them.

pub(crate) struct Random(memlift_model::event::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(memlift_model::event::Random::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
