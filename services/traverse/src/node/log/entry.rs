// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record of the log: a change of the node, and the request that caused it.
//!
//! - **Layout** [`Entry::write`] and [`Entry::read`] are each other's inverse; `docs/formats/packet.md` defines the bytes
//! - **Order** change and request are one entry: after a crash either both are there or neither. A change holds results (the
//!   bytes stored, the addresses allocated), so an entry may be replayed over memory that already contains it
//! - **Not here** the framing of an entry as a record of a file (`frame`)

use super::super::history::Run;
use super::super::once::{Id, Known, Outcome};
use super::Durability;
use crate::wire::{ApplyOperands, Status};

/// Change of a node that an entry records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// No change: the entry concerns its request only, or marks a sync.
    None,
    /// Bytes were stored: address, bytes.
    Write(u64, Vec<u8>),
    /// Memory was allocated: tenant, bytes, address.
    Allocate(u32, u64, u64),
    /// Memory was freed: tenant, address, bytes.
    Free(u32, u64, u64),
    /// A stretch of addresses went through a step: step, first address, bytes.
    RangeStep(RangeStep, u64, u64),
    /// A program was registered: tenant, upload.
    Program(u32, Vec<u8>),
    /// A range has arrived in the memory reserved for it: first address, bytes, and the allocator's data about it from
    /// the last node.
    Take(u64, u64, Vec<u8>),
    /// In a snapshot: the allocator's data about all addresses, and its cuts as words.
    State(Vec<u8>, Vec<u8>),
    /// The node knows the map of this epoch.
    Epoch(u64),
    /// A client's requests before this one are settled.
    Settled(Id),
    /// Sessions of a tenant below this number were forgotten.
    Forgotten(u32, u64),
    /// The node's clock had this value, in seconds.
    Clock(u32),
    /// Number of the cluster that the memory belongs to, or of the memory itself.
    Cluster(u64),
    /// Blocks were allocated, and bytes stored in the first one: tenant, bytes of each, addresses, stored bytes.
    Place(u32, u64, Vec<u64>, Vec<u8>),
    /// Blocks were unlinked: tenant, address and bytes of each.
    Retire(u32, Vec<(u64, u64)>),
    /// Unlinked blocks became free: tenant, address, bytes of each.
    Ripe(Vec<(u32, u64, u64)>),
    /// Terms of a map were declared: tenant, address.
    Declare(u32, u64),
    /// The terms at this address are another node's to sweep, or gone.
    Undeclare(u64),
    /// The log is of this copy of a replicated node.
    Replica(u64),
    /// A node has opened the log: the machine's boot id, and the durability of the records that follow.
    Start([u8; 16], Durability),
    /// A start of the node, and the number of changes until now.
    Run(Run, u64),
}

/// Steps that a stretch of addresses of a node can go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RangeStep {
    /// The node gets the stretch, all zero.
    Grant = 0,
    /// The stretch will leave: from now on no allocation crosses its ends.
    Cut = 1,
    /// The stretch is about to leave: no memory of it is allocated any more.
    Detach = 2,
    /// The stretch stays after all: its memory is allocated again.
    Attach = 3,
    /// The stretch belongs to another node now.
    Give = 4,
    /// A range is about to arrive: memory is mapped for it.
    Reserve = 5,
    /// The range did not arrive: its memory is cleared.
    Discard = 6,
    /// In a snapshot: the reserved stretch belongs to the node; its contents follow.
    Keep = 7,
    /// The node was started with more memory: these addresses follow those that it had.
    Grow = 8,
}

impl RangeStep {
    fn from_byte(byte: u8) -> Option<RangeStep> {
        use RangeStep::{Attach, Cut, Detach, Discard, Give, Grant, Grow, Keep, Reserve};
        [Grant, Cut, Detach, Attach, Give, Reserve, Discard, Keep, Grow]
            .into_iter()
            .find(|one| *one as u8 == byte)
    }
}

/// One record: a change and the request that caused it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The change of the node.
    pub change: Change,
    /// The request that caused the change, and its state after it; `None`: no request caused it.
    pub request: Option<(Id, Known)>,
}

