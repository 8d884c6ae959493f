// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records of a log: a record that was appended is good, and no changed, torn or stale one is.
#![cfg(feature = "log")]

use memlift_kernels::log::{RecordError, append, check, fence};
use memlift_spec::formats::log::{
    RECORD_LINES, RECORD_PAGES, RECORD_RANGES, RECORD_UNDO, RangeWord, RecordHeader,
};
use proptest::prelude::*;

const SALT: u32 = 0x5eed_0001;
/// Bytes of the heap that records name.
const HEAP: usize = 64 * 1024;

/// A log of 64 KiB that starts at a line.
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

struct Log(Vec<Line>);

impl Log {
    fn new() -> Log {
        Log((0..1024).map(|_| Line { _bytes: [0; 64] }).collect())
    }

    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn check(&mut self, available: usize, position: u64) -> Result<RecordHeader, RecordError> {
        check(self.bytes(available), SALT, position)
    }

    fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= 64 * 1024);
        // SAFETY: the lines are one stretch of 64 KiB.
        unsafe { std::slice::from_raw_parts_mut(self.start(), bytes) }
    }
}

#[derive(Clone, Debug)]
enum Entries {
    Ranges(u8, Vec<(u64, Vec<u64>)>),
    Lines(Vec<(u64, u64, u8)>),
}

/// The record's bytes without its checksum.
fn record(entries: &Entries, sequence: u64, position: u64) -> Vec<u8> {
    let (kind, count) = match entries {
        Entries::Ranges(kind, ranges) => (*kind, ranges.len()),
        Entries::Lines(pages) => (RECORD_LINES, pages.len()),
    };
    let mut bytes = vec![0; 32];
    match entries {
        Entries::Ranges(_, ranges) => {
            for (offset, words) in ranges {
                let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let word = RangeWord::new(*offset, data.len() as u64).expect("a range that has a word");
                assert_eq!((word.offset(), word.length()), (*offset, data.len() as u64));
                bytes.extend(word.0.to_le_bytes());
                bytes.extend(data);
            }
        }
        Entries::Lines(pages) => {
            for (page, lines, fill) in pages {
                bytes.extend(page.to_le_bytes());
                bytes.extend(lines.to_le_bytes());
                for line in (0..64u64).filter(|line| lines >> line & 1 == 1) {
                    bytes.extend([fill.wrapping_add(line as u8); 64]);
                }
            }
        }
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    let size = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&size.to_le_bytes());
    bytes[8..16].copy_from_slice(&position.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    bytes[24] = kind;
    bytes[25] = 1;
    bytes[26..28].copy_from_slice(&(count as u16).to_le_bytes());
    bytes
}

fn appended(bytes: &[u8]) -> Log {
    let mut log = Log::new();
    let mut record: Vec<u64> =
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    // SAFETY: the log has room for any record of these tests, the copy is of `bytes`.
    let checksum = unsafe { append(log.start(), record.as_mut_ptr().cast(), bytes.len(), SALT) };
    fence();
    assert_eq!(log.bytes(4), checksum.to_le_bytes());
    assert_eq!(log.bytes(bytes.len())[4..], bytes[4..]);
    log
}

fn ranges() -> impl Strategy<Value = Entries> {
    let range = (0..HEAP as u64 / 8 - 64, proptest::collection::vec(any::<u64>(), 1..64));
    let range = range.prop_map(|(word, data)| (word * 8, data));
    let kinds = prop_oneof![Just(RECORD_RANGES), Just(RECORD_UNDO)];
    (kinds, proptest::collection::vec(range, 0..20)).prop_map(|(kind, ranges)| Entries::Ranges(kind, ranges))
}

fn lines() -> impl Strategy<Value = Entries> {
    let page = (0..HEAP as u64 / 4096, prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], any::<u8>());
    proptest::collection::vec(page, 0..8).prop_map(Entries::Lines)
}

fn entries() -> impl Strategy<Value = Entries> {
    prop_oneof![ranges(), lines()]
}

