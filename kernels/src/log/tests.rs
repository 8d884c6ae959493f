// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that every level stores the same bytes and returns the same checksums as the portable code.

use super::write_back::{WriteBack, instruction, write_back_with};
use super::{
    HEAD_WORDS, LINE_BYTES, PageLines, append_at, append_lines_at, copy_lines_crc_at, fence, fill_lines_at,
    nt_copy_at, scatter_lines_at,
};
use crate::{Isa, for_isa};
use memlift_spec::formats::log::PAGE_BYTES;

/// Bytes aligned to a page.
#[repr(align(4096))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

fn noise<const BYTES: usize>(mut state: u32) -> Box<Aligned<BYTES>> {
    let mut bytes = Box::new(Aligned([0; BYTES]));
    for byte in &mut bytes.0 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    bytes
}

fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

#[test]
fn append_stores_the_record_with_the_crc_of_the_rest() {
    let kernels = for_isa(Isa::Scalar).expect("everywhere");
    for isa in levels() {
        for lines in 1..=40 {
            for salt in [0, 1, 0xdead_beef, u32::MAX] {
                let bytes = lines * LINE_BYTES;
                let mut record = noise::<4096>(lines as u32 ^ salt);
                let before = record.0;
                let mut log = noise::<4096>(99);
                let behind = log.0;
                // SAFETY: both hold 4096 bytes and are aligned to a page; the scalar routine reads inside them.
                let (checksum, expected) = unsafe {
                    let checksum = append_at(isa, log.0.as_mut_ptr(), record.0.as_mut_ptr(), bytes, salt);
                    fence();
                    (checksum, (kernels.crc32c)(before.as_ptr().add(4), bytes - 4, salt))
                };
                assert_eq!(checksum, expected, "{isa}, {lines} lines, salt {salt:#x}");
                assert_eq!(record.0[..4], checksum.to_le_bytes(), "{isa}, {lines} lines");
                assert_eq!(record.0[4..], before[4..], "{isa}, {lines} lines");
                assert_eq!(log.0[..bytes], record.0[..bytes], "{isa}, {lines} lines");
                assert_eq!(log.0[bytes..], behind[bytes..], "{isa}, {lines} lines");
            }
        }
    }
}

/// Bitmaps of each number of lines from 1 to 64, and some others.
fn bitmaps() -> impl Iterator<Item = u64> {
    let spread = (1..40u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..64).map(|line| u64::MAX << line).chain((0..64).map(|line| 1 << line)).chain(spread)
}

