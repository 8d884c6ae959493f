// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page contents as in programs that run out of memory, made from a seed.
//!
//! - **Flow** [`Corpus`] ──[`Corpus::pages`]──▶ so many pages, the same ones for the same seed on every machine (`elf` and
//!   `prose` come from this build)
//! - **Layout** `heap`: CPython objects (reference count, type, fields, short strings, pointers nearby); `columns`: a data
//!   frame's columns, each some pages long; `csr`: a Kronecker graph (Graph500's parameters, shuffled names,
//!   both directions, sorted): offsets of 8 bytes, neighbours of 4; `int64`: 0 … 999 at random
//! - **Not here** what is measured on them

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page's bytes.
pub type Page = [u8; PAGE_BYTES];

/// A kind of content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corpus {
    /// Small objects of a CPython process.
    Heap,
    /// Columns of a data frame.
    Columns,
    /// A graph in compressed sparse rows.
    Csr,
    /// Small numbers of 8 bytes.
    Int64,
    /// Machine code and tables of this program.
    Elf,
    /// English text from this build.
    Prose,
}

/// Numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

impl Corpus {
    /// `count` pages.
    pub fn pages(self, count: usize, seed: u64) -> Vec<Page> {
        let mut random = Random(seed);
        let bytes = match self {
            Corpus::Heap => heap(count * PAGE_BYTES, &mut random),
            Corpus::Columns => columns(count, &mut random),
            Corpus::Csr => csr(count * PAGE_BYTES, &mut random),
            Corpus::Int64 => (0..count * 512).flat_map(|_| random.below(1000).to_le_bytes()).collect(),
            Corpus::Elf => std::fs::read("/proc/self/exe").unwrap_or_default(),
            Corpus::Prose => prose(),
        };
        let (pages, _) = bytes.as_chunks::<PAGE_BYTES>();
        // Content of the build is spread over all of it, and repeated where it is short.
        let step = if pages.len() > count { pages.len() / count } else { 1 };
        (0..count).map(|index| pages[index * step % pages.len()]).collect()
    }
}

