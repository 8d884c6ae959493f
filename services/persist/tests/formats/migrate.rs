// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Migration: golden pools of the old layout, in place and by moving, arrays, what is refused, and going on after an error.
//!
//! - **Not here** crashes in the middle: `sim::migrate`

use crate::sample;
use std::path::{Path, PathBuf};

use memlift_persist::{
    Domain, Error, Mechanism, Migration, Options, PPtr, PSlice, Persist, Phase, Pool, View, check,
};

/// Longer than the old one, so it moves.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Node", from = sample::Node)]
#[repr(C)]
struct Moved {
    key: u64,
    squared: u64,
    name: PSlice<u8>,
    next: PPtr<Moved>,
    other: [PPtr<Moved>; 2],
    place: [f64; 3],
    label: [u8; 16],
}

impl From<sample::Node> for Moved {
    fn from(old: sample::Node) -> Moved {
        let mut label = [0; 16];
        label[..8].copy_from_slice(&old.label);
        Moved {
            key: old.key,
            squared: old.key * old.key,
            name: old.name,
            next: old.next.migrated(),
            other: old.other.map(PPtr::migrated),
            place: [old.place.x, old.place.y.into(), old.place.z.into()],
            label,
        }
    }
}

/// As long as the old one's slot, so it stays.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Node", from = sample::Node)]
#[repr(C)]
struct Stayed {
    next: PPtr<Stayed>,
    name: PSlice<u8>,
    key: u64,
    negative: i64,
    other: [PPtr<Stayed>; 2],
    place: sample::Place,
}

impl From<sample::Node> for Stayed {
    fn from(old: sample::Node) -> Stayed {
        Stayed {
            next: old.next.migrated(),
            name: old.name,
            key: old.key,
            negative: -(old.key as i64),
            other: old.other.map(PPtr::migrated),
            place: old.place,
        }
    }
}

/// A type that points to nodes and is no node.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Large {
    first: PPtr<Moved>,
    bytes: [u8; 9000],
}

fn golden(folder: &Path, mechanism: Mechanism, state: &str) -> PathBuf {
    let name = format!("tests/golden/v1-{}-{state}.txt", mechanism.name());
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("golden");
    let mut lines = text.lines();
    let bytes = lines.next().and_then(|line| line.strip_suffix(" bytes")).expect("a length");
    let mut bytes = vec![0u8; bytes.parse().expect("a number")];
    for line in lines {
        let (at, digits) = line.split_once(' ').expect("a place and bytes");
        let at = usize::from_str_radix(at, 16).expect("hexadecimal");
        for index in 0..digits.len() / 2 {
            bytes[at + index] =
                u8::from_str_radix(&digits[index * 2..index * 2 + 2], 16).expect("hexadecimal");
        }
    }
    let path = folder.join(format!("{}-{state}.pool", mechanism.name()));
    std::fs::write(&path, bytes).expect("written");
    path
}

fn options() -> Options {
    Options { max_bytes: 1 << 20, domain: Domain::Lines, ..Options::default() }
}

