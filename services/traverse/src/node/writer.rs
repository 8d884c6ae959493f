// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writer makes all changes of memory: allocations, writes and applies. Each is made once and logged.
//!
//! - **Flow** request ─▶ `once` decides if it runs ─▶ change ─▶ outcome and log record together ─▶ [`Writer::commit`] ─▶ the
//!   answer may leave
//! - **Order** a node has one writer, behind a lock that no walk takes; so all changes of a node have one order, that of the
//!   log
//! - **Owner** the writer has the allocator, the remembered requests and the log
//! - **Not here** walks; the node to which an address belongs (`shard` checks that before); ranges that arrive and leave
//!   (`stretch`)

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use memlift_spec::formats::walk::{ApplyKind, TERMS_BYTES};

use super::NodeError;
use super::clock::Clock;
use super::gate::Gate;
use super::history::{History, Run};
use super::log::{Change, Durability, Entry, Log, LogError, OpenLog, Replayed};
use super::once::{Begin, Id, Known, Once, Outcome};
use super::registry::{Registry, program_of};
use crate::map::ADDRESS_END;
use crate::memory::{Allocator, AllocatorState, Memory, Usage};
use crate::structures::Addend;
use crate::wire::{ApplyOperands, Header, Kind, Status};

/// Most blocks that one request may ask for.
const PLACES_MAX: u32 = 64;
/// Most maps that a node sweeps for one tenant.
const DECLARED_MAX: usize = 4096;

/// See the module's header.
#[derive(Debug)]
pub struct Writer {
    pub(super) memory: Arc<Memory>,
    pub(super) allocator: Allocator,
    pub(super) once: Once,
    pub(super) log: Option<Log>,
    /// Ranges that are arriving: first address, bytes.
    pub(super) reserved: BTreeMap<u64, u64>,
    /// The newest epoch of the map that this node has seen, over all its starts.
    pub(super) epoch: u64,
    /// Shared with the shards.
    pub(super) clock: Arc<Clock>,
    /// Last value of the clock that was logged.
    pub(super) logged_clock: u32,
    /// Number of the cluster that the memory belongs to, or of the memory itself; 0: not known yet.
    pub(super) cluster: u64,
    /// Addresses of the terms of the maps that this node sweeps, each with its tenant.
    pub(super) declared: BTreeMap<u64, u32>,
    /// Number of this copy of a replicated node; 0: none.
    pub(super) replica: u64,
    /// Shared with the shards.
    pub(super) history: Arc<History>,
    /// Gate of a replicated node, through which the backup gets all records.
    pub(super) gate: Option<Arc<Gate>>,
}

impl Writer {
    /// Makes the writer of an empty memory. If there is a log, it is replayed: its changes into the memory, its programs
    /// into the registry.
    pub(super) fn open(
        memory: Arc<Memory>,
        clients: usize,
        log: Option<(&Path, Durability)>,
        registry: &mut Registry,
        clock: Clock,
    ) -> Result<(Writer, Replayed), NodeError> {
        let (once, reserved) = (Once::new(clients), BTreeMap::new());
        let (base, bytes) = (memory.base(), memory.bytes());
        let opened = match log {
            Some((path, durability)) => Some((OpenLog::open(path, base, bytes)?, path, durability)),
            None => None,
        };
        let first = opened.as_ref().map_or(bytes, |(log, ..)| log.first_bytes());
        let allocator = Allocator::for_range(memory.clone(), base, first);
        let clock = Arc::new(clock);
        let mut writer = Writer {
            allocator,
            once,
            log: None,
            reserved,
            epoch: 0,
            memory,
            clock,
            logged_clock: 0,
            cluster: 0,
            declared: BTreeMap::new(),
            replica: 0,
            history: Arc::default(),
            gate: None,
        };
        let Some((mut log, path, durability)) = opened else { return Ok((writer, Replayed::default())) };
        let mut wrong = None;
        let replayed = log.replay(|entry| {
            if wrong.is_none() {
                wrong = writer.again(entry, registry).err();
            }
        })?;
        if let Some(what) = wrong {
            return Err(NodeError::Replay { path: path.to_owned(), what });
        }
        if let Some((base, bytes)) = log.grown() {
            writer.allocator.grow(base, bytes);
        }
        writer.log = Some(log.start(durability)?);
        Ok((writer, replayed))
    }

