// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The collections against std's, operation by operation; many writers at once; bulk loads.
//!
//! - **Flow** random operations ──▶ a collection on an image, and its model ──▶ the same answers; then threads, each with a
//!   client's view of one image, which takes their requests one at a time in whatever order they come
//! - **Not here** packets and nodes: `client/node.rs`

use std::collections::{BTreeMap, HashMap as StdMap};
use std::sync::{Arc, Mutex};

use memlift_traverse::client::{ClientError, Result};
use memlift_traverse::structures::bulk;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_4K};
use memlift_traverse::structures::sink::{ToBytes, ToHeap};
use memlift_traverse::structures::{
    Addend, Aggregate, HashMap, Heap, Image, Key, List, OrderedMap, Outcome, Walk, Walked,
};
use proptest::prelude::*;

const BASE: u64 = 1 << 32;

/// Memory is used again at once: one client, so no walk can be on the way.
fn image() -> Image {
    let mut image = Image::new(BASE, 16 << 20);
    image.reuse = true;
    image
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, Vec<u8>),
    InsertMany(Vec<(u64, Vec<u8>)>),
    Remove(u64),
    Get(u64),
    Add(u64, u64),
    Range(u64, u64, u64),
}

fn operations(value: impl Strategy<Value = Vec<u8>> + Clone) -> impl Strategy<Value = Vec<Operation>> {
    let key = prop_oneof![8 => 0_u64..60, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let one = prop_oneof![
        5 => (key.clone(), value.clone()).prop_map(|(key, value)| Operation::Insert(key, value)),
        1 => proptest::collection::vec((key.clone(), value), 0..50).prop_map(Operation::InsertMany),
        3 => key.clone().prop_map(Operation::Remove),
        3 => key.clone().prop_map(Operation::Get),
        1 => (key.clone(), any::<u64>()).prop_map(|(key, by)| Operation::Add(key, by)),
        2 => (key.clone(), key, 0_u64..80).prop_map(|(a, b, limit)| Operation::Range(a, b, limit)),
    ];
    proptest::collection::vec(one, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_hash_map_answers_as_stds(
        operations in operations(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..9), proptest::collection::vec(any::<u8>(), 8..900)
        ]),
        log2 in 0_u32..4,
        bytes in any::<bool>(),
    ) {
        let mut image = image();
        let mut map = HashMap::create(&mut image, log2).expect("room");
        let mut model = StdMap::new();
        for operation in operations {
            let text = |key: u64| format!("{:>width$}", key, width = key as usize % 90);
            match operation {
                Operation::Insert(key, value) => {
                    let text = text(key);
                    let name = if bytes { Key::from(text.as_str()) } else { Key::from(key) };
                    let fresh = map.insert(&mut image, name, &value).expect("room");
                    prop_assert_eq!(fresh, model.insert(key, value).is_none());
                }
                Operation::InsertMany(pairs) => {
                    let names: Vec<String> = pairs.iter().map(|(key, _)| text(*key)).collect();
                    let named = pairs.iter().zip(&names).map(|((key, value), text)| {
                        (if bytes { Key::from(text.as_str()) } else { Key::from(*key) }, &value[..])
                    });
                    let fresh = map.insert_many(&mut image, &named.collect::<Vec<_>>()).expect("room");
                    let before = model.len();
                    model.extend(pairs);
                    prop_assert_eq!(fresh, (model.len() - before) as u64);
                }
                Operation::Remove(key) => {
                    let text = text(key);
                    let name = if bytes { Key::from(text.as_str()) } else { Key::from(key) };
                    let there = map.remove(&mut image, name).expect("an answer");
                    prop_assert_eq!(there, model.remove(&key).is_some());
                }
                Operation::Add(key, by) if !bytes => {
                    let before = |value: &mut Vec<u8>| u64::from_le_bytes(value[..8].try_into().expect("eight"));
                    let found = model.get_mut(&key).filter(|value| value.len() >= 8);
                    let added = map.add(&mut image, key, by);
                    if let Some(value) = found {
                        let old = before(value);
                        if let Some(sum) = old.checked_add(by) {
                            value[..8].copy_from_slice(&sum.to_le_bytes());
                            prop_assert_eq!(added.expect("an answer"), Some(old));
                        } else {
                            let is_refused = matches!(added, Err(ClientError::Overflow { .. }));
                            prop_assert!(is_refused, "{:?}", added);
                        }
                    } else {
                        prop_assert_eq!(added.expect("an answer"), None);
                    }
                }
                Operation::Get(key) | Operation::Add(key, _) => {
                    let text = text(key);
                    let name = if bytes { Key::from(text.as_str()) } else { Key::from(key) };
                    let value = map.get(&mut image, name).expect("an answer");
                    prop_assert_eq!(value.as_ref(), model.get(&key));
                }
                Operation::Range(..) => {
                    let mut lengths: Vec<u32> =
                        map.scan(&mut image).expect("an answer").iter().map(|seen| seen.value_bytes).collect();
                    let mut right: Vec<u32> = model.values().map(|value| value.len() as u32).collect();
                    lengths.sort_unstable();
                    right.sort_unstable();
                    prop_assert_eq!(lengths, right);
                }
            }
        }
    }

    #[test]
    fn an_ordered_map_answers_as_stds(
        operations in operations(proptest::collection::vec(any::<u8>(), 240)),
        value_bytes in prop_oneof![Just(8_usize), Just(1), Just(17), Just(240)],
    ) {
        let mut image = image();
        let mut map = OrderedMap::create(&mut image, value_bytes).expect("room");
        let mut model = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(key, mut value) => {
                    value.truncate(value_bytes);
                    let fresh = map.insert(&mut image, key, &value).expect("room");
                    prop_assert_eq!(fresh, model.insert(key, value).is_none());
                }
                Operation::InsertMany(mut pairs) => {
                    pairs.iter_mut().for_each(|(_, value)| value.truncate(value_bytes));
                    let values: Vec<(u64, &[u8])> = pairs.iter().map(|(key, value)| (*key, &value[..])).collect();
                    let fresh = map.insert_many(&mut image, &values).expect("room");
                    let before = model.len();
                    model.extend(pairs);
                    prop_assert_eq!(fresh, (model.len() - before) as u64);
                }
                Operation::Remove(key) => {
                    let there = map.remove(&mut image, key).expect("an answer");
                    prop_assert_eq!(there, model.remove(&key).is_some());
                }
                Operation::Get(key) | Operation::Add(key, _) => {
                    let value = map.get(&mut image, key).expect("an answer");
                    prop_assert_eq!(value.as_ref(), model.get(&key));
                }
                Operation::Range(first, last, limit) => {
                    let found = map.range(&mut image, first..=last, limit).expect("an answer");
                    let right: Vec<(u64, Vec<u8>)> = if first > last { Vec::new() } else {
                        model.range(first..=last).take(limit as usize).map(|(&key, value)| (key, value.clone())).collect()
                    };
                    prop_assert_eq!(found, right);
                    if value_bytes == 8 {
                        let found = map.aggregate_wrapping(&mut image, first..=last).expect("an answer");
                        prop_assert_eq!(found, aggregate(&model, first, last));
                        let number = |value: &Vec<u8>| i64::from_le_bytes(value[..].try_into().expect("8"));
                        let values = model.iter().filter(|(key, _)| (first..=last).contains(*key));
                        let sum: i128 = values.map(|(_, value)| i128::from(number(value))).sum();
                        match map.aggregate(&mut image, first..=last) {
                            Ok(exact) => {
                                prop_assert_eq!(exact, found);
                                prop_assert_eq!(i128::from(exact.sum), sum);
                            }
                            Err(ClientError::SumTooLarge { count, sum: told }) => {
                                prop_assert_eq!((count, told), (found.count, sum));
                                prop_assert!(i64::try_from(sum).is_err());
                            }
                            Err(error) => prop_assert!(false, "{}", error),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_list_keeps_its_order(numbers in proptest::collection::vec((any::<bool>(), 0_u64..40), 0..120)) {
        let mut image = image();
        let mut list = List::create(&mut image).expect("room");
        let mut model = Vec::new();
        for (turn, (back, number)) in numbers.into_iter().enumerate() {
            if turn % 4 == 3 {
                let there = list.remove(&mut image, number).expect("an answer");
                let place = model.iter().position(|(one, _)| *one == number);
                prop_assert_eq!(there, place.is_some());
                place.map(|place| model.remove(place));
            } else {
                let bytes = vec![turn as u8; turn % 60];
                if back {
                    list.push_back(&mut image, number, &bytes).expect("room");
                    model.push((number, bytes));
                } else {
                    list.push_front(&mut image, number, &bytes).expect("room");
                    model.insert(0, (number, bytes));
                }
            }
            let found = list.find(&mut image, number).expect("an answer");
            prop_assert_eq!(found.as_ref(), model.iter().find(|(one, _)| *one == number).map(|(_, bytes)| bytes));
        }
        let seen: Vec<u64> = list.scan(&mut image).expect("an answer").iter().map(|seen| seen.key_word).collect();
        prop_assert_eq!(seen, model.iter().map(|(number, _)| *number).collect::<Vec<_>>());
        let right: i64 = model.iter().map(|(number, _)| *number as i64).sum();
        let sum = list.sum(&mut image).expect("an answer");
        prop_assert_eq!((sum.sum, sum.count), (right, model.len() as u64));
        prop_assert_eq!(sum.max, model.iter().map(|(number, _)| *number as i64).max().unwrap_or(0));
    }
}

fn aggregate(model: &BTreeMap<u64, Vec<u8>>, first: u64, last: u64) -> Aggregate {
    let mut right = Aggregate::default();
    if first > last {
        return right;
    }
    for value in
        model.range(first..=last).map(|(_, value)| i64::from_le_bytes(value[..8].try_into().expect("8")))
    {
        right.min = if right.count == 0 { value } else { right.min.min(value) };
        right.max = if right.count == 0 { value } else { right.max.max(value) };
        right.sum = right.sum.wrapping_add(value);
        right.count += 1;
    }
    right
}

/// One image that several threads ask.
#[derive(Clone)]
struct Shared {
    image: Arc<Mutex<Image>>,
    /// The map that somebody else changes right before its root is exchanged the next time.
    meddles: Option<memlift_traverse::structures::ordered::Handle>,
}

impl Shared {
    fn ask<R>(&self, question: impl FnOnce(&mut Image) -> R) -> R {
        // Between two requests of one thread those of another come in.
        std::thread::yield_now();
        question(&mut self.image.lock().expect("nobody panics with it"))
    }
}

impl Heap for Shared {
    fn walk(&mut self, walk: &Walk) -> Result<Walked> {
        self.ask(|image| image.walk(walk))
    }
    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        self.ask(|image| image.read(address, bytes))
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.ask(|image| image.write(address, bytes))
    }
    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        self.ask(|image| image.allocate(bytes))
    }
    fn free(&mut self, address: u64, bytes: u64) -> Result<()> {
        self.ask(|image| image.free(address, bytes))
    }
    fn retire(&mut self, blocks: &[(u64, u64)]) -> Result<()> {
        self.ask(|image| image.retire(blocks))
    }
    fn compare_swap(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
    ) -> Result<std::result::Result<(), u64>> {
        if let Some(handle) = self.meddles.take_if(|handle| handle.cell == address) {
            OrderedMap::open(handle).insert(self, 77, &[7; 8])?;
        }
        self.ask(|image| image.compare_swap(address, expected, fresh))
    }
}

fn shared() -> Shared {
    Shared { image: Arc::new(Mutex::new(Image::new(BASE, 256 << 20))), meddles: None }
}

const THREADS: u64 = 4;
const ROUNDS: u64 = 250;

#[test]
fn writers_of_one_chain_lose_nothing() {
    let mut heap = shared();
    // Two chains for all keys: everybody is in everybody's way.
    let handle = HashMap::create(&mut heap, 1).expect("room").handle();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut heap = heap.clone();
            scope.spawn(move || {
                let mut map = HashMap::open(handle);
                for round in 0..ROUNDS {
                    let own = thread + round % 16 * THREADS;
                    let value = round.to_le_bytes();
                    map.insert(&mut heap, own, &value).expect("room");
                    assert_eq!(map.get(&mut heap, own).expect("an answer").as_deref(), Some(&value[..]));
                    // A key that all of them put in and take out, and one that all of them count with.
                    map.insert(&mut heap, 1000, &value).expect("room");
                    map.remove(&mut heap, 1000).expect("an answer");
                    if map.add(&mut heap, 2000, 1_u64).expect("an answer").is_none() {
                        map.insert(&mut heap, 2000 + thread + 1, &value).expect("room");
                    }
                    if round % 3 == 0 {
                        assert!(
                            map.remove(&mut heap, own).expect("an answer"),
                            "thread {thread} round {round}"
                        );
                    }
                }
            });
        }
    });
    let mut map = HashMap::open(handle);
    assert!(!map.remove(&mut heap, 1000).expect("an answer"), "whoever put it in took it out");
    for thread in 0..THREADS {
        for slot in 0..16 {
            let last = (0..ROUNDS).rev().find(|round| round % 16 == slot).expect("a round");
            let right = (last % 3 != 0).then(|| last.to_le_bytes().to_vec());
            assert_eq!(map.get(&mut heap, thread + slot * THREADS).expect("an answer"), right);
        }
    }
}