proptest! {
    #[test]
    fn an_appended_record_is_good(entries in entries(), sequence: u64, position: u64) {
        let bytes = record(&entries, sequence, position);
        let mut log = appended(&bytes);
        for available in [bytes.len(), 64 * 1024] {
            let header = log.check(available, position).expect("a good record");
            prop_assert_eq!(header.sequence, sequence);
            prop_assert_eq!(header.bytes as usize, bytes.len());
        }
    }

    #[test]
    fn no_changed_record_is_good(
        entries in entries(),
        position: u64,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
    ) {
        let bytes = record(&entries, 1, position);
        let mut log = appended(&bytes);
        let good = log.bytes(bytes.len()).to_vec();
        for (at, change) in flips {
            log.bytes(bytes.len())[at.index(bytes.len())] ^= change;
        }
        // Flips may undo each other.
        if log.bytes(bytes.len()) != good {
            log.check(bytes.len(), position).expect_err("a spoilt record");
        }
    }

    #[test]
    fn a_torn_record_is_not_good(entries in entries(), old in entries(), cut in 0usize..100) {
        let bytes = record(&entries, 2, 640);
        let whole = appended(&bytes).bytes(bytes.len()).to_vec();
        let mut log = appended(&record(&old, 1, 0));
        let kept = cut * 8 % bytes.len();
        log.bytes(kept).copy_from_slice(&whole[..kept]);
        if log.bytes(bytes.len()) != whole {
            log.check(64 * 1024, 640).expect_err("a record of which only the start arrived");
        }
    }

    /// Records with a right checksum and any content are checked without a panic, and only known kinds are good.
    #[test]
    fn any_content_is_checked(
        words in proptest::collection::vec(any::<u64>(), 4..60),
        kind in 0u8..6,
        count in prop_oneof![0u16..5, Just(u16::MAX)],
        shape in 0u64..6,
    ) {
        let mut bytes: Vec<u8> = vec![0; 32];
        for word in &words {
            let word = match shape {
                0 => *word,
                1 => *word >> 20,
                2 => (1 << 40) | (word % 16384),
                3 => ((word % 4) << 40) | (word % 8192),
                4 => word % 20,
                _ => word & 3,
            };
            bytes.extend(word.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let size = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[24] = kind;
        bytes[26..28].copy_from_slice(&count.to_le_bytes());
        let mut log = appended(&bytes);
        if let Ok(header) = log.check(bytes.len(), 0) {
            prop_assert!((RECORD_RANGES..=RECORD_UNDO).contains(&header.kind));
            prop_assert_eq!(header.bytes as usize, bytes.len());
        }
    }
}

/// Checks a good record of one range with a field changed and the checksum made right again.
fn changed(change: impl FnOnce(&mut [u8])) -> Result<u64, RecordError> {
    let mut bytes = record(&Entries::Ranges(RECORD_RANGES, vec![(64, vec![1, 2, 3])]), 7, 640);
    change(&mut bytes);
    appended(&bytes).check(bytes.len(), 640).map(|header| header.sequence)
}

fn put(at: usize, word: u64) -> impl FnOnce(&mut [u8]) {
    move |bytes| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes())
}

#[test]
fn each_fault_has_its_name() {
    assert_eq!(changed(|_| {}), Ok(7));
    assert_eq!(changed(|bytes| bytes[4] = 128), Err(RecordError::Header));
    assert_eq!(changed(|bytes| bytes[4] = 32), Err(RecordError::Header));
    assert_eq!(changed(|bytes| bytes[4] = 0), Err(RecordError::Header));
    // The claim of a record is for the log to judge; entries that are not counted end at the zeros.
    assert_eq!(changed(|bytes| bytes[28] = 1), Ok(7));
    assert_eq!(changed(|bytes| bytes[26..28].fill(0xff)), Ok(7));
    assert_eq!(changed(|bytes| bytes[24] = 5), Err(RecordError::Header));
    assert_eq!(changed(put(8, 704)), Err(RecordError::Position { found: 704 }));
    let range = |offset: u64, length: u64| (offset / 8) | ((length / 8) << 40);
    assert_eq!(changed(put(32, range(64, 32))), Err(RecordError::Entry { entry: 0 }));
    assert_eq!(changed(put(32, range(64, 0))), Err(RecordError::Entry { entry: 0 }));
    assert_eq!(changed(put(32, range(64, 16))), Err(RecordError::Entry { entry: 1 }));
    assert_eq!(changed(|bytes| bytes[26] = 2), Err(RecordError::Entry { entry: 1 }));
    // One entry of pages: number, lines, checksum; then zeros.
    let pages = |checksum: u64| {
        move |bytes: &mut [u8]| {
            bytes[24] = RECORD_PAGES;
            bytes[32..64].fill(0);
            bytes[48..56].copy_from_slice(&checksum.to_le_bytes());
        }
    };
    assert_eq!(changed(pages(u64::from(u32::MAX))), Ok(7));
    assert_eq!(changed(pages(1 << 32)), Err(RecordError::Entry { entry: 0 }));
    // A page number whose address wraps.
    let lines = |bytes: &mut [u8]| {
        bytes[24] = RECORD_LINES;
        bytes[32..40].fill(0xff);
        bytes[40..64].fill(0);
    };
    assert_eq!(changed(lines), Err(RecordError::Entry { entry: 0 }));
}

#[test]
fn a_record_of_another_pool_is_not_good() {
    let bytes = record(&Entries::Ranges(RECORD_RANGES, vec![(0, vec![1])]), 1, 0);
    let mut log = appended(&bytes);
    for salt in [0, SALT ^ 1, SALT ^ 0x8000_0000] {
        assert_eq!(check(log.bytes(bytes.len()), salt, 0), Err(RecordError::Checksum));
    }
    log.check(bytes.len(), 0).expect("its own");
}

#[test]
fn blank_or_short_places_are_no_records() {
    let mut log = Log::new();
    for available in [0, 1, 31, 32, 63, 64, 4096] {
        assert_eq!(log.check(available, 0), Err(RecordError::Header));
    }
    log.bytes(4096).fill(0xff);
    assert_eq!(log.check(4096, 0), Err(RecordError::Header));
}

#[test]
fn the_header_is_32_bytes_as_written_down() {
    let header = RecordHeader {
        checksum: 0x0302_0100,
        bytes: 0x0706_0504,
        position: 0x0f0e_0d0c_0b0a_0908,
        sequence: 0x1716_1514_1312_1110,
        kind: 0x18,
        parts: 0x19,
        entries: 0x1b1a,
        claim: 0x1f1e_1d1c,
    };
    // SAFETY: the header has no padding, which its size says.
    let bytes: [u8; 32] = unsafe { std::mem::transmute(header) };
    assert_eq!(bytes, std::array::from_fn(|at| at as u8));
    assert_eq!(RecordHeader::from_bytes(&bytes), header);
}
