// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A range goes from one node to another while it is walked and written, and no request is lost.
//!
//! - **Flow** somebody plans it (`Map::plan`): the map names source and target, the range is still the source's.
//!   Source: note what is written ─▶ copy all, then what was written meanwhile ─▶ hold writes, copy the rest ─▶ the outcomes
//!   of earlier writes ─▶ the target has sealed it ─▶ hold everything ─▶ **commit**: one change of the map ─▶ what was
//!   held and all that comes later goes on to the target ─▶ memory is released
//! - **Order** the range changes hands at one moment, the commit, which the keeper of the map decides. Before it the target
//!   answers nothing for the range; once the commit was asked for, the source answers nothing either until it knows the outcome
//! - **Owner** [`Migrations`], one per node, run by one thread of it; the node's memory through [`Host`]
//! - **Not here** packets: messages are bytes of at most [`MESSAGE_BYTES_MAX`], may be lost, doubled and reordered, and come from who the
//!   packet says
//!
//! State after a crash:
//!
//! - **Source, before the commit** the map drops the migration when the node's lease runs out or when it joins again, and the
//!   target discards its copy. Clients that asked to write before go on asking, and the source's next start answers them
//! - **Target, before the commit** the map drops the migration in the same way, and the source lets writes through again. The
//!   commit is refused when either node was started again, so a target that forgot its copy never becomes the owner
//! - **After the commit** the range is the target's. If a log brings back the source's memory of it, the source discards that
//!   memory because the map says so
//! - **Keeper of the map** the source holds the range and asks until it is answered. A commit that was made but not answered
//!   shows in the map

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
    /// Source, before anything: the range is to leave.
    ///
    /// # Errors
    ///
    /// Why it cannot, for people to read: the migration is cancelled
    fn begin(&mut self, base: u64, bytes: u64) -> Result<(), String>;
    /// Source: reads bytes of a range that other threads may be writing, eight at a time.
    fn load(&mut self, address: u64, target: &mut [u8]);
    /// Source, when nobody writes any more: what belongs to the range besides its bytes. The outcomes of applied writes, so that
    /// one that is sent again is not carried out again; what is allocated and what is free. Records of at most
    /// [`RECORD_BYTES_MAX`], which only [`Host::import`] reads.
    ///
    /// # Errors
    ///
    /// Why it cannot be said, for people to read: the migration is cancelled
    fn export(&mut self, base: u64, bytes: u64) -> Result<Vec<Vec<u8>>, String>;
    /// Source: the range stays. What [`Host::begin`] and [`Host::export`] changed is as before.
    fn keep(&mut self, base: u64, bytes: u64);
    /// Source, after the commit: the range is another node's. Nobody uses its memory any more.
    fn release(&mut self, base: u64, bytes: u64);
    /// Target: memory for the range, all zero, which nobody is served from yet.
    ///
    /// # Errors
    ///
    /// Why not, for people to read
    fn reserve(&mut self, base: u64, bytes: u64) -> Result<(), String>;
    /// Target: bytes of a range that was reserved.
    fn store(&mut self, address: u64, bytes: &[u8]);
    /// Target: what [`Host::export`] gave. When it returns, bytes and records survive what an acknowledged write survives.
    ///
    /// # Errors
    ///
    /// Why not, for people to read
    fn import(&mut self, base: u64, bytes: u64, records: &[Vec<u8>]) -> Result<(), String>;
    /// Target: the migration was cancelled.
    fn discard(&mut self, base: u64, bytes: u64);
}

/// A request that the owner of [`Migrations`] makes to the keeper of the map, until the map shows that it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `Order::Commit`.
    Commit(u64),
    /// `Order::Cancel`.
    Cancel(u64),
}

/// How a migration ended at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The range was given away, with so many pieces copied and so long during which writes were held.
    Given {
        /// Id of the migration.
        id: u64,
        /// Pieces sent, those sent again included.
        pieces: u64,
        /// From holding writes to the commit.
        held: Duration,
    },
    /// The range came.
    Taken {
        /// Id of the migration.
        id: u64,
    },
    /// It stays where it was.
    Cancelled {
        /// Id of the migration.
        id: u64,
        /// Why, as far as this node knows.
        why: String,
    },
}