#[test]
fn sums_that_a_node_wraps_are_exact_or_refused() {
    let mut image = Image::new(BASE, 1 << 20);
    let mut map = OrderedMap::create(&mut image, 8).expect("room");
    let mut list = List::create(&mut image).expect("room");
    let numbers = [i64::MAX, i64::MAX, i64::MIN, i64::MIN, 7];
    for (key, number) in (0_u64..).zip(numbers) {
        map.insert(&mut image, key, &number.to_le_bytes()).expect("room");
        list.push_back(&mut image, number.cast_unsigned(), &[]).expect("room");
    }
    let right = Aggregate { count: 5, sum: 5, min: i64::MIN, max: i64::MAX };
    assert_eq!(list.sum(&mut image).expect("all of it"), right);
    assert_eq!(map.aggregate_many(&mut image, &[0..=4, 9..=9]).expect("both"), [right, Aggregate::default()]);
    let refused =
        |error| matches!(error, ClientError::SumTooLarge { count: 2, sum } if sum.unsigned_abs() > 1 << 63);
    assert!(refused(map.aggregate_many(&mut image, &[4..=4, 0..=1]).expect_err("too large")));
    for number in numbers[2..].iter().rev() {
        assert!(list.remove(&mut image, number.cast_unsigned()).expect("an answer"));
    }
    assert_eq!(list.sum(&mut image).map_err(refused), Err(true), "the two greatest numbers are left");
}

