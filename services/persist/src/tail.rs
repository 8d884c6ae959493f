// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lane of the log ends in a torn tail or in damage: telling them apart.
//!
//! - **Rule** a record carries `durable_to`, the position up to which all earlier records of its lane were durable when it was
//!   written. A bad record before the `durable_to` of any later good one is damage; otherwise it is a torn tail, whatever lies
//!   behind it: a power cut may tear the records of one unsynced group in any order
//! - **Order** where all transactions follow each other (one section, or commits by pages), lanes vouch for each other as well.
//!   Sequences are dense, and a record of an own lane, or a good one of the shared lane, was written after everything of the own
//!   lanes that precedes it was durable. So a missing sequence below the last good one is damage
//! - **Version** records without a claim are of pools that an earlier release wrote. There, a good record behind a bad one counts
//!   as damage: nothing that was acknowledged is dropped in silence
//! - **Not here** reading the lanes: `recover`

use crate::layout::Header;
use crate::options::Mechanism;
use memlift_spec::formats::log::RecordHeader;

/// A good record of a lane.
pub(crate) struct Found {
    pub header: RecordHeader,
    pub lane: usize,
}

/// The transactions that damage in the log may cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogDamage {
    /// The first sequence that is lost.
    pub from: u64,
    /// Transactions that may be lost with it.
    pub transactions: u64,
    /// A sentence for the user.
    pub what: String,
}

/// Returns true if transactions follow each other, so that a later one's record says that all earlier ones are durable: with one
/// section, and where commits are by pages. Undo gives no dense sequences.
pub(crate) fn one_order(header: &Header) -> bool {
    match Mechanism::from_byte(header.mechanism) {
        Some(Mechanism::Checkpoint | Mechanism::Shadow) => true,
        Some(Mechanism::Redo) => header.sections == 1,
        Some(Mechanism::Undo) | None => false,
    }
}

/// The log as far as it was read.
pub(crate) struct Log<'a> {
    pub header: &'a Header,
    /// Every transaction up to this sequence is applied.
    pub applied: u64,
    /// The good records of each lane up to the first bad one, by sequence.
    pub found: &'a [Found],
    /// Good records behind the first bad one of their lane.
    pub behind: &'a [Found],
    /// Where each lane's good records end.
    pub ends: &'a [u64],
}

impl Log<'_> {
    /// The damage that would lose most transactions; None: there is none.
    pub fn damage(&self) -> Option<LogDamage> {
        let lanes = (0..self.ends.len()).filter_map(|lane| self.claimed(lane));
        let (from, mut what) = lanes.chain(self.missing()).min_by_key(|(from, _)| *from)?;
        let last = self.found.iter().chain(self.behind).map(|one| one.header.sequence).max().unwrap_or(from);
        let good = self.behind.len();
        if good > 0 {
            what += &format!(" ({good} good records lie behind damaged ones)");
        }
        if self.undo() {
            what += ". It held what interrupted transactions had changed, to put it back";
        }
        let transactions = last.saturating_sub(from).saturating_add(1);
        Some(LogDamage { from, transactions, what })
    }

    fn undo(&self) -> bool {
        self.header.mechanism == Mechanism::Undo as u8
    }

    /// The first lost sequence of a lane whose later records claim that what is bad was durable.
    fn claimed(&self, lane: usize) -> Option<(u64, String)> {
        let end = self.ends[lane];
        let claims = |one: &&Found| {
            one.lane == lane
                && one.header.sequence > self.applied
                && one.header.durable_to().is_none_or(|durable_to| durable_to > end)
        };
        let witness = self.behind.iter().filter(claims).min_by_key(|one| one.header.position)?;
        let own = self.found.iter().filter(|one| one.lane == lane);
        let before = own.map(|one| one.header.sequence).max().unwrap_or(self.applied);
        let from = if self.undo() { before } else { self.absent(before, witness.header.sequence) };
        let place = self.header.lane_start(lane as u32) + end % self.header.lane_bytes;
        Some((
            from,
            format!(
                "the record at {place:#x} of the file (lane {lane}, position {end}) is not good, and transaction {} was written after it was durable",
                witness.header.sequence
            ),
        ))
    }

    /// The first sequence after `before` that no good record has.
    fn absent(&self, before: u64, last: u64) -> u64 {
        let mut wanted = before + 1;
        for one in self.found.iter().filter(|one| one.header.sequence > before) {
            if one.header.sequence != wanted {
                break;
            }
            wanted += 1;
        }
        wanted.min(last)
    }

    /// The first sequence that is missing below a good one, where all transactions follow each other.
    fn missing(&self) -> Option<(u64, String)> {
        if !one_order(self.header) {
            return None;
        }
        let last = self.found.last().map(|one| one.header.sequence)?;
        let from = self.absent(self.applied, last);
        if from == last {
            return None;
        }
        Some((
            from,
            format!("transaction {from} is missing, and transaction {last} was written after it was durable"),
        ))
    }
}
