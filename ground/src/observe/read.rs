// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the stats page of another process, which may be hostile.
//!
//! - **Flow** fd of the page ──is it sealed? yes──▶ mapped read-only, read live ──no──▶ copied with pread at each
//!   [`StatsView::refresh`]: a page whose size can change must not be mapped, because its owner could shrink it and
//!   make the reader fault
//! - **Order** decisions: the sequence is read before and after the words (see [`decisions`](super::decisions)). Of an
//!   unsealed page two copies are made, and a decision counts if it is the same in both.
//! - **Owner** a view keeps the page alive after its process has ended.
//! - **Not here** trust in the contents: counts are just numbers, control characters are removed from text, and indices
//!   and sizes come from our own layout. Only magic, version, size and pid of the page decide if it is accepted.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use memlift_spec::Opcode;

use super::decisions::{self, DecisionRecord, Words};
use super::layout::{
    BUCKETS, Counters, DECISIONS, DecisionCell, Executor, FIELD_HELP_BYTES, FIELD_NAME_BYTES, FIELDS,
    FieldCells, Header, MAGIC, NO_OPCODE, OPCODE_SLOTS, OTHER_SLOT, ROW_COUNTERS, ROW_NAME_BYTES, ROWS, Ring,
    RowCells, SCHEMAS, STRIPES, SchemaCells, StatsPage, StripeCells, VERSION, WORD_BYTES, WaitingCounters,
};
use super::rows::{OPEN, STATE_MASK};
use super::stats::{
    Decision, OperationStats, ProcessStats, RowLatency, RowStats, RowValue, Snapshot, WaitingStats,
};
use crate::region::{Access, Region};

const PAGE_BYTES: usize = size_of::<StatsPage>();

/// The stats of another process, or of this one.
#[derive(Debug)]
pub struct StatsView {
    pid: u32,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Live(Region),
    /// Two copies, one after the other.
    Copied {
        first: Vec<u8>,
        second: Vec<u8>,
    },
}

/// Reason that a page was not accepted.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The file is not, or not yet, a stats page of that process.
    Foreign,
    /// The page has another version.
    Version(u64),
    /// The page could not be read.
    Os(std::io::Error),
}

impl Words for Region {
    fn word(&self, offset: usize, order: Ordering) -> u64 {
        self.whole().load_u64(offset as u64, order).unwrap_or(0)
    }
}

impl Words for Vec<u8> {
    fn word(&self, offset: usize, _: Ordering) -> u64 {
        let bytes = self.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    }
}

impl Words for StatsView {
    fn word(&self, offset: usize, order: Ordering) -> u64 {
        match &self.source {
            Source::Live(region) => region.word(offset, order),
            Source::Copied { second, .. } => second.word(offset, order),
        }
    }
}

