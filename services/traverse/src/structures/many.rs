// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets the values of many keys of chains together: first their nodes are placed, then their walks run at the same time.
//!
//! - **Flow** nodes ──place──▶ addresses ──insert walks, one per chain at a time──▶ the node is linked · or the key exists: the old
//!   node's next word is swapped to point to the new node · or another writer was first: try again in the next round ──▶ unlinked
//!   nodes are retired
//! - **Order** each key changes at one compare-and-swap, exactly once; keys change in any order. If a key comes twice the last value
//!   counts
//! - **Errors** the first error is returned; keys that have changed by then stay changed
//! - **Not here** the same for one key ([`Chain::insert`])

use std::collections::{HashMap, HashSet};

use super::chain::{Chain, FoundNode, Key, TRIES, node_bytes, retire_nodes, taken, unlinked};
use super::heap::{Heap, Outcome, Swap, Walk};
use crate::client::{ClientError, Result};

/// Keys whose nodes are placed at a time. It bounds memory; the packets in flight are bounded by the client's window.
pub(super) const BATCH: usize = 4096;

/// A key, its chain and its value.
pub(super) type Pair<'k> = (Chain, Key<'k>, &'k [u8]);

/// Changes that were made, also if an error followed them.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Number of keys that had no value.
    pub inserted: u64,
    /// Bytes that the nodes that were linked take of the nodes' memory.
    pub linked_bytes: u64,
    /// Nodes that were replaced.
    pub replaced: Vec<FoundNode>,
}

/// A node that is placed and not yet linked.
struct Insert<'k> {
    chain: Chain,
    key: Key<'k>,
    address: u64,
    bytes: u64,
    tries: u32,
}

/// Sets the values of keys; adds what has changed to `changed`, also if there is an error.
pub(super) fn insert_many(heap: &mut impl Heap, pairs: &[Pair<'_>], changed: &mut Changed) -> Result<()> {
    pairs.chunks(BATCH).try_for_each(|batch| insert_batch(heap, batch, changed))
}

fn insert_batch(heap: &mut impl Heap, pairs: &[Pair<'_>], changed: &mut Changed) -> Result<()> {
    let last: HashMap<Key<'_>, usize> =
        pairs.iter().enumerate().map(|(index, (_, key, _))| (*key, index)).collect();
    let counts = |index: &usize| last[&pairs[*index].1] == *index;
    let wanted: Vec<&Pair<'_>> = (0..pairs.len()).filter(counts).map(|index| &pairs[index]).collect();
    let nodes: Vec<Vec<u8>> =
        wanted.iter().map(|(_, key, value)| node_bytes(0, *key, value)).collect::<Result<_>>()?;
    let (mut waiting, mut failed) = (Vec::with_capacity(nodes.len()), Ok(()));
    for ((placed, node), &&(chain, key, _)) in heap.place_many(&nodes).into_iter().zip(&nodes).zip(&wanted) {
        match placed {
            Ok(address) => {
                waiting.push(Insert { chain, key, address, bytes: node.len() as u64, tries: 0 });
            }
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    while failed.is_ok() && !waiting.is_empty() {
        // Two walks that change one chain at the same time would only make each other fail.
        let mut chains = HashSet::new();
        let (now, later) = waiting.into_iter().partition(|insert: &Insert<'_>| chains.insert(insert.chain));
        waiting = later;
        failed = link(heap, now, &mut waiting, changed);
    }
    // The nodes that still wait were never linked.
    let freed = waiting.iter().try_for_each(|insert| heap.free(insert.address, insert.bytes));
    failed.and(freed)
}

/// Links nodes, each into a different chain. A node whose chain was changed by others meanwhile goes back to `waiting`. If a
/// node's walk ends with an error, the node may be linked or not, so its memory is not freed.
fn link<'k>(
    heap: &mut impl Heap,
    inserts: Vec<Insert<'k>>,
    waiting: &mut Vec<Insert<'k>>,
    changed: &mut Changed,
) -> Result<()> {
    let walks: Vec<Walk> = inserts.iter().map(|one| one.chain.insert_walk(one.key, one.address)).collect();
    let mut failed = Ok(());
    let (mut removed, mut untidy) = (Vec::new(), Vec::new());
    let (mut present, mut swaps) = (Vec::new(), Vec::new());
    // Sizes of replaced nodes, which the walk has reported.
    let mut known = HashMap::new();
    let again = |mut insert: Insert<'k>, waiting: &mut Vec<Insert<'k>>| {
        insert.tries += 1;
        let tried = if insert.tries < TRIES {
            Ok(())
        } else {
            Err(ClientError::Contended { what: "an insert", times: TRIES })
        };
        waiting.push(insert);
        tried
    };
    for (walked, insert) in heap.walk_many(&walks).into_iter().zip(inserts) {
        match walked {
            Ok(walked) => match walked.outcome {
                Outcome::Applied(_) => {
                    changed.inserted += 1;
                    changed.linked_bytes += taken(insert.bytes);
                    removed.extend(unlinked(&walked));
                }
                Outcome::Differs(_) | Outcome::Missing => failed = failed.and(again(insert, waiting)),
                Outcome::Done => {
                    let old = FoundNode::of(&walked, insert.key);
                    known.insert(old.address, old.bytes());
                    swaps.push(Swap {
                        address: old.address,
                        expected: old.next,
                        fresh: insert.address | 1,
                        since: old.since,
                    });
                    present.push((insert, old));
                }
            },
            Err(ClientError::Contended { .. }) => {
                untidy.push(insert.chain);
                failed = failed.and(again(insert, waiting));
            }
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    // The key exists: the new node replaces the old one, whose next word is changed to point to the new node.
    let next = |(insert, old): &(Insert<'k>, FoundNode)| (insert.address, old.next.to_le_bytes().to_vec());
    let ways: Vec<(u64, Vec<u8>)> = present.iter().map(next).collect();
    if let Err(error) = heap.write_many(&ways) {
        failed = failed.and(Err(error));
        waiting.extend(present.into_iter().map(|(insert, _)| insert));
        swaps.clear();
        present = Vec::new();
    }
    let mut ends = Vec::new();
    for (swapped, (insert, old)) in heap.compare_swap_many(&swaps).into_iter().zip(present) {
        match swapped {
            Ok(Ok(())) => {
                changed.linked_bytes += taken(insert.bytes);
                changed.replaced.push(old);
                untidy.push(insert.chain);
            }
            Ok(Err(_)) | Err(ClientError::Outdated) => {
                ends.push((insert.address, vec![0; 8]));
                failed = failed.and(again(insert, waiting));
            }
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed = failed.and(heap.write_many(&ends));
    let tidies: Vec<Walk> = untidy.iter().map(|chain| chain.tidy_walk()).collect();
    for (walked, chain) in heap.walk_many(&tidies).into_iter().zip(&untidy) {
        match walked {
            Ok(walked) if matches!(walked.outcome, Outcome::Applied(_)) => removed.extend(unlinked(&walked)),
            Ok(walked) if matches!(walked.outcome, Outcome::Differs(_)) => {
                failed = failed.and(chain.tidy(heap));
            }
            Ok(_) => {}
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    let retired = removed.iter().filter_map(|node| Some((*node, *known.get(node)?))).collect::<Vec<_>>();
    removed.retain(|node| !known.contains_key(node));
    failed.and(heap.retire(&retired)).and(retire_nodes(heap, &removed))
}
