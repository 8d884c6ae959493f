// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench copy`: memlift's copy against memcpy, cold and hot; copy with CRC, dualcast and fill against loops in C.
//!
//! - **Flow** areas (two sources with different bytes, a target, a sweep) ─▶ pairs A B, B A, … ─▶ rows
//! - **Cold** everybody sweeps more than twice the measured last-level cache, then one copy is timed
//! - **Hot** copies repeat on the same bytes, as many per sample as make it long against the clock
//! - **Busy** as cold, against memlift on one core, while another process keeps one core busy
//! - **Check** within a pair both sides copy different sources to the same target, which is then compared by checksum:
//!   a copy that does nothing, or not all, is found
//! - **Order** all areas are prefaulted memfds with small pages, the same for both sides
//! - **Not here** the contenders' processes (contender.rs)

mod cold;
mod hot;

use crate::area::{Area, Part};
use crate::definition::Definition;
use crate::pass::{Buffers, Pass, word};
use crate::row::Sink;
use crate::{BenchError, Options, Row, cache, machine, reference};

/// Room after the largest copy for misaligned ends.
const SLACK_BYTES: usize = 4096;
/// Memory left to all other processes.
const SPARE_BYTES: u64 = 256 << 20;

/// The memory that is copied and swept.
#[derive(Debug)]
pub struct Areas {
    /// Two sources with different contents.
    pub sources: [Area; 2],
    /// Area to which both sources are copied.
    pub target: Area,
    /// Area that is read to evict the others from the caches.
    pub sweep: Area,
}

impl Areas {
    /// Maps areas for sources of `source_bytes` and targets of `target_bytes` together.
    fn new(source_bytes: usize, target_bytes: usize, sweep_bytes: usize) -> Result<Areas, BenchError> {
        let room = |bytes: usize| (bytes + SLACK_BYTES).next_multiple_of(machine::page_bytes());
        let (bytes, target_bytes) = (room(source_bytes), room(target_bytes));
        let (needed_bytes, available_bytes) =
            ((2 * bytes + target_bytes + sweep_bytes) as u64 + SPARE_BYTES, machine::available_bytes());
        if needed_bytes > available_bytes {
            return Err(BenchError::Memory { needed_bytes, available_bytes });
        }
        let areas = Areas {
            sources: [Area::shared(bytes)?, Area::shared(bytes)?],
            target: Area::shared(target_bytes)?,
            sweep: Area::shared(sweep_bytes)?,
        };
        for (seed, area) in areas.all().into_iter().enumerate() {
            reference::pattern(area.part(0, area.bytes()), seed as u64 + 1);
        }
        Ok(areas)
    }

    /// Returns the areas in the order in which the child gets them.
    pub fn all(&self) -> [&Area; 4] {
        [&self.sources[0], &self.sources[1], &self.target, &self.sweep]
    }

    /// Returns the buffers for a pass of `bytes` on source `turn`.
    pub fn buffers(&self, pass: Pass, turn: usize, bytes: usize) -> Buffers<'_> {
        let target = self.target.part(0, bytes);
        let second = bytes.next_multiple_of(machine::page_bytes());
        let target2 = if pass.targets() == 2 { self.target.part(second, bytes) } else { target };
        Buffers { source: self.sources[turn].part(0, bytes), target, target2, word: word(turn) }
    }

    /// Reads the sweep area, so that nothing else is left in the caches.
    pub fn sweep(&self) {
        std::hint::black_box(reference::xor64(self.sweep.part(0, self.sweep.bytes())));
    }
}

/// Under which conditions a cold row is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    /// As memlift is configured.
    AsConfigured,
    /// memlift is held to one core.
    OneCore,
    /// Another process keeps one core busy.
    Busy,
}

/// Kind of row that a name asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Cold { pass: Pass, bytes: usize, place: Where },
    Hot { bytes: usize, misaligned: bool },
    HotMean,
}

impl Kind {
    fn parse(name: &str) -> Option<Kind> {
        let parts: Vec<&str> = name.split('/').collect();
        let bytes = |text: &str| text.parse::<usize>().ok().filter(|bytes| *bytes > 0);
        let cold = |pass, size, place| Some(Kind::Cold { pass, bytes: bytes(size)?, place });
        match parts[..] {
            ["copy", "hot", "geomean"] => Some(Kind::HotMean),
            ["copy", size, "cold", "1core"] => cold(Pass::Copy, size, Where::OneCore),
            ["copy", size, "busy"] => cold(Pass::Copy, size, Where::Busy),
            ["copy", size, "hot"] => Some(Kind::Hot { bytes: bytes(size)?, misaligned: false }),
            ["copy", size, "hot", "misaligned"] => Some(Kind::Hot { bytes: bytes(size)?, misaligned: true }),
            [pass, size, "cold"] => cold(Pass::from_name(pass)?, size, Where::AsConfigured),
            _ => None,
        }
    }

