// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `access/*`: the same accesses to the same set, under zmem and on swap to zram, at equal real memory.
//!
//! - **Flow** zram: a process whose group is limited to a third of its set ─▶ warm ─▶ its real total: group + device ─▶ ours:
//!   a job whose group holds no more ─▶ warm ─▶ samples by turns
//! - **Rule** both sides' checksums are equal in every pair; each side's memory is what its group says (and the device)
//! - **Missing** where this user may not make groups or swap: the rows say what it takes
//! - **Not here** other programs (`budget/*`, `gap/*`)

use super::group::{Group, Limit};
use super::side::{Contents, Holder, Side, Took};
use super::zram::Zram;
use crate::definition::Definition;
use crate::pairs::{self, Took as Sample};
use crate::row::Stop;
use crate::{BenchError, Row};

/// Both sides, warm.
pub struct Sides {
    ours: Side,
    theirs: Side,
    // Dropped after the process that swaps to it.
    zram: Zram,
    set: u64,
    total: u64,
    aim: u64,
    seed: u64,
}

/// Accesses before the first sample, and in a sample.
fn accesses(quick: bool) -> (u64, u64) {
    if quick { (2_000, 500) } else { (80_000, 20_000) }
}

impl Sides {
    /// Starts the processes of both sides.
    pub fn start(rival: &str, quick: bool) -> Result<Sides, Stop> {
        let algorithm = match rival {
            "zram_lz4" => "lz4",
            "zram_lzo_rle" => "lzo-rle",
            _ => return Err(Stop::Missing(format!("nobody measures {rival}"))),
        };
        let set: u64 = if quick { 64 << 20 } else { 384 << 20 };
        let zram = Zram::create(algorithm, 2 * set).map_err(Stop::Missing)?;
        let limited = Group::new(Limit::Swapping(set / 3))?;
        let contents = Contents::create()?;
        let warm = format!("random {} 1 0 1", accesses(quick).0);
        let mut theirs = Side::start(Holder::Swap, set, &contents, limited)?;
        let first = theirs.command(&warm).map_err(|error| killed(&theirs, error))?;
        let total = theirs.group.usage() + zram.used();
        // The groups' usage must be equal: memory that the job does not count (the kernel's own pages for it) comes off its
        // total.
        let mut aim = total;
        for _ in 0..3 {
            let counted = Group::new(Limit::None)?;
            let mut ours = Side::start(Holder::Zmem { total: aim }, set, &contents, counted)?;
            let second = ours.command(&warm)?;
            equal("warming up", rival, second, first)?;
            let excess = ours.group.usage().saturating_sub(total);
            if excess == 0 {
                return Ok(Sides { ours, theirs, zram, set, total, aim, seed: 1 });
            }
            aim -= excess + (1 << 20);
        }
        let reason = format!("the job's group stays above {total} bytes, though its total is {aim}");
        Err(Stop::Failed(BenchError::Engine { reason }))
    }
}

/// Replaces an error by a better one if the kernel killed the process on zram: it does so now and then, though most of the swap
/// is free.
fn killed(theirs: &Side, error: BenchError) -> BenchError {
    match theirs.group.kills() {
        0 => error,
        kills => BenchError::Child {
            program: "the process on zram".to_owned(),
            status: format!("killed by the kernel at its group's limit ({kills} kills): run the row again"),
        },
    }
}

fn equal(name: &str, rival: &str, ours: Took, theirs: Took) -> Result<(), BenchError> {
    if ours.checksum == theirs.checksum {
        return Ok(());
    }
    let sums = [ours, theirs].map(|took| format!("{:016x}", took.checksum));
    Err(BenchError::Differ { name: name.to_owned(), rival: rival.to_owned(), sums })
}

/// Measures one row on sides that are warm.
pub fn row(definition: &Definition, sides: &mut Sides, quick: bool) -> Result<Row, Stop> {
    let each = accesses(quick).1;
    let pages = sides.set / 4096;
    let (what, of, p99): (Box<dyn Fn(u64) -> String>, u64, bool) = match definition.name.as_str() {
        "access/random/read" => (Box::new(move |seed| format!("random {each} {seed} 0 1")), each, false),
        "access/random/read/p99" => (Box::new(move |seed| format!("random {each} {seed} 0 1")), each, true),
        "access/random/write50" => (Box::new(move |seed| format!("random {each} {seed} 50 1")), each, false),
        "access/random/2threads" => (Box::new(move |seed| format!("random {each} {seed} 0 2")), each, false),
        "access/scan" => (Box::new(|_| "scan 1".to_owned()), pages, false),
        _ => return Err(super::unknown(definition).into()),
    };
    let first = sides.seed + 1;
    let mut seeds = [first, first];
    let mut checksums: [Vec<Took>; 2] = [Vec::new(), Vec::new()];
    let mut peak = [0u64; 2];
    let samples = pairs::interleave(quick, |turn| {
        let index = usize::from(turn == pairs::Side::Theirs);
        let side = if index == 0 { &mut sides.ours } else { &mut sides.theirs };
        let took = match side.command(&what(seeds[index])) {
            Ok(took) => took,
            Err(error) => return Err(killed(&sides.theirs, error)),
        };
        seeds[index] += 1;
        checksums[index].push(took);
        let device = if index == 0 { 0 } else { sides.zram.used() };
        peak[index] = peak[index].max(side.group.usage() + device);
        let seconds = if p99 { took.p99 } else { took.seconds / of as f64 };
        Ok(Sample { seconds, cpu_s: took.cpu_s / of as f64 })
    })?;
    sides.seed = seeds[0];
    for (ours, theirs) in checksums[0].iter().zip(&checksums[1]) {
        equal(&definition.name, &definition.rival, *ours, *theirs)?;
    }
    let mut row = Row::new(definition).measured(definition, &samples.pairs, quick);
    row.cpu_s = samples.cpu_s;
    for (name, bytes) in [
        ("real_mib", peak[0]),
        ("their_real_mib", peak[1]),
        ("total_mib", sides.total),
        ("job_total_mib", sides.aim),
    ] {
        row.count.insert(name.to_owned(), bytes >> 20);
    }
    row.qualifies = format!(
        "{} MiB of Python heap, data frame and graph in thirds; zram: group limited to {} MiB, {} MiB real with the device; \
         ours: a job whose group holds no more, evictor and watcher included; one access is a word of a random page{}",
        sides.set >> 20,
        (sides.set / 3) >> 20,
        sides.total >> 20,
        if p99 { "; 99th percentile of a sample's accesses, hits included" } else { "" },
    );
    Ok(row)
}
