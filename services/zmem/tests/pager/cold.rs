// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs that fit only once cold pages are packed by Zstandard: no pause, no failure, no spill, every byte right.

use crate::pager_child::{Random, forked, in_child, start, under_every_mask};
use memlift_zmem::arena::Arena;
use memlift_zmem::block::{Counter, OnOverflow};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Random hexadecimal digits: LZ4 finds nothing in them, Zstandard half.
fn digits(page: usize, target: &mut [u8]) {
    let mut random = Random((page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for eight in target.chunks_exact_mut(8) {
        let word = random.next();
        for (index, digit) in eight.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(word >> (8 * index)) as usize & 15];
        }
    }
}

/// Words of a vocabulary: LZ4 saves a third, Zstandard more.
fn words(page: usize, target: &mut [u8]) {
    let mut random = Random((page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut at = 0;
    while at < target.len() {
        let word = random.below(60) * random.below(60);
        let mut letters = Random(word as u64 + 77);
        for _ in 0..3 + word % 7 {
            if at < target.len() {
                target[at] = b"etaoinshrdlu"[letters.below(12)];
                at += 1;
            }
        }
        if at < target.len() {
            target[at] = b' ';
            at += 1;
        }
    }
}

/// Writes `bytes` of `contents` under a budget of `total`, reads them at random, in a fork's child and in order.
fn fits(total: usize, bytes: usize, contents: fn(usize, &mut [u8])) {
    let pager = start(total, OnOverflow::Fail);
    let mut arena = Arena::new(pager, bytes).expect("an arena");
    let pages = bytes / PAGE;
    let mut expected = [0; PAGE];
    for page in 0..pages {
        contents(page, &mut expected);
        arena[page * PAGE..][..PAGE].copy_from_slice(&expected);
    }
    let mut check = |page: usize| {
        contents(page, &mut expected);
        assert!(arena[page * PAGE..][..PAGE] == expected, "page {page}");
    };
    let mut random = Random(7);
    for _ in 0..1000 {
        check(random.below(pages));
    }
    let child = forked(pager, || {
        for page in (0..pages).step_by(7) {
            check(page);
        }
    });
    child.wait();
    for page in 0..pages {
        check(page);
    }
    let (numbers, ledger) = (pager.numbers(), pager.job().ledger());
    println!("{numbers:?}");
    assert!(numbers.pages_packed_cold > 500, "{numbers:?}");
    assert!(ledger.counted(Counter::PagesColdPacked) >= numbers.pages_packed_cold);
    assert_eq!((ledger.events(), numbers.pages_spilled), (0, 0), "it fits: {numbers:?}");
    let held = numbers.present_bytes + numbers.native_bytes + numbers.store_bytes + numbers.table_bytes;
    assert!(held <= total, "{held} of {total}: {numbers:?}");
}

#[test]
fn digits_that_only_zstandard_packs_fit() {
    under_every_mask("cold::digits_that_only_zstandard_packs_fit", || fits(10 * MIB, 14 * MIB, digits));
}

#[test]
fn words_that_zstandard_packs_better_fit() {
    in_child("cold::words_that_zstandard_packs_better_fit", || fits(18 * MIB, 34 * MIB, words));
}
