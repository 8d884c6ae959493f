// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two threads, on two sections, one of them stopped before its fence while the other goes on.
//!
//! - **Flow** an object per section, of 200 equal words; the changes to them are listed in order, each with its thread ─▶ after a
//!   crash each object has a value that its acknowledged changes allow. A change that read the other's value is not kept
//!   without that value
//! - **Order** a fence serves its own thread only: it does not complete another thread's write-backs

use std::mem::offset_of;
use std::sync::Arc;

use memlift_persist::sim::{Acks, Config, Device, Mode, World, as_thread, pool};
use memlift_persist::{Durability, Error, Mechanism, Options, PPtr, Persist, Pool, TxOptions, View};

use super::cases::Case;
use super::script::{GROUP, LATER, SYNC};

const WORDS: usize = 200;

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Side {
    value: u64,
    /// The other's value when this was last changed by a transaction that read both.
    seen: u64,
    /// Changes that were made to both at once.
    both: u64,
    other: PPtr<Side>,
    copies: [u64; WORDS],
}

const NEW: Side = Side { value: 0, seen: 0, both: 0, other: PPtr::NULL, copies: [0; WORDS] };

/// One action. Section 0 is thread 1's, section 1 thread 2's.
#[derive(Clone, Debug)]
pub enum Do {
    /// Changes the section's object.
    Change(u16, Durability),
    /// Changes both, in one transaction.
    Both(Durability),
    /// Changes the first, in a transaction that reads the second.
    Look(Durability),
    /// Thread 1 changes its object; before the given harden of that, thread 2 does all this.
    While(Durability, u64, Vec<Do>),
    Sync,
    Apply,
}

use Do::{Apply, Both, Change, Look, Sync, While};

/// Step numbers: the section in the upper half, how often it was changed in the lower.
fn step(section: u64, nth: u64) -> u64 {
    section << 32 | nth
}

const BOTH: u64 = 2;

