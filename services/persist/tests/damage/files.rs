// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that something spoilt: a pool opens with what was acknowledged, or says clearly why not; no tool panics over one.
//!
//! - **Method** the sample pool, closed or with its log full, is changed in one place; then opened, read, written, checked,
//!   repaired
//! - **Rule** content that has a checksum or is said twice is intact or refused. A damaged log record is refused when a later one
//!   claims it (`damage::log`); the last one counts as never written, so a prefix is left. Objects have no checksum
//!   (docs/formats/pool.md): with damage there an answer may be wrong, but no call panics
//! - **Not here** a crash in the middle: the simulator's tests

use crate::sample;
use std::path::{Path, PathBuf};

use memlift_persist::check::check;
use memlift_persist::dump::{Filter, dump};
use memlift_persist::layout::{
    CATALOG_START, Entry, HEADER_BYTES, HEADS_START, Header, LANES_START, LaneHead, SUPERBLOCK_OFFSET, crc32c,
};
use memlift_persist::repair::{repair, repair_in_place};
use memlift_persist::{Error, Mechanism, Options, Pool, Result};
use proptest::prelude::*;

/// The sample pool's bytes, closed and with its log full.
fn sample_bytes(mechanism: Mechanism) -> [Vec<u8>; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
    sample::build(&path, mechanism, Some(&copy)).expect("built").close().expect("closed");
    [path, copy].map(|path| std::fs::read(path).expect("read"))
}

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("spoilt.pool");
    Place { _folder: folder, path }
}

fn open(path: &Path) -> Result<Pool> {
    Pool::open(
        path,
        &Options { domain: memlift_persist::Domain::Lines, max_bytes: 1 << 20, ..Options::default() },
    )
}

/// Opens, reads and writes; what was read.
fn use_it(path: &Path) -> Result<Vec<u64>> {
    let pool = open(path)?;
    let keys = sample::keys(&pool)?;
    pool.tx(|t| t.alloc(1u64))?;
    pool.close()?;
    Ok(keys)
}

/// All tools over a file; whatever they say, they say it.
fn tools(path: &Path) {
    let _ = check(path);
    let _ = dump(path, &Filter::default(), |_| true);
    let target = path.with_extension("repaired");
    if let Ok(repaired) = repair(path, &target) {
        open(&target).unwrap_or_else(|error| panic!("{error} after repair: {:?}", repaired.changes));
        std::fs::remove_file(&target).expect("removed");
    }
}

/// A byte of the file in another way each time.
fn spoil(bytes: &mut [u8], at: usize) {
    bytes[at] ^= 1 << ((at * 5 + at / 8) % 8);
}

fn newest(bytes: &[u8]) -> Header {
    let of = |at: usize| Header::decode(&bytes[at..at + HEADER_BYTES as usize]).ok();
    [of(0), of(4096)].into_iter().flatten().max_by_key(|header| header.generation).expect("a header")
}

/// Lengths of what is in use, by its start.
fn regions(bytes: &[u8]) -> Vec<(&'static str, usize, usize)> {
    let header = newest(bytes);
    let used = |start: u64, most: u64| {
        let part = &bytes[start as usize..(start + most) as usize];
        part.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    };
    let heap = header.heap_start;
    vec![
        ("header", 0, 128),
        ("header", 4096, 128),
        ("heads", HEADS_START as usize, (LaneHead::offset(2, 0) - HEADS_START) as usize),
        ("catalog", CATALOG_START as usize, used(CATALOG_START, LANES_START - CATALOG_START)),
        (
            "log",
            LANES_START as usize + header.lane_bytes as usize,
            used(LANES_START + header.lane_bytes, header.lane_bytes),
        ),
        ("directory", (heap + Entry::offset(5)) as usize, 3 * 16),
        ("root", (heap + SUPERBLOCK_OFFSET) as usize, 16),
        ("bitmap", (heap + 5 * (16 << 10)) as usize, 128),
        ("objects", (heap + 5 * (16 << 10)) as usize + 128, 512),
    ]
}

