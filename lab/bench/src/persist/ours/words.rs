// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that is killed: it counts words in an ordered map of a pool, one transaction per word.
//!
//! - **Write** opens or creates the pool, goes on with the word after those that it has, and writes how many they are to stdout once
//!   each is durable
//! - **Read** opens the pool again ─▶ one JSON line: seconds of opening, transactions recovered, guarantee, and per word how often it
//!   came and at which number last
//! - **Words** one a line, [`WORD_BYTES`] bytes at most; longer ones are cut
//! - **Not here** killing and comparing: tour/persist_chapter.py

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use memlift_persist::structures::{BTree, BTreeRoot};
use memlift_persist::{Options, Persist, Pool, View};
use serde_json::json;

use super::failed;
use crate::BenchError;
use crate::persist::serve;

const WORD_BYTES: usize = 32;

type Word = [u8; WORD_BYTES];

/// Count of a word, and the number of its last occurrence in the text.
#[derive(Clone, Copy, Debug, Default, Persist)]
#[repr(C)]
struct Seen {
    count: u64,
    last: u64,
}

type Words = BTree<Word, Seen>;

fn word(text: &str) -> Word {
    let mut word = [0; WORD_BYTES];
    let bytes = text.as_bytes();
    let length = bytes.len().min(WORD_BYTES);
    word[..length].copy_from_slice(&bytes[..length]);
    word
}

fn map<W: View>(view: &W) -> Result<Option<Words>, memlift_persist::Error> {
    Ok(view.root::<BTreeRoot<Word, Seen>>()?.map(Words::open))
}

fn options() -> Options {
    Options { heap_bytes: 32 << 20, max_bytes: 1 << 30, ..Options::default() }
}

/// Counts the words of a text until they are all counted, or it is killed.
pub fn write(pool: &Path, text: &Path) -> Result<(), BenchError> {
    let text = fs::read_to_string(text).map_err(BenchError::file(text))?;
    let pool = Pool::open_or_create(pool, &options()).map_err(failed)?;
    let words = pool.tx(|t| match map(t)? {
        Some(words) => Ok(words),
        None => {
            let words = Words::create(t)?;
            t.set_root(words.pointer())?;
            Ok(words)
        }
    });
    let words = words.map_err(failed)?;
    let done =
        pool.read(|r| words.iter(r)?.try_fold(0, |sum, entry| entry.map(|(_, seen)| sum + seen.count)));
    let done = done.map_err(failed)?;
    let mut stdout = std::io::stdout().lock();
    for (number, text) in (1..).zip(text.lines()).skip(done as usize) {
        let committed = pool.tx(|t| {
            let word = word(text);
            let count = words.get(t, &word)?.map_or(0, |seen| seen.count) + 1;
            words.insert(t, &word, Seen { count, last: number }).map(drop)
        });
        committed.map_err(failed)?;
        writeln!(stdout, "{number}")
            .and_then(|()| stdout.flush())
            .map_err(BenchError::system("acknowledging"))?;
    }
    Ok(())
}

/// Prints the words that are in a pool.
pub fn read(pool: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    let pool = Pool::open(pool, &options()).map_err(failed)?;
    let open_s = start.elapsed().as_secs_f64();
    let entries = pool.read(|r| {
        let Some(words) = map(r)? else { return Ok(BTreeMap::new()) };
        words.iter(r)?.map(|entry| entry.map(|(word, seen)| (text(word), [seen.count, seen.last]))).collect()
    });
    let entries = entries.map_err(failed)?;
    let recovered = pool.recovered().transactions;
    let guarantee = pool.guarantee().to_string();
    serve::answer(
        &json!({"open_s": open_s, "recovered": recovered, "guarantee": guarantee, "entries": entries}),
    )
}

fn text(word: &Word) -> String {
    String::from_utf8_lossy(word).trim_end_matches('\0').to_owned()
}
