// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled round against the round without a compiler: the same slots, bit for bit, whatever stops a walk.
#![cfg(feature = "jit")]
#![allow(unsafe_code)]

use crate::jit_programs::{
    THREE_WORDS, TREE, at, block, hash_find, list_find, load, returns, store, tree_search,
};
use memlift_traverse::interp;
use memlift_traverse::ir::{End, Function, Space};
use memlift_traverse::jit::{Compiled, Limits};
use memlift_traverse::round::round;
use memlift_traverse::slot::{FREE, RUN, Region, STOPPED, Slot};
use memlift_traverse::step::Verdict;
use proptest::prelude::*;

const BASE: u64 = 0x7_0000_0000;

/// Memory of a range, with room for a window around every address in it.
struct Heap {
    words: Vec<u64>,
}

impl Heap {
    fn host(&self, global: u64) -> *const u8 {
        self.words.as_ptr().cast::<u8>().wrapping_add((global - BASE) as usize)
    }

    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
}

/// Parts of a slot and its scratchpad that can be compared.
type Seen = (u32, u32, u64, u64, u32, memlift_traverse::step::Walk, Vec<u64>);

/// Goes on, compiled or not, for `rounds`; returns which slots stopped in each, and what is left.
fn go(
    function: &Function,
    limits: &Limits,
    heap: &Heap,
    starts: &[(u64, u64, u32, u32)],
    rounds: usize,
    compiled: Option<&Compiled>,
) -> (Vec<Vec<u32>>, Vec<Seen>) {
    let region = Region::new(BASE, heap.bytes(), heap.host(BASE), limits.window_first, limits.window_bytes);
    let mut scratch = vec![[0_u64; 128]; starts.len()];
    let mut slots: Vec<Slot> = starts.iter().map(|_| Slot::default()).collect();
    for ((slot, scratch), &(global, key, hops, state)) in slots.iter_mut().zip(&mut scratch).zip(starts) {
        scratch[0] = key;
        slot.scratch = scratch.as_mut_ptr().cast();
        slot.walk.fuel = 8;
        slot.start(global, heap.host(global), hops);
        if state != RUN {
            slot.state = state;
        }
    }
    let listed = (0..rounds)
        .map(|_| {
            let due: Vec<bool> = slots.iter().map(|slot| slot.state == RUN).collect();
            // SAFETY: every start and every address that `region` maps has its window in `heap`; scratch is as long as needed.
            let stopped = unsafe {
                match compiled {
                    Some(compiled) => compiled.round(&mut slots, &region),
                    None => round(&mut slots, &region, &[0, 63], |node, scratch, walk| {
                        interp::step(function, node, scratch, walk)
                    }),
                }
            };
            let listed: Vec<u32> = slots[..stopped].iter().map(|slot| slot.nth_stopped).collect();
            let all = (0..slots.len()).filter(|&number| due[number] && slots[number].state == STOPPED);
            assert_eq!(listed, all.map(|number| number as u32).collect::<Vec<_>>());
            listed
        })
        .collect();
    let seen = slots
        .iter()
        .zip(&scratch)
        .map(|(slot, words)| {
            let host = (slot.host as u64).wrapping_sub(heap.host(BASE) as u64);
            (slot.state, slot.verdict, slot.cur, host, slot.hops_left, slot.walk, words.to_vec())
        })
        .collect();
    (listed, seen)
}

fn same(
    function: &Function,
    limits: &Limits,
    heap: &Heap,
    starts: &[(u64, u64, u32, u32)],
    rounds: usize,
) -> Vec<Seen> {
    let compiled = Compiled::new(function, limits).expect("a verified function");
    let ours = go(function, limits, heap, starts, rounds, Some(&compiled));
    let oracle = go(function, limits, heap, starts, rounds, None);
    assert_eq!(ours, oracle);
    ours.1
}

/// A chain of nodes of 64 bytes: key i, value 10 i, and the last goes to `end`.
fn chain(nodes: u64, end: u64) -> Heap {
    let mut words = vec![0; nodes as usize * 8];
    for node in 0..nodes {
        let next = if node + 1 == nodes { end } else { BASE + (node + 1) * 64 };
        words[node as usize * 8..][..3].copy_from_slice(&[node, node * 10, next]);
    }
    Heap { words }
}

#[test]
fn every_way_for_a_walk_to_stop() {
    let heap = chain(10, 0);
    let starts = [
        (BASE, 3, 100, RUN),     // found
        (BASE, 99, 100, RUN),    // missing
        (BASE, 9, 4, RUN),       // hops used up
        (BASE, 3, 100, FREE),    // not there
        (BASE, 3, 100, STOPPED), // waiting for the slow path
        (BASE + 576, 9, 1, RUN), // the last node at once
    ];
    let seen = same(&hash_find(), &THREE_WORDS, &heap, &starts, 12);
    let ends: Vec<_> = seen.iter().map(|slot| (slot.0, slot.1, slot.2, slot.4)).collect();
    assert_eq!(ends[0], (STOPPED, Verdict::Done as u32, BASE + 3 * 64, 97));
    assert_eq!(seen[0].6[1], 30);
    assert_eq!(ends[1], (STOPPED, Verdict::Missing as u32, BASE + 9 * 64, 91));
    assert_eq!(ends[2], (STOPPED, Verdict::Next as u32, BASE + 4 * 64, 0), "cur is where to go on");
    assert_eq!((ends[3].0, ends[4].0), (FREE, STOPPED));
    assert_eq!(ends[3].3, 100);
    assert_eq!(ends[5].1, Verdict::Done as u32);
}