#[test]
fn each_byte_of_a_closed_pool_may_be_spoilt() {
    let [closed, _] = sample_bytes(Mechanism::Redo);
    let place = place();
    std::fs::write(&place.path, &closed).expect("written");
    let sound = check(&place.path).expect("checked");
    for (what, start, length) in regions(&closed).into_iter().filter(|(what, ..)| *what != "log") {
        for at in start..start + length {
            let mut bytes = closed.clone();
            spoil(&mut bytes, at);
            std::fs::write(&place.path, &bytes).expect("written");
            let found = check(&place.path);
            match (use_it(&place.path), what) {
                (Ok(keys), "header" | "heads" | "catalog" | "directory") => {
                    assert_eq!(keys, sample::all(), "{what} byte {at}");
                }
                (Err(error), "header" | "heads") => {
                    panic!("{what} byte {at}: the other copy is good: {error}")
                }
                (Err(error), _) => assert!(!error.to_string().is_empty()),
                (Ok(_), _) => {}
            }
            let report = found.unwrap_or_else(|error| panic!("{what} byte {at}: {error}"));
            let seen = !report.findings.iter().all(|one| one.what.contains("points to 1 of Large"));
            // Zeros that pad the catalog's texts are nobody's.
            let needed = matches!(what, "heads" | "directory") || report.types != sound.types;
            assert!(seen || !needed, "{what} byte {at}: check sees nothing");
        }
    }
}