/// Copies the start of a file; missing bytes are zero.
fn copy_page(fd: &OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; PAGE_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(fd, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

impl StatsView {
    /// Accepts `fd` as the page of process `pid`, whose pid in its own namespace is `inner_pid`.
    pub(super) fn open(fd: OwnedFd, pid: u32, inner_pid: u32) -> Result<StatsView, Refusal> {
        let stat = rustix::fs::fstat(&fd).map_err(|error| Refusal::Os(error.into()))?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Refusal::Foreign);
        }
        let first = copy_page(&fd).map_err(Refusal::Os)?;
        let header = |offset: usize| first.word(offset, Ordering::Relaxed);
        if header(offset_of!(Header, magic)) != MAGIC
            || header(offset_of!(Header, pid)) != u64::from(inner_pid)
        {
            return Err(Refusal::Foreign);
        }
        let version = header(offset_of!(Header, version));
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        if header(offset_of!(Header, page_bytes)) != PAGE_BYTES as u64 {
            return Err(Refusal::Foreign);
        }
        let duplicate = fd.as_fd().try_clone_to_owned().map_err(Refusal::Os)?;
        let source = match Region::from_fd(duplicate, Access::ReadOnly, PAGE_BYTES as u64) {
            Ok(region) if region.sealed() => Source::Live(region),
            _ => Source::Copied { second: copy_page(&fd).map_err(Refusal::Os)?, first },
        };
        Ok(StatsView { pid, source })
    }

    /// Returns true if the page is mapped, and so always up to date.
    pub fn live(&self) -> bool {
        matches!(self.source, Source::Live(_))
    }

    /// Returns the process's pid in the reader's namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset, Ordering::Relaxed)
    }

    fn text(&self, offset: usize, bytes_max: usize) -> String {
        let bytes: Vec<u8> =
            (0..bytes_max / 8).flat_map(|index| self.load(offset + index * 8).to_le_bytes()).collect();
        clean_text(&bytes)
    }

    /// Returns the process's identity and totals.
    pub fn process(&self) -> ProcessStats {
        let operations = self.operations();
        let sum =
            |field: fn(&OperationStats) -> u64| operations.iter().map(field).fold(0u64, u64::saturating_add);
        ProcessStats {
            pid: self.pid,
            command: self.text(offset_of!(Header, command), 256),
            isa: self.text(offset_of!(Header, isa), 16),
            start_unix_ns: self.load(offset_of!(Header, start_unix_ns)),
            start_monotonic_ns: self.load(offset_of!(Header, start_monotonic_ns)),
            operations: sum(|row| row.operations),
            bytes: sum(|row| row.bytes),
            rows: (0..ROWS).filter(|index| self.row_state(*index) & STATE_MASK == OPEN).count() as u32,
            rows_refused: self.load(offset_of!(Header, rows_refused)),
            decisions: self.load(offset_of!(StatsPage, decisions) + offset_of!(Ring, head)),
            decisions_dropped: self.load(offset_of!(Header, decisions_dropped)),
        }
    }

    /// Returns the counters of each opcode and executor, without those that have no operations.
    pub fn operations(&self) -> Vec<OperationStats> {
        let opcodes: Vec<u8> = (0..OPCODE_SLOTS / 8)
            .flat_map(|index| self.load(offset_of!(Header, opcodes) + index * 8).to_le_bytes())
            .collect();
        let mut rows = Vec::new();
        for executor in Executor::ALL {
            for (slot, &opcode) in opcodes.iter().enumerate() {
                let cell = offset_of!(StatsPage, counters)
                    + (executor as usize * OPCODE_SLOTS + slot) * size_of::<Counters>();
                let small = |word| {
                    let place = offset_of!(StripeCells, small) + (slot * 2 + word) * 8;
                    if executor == Executor::InlineTemporal { self.striped(place) } else { 0 }
                };
                let untimed = small(0);
                let operations = self.load(cell + offset_of!(Counters, operations)).wrapping_add(untimed);
                if operations == 0 || (opcode == NO_OPCODE && slot != OTHER_SLOT) {
                    continue;
                }
                let histogram = (0..BUCKETS)
                    .map(|bucket| self.load(cell + offset_of!(Counters, histogram) + bucket * 8))
                    .collect();
                rows.push(OperationStats {
                    executor: executor.name().to_owned(),
                    opcode: if slot == OTHER_SLOT { "other".to_owned() } else { opcode_name(Opcode(opcode)) },
                    operations,
                    untimed,
                    bytes: self.load(cell + offset_of!(Counters, bytes)).wrapping_add(small(1)),
                    failures: self.load(cell + offset_of!(Counters, failures)),
                    total_ns: self.load(cell + offset_of!(Counters, total_ns)),
                    histogram,
                });
            }
        }
        rows
    }

    /// Returns the counters of waiting in this process.
    pub fn waiting(&self) -> WaitingStats {
        let load = |offset: usize| self.load(offset_of!(StatsPage, waiting) + offset);
        WaitingStats {
            waits: load(offset_of!(WaitingCounters, waits)),
            spin_hits: load(offset_of!(WaitingCounters, spin_hits)),
            spins: load(offset_of!(WaitingCounters, spins)),
            hardware_waits: load(offset_of!(WaitingCounters, hardware_waits)),
            sleeps: load(offset_of!(WaitingCounters, sleeps)),
            parks: load(offset_of!(WaitingCounters, parks)),
            wakes: load(offset_of!(WaitingCounters, wakes)),
            spin_ns: load(offset_of!(WaitingCounters, spin_ns)),
            park_ns: load(offset_of!(WaitingCounters, park_ns)),
            spin_budget_ns: load(offset_of!(WaitingCounters, spin_budget_ns)),
        }
    }

    /// Returns the sum over all stripes of the word at `place` in a stripe.
    fn striped(&self, place: usize) -> u64 {
        let stripe = |index| offset_of!(StatsPage, stripes) + index * size_of::<StripeCells>();
        let claimed = self.load(offset_of!(Header, stripes)).min(STRIPES as u64 - 1) as usize;
        let used = (0..claimed).chain([STRIPES - 1]);
        used.map(|index| self.load(stripe(index) + place)).fold(0, u64::wrapping_add)
    }

    /// Returns the sessions, pools and nodes that are open now.
    pub fn rows(&self) -> Vec<RowStats> {
        let schemas: Vec<Option<Schema>> = (0..SCHEMAS).map(|index| self.schema(index)).collect();
        (0..ROWS).filter_map(|index| self.row(index, &schemas)).collect()
    }

    fn schema(&self, index: usize) -> Option<Schema> {
        let cells = offset_of!(StatsPage, schemas) + index * size_of::<SchemaCells>();
        if self.word(cells + offset_of!(SchemaCells, state), Ordering::Acquire) != OPEN {
            return None;
        }
        let fields = (0..FIELDS)
            .map(|field| {
                let cells = cells + offset_of!(SchemaCells, fields) + field * size_of::<FieldCells>();
                let name = self.text(cells + offset_of!(FieldCells, name), FIELD_NAME_BYTES);
                let help = self.text(cells + offset_of!(FieldCells, help), FIELD_HELP_BYTES);
                is_word(&name).then_some((name, help))
            })
            .collect();
        let service = self.text(cells + offset_of!(SchemaCells, service), WORD_BYTES);
        is_word(&service).then_some(Schema { service, fields })
    }

    fn row_state(&self, index: usize) -> u64 {
        let row = offset_of!(StatsPage, rows) + index * size_of::<RowCells>();
        self.word(row + offset_of!(RowCells, state), Ordering::Acquire)
    }

    fn row(&self, index: usize, schemas: &[Option<Schema>]) -> Option<RowStats> {
        let row = offset_of!(StatsPage, rows) + index * size_of::<RowCells>();
        let load = |offset: usize| self.load(row + offset);
        let state = self.row_state(index);
        if state & STATE_MASK != OPEN {
            return None;
        }
        let schema = schemas.get(usize::try_from(load(offset_of!(RowCells, schema))).ok()?)?.as_ref()?;
        let value = |field: usize| match field.checked_sub(ROW_COUNTERS) {
            None => self.striped(offset_of!(StripeCells, rows) + (index * ROW_COUNTERS + field) * 8),
            Some(gauge) => load(offset_of!(RowCells, gauges) + gauge * 8),
        };
        let (numbers, latency) = schema.fields.split_at(FIELDS - 1);
        let values = numbers.iter().enumerate().filter_map(|(field, named)| {
            let (name, help) = named.clone()?;
            Some(RowValue { name, help, value: value(field) })
        });
        let histogram = || (0..BUCKETS).map(|bucket| load(offset_of!(RowCells, histogram) + bucket * 8));
        let latency = latency[0].clone().map(|(name, help)| RowLatency {
            name,
            help,
            histogram: histogram().collect(),
            total_ns: load(offset_of!(RowCells, total_ns)),
        });
        let stats = RowStats {
            service: schema.service.clone(),
            role: self.text(row + offset_of!(RowCells, role), WORD_BYTES),
            name: self.text(row + offset_of!(RowCells, name), ROW_NAME_BYTES),
            peer_pid: load(offset_of!(RowCells, peer_pid)) as u32,
            opened_unix_ns: load(offset_of!(RowCells, opened_unix_ns)),
            id: (index as u32, state >> 2),
            values: values.collect(),
            latency,
        };
        std::sync::atomic::fence(Ordering::Acquire);
        (self.row_state(index) == state).then_some(stats)
    }

    /// Returns the last decisions, oldest first, without those that are being written at this moment.
    pub fn decisions(&self) -> Vec<Decision> {
        let mut found: Vec<Decision> =
            (0..DECISIONS).filter_map(|index| self.decision(index)).map(plain_decision).collect();
        found.sort_by_key(|decision| decision.number);
        found
    }

    fn decision(&self, index: usize) -> Option<(u64, DecisionRecord)> {
        let cell =
            offset_of!(StatsPage, decisions) + offset_of!(Ring, cells) + index * size_of::<DecisionCell>();
        match &self.source {
            Source::Live(region) => decisions::read(region, cell),
            Source::Copied { first, second } => {
                // The page may have changed during each copy: only a cell that is the same in both was not
                // being written.
                let whole = cell..cell + size_of::<DecisionCell>();
                if first.get(whole.clone()) == second.get(whole) {
                    decisions::read(second, cell)
                } else {
                    None
                }
            }
        }
    }

    /// Reads the whole page.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            process: self.process(),
            operations: self.operations(),
            waiting: self.waiting(),
            rows: self.rows(),
            decisions: self.decisions(),
        }
    }
}

