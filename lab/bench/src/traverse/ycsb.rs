// SPDX-License-Identifier: Apache-2.0 OR MIT
//! YCSB's core workloads A, B, C and E: which operation comes next, on which key; drawn, or read from a trace.
//!
//! - **Flow** [`Generator::new`] ─▶ [`Generator::next`], without end · [`trace`]: one operation per line of text
//! - **Layout** a trace's lines: `INSERT userN` · `READ userN` · `UPDATE userN` · `SCAN userN LENGTH` · `AGGREGATE userN LENGTH KIND`
//! - **Source** Cooper et al., SoCC 2010; the Zipfian draw is Gray et al.'s (SIGMOD 1994) with YCSB's constants: exponent 0.99, ranks
//!   over 10¹⁰ items that FNV-1 scatters over the keys
//! - **Not here** what a value holds, and who stores it

use std::io::BufRead;

use crate::BenchError;

/// The exponent of YCSB's Zipfian draws.
pub const EXPONENT: f64 = 0.99;
/// Items that scrambled ranks are drawn from, and the sum of their weights.
const ITEMS: u64 = 10_000_000_000;
const ITEMS_ZETA: f64 = 26.469_028_201_783_02;
/// The longest scan of workload E.
pub const SCAN_MAX: u64 = 100;

/// Function by which an aggregate combines many values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// All of them added.
    Sum,
    /// The mean of all values.
    Average,
    /// The least of all values.
    Min,
    /// The greatest of all values.
    Max,
}

impl Kind {
    fn parse(word: &str) -> Option<Kind> {
        Some(match word.to_ascii_lowercase().as_str() {
            "sum" | "0" => Kind::Sum,
            "avg" | "average" | "1" => Kind::Average,
            "min" | "2" => Kind::Min,
            "max" | "3" => Kind::Max,
            _ => return None,
        })
    }
}

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads a record.
    Read(u64),
    /// Gives a record that is there a new value.
    Update(u64),
    /// Adds a record.
    Insert(u64),
    /// Reads records in order of their keys, from the first key that is not less on.
    Scan {
        /// Where it starts.
        key: u64,
        /// Number of records.
        length: u64,
    },
    /// Reads one aggregate over the values of as many records.
    Aggregate {
        /// Where it starts.
        key: u64,
        /// Number of records.
        length: u64,
        /// Function that combines the values.
        kind: Kind,
    },
}

/// Shares of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads and nothing else.
    C,
    /// 95 % scans of 1 to [`SCAN_MAX`] records, 5 % inserts.
    E,
}

/// Distribution of the keys that are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Draw {
    /// Few keys most of the time, scattered over all.
    Zipf,
    /// All keys alike.
    Uniform,
    /// Most of the time the keys that were inserted last.
    Latest,
}

/// SplitMix64: the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to before 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// FNV-1 of a number's eight bytes, as YCSB has it.
pub fn fnv(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    number.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Ranks from 0, the lower the more often.
#[derive(Clone, Debug)]
struct Zipf {
    items: u64,
    zeta: f64,
    zeta_two: f64,
}

impl Zipf {
    fn new(items: u64) -> Zipf {
        let zeta = if items == ITEMS { ITEMS_ZETA } else { Zipf::sum(0, items) };
        Zipf { items, zeta, zeta_two: Zipf::sum(0, 2) }
    }

    fn sum(from: u64, to: u64) -> f64 {
        (from + 1..=to).map(|rank| (rank as f64).powf(-EXPONENT)).sum()
    }

    /// Grows the number of items.
    fn grow(&mut self, items: u64) {
        self.zeta += Zipf::sum(self.items, items);
        self.items = items;
    }

    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1;
        }
        let eta = (1.0 - (2.0 / self.items as f64).powf(1.0 - EXPONENT)) / (1.0 - self.zeta_two / self.zeta);
        let rank = self.items as f64 * (eta * unit - eta + 1.0).powf(1.0 / (1.0 - EXPONENT));
        (rank as u64).min(self.items - 1)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    draw: Draw,
    random: Random,
    zipf: Zipf,
    /// Keys are below this number.
    records: u64,
}

