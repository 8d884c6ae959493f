// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overwriting parts of arrays: all parts or none, whatever crashes, and the same as a transaction that writes them.

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

/// The same as whole lines: two, one, two across the end of a page, one; one of them is there twice.
const LINES: [(u64, usize); 5] = [(8, 16), (0, 8), (504, 16), (1088, 8), (0, 8)];

/// Whole lines of one page, in no order, one of them twice.
const PAGE: [(u64, usize); 4] = [(64, 16), (0, 8), (496, 16), (0, 8)];

/// How the parts of a step lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// Of each a line and some words.
    Words,
    /// Each is one whole line or more.
    Lines,
    /// The same, and all lie in one page.
    Page,
}

impl Shape {
    /// The words of the parts: the first of each, and how many.
    fn parts(self) -> Vec<(u64, usize)> {
        match self {
            Shape::Words => PLACES.map(|from| (from, 10)).to_vec(),
            Shape::Lines => LINES.to_vec(),
            Shape::Page => PAGE.to_vec(),
        }
    }
}

/// Writes a step's number to all places.
fn step(
    pool: &Pool,
    array: PSlice<u64>,
    shape: Shape,
    step: u64,
    durability: Durability,
) -> Result<(), Error> {
    let (values, before) = ([step; 16], [step + 1000; 16]);
    let parts = shape.parts();
    let parts: Vec<Overwrite<'_, u64>> = (0..parts.len())
        .map(|at| {
            let (from, words) = parts[at];
            // A part that comes again has its new values the last time.
            let again = parts[at + 1..].iter().any(|later| later.0 == from);
            Overwrite { array, from, values: &if again { &before } else { &values }[..words] }
        })
        .collect();
    pool.overwrite(&parts, durability)
}

/// The step that the pool is at; an error for a mixture.
fn state(pool: &Pool, shape: Shape) -> Result<u64, String> {
    let array = array(pool);
    let words = pool.read(|r| Ok::<_, Error>(r.slice(array)?.to_vec())).map_err(|error| error.to_string())?;
    let parts = shape.parts();
    let at = |word: usize| {
        parts.iter().any(|(from, words)| (*from as usize..*from as usize + words).contains(&word))
    };
    for (index, word) in words.iter().enumerate() {
        let wanted = if at(index) { words[0] } else { 0 };
        if *word != wanted {
            return Err(format!("word {index} is {word} and not {wanted}"));
        }
    }
    Ok(words[0])
}

fn crashes(mechanism: Mechanism, mode: Mode, durability: Durability, shape: Shape) {
    let options = options(mechanism);
    let mut config = Config::new(Device::new("pool", mode, 0)).exhaustive(4).samples(2);
    if mechanism == Mechanism::Checkpoint {
        config = config.direct(); // of a file
    }
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
                step(&pool, array, shape, at, durability).expect("committed");
                if durability == Durability::Buffered && at % 3 == 0 {
                    pool.sync().expect("durable");
                }
                acks.done(at);
            }
        },
        |world, acked, in_flight| {
            let pool = pool::open(&world.memory(0), &options).map_err(|error| error.to_string())?;
            let found = state(&pool, shape)?;
            let (acked, begun) = (acked.len() as u64, (acked.len() + in_flight.len()) as u64);
            let least = if durability == Durability::Buffered { acked / 3 * 3 } else { acked };
            if !(least..=begun).contains(&found) {
                return Err(format!("step {found}, {acked} acknowledged, {begun} begun"));
            }
            step(&pool, array(&pool), shape, 77, Durability::Sync).map_err(|error| error.to_string())?;
            if state(&pool, shape)? == 77 { Ok(()) } else { Err("it does not go on".to_owned()) }
        },
    );
    println!("{mode:?} {mechanism:?} {durability:?} {shape:?}: {report}");
    report.assert_consistent();
    assert!(report.crash_points > 5 && report.images > 8, "{report}");
}

