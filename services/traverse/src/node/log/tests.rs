// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logs that are cut, torn by a power cut in any order, damaged, and full.

use std::path::Path;

use super::super::once::{Id, Known, Outcome};
use super::frame::HEAD_BYTES;
use super::*;
use crate::wire::{ApplyOperands, Status};

const SECTOR: usize = 512;

fn entries() -> Vec<Entry> {
    let id = Id { tenant: 1, client: 2, incarnation: 3, sequence: 4, settled: 2, session: 9 };
    let operands = ApplyOperands { kind: 1, address: 1 << 32, a: 5, b: 6 };
    let outcome = Outcome { status: Status::Applied, value: 5, address: 0, body: vec![1, 2, 3] };
    let plain = |change| Entry { change, request: None };
    vec![
        Entry { change: Change::Write(1 << 32, vec![7; 33]), request: Some((id, Known::Running(3))) },
        plain(Change::Allocate(1, 64, 1 << 32)),
        plain(Change::Free(1, 1 << 32, 64)),
        plain(Change::Place(1, 64, vec![1 << 32, (1 << 32) + 64], vec![8; 21])),
        plain(Change::Retire(1, vec![(1 << 32, 64), ((1 << 32) + 64, 64)])),
        plain(Change::Ripe(vec![(1, 1 << 32, 64)])),
        plain(Change::RangeStep(RangeStep::Reserve, 1 << 32, 4096)),
        plain(Change::Take(1 << 32, 4096, vec![3; 40])),
        plain(Change::State(vec![1; 9], vec![])),
        plain(Change::Epoch(77)),
        plain(Change::Settled(Id { sequence: 2, ..id })),
        Entry { change: Change::Write(1 << 32, vec![6; 8]), request: Some((id, Known::Settled(outcome, 6))) },
        Entry { change: Change::None, request: Some((id, Known::Decided(operands, vec![9], 5))) },
        plain(Change::Forgotten(1, 77)),
        plain(Change::Clock(78)),
        plain(Change::Cluster(79)),
        plain(Change::Program(1, vec![1; 300])),
    ]
}

/// Replays a log as a start does, and leaves out the records that only note a start.
fn replay(path: &Path, bytes: u64) -> Result<(Vec<Entry>, Replayed), LogError> {
    let mut all = Vec::new();
    let mut log = OpenLog::open(path, 1 << 32, bytes)?;
    let replayed = log.replay(|entry| {
        if !matches!(entry.change, Change::Start(..)) {
            all.push(entry);
        }
    })?;
    Ok((all, replayed))
}

fn begin(path: &Path, durability: Durability) -> Log {
    let mut log = OpenLog::open(path, 1 << 32, 4096).expect("opened");
    log.replay(|_| {}).expect("whole");
    log.start(durability).expect("started")
}

/// Writes a log with each entry in a group of its own. Returns its bytes and the end of each record, the start record
/// included.
fn written(durability: Durability) -> (Vec<u8>, Vec<usize>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    let mut log = begin(&path, durability);
    assert!(matches!(OpenLog::open(&path, 1 << 32, 4096), Err(LogError::Locked(_))));
    let mut ends = vec![log.bytes() as usize];
    for entry in entries() {
        log.append(&entry);
        assert!(log.commit().expect("written"));
        ends.push(log.bytes() as usize);
    }
    drop(log);
    (std::fs::read(&path).expect("the log"), ends)
}

#[test]
fn a_log_that_is_cut_anywhere_has_what_was_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    for durability in [Durability::Process, Durability::Disk] {
        let (whole, ends) = written(durability);
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).expect("cut");
            let (all, what) = replay(&path, 4096).expect("a torn end is no damage");
            let good = ends.iter().filter(|end| **end <= length).count();
            assert_eq!(all, entries()[..good.saturating_sub(1)], "cut at {length}");
            let counted = all.iter().filter(|entry| !matches!(entry.change, Change::Clock(_))).count();
            assert_eq!(what.records, counted as u64, "cut at {length}");
            assert_eq!(
                std::fs::read(&path).expect("there"),
                whole[..length],
                "nothing is changed before the start"
            );
        }
        let mut log = begin(&path, durability);
        log.append(&entries()[1]);
        assert!(log.commit().expect("written"));
        drop(log);
        assert_eq!(replay(&path, 4096).expect("whole").0.len(), entries().len() + 1, "it goes on behind");
    }
}

