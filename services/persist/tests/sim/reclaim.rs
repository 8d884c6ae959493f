// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs that are given back to the pool serve other types, whatever crashes meanwhile.

use memlift_persist::sim::{Config, Device, Mode, World, explore, pool};
use memlift_persist::{
    Durability, Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, TxOptions, View, check,
};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Small {
    value: [u64; 64],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Other {
    next: PPtr<Other>,
    value: [u64; 127],
}

/// Slabs of a heap for objects.
const SLABS: u64 = 4;

/// For a pool whose pages become durable, or lines.
fn options(mechanism: Mechanism, pages: bool) -> Options {
    // The system's slabs: five, and two for checksums.
    let checksums = pages && matches!(mechanism, Mechanism::Redo | Mechanism::Checkpoint);
    let system = if checksums { 7 } else { 5 };
    Options {
        heap_bytes: (system + SLABS) << 14,
        max_bytes: (system + SLABS) << 14,
        checksums,
        lanes: 2,
        lane_bytes: 64 << 10,
        mechanism,
        group_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

/// Fills the heap with small objects and frees them again, without waiting for it to be durable.
fn fill_and_free(pool: &Pool) {
    let mut all = Vec::new();
    while let Ok(one) = pool.tx(|t| t.alloc(Small { value: [7; 64] })) {
        all.push(one);
    }
    assert_eq!(all.len() as u64, SLABS * 31);
    for some in all.chunks(20) {
        let later = TxOptions { durability: Durability::Buffered, sections: None };
        pool.tx_with(later, |t| some.iter().try_for_each(|one| t.free(*one))).expect("freed");
    }
}

fn push(pool: &Pool, value: u64) -> Result<(), Error> {
    pool.tx(|t| {
        let next = t.root::<Other>()?.unwrap_or(PPtr::NULL);
        let other = t.alloc(Other { next, value: [value; 127] })?;
        t.set_root(other)
    })
}

/// How many there are; each is whole.
fn others(pool: &Pool) -> Result<u64, Error> {
    pool.read(|r| {
        let (mut count, mut at) = (0, r.root::<Other>()?.unwrap_or(PPtr::NULL));
        while !at.is_null() {
            let other = r.get(at)?;
            if other.value.iter().any(|one| *one != other.value[0]) {
                return Err(Error::Aborted("not whole".to_owned()));
            }
            count += 1;
            at = other.next;
        }
        Ok(count)
    })
}

#[test]
fn other_types_get_what_one_type_had() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, on_request) in Mechanism::ALL.into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let path = folder.path().join(format!("{} {on_request}", mechanism.name()));
        let pool = Pool::create(&path, &options(mechanism, true)).expect("created");
        fill_and_free(&pool);
        if on_request {
            assert_eq!(pool.reclaim().expect("reclaimed"), SLABS, "{mechanism:?}");
            assert_eq!(pool.reclaim().expect("nothing more"), 0);
        }
        (0..SLABS * 15).for_each(|value| {
            push(&pool, value).unwrap_or_else(|e| panic!("{mechanism:?} {on_request} {value}: {e}"))
        });
        assert!(matches!(push(&pool, 1), Err(Error::Full { .. })));
        assert_eq!(pool.reclaim().expect("nothing is empty"), 0);
        assert_eq!(others(&pool).expect("read"), SLABS * 15);
        pool.close().expect("closed");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
        assert_eq!(report.types.len(), 1, "{:?}", report.types);
    }
}