fn options(mechanism: Mechanism) -> Options {
    let lane_bytes = if mechanism == Mechanism::Checkpoint { 65_536 } else { 4096 };
    Options {
        heap_bytes: 10 << 14,
        max_bytes: 10 << 14,
        lanes: 3,
        lane_bytes,
        sections: 2,
        mechanism,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

fn sides(pool: &Pool) -> Result<(PPtr<Side>, PPtr<Side>), Error> {
    pool.read(|r| {
        let first = r.root::<Side>()?.ok_or_else(|| Error::Aborted("the root is gone".to_owned()))?;
        Ok((first, r.get(first)?.other))
    })
}

fn change(side: &mut Side) {
    side.value += 1;
    side.copies = [side.value; WORDS];
}

struct Run {
    pool: Arc<Pool>,
    acks: Acks,
    sides: (PPtr<Side>, PPtr<Side>),
}

impl Run {
    fn value(&self, section: u16) -> u64 {
        let side = if section == 0 { self.sides.0 } else { self.sides.1 };
        self.pool.read_in(&[section], |r| Ok::<_, Error>(r.get(side)?.value)).expect("read")
    }

    /// Does one action. Its step's number says if it was acknowledged as durable.
    fn one(&self, what: &Do) -> Result<(), Error> {
        let _thread = as_thread(match what {
            Change(section, _) => u32::from(*section) + 1,
            _ => 1,
        });
        match what {
            Sync => self.pool.sync(),
            Apply => self.pool.apply(),
            Change(section, durability) => self.change(*section, *durability),
            While(durability, nth, others) => {
                let run = Run { pool: self.pool.clone(), acks: self.acks.clone(), sides: self.sides };
                let others = others.clone();
                pool::interleave(&self.pool, *nth, move || {
                    others.iter().for_each(|other| run.one(other).expect("no fault was asked for"));
                });
                self.change(0, *durability)
            }
            Look(durability) => {
                let number = step(0, self.value(0) + 1);
                self.acks.begin(number);
                let how = TxOptions { durability: *durability, sections: Some(&[0, 1]) };
                self.pool.tx_with(how, |t| {
                    let seen = t.get(self.sides.1)?.value;
                    let first = t.get_mut(self.sides.0)?;
                    change(first);
                    first.seen = seen;
                    Ok::<_, Error>(())
                })?;
                self.acknowledge(number, *durability);
                Ok(())
            }
            Both(durability) => {
                let number = step(BOTH, self.value(0));
                self.acks.begin(number);
                let how = TxOptions { durability: *durability, sections: Some(&[0, 1]) };
                self.pool.tx_with(how, |t| {
                    for side in [self.sides.0, self.sides.1] {
                        *t.part_mut::<Side, u64>(side, offset_of!(Side, both))? += 1;
                    }
                    Ok::<_, Error>(())
                })?;
                self.acknowledge(number, *durability);
                Ok(())
            }
        }
    }

    fn change(&self, section: u16, durability: Durability) -> Result<(), Error> {
        let number = step(u64::from(section), self.value(section) + 1);
        self.acks.begin(number);
        let side = if section == 0 { self.sides.0 } else { self.sides.1 };
        self.pool.tx_with(TxOptions { durability, sections: Some(&[section]) }, |t| {
            change(t.get_mut(side)?);
            Ok::<_, Error>(())
        })?;
        self.acknowledge(number, durability);
        Ok(())
    }

    fn acknowledge(&self, number: u64, durability: Durability) {
        if durability != LATER {
            self.acks.done(number); // else it stays in flight: it may be there or not
        }
    }
}

/// `pads` small changes come before: they move the place in the log at which the script starts.
fn workload(world: &World, acks: &Acks, mechanism: Mechanism, pads: u64, script: &[Do]) {
    let pool = pool::create(&world.memory(0), &options(mechanism)).expect("created");
    let other = pool.tx(|t| t.alloc_in(1, NEW)).expect("committed");
    pool.tx(|t| t.root_or(|_| Ok(Side { other, ..NEW }))).expect("committed");
    let sides = sides(&pool).expect("made above");
    for pad in 0..pads {
        pool.tx(|t| {
            *t.part_mut::<Side, u64>(sides.0, offset_of!(Side, seen))? = pad % 2;
            Ok::<_, Error>(())
        })
        .expect("committed");
    }
    pool.tx(|t| {
        *t.part_mut::<Side, u64>(sides.0, offset_of!(Side, seen))? = 0;
        Ok::<_, Error>(())
    })
    .expect("committed");
    pool.apply().expect("applied");
    world.settle();
    let run = Run { pool: Arc::new(pool), acks: acks.clone(), sides };
    script.iter().for_each(|what| run.one(what).expect("no fault was asked for"));
    std::mem::forget(run.pool); // the crash comes before it is closed
}

fn check(world: &World, acked: &[u64], in_flight: &[u64], mechanism: Mechanism) -> Result<(), String> {
    let pool = pool::open(&world.memory(0), &options(mechanism)).map_err(|e| format!("open: {e}"))?;
    let (first, second) = sides(&pool).map_err(|e| e.to_string())?;
    let read = pool.read(|r| Ok::<_, Error>((*r.get(first)?, *r.get(second)?)));
    let (first, second) = read.map_err(|e| e.to_string())?;
    for (section, side) in [(0, &first), (1, &second)] {
        if side.copies.iter().any(|copy| *copy != side.value) {
            return Err(format!("section {section}: parts of a change: {:?}", side.copies));
        }
        let nth = |number: &u64| (number >> 32 == section).then_some(number & 0xffff_ffff);
        let least = acked.iter().filter_map(nth).max().unwrap_or(0);
        let most = acked.iter().chain(in_flight).filter_map(nth).max().unwrap_or(0);
        if !(least..=most).contains(&side.value) {
            return Err(format!("section {section}: {} of {least} to {most}", side.value));
        }
    }
    if first.both != second.both {
        return Err(format!("{} and {} changes of both", first.both, second.both));
    }
    let is_both = |number: &&u64| **number >> 32 == BOTH;
    let least = acked.iter().filter(is_both).count() as u64;
    if first.both < least || first.both > least + in_flight.iter().filter(is_both).count() as u64 {
        return Err(format!("{} changes of both, {least} acknowledged", first.both));
    }
    if first.seen > second.value {
        return Err(format!("{} was seen, and {} is there", first.seen, second.value));
    }
    world.recovered();
    Ok(())
}

/// Interleavings for mechanisms that keep sections apart.
pub fn cases(mechanism: Mechanism, mode: Mode, effort: u64) -> Vec<Case> {
    let case = |name: &str, pads: u64, script: Vec<Do>| {
        let config = Config::new(Device::new("pool", mode, 0));
        Case {
            name: format!("{name} {mechanism:?} {mode:?}"),
            kind: (mechanism, mode),
            config: config.exhaustive(8 * effort).samples(effort).recovery_depth(1),
            workload: Box::new(move |world, acks| workload(world, acks, mechanism, pads, &script)),
            check: Box::new(move |world, acked, in_flight| check(world, acked, in_flight, mechanism)),
        }
    };
    let inside = |durability, others: &[Do]| While(durability, 1, others.to_vec());
    let mut all = vec![case(
        "in turn",
        0,
        vec![
            Change(1, LATER),
            Look(SYNC),
            Both(SYNC),
            Change(1, LATER),
            Both(LATER),
            Change(0, SYNC),
            Change(1, GROUP),
            Look(LATER),
            Sync,
        ],
    )];
    if mechanism == Mechanism::Redo && mode != Mode::File {
        all.push(case(
            "one waits",
            0,
            vec![
                inside(SYNC, &[Change(1, SYNC)]),
                inside(SYNC, &[Change(1, LATER), Change(1, SYNC)]),
                Apply,
                inside(SYNC, &[Change(1, LATER)]),
                Look(SYNC),
            ],
        ));
        // The first thread gives the second one's room back; the second fills it up before the first fences again.
        for pads in [6, 9, 12] {
            all.push(case(
                "room given back by another",
                pads,
                vec![Change(1, SYNC), Apply, Change(1, SYNC), Change(1, SYNC), Change(0, SYNC)],
            ));
        }
    }
    if mechanism == Mechanism::Undo {
        all.push(case(
            "one waits",
            0,
            vec![inside(SYNC, &[Change(1, SYNC)]), While(SYNC, 2, vec![Change(1, SYNC)]), Both(SYNC)],
        ));
    }
    all
}