#[test]
fn a_hop_out_of_the_region_stops_before_anything_is_read_there() {
    // The last window that fits starts 24 bytes before the end.
    for (end, inside) in
        [(640 - 24, true), (640 - 23, false), (640, false), (u64::MAX - BASE, false), (u64::MAX, false)]
    {
        let heap = chain(10, BASE.wrapping_add(end));
        let seen = same(&hash_find(), &THREE_WORDS, &heap, &[(BASE + 576, 77, 5, RUN)], 1);
        if inside {
            assert_eq!((seen[0].0, seen[0].3), (RUN, end));
        } else {
            assert_eq!((seen[0].0, seen[0].1, seen[0].2), (STOPPED, 0, BASE.wrapping_add(end)));
            assert_eq!(seen[0].3, 576, "host is not moved");
        }
    }
}

#[test]
fn verdicts_that_are_none_and_faults_come_out_as_returned() {
    for verdict in [2, 3, 4, 6, 0x7f, 0x80, 0x1234_5678, 0xffff_ffff] {
        let function = Function { blocks: vec![returns(&[], verdict)] };
        let seen = same(&function, &THREE_WORDS, &chain(1, 0), &[(BASE, 0, 9, RUN)], 2);
        assert_eq!((seen[0].0, u64::from(seen[0].1), seen[0].4), (STOPPED, verdict, 9));
    }
    let forever = Function { blocks: vec![block(&[], End::Jump(memlift_traverse::ir::BlockId(0)))] };
    let seen = same(&forever, &THREE_WORDS, &chain(1, 0), &[(BASE, 0, 9, RUN); 3], 1);
    assert!(seen.iter().all(|slot| (slot.0, slot.1, slot.5.fuel) == (STOPPED, Verdict::OutOfFuel as u32, 8)));
}

#[test]
fn slots_do_not_see_each_others_stack_or_registers() {
    // Stores its key to the stack, reads it back, and adds it to scratch 8.
    let function = Function {
        blocks: vec![returns(
            &[
                load(4, at(Space::Scratch, 0)),
                store(at(Space::Stack, -8), 4),
                load(5, at(Space::Stack, -8)),
                store(at(Space::Scratch, 8), 5),
                load(6, at(Space::Window, 16)),
                store(at(Space::Walk, 0), 6),
            ],
            0,
        )],
    };
    let heap = chain(10, BASE);
    let starts: Vec<_> = (0..10).map(|slot| (BASE + slot * 64, slot * 1000, 100, RUN)).collect();
    let seen = same(&function, &THREE_WORDS, &heap, &starts, 25);
    assert!(seen.iter().enumerate().all(|(slot, seen)| seen.6[1] == slot as u64 * 1000));
}

#[test]
fn a_tree_is_searched_to_its_leaf() {
    // A root with keys 100, 200, 300, whose children are three leaves of the keys below.
    let mut words = vec![0; 4 * 32];
    words[..4].copy_from_slice(&[3, 100, 200, 300]);
    for leaf in 0..3_u64 {
        words[16 + leaf as usize] = BASE + (leaf + 1) * 256;
        let at = (leaf as usize + 1) * 32;
        words[at..at + 3].copy_from_slice(&[2, leaf * 100 + 40, leaf * 100 + 80]);
    }
    let heap = Heap { words };
    let starts = [(BASE, 50, 9, RUN), (BASE, 100, 9, RUN), (BASE, 250, 9, RUN), (BASE, 1000, 9, RUN)];
    let seen = same(&tree_search(), &TREE, &heap, &starts, 4);
    let found: Vec<_> = seen.iter().map(|slot| (slot.1, slot.6[1])).collect();
    assert_eq!(found, [(1, 80), (1, 140), (1, 280), (1, 300)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_are_walked_alike(
        links in prop::collection::vec((0_u64..40, 0_u64..8, any::<u64>()), 1..40),
        starts in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..8, 0_u32..20, 0_u32..3), 0..40),
        rounds in 1_usize..24,
    ) {
        // Links that are too high lead out of the region; 0 in 16 of them is the end.
        let mut words = vec![0; links.len() * 8];
        for (node, &(next, key, value)) in links.iter().enumerate() {
            let next = if value % 16 == 0 { 0 } else { BASE + next * 64 };
            words[node * 8..node * 8 + 3].copy_from_slice(&[key, value, next]);
        }
        let heap = Heap { words };
        let starts: Vec<_> = starts
            .iter()
            .map(|(node, key, hops, state)| (BASE + node.index(links.len()) as u64 * 64, *key, *hops, *state))
            .collect();
        for function in [hash_find(), list_find()] {
            same(&function, &THREE_WORDS, &heap, &starts, rounds);
        }
    }
}
