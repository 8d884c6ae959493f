// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE's Table 1: the thirteen structures, laid out as their libraries lay them out, walked, and compared with std's answers.
//!
//! - **Flow** the same pairs ──▶ nodes in an image, and a `BTreeMap`; every key that is there and many that are not ──▶ both
//!   where g++ and Boost are there: `programs/layouts.cpp` makes the containers themselves and dumps their memory
//! - **Not here** instruction by instruction: `filetests/table1_*.walk`

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use memlift_traverse::structures::shipped::{self, Shipped};
use memlift_traverse::structures::{Heap, Image, Outcome, Scratch, Walk, Walked};

const BASE: u64 = 0x7f00_0000_0000;

fn walk(image: &mut Image, shipped: &Shipped, start: u64, scratch: Scratch) -> Walked {
    image.walk(&Walk { program: shipped.program(), start, scratch }).expect(shipped.name)
}

fn image() -> Image {
    Image::new(BASE, 4 << 20)
}

fn node(image: &mut Image, words: &[u64]) -> u64 {
    let address = image.allocate(words.len() as u64 * 8).expect("room");
    set(image, address, words);
    address
}

fn set(image: &mut Image, address: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    image.write(address, &bytes).expect("inside");
}

/// Pairs with scattered, even keys; a value says which pair it is.
fn pairs(count: u64) -> BTreeMap<u64, u64> {
    (0..count).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 100_000 * 2, index + 7)).collect()
}

#[test]
fn lists_find_what_std_find_finds() {
    for (shipped, doubly) in [(&shipped::STL_LIST, true), (&shipped::STL_FORWARD_LIST, false)] {
        let mut image = image();
        let keys: Vec<u64> = pairs(200).into_keys().collect();
        let end = if doubly { node(&mut image, &[0, 0, 0]) } else { 0 };
        let nodes: Vec<u64> = keys.iter().map(|_| node(&mut image, &[0; 3])).collect();
        for (index, &key) in keys.iter().enumerate() {
            let next = nodes.get(index + 1).copied().unwrap_or(end);
            let prev = index.checked_sub(1).map_or(end, |before| nodes[before]);
            let words = if doubly { vec![next, prev, key] } else { vec![next, key] };
            set(&mut image, nodes[index], &words);
        }
        for key in 0..400 {
            let scratch = Scratch::new().with(0, key).with(8, end).with(24, nodes[0]);
            let walked = walk(&mut image, shipped, nodes[0], scratch);
            let place = keys.iter().position(|&one| one == key);
            assert_eq!(walked.outcome == Outcome::Done, place.is_some(), "{} {key}", shipped.name);
            assert_eq!(walked.scratch.word(16), place.map_or(0, |place| nodes[place]));
        }
        let last = *keys.last().expect("keys");
        let scratch = Scratch::new().with(0, last).with(8, end).with(24, nodes[0]);
        let before = image.steps;
        assert_eq!(walk(&mut image, shipped, nodes[0], scratch).outcome, Outcome::Done);
        assert_eq!(image.steps - before, keys.len() as u64, "one iteration per node");
    }
}

/// Layout of a node, in words.
#[derive(Clone, Copy)]
struct Tree {
    shipped: &'static Shipped,
    left: usize,
    parent: usize,
    balance: Option<usize>,
    key: usize,
    has_value: bool,
    multi: bool,
}

impl Tree {
    /// A balanced tree of sorted pairs; its root.
    fn build(&self, image: &mut Image, pairs: &[(u64, u64)], parent: u64, depth: u64) -> u64 {
        let half = pairs.len() / 2;
        let Some(&(key, value)) = pairs.get(half) else { return 0 };
        let mut words = vec![0; self.key + 2];
        (words[self.parent], words[self.key]) = (parent, key);
        if self.has_value {
            words[self.key + 1] = value;
        }
        if let Some(balance) = self.balance {
            words[balance] = depth % 2;
        }
        let address = node(image, &words);
        words[self.left] = self.build(image, &pairs[..half], address, depth + 1);
        words[self.left + 1] = self.build(image, &pairs[half + 1..], address, depth + 1);
        set(image, address, &words);
        address
    }