#[test]
fn each_byte_before_the_last_group_is_guarded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    for durability in [Durability::Process, Durability::Disk] {
        let (whole, ends) = written(durability);
        let last = ends[ends.len() - 2];
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0x10;
            std::fs::write(&path, &broken).expect("broken");
            let hit = ends.iter().filter(|end| **end <= at).count();
            let start = if hit == 0 { HEAD_BYTES } else { ends[hit - 1] } as u64;
            match replay(&path, 4096) {
                Err(LogError::Damaged { at: found, .. }) if at < last => {
                    assert_eq!(found, if at < HEAD_BYTES { 0 } else { start }, "byte {at}");
                }
                Err(LogError::Foreign(_)) if at < 8 => {}
                Err(LogError::Version { .. }) if (8..12).contains(&at) => {}
                Ok((all, _)) if at >= last => assert_eq!(all, entries()[..entries().len() - 1], "byte {at}"),
                other => panic!("{durability:?}, byte {at}: {other:?}"),
            }
            assert_eq!(std::fs::read(&path).expect("there"), broken, "the file is left as it is");
        }
    }
}

#[test]
fn damage_of_any_size_is_refused_and_what_can_be_read_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, out) = (folder.path().join("node.log"), folder.path().join("saved.log"));
    let (whole, ends) = written(Durability::Disk);
    for (bytes, fill) in [(1, 0x55), (8, 0), (64, 0xff), (300, 0), (SECTOR, 0x11)] {
        let at = ends[2] + 4;
        let mut broken = whole.clone();
        broken[at..at + bytes].fill(fill);
        std::fs::write(&path, &broken).expect("broken");
        let error = replay(&path, 4096).expect_err("damaged").to_string();
        assert!(error.contains(&format!("at byte {}", ends[2])) && error.contains("log repair"), "{error}");
        let LogEnd::Damaged { at: found, behind } = check_log(&path).expect("read").end else {
            panic!("{bytes} bytes of {fill} are no damage")
        };
        let hit = ends.iter().filter(|end| **end < at + bytes).count();
        assert_eq!((found, behind), (ends[2] as u64, (ends.len() - hit - 1) as u64), "{bytes} bytes");
        let saved = repair_log(&path, &out, false, |_| true).expect("saved");
        assert_eq!(saved, LogSaved { records: 3, left_out: behind });
        assert_eq!(replay(&out, 4096).expect("whole").0, entries()[..2]);
        std::fs::remove_file(&out).expect("there");
        let saved = repair_log(&path, &out, true, |_| true).expect("saved");
        assert_eq!(saved, LogSaved { records: 3 + behind, left_out: 0 });
        let (all, _) = replay(&out, 4096).expect("whole");
        assert_eq!(all, [&entries()[..2], &entries()[hit..]].concat());
        assert!(
            repair_log(&path, &out, false, |_| false).is_err(),
            "a file that is there is not overwritten"
        );
        std::fs::remove_file(&out).expect("there");
        assert_eq!(std::fs::read(&path).expect("there"), broken, "the file is left as it is");
    }
}

/// A power cut may take any sectors that were not synced. Synced records are read back, and so are later ones up to the
/// first gap.
#[test]
fn sectors_of_an_unsynced_group_may_be_lost_in_any_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    let mut log = begin(&path, Durability::Disk);
    let entry =
        |number: u64| Entry { change: Change::Write(number, vec![number as u8 | 1; 200]), request: None };
    for number in 0..5 {
        log.append(&entry(number));
        assert!(log.commit().expect("written"));
    }
    let synced = log.bytes() as usize;
    for number in 5..25 {
        log.append(&entry(number));
    }
    assert!(log.commit().expect("written"));
    drop(log);
    let whole = std::fs::read(&path).expect("the log");
    let sectors: Vec<usize> = (synced / SECTOR..whole.len().div_ceil(SECTOR)).collect();
    assert!(sectors.len() > 8, "several sectors");
    for seed in 0..600_u64 {
        let mut broken = whole.clone();
        let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
        for &sector in &sectors {
            // A lost sector holds zeros, or bytes of an older file.
            let (from, to) = ((sector * SECTOR).max(synced), ((sector + 1) * SECTOR).min(whole.len()));
            if bits & 1 == 1 {
                broken[from..to].fill(if seed % 2 == 0 { 0 } else { 0xa5 });
            }
            bits >>= 1;
        }
        std::fs::write(&path, &broken).expect("torn");
        let (all, _) = replay(&path, 4096).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(all.len() >= 5, "seed {seed}: what was synced is there");
        assert!((0..).zip(&all).all(|(number, one)| *one == entry(number)), "seed {seed}");
    }
    // Losing the same sectors is damage once a later record states that they were on the disk.
    std::fs::write(&path, &whole).expect("whole");
    let mut log = begin(&path, Durability::Disk);
    log.append(&entry(25));
    assert!(log.commit().expect("written"));
    drop(log);
    let whole = std::fs::read(&path).expect("the log");
    for &sector in &sectors {
        let mut broken = whole.clone();
        broken[sector * SECTOR + 8..(sector + 1) * SECTOR - 8].fill(0);
        std::fs::write(&path, &broken).expect("damaged");
        assert!(matches!(replay(&path, 4096), Err(LogError::Damaged { .. })), "sector {sector}");
    }
}