#[test]
fn a_sum_that_does_not_fit_is_refused_and_the_value_stays() {
    let mut image = Image::new(BASE, 1 << 20);
    let mut map = HashMap::create(&mut image, 2).expect("room");
    let numbers = [0, 1, 5, 1 << 31, 1 << 32, 1 << 33, 1 << 62, (1 << 62) - 1, (1 << 63) - 1];
    let signed: Vec<i64> = numbers.iter().flat_map(|&one| [one as i64, -(one as i64), i64::MIN]).collect();
    let unsigned: Vec<u64> = numbers.iter().flat_map(|&one: &u64| [one, u64::MAX - one, one + 1]).collect();
    let mut check = |value: u64, addend: Addend, sum: Option<u64>| {
        map.insert(&mut image, 1, &value.to_le_bytes()).expect("room");
        let added = map.add(&mut image, 1, addend);
        match (sum, added) {
            (Some(_), Ok(Some(before))) => assert_eq!(before, value),
            (None, Err(error @ ClientError::Overflow { .. })) => {
                assert!(error.to_string().contains("the value is unchanged"), "{error}");
            }
            other => panic!("{value} {addend:?}: {other:?}"),
        }
        let now = map.get(&mut image, 1).expect("read");
        assert_eq!(now, Some(sum.unwrap_or(value).to_le_bytes().to_vec()), "{value} {addend:?}");
    };
    for &value in &signed {
        for &addend in &signed {
            let sum = value.checked_add(addend).map(|sum| sum as u64);
            check(value as u64, Addend::Signed(addend), sum);
        }
    }
    for &value in &unsigned {
        for &addend in &unsigned {
            check(value, Addend::Unsigned(addend), value.checked_add(addend));
            check(value, Addend::Less(addend), value.checked_sub(addend));
        }
    }
}

