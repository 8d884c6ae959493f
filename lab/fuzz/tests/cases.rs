// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every target over its seeds, and over seeds changed at random.
//!
//! `MEMLIFT_FUZZ_CASES` (400) says how many, `MEMLIFT_FUZZ_SEED` where they begin. What fails is printed as bytes, which go
//! into the seeds of the target once the fault is gone; what kills the process lies in the file that `MEMLIFT_FUZZ_KEEP` names.

use memlift_fuzz::mutate::{Random, mutated};
use memlift_fuzz::{TARGETS, Target};
use std::panic::catch_unwind;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn try_one(target: &Target, data: &[u8], case: &str) {
    if let Ok(path) = std::env::var("MEMLIFT_FUZZ_KEEP") {
        std::fs::write(path, data).expect("MEMLIFT_FUZZ_KEEP names a file that can be written");
    }
    if catch_unwind(|| (target.run)(data)).is_err() {
        let text: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("target {} fails at {case}: {} bytes {text}", target.name, data.len());
    }
}

fn target(name: &str) -> Target {
    let seed = number("MEMLIFT_FUZZ_SEED", 1);
    let target = *TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    let seeds = (target.seeds)();
    for (index, data) in seeds.iter().enumerate() {
        try_one(&target, data, &format!("its seed {index}"));
    }
    for case in 0..number("MEMLIFT_FUZZ_CASES", 400) {
        let mut random =
            Random(seed.wrapping_mul(0x1_0000_0001).wrapping_add(case.wrapping_mul(0x9e37_79b9)));
        try_one(&target, &mutated(&seeds, &mut random), &format!("seed {seed}, case {case}"));
    }
    target
}

macro_rules! tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(target(stringify!($name)).name, stringify!($name));
        }
    )*};
}

tests! { inflate deflate open chains unpack libz ipc ipc_client ipc_server page parameters pool trace walk_bytecode walk_map walk_packet }

#[test]
fn every_target_is_tested_and_takes_no_bytes_at_all() {
    for target in &TARGETS {
        try_one(target, &[], "no bytes");
        assert!(!(target.seeds)().is_empty(), "{} has nothing to start from", target.name);
    }
    assert_eq!(TARGETS.len(), 16, "enter a new target in `tests!`");
}
