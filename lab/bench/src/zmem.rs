// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench zmem`: more memory than the budget, against the memory compression in use today.
//!
//! - **Flow** definitions ─▶ the family by the first part of the row's name ─▶ its module measures pairs ─▶ rows
//! - **Rivals** lz4: every page by LZ4, as zram does · zram_lz4: swap on zram, the process squeezed by its group's limit · unlimited, plain,
//!   killed: the job itself without memlift
//! - **Check** both sides draw the same accesses; one checksum over all words must be equal; packed pages are unpacked
//! - **Missing** groups and zram want root: their rows are `missing` elsewhere, and say so

mod access;
mod colocate;
mod corpora;
mod gap;
pub(crate) mod group;
mod jobrows;
mod jobs;
mod programs;
mod ratio;
mod side;
pub(crate) mod under;
mod zram;

pub(crate) use self::jobs::{NAME, serve};
pub(crate) use self::side::{NAME as SIDE, serve as serve_side};
use crate::definition::Definition;
use crate::row::{Sink, Stop};
use crate::{BenchError, Options, Row};

/// There is no row of this name against this rival.
fn unknown(definition: &Definition) -> BenchError {
    let reason = format!(
        "nobody measures {} against {}; see lab/bench/src/zmem.rs",
        definition.name, definition.rival
    );
    BenchError::Engine { reason }
}

/// Attempts at a row whose rival was killed.
const ATTEMPTS: usize = 4;

/// Measures again, with new processes, where the kernel killed the rival.
fn retried(mut measure: impl FnMut() -> Result<Row, Stop>) -> Result<Row, Stop> {
    for _ in 1..ATTEMPTS {
        match measure() {
            Err(Stop::Failed(error @ BenchError::Child { .. })) => eprintln!("  {error}; again …"),
            other => return other,
        }
    }
    measure()
}

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    let mut failed = 0;
    // Two processes and a device serve all rows against one rival.
    let mut sides: Option<(String, access::Sides)> = None;
    // One process without a limit serves all rows of a kernel.
    let mut kernel = None;
    for definition in definitions {
        eprintln!("{} against {} …", definition.name, definition.rival);
        let mut measure = || -> Result<Row, Stop> {
            match definition.name.split('/').next() {
                Some("budget" | "survive" | "native" | "fair") => jobrows::row(definition, options.quick),
                Some("colocate") => colocate::row(definition, options.quick),
                Some("gap") => {
                    let row = gap::row(definition, &mut kernel, options.quick);
                    if row.is_err() {
                        kernel = None;
                    }
                    row
                }
                Some("jobs" | "gapbs") => retried(|| programs::row(definition, options.quick)),
                Some("ratio") => ratio::row(definition, options.quick),
                Some("access") => retried(|| {
                    if sides.as_ref().is_none_or(|(rival, _)| *rival != definition.rival) {
                        sides = None;
                        let both = access::Sides::start(&definition.rival, options.quick)?;
                        sides = Some((definition.rival.clone(), both));
                    }
                    let row = match &mut sides {
                        Some((_, sides)) => access::row(definition, sides, options.quick),
                        None => Err(unknown(definition).into()),
                    };
                    // A side that failed once serves no more rows.
                    if row.is_err() {
                        sides = None;
                    }
                    row
                }),
                _ => Err(unknown(definition).into()),
            }
        };
        sink.push(measure().unwrap_or_else(|stop| match stop {
            Stop::Missing(what) => Row::missing(definition, &what),
            Stop::Failed(error) => {
                failed += 1;
                Row::failed(definition, &error.to_string())
            }
        }));
    }
    Ok(failed)
}