    fn check(&self, count: u64) {
        let mut image = image();
        let model = pairs(count);
        let mut sorted: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
        if self.multi {
            let twice: Vec<(u64, u64)> =
                sorted.iter().step_by(3).map(|&(key, value)| (key, value + 1000)).collect();
            sorted.extend(twice);
            sorted.sort_by_key(|pair| pair.0);
        }
        let root = self.build(&mut image, &sorted, 0, 0);
        let name = self.shipped.name;
        let asked = model.keys().flat_map(|&key| [key, key + 1]).chain([0, u64::MAX]);
        for key in asked {
            for exact in [1, 0] {
                let scratch = Scratch::new().with(0, key).with(8, exact).with(40, root);
                let walked = walk(&mut image, self.shipped, root, scratch);
                let bound = sorted.iter().find(|pair| pair.0 >= key);
                let right = bound.filter(|pair| exact == 0 || pair.0 == key);
                assert_eq!(walked.outcome == Outcome::Done, right.is_some(), "{name} {key} {exact}");
                if let Some(&(found, value)) = right {
                    assert_eq!(walked.scratch.word(24), found, "{name} {key}");
                    assert_eq!(
                        walked.scratch.word(16),
                        if self.has_value { value } else { found },
                        "{name} {key}"
                    );
                }
            }
        }
    }
}

#[test]
fn binary_trees_find_what_lower_bound_finds() {
    let rb = |shipped, has_value, multi| Tree {
        shipped,
        left: 2,
        parent: 1,
        balance: Some(0),
        key: 4,
        has_value,
        multi,
    };
    let intrusive = |shipped, key| Tree {
        shipped,
        left: 1,
        parent: 0,
        balance: (key == 4).then_some(3),
        key,
        has_value: true,
        multi: false,
    };
    for tree in [
        rb(&shipped::STL_MAP, true, false),
        rb(&shipped::STL_MULTIMAP, true, true),
        rb(&shipped::STL_SET, false, false),
        rb(&shipped::STL_MULTISET, false, true),
        intrusive(&shipped::BOOST_AVL, 4),
        intrusive(&shipped::BOOST_SPLAY, 3),
        intrusive(&shipped::BOOST_SCAPEGOAT, 3),
    ] {
        for count in [1, 2, 300] {
            tree.check(count);
        }
    }
}

#[test]
fn hash_tables_find_what_a_map_finds() {
    const BUCKETS: u64 = 13;
    #[derive(PartialEq)]
    enum Kind {
        Stl,
        BoostMap,
        BoostSet,
    }
    for (shipped, kind) in [
        (&shipped::STL_UNORDERED_MAP, Kind::Stl),
        (&shipped::BOOST_UNORDERED_MAP, Kind::BoostMap),
        (&shipped::BOOST_UNORDERED_SET, Kind::BoostSet),
    ] {
        let mut image = image();
        let model = pairs(300);
        // One chain: bucket after bucket; the value of a bucket is its first node.
        let mut first = [0; BUCKETS as usize];
        let mut next = 0;
        for bucket in 0..BUCKETS {
            for (&key, &value) in model.iter().filter(|(key, _)| **key % BUCKETS == bucket) {
                next = node(
                    &mut image,
                    &match kind {
                        Kind::Stl => vec![next, key, value],
                        Kind::BoostMap => vec![next, bucket | (key & 2) << 62, key, value],
                        Kind::BoostSet => vec![next, bucket, key],
                    },
                );
                first[bucket as usize] = next;
            }
        }
        for key in model.keys().flat_map(|&key| [key, key + 1]) {
            let start = first[(key % BUCKETS) as usize];
            let scratch =
                Scratch::new().with(0, key).with(8, key % BUCKETS).with(32, BUCKETS).with(40, start);
            let walked = walk(&mut image, shipped, start, scratch);
            let right = model.get(&key);
            assert_eq!(walked.outcome == Outcome::Done, right.is_some(), "{} {key}", shipped.name);
            if let Some(&value) = right {
                assert_eq!(walked.scratch.word(16), if kind == Kind::BoostSet { key } else { value });
            }
        }
    }
}

#[test]
fn a_bimap_is_found_by_its_left_key() {
    const BUCKETS: u64 = 13;
    let mut image = image();
    let model = pairs(300);
    // A walk's window begins 16 bytes before a bucket: so must the range.
    node(&mut image, &[0; 8]);
    let buckets = node(&mut image, &[0; BUCKETS as usize + 1]);
    let mut first = [0; BUCKETS as usize];
    for bucket in 0..BUCKETS {
        let here: Vec<(u64, u64)> = model
            .iter()
            .filter(|(key, _)| **key % BUCKETS == bucket)
            .map(|(&key, &value)| (key, value))
            .collect();
        let nodes: Vec<u64> = here.iter().map(|_| node(&mut image, &[0; 6]) + 16).collect();
        let place = buckets + bucket * 8;
        for (index, &(key, value)) in here.iter().enumerate() {
            let prior = index.checked_sub(1).map_or(buckets, |before| nodes[before]);
            // The last one's `next_` is a bucket, whose `prior_` is some other node.
            let next = nodes.get(index + 1).copied().unwrap_or(place);
            set(&mut image, nodes[index] - 16, &[key, value, prior, next, 0, 0]);
        }
        first[bucket as usize] = nodes[0];
        set(&mut image, place, &[nodes[0]]);
    }
    for key in model.keys().flat_map(|&key| [key, key + 1]) {
        let start = first[(key % BUCKETS) as usize];
        let scratch = Scratch::new().with(0, key).with(8, key % BUCKETS).with(32, BUCKETS).with(40, start);
        let walked = walk(&mut image, &shipped::BOOST_BIMAP, start, scratch);
        let right = model.get(&key).copied();
        assert_eq!((walked.outcome == Outcome::Done).then(|| walked.scratch.word(16)), right, "{key}");
    }
}

