// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power failures at any picosecond of random programs, for each mechanism on each machine.
//!
//! - **Method** threads change words of shared pages; caches give up lines when they like; pages are locked, so the numbers of
//!   transactions order what depends on each other. The machine runs once to its end and then until each cut. After
//!   recovery the heap has to be that of whole transactions, byte for byte: all that were acknowledged, and with each one
//!   all that it depends on

use super::layout::PAGE;
use super::machine::{Begun, Machine, Wreck};
use super::recover::recover;
use super::timing::{Shape, Sync, Timing};
use super::transaction::{Mechanism, Transaction};
use crate::event::{Random, Rate, Time};

const HEAP: u64 = 8 * PAGE;
const HALF: u64 = 16 << 10;
const MECHANISMS: [Mechanism; 4] =
    [Mechanism::Undo, Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Shadow];

fn threads(random: &mut Random) -> Vec<Vec<Transaction>> {
    let write = |random: &mut Random| {
        let most = if random.below(4) == 0 { 64 } else { 6 };
        let bytes = 8 * (1 + random.below(most));
        // Most of them at few places, so that they meet.
        let (pages, from) = if random.below(4) == 0 { (HEAP / PAGE, PAGE - bytes) } else { (2, 64) };
        let at = random.below(pages) * PAGE + random.below(from / 8 + 1) * 8;
        (at, (0..bytes / 8).flat_map(|_| random.word().to_le_bytes()).collect())
    };
    let transaction = |random: &mut Random| Transaction {
        writes: (0..=random.below(3)).map(|_| write(random)).collect(),
        work: Time::from_ps(random.below(900_000)),
        rest: Time::from_ps(random.below(100_000)),
        alone: None,
    };
    (0..3).map(|_| (0..=random.below(6)).map(|_| transaction(random)).collect()).collect()
}

/// Timings that differ from run to run, so that everything comes in every order.
fn timing(random: &mut Random) -> Timing {
    let mut timing = Timing::shipped();
    timing.fifo_entries = 1 + random.below(4) as usize;
    timing.host_lines = 1 + random.below(8) as usize;
    timing.interleave = [512, 2048, 4096][random.below(3) as usize];
    timing.media = Time::from_ps(1 + random.below(400_000));
    timing.wire = Time::from_ps(1 + random.below(400_000));
    timing.command = Time::from_ps(random.below(100_000));
    timing.burst = [64, 256][random.below(2) as usize];
    timing.bus = Rate::from_bytes_per_second(4_000_000_000 >> random.below(7));
    timing
}

