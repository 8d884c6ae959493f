// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a node as records: replayed in order, they make the same node.
//!
//! - **Flow** [`Snapshot::of`] under the writer's lock ─▶ [`Snapshot::pass_on`] without it, while the node serves ─▶ a new log (`compact`), or a
//!   backup (`replica`)
//! - **Order** memory is read after the rest was noted, and records hold the bytes that were stored. So the records that the writer makes
//!   after the noting, replayed over the snapshot, give the memory as it is then, whatever changed while it was read
//! - **Rule** taken only while no range is arriving or leaving: a snapshot cannot hold that intermediate state

use std::io;
use std::sync::PoisonError;

use super::history::Run;
use super::log::{Change, Entry, RangeStep};
use super::once::{Id, Known};
use super::writer::Writer;
use super::{Core, upload_of};
use crate::map::ADDRESS_END;

/// Bytes of memory in one record.
const PIECE_BYTES: u64 = 64 << 10;

/// See the module's header.
pub(super) struct Snapshot {
    part: Vec<u8>,
    cuts: Vec<u8>,
    extents: Vec<(u64, u64)>,
    owned: Vec<(u64, u64)>,
    outcomes: Vec<(Id, Known)>,
    watermarks: Vec<Id>,
    bounds: Vec<(u32, u64)>,
    epoch: u64,
    clock: u32,
    cluster: u64,
    declared: Vec<(u64, u32)>,
    /// All starts of the node, and the number of changes so far.
    history: (Vec<Run>, u64),
}

impl Snapshot {
    /// Notes the state of a node, except its memory and programs.
    pub(super) fn of(writer: &Writer) -> Snapshot {
        Snapshot {
            part: writer.allocator.part(0, ADDRESS_END).encode(),
            cuts: writer.allocator.cuts().flat_map(u64::to_le_bytes).collect(),
            extents: writer.allocator.extents().map(|(base, bytes, _)| (base, bytes)).collect(),
            owned: writer.allocator.stretches(),
            outcomes: writer.once.all(),
            watermarks: writer.once.watermarks(),
            bounds: writer.once.bounds(),
            epoch: writer.epoch,
            clock: writer.clock.now(),
            cluster: writer.cluster,
            history: writer.history.all(),
            declared: writer.declared.iter().map(|(address, tenant)| (*address, *tenant)).collect(),
        }
    }

    /// Passes the records to `put`. The reader of the records has the memory `first` (first address, bytes) at its start.
    pub(super) fn pass_on(
        self,
        core: &Core,
        first: (u64, u64),
        put: &mut dyn FnMut(Entry) -> io::Result<()>,
    ) -> io::Result<()> {
        let plain = |change| Entry { change, request: None };
        let programs: Vec<(u32, Vec<u8>)> = {
            let registry = core.registry.read().unwrap_or_else(PoisonError::into_inner);
            registry.list().map(|(tenant, runner)| (tenant, upload_of(runner.program()))).collect()
        };
        for (base, bytes) in core.memory.stretches().filter(|stretch| *stretch != first) {
            if self.owned.iter().any(|one| one.0 < base + bytes && base < one.0 + one.1) {
                put(plain(Change::RangeStep(RangeStep::Reserve, base, bytes)))?;
                put(plain(Change::RangeStep(RangeStep::Keep, base, bytes)))?;
            }
        }
        for (base, bytes) in self.extents {
            let mut address = base;
            while address < base + bytes {
                let length = PIECE_BYTES.min(base + bytes - address);
                if let Some(change) = piece(core, address, length) {
                    put(plain(change))?;
                }
                address += length;
            }
        }
        put(plain(Change::State(self.part, self.cuts)))?;
        put(plain(Change::Cluster(self.cluster)))?;
        put(plain(Change::Clock(self.clock)))?;
        for id in self.watermarks {
            put(plain(Change::Settled(id)))?;
        }
        for (tenant, bound) in self.bounds {
            put(plain(Change::Forgotten(tenant, bound)))?;
        }
        for (id, known) in self.outcomes {
            put(Entry { change: Change::None, request: Some((id, known)) })?;
        }
        for (address, tenant) in self.declared {
            put(plain(Change::Declare(tenant, address)))?;
        }
        for (tenant, upload) in programs {
            put(plain(Change::Program(tenant, upload)))?;
        }
        put(plain(Change::Epoch(self.epoch)))?;
        // Last: the records above are no new changes.
        let (runs, made) = self.history;
        runs.into_iter().try_for_each(|run| put(plain(Change::Run(run, made))))
    }
}

/// Returns a piece of memory as it is now, without leading and trailing zeros; `None` if it is all zero.
fn piece(core: &Core, address: u64, length: u64) -> Option<Change> {
    let mut bytes = Vec::with_capacity(length as usize);
    core.memory.load(address, length as usize, &mut bytes);
    let first = bytes.iter().position(|byte| *byte != 0)? / 8 * 8;
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    Some(Change::Write(address + first as u64, bytes[first..=last].to_vec()))
}
