// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source's side of a migration.
//!
//! - **Flow** the phases of [`Phase`], in order. Each phase repeats messages that were not acknowledged; only a change of the map ends
//!   the last one
//! - **Order** a piece is marked as unwritten before it is read, so a piece that is written while it is read is copied again. A piece
//!   is settled when the target has the version that was sent last
//! - **Owner** held requests are released in one place, [`Outgoing::end`], when the map shows how the migration ended

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Host, Message, MigrationPhase, Outcome, PIECE_BYTES, Progress, records_max};
use crate::map::node::NodeId;
use crate::map::range::{Map, Move};
use crate::map::shared::{Dirty, Hold, Rule, Shared};

/// Most pieces in flight at a time.
const WINDOW: usize = 128;
/// Time after which a message that was not acknowledged is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(20);
/// Writes are held when at most this many pieces are left to copy ...
const FEW_PIECES: u64 = 256;
/// ... or after this many passes over the range: a client that writes faster than pieces are copied must not delay
/// the move for ever.
const PASSES_MAX: u32 = 4;

/// Result of one poll of a migration.
pub(super) enum Step {
    Working,
    Ask(Ask),
    Over(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits until every shard records which pieces it writes.
    Arming(u64),
    /// Waits until the target has reserved memory.
    Offering,
    /// Copies pieces while writes continue.
    Copying,
    /// Waits until nobody writes.
    Freezing(u64),
    /// Copies the pieces written since they were last copied.
    Draining,
    /// Sends the records: the data that travels with the range's bytes.
    Recording,
    /// Waits until the target has sealed its copy.
    Sealing,
    /// Waits until nobody reads.
    Closing(u64),
    /// Waits until the map shows the commit or the cancellation.
    Committing,
    /// The migration failed; waits until the map shows the cancellation.
    Cancelling,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    plan: Move,
    /// Epoch since which the source has owned the range; shows at the end if the range is still the same.
    since: u64,
    shared: Arc<Shared>,
    dirty: Arc<Dirty>,
    phase: Phase,
    /// Pieces in flight: the version that was sent, and the time of sending.
    window: BTreeMap<u64, (u32, Duration)>,
    next: u64,
    passes: u32,
    version: u32,
    sent: u64,
    records: Vec<Vec<u8>>,
    /// Records that are not acknowledged, and the time at which each was sent.
    open: BTreeMap<u32, Option<Duration>>,
    sent_at: Option<Duration>,
    frozen: Option<Duration>,
    refused: Option<String>,
}

impl Outgoing {
    pub(super) fn new(plan: Move, since: u64, shared: Arc<Shared>) -> Outgoing {
        let dirty = Arc::new(Dirty::all(plan.base, plan.bytes, PIECE_BYTES));
        let mut one = Outgoing {
            plan,
            since,
            shared,
            dirty,
            phase: Phase::Arming(0),
            window: BTreeMap::new(),
            next: 0,
            passes: 0,
            version: 0,
            sent: 0,
            records: Vec::new(),
            open: BTreeMap::new(),
            sent_at: None,
            frozen: None,
            refused: None,
        };
        one.phase = Phase::Arming(one.hold(Hold::Nothing));
        one
    }

    pub(super) fn target(&self) -> NodeId {
        self.plan.to.0
    }

    /// Returns true if some of these addresses are in the range that is leaving.
    pub(super) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        self.plan.base < base.saturating_add(bytes) && base < self.plan.end()
    }

    /// Notes that the migration cannot be carried out; the first reason is kept.
    pub(super) fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    pub(super) fn progress(&self) -> Progress {
        let Move { id, base, bytes, .. } = self.plan;
        let pieces = bytes.div_ceil(PIECE_BYTES);
        let open = self.dirty.count() + self.window.len() as u64;
        let step = match self.phase {
            Phase::Arming(_) | Phase::Offering => MigrationPhase::Offering,
            Phase::Copying => MigrationPhase::Copying,
            Phase::Freezing(_) | Phase::Draining | Phase::Recording => MigrationPhase::Draining,
            Phase::Sealing => MigrationPhase::Sealing,
            Phase::Closing(_) | Phase::Committing => MigrationPhase::Committing,
            Phase::Cancelling => MigrationPhase::Cancelling,
        };
        Progress { id, base, bytes, pieces, settled: pieces.saturating_sub(open), step }
    }

    fn hold(&self, hold: Hold) -> u64 {
        let Move { id, base, bytes, .. } = self.plan;
        self.shared.hold(id, Some(Rule { id, base, bytes, hold, dirty: self.dirty.clone() }))
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.sent_at = None;
    }

    /// Returns true if the phase's message is due to be sent, or sent again; records the time.
    fn again(&mut self, now: Duration) -> bool {
        let due = self.sent_at.is_none_or(|sent_at| now.saturating_sub(sent_at) >= RESEND_AFTER);
        if due {
            self.sent_at = Some(now);
        }
        due
    }