#[test]
fn golden_pools_move_to_a_longer_layout() {
    assert_eq!(Large::LAYOUT, sample::Large::LAYOUT, "a pointer counts with its target's name");
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, state) in Mechanism::ALL.into_iter().flat_map(|m| ["clean", "waiting"].map(|s| (m, s))) {
        let path = golden(folder.path(), mechanism, state);
        let mut pool = Pool::open(&path, &options()).expect("opened");
        let mut told = Vec::new();
        let migration =
            Migration::new().to::<Moved>().holds::<Large>().progress(|progress| told.push(progress));
        let did = pool.migrate(migration).expect("migrated");
        assert_eq!((did.moved, did.in_place, did.resumed), (sample::KEYS, 0, false), "{mechanism:?} {state}");
        // Of each node but the last: next and the first of the others; and one in the large object.
        assert_eq!(did.pointers, 2 * (sample::KEYS - 1) + 1);
        assert_eq!(
            told.iter().map(|one| one.phase).collect::<Vec<_>>(),
            [Phase::Convert, Phase::Link, Phase::Link, Phase::Release]
        );
        assert!(told.iter().all(|one| one.done <= one.total));
        assert!(matches!(pool.read(|r| r.root::<sample::Node>()), Err(Error::Layout { .. })));
        for again in [false, true] {
            let mut keys = Vec::new();
            pool.read(|r| {
                let mut at = r.root::<Moved>()?.expect("a root");
                while !at.is_null() {
                    let node = r.get(at)?;
                    assert_eq!(r.slice(node.name)?, format!("node {}", node.key).as_bytes());
                    assert_eq!((node.squared, node.other), (node.key * node.key, [node.next, PPtr::NULL]));
                    assert_eq!(node.place, [node.key as f64 / 2.0, 0.5, -(node.key as f64)]);
                    assert_eq!(&node.label, b"golden\0\0\0\0\0\0\0\0\0\0");
                    keys.push(node.key);
                    at = node.next;
                }
                Ok::<_, Error>(())
            })
            .expect("read");
            assert_eq!(keys, sample::all(), "{mechanism:?} {state}");
            if again {
                break;
            }
            let nothing = pool.migrate(Migration::new().to::<Moved>()).expect("nothing to do");
            assert_eq!(nothing, memlift_persist::Migrated::default());
            pool.close().expect("closed");
            let report = check::check(&path).expect("checked");
            assert!(report.sound(), "{mechanism:?} {state}: {:?}", report.findings);
            assert!(!report.types.iter().any(|one| one.name == "moving"), "{:?}", report.types);
            assert!(
                !report.findings.iter().any(|one| one.what.contains("where there is none")),
                "{:?}",
                report.findings
            );
            pool = Pool::open(&path, &options()).expect("opened again");
        }
        // The new type's slots are used as any other's.
        pool.tx(|t| {
            let root = t.root::<Moved>()?.expect("a root");
            let first = *t.get(root)?;
            let next = t.alloc(Moved { key: 99, next: root, ..first })?;
            t.set_root(next)
        })
        .expect("committed");
    }
}

#[test]
fn golden_pools_stay_in_place_where_the_slot_is_as_long() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = golden(folder.path(), mechanism, "waiting");
        // Two lanes of 64 KiB take a slab of 12 objects; the rule counts a full one, so larger lanes are needed.
        let wide = path.with_extension("wide");
        let wish = memlift_persist::convert::Conversion { lane_bytes: Some(1 << 20), ..Default::default() };
        memlift_persist::convert::convert(&path, &wide, &wish).expect("converted");
        let mut pool = Pool::open(&wide, &options()).expect("opened");
        let before = pool.read(|r| Ok::<_, Error>(r.root::<sample::Node>()?.expect("a root").offset()));
        // Nothing moves, so Large need not be named.
        let did = pool.migrate(Migration::new().to::<Stayed>()).expect("migrated");
        assert_eq!((did.in_place, did.moved, did.pointers), (sample::KEYS, 0, 0), "{mechanism:?}");
        let mut keys = Vec::new();
        pool.read(|r| {
            let mut at = r.root::<Stayed>()?.expect("a root");
            assert_eq!(at.offset(), before.expect("read"));
            while !at.is_null() {
                let node = r.get(at)?;
                assert_eq!(r.slice(node.name)?, format!("node {}", node.key).as_bytes());
                assert_eq!((node.negative, node.other[0]), (-(node.key as i64), node.next));
                keys.push(node.key);
                at = node.next;
            }
            Ok::<_, Error>(())
        })
        .expect("read");
        assert_eq!(keys, sample::all(), "{mechanism:?}");
        pool.close().expect("closed");
        let report = check::check(&wide).expect("checked");
        assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
    }
}