/// Meaning of a kind of rows: its service, and name and help of each used field.
struct Schema {
    service: String,
    fields: Vec<Option<(String, String)>>,
}

/// Returns true if a text can be part of a metric's name.
fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

fn plain_decision((number, record): (u64, DecisionRecord)) -> Decision {
    Decision {
        number,
        time_ns: record.time_ns,
        opcode: opcode_name(record.opcode),
        executor: record.executor.name().to_owned(),
        cache_state: record.cache_state.name().to_owned(),
        size: record.size,
        predicted_ns: record.predicted_ns,
        measured_ns: record.measured_ns,
        reason: record.reason,
    }
}

fn opcode_name(opcode: Opcode) -> String {
    match opcode.name() {
        "unknown" => format!("0x{:02x}", opcode.0),
        name => name.to_owned(),
    }
}

/// Returns the text up to the first NUL, without characters that could control a terminal.
fn clean_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_strangers_cannot_steer_a_terminal() {
        assert_eq!(clean_text(b"ok\x1b[2J\0rest"), "ok\u{fffd}[2J");
        assert_eq!(clean_text(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn opcodes_without_a_name_show_their_number() {
        assert_eq!(opcode_name(Opcode::MEMMOVE), "memmove");
        assert_eq!(opcode_name(Opcode(0xc1)), "0xc1");
    }
}
