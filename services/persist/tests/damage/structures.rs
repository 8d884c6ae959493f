// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damage in what memlift itself keeps: tables of Python and C, the store of `serve`. `check` sees it, `repair` mends what can be
//! made anew from what is intact.
//!
//! - **Method** a small pool of each is closed; one bit is flipped, in bitmaps and links in turn
//! - **Not here** checksums of pages, which see damage anywhere: `pages`

use std::path::{Path, PathBuf};

use memlift_persist::check::{Part, check};
use memlift_persist::kv::Kv;
use memlift_persist::layout::{Entry, Header, SLAB_BYTES, slots};
use memlift_persist::raw::{Table, root, root_or};
use memlift_persist::repair::repair;
use memlift_persist::{Durability, Error, Mechanism, Options, Pool, Result, View};

const KEYS: u64 = 60;

fn options(mechanism: Mechanism, sections: u32) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 1 << 20,
        lanes: 2,
        lane_bytes: 64 << 10,
        sections,
        mechanism,
        ..Options::default()
    }
}

fn open(path: &Path) -> Result<Pool> {
    Pool::open(path, &Options { max_bytes: 1 << 20, ..Options::default() })
}

fn key(at: u64) -> Vec<u8> {
    format!("key {at}").into_bytes()
}

fn value(at: u64) -> Vec<u8> {
    format!("value {at} ").into_bytes().repeat(3)
}

/// A table of names, and another one that only a value names.
fn tables(path: &Path, mechanism: Mechanism) -> Result<()> {
    let pool = Pool::create(path, &options(mechanism, 1))?;
    for at in 0..KEYS {
        pool.tx(|t| {
            let place = root_or(t)?;
            let mut names = t.get(place)?.names;
            if names == 0 {
                names = Table::create(t)?.offset();
                t.get_mut(place)?.names = names;
                let other = Table::create(t)?;
                Table::at(names).put(t, b"other", &other.offset().to_le_bytes())?;
            }
            let other = Table::at(names).get(t, b"other")?.expect("put").try_into().expect("8 bytes");
            Table::at(u64::from_le_bytes(other)).put(t, &key(at), &value(at))?;
            Table::at(names).put(t, &key(at), &value(at)).map(drop)
        })?;
    }
    // Slots that were in use.
    pool.tx(|t| Table::at(root(t)?.names).remove(t, &key(KEYS - 1)).map(drop))?;
    pool.close()
}

fn tables_are_whole(path: &Path) -> Result<()> {
    let pool = open(path)?;
    pool.read(|r| {
        let names = Table::at(root(r)?.names);
        let other = names.get(r, b"other")?.expect("kept").try_into().expect("8 bytes");
        for (table, count) in [(names, KEYS - 1), (Table::at(u64::from_le_bytes(other)), KEYS)] {
            table.check(r)?;
            for at in 0..count {
                assert_eq!(table.get(r, &key(at))?, Some(&value(at)[..]));
            }
        }
        Ok::<_, Error>(())
    })
}

fn store(path: &Path, mechanism: Mechanism) -> Result<()> {
    let pool = Pool::create(path, &options(mechanism, 3))?;
    let store = Kv::open(&pool, Durability::Sync)?;
    for at in 0..KEYS {
        store.set(&key(at), &value(at), 0)?;
        store.set(&[&key(at)[..], b" of a longer name"].concat(), &value(at), 0)?;
    }
    store.remove(&[&key(0)[..]])?;
    pool.close()
}

fn store_is_whole(path: &Path) -> Result<()> {
    let pool = open(path)?;
    let store = Kv::open(&pool, Durability::Sync)?;
    for at in 1..KEYS {
        assert_eq!(store.get(&key(at))?, Some(value(at)));
        assert_eq!(store.get(&[&key(at)[..], b" of a longer name"].concat())?, Some(value(at)));
    }
    Ok(())
}

fn header(bytes: &[u8]) -> Header {
    let of = |at: usize| Header::decode(&bytes[at..at + 4096]).ok();
    [of(0), of(4096)].into_iter().flatten().max_by_key(|header| header.generation).expect("a header")
}

