// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about what the root leads to: pointers that lead nowhere, objects that nothing leads to, links of tables and stores that do not
//! agree, keys that damage costs.
//!
//! - **Flow** one view of the heap ([`Audit`]) ─▶ [`walk`] ─▶ [`structures`] ─▶ [`lost_keys`]
//! - **Not here** how each is found: `objects`, `owned`, `foreign`, `lost_keys`

use std::collections::{BTreeMap, BTreeSet};

use super::foreign::{Foreign, Head};
use super::lost_keys::lost_keys;
use super::objects::Heap;
use super::owned::{self, Audit, Known};
use super::{Findings, Part};
use crate::error::Result;
use crate::layout::{Header, SLAB_BYTES};
use crate::persist::Persist;
use crate::raw::ForeignRoot;

/// Checks everything that the root leads to; `damaged` are pages without their checksum.
pub(super) fn check(
    heap: &Heap<'_>,
    header: &Header,
    root: u64,
    damaged: &BTreeSet<u64>,
    findings: &mut Findings,
) -> Result<()> {
    let audit = Audit::new(heap, header)?;
    let foreign = Foreign::read(&audit);
    walk(&audit, root, foreign.as_ref(), findings)?;
    structures(&audit, findings)?;
    for lost in lost_keys(&audit, damaged)? {
        findings.damage(Part::Keys, None, lost.to_string());
    }
    Ok(())
}

/// Tables and stores, whose links are memlift's own.
fn structures(audit: &Audit<'_>, findings: &mut Findings) -> Result<()> {
    let home = audit.heap().snapshot.home()?;
    let owned = owned::scan(audit)?;
    for (offset, what) in owned.broken {
        findings.damage(Part::Objects, home.place(offset), format!("at {offset:#x} of the heap: {what}"));
    }
    for place in owned.free {
        let what = format!("the object at {:#x} of the heap is marked as free, and is led to", place.start);
        findings.damage(Part::Bitmap, home.place(place.slab * SLAB_BYTES), what);
    }
    for place in owned.stray {
        let what = format!(
            "the object at {:#x} of the heap is marked as in use, and nothing leads to it",
            place.start
        );
        findings.damage(Part::Bitmap, home.place(place.slab * SLAB_BYTES), what);
    }
    Ok(())
}

/// Pointers along which the catalog leads, and objects that are not met on the way.
fn walk(audit: &Audit<'_>, root: u64, foreign: Option<&Foreign>, findings: &mut Findings) -> Result<()> {
    let heap = audit.heap();
    let home = heap.snapshot.home()?;
    let in_file = |offset: u64| home.place(offset);
    if root == 0 {
        if heap.in_use().next().is_some() {
            findings.note(
                Part::Root,
                in_file(crate::layout::SUPERBLOCK_OFFSET),
                "there is no root object: which objects are still wanted cannot be told",
            );
        }
        return Ok(());
    }
    let reach = heap.reach(false)?;
    for one in &reach.dangling {
        let why = if one.free.is_some() { "which is free" } else { "where there is none" };
        let (part, offset) = match one.holder {
            0 => (Part::Root, in_file(crate::layout::SUPERBLOCK_OFFSET)),
            holder => (Part::Objects, in_file(holder)),
        };
        let what =
            format!("{} points to a {} at {:#x} of the heap, {why}", one.field, one.wanted, one.target);
        match part {
            Part::Root => findings.damage(part, offset, what),
            _ => findings.note(part, offset, what),
        }
    }
    if reach.dangling_count > reach.dangling.len() as u64 {
        let more = reach.dangling_count - reach.dangling.len() as u64;
        findings.note(Part::Objects, None, format!("{more} more pointers lead nowhere"));
    }
    let walked = foreign.map(|foreign| foreign.walk(audit)).transpose()?.unwrap_or_default();
    for (holder, what) in &walked.dangling {
        let offset = if *holder == 0 { crate::layout::SUPERBLOCK_OFFSET } else { *holder };
        findings.note(Part::Objects, in_file(offset), what);
    }
    if walked.dangling_count > walked.dangling.len() as u64 {
        let more = walked.dangling_count - walked.dangling.len() as u64;
        findings.note(Part::Objects, None, format!("{more} more places in objects of C lead nowhere"));
    }
    let mut lost: BTreeMap<String, (u64, u64, Vec<u64>)> = BTreeMap::new();
    let known = Known::of(audit);
    for place in heap.in_use().filter(|place| !reach.met(place)) {
        let mut name = heap.types.name(place.tag);
        if let Some(foreign) = foreign
            && let Some(head) = foreign.head(audit, &place)?
        {
            if let Some(what) = odd_length(foreign, head) {
                let what = format!("the object at {:#x} of the heap {what}", place.start);
                findings.damage(Part::Objects, in_file(place.start), what);
            }
            name = foreign.name_of(head.id);
        }
        if walked.met.contains(&place.start) || known.has(heap, &place)? {
            continue;
        }
        let (count, bytes, first) = lost.entry(name).or_default();
        *count += 1;
        *bytes += place.room;
        if first.len() < 4 {
            first.push(place.start);
        }
    }
    let mut opaque = heap.types.opaque();
    if foreign.is_some() {
        opaque.retain(|name| *name != ForeignRoot::NAME); // its fields are followed
        opaque.extend(walked.opaque.iter().map(|name| &**name));
    }
    if !opaque.is_empty() && !lost.is_empty() {
        // One of these may have what leads to them: no reason to say it type by type.
        let lost: Vec<String> = lost
            .iter()
            .map(|(name, (count, bytes, _))| format!("{count} of {name} ({bytes} bytes)"))
            .collect();
        let names = opaque[..opaque.len().min(4)].join(", ");
        let more = if opaque.len() > 4 { ", …" } else { "" };
        let what = format!(
            "not met on the way from the root: {}; but {names}{more} may have pointers that the list of types does not show",
            lost.join(", ")
        );
        findings.note(Part::Objects, None, what);
        return Ok(());
    }
    for (name, (count, bytes, first)) in lost {
        let places: Vec<String> = first.iter().map(|one| format!("{one:#x}")).collect();
        let what = format!(
            "nothing that the root leads to points to {count} of {name} ({bytes} bytes; the first at {} of the heap)",
            places.join(", ")
        );
        findings.note(Part::Objects, None, what);
    }
    Ok(())
}

/// Says how the length in an object's header contradicts its place or its type.
fn odd_length(foreign: &Foreign, head: Head) -> Option<String> {
    if head.id == 0 {
        return None;
    }
    if !head.fits {
        return Some(format!("has {} bytes by its header, and its place has fewer", head.bytes));
    }
    let known = foreign.get(head.id).filter(|known| known.bytes != 0 && known.bytes != head.bytes)?;
    Some(format!("has {} bytes by its header, and its type {} has {}", head.bytes, known.name, known.bytes))
}
