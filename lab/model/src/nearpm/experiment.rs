// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repeats the paper's measurements on the machine: copies, regions, whole programs, units, threads.
//!
//! - **Method** a program is the average of the paper's nine: for an update it computes, then protects, stores and persists. How long
//!   it computes follows from figure 1, which says how much of the time crash consistency takes without NearPM, how much of that
//!   moves data, and from what a copy of that size takes. With NearPM the copy becomes a command. Of what else the mechanism
//!   does, logging's is the metadata generator's; faults, allocation and page switches stay with the CPU
//! - **Order** a point is decided by its inputs and [`SEED`] alone; every run's heap is checked
//! - **Not here** the paper's numbers (`reproduce`)

use super::command::{Command, Primitive};
use super::device::{Device, Effect, Packet};
use super::layout::{AddressTable, Layout, PAGE, Range};
use super::machine::{Machine, Report};
use super::timing::{Shape, Sync, Timing};
use super::transaction::{Mechanism, POOL, Transaction, VIRTUAL};
use crate::event::{Calendar, Random, Time};

/// Seed of all experiments.
pub const SEED: u64 = 0x0ea2;
/// Pages of a thread's pool.
const PAGES: u64 = 64;
/// Updates of all threads in a run, and at least those of one.
const UPDATES: (usize, usize) = (960, 120);

/// The paper's three kinds of programs.
pub const KINDS: [(&str, Mechanism); 3] = [
    ("logging", Mechanism::Undo),
    ("checkpointing", Mechanism::Checkpoint),
    ("shadow paging", Mechanism::Shadow),
];

/// A program, as far as it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Index into [`KINDS`].
    pub kind: usize,
    /// Updates of a transaction; `None`: as the parameters say.
    pub updates: Option<usize>,
    /// Threads that run the program.
    pub threads: usize,
    /// True if they share one pool.
    pub shared: bool,
}

impl Program {
    /// The average program of a kind.
    #[must_use]
    pub fn average(kind: usize) -> Program {
        Program { kind, updates: None, threads: 1, shared: false }
    }
}

/// Where the time of an update goes without NearPM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The program, without its persist.
    pub work: Time,
    /// Copying for crash consistency.
    pub movement: Time,
    /// Time of the mechanism's other work.
    pub rest: Time,
}

/// From figure 1 and the copy.
#[must_use]
pub fn cost(timing: &Timing, kind: usize) -> Cost {
    let (share, part) = timing.share[kind];
    // A log entry is a line of metadata and the bytes; the others copy pages.
    let bytes = if kind == 0 { 64 + timing.logged_bytes } else { PAGE };
    let movement = timing.cpu_copy(bytes);
    let all = movement.as_ps() * 1_000_000 / (share * part);
    let work = Time::from_ps(all * (1000 - share) / 1000) - timing.memory_latency;
    Cost { work, movement, rest: Time::from_ps(all * share / 1000) - movement }
}

/// Transactions of each thread, with NearPM or without.
fn transactions(timing: &Timing, program: Program, near: bool) -> (u64, Vec<Vec<Transaction>>) {
    let mut random = Random::new(SEED);
    let cost = cost(timing, program.kind);
    let usual = [timing.logs_per_transaction, timing.updates_per_checkpoint, timing.pages_per_transaction];
    let updates = program.updates.unwrap_or(usual[program.kind]);
    let pools = if program.shared { 1 } else { program.threads as u64 };
    // The commit record and the page table, persisted one after the other, are part of the rest.
    let fences = Time::from_ps(timing.memory_latency.as_ps() * 2 / updates as u64);
    let rest = match program.kind {
        0 => Time::ZERO,
        1 => cost.rest,
        _ => cost.rest - fences,
    };
    let mut thread = |index: usize| {
        let pool = if program.shared { 0 } else { index as u64 };
        let mut one = |_| {
            let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
            while writes.len() < updates {
                let page = pool * PAGES + random.below(PAGES);
                if writes.iter().all(|(at, _)| at / PAGE != page) {
                    let at = page * PAGE + random.below((PAGE - timing.logged_bytes) / 64) * 64;
                    let words = timing.logged_bytes / 8;
                    writes.push((at, (0..words).flat_map(|_| random.word().to_le_bytes()).collect()));
                }
            }
            // Half to one and a half of the mean.
            let work = Time::from_ps(cost.work.as_ps() / 2 + random.below(cost.work.as_ps() + 1));
            let alone = (timing.memory_latency, cost.movement + cost.rest);
            Transaction { writes, work, rest, alone: (!near).then_some(alone) }
        };
        (0..(UPDATES.0 / program.threads).max(UPDATES.1).div_ceil(updates)).map(&mut one).collect()
    };
    (pools * PAGES * PAGE, (0..program.threads).map(&mut thread).collect())
}