#[test]
fn a_spoilt_log_record_is_refused_or_counts_as_never_written() {
    let mut refused = 0;
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
        let [_, waiting] = sample_bytes(mechanism);
        let place = place();
        let lanes = [0, 1].map(|lane| (LANES_START + lane * (64 << 10)) as usize);
        for lane in lanes {
            let length =
                waiting[lane..lane + (64 << 10)].iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            for at in (lane..lane + length).step_by(29) {
                let mut bytes = waiting.clone();
                spoil(&mut bytes, at);
                std::fs::write(&place.path, &bytes).expect("written");
                let report = check(&place.path).expect("checked");
                let keys = match use_it(&place.path) {
                    Ok(keys) => keys,
                    Err(Error::LogDamaged { .. }) => {
                        assert!(!report.sound(), "{mechanism:?} byte {at}: check sees nothing");
                        refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{mechanism:?} byte {at}: {error}"),
                };
                assert!(report.sound(), "{mechanism:?} byte {at}: {:?}", report.findings);
                let all = sample::all();
                let lost = all.len() - keys.len();
                assert!(lost <= 1 && keys == all[lost..], "{mechanism:?} byte {at}: {keys:?}");
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn the_newest_header_may_be_spoilt_while_the_log_is_full() {
    for mechanism in Mechanism::ALL {
        let [_, waiting] = sample_bytes(mechanism);
        let place = place();
        for at in (0..128).chain(4096..4096 + 128) {
            let mut bytes = waiting.clone();
            spoil(&mut bytes, at);
            std::fs::write(&place.path, &bytes).expect("written");
            if let Ok(keys) = use_it(&place.path) {
                assert_eq!(
                    keys,
                    sample::all(),
                    "{mechanism:?} byte {at}: acknowledged, gone, and nobody said so"
                );
            }
        }
    }
}

#[test]
fn repair_finds_the_epoch_of_a_lost_header_in_the_log() {
    for mechanism in Mechanism::ALL {
        let [_, waiting] = sample_bytes(mechanism);
        let place = place();
        let newest = newest(&waiting);
        let mut bytes = waiting.clone();
        let older = Header { generation: newest.generation - 1, epoch: newest.epoch - 1, ..newest };
        let at = (older.generation % 2 * HEADER_BYTES) as usize;
        bytes[at..at + 128].copy_from_slice(&older.encode());
        spoil(&mut bytes, (newest.generation % 2 * HEADER_BYTES) as usize + 30);
        std::fs::write(&place.path, &bytes).expect("written");
        let report = check(&place.path).expect("checked");
        let seen = report.damage().any(|one| one.what.contains("the newest one is lost"));
        assert!(seen, "{mechanism:?}: {:?}", report.findings);
        let target = place.path.with_extension("good");
        let repaired = repair(&place.path, &target).expect("repaired");
        assert_eq!(use_it(&target).expect("opens"), sample::all(), "{mechanism:?}: {:?}", repaired.changes);
    }
}

#[test]
fn repair_brings_back_what_is_said_twice() {
    let [closed, waiting] = sample_bytes(Mechanism::Redo);
    let place = place();
    for bytes in [&closed, &waiting] {
        for (what, start, length) in regions(bytes) {
            if !matches!(what, "heads" | "directory" | "bitmap") {
                continue;
            }
            for at in start..start + length {
                let mut spoilt = bytes.clone();
                spoil(&mut spoilt, at);
                if what == "heads" {
                    // Both heads of a lane.
                    let other = HEADS_START as usize + ((at - HEADS_START as usize) ^ 64);
                    spoil(&mut spoilt, other);
                }
                std::fs::write(&place.path, &spoilt).expect("written");
                let target = place.path.with_extension("good");
                let repaired =
                    repair(&place.path, &target).unwrap_or_else(|error| panic!("{what} byte {at}: {error}"));
                let keys = use_it(&target)
                    .unwrap_or_else(|error| panic!("{what} byte {at}: {error} {:?}", repaired.changes));
                assert_eq!(keys, sample::all(), "{what} byte {at}: {:?}", repaired.changes);
                assert!(repaired.report.sound(), "{what} byte {at}: {:?}", repaired.report.findings);
                assert_eq!(std::fs::read(&place.path).expect("read"), spoilt, "the source is as it was");
                std::fs::remove_file(&target).expect("removed");
            }
        }
    }
}

#[test]
fn a_truncated_pool_is_refused_and_repaired_as_far_as_it_goes() {
    for mechanism in Mechanism::ALL {
        for bytes in sample_bytes(mechanism) {
            let place = place();
            for length in (0..bytes.len()).step_by(4096) {
                std::fs::write(&place.path, &bytes[..length]).expect("written");
                let error = use_it(&place.path).expect_err("bytes are missing");
                assert!(matches!(error, Error::Corrupt { .. } | Error::NotAPool), "{length}: {error}");
                if length as u64 >= LANES_START {
                    let report = check(&place.path).expect("checked");
                    assert!(report.damage().any(|one| one.what.contains("truncated")), "{length}");
                }
                if length / 4096 % 4 == 0 {
                    tools(&place.path);
                }
            }
        }
    }
}

fn with_header(bytes: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for start in [0, HEADER_BYTES as usize] {
        let header = &mut bytes[start..start + 128];
        change(header);
        let crc = crc32c(&[&header[..8], &header[12..]]);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[test]
fn other_versions_features_and_files_are_named() {
    let [closed, _] = sample_bytes(Mechanism::Redo);
    let place = place();
    let refused = |bytes: &[u8]| {
        std::fs::write(&place.path, bytes).expect("written");
        tools(&place.path);
        let checked = check(&place.path).map(|_| ()).map_err(|error| error.to_string());
        let opened = use_it(&place.path).expect_err("refused");
        assert_eq!(checked, Err(opened.to_string()), "check says the same");
        opened
    };
    let version = with_header(&closed, |header| header[12] = 2);
    assert!(matches!(refused(&version), Error::Version { found: 2, known: 1 }));
    let feature = with_header(&closed, |header| header[48] = 16);
    assert!(matches!(refused(&feature), Error::Feature { bits: 16 }));
    assert!(matches!(refused(&vec![b'x'; 400_000]), Error::NotAPool));
    assert!(matches!(refused(b""), Error::NotAPool));
    std::fs::write(&place.path, b"hello").expect("written");
    assert!(matches!(check(&place.path), Err(Error::NotAPool)));
    assert!(matches!(use_it(&place.path), Err(Error::NotAPool | Error::Corrupt { .. })));
    let nonsense: [fn(&mut [u8]); 8] = [
        |header| header[16..24].copy_from_slice(&u64::MAX.to_le_bytes()),
        |header| header[88..96].copy_from_slice(&u64::MAX.to_le_bytes()),
        |header| header[64..72].copy_from_slice(&(1u64 << 33).to_le_bytes()),
        |header| header[56..60].copy_from_slice(&u32::MAX.to_le_bytes()),
        |header| header[64..72].copy_from_slice(&u64::MAX.to_le_bytes()),
        |header| header[72..80].copy_from_slice(&(u64::MAX - 4095).to_le_bytes()),
        |header| header[80..88].copy_from_slice(&(1u64 << 62).to_le_bytes()),
        |header| header[52] = 77,
    ];
    for (at, change) in nonsense.into_iter().enumerate() {
        std::fs::write(&place.path, with_header(&closed, change)).expect("written");
        assert!(matches!(use_it(&place.path), Err(Error::Corrupt { .. })), "{at}");
        assert!(!check(&place.path).expect("checked").sound(), "{at}");
        assert!(matches!(repair_in_place(&place.path), Err(Error::Corrupt { .. })), "{at}");
    }
}

#[test]
fn unknown_features_for_writing_leave_a_pool_readable() {
    let [closed, waiting] = sample_bytes(Mechanism::Redo);
    let place = place();
    for bytes in [&closed, &waiting] {
        let newer = with_header(bytes, |header| header[44] = 8);
        std::fs::write(&place.path, &newer).expect("written");
        assert!(matches!(open(&place.path), Err(Error::Feature { bits: 8 })));
        assert!(matches!(repair_in_place(&place.path), Err(Error::Feature { bits: 8 })));
        let read_only = Options { read_only: true, ..Options::default() };
        let pool = Pool::open(&place.path, &read_only).expect("opened for reading");
        assert_eq!(sample::keys(&pool).expect("read"), sample::all());
        drop(pool);
        assert_eq!(std::fs::read(&place.path).expect("read"), newer, "nothing was written");
    }
}

#[test]
fn a_pool_for_reading_is_not_written_to() {
    let [closed, waiting] = sample_bytes(Mechanism::Redo);
    let place = place();
    let read_only = Options { read_only: true, ..Options::default() };
    std::fs::write(&place.path, &closed).expect("written");
    let pool = Pool::open(&place.path, &read_only).expect("opened");
    assert_eq!(sample::keys(&pool).expect("read"), sample::all());
    assert!(matches!(pool.tx(|t| t.alloc(1u64)), Err(Error::ReadOnly)));
    assert!(matches!(open(&place.path), Err(Error::InUse { .. })), "nobody writes meanwhile");
    assert!(check(&place.path).expect("two may read").sound());
    drop(pool);
    assert_eq!(std::fs::read(&place.path).expect("read"), closed);
    drop(waiting);
    for mechanism in Mechanism::ALL {
        let [_, waiting] = sample_bytes(mechanism);
        std::fs::write(&place.path, &waiting).expect("written");
        for _ in 0..2 {
            let pool = Pool::open(&place.path, &read_only).expect("recovered in memory");
            assert!(pool.recovered().transactions > 0, "{mechanism:?}");
            assert_eq!(sample::keys(&pool).expect("read"), sample::all(), "{mechanism:?}");
            assert!(matches!(pool.tx(|t| t.alloc(1u64)), Err(Error::ReadOnly)));
            pool.apply().expect("nothing to do");
            pool.close().expect("closed");
            assert_eq!(std::fs::read(&place.path).expect("read"), waiting, "{mechanism:?}");
        }
    }
}

#[test]
fn other_files_are_no_damaged_pools() {
    let place = place();
    for bytes in [&b"a"[..], b"text of a few words\n", &[b'x'; 5000], &[b'x'; 200_000], b""] {
        std::fs::write(&place.path, bytes).expect("written");
        for read_only in [false, true] {
            let options = Options { read_only, max_bytes: 1 << 20, ..Options::default() };
            let error = Pool::open(&place.path, &options).expect_err("no pool");
            assert!(matches!(error, Error::NotAPool), "{} bytes: {error}", bytes.len());
        }
        let error = check(&place.path).expect_err("no pool");
        assert!(matches!(error, Error::NotAPool), "{} bytes: {error}", bytes.len());
    }
}

/// `PROPTEST_CASES` damaged files, or as many as usual.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(150), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_spoilt_the_answer_is_orderly(
        mechanism in 0usize..4,
        waits: bool,
        changes in proptest::collection::vec((0usize..9, any::<u16>(), any::<u8>()), 1..12),
    ) {
        static BYTES: std::sync::OnceLock<Vec<[Vec<u8>; 2]>> = std::sync::OnceLock::new();
        let all = BYTES.get_or_init(|| Mechanism::ALL.iter().map(|one| sample_bytes(*one)).collect());
        let mut bytes = all[mechanism][usize::from(waits)].clone();
        let regions = regions(&bytes);
        for (region, at, value) in changes {
            let (_, start, length) = regions[region];
            let length = length.max(1);
            bytes[start + usize::from(at) % length] = value;
        }
        let place = place();
        std::fs::write(&place.path, &bytes).expect("written");
        tools(&place.path);
        if let Err(error) = use_it(&place.path) {
            prop_assert!(error.to_string().len() > 10);
        }
        tools(&place.path);
    }
}

#[test]
fn an_entry_with_another_size_than_its_type_is_refused_at_open() {
    let [mut bytes, _] = sample_bytes(Mechanism::Redo);
    let header = newest(&bytes);
    let place = (5..header.heap_bytes >> 14)
        .map(|slab| (header.heap_start + Entry::offset(slab)) as usize)
        .find(|at| bytes[at + 6] == Entry::SLOTS && bytes[at + 8..at + 12] == 80u32.to_le_bytes())
        .expect("a slab of nodes");
    bytes[place + 8..place + 12].copy_from_slice(&96u32.to_le_bytes());
    let target = self::place();
    std::fs::write(&target.path, &bytes).expect("written");
    let words = open(&target.path).expect_err("a size that is not the type's").to_string();
    assert!(words.contains("slots of 96 bytes for Node, whose size is 72"), "{words}");
    assert!(words.contains("memlift pool check"), "{words}");
    assert!(check(&target.path).expect("checked").damage().count() > 0);
}

#[test]
fn heads_and_records_that_count_beyond_everything_are_refused() {
    let [closed, waiting] = sample_bytes(Mechanism::Redo);
    let place = place();
    let good = LaneHead { position: 0, applied: 0 };
    for head in [
        LaneHead { position: u64::MAX - 63, ..good },
        LaneHead { applied: u64::MAX, ..good },
        LaneHead { position: 1000, ..good }, // records start at whole lines
    ] {
        let mut bytes = closed.clone();
        for turn in 0..2 {
            let at = LaneHead::offset(0, turn) as usize;
            bytes[at..at + 64].copy_from_slice(&head.encode());
        }
        std::fs::write(&place.path, &bytes).expect("written");
        assert!(matches!(use_it(&place.path), Err(Error::Corrupt { .. })), "{head:?}");
        tools(&place.path);
        assert!(!check(&place.path).expect("checked").sound(), "{head:?}");
    }
    // Records with good checksums whose sequences are the last of all.
    let bytes = forged(&waiting, |record| {
        let position = u64::from_le_bytes(record[8..16].try_into().expect("8 bytes"));
        record[16..24].copy_from_slice(&(u64::MAX - position).to_le_bytes());
    });
    std::fs::write(&place.path, &bytes).expect("written");
    assert!(matches!(use_it(&place.path), Err(Error::Corrupt { .. })));
    tools(&place.path);
}

#[test]
fn a_record_of_a_page_behind_the_heap_is_refused() {
    let [_, waiting] = sample_bytes(Mechanism::Shadow);
    let pages = newest(&waiting).heap_bytes / 4096;
    assert!(!pages.is_multiple_of(64), "the table has bits for more pages than there are");
    let place = place();
    let bytes = forged(&waiting, |record| record[32..40].copy_from_slice(&pages.to_le_bytes()));
    std::fs::write(&place.path, &bytes).expect("written");
    assert!(matches!(use_it(&place.path), Err(Error::Corrupt { .. })));
    tools(&place.path);
}

/// The bytes with each waiting record of the first lane that has one changed, and its checksum made good.
fn forged(bytes: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let (mut bytes, header) = (bytes.to_vec(), newest(bytes));
    for lane in 0..header.lanes {
        let heads = [0, 1].map(|turn| {
            let at = LaneHead::offset(lane, turn) as usize;
            LaneHead::decode(&bytes[at..at + 64].try_into().expect("64 bytes"))
        });
        let head = heads.iter().flatten().max_by_key(|head| head.position).expect("a head");
        let start = (LANES_START + u64::from(lane) * header.lane_bytes) as usize;
        let (mut at, mut any) = ((head.position % header.lane_bytes) as usize, false);
        while let Some(record) = bytes.get_mut(start + at..start + header.lane_bytes as usize) {
            let length = u32::from_le_bytes(record[4..8].try_into().expect("4 bytes")) as usize;
            if !(64..=record.len()).contains(&length) || !sealed(&record[..length], header.salt(lane)) {
                break;
            }
            change(&mut record[..length]);
            let crc = memlift_kernels::log::crc32c(&record[4..length], header.salt(lane));
            record[..4].copy_from_slice(&crc.to_le_bytes());
            (at, any) = (at + length, true);
        }
        if any {
            return bytes;
        }
    }
    panic!("no record waits in the sample")
}

fn sealed(record: &[u8], salt: u32) -> bool {
    let crc = memlift_kernels::log::crc32c(&record[4..], salt);
    crc.to_le_bytes() == record[..4]
}
