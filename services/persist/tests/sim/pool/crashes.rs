// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes at every fence and sync of every case, and in its recovery.

use memlift_persist::Mechanism;
use memlift_persist::sim::{Config, Faults, Mode};

use super::cases::{Case, cases};
use super::script::{LATER, SYNC, Script, Step};
use Step::{Add, Batch, Pop, Push, Reopen};

pub const MODES: [Mode; 3] = [Mode::Lines, Mode::Eadr, Mode::File];

fn consistent(case: &Case, faults: Faults) {
    explored(case, |config| config.faults(faults));
    if case.is_direct() {
        explored(case, |config| config.faults(faults).direct());
    }
}

fn explored(case: &Case, change: impl FnOnce(Config) -> Config) {
    let started = std::time::Instant::now();
    let report = case.explore(change);
    println!("{}, {:?}: {report}", case.name, started.elapsed());
    if let Some(finding) = report.finding {
        panic!("{}: {finding}", case.name);
    }
    assert!(report.crash_points > 0 && report.images > 8, "{}: {report}", case.name);
}

fn all(mechanism: Mechanism, effort: u64) {
    for mode in MODES {
        cases(mechanism, mode, effort).iter().for_each(|case| consistent(case, Faults::None));
    }
}

#[test]
fn redo() {
    all(Mechanism::Redo, 1);
}

#[test]
fn undo() {
    all(Mechanism::Undo, 1);
}

#[test]
fn checkpoint() {
    all(Mechanism::Checkpoint, 1);
}

#[test]
fn shadow() {
    all(Mechanism::Shadow, 1);
}

#[test]
fn crashes_in_the_recovery_of_a_recovery() {
    for (mechanism, mode) in Mechanism::ALL.into_iter().flat_map(|m| MODES.map(|mode| (m, mode))) {
        let script = Script::new("twice", mechanism, mode, &[Push(SYNC), Add(SYNC)]);
        consistent(&Case::of(script, 16, 2), Faults::None);
    }
}

/// A pool whose sync failed stops, tries nothing again and claims nothing; what it had acknowledged is there.
#[test]
fn every_sync_fails_once() {
    let steps = [Push(LATER), Batch(2, SYNC), Push(LATER), Pop(SYNC), Step::Abort, Reopen, Push(SYNC)];
    for mechanism in Mechanism::ALL {
        let script = Script { create: true, ..Script::new("fault", mechanism, Mode::File, &steps) };
        consistent(&Case::of(script, 8, 1), Faults::Each);
        let steps = [Push(SYNC), Step::Large, Push(SYNC), Step::Apply];
        let lane_bytes = if mechanism == Mechanism::Checkpoint { 131_072 } else { 65_536 };
        let script = Script {
            slabs: 7,
            most: 32,
            lane_bytes,
            ..Script::new("fault in growth", mechanism, Mode::File, &steps)
        };
        consistent(&Case::of(script, 8, 1), Faults::Each);
    }
}

#[test]
#[ignore = "soak"]
fn soak_every_case() {
    Mechanism::ALL.into_iter().for_each(|mechanism| all(mechanism, 16));
}

#[test]
#[ignore = "soak"]
fn soak_recovery_of_recovery() {
    for (mechanism, mode) in Mechanism::ALL.into_iter().flat_map(|m| MODES.map(|mode| (m, mode))) {
        let steps = [Push(SYNC), Add(SYNC), Push(LATER), Pop(SYNC), Push(SYNC), Reopen, Push(SYNC)];
        consistent(&Case::of(Script::new("twice", mechanism, mode, &steps), 64, 2), Faults::None);
    }
}
