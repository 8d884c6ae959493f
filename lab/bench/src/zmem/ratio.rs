// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `ratio/*`: how much smaller pages become.
//!
//! - **Flow** pages of a seed ─▶ ours: packed and kept in a store, whose memory is counted to the page, its tables included ·
//!   lz4: the sum of the packed bytes, with nothing for keeping them ─▶ one pair a seed
//! - **Rule** both leave a page alone that they would not make 1.15 times smaller: it counts 4096 bytes; every page is unpacked
//!   and compared
//! - **Not here** time

use memlift_kernels::lz4::{self, Lz4};
use memlift_kernels::pages::{self, Effort, MAX_PACKED_BYTES, PAGE_BYTES, Packed, Packer};
use memlift_zmem::store::Store;

use super::corpora::{Corpus, Page};
use crate::definition::Definition;
use crate::row::Stop;
use crate::statistics::Pair;
use crate::{BenchError, Row};

/// Pages of a sample: 16 MiB.
const PAGES: usize = 4096;
const SEEDS: u64 = 21;

/// Returns the corpora that make up the row's pages.
fn corpora(name: &str) -> Option<&'static [Corpus]> {
    match name {
        "numeric" => Some(&[Corpus::Columns, Corpus::Int64]),
        "csr" => Some(&[Corpus::Csr]),
        "heap" => Some(&[Corpus::Heap]),
        "elf" => Some(&[Corpus::Elf]),
        "prose" => Some(&[Corpus::Prose]),
        _ => None,
    }
}

fn wrong(definition: &Definition, rival: &str) -> BenchError {
    BenchError::Wrong { name: definition.name.clone(), rival: rival.to_owned() }
}

/// Bytes of real memory that the pages take packed, and how many were left alone.
fn ours(definition: &Definition, pages: &[Page], effort: Effort) -> Result<(usize, u64), BenchError> {
    let engine = |reason: String| BenchError::Engine { reason };
    let store = Store::new(pages.len() * PAGE_BYTES).map_err(|error| engine(error.to_string()))?;
    let mut packer = Box::new(Packer::new());
    let (mut target, mut again) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    let mut raw = 0;
    for source in pages {
        match packer.pack(source, &mut target, effort) {
            Packed::Filled(word) => pages::fill(word, &mut again),
            Packed::Raw => {
                raw += 1;
                continue;
            }
            Packed::Bytes(bytes) => {
                let handle =
                    store.put(&target[..bytes]).ok_or_else(|| engine("the store is full".to_owned()))?;
                store
                    .get(handle, |packed| packer.unpack(packed, &mut again))
                    .map_err(|error| engine(error.to_string()))?;
            }
        }
        if again != *source {
            return Err(wrong(definition, "memlift"));
        }
    }
    Ok((store.bytes() + raw as usize * PAGE_BYTES, raw))
}

/// Returns the sum of the sizes to which LZ4 packs the pages.
fn theirs(definition: &Definition, pages: &[Page]) -> Result<usize, BenchError> {
    let mut lz4 = Lz4::new();
    let (mut target, mut again) = (vec![0; lz4::bound(PAGE_BYTES)], [0; PAGE_BYTES]);
    let mut sum = 0;
    for source in pages {
        let bytes = lz4.pack(source, &mut target).map_err(|_| wrong(definition, "lz4"))?;
        lz4.unpack(&target[..bytes], &mut again).map_err(|_| wrong(definition, "lz4"))?;
        if again != *source {
            return Err(wrong(definition, "lz4"));
        }
        sum += if bytes > MAX_PACKED_BYTES { PAGE_BYTES } else { bytes };
    }
    Ok(sum)
}

/// Measures one row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let name = definition.name.trim_start_matches("ratio/");
    let (name, effort) = match name.strip_suffix("/cold") {
        Some(name) => (name, Effort::Cold),
        None => (name, Effort::Fast),
    };
    let corpora = corpora(name).ok_or_else(|| super::unknown(definition))?;
    let (mut pairs, mut raw): (Vec<Pair>, u64) = (Vec::new(), 0);
    let (seeds, count) = if quick { (2, 256) } else { (SEEDS, PAGES) };
    for seed in 1..=seeds {
        let pages: Vec<Page> =
            corpora.iter().flat_map(|corpus| corpus.pages(count / corpora.len(), seed)).collect();
        let (bytes, left) = ours(definition, &pages, effort)?;
        let whole = (pages.len() * PAGE_BYTES) as f64;
        // The smaller the better, as with times.
        pairs.push((bytes as f64 / whole, theirs(definition, &pages)? as f64 / whole));
        raw = left * 100 / pages.len() as u64;
    }
    let mut row = Row::new(definition).measured(definition, &pairs, quick);
    row.ours = row.ours.map(f64::recip);
    row.theirs = row.theirs.map(f64::recip);
    row.count.insert("left_alone_percent".to_owned(), raw);
    row.qualifies = format!(
        "{} pages a seed, {seeds} seeds; ours: memory of the store to the page, tables included; lz4: the packed bytes alone; \
         both leave alone what is not 1.15 times smaller",
        count
    );
    Ok(row)
}
