// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks never overlap, come back whole, and leave little unusable.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn allocations_never_overlap_and_stay_with_their_tenant(
        calls in prop::collection::vec((0u32..3, 0u64..40, 0u32..20, any::<bool>()), 1..200),
    ) {
        let memory = Arc::new(Memory::new(1 << 32, 4 << 20, false).expect("four MiB"));
        let mut allocator = Allocator::new(memory.clone());
        let mut live: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for (tenant, small, shift, back) in calls {
            if back && !live.is_empty() {
                let (&address, &(bytes, owner)) = live.iter().nth(small as usize % live.len()).expect("one");
                prop_assert!(!allocator.free(owner + 1, address, bytes), "another tenant gave it back");
                if allocator.free(owner, address, bytes) {
                    live.remove(&address);
                }
                continue;
            }
            let bytes = (small + 1) << (shift % 14);
            let Some(address) = allocator.allocate(tenant, bytes) else { continue };
            let ranges = memory.ranges();
            prop_assert!(ranges.find(tenant, address - MARGIN_BYTES, bytes + 2 * MARGIN_BYTES).is_some());
            prop_assert!((0..3).filter(|&t| ranges.find(t, address, 1).is_some()).count() == 1);
            if bytes % 64 == 0 {
                prop_assert_eq!(address % 64, 0);
            }
            if let Some((&other, &(length, _))) = live.range(..address + bytes).next_back() {
                prop_assert!(other + length <= address, "{:#x}+{} and {:#x}+{}", other, length, address, bytes);
            }
            live.insert(address, (bytes, tenant));
        }
    }
}

#[test]
fn memory_that_is_full_says_so_and_what_comes_back_serves_again() {
    let memory = Arc::new(Memory::new(1 << 32, 1 << 20, false).expect("one MiB"));
    let mut allocator = Allocator::new(memory);
    let mut all = Vec::new();
    while let Some(address) = allocator.allocate(1, 64) {
        all.push(address);
    }
    assert!(all.len() > 15_000, "{}", all.len());
    assert_eq!(allocator.allocate(2, 1), None);
    assert_eq!(allocator.allocate(1, 1 << 50), None);
    assert!(allocator.free(1, all[5], 64));
    assert_eq!(allocator.allocate(1, 64), Some(all[5]));
    assert!(
        !allocator.free(1, all[5] + 3, 64) && !allocator.free(1, 12, 64) && !allocator.free(3, all[5], 64)
    );
}

#[test]
fn a_part_leaves_comes_back_and_gives_what_it_would_have_given() {
    let memory = |base| Arc::new(Memory::new(base, 4 << 20, false).expect("four MiB"));
    let (here, there) = (memory(1 << 32), memory(1 << 33));
    let mut source = Allocator::new(here.clone());
    let mut target = Allocator::new(there.clone());
    let small: Vec<u64> = (0..100).filter_map(|_| source.allocate(1, 64)).collect();
    // Blocks on both sides of the address at which the extent is cut below, and one across it.
    source.allocate(1, 200 << 10).expect("in the first extent");
    let large = source.allocate(2, 300 << 10).expect("large");
    assert!(source.free(1, small[3], 64) && source.free(1, small[9], 64));
    let middle = (1 << 32) + (128 << 10);
    assert!(source.cut(1 << 32, middle - (1 << 32)).expect_err("in an extent").contains("0x100040000"));
    let bytes = 1 << 20;
    here.store(small[5], &[9; 8]);
    let part = source.detach(1 << 32, bytes).expect("at ends of extents").clone();
    assert_eq!(source.detach(1 << 32, bytes).expect("again"), &part);
    let other = source.allocate(1, 64).expect("elsewhere");
    assert!(other >= (1 << 32) + bytes && source.may_write(1, small[5], 8));
    source.attach(1 << 32);
    assert_eq!(source.allocate(1, 64), Some(small[3]), "as if it had never been away");
    assert!(source.free(1, small[3], 64) && source.retire(1, small[7], 64));
    let part = source.detach(1 << 32, bytes).expect("at ends of extents").clone();
    let sent = AllocatorState::decode(&part.encode(), 1 << 32, bytes).expect("what was encoded");
    there.add(1 << 32, bytes, false).expect("mapped");
    target.adopt_range(1 << 32, bytes, &sent);
    source.give_away(1 << 32);
    assert!(!source.may_write(1, small[5], 8) && target.may_write(1, small[5], 8));
    assert!(here.ranges().find(1, small[5], 8).is_none() && there.ranges().find(1, small[5], 8).is_some());
    assert_eq!(here.word(small[5]).load(std::sync::atomic::Ordering::Relaxed), 0, "given back");
    assert_eq!(target.usage().retired, 64);
    assert_eq!(target.allocate(1, 64), Some(small[3]));
    assert_eq!(target.allocate(1, 64), Some(small[9]));
    assert!(target.free(2, large, 300 << 10) && !source.free(2, large, 300 << 10));
    let all = |usage: Usage| usage.live + usage.retired + usage.free + usage.waste;
    assert_eq!(all(target.usage()) + all(source.usage()), 8 << 20);
}

