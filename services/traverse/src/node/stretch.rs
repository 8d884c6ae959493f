// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stretches of addresses that a node's writer gets from other nodes and gives to them; each step is logged.
//!
//! - **Flow** a range that leaves: cut ─▶ detach ([`Writer::export`]) ─▶ give, or attach if it stays after all. A range that
//!   arrives: reserve ─▶ [`Writer::store_arriving`] ─▶ [`Writer::import`], or discard if it does not arrive
//! - **Layout** data that travels with the bytes of a range: length of the allocator's part u64, the part; then log entries, each
//!   behind its length u32: the clock, the forgotten sessions, the number up to which each client has settled, and the outcomes
//!   of requests about the range
//! - **Order** a step is carried out and logged under the writer's lock; replaying the log repeats the same steps
//! - **Owner** a range that has arrived is served only from the time at which the map gives it to this node; before that nobody
//!   serves it from here
//! - **Not here** the order and the time of steps (`mover`)

use super::log::{Change, Entry, LogError, RangeStep};
use super::once::Known;
use super::writer::Writer;
use crate::memory::AllocatorState;

impl Writer {
    /// Carries out a step, for the node or from its log.
    pub(super) fn stretch(&mut self, what: RangeStep, base: u64, bytes: u64) -> Result<(), String> {
        let good = base.is_multiple_of(4096)
            && bytes.is_multiple_of(4096)
            && bytes > 0
            && base.checked_add(bytes).is_some_and(|end| end <= crate::map::ADDRESS_END);
        if !good {
            return Err(format!("{bytes} bytes from {base:#x} on are no stretch of addresses"));
        }
        match what {
            RangeStep::Grant => {
                self.memory.add(base, bytes, false)?;
                self.allocator.grant(base, bytes);
            }
            RangeStep::Cut => self.allocator.cut(base, bytes)?,
            RangeStep::Detach => {
                self.allocator.detach(base, bytes)?;
            }
            RangeStep::Attach => self.allocator.attach(base),
            RangeStep::Give => self.allocator.give_away(base),
            RangeStep::Reserve => {
                self.memory.add(base, bytes, false)?;
                self.reserved.insert(base, bytes);
            }
            RangeStep::Discard => {
                if self.reserved.remove(&base).is_some() {
                    self.memory.clear(base, bytes);
                }
            }
            RangeStep::Keep => {
                self.reserved.remove(&base);
            }
            RangeStep::Grow => self.allocator.grow(base, bytes),
        }
        Ok(())
    }

    /// Carries out a step, and logs it.
    ///
    /// # Errors
    ///
    /// The reason that the step cannot be carried out; nothing has changed then.
    pub(super) fn step(&mut self, what: RangeStep, base: u64, bytes: u64) -> Result<(), String> {
        self.stretch(what, base, bytes)?;
        self.append(Change::RangeStep(what, base, bytes));
        Ok(())
    }

    pub(super) fn append(&mut self, change: Change) {
        self.record(Entry { change, request: None });
    }

    /// Adds addresses to the node that no node had before, and logs it.
    /// Returns all addresses of this node, as far as it knows: first, bytes. They include the ranges that are arriving or
    /// leaving.
    pub(super) fn grant(&mut self, base: u64, bytes: u64, prefault: bool) -> Result<(), String> {
        self.memory.add(base, bytes, prefault)?;
        self.allocator.grant(base, bytes);
        self.append(Change::RangeStep(RangeStep::Grant, base, bytes));
        Ok(())
    }

