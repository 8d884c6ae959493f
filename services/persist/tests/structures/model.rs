// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares structures with those of the standard library, under each mechanism: random operations, several per transaction,
//! with aborts, and with the pool closed and opened in between.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use memlift_persist::structures::{AppendLog, BTree, HashMap, Queue, RbTree, SkipList};
use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, Persist, Pool, Reader, Tx};
use proptest::prelude::*;

type Value = [u64; 3];

fn options() -> Options {
    options_of(Mechanism::Redo)
}

fn options_of(mechanism: Mechanism) -> Options {
    Options {
        mechanism,
        heap_bytes: 1 << 20,
        max_bytes: 256 << 20,
        lanes: 2,
        lane_bytes: 16 << 20,
        domain: Domain::Lines,
        ..Options::default()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64, u64),
    Change(u64, u64),
    Remove(u64),
    Clear,
}

#[derive(Clone, Debug)]
enum Act {
    Commit(Vec<Step>),
    Abort(Vec<Step>),
    Reopen,
}

fn acts(keys: u64, most: usize) -> impl Strategy<Value = Vec<Act>> {
    let step = prop_oneof![
        60 => (0..keys, any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
        5 => (0..keys, any::<u64>()).prop_map(|(key, value)| Step::Change(key, value)),
        40 => (0..keys).prop_map(Step::Remove),
    ];
    // Runs that grow and runs that shrink, so that nodes split and join.
    let growing =
        proptest::collection::vec((0..keys, any::<u64>()).prop_map(|(k, v)| Step::Insert(k, v)), 1..most);
    let shrinking = proptest::collection::vec((0..keys).prop_map(Step::Remove), 1..most);
    let steps = || proptest::collection::vec(step.clone(), 1..40);
    let act = prop_oneof![
        10 => steps().prop_map(Act::Commit),
        6 => growing.prop_map(Act::Commit),
        6 => shrinking.prop_map(Act::Commit),
        4 => steps().prop_map(Act::Abort),
        1 => Just(Act::Commit(vec![Step::Clear])),
        2 => Just(Act::Reopen),
    ];
    proptest::collection::vec(act, 1..30)
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    proptest::sample::select(Mechanism::ALL.to_vec())
}

/// A map under test.
trait Map: Copy + Sized {
    type Root: Persist;
    fn create(t: &mut Tx<'_>) -> Result<Self, Error>;
    fn open(root: PPtr<Self::Root>) -> Self;
    fn pointer(&self) -> PPtr<Self::Root>;
    fn insert(&self, t: &mut Tx<'_>, key: u64, value: Value) -> Result<Option<Value>, Error>;
    fn change(&self, t: &mut Tx<'_>, key: u64, value: Value) -> Result<bool, Error>;
    fn remove(&self, t: &mut Tx<'_>, key: u64) -> Result<Option<Value>, Error>;
    fn clear(&self, t: &mut Tx<'_>) -> Result<(), Error>;
    fn destroy(self, t: &mut Tx<'_>) -> Result<(), Error>;
    fn matches(&self, r: &Reader<'_>, model: &BTreeMap<u64, Value>) -> Result<(), Error>;
}

macro_rules! map {
    ($name:ident, $root:ident, ($($reference:tt)?), $matches:expr) => {
        impl Map for $name<u64, Value> {
            type Root = memlift_persist::structures::$root<u64, Value>;
            fn create(t: &mut Tx<'_>) -> Result<Self, Error> {
                $name::create(t)
            }
            fn open(root: PPtr<Self::Root>) -> Self {
                $name::open(root)
            }
            fn pointer(&self) -> PPtr<Self::Root> {
                $name::pointer(self)
            }
            fn insert(&self, t: &mut Tx<'_>, key: u64, value: Value) -> Result<Option<Value>, Error> {
                $name::insert(self, t, $($reference)? key, value)
            }
            fn change(&self, t: &mut Tx<'_>, key: u64, value: Value) -> Result<bool, Error> {
                Ok($name::get_mut(self, t, &key)?.map(|place| *place = value).is_some())
            }
            fn remove(&self, t: &mut Tx<'_>, key: u64) -> Result<Option<Value>, Error> {
                $name::remove(self, t, &key)
            }
            fn clear(&self, t: &mut Tx<'_>) -> Result<(), Error> {
                $name::clear(self, t)
            }
            fn destroy(self, t: &mut Tx<'_>) -> Result<(), Error> {
                $name::destroy(self, t)
            }
            fn matches(&self, r: &Reader<'_>, model: &BTreeMap<u64, Value>) -> Result<(), Error> {
                assert_eq!(self.len(r)?, model.len() as u64);
                assert_eq!(self.is_empty(r)?, model.is_empty());
                for key in (0..40).chain(model.keys().copied()) {
                    assert_eq!(self.get(r, &key)?, model.get(&key), "{key}");
                }
                let check: fn(&Self, &Reader<'_>, &BTreeMap<u64, Value>) -> Result<(), Error> = $matches;
                check(self, r, model)
            }
        }
    };
}

fn owned<'a>(
    entries: impl Iterator<Item = Result<(&'a u64, &'a Value), Error>>,
) -> Result<Vec<(u64, Value)>, Error> {
    entries.map(|entry| entry.map(|(key, value)| (*key, *value))).collect()
}

fn pairs<'a>(entries: impl Iterator<Item = (&'a u64, &'a Value)>) -> Vec<(u64, Value)> {
    entries.map(|(key, value)| (*key, *value)).collect()
}

map!(BTree, BTreeRoot, (&), |tree, r, model| {
    assert_eq!(owned(tree.iter(r)?)?, pairs(model.iter()));
    assert_eq!(owned(tree.iter_back(r)?)?, pairs(model.iter().rev()));
    assert_eq!(tree.first(r)?, model.first_key_value());
    assert_eq!(tree.last(r)?, model.last_key_value());
    for (from, to) in [(0, 0), (3, 17), (5, 1000), (20, 21), (999, 5000)] {
        assert_eq!(owned(tree.range(r, &from..&to)?)?, pairs(model.range(from..to)));
        assert_eq!(owned(tree.range_back(r, &from..&to)?)?, pairs(model.range(from..to).rev()));
        assert_eq!(owned(tree.range(r, &from..=&to)?)?, pairs(model.range(from..=to)));
        assert_eq!(owned(tree.range_back(r, &from..=&to)?)?, pairs(model.range(from..=to).rev()));
        let after = (Bound::Excluded(&from), Bound::Unbounded);
        let after_model = (Bound::Excluded(from), Bound::Unbounded);
        assert_eq!(owned(tree.range(r, after)?)?, pairs(model.range(after_model)));
        assert_eq!(owned(tree.range_back(r, after)?)?, pairs(model.range(after_model).rev()));
    }
    Ok(())
});

map!(RbTree, RbTreeRoot, (), |tree, r, model| {
    tree.check(r)?;
    assert_eq!(owned(tree.iter(r)?)?, pairs(model.iter()));
    assert_eq!(owned(tree.iter_back(r)?)?, pairs(model.iter().rev()));
    for at in [0, 7, 20, 500] {
        let (included, excluded) = (Bound::Included(at), Bound::Excluded(at));
        assert_eq!(
            owned(tree.from(r, included.as_ref())?)?,
            pairs(model.range((included, Bound::Unbounded)))
        );
        assert_eq!(
            owned(tree.from(r, excluded.as_ref())?)?,
            pairs(model.range((excluded, Bound::Unbounded)))
        );
        let down = model.range((Bound::Unbounded, included)).rev();
        assert_eq!(owned(tree.from_back(r, included.as_ref())?)?, pairs(down));
        let down = model.range((Bound::Unbounded, excluded)).rev();
        assert_eq!(owned(tree.from_back(r, excluded.as_ref())?)?, pairs(down));
    }
    Ok(())
});

map!(SkipList, SkipListRoot, (), |list, r, model| {
    assert_eq!(owned(list.iter(r)?)?, pairs(model.iter()));
    assert_eq!(list.last(r)?, model.last_key_value());
    for at in [0, 7, 20, 500] {
        let (included, excluded) = (Bound::Included(at), Bound::Excluded(at));
        assert_eq!(
            owned(list.from(r, included.as_ref())?)?,
            pairs(model.range((included, Bound::Unbounded)))
        );
        assert_eq!(
            owned(list.from(r, excluded.as_ref())?)?,
            pairs(model.range((excluded, Bound::Unbounded)))
        );
        assert_eq!(list.before(r, &at)?, model.range(..at).next_back());
    }
    Ok(())
});

map!(HashMap, HashMapRoot, (), |map, r, model| {
    let mut all = owned(map.iter(r)?)?;
    all.sort_unstable();
    assert_eq!(all, pairs(model.iter()));
    Ok(())
});

fn apply<M: Map>(map: M, t: &mut Tx<'_>, step: Step, model: &mut BTreeMap<u64, Value>) -> Result<(), Error> {
    match step {
        Step::Insert(key, value) => {
            assert_eq!(map.insert(t, key, [value; 3])?, model.insert(key, [value; 3]))
        }
        Step::Change(key, value) => {
            let there = model.get_mut(&key).map(|place| *place = [value, 1, 2]).is_some();
            assert_eq!(map.change(t, key, [value, 1, 2])?, there);
        }
        Step::Remove(key) => assert_eq!(map.remove(t, key)?, model.remove(&key)),
        Step::Clear => {
            map.clear(t)?;
            model.clear();
        }
    }
    Ok(())
}

fn run<M: Map>(mechanism: Mechanism, acts: &[Act]) {
    let options = || options_of(mechanism);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("map.pool");
    let mut pool = Pool::create(&path, &options()).expect("created");
    let mut map = pool
        .tx(|t| {
            let map = M::create(t)?;
            t.set_root(map.pointer())?;
            Ok::<_, Error>(map)
        })
        .expect("made");
    let mut model = BTreeMap::new();
    for act in acts {
        match act {
            Act::Commit(steps) => pool
                .tx(|t| steps.iter().try_for_each(|step| apply(map, t, *step, &mut model)))
                .expect("committed"),
            Act::Abort(steps) => {
                let mut gone = model.clone();
                let outcome = pool.tx(|t| {
                    steps.iter().try_for_each(|step| apply(map, t, *step, &mut gone))?;
                    Err::<(), _>(Tx::aborted("on purpose"))
                });
                assert!(matches!(outcome, Err(Error::Aborted(_))));
            }
            Act::Reopen => {
                pool.close().expect("closed");
                pool = Pool::open(&path, &options()).expect("opened");
                map = M::open(pool.read(|r| memlift_persist::View::root(r)).expect("read").expect("there"));
            }
        }
        pool.read(|r| map.matches(r, &model)).expect("read");
    }
}

/// Checks that entries that were put in and taken out again leave nothing behind, however often.
fn leaves_nothing<M: Map>(mechanism: Mechanism, rounds: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("map.pool"), &options_of(mechanism)).expect("created");
    let mut usage = None;
    for round in 0..rounds {
        let map = pool.tx(M::create).expect("made");
        for keys in (0..3000u64).collect::<Vec<_>>().chunks(100) {
            pool.tx(|t| {
                keys.iter().try_for_each(|key| map.insert(t, key * 7919 % 3001, [*key; 3]).map(drop))
            })
            .expect("put in");
        }
        if round % 3 == 2 {
            pool.tx(|t| map.clear(t)).expect("cleared");
        } else {
            for keys in (0..3001u64).collect::<Vec<_>>().chunks(100) {
                pool.tx(|t| keys.iter().try_for_each(|key| map.remove(t, key * 4099 % 3001).map(drop)))
                    .expect("taken out");
            }
            pool.read(|r| map.matches(r, &BTreeMap::new())).expect("empty");
        }
        pool.tx(|t| map.destroy(t)).expect("given back");
        let now = pool.usage();
        assert_eq!(*usage.get_or_insert(now), now, "round {round}");
    }
}

macro_rules! maps {
    ($($name:ident: $map:ident, $leaves:ident;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(
                    mechanism in mechanism(),
                    acts in prop_oneof![Just(30u64), Just(3000u64)].prop_flat_map(|keys| acts(keys, 600)),
                ) {
                    run::<$map<u64, Value>>(mechanism, &acts);
                }
            )*
        }
        $(
            #[test]
            fn $leaves() {
                leaves_nothing::<$map<u64, Value>>(Mechanism::Redo, 12);
                for mechanism in [Mechanism::Undo, Mechanism::Checkpoint, Mechanism::Shadow] {
                    leaves_nothing::<$map<u64, Value>>(mechanism, 3);
                }
            }
        )*
    };
}

maps! {
    btree_is_a_sorted_map: BTree, a_btree_leaves_nothing_behind;
    rbtree_is_a_sorted_map: RbTree, an_rbtree_leaves_nothing_behind;
    skiplist_is_a_sorted_map: SkipList, a_skiplist_leaves_nothing_behind;
    hashmap_is_a_map: HashMap, a_hashmap_leaves_nothing_behind;
}

#[derive(Clone, Debug)]
enum Line {
    Push(Vec<u64>),
    Pop(usize),
    Abort(Vec<u64>, usize),
    Reopen,
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let items = || proptest::collection::vec(any::<u64>(), 0..120);
    let line = prop_oneof![
        5 => items().prop_map(Line::Push),
        5 => (0usize..150).prop_map(Line::Pop),
        2 => (items(), 0usize..150).prop_map(|(items, pops)| Line::Abort(items, pops)),
        1 => Just(Line::Reopen),
    ];
    proptest::collection::vec(line, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_queue_is_a_queue(mechanism in mechanism(), lines in lines()) {
        let options = || options_of(mechanism);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("queue.pool");
        let mut pool = Pool::create(&path, &options()).expect("created");
        let mut queue: Queue<u64> = pool.tx(|t| {
            let queue = Queue::create(t)?;
            t.set_root(queue.pointer())?;
            Ok::<_, Error>(queue)
        }).expect("made");
        let mut model = VecDeque::new();
        for line in lines {
            match line {
                Line::Push(items) => {
                    pool.tx(|t| items.iter().try_for_each(|item| queue.push(t, *item))).expect("pushed");
                    model.extend(items);
                }
                Line::Pop(count) => {
                    let out = pool
                        .tx(|t| (0..count).map(|_| queue.pop(t)).collect::<Result<Vec<_>, Error>>())
                        .expect("popped");
                    let expected: Vec<_> = (0..count).map(|_| model.pop_front()).collect();
                    prop_assert_eq!(out, expected);
                }
                Line::Abort(items, pops) => {
                    let outcome = pool.tx(|t| {
                        items.iter().try_for_each(|item| queue.push(t, *item))?;
                        for _ in 0..pops {
                            queue.pop(t)?;
                        }
                        Err::<(), _>(Tx::aborted("on purpose"))
                    });
                    prop_assert!(matches!(outcome, Err(Error::Aborted(_))));
                }
                Line::Reopen => {
                    pool.close().expect("closed");
                    pool = Pool::open(&path, &options()).expect("opened");
                    queue = Queue::open(pool.read(|r| memlift_persist::View::root(r)).expect("read").expect("there"));
                }
            }
            pool.read(|r| {
                assert_eq!(queue.len(r)?, model.len() as u64);
                assert_eq!(queue.peek(r)?, model.front());
                assert_eq!(queue.iter(r)?.map(|item| item.copied()).collect::<Result<VecDeque<_>, _>>()?, model);
                Ok::<_, Error>(())
            }).expect("read");
        }
    }

    #[test]
    fn a_log_is_what_was_appended(mechanism in mechanism(), lines in lines()) {
        let options = || options_of(mechanism);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.pool");
        let mut pool = Pool::create(&path, &options()).expect("created");
        let mut log: AppendLog<u64> = pool.tx(|t| {
            let log = AppendLog::create(t)?;
            t.set_root(log.pointer())?;
            Ok::<_, Error>(log)
        }).expect("made");
        let (mut model, mut start) = (Vec::new(), 0usize);
        for line in lines {
            match line {
                Line::Push(items) => {
                    let items = items.repeat(7);
                    let at = pool.tx(|t| log.append(t, &items)).expect("appended");
                    prop_assert_eq!(at, model.len() as u64);
                    model.extend(items);
                }
                Line::Pop(count) => {
                    start = (start + count * 5).min(model.len());
                    pool.tx(|t| log.trim(t, start as u64)).expect("trimmed");
                }
                Line::Abort(items, pops) => {
                    let outcome = pool.tx(|t| {
                        log.append(t, &items)?;
                        log.trim(t, (start + pops) as u64)?;
                        Err::<(), _>(Tx::aborted("on purpose"))
                    });
                    prop_assert!(matches!(outcome, Err(Error::Aborted(_))));
                }
                Line::Reopen => {
                    pool.close().expect("closed");
                    pool = Pool::open(&path, &options()).expect("opened");
                    log = AppendLog::open(pool.read(|r| memlift_persist::View::root(r)).expect("read").expect("there"));
                }
            }
            pool.read(|r| {
                assert_eq!(log.numbers(r)?, start as u64..model.len() as u64);
                let from = start + (model.len() - start) / 2;
                for number in [0, start, from, model.len().saturating_sub(1), model.len()] {
                    let expected = (number >= start).then(|| model.get(number)).flatten();
                    assert_eq!(log.get(r, number as u64)?, expected, "{number}");
                }
                for number in [start, from] {
                    let items = log.iter(r, number as u64)?.map(|item| item.copied());
                    assert_eq!(items.collect::<Result<Vec<_>, _>>()?, model[number..]);
                }
                Ok::<_, Error>(())
            }).expect("read");
        }
    }
}

#[test]
fn a_queue_and_a_log_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("both.pool"), &options()).expect("created");
    let mut usage = None;
    for round in 0..20u64 {
        let (queue, log) =
            pool.tx(|t| Ok::<_, Error>((Queue::create(t)?, AppendLog::create(t)?))).expect("made");
        for chunk in 0..40u64 {
            pool.tx(|t| {
                (0..100).try_for_each(|item| queue.push(t, chunk * 100 + item))?;
                log.append(t, &[chunk; 2500]).map(drop)
            })
            .expect("put in");
        }
        for chunk in 0..40 {
            pool.tx(|t| {
                for _ in 0..100 {
                    assert!(queue.pop(t)?.is_some());
                }
                log.trim(t, chunk * 2500)
            })
            .expect("taken out");
        }
        pool.tx(|t| {
            assert_eq!(queue.pop(t)?, None);
            queue.destroy(t)?;
            log.destroy(t)
        })
        .expect("given back");
        let now = pool.usage();
        assert_eq!(*usage.get_or_insert(now), now, "round {round}");
    }
}

#[test]
fn keys_in_order_fill_their_leaves() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("full.pool"), &options()).expect("created");
    let tree: BTree<u64, Value> = pool.tx(BTree::create).expect("made");
    let before = pool.usage();
    for keys in (0..20_000u64).collect::<Vec<_>>().chunks(500) {
        pool.tx(|t| keys.iter().try_for_each(|key| tree.insert(t, key, [*key; 3]).map(drop)))
            .expect("put in");
    }
    let bytes = (before.1 + pool.usage().0 - before.0 - pool.usage().1) as f64;
    assert!(bytes < 20_000.0 * 32.0 * 1.25, "{bytes} bytes for {} of data", 20_000 * 32);
}

#[test]
fn structures_stay_in_their_section() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("apart.pool"), &Options { sections: 3, ..options() })
        .expect("created");
    let how = |sections| memlift_persist::TxOptions { sections: Some(sections), ..Default::default() };
    let tree: BTree<u64, Value> = pool.tx_with(how(&[2]), BTree::create).expect("made");
    pool.tx_with(how(&[1, 2]), |t| (0..100).try_for_each(|key| tree.insert(t, &key, [key; 3]).map(drop)))
        .expect("put in");
    let found = pool.read_in(&[2], |r| {
        tree.iter(r)?.map(|entry| entry.map(|(key, _)| *key)).collect::<Result<Vec<_>, _>>()
    });
    assert_eq!(found.expect("all of it is in section 2"), (0..100).collect::<Vec<_>>());
    assert!(matches!(pool.read_in(&[1], |r| tree.len(r)), Err(Error::Section { .. })));
}

