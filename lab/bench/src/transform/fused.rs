// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `copy_seal/…/cold` and `copy_crc_seal/…`: one pass that copies and seals, against a pass for each.
//!
//! - **Flow** source area ─▶ target area, message by message in an order that no prefetcher knows, or as one message in blocks
//! - **Cold** each area is at least as large as the measured last-level cache, so that a pass evicts what the one before it left;
//!   before every sample a sweep evicts both. A sample is several passes: write-back of what they left in the cache
//!   falls into it, and so does memlift's measuring of contention, at the share of the time that it takes
//! - **Check** after every sample the target's checksum, the tags and the CRC are those that the rival's first run left
//! - **Rival** `memcpy_awslc`: memcpy of a message, then aws-lc in place on what is hot now · `three_passes`: memcpy of everything,
//!   memlift's own CRC-32C over everything, aws-lc in place over everything

use super::Stop;
use super::awslc::AwsLc;
use super::openssl::TAG_BYTES;
use super::ours::{Ours, Placing};
use crate::area::Area;
use crate::definition::Definition;
use crate::pairs::{self, Side};
use crate::{BenchError, Row, cache, machine, reference};

const AREA_BYTES: usize = 64 << 20;
const AREA_BYTES_QUICK: usize = 4 << 20;
const SWEEP_BYTES_QUICK: usize = 16 << 20;
/// Passes of a sample.
const PASSES: usize = 6;
/// A public test key, no secret.
pub(super) const KEY: [u8; 16] = *b"memlift, 16 byte";

/// Source, target, and what evicts them.
pub(super) struct Areas {
    pub source: Area,
    pub target: Area,
    sweep: Area,
    cache_bytes: usize,
}

impl Areas {
    /// Areas of `bytes`, or of the last-level cache's size if that is more and they may grow.
    pub fn new(bytes: usize, grows: bool, quick: bool) -> Result<Areas, BenchError> {
        let cache_bytes = cache::measure(quick)?;
        let bytes = if grows && !quick { bytes.max(cache_bytes) } else { bytes };
        let sweep_bytes = if quick { SWEEP_BYTES_QUICK } else { cache::sweep_bytes(cache_bytes) };
        let needed_bytes = (2 * bytes + sweep_bytes) as u64;
        let available_bytes = machine::available_bytes();
        if needed_bytes > available_bytes {
            return Err(BenchError::Memory { needed_bytes, available_bytes });
        }
        let areas = Areas {
            source: Area::private(bytes)?,
            target: Area::private(bytes)?,
            sweep: Area::private(sweep_bytes)?,
            cache_bytes,
        };
        reference::pattern(areas.source.part(0, bytes), 11);
        Ok(areas)
    }

    /// Overwrites the target and gets both areas out of the caches.
    pub fn evict(&self) {
        reference::pattern(self.target.part(0, self.target.bytes()), 13);
        std::hint::black_box(reference::xor64(self.sweep.part(0, self.sweep.bytes())));
    }

    /// Describes the areas, for `qualifies`.
    pub fn about(&self) -> String {
        format!(
            "cold: {} MiB to {} MiB, in huge pages where the kernel has them, evicted by a sweep of {} MiB (cache measured: \
             {} MiB)",
            self.source.bytes() >> 20,
            self.target.bytes() >> 20,
            self.sweep.bytes() >> 20,
            self.cache_bytes >> 20
        )
    }
}

/// Results that a side left.
#[derive(PartialEq, Eq, Debug)]
struct Left {
    checksum: u64,
    tags: Vec<[u8; TAG_BYTES]>,
    crc: u32,
}