#[test]
fn types_that_may_point_to_what_moves_have_to_be_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut pool = Pool::open(golden(folder.path(), Mechanism::Redo, "clean"), &options()).expect("opened");
    let refused = pool.migrate(Migration::new().to::<Moved>()).expect_err("Large is not named").to_string();
    assert!(refused.contains("Large") && refused.contains("Migration::holds"), "{refused}");
    assert_eq!(sample::keys(&pool).expect("untouched"), sample::all());
    let twice = pool.migrate(Migration::new().to::<Moved>().to::<Stayed>()).expect_err("two").to_string();
    assert!(twice.contains("name one of them"), "{twice}");
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[persist(name = "Item")]
#[repr(C)]
struct ItemV1 {
    value: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[persist(from = ItemV1)]
#[repr(C)]
struct Item {
    value: u64,
    owner: PPtr<Shop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[persist(name = "Item", from = ItemV1)]
#[repr(C)]
struct Signed {
    value: i32,
}

impl From<ItemV1> for Item {
    fn from(old: ItemV1) -> Item {
        assert_ne!(old.value, POISON, "what lies behind an array's end is not converted");
        Item { value: u64::from(old.value) * 10, owner: PPtr::NULL }
    }
}

impl From<ItemV1> for Signed {
    fn from(old: ItemV1) -> Signed {
        assert_ne!(old.value, POISON, "what lies behind an array's end is not converted");
        Signed { value: -(old.value as i32) }
    }
}

const POISON: u32 = 0xdead_beef;

/// Reached from the root only, and of the same layout with every kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Shop {
    few: PSlice<Item>,
    part: PSlice<Item>,
    many: PSlice<Item>,
    one: PPtr<Item>,
    shops: PSlice<PPtr<Shop>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[persist(name = "Shop")]
#[repr(C)]
struct ShopV1 {
    few: PSlice<ItemV1>,
    part: PSlice<ItemV1>,
    many: PSlice<ItemV1>,
    one: PPtr<ItemV1>,
    shops: PSlice<PPtr<ShopV1>>,
}

fn shop(path: &Path, mechanism: Mechanism) -> Pool {
    let options = Options { heap_bytes: 2 << 20, mechanism, domain: Domain::Lines, ..Options::default() };
    let pool = Pool::create(path, &options).expect("created");
    pool.tx(|t| {
        // A slot with remains: the array that comes next is shorter.
        let remains = t.alloc_slice(&[ItemV1 { value: POISON }; 12])?;
        t.free_slice(remains)
    })
    .expect("committed");
    pool.tx(|t| {
        let items =
            |from: u32, count: u32| (from..from + count).map(|value| ItemV1 { value }).collect::<Vec<_>>();
        let few = t.alloc_slice(&items(100, 10))?;
        let part = PSlice::from_raw(few.offset() + 12, 4);
        let many = t.alloc_slice(&items(1000, 9000))?;
        let one = t.alloc(ItemV1 { value: 7 })?;
        t.alloc_slice(&[ItemV1 { value: POISON }; 3])?; // nobody's
        let shop = t.alloc(ShopV1 { few, part, many, one, shops: PSlice::EMPTY })?;
        let shops = t.alloc_slice(&[shop, PPtr::NULL])?;
        t.get_mut(shop)?.shops = shops;
        t.set_root(shop)
    })
    .expect("committed");
    pool
}

#[test]
fn arrays_are_as_long_as_pointers_say_and_parts_stay_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = folder.path().join(mechanism.name());
        let mut pool = shop(&path, mechanism);
        // Shop itself has the same layout; named, because Item leads to it and ShopV1 is what the pool has.
        assert_eq!(Shop::TAG, ShopV1::TAG);
        let did = pool.migrate(Migration::new().to::<Item>().holds::<Shop>()).expect("migrated");
        assert_eq!((did.in_place, did.arrays, did.dropped, did.pointers), (1, 2, 1, 3), "{mechanism:?}");
        pool.read(|r| {
            let shop = *r.get(r.root::<Shop>()?.expect("a root"))?;
            let values = |items: PSlice<Item>| {
                r.slice(items).map(|all| all.iter().map(|i| i.value).collect::<Vec<_>>())
            };
            assert_eq!(values(shop.few)?, (100..110).map(|v| v * 10).collect::<Vec<u64>>());
            assert_eq!(values(shop.part)?, (103..107).map(|v| v * 10).collect::<Vec<u64>>());
            assert_eq!(shop.part.offset(), shop.few.offset() + 3 * 16);
            assert_eq!(values(shop.many)?, (1000..10_000).map(|v| v * 10).collect::<Vec<u64>>());
            assert_eq!(r.get(shop.one)?.value, 70);
            Ok::<_, Error>(())
        })
        .expect("read");
        pool.close().expect("closed");
        assert!(check::check(&path).expect("checked").sound());

