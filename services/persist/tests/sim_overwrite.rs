// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overwriting parts of arrays: all parts or none, whatever crashes, and the same as a transaction that writes them.
#![cfg(feature = "sim")]

use memlift_persist::sim::{Config, Device, Mode, explore, pool};
use memlift_persist::{
    Domain, Durability, Error, Mechanism, Options, Overwrite, PSlice, Persist, Pool, View,
};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    array: PSlice<u64>,
}

/// Two pages of the heap and a bit.
const WORDS: usize = 1100;
/// Where the parts of a step begin: in three pages, at the start and in the middle of lines.
const PLACES: [u64; 4] = [0, 13, 520, 1090];
const STEPS: u64 = 6;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 1 << 20,
        lanes: 2,
        lane_bytes: 64 << 10,
        mechanism,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

fn array(pool: &Pool) -> PSlice<u64> {
    pool.read(|r| Ok::<_, Error>(r.get(r.root::<Root>()?.expect("a root"))?.array)).expect("read")
}

fn make(pool: &Pool) {
    pool.tx(|t| {
        let array = t.alloc_slice(&[0; WORDS])?;
        t.root_or(|_| Ok(Root { array }))
    })
    .expect("room");
}

/// Writes a step's number to all places; of each a line and some words.
fn step(pool: &Pool, array: PSlice<u64>, step: u64, durability: Durability) -> Result<(), Error> {
    let values = [step; 10];
    let parts = PLACES.map(|from| Overwrite { array, from, values: &values });
    pool.overwrite(&parts, durability)
}

/// The step that the pool is at; an error for a mixture.
fn state(pool: &Pool) -> Result<u64, String> {
    let array = array(pool);
    let words = pool.read(|r| Ok::<_, Error>(r.slice(array)?.to_vec())).map_err(|error| error.to_string())?;
    let at = |word: usize| PLACES.iter().any(|from| (*from as usize..*from as usize + 10).contains(&word));
    for (index, word) in words.iter().enumerate() {
        let wanted = if at(index) { words[0] } else { 0 };
        if *word != wanted {
            return Err(format!("word {index} is {word} and not {wanted}"));
        }
    }
    Ok(words[0])
}

fn crashes(mechanism: Mechanism, mode: Mode, durability: Durability) {
    let options = options(mechanism);
    let config = Config::new(Device::new("pool", mode, 0)).exhaustive(4).samples(2);
    let report = explore(
        &config,
        |world, acks| {
            let pool = pool::create(&world.memory(0), &options).expect("created");
            make(&pool);
            pool.apply().expect("at its place");
            world.settle();
            let array = array(&pool);
            for at in 1..=STEPS {
                acks.begin(at);
                step(&pool, array, at, durability).expect("committed");
                if durability == Durability::Buffered && at % 3 == 0 {
                    pool.sync().expect("durable");
                }
                acks.done(at);
            }
        },
        |world, acked, in_flight| {
            let pool = pool::open(&world.memory(0), &options).map_err(|error| error.to_string())?;
            let found = state(&pool)?;
            let (acked, begun) = (acked.len() as u64, (acked.len() + in_flight.len()) as u64);
            let least = if durability == Durability::Buffered { acked / 3 * 3 } else { acked };
            if !(least..=begun).contains(&found) {
                return Err(format!("step {found}, {acked} acknowledged, {begun} begun"));
            }
            step(&pool, array(&pool), 77, Durability::Sync).map_err(|error| error.to_string())?;
            if state(&pool)? == 77 { Ok(()) } else { Err("it does not go on".to_owned()) }
        },
    );
    println!("{mode:?} {mechanism:?} {durability:?}: {report}");
    report.assert_consistent();
    assert!(report.crash_points > 5 && report.images > 8, "{report}");
}

#[test]
fn a_crash_leaves_all_parts_or_none() {
    for mechanism in [Mechanism::Checkpoint, Mechanism::Shadow] {
        for durability in [Durability::Sync, Durability::Buffered] {
            crashes(mechanism, Mode::Lines, durability);
        }
        crashes(mechanism, Mode::File, Durability::Sync);
    }
    crashes(Mechanism::Redo, Mode::Lines, Durability::Sync);
}

#[test]
fn it_does_what_a_transaction_does_in_every_pool() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Undo, Mechanism::Checkpoint, Mechanism::Shadow] {
        for domain in [Domain::Pages, Domain::Lines] {
            let path = folder.path().join(format!("{mechanism:?}{domain:?}"));
            let options = Options { domain, ..options(mechanism) };
            let pool = Pool::create(&path, &options).expect("created");
            make(&pool);
            let array = array(&pool);
            for (at, durability) in [Durability::Sync, Durability::Group, Durability::Buffered]
                .into_iter()
                .cycle()
                .take(200)
                .enumerate()
            {
                step(&pool, array, at as u64 + 1, durability).expect("committed");
                assert_eq!(state(&pool), Ok(at as u64 + 1));
            }
            pool.overwrite::<u64>(&[], Durability::Sync).expect("nothing to do");
            pool.close().expect("closed");
            let pool = Pool::open(&path, &options).expect("opened");
            assert_eq!(state(&pool), Ok(200), "{mechanism:?} {domain:?}");
        }
    }
}

#[test]
fn a_part_that_is_not_there_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Shadow] {
        let options = Options { domain: Domain::Lines, ..options(mechanism) };
        let pool = Pool::create(folder.path().join(format!("{mechanism:?}")), &options).expect("created");
        make(&pool);
        let array = array(&pool);
        step(&pool, array, 5, Durability::Sync).expect("committed");
        let longer = PSlice::from_raw(array.offset(), array.len() * 1000);
        let elsewhere = PSlice::from_raw(array.offset() + 8, 10);
        for (array, from) in [(array, WORDS as u64 - 1), (array, u64::MAX), (longer, 0), (elsewhere, 0)] {
            let good = Overwrite { array: self::array(&pool), from: 0, values: &[9, 9] };
            let bad = Overwrite { array, from, values: &[9, 9] };
            for durability in [Durability::Sync, Durability::Buffered] {
                let parts = [Overwrite { ..good }, Overwrite { ..bad }];
                let refused = pool.overwrite(&parts, durability);
                assert!(matches!(refused, Err(Error::Pointer { .. })), "{mechanism:?} {from}: {refused:?}");
                assert_eq!(state(&pool), Ok(5));
            }
        }
        // More than a lane takes. In a shadow pool the lines do not go through it, and in others the log goes beyond its lane.
        let values = [9; WORDS];
        let arrays = [0; 6].map(|_| pool.tx(|t| t.alloc_slice(&[0u64; WORDS])).expect("room"));
        let parts = arrays.map(|array| Overwrite { array, from: 0, values: &values });
        if mechanism == Mechanism::Checkpoint {
            for durability in [Durability::Sync, Durability::Buffered] {
                let refused = pool.overwrite(&parts, durability);
                assert!(matches!(refused, Err(Error::TooLarge { .. })), "{mechanism:?}: {refused:?}");
            }
        }
        assert_eq!(state(&pool), Ok(5));
    }
}
