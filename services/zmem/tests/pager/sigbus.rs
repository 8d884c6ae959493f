// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager end to end: every byte is right while most pages are away, and the sum never exceeds the budget.

use crate::pager_child::{start, under_every_mask};
use memlift_zmem::arena::Arena;
use memlift_zmem::block::OnOverflow;

const MIB: usize = 1 << 20;

/// Contents of a page by its number: half of it compressible.
fn expected(page: usize, version: u64, word: usize) -> u64 {
    let mixed = (page as u64 * 512 + word as u64 + (version << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match page % 4 {
        0 => mixed & 0xffff,
        1 => (page as u64) << 20 | word as u64 & 7 | version << 50,
        2 => 0x0101_0101_0101_0101 * (page as u64 % 200 + version),
        _ => {
            if word.is_multiple_of(4) {
                mixed
            } else {
                page as u64
            }
        }
    }
}

fn write_page(arena: &mut Arena, page: usize, version: u64) {
    for (word, bytes) in arena[page * 4096..][..4096].chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&expected(page, version, word).to_le_bytes());
    }
}

fn check_page(arena: &Arena, page: usize, version: u64) {
    for (word, bytes) in arena[page * 4096..][..4096].chunks_exact(8).enumerate() {
        let found = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        assert_eq!(found, expected(page, version, word), "page {page} word {word}");
    }
}

fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

#[test]
fn every_byte_is_right_under_half_the_memory() {
    under_every_mask("sigbus::every_byte_is_right_under_half_the_memory", || {
        let pages = 64 * MIB / 4096;
        let pager = start(40 * MIB, OnOverflow::Fail);
        let mut arena = Arena::new(pager, 64 * MIB).expect("an arena");
        let mut version = vec![1u64; pages];
        for page in 0..pages {
            write_page(&mut arena, page, 1);
            assert_eq!(pager.job().ledger().events(), 0, "the sum exceeds the budget");
        }
        assert!(pager.active());
        for page in 0..pages {
            check_page(&arena, page, 1);
            assert_eq!(pager.job().ledger().events(), 0, "the sum exceeds the budget");
        }
        let mut state = 88172645463325252;
        for step in 0..20_000 {
            let page = next(&mut state) % pages;
            check_page(&arena, page, version[page]);
            if step % 3 == 0 {
                version[page] += 1;
                write_page(&mut arena, page, version[page]);
            }
            assert_eq!(pager.job().ledger().events(), 0, "the sum exceeds the budget");
        }
        for (page, version) in version.iter().enumerate() {
            check_page(&arena, page, *version);
        }
        let numbers = pager.numbers();
        println!("{numbers:?}");
        assert!(numbers.pages_packed > 0 && numbers.pages_dropped > 0, "{numbers:?}");
        assert!(numbers.present_bytes + numbers.native_bytes + numbers.store_bytes <= 40 * MIB);
        drop(arena);
        assert_eq!(pager.numbers().present_bytes, 0);
        assert_eq!(pager.numbers().mapped_bytes, 0);
    });
}
