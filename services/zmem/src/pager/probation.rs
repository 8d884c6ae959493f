// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probation: among the pages that come back, those stay in memory that were missed soonest after they had left.
//!
//! ```text
//! comes back ──missed sooner than most──▶ stays: heat, no copy; the hand evicts another page instead
//!            ──else──▶ on probation: no heat, its copy kept ──enough others came in──▶ leaves again, before all others
//! ```
//!
//! - **Flow** the pager cannot see uses of a present page. It sees the use of an absent page, as a fault. So the time until a
//!   page is missed is the measure of its worth. For each page that stays, the clock hand evicts one present page of unknown
//!   worth. Of a set of pages that is scanned again and again and does not fit, a part stays in memory; if the oldest pages
//!   were evicted first, none would
//! - **Order** all of this is guesses: threads may overwrite each other's marks, and only speed depends on them
//! - **Layout** the clock counts pages brought in, in steps of 1/1024 of the total; an entry has 14 bits for it
//! - **Not here** the eviction itself ([`super::evict`]): a mark in the ring is a hint that is checked against the page's
//!   entry

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::entry::MAX_LEFT;

/// Size of the ring, pages. At most half of them are on probation; there may be more until the next eviction.
const RING: usize = 4096;
/// Smallest number of pages on probation, because a few operations may touch that many.
const LEAST: usize = 64;
/// The part of the present pages that is on probation: 1/32.
const SHARE: usize = 32;
/// One page in this many stays: of pages that come back alone, and of pages that come back in runs. In runs fewer stay,
/// because a page that stays cuts the next run in two.
const ONE_STAYS_IN: [u64; 2] = [8, 16];
/// Number of fractions that a step of the clock is divided into.
const FRACTION: u64 = 256;

#[derive(Debug)]
pub(super) struct Probation {
    /// Pages on probation in the order in which they came in.
    ring: [AtomicU32; RING],
    entered: AtomicUsize,
    left: AtomicUsize,
    /// Longest absence after which a page stays, in fractions of a clock step: for pages that come back alone, and in runs.
    longest_absence: [AtomicU64; 2],
}

impl Probation {
    pub const fn new() -> Probation {
        Probation {
            ring: [const { AtomicU32::new(0) }; RING],
            entered: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            longest_absence: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Returns true if a page that was missed `steps` after it had left stays. Adjusts the limit so that one page in
    /// [`ONE_STAYS_IN`] stays.
    pub fn admit(&self, steps: u64, run: bool) -> bool {
        let (limit, one_in) = (&self.longest_absence[usize::from(run)], ONE_STAYS_IN[usize::from(run)]);
        let longest = limit.load(Ordering::Relaxed);
        let stays = steps * FRACTION <= longest;
        let next = if stays {
            longest - longest * (one_in - 1) / (64 * one_in)
        } else {
            longest + longest / (64 * one_in) + 1
        };
        limit.store(next.min(MAX_LEFT / 2 * FRACTION), Ordering::Relaxed);
        stays
    }

    /// Puts a page on probation.
    pub fn enter(&self, page: usize) {
        let at = self.entered.fetch_add(1, Ordering::Relaxed);
        self.ring[at % RING].store(page as u32, Ordering::Relaxed);
    }

    /// Returns the page whose probation is over, if `present` pages are present. Only one thread may call this at a time.
    pub fn next(&self, present: usize) -> Option<usize> {
        let (entered, left) = (self.entered.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
        let most = (present / SHARE).clamp(LEAST, RING / 2);
        let waiting = entered.wrapping_sub(left);
        if waiting <= most {
            return None;
        }
        // Skip the pages that the ring has overwritten; the clock hand finds those.
        let left = if waiting > RING { entered.wrapping_sub(RING / 2) } else { left };
        self.left.store(left.wrapping_add(1), Ordering::Relaxed);
        Some(self.ring[left % RING].load(Ordering::Relaxed) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_in_the_order_in_which_they_came() {
        let probation = Probation::new();
        for page in 0..LEAST {
            probation.enter(page);
        }
        assert_eq!(probation.next(0), None);
        probation.enter(LEAST);
        probation.enter(LEAST + 1);
        assert_eq!((probation.next(0), probation.next(0), probation.next(0)), (Some(0), Some(1), None));
        for page in 0..3 * RING {
            probation.enter(page);
        }
        let page = probation.next(0).expect("many wait");
        assert!((2 * RING..3 * RING).contains(&page), "{page}");
    }

    #[test]
    fn about_one_in_eight_stays_and_those_are_the_ones_missed_soonest() {
        let probation = Probation::new();
        let (mut soon, mut late) = (0, 0);
        for turn in 0..80_000u64 {
            // One page in sixteen is missed immediately.
            let steps = if turn % 16 == 0 { 1 } else { 100 + turn * 7919 % 900 };
            let stays = probation.admit(steps, false);
            if turn > 40_000 {
                *(if steps == 1 { &mut soon } else { &mut late }) += u64::from(stays);
            }
        }
        assert!(soon > 2_400 && (3_500..6_500).contains(&(soon + late)), "{soon} of 2500, {late}");
    }

    #[test]
    fn where_all_are_missed_equally_late_most_still_do_not_stay() {
        let probation = Probation::new();
        let staying = (0..80_000).filter(|_| probation.admit(500, false)).count();
        assert!((5_000..15_000).contains(&staying), "{staying}");
    }
}
