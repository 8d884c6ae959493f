// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost of an access by each mechanism that the machine offers, and by each mechanism's fallbacks.
//!
//! ```text
//! cargo run --release -p memlift-zmem --example mechanisms [MEBIBYTES] [MASK]
//! ```
//! `ONLY=scan` (or another column) measures that alone; `NUMBERS=1` prints what the pager counted.
//!
//! - **Flow** this program again for each mask of `MEMLIFT_DISABLE` ─▶ a job with 57 % of the set's size ─▶ filled, warmed ─▶
//!   random reads, half writes, two threads, scans: microseconds an access, per mask a line
//! - **Layout** the set: a third each of small objects, columns of numbers and a graph's neighbours, by the mebibyte
//! - **Order** every word read is checked against the seed that its page was made from
//! - **Not here** a rival (`memlift bench zmem`)

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use memlift_zmem::arena::{Arena, enter};
use memlift_zmem::block::{Objectives, OnOverflow};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const MASKS: [&str; 5] =
    ["", "process_madvise", "uffd", "uffd,uffd_kernel", "uffd,uffd_kernel,process_madvise"];

const WHAT: [&str; 4] = ["read", "write50", "2threads", "scan"];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Returns the initial contents of a page.
fn contents(page: usize) -> [u64; PAGE / 8] {
    let mut random = Random(page as u64);
    let kind = page * PAGE / MIB % 3;
    let mut neighbour = 0;
    std::array::from_fn(|index| match kind {
        // Count, type, pointer nearby, four letters and digits.
        0 => match index % 4 {
            0 => 1 + random.next() % 3,
            1 => 0x5593_1a2b_c000 + (page as u64 % 4) * 0x140,
            2 => 0x7f3a_5c00_0000 + (random.next() & 0xf_fff0),
            _ => u64::from_le_bytes(*b"name_\0\0\0") | (0x0030_3030 + random.next() % 10) << 40,
        },
        1 => (random.next() % 100_000) << (page % 3 * 4),
        _ => {
            let mut pair = 0;
            for half in 0..2 {
                neighbour += 1 + random.next() as u32 % 4000;
                pair |= u64::from(neighbour) << (32 * half);
            }
            pair
        }
    })
}

/// A set and what was written to it since.
struct Set {
    arena: Arena,
    written: Vec<u32>,
}

impl Set {
    fn pages(&self) -> usize {
        self.arena.len() / PAGE
    }

    fn word(&self, page: usize, index: usize) -> u64 {
        let bytes = &self.arena[page * PAGE + index * 8..][..8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn random(&mut self, accesses: usize, seed: u64, write_percent: usize) -> (f64, u64) {
        let (mut random, mut sum) = (Random(seed), 0u64);
        let start = Instant::now();
        for _ in 0..accesses {
            let page = random.below(self.pages());
            // The first word counts the writes.
            let value = self.word(page, 0);
            sum = sum.wrapping_add(value);
            if write_percent > 0 && random.below(100) < write_percent {
                self.arena[page * PAGE..][..8].copy_from_slice(&value.wrapping_add(1).to_le_bytes());
                self.written[page] += 1;
            }
        }
        (start.elapsed().as_secs_f64() / accesses as f64, sum)
    }

    fn threads(&self, accesses: usize, seed: u64) -> f64 {
        let right = AtomicBool::new(true);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let right = &right;
                scope.spawn(move || {
                    let mut random = Random(seed ^ thread << 32);
                    for _ in 0..accesses / 2 {
                        let page = random.below(self.pages());
                        // Not the first: it changes.
                        if self.word(page, 1) == u64::MAX {
                            right.store(false, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let took = start.elapsed().as_secs_f64() / accesses as f64;
        assert!(right.load(Ordering::Relaxed), "a word that nobody wrote");
        took
    }

    fn scan(&self) -> f64 {
        let (start, mut sum) = (Instant::now(), 0u64);
        for page in 0..self.pages() {
            sum = sum.wrapping_add(self.word(page, 100));
        }
        let took = start.elapsed().as_secs_f64() / self.pages() as f64;
        std::hint::black_box(sum);
        took
    }

    fn check(&self) {
        for page in 0..self.pages() {
            let mut expected = contents(page);
            expected[0] = expected[0].wrapping_add(u64::from(self.written[page]));
            for (index, expected) in expected.iter().enumerate() {
                assert_eq!(self.word(page, index), *expected, "page {page} word {index}");
            }
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] * 1e6
}

fn measure(mebibytes: usize) {
    let bytes = mebibytes * MIB;
    let total = bytes * 57 / 100;
    let objectives =
        Objectives { total, unused: total / 64, min_uncompressed: 0, on_overflow: OnOverflow::Fail };
    let pager = enter("mechanisms", &objectives).expect("a job");
    let mut set = Set { arena: Arena::new(pager, bytes).expect("an arena"), written: vec![0; bytes / PAGE] };
    for page in 0..set.pages() {
        for (target, word) in set.arena[page * PAGE..][..PAGE].chunks_exact_mut(8).zip(contents(page)) {
            target.copy_from_slice(&word.to_le_bytes());
        }
    }
    let each = set.pages() / 5;
    set.random(4 * each, 1, 0);
    let only = std::env::var("ONLY").ok();
    let mut times = [f64::NAN; 4];
    for (what, time) in WHAT.iter().zip(&mut times) {
        if only.as_ref().is_none_or(|only| only == what) {
            let took = (0..if only.is_some() { 35u64 } else { 7 }).map(|turn| match *what {
                "read" => set.random(each, turn + 10, 0).0,
                "write50" => set.random(each, turn + 20, 50).0,
                "2threads" => set.threads(each, turn + 30),
                _ => set.scan(),
            });
            *time = median(took.collect());
        }
    }
    let numbers = pager.numbers();
    set.check();
    let [reads, writes, threads, scans] = times;
    println!("{reads:9.2} {writes:9.2} {threads:9.2} {scans:9.2}  {:?}", pager.mechanism());
    if std::env::var_os("NUMBERS").is_some() {
        println!("{numbers:?}");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mebibytes = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(192);
    let mask = arguments.next();
    if std::env::var_os("MECHANISM").is_some() {
        return measure(mebibytes);
    }
    println!(
        "{mebibytes} MiB in {} MiB; microseconds an access (two threads: of wall time)",
        mebibytes * 57 / 100
    );
    println!("     read   write50  2threads      scan  mechanism, MEMLIFT_DISABLE");
    let program = std::env::current_exe().expect("this program");
    for masked in MASKS.iter().filter(|masked| mask.as_deref().is_none_or(|mask| mask == **masked)) {
        let mut command = Command::new(&program);
        command.arg(mebibytes.to_string()).env("MECHANISM", "1").env("MEMLIFT_DISABLE", masked);
        let output = command.output().expect("this program");
        let text = String::from_utf8_lossy(&output.stdout);
        let masked = if masked.is_empty() { "nothing" } else { masked };
        println!("{} without {masked}", text.trim_end().lines().collect::<Vec<_>>().join("\n"));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
}
