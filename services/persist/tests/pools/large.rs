// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of more than a zone (64 MiB): made, read, changed, freed, and what their zones become.

use std::path::Path;

use memlift_persist::convert::{Conversion, convert};
use memlift_persist::layout::{BODIES_OFFSET, Entry, RUN_SLABS_MAX, SLAB_BYTES, ZONE_BYTES, ZONE_SLABS};
use memlift_persist::raw::read_raw;
use memlift_persist::{
    Domain, Error, Mechanism, Options, PSlice, Persist, Pool, TxOptions, View, check, dump, repair,
};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    large: PSlice<u64>,
    small: PSlice<u64>,
}

const MECHANISMS: [Mechanism; 2] = [Mechanism::Redo, Mechanism::Undo];
/// Ten slabs more than the first zone has.
const WORDS: u64 = ((ZONE_SLABS - 4) + 10) * SLAB_BYTES / 8;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 1 << 30,
        lanes: 3,
        lane_bytes: 1 << 20,
        sections: 2,
        mechanism,
        domain: Domain::Lines,
        ..Options::default()
    }
}

fn words(count: u64, seed: u64) -> Vec<u64> {
    (0..count).map(|at| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).collect()
}

fn root(pool: &Pool) -> Root {
    pool.read(|r| Ok::<_, Error>(*r.get(r.root::<Root>()?.expect("a root"))?)).expect("read")
}

/// Makes the root's large array anew.
fn make(pool: &Pool, count: u64, seed: u64) -> Result<(), Error> {
    pool.tx(|t| {
        let root = t.root_or(|_| Ok(Root { large: PSlice::EMPTY, small: PSlice::EMPTY }))?;
        let large = t.alloc_slice_in(1, &words(count, seed))?;
        t.get_mut(root)?.large = large;
        Ok(())
    })
}

fn free(pool: &Pool) {
    pool.tx(|t| {
        let root = t.root::<Root>()?.expect("a root");
        let large = t.get(root)?.large;
        t.free_slice(large)?;
        t.get_mut(root)?.large = PSlice::EMPTY;
        Ok::<_, Error>(())
    })
    .expect("freed");
}

fn holds(pool: &Pool, count: u64, seed: u64) {
    let root = root(pool);
    let same = pool.read(|r| Ok::<_, Error>(r.slice(root.large)? == words(count, seed)));
    assert!(same.expect("read"));
}

fn sound(path: &Path) -> check::Report {
    let report = check::check(path).expect("checked");
    assert!(report.sound(), "{:?}", report.findings);
    report
}

#[test]
fn an_object_of_more_than_a_zone_lives_like_any_other() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in MECHANISMS {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism)).expect("created");
        assert!(!pool.header().has_spans());
        make(&pool, WORDS, 1).expect("made");
        assert!(pool.header().has_spans());
        let large = root(&pool).large;
        assert_eq!(large.offset() % ZONE_BYTES, 4 * SLAB_BYTES);
        holds(&pool, WORDS, 1);
        // A part of it is changed; an abort puts it back; a crash, or closing, keeps what was committed.
        let part = TxOptions { sections: Some(&[1]), ..TxOptions::default() };
        let last = WORDS - 1;
        pool.tx_with(part, |t| {
            t.slice_part_mut(large, last, 1)?[0] = 7;
            Ok::<_, Error>(())
        })
        .expect("changed");
        let aborted = pool.tx(|t| -> Result<(), Error> {
            t.slice_part_mut(large, 0, 1)?[0] = 8;
            Err(Error::Aborted("meant".to_owned()))
        });
        assert!(matches!(aborted, Err(Error::Aborted(_))));
        std::mem::forget(pool);
        let copy = folder.path().join("crashed");
        std::fs::copy(&path, &copy).expect("copied");
        let pool = Pool::open(&copy, &options(mechanism)).expect("recovered");
        let (head, tail) = pool
            .read(|r| Ok::<_, Error>((r.slice(large)?[0], r.slice(large)?[last as usize])))
            .expect("read");
        assert_eq!((head, tail), (words(1, 1)[0], 7));
        pool.close().expect("closed");
        let report = sound(&copy);
        let usage = report.types.iter().find(|usage| usage.name == "[u64]").expect("the array");
        assert_eq!((usage.objects, usage.slabs), (1, WORDS * 8 / SLAB_BYTES));
        std::fs::remove_file(&copy).expect("removed");
    }
}

