// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compatibility of the format: pools of earlier releases open, and today's pools are laid out in the same way.
//!
//! - **Layout** `golden/FORMAT-MECHANISM-STATE.txt`, FORMAT being `v1` for version 1 without features, and `f` with the bits of
//!   those that a new pool has: the file's bytes, then lines of 32 bytes in hexadecimal with their place; lines of zeros are left
//!   out. `waiting` has transactions in its log and one under way, `clean` was closed
//! - **Write** `MEMLIFT_GOLDEN=write cargo test -p memlift-persist --test formats golden_pools::`, for a new mechanism or version only:
//!   what is there is a promise
//! - **Not here** the id of a pool, random, and checksums that depend on it: they are left out of the comparison

use crate::sample;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memlift_persist::layout::{HEADER_BYTES, Header, LANES_START, SLAB_BYTES};
use memlift_persist::{Domain, Error, Mechanism, Options, Pool, check};

const LINE: usize = 32;
/// Formats of pools that are made today, by whether pages have checksums: `FEATURE_CLAIMS`, and `FEATURE_CHECKSUMS` with it.
const TODAY: [(bool, &str); 2] = [(false, "f2"), (true, "f6")];

/// The pools that are made today: mechanism, and whether pages have checksums.
fn cases() -> impl Iterator<Item = (Mechanism, bool)> {
    let checksums = |mechanism| matches!(mechanism, Mechanism::Redo | Mechanism::Checkpoint);
    let both = |mechanism| [false, true].map(|one| (mechanism, one));
    Mechanism::ALL.into_iter().flat_map(both).filter(move |(mechanism, one)| !one || checksums(*mechanism))
}

fn file((mechanism, checksums): (Mechanism, bool), state: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format!("{}-{}-{state}.txt", TODAY[usize::from(checksums)].1, mechanism.name()))
}

fn packed(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (at, line) in bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
        let _ = write!(text, "{:x} ", at * LINE);
        for byte in line {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn unpacked(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let bytes = lines.next().and_then(|line| line.strip_suffix(" bytes")).expect("a length");
    let mut bytes = vec![0; bytes.parse().expect("a number")];
    for line in lines {
        let (at, digits) = line.split_once(' ').expect("a place and bytes");
        let at = usize::from_str_radix(at, 16).expect("hexadecimal");
        for (index, pair) in digits.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).expect("digits");
            bytes[at + index] = u8::from_str_radix(pair, 16).expect("hexadecimal");
        }
    }
    bytes
}

/// Files of today's code: closed, and with transactions waiting in the log.
fn made((mechanism, checksums): (Mechanism, bool)) -> [(&'static str, Vec<u8>); 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
    let pool = if checksums {
        let options = Options { domain: Domain::Pages, ..sample::options(mechanism) };
        sample::build_with(&path, &options, Some(&copy))
    } else {
        sample::build(&path, mechanism, Some(&copy)) // lines become durable
    };
    let pool = pool.expect("built");
    assert_eq!(pool.header().has_checksums(), checksums);
    pool.close().expect("closed");
    [("clean", std::fs::read(&path).expect("read")), ("waiting", std::fs::read(&copy).expect("read"))]
}

/// Zeros where the pool's random id is, or a checksum that covers it.
fn without_id(mut bytes: Vec<u8>, lanes_end: usize) -> Vec<u8> {
    let kept = bytes[..HEADER_BYTES as usize].to_vec();
    for header in [0, HEADER_BYTES as usize] {
        bytes[header + 8..header + 12].fill(0);
        bytes[header + 24..header + 40].fill(0);
    }
    let lanes = LANES_START as usize..lanes_end;
    for at in lanes.step_by(64) {
        // A record's position names its place, at a multiple of 64 in its lane; data may look like it, and then loses 4 bytes.
        bytes[at..at + 4].fill(0);
    }
    // The places of checksums, and their entries, have a check each. These pools have one part.
    let header = Header::decode(&kept).expect("a header");
    if header.has_checksums() {
        assert_eq!(header.checksum_chunks, 1);
        let index = (header.heap_start + u64::from(header.checksum_index) * SLAB_BYTES) as usize;
        let chunk = u32::from_le_bytes(bytes[index..index + 4].try_into().expect("4 bytes"));
        bytes[index + 4..index + 8].fill(0);
        let entries = (header.heap_start + u64::from(chunk) * SLAB_BYTES) as usize;
        for at in (entries..entries + SLAB_BYTES as usize).step_by(16) {
            bytes[at + 8..at + 16].fill(0);
        }
    }
    bytes
}

/// The golden files: mechanism, state, path. Names end in what was special then: `shared`, when commits of pages went to the
/// shared lane.
fn kept() -> Vec<(Mechanism, String, PathBuf)> {
    let folder = file((Mechanism::Redo, false), "clean").parent().expect("a folder").to_owned();
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("listed") {
        let path = entry.expect("listed").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let parts: Vec<&str> = stem.split('-').collect();
        if let ["v1" | "f2" | "f6", name, state, ..] = parts[..] {
            let named = Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name);
            all.push((named.expect("a mechanism"), state.to_owned(), path));
        }
    }
    all
}