    /// Repeats the change of a log's record.
    pub(super) fn again(&mut self, entry: Entry, registry: &mut Registry) -> Result<(), String> {
        match entry.change {
            Change::None | Change::Start(..) => {}
            Change::Write(address, bytes) => {
                if !self.memory.holds_all(address, bytes.len() as u64) {
                    return Err(format!("a write at {address:#x} is outside of the memory"));
                }
                self.memory.store(address, &bytes);
            }
            Change::Allocate(tenant, bytes, address) => self.claim(tenant, bytes, address)?,
            Change::Place(tenant, bytes, addresses, stored) => {
                for &address in &addresses {
                    self.claim(tenant, bytes, address)?;
                }
                match addresses.first() {
                    Some(&first) if stored.len() as u64 <= bytes => self.memory.store(first, &stored),
                    _ => return Err("a block is stored that was not given".to_owned()),
                }
            }
            Change::Retire(tenant, blocks) => {
                for (address, bytes) in blocks {
                    if !self.allocator.retire(tenant, address, bytes) {
                        return Err(format!("{address:#x} was unlinked, but not given"));
                    }
                    self.drop_declared(address, bytes);
                }
            }
            Change::Ripe(blocks) => {
                for (tenant, address, bytes) in blocks {
                    if !self.allocator.unretire(tenant, address, bytes) {
                        return Err(format!("{address:#x} is free, but was not unlinked"));
                    }
                }
            }
            Change::Free(tenant, address, bytes) => {
                if !self.allocator.free(tenant, address, bytes) {
                    return Err(format!("{address:#x} is given back, but was not given"));
                }
                self.drop_declared(address, bytes);
            }
            Change::Declare(tenant, address) => {
                self.declared.insert(address, tenant);
            }
            Change::Undeclare(address) => {
                self.declared.remove(&address);
            }
            Change::RangeStep(what, base, bytes) => self.stretch(what, base, bytes)?,
            Change::Take(base, bytes, part) => {
                let part = AllocatorState::decode(&part, base, bytes)?;
                self.reserved.remove(&base);
                self.allocator.adopt_range(base, bytes, &part);
            }
            Change::State(part, cuts) => {
                let part = AllocatorState::decode(&part, 0, ADDRESS_END)?;
                let cuts =
                    cuts.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
                self.allocator = Allocator::restore(self.memory.clone(), cuts, &part);
            }
            Change::Epoch(epoch) => self.epoch = self.epoch.max(epoch),
            Change::Settled(id) => self.once.settled(&id),
            Change::Forgotten(tenant, bound) => self.once.bound(tenant, bound),
            Change::Clock(clock) => {
                self.clock.merge(clock);
                self.logged_clock = clock;
            }
            Change::Cluster(cluster) => self.cluster = cluster,
            Change::Replica(replica) => self.replica = replica,
            Change::Run(run, made) => self.history.take(run, made),
            Change::Program(tenant, upload) => {
                let program = program_of(&upload)?;
                registry.insert(tenant, program).map_err(|(_, reason)| reason)?;
            }
        }
        if let Some((id, known)) = entry.request {
            self.history.count();
            self.once.note(&id, known);
        }
        Ok(())
    }

    fn claim(&mut self, tenant: u32, bytes: u64, address: u64) -> Result<(), String> {
        let claimed = self.allocator.claim(tenant, address, bytes);
        claimed.map_err(|why| format!("an allocation of {bytes} bytes at {address:#x}: {why}"))
    }

    /// Decides about an attempt of a request.
    pub fn begin(&mut self, header: &Header) -> Begin {
        self.once.begin(&Id::of(header), header.attempt)
    }

    /// Returns true if this attempt still counts.
    #[must_use]
    pub fn is_current_attempt(&self, header: &Header) -> bool {
        self.once.is_current_attempt(&Id::of(header), header.attempt)
    }

    /// Forgets an attempt whose result need not be remembered.
    pub fn forget(&mut self, header: &Header) {
        self.once.forget(&Id::of(header), header.attempt);
    }

    /// Remembers and logs the outcome of a request.
    pub fn settle(&mut self, header: &Header, change: Change, outcome: &Outcome) {
        self.note(header, change, Known::Settled(outcome.clone(), header.clock));
    }

