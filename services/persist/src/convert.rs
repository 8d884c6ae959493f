// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool with another mechanism, log, number of sections or size of heap: a new file with the same heap.
//!
//! - **Flow** snapshot with its log replayed ─▶ new file under a temporary name ─▶ catalog, used slabs and their directory
//!   copied, offsets unchanged ─▶ durable ─▶ linked to its name
//! - **Rule** the target has one file, also when the source is interleaved over several
//! - **Rule** the source is not written to; a crash leaves a whole target or none
//! - **Not here** older versions of the format: there are none, version 1 is the first. A pool of another version is refused

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use crate::catalog::Catalog;
use crate::check::Files;
use crate::check::directory::{SPAN_REST, judge, marked};
use crate::check::directory_words;
use crate::check::home::Home;
use crate::check::snapshot::Snapshot;
use crate::check::types::Types;
use crate::checksums::{Checksums, Plan};
use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::layout::{
    BODIES_BYTES, BODIES_OFFSET, CATALOG_BYTES, CATALOG_START, Entry, FEATURE_CHECKSUMS, FEATURE_SPANS,
    Header, SLAB_BYTES, ZONE_SLABS, is_system,
};
use crate::medium::{Counters, Mapped, Medium};
use crate::open;
use crate::options::{Domain, Mechanism, Options};

/// Changes to a pool's configuration; None: as it is.
#[derive(Clone, Debug, Default)]
pub struct Conversion {
    /// How transactions are made durable.
    pub mechanism: Option<Mechanism>,
    /// Lanes of the log.
    pub lanes: Option<u32>,
    /// Bytes of each lane.
    pub lane_bytes: Option<u64>,
    /// Sections; not fewer than are in use.
    pub sections: Option<u32>,
    /// Bytes of the heap; not fewer than its last used slab needs.
    pub heap_bytes: Option<u64>,
}

/// Result of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Converted {
    /// Header of the source.
    pub source: Header,
    /// Header of the target.
    pub target: Header,
    /// Transactions that were only in the source's log.
    pub replayed: u64,
    /// Bytes of slabs that were copied.
    pub copied: u64,
}

/// Writes the pool in `source` to the new file `target`, changed as `wish` says.
///
/// # Errors
///
/// [`Error::Corrupt`] when the source is damaged (repair it first); [`Error::Argument`] when what is in use does not fit `wish`;
/// [`Error::Exists`], [`Error::File`] of the target; those of [`crate::check::check`].
pub fn convert(source: impl Files, target: impl AsRef<Path>, wish: &Conversion) -> Result<Converted> {
    let mut snapshot = Snapshot::open(&source)?;
    let (header, recovered) = snapshot.sound()?;
    let catalog = Catalog::read(&snapshot.medium)?;
    let words = directory_words(&snapshot, &header)?;
    let marked = marked(&snapshot, &header)?;
    let (directory, odd) = judge(&words, &marked, &header, &Types::new(catalog.records()));
    if let Some(odd) = odd.first() {
        return Err(Error::corrupt(odd.what.clone()));
    }
    let options = wanted(&header, wish, &directory)?;
    let fresh = Fresh::file(target.as_ref())?;
    open::create_in(&fresh, target.as_ref(), &options)?;
    let (new, copied) = fill(&snapshot, &directory, &marked, fresh.open()?, target.as_ref())?;
    fresh.publish()?;
    Ok(Converted { source: header, target: new, replayed: recovered.transactions, copied })
}

fn wanted(header: &Header, wish: &Conversion, directory: &[Entry]) -> Result<Options> {
    let wrong = |what: String| Err(Error::Argument { what });
    let used = |entry: &&Entry| {
        matches!(entry.state, Entry::SLOTS | Entry::RUN | Entry::RUN_REST | Entry::SPAN | SPAN_REST)
    };
    let sections = wish.sections.unwrap_or(header.sections);
    let last = directory.iter().filter(used).map(|entry| u32::from(entry.section)).max().unwrap_or(0);
    if last >= sections {
        return wrong(format!("section {last} has objects: {} sections are the fewest", last + 1));
    }
    let heap_bytes = wish.heap_bytes.unwrap_or(header.heap_bytes);
    let starts = |entry: &&Entry| used(entry) && !matches!(entry.state, Entry::RUN_REST | SPAN_REST);
    let ends = directory.iter().enumerate().filter(|(_, entry)| starts(entry));
    let slabs = ends.map(|(slab, entry)| slab as u64 + entry.slabs()).max().unwrap_or(0);
    let least = (slabs * SLAB_BYTES).max(crate::layout::HEAP_BYTES_MIN);
    if heap_bytes < least {
        return wrong(format!("the heap's last object ends at {least}: {heap_bytes} bytes are too few"));
    }
    let mechanism = Mechanism::from_byte(header.mechanism).unwrap_or_default();
    let mechanism = wish.mechanism.unwrap_or(mechanism);
    let by_pages = matches!(mechanism, Mechanism::Checkpoint | Mechanism::Shadow);
    if by_pages && let Some(slab) = directory.iter().position(|entry| entry.state == Entry::SPAN) {
        let offset = slab as u64 * SLAB_BYTES;
        return wrong(format!(
            "the object at {offset:#x} of the heap is larger than a {} pool takes: free it, or choose redo or undo",
            mechanism.name()
        ));
    }
    let lane_bytes = wish.lane_bytes.unwrap_or(header.lane_bytes);
    Ok(Options {
        heap_bytes,
        lanes: wish.lanes.unwrap_or(header.lanes),
        lane_bytes,
        sections,
        mechanism,
        max_bytes: Options::default().max_bytes.max(heap_bytes),
        domain: Domain::Auto,
        checksums: false, // they get their place when the heap is full
        ..Options::default()
    })
}