/// Of many that count past the last number at the same time, as many succeed as there is room for.
#[test]
fn counters_that_meet_at_the_last_number_stop_there() {
    for (first, step, room) in [
        (i64::MAX - 300, Addend::Signed(1), 300),
        (i64::MIN + 7 * 100, Addend::Signed(-7), 100),
        (-301, Addend::Unsigned(1), 300),
        (200, Addend::Less(1), 200),
    ] {
        let mut heap = shared();
        let mut map = HashMap::create(&mut heap, 0).expect("room");
        map.insert(&mut heap, 5, &first.to_le_bytes()).expect("room");
        let handle = map.handle();
        let added: u64 = std::thread::scope(|scope| {
            let count = || {
                let mut heap = heap.clone();
                let mut map = HashMap::open(handle);
                let one = move |_| match map.add(&mut heap, 5, step) {
                    Ok(Some(_)) => 1,
                    Err(ClientError::Overflow { .. }) => 0,
                    other => panic!("{other:?}"),
                };
                (0..ROUNDS).map(one).sum::<u64>()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(added, room, "{step:?}");
    }
}

#[test]
fn adds_are_counted_once_each() {
    let mut heap = shared();
    let mut map = HashMap::create(&mut heap, 0).expect("room");
    assert!(map.insert(&mut heap, 5, &0_u64.to_le_bytes()).expect("room"));
    let handle = map.handle();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let mut heap = heap.clone();
            scope.spawn(move || {
                let mut map = HashMap::open(handle);
                for _ in 0..ROUNDS {
                    map.add(&mut heap, 5, 3_u64).expect("an answer").expect("it is there");
                }
            });
        }
    });
    let value = map.get(&mut heap, 5).expect("an answer").expect("it is there");
    assert_eq!(value, (THREADS * ROUNDS * 3).to_le_bytes());
}

#[test]
fn writers_of_one_ordered_map_lose_nothing_and_readers_see_one_moment() {
    let mut heap = shared();
    let mut map = OrderedMap::create(&mut heap, 8).expect("room");
    // The sum of all values is 0 at every moment: pairs of values are put in by one insert each, the negative key first.
    map.insert(&mut heap, 0, &0_i64.to_le_bytes()).expect("room");
    let handle = map.handle();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut heap = heap.clone();
            scope.spawn(move || {
                let mut map = OrderedMap::open(handle);
                for round in 1..=ROUNDS {
                    let key = round * THREADS + thread;
                    assert!(map.insert(&mut heap, key, &1_i64.to_le_bytes()).expect("room"));
                    if round % 2 == 0 {
                        assert!(map.remove(&mut heap, key).expect("an answer"));
                    }
                }
            });
        }
        let mut heap = heap.clone();
        scope.spawn(move || {
            let map = OrderedMap::open(handle);
            for _ in 0..ROUNDS {
                let pairs = map.range(&mut heap, 0..=u64::MAX, u64::MAX).expect("an answer");
                assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, each once");
                // If an insert of a thread is seen, the earlier ones of the same thread are too: its rounds have no gap but the
                // even ones.
                for thread in 0..THREADS {
                    let rounds: Vec<u64> = pairs
                        .iter()
                        .filter(|(key, _)| *key >= THREADS && key % THREADS == thread)
                        .map(|(key, _)| key / THREADS)
                        .collect();
                    let odd = rounds.iter().filter(|round| *round % 2 == 1).count() as u64;
                    let last_odd = rounds.iter().rev().find(|round| *round % 2 == 1).copied().unwrap_or(0);
                    assert_eq!(odd, last_odd.div_ceil(2), "thread {thread}: {rounds:?}");
                }
            }
        });
    });
    let all = map.aggregate(&mut heap, 1..=u64::MAX).expect("an answer");
    assert_eq!(all.count, THREADS * ROUNDS / 2);
}

