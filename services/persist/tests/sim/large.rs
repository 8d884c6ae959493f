// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of more than a zone, whatever crashes while they are made, changed, freed and their zones used for others.

use memlift_persist::layout::{SLAB_BYTES, ZONE_SLABS};
use memlift_persist::sim::{Config, Device, Mode, World, explore, pool};
use memlift_persist::{Error, Mechanism, Options, PSlice, Persist, Pool, View};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    large: PSlice<u64>,
    small: PSlice<u64>,
}

/// Two slabs more than the first zone has.
const WORDS: usize = ((ZONE_SLABS - 4 + 2) * SLAB_BYTES) as usize / 8;
/// A zone for the superblock and small objects, one that has a directory, and the slabs of one that has none.
const HEAP_BYTES: u64 = (2 * ZONE_SLABS + 8) * SLAB_BYTES;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: HEAP_BYTES,
        max_bytes: HEAP_BYTES,
        lanes: 2,
        lane_bytes: 16 << 10,
        mechanism,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

/// The pool's content after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Empty,
    /// Its first word, and all others.
    Large(u64, u64),
}

/// The word that fills the object. Read as a directory entry, it is a run that makes no sense.
const FILL: u64 = 0x0002_0000_0000_0064;

const STEPS: [State; 5] =
    [State::Empty, State::Large(FILL, FILL), State::Large(7, FILL), State::Empty, State::Large(3, 3)];

fn step(pool: &Pool, step: usize) -> Result<(), Error> {
    pool.tx(|t| {
        let root = t.root::<Root>()?.ok_or_else(|| Error::Aborted("no root".to_owned()))?;
        let large = t.get(root)?.large;
        match (STEPS[step - 1], STEPS[step]) {
            (State::Empty, State::Large(_, fill)) => {
                let large = t.alloc_slice(&vec![fill; WORDS])?;
                t.get_mut(root)?.large = large;
            }
            (State::Large(..), State::Large(first, _)) => t.slice_part_mut(large, 0, 1)?[0] = first,
            _ => {
                t.free_slice(large)?;
                t.get_mut(root)?.large = PSlice::EMPTY;
            }
        }
        Ok(())
    })
}

fn state(pool: &Pool) -> Result<State, Error> {
    pool.read(|r| {
        let root = r.get(r.root::<Root>()?.ok_or_else(|| Error::Aborted("no root".to_owned()))?)?;
        if root.large.is_empty() {
            return Ok(State::Empty);
        }
        let all = r.slice(root.large)?;
        if all.len() != WORDS || all[1..].iter().any(|word| *word != all[1]) {
            return Err(Error::Aborted("not whole".to_owned()));
        }
        Ok(State::Large(all[0], all[1]))
    })
}

fn looks_right(world: &World, options: &Options, acked: usize, begun: usize) -> Result<(), String> {
    let pool = pool::open(&world.memory(0), options).map_err(|error| error.to_string())?;
    let found = state(&pool).map_err(|error| error.to_string())?;
    if !STEPS[acked..=begun].contains(&found) {
        return Err(format!("{found:?} found, {acked} acknowledged, {begun} begun"));
    }
    // No zone is lost: there is room for one such object, and for no second.
    let again = (|| {
        if found == State::Empty {
            step(&pool, 1)?;
        }
        match pool.tx(|t| t.alloc_slice(&vec![9u64; WORDS])) {
            Err(Error::Full { .. }) => {}
            other => return Err(Error::Aborted(format!("{other:?}"))),
        }
        step(&pool, 3)
    })();
    again.map_err(|error| error.to_string())
}

/// Crashes in some of the steps.
fn crashes(mechanism: Mechanism, mode: Mode, steps: std::ops::Range<usize>, config: fn(Config) -> Config) {
    let options = options(mechanism);
    let config = config(Config::new(Device::new("pool", mode, 0)));
    let report = explore(
        &config,
        |world, acks| {
            let pool = pool::create(&world.memory(0), &options).expect("created");
            let none = Root { large: PSlice::EMPTY, small: PSlice::EMPTY };
            pool.tx(|t| t.root_or(|_| Ok(none))).expect("a root");
            (1..steps.start).for_each(|at| step(&pool, at).expect("committed"));
            pool.apply().expect("at its place");
            world.settle();
            for at in steps.clone() {
                acks.begin(at as u64);
                step(&pool, at).expect("committed");
                acks.done(at as u64);
            }
        },
        |world, acked, in_flight| {
            let acked = steps.start - 1 + acked.len();
            looks_right(world, &options, acked, acked + in_flight.len())
        },
    );
    println!("{mode:?} {mechanism:?}: {report}");
    report.assert_consistent();
    assert!(report.crash_points > 2 && report.images > 8, "{report}");
}

/// In all steps, and in the recoveries.
fn few(config: Config) -> Config {
    config.exhaustive(1).samples(1)
}

/// In all steps, but not in the recoveries.
fn fewest(config: Config) -> Config {
    few(config).recovery_depth(0)
}

/// In one step, with more of what it may leave.
fn more(config: Config) -> Config {
    config.exhaustive(12).samples(4).recovery_depth(0)
}

// An image of such a pool takes a tenth of a second: `make soak` tries everything with both mechanisms.

#[test]
fn crashes_in_a_file() {
    crashes(Mechanism::Redo, Mode::File, 1..STEPS.len(), few);
    crashes(Mechanism::Redo, Mode::File, 1..STEPS.len(), |config| few(config).direct());
    crashes(Mechanism::Undo, Mode::File, 1..STEPS.len(), fewest);
}

#[test]
fn crashes_while_it_is_made_in_a_file() {
    crashes(Mechanism::Undo, Mode::File, 1..2, more);
}

#[test]
#[ignore = "soak"]
fn soak_crashes_in_a_file() {
    for mechanism in [Mechanism::Redo, Mechanism::Undo] {
        crashes(mechanism, Mode::File, 1..STEPS.len(), few);
        crashes(mechanism, Mode::File, 1..2, more);
    }
}

#[test]
#[ignore = "soak"]
fn soak_crashes_in_memory() {
    for mechanism in [Mechanism::Redo, Mechanism::Undo] {
        crashes(mechanism, Mode::Lines, 1..STEPS.len(), few);
        crashes(mechanism, Mode::Lines, 1..2, more);
    }
}