/// A program with NearPM, or by the CPU alone.
///
/// # Errors
/// If the machine is impossible or its heap is wrong.
pub fn run(timing: &Timing, program: Program, shape: Option<Shape>) -> Result<Report, String> {
    let (heap, threads) = transactions(timing, program, shape.is_some());
    let mechanism = KINDS[program.kind].1;
    let half = 64 << 10;
    let machine = shape.unwrap_or(Shape { devices: 1, units: 1, sync: Sync::Delayed });
    let report = Machine::new(timing, machine, mechanism, heap, half, threads.clone())?.run()?;
    if shape.is_some() {
        let mut wanted = vec![0; heap as usize];
        for begun in &report.begun {
            for (at, bytes) in &threads[begun.thread][begun.turn as usize].writes {
                wanted[*at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        if report.heap != wanted {
            return Err(format!("the heap after {} is wrong", KINDS[program.kind].0));
        }
    }
    Ok(report)
}

/// Speed-up of a program and of its code for crash consistency, and the share of time in which CPU and devices both work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Speed-up of the whole program.
    pub program: f64,
    /// Speed-up of its code for crash consistency.
    pub region: f64,
    /// Share of the time with NearPM in which CPU and devices both work.
    pub overlap: f64,
}

/// A program with NearPM against the CPU alone.
///
/// # Errors
/// As [`run`].
pub fn gain(timing: &Timing, program: Program, shape: Shape) -> Result<Gain, String> {
    let (alone, near) = (run(timing, program, None)?, run(timing, program, Some(shape))?);
    let ratio = |a: Time, b: Time| a.as_ps() as f64 / b.as_ps().max(1) as f64;
    Ok(Gain {
        program: ratio(alone.end, near.end),
        region: ratio(alone.region, near.region),
        overlap: ratio(near.overlap, near.end),
    })
}

/// A copy of so many bytes by one device, from the command until the CPU knows.
///
/// # Panics
/// If the device refuses it: a defect.
#[must_use]
pub fn copy(timing: &Timing, bytes: u64) -> Time {
    let heap = bytes.next_multiple_of(PAGE);
    let layout =
        Layout { devices: 1, interleave: timing.interleave, heap, copies: true, lanes: 1, half: PAGE };
    let mut table = AddressTable::default();
    table.map(POOL, 0, VIRTUAL, layout.all());
    let mut device = Device::new(0, layout, timing, timing.units, Sync::Delayed, table);
    (0..bytes as usize).for_each(|at| device.memory[at] = at as u8 | 1);
    let ranges = vec![Range::new(VIRTUAL, bytes)];
    let primitive = Primitive::ShadowCopy;
    device.inbox.push_back(Packet::Command(Command {
        primitive,
        pool: POOL,
        thread: 0,
        sequence: 1,
        turn: 0,
        ranges,
        participants: 1,
    }));
    let (mut calendar, mut effects) = (Calendar::new(), Vec::new());
    device.advance(Time::ZERO, &mut effects);
    loop {
        for effect in effects.drain(..) {
            if let Effect::Move(serial, at) = effect {
                calendar.at(at, serial);
            }
        }
        let Some(serial) = calendar.pop() else { break };
        device.moved(serial, calendar.now(), &mut effects);
    }
    let copied = &device.memory[heap as usize..][..bytes as usize];
    assert!(copied.iter().enumerate().all(|(at, &byte)| byte == at as u8 | 1), "the copy is wrong");
    timing.command + timing.wire * 2 + calendar.now()
}