#[test]
fn batches_of_several_writers_lose_nothing() {
    let mut heap = shared();
    let handle = HashMap::create(&mut heap, 1).expect("room").handle();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut heap = heap.clone();
            scope.spawn(move || {
                let mut map = HashMap::open(handle);
                for round in 0..ROUNDS / 5 {
                    let value = [round.to_le_bytes(), thread.to_le_bytes()].concat();
                    // Keys of its own, some of them new, one that all write, and one that comes twice.
                    let own = (0..12).map(|index| thread + THREADS * (1 + index * (1 + round % 3)));
                    let mut pairs: Vec<(Key<'_>, &[u8])> =
                        own.map(|key| (Key::from(key), &value[..])).collect();
                    pairs.insert(0, (Key::from(thread + THREADS), b"overwritten"));
                    pairs.push((Key::from(0), &value[..]));
                    map.insert_many(&mut heap, &pairs).expect("room");
                    for (key, value) in &pairs[1..pairs.len() - 1] {
                        let found = map.get(&mut heap, *key).expect("an answer");
                        assert_eq!(found.as_deref(), Some(*value));
                    }
                    assert!(map.remove(&mut heap, thread + THREADS).expect("an answer"));
                }
            });
        }
    });
    let mut map = HashMap::open(handle);
    for thread in 0..THREADS {
        for index in 1..12 {
            let key = |round: u64| thread + THREADS * (1 + index * (1 + round % 3));
            let last = (0..ROUNDS / 5).rev().find(|&round| key(round) == key(0)).expect("a round");
            let found = map.get(&mut heap, key(0)).expect("an answer").expect("it is there");
            let wrote = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            assert!(wrote >= last, "thread {thread}, key {}: {wrote} instead of {last}", key(0));
        }
        assert_eq!(map.get(&mut heap, thread + THREADS).expect("an answer"), None);
    }
}

#[test]
fn the_last_pairs_are_those_of_the_whole_range() {
    for value_bytes in [8, 24] {
        let mut image = image();
        let mut map = OrderedMap::create(&mut image, value_bytes).expect("room");
        let mut model = BTreeMap::new();
        let mut random = 3_u64;
        let mut draw = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        for step in 0..40_u64 {
            // Filled in order, at random, and thinned out, so that leaves are full, half full and nearly empty.
            let keys: Vec<u64> = match step % 3 {
                0 => (step * 1000..step * 1000 + 300).collect(),
                1 => (0..200).map(|_| draw(60_000)).collect(),
                _ => Vec::new(),
            };
            let value = vec![step as u8; value_bytes];
            let pairs: Vec<(u64, &[u8])> = keys.iter().map(|&key| (key, &value[..])).collect();
            map.insert_many(&mut image, &pairs).expect("room");
            model.extend(keys.into_iter().map(|key| (key, value.clone())));
            if step % 3 == 2 {
                let gone: Vec<u64> = model.keys().copied().filter(|_| draw(3) != 0).collect();
                for key in gone {
                    assert!(map.remove(&mut image, key).expect("an answer"));
                    model.remove(&key);
                }
            }
            for _ in 0..20 {
                let (first, last) = (draw(70_000), draw(70_000));
                let last = if draw(4) == 0 { u64::MAX } else { last };
                let limit = [0, 1, 2, 7, 40, 500, 1 << 20, u64::MAX][draw(8) as usize];
                let found = map.last(&mut image, first..=last, limit).expect("an answer");
                let within = if first <= last { model.range(first..=last) } else { model.range(0..0) };
                let mut right: Vec<(u64, Vec<u8>)> = within
                    .rev()
                    .take(usize::try_from(limit).unwrap_or(usize::MAX))
                    .map(|(&key, value)| (key, value.clone()))
                    .collect();
                right.reverse();
                assert_eq!(found, right, "{first}..={last}, {limit}");
            }
        }
    }
}

#[test]
fn the_last_pairs_cost_a_few_walks_and_little_more_than_they_are() {
    let mut image = Image::new(BASE, 64 << 20);
    let mut map = OrderedMap::create(&mut image, 8).expect("room");
    let pairs: Vec<(u64, &[u8])> = (0..100_000).map(|key| (key, &[1; 8][..])).collect();
    map.insert_many(&mut image, &pairs).expect("room");
    for limit in [1, 10, 100, 1000, 10_000] {
        for last in [u64::MAX, 77_777, 4096, 15] {
            let before = image.steps;
            let found = map.last(&mut image, 0..=last, limit).expect("an answer").len() as u64;
            let most = found / 15 * 3 + 120;
            assert!(image.steps - before <= most, "{limit} up to {last}: {} steps", image.steps - before);
        }
    }
}

#[test]
fn many_ranges_are_aggregated_at_once() {
    let mut image = image();
    let mut map = OrderedMap::create(&mut image, 8).expect("room");
    let values: Vec<[u8; 8]> = (0..500_i64).map(|value| (value - 100).to_le_bytes()).collect();
    let pairs: Vec<(u64, &[u8])> =
        values.iter().enumerate().map(|(key, value)| (key as u64 * 3, &value[..])).collect();
    map.insert_many(&mut image, &pairs).expect("room");
    let model: BTreeMap<u64, Vec<u8>> = pairs.iter().map(|(key, value)| (*key, value.to_vec())).collect();
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range is one of them")]
    let ranges = [0..=99, 100..=199, 5..=4, 0..=u64::MAX, 1497..=1497, 1498..=9999];
    let found = map.aggregate_many(&mut image, &ranges).expect("an answer");
    let right: Vec<Aggregate> =
        ranges.iter().map(|range| aggregate(&model, *range.start(), *range.end())).collect();
    assert_eq!(found, right);
}

