// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of compiled code: never writable and executable at once, gone with its last owner; and memory that others write.
//!
//! - **Not here** what instructions compute (`walks::jit_table`), rounds (`walks::jit_round`)
#![cfg(feature = "jit")]
#![allow(unsafe_code)]

mod jit_programs;

use jit_programs::{THREE_WORDS, at, block, branch, hash_find, load, returns, store};
use memlift_traverse::ir::{Alu, Cmp, Function, Inst, Operand, Reg, Space, Width};
use memlift_traverse::jit::{Compiled, Limits};
use memlift_traverse::step::Walk;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Tests look at all mappings of the process, so they take turns.
static MAPPINGS: Mutex<()> = Mutex::new(());

/// The permissions of the mapping that an address lies in.
fn permissions(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has this file");
    maps.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (range, permissions) = (fields.next()?, fields.next()?);
        let (first, end) = range.split_once('-')?;
        let first = usize::from_str_radix(first, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        (first..end).contains(&address).then(|| permissions.to_owned())
    })
}

/// How many mappings may be both written and executed.
fn writable_and_executable() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has this file");
    let both =
        |line: &&str| line.split(' ').nth(1).is_some_and(|bits| bits.contains('w') && bits.contains('x'));
    maps.lines().filter(both).count()
}

#[test]
fn code_is_executable_or_writable_but_never_both_and_leaves_with_its_last_owner() {
    let _turn = MAPPINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // A second thread looks at the mappings all the time, so that a moment of both would be seen as well.
        let watcher = scope.spawn(|| {
            let mut worst = 0;
            while !stop.load(Ordering::Relaxed) {
                worst = worst.max(writable_and_executable());
                looks.fetch_add(1, Ordering::Relaxed);
            }
            worst
        });
        let mut compiled = 0;
        while compiled < 20 || looks.load(Ordering::Relaxed) < 100 {
            let first = Compiled::new(&hash_find(), &THREE_WORDS).expect("a verified function");
            // SAFETY: only its address is looked at.
            let address = unsafe { first.step_fn() } as usize;
            assert_eq!(permissions(address).as_deref(), Some("r-xp"));
            let second = first.clone();
            drop(first);
            assert_eq!(permissions(address).as_deref(), Some("r-xp"), "a clone still owns it");
            let mut scratch = [5_u64, 0];
            let node = [5_u64, 55, 0];
            let mut walk = Walk::default();
            // SAFETY: a node of three words, and a program that uses two words of its scratchpad.
            let verdict =
                unsafe { second.step(node.as_ptr().cast(), scratch.as_mut_ptr().cast(), &raw mut walk) };
            assert_eq!((verdict, scratch[1]), (1, 55));
            drop(second);
            assert_ne!(permissions(address).as_deref(), Some("r-xp"), "unmapped with its last owner");
            compiled += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(watcher.join().expect("the watcher ends"), 0, "a mapping was writable and executable");
    });
}

#[test]
fn a_thousand_programs_come_and_go_without_leaving_mappings() {
    let _turn = MAPPINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let executable = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has this file");
        maps.lines()
            .filter(|line| line.contains("r-xp") && !line.contains('/') && !line.contains('['))
            .count()
    };
    let before = executable();
    for _ in 0..1000 {
        Compiled::new(&hash_find(), &THREE_WORDS).expect("a verified function");
    }
    assert_eq!(executable(), before);
}

#[test]
fn two_loads_of_one_word_both_read_it() {
    let _turn = MAPPINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Goes round until the word has changed between two loads: had the second been taken from the first, it never would. The
    // products between them keep a processor from doing both loads at once.
    let mut insts = vec![load(6, at(Space::Scratch, 0)), load(4, at(Space::Window, 0))];
    let (target, a, b) = (Reg(6), Operand::Reg(Reg(6)), Operand::Reg(Reg(6)));
    insts.resize(1000, Inst::Alu { op: Alu::Mul, width: Width::W64, target, a, b });
    insts.extend([load(5, at(Space::Window, 0)), store(at(Space::Scratch, 0), 6)]);
    let function = Function {
        blocks: vec![block(&insts, branch(Cmp::Ne, 4, Operand::Reg(Reg(5)), 1, 0)), returns(&[], 1)],
    };
    let limits = Limits { window_first: 0, window_bytes: 8, scratch_bytes: 8 };
    let compiled = Compiled::new(&function, &limits).expect("a verified function");
    let word = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let verdict = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut walk = Walk { fuel: 20_000_000, ..Walk::default() };
        let mut scratch = 3_u64;
        // SAFETY: the word lives, and others write it atomically; the scratchpad is one word.
        let verdict =
            unsafe { compiled.step(word.as_ptr().cast(), (&raw mut scratch).cast(), &raw mut walk) };
        done.store(true, Ordering::Relaxed);
        verdict
    });
    assert_eq!(verdict, 1);
}

#[test]
fn a_step_runs_on_many_threads_at_once() {
    let _turn = MAPPINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let compiled = Compiled::new(&hash_find(), &THREE_WORDS).expect("a verified function");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let compiled = compiled.clone();
            scope.spawn(move || {
                for key in 0..1000 {
                    let node = [key, key * thread, 0];
                    let mut scratch = [key, 0];
                    let mut walk = Walk::default();
                    // SAFETY: a node of three words, and a program that uses two words of its scratchpad.
                    let verdict = unsafe {
                        compiled.step(node.as_ptr().cast(), scratch.as_mut_ptr().cast(), &raw mut walk)
                    };
                    assert_eq!((verdict, scratch[1]), (1, key * thread));
                }
            });
        }
    });
}