fn replay(programs: &[Vec<Transaction>], begun: &[Begun], holds: impl Fn(&Begun) -> bool) -> Vec<u8> {
    let mut heap = vec![0; HEAP as usize];
    for begun in begun.iter().filter(|begun| holds(begun)) {
        for (at, bytes) in &programs[begun.thread][begun.turn as usize].writes {
            heap[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    heap
}

fn check(what: &str, programs: &[Vec<Transaction>], wreck: &Wreck) -> (usize, usize) {
    let recovered = recover(wreck);
    let known = |begun: &Begun| begun.acknowledged.is_some();
    let ended = |begun: &Begun| {
        known(begun)
            || recovered.ended.contains(&begun.sequence)
            || begun.sequence <= recovered.deleted[begun.thread]
    };
    let wanted = replay(programs, &wreck.begun, ended);
    let first = wanted.iter().zip(&recovered.heap).position(|(a, b)| a != b);
    assert_eq!(first, None, "{what}: the heap is not that of whole transactions");
    for (index, later) in wreck.begun.iter().enumerate().filter(|(_, begun)| ended(begun)) {
        let pages = programs[later.thread][later.turn as usize].pages();
        for earlier in wreck.begun[..index].iter().filter(|begun| !ended(begun)) {
            let needs = earlier.thread == later.thread
                || programs[earlier.thread][earlier.turn as usize]
                    .pages()
                    .iter()
                    .any(|page| pages.contains(page));
            assert!(!needs, "{what}: {later:?} is there without {earlier:?}");
        }
    }
    // The power fails again, after recovery.
    let devices = wreck.devices.iter().zip(&recovered.memories).map(|(survivor, memory)| {
        let mut survivor = survivor.clone();
        (survivor.memory, survivor.requests, survivor.writes) = (memory.clone(), Vec::new(), Vec::new());
        survivor
    });
    let again = Wreck { devices: devices.collect(), ..wreck.clone() };
    assert_eq!(recover(&again).heap, recovered.heap, "{what}: again");
    let unknown = wreck.begun.iter().filter(|begun| ended(begun) && !known(begun)).count();
    (wreck.begun.iter().filter(|begun| !ended(begun)).count(), unknown)
}

/// Cuts: open transactions that were undone or forgotten, and ended ones that nobody had been told of.
fn cuts(seeds: std::ops::Range<u64>, each: usize) -> (usize, usize) {
    let (mut open, mut unknown) = (0, 0);
    for seed in seeds {
        for mechanism in MECHANISMS {
            for (devices, sync) in
                [(1, Sync::Delayed), (2, Sync::Software), (2, Sync::Delayed), (3, Sync::Delayed)]
            {
                let mut random = Random::new(seed);
                let mut timing = timing(&mut random);
                if devices == 3 {
                    // Whole pages on each of three devices: stripes of a page.
                    timing.interleave = 4096;
                }
                let programs = threads(&mut random);
                let far = random.below(3_000_000);
                let heap = if devices == 3 { 3 * HEAP } else { HEAP };
                let machine = || {
                    let far: Vec<Time> =
                        (0..devices as u64).map(|device| Time::from_ps(device * far)).collect();
                    let shape = Shape { devices, units: 1 + (seed % 3) as usize, sync };
                    Machine::new(&timing, shape, mechanism, heap, HALF, programs.clone())
                        .unwrap()
                        .with_evictions(seed)
                        .with_distances(far)
                };
                let what = format!("seed {seed}, {mechanism:?}, {devices} devices, {sync:?}");
                let report = machine().run().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(
                    report.heap[..HEAP as usize],
                    replay(&programs, &report.begun, |_| true),
                    "{what}"
                );
                for _ in 0..each {
                    // Half of them right after something happened.
                    let at = match random.below(2) {
                        0 => Time::from_ps(random.below(report.end.as_ps() + 1)),
                        _ => {
                            report.times[random.below(report.times.len() as u64) as usize] + Time::from_ps(1)
                        }
                    };
                    let mut wreck = machine().fail_at(at);
                    wreck.begun.sort_unstable_by_key(|begun| begun.sequence);
                    let (more_open, more_unknown) = check(&format!("{what}, {at}"), &programs, &wreck);
                    (open, unknown) = (open + more_open, unknown + more_unknown);
                }
            }
        }
    }
    (open, unknown)
}

#[test]
fn every_cut_leaves_whole_transactions_and_all_that_were_acknowledged() {
    let (open, unknown) = cuts(0..6, 8);
    assert!(open > 200 && unknown > 0, "{open} open, {unknown} unknown");
}

/// A far device has not accepted a commit, and a near one has the log of two transactions later in its FIFO: in the same half.
#[test]
fn recovery_does_not_write_over_a_log_that_it_needs() {
    cuts(1047..1048, 30);
}

#[test]
#[ignore = "soak"]
fn soak_cuts_at_many_more_picoseconds() {
    let (open, unknown) = cuts(1000..1200, 30);
    assert!(open > 10_000 && unknown > 100, "{open} open, {unknown} unknown");
}

#[test]
fn equal_machines_end_at_the_same_picosecond() {
    let run = || {
        let mut random = Random::new(3);
        let (timing, programs) = (timing(&mut random), threads(&mut random));
        let shape = Shape { devices: 2, units: 2, sync: Sync::Delayed };
        let report =
            Machine::new(&timing, shape, Mechanism::Undo, HEAP, HALF, programs).unwrap().run().unwrap();
        (report.end, report.times, report.heap)
    };
    assert_eq!(run(), run());
}