/// Measures `copy_seal/BYTES/cold`.
pub(super) fn copy_seal(definition: &Definition, bytes: usize, quick: bool) -> Result<Row, Stop> {
    let areas = Areas::new(if quick { AREA_BYTES_QUICK } else { AREA_BYTES }, true, quick)?;
    let count = areas.source.bytes() / bytes;
    let passes = if quick { 1 } else { PASSES };
    // Coprime to any power of two, and far apart.
    let order: Vec<usize> = (0..count).map(|index| index * 1_000_003 % count).collect();
    let (ours, theirs) = (Ours::new(&KEY, Placing::Configured)?, AwsLc::new(&KEY)?);
    let mut left = Left { checksum: 0, tags: vec![[0; TAG_BYTES]; count], crc: 0 };
    let turn = |side: Side, left: &mut Left| {
        areas.evict();
        let took = pairs::time(count * passes, || {
            for &index in order.iter().cycle().take(count * passes) {
                let (source, target) =
                    (areas.source.part(index * bytes, bytes), areas.target.part(index * bytes, bytes));
                let nonce = nonce(index);
                left.tags[index] = match side {
                    Side::Ours => ours.copy_seal(&nonce, source, target)?,
                    // SAFETY: both parts are mapped for `bytes`, and lie in different areas that only this thread uses.
                    Side::Theirs => unsafe {
                        libc::memcpy(target.start().cast(), source.start().cast(), bytes);
                        theirs.seal(&nonce, target.start(), bytes)?
                    },
                };
            }
            Ok(())
        })?;
        left.checksum = reference::checksum(areas.target.part(0, count * bytes));
        Ok(took)
    };
    let about = format!(
        "AES-128-GCM; {}; theirs: memcpy of the C library, then aws-lc in place; one thread; {}",
        areas.about(),
        machine::vectors()
    );
    measure(definition, quick, turn, &mut left, bytes, about)
}

/// Measures `copy_crc_seal/BYTES`.
pub(super) fn copy_crc_seal(definition: &Definition, bytes: usize, quick: bool) -> Result<Row, Stop> {
    let bytes = if quick { bytes.min(AREA_BYTES_QUICK) } else { bytes };
    let areas = Areas::new(bytes, false, quick)?;
    let passes = if quick || bytes < areas.cache_bytes { 1 } else { PASSES };
    let (ours, theirs) = (Ours::new(&KEY, Placing::Configured)?, AwsLc::new(&KEY)?);
    let mut left = Left { checksum: 0, tags: vec![[0; TAG_BYTES]; 1], crc: 0 };
    let nonce = nonce(0);
    let turn = |side: Side, left: &mut Left| {
        areas.evict();
        let (source, target) = (areas.source.part(0, bytes), areas.target.part(0, bytes));
        let took = pairs::time(passes, || {
            for _ in 0..passes {
                (left.tags[0], left.crc) = match side {
                    Side::Ours => ours.copy_crc_seal(&nonce, source, target)?,
                    // SAFETY: both parts are mapped for `bytes`, and lie in different areas that only this thread uses.
                    Side::Theirs => unsafe {
                        libc::memcpy(target.start().cast(), source.start().cast(), bytes);
                        let crc = (memlift_kernels::active().crc32c)(target.start(), bytes, 0);
                        (theirs.seal(&nonce, target.start(), bytes)?, crc)
                    },
                };
            }
            Ok(())
        })?;
        left.checksum = reference::checksum(target);
        Ok(took)
    };
    let about = format!(
        "copy, CRC-32C and AES-128-GCM as one message of {} MiB; {}; ours: one chain, in blocks of 64 KiB; theirs: three passes over the whole \
         buffer, memcpy of the C library, memlift's CRC-32C, aws-lc in place; one thread; {}",
        bytes >> 20,
        areas.about(),
        machine::vectors()
    );
    measure(definition, quick, turn, &mut left, bytes, about)
}

/// Interleaves `turn`s; the rival's first result is the right one.
fn measure(
    definition: &Definition,
    quick: bool,
    mut turn: impl FnMut(Side, &mut Left) -> Result<pairs::Took, BenchError>,
    left: &mut Left,
    bytes: usize,
    about: String,
) -> Result<Row, Stop> {
    turn(Side::Theirs, left)?;
    let right = Left { checksum: left.checksum, tags: left.tags.clone(), crc: left.crc };
    let samples = pairs::interleave(quick, |side| {
        left.tags.fill([0; TAG_BYTES]);
        left.crc = 0;
        let took = turn(side, left)?;
        if *left != right {
            let who = if side == Side::Ours { "memlift" } else { definition.rival.as_str() };
            return Err(BenchError::Wrong { name: definition.name.clone(), rival: who.to_owned() });
        }
        Ok(took)
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    let seconds = crate::median(samples.pairs.iter().map(|pair| pair.0));
    row.qualifies = format!("{about}; ours: {:.2} GB/s", bytes as f64 / seconds * 1e-9);
    Ok(row.measured(definition, &samples.pairs, quick))
}

fn nonce(index: usize) -> [u8; 12] {
    let mut nonce = [0xa5; 12];
    nonce[4..].copy_from_slice(&(index as u64).to_be_bytes());
    nonce
}
