// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moves a range from one node to another while it is walked and written; no request is lost.
//!
//! - **Flow** an operator plans the migration (`Map::plan`): the map names source and target, and the range still belongs to the source.
//!   Source: record which pieces are written ─▶ copy all, then the pieces written meanwhile ─▶ hold writes, copy the rest ─▶ send the
//!   outcomes of earlier writes ─▶ the target makes its copy durable (seals it) ─▶ hold all requests ─▶ **commit**: one change of the map
//!   ─▶ held and later requests are forwarded to the target ─▶ the source's memory is released
//! - **Order** the range changes its owner at one moment, the commit, which the map's authority makes. Before the commit the target
//!   answers nothing for the range; after asking for it the source answers nothing either until it knows the outcome
//! - **Owner** one [`Migrations`] per node, run by one of its threads; it accesses the node's memory through [`Host`]
//! - **Not here** packets: messages are bytes of at most [`MESSAGE_BYTES_MAX`]. They may be lost, doubled and reordered; the packet
//!   authenticates the sender
//!
//! State after a crash:
//!
//! - **Source, before the commit** the map drops the migration when the node's lease runs out or when the node joins again, and the
//!   target discards its copy. Clients with unanswered writes repeat them, and the restarted source answers
//! - **Target, before the commit** the map drops the migration in the same way, and the source lets writes through again. A commit is
//!   refused if either node was restarted, so a target that lost its copy never becomes the owner
//! - **After the commit** the range belongs to the target. If a log restores the source's memory of the range, the source discards it
//!   because the map says so
//! - **Authority of the map** the source holds the range and repeats its request until it is answered. If the commit was made and its
//!   answer lost, the map shows it

mod incoming;
mod message;
mod outgoing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::node::NodeId;
use super::range::Map;
use super::shared::Shared;
use incoming::Incoming;
pub use message::{MESSAGE_BYTES_MAX, Message, PIECE_BYTES, RECORD_BYTES_MAX};
use outgoing::{Outgoing, Step};

/// Operations that a migration needs from its node. The thread that runs [`Migrations`] makes all calls.
pub trait Host {
    /// Source, at the start: prepares the range to leave.
    ///
    /// # Errors
    ///
    /// The reason that it cannot leave, for people to read: the migration is cancelled
    fn begin(&mut self, base: u64, bytes: u64) -> Result<(), String>;
    /// Source: reads bytes of a range that other threads may be writing, eight at a time.
    fn load(&mut self, address: u64, target: &mut [u8]);
    /// Source, when nobody writes any more: returns the data that travels with the range's bytes: the outcomes of applied
    /// writes, so that a repeated one is not carried out again, and the allocated and free blocks. Records have at most
    /// [`RECORD_BYTES_MAX`] bytes, and only [`Host::import`] reads them.
    ///
    /// # Errors
    ///
    /// The reason that the data cannot be returned, for people to read: the migration is cancelled
    fn export(&mut self, base: u64, bytes: u64) -> Result<Vec<Vec<u8>>, String>;
    /// Source: the range stays. Undoes the changes of [`Host::begin`] and [`Host::export`].
    fn cancel_leave(&mut self, base: u64, bytes: u64);
    /// Source, after the commit: the range belongs to another node, and nobody uses its memory here any more.
    fn release(&mut self, base: u64, bytes: u64);
    /// Target: reserves zeroed memory for the range, from which no request is served yet.
    ///
    /// # Errors
    ///
    /// The reason that it cannot be reserved, for people to read
    fn reserve(&mut self, base: u64, bytes: u64) -> Result<(), String>;
    /// Target: stores bytes of a reserved range.
    fn store(&mut self, address: u64, bytes: &[u8]);
    /// Target: adopts the records of [`Host::export`]. When this returns, bytes and records are as durable as an
    /// acknowledged write.
    ///
    /// # Errors
    ///
    /// The reason that they cannot be adopted, for people to read
    fn import(&mut self, base: u64, bytes: u64, records: &[Vec<u8>]) -> Result<(), String>;
    /// Target: the migration was cancelled, and the reserved memory is dropped.
    fn discard(&mut self, base: u64, bytes: u64);
}

/// A request that the owner of [`Migrations`] repeats to the map's authority until the map shows that it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `Order::Commit`.
    Commit(u64),
    /// `Order::Cancel`.
    Cancel(u64),
}

/// End of a migration at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The range was given to another node.
    Given {
        /// Id of the migration.
        id: u64,
        /// Pieces sent, including those sent again.
        pieces: u64,
        /// Time from the holding of writes to the commit.
        held: Duration,
    },
    /// The range has arrived.
    Taken {
        /// Id of the migration.
        id: u64,
    },
    /// The range stays at its node.
    Cancelled {
        /// Id of the migration.
        id: u64,
        /// Reason, as far as this node knows it.
        why: String,
    },
}

/// Phase of a migration, at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum MigrationPhase {
    /// Waits until all shards record their writes, and until the target has memory.
    Offering = 1,
    /// Copies pieces, while requests are served.
    Copying = 2,
    /// Holds writes; copies the pieces written last, and the data that travels with the range.
    Draining = 3,
    /// Waits until the target has made its copy durable.
    Sealing = 4,
    /// Holds all requests; asks the map's authority to commit.
    Committing = 5,
    /// The migration failed: asks the map's authority to cancel it.
    Cancelling = 6,
}

impl MigrationPhase {
    /// Returns the phase with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<MigrationPhase> {
        use MigrationPhase::{Cancelling, Committing, Copying, Draining, Offering, Sealing};
        [Offering, Copying, Draining, Sealing, Committing, Cancelling]
            .into_iter()
            .find(|one| *one as u32 == number)
    }
}