#[test]
fn a_batch_of_an_ordered_map_takes_effect_in_the_order_of_keys() {
    const KEYS: u64 = 40;
    for value_bytes in [8, 16] {
        let mut heap = shared();
        let handle = OrderedMap::create(&mut heap, value_bytes).expect("room").handle();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let mut heap = heap.clone();
                scope.spawn(move || {
                    let mut map = OrderedMap::open(handle);
                    for round in 0..ROUNDS / 5 {
                        let value = [round.to_le_bytes(); 2].concat();
                        let pairs: Vec<(u64, &[u8])> = (0..KEYS)
                            .rev()
                            .map(|index| (thread + index * THREADS, &value[..value_bytes]))
                            .collect();
                        let fresh = map.insert_many(&mut heap, &pairs).expect("room");
                        assert_eq!(fresh, if round == 0 { KEYS } else { 0 });
                    }
                });
            }
            let mut heap = heap.clone();
            scope.spawn(move || {
                let map = OrderedMap::open(handle);
                for _ in 0..ROUNDS {
                    let pairs = map.range(&mut heap, 0..=u64::MAX, u64::MAX).expect("an answer");
                    for thread in 0..THREADS {
                        let of = pairs.iter().filter(|(key, _)| key % THREADS == thread);
                        let rounds: Vec<u64> = of
                            .map(|(_, value)| u64::from_le_bytes(value[..8].try_into().expect("eight bytes")))
                            .collect();
                        assert!(rounds.is_sorted_by(|one, next| one >= next), "{thread}: {rounds:?}");
                        let newest = rounds.first().copied().unwrap_or(0);
                        assert!(rounds.iter().all(|&round| round + 1 >= newest), "{thread}: {rounds:?}");
                        assert!(newest == 0 || rounds.len() as u64 == KEYS, "{thread}: {rounds:?}");
                    }
                }
            });
        });
    }
}

/// The word of a map's cell that holds its writers' queue: the next ticket, and the ticket whose turn it is.
fn queue(heap: &mut impl Heap, map: &OrderedMap) -> (u32, u32) {
    let word = heap.read(map.handle().cell + 8, 8).expect("an answer");
    let half = |at: usize| u32::from_le_bytes(word[at..at + 4].try_into().expect("four bytes"));
    (half(0), half(4))
}

#[test]
fn writers_that_meet_take_turns_instead_of_working_in_vain() {
    let mut heap = shared();
    let map = OrderedMap::create(&mut heap, 8).expect("room");
    let handle = map.handle();
    let before = heap.ask(|image| image.walks);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mut heap = heap.clone();
            scope.spawn(move || {
                let mut map = OrderedMap::open(handle);
                for round in 0..ROUNDS {
                    assert!(map.insert(&mut heap, round * 8 + thread, &[1; 8]).expect("room"));
                }
            });
        }
    });
    let (next, turn) = queue(&mut heap, &map);
    assert!(next > 0 && next - turn <= 8, "{next} tickets, {turn} turns");
    let walks = heap.ask(|image| image.walks) - before;
    // A writer whose turn comes while the machine runs others asks again: 2.7 walks for each insert were seen beside a build.
    assert!(walks < 8 * ROUNDS * 4, "{walks} walks for {} inserts", 8 * ROUNDS);
    assert_eq!(map.aggregate_wrapping(&mut heap, 0..=u64::MAX).expect("an answer").count, 8 * ROUNDS);
}

#[test]
fn a_ticket_whose_writer_is_gone_is_passed_over() {
    for many in [false, true] {
        let heap = shared();
        let map = OrderedMap::create(&mut heap.clone(), 8).expect("room");
        let mut interfered = Shared { meddles: Some(map.handle()), ..heap.clone() };
        // Two tickets were taken, and nobody uses them.
        interfered.write(map.handle().cell + 8, &2_u64.to_le_bytes()).expect("written");
        let mut writer = OrderedMap::open(map.handle());
        if many {
            let pairs: Vec<(u64, &[u8])> = (0..50).map(|key| (key, &[1; 8][..])).collect();
            assert_eq!(writer.insert_many(&mut interfered, &pairs).expect("room"), 50);
        } else {
            assert!(writer.insert(&mut interfered, 5, &[5; 8]).expect("room"));
        }
        assert!(interfered.meddles.is_none());
        assert_eq!(queue(&mut heap.clone(), &map), (3, 3));
        // More tickets than there are writers: damage, and nobody waits for all of them.
        interfered.meddles = Some(map.handle());
        interfered.write(map.handle().cell + 8, &(u64::from(u32::MAX) >> 1).to_le_bytes()).expect("written");
        OrderedMap::open(map.handle()).insert(&mut interfered, 6, &[6; 8]).expect("room");
        assert!(interfered.meddles.is_none());
        assert_eq!(map.get(&mut heap.clone(), 77).expect("an answer"), Some(vec![7; 8]));
    }
}

