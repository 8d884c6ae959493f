// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of faults on pages in sequence: how many pages to bring in at once.
//!
//! Flow    a fault where a stream goes on doubles that stream's window, up to a cluster; another begins a new stream
//! Layout  a stream in one word: next page << 8 | window
//! Order   guesses: threads may overwrite each other's streams, and nothing depends on them but speed

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::seat::CLUSTER;

const STREAMS: usize = 8;
/// How far behind its end a stream is still recognised: pages in between may have been present.
const SLACK: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [AtomicU64; STREAMS],
    next: AtomicUsize,
}

impl Streams {
    /// How many pages a fault at `page` shall bring in, and the stream's index for [`Streams::went`].
    pub fn window(&self, page: usize) -> (usize, usize) {
        for (index, stream) in self.streams.iter().enumerate() {
            let word = stream.load(Ordering::Relaxed);
            if word != 0 && (page as u64).wrapping_sub(word >> 8) < SLACK {
                return (((word & 0xff) as usize * 2).clamp(2, CLUSTER), index);
            }
        }
        (1, self.next.fetch_add(1, Ordering::Relaxed) % STREAMS)
    }

    /// The fault brought `pages` pages in from `page` on.
    pub fn went(&self, index: usize, page: usize, pages: usize) {
        self.streams[index].store(((page + pages) as u64) << 8 | pages as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_recognised_among_other_faults() {
        let streams = Streams::default();
        let (mut page, mut faults) = (1000, 0);
        while page < 1000 + 512 {
            let (pages, index) = streams.window(page);
            streams.went(index, page, pages);
            page += pages;
            let (alone, other) = streams.window(1_000_000 + faults * 1000);
            assert_eq!(alone, 1);
            streams.went(other, 1_000_000 + faults * 1000, 1);
            faults += 1;
        }
        // The other faults take a stream in turn, and now and then this one's.
        assert!(faults < 48, "{faults}");
    }
}
