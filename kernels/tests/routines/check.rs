// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compare, CRC-32C, copy+CRC and delta records: the scalar level is right by published vectors and plain definitions,
//! and every level equals it at every size and misalignment of the sweep.

use crate::memory::{Bytes, LONG_BYTES, Random, SWEEP_BYTES, Target, long, scalar, sweep, vector_levels};
use memlift_kernels::{CompareFn, CopyCrcFn, CrcFn, DELTA_ENTRY_BYTES, Delta, DeltaError, Isa, for_isa};

const LONGEST: usize = LONG_BYTES[LONG_BYTES.len() - 1];

/// Test vectors of RFC 3720, appendix B.4, and the customary check value.
#[test]
fn crc_of_published_vectors() {
    let increasing: Vec<u8> = (0..32).collect();
    let decreasing: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], u32); 6] = [
        (b"123456789", 0xe306_9283),
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&increasing, 0x46dd_794e),
        (&decreasing, 0x113f_db5c),
        (b"", 0),
    ];
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        for (bytes, expected) in vectors {
            // SAFETY: the slice is readable.
            let value = unsafe { (kernels.crc32c)(bytes.as_ptr(), bytes.len(), 0) };
            assert_eq!(value, expected, "{isa}: {bytes:?}");
        }
    }
}

#[test]
fn crc_continues_from_a_seed() {
    let bytes = Bytes::random(100_000, 11);
    let mut random = Random(12);
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        for _ in 0..300 {
            let count = random.below(100_000);
            let cut = random.below(count + 1);
            // SAFETY: both parts lie within the buffer.
            let (whole, chained) = unsafe {
                let first = (kernels.crc32c)(bytes.at(0), cut, 0);
                (
                    (scalar().crc32c)(bytes.at(0), count, 0),
                    (kernels.crc32c)(bytes.at(cut), count - cut, first),
                )
            };
            assert_eq!(whole, chained, "{isa}: {count} bytes, cut at {cut}");
        }
    }
}

fn crc_equals(name: &str, crc: CrcFn) {
    let source = Bytes::random(LONGEST + 64, 13);
    for from in 0..64 {
        for bytes in (0..=SWEEP_BYTES).chain(if from % 16 == 1 { LONG_BYTES } else { [0; LONG_BYTES.len()] })
        {
            let seed = (bytes as u32).wrapping_mul(0x9e37_79b9) * (bytes as u32 & 1);
            // SAFETY: the buffer has room for the longest case at every misalignment.
            let (expected, value) = unsafe {
                ((scalar().crc32c)(source.at(from), bytes, seed), crc(source.at(from), bytes, seed))
            };
            assert_eq!(value, expected, "{name}: {bytes} bytes at +{from}, seed {seed:#x}");
        }
    }
}

#[test]
fn crc_equals_scalar() {
    for kernels in vector_levels() {
        crc_equals(kernels.isa.name(), kernels.crc32c);
    }
}

fn copy_crc_equals(name: &str, copy_crc: CopyCrcFn) {
    const SEED: u32 = 0x1234_5678;
    let source = Bytes::random(LONGEST + 64, 14);
    let mut target = Target::new(LONGEST);
    let mut known = vec![None; 64 * (SWEEP_BYTES + 1)];
    let mut case = |bytes: usize, from: usize, to: usize| {
        // SAFETY: the buffer has room for the longest case at every misalignment.
        let compute = || unsafe { (scalar().crc32c)(source.at(from), bytes, SEED) };
        let expected = match known.get_mut(bytes * 64 + from) {
            Some(known) => *known.get_or_insert_with(compute),
            None => compute(),
        };
        // SAFETY: both buffers have room for the longest case at every misalignment.
        let value = unsafe { copy_crc(target.at(to), source.at(from), bytes, SEED) };
        let what = || format!("{name}: {bytes} bytes from +{from} to +{to}");
        assert_eq!(value, expected, "{}", what());
        target.expect(to, &source.slice()[from..from + bytes], what);
    };
    sweep(&mut case);
    long(&mut case);
}

#[test]
fn scalar_copy_crc() {
    copy_crc_equals("scalar", scalar().copy_crc32c);
}

#[test]
fn copy_crc_equals_scalar() {
    for kernels in vector_levels() {
        copy_crc_equals(&format!("{} copy_crc32c", kernels.isa), kernels.copy_crc32c);
    }
}

#[test]
fn copy_crc_nt_equals_scalar() {
    for kernels in vector_levels() {
        copy_crc_equals(&format!("{} copy_crc32c_nt", kernels.isa), kernels.copy_crc32c_nt);
    }
}