/// Everything in one pool.
#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct All {
    btree: PPtr<memlift_persist::structures::BTreeRoot<u64, Value>>,
    rbtree: PPtr<memlift_persist::structures::RbTreeRoot<u64, Value>>,
    skiplist: PPtr<memlift_persist::structures::SkipListRoot<u64, Value>>,
    hashmap: PPtr<memlift_persist::structures::HashMapRoot<u64, Value>>,
    queue: PPtr<memlift_persist::structures::QueueRoot<u64>>,
    log: PPtr<memlift_persist::structures::AppendLogRoot<u64>>,
}

/// Extreme values of a damaged count or number: near `u64::MAX`, one bit, or 0 to 3.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(u64::MAX),
        (0u64..40).prop_map(|less| u64::MAX - less),
        (0u32..64).prop_map(|bit| 1 << bit),
        0u64..4,
    ]
}

/// Looks at a map and changes it; whatever it answers.
fn handle<M: Map>(root: PPtr<M::Root>, pool: &Pool, walk: impl Fn(M, &Reader<'_>) -> Result<u64, Error>) {
    let map = M::open(root);
    let _ = pool.read(|r| walk(map, r));
    for key in 0..40u64 {
        let _ = pool.tx(|t| map.insert(t, key * 9, [key; 3]));
        let _ = pool.tx(|t| map.change(t, key * 8, [key; 3]));
        let _ = pool.tx(|t| map.remove(t, key * 10));
    }
    let _ = pool.tx(|t| map.clear(t));
}

/// `PROPTEST_CASES` damaged files, or as many as usual.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), ..ProptestConfig::default() })]

    /// Bytes of objects, of their bitmaps included, are changed in the file: every answer is allowed but a panic and a walk
    /// without end.
    #[test]
    fn a_damaged_file_gives_errors(
        mechanism in proptest::sample::select(vec![Mechanism::Redo, Mechanism::Undo, Mechanism::Checkpoint]),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u8..4), 0..60),
        roots in proptest::collection::vec((0usize..6, 0u64..8, extreme()), 0..4),
    ) {
        let options = || options_of(mechanism);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("damaged.pool");
        let pool = Pool::create(&path, &options()).expect("created");
        let mut starts = [0; 6];
        pool.tx(|t| {
            let (btree, rbtree, skiplist, hashmap) =
                (BTree::create(t)?, RbTree::create(t)?, SkipList::create(t)?, HashMap::create(t)?);
            let (queue, log) = (Queue::create(t)?, AppendLog::create(t)?);
            for key in 0..600 {
                btree.insert(t, &key, [key; 3])?;
                rbtree.insert(t, key, [key; 3])?;
                skiplist.insert(t, key, [key; 3])?;
                hashmap.insert(t, key, [key; 3])?;
                queue.push(t, key)?;
                log.append(t, &[key; 3])?;
            }
            let all = All {
                btree: btree.pointer(),
                rbtree: rbtree.pointer(),
                skiplist: skiplist.pointer(),
                hashmap: hashmap.pointer(),
                queue: queue.pointer(),
                log: log.pointer(),
            };
            let root = t.alloc(all)?;
            t.set_root(root)?;
            starts = [
                btree.pointer().offset(),
                rbtree.pointer().offset(),
                skiplist.pointer().offset(),
                hashmap.pointer().offset(),
                queue.pointer().offset(),
                log.pointer().offset(),
            ];
            Ok::<_, Error>(())
        }).expect("filled");
        let header = pool.header();
        let used = (pool.usage().0 - pool.usage().1) as usize;
        pool.close().expect("closed");

        let mut bytes = std::fs::read(&path).expect("read");
        let objects = header.heap_start as usize + memlift_persist::layout::SUPERBLOCK_OFFSET as usize + (16 << 10);
        let words = (used - (objects - header.heap_start as usize)) / 8;
        let word_at = |at: prop::sample::Index| objects + at.index(words) * 8;
        for (at, value, how) in damage {
            let place = word_at(at);
            let now = u64::from_le_bytes(bytes[place..place + 8].try_into().expect("a word"));
            let new = match how {
                0 => value,
                1 => now ^ 1 << (value % 64),
                2 => value % 1024,
                // A pointer from somewhere else: of the right kind, perhaps, but to the wrong place.
                _ => u64::from_le_bytes(bytes[objects + value as usize % words * 8..][..8].try_into().expect("a word")),
            };
            bytes[place..place + 8].copy_from_slice(&new.to_le_bytes());
        }
        for (structure, word, value) in roots {
            let place = (header.heap_start + starts[structure] + word * 8) as usize;
            bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(&path, &bytes).expect("written");

        let Ok(pool) = Pool::open(&path, &options()) else { return Ok(()) };
        let all = pool.read(|r| {
            let root = memlift_persist::View::root::<All>(r)?;
            root.map(|root| memlift_persist::View::get(r, root).copied()).transpose()
        });
        let Ok(Some(all)) = all else { return Ok(()) };
        handle::<BTree<u64, Value>>(all.btree, &pool, |map, r| {
            Ok((map.iter(r)?.count() + map.iter_back(r)?.count()) as u64)
        });
        handle::<RbTree<u64, Value>>(all.rbtree, &pool, |map, r| {
            let _ = map.check(r);
            for key in [0, 300, 700] {
                let _ = map.from(r, Bound::Included(&key)).map(Iterator::count);
                let _ = map.from_back(r, Bound::Excluded(&key)).map(Iterator::count);
            }
            Ok(map.iter_back(r)?.count() as u64)
        });
        handle::<SkipList<u64, Value>>(all.skiplist, &pool, |map, r| {
            let _ = map.last(r);
            let _ = map.from(r, Bound::Included(&300)).map(Iterator::count);
            Ok(map.iter(r)?.count() as u64)
        });
        handle::<HashMap<u64, Value>>(all.hashmap, &pool, |map, r| Ok(map.iter(r)?.count() as u64));
        let queue: Queue<u64> = Queue::open(all.queue);
        let _ = pool.read(|r| queue.iter(r).map(|items| items.count()));
        for item in 0..100 {
            let _ = pool.tx(|t| queue.pop(t));
            let _ = pool.tx(|t| queue.push(t, item));
        }
        let _ = pool.tx(|t| queue.clear(t));
        let log: AppendLog<u64> = AppendLog::open(all.log);
        let _ = pool.read(|r| log.iter(r, 5).map(Iterator::count));
        let _ = pool.tx(|t| log.append(t, &[7; 300]));
        let _ = pool.tx(|t| log.trim(t, 900));
        let _ = pool.tx(|t| log.clear(t));
    }
}

