// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a power failure: what devices do by themselves, then what the program's mechanism does (§5.3.3, §6.2).
//!
//! - **Flow** which transactions have ended? ─▶ each device replays what it had accepted, but not the ends of the others, nor what had
//!   to wait for those: a log is not written over as long as it may be needed ─▶
//!   undo: newest first; redo: oldest first; page tables from commit records ─▶ logs deleted
//! - **Order** delayed synchronisation, undo and checkpoints: a transaction has ended if every device that got its commit has
//!   accepted it, or deleted the log already. Redo: if any has accepted the application, since all records were persistent
//!   before. Polled devices: if the host's commit record says so
//! - **Failure** all of it may be done again, so the power may fail meanwhile

use super::command::{self, Primitive};
use super::device::{delete, deletes, meet, output};
use super::layout::{Layout, Range, word};
use super::machine::{Wreck, view};
use super::timing::Sync;
use super::transaction::Mechanism;
use std::collections::BTreeMap;

/// Result of recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The devices' memories.
    pub memories: Vec<Vec<u8>>,
    /// The heap as programs see it.
    pub heap: Vec<u8>,
    /// Transactions that had ended and whose logs were still there.
    pub ended: Vec<u64>,
    /// For each thread, the last transaction whose log was deleted before.
    pub deleted: Vec<u64>,
}

/// A commit record: the transaction, and which copy of which page is valid.
type Commit = (u64, Vec<(u64, bool)>);

/// The host's commit records, by thread.
fn commit_records(layout: &Layout, memory: &[u8]) -> Vec<Option<Commit>> {
    (0..layout.lanes).map(|thread| command::page_entries(memory, layout.commit(thread))).collect()
}

/// Commits of which devices have accepted the end, or applications: sequence → thread, participants, who accepted.
fn ends(wreck: &Wreck) -> BTreeMap<u64, (usize, u8, u8)> {
    let mut ends = BTreeMap::new();
    for (device, survivor) in wreck.devices.iter().enumerate() {
        for request in &survivor.requests {
            let command = &request.command;
            if matches!(command.primitive, Primitive::CommitLog | Primitive::ApplyLog) {
                let end = ends.entry(command.sequence).or_insert((
                    command.thread as usize,
                    command.participants,
                    0,
                ));
                end.2 |= 1 << device;
            }
        }
    }
    ends
}

/// A whole record of a lane: sequence, position, device, place.
type Found = (u64, u64, usize, Range);

/// Records that a lane's head does not say are dead, each half's from its start on.
fn records(layout: &Layout, device: usize, memory: &[u8], heads: &[u64]) -> Vec<(usize, Found)> {
    let mut found = Vec::new();
    for (thread, head) in heads.iter().enumerate() {
        for turn in 0..2 {
            let half = layout.half(thread, turn);
            let (mut position, mut first) = (0, None);
            while let Some((bytes, sequence)) =
                command::whole(memory, Range::new(half.at + position, half.bytes - position), position)
            {
                if sequence <= *head || *first.get_or_insert(sequence) != sequence {
                    break;
                }
                found.push((thread, (sequence, position, device, Range::new(half.at + position, bytes))));
                position += bytes;
            }
        }
    }
    found
}

/// Returns true if something has to wait for what was left.
fn waits(left: &[(Vec<Range>, Vec<Range>)], reads: &[Range], writes: &[Range]) -> bool {
    left.iter().any(|other| meet(writes, &other.0) || meet(writes, &other.1) || meet(reads, &other.1))
}