#[test]
fn pools_of_earlier_releases_open_and_have_everything() {
    for case in cases() {
        for (state, bytes) in made(case) {
            let golden = file(case, state);
            if std::env::var("MEMLIFT_GOLDEN").is_ok_and(|value| value == "write") && !golden.exists() {
                std::fs::write(&golden, packed(&bytes)).expect("written");
            }
        }
    }
    let kept = kept();
    assert!(kept.len() >= 20, "{}", kept.len());
    for (mechanism, state, golden) in kept {
        let text = std::fs::read_to_string(&golden).unwrap_or_else(|error| panic!("{golden:?}: {error}"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("golden.pool");
        std::fs::write(&path, unpacked(&text)).expect("written");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{golden:?}: {:?}", report.findings);
        assert_eq!(report.waiting.0 > 0, state == "waiting", "{golden:?}: {:?}", report.waiting);
        let pool = Pool::open(&path, &Options { max_bytes: 1 << 20, ..Options::default() }).expect("opened");
        assert_eq!(pool.mechanism(), mechanism);
        assert_eq!(sample::keys(&pool).expect("read"), sample::all(), "{golden:?}");
        pool.close().expect("closed");
        assert!(check::check(&path).expect("checked").sound());
    }
}

#[test]
fn what_is_written_today_is_laid_out_as_then() {
    for case in cases() {
        for (state, bytes) in made(case) {
            let text = std::fs::read_to_string(file(case, state)).expect("a golden file");
            let lanes_end = LANES_START as usize + 2 * (64 << 10);
            let (golden, today) = (without_id(unpacked(&text), lanes_end), without_id(bytes, lanes_end));
            assert_eq!(golden.len(), today.len(), "{case:?} {state}");
            let differs = golden.iter().zip(&today).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{case:?} {state}: the first byte that differs");
        }
    }
}

#[test]
fn damage_in_the_log_of_an_earlier_release_is_refused() {
    let golden = file((Mechanism::Redo, false), "waiting").with_file_name("v1-redo-waiting.txt");
    let bytes = unpacked(&std::fs::read_to_string(golden).expect("a golden file"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("golden.pool");
    // Of the own lane's three waiting records, the first and the second one's checksum.
    let lane = LANES_START as usize + (64 << 10);
    let record = |at: usize| u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("4 bytes")) as usize;
    let mut records = vec![lane];
    while records.len() < 64 && record(*records.last().expect("one")) > 0 {
        records.push(records.last().expect("one") + record(*records.last().expect("one")));
    }
    let end = records.len() - 1; // there the log is blank
    for at in &records[end - 3..end - 1] {
        let mut spoilt = bytes.clone();
        spoilt[*at] ^= 1;
        std::fs::write(&path, &spoilt).expect("written");
        let error =
            Pool::open(&path, &Options { max_bytes: 1 << 20, ..Options::default() }).expect_err("refused");
        assert!(matches!(error, Error::LogDamaged { .. }), "{error}");
    }
}

#[test]
fn golden_files_are_small() {
    for case in cases() {
        for state in ["clean", "waiting"] {
            let bytes = std::fs::metadata(file(case, state)).expect("a golden file").len();
            assert!(bytes < 100_000, "{case:?} {state}: {bytes}");
        }
    }
}