#[test]
fn a_record_of_a_pages_lines_is_that_of_its_parts() {
    for isa in levels() {
        for bits in bitmaps() {
            for salt in [0, 0xdead_beef] {
                let source = noise::<8192>(bits as u32 ^ salt);
                // Lines of memory come in any order, and at any multiple of eight.
                let lines_of = |at: usize| source.0[at * 64 + 40..][..64].first_chunk().expect("a line");
                let mut lines = PageLines::default();
                lines.set(bits.trailing_zeros() as usize, lines_of(0));
                let numbers = (0..64).filter(|line| bits >> line & 1 == 1);
                numbers.clone().rev().for_each(|line| lines.set(line, lines_of(63 - line)));
                assert_eq!((lines.bits(), lines.count()), (bits, bits.count_ones() as usize));
                let head: [u64; HEAD_WORDS] = std::array::from_fn(|word| (word as u64 + 1) << 32);
                let bytes = (lines.count() + 1) * LINE_BYTES;
                let mut expected = Box::new(Aligned([0; 8192]));
                let mut at = 0;
                let mut put = |part: &[u8]| {
                    expected.0[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                };
                head.iter().for_each(|word| put(&word.to_le_bytes()));
                numbers.clone().for_each(|line| put(lines_of(63 - line)));
                let (mut record, mut log, mut page) = (noise::<8192>(1), noise::<8192>(2), noise::<4096>(3));
                let behind = (record.0, log.0);
                let mut filled = page.0;
                numbers.for_each(|line| filled[line * 64..][..64].copy_from_slice(lines_of(63 - line)));
                // SAFETY: all hold 8192 bytes, more than 65 lines, and are aligned to a page; the page has all 64 lines.
                unsafe {
                    let reference =
                        append_at(Isa::Scalar, log.0.as_mut_ptr(), expected.0.as_mut_ptr(), bytes, salt);
                    log.0 = behind.1;
                    let (to, from) = (log.0.as_mut_ptr(), record.0.as_mut_ptr());
                    assert_eq!(
                        append_lines_at(isa, to, from, &head, &lines, salt),
                        reference,
                        "{isa}, {bits:#x}"
                    );
                    fill_lines_at(isa, page.0.as_mut_ptr(), &lines);
                }
                fence();
                assert_eq!(record.0[..bytes], expected.0[..bytes], "{isa}, {bits:#x}");
                assert_eq!(log.0[..bytes], expected.0[..bytes], "{isa}, {bits:#x}");
                assert_eq!(record.0[bytes..], behind.0[bytes..], "{isa}, {bits:#x}");
                assert_eq!(log.0[bytes..], behind.1[bytes..], "{isa}, {bits:#x}");
                assert_eq!(page.0, filled, "{isa}, {bits:#x}");
            }
        }
    }
}

#[test]
fn copies_store_whole_lines_and_no_others() {
    for isa in levels() {
        for lines in 0..=64 {
            let source = noise::<8192>(7);
            let mut target = noise::<PAGE_BYTES>(8);
            let behind = target.0;
            // SAFETY: both hold a page, the source also the bytes that the shift adds; the target is aligned to a page.
            unsafe {
                nt_copy_at(isa, target.0.as_mut_ptr(), source.0.as_ptr().add(3), lines * LINE_BYTES);
            }
            fence();
            let bytes = lines * LINE_BYTES;
            assert_eq!(target.0[..bytes], source.0[3..3 + bytes], "{isa}");
            assert_eq!(target.0[bytes..], behind[bytes..], "{isa}");
        }
    }
}

#[test]
fn lines_are_copied_and_summed_as_the_bitmap_says() {
    let kernels = for_isa(Isa::Scalar).expect("everywhere");
    let mut bitmaps = vec![0, 1, 1 << 63, u64::MAX, 0x5555_5555_5555_5555, 0x8000_0000_0000_0001, 0xff00];
    bitmaps.extend((1..40u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for isa in levels() {
        for &lines in &bitmaps {
            let source = noise::<PAGE_BYTES>(lines as u32);
            let behind = noise::<PAGE_BYTES>(1);
            let mut expected = behind.0;
            let mut packed = Vec::new();
            for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                let range = line * LINE_BYTES..(line + 1) * LINE_BYTES;
                expected[range.clone()].copy_from_slice(&source.0[range.clone()]);
                packed.extend_from_slice(&source.0[range]);
            }
            let mut summed = noise::<PAGE_BYTES>(1);
            for seed in [0, 0x1234_5678] {
                // SAFETY: all are pages, aligned to a page; the scalar routine reads inside the vector.
                let (value, reference) = unsafe {
                    let value = copy_lines_crc_at(isa, summed.0.as_mut_ptr(), source.0.as_ptr(), lines, seed);
                    fence();
                    (value, (kernels.crc32c)(packed.as_ptr(), packed.len(), seed))
                };
                assert_eq!(value, reference, "{isa}, lines {lines:#x}");
            }
            assert_eq!(summed.0, expected, "{isa}, lines {lines:#x}");
        }
    }
}

#[test]
fn lines_are_scattered_as_the_bitmap_says() {
    let mut bitmaps = vec![0, 1, 1 << 63, u64::MAX, 0xff00];
    bitmaps.extend((1..40u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for isa in levels() {
        for &lines in &bitmaps {
            let source = noise::<8192>(lines as u32);
            let mut target = noise::<PAGE_BYTES>(1);
            let mut expected = target.0;
            // A record's lines lie at any multiple of eight.
            let mut packed = source.0[48..].chunks(LINE_BYTES);
            for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                let bytes = packed.next().expect("as many lines");
                expected[line * LINE_BYTES..(line + 1) * LINE_BYTES].copy_from_slice(bytes);
            }
            // SAFETY: the target is a page, aligned to a page, and the source has 64 lines behind the shift.
            unsafe { scatter_lines_at(isa, target.0.as_mut_ptr(), source.0.as_ptr().add(48), lines) };
            fence();
            assert_eq!(target.0, expected, "{isa}, lines {lines:#x}");
        }
    }
}

#[test]
fn writing_back_changes_no_byte() {
    let bytes = noise::<8192>(3);
    let before = bytes.0;
    let mut ways = vec![instruction()];
    if cfg!(target_arch = "x86_64") {
        assert_ne!(instruction(), WriteBack::None, "every x86-64 CPU has clflush");
        ways.push(WriteBack::Clflush);
    }
    for way in ways {
        for (offset, count) in [(0, 8192), (1, 1), (63, 2), (5, 0), (77, 8000)] {
            // SAFETY: the range lies in the buffer, and the CPU has the instruction.
            unsafe { write_back_with(way, bytes.0.as_ptr().add(offset), count) };
        }
        fence();
        assert_eq!(bytes.0, before, "{way:?}");
    }
}
