// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the log is applied, lane by lane.

use crate::checksums::Taken;
use crate::far_record::Far;
use crate::medium::Counters;

/// State of the applier: how far each lane is applied.
#[derive(Debug, Default)]
pub(crate) struct Applier {
    /// By lane, the shared one first.
    pub positions: Vec<u64>,
    /// The same as the lanes' heads say it, durably: records from here on are stored again after a crash.
    pub settled: Vec<u64>,
    /// The last sequence applied.
    pub applied: u64,
    /// By lane: the head that is written next is number `turn % 2`.
    pub turns: Vec<u64>,
    pub counters: Counters,
    /// Slabs whose pages have to be summed before what was stored hardens.
    pub taken: Taken,
    /// Records in free slabs that were applied, and whose slabs are free when that is durable.
    pub far: Vec<Far>,
}
