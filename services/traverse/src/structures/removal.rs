// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Removes nodes of a hash map by their addresses, many at a time.
//!
//! - **Flow** nodes of a scan and their next words ─▶ [`remove`]: a compare-and-swap for each sets bit 0 of its next word ─▶ the chains are
//!   tidied, which frees the nodes. [`clear`]: all chains, some at a time
//! - **Order** a node is removed by whoever wins its compare-and-swap, nobody else
//! - **Not here** removal by key: one walk ([`Chain::take`])

use std::collections::HashSet;

use super::chain::{Chain, ScannedNode, TRIES, size_of_node, taken};
use super::hash::{Handle, HashMap, chain_of};
use super::heap::{Heap, Scratch, Swap};
use crate::client::{ClientError, Result};

/// Chains that are cleared together.
const CLEAR_HEADS: u64 = 256;

/// Nodes that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    pub entries: u64,
    /// Bytes that the nodes take of the nodes' memory.
    pub bytes: u64,
    /// Nodes that others have changed meanwhile, and that were not removed here.
    pub missed: u64,
}

/// Returns the bytes of a node of the nodes' memory that a scan has found.
pub(super) fn bytes_of(node: &ScannedNode) -> u64 {
    size_of_node(u64::from(node.key_bytes).next_multiple_of(8), u64::from(node.value_bytes))
}

/// Removes nodes with these next words.
pub(super) fn remove(
    heap: &mut impl Heap,
    map: Handle,
    nodes: impl Iterator<Item = (ScannedNode, u64)>,
) -> Result<Removed> {
    let nodes: Vec<(ScannedNode, u64)> = nodes.collect();
    let swap = |&(node, next): &(ScannedNode, u64)| Swap {
        address: node.address,
        expected: next,
        fresh: next | 1,
        since: node.since,
    };
    let swaps: Vec<Swap> = nodes.iter().map(swap).collect();
    let (mut removed, mut failed) = (Removed::default(), Ok(()));
    let (mut chains, mut known) = (Vec::new(), HashSet::new());
    for (swapped, (node, _)) in heap.compare_swap_many(&swaps).into_iter().zip(&nodes) {
        match swapped {
            Ok(Ok(())) => {
                removed.entries += 1;
                removed.bytes += taken(bytes_of(node));
                let chain = Chain(map.heads + 8 * chain_of(node.key_word, map.log2));
                if known.insert(chain) {
                    chains.push(chain);
                }
            }
            Ok(Err(_)) | Err(ClientError::Outdated) => removed.missed += 1,
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed.and(Chain::tidy_many(heap, &chains)).map(|()| removed)
}

/// Removes all nodes of a map; a node that is linked meanwhile may stay.
pub(super) fn clear(heap: &mut impl Heap, map: Handle) -> Result<Removed> {
    let (heads, mut all) = (1_u64 << map.log2, Removed::default());
    for first in (0..heads).step_by(CLEAR_HEADS as usize) {
        let last = (first + CLEAR_HEADS).min(heads) - 1;
        for turn in 0.. {
            let nodes = Chain(map.heads + 8 * first).scan(heap, map.heads + 8 * last)?;
            let places: Vec<(u64, usize)> = nodes.iter().map(|node| (node.address, 8)).collect();
            let next = heap.read_many(&places)?.into_iter().map(|word| Scratch(word).word(0));
            let live = nodes.into_iter().zip(next).filter(|(_, next)| next & 1 == 0);
            let removed = remove(heap, map, live)?;
            all.entries += removed.entries;
            all.bytes += removed.bytes;
            if removed.missed == 0 {
                break;
            }
            if turn == TRIES {
                return Err(ClientError::Contended { what: "clearing a chain", times: TRIES });
            }
        }
    }
    Ok(all)
}

impl HashMap {
    /// Removes all entries; an entry that is put meanwhile may stay.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or the reason that there was no answer; entries that were removed by then stay removed.
    pub fn clear(&self, heap: &mut impl Heap) -> Result<()> {
        clear(heap, self.handle()).map(|_| ())
    }
}
