// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A heap of small objects: records with text, in a sorted map, some replaced in each round; what a parser or a cache holds.

use std::collections::BTreeMap;

use super::{Draw, Sum};

/// One entry of the map.
#[derive(Debug)]
pub(super) struct Record {
    name: String,
    tags: Vec<String>,
    values: Vec<u32>,
}

const WORDS: [&str; 16] = [
    "north", "harbour", "signal", "copper", "meadow", "lantern", "thursday", "granite", "violet", "anchor",
    "orchard", "winter", "parcel", "timber", "silver", "valley",
];

fn record(draw: &mut Draw) -> Record {
    let word = |draw: &mut Draw| WORDS[draw.below(WORDS.len() as u64) as usize];
    Record {
        name: format!("{} {} {}", word(draw), word(draw), draw.below(10_000)),
        tags: (0..2 + draw.below(3)).map(|_| format!("{}={}", word(draw), word(draw))).collect(),
        values: (0..8 + draw.below(24)).map(|_| draw.below(5000) as u32).collect(),
    }
}

pub(super) fn build(entries: u64) -> BTreeMap<u64, Record> {
    let mut draw = Draw(7);
    (0..entries).map(|_| (draw.next(), record(&mut draw))).collect()
}

/// Each round reads all, then replaces every sixteenth.
pub(super) fn work(mut heap: BTreeMap<u64, Record>, rounds: u64) -> Sum {
    let mut sum = Sum::new();
    let mut draw = Draw(11);
    for round in 0..rounds {
        for (index, (key, entry)) in heap.iter_mut().enumerate() {
            let values: u64 = entry.values.iter().map(|value| u64::from(*value)).sum();
            let tags: usize = entry.tags.iter().map(String::len).sum();
            sum.add(key ^ values << 8 ^ (tags + entry.name.len()) as u64);
            if index as u64 % 16 == round % 16 {
                *entry = record(&mut draw);
            }
        }
    }
    sum
}