#[test]
fn a_crash_leaves_all_parts_or_none() {
    for shape in [Shape::Words, Shape::Lines] {
        for mechanism in [Mechanism::Checkpoint, Mechanism::Shadow] {
            for durability in [Durability::Sync, Durability::Buffered] {
                crashes(mechanism, Mode::Lines, durability, shape);
            }
            crashes(mechanism, Mode::File, Durability::Sync, shape);
        }
        crashes(Mechanism::Redo, Mode::Lines, Durability::Sync, shape);
    }
    crashes(Mechanism::Checkpoint, Mode::Lines, Durability::Sync, Shape::Page);
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
                step(&pool, array, Shape::Words, at as u64 + 1, durability).expect("committed");
                assert_eq!(state(&pool, Shape::Words), Ok(at as u64 + 1));
            }
            pool.overwrite::<u64>(&[], Durability::Sync).expect("nothing to do");
            pool.close().expect("closed");
            let pool = Pool::open(&path, &options).expect("opened");
            assert_eq!(state(&pool, Shape::Words), Ok(200), "{mechanism:?} {domain:?}");
        }
    }
}

/// Compares the pool with a model after each kind of overwriting: any lines in any order, of few pages and of many, some of them
/// twice, also with lines before them that are not durable yet; and the same again when it was opened anew.
#[test]
fn lines_in_any_order_are_those_of_a_model() {
    const MANY: usize = 40 * 512;
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Checkpoint, Mechanism::Shadow] {
        let path = folder.path().join(format!("{mechanism:?}"));
        let options = Options { domain: Domain::Lines, lane_bytes: 128 << 10, ..options(mechanism) };
        let pool = Pool::create(&path, &options).expect("created");
        // A piece at a time: a transaction of pages has a limit.
        let arrays: Vec<PSlice<u64>> =
            (0..10).map(|_| pool.tx(|t| t.alloc_slice(&[0; MANY / 10])).expect("room")).collect();
        let mut model = vec![0u64; MANY];
        let mut state = 7u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..600u64 {
            let parts = [1, 3, 8, 30][draw(4)];
            let within = if draw(2) == 0 { 64 } else { MANY / 8 };
            let first = draw(MANY / 8);
            let mut values = Vec::new();
            for part in 0..parts {
                let line = (first + draw(within)) % (MANY / 8);
                let lines = (1 + draw(3)).min(MANY / 80 - line % (MANY / 80));
                let words: Vec<u64> =
                    (0..lines * 8).map(|word| round << 32 | (part * 100 + word) as u64).collect();
                values.push((line * 8, words));
            }
            let parts: Vec<Overwrite<'_, u64>> = values
                .iter()
                .map(|(from, words)| Overwrite {
                    array: arrays[from / (MANY / 10)],
                    from: (from % (MANY / 10)) as u64,
                    values: words,
                })
                .collect();
            let durability = if draw(4) == 0 { Durability::Buffered } else { Durability::Sync };
            pool.overwrite(&parts, durability).expect("committed");
            for (from, words) in &values {
                model[*from..from + words.len()].copy_from_slice(words);
            }
        }
        let found = |pool: &Pool| {
            let all = arrays
                .iter()
                .flat_map(|array| pool.read(|r| Ok::<_, Error>(r.slice(*array)?.to_vec())).expect("read"));
            all.collect::<Vec<u64>>()
        };
        assert!(found(&pool) == model, "{mechanism:?}: the image");
        pool.close().expect("closed");
        let pool = Pool::open(&path, &options).expect("opened");
        assert!(found(&pool) == model, "{mechanism:?}: the file");
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
        step(&pool, array, Shape::Words, 5, Durability::Sync).expect("committed");
        let longer = PSlice::from_raw(array.offset(), array.len() * 1000);
        let elsewhere = PSlice::from_raw(array.offset() + 8, 10);
        for (array, from) in [(array, WORDS as u64 - 1), (array, u64::MAX), (longer, 0), (elsewhere, 0)] {
            let good = Overwrite { array: self::array(&pool), from: 0, values: &[9, 9] };
            let bad = Overwrite { array, from, values: &[9, 9] };
            for durability in [Durability::Sync, Durability::Buffered] {
                let parts = [Overwrite { ..good }, Overwrite { ..bad }];
                let refused = pool.overwrite(&parts, durability);
                assert!(matches!(refused, Err(Error::Pointer { .. })), "{mechanism:?} {from}: {refused:?}");
                assert_eq!(state(&pool, Shape::Words), Ok(5));
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
        assert_eq!(state(&pool, Shape::Words), Ok(5));
    }
}
