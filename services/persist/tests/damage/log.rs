// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damage in the log is told from a torn tail: damage is refused and named, a torn tail is left out.
//!
//! - **Method** a pool is copied while its log is full; then one bit of a record is flipped, or the sectors of a group that was
//!   never synced are mixed with what was there before
//! - **Rule** every record but the last is claimed by a later one, so its damage is refused. Sectors of an unsynced group may be
//!   torn in any order: the pool opens with a prefix
//! - **Not here** all images of a power cut: the simulator's tests

use std::path::{Path, PathBuf};

use memlift_persist::check::{Part, check};
use memlift_persist::layout::{HEADS_START, Header, LANES_START, LaneHead};
use memlift_persist::repair::{repair, repair_accepting_loss, repair_in_place_accepting_loss};
use memlift_persist::{
    Domain, Durability, Error, Mechanism, Options, Persist, Pool, Result, TxOptions, View,
};

const VALUES: usize = 64;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Root {
    count: u64,
    values: [u64; VALUES],
}

fn options(mechanism: Mechanism, domain: Domain, lane_bytes: u64) -> Options {
    Options {
        heap_bytes: 0,
        max_bytes: 1 << 20,
        lanes: 3,
        lane_bytes,
        mechanism,
        domain,
        buffered_wait: std::time::Duration::ZERO,
        ..Options::default()
    }
}

/// One more transaction.
fn step(pool: &Pool, durability: Durability) -> Result<()> {
    pool.tx_with(TxOptions { durability, ..TxOptions::default() }, |t| {
        let root = t.root_or(|_| Ok(Root { count: 0, values: [0; VALUES] }))?;
        let root = t.get_mut(root)?;
        root.count += 1;
        root.values[root.count as usize % VALUES] = root.count;
        Ok(())
    })
}

/// How many transactions a pool has; they are the first ones, whole.
fn count(pool: &Pool) -> Result<u64> {
    pool.read(|r| {
        let Some(root) = r.root::<Root>()? else { return Ok(0) };
        let root = r.get(root)?;
        for (at, value) in root.values.iter().enumerate() {
            let wanted = (0..=root.count).rev().find(|one| *one as usize % VALUES == at).unwrap_or(0);
            assert_eq!(*value, wanted, "value {at} of {} transactions", root.count);
        }
        Ok(root.count)
    })
}

fn open(path: &Path, domain: Domain) -> Result<Pool> {
    Pool::open(path, &Options { domain, max_bytes: 1 << 20, ..Options::default() })
}

/// A record that waits in the log: place in the file, bytes, sequence; of a WRAP the sequence is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waiting {
    at: usize,
    bytes: usize,
    sequence: u64,
}

fn header(bytes: &[u8]) -> Header {
    let of = |at: usize| Header::decode(&bytes[at..at + 4096]).ok();
    [of(0), of(4096)].into_iter().flatten().max_by_key(|header| header.generation).expect("a header")
}

/// The records that wait, by sequence.
fn waiting(bytes: &[u8]) -> Vec<Waiting> {
    let header = header(bytes);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let mut all = Vec::new();
    for lane in 0..header.lanes {
        let heads = [0, 1].map(|turn| {
            let at = LaneHead::offset(lane, turn) as usize;
            LaneHead::decode(bytes[at..at + 64].try_into().expect("64 bytes"))
        });
        let mut position = heads.iter().flatten().map(|head| head.position).max().expect("a head");
        loop {
            let at = (header.lane_start(lane) + position % header.lane_bytes) as usize;
            let length = (word(at) >> 32) as usize;
            if length == 0 || word(at + 8) != position {
                break;
            }
            all.push(Waiting { at, bytes: length, sequence: word(at + 16) });
            let wrap = bytes[at + 25] == 255;
            position += if wrap { header.lane_bytes - position % header.lane_bytes } else { length as u64 };
        }
    }
    all.sort_by_key(|one| one.sequence);
    all
}

struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Folder {
        Folder { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.path("spoilt.pool");
        std::fs::write(&path, bytes).expect("written");
        path
    }
}

