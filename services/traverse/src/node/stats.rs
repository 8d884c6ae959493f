// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a node has counted. Counters only grow; two of them may disagree for a moment.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name,)* }

        const NAMES: &[&str] = &[$($text),*];
    };
}

counters! {
    /// Packets taken.
    Received "received",
    /// Packets sent.
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
    /// Iterations.
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
    /// Answers for which there was no room, or nobody to take them.
    Lost "lost",
}

/// Counters of one node.
#[derive(Debug, Default)]
pub struct Stats([AtomicU64; NAMES.len()]);

/// What the counters said at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted([u64; NAMES.len()]);

impl Stats {
    pub(super) fn add(&self, counter: Counter, count: u64) {
        self.0[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// What they say now.
    #[must_use]
    pub fn read(&self) -> Counted {
        Counted(std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed)))
    }
}

impl Counted {
    /// One of them.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All of them by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().copied().zip(self.0)
    }
}