/// See the module.
#[must_use]
pub fn recover(wreck: &Wreck) -> Recovered {
    let layout = &wreck.layout;
    let mut memories: Vec<Vec<u8>> = wreck.devices.iter().map(|survivor| survivor.memory.clone()).collect();
    let head = |memory: &[u8], thread| word(memory, layout.head(thread).at);
    let heads: Vec<Vec<u64>> = memories
        .iter()
        .map(|memory| (0..layout.lanes).map(|thread| head(memory, thread)).collect())
        .collect();
    let ends = ends(wreck);
    // Writes of the host first, wherever they are: commit records may still be in a queue.
    let mut queued = memories[0].clone();
    for access in &wreck.devices[0].writes {
        if let Some(bytes) = &access.bytes {
            queued[access.range.at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    let records_of_host = commit_records(layout, &queued);
    let ended = |sequence: u64, thread: usize| match (wreck.sync, wreck.mechanism) {
        (Sync::Software, _) | (_, Mechanism::Shadow) => {
            records_of_host[thread].as_ref().is_some_and(|(last, _)| *last >= sequence)
        }
        (Sync::Delayed, Mechanism::Redo) => {
            ends.contains_key(&sequence) || heads.iter().any(|heads| heads[thread] >= sequence)
        }
        (Sync::Delayed, _) => ends.get(&sequence).is_some_and(|(thread, participants, accepted)| {
            let device_ended =
                |device: usize| accepted >> device & 1 == 1 || heads[device][*thread] >= sequence;
            (0..layout.devices).filter(|device| participants >> device & 1 == 1).all(device_ended)
        }),
    };

    for (survivor, memory) in wreck.devices.iter().zip(&mut memories) {
        let (mut requests, mut writes) =
            (survivor.requests.iter().peekable(), survivor.writes.iter().peekable());
        // Work that a device does not do again, and so nothing that had to wait for it.
        let mut left: Vec<(Vec<Range>, Vec<Range>)> = Vec::new();
        loop {
            let request = match (requests.peek(), writes.peek()) {
                (None, None) => break,
                (Some(request), Some(access)) => request.serial < access.serial,
                (request, _) => request.is_some(),
            };
            if let Some(request) = requests.next_if(|_| request) {
                let command = &request.command;
                let end = matches!(command.primitive, Primitive::CommitLog | Primitive::ApplyLog);
                let open = end && !ended(command.sequence, command.thread as usize);
                if open || waits(&left, &request.reads, &request.writes) {
                    left.push((request.reads.clone(), request.writes.clone()));
                    continue;
                }
                for (at, bytes) in output(layout, memory, request) {
                    memory[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                if deletes(command, wreck.sync) {
                    delete(layout, memory, command);
                }
            } else if let Some(access) = writes.next() {
                let range = vec![access.range];
                if waits(&left, &[], &range) {
                    left.push((Vec::new(), range));
                } else if let Some(bytes) = &access.bytes {
                    memory[access.range.at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }

    let mut open: Vec<(usize, Found)> = Vec::new();
    for (device, memory) in memories.iter().enumerate() {
        let heads: Vec<u64> = (0..layout.lanes).map(|thread| head(memory, thread)).collect();
        open.extend(records(layout, device, memory, &heads));
    }
    open.sort_unstable_by_key(|(_, (sequence, position, device, _))| (*sequence, *position, *device));
    let undo = matches!(wreck.mechanism, Mechanism::Undo | Mechanism::Checkpoint);
    if undo {
        open.reverse();
    }
    for (thread, (sequence, position, device, place)) in &open {
        if ended(*sequence, *thread) != undo {
            command::apply(layout, &mut memories[*device], *place, *position);
        }
    }
    for (thread, (sequence, _, device, _)) in &open {
        if head(&memories[*device], *thread) < *sequence {
            command::reset(layout, &mut memories[*device], *thread, *sequence);
        }
    }

    let mut finished: Vec<u64> =
        open.iter().filter(|(thread, found)| ended(found.0, *thread)).map(|open| open.1.0).collect();
    finished
        .extend(ends.iter().filter(|(sequence, (thread, ..))| ended(**sequence, *thread)).map(|end| *end.0));
    let mut second = vec![false; (layout.heap / super::layout::PAGE) as usize];
    if wreck.mechanism == Mechanism::Shadow {
        let mut commits: Vec<_> = commit_records(layout, &memories[0]).into_iter().flatten().collect();
        commits.sort_unstable_by_key(|(sequence, _)| *sequence);
        for (sequence, entries) in commits {
            for (page, second) in entries.into_iter().filter(|(page, _)| page * 4096 < layout.heap) {
                let entry = layout.entry(page).at;
                if word(&memories[0], entry) >> 1 < sequence {
                    let value = sequence << 1 | u64::from(second);
                    memories[0][entry as usize..][..8].copy_from_slice(&value.to_le_bytes());
                }
            }
            finished.push(sequence);
        }
        for (page, second) in second.iter_mut().enumerate() {
            *second = word(&memories[0], layout.entry(page as u64).at) & 1 == 1;
        }
    } else if wreck.sync == Sync::Software {
        finished.extend(records_of_host.iter().flatten().map(|(sequence, _)| *sequence));
    }
    finished.sort_unstable();
    finished.dedup();
    let mut heap = vec![0; layout.heap as usize];
    view(layout, &|device| &memories[device], &second, &mut heap);
    let deleted = (0..layout.lanes).map(|thread| heads.iter().map(|heads| heads[thread]).max().unwrap_or(0));
    Recovered { deleted: deleted.collect(), memories, heap, ended: finished }
}