/// Fills a block with one byte value, to find overlaps later.
fn fill(memory: &Memory, address: u64, bytes: u64, with: u8) {
    memory.store(address, &vec![with; bytes as usize]);
}

#[test]
fn churn_leaves_nine_tenths_usable() {
    const BYTES: u64 = 256 << 20;
    const MOST: u64 = 1 << 20;
    let memory = Arc::new(Memory::new(1 << 32, BYTES, false).expect("addresses"));
    let mut allocator = Allocator::new(memory);
    let mut state = 7_u64;
    let mut draw = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut live, mut used, mut turned) = (Vec::new(), 0, 0);
    let (mut failures, mut usable) = (0_u64, 0.0);
    while turned < 100 * BYTES {
        let bytes = 16 + draw() % (MOST - 15);
        while allocator.allocate(1, bytes).map(|address| live.push((address, bytes))).is_none() {
            if turned > BYTES {
                failures += 1;
                usable += used as f64 / BYTES as f64;
            }
            let (address, bytes) = live.swap_remove((draw() % live.len() as u64) as usize);
            assert!(allocator.free(1, address, bytes));
            used -= bytes;
        }
        used += bytes;
        turned += bytes;
    }
    let mean = usable / failures as f64;
    assert!(mean > 0.9, "{mean:.3} of the memory is given out when an allocation fails");
    for (address, bytes) in live.drain(..) {
        assert!(
            allocator.free(1, address, bytes) && !allocator.free(1, address, bytes),
            "once and not twice"
        );
    }
    assert_eq!(allocator.usage(), Usage { free: BYTES, largest_free: BYTES, ..Usage::default() });
}

#[test]
fn one_size_frees_what_another_needs_and_one_tenant_what_another_does() {
    const BYTES: u64 = 4 << 20;
    let memory = Arc::new(Memory::new(1 << 32, BYTES, false).expect("four MiB"));
    let mut allocator = Allocator::new(memory.clone());
    for (round, bytes) in [100, 300, 16, 5000, 70_000, 1 << 20, 3 << 20, 32].into_iter().enumerate() {
        let tenant = round as u32 % 3;
        let all: Vec<u64> = std::iter::from_fn(|| allocator.allocate(tenant, bytes)).collect();
        let given = all.len() as u64 * bytes.next_multiple_of(16);
        let whole = BYTES / bytes.next_multiple_of(16) * bytes.next_multiple_of(16);
        // The missing bytes are an extent's unused ends, and less than one block.
        assert!(
            given + bytes + (8 << 10) >= whole.min(BYTES - (8 << 10)),
            "{given} bytes in blocks of {bytes}"
        );
        for (at, address) in all.iter().enumerate() {
            if at % 64 == 0 {
                let mut found = Vec::new();
                memory.load(*address, bytes as usize, &mut found);
                assert!(found.iter().all(|byte| *byte == 0), "another tenant's bytes in round {round}");
                fill(&memory, *address, bytes, 0x5a);
            }
        }
        // Freed in another order than that of the addresses; the last block only later, when its neighbours have been
        // joined.
        let (last, rest) = all.split_last().expect("one");
        rest.iter().step_by(2).chain(rest.iter().skip(1).step_by(2)).for_each(|address| {
            assert!(allocator.free(tenant, *address, bytes));
            assert!(!allocator.free(tenant, *address, bytes) && !allocator.retire(tenant, *address, bytes));
        });
        assert_eq!(allocator.usage().live, bytes.next_multiple_of(16));
        // One block in use must not keep all pages from another tenant.
        if bytes < 1 << 20 {
            let other = allocator.allocate(9, 1 << 20).expect("pages of the tenant before");
            assert!(allocator.free(9, other, 1 << 20));
        }
        assert!(allocator.free(tenant, *last, bytes));
        assert_eq!(allocator.usage().free, BYTES, "round {round}");
    }
}