/// A B-tree as Google's lays out nodes of 256 bytes, children behind them; its root.
fn google(image: &mut Image, pairs: &[(u64, u64)]) -> u64 {
    let leaf = pairs.len() <= 15;
    let address = image.allocate(if leaf { 256 } else { 384 }).expect("room");
    let (mut held, mut children) = (Vec::new(), Vec::new());
    if leaf {
        held.extend_from_slice(pairs);
    } else {
        let fan = (pairs.len() / 8).clamp(2, 16);
        let mut rest = pairs;
        for turn in 0..fan {
            let take = if turn + 1 == fan { rest.len() } else { pairs.len() / fan - 1 };
            children.push(google(image, &rest[..take]));
            rest = &rest[take..];
            if turn + 1 != fan {
                held.push(rest[0]);
                rest = &rest[1..];
            }
        }
    }
    let mut words = vec![0xdead; if leaf { 32 } else { 48 }];
    words[0] = u64::from(leaf) | 15 << 16 | (held.len() as u64) << 24 | 0x1234 << 32;
    for (index, &(key, value)) in held.iter().enumerate() {
        (words[2 + index * 2], words[3 + index * 2]) = (key, value);
    }
    for (index, &child) in children.iter().enumerate() {
        words[32 + index] = child;
    }
    set(image, address, &words);
    address
}

#[test]
fn a_b_tree_is_located_in() {
    for count in [1, 15, 16, 1000] {
        let mut image = image();
        let model = pairs(count);
        let sorted: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
        let root = google(&mut image, &sorted);
        for key in model.keys().flat_map(|&key| [key, key + 1]).chain([0, u64::MAX]) {
            for exact in [1, 0] {
                let scratch = Scratch::new().with(0, key).with(8, exact).with(40, root);
                let walked = walk(&mut image, &shipped::GOOGLE_BTREE, root, scratch);
                let bound = model.range(key..).next().filter(|(found, _)| exact == 0 || **found == key);
                let found = (walked.outcome == Outcome::Done)
                    .then(|| (walked.scratch.word(24), walked.scratch.word(16)));
                assert_eq!(found, bound.map(|(&key, &value)| (key, value)), "{count} {key} {exact}");
            }
        }
    }
}

/// `layouts.cpp` says of each container where to start for a key, what else goes into the scratchpad, and what std finds.
#[test]
fn the_libraries_own_memory_is_walked() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/layouts.cpp");
    let (binary, dump) = (folder.path().join("layouts"), folder.path().join("dump"));
    let compiled =
        Command::new("g++").args(["-std=c++17", "-O1", "-w", "-o"]).arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else { return eprintln!("no g++ here: the libraries are not asked") };
    if !compiled.status.success() {
        let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(said.contains("boost/") && said.contains("No such file"), "{said}");
        return eprintln!("no Boost here: the libraries are not asked");
    }
    let output = Command::new(&binary).arg(&dump).output().expect("it runs");
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("text");
    let mut lines = said.lines();
    let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let base = number(lines.next().expect("the base"));
    let bytes = std::fs::read(dump).expect("the dump");
    let mut image = Image::new(base, bytes.len());
    image.write(base, &bytes).expect("all of it");
    let mut asked = BTreeMap::<&str, u64>::new();
    for line in lines {
        // name start found offset=value …
        let mut fields = line.split_whitespace();
        let name = fields.next().expect("a name");
        let start = number(fields.next().expect("a start"));
        let found = fields.next().expect("what is found");
        let mut scratch = Scratch::new();
        for field in fields {
            let (offset, value) = field.split_once('=').expect("offset=value");
            scratch = scratch.with(offset.parse().expect("an offset"), number(value));
        }
        let walked = walk(&mut image, shipped::named(name).expect(name), start, scratch);
        let answer = (walked.outcome == Outcome::Done).then(|| walked.scratch.word(16));
        assert_eq!(answer, (found != "-").then(|| number(found)), "{line}");
        *asked.entry(name).or_default() += 1;
    }
    assert_eq!(asked.len(), 13, "twelve of the thirteen, and std::unordered_map: {asked:?}");
    assert!(asked.values().all(|&times| times >= 200), "{asked:?}");
}