/// Places in a record where a bit is flipped: each field of its header, its first entry, its end.
fn places(record: &Waiting) -> Vec<(usize, u8)> {
    let fields = [0, 4, 9, 16, 25, 28, 40, record.bytes - 1];
    fields.iter().map(|field| (record.at + field, 1 << ((field + record.at / 64) % 8))).collect()
}

/// Bytes with one record spoilt are refused, in words; after accepting the loss the pool has `left` transactions.
fn refused(folder: &Folder, bytes: &[u8], domain: Domain, left: Option<u64>, lost: u64) {
    let path = folder.write(bytes);
    let error = open(&path, domain).expect_err("damage is refused");
    let Error::LogDamaged { transactions, .. } = &error else { panic!("{error}") };
    assert_eq!(*transactions, lost, "{error}");
    let command = format!("memlift pool repair --accept-loss {}", path.display());
    assert!(error.to_string().contains(&command), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), bytes, "nothing was stored");
    let report = check(&path).expect("checked");
    assert!(report.damage().any(|one| one.part == Part::Log), "{:?}", report.findings);
    let copy = folder.path("copy.pool");
    let again = repair(&path, &copy).expect_err("refused here as well");
    assert_eq!(again.to_string(), error.to_string());
    let Some(left) = left else { return };
    let repaired = repair_accepting_loss(&path, &copy).expect("repaired");
    assert!(repaired.report.sound(), "{:?}", repaired.report.findings);
    assert!(repaired.changes.iter().any(|one| one.what.contains("as accepted")), "{:?}", repaired.changes);
    assert_eq!(std::fs::read(&path).expect("read"), bytes, "the source is as it was");
    std::fs::remove_file(&copy).expect("removed");
    repair_in_place_accepting_loss(&path).expect("repaired");
    let pool = open(&path, domain).expect("opens");
    assert_eq!(count(&pool).expect("read"), left);
    step(&pool, Durability::Sync).expect("goes on");
    assert_eq!(count(&pool).expect("read"), left + 1);
}

/// Flips bits of each record of `bytes`, a pool of `all` transactions whose log has the last ones.
fn every_record(folder: &Folder, bytes: &[u8], domain: Domain, all: u64) {
    let records = waiting(bytes);
    let (last, claimed) = records.split_last().expect("a record waits");
    let first = all - records.iter().filter(|one| one.sequence != 0).count() as u64;
    let base = last.sequence - all;
    for record in claimed {
        for (at, bit) in places(record) {
            let mut spoilt = bytes.to_vec();
            spoilt[at] ^= bit;
            if record.sequence == 0 {
                // A WRAP says only where the next record is, and that one says that nothing was between.
                let pool = open(&folder.write(&spoilt), domain).expect("opens");
                assert_eq!(count(&pool).expect("read"), all, "a WRAP at {at:#x}");
                continue;
            }
            let left = record.sequence - base - 1;
            assert!(left >= first);
            refused(folder, &spoilt, domain, Some(left), all - left);
        }
    }
    for (at, bit) in places(last) {
        let mut spoilt = bytes.to_vec();
        spoilt[at] ^= bit;
        let pool = open(&folder.write(&spoilt), domain).expect("nobody knows that the last one was whole");
        assert_eq!(count(&pool).expect("read"), all - 1);
    }
}

#[test]
fn each_record_but_the_last_is_claimed_by_a_later_one() {
    for domain in [Domain::Lines, Domain::Pages] {
        for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
            let folder = Folder::new();
            let path = folder.path("a.pool");
            let pool = Pool::create(&path, &options(mechanism, domain, 16 << 10)).expect("created");
            for _ in 0..4 {
                step(&pool, Durability::Sync).expect("committed");
            }
            pool.apply().expect("applied");
            for _ in 0..6 {
                step(&pool, Durability::Sync).expect("committed");
            }
            let bytes = std::fs::read(&path).expect("read");
            assert_eq!(waiting(&bytes).len(), 6, "{mechanism:?} {domain:?}");
            every_record(&folder, &bytes, domain, 10);
        }
    }
}

