// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key-value store against a sorted map of the standard library, under each mechanism, with shards, expiry and reopening.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use memlift_persist::kv::{Change, Kv, now_ms};
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, Pool};
use proptest::prelude::*;

fn options(sections: u32) -> Options {
    options_of(Mechanism::Redo, sections)
}

fn options_of(mechanism: Mechanism, sections: u32) -> Options {
    Options {
        mechanism,
        heap_bytes: 1 << 20,
        max_bytes: 256 << 20,
        lane_bytes: 1 << 20,
        domain: Domain::Lines,
        sections,
        ..Options::default()
    }
}

#[derive(Clone, Debug)]
enum Act {
    Set(Vec<u8>, Vec<u8>, bool),
    SetMany(Vec<(Vec<u8>, Vec<u8>)>),
    Change(Vec<u8>, Option<Vec<u8>>),
    Remove(Vec<Vec<u8>>),
    Scan(Vec<u8>, usize),
    Sweep,
    Clear,
    Reopen,
}

/// Keys that differ late, early, by length only, and by zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(proptest::sample::select(vec![0u8, 1, b'a', 0xff]), 0..12),
        (0u32..300).prop_map(|number| format!("user:{number:08}").into_bytes()),
        (0u8..60).prop_map(|number| vec![number]),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let value = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        30 => (key(), value(), proptest::bool::weighted(0.2)).prop_map(|(k, v, old)| Act::Set(k, v, old)),
        8 => proptest::collection::vec((key(), value()), 0..60).prop_map(Act::SetMany),
        6 => (key(), proptest::option::of(value())).prop_map(|(k, v)| Act::Change(k, v)),
        10 => proptest::collection::vec(key(), 0..40).prop_map(Act::Remove),
        4 => (key(), 1usize..40).prop_map(|(k, n)| Act::Scan(k, n)),
        2 => Just(Act::Sweep),
        1 => Just(Act::Clear),
        1 => Just(Act::Reopen),
    ]
}