#[test]
fn a_node_may_start_with_more_memory_and_not_with_less() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    drop(begin(&path, Durability::Process));
    let mut log = OpenLog::open(&path, 1 << 32, 1 << 20).expect("more");
    assert_eq!(log.first_bytes(), 4096);
    log.replay(|_| {}).expect("whole");
    assert_eq!(log.grown(), Some(((1 << 32) + 4096, (1 << 20) - 4096)));
    drop(log.start(Durability::Process).expect("started"));
    assert!(matches!(replay(&path, 4096), Err(LogError::Other { bytes: 1_048_576, .. })));
    assert!(matches!(OpenLog::open(&path, 1 << 33, 1 << 20), Err(LogError::Other { bytes: 4096, .. })));
    let (all, _) = replay(&path, 1 << 20).expect("as much");
    assert!(matches!(all[..], [Entry { change: Change::RangeStep(RangeStep::Grow, ..), .. }]));
    std::fs::write(&path, b"something else, which is longer than the head of a log is, and is none")
        .expect("foreign");
    assert!(matches!(replay(&path, 4096), Err(LogError::Foreign(_))));
    let mut old = [0; 64];
    old[..12].copy_from_slice(b"MLWLOG\0\x01\x03\0\0\0");
    std::fs::write(&path, old).expect("an old head");
    let error = replay(&path, 4096).expect_err("another version").to_string();
    assert!(error.contains("version 3") && error.contains("the memlift that wrote it"), "{error}");
}

/// Writing to `/dev/full` fails as on a full disk.
#[test]
fn a_full_disk_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.log");
    let mut log = begin(&path, Durability::Disk);
    let (before, small) = (log.bytes(), std::fs::read(&path).expect("there"));
    // Writes to this file fail as on a full disk.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the system's full device");
    let file = std::mem::replace(&mut log.file, std::sync::Arc::new(full.into()));
    log.append(&entries()[0]);
    assert!(!log.commit().expect("no failure"), "a full disk");
    assert!(log.is_full() && log.bytes() == before);
    log.file = file;
    std::thread::sleep(FULL_PAUSE);
    assert!(log.commit().expect("room again") && !log.is_full());
    drop(log);
    let whole = std::fs::read(&path).expect("there");
    assert!(whole.len() > small.len());
    assert_eq!(replay(&path, 4096).expect("whole").0, entries()[..1]);
}

/// A log of version 6, as the first release that knew it wrote one; every later release reads it.
///
/// `MEMLIFT_GOLDEN=write` writes it, for a new version only.
#[test]
fn a_log_of_version_6_is_read_as_it_was_written() {
    let entries = [
        Entry { change: Change::Cluster(5), request: None },
        Entry { change: Change::Declare(1, 1 << 32), request: None },
        Entry { change: Change::Replica(77), request: None },
        Entry { change: Change::Epoch(9), request: None },
    ];
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/log-6.txt");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    if std::env::var("MEMLIFT_GOLDEN").as_deref() == Ok("write") && !golden.exists() {
        let mut log = begin(&path, Durability::Process);
        entries.iter().for_each(|entry| log.append(entry));
        assert!(log.commit().expect("written"));
        drop(log);
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let lines: Vec<String> = std::fs::read(&path).expect("a log").chunks(32).map(digits).collect();
        std::fs::write(&golden, lines.join("\n") + "\n").expect("written");
    }
    let digits: String = std::fs::read_to_string(&golden).expect("a golden log").lines().collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    assert_eq!(bytes[8..12], 6u32.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    assert_eq!(replay(&path, 4096).expect("whole").0, entries);
}