#[test]
fn a_record_of_a_shadow_pool_is_claimed_as_well() {
    for domain in [Domain::Lines, Domain::Pages] {
        let folder = Folder::new();
        let path = folder.path("a.pool");
        let pool = Pool::create(&path, &options(Mechanism::Shadow, domain, 16 << 10)).expect("created");
        for _ in 0..6 {
            step(&pool, Durability::Sync).expect("committed");
        }
        let bytes = std::fs::read(&path).expect("read");
        let records = waiting(&bytes);
        let (_, claimed) = records.split_last().expect("records");
        assert!(claimed.len() >= 4);
        for record in claimed {
            for (at, bit) in places(record) {
                let mut spoilt = bytes.clone();
                spoilt[at] ^= bit;
                // Later transactions may have had the pages' copies: how many are left cannot be said.
                refused(&folder, &spoilt, domain, None, 7 - record.sequence);
                repair_in_place_accepting_loss(folder.path("spoilt.pool")).expect("repaired");
                open(&folder.path("spoilt.pool"), domain).expect("opens");
            }
        }
    }
}

#[test]
fn a_log_that_wraps_is_claimed_over_its_end() {
    for domain in [Domain::Lines, Domain::Pages] {
        let (folder, mut wraps) = (Folder::new(), 0);
        let path = folder.path("a.pool");
        let pool = Pool::create(&path, &options(Mechanism::Redo, domain, 4096)).expect("created");
        for done in 1..=120 {
            step(&pool, Durability::Sync).expect("committed");
            let bytes = std::fs::read(&path).expect("read");
            let records = waiting(&bytes);
            // Sorted by sequence, a WRAP comes first; it counts when records follow it.
            if records.len() > 3 && records[0].sequence == 0 && wraps < 1 {
                wraps += 1;
                every_record(&folder, &bytes, domain, done);
            }
        }
        assert!(wraps > 0, "{domain:?}");
    }
}

#[test]
fn lanes_vouch_for_each_other() {
    let folder = Folder::new();
    let path = folder.path("a.pool");
    let domain = Domain::Lines;
    let pool = Pool::create(&path, &options(Mechanism::Redo, domain, 16 << 10)).expect("created");
    for _ in 0..3 {
        step(&pool, Durability::Sync).expect("committed");
        std::thread::scope(|scope| scope.spawn(|| step(&pool, Durability::Sync)).join().expect("joined"))
            .expect("committed");
        step(&pool, Durability::Group).expect("committed");
    }
    let bytes = std::fs::read(&path).expect("read");
    let lane_bytes = header(&bytes).lane_bytes as usize;
    let lanes: std::collections::BTreeSet<usize> =
        waiting(&bytes).iter().map(|one| (one.at - LANES_START as usize) / lane_bytes).collect();
    assert!(lanes.len() > 1, "{lanes:?}");
    every_record(&folder, &bytes, domain, 9);
}

/// Pieces of `after` where they differ from `before`, each there or not as the bits of a seeded generator say.
fn torn(before: &[u8], after: &[u8], piece: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut image = before.to_vec();
    for at in (0..after.len()).step_by(piece).filter(|at| before[*at..at + piece] != after[*at..at + piece]) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state >> 40 & 1 == 1 {
            image[at..at + piece].copy_from_slice(&after[at..at + piece]);
        }
    }
    image
}

#[test]
fn an_unsynced_group_may_be_torn_in_any_order() {
    const SYNCED: u64 = 4;
    const GROUP: u64 = 12;
    for (domain, piece) in [(Domain::Pages, 512), (Domain::Pages, 4096), (Domain::Lines, 64)] {
        for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
            let folder = Folder::new();
            let path = folder.path("a.pool");
            let pool = Pool::create(&path, &options(mechanism, domain, 64 << 10)).expect("created");
            for _ in 0..SYNCED {
                step(&pool, Durability::Sync).expect("committed");
            }
            let before = std::fs::read(&path).expect("read");
            for _ in 0..GROUP {
                step(&pool, Durability::Buffered).expect("committed");
            }
            pool.sync().expect("synced");
            let after = std::fs::read(&path).expect("read");
            let mut opened = std::collections::BTreeSet::new();
            for seed in 0..150 {
                let image = torn(&before, &after, piece, seed);
                let pool = open(&folder.write(&image), domain)
                    .unwrap_or_else(|error| panic!("{mechanism:?} {domain:?} {piece} {seed}: {error}"));
                let found = count(&pool).expect("read");
                assert!((SYNCED..=SYNCED + GROUP).contains(&found), "{found}");
                opened.insert(found);
                drop(pool);
                if seed % 10 == 0 && found < SYNCED + GROUP {
                    // Of what was synced before, a bit is damage also behind a torn group.
                    let mut spoilt = image.clone();
                    let first = waiting(&before)[0];
                    spoilt[first.at + 40] ^= 4;
                    let error = open(&folder.write(&spoilt), domain).expect_err("refused");
                    assert!(matches!(error, Error::LogDamaged { .. }), "{error}");
                }
            }
            assert!(mechanism == Mechanism::Checkpoint || opened.len() > 1, "{opened:?}");
        }
    }
}

