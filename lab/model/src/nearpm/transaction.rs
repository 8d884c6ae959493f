// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps of a host thread in a transaction: the paper's programs (figure 14).
//!
//! - **Flow** undo        work ─▶ log … ─▶ store, persist … ─▶ commit
//!   redo        work … ─▶ record, persist ─▶ apply
//!   checkpoint  work ─▶ first touch of a page: copy it ─▶ store, persist … ─▶ commit
//!   shadow      work ─▶ copy the page ─▶ read and write the copy, persist … ─▶ commit record, persist ─▶ page table, persist
//! - **Order** a persist waits until the device has written, so also until a copy of the same bytes is done. Polled devices: a
//!   copy that two devices make is waited for at once, the others before the commit; then the CPU persists a commit
//!   record of its own, since two devices delete their logs at two times
//! - **Not here** how long a step takes (`machine`)

use super::command::{self, Command, Primitive};
use super::layout::{LINE, Layout, PAGE, Range};
use super::timing::{Sync, Timing};
use crate::event::{Random, Time};
use std::collections::VecDeque;

/// The pool of all programs here.
pub const POOL: u16 = 1;
/// Where it is mapped.
pub const VIRTUAL: u64 = 0x7000_0000_0000;

/// How a program survives a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Undo log: old bytes are logged before a change.
    Undo,
    /// Redo log: new bytes are logged and applied after the commit.
    Redo,
    /// Checkpoints of pages.
    Checkpoint,
    /// Shadow paging: changes go to a second copy of the page.
    Shadow,
}

/// One transaction, or an epoch between two checkpoints.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Changes: addresses and lengths are multiples of 8, and no write crosses a page.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Time of the program's work before each change.
    pub work: Time,
    /// Time of the mechanism's work that is left to the CPU, for each change.
    pub rest: Time,
    /// For a program without NearPM: what its persist and its mechanism take, for each.
    pub alone: Option<(Time, Time)>,
}

impl Transaction {
    /// Returns the pages that it changes, each once.
    #[must_use]
    pub fn pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.writes.iter().map(|(at, _)| at / PAGE).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}

/// A thing that a thread does.
#[derive(Clone, Debug)]
pub enum Step {
    /// The CPU computes for so long.
    Work(Time),
    /// Code for crash consistency begins.
    Enter,
    /// Code for crash consistency ends.
    Leave,
    /// Issue a command.
    Command(Command),
    /// Write back a line of a device, to be waited for or not.
    Flush(usize, Range, Vec<u8>, bool),
    /// Wait for what was written back.
    Fence,
    /// Read a line that no cache has.
    Read(usize, Range),
    /// Ask the devices until the thread's commands are done.
    Poll,
    /// The transaction is durable.
    Acknowledge,
    /// From now on the other copy of this page is the valid one.
    Switch(u64),
    /// Others may have its pages.
    End,
}

/// A thread's place in the machine when the transaction begins.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Where things lie.
    pub layout: &'a Layout,
    /// How long things take.
    pub timing: &'a Timing,
    /// How devices come to one state.
    pub sync: Sync,
    /// Index of the thread.
    pub thread: usize,
    /// Number of the thread's transactions before this one.
    pub turn: u64,
    /// The transaction's place in the order of all.
    pub sequence: u64,
    /// The valid copy of each page.
    pub second: &'a [bool],
}

struct Steps<'a> {
    place: Place<'a>,
    steps: VecDeque<Step>,
}