/// Objects one after another, as `obmalloc` lays them out: 16 bytes apart, pools of one size.
fn heap(bytes: usize, random: &mut Random) -> Vec<u8> {
    const BASE: u64 = 0x7f3a_5c00_0000;
    const TYPES: u64 = 0x0000_5593_1a2b_c000;
    const WORDS: [&str; 16] = [
        "name", "value", "index", "user", "item", "date", "price", "quantity", "city", "country", "status",
        "order", "customer", "email", "address", "comment",
    ];
    let mut out: Vec<u8> = Vec::with_capacity(bytes + 4096);
    let word = |out: &mut Vec<u8>, value: u64| out.extend(value.to_le_bytes());
    let near = |random: &mut Random, at: usize| {
        BASE + (at as u64 / 16 * 16).wrapping_add(random.below(1 << 20) / 16 * 16)
    };
    while out.len() < bytes {
        // A pool of one kind.
        let kind = random.below(100);
        let until = out.len() + 4096;
        while out.len() < until {
            let at = out.len();
            match kind {
                // str: count, type, length, hash, state, characters.
                0..40 => {
                    word(&mut out, 1 + random.below(3));
                    word(&mut out, TYPES + 0x40);
                    let text = format!("{}_{}", WORDS[random.below(16) as usize], random.below(100_000));
                    word(&mut out, text.len() as u64);
                    let hash = if random.below(2) == 0 { u64::MAX } else { random.next() };
                    word(&mut out, hash);
                    word(&mut out, 0xe4);
                    out.extend(text.as_bytes());
                    out.push(0);
                }
                // int: count, type, size, digits.
                40..60 => {
                    word(&mut out, 1 + random.below(2));
                    word(&mut out, TYPES + 0x1c0);
                    word(&mut out, 8);
                    word(&mut out, random.below(1 << 20));
                }
                // float: count, type, value.
                60..70 => {
                    word(&mut out, 1);
                    word(&mut out, TYPES + 0x2a0);
                    word(&mut out, (random.below(1_000_000) as f64 / 100.0).to_bits());
                }
                // tuple or list: links of the collector, count, type, size, items.
                70..88 => {
                    word(&mut out, near(random, at));
                    word(&mut out, near(random, at));
                    word(&mut out, 1);
                    word(&mut out, TYPES + 0x360);
                    let items = 2 + random.below(4);
                    word(&mut out, items);
                    for _ in 0..items {
                        word(&mut out, near(random, at));
                    }
                }
                // dict keys: indices, then hash, key, value per entry.
                _ => {
                    word(&mut out, 1);
                    word(&mut out, 8 | 3 << 8);
                    word(&mut out, 5);
                    out.extend([0, 1, 2, 3, 4, 0xff, 0xff, 0xff]);
                    for _ in 0..5 {
                        let key = near(random, at);
                        word(&mut out, key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                        word(&mut out, key);
                        word(&mut out, near(random, at));
                    }
                }
            }
            out.resize(out.len().next_multiple_of(16), 0);
        }
        out.truncate(until);
    }
    out.truncate(bytes);
    out
}

/// Columns of 16 pages each: what a table of orders has.
fn columns(pages: usize, random: &mut Random) -> Vec<u8> {
    const ROWS: usize = 16 * 512;
    let mut out = Vec::with_capacity(pages * PAGE_BYTES);
    let mut kind = 0;
    while out.len() < pages * PAGE_BYTES {
        let mut time = 1_700_000_000_000_000_000u64;
        let mut serial = random.below(1 << 30);
        let column: Vec<u64> = (0..ROWS)
            .map(|_| match kind {
                // Row numbers with gaps.
                0 => {
                    serial += 1 + random.below(4);
                    serial
                }
                // Time stamps in nanoseconds, whole seconds, ascending.
                1 => {
                    time += random.below(120) * 1_000_000_000;
                    time
                }
                // Prices: two decimals, in floating point.
                2 => (random.below(20_000) as f64 / 100.0).to_bits(),
                // Quantities.
                3 => 1 + random.below(20),
                // Customers: many numbers, some often.
                4 => {
                    let often = 1 + random.below(200_000);
                    10_000 + random.below(often)
                }
                // Measured values, which do not compress.
                5 => random.normal().to_bits(),
                // Pointers to a few strings.
                6 => 0x7f12_3400_0000 + random.below(200) * 64,
                // Codes of categories, eight to a word.
                _ => (0..8).fold(0, |word, _| word << 8 | random.below(12)),
            })
            .collect();
        out.extend(column.iter().flat_map(|value| value.to_le_bytes()));
        kind = (kind + 1) % 8;
    }
    out.truncate(pages * PAGE_BYTES);
    out
}

/// Edges of a Kronecker graph: 16 a vertex, A, B, C = 0.57, 0.19, 0.19.
fn csr(bytes: usize, random: &mut Random) -> Vec<u8> {
    // A vertex takes 8 bytes of offset and up to 2 · 16 · 4 bytes of neighbours; doubles are dropped.
    let scale = (bytes / 64).next_power_of_two().ilog2().clamp(10, 20);
    let vertices = 1usize << scale;
    let mut names: Vec<u32> = (0..vertices as u32).collect();
    for index in (1..vertices).rev() {
        names.swap(index, random.below(index as u64 + 1) as usize);
    }
    let mut edges: Vec<(u32, u32)> = Vec::with_capacity(vertices * 32);
    for _ in 0..vertices * 16 {
        let (mut from, mut to) = (0usize, 0usize);
        for _ in 0..scale {
            let pick = random.unit();
            let (down, right) = if pick < 0.57 {
                (0, 0)
            } else if pick < 0.76 {
                (0, 1)
            } else if pick < 0.95 {
                (1, 0)
            } else {
                (1, 1)
            };
            (from, to) = (from << 1 | down, to << 1 | right);
        }
        if from != to {
            edges.extend([(names[from], names[to]), (names[to], names[from])]);
        }
    }
    edges.sort_unstable();
    edges.dedup();
    let mut offsets = vec![0u64; vertices + 1];
    for (from, _) in &edges {
        offsets[*from as usize + 1] += 1;
    }
    for vertex in 0..vertices {
        offsets[vertex + 1] += offsets[vertex];
    }
    // Both arrays, each with its share of the pages.
    let whole = offsets.len() * 8 + edges.len() * 4;
    let take =
        |array: usize| (array as u128 * bytes as u128 / whole as u128) as usize / PAGE_BYTES * PAGE_BYTES;
    let mut out: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    out.truncate(take(offsets.len() * 8));
    let neighbours = bytes - out.len();
    out.extend(edges.iter().flat_map(|(_, to)| to.to_le_bytes()).take(neighbours));
    out
}

/// Returns pages of this project's own texts.
fn prose() -> Vec<u8> {
    [
        include_str!("../../../../README.md"),
        include_str!("../../../../ARCHITECTURE.md"),
        include_str!("../../../../CHANGELOG.md"),
        include_str!("../../../../docs/design/ground.md"),
        include_str!("../../../../SECURITY.md"),
    ]
    .concat()
    .into_bytes()
}
