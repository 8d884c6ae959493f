// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: runs of faults on pages in sequence. They decide how many pages a fault brings in, and record how far a run has
//! come.
//!
//! - **Flow** a fault that continues a stream doubles the stream's window, up to a cluster; any other fault begins a new
//!   stream
//! - **Layout** a stream in one word: pages brought in so far << 38 | next page << 8 | window
//! - **Order** all of this is guesses: threads may overwrite each other's streams, and only speed depends on them

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::ARENA_BYTES;
use super::seat::CLUSTER;
use crate::mapping::PAGE_BYTES;

const STREAMS: usize = 8;
/// Number of pages that a fault may skip and still continue a stream, because the pages in between may be present.
const SLACK: u64 = 16;
const NEXT_SHIFT: u32 = 8;
const LENGTH_SHIFT: u32 = 38;
const MOST_LENGTH: u64 = u64::MAX >> LENGTH_SHIFT;

const _: () =
    assert!(ARENA_BYTES / PAGE_BYTES <= 1 << (LENGTH_SHIFT - NEXT_SHIFT) && CLUSTER < 1 << NEXT_SHIFT);

/// The stream of a fault, and the pages that it has brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    index: usize,
    /// Number of pages that the fault shall bring in.
    pub window: usize,
    /// Number of pages that the stream has brought in.
    pub length: usize,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [AtomicU64; STREAMS],
    next: AtomicUsize,
}

impl Streams {
    /// Returns the stream that a fault at `page` continues or begins.
    pub fn at(&self, page: usize) -> Run {
        for (index, stream) in self.streams.iter().enumerate() {
            let word = stream.load(Ordering::Relaxed);
            let next = (word & ((1 << LENGTH_SHIFT) - 1)) >> NEXT_SHIFT;
            if word != 0 && (page as u64).wrapping_sub(next) < SLACK {
                let window = ((word & 0xff) as usize * 2).clamp(2, CLUSTER);
                return Run { index, window, length: (word >> LENGTH_SHIFT) as usize };
            }
        }
        Run { index: self.next.fetch_add(1, Ordering::Relaxed) % STREAMS, window: 1, length: 0 }
    }

    /// Notes that the fault brought `pages` pages in from `page` on.
    pub fn advance(&self, run: Run, page: usize, pages: usize) {
        let length = ((run.length + pages) as u64).min(MOST_LENGTH);
        let word = length << LENGTH_SHIFT | ((page + pages) as u64) << NEXT_SHIFT | pages as u64;
        self.streams[run.index].store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_recognised_among_other_faults() {
        let streams = Streams::default();
        let (mut page, mut faults, mut length) = (1000, 0, 0);
        while page < 1000 + 512 {
            let run = streams.at(page);
            assert!(run.length == 0 || run.length == length);
            length = run.length + run.window;
            streams.advance(run, page, run.window);
            page += run.window;
            let other = 1_000_000 + faults * 1000;
            let alone = streams.at(other);
            assert_eq!((alone.window, alone.length), (1, 0));
            streams.advance(alone, other, 1);
            faults += 1;
        }
        // The other faults take the streams in turn, and sometimes overwrite this one.
        assert!(faults < 48, "{faults}");
    }

    #[test]
    fn a_stream_at_the_arenas_end_is_counted_right() {
        let streams = Streams::default();
        let last = ARENA_BYTES / PAGE_BYTES - 2 * CLUSTER;
        let mut run = streams.at(last);
        run.length = MOST_LENGTH as usize;
        streams.advance(run, last, CLUSTER);
        let run = streams.at(last + CLUSTER);
        assert_eq!((run.window, run.length), (CLUSTER, MOST_LENGTH as usize));
    }
}