/// Phase of a migration, at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Doing {
    /// It waits until all shards note what they write, and until the target has memory.
    Offering = 1,
    /// It copies, while everything goes on.
    Copying = 2,
    /// Writes wait; it copies what was written last, and what belongs to the range besides its bytes.
    Draining = 3,
    /// The target makes it last.
    Sealing = 4,
    /// Everything waits; the map is asked.
    Committing = 5,
    /// It cannot be done: the map is asked to drop it.
    Cancelling = 6,
}

impl Doing {
    /// From its number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Doing> {
        use Doing::{Cancelling, Committing, Copying, Draining, Offering, Sealing};
        [Offering, Copying, Draining, Sealing, Committing, Cancelling]
            .into_iter()
            .find(|one| *one as u32 == number)
    }
}

/// Progress of a range that leaves this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Id of the migration.
    pub id: u64,
    /// First address of the range.
    pub base: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// Pieces of [`PIECE_BYTES`].
    pub pieces: u64,
    /// Pieces that the target has in their newest version.
    pub settled: u64,
    /// The migration's current phase.
    pub step: Doing,
}

/// Progress of a range that comes to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Id of the migration.
    pub id: u64,
    /// Pieces of [`PIECE_BYTES`].
    pub pieces: u64,
    /// Pieces that have not arrived yet.
    pub missing: u64,
    /// True if all of it is here and durable.
    pub sealed: bool,
}

/// Most records of a range of so many bytes.
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
    /// Migrations that ended here and are not to be begun again while the map still names them.
    over: Vec<u64>,
    outcomes: Vec<Outcome>,
    asks: Vec<Ask>,
}

impl Migrations {
    /// None yet, of a node that has joined.
    #[must_use]
    pub fn new(shared: Arc<Shared>, me: NodeId, incarnation: u64) -> Migrations {
        Migrations {
            shared,
            me,
            incarnation,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            over: Vec::new(),
            outcomes: Vec::new(),
            asks: Vec::new(),
        }
    }

    /// Returns true if there is nothing to do before the map changes or a message comes.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// Goes on with all of them. `now` is any clock that only goes forward; call it every few milliseconds while
    /// [`Migrations::is_idle`] is false, and after each change of the map. Messages and whom they are for go to `out`.
    pub fn poll(&mut self, now: Duration, host: &mut dyn Host, out: &mut Vec<(NodeId, Message)>) {
        let map = self.shared.map();
        self.over.retain(|id| map.moves().iter().any(|one| one.id == *id));
        for one in map.moves() {
            let mine = one.from == (self.me, self.incarnation);
            if mine && !self.outgoing.contains_key(&one.id) && !self.over.contains(&one.id) {
                let since = map.find(one.base).map_or(0, |range| range.since);
                let mut outgoing = Outgoing::new(*one, since, self.shared.clone());
                if let Err(why) = host.begin(one.base, one.bytes) {
                    outgoing.refuse(why);
                }
                self.outgoing.insert(one.id, outgoing);
            }
        }
        self.asks.clear();
        let (asks, outcomes, over) = (&mut self.asks, &mut self.outcomes, &mut self.over);
        self.outgoing.retain(|id, one| match one.poll(&map, now, host, out) {
            Step::Working => true,
            Step::Ask(ask) => {
                asks.push(ask);
                true
            }
            Step::Over(outcome) => {
                outcomes.push(outcome);
                over.push(*id);
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

    /// Handles a message of another node.
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
            // This node may have known it before a restart; the source learns from the map that it is over.
            return;
        };
        let map = self.shared.map();
        // Arrivals that are over let go of their memory first, because their addresses may be among these. If some are still
        // being given away, the offer is ignored, and the source repeats it.
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
            // The id is the epoch of the plan: a map that is older does not show it yet.
            None if map.epoch() < id => self.shared.want(id),
            None => {}
        }
    }

    /// Returns the progress of each range that leaves.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.outgoing.values().map(Outgoing::progress).collect()
    }

    /// Returns the progress of each range that comes.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.incoming.values().map(Incoming::arrival).collect()
    }

    /// Returns the requests to make to the keeper of the map. Making one twice does no harm.
    #[must_use]
    pub fn asks(&self) -> &[Ask] {
        &self.asks
    }

    /// Takes the outcomes of migrations that have ended since the last call.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes)
    }
}