#[test]
fn freed_zones_serve_the_next_object_and_small_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in MECHANISMS {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism)).expect("created");
        make(&pool, WORDS, 1).expect("made");
        let (first, heap) = (root(&pool).large, pool.usage().0);
        free(&pool);
        let stale = pool.read(|r| r.slice(first).map(<[u64]>::len));
        assert!(matches!(stale, Err(Error::Pointer { .. })), "{stale:?}");
        // Where a directory would be lies what the object held.
        for at in [ZONE_BYTES / SLAB_BYTES * 2, ZONE_BYTES / SLAB_BYTES * 2 + 5] {
            let inside = PSlice::<u64>::from_raw(at * SLAB_BYTES + 64, 1);
            assert!(pool.read(|r| r.slice(inside).map(<[u64]>::len)).is_err());
        }
        make(&pool, WORDS, 2).expect("the same zones again");
        assert_eq!((root(&pool).large, pool.usage().0), (first, heap));
        holds(&pool, WORDS, 2);
        // An abort leaves the zones to others.
        free(&pool);
        let aborted = pool.tx(|t| -> Result<(), Error> {
            t.alloc_slice(&words(WORDS, 3))?;
            Err(Error::Aborted("meant".to_owned()))
        });
        assert!(matches!(aborted, Err(Error::Aborted(_))));
        // Runs fill the heap: the idle zone gets its directory back before anything grows.
        let half = words(RUN_SLABS_MAX * SLAB_BYTES / 16, 4);
        let five = &half[..5 * SLAB_BYTES as usize / 8];
        let mut places = Vec::new();
        let room = |slabs: u64| pool.usage().1 > slabs * SLAB_BYTES;
        while room(RUN_SLABS_MAX) {
            places.push(pool.tx(|t| t.alloc_slice_in(1, &half)).expect("room"));
        }
        while pool.usage().0 == heap {
            places.push(pool.tx(|t| t.alloc_slice_in(1, five)).expect("room"));
        }
        assert!(places.iter().any(|one| one.offset() / ZONE_BYTES == 2), "{places:?}");
        for one in &places {
            assert!(pool.read(|r| Ok::<_, Error>(half.starts_with(r.slice(*one)?))).expect("read"));
        }
        pool.close().expect("closed");
        sound(&path);
        let pool = Pool::open(&path, &options(mechanism)).expect("opened");
        for one in &places {
            assert!(pool.read(|r| Ok::<_, Error>(half.starts_with(r.slice(*one)?))).expect("read"));
        }
        drop(pool);
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn other_mechanisms_refuse_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Checkpoint, Mechanism::Shadow] {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism)).expect("created");
        let refused = make(&pool, WORDS, 1).expect_err("refused").to_string();
        assert!(refused.contains(mechanism.name()) && refused.contains("redo and undo"), "{refused}");
        assert!(!pool.header().has_spans());
    }
    let pool = Pool::create(
        folder.path().join("small"),
        &Options { max_bytes: 100 << 20, ..options(Mechanism::Redo) },
    );
    let full = make(&pool.expect("created"), WORDS, 1).expect_err("no room");
    assert!(matches!(full, Error::Full { .. }), "{full}");
}

#[test]
fn tools_know_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo)).expect("created");
    make(&pool, WORDS, 1).expect("made");
    let large = root(&pool).large;
    // A second one that is freed: its zones are idle.
    let second = pool.tx(|t| t.alloc_slice(&words(WORDS, 5))).expect("made");
    pool.tx(|t| t.free_slice(second)).expect("freed");
    pool.close().expect("closed");

    let mut found = Vec::new();
    let inside = dump::Filter { offset: Some(large.offset() + ZONE_BYTES), ..dump::Filter::default() };
    dump::dump(&path, &inside, |one| {
        found.push((one.offset, one.name, one.room));
        true
    })
    .expect("dumped");
    assert_eq!(found, [(large.offset(), "[u64]".to_owned(), WORDS * 8)]);

    let target = folder.path().join("undo");
    let wish = Conversion { mechanism: Some(Mechanism::Undo), ..Conversion::default() };
    let converted = convert(&path, &target, &wish).expect("converted");
    assert!(converted.target.has_spans());
    sound(&target);
    let pool = Pool::open(&target, &options(Mechanism::Undo)).expect("opened");
    holds(&pool, WORDS, 1);
    free(&pool);
    make(&pool, WORDS, 6).expect("made again");
    holds(&pool, WORDS, 6);
    pool.close().expect("closed");
    std::fs::remove_file(&target).expect("removed");
    let wish = Conversion { mechanism: Some(Mechanism::Shadow), ..Conversion::default() };
    let refused = convert(&path, &target, &wish).expect_err("too large").to_string();
    assert!(refused.contains("choose redo or undo"), "{refused}");
}

