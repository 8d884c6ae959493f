// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers on a job's arena, beyond its budget.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;

use crate::pager_child::{Random, in_child, start};
use memlift_zmem::allocator::{Allocator, Box, LARGEST_SMALL, Vec};
use memlift_zmem::block::OnOverflow;

const MIB: usize = 1 << 20;

#[test]
fn containers_beyond_the_budget_keep_their_contents() {
    in_child("allocator::containers_beyond_the_budget_keep_their_contents", || {
        let pager = start(16 * MIB, OnOverflow::Fail);
        let allocator = Allocator::new(pager);
        let mut numbers: Vec<u64, Allocator> = Vec::new_in(allocator);
        // Grows through slots into mappings, which move without being copied.
        numbers.extend(0..4 * MIB as u64);
        let boxes: std::vec::Vec<Box<[u32; 20], Allocator>> =
            (0..100_000).map(|index| Box::new_in([index; 20], allocator)).collect();
        assert!(pager.numbers().pages_packed > 1000, "{:?}", pager.numbers());
        assert!(numbers.iter().enumerate().all(|(index, number)| index as u64 == *number));
        assert!(
            boxes.iter().enumerate().all(|(index, values)| values.iter().all(|value| *value == index as u32))
        );
        let addresses: HashSet<usize> = boxes.iter().map(|values| &raw const **values as usize).collect();
        assert_eq!(addresses.len(), boxes.len(), "no two blocks share their place");
        numbers.truncate(1000);
        numbers.shrink_to_fit();
        assert!(numbers.iter().enumerate().all(|(index, number)| index as u64 == *number));
    });
}

#[test]
fn freed_memory_is_used_again_and_zeroed_where_asked_for() {
    in_child("allocator::freed_memory_is_used_again_and_zeroed_where_asked_for", || {
        let pager = start(32 * MIB, OnOverflow::Fail);
        let allocator = Allocator::new(pager);
        let mut random = Random(7);
        let mut kept: std::vec::Vec<Vec<u8, Allocator>> = std::vec::Vec::new();
        let mut most = 0;
        for round in 0..20_000usize {
            let bytes =
                if round % 50 == 0 { LARGEST_SMALL + random.below(MIB) } else { 1 + random.below(4000) };
            let mut block = Vec::with_capacity_in(bytes, allocator);
            block.resize(bytes, (bytes % 251) as u8);
            kept.push(block);
            if kept.len() > 30 {
                let gone = kept.swap_remove(random.below(kept.len()));
                assert!(gone.iter().all(|byte| *byte == (gone.len() % 251) as u8));
            }
            most = most.max(pager.numbers().mapped_bytes);
        }
        // 31 blocks of at most 1 MiB, and a run or two of each class.
        assert!(most < 48 * MIB, "{most} bytes were mapped");
        let zeroed: Box<[u8; 3000], Allocator> =
            // SAFETY: all zero bytes are a value of the array.
            unsafe { Box::new_zeroed_in(allocator).assume_init() };
        assert!(zeroed.iter().all(|byte| *byte == 0));
    });
}

#[repr(align(8192))]
struct Wide([u8; 8192]);

#[test]
fn alignments_are_kept_and_system_calls_work_on_what_is_pinned() {
    in_child("allocator::alignments_are_kept_and_system_calls_work_on_what_is_pinned", || {
        let pager = start(16 * MIB, OnOverflow::Fail);
        let allocator = Allocator::new(pager);
        let wide: std::vec::Vec<Box<Wide, Allocator>> =
            (0..20).map(|index| Box::new_in(Wide([index; 8192]), allocator)).collect();
        for (index, wide) in wide.iter().enumerate() {
            assert!((&raw const **wide as usize).is_multiple_of(8192));
            assert!(wide.0.iter().all(|byte| usize::from(*byte) == index));
        }
        let mut bytes: Vec<u8, Allocator> = Vec::new_in(allocator);
        bytes.extend((0..40 * MIB).map(|index| (index / 100) as u8));
        let file = tempfile::tempfile().expect("a file");
        let part = &bytes[..MIB];
        let pins = allocator.pinned(part, false).expect("room for a mebibyte");
        file.write_all_at(part, 0).expect("the kernel reads what is pinned");
        drop(pins);
        let mut back = vec![0; MIB];
        file.read_exact_at(&mut back, 0).expect("as much");
        assert_eq!(back, part);
    });
}