impl Generator {
    /// Operations on `records` keys from 0 on; the same for the same seed.
    pub fn new(workload: Workload, draw: Draw, records: u64, seed: u64) -> Generator {
        let zipf = Zipf::new(if draw == Draw::Latest { records } else { ITEMS });
        Generator { workload, draw, random: Random(seed), zipf, records }
    }

    fn key(&mut self) -> u64 {
        match self.draw {
            Draw::Uniform => self.random.below(self.records),
            Draw::Zipf => fnv(self.zipf.rank(self.random.unit())) % self.records,
            Draw::Latest => self.records - 1 - self.zipf.rank(self.random.unit()),
        }
    }

    /// The next operation.
    pub fn next(&mut self) -> Operation {
        let share = self.random.unit();
        let changes = match self.workload {
            Workload::A => 0.5,
            Workload::B | Workload::E => 0.05,
            Workload::C => 0.0,
        };
        match (self.workload, share < changes) {
            (Workload::E, true) => {
                let key = self.records;
                self.records += 1;
                if self.draw == Draw::Latest {
                    self.zipf.grow(self.records);
                }
                Operation::Insert(key)
            }
            (Workload::E, false) => {
                Operation::Scan { key: self.key(), length: 1 + self.random.below(SCAN_MAX) }
            }
            (_, true) => Operation::Update(self.key()),
            (_, false) => Operation::Read(self.key()),
        }
    }
}

/// Reads a trace. Empty lines and those that start with `#` are skipped.
///
/// # Errors
/// The line that is none.
pub fn trace(reader: impl BufRead) -> impl Iterator<Item = Result<Operation, BenchError>> {
    reader.lines().enumerate().filter_map(|(index, line)| {
        let line = match line {
            Ok(line) => line,
            Err(source) => return Some(Err(BenchError::System { what: "reading a trace", source })),
        };
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let wrong = || BenchError::Answer {
            program: format!("line {} of a trace (INSERT, READ, UPDATE, SCAN, AGGREGATE)", index + 1),
            answer: text.to_owned(),
        };
        Some(operation(text).ok_or_else(wrong))
    })
}