#[test]
fn objects_of_other_languages_may_be_as_large() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in MECHANISMS {
        let pool = Pool::create(folder.path().join(mechanism.name()), &options(mechanism)).expect("created");
        let bytes = 2 * ZONE_BYTES;
        let at = pool
            .tx(|t| {
                let (at, lent) = t.alloc_raw_lent(77, bytes, &[b"start"])?;
                lent[bytes as usize - 1] = 9;
                Ok::<_, Error>(at)
            })
            .expect("made");
        pool.tx(|t| t.write_raw(at, 77, ZONE_BYTES, b"middle")).expect("changed");
        let seen = pool.read(|r| {
            let all = read_raw(r, at, 77)?;
            let middle = &all[ZONE_BYTES as usize..][..7];
            Ok::<_, Error>((all.len() as u64, all[..6].to_vec(), middle.to_vec(), all[bytes as usize - 1]))
        });
        assert_eq!(seen.expect("read"), (bytes, b"start\0".to_vec(), b"middle\0".to_vec(), 9));
        let huge = pool.tx(|t| t.alloc_raw_lent(77, 1 << 60, &[]).map(drop)).expect_err("refused");
        assert!(matches!(huge, Error::Argument { .. }), "{huge}");
        let large = pool.tx(|t| t.alloc_raw_lent(77, 1 << 39, &[]).map(drop)).expect_err("refused");
        assert!(matches!(large, Error::Full { .. }), "{large}");
        pool.tx(|t| t.free_raw(at, 77)).expect("freed");
        assert!(pool.read(|r| read_raw(r, at, 77).map(<[u8]>::len)).is_err());
    }
}

/// Flips a bit of the heap.
fn flip(path: &Path, offset: u64, bit: u32) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let mut byte = [0];
    let start = check::summary(path).expect("looked at").header().expect("a header").heap_start;
    file.read_exact_at(&mut byte, start + offset).expect("read");
    file.write_all_at(&[byte[0] ^ 1 << bit], start + offset).expect("written");
}

#[test]
fn flipped_bits_are_put_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo)).expect("created");
    make(&pool, WORDS, 1).expect("made");
    let slab = root(&pool).large.offset() / SLAB_BYTES;
    let zone = slab / ZONE_SLABS;
    pool.close().expect("closed");
    let entry = Entry::offset(slab);
    let places = [
        ("the mark of its second zone", BODIES_OFFSET + (zone + 1) / 8, ((zone + 1) % 8) as u32),
        ("a mark of a zone that is not there", BODIES_OFFSET + 100, 3),
        ("the mark of zone 0", BODIES_OFFSET, 0),
        ("the mark of its first zone", BODIES_OFFSET + zone / 8, (zone % 8) as u32),
        ("its state", entry + 6, 1),
        ("its tag", entry, 3),
        ("its size", entry + 12 + 3, 4),
        ("an entry that it covers", entry + 16 * 9, 0),
    ];
    for (what, offset, bit) in places {
        flip(&path, offset, bit);
        let report = check::check(&path).expect("checked");
        assert!(!report.sound(), "{what}");
        // Its objects are not found, and `check` is what sees it.
        if !["the mark of its first zone", "its tag"].contains(&what) {
            assert!(Pool::open(&path, &options(Mechanism::Redo)).is_err(), "{what}");
        }
        let mended = folder.path().join("mended");
        let repaired = repair::repair(&path, &mended).expect("repaired");
        assert!(repaired.report.sound(), "{what}: {:?}", repaired.report.findings);
        let pool =
            Pool::open(&mended, &options(Mechanism::Redo)).unwrap_or_else(|error| panic!("{what}: {error}"));
        holds(&pool, WORDS, 1);
        drop(pool);
        std::fs::remove_file(&mended).expect("removed");
        flip(&path, offset, bit);
    }
    sound(&path);
}