    /// Remembers and logs the change that a request will make at another node.
    pub fn decide(&mut self, header: &Header, operands: ApplyOperands, body: &[u8]) {
        self.note(header, Change::None, Known::Decided(operands, body.to_vec(), header.clock));
    }

    /// Returns the number below which a tenant's sessions were forgotten.
    #[must_use]
    pub fn session_bound(&self, tenant: u32) -> u64 {
        self.once.bound_of(tenant)
    }

    /// Ends the session of a client.
    pub fn end(&mut self, header: &Header) {
        self.once.end(&Id::of(header));
    }

    /// Notes and logs the number of the memory's cluster, or of the memory itself.
    pub(super) fn belongs_to(&mut self, cluster: u64) {
        if self.cluster != cluster {
            self.cluster = cluster;
            self.append(Change::Cluster(cluster));
        }
    }

    /// Notes and logs the number of this copy of a replicated node.
    pub(super) fn number(&mut self, replica: u64) {
        self.replica = replica;
        self.append(Change::Replica(replica));
    }

    /// Returns true if the request's change at another node is decided and its outcome is not known yet.
    #[must_use]
    pub fn is_decided(&self, header: &Header) -> bool {
        matches!(self.once.known(&Id::of(header)), Some(Known::Decided(..)))
    }

    fn note(&mut self, header: &Header, change: Change, known: Known) {
        let id = Id::of(header);
        self.once.note(&id, known.clone());
        self.record(Entry { change, request: Some((id, known)) });
    }

    /// Notes and logs that a start of the node begins, unless it has begun already.
    pub(super) fn begin_run(&mut self, incarnation: u64) {
        let (runs, from) = self.history.all();
        if runs.last().is_some_and(|last| incarnation != 0 && last.incarnation == incarnation) {
            return;
        }
        let run = Run { number: self.history.draw(), incarnation, from };
        self.history.take(run, from);
        self.append(Change::Run(run, from));
    }

    /// Counts a change, and queues its record.
    pub(super) fn record(&mut self, entry: Entry) {
        if entry.request.is_some() {
            self.history.count();
        }
        self.queue(entry);
    }

    /// Queues a record for the log and for the backup.
    pub(super) fn queue(&mut self, entry: Entry) {
        if let Some(gate) = &self.gate {
            gate.record(&entry);
        }
        if let Some(log) = &mut self.log {
            log.append(&entry);
        }
    }

