// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes of the stats page. `docs/formats/stats.md` defines the same layout for other languages.
//!
//! - **Layout** 0 [`Header`] 4096 · 4096 [`WaitingCounters`] 256 · 4352 [`Ring`] 64 + 256 × 64 · 20800 [`Counters`] 8 ×
//!   64 × 384 · 217408 [`SchemaCells`] 8 × 3264 · 243520 [`RowCells`] 96 × 704 · 311104 [`StripeCells`] 33 × 7168 ·
//!   547648 end. Everything is a little-endian u64, even text fields, so that every word can be an atomic.
//! - **Order** `magic` is stored last, with Release: a page without it is not complete yet.
//! - **Owner** the process named in `pid` writes; every process that may open its /proc/PID/fd may read.
//! - **Not here** making, finding and reading a page.

use std::sync::atomic::{AtomicU64, Ordering};

use memlift_spec::Opcode;

use crate::region::AtomicLayout;

/// Name of the memfd.
pub(super) const NAME: &str = "memlift-stats";
/// `MLSTATS1`, little endian.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"MLSTATS1");
/// Version of this layout.
pub(super) const VERSION: u64 = 2;
/// Rows of [`Counters`] by executor; those beyond [`Executor::ALL`] are reserved.
pub(super) const EXECUTOR_ROWS: usize = 8;
/// Slots by opcode; a table in the header gives the opcode of each slot.
pub(super) const OPCODE_SLOTS: usize = 64;
/// The slot shared by all opcodes without a slot of their own.
pub(super) const OTHER_SLOT: usize = OPCODE_SLOTS - 1;
/// Value in the header's opcode table for an unused slot, and for the slot of all other opcodes (the last one).
pub(super) const NO_OPCODE: u8 = 0xff;
/// Buckets of a latency histogram.
pub const BUCKETS: usize = 40;
/// Number of decisions in the ring.
pub const DECISIONS: usize = 256;
/// Most rows (sessions, pools, nodes and the like) of one process.
pub const ROWS: usize = 96;
/// Bytes of a row's name.
pub const ROW_NAME_BYTES: usize = 48;
/// Bytes of a row's role, and of a service's name.
pub(super) const WORD_BYTES: usize = 16;
/// Most kinds of rows in one process.
pub(super) const SCHEMAS: usize = 8;
/// Most counters of a row: one cache line in each stripe.
pub const ROW_COUNTERS: usize = 8;
/// Most gauges of a row.
pub const ROW_GAUGES: usize = 24;
/// Fields of a schema: counters, gauges, and the name of the histogram's latency.
pub(super) const FIELDS: usize = ROW_COUNTERS + ROW_GAUGES + 1;
pub(super) const FIELD_NAME_BYTES: usize = 32;
pub(super) const FIELD_HELP_BYTES: usize = 64;
/// Number of stripes of counters: each but the last belongs to one thread, the last to all others.
pub(super) const STRIPES: usize = 33;

/// The executor of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Executor {
    /// The caller's thread, with ordinary stores.
    InlineTemporal = 0,
    /// The caller's thread, with stores past the cache.
    InlineNt = 1,
    /// An engine thread.
    Worker = 2,
    /// The caller and an engine thread, each for a part.
    Split = 3,
    /// The Intel DSA device.
    Idxd = 4,
    /// A device modelled in software.
    Model = 5,
    /// Another process, which has the data.
    Remote = 6,
}

impl Executor {
    /// All executors, in the order of the page.
    pub const ALL: [Executor; 7] = [
        Executor::InlineTemporal,
        Executor::InlineNt,
        Executor::Worker,
        Executor::Split,
        Executor::Idxd,
        Executor::Model,
        Executor::Remote,
    ];

    /// Returns the name used in all reports.
    pub const fn name(self) -> &'static str {
        match self {
            Executor::InlineTemporal => "inline_temporal",
            Executor::InlineNt => "inline_nt",
            Executor::Worker => "worker",
            Executor::Split => "split",
            Executor::Idxd => "idxd",
            Executor::Model => "model",
            Executor::Remote => "remote",
        }
    }

    /// Returns the executor with this code.
    pub fn from_code(code: u8) -> Option<Executor> {
        Executor::ALL.get(usize::from(code)).copied()
    }
}

const _: () = {
    assert!(Executor::ALL.len() <= EXECUTOR_ROWS);
    assert!(Opcode::NAMED.len() <= OTHER_SLOT);
    let mut code = 0;
    while code < Executor::ALL.len() {
        assert!(Executor::ALL[code] as usize == code);
        code += 1;
    }
};

/// Slot of each opcode.
const SLOT_OF: [u8; 256] = {
    let mut slots = [OTHER_SLOT as u8; 256];
    let mut slot = 0;
    while slot < Opcode::NAMED.len() {
        slots[Opcode::NAMED[slot].0 as usize] = slot as u8;
        slot += 1;
    }
    slots
};