fn all(kv: &Kv<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    kv.scan((Bound::Unbounded, Bound::Unbounded), |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("read");
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_a_sorted_map(
        mechanism in proptest::sample::select(Mechanism::ALL.to_vec()),
        sections in prop_oneof![Just(1u32), Just(5)],
        acts in proptest::collection::vec(act(), 1..80),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kv.pool");
        let mut acts = acts.into_iter();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut more = true;
        while more {
            more = false;
            let pool = Pool::open_or_create(&path, &options_of(mechanism, sections)).expect("opened");
            let kv = Kv::open(&pool, Durability::Sync).expect("opened");
            for act in acts.by_ref() {
                match act {
                    Act::Set(key, value, true) => {
                        // Its time is over before anybody looks.
                        kv.set(&key, &value, now_ms() - 5).expect("set");
                        model.remove(&key);
                    }
                    Act::Set(key, value, false) => {
                        kv.set(&key, &value, 0).expect("set");
                        model.insert(key, value);
                    }
                    Act::SetMany(entries) => {
                        let pairs: Vec<(&[u8], &[u8])> = entries.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                        kv.set_many(&pairs).expect("set");
                        model.extend(entries);
                    }
                    Act::Change(key, value) => {
                        let seen = kv.change(&key, |there| {
                            let there = there.map(|(value, _)| value.to_vec());
                            let change = value.clone().map_or(Change::Remove, |value| Change::Set(value, 0));
                            Ok((change, there))
                        });
                        prop_assert_eq!(seen.expect("changed"), model.get(&key).cloned());
                        match value {
                            Some(value) => drop(model.insert(key.clone(), value)),
                            None => drop(model.remove(&key)),
                        }
                        let failed = kv.change(&key, |_| Err::<(Change, ()), _>(Error::Aborted("no".to_owned())));
                        prop_assert!(matches!(failed, Err(Error::Aborted(_))));
                    }
                    Act::Remove(mut keys) => {
                        keys.sort();
                        let expected = { keys.dedup(); keys.iter().filter(|key| model.remove(*key).is_some()).count() };
                        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                        prop_assert_eq!(kv.remove(&keys).expect("removed"), expected as u64);
                    }
                    Act::Scan(from, most) => {
                        let mut found = Vec::new();
                        kv.scan((Bound::Excluded(&from), Bound::Unbounded), |key, _| {
                            found.push(key.to_vec());
                            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                        }).expect("read");
                        let range = (Bound::Excluded(from.clone()), Bound::Unbounded);
                        prop_assert_eq!(&found, &model.range(range).take(most).map(|(key, _)| key.clone()).collect::<Vec<_>>());
                        found.clear();
                        kv.scan_prefix(&from, |key, _| { found.push(key.to_vec()); ControlFlow::Continue(()) }).expect("read");
                        let expected: Vec<_> = model.keys().filter(|key| key.starts_with(&from)).cloned().collect();
                        prop_assert_eq!(found, expected);
                    }
                    Act::Sweep => {
                        while kv.len().expect("read") > model.len() as u64 {
                            kv.expire_some(50).expect("swept");
                        }
                        prop_assert_eq!(kv.len().expect("read"), model.len() as u64);
                    }
                    Act::Clear => {
                        kv.clear().expect("cleared");
                        model.clear();
                        prop_assert!(kv.is_empty().expect("read"));
                    }
                    Act::Reopen => {
                        more = true;
                        break;
                    }
                }
                for key in model.keys().take(10) {
                    prop_assert_eq!(kv.get(key).expect("read"), model.get(key).cloned());
                }
            }
            prop_assert_eq!(all(&kv), model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_store_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("kv.pool"), &options(3)).expect("created");
    let kv = Kv::open(&pool, Durability::Sync).expect("opened");
    let mut usage = None;
    for round in 0..10 {
        let keys: Vec<Vec<u8>> =
            (0..2000).map(|at| format!("a rather long key {:06}", at * 7919 % 2003).into_bytes()).collect();
        for key in &keys {
            kv.set(key, &[round; 50], 0).expect("set");
            kv.set(key, &[round; 90], now_ms() + 1).expect("set");
        }
        match round % 3 {
            0 => kv.clear().expect("cleared"),
            1 => drop(kv.remove(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("removed")),
            _ => {
                while !kv.is_empty().expect("read") {
                    kv.expire_some(300).expect("swept");
                }
            }
        }
        let now = pool.usage();
        if round >= 1 {
            assert_eq!(*usage.get_or_insert(now), now, "round {round}");
        }
    }
}

#[test]
fn threads_of_different_shards_get_along_and_several_keys_change_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("kv.pool"), &options(4)).expect("created");
    let kv = Kv::open(&pool, Durability::Group).expect("opened");
    let keys: Vec<Vec<u8>> = (0..8u8).map(|at| vec![at; 20]).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (kv, keys) = (&kv, &keys);
            scope.spawn(move || {
                for round in 0..30u8 {
                    let value = [thread, round];
                    let entries: Vec<(&[u8], &[u8])> =
                        keys.iter().map(|key| (&key[..], &value[..])).collect();
                    kv.set_many(&entries).expect("set");
                    let own = [b"own", &[thread][..]].concat();
                    kv.change(&own, |there| {
                        Ok((Change::Set(vec![there.map_or(1, |(v, _)| v[0] + 1)], 0), ()))
                    })
                    .expect("added");
                    let seen = all(kv).into_iter().filter(|(key, _)| key.len() == 20).map(|(_, value)| value);
                    let mut seen: Vec<_> = seen.collect();
                    seen.dedup();
                    assert_eq!(seen.len(), 1, "all eight from one call");
                }
            });
        }
    });
    for thread in 0..4u8 {
        assert_eq!(kv.get(&[b"own", &[thread][..]].concat()).expect("read"), Some(vec![30]));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("kv.pool"), &options(2)).expect("created");
    let kv = Kv::open(&pool, Durability::Sync).expect("opened");
    assert!(matches!(kv.set(&vec![1; 65 << 10], b"", 0), Err(Error::Argument { .. })));
    kv.set(&vec![1; 64 << 10], &vec![2; 3 << 20], 0).expect("a large key and a larger value");
    assert_eq!(kv.get(&vec![1; 64 << 10]).expect("read").map(|value| value.len()), Some(3 << 20));
    drop(pool);
    let other = Pool::create(folder.path().join("other.pool"), &options(1)).expect("created");
    other.tx(|t| t.root_or(|_| Ok(7u64)).map(drop)).expect("made");
    assert!(matches!(Kv::open(&other, Durability::Sync), Err(Error::Layout { .. })));
}