    /// Carries out a begun request that changes memory; its answer is remembered.
    pub fn run(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let plain = |status| Outcome { status, value: 0, address: header.address, body: Vec::new() };
        let tenant = header.tenant;
        self.ripen();
        let (change, outcome) = match header.kind {
            Kind::Allocate | Kind::Place => match self.place(header, body) {
                Ok((change, addresses)) => {
                    let address = addresses.first().copied().unwrap_or(0);
                    let outcome = Outcome { address, value: header.value, ..plain(Status::Done) };
                    let all = if header.kind == Kind::Place { &addresses[..] } else { &[] };
                    let body = all.iter().flat_map(|address| address.to_le_bytes()).collect();
                    (change, Outcome { body, ..outcome })
                }
                // Memory of a range that is leaving may be available again soon: the answer is not remembered, and the
                // client asks again.
                Err(Status::Full) if self.allocator.has_detached() => {
                    self.forget(header);
                    return plain(Status::Busy);
                }
                // The answer gives the milliseconds until enough retired memory is free.
                Err(Status::Full) => {
                    let blocks = if header.kind == Kind::Place { u64::from(header.pieces.max(1)) } else { 1 };
                    let wait = self.allocator.wait_for(header.value.saturating_mul(blocks), self.clock.now());
                    let value = wait.map_or(0, |wait| wait.as_millis() as u64 + 1);
                    (Change::None, Outcome { value, ..plain(Status::Full) })
                }
                Err(status) => (Change::None, plain(status)),
            },
            Kind::Retire => {
                let word = |at: usize| body[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
                let blocks = (0..body.len() / 16).map(|at| (word(at * 16), word(at * 16 + 8)));
                // Blocks of a range that has left meanwhile are retired by its new node.
                let retired: Vec<(u64, u64)> = blocks
                    .filter(|(address, bytes)| self.allocator.retire(tenant, *address, *bytes))
                    .collect();
                self.allocator.stamp(self.clock.now());
                match retired.is_empty() {
                    true => (Change::None, plain(Status::Forbidden)),
                    false => {
                        let value = retired.len() as u64;
                        retired.iter().for_each(|&(address, bytes)| self.drop_declared(address, bytes));
                        (Change::Retire(tenant, retired), Outcome { value, ..plain(Status::Done) })
                    }
                }
            }
            Kind::Free => {
                if self.allocator.free(tenant, header.address, header.value) {
                    self.drop_declared(header.address, header.value);
                    (Change::Free(tenant, header.address, header.value), plain(Status::Done))
                } else {
                    (Change::None, plain(Status::Forbidden))
                }
            }
            Kind::Declare => match self.declare(tenant, header.address) {
                Ok(change) => (change, plain(Status::Done)),
                Err(status) => (Change::None, plain(status)),
            },
            Kind::Write => {
                if self.allocator.may_write(tenant, header.address, body.len() as u64) {
                    self.memory.store(header.address, body);
                    (Change::Write(header.address, body.to_vec()), plain(Status::Done))
                } else {
                    (Change::None, plain(Status::Forbidden))
                }
            }
            _ => (Change::None, plain(Status::BadRequest)),
        };
        self.settle(header, change, &outcome);
        outcome
    }

    /// Notes the terms of a map at an address of a tenant, so that this node sweeps the map.
    fn declare(&mut self, tenant: u32, address: u64) -> Result<Change, Status> {
        if !address.is_multiple_of(8) || !self.allocator.may_write(tenant, address, TERMS_BYTES) {
            return Err(Status::Forbidden);
        }
        if self.declared.get(&address) == Some(&tenant) {
            return Ok(Change::None);
        }
        if self.declared.values().filter(|of| **of == tenant).count() >= DECLARED_MAX {
            return Err(Status::Limit);
        }
        self.declared.insert(address, tenant);
        Ok(Change::Declare(tenant, address))
    }

    /// Forgets the declared terms in memory that was freed or retired just now. The log's record of that says so, too.
    fn drop_declared(&mut self, address: u64, bytes: u64) {
        let gone: Vec<u64> =
            self.declared.range(address..address.saturating_add(bytes)).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| {
            self.declared.remove(at);
        });
    }

    /// Forgets the declared terms at an address, and logs it.
    pub(super) fn undeclare(&mut self, address: u64) {
        if self.declared.remove(&address).is_some() {
            self.append(Change::Undeclare(address));
        }
    }

    /// Allocates all blocks that a request asks for, or none.
    fn place(&mut self, header: &Header, body: &[u8]) -> Result<(Change, Vec<u64>), Status> {
        let (tenant, bytes) = (header.tenant, header.value);
        let count = if header.kind == Kind::Place { header.pieces.max(1) } else { 1 };
        if count > PLACES_MAX || (header.kind == Kind::Place && body.len() as u64 > bytes) {
            return Err(Status::BadRequest);
        }
        let mut addresses = Vec::new();
        for _ in 0..count {
            let Some(address) = self.allocator.allocate(tenant, bytes) else {
                for address in addresses {
                    self.allocator.free(tenant, address, bytes);
                }
                return Err(Status::Full);
            };
            addresses.push(address);
        }
        if header.kind == Kind::Allocate {
            return Ok((Change::Allocate(tenant, bytes, addresses[0]), addresses));
        }
        self.memory.store(addresses[0], body);
        Ok((Change::Place(tenant, bytes, addresses.clone(), body.to_vec()), addresses))
    }

    /// Frees memory that was unlinked longer ago than the grace time.
    fn ripen(&mut self) {
        let ripe = self.allocator.ripe(self.clock.now());
        if !ripe.is_empty() {
            // A backup refuses by it what was read from its copy before the memory was unlinked.
            self.log_clock();
            self.append(Change::Ripe(ripe));
        }
    }

    /// Returns the memory's usage, after freeing retired memory whose grace time is over.
    pub fn usage(&mut self) -> Usage {
        if !self.is_full() {
            self.ripen();
        }
        self.allocator.usage()
    }

    /// Returns the memory's usage without freeing anything: memory whose grace time is over still counts as retired.
    #[must_use]
    pub fn usage_now(&self) -> Usage {
        self.allocator.usage()
    }

