// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Removes entries by their nodes: expired ones, and of a map that is too large the least recently used ones of a sample.
//!
//! - **Flow** a put has made the map larger than its bound ─▶ [`make_room`]: a sample of adjacent chains at a random place ─▶ stamps ─▶ the
//!   expired entries, then the oldest ones ─▶ one compare-and-swap for each ([`remove`]) ─▶ size, chains, memory
//! - **Order** who wins the compare-and-swap that marks a node counts it and frees it, nobody else. An entry that was used, replaced or
//!   removed meanwhile stays, or is gone already
//! - **Bound** a put evicts until the map is within its bound, or after [`ROUNDS`] samples leaves the rest to the next put and to the
//!   sweep. Clients that put at the same time exceed the bound by what they put together
//! - **Not here** the sweep over all chains (`sweep`)

use memlift_ground::region::random;

use super::super::chain::{self, Chain, ScannedNode, VALUE_BYTES_MAX};
use super::super::hash::Handle;
use super::super::heap::{Heap, Scratch};
use super::super::removal::{self, bytes_of};
use super::stamp::{STAMP_BYTES, Stamp};
use super::terms::{self, Size, Terms};
use crate::client::{ClientError, Result};

/// Nodes of a sample, as a rule.
const SAMPLE: u64 = 16;
/// Most nodes of a sample whose stamps are read.
const SAMPLE_MAX: usize = 256;
/// Samples that one put may take.
const ROUNDS: u32 = 64;
/// Samples in a row from which nothing could be evicted, after which a put gives up: the size may be counted wrong until the sweep
/// corrects it.
const IDLE_ROUNDS: u32 = 4;
/// Most chains of a sample.
const HEADS_MAX: u64 = 512;

/// A node of a chain, and what its entry's stamp says.
#[derive(Clone, Copy, Debug)]
pub(super) struct StampedNode {
    pub node: ScannedNode,
    pub next: u64,
    pub stamp: Stamp,
}

impl StampedNode {
    /// Returns the bytes that the node takes of the nodes' memory.
    pub fn taken(&self) -> i64 {
        chain::taken(bytes_of(&self.node)) as i64
    }

    pub fn is_expired(&self) -> bool {
        self.stamp.is_expired(self.node.since)
    }
}

/// Reads the next words and the stamps of nodes. Nodes that were removed meanwhile are left out.
pub(super) fn stamps(heap: &mut impl Heap, nodes: &[ScannedNode]) -> Result<Vec<StampedNode>> {
    let mut places = Vec::with_capacity(nodes.len() * 2);
    for node in nodes {
        let value = u64::from(node.value_bytes);
        let whole = value >= 2 * STAMP_BYTES as u64 && value % 8 == 0 && value <= VALUE_BYTES_MAX as u64;
        let end = node.address.checked_add(bytes_of(node)).filter(|_| whole);
        let Some(end) = end else {
            return Err(ClientError::Corrupt {
                address: node.address,
                what: "entry of a map whose entries expire",
            });
        };
        places.extend([(node.address, 8), (end - STAMP_BYTES as u64, STAMP_BYTES)]);
    }
    let words: Vec<u64> = heap.read_many(&places)?.into_iter().map(|word| Scratch(word).word(0)).collect();
    let stamped = |(node, pair): (&ScannedNode, &[u64])| StampedNode {
        node: *node,
        next: pair[0],
        stamp: Stamp::from_word(pair[1]),
    };
    Ok(nodes.iter().zip(words.chunks_exact(2)).map(stamped).filter(|one| one.next & 1 == 0).collect())
}

/// Removes nodes from the map; returns the size that was removed.
pub(super) fn remove(heap: &mut impl Heap, map: Handle, nodes: &[StampedNode]) -> Result<Size> {
    let removed = removal::remove(heap, map, nodes.iter().map(|one| (one.node, one.next)))?;
    Ok(Size { entries: removed.entries as i64, bytes: removed.bytes as i64 })
}

/// Returns nodes of adjacent chains at a random place.
fn sample(heap: &mut impl Heap, map: Handle, entries: u64) -> Result<Vec<StampedNode>> {
    let heads = 1_u64 << map.log2;
    let wanted = SAMPLE.saturating_mul(heads).div_ceil(entries.max(1));
    let span = wanted.clamp(1, HEADS_MAX.min(heads));
    // A sample at an end of the map is shorter: so each chain is in as many samples as every other.
    let end = random() % (heads + span - 1);
    let (first, last) = (end.saturating_sub(span - 1), end.min(heads - 1));
    let mut nodes = Chain(map.heads + 8 * first).scan(heap, map.heads + 8 * last)?;
    if nodes.len() > SAMPLE_MAX {
        // A long chain: its nodes are in the order of insertion, so a part of it is no worse than the whole.
        let from = random() as usize % (nodes.len() - SAMPLE_MAX + 1);
        nodes = nodes[from..from + SAMPLE_MAX].to_vec();
    }
    stamps(heap, &nodes)
}

/// Evicts entries of a map of this size until it is within its bound, or [`ROUNDS`] samples were taken. An entry with the key word
/// `spared` was put just now, and stays.
pub(super) fn make_room(
    heap: &mut impl Heap,
    (map, at): (Handle, u64),
    terms: &Terms,
    mut size: Size,
    spared: Option<u64>,
) -> Result<()> {
    let mut removed = Size::default();
    let (mut done, mut idle) = (Ok(()), 0);
    for _ in 0..ROUNDS {
        if !terms.exceeded(size) || idle == IDLE_ROUNDS {
            break;
        }
        let evicted = sample(heap, map, size.entries.max(1) as u64).and_then(|mut found| {
            found.retain(|one| Some(one.node.key_word) != spared || one.is_expired());
            remove(heap, map, &victims(found, terms, size))
        });
        match evicted {
            Ok(evicted) => {
                idle = if evicted.entries == 0 { idle + 1 } else { 0 };
                size.add(-evicted.entries, -evicted.bytes);
                removed.add(evicted.entries, evicted.bytes);
            }
            Err(error) => {
                done = Err(error);
                break;
            }
        }
    }
    if removed != Size::default() {
        terms::count(heap, at, -removed.entries, -removed.bytes)?;
    }
    done
}

/// Returns the nodes of a sample that have to go: the expired ones, then those that were not used for longest, as many as the map
/// is too large by, but at most a quarter of the sample.
fn victims(mut found: Vec<StampedNode>, terms: &Terms, mut size: Size) -> Vec<StampedNode> {
    found.sort_by_key(|one| (!one.is_expired(), one.stamp.used));
    let most = found.len().div_ceil(4);
    let mut evicted = 0;
    found
        .into_iter()
        .take_while(|one| {
            let goes = one.is_expired() || (evicted < most && terms.exceeded(size));
            evicted += usize::from(!one.is_expired());
            size.add(-1, -one.taken());
            goes
        })
        .collect()
}