    /// Bytes that are read.
    fn bytes(self) -> usize {
        match self {
            Kind::Cold { bytes, .. } | Kind::Hot { bytes, .. } => bytes,
            Kind::HotMean => 0,
        }
    }

    /// Bytes that are written.
    fn target_bytes(self) -> usize {
        match self {
            Kind::Cold { pass, bytes, .. } => pass.targets() * bytes.next_multiple_of(machine::page_bytes()),
            _ => self.bytes(),
        }
    }
}

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    let parse = |row: &Definition| Kind::parse(&row.name);
    let hot_all: Vec<Definition> = crate::definition::all("copy")?
        .into_iter()
        .filter(|row| matches!(parse(row), Some(Kind::Hot { .. })))
        .collect();
    let wants_mean = definitions.iter().any(|row| parse(row) == Some(Kind::HotMean));
    let kinds = || definitions.iter().chain(hot_all.iter().filter(|_| wants_mean)).filter_map(parse);
    let source_bytes = kinds().map(Kind::bytes).max().unwrap_or(0);
    let target_bytes = kinds().map(Kind::target_bytes).max().unwrap_or(0);
    eprintln!("measuring the last-level cache …");
    let cache_bytes = cache::measure(options.quick)?;
    eprintln!("{} MiB; mapping and touching the areas …", cache_bytes >> 20);
    let areas = Areas::new(source_bytes, target_bytes, cache::sweep_bytes(cache_bytes))?;
    let mut cold = cold::Cold::new(&areas, cache_bytes, options.quick);
    let mut hot = hot::Hot::new(&areas, options.quick);
    let mut failed = 0;
    for definition in definitions {
        eprintln!("{} against {} …", definition.name, definition.rival);
        let row = match parse(definition) {
            Some(Kind::Cold { pass, bytes, place }) => cold.row(definition, pass, bytes, place),
            Some(Kind::Hot { bytes, misaligned }) => hot.row(definition, bytes, misaligned),
            Some(Kind::HotMean) => hot_all
                .iter()
                .try_for_each(|row| match parse(row) {
                    Some(Kind::Hot { bytes, misaligned }) => {
                        hot.measure(&row.name, bytes, misaligned).map(drop)
                    }
                    _ => Ok(()),
                })
                .map(|()| hot.mean_row(definition)),
            None => Ok(Row::failed(definition, "the name is no copy; see lab/bench/src/copy.rs")),
        };
        sink.push(row.unwrap_or_else(|error| {
            failed += 1;
            Row::failed(definition, &error.to_string())
        }));
    }
    Ok(failed)
}

/// Fails unless the target holds the source's bytes.
fn verify(name: &str, rival: &str, target: Part<'_>, sum: u64) -> Result<(), BenchError> {
    if reference::checksum(target) == sum {
        return Ok(());
    }
    Err(BenchError::Wrong { name: name.to_owned(), rival: rival.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_a_kind() {
        for row in crate::definition::all("copy").expect("parses") {
            assert!(Kind::parse(&row.name).is_some(), "{}", row.name);
        }
        assert_eq!(Kind::parse("copy/0/cold"), None);
        assert_eq!(Kind::parse("copy/64/warm"), None);
        assert_eq!(Kind::parse("fill/64/busy"), None);
        let cold = |pass, place| Some(Kind::Cold { pass, bytes: 64, place });
        assert_eq!(Kind::parse("copy/64/cold/1core"), cold(Pass::Copy, Where::OneCore));
        assert_eq!(Kind::parse("copy/64/busy"), cold(Pass::Copy, Where::Busy));
        assert_eq!(Kind::parse("dualcast/64/cold"), cold(Pass::Dualcast, Where::AsConfigured));
    }

    #[test]
    fn a_copy_that_does_nothing_is_found() {
        let areas = Areas::new(1 << 16, 1 << 16, 1 << 16).expect("memory");
        let sum = reference::checksum(areas.sources[1].part(0, 1 << 16));
        let wrong = verify("copy/65536/cold", "nobody", areas.target.part(0, 1 << 16), sum);
        assert!(matches!(wrong, Err(BenchError::Wrong { .. })));
    }
}