    /// Notes the epoch of a map, if it is newer.
    pub(super) fn saw(&mut self, epoch: u64) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.append(Change::Epoch(epoch));
        }
    }

    /// Returns all addresses that are this node's, as far as it knows: first, bytes. Those that come or leave just now are among
    /// them.
    #[must_use]
    pub fn stretches(&self) -> Vec<(u64, u64)> {
        let mut all = self.allocator.stretches();
        all.extend(self.reserved.iter().map(|(base, bytes)| (*base, *bytes)));
        all.sort_unstable();
        all
    }

    /// Detaches a range that leaves: its memory is not allocated from now on. Returns the data that travels with its bytes.
    pub(super) fn export(&mut self, base: u64, bytes: u64) -> Result<Vec<u8>, String> {
        self.step(RangeStep::Detach, base, bytes)?;
        let part = self.allocator.detach(base, bytes)?.encode();
        let mut all = (part.len() as u64).to_le_bytes().to_vec();
        all.extend_from_slice(&part);
        let mut entry = |entry: &Entry| {
            let start = all.len();
            all.extend_from_slice(&[0; 4]);
            entry.write(&mut all);
            let bytes = (all.len() - start - 4) as u32;
            all[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
        };
        entry(&Entry { change: Change::Clock(self.clock.now()), request: None });
        for (tenant, bound) in self.once.bounds() {
            entry(&Entry { change: Change::Forgotten(tenant, bound), request: None });
        }
        for id in self.once.watermarks() {
            entry(&Entry { change: Change::Settled(id), request: None });
        }
        for (id, known) in self.once.all() {
            if matches!(&known, Known::Settled(outcome, _) if outcome.address.wrapping_sub(base) < bytes) {
                entry(&Entry { change: Change::None, request: Some((id, known)) });
            }
        }
        Ok(all)
    }

    /// Stores bytes of a reserved range that is arriving; other bytes are dropped.
    pub(super) fn store_arriving(&mut self, address: u64, bytes: &[u8]) {
        let reserved = self.reserved.range(..=address).next_back();
        let inside = reserved.is_some_and(|(base, length)| {
            address - base < *length && bytes.len() as u64 <= *length - (address - base)
        });
        if inside {
            self.memory.store(address, bytes);
            self.append(Change::Write(address, bytes.to_vec()));
        }
    }

    /// Completes a range whose bytes have arrived, with the data that [`Writer::export`] of its last node returned.
    pub(super) fn import(&mut self, base: u64, bytes: u64, all: &[u8]) -> Result<(), String> {
        let broken = || "what came with the range cannot be read".to_owned();
        if self.reserved.get(&base) != Some(&bytes) {
            return Err("nothing was reserved for this range".to_owned());
        }
        let (length, rest) = all.split_first_chunk().ok_or_else(broken)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
        let (encoded, mut rest) = rest.split_at_checked(length).ok_or_else(broken)?;
        let part = AllocatorState::decode(encoded, base, bytes)?;
        let mut entries = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            let (entry, behind) = behind.split_at_checked(length).ok_or_else(broken)?;
            entries.push(Entry::read(entry).ok_or_else(broken)?);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(broken());
        }
        for entry in entries {
            match (&entry.change, &entry.request) {
                (Change::Settled(id), None) => self.once.settled(id),
                (Change::Forgotten(tenant, bound), None) => self.once.bound(*tenant, *bound),
                // Merged, so that a request that the range's last node would refuse as outdated is refused here too.
                (Change::Clock(clock), None) => drop(self.clock.merge(*clock)),
                // A request that is refused as stale here is not noted; it is over for its client.
                (Change::None, Some((id, known @ Known::Settled(..)))) => {
                    self.once.note(id, known.clone());
                }
                _ => return Err(broken()),
            }
            self.record(entry);
        }
        self.reserved.remove(&base);
        self.allocator.adopt_range(base, bytes, &part);
        self.append(Change::Take(base, bytes, encoded.to_vec()));
        self.commit_now().map_err(|error: LogError| error.to_string())
    }

    /// Drops addresses that the map does not give this node, with all data about them.
    pub(super) fn drop_stretch(&mut self, base: u64, bytes: u64) -> Result<(), String> {
        if self.reserved.contains_key(&base) {
            return self.step(RangeStep::Discard, base, bytes);
        }
        self.step(RangeStep::Detach, base, bytes)?;
        self.step(RangeStep::Give, base, bytes)
    }
}
