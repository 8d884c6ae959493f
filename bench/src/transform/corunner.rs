// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `corunner/slowdown`: how much a cache-sensitive neighbour is slowed by copies that seal, at equal bytes per second.
//!
//! Flow     the neighbour follows a random cycle on another core: alone ─▶ beside one side ─▶ alone ─▶ beside the other …; its
//!          slowdown is its lines per second alone, over those beside, less one. Alone means that our core spins in registers: it
//!          draws the power that it draws beside, but touches no memory
//! Rate     both sides seal 16 KiB messages from memory that is in no cache, as many per second as the slower one nearly could,
//!          in slices of a millisecond
//! Size     of the neighbour's cycle: that which the rival slows most
//! Rival    what programs do today: memcpy, then aws-lc in place

use std::time::{Duration, Instant};

use super::Stop;
use super::awslc::AwsLc;
use super::fused::{Areas, KEY};
use super::neighbour::{Neighbour, Pinned, Work};
use super::ours::{Ours, Placing};
use super::pairs::{self, Side, Took};
use crate::definition::Definition;
use crate::{BenchError, Row, median, reference};

const MESSAGE_BYTES: usize = 16 << 10;
const AREA_BYTES: usize = 64 << 20;
const AREA_BYTES_QUICK: usize = 8 << 20;
/// Sizes of the neighbour's cycle that are tried, MiB.
const SIZES_MIB: [usize; 6] = [1, 4, 8, 16, 32, 64];
const WINDOW: Duration = Duration::from_millis(80);
const WINDOW_QUICK: Duration = Duration::from_millis(5);
const SLICE: Duration = Duration::from_millis(1);
/// Share of the slower side's full rate.
const LOAD: f64 = 0.9;
/// A slowdown below this cannot be told from none, percent.
const LEAST_PERCENT: f64 = 0.1;

/// Both sides and where they are in their messages.
struct Sealing {
    areas: Areas,
    order: Vec<usize>,
    at: usize,
    ours: Ours,
    theirs: AwsLc,
    tags: Vec<[u8; 16]>,
}

impl Sealing {
    fn message(&mut self, side: Side) -> Result<(), BenchError> {
        let index = self.order[self.at % self.order.len()];
        self.at += 1;
        let source = self.areas.source.part(index * MESSAGE_BYTES, MESSAGE_BYTES);
        let target = self.areas.target.part(index * MESSAGE_BYTES, MESSAGE_BYTES);
        let mut nonce = [0x3c; 12];
        nonce[4..].copy_from_slice(&(index as u64).to_be_bytes());
        self.tags[index] = match side {
            Side::Ours => self.ours.copy_seal(&nonce, source, target)?,
            // SAFETY: both parts are mapped for as many bytes, in areas that only this thread uses.
            Side::Theirs => unsafe {
                libc::memcpy(target.start().cast(), source.start().cast(), MESSAGE_BYTES);
                self.theirs.seal(&nonce, target.start(), MESSAGE_BYTES)?
            },
        };
        Ok(())
    }

    /// Seals at `per_slice` messages a slice for as long as `window`; gives how many.
    fn paced(&mut self, side: Side, per_slice: usize, window: Duration) -> Result<usize, BenchError> {
        let start = Instant::now();
        let mut slices = 0;
        while start.elapsed() < window {
            for _ in 0..per_slice {
                self.message(side)?;
            }
            slices += 1;
            let next = SLICE * slices;
            while start.elapsed() < next {
                std::hint::spin_loop();
            }
        }
        Ok(slices as usize * per_slice)
    }

    /// All messages once; what they left.
    fn all(&mut self, side: Side) -> Result<(Took, u64, Vec<[u8; 16]>), BenchError> {
        self.areas.evict();
        let took =
            pairs::time(self.order.len(), || (0..self.order.len()).try_for_each(|_| self.message(side)))?;
        let checksum = reference::checksum(self.areas.target.part(0, self.areas.target.bytes()));
        Ok((took, checksum, self.tags.clone()))
    }
}

