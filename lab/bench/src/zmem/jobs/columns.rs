// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Columns of a table: keys, counts, prices and times; each round groups, filters and writes a new column.

use super::{Draw, Sum};

/// Table with one vector per column.
#[derive(Debug)]
pub(super) struct Columns {
    key: Vec<i64>,
    count: Vec<i32>,
    price: Vec<f64>,
    time: Vec<i64>,
    score: Vec<f64>,
}

const GROUPS: usize = 1000;

impl Columns {
    pub fn new(rows: usize) -> Columns {
        let mut draw = Draw(3);
        let mut time = 1_700_000_000_000;
        Columns {
            key: (0..rows).map(|_| draw.below(GROUPS as u64) as i64).collect(),
            count: (0..rows).map(|_| draw.below(100) as i32).collect(),
            price: (0..rows).map(|_| draw.below(100_000) as f64 / 100.0).collect(),
            time: (0..rows)
                .map(|_| {
                    time += draw.below(2000) as i64;
                    time
                })
                .collect(),
            score: vec![0.0; rows],
        }
    }

    /// Each round: a group-by of price times count, then the score of every row whose time is in the round's half.
    pub fn work(mut self, rounds: u64) -> Sum {
        let mut sum = Sum::new();
        for round in 0..rounds {
            let mut groups = [0.0f64; GROUPS];
            for ((key, price), count) in self.key.iter().zip(&self.price).zip(&self.count) {
                groups[*key as usize % GROUPS] += price * f64::from(*count);
            }
            let mean = groups.iter().sum::<f64>() / GROUPS as f64;
            for ((score, time), key) in self.score.iter_mut().zip(&self.time).zip(&self.key) {
                if (time / 1000) as u64 % 2 == round % 2 {
                    *score = (groups[*key as usize % GROUPS] - mean).round();
                }
            }
            groups.iter().for_each(|group| sum.add(group.to_bits()));
        }
        self.score.iter().for_each(|score| sum.add(score.to_bits()));
        sum
    }
}
