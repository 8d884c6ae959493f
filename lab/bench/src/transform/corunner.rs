// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `corunner/slowdown`: how much a cache-sensitive neighbour is slowed by copies that seal, at equal bytes per second.
//!
//! - **Flow** `corunner/slowdown`: the neighbour shares our core, as one thread of a server shares it with the next: it walks a random
//!   cycle that fills most of the second-level cache ─▶ a burst of messages ─▶ one timed lap, over a lap without a burst
//!   `corunner/slowdown/apart`: the neighbour follows a random cycle on another core: alone ─▶ beside one side ─▶ alone ─▶
//!   beside the other …; its slowdown is its lines per second alone, over those beside, less one
//! - **Alone** means that our core spins in registers: it draws the power that it draws beside, but touches no memory
//! - **Rate** both sides seal 16 KiB messages from memory that is in no cache. Shared: a burst of an eighth of the second-level cache in
//!   every turn, and turns of one length for both; apart: as many messages per second as the slower one nearly could, in slices of a millisecond
//! - **Size** of the neighbour's cycle: shared three quarters of the second-level cache that a core has, so that it fits alone and does
//!   not beside a burst; apart that which the rival slows most
//! - **Rival** what programs do today: memcpy, then aws-lc in place

use std::time::{Duration, Instant};

use super::Stop;
use super::awslc::AwsLc;
use super::fused::{Areas, KEY};
use super::neighbour::{Neighbour, Work};
use super::ours::{Ours, Placing};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::pin::Pinned;
use crate::{BenchError, Row, machine, median, reference};

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

/// Turns per sample.
const TURNS: usize = 24;
const TURNS_QUICK: usize = 2;

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

    /// Seals `per_slice` messages in each slice until `window` is over; gives how many it sealed.
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

    /// Seals all messages once; gives the time, the checksum and the tags.
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

/// A random cycle through lines of memory, and the time of a lap.
struct Lap(Vec<[u32; 16]>);

impl Lap {
    fn new(bytes: usize) -> Lap {
        let lines = bytes / 64;
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for index in (1..lines).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(index, (state >> 33) as usize % (index + 1));
        }
        let mut next = vec![[0; 16]; lines];
        (0..lines).for_each(|index| next[order[index] as usize][0] = order[(index + 1) % lines]);
        Lap(next)
    }

    fn seconds(&self) -> f64 {
        let start = Instant::now();
        let mut at = 0;
        for _ in 0..self.0.len() {
            at = self.0[at as usize][0];
        }
        std::hint::black_box(at);
        start.elapsed().as_secs_f64()
    }
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Measures either row.
pub(super) fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    match definition.name.ends_with("/apart") {
        true => apart(definition, quick),
        false => shared(definition, quick),
    }
}

fn sealing(quick: bool) -> Result<Sealing, BenchError> {
    let bytes = if quick { AREA_BYTES_QUICK } else { AREA_BYTES };
    let count = bytes / MESSAGE_BYTES;
    Ok(Sealing {
        areas: Areas::new(bytes, false, quick)?,
        order: (0..count).map(|index| index * 1_000_003 % count).collect(),
        at: 0,
        ours: Ours::new(&KEY, Placing::Configured)?,
        theirs: AwsLc::new(&KEY)?,
        tags: vec![[0; 16]; count],
    })
}

/// Fails unless both sides leave the same bytes and tags.
fn agree(definition: &Definition, sealing: &mut Sealing) -> Result<(Took, Took), BenchError> {
    let (theirs, checksum, tags) = sealing.all(Side::Theirs)?;
    let (ours, ours_checksum, ours_tags) = sealing.all(Side::Ours)?;
    if (checksum, tags) != (ours_checksum, ours_tags) {
        return Err(BenchError::Wrong { name: definition.name.clone(), rival: "memlift".to_owned() });
    }
    Ok((ours, theirs))
}

/// The neighbour on our own core.
fn shared(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let mut sealing = sealing(quick)?;
    let (ours_full, full) = agree(definition, &mut sealing)?;
    let cache_bytes = machine::second_level_bytes();
    let (cycle_bytes, messages) = (cache_bytes / 4 * 3, (cache_bytes / 8).div_ceil(MESSAGE_BYTES));
    let neighbour = Lap::new(cycle_bytes);
    let burst = Duration::from_secs_f64(1.5 * messages as f64 * full.seconds.max(ours_full.seconds));
    let mut moved = [0; 2];
    let samples = pairs::interleave(quick, |side| {
        let (mut beside, mut alone) = (0.0, 0.0);
        for turn in 0..2 * (if quick { TURNS_QUICK } else { TURNS }) {
            // Two laps bring the cycle back into the cache.
            let _ = (neighbour.seconds(), neighbour.seconds());
            let end = Instant::now() + burst;
            if turn % 2 == 0 {
                spin_until(end);
                alone += neighbour.seconds();
                continue;
            }
            for _ in 0..messages {
                sealing.message(side)?;
            }
            moved[usize::from(side == Side::Theirs)] += messages;
            spin_until(end);
            beside += neighbour.seconds();
        }
        // Percent in place of seconds: the definition's unit is no time.
        Ok(Took { seconds: ((beside / alone - 1.0) * 100.0).max(LEAST_PERCENT), cpu_s: 0.0 })
    })?;
    agree(definition, &mut sealing)?;
    let mut row = Row::new(definition);
    row.count.insert("messages".to_owned(), moved[0] as u64);
    row.count.insert("rival_messages".to_owned(), moved[1] as u64);
    row.qualifies = format!(
        "AES-128-GCM of 16 KiB messages in bursts of {} KiB, as many on both sides in turns of one length; {}; neighbour: random \
         cycle of {} KiB in a second-level cache of {} KiB, on the same core, timed for one lap after each burst; ours: placement as configured; theirs: memcpy of \
         the C library, then aws-lc in place",
        (messages * MESSAGE_BYTES) >> 10,
        sealing.areas.about(),
        cycle_bytes >> 10,
        cache_bytes >> 10,
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// The neighbour on another core.
fn apart(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let Some(pinned) = Pinned::first(None) else {
        return Err(Stop::Missing(
            "a second core for the neighbour: this process may use only one".to_owned(),
        ));
    };
    let window = if quick { WINDOW_QUICK } else { WINDOW };
    let mut sealing = sealing(quick)?;
    let (ours_full, full) = agree(definition, &mut sealing)?;
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
    agree(definition, &mut sealing)?;
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