fn operation(line: &str) -> Option<Operation> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let key = |word: &str| word.strip_prefix("user").unwrap_or(word).parse::<u64>().ok();
    let length = |word: &str| word.parse::<u64>().ok().filter(|&length| length > 0);
    Some(match words[..] {
        ["READ", record] => Operation::Read(key(record)?),
        ["UPDATE", record] => Operation::Update(key(record)?),
        ["INSERT", record] => Operation::Insert(key(record)?),
        ["SCAN", record, many] => Operation::Scan { key: key(record)?, length: length(many)? },
        ["AGGREGATE", record, many, kind] => {
            Operation::Aggregate { key: key(record)?, length: length(many)?, kind: Kind::parse(kind)? }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn shares_are_those_of_the_workloads() {
        for (workload, draw, reads, updates, inserts) in [
            (Workload::A, Draw::Zipf, 0.5, 0.5, 0.0),
            (Workload::B, Draw::Uniform, 0.95, 0.05, 0.0),
            (Workload::C, Draw::Latest, 1.0, 0.0, 0.0),
            (Workload::E, Draw::Zipf, 0.95, 0.0, 0.05),
        ] {
            let mut generator = Generator::new(workload, draw, 1000, 7);
            let mut counted = [0.0_f64; 3];
            let (mut longest, mut shortest) = (0, u64::MAX);
            for _ in 0..20_000 {
                match generator.next() {
                    Operation::Read(key) => {
                        assert!(key < 1000);
                        counted[0] += 1.0 / 20_000.0;
                    }
                    Operation::Scan { key, length } => {
                        assert!(key < generator.records);
                        (longest, shortest) = (longest.max(length), shortest.min(length));
                        counted[0] += 1.0 / 20_000.0;
                    }
                    Operation::Update(_) => counted[1] += 1.0 / 20_000.0,
                    Operation::Insert(key) => {
                        assert_eq!(key + 1, generator.records, "keys are given in order");
                        counted[2] += 1.0 / 20_000.0;
                    }
                    Operation::Aggregate { .. } => panic!("no workload of YCSB aggregates"),
                }
            }
            for (share, wanted) in counted.into_iter().zip([reads, updates, inserts]) {
                assert!((share - wanted).abs() < 0.01, "{workload:?}: {counted:?}");
            }
            assert!(workload != Workload::E || (shortest, longest) == (1, SCAN_MAX));
        }
    }

    #[test]
    fn ranks_are_as_often_as_the_law_says_and_scattered() {
        let zipf = Zipf::new(1000);
        let (mut random, mut ranks) = (Random(1), vec![0_u32; 1000]);
        let draws = 400_000;
        for _ in 0..draws {
            ranks[zipf.rank(random.unit()) as usize] += 1;
        }
        // The first two are exact, later ones are an approximation of a few percent.
        for rank in [0, 1] {
            let wanted = f64::from(draws) * (rank as f64 + 1.0).powf(-EXPONENT) / zipf.zeta;
            assert!((f64::from(ranks[rank]) / wanted - 1.0).abs() < 0.02, "rank {rank}");
        }
        let tail: u32 = ranks[500..].iter().sum();
        let wanted = f64::from(draws) * Zipf::sum(500, 1000) / zipf.zeta;
        assert!((f64::from(tail) / wanted - 1.0).abs() < 0.1, "{tail} of {wanted}");

        let mut generator = Generator::new(Workload::C, Draw::Zipf, 1000, 3);
        let mut keys: HashMap<u64, u32> = HashMap::new();
        for _ in 0..100_000 {
            if let Operation::Read(key) = generator.next() {
                *keys.entry(key).or_default() += 1;
            }
        }
        let hottest = keys.iter().max_by_key(|(_, times)| **times).expect("many");
        assert_eq!(*hottest.0, fnv(0) % 1000, "rank 0 lies where its hash says");
        // 1 in 26.5, and whatever else falls on that key.
        assert!((0.036..0.05).contains(&(f64::from(*hottest.1) * 1e-5)), "{hottest:?}");
    }

    #[test]
    fn latest_follows_inserts() {
        let mut generator = Generator::new(Workload::E, Draw::Latest, 100, 5);
        let mut recent = 0;
        for _ in 0..10_000 {
            if let Operation::Scan { key, .. } = generator.next() {
                recent += u32::from(key + 10 >= generator.records);
            }
        }
        let exact: f64 = Zipf::sum(0, generator.records);
        assert!((generator.zipf.zeta - exact).abs() < 1e-6, "the weights grow with the records");
        assert!(recent > 3000, "{recent} of 9500 among the last ten");
    }

    #[test]
    fn a_trace_is_read_line_by_line_and_nonsense_is_named() {
        let text =
            "# a trace\nINSERT user12\nREAD user3\n\nSCAN user7 50\nAGGREGATE user9 120 avg\nUPDATE 5\n";
        let read: Result<Vec<_>, _> = trace(text.as_bytes()).collect();
        let wanted = [
            Operation::Insert(12),
            Operation::Read(3),
            Operation::Scan { key: 7, length: 50 },
            Operation::Aggregate { key: 9, length: 120, kind: Kind::Average },
            Operation::Update(5),
        ];
        assert_eq!(read.expect("five operations"), wanted);
        for wrong in ["DELETE user1", "READ", "SCAN user1 0", "AGGREGATE user1 5 median", "READ usr1"] {
            let error = trace(wrong.as_bytes()).next().expect("a line").expect_err(wrong);
            assert!(error.to_string().contains("line 1"), "{error}");
        }
    }
}