/// Returns the slot that counts `opcode`.
pub(super) const fn slot_of(opcode: Opcode) -> usize {
    SLOT_OF[opcode.0 as usize] as usize
}

/// The header's opcode table: the opcode of each slot.
pub(super) const OPCODE_TABLE: [u8; OPCODE_SLOTS] = {
    let mut table = [NO_OPCODE; OPCODE_SLOTS];
    let mut slot = 0;
    while slot < Opcode::NAMED.len() {
        table[slot] = Opcode::NAMED[slot].0;
        slot += 1;
    }
    table
};

/// Returns the histogram bucket of a latency: floor(log2(ns)), at most the last bucket.
pub const fn bucket_of(latency_ns: u64) -> usize {
    let log2 = (latency_ns | 1).ilog2() as usize;
    if log2 < BUCKETS { log2 } else { BUCKETS - 1 }
}

/// Start of the page: identity of the process, and layout of the rest.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    pub(super) page_bytes: AtomicU64,
    pub(super) pid: AtomicU64,
    pub(super) start_unix_ns: AtomicU64,
    pub(super) start_monotonic_ns: AtomicU64,
    pub(super) executor_rows: AtomicU64,
    pub(super) opcode_slots: AtomicU64,
    pub(super) buckets: AtomicU64,
    pub(super) decision_slots: AtomicU64,
    pub(super) rows: AtomicU64,
    pub(super) rows_refused: AtomicU64,
    pub(super) decisions_dropped: AtomicU64,
    /// Number of stripes that were ever assigned to a thread, without the shared one. Memory of the other stripes
    /// is not even allocated.
    pub(super) stripes: AtomicU64,
    pub(super) reserved: [AtomicU64; 2],
    pub(super) isa: [AtomicU64; 2],
    pub(super) opcodes: [AtomicU64; OPCODE_SLOTS / 8],
    pub(super) reserved2: [AtomicU64; 6],
    pub(super) command: [AtomicU64; 32],
    pub(super) reserved3: [AtomicU64; 448],
}

/// Cost and success of waiting. All counters except `spin_budget_ns` only grow.
#[repr(C)]
#[derive(Debug)]
pub struct WaitingCounters {
    /// Waits whose condition was not true immediately.
    pub waits: AtomicU64,
    /// Waits that ended while spinning.
    pub spin_hits: AtomicU64,
    /// Turns of the spin loop.
    pub spins: AtomicU64,
    /// Hardware waits (UMWAIT, MWAITX) inside spins.
    pub hardware_waits: AtomicU64,
    /// Timed sleeps of predicted waits.
    pub sleeps: AtomicU64,
    /// Waits that went to sleep in the kernel until woken.
    pub parks: AtomicU64,
    /// Wake-ups of other threads.
    pub wakes: AtomicU64,
    /// Nanoseconds spent spinning.
    pub spin_ns: AtomicU64,
    /// Nanoseconds spent parked.
    pub park_ns: AtomicU64,
    /// The current spin budget in nanoseconds; a gauge.
    pub spin_budget_ns: AtomicU64,
    pub(super) reserved: [AtomicU64; 22],
}

impl WaitingCounters {
    /// Returns counters that are all zero.
    pub(super) const fn new() -> WaitingCounters {
        WaitingCounters {
            waits: AtomicU64::new(0),
            spin_hits: AtomicU64::new(0),
            spins: AtomicU64::new(0),
            hardware_waits: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            parks: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            spin_ns: AtomicU64::new(0),
            park_ns: AtomicU64::new(0),
            spin_budget_ns: AtomicU64::new(0),
            reserved: [const { AtomicU64::new(0) }; 22],
        }
    }
}

/// One decision. `sequence` is odd while the words are written, and 2 × (number + 1) afterwards.
#[repr(C)]
#[derive(Debug)]
pub(super) struct DecisionCell {
    pub(super) sequence: AtomicU64,
    /// time_ns · codes (opcode u8, executor u8 << 8, cache u8 << 16, reason u16 << 32) · size · predicted_ns ·
    /// measured_ns · 0 · 0
    pub(super) words: [AtomicU64; 7],
}

/// The ring of the last decisions.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Ring {
    /// Number of decisions so far; the next decision is written to the cell with this number modulo [`DECISIONS`].
    pub(super) head: AtomicU64,
    pub(super) reserved: [AtomicU64; 7],
    pub(super) cells: [DecisionCell; DECISIONS],
}

/// A field of a schema: its name as in a metrics exposition, without the service, and its help text.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FieldCells {
    pub(super) name: [AtomicU64; FIELD_NAME_BYTES / 8],
    pub(super) help: [AtomicU64; FIELD_HELP_BYTES / 8],
}