/// Lines per second of the neighbour during `during`.
fn pace<T>(
    neighbour: &Neighbour,
    during: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(f64, T), BenchError> {
    let (start, before) = (Instant::now(), neighbour.done());
    let result = during()?;
    Ok(((neighbour.done() - before) as f64 / start.elapsed().as_secs_f64(), result))
}

/// Measures the row.
pub(super) fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let Some(pinned) = Pinned::first() else {
        return Err(Stop::Missing(
            "a second core for the neighbour: this process may use only one".to_owned(),
        ));
    };
    let bytes = if quick { AREA_BYTES_QUICK } else { AREA_BYTES };
    let window = if quick { WINDOW_QUICK } else { WINDOW };
    let count = bytes / MESSAGE_BYTES;
    let mut sealing = Sealing {
        areas: Areas::new(bytes, false, quick)?,
        order: (0..count).map(|index| index * 1_000_003 % count).collect(),
        at: 0,
        ours: Ours::new(&KEY, Placing::Configured)?,
        theirs: AwsLc::new(&KEY)?,
        tags: vec![[0; 16]; count],
    };
    let (full, checksum, tags) = sealing.all(Side::Theirs)?;
    let (ours_full, ours_checksum, ours_tags) = sealing.all(Side::Ours)?;
    if (checksum, tags) != (ours_checksum, ours_tags) {
        let rival = "memlift".to_owned();
        return Err(BenchError::Wrong { name: definition.name.clone(), rival }.into());
    }
    let per_slice = ((SLICE.as_secs_f64() * LOAD / full.seconds.max(ours_full.seconds)) as usize).max(1);
    let alone = || {
        let start = Instant::now();
        while start.elapsed() < window {
            (0..1000_u64).for_each(|turn| {
                std::hint::black_box(turn);
            });
        }
        Ok(())
    };

    let mut tried = Vec::new();
    let mut chosen: Option<(f64, usize, Neighbour)> = None;
    for mib in SIZES_MIB {
        let neighbour = Neighbour::start(Work::Chase(mib << 20), pinned.other)?;
        neighbour.wake(true);
        while neighbour.done() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut slowdowns = Vec::new();
        for _ in 0..(if quick { 1 } else { 7 }) {
            let (free, ()) = pace(&neighbour, alone)?;
            let (beside, _) = pace(&neighbour, || sealing.paced(Side::Theirs, per_slice, window))?;
            slowdowns.push(free / beside - 1.0);
        }
        neighbour.wake(false);
        let slowdown = median(slowdowns);
        tried.push(format!("{mib} MiB {:.1} %", slowdown * 100.0));
        if chosen.as_ref().is_none_or(|(most, ..)| slowdown > *most) {
            chosen = Some((slowdown, mib, neighbour));
        }
        if quick {
            break;
        }
    }
    let (_, mib, neighbour) = chosen.expect("some size was tried");
    neighbour.wake(true);
    let mut moved = [0; 2];
    let samples = pairs::interleave(quick, |side| {
        let (free, ()) = pace(&neighbour, alone)?;
        let (beside, messages) = pace(&neighbour, || sealing.paced(side, per_slice, window))?;
        moved[usize::from(side == Side::Theirs)] += messages;
        // Percent in place of seconds: the definition's unit is no time.
        Ok(Took { seconds: ((free / beside - 1.0) * 100.0).max(LEAST_PERCENT), cpu_s: 0.0 })
    })?;
    drop(neighbour);
    let (_, checksum, tags) = sealing.all(Side::Ours)?;
    if (checksum, tags) != sealing.all(Side::Theirs).map(|(_, checksum, tags)| (checksum, tags))? {
        let rival = "memlift".to_owned();
        return Err(BenchError::Wrong { name: definition.name.clone(), rival }.into());
    }
    let mut row = Row::new(definition);
    row.count.insert("messages".to_owned(), moved[0] as u64);
    row.count.insert("rival_messages".to_owned(), moved[1] as u64);
    row.qualifies = format!(
        "AES-128-GCM of 16 KiB messages at {:.2} GB/s on both sides; {}; neighbour: random cycle of {mib} MiB on another core (slowed by the rival, by size: {}); ours: \
         placement as configured; theirs: memcpy of the C library, then aws-lc in place",
        per_slice as f64 * MESSAGE_BYTES as f64 / SLICE.as_secs_f64() * 1e-9,
        sealing.areas.about(),
        tried.join(", "),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}
