// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scripts that are explored: for each mechanism and device, they together need every write-back, fence and sync.
//!
//! - **Flow** [`cases`] ─▶ crashes (as they are), faults (with a failing sync each), score (with a call left out each)

use memlift_persist::Mechanism;
use memlift_persist::sim::{Acks, Config, Mode, Report, World, explore};

use super::script::{GROUP, LATER, SYNC, Script, Step};
use super::threads;
use Step::{Abort, Add, Apply, Batch, Close, Declared, Large, Place, Pop, Push, Reopen, Small, Sync};

type Workload = Box<dyn Fn(&World, &Acks)>;
type Check = Box<dyn Fn(&World, &[u64], &[u64]) -> Result<(), String>>;

/// A workload on a machine, and the check of what its crashes leave.
pub struct Case {
    pub name: String,
    pub kind: (Mechanism, Mode),
    pub config: Config,
    pub workload: Workload,
    pub check: Check,
}

impl Case {
    pub fn of(script: Script, images: u64, depth: u32) -> Case {
        let config = script.config().exhaustive(images).samples(images / 8).recovery_depth(depth);
        let name = format!("{} {:?} {:?}", script.name, script.mechanism, script.mode);
        let runs = script.clone();
        Case {
            name,
            kind: (script.mechanism, script.mode),
            config,
            workload: Box::new(move |world, acks| runs.run(world, acks)),
            check: Box::new(move |world, acked, in_flight| script.check(world, acked, in_flight)),
        }
    }

    /// Returns true if its log can also be written past the page cache.
    pub fn is_direct(&self) -> bool {
        matches!(self.kind, (Mechanism::Redo | Mechanism::Checkpoint, Mode::File))
    }

    /// Explores it, differently configured.
    pub fn explore(&self, change: impl FnOnce(Config) -> Config) -> Report {
        explore(&change(self.config.clone()), &self.workload, &self.check)
    }
}

/// Everything that is tried of a mechanism on a device; `effort` multiplies the images.
pub fn cases(mechanism: Mechanism, mode: Mode, effort: u64) -> Vec<Case> {
    let script = |name, steps: &[Step]| Script::new(name, mechanism, mode, steps);
    let roomy = |name, steps: &[Step]| Script {
        lane_bytes: if mechanism == Mechanism::Checkpoint { 131_072 } else { 65_536 },
        ..script(name, steps)
    };
    let mut all = vec![
        Case::of(Script { create: true, ..script("create", &[Push(SYNC)]) }, 16 * effort, 1),
        Case::of(Script { ends: true, ..script("close", &[Push(LATER), Close]) }, 16 * effort, 0),
        Case::of(
            script("batch", &[Batch(3, SYNC), Add(SYNC), Batch(2, SYNC), Declared, Add(SYNC)]),
            16 * effort,
            1,
        ),
        Case::of(
            Script {
                fill: true,
                ..script("alloc", &[Batch(2, SYNC), Pop(SYNC), Push(SYNC), Pop(SYNC), Pop(SYNC), Push(SYNC)])
            },
            8 * effort,
            1,
        ),
        Case::of(
            Script { fill: true, ..script("abort", &[Batch(2, SYNC), Abort, Push(SYNC), Abort, Pop(SYNC)]) },
            8 * effort,
            1,
        ),
        Case::of(script("push", &[Push(SYNC); 14]), 8 * effort, 1),
        Case::of(
            Script {
                behind: true,
                ..script(
                    "behind",
                    &[
                        Push(SYNC),
                        Push(SYNC),
                        Push(LATER),
                        Push(SYNC),
                        Pop(SYNC),
                        Push(SYNC),
                        Push(SYNC),
                        Push(SYNC),
                        Pop(LATER),
                        Push(SYNC),
                        Push(SYNC),
                        Push(SYNC),
                    ],
                )
            },
            8 * effort,
            1,
        ),
        Case::of(
            script(
                "buffered",
                &[
                    Push(LATER),
                    Push(LATER),
                    Push(SYNC),
                    Pop(LATER),
                    Push(LATER),
                    Sync,
                    Push(GROUP),
                    Push(LATER),
                    Add(LATER),
                    Apply,
                    Push(LATER),
                    Push(LATER),
                ],
            ),
            8 * effort,
            1,
        ),
        Case::of(
            script(
                "reopen",
                &[Push(SYNC), Push(LATER), Reopen, Push(SYNC), Push(SYNC), Reopen, Pop(LATER), Close],
            ),
            8 * effort,
            1,
        ),
        Case::of(
            Script {
                fill: true,
                slabs: 12,
                most: 12,
                ..roomy("large", &[Push(SYNC), Large, Large, Small, Push(SYNC)])
            },
            8 * effort,
            1,
        ),
        Case::of(
            Script { slabs: 6, most: 32, ..roomy("grow", &[Push(SYNC), Batch(3, SYNC), Large, Push(SYNC)]) },
            8 * effort,
            1,
        ),
    ];
    let waiting = [Push(SYNC), Push(SYNC), Pop(SYNC), Batch(2, SYNC)];
    let settled = Script { settled: true, ..roomy("recovery", &waiting) };
    all.push(Case::of(settled, 1024 * effort, 1));
    if matches!(mechanism, Mechanism::Redo | Mechanism::Checkpoint) {
        all.extend([
            Case::of(
                Script {
                    fill: true,
                    slabs: 12,
                    most: 12,
                    ..roomy(
                        "placed",
                        &[
                            Push(SYNC),
                            Place,
                            Add(LATER),
                            Place,
                            Large,
                            Push(SYNC),
                            Place,
                            Small,
                            Pop(SYNC),
                            Place,
                            Large,
                        ],
                    )
                },
                8 * effort,
                1,
            ),
            Case::of(
                script(
                    "placed small",
                    &[
                        Push(SYNC),
                        Place,
                        Add(SYNC),
                        Place,
                        Push(SYNC),
                        Pop(SYNC),
                        Place,
                        Pop(SYNC),
                        Push(LATER),
                        Place,
                        Push(SYNC),
                        Push(SYNC),
                        Push(SYNC),
                        Place,
                        Push(SYNC),
                    ],
                ),
                8 * effort,
                1,
            ),
        ]);
    }
    all.extend(threads::cases(mechanism, mode, effort));
    all
}
