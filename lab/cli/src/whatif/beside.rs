// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays beside each other: as many at a time as there are cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memlift_cli::print;

/// Works on each of `items`, as many at a time as there are cores; results in their order.
pub fn beside<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let (next, work) = (&next, &work);
        let run = move || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else { return done };
                if begun.elapsed().as_millis() > 500 {
                    print::progress(&format!("run {} of {}", index + 1, items.len()));
                }
                done.push((index, work(item)));
            }
        };
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a replay does not panic")).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beside_each_other_keeps_its_order() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(beside(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert!(beside(&[0u8; 0], |_| ()).is_empty());
    }
}