        // As long as before: arrays in slots stay, those with slabs of their own move.
        std::fs::remove_file(&path).expect("removed");
        let mut pool = shop(&path, mechanism);
        let few = pool.read(|r| Ok::<_, Error>(r.get(r.root::<ShopV1>()?.expect("a root"))?.few.offset()));
        let did = pool.migrate(Migration::new().to::<Signed>().holds::<ShopV1>()).expect("migrated");
        assert_eq!((did.in_place, did.arrays, did.dropped, did.pointers), (1, 2, 1, 1), "{mechanism:?}");
        pool.read(|r| {
            let shop = *r.get(r.root::<ShopV1>()?.expect("a root"))?;
            assert_eq!(shop.few.offset(), few.expect("read"));
            assert_eq!(
                r.slice(shop.part.migrated::<Signed>())?.iter().map(|i| i.value).collect::<Vec<_>>(),
                [-103, -104, -105, -106]
            );
            assert_eq!(r.slice(shop.many.migrated::<Signed>())?[8999].value, -9999);
            Ok::<_, Error>(())
        })
        .expect("read");
    }
}

#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "Cell")]
#[repr(C)]
struct CellV1 {
    value: u64,
    next: PPtr<CellV1>,
}

#[derive(Clone, Copy, Debug, Persist)]
#[persist(from = CellV1)]
#[repr(C)]
struct Cell {
    value: u64,
    next: PPtr<Cell>,
    wide: [u64; 6],
}

thread_local! {
    static LEFT: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

impl From<CellV1> for Cell {
    fn from(old: CellV1) -> Cell {
        LEFT.set(LEFT.get().checked_sub(1).expect("no more today"));
        Cell { value: old.value, next: old.next.migrated(), wide: [old.value; 6] }
    }
}

#[test]
fn after_a_panic_in_the_middle_the_same_call_goes_on_and_nobody_takes_it_for_done() {
    const CELLS: u64 = 3000;
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = folder.path().join(mechanism.name());
        let made = Options { heap_bytes: 1 << 20, mechanism, domain: Domain::Lines, ..Options::default() };
        let mut pool = Pool::create(&path, &made).expect("created");
        for value in 0..CELLS {
            pool.tx(|t| {
                let next = t.root::<CellV1>()?.unwrap_or(PPtr::NULL);
                let cell = t.alloc(CellV1 { value, next })?;
                t.set_root(cell)
            })
            .expect("committed");
        }
        let mut times = 0;
        let mut moved = 0;
        loop {
            LEFT.set(700);
            times += 1;
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.migrate(Migration::new().to::<Cell>())
            }));
            match outcome {
                Ok(did) => {
                    let did = did.expect("migrated");
                    moved += did.moved;
                    assert!(did.resumed);
                    break;
                }
                Err(_) => {
                    assert!(matches!(pool.read(|r| r.root::<Cell>()), Err(Error::Layout { .. })));
                    assert!(matches!(pool.read(|r| r.root::<CellV1>()), Err(Error::Layout { .. })));
                    drop(pool);
                    let report = check::check(&path).expect("checked");
                    assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
                    assert!(report.findings.iter().any(|one| one.what.contains("migration is under way")));
                    let mended = path.with_extension("mended");
                    let repaired = memlift_persist::repair::repair(&path, &mended).expect("repaired");
                    assert_eq!(repaired.changes, [], "{mechanism:?}");
                    std::fs::rename(&mended, &path).expect("renamed");
                    pool = Pool::open(&path, &made).expect("opened");
                }
            }
        }
        LEFT.set(u64::MAX);
        assert!(times >= 5 && moved <= 700, "{times} {moved}");
        let mut wanted = CELLS;
        pool.read(|r| {
            let mut at = r.root::<Cell>()?.expect("a root");
            while !at.is_null() {
                let cell = r.get(at)?;
                wanted -= 1;
                assert_eq!((cell.value, cell.wide), (wanted, [wanted; 6]));
                at = cell.next;
            }
            Ok::<_, Error>(())
        })
        .expect("read");
        assert_eq!(wanted, 0, "{mechanism:?}");
        pool.close().expect("closed");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
        assert!(
            report.types.iter().all(|one| one.name == "Cell" && one.objects == CELLS),
            "{:?}",
            report.types
        );
    }
}