impl Entry {
    /// Returns the least format version of a log that has this entry.
    #[must_use]
    pub fn version(&self) -> u32 {
        match self.change {
            Change::Declare(..) | Change::Undeclare(..) => 5,
            Change::Replica(..) => 6,
            Change::Run(..) => 7,
            _ => 4,
        }
    }

    /// Appends the bytes of the entry.
    pub fn write(&self, to: &mut Vec<u8>) {
        let words = |to: &mut Vec<u8>, words: &[u64]| {
            words.iter().for_each(|w| to.extend_from_slice(&w.to_le_bytes()))
        };
        let piece = |to: &mut Vec<u8>, bytes: &[u8]| {
            to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            to.extend_from_slice(bytes);
        };
        match &self.change {
            Change::None => to.push(0),
            Change::Write(address, bytes) => {
                to.push(1);
                words(to, &[*address]);
                piece(to, bytes);
            }
            Change::Allocate(tenant, bytes, address) => {
                to.push(2);
                words(to, &[u64::from(*tenant), *bytes, *address]);
            }
            Change::Free(tenant, address, bytes) => {
                to.push(3);
                words(to, &[u64::from(*tenant), *address, *bytes]);
            }
            Change::RangeStep(what, base, bytes) => {
                to.extend_from_slice(&[4, *what as u8]);
                words(to, &[*base, *bytes]);
            }
            Change::Program(tenant, upload) => {
                to.push(5);
                words(to, &[u64::from(*tenant)]);
                piece(to, upload);
            }
            Change::Take(base, bytes, part) => {
                to.push(6);
                words(to, &[*base, *bytes]);
                piece(to, part);
            }
            Change::State(part, cuts) => {
                to.push(7);
                piece(to, part);
                piece(to, cuts);
            }
            Change::Epoch(epoch) => {
                to.push(8);
                words(to, &[*epoch]);
            }
            Change::Settled(id) => {
                to.push(9);
                words(
                    to,
                    &[u64::from(id.tenant), id.client, u64::from(id.incarnation), id.settled, id.session],
                );
            }
            Change::Forgotten(tenant, bound) => {
                to.push(10);
                words(to, &[u64::from(*tenant), *bound]);
            }
            Change::Clock(clock) => {
                to.push(11);
                words(to, &[u64::from(*clock)]);
            }
            Change::Cluster(cluster) => {
                to.push(12);
                words(to, &[*cluster]);
            }
            Change::Place(tenant, bytes, addresses, stored) => {
                to.push(14);
                words(to, &[u64::from(*tenant), *bytes, addresses.len() as u64]);
                words(to, addresses);
                piece(to, stored);
            }
            Change::Retire(tenant, blocks) => {
                to.push(15);
                words(to, &[u64::from(*tenant), blocks.len() as u64]);
                blocks.iter().for_each(|(address, bytes)| words(to, &[*address, *bytes]));
            }
            Change::Ripe(blocks) => {
                to.push(16);
                words(to, &[blocks.len() as u64]);
                blocks.iter().for_each(|(tenant, at, bytes)| words(to, &[u64::from(*tenant), *at, *bytes]));
            }
            Change::Declare(tenant, address) => {
                to.push(17);
                words(to, &[u64::from(*tenant), *address]);
            }
            Change::Undeclare(address) => {
                to.push(18);
                words(to, &[*address]);
            }
            Change::Replica(replica) => {
                to.push(19);
                words(to, &[*replica]);
            }
            Change::Run(run, made) => {
                to.push(20);
                words(to, &[run.number, run.incarnation, run.from, *made]);
            }
            Change::Start(boot, durability) => {
                to.push(13);
                to.extend_from_slice(boot);
                to.push(u8::from(*durability == Durability::Disk));
            }
        }
        let Some((id, known)) = &self.request else { return };
        let incarnation = u64::from(id.incarnation);
        words(to, &[u64::from(id.tenant), id.client, incarnation, id.sequence, id.settled, id.session]);
        match known {
            Known::Running(attempt) => {
                to.push(0);
                words(to, &[u64::from(*attempt)]);
            }
            Known::Decided(operands, body, since) => {
                to.push(1);
                to.extend_from_slice(&operands.bytes());
                words(to, &[u64::from(*since)]);
                piece(to, body);
            }
            Known::Settled(outcome, since) => {
                to.extend_from_slice(&[2, outcome.status.byte()]);
                words(to, &[outcome.value, outcome.address, u64::from(*since)]);
                piece(to, &outcome.body);
            }
        }
    }