#[test]
fn parts_of_a_block_come_back_and_join() {
    let memory = Arc::new(Memory::new(1 << 32, 1 << 20, false).expect("one MiB"));
    let mut allocator = Allocator::new(memory);
    let slab = allocator.allocate(1, 64 << 10).expect("room");
    assert!(allocator.free(1, slab + 256, 48) && !allocator.free(1, slab + 256 + 32, 48));
    assert!(
        !allocator.free(1, slab + 8, 8)
            && !allocator.free(1, slab, 64 << 10)
            && !allocator.free(1, slab, 1 << 50)
    );
    assert!(allocator.free(1, slab, 256) && allocator.free(1, slab + 304, (64 << 10) - 304));
    assert_eq!(allocator.usage().free, 1 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any allocations, retirements and frees, an allocator that replays the address of each block has the same
    /// blocks, and does not allocate them again.
    #[test]
    fn what_was_given_can_be_claimed_in_a_memory_of_the_same_size(
        calls in prop::collection::vec((0u32..3, 1u64..40, 0u32..16, 0u8..4), 1..300),
    ) {
        let memory = |_| Arc::new(Memory::new(1 << 32, 2 << 20, false).expect("two MiB"));
        let (mut first, mut second) = (Allocator::new(memory(0)), Allocator::new(memory(1)));
        let mut live: Vec<(u32, u64, u64)> = Vec::new();
        for (tenant, small, shift, what) in calls {
            if what < 2 || live.is_empty() {
                let bytes = small << shift;
                let Some(address) = first.allocate(tenant, bytes) else { continue };
                prop_assert_eq!(second.claim(tenant, address, bytes), Ok(()));
                prop_assert!(second.claim(tenant, address, bytes).is_err(), "once");
                live.push((tenant, address, bytes));
                continue;
            }
            let (tenant, address, bytes) = live.swap_remove(small as usize % live.len());
            if what == 2 {
                prop_assert!(first.free(tenant, address, bytes) && second.free(tenant, address, bytes));
            } else {
                prop_assert!(first.retire(tenant, address, bytes) && second.retire(tenant, address, bytes));
                prop_assert!(first.ripe(1000).is_empty() && first.ripe(1000 + super::super::GRACE).is_empty());
                prop_assert_eq!(first.ripe(1001 + super::super::GRACE), vec![(tenant, address, rounded(bytes))]);
                prop_assert!(second.unretire(tenant, address, rounded(bytes)));
            }
            prop_assert!(!first.free(tenant, address, bytes) && !second.free(tenant, address, bytes));
        }
        prop_assert_eq!(first.usage().live, second.usage().live);
        let restored = {
            let part = AllocatorState::decode(&first.part(0, crate::map::ADDRESS_END).encode(), 0, crate::map::ADDRESS_END);
            Allocator::restore(memory(2), first.cuts(), &part.expect("what was encoded"))
        };
        prop_assert_eq!(first.usage(), restored.usage());
        for mut allocator in [second, restored] {
            for &(tenant, address, bytes) in &live {
                prop_assert!(allocator.free(tenant, address, bytes));
            }
            prop_assert_eq!(allocator.usage().free, 2 << 20);
        }
    }
}
