// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room that objects of one size had serves those of any other, without help, and nobody's bytes are given out twice.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use memlift_persist::kv::Kv;
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, Pool, check};
use proptest::prelude::*;

fn options(mechanism: Mechanism, sections: u32, heap_bytes: u64) -> Options {
    let lane_bytes = 1 << 20;
    Options {
        mechanism,
        heap_bytes,
        max_bytes: heap_bytes,
        lanes: 3,
        lane_bytes,
        domain: Domain::Lines,
        sections,
        ..Options::default()
    }
}

/// Puts values of `bytes` bytes in until the pool is full; how many it took.
fn fill(pool: &Pool, bytes: usize) -> u64 {
    let store = Kv::open(pool, Durability::Sync).expect("a store");
    for number in 0.. {
        match store.set(format!("key {number}").as_bytes(), &vec![number as u8; bytes], 0) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the pool is never full")
}

#[test]
fn an_emptied_pool_takes_what_a_fresh_one_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, sections) in Mechanism::ALL.into_iter().flat_map(|one| [(one, 1), (one, 16)]) {
        let fresh = |name: String| {
            let path = folder.path().join(name);
            Pool::create(&path, &options(mechanism, sections, 8 << 20)).expect("created")
        };
        for bytes in [300, 3000, 40_000] {
            let wanted = fill(&fresh(format!("{} {sections} {bytes}", mechanism.name())), bytes);
            let name = format!("{} {sections} {bytes} again", mechanism.name());
            let pool = fresh(name.clone());
            assert!(fill(&pool, 60) > 10_000);
            Kv::open(&pool, Durability::Sync).expect("a store").clear().expect("cleared");
            let (all, free) = pool.usage();
            assert!(free * 10 >= all * 9, "{mechanism:?}, {sections}: {free} of {all} are free");
            // Slabs that another process emptied count as well.
            let pool = if bytes == 3000 {
                pool.close().expect("closed");
                let options = options(mechanism, sections, 8 << 20);
                Pool::open(folder.path().join(&name), &options).expect("opened")
            } else {
                pool
            };
            if bytes > 8160 {
                pool.reclaim().expect("reclaimed"); // what takes slabs of its own
            }
            let found = fill(&pool, bytes);
            // Each section has slabs that are not full when the first of them finds no other.
            let least = if sections == 1 { 97 } else { 90 };
            assert!(
                found * 100 >= wanted * least,
                "{mechanism:?}, {sections}: {found} of {wanted} of {bytes} bytes"
            );
            pool.close().expect("closed");
            let report = check::check(folder.path().join(name)).expect("checked");
            assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// A key, and the size and byte of its value.
    Set(u8, usize, u8),
    /// Several keys get values of one size, in one transaction.
    Many(Vec<u8>, usize, u8),
    Remove(Vec<u8>),
    Clear,
    Reclaim,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let size = || prop_oneof![1..200usize, 200..9000usize, 9000..60_000usize];
    let keys = || proptest::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        12 => (any::<u8>(), size(), any::<u8>()).prop_map(|(k, s, b)| Act::Set(k, s, b)),
        6 => (keys(), 1..9000usize, any::<u8>()).prop_map(|(k, s, b)| Act::Many(k, s, b)),
        6 => keys().prop_map(Act::Remove),
        1 => Just(Act::Clear),
        1 => Just(Act::Reclaim),
        1 => Just(Act::Reopen),
    ]
}

/// Runs `acts` in a pool that is often full, beside a map of the standard library.
fn churn(
    mechanism: Mechanism,
    sections: u32,
    durability: Durability,
    acts: &[Act],
) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let options = options(mechanism, sections, 2 << 20);
    let mut pool = Pool::create(&path, &options).expect("created");
    let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    for act in acts {
        let store = Kv::open(&pool, durability).expect("a store");
        let full = |outcome: Result<(), Error>| match outcome {
            Ok(()) => Ok(true),
            Err(Error::Full { .. } | Error::TooLarge { .. }) => Ok(false), // and nothing happened
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        };
        match act {
            Act::Set(key, bytes, byte) => {
                if full(store.set(&[*key], &vec![*byte; *bytes], 0))? {
                    model.insert(*key, vec![*byte; *bytes]);
                }
            }
            Act::Many(keys, bytes, byte) => {
                let value = vec![*byte; *bytes];
                let keys: Vec<[u8; 1]> = keys.iter().map(|key| [*key]).collect();
                let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
                if full(store.set_many(&entries))? {
                    model.extend(keys.iter().map(|[key]| (*key, value.clone())));
                }
            }
            Act::Remove(keys) => {
                let keys: Vec<[u8; 1]> = keys.iter().map(|key| [*key]).collect();
                store.remove(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("removed");
                keys.iter().for_each(|[key]| drop(model.remove(key)));
            }
            Act::Clear => {
                store.clear().expect("cleared");
                model.clear();
            }
            Act::Reclaim => drop(pool.reclaim().expect("reclaimed")),
            Act::Reopen => {
                pool.close().expect("closed");
                pool = Pool::open(&path, &options).expect("opened");
            }
        }
        let store = Kv::open(&pool, durability).expect("a store");
        for (key, value) in &model {
            prop_assert!(store.get(&[*key]).expect("read").as_ref() == Some(value), "{key} after {act:?}");
        }
        prop_assert_eq!(store.len().expect("read"), model.len() as u64);
    }
    pool.close().expect("closed");
    let report = check::check(&path).expect("checked");
    prop_assert!(report.sound(), "{:?}", report.findings);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn values_of_all_sizes_come_and_go_in_a_full_pool(
        mechanism in proptest::sample::select(Mechanism::ALL.to_vec()),
        sections in proptest::sample::select(vec![1, 4]),
        durability in proptest::sample::select(vec![Durability::Sync, Durability::Group, Durability::Buffered]),
        acts in proptest::collection::vec(act(), 1..120),
    ) {
        churn(mechanism, sections, durability, &acts)?;
    }
}
