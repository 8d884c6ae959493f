// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions that a lane does not take, whatever crashes while they commit, are applied, and their slabs go to others.

use memlift_persist::sim::{Config, Device, Mode, World, explore, pool};
use memlift_persist::{Durability, Error, Options, PSlice, Persist, Pool, TxOptions, View};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    words: PSlice<u64>,
    large: PSlice<u64>,
    steps: u64,
}

/// Words that a step changes: more than twice a lane.
const WORDS: usize = 1_200;
/// Words of a new object that is stored to its slabs at once.
const LARGE: usize = 2_100;
const STEPS: u64 = 7;

fn options(sections: u32, checksums: bool) -> Options {
    Options {
        heap_bytes: 26 << 14,
        max_bytes: 26 << 14,
        lanes: 2,
        lane_bytes: 4 << 10,
        sections,
        checksums,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

/// Odd steps change all words; even ones put another large object into whatever slabs are free, or leave a slab free that a record in the
/// log stores to.
fn step(pool: &Pool, step: u64, durability: Durability) -> Result<(), Error> {
    let how = TxOptions { durability, ..TxOptions::default() };
    if step % 4 == 2 {
        let small = pool.tx_with(how, |t| t.alloc([step; 40]))?;
        pool.tx_with(how, |t| {
            t.free(small)?;
            let root = t.root::<Root>()?.ok_or_else(|| Error::Aborted("no root".to_owned()))?;
            t.get_mut(root)?.steps = step;
            Ok::<_, Error>(())
        })?;
        return pool.reclaim().map(drop);
    }
    pool.tx_with(how, |t| {
        let root = t.root::<Root>()?.ok_or_else(|| Error::Aborted("no root".to_owned()))?;
        let Root { words, large, .. } = *t.get(root)?;
        if step.is_multiple_of(2) {
            if !large.is_empty() {
                t.free_slice(large)?;
            }
            let large = t.alloc_slice(&vec![step; LARGE])?;
            t.get_mut(root)?.large = large;
        } else {
            t.slice_mut(words)?.fill(step);
        }
        t.get_mut(root)?.steps = step;
        Ok(())
    })
}

/// The number of steps that are there, each whole.
fn steps(pool: &Pool) -> Result<u64, Error> {
    pool.read(|r| {
        let root = r.get(r.root::<Root>()?.ok_or_else(|| Error::Aborted("no root".to_owned()))?)?;
        let (odd, even) = (root.steps.div_ceil(2) * 2, root.steps / 4 * 4);
        let words = r.slice(root.words)?;
        if words.iter().any(|word| *word != odd.saturating_sub(1)) {
            return Err(Error::Aborted(format!("after {} steps: {words:?}", root.steps)));
        }
        if even > 0 && r.slice(root.large)?.iter().any(|word| *word != even) {
            return Err(Error::Aborted(format!("after {} steps: the large object is not whole", root.steps)));
        }
        Ok(root.steps)
    })
}

fn crashes(mode: Mode, sections: u32, durability: Durability, config: fn(Config) -> Config) {
    let options = options(sections, mode == Mode::File);
    let config = config(Config::new(Device::new("pool", mode, 0)));
    let report = explore(
        &config,
        |world, acks| {
            let pool = pool::create(&world.memory(0), &options).expect("created");
            let words = pool.tx(|t| t.alloc_slice(&[0u64; WORDS])).expect("room");
            let root = Root { words, large: PSlice::EMPTY, steps: 0 };
            pool.tx(|t| t.root_or(|_| Ok(root))).expect("a root");
            pool.apply().expect("at its place");
            world.settle();
            for at in 1..=STEPS {
                acks.begin(at);
                step(&pool, at, durability).expect("committed");
                acks.done(at);
            }
        },
        |world, acked, _| is_whole(world, &options, acked.len() as u64),
    );
    println!("{mode:?}, {sections} sections, {durability:?}: {report}");
    report.assert_consistent();
    assert!(report.crash_points > 20 && report.images > 100, "{report}");
}

/// A crash in here may leave some of the steps that it makes itself.
fn is_whole(world: &World, options: &Options, acked: u64) -> Result<(), String> {
    let pool = pool::open(&world.memory(0), options).map_err(|error| error.to_string())?;
    let found = steps(&pool).map_err(|error| error.to_string())?;
    if found < acked {
        return Err(format!("{found} steps are there, {acked} were told"));
    }
    // Slabs come back: the same goes on for as long as anybody likes.
    let free = pool.usage().1;
    for at in found + 1..found + 9 {
        step(&pool, at, Durability::Sync).map_err(|error| error.to_string())?;
    }
    pool.apply().map_err(|error| error.to_string())?;
    let now = pool.usage().1;
    let large = (LARGE as u64 * 8).next_multiple_of(16 << 10) + (32 << 10);
    if now + large < free {
        return Err(format!("{free} bytes were free, {now} are"));
    }
    steps(&pool).map(drop).map_err(|error| error.to_string())
}

fn few(config: Config) -> Config {
    config.exhaustive(8).samples(6)
}

#[test]
fn crashes_in_a_file() {
    crashes(Mode::File, 1, Durability::Sync, few);
    crashes(Mode::File, 2, Durability::Group, few);
    crashes(Mode::File, 2, Durability::Group, |config| few(config).direct());
}

#[test]
fn crashes_in_memory() {
    crashes(Mode::Lines, 1, Durability::Sync, few);
    crashes(Mode::Eadr, 2, Durability::Sync, few);
    crashes(Mode::Lines, 2, Durability::Group, few);
}