#[test]
fn bulk_loads_hold_what_they_were_given() {
    for (count, value_bytes) in [(0_u64, 8), (1, 8), (15, 8), (16, 8), (241, 8), (5000, 8), (1000, 240)] {
        let mut image = Image::new(BASE, 8 << 20);
        let room = 7 << 20;
        let base = image.allocate(room).expect("room");
        let mut placement =
            Placement::new(&[(base, room / 2), (base + room / 2, room / 2)], SLAB_4K, Order::Random(3));
        let pair = |key: u64| {
            let mut value = (key as i64 - 500).to_le_bytes().to_vec();
            value.resize(value_bytes, 7);
            (key * 3, value)
        };
        let mut heard = 0;
        let mut sink = ToHeap::new(&mut image);
        let pairs = (0..count).map(|key| Ok(pair(key)));
        let handle = bulk::ordered(pairs, value_bytes, &mut placement, &mut sink, |taken| heard = taken);
        sink.finish().expect("written");
        assert_eq!(heard, count);
        let mut map = OrderedMap::open(handle.expect("room"));
        let all = map.range(&mut image, 0..=u64::MAX, u64::MAX).expect("an answer");
        assert_eq!(all, (0..count).map(pair).collect::<Vec<_>>());
        assert_eq!(
            map.range(&mut image, 10..=100, 7).expect("an answer").len(),
            7.min(count.saturating_sub(4) as usize)
        );
        assert!(map.insert(&mut image, 1, &pair(0).1).expect("room"), "it can be changed afterwards");
        assert_eq!(map.get(&mut image, 1).expect("an answer"), Some(pair(0).1));
        for key in (0..count).step_by(7) {
            assert!(map.remove(&mut image, key * 3).expect("an answer"));
        }
    }
}

#[test]
fn ranges_of_a_deep_tree_are_whole_wherever_they_begin_and_end() {
    const COUNT: u64 = 120_000; // five levels
    let mut image = Image::new(BASE, 6 << 20);
    let room = 5 << 20;
    let base = image.allocate(room).expect("room");
    let mut placement = Placement::new(&[(base, room)], SLAB_4K, Order::Time);
    let mut sink = ToHeap::new(&mut image);
    let pairs = (0..COUNT).map(|key| Ok((key * 2, (key * key % 1000).to_le_bytes())));
    let handle = bulk::ordered(pairs, 8, &mut placement, &mut sink, |_| {}).expect("room");
    sink.finish().expect("written");
    let map = OrderedMap::open(handle);
    let mut state = 7_u64;
    let mut draw = |end: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % end
    };
    // Lengths around those of the subtrees of each level.
    for length in [1, 15, 16, 240, 241, 3840, 3841, 61_440, 61_441, COUNT].repeat(3) {
        let first = draw(COUNT - length + 1);
        let keys = first * 2..=(first + length - 1) * 2 + draw(2);
        let right = (first..first + length).map(|key| key * key % 1000);
        let found = map.aggregate(&mut image, keys.clone()).expect("an answer");
        let (sum, count) = (right.clone().sum::<u64>() as i64, length);
        assert_eq!((found.sum, found.count), (sum, count), "{keys:?}");
        let before = image.steps;
        let pairs = map.range(&mut image, keys.clone(), u64::MAX).expect("an answer");
        let right: Vec<_> = (first..first + length)
            .zip(right)
            .map(|(key, value)| (key * 2, value.to_le_bytes().to_vec()))
            .collect();
        assert!(pairs == right, "{keys:?}");
        // A leaf after the other; between those of one node and the next, the few above them.
        let leaves = length.div_ceil(15) + 1;
        assert!(image.steps - before <= leaves + leaves / 16 * 3 + 20, "{length}: {}", image.steps - before);
    }
}

#[test]
fn unsorted_input_is_sorted_and_descending_input_refused() {
    let mut bytes = vec![0; 1 << 20];
    let mut placement = Placement::new(&[(BASE, 1 << 20)], SLAB_4K, Order::Time);
    let keys = [5_u64, 1, 9, 1, 7];
    let pairs = || keys.iter().enumerate().map(|(turn, &key)| Ok((key, (turn as u64).to_le_bytes())));
    let mut sink = ToBytes { base: BASE, bytes: &mut bytes };
    let refused = bulk::ordered(pairs(), 8, &mut placement, &mut sink, |_| {});
    assert!(matches!(refused, Err(ClientError::Input { line: 2, .. })), "{refused:?}");
    let handle = bulk::ordered_unsorted(pairs(), 8, &mut placement, &mut sink, |_| {}).expect("room");
    let mut image = Image::new(BASE, 1 << 20);
    image.write(BASE, &bytes).expect("the range");
    let map = OrderedMap::open(handle);
    let all = map.range(&mut image, 0..=u64::MAX, u64::MAX).expect("an answer");
    let right = [(1, 3_u64), (5, 0), (7, 4), (9, 2)].map(|(key, turn)| (key, turn.to_le_bytes().to_vec()));
    assert_eq!(all, right);
    let tiny = &mut Placement::new(&[(BASE, 600)], SLAB_4K, Order::Time);
    let full = bulk::ordered(
        (0..99).map(|key| Ok((key, [0; 8]))),
        8,
        tiny,
        &mut ToBytes { base: BASE, bytes: &mut bytes },
        |_| {},
    );
    assert!(matches!(full, Err(ClientError::Full { .. })), "{full:?}");
}

