// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accepts each packet once: a sliding window over the nonces of each sender.
//!
//! - **Layout** the highest nonce seen, and a bitmap of the [`WINDOW`] nonces below it (as in RFC 6479, in whole words)
//! - **Order** a nonce above the window moves the window; one inside it is accepted once; one below it is taken for a replay
//! - **Owner** a sender's nonces grow over all its starts, because they begin at the nanoseconds since 1970 at its start; so
//!   an incarnation needs no window of its own
//! - **Not here** retransmission: that is a new packet with a nonce of its own and the same `sequence`

use std::collections::HashMap;

/// Greatest distance of an accepted nonce below the highest one.
pub const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize + 1;

/// The window of one sender.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    highest: u64,
    seen: [u64; WORDS],
}

impl Replay {
    /// Returns true if this nonce is new, and records it.
    pub fn first(&mut self, nonce: u64) -> bool {
        let word = |nonce: u64| (nonce / 64) as usize % WORDS;
        if nonce.saturating_add(WINDOW) <= self.highest {
            return false;
        }
        if nonce > self.highest {
            // Words between the old highest nonce and the new one belong to nonces that were not seen.
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

/// The windows of all senders, up to a limit.
#[derive(Debug)]
pub struct Senders {
    windows: HashMap<(u32, u64), Replay>,
    most: usize,
}

impl Senders {
    /// Makes room for `most` senders.
    #[must_use]
    pub fn new(most: usize) -> Senders {
        Senders { windows: HashMap::new(), most }
    }

    /// Returns true if this packet is new, and records it. If there is no room for a new sender, its packets are refused:
    /// forgetting another sender's window would let that sender's packets be replayed.
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
