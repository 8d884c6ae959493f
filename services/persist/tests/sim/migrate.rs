// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A migration is crashed in everywhere: the same call goes on, and loses, doubles and mixes nothing.
//!
//! - **Flow** a pool with cells and an array of the old layout, settled ─▶ migrate ─▶ crash ─▶ open, migrate, compare

use memlift_persist::sim::{Config, Device, Mode, World, explore, pool};
use memlift_persist::{Error, Mechanism, Migration, Options, PPtr, PSlice, Persist, Pool, View};

#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Cell")]
#[repr(C)]
struct CellV1 {
    value: u64,
    next: PPtr<CellV1>,
    parts: PSlice<PartV1>,
}

#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Part")]
#[repr(C)]
struct PartV1(u32);

#[derive(Clone, Copy, Debug, Persist)]
#[persist(from = PartV1)]
#[repr(C)]
struct Part(u64);

/// Of another length, so cells move.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Cell", from = CellV1)]
#[repr(C)]
struct Longer {
    parts: PSlice<Part>,
    next: PPtr<Longer>,
    value: [u64; 3],
}

/// In a slot of the same length: cells stay.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Cell", from = CellV1)]
#[repr(C)]
struct Turned {
    parts: PSlice<Part>,
    next: PPtr<Turned>,
    value: u64,
}

impl From<PartV1> for Part {
    fn from(old: PartV1) -> Part {
        Part(u64::from(old.0) << 32)
    }
}

impl From<CellV1> for Longer {
    fn from(old: CellV1) -> Longer {
        Longer { parts: old.parts.migrated(), next: old.next.migrated(), value: [old.value; 3] }
    }
}

impl From<CellV1> for Turned {
    fn from(old: CellV1) -> Turned {
        Turned { parts: old.parts.migrated(), next: old.next.migrated(), value: old.value }
    }
}

const CELLS: u64 = 5;

fn options(mechanism: Mechanism, lane_bytes: u64) -> Options {
    Options {
        heap_bytes: 16 << 14,
        max_bytes: 16 << 14,
        lanes: 2,
        lane_bytes,
        mechanism,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

fn fill(pool: &Pool) -> Result<(), Error> {
    for value in 0..CELLS {
        pool.tx(|t| {
            let parts = t.alloc_slice(&vec![PartV1(value as u32); value as usize])?;
            let next = t.root::<CellV1>()?.unwrap_or(PPtr::NULL);
            let cell = t.alloc(CellV1 { value, next, parts })?;
            t.set_root(cell)
        })?;
    }
    // A hole between them.
    pool.tx(|t| {
        let root = t.root::<CellV1>()?.expect("made above");
        let second = t.get(root)?.next;
        let third = t.get(second)?.next;
        t.get_mut(root)?.next = third;
        let parts = t.get(second)?.parts;
        t.free_slice(parts)?;
        t.free(second)
    })
}

fn expect(found: Vec<(u64, u64, Vec<u64>)>) -> Result<(), String> {
    let wanted: Vec<(u64, u64, Vec<u64>)> = (0..CELLS)
        .rev()
        .filter(|value| *value != CELLS - 2)
        .map(|value| (value, value, vec![value << 32; value as usize]))
        .collect();
    if found == wanted { Ok(()) } else { Err(format!("found {found:?}")) }
}

fn longer(pool: &mut Pool) -> Result<(), Error> {
    pool.migrate(Migration::new().to::<Longer>().to::<Part>()).map(drop)
}

fn longer_holds(pool: &Pool) -> Result<Vec<(u64, u64, Vec<u64>)>, Error> {
    pool.read(|r| {
        let (mut found, mut at) = (Vec::new(), r.root::<Longer>()?.expect("a root"));
        while !at.is_null() {
            let cell = r.get(at)?;
            found.push((
                cell.value[0],
                cell.value[2],
                r.slice(cell.parts)?.iter().map(|one| one.0).collect(),
            ));
            at = cell.next;
        }
        Ok(found)
    })
}

fn turned(pool: &mut Pool) -> Result<(), Error> {
    pool.migrate(Migration::new().to::<Turned>().to::<Part>()).map(drop)
}

fn turned_holds(pool: &Pool) -> Result<Vec<(u64, u64, Vec<u64>)>, Error> {
    pool.read(|r| {
        let (mut found, mut at) = (Vec::new(), r.root::<Turned>()?.expect("a root"));
        while !at.is_null() {
            let cell = r.get(at)?;
            found.push((cell.value, cell.value, r.slice(cell.parts)?.iter().map(|one| one.0).collect()));
            at = cell.next;
        }
        Ok(found)
    })
}

type Migrate = fn(&mut Pool) -> Result<(), Error>;
type Holds = fn(&Pool) -> Result<Vec<(u64, u64, Vec<u64>)>, Error>;

fn crashed(mode: Mode, options: &Options, migrate: Migrate, holds: Holds) {
    let mut config = Config::new(Device::new("pool", mode, 0)).exhaustive(8).samples(4);
    if matches!(options.mechanism, Mechanism::Redo | Mechanism::Checkpoint) {
        config = config.direct(); // of a file
    }
    let check = |world: &World| {
        let mut pool = pool::open(&world.memory(0), options).map_err(|error| error.to_string())?;
        migrate(&mut pool).map_err(|error| error.to_string())?;
        expect(holds(&pool).map_err(|error| error.to_string())?)?;
        // Nothing is left of the old: the whole rest can be had.
        let (_, free) = pool.usage();
        pool.close().map_err(|error| error.to_string())?;
        let pool = pool::open(&world.memory(0), options).map_err(|error| error.to_string())?;
        if pool.usage().1 != free {
            return Err(format!("{free} bytes were free, and {:?} are after another open", pool.usage()));
        }
        expect(holds(&pool).map_err(|error| error.to_string())?)
    };
    let report = explore(
        &config,
        |world, acks| {
            let mut pool = pool::create(&world.memory(0), options).expect("created");
            fill(&pool).expect("filled");
            pool.apply().expect("applied");
            world.settle();
            acks.begin(1);
            migrate(&mut pool).expect("migrated");
            acks.done(1);
        },
        |world, _, _| check(world),
    );
    println!("{mode:?} {:?}: {report}", options.mechanism);
    report.assert_consistent();
    assert!(report.crash_points > 8 && report.images > 8, "{report}");
}

fn everywhere(migrate: Migrate, holds: Holds, lane_bytes: u64) {
    for mechanism in Mechanism::ALL {
        for mode in [Mode::Lines, Mode::File] {
            crashed(mode, &options(mechanism, lane_bytes), migrate, holds);
        }
    }
}

#[test]
fn objects_that_move() {
    everywhere(longer, longer_holds, 32 << 10);
}

#[test]
fn objects_that_stay() {
    everywhere(turned, turned_holds, 1 << 20);
}