/// Stores `value` at `bytes` into the object at `offset` of a closed pool's heap.
fn spoil(path: &std::path::Path, start: u64, offset: u64, bytes: u64, value: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("opened");
    file.write_all_at(&value.to_le_bytes(), start + offset + bytes).expect("written");
}

#[test]
fn a_walk_to_where_it_begins_ends_in_a_tree_that_is_a_circle() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("circle.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    let (tree, top) = pool
        .tx(|t| {
            let tree: RbTree<u64, Value> = RbTree::create(t)?;
            tree.insert(t, 5, [0; 3])?;
            // The root's first word leads to the top.
            let words: &[u64; 3] = t.part_mut(tree.pointer(), 0)?;
            Ok::<_, Error>((tree, words[0]))
        })
        .expect("filled");
    let start = pool.header().heap_start;
    pool.close().expect("closed");
    spoil(&path, start, top, 8, top); // what is greater than the top: the top
    let pool = Pool::open(&path, &options()).expect("opened");
    let found = pool.read(|r| tree.from(r, Bound::Included(&9)).map(Iterator::count));
    assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
}

#[test]
fn counts_at_their_end_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("counts.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    let (map, list, log) = pool
        .tx(|t| {
            let (map, list): (HashMap<u64, u64>, SkipList<u64, u64>) =
                (HashMap::create(t)?, SkipList::create(t)?);
            map.insert(t, 1, 1)?;
            list.insert(t, 1, 1)?;
            Ok::<_, Error>((map, list, AppendLog::<u8>::create(t)?))
        })
        .expect("made");
    let start = pool.header().heap_start;
    pool.close().expect("closed");
    // Entries of map and list; the number of a log's next item.
    for offset in [map.pointer().offset(), list.pointer().offset(), log.pointer().offset()] {
        spoil(&path, start, offset, 0, u64::MAX);
    }
    let pool = Pool::open(&path, &options()).expect("opened");
    let corrupt =
        |answer: Result<(), Error>| assert!(matches!(answer, Err(Error::Corrupt { .. })), "{answer:?}");
    corrupt(pool.tx(|t| map.insert(t, 2, 2).map(drop)));
    corrupt(pool.tx(|t| list.insert(t, 2, 2).map(drop)));
    corrupt(pool.tx(|t| log.append(t, b"x").map(drop)));
    // And as many buckets as no power of two reaches.
    pool.close().expect("closed");
    spoil(&path, start, map.pointer().offset(), 8, u64::MAX);
    let pool = Pool::open(&path, &options()).expect("opened");
    for key in 0..50 {
        let _ = pool.tx(|t| map.remove(t, &key));
    }
}