/// Slabs of slots: where they start in the file, and the bytes from slot to slot. Not of shadow pools.
fn slabs(bytes: &[u8]) -> Vec<(usize, u64)> {
    let header = header(bytes);
    let word = |at: u64| {
        let at = (header.heap_start + at) as usize;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let all = (0..header.heap_bytes / SLAB_BYTES).map(|slab| {
        let place = Entry::offset(slab);
        (slab, Entry::from_words([word(place), word(place + 8)]))
    });
    all.filter(|(_, entry)| entry.state == Entry::SLOTS)
        .map(|(slab, entry)| ((header.heap_start + slab * SLAB_BYTES) as usize, entry.stride.into()))
        .collect()
}

struct Work {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Work {
    fn new(make: impl FnOnce(&Path) -> Result<()>) -> Work {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.pool");
        make(&path).expect("made");
        let report = check(&path).expect("checked");
        assert!(report.sound(), "{:?}", report.findings);
        let bytes = std::fs::read(&path).expect("read");
        Work { folder, bytes }
    }

    fn spoilt(&self, at: usize, bit: u8) -> PathBuf {
        let mut bytes = self.bytes.clone();
        bytes[at] ^= 1 << bit;
        let path = self.folder.path().join("spoilt.pool");
        std::fs::write(&path, bytes).expect("written");
        path
    }

    fn seen(&self, path: &Path, what: &str) {
        let report = check(path).expect("checked");
        assert!(!report.sound(), "{what}: check sees nothing");
    }
}

/// Flips bits of each bitmap, one in `step`, and repairs after one flip in `step`.
fn bits_of_the_bitmaps(work: &Work, step: usize, whole: impl Fn(&Path) -> Result<()>) {
    let mut flipped = 0;
    for (start, stride) in slabs(&work.bytes) {
        let count = slots(stride).0 as usize;
        for slot in (0..8.min(count)).chain((8..count).step_by(step)) {
            let path = work.spoilt(start + slot / 8, (slot % 8) as u8);
            let what = format!("slot {slot} of {stride} bytes");
            work.seen(&path, &what);
            flipped += 1;
            if flipped % step != 0 {
                continue;
            }
            let mended = work.folder.path().join("mended.pool");
            let repaired = repair(&path, &mended).expect("repaired");
            assert!(repaired.changes.iter().any(|one| one.part == Part::Bitmap), "{what}");
            assert!(repaired.report.sound(), "{what}: {:?}", repaired.report.findings);
            whole(&mended).unwrap_or_else(|error| panic!("{what}: {error}"));
            std::fs::remove_file(&mended).expect("removed");
        }
    }
    assert!(flipped > 40, "{flipped}");
}

#[test]
fn a_bit_of_a_bitmap_under_a_table_is_seen_and_mended() {
    bits_of_the_bitmaps(&Work::new(|path| tables(path, Mechanism::Redo)), 13, tables_are_whole);
}

#[test]
fn a_bit_of_a_bitmap_under_a_store_is_seen_and_mended() {
    bits_of_the_bitmaps(&Work::new(|path| store(path, Mechanism::Redo)), 13, store_is_whole);
}

#[test]
#[ignore = "minutes"]
fn soak_each_bit_of_the_bitmaps_is_seen_and_mended() {
    bits_of_the_bitmaps(&Work::new(|path| tables(path, Mechanism::Redo)), 1, tables_are_whole);
    bits_of_the_bitmaps(&Work::new(|path| store(path, Mechanism::Redo)), 1, store_is_whole);
}

#[test]
fn sound_pools_of_each_mechanism_are_sound() {
    for mechanism in Mechanism::ALL {
        Work::new(|path| tables(path, mechanism));
        Work::new(|path| store(path, mechanism));
    }
}

#[test]
fn a_bit_of_a_link_of_a_table_is_seen() {
    let work = Work::new(|path| tables(path, Mechanism::Redo));
    let mut flipped = 0;
    let word = |at: usize| u64::from_le_bytes(work.bytes[at..at + 8].try_into().expect("8 bytes"));
    for (start, stride) in slabs(&work.bytes) {
        let (count, first) = slots(stride);
        for slot in 0..count as usize {
            let used = work.bytes[start + slot / 8] >> (slot % 8) & 1 == 1;
            let place = start + first as usize + slot * stride as usize;
            // Entries are of 96 and 112 bytes, heads and segments of others.
            if !used || !(96..=112).contains(&stride) {
                continue;
            }
            assert_ne!(word(place), 0);
            // Chain, previous, next and hash, behind type and length.
            for at in (0..48).step_by(5) {
                let path = work.spoilt(place + at, ((at + slot) % 8) as u8);
                work.seen(&path, &format!("byte {at} of slot {slot} of {stride} bytes"));
                flipped += 1;
            }
        }
    }
    assert!(flipped > 100, "{flipped}");
}
