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
    Compact,
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
        2 => Just(Act::Compact),
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
            Act::Compact => drop(pool.compact(|_, _| {}).expect("compacted")),
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

/// Numbers below 2^53 as floats in [0, 1).
fn unit(random: &mut impl FnMut() -> u64) -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}

/// Bytes that a key of eight bytes and its entry count as.
const KEY_BYTES: usize = 64;

/// A store whose values come and go: bytes of keys and values now, and the most that there were.
struct Churn<'p> {
    store: Kv<'p>,
    sizes: BTreeMap<u64, usize>,
    live: usize,
    peak: usize,
    /// Values are no longer than this.
    longest: usize,
}

impl Churn<'_> {
    fn set(&mut self, key: u64, bytes: usize) {
        let bytes = bytes.min(self.longest);
        self.store.set(&key.to_le_bytes(), &vec![key as u8; bytes], 0).expect("set");
        self.live += bytes + KEY_BYTES;
        self.live -= self.sizes.insert(key, bytes).map_or(0, |before| before + KEY_BYTES);
        self.peak = self.peak.max(self.live);
    }

    fn remove(&mut self, key: u64) {
        assert_eq!(self.store.remove(&[&key.to_le_bytes()[..]]).expect("removed"), 1);
        self.live -= self.sizes.remove(&key).expect("there") + KEY_BYTES;
    }
}

/// Sets and removes values, with random numbers from its second argument.
type Trace = fn(&mut Churn<'_>, &mut dyn FnMut() -> u64);

/// Runs each trace with values of up to `longest` bytes; the heap may be so many times as large as the values were at most.
fn traces_within(longest: usize, bound: f64) {
    const LIVE: usize = 6 << 20;
    let traces: [(&str, Trace); 4] = [
        ("drift", |churn, random| {
            let (mut next, mut oldest) = (0, 0);
            while next < 12_000 {
                let middle = 64.0 * 512f64.powf(next as f64 / 12_000.0);
                churn.set(next, (middle * (0.8 + 0.4 * unit(&mut &mut *random))) as usize);
                next += 1;
                while churn.live > LIVE {
                    churn.remove(oldest);
                    oldest += 1;
                }
            }
        }),
        ("sawtooth", |churn, random| {
            let mut key = 0;
            for middle in [500.0, 2_000.0, 7_000.0, 15_000.0, 60_000.0, 300.0, 40_000.0] {
                while churn.live < LIVE {
                    churn.set(key, (middle * (0.5 + unit(&mut &mut *random))) as usize);
                    key += 1;
                }
                let all: Vec<u64> = churn.sizes.keys().copied().collect();
                all.into_iter().for_each(|key| churn.remove(key));
            }
        }),
        ("zipf", |churn, random| {
            for _ in 0..20_000 {
                let key = (unit(&mut &mut *random).powi(3) * 1_500.0) as u64;
                let size = [100, 300, 1_000, 3_000, 7_000, 12_000][(random() % 6) as usize];
                churn.set(key, size);
            }
        }),
        ("power", |churn, random| {
            for key in 0..25_000 {
                let size = 64.0 / (1.0 - unit(&mut &mut *random)).powf(0.9);
                churn.set(key, (size as usize).min(200_000));
                while churn.live > LIVE {
                    let at = random() % churn.sizes.len() as u64;
                    let first = *churn.sizes.keys().next().expect("some");
                    let (victim, _) = churn.sizes.range(first + at / 2..).next().expect("some");
                    churn.remove(*victim);
                }
            }
        }),
    ];
    for (name, run) in traces {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = Pool::create(folder.path().join("a.pool"), &Options::default()).expect("created");
        let store = Kv::open(&pool, Durability::Buffered).expect("a store");
        let mut churn = Churn { store, sizes: BTreeMap::new(), live: 0, peak: 0, longest };
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        run(&mut churn, &mut random);
        let (heap, free) = pool.usage();
        let times = heap as f64 / churn.peak as f64;
        println!(
            "{name}, up to {longest}: {} at most, heap {heap}, of which {free} free: {times:.2}",
            churn.peak
        );
        assert!(times <= bound, "{name}: a heap of {heap} for {} bytes", churn.peak);
    }
}

#[test]
fn churn_of_values_that_fit_slots_stays_within_three_halves() {
    traces_within(4_000, 1.5);
}

#[test]
fn churn_of_any_values_stays_within_nine_quarters() {
    traces_within(usize::MAX, 2.25);
}