#[test]
fn crashes_in_the_middle() {
    let both = |mechanism| [(mechanism, Mode::Lines), (mechanism, Mode::File)];
    let all =
        Mechanism::ALL.into_iter().flat_map(both).flat_map(|(m, mode)| [(m, mode, true), (m, mode, false)]);
    for (mechanism, mode, on_request) in all {
        let options = options(mechanism, mode == Mode::File);
        let check = |world: &World, acked: u64, begun: u64| {
            let pool = pool::open(&world.memory(0), &options).map_err(|error| error.to_string())?;
            let found = others(&pool).map_err(|error| error.to_string())?;
            if !(acked..=begun).contains(&found) {
                return Err(format!("{found} found, {acked} acknowledged, {begun} begun"));
            }
            // All the rest can be had, once, where the small objects are gone for good.
            if on_request {
                pool.reclaim().map_err(|error| error.to_string())?;
            }
            let mut more = 0;
            while push(&pool, 9).is_ok() {
                more += 1;
            }
            let all = others(&pool).map_err(|error| error.to_string())?;
            let gone = on_request || found > 0;
            if found + more == all && (all == SLABS * 15 || !gone) {
                return Ok(());
            }
            Err(format!("{found} and {more} make {all}, of {}", SLABS * 15))
        };
        let config = Config::new(Device::new("pool", mode, 0)).exhaustive(4).samples(2);
        let report = explore(
            &config,
            |world, acks| {
                let pool = pool::create(&world.memory(0), &options).expect("created");
                fill_and_free(&pool);
                if on_request {
                    pool.sync().expect("freed for good");
                }
                world.settle();
                acks.begin(1);
                if on_request {
                    pool.reclaim().expect("reclaimed");
                }
                push(&pool, 1).expect("room");
                acks.done(1);
                acks.begin(2);
                push(&pool, 2).expect("room");
                acks.done(2);
            },
            |world, acked, in_flight| {
                check(world, acked.len() as u64, (acked.len() + in_flight.len()) as u64)
            },
        );
        println!("{mode:?} {mechanism:?} {on_request}: {report}");
        report.assert_consistent();
        assert!(report.crash_points > 4 && report.images > 4, "{report}");
    }
}

/// Root of a pool with one large array.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    large: PSlice<u64>,
}

const LARGE_WORDS: usize = 2 * (16 << 10) / 8;

/// A snapshot for readers has stored what the log still says. What goes to its place without the log must not be under that after a
/// crash.
#[test]
fn crashes_after_a_large_object_took_what_a_snapshot_stored() {
    for (mechanism, mode) in [(Mechanism::Redo, Mode::Lines), (Mechanism::Redo, Mode::File)] {
        let options = Options { lane_bytes: 256 << 10, ..options(mechanism, mode == Mode::File) };
        let config = Config::new(Device::new("pool", mode, 0)).exhaustive(4).samples(2);
        let report = explore(
            &config,
            |world, acks| {
                let pool = pool::create(&world.memory(0), &options).expect("created");
                pool.tx(|t| t.root_or(|_| Ok(Root { large: PSlice::EMPTY }))).expect("a root");
                pool.apply().expect("at its place");
                let mut all = Vec::new();
                while let Ok(one) = pool.tx(|t| t.alloc(Small { value: [7; 64] })) {
                    all.push(one);
                }
                pool::place(&pool).expect("stored");
                pool.tx(|t| all.iter().try_for_each(|one| t.free(*one))).expect("freed");
                pool.reclaim().expect("reclaimed");
                pool::place(&pool).expect("stored");
                world.settle();
                acks.begin(1);
                pool.tx(|t| {
                    let large = t.alloc_slice(&[9u64; LARGE_WORDS])?;
                    let root = t.root::<Root>()?.expect("made above");
                    t.get_mut(root)?.large = large;
                    Ok::<_, Error>(())
                })
                .expect("room");
                acks.done(1);
            },
            |world, acked, in_flight| {
                let pool = pool::open(&world.memory(0), &options).map_err(|error| error.to_string())?;
                let large = pool.read(|r| {
                    let root = r.get(r.root::<Root>()?.expect("made before"))?;
                    Ok(r.slice(root.large)?.to_vec())
                });
                match large {
                    Err(error) => Err::<(), String>(Error::to_string(&error)),
                    Ok(large) if large.is_empty() && acked.is_empty() => Ok(()),
                    Ok(large) if large == [9; LARGE_WORDS] && acked.len() + in_flight.len() > 0 => Ok(()),
                    Ok(large) => Err(format!("{:?} of {} words", large.first(), large.len())),
                }
            },
        );
        println!("{mode:?} {mechanism:?}: {report}");
        report.assert_consistent();
        assert!(report.crash_points > 2 && report.images > 4, "{report}");
    }
}