    pub(super) fn poll(
        &mut self,
        map: &Map,
        now: Duration,
        host: &mut dyn Host,
        out: &mut Vec<(NodeId, Message)>,
    ) -> Step {
        let Move { id, base, bytes, to, .. } = self.plan;
        if !map.moves().iter().any(|one| one.id == id) {
            return Step::Over(self.end(map, now, host));
        }
        if self.refused.is_some()
            && !matches!(self.phase, Phase::Closing(_) | Phase::Committing | Phase::Cancelling)
        {
            self.hold(Hold::Nothing);
            self.enter(Phase::Cancelling);
        }
        match self.phase {
            Phase::Arming(generation) if self.shared.settled(generation) => self.enter(Phase::Offering),
            Phase::Offering => {
                out.extend(self.again(now).then_some((to.0, Message::Offer { id, base, bytes })));
            }
            Phase::Copying => {
                self.copy(now, host, out);
                let left = self.dirty.count();
                if self.passes > 0 && (left <= FEW_PIECES || self.passes >= PASSES_MAX) {
                    let generation = self.hold(Hold::Writes);
                    self.frozen = Some(now);
                    self.enter(Phase::Freezing(generation));
                }
            }
            Phase::Freezing(generation) => {
                self.copy(now, host, out);
                if self.shared.settled(generation) {
                    self.enter(Phase::Draining);
                }
            }
            Phase::Draining => {
                self.copy(now, host, out);
                if self.window.is_empty() && self.dirty.count() == 0 {
                    match host.export(base, bytes) {
                        Ok(records) if records.len() as u64 <= records_max(bytes) => self.records = records,
                        Ok(records) => {
                            let count = records.len();
                            self.refuse(format!(
                                "{count} records belong to it, more than can be sent with it"
                            ));
                            return Step::Working;
                        }
                        Err(why) => {
                            self.refuse(why);
                            return Step::Working;
                        }
                    }
                    self.open = (0..self.records.len() as u32).map(|index| (index, None)).collect();
                    self.enter(Phase::Recording);
                }
            }
            Phase::Recording => {
                self.send_records(now, out);
                if self.open.is_empty() {
                    self.enter(Phase::Sealing);
                }
            }
            Phase::Sealing => {
                let records = self.records.len() as u32;
                out.extend(self.again(now).then_some((to.0, Message::Seal { id, records })));
            }
            Phase::Closing(generation) if self.shared.settled(generation) => self.enter(Phase::Committing),
            Phase::Committing => return Step::Ask(Ask::Commit(id)),
            Phase::Cancelling => return Step::Ask(Ask::Cancel(id)),
            _ => {}
        }
        Step::Working
    }

    /// Fills the window with written pieces, and repeats pieces that were not acknowledged.
    fn copy(&mut self, now: Duration, host: &mut dyn Host, out: &mut Vec<(NodeId, Message)>) {
        let late: Vec<u64> = self
            .window
            .iter()
            .filter(|(_, (_, sent_at))| now.saturating_sub(*sent_at) >= RESEND_AFTER)
            .map(|(index, _)| *index)
            .collect();
        for index in late {
            self.send_piece(index, now, host, out);
        }
        while self.window.len() < WINDOW {
            let Some(index) = self.dirty.take(self.next) else {
                if self.next > 0 {
                    (self.next, self.passes) = (0, self.passes + 1);
                    continue;
                }
                return;
            };
            self.next = index + 1;
            // A piece in flight that was written again is sent in a new version, which replaces the earlier one.
            self.send_piece(index, now, host, out);
        }
    }

    fn send_piece(
        &mut self,
        index: u64,
        now: Duration,
        host: &mut dyn Host,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let Some(version) = self.version.checked_add(1) else {
            self.refused = Some("more was written than was ever copied".to_owned());
            return;
        };
        let offset = index * PIECE_BYTES;
        let mut bytes = vec![0; (self.plan.bytes - offset).min(PIECE_BYTES) as usize];
        host.load(self.plan.base + offset, &mut bytes);
        if bytes.iter().all(|byte| *byte == 0) {
            bytes.clear();
        }
        self.version = version;
        self.sent += 1;
        self.window.insert(index, (version, now));
        out.push((self.plan.to.0, Message::Piece { id: self.plan.id, index, version, bytes }));
    }

    fn send_records(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        let total = self.records.len() as u32;
        for (index, sent_at) in self.open.iter_mut().take(WINDOW) {
            if sent_at.is_none_or(|sent_at| now.saturating_sub(sent_at) >= RESEND_AFTER) {
                *sent_at = Some(now);
                let bytes = self.records[*index as usize].clone();
                out.push((self.plan.to.0, Message::Record { id: self.plan.id, index: *index, total, bytes }));
            }
        }
    }

    pub(super) fn receive(&mut self, message: Message) {
        match message {
            Message::Accept { .. } if self.phase == Phase::Offering => self.enter(Phase::Copying),
            Message::Refuse { why, .. } => self.refuse(why),
            Message::Got { pieces, .. } => {
                for (index, version) in pieces {
                    if self.window.get(&index).is_some_and(|(last, _)| *last == version) {
                        self.window.remove(&index);
                    }
                }
            }
            Message::GotRecord { index, .. } if self.phase == Phase::Recording => {
                self.open.remove(&index);
            }
            Message::Sealed { .. } if self.phase == Phase::Sealing => {
                let generation = self.hold(Hold::Everything);
                self.enter(Phase::Closing(generation));
            }
            _ => {}
        }
    }

    /// The map does not list the migration any more: the range belongs to the target now, or stays here.
    fn end(&mut self, map: &Map, now: Duration, host: &mut dyn Host) -> Outcome {
        let Move { id, base, bytes, .. } = self.plan;
        let same = map
            .find(base)
            .is_some_and(|range| range.owner == Some(self.plan.from.0) && range.since == self.since);
        if same {
            host.cancel_leave(base, bytes);
            self.shared.hold(id, None);
            let why =
                self.refused.take().unwrap_or_else(|| "it was cancelled, or a node went down".to_owned());
            return Outcome::Cancelled { id, why };
        }
        // All requests were held before the commit, and every shard had noticed: nobody uses the memory.
        host.release(base, bytes);
        self.shared.hold(id, None);
        let held = self.frozen.map_or(Duration::ZERO, |frozen| now.saturating_sub(frozen));
        Outcome::Given { id, pieces: self.sent, held }
    }
}