impl Steps<'_> {
    fn command(&mut self, primitive: Primitive, ranges: &[Range], participants: u8) {
        let place = self.place;
        let ranges = ranges.iter().map(|range| Range::new(VIRTUAL + range.at, range.bytes)).collect();
        let (thread, sequence) = (place.thread as u16, place.sequence);
        let command =
            Command { primitive, pool: POOL, thread, sequence, turn: place.turn, ranges, participants };
        self.steps.push_back(Step::Command(command));
        if place.sync == Sync::Software && participants.count_ones() > 1 && primitive != Primitive::CommitLog
        {
            self.steps.push_back(Step::Poll);
        }
    }

    /// All devices: what ends a transaction goes to each, so that none has a later one without it.
    fn all(&self) -> u8 {
        ((1_u16 << self.place.layout.devices) - 1) as u8
    }

    /// A copy of `range` by the devices that have it, as code for crash consistency.
    fn copy(&mut self, primitive: Primitive, range: Range) {
        let owners = self.place.layout.owners(&[range]);
        self.steps.push_back(Step::Enter);
        self.command(primitive, &[range], owners);
        self.steps.push_back(Step::Leave);
    }

    fn lines(&mut self, device: usize, at: u64, bytes: &[u8], told: bool, mut some: impl FnMut() -> bool) {
        let mut from = 0;
        while from < bytes.len() {
            let to = ((LINE - (at + from as u64) % LINE) as usize + from).min(bytes.len());
            let range = Range::new(at + from as u64, (to - from) as u64);
            if some() {
                self.steps.push_back(Step::Flush(device, range, bytes[from..to].to_vec(), told));
            }
            from = to;
        }
    }

    /// A store, some of whose lines a cache gives up at once, and its write-back.
    fn store(&mut self, at: u64, bytes: &[u8], evictions: &mut Option<&mut Random>) {
        let pieces = self.place.layout.split(Range::new(at, bytes.len() as u64));
        for told in [false, true] {
            for piece in &pieces {
                let part = &bytes[piece.offset as usize..(piece.offset + piece.local.bytes) as usize];
                self.lines(piece.device, piece.local.at, part, told, || {
                    told || evictions.as_mut().is_some_and(|random| random.below(2) == 0)
                });
            }
        }
    }

    fn persist(&mut self, at: u64, bytes: &[u8], evictions: &mut Option<&mut Random>) {
        self.store(at, bytes, evictions);
        self.steps.push_back(Step::Fence);
    }

    /// The host's commit record, on the first device.
    fn commit_record(&mut self, entries: &[(u64, bool)]) {
        let at = self.place.layout.commit(self.place.thread).at;
        self.lines(0, at, &command::pages(self.place.sequence, entries), true, || true);
        self.steps.extend([Step::Fence, Step::Acknowledge]);
    }

    fn commit(&mut self) {
        if self.place.sync == Sync::Software {
            self.steps.push_back(Step::Poll);
            self.commit_record(&[]);
        }
        self.steps.push_back(Step::Enter);
        self.command(Primitive::CommitLog, &[], self.all());
        self.steps.push_back(Step::Leave);
    }

    fn redo(&mut self, transaction: &Transaction) {
        let layout = self.place.layout;
        let mut parts: Vec<Vec<(Range, &[u8])>> = vec![Vec::new(); layout.devices];
        let mut ranges = Vec::new();
        for (at, bytes) in &transaction.writes {
            let range = Range::new(*at, bytes.len() as u64);
            for piece in layout.split(range) {
                let part = &bytes[piece.offset as usize..(piece.offset + piece.local.bytes) as usize];
                parts[piece.device].push((piece.local, part));
            }
            ranges.push(range);
        }
        let half = layout.half(self.place.thread, self.place.turn).at;
        for (device, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            self.lines(device, half, &command::ranges(false, 0, self.place.sequence, part), true, || true);
        }
        self.steps.push_back(Step::Fence);
        if self.place.sync == Sync::Software {
            self.commit_record(&[]);
        }
        self.steps.push_back(Step::Enter);
        self.command(Primitive::ApplyLog, &ranges, self.all());
        if self.place.sync == Sync::Software {
            self.steps.push_back(Step::Poll);
            self.command(Primitive::CommitLog, &[], self.all());
        }
        self.steps.push_back(Step::Leave);
    }

    fn shadow(&mut self, transaction: &Transaction, evictions: &mut Option<&mut Random>) {
        let (layout, second) = (self.place.layout, self.place.second);
        let pages = transaction.pages();
        for &page in &pages {
            let valid = u64::from(second[page as usize]);
            let (work, rest) = (Step::Work(transaction.work), Step::Work(transaction.rest));
            self.steps.extend([work, Step::Enter, rest]);
            self.copy(Primitive::ShadowCopy, Range::new(page * PAGE + valid * layout.heap, PAGE));
            self.steps.push_back(Step::Leave);
            let fresh = (1 - valid) * layout.heap;
            let writes = transaction.writes.iter().filter(|(at, _)| at / PAGE == page);
            for (index, (at, bytes)) in writes.enumerate() {
                for line in 0..self.place.timing.lines_read_of_a_copy * u64::from(index == 0) {
                    let line = Range::new(page * PAGE + (at / LINE + line) * LINE % PAGE + fresh, LINE);
                    self.steps
                        .extend(layout.split(line).iter().map(|piece| Step::Read(piece.device, piece.local)));
                }
                self.persist(at + fresh, bytes, evictions);
            }
        }
        let entries: Vec<(u64, bool)> = pages.iter().map(|&page| (page, !second[page as usize])).collect();
        self.steps.push_back(Step::Enter);
        self.commit_record(&entries);
        for (page, second) in entries {
            let word = self.place.sequence << 1 | u64::from(second);
            self.lines(0, layout.entry(page).at, &word.to_le_bytes(), true, || true);
            self.steps.push_back(Step::Switch(page));
        }
        self.steps.extend([Step::Fence, Step::Leave]);
    }
}

/// The steps of a transaction; with `evictions`, caches give up stored lines when they like.
#[must_use]
pub fn steps(
    transaction: &Transaction,
    mechanism: Mechanism,
    place: Place<'_>,
    mut evictions: Option<&mut Random>,
) -> VecDeque<Step> {
    let mut steps = Steps { place, steps: VecDeque::new() };
    if let Some((persist, alone)) = transaction.alone {
        for _ in &transaction.writes {
            steps.steps.extend([
                Step::Work(transaction.work + persist),
                Step::Enter,
                Step::Work(alone),
                Step::Leave,
            ]);
        }
    } else {
        match mechanism {
            Mechanism::Undo => {
                // Independent logs do not wait for each other's updates (figure 5c).
                for (at, bytes) in &transaction.writes {
                    steps.steps.push_back(Step::Work(transaction.work));
                    steps.copy(Primitive::UndoLog, Range::new(*at, bytes.len() as u64));
                }
                for (at, bytes) in &transaction.writes {
                    steps.persist(*at, bytes, &mut evictions);
                }
                steps.commit();
            }
            Mechanism::Checkpoint => {
                let mut copied = Vec::new();
                for (at, bytes) in &transaction.writes {
                    steps.steps.push_back(Step::Work(transaction.work));
                    let page = Range::new(at / PAGE * PAGE, PAGE);
                    if !copied.contains(&page) {
                        // The fault that shows the first touch is the mechanism's code, too.
                        steps.steps.extend([Step::Enter, Step::Work(transaction.rest)]);
                        steps.copy(Primitive::Checkpoint, page);
                        steps.steps.push_back(Step::Leave);
                        copied.push(page);
                    }
                    steps.persist(*at, bytes, &mut evictions);
                }
                steps.commit();
            }
            Mechanism::Redo => {
                let each = transaction.work + transaction.rest;
                steps.steps.extend(transaction.writes.iter().map(|_| Step::Work(each)));
                steps.redo(transaction);
            }
            Mechanism::Shadow => steps.shadow(transaction, &mut evictions),
        }
    }
    steps.steps.push_back(Step::End);
    steps.steps
}