/// `PROPTEST_CASES` damaged files, or as many as usual.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(30), failure_persistence: None, ..ProptestConfig::default() })]

    /// Words of a store's objects are changed in the file: every answer is allowed but a panic and a walk without end.
    #[test]
    fn a_damaged_store_gives_errors(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u8..5), 1..80),
        sections in 1u32..4,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("damaged.pool");
        let pool = Pool::create(&path, &options(sections)).expect("created");
        let kv = Kv::open(&pool, Durability::Sync).expect("a store");
        for number in 0..400u32 {
            let key = if number % 2 == 0 { format!("{number}") } else { format!("a longer key, {number}") };
            kv.set(key.as_bytes(), &[7; 50], u64::from(number % 3 == 0)).expect("set");
        }
        let (header, usage) = (pool.header(), pool.usage());
        pool.close().expect("closed");

        let mut bytes = std::fs::read(&path).expect("read");
        let objects = (header.heap_start + memlift_persist::layout::SUPERBLOCK_OFFSET) as usize + (16 << 10);
        let words = ((usage.0 - usage.1) as usize + header.heap_start as usize - objects) / 8;
        let word = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[objects + at * 8..][..8].try_into().expect("a word"))
        };
        for (at, value, how) in damage {
            let at = at.index(words);
            let new = match how {
                0 => value,
                1 => word(&bytes, at) ^ 1 << (value % 64),
                2 => value % 1024,
                3 => u64::MAX - value % 16,
                _ => word(&bytes, value as usize % words),
            };
            bytes[objects + at * 8..][..8].copy_from_slice(&new.to_le_bytes());
        }
        std::fs::write(&path, &bytes).expect("written");

        let Ok(pool) = Pool::open(&path, &options(sections)) else { return Ok(()) };
        let Ok(kv) = Kv::open(&pool, Durability::Sync) else { return Ok(()) };
        let _ = kv.scan((Bound::Unbounded, Bound::Unbounded), |_, _| ControlFlow::Continue(()));
        let _ = kv.scan_prefix(b"a longer", |_, _| ControlFlow::Continue(()));
        let _ = (kv.len(), kv.expire_some(500));
        for number in 0..400u32 {
            let key = format!("a longer key, {number}");
            let _ = kv.get(key.as_bytes());
            let _ = kv.set(key.as_bytes(), &[1; 60], 0);
            let _ = kv.change(key.as_bytes(), |_| Ok((Change::Expire(9), ())));
            let _ = kv.remove(&[format!("{number}").as_bytes(), key.as_bytes()]);
        }
        let _ = kv.clear();
    }
}

/// Lookups remember where entries were. Here leaves split, join, are freed and filled again, in transactions that happen and in others that
/// do not, and compactions move them.
#[test]
fn lookups_follow_entries_that_move() {
    const KEYS: u64 = 400;
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("pool"), &options(1)).expect("created");
    let kv = Kv::open(&pool, Durability::Buffered).expect("opened");
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("user:{key:08}").into_bytes()).collect();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let check = |model: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str| {
        for key in &keys {
            assert_eq!(kv.get(key).expect("read").as_ref(), model.get(key), "{what}");
        }
        assert!(all(&kv).iter().map(|(key, value)| (key, value)).eq(model.iter()), "{what}");
    };
    let mut seed = 1u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    for round in 0..12u64 {
        let mut put = |share: u64, model: &mut BTreeMap<Vec<u8>, Vec<u8>>| {
            for key in &keys {
                if below(100) < share {
                    let value = vec![round as u8; below(40) as usize + 1];
                    kv.set(key, &value, 0).expect("set");
                    model.insert(key.clone(), value);
                }
            }
        };
        put(90, &mut model);
        check(&model, "filled");
        for key in &keys {
            if key.iter().map(|byte| u64::from(*byte)).sum::<u64>().wrapping_mul(round + 7) % 5 > 0 {
                assert_eq!(kv.remove(&[key]).expect("removed") > 0, model.remove(key).is_some());
            }
        }
        check(&model, "thinned");
        let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let refused = kv.write(&borrowed, |turn| {
            for key in &keys {
                turn.set(key, b"never", 0)?;
                assert_eq!(turn.get_with(key, |value, _| value.to_vec())?.as_deref(), Some(&b"never"[..]));
            }
            Err::<(), _>(Error::Aborted("no".to_owned()))
        });
        assert!(refused.is_err());
        check(&model, "refused");
        put(30, &mut model);
        check(&model, "overwritten");
        pool.compact(|_, _| {}).expect("compacted");
        check(&model, "compacted");
    }
}
