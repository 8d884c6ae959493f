// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cold passes: one timed copy (with CRC, to two targets) or fill after everything was swept out of the caches.
//!
//! - **Order** both contenders sweep, the one that copies last; it copies once; then the target is compared by
//!   checksum. Contenders are processes of their own, started with the first row that wants them
//! - **Limit** one copy past the cache by the reference routine on one core, measured in the same row by the same
//!   process as memlift's; a copy shared by two cores can exceed it

use super::{Areas, Where, verify};
use crate::contender::{self, Contender, Identity, Took};
use crate::definition::Definition;
use crate::pass::{Pass, word};
use crate::statistics::{Pair, median};
use crate::{BenchError, CpuSeconds, Row, machine, reference};

const PAIRS: usize = 31;
const PAIRS_QUICK: usize = 2;
/// Pairs that warm up page tables, frequency, threads and the cost model, and do not count.
const PAIRS_WARM: usize = 3;

/// Measures cold rows on common areas.
pub(super) struct Cold<'a> {
    areas: &'a Areas,
    cache_bytes: usize,
    quick: bool,
    running: Vec<Contender>,
    /// CRC-32C of the first so many bytes of both sources.
    sums: Option<(usize, [u64; 2])>,
}

impl<'a> Cold<'a> {
    pub(super) fn new(areas: &'a Areas, cache_bytes: usize, quick: bool) -> Cold<'a> {
        Cold { areas, cache_bytes, quick, running: Vec::new(), sums: None }
    }

    pub(super) fn row(
        &mut self,
        definition: &Definition,
        pass: Pass,
        bytes: usize,
        condition: Where,
    ) -> Result<Row, BenchError> {
        let one_core = condition == Where::OneCore;
        let ours = self.place(if one_core { Identity::MemliftOneCore } else { Identity::Memlift })?;
        let theirs = self.place(match definition.rival.as_str() {
            "glibc_tuned" => Identity::GlibcTuned(self.cache_bytes),
            "one_core" => Identity::MemliftOneCore,
            "plain" => Identity::Plain,
            _ => Identity::Glibc,
        })?;
        let names = ["memlift", definition.rival.as_str()];
        let sums = [0, 1].map(|turn| self.expected(pass, turn, bytes));
        let neighbour = if condition == Where::Busy { Some(contender::busy()?) } else { None };

        let (warm, counted) = if self.quick { (1, PAIRS_QUICK) } else { (PAIRS_WARM, PAIRS) };
        let mut taken: [Vec<Took>; 2] = [Vec::new(), Vec::new()];
        let mut shared_before = 0;
        for round in 0..warm + counted {
            if round == warm && condition == Where::Busy {
                shared_before = self.running[ours].shared_copies()?;
            }
            let mut values = [None; 2];
            for (turn, sum) in sums.into_iter().enumerate() {
                // Even rounds: ours first. The first side copies source 0, so a copy left out shows.
                let side = (turn + round) % 2;
                let (now, other) = if side == 0 { (ours, theirs) } else { (theirs, ours) };
                self.running[other].sweep()?;
                self.running[now].sweep()?;
                let took = self.running[now].run(pass, turn, bytes)?;
                let buffers = self.areas.buffers(pass, turn, bytes);
                verify(&definition.name, names[side], buffers.target, sum)?;
                verify(&definition.name, names[side], buffers.target2, sum)?;
                values[turn] = Some(took.value);
                if round >= warm {
                    taken[side].push(took);
                }
            }
            // The sides swap sources every round, so both must have given the same value for each source.
            self.agree(definition, pass, bytes, values)?;
        }
        let shared = match condition {
            Where::Busy => Some(self.running[ours].shared_copies()? - shared_before),
            _ => None,
        };
        drop(neighbour);
        let limit = self.limit(ours, bytes)?;

        let [ours_took, theirs_took] = taken;
        let pairs: Vec<Pair> =
            ours_took.iter().zip(&theirs_took).map(|(a, b)| (a.seconds, b.seconds)).collect();
        let mut row = Row::new(definition);
        let cpu = |took: &[Took]| Some(median(took.iter().map(|took| took.cpu_s)));
        row.cpu_s = CpuSeconds { ours: cpu(&ours_took), theirs: cpu(&theirs_took) };
        row.count.insert("faults".to_owned(), ours_took.iter().map(|took| took.faults).sum());
        row.count.extend(shared.map(|shared| ("shared".to_owned(), shared)));
        let seconds = median(ours_took.iter().map(|took| took.seconds));
        row.qualifies = format!(
            "cold: {} MiB swept, cache measured {} MiB; {} of {} cores{}; {} B pages; {}; each side a process of its own; \
             ours: {}; {:.1} GB/s; {:.2} of the one-core limit of a copy ({:.1} GB/s); theirs: {}",
            self.areas.sweep.bytes() >> 20,
            self.cache_bytes >> 20,
            if one_core { 1 } else { machine::cores() },
            machine::cores(),
            if condition == Where::Busy { ", one kept busy by another process, not pinned" } else { "" },
            machine::page_bytes(),
            machine::vectors(),
            self.running[ours].describe()?,
            bytes as f64 / seconds * 1e-9,
            limit / seconds,
            bytes as f64 / limit * 1e-9,
            self.running[theirs].describe()?,
        );
        Ok(row.measured(definition, &pairs, self.quick))
    }

    /// The checksum that a pass must leave in its targets.
    fn expected(&self, pass: Pass, turn: usize, bytes: usize) -> u64 {
        let buffers = self.areas.buffers(pass, turn, bytes);
        if pass == Pass::Fill {
            return reference::checksum_of(&word(turn).to_le_bytes().repeat(bytes / 8));
        }
        reference::checksum(buffers.source)
    }

    /// Fails unless the values of a pass are those that this crate's own routine gives for the two sources.
    fn agree(
        &mut self,
        definition: &Definition,
        pass: Pass,
        bytes: usize,
        values: [Option<u64>; 2],
    ) -> Result<(), BenchError> {
        if pass != Pass::CopyCrc {
            return Ok(());
        }
        if self.sums.as_ref().is_none_or(|sums| sums.0 != bytes) {
            let crc = |turn: usize| reference::crc32c(self.areas.sources[turn].part(0, bytes));
            self.sums = Some((bytes, [0, 1].map(crc)));
        }
        let expected = self.sums.map(|sums| sums.1);
        if expected == Some(values.map(Option::unwrap_or_default)) {
            return Ok(());
        }
        let rival = definition.rival.clone();
        Err(BenchError::Wrong { name: definition.name.clone(), rival })
    }

    /// Median time of the reference's copy, seconds.
    fn limit(&mut self, ours: usize, bytes: usize) -> Result<f64, BenchError> {
        let mut seconds = Vec::new();
        for _ in 0..if self.quick { 1 } else { 7 } {
            self.running[ours].sweep()?;
            seconds.push(self.running[ours].limit(0, bytes)?.seconds);
        }
        Ok(median(seconds))
    }

    /// Returns a contender's place in `running`; starts it if need be.
    fn place(&mut self, who: Identity) -> Result<usize, BenchError> {
        if let Some(at) = self.running.iter().position(|contender| contender.identity() == who) {
            return Ok(at);
        }
        let mut contender = Contender::start(who, self.areas)?;
        contender.sweep()?;
        self.running.push(contender);
        Ok(self.running.len() - 1)
    }
}
