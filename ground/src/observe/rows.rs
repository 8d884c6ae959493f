// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of named items in the stats page: sessions, pools, nodes. Each service defines the meaning of its rows.
//!
//! - **Flow** [`Row::open`] ──schema written once, free row taken──▶ counts, gauges, latencies ──drop──▶ free again
//! - **Layout** a row's counters lie in the stripes, one cache line for each thread; its gauges and its histogram lie in the row
//! - **Order** `state` goes free → being written (compare-exchange) → open (Release, after name and zeros). A reader loads it before and
//!   after the row and skips a row whose state has changed.
//! - **Owner** a row belongs to one [`Row`]. After a fork the child's copy counts nothing.
//! - **Not here** more than [`ROWS`] items: further ones work, but are not shown, and are counted as refused.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::layout::{
    FIELD_HELP_BYTES, FIELD_NAME_BYTES, FIELDS, ROW_COUNTERS, ROW_GAUGES, RowCells, SchemaCells, StatsPage,
    bucket_of, store_text,
};
use super::page::{Installed, installed, unix_ns};
use super::stripes;

const FREE: u64 = 0;
const WRITING: u64 = 1;
pub(super) const OPEN: u64 = 2;
pub(super) const STATE_MASK: u64 = 3;

/// A number in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name of the field as in Prometheus, without the service: `calls_total`, `pool_bytes`. At most 31 bytes of
    /// `a-z0-9_`.
    pub name: &'static str,
    /// Meaning of the field, in at most 63 bytes.
    pub help: &'static str,
}

impl Field {
    /// Makes a field from a name and its meaning.
    ///
    /// # Panics
    ///
    /// If one of them is too long; in a static, the compiler says so.
    pub const fn new(name: &'static str, help: &'static str) -> Field {
        assert!(name.len() < FIELD_NAME_BYTES && help.len() < FIELD_HELP_BYTES, "it would be cut off");
        Field { name, help }
    }
}

/// Meaning of the rows of a service. It must be a static, because its address identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schema {
    /// Name of the service.
    pub service: &'static str,
    /// Numbers that only grow, to which any thread may add: at most [`ROW_COUNTERS`].
    pub counters: &'static [Field],
    /// Numbers that are stored: at most [`ROW_GAUGES`]. Those whose name ends in `_total` only grow, too.
    pub gauges: &'static [Field],
    /// The latency that [`Row::took`] records.
    pub latency: Option<Field>,
}

impl Schema {
    fn field(&self, index: usize) -> Option<&Field> {
        match index.checked_sub(ROW_COUNTERS) {
            None => self.counters.get(index),
            Some(gauge) if gauge < ROW_GAUGES => self.gauges.get(gauge),
            Some(_) => self.latency.as_ref(),
        }
    }
}

/// One line in `memlift top`, until it is dropped.
#[derive(Debug)]
pub struct Row {
    place: Option<(&'static Installed, usize)>,
}

impl Row {
    /// Opens a line for an item called `name` (truncated to 48 bytes) with the role `role` (truncated to 16).
    pub fn open(schema: &'static Schema, role: &str, name: &str, peer_pid: u32) -> Row {
        let Some(installed) = installed() else { return Row { place: None } };
        let page = installed.page();
        let found = declare(page, schema).and_then(|schema| {
            let (index, row) = page.rows.iter().enumerate().find(|(_, row)| take(&row.state))?;
            fence(Ordering::Release);
            row.schema.store(schema, Ordering::Relaxed);
            row.peer_pid.store(peer_pid.into(), Ordering::Relaxed);
            row.opened_unix_ns.store(unix_ns(), Ordering::Relaxed);
            store_text(&row.role, role.as_bytes());
            store_text(&row.name, name.as_bytes());
            let stripes = stripes::used(page).flat_map(|stripe| &stripe.rows[index]);
            let cells = row.gauges.iter().chain(&row.histogram).chain([&row.total_ns]).chain(stripes);
            cells
                .filter(|cell| cell.load(Ordering::Relaxed) != 0)
                .for_each(|cell| cell.store(0, Ordering::Relaxed));
            let state = row.state.load(Ordering::Relaxed);
            row.state.store((state & !STATE_MASK) | OPEN, Ordering::Release);
            Some((installed, index))
        });
        if found.is_none() {
            page.header.rows_refused.fetch_add(1, Ordering::Relaxed);
        }
        Row { place: found }
    }

    fn row(&self) -> Option<&'static RowCells> {
        let (installed, index) = self.place?;
        installed.is_own().then(|| &installed.page().rows[index])
    }

    /// Returns true if the row is in the page, and not refused because the table was full.
    pub fn shown(&self) -> bool {
        self.row().is_some()
    }

    /// Adds to counters; uses no locked instruction if the thread has a stripe of its own.
    ///
    /// # Panics
    ///
    /// If rows have no such counter.
    #[inline(always)]
    pub fn count<const N: usize>(&self, amounts: [(usize, u64); N]) {
        if let Some((installed, index)) = self.place {
            stripes::add(installed, |stripe| {
                let counters = stripe.rows.get(index)?;
                Some(amounts.map(|(counter, amount)| (&counters[counter], amount)))
            });
        }
    }

    /// Stores a gauge.
    ///
    /// # Panics
    ///
    /// If rows have no such gauge.
    pub fn set(&self, gauge: usize, value: u64) {
        if let Some(row) = self.row() {
            row.gauges[gauge].store(value, Ordering::Relaxed);
        }
    }

    /// Records a latency.
    pub fn took(&self, latency_ns: u64) {
        if let Some(row) = self.row() {
            row.histogram[bucket_of(latency_ns)].fetch_add(1, Ordering::Relaxed);
            row.total_ns.fetch_add(latency_ns, Ordering::Relaxed);
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if let Some(row) = self.row() {
            let state = row.state.load(Ordering::Relaxed);
            // Increments the generation and marks the row as free.
            row.state.store((state & !STATE_MASK).wrapping_add(STATE_MASK + 1), Ordering::Release);
        }
    }
}

/// Takes a free row for writing; returns false if it is in use.
fn take(state: &AtomicU64) -> bool {
    let before = state.load(Ordering::Relaxed);
    before & STATE_MASK == FREE
        && state.compare_exchange(before, before | WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Returns the number of a schema in the page, and writes it there if it is new; `None` if the table is full.
fn declare(page: &StatsPage, schema: &'static Schema) -> Option<u64> {
    let key = std::ptr::from_ref(schema) as u64;
    let known = |cells: &SchemaCells| {
        cells.state.load(Ordering::Acquire) == OPEN && cells.key.load(Ordering::Relaxed) == key
    };
    let number = page.schemas.iter().position(known).or_else(|| {
        let (number, cells) = page.schemas.iter().enumerate().find(|(_, cells)| take(&cells.state))?;
        cells.key.store(key, Ordering::Relaxed);
        store_text(&cells.service, schema.service.as_bytes());
        for (index, cells) in cells.fields.iter().enumerate().take(FIELDS) {
            if let Some(field) = schema.field(index) {
                store_text(&cells.name, field.name.as_bytes());
                store_text(&cells.help, field.help.as_bytes());
            }
        }
        cells.state.store(OPEN, Ordering::Release);
        Some(number)
    })?;
    Some(number as u64)
}