fn compares(name: &str, compare: CompareFn) {
    let first = Bytes::random(LONGEST + 64, 15);
    let mut second = Bytes::filled(LONGEST + 64 + 64, 0);
    let mut random = Random(16);
    let mut case = |bytes: usize, from: usize, to: usize| {
        let what = || format!("{name}: {bytes} bytes at +{from} and +{to}");
        second.slice_mut()[to..to + bytes].copy_from_slice(&first.slice()[from..from + bytes]);
        // The bytes around differ, and must not be looked at.
        second.slice_mut()[to + bytes] = !first.slice()[from + bytes];
        if to > 0 && from > 0 {
            second.slice_mut()[to - 1] = !first.slice()[from - 1];
        }
        // SAFETY: both buffers have room for the longest case at every misalignment.
        let result = unsafe { compare(first.at(from), second.at(to), bytes) };
        assert_eq!(result, None, "{}", what());
        if bytes > 0 {
            // Two differences: the first counts. One bit only, so that no part of a byte is overlooked.
            let late = random.below(bytes);
            let early = random.below(late + 1);
            second.slice_mut()[to + late] ^= 1 << random.below(8);
            if early != late {
                second.slice_mut()[to + early] ^= 1 << random.below(8);
            }
            // SAFETY: both buffers have room for the longest case at every misalignment.
            let result = unsafe { compare(first.at(from), second.at(to), bytes) };
            assert_eq!(result, Some(early), "{}, second difference at {late}", what());
        }
    };
    sweep(&mut case);
    long(&mut case);
}

#[test]
fn scalar_compares() {
    compares("scalar", scalar().compare);
}

#[test]
fn compare_equals_scalar() {
    for kernels in vector_levels() {
        compares(kernels.isa.name(), kernels.compare);
    }
}

#[test]
fn compare_finds_every_position() {
    let first = Bytes::random(1024, 17);
    let mut second = Bytes::random(1024, 17);
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        for bytes in [1, 7, 8, 15, 16, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 1000] {
            for at in 0..bytes {
                second.slice_mut()[at] ^= 0x80;
                // SAFETY: both buffers are longer.
                let result = unsafe { (kernels.compare)(first.at(0), second.at(0), bytes) };
                assert_eq!(result, Some(at), "{isa}: {bytes} bytes");
                second.slice_mut()[at] ^= 0x80;
            }
        }
    }
}

#[test]
fn compare_pattern_equals_scalar() {
    const PATTERN: u64 = 0x8070_6050_4030_2010;
    let mut buffer = Bytes::filled(LONGEST + 128, 0);
    let mut random = Random(18);
    for kernels in vector_levels().into_iter().chain([scalar()]) {
        for from in 0..64 {
            // The pattern starts at the buffer; the byte before it does not fit.
            let slice = buffer.slice_mut();
            slice[..from].fill(0xee);
            for (i, byte) in slice[from..].iter_mut().enumerate() {
                *byte = (PATTERN >> (i % 8 * 8)) as u8;
            }
            for bytes in (0..=SWEEP_BYTES).chain(LONG_BYTES) {
                let what = || format!("{}: {bytes} bytes at +{from}", kernels.isa);
                let behind = std::mem::replace(&mut buffer.slice_mut()[from + bytes], 0xee);
                // SAFETY: the buffer has room for the longest case at every misalignment.
                let result = unsafe { (kernels.compare_pattern)(buffer.at(from), PATTERN, bytes) };
                assert_eq!(result, None, "{}", what());
                if bytes > 0 {
                    let at = random.below(bytes);
                    buffer.slice_mut()[from + at] ^= 1;
                    // SAFETY: the buffer has room for the longest case at every misalignment.
                    let result = unsafe { (kernels.compare_pattern)(buffer.at(from), PATTERN, bytes) };
                    assert_eq!(result, Some(at), "{}", what());
                    buffer.slice_mut()[from + at] ^= 1;
                }
                buffer.slice_mut()[from + bytes] = behind;
            }
        }
    }
}

