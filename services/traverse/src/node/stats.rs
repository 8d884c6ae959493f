// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of a node. They only grow; two of them may disagree for a moment.
//!
//! - **Flow** each shard adds to its own [`Tally`] ─▶ [`Stats::read`] sums over all that ever were
//! - **Owner** one thread adds to a tally, so that counting is a load and a store and no locked instruction: that would wait for
//!   every store before it, among them those to rings and scratchpads that miss the cache

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::locked;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// Event that a node counts.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name,)* }

        const NAMES: &[&str] = &[$($text),*];
    };
}

counters! {
    /// Packets taken from the transport.
    Received "received",
    /// Packets sent, those that were lost included.
    Sent "sent",
    /// Packets that were none: dropped.
    Malformed "malformed",
    /// Packets without the right MAC: dropped.
    Forged "forged",
    /// Packets that had come before: dropped.
    Replayed "replayed",
    /// Packets that only a node may send, from somebody else: dropped.
    Foreign "foreign",
    /// Walks that ended here.
    Walks "walks",
    /// Iterations of all walks.
    Hops "hops",
    /// Times that a walk started again because of a writer.
    Restarts "restarts",
    /// Walks sent on to another node.
    Forwarded "forwarded",
    /// Chunks of results.
    Chunks "chunks",
    /// Changes of memory.
    Changes "changes",
    /// Requests that were answered from memory, or dropped because they ran already.
    Repeated "repeated",
    /// Requests refused because queues were full.
    Busy "busy",
    /// Walks that ended with a fault or an address that is not theirs.
    Faults "faults",
    /// Packets lost here: there was no room for them, or nobody to take them.
    Lost "lost",
}

/// Counters of one shard.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Tally([AtomicU64; NAMES.len()]);

impl Tally {
    /// Adds to a counter. Only the thread that has the shard calls this.
    #[inline]
    pub(super) fn add(&self, counter: Counter, count: u64) {
        let counter = &self.0[counter as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

/// Counters of one node.
#[derive(Debug, Default)]
pub struct Stats(Mutex<Vec<Arc<Tally>>>);

/// Values of the counters at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted([u64; NAMES.len()]);

impl Stats {
    /// Adds the counters of another shard. They stay when it is gone.
    pub(super) fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        locked(&self.0).push(Arc::clone(&tally));
        tally
    }

    /// Sums each counter over all shards, past ones included.
    #[must_use]
    pub fn read(&self) -> Counted {
        let mut counted = Counted([0; NAMES.len()]);
        for tally in locked(&self.0).iter() {
            for (sum, counter) in counted.0.iter_mut().zip(&tally.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        counted
    }
}

impl Counted {
    /// Returns the value of one counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns all counters, each with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().copied().zip(self.0)
    }
}