    /// Decodes an entry; returns `None` if the bytes are not one.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Entry> {
        let mut rest = Cut(bytes);
        let change = match rest.byte()? {
            0 => Change::None,
            1 => Change::Write(rest.word()?, rest.piece()?),
            2 => Change::Allocate(rest.tenant()?, rest.word()?, rest.word()?),
            3 => Change::Free(rest.tenant()?, rest.word()?, rest.word()?),
            4 => Change::RangeStep(RangeStep::from_byte(rest.byte()?)?, rest.word()?, rest.word()?),
            5 => Change::Program(rest.tenant()?, rest.piece()?),
            6 => Change::Take(rest.word()?, rest.word()?, rest.piece()?),
            7 => Change::State(rest.piece()?, rest.piece()?),
            8 => Change::Epoch(rest.word()?),
            9 => {
                let (tenant, client, incarnation) = (rest.tenant()?, rest.word()?, rest.tenant()?);
                let (settled, session) = (rest.word()?, rest.word()?);
                Change::Settled(Id { tenant, client, incarnation, sequence: settled, settled, session })
            }
            10 => Change::Forgotten(rest.tenant()?, rest.word()?),
            11 => Change::Clock(rest.tenant()?),
            12 => Change::Cluster(rest.word()?),
            13 => {
                let (boot, behind) = rest.0.split_first_chunk()?;
                rest.0 = behind;
                let durability = match rest.byte()? {
                    0 => Durability::Process,
                    1 => Durability::Disk,
                    _ => return None,
                };
                Change::Start(*boot, durability)
            }
            14 => {
                let (tenant, bytes, count) = (rest.tenant()?, rest.word()?, rest.word()?);
                let addresses = (0..count).map(|_| rest.word()).collect::<Option<_>>()?;
                Change::Place(tenant, bytes, addresses, rest.piece()?)
            }
            15 => {
                let (tenant, count) = (rest.tenant()?, rest.word()?);
                let block = |_| Some((rest.word()?, rest.word()?));
                Change::Retire(tenant, (0..count).map(block).collect::<Option<_>>()?)
            }
            16 => {
                let count = rest.word()?;
                let block = |_| Some((rest.tenant()?, rest.word()?, rest.word()?));
                Change::Ripe((0..count).map(block).collect::<Option<_>>()?)
            }
            17 => Change::Declare(rest.tenant()?, rest.word()?),
            18 => Change::Undeclare(rest.word()?),
            19 => Change::Replica(rest.word()?),
            20 => {
                let run = Run { number: rest.word()?, incarnation: rest.word()?, from: rest.word()? };
                Change::Run(run, rest.word()?)
            }
            _ => return None,
        };
        if rest.0.is_empty() {
            return Some(Entry { change, request: None });
        }
        let id = Id {
            tenant: rest.tenant()?,
            client: rest.word()?,
            incarnation: rest.tenant()?,
            sequence: rest.word()?,
            settled: rest.word()?,
            session: rest.word()?,
        };
        let known = match rest.byte()? {
            0 => Known::Running(rest.tenant()?),
            1 => {
                let (operands, since) = (rest.operands()?, rest.tenant()?);
                Known::Decided(operands, rest.piece()?, since)
            }
            2 => {
                let (status, value, address) = (Status::from_byte(rest.byte()?)?, rest.word()?, rest.word()?);
                let since = rest.tenant()?;
                Known::Settled(Outcome { status, value, address, body: rest.piece()? }, since)
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(Entry { change, request: Some((id, known)) })
    }
}

/// Bytes that are consumed from the front.
struct Cut<'a>(&'a [u8]);

impl Cut<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn tenant(&mut self) -> Option<u32> {
        self.word()?.try_into().ok()
    }

    fn operands(&mut self) -> Option<ApplyOperands> {
        Some(ApplyOperands { kind: self.word()?, address: self.word()?, a: self.word()?, b: self.word()? })
    }

    fn piece(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(piece.to_vec())
    }
}