#[test]
fn csv_is_read_or_its_line_named() {
    let text = "time,\"volts\"\n# a comment\n\n10,\"1.25\"\n20, -3 \n";
    let pairs: Vec<(u64, [u8; 8])> = bulk::csv(text.as_bytes(), 0, 1, bulk::Numbers::Scaled(100.0))
        .collect::<Result<_>>()
        .expect("two pairs");
    assert_eq!(pairs, [(10, 125_i64.to_le_bytes()), (20, (-300_i64).to_le_bytes())]);
    for (text, line) in [("1,2\nx,3\n", 2), ("1,\n", 1), ("1,1e30\n", 1), ("1,nan\n", 1), ("1\n", 1)] {
        let read: Result<Vec<_>> = bulk::csv(text.as_bytes(), 0, 1, bulk::Numbers::Scaled(1.0)).collect();
        assert!(
            matches!(read, Err(ClientError::Input { line: named, .. }) if named == line),
            "{text:?}: {read:?}"
        );
    }
}

#[test]
fn csv_changes_no_number() {
    let read = |text: &str, numbers| -> Result<Vec<(u64, [u8; 8])>> {
        bulk::csv(text.as_bytes(), 0, 1, numbers).collect()
    };
    let whole = [
        ("7", 7),
        ("-9223372036854775808", i64::MIN),
        ("9007199254740993", (1 << 53) + 1),
        ("12.0", 12),
        ("1e3", 1000),
    ];
    for (text, value) in whole {
        let found = read(&format!("1,{text}\n"), bulk::Numbers::Whole).expect("a whole number");
        assert_eq!(found, [(1, value.to_le_bytes())], "{text}");
    }
    for text in ["100.49", "-0.9", "9223372036854775808", "1e300", "inf", "9007199254740993.0"] {
        let found = read(&format!("1,{text}\n"), bulk::Numbers::Whole);
        assert!(matches!(found, Err(ClientError::Input { line: 1, .. })), "{text}: {found:?}");
    }
    for (text, value) in [
        ("100.49", 100.49_f64),
        ("-0.9", -0.9),
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("inf", f64::INFINITY),
    ] {
        let found = read(&format!("1,{text}\n"), bulk::Numbers::Float(1.0)).expect("a float");
        assert_eq!(found, [(1, value.to_le_bytes())], "{text}");
    }
    let found = read("1,9007199254740993\n", bulk::Numbers::Float(1.0));
    assert!(matches!(found, Err(ClientError::Input { line: 1, .. })), "{found:?}");
}

#[test]
fn a_hash_map_is_built_at_once() {
    let mut image = Image::new(BASE, 8 << 20);
    let heads = image.allocate(8 << 6).expect("room");
    let base = image.allocate(4 << 20).expect("room");
    let mut placement = Placement::new(&[(base, 4 << 20)], SLAB_4K, Order::Random(1));
    let mut sink = ToHeap::new(&mut image);
    let pairs = (0..3072_u64).map(|key| (key, (key * 2).to_le_bytes()));
    let handle = bulk::hash(pairs, 6, heads, &mut placement, &mut sink, |_| {}).expect("room");
    sink.finish().expect("written");
    let mut map = HashMap::open(handle);
    let keys: Vec<u64> = (0..4000).collect();
    for (key, value) in map.get_many(&mut image, &keys).expect("answers").into_iter().enumerate() {
        assert_eq!(value, (key < 3072).then(|| (key as u64 * 2).to_le_bytes().to_vec()));
    }
    assert!(!map.insert(&mut image, 77, b"now of another length").expect("room"));
    assert_eq!(map.get(&mut image, 77).expect("an answer").as_deref(), Some(&b"now of another length"[..]));
}

#[test]
fn what_cannot_be_says_so() {
    let mut image = Image::new(BASE, 128 << 10);
    let mut map = HashMap::create(&mut image, 4).expect("room");
    let long = "k".repeat(129);
    assert!(matches!(
        map.insert(&mut image, long.as_str(), b""),
        Err(ClientError::TooLong { most: 128, .. })
    ));
    assert!(matches!(map.get(&mut image, ""), Err(ClientError::TooLong { .. })));
    let mut full = None;
    for key in 0..10_000_u64 {
        match map.insert(&mut image, key, &[1; 200]) {
            Ok(fresh) => assert!(fresh),
            Err(error) => {
                full = Some(error);
                break;
            }
        }
    }
    assert!(matches!(full, Some(ClientError::Full { .. })), "{full:?}");
    assert_eq!(map.get(&mut image, 0).expect("still there"), Some(vec![1; 200]));
    assert!(OrderedMap::create(&mut image, 241).is_err());
    // A handle that names something else: an answer, whatever it is, and no crash.
    let mut random =
        HashMap::open(memlift_traverse::structures::hash::Handle { heads: BASE + 4096, log2: 3 });
    for key in 0..64_u64 {
        let _ = random.get(&mut image, key);
    }
    let walked = image.walk(
        &OrderedMap::open(memlift_traverse::structures::ordered::Handle { cell: 8, value_bytes: 8 })
            .handle()
            .get_walk(1),
    );
    assert!(matches!(walked, Err(ClientError::Nowhere { address: 8, .. })));
    let empty = OrderedMap::create(&mut image, 8);
    if let Ok(empty) = empty {
        let walked = image.walk(&empty.handle().get_walk(1)).expect("an answer");
        assert_eq!(walked.outcome, Outcome::Missing);
    }
}
