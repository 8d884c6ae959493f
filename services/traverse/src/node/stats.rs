// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of a node. They only grow; two of them may disagree for a moment.
//!
//! - **Flow** each shard adds to its own [`Tally`] ─▶ [`Stats::read`] sums over all shards, including those that have ended.
//!   Once a second a shard stores the sums, and the memory's usage, in the node's row ([`Core::show`])
//! - **Owner** only one thread adds to a tally, so that counting needs a load and a store and no locked instruction. A locked
//!   instruction would wait for all stores before it, among them those to rings and scratchpads that miss the cache

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use memlift_ground::observe::{Field, ROW_GAUGES, Row, Schema};

use super::{Core, locked};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// Event that a node counts.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name,)* }

        const NAMES: &[&str] = &[$($text),*];

        /// Fields of a node's row.
        const FIELDS: &[Field] = &[
            $(Field::new(concat!("node_", $text, "_total"), concat!($($doc),*)),)*
            Field::new("node_live_bytes", "Bytes that tenants have and use."),
            Field::new("node_retired_bytes", "Bytes that are free once no walk can be there."),
            Field::new("node_free_bytes", "Bytes that can be given out."),
            Field::new("node_waste_bytes", "Empty ends of extents."),
            Field::new("node_log_bytes", "Bytes of the log."),
            Field::new("node_clients", "Clients that have a session."),
            Field::new("node_log_full", "1: the log's disk is full, and the node refuses changes."),
        ];
    };
}

counters! {
    /// Packets taken from the transport.
    Received "received",
    /// Packets sent, those that were lost included.
    Sent "sent",
    /// Packets that could not be parsed: dropped.
    Malformed "malformed",
    /// Packets without the right MAC: dropped.
    Forged "forged",
    /// Packets that had come before: dropped.
    Replayed "replayed",
    /// Packets that only nodes may send, from others: dropped.
    Foreign "foreign",
    /// Walks that ended here.
    Walks "walks",
    /// Iterations of all walks.
    Hops "hops",
    /// Times that a walk started again because of a writer.
    Restarts "restarts",
    /// Walks sent on to another node.
    Forwarded "forwarded",
    /// Chunks of results that were sent.
    Chunks "chunks",
    /// Changes of memory.
    Changes "changes",
    /// Requests that came again: answered from memory, or dropped.
    Repeated "repeated",
    /// Requests refused because queues were full.
    Busy "busy",
    /// Walks that ended with a fault or at a foreign address.
    Faults "faults",
    /// Packets lost here: no room for them, or nobody to take them.
    Lost "lost",
}

const _: () = assert!(FIELDS.len() <= ROW_GAUGES);

static SCHEMA: Schema = Schema { service: "traverse", counters: &[], gauges: FIELDS, latency: None };

/// A node's line in `memlift top` and `memlift metrics`.
#[derive(Debug, Default)]
pub(super) struct NodeRow {
    row: OnceLock<Row>,
    /// Time of the node's clock, in seconds, at which the row was stored.
    stored_s: AtomicU32,
}

impl Core {
    /// Stores the counters and the memory's usage in the node's row, at most once a second.
    #[inline]
    pub(super) fn show(&self) {
        let now_s = self.clock.now();
        if self.row.stored_s.load(Ordering::Relaxed) != now_s {
            self.show_now(now_s);
        }
    }

    #[cold]
    fn show_now(&self, now_s: u32) {
        // Another shard may have stored it already. A change that this store misses is stored in a later
        // second.
        if self.row.stored_s.swap(now_s, Ordering::Relaxed) == now_s {
            return;
        }
        let name = || self.gateway.get().map_or("memory".to_owned(), |(_, address)| address.to_string());
        let row = self.row.row.get_or_init(|| Row::open(&SCHEMA, "node", &name(), 0));
        let counted = self.stats.read();
        counted.0.iter().enumerate().for_each(|(gauge, count)| row.set(gauge, *count));
        let mut rest = NAMES.len()..;
        let mut set = |value| row.set(rest.next().expect("endless"), value);
        if let Ok(writer) = self.writer.try_lock() {
            let (usage, (_, log, (clients, _))) = (writer.usage_now(), writer.size());
            [usage.live, usage.retired, usage.free, usage.waste, log, clients as u64]
                .into_iter()
                .for_each(&mut set);
            set(self.log_full.load(Ordering::Relaxed).into());
        }
    }
}

/// Counters of one shard.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Tally([AtomicU64; NAMES.len()]);

impl Tally {
    /// Adds to a counter. Only the thread that owns the shard calls this.
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
    /// Adds the counters of another shard. They stay after the shard has ended.
    pub(super) fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        locked(&self.0).push(Arc::clone(&tally));
        tally
    }

    /// Sums each counter over all shards, including those that have ended.
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
