// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Edges of an R-MAT graph, from `corpora/rmat.c`, which describes them.
//!
//! - **Order** the same state gives the same edges, however many are drawn at once

unsafe extern "C" {
    fn memlift_corpora_rmat(state: *mut u64, scale: u32, count: u64, edges: *mut u32);
}

/// Edges drawn at once.
const BATCH: usize = 1024;

/// Calls `each` with both ends of `count` edges of a graph of 2^`scale` nodes, drawn from `seed`.
///
/// # Panics
/// When `scale` is above 31.
pub fn edges(seed: u64, scale: u32, count: u64, mut each: impl FnMut(u32, u32)) {
    assert!(scale < 32, "a node is named by 32 bits");
    let (mut state, mut batch) = (seed, [[0u32; 2]; BATCH]);
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH as u64);
        // SAFETY: the batch has room for `now` pairs, the state is one word of this frame, and nothing else holds either.
        unsafe { memlift_corpora_rmat(&mut state, scale, now, batch.as_mut_ptr().cast()) };
        batch[..now as usize].iter().for_each(|&[from, to]| each(from, to));
        left -= now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_the_same_every_time_and_skewed() {
        let draw = |count| {
            let mut all = Vec::new();
            edges(1, 10, count, |from, to| all.push((from, to)));
            all
        };
        let (some, more) = (draw(3000), draw(10_000));
        assert_eq!(some, more[..3000]);
        assert!(more.iter().all(|&(from, to)| from < 1024 && to < 1024));
        let mut degrees = [0u32; 1024];
        more.iter().for_each(|&(from, _)| degrees[from as usize] += 1);
        let most = degrees.iter().max().expect("1024 of them");
        assert!(*most > 10 * 10_000 / 1024, "the largest node has {most} edges");
    }
}