#[test]
fn before_images_of_a_transaction_under_way_are_not_lost_in_silence() {
    for domain in [Domain::Lines, Domain::Pages] {
        let folder = Folder::new();
        let (path, copy) = (folder.path("a.pool"), folder.path("b.pool"));
        let pool = Pool::create(&path, &options(Mechanism::Undo, domain, 16 << 10)).expect("created");
        let objects: Vec<_> = (0..5u64).map(|one| pool.tx(|t| t.alloc([one; 8])).expect("made")).collect();
        let aborted: Result<()> = pool.tx(|t| {
            for object in &objects {
                *t.get_mut(*object)? = [u64::MAX; 8];
            }
            std::fs::copy(&path, &copy).expect("copied");
            Err(Error::Aborted("as intended".to_owned()))
        });
        assert!(matches!(aborted, Err(Error::Aborted(_))));
        let bytes = std::fs::read(&copy).expect("read");
        let records = waiting(&bytes);
        assert_eq!(records.len(), 5);
        let values = |path: &Path| {
            let pool = open(path, domain).expect("opens");
            pool.read(|r| {
                objects.iter().map(|one| r.get(*one).map(|value| value[0])).collect::<Result<Vec<u64>>>()
            })
            .expect("read")
        };
        assert_eq!(values(&folder.write(&bytes)), [0, 1, 2, 3, 4], "undone");
        for (lost, record) in records[..4].iter().enumerate() {
            let mut spoilt = bytes.clone();
            spoilt[record.at + 40] ^= 1;
            let path = folder.write(&spoilt);
            let error = open(&path, domain).expect_err("refused");
            assert!(matches!(error, Error::LogDamaged { .. }), "{error}");
            repair_in_place_accepting_loss(&path).expect("repaired");
            let mut wanted = [0, 1, 2, 3, 4];
            wanted[lost] = u64::MAX;
            assert_eq!(values(&path), wanted, "all but the one whose before-image is lost");
        }
    }
}

#[test]
fn a_lost_newer_head_leads_to_no_silent_loss() {
    let folder = Folder::new();
    let path = folder.path("a.pool");
    let domain = Domain::Pages;
    let pool = Pool::create(&path, &options(Mechanism::Redo, domain, 4096)).expect("created");
    let (mut all, mut rounds) = (0, 0);
    while all < 400 {
        step(&pool, Durability::Sync).expect("committed");
        all += 1;
        let bytes = std::fs::read(&path).expect("read");
        if waiting(&bytes).iter().filter(|one| one.sequence != 0).count() < 2 {
            continue;
        }
        for turn in 0..2 {
            let mut spoilt = bytes.clone();
            spoilt[LaneHead::offset(0, turn) as usize + 9] ^= 1;
            let path = folder.write(&spoilt);
            match open(&path, domain) {
                Ok(pool) => assert_eq!(count(&pool).expect("read"), all, "head {turn}"),
                Err(Error::LogDamaged { .. }) => {
                    rounds += 1;
                    let mended = folder.path("mended.pool");
                    let repaired = repair(&path, &mended).expect("the log says where it starts");
                    assert!(!repaired.changes.is_empty());
                    let pool = open(&mended, domain).expect("opens");
                    assert_eq!(count(&pool).expect("read"), all, "{:?}", repaired.changes);
                    std::fs::remove_file(&mended).expect("removed");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(rounds > 0, "the older head's records were overwritten at times");
    assert_eq!(HEADS_START, LaneHead::offset(0, 0));
}