/// Progress of a range that is leaving this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Id of the migration.
    pub id: u64,
    /// First address of the range.
    pub base: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// Number of pieces of [`PIECE_BYTES`].
    pub pieces: u64,
    /// Pieces whose newest version the target has.
    pub settled: u64,
    /// The migration's current phase.
    pub step: MigrationPhase,
}

/// Progress of a range that is arriving at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Id of the migration.
    pub id: u64,
    /// Number of pieces of [`PIECE_BYTES`].
    pub pieces: u64,
    /// Pieces that have not arrived yet.
    pub missing: u64,
    /// True if the whole range has arrived and is durable.
    pub sealed: bool,
}

/// Returns the most records of a range of `bytes` bytes.
pub(super) fn records_max(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE_BYTES) * 8 + (1 << 16)
}

/// The migrations of one node.
#[derive(Debug)]
pub struct Migrations {
    shared: Arc<Shared>,
    me: NodeId,
    incarnation: u64,
    outgoing: BTreeMap<u64, Outgoing>,
    incoming: BTreeMap<u64, Incoming>,
    /// Ids of migrations that have ended here and must not begin again while the map still lists them.
    ended: Vec<u64>,
    outcomes: Vec<Outcome>,
    asks: Vec<Ask>,
}

impl Migrations {
    /// Makes the migrations of a node that has joined; at first there are none.
    #[must_use]
    pub fn new(shared: Arc<Shared>, me: NodeId, incarnation: u64) -> Migrations {
        Migrations {
            shared,
            me,
            incarnation,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            ended: Vec::new(),
            outcomes: Vec::new(),
            asks: Vec::new(),
        }
    }

    /// Returns true if there is nothing to do until the map changes or a message arrives.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// Continues all migrations. `now` is any monotonic clock. Call it every few milliseconds while [`Migrations::is_idle`]
    /// is false, and after each change of the map. Messages are appended to `out`, each with its destination.
    pub fn poll(&mut self, now: Duration, host: &mut dyn Host, out: &mut Vec<(NodeId, Message)>) {
        let map = self.shared.map();
        self.ended.retain(|id| map.moves().iter().any(|one| one.id == *id));
        for one in map.moves() {
            let mine = one.from == (self.me, self.incarnation);
            if mine && !self.outgoing.contains_key(&one.id) && !self.ended.contains(&one.id) {
                let since = map.find(one.base).map_or(0, |range| range.since);
                let mut outgoing = Outgoing::new(*one, since, self.shared.clone());
                if let Err(why) = host.begin(one.base, one.bytes) {
                    outgoing.refuse(why);
                }
                self.outgoing.insert(one.id, outgoing);
            }
        }
        self.asks.clear();
        let (asks, outcomes, ended) = (&mut self.asks, &mut self.outcomes, &mut self.ended);
        self.outgoing.retain(|id, one| match one.poll(&map, now, host, out) {
            Step::Working => true,
            Step::Ask(ask) => {
                asks.push(ask);
                true
            }
            Step::Over(outcome) => {
                outcomes.push(outcome);
                ended.push(*id);
                false
            }
        });
        self.settle(&map, host);
    }

    /// Ends the arrivals that the map shows as done or cancelled.
    fn settle(&mut self, map: &Map, host: &mut dyn Host) {
        let (me, outcomes) = (self.me, &mut self.outcomes);
        self.incoming.retain(|_, one| match one.poll(map, me, host) {
            None => true,
            Some(outcome) => {
                outcomes.push(outcome);
                false
            }
        });
    }

    /// Handles a message from another node.
    pub fn receive(
        &mut self,
        from: NodeId,
        message: Message,
        host: &mut dyn Host,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let id = message.id();
        if message.is_for_source() {
            if let Some(one) = self.outgoing.get_mut(&id)
                && one.target() == from
            {
                one.receive(message);
            }
            return;
        }
        if let Some(one) = self.incoming.get_mut(&id) {
            if one.source() == from {
                one.receive(message, host, out);
            }
            return;
        }
        let Message::Offer { base, bytes, .. } = message else {
            // The migration may have been known before a restart; the source learns its end from the map.
            return;
        };
        let map = self.shared.map();
        // Arrivals that have ended release their memory first, because their addresses may overlap this offer's. If some of
        // these addresses are still leaving this node, the offer is ignored, and the source repeats it.
        self.settle(&map, host);
        let overlaps = |one: &Outgoing| one.overlaps(base, bytes);
        if self.outgoing.values().any(overlaps) {
            return;
        }
        let planned = map.moves().iter().find(|one| one.id == id);
        let fits = planned.filter(|one| {
            (one.base, one.bytes) == (base, bytes)
                && one.from.0 == from
                && one.to == (self.me, self.incarnation)
        });
        match fits {
            Some(one) => match Incoming::new(*one, host) {
                Ok(one) => {
                    self.incoming.insert(id, one);
                    out.push((from, Message::Accept { id }));
                }
                Err(why) => out.push((from, Message::Refuse { id, why })),
            },
            // The id is the epoch of the plan, so an older map does not contain the migration yet.
            None if map.epoch() < id => self.shared.note_claimed_epoch(id),
            None => {}
        }
    }

    /// Returns the progress of each range that is leaving.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.outgoing.values().map(Outgoing::progress).collect()
    }

    /// Returns the progress of each range that is arriving.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.incoming.values().map(Incoming::arrival).collect()
    }

    /// Returns the requests to make to the map's authority. Making one twice does no harm.
    #[must_use]
    pub fn asks(&self) -> &[Ask] {
        &self.asks
    }

    /// Takes the outcomes of migrations that have ended since the last call.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes)
    }
}
