// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each packet once: a sliding window over the nonces of each sender.
//!
//! - **Layout** the highest nonce seen, and a bitmap of the [`WINDOW`] below it (RFC 6479's, in whole words)
//! - **Order** a nonce above the window moves it; one inside counts once; one below is taken for a replay
//! - **Owner** a sender's nonces grow over all its lives: they start at the nanoseconds since 1970 at which it started, so an
//!   incarnation needs no window of its own
//! - **Not here** retransmission: that is a new packet with a nonce of its own and the same `sequence`

use std::collections::HashMap;

/// How far behind the newest packet another may arrive.
pub const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize + 1;

/// The window of one sender.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    highest: u64,
    seen: [u64; WORDS],
}

impl Replay {
    /// Returns true if this nonce comes for the first time; notes that it came.
    pub fn first(&mut self, nonce: u64) -> bool {
        let word = |nonce: u64| (nonce / 64) as usize % WORDS;
        if nonce.saturating_add(WINDOW) <= self.highest {
            return false;
        }
        if nonce > self.highest {
            // Words between the old top and the new one belong to nonces that nobody has used.
            let steps = (nonce / 64 - self.highest / 64).min(WORDS as u64);
            for step in 0..steps {
                self.seen[word(nonce - step * 64)] = 0;
            }
            self.highest = nonce;
        }
        let bit = 1 << (nonce % 64);
        let fresh = self.seen[word(nonce)] & bit == 0;
        self.seen[word(nonce)] |= bit;
        fresh
    }
}

/// The windows of all senders, as many as fit.
#[derive(Debug)]
pub struct Senders {
    windows: HashMap<(u32, u64), Replay>,
    most: usize,
}

impl Senders {
    /// Room for `most` senders.
    #[must_use]
    pub fn new(most: usize) -> Senders {
        Senders { windows: HashMap::new(), most }
    }

    /// Returns true if this packet comes for the first time. A sender for which there is no room is refused: forgetting another
    /// one's window would let its packets in again.
    pub fn first(&mut self, tenant: u32, sender: u64, nonce: u64) -> bool {
        if let Some(window) = self.windows.get_mut(&(tenant, sender)) {
            return window.first(nonce);
        }
        self.windows.len() < self.most && self.windows.entry((tenant, sender)).or_default().first(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn senders_that_do_not_fit_are_refused() {
        let mut senders = Senders::new(2);
        assert!(senders.first(0, 1, 10) && senders.first(0, 2, 10));
        assert!(!senders.first(0, 3, 10));
        assert!(!senders.first(0, 1, 10) && senders.first(0, 1, 11));
    }

    proptest! {
        #[test]
        fn no_nonce_counts_twice_and_those_in_the_window_count_once(
            start in 1u64..1 << 40,
            steps in prop::collection::vec((0u64..3000, 0u64..1500), 1..400),
        ) {
            let mut window = Replay::default();
            let mut taken = BTreeSet::new();
            let mut top = start;
            prop_assert!(window.first(start));
            taken.insert(start);
            for (forward, back) in steps {
                let nonce = (top + forward / 10).saturating_sub(back).max(1);
                let fresh = window.first(nonce);
                top = top.max(nonce);
                if fresh {
                    prop_assert!(taken.insert(nonce), "{nonce} counted twice");
                } else {
                    prop_assert!(taken.contains(&nonce) || nonce + WINDOW <= top, "{nonce} was refused below {top}");
                }
            }
        }
    }
}