/// Copies the heap into the file of a new pool, which `path` will name.
fn fill(
    snapshot: &Snapshot,
    directory: &[Entry],
    marked: &BTreeSet<u64>,
    file: File,
    path: &Path,
) -> Result<(Header, u64)> {
    let bytes = file.metadata().map_err(file_error("stat", path))?.len();
    let medium = Medium::Mapped(Mapped::new(file, path, 2 * bytes, Domain::Pages, true)?);
    let mut new = crate::recover::read_header(&medium)?;
    let mut counters = Counters::default();
    let mut types = vec![0; CATALOG_BYTES as usize];
    snapshot.medium.read(CATALOG_START, &mut types)?;
    medium.store(CATALOG_START, &types, &mut counters)?;
    let home = Home::of(&medium, &new)?;
    let (mut copied, mut slab_bytes) = (0, vec![0; SLAB_BYTES as usize]);
    for (slab, entry) in directory.iter().enumerate().map(|(slab, entry)| (slab as u64, entry)) {
        let system = is_system(slab) && !marked.contains(&(slab / ZONE_SLABS));
        if slab * SLAB_BYTES >= new.heap_bytes || (entry.state == Entry::FREE && !system) {
            continue;
        }
        snapshot.heap(slab * SLAB_BYTES, &mut slab_bytes)?;
        home.store(&medium, slab * SLAB_BYTES, &slab_bytes, &mut counters)?;
        copied += SLAB_BYTES;
    }
    bodies(&medium, &home, &mut new, directory, &mut counters)?;
    let mechanism = Mechanism::from_byte(new.mechanism);
    if matches!(mechanism, Some(Mechanism::Redo | Mechanism::Checkpoint)) {
        checksums(&medium, &mut new, directory, &mut counters)?;
    }
    medium.harden(&mut counters)?;
    Ok((new, copied))
}

/// Gives every page in use its checksum, in new slabs behind the last one that is in use.
fn checksums(medium: &Medium, new: &mut Header, directory: &[Entry], counters: &mut Counters) -> Result<()> {
    let slabs = new.heap_bytes / SLAB_BYTES;
    let used = |slab: u64| {
        is_system(slab) || directory.get(slab as usize).is_some_and(|entry| entry.state != Entry::FREE)
    };
    let from = (0..slabs).rev().find(|slab| used(*slab)).map_or(0, |last| last + 1);
    let plan = Plan::new(slabs, from, None, 0);
    new.heap_bytes = plan.slabs * SLAB_BYTES;
    new.incompat |= FEATURE_CHECKSUMS;
    (new.checksum_index, new.checksum_chunks) = (plan.index as u32, plan.chunks.len() as u32);
    new.generation += 1;
    medium.grow(new.file_bytes())?;
    Checksums::make(medium, new, &plan, used, counters)?;
    medium.harden(counters)?;
    medium.write_header(new, counters)
}

/// Marks the zones that have no directory; idle ones get one: they were not copied.
fn bodies(
    medium: &Medium,
    home: &Home,
    new: &mut Header,
    directory: &[Entry],
    counters: &mut Counters,
) -> Result<()> {
    let mut bytes = vec![0; BODIES_BYTES as usize];
    for (zone, first) in directory.iter().step_by(ZONE_SLABS as usize).enumerate() {
        bytes[zone / 8] |= u8::from(first.state == SPAN_REST) << (zone % 8);
    }
    home.store(medium, BODIES_OFFSET, &bytes, counters)?;
    if directory.iter().any(|entry| entry.state == Entry::SPAN) {
        new.incompat |= FEATURE_SPANS;
        new.generation += 1;
        medium.write_header(new, counters)?;
    }
    Ok(())
}