    /// Changes a word of this node for a begun request; the answer is remembered.
    pub fn apply(&mut self, header: &Header, operands: &ApplyOperands, body: &[u8]) -> Outcome {
        // Checked under the writer's lock: a request that reuses the memory has brought its clock before it wrote.
        if self.clock.outdated(header.clock) {
            let outcome =
                Outcome { status: Status::Outdated, value: 0, address: operands.address, body: Vec::new() };
            self.settle(header, Change::None, &outcome);
            return outcome;
        }
        let known = ApplyKind::from_number(operands.kind).is_some();
        let may = self.allocator.may_write(header.tenant, operands.address, 8);
        let (status, value) = match (known && operands.address.is_multiple_of(8), may) {
            (false, _) => (Status::BadRequest, 0),
            (true, false) => (Status::Forbidden, 0),
            (true, true) => self.change(operands),
        };
        let change = if status == Status::Applied {
            let mut stored = Vec::with_capacity(8);
            self.memory.load(operands.address, 8, &mut stored);
            Change::Write(operands.address, stored)
        } else {
            Change::None
        };
        let outcome = Outcome { status, value, address: operands.address, body: body.to_vec() };
        self.settle(header, change, &outcome);
        outcome
    }

    fn change(&mut self, operands: &ApplyOperands) -> (Status, u64) {
        match ApplyKind::from_number(operands.kind) {
            Some(ApplyKind::CompareSwap) => {
                let was = self.memory.compare_swap(operands.address, operands.a, operands.b);
                (if was == operands.a { Status::Applied } else { Status::Differs }, was)
            }
            Some(ApplyKind::FetchAdd) => {
                // Nobody else changes the word meanwhile.
                let was = self.memory.fetch_add(operands.address, 0);
                let checked = Addend::of_operands(operands.a, operands.b);
                if checked.is_some_and(|addend| addend.added_to(was).is_none()) {
                    return (Status::Differs, was);
                }
                let bits = match checked {
                    Some(Addend::Less(number)) => number.wrapping_neg(),
                    _ => operands.a,
                };
                (Status::Applied, self.memory.fetch_add(operands.address, bits))
            }
            None => (Status::BadRequest, 0),
        }
    }

    /// Logs a program that was registered.
    pub fn registered(&mut self, tenant: u32, upload: Vec<u8>) {
        self.append(Change::Program(tenant, upload));
    }

    /// Logs the clock if it has advanced.
    fn log_clock(&mut self) {
        let is_recorded = self.log.is_some() || self.gate.is_some();
        let clock = self.clock.now();
        if is_recorded && clock > self.logged_clock && !self.is_full() {
            self.logged_clock = clock;
            self.append(Change::Clock(clock));
        }
    }

    /// Writes the log; answers to changes may leave only afterwards. Returns false if the disk is full: then nothing may be
    /// answered or changed until a later call returns true.
    ///
    /// # Errors
    ///
    /// Any other error of the system: the node must stop.
    pub fn commit(&mut self) -> Result<bool, LogError> {
        self.log_clock();
        let is_written = self.log.as_mut().map_or(Ok(true), Log::commit)?;
        if is_written {
            self.history.commit();
        }
        Ok(is_written)
    }

    /// Does what [`Writer::commit`] does, for callers that cannot wait for room: a full disk is an error.
    pub(super) fn commit_now(&mut self) -> Result<(), LogError> {
        if self.commit()? {
            return Ok(());
        }
        let path = self.log.as_ref().map_or_else(Default::default, |log| log.path.clone());
        Err(LogError::System { path, error: std::io::ErrorKind::StorageFull.into() })
    }

    /// Returns true while the log's disk is full and the node refuses changes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_full)
    }

    /// Returns true if the request is remembered, so that it must not be refused as a new one.
    #[must_use]
    pub fn is_known(&self, header: &Header) -> bool {
        self.once.known(&Id::of(header)).is_some()
    }

    /// Returns the allocator, for programs in this process that fill the node's memory themselves. Changes made through it
    /// are not logged.
    pub fn allocator(&mut self) -> &mut Allocator {
        &mut self.allocator
    }

    /// Returns the free bytes, the bytes of the log, and the numbers of remembered clients and requests.
    #[must_use]
    pub fn size(&self) -> (u64, u64, (usize, usize)) {
        (self.allocator.usage().free, self.log.as_ref().map_or(0, Log::bytes), self.once.size())
    }
}