#[test]
fn delta_equals_scalar_and_applies() {
    let first = Bytes::random(8192, 19);
    let mut second = Bytes::random(8192, 19);
    let mut record = Target::new(8192);
    let mut expected_record = vec![0; 8192];
    let mut applied = Target::new(8192);
    let mut random = Random(20);
    let levels: Vec<_> = vector_levels();
    let mut case = |bytes: usize, from: usize, to: usize| {
        let words = bytes / 8;
        second.slice_mut()[to..to + bytes].copy_from_slice(&first.slice()[from..from + bytes]);
        let differences = random.below(6).min(words);
        for _ in 0..differences {
            let byte = random.below(words * 8);
            second.slice_mut()[to + byte] ^= 1 << random.below(8);
        }
        let room = if random.below(4) == 0 { random.below(45) } else { 8192 };
        // SAFETY: all buffers have room for the longest case; the record for `room` bytes.
        let expected = unsafe {
            (scalar().delta_create)(expected_record.as_mut_ptr(), room, first.at(from), second.at(to), bytes)
        };
        let expected_bytes = match expected {
            Delta::Equal => 0,
            Delta::Delta(record_bytes) | Delta::Overflow(record_bytes) => record_bytes,
        };
        assert!(expected_bytes <= room && expected_bytes.is_multiple_of(DELTA_ENTRY_BYTES));
        for kernels in &levels {
            let what = || format!("{}: delta of {bytes} bytes at +{from} and +{to}", kernels.isa);
            // SAFETY: both sources have room for the longest case, and the record at `to` for `room` bytes.
            let result =
                unsafe { (kernels.delta_create)(record.at(to), room, first.at(from), second.at(to), bytes) };
            assert_eq!(result, expected, "{}", what());
            record.expect(to, &expected_record[..expected_bytes], what);
        }
        if !matches!(expected, Delta::Overflow(_)) {
            // SAFETY: the target has room for `bytes`; the record is `expected_bytes` long.
            let result = unsafe {
                (scalar().copy)(applied.at(to), first.at(from), bytes);
                (scalar().delta_apply)(applied.at(to), bytes, expected_record.as_ptr(), expected_bytes)
            };
            assert_eq!(result, Ok(()));
            applied.expect(to, &second.slice()[to..to + bytes], || format!("delta applied to {bytes} bytes"));
        }
    };
    sweep(&mut case);
}

#[test]
fn delta_layout_is_the_documented_one() {
    let first = [0u8; 24];
    let mut second = [0u8; 24];
    second[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    second[23] = 9;
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        let mut record = [0xffu8; 20];
        // SAFETY: all sizes are those of the arrays.
        let result =
            unsafe { (kernels.delta_create)(record.as_mut_ptr(), 20, first.as_ptr(), second.as_ptr(), 24) };
        assert_eq!(result, Delta::Delta(20), "{isa}");
        assert_eq!(record, [1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9], "{isa}");
        // SAFETY: the sources have 24 bytes, and the record 20, of which this call may use 19.
        let result =
            unsafe { (kernels.delta_create)(record.as_mut_ptr(), 19, first.as_ptr(), second.as_ptr(), 24) };
        assert_eq!(result, Delta::Overflow(10), "{isa}");
    }
}

#[test]
fn delta_beyond_the_reach_of_offsets_overflows() {
    let bytes = 512 * 1024 + 16;
    let first = Bytes::filled(bytes, 0);
    let mut second = Bytes::filled(bytes, 0);
    second.slice_mut()[512 * 1024 - 8] = 1;
    let mut record = [0u8; 100];
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        // SAFETY: all sizes are those of the buffers.
        let mut create = |second: &Bytes| unsafe {
            (kernels.delta_create)(record.as_mut_ptr(), 100, first.at(0), second.at(0), bytes)
        };
        assert_eq!(create(&second), Delta::Delta(10), "{isa}");
        let mut beyond = Bytes::filled(bytes, 0);
        beyond.slice_mut()[512 * 1024] = 1;
        assert_eq!(create(&beyond), Delta::Overflow(0), "{isa}");
    }
}

#[test]
fn damaged_delta_records_are_refused() {
    fn entry(offset: u16, byte: u8) -> Vec<u8> {
        let mut entry = offset.to_le_bytes().to_vec();
        entry.extend_from_slice(&[byte; 8]);
        entry
    }
    for isa in Isa::ALL {
        let Some(kernels) = for_isa(isa) else { continue };
        let apply = |record: &[u8], target: &mut [u8]| {
            // SAFETY: all sizes are those of the slices.
            unsafe { (kernels.delta_apply)(target.as_mut_ptr(), target.len(), record.as_ptr(), record.len()) }
        };
        let mut target = [0u8; 35];
        assert_eq!(apply(&[], &mut target), Ok(()));
        assert_eq!(apply(&[0; 9], &mut target), Err(DeltaError::Size { record_bytes: 9 }));
        let twice = [entry(1, 1), entry(1, 2)].concat();
        assert_eq!(apply(&twice, &mut target), Err(DeltaError::Order { entry: 1 }));
        assert_eq!(target[8..16], [1; 8], "the entry before the bad one is applied");
        let back = [entry(2, 3), entry(3, 4), entry(0, 5)].concat();
        assert_eq!(apply(&back, &mut target), Err(DeltaError::Order { entry: 2 }));
        // The fifth word of a target of 35 bytes is not whole.
        assert_eq!(apply(&entry(4, 6), &mut target), Err(DeltaError::Range { entry: 0 }));
        assert_eq!(apply(&entry(u16::MAX, 6), &mut target), Err(DeltaError::Range { entry: 0 }));
        assert_eq!(target[..8], [0; 8]);
        assert_eq!(target[32..], [0; 3]);
    }
}