/// Meaning of a kind of rows. `state` is 0 free, 1 being written, 2 ready; a ready schema never changes.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SchemaCells {
    pub(super) state: AtomicU64,
    /// Address of the schema in the writing process, by which that process finds it again; meaningless to readers.
    pub(super) key: AtomicU64,
    pub(super) service: [AtomicU64; WORD_BYTES / 8],
    pub(super) reserved: [AtomicU64; 8],
    /// Counters, gauges, latency. A field without a name is unused.
    pub(super) fields: [FieldCells; FIELDS],
}

/// One row. `state` is generation << 2 | state (0 free, 1 being written, 2 open). The row's counters lie in the
/// stripes.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RowCells {
    pub(super) state: AtomicU64,
    pub(super) schema: AtomicU64,
    pub(super) peer_pid: AtomicU64,
    pub(super) opened_unix_ns: AtomicU64,
    pub(super) role: [AtomicU64; WORD_BYTES / 8],
    pub(super) name: [AtomicU64; ROW_NAME_BYTES / 8],
    pub(super) reserved: [AtomicU64; 4],
    pub(super) gauges: [AtomicU64; ROW_GAUGES],
    pub(super) histogram: [AtomicU64; BUCKETS],
    pub(super) total_ns: AtomicU64,
    pub(super) reserved2: [AtomicU64; 7],
}

/// Counters that one thread adds to without a locked instruction.
#[repr(C)]
#[derive(Debug)]
pub(super) struct StripeCells {
    /// Operations that are not timed, by opcode slot: their number and their bytes.
    pub(super) small: [[AtomicU64; 2]; OPCODE_SLOTS],
    /// Counters of rows.
    pub(super) rows: [[AtomicU64; ROW_COUNTERS]; ROWS],
}

/// Counters of one opcode on one executor.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) operations: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) total_ns: AtomicU64,
    pub(super) histogram: [AtomicU64; BUCKETS],
    pub(super) reserved: [AtomicU64; 4],
}

/// The whole stats page.
#[repr(C)]
#[derive(Debug)]
pub(super) struct StatsPage {
    pub(super) header: Header,
    pub(super) waiting: WaitingCounters,
    pub(super) decisions: Ring,
    pub(super) counters: [[Counters; OPCODE_SLOTS]; EXECUTOR_ROWS],
    pub(super) schemas: [SchemaCells; SCHEMAS],
    pub(super) rows: [RowCells; ROWS],
    pub(super) stripes: [StripeCells; STRIPES],
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Header>() == 4096);
    assert!(offset_of!(Header, pid) == 24);
    assert!(offset_of!(Header, start_unix_ns) == 32);
    assert!(offset_of!(Header, executor_rows) == 48);
    assert!(offset_of!(Header, rows_refused) == 88);
    assert!(offset_of!(Header, decisions_dropped) == 96);
    assert!(offset_of!(Header, stripes) == 104);
    assert!(offset_of!(Header, isa) == 128);
    assert!(offset_of!(Header, opcodes) == 144);
    assert!(offset_of!(Header, command) == 256);
    assert!(size_of::<WaitingCounters>() == 256);
    assert!(offset_of!(WaitingCounters, spin_budget_ns) == 72);
    assert!(size_of::<DecisionCell>() == 64);
    assert!(size_of::<Ring>() == 64 + DECISIONS * 64);
    assert!(size_of::<SchemaCells>() == 3264);
    assert!(offset_of!(SchemaCells, fields) == 96);
    assert!(size_of::<RowCells>() == 704);
    assert!(offset_of!(RowCells, role) == 32);
    assert!(offset_of!(RowCells, name) == 48);
    assert!(offset_of!(RowCells, gauges) == 128);
    assert!(offset_of!(RowCells, histogram) == 320);
    assert!(offset_of!(RowCells, total_ns) == 640);
    assert!(size_of::<StripeCells>() == 7168);
    assert!(offset_of!(StripeCells, rows) == 1024);
    assert!(size_of::<Counters>() == 384);
    assert!(offset_of!(Counters, histogram) == 32);
    assert!(offset_of!(StatsPage, waiting) == 4096);
    assert!(offset_of!(StatsPage, decisions) == 4352);
    assert!(offset_of!(StatsPage, counters) == 20800);
    assert!(offset_of!(StatsPage, schemas) == 217_408);
    assert!(offset_of!(StatsPage, rows) == 243_520);
    assert!(offset_of!(StatsPage, stripes) == 311_104);
    assert!(offset_of!(StatsPage, stripes) % 64 == 0);
    assert!(size_of::<StatsPage>() == 547_648);
};

// SAFETY: the struct is `repr(C)`, and all its fields, including the reserved ones, consist of AtomicU64.
#[expect(unsafe_code, reason = "promises that the page consists of atomics")]
unsafe impl AtomicLayout for StatsPage {}

/// Stores text into words, truncated to fit, and filled up with zeros.
pub(super) fn store_text(words: &[AtomicU64], text: &[u8]) {
    for (index, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        let rest = text.get(index * 8..).unwrap_or_default();
        let count = rest.len().min(8);
        bytes[..count].copy_from_slice(&rest[..count]);
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}
