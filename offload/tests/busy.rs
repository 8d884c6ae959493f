// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy is split only while another core is idle. A program of its own, because every core is kept busy.

use memlift_ground::config::{Candidate, Config};
use memlift_ground::observe::{self, CacheState};
use memlift_offload::Engine;
use memlift_place::Cache;
use memlift_spec::Opcode;
use std::ffi::OsString;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: usize = 32 << 20;

fn engine() -> Engine {
    let variables = [
        ("MEMLIFT_CALIBRATION", "/nowhere/calibration.json"),
        ("MEMLIFT_CALIBRATE", "false"),
        ("MEMLIFT_WORKERS", "1"),
    ];
    let variables = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let none: &[Candidate] = &[];
    Engine::open(&Config::load_from(none, variables).unwrap()).unwrap()
}

#[test]
fn a_copy_is_not_split_while_every_core_is_busy() {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let running = std::fs::read_to_string("/proc/loadavg").is_ok_and(|text| text.contains('/'));
    if cores < 2 || !running {
        println!("not run: one core, or a kernel that tells no run queue");
        return;
    }
    let engine = engine();
    let before = engine.explain(Opcode::MEMMOVE, BYTES, CacheState::Cold);
    assert_eq!(before.chosen, "split", "the built-in numbers split a copy of this size: {before:?}");

    let source: Vec<u8> = (0..BYTES).map(|index| ((index * 7) >> 3) as u8).collect();
    let mut target = vec![0; BYTES];
    let (stop, started) = (AtomicBool::new(false), Barrier::new(2 * cores + 1));
    std::thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        started.wait();
        // All of them may still be waking up: wait until none sleeps any more.
        while running_tasks() < 2 * cores {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for _ in 0..12 {
            target.fill(0);
            // SAFETY: both buffers have the length.
            unsafe { engine.copy_raw(target.as_mut_ptr(), source.as_ptr(), BYTES, Cache::Cold) };
            assert!(target == source);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let page = observe::attach(std::process::id()).unwrap();
    let executors: Vec<String> = page.decisions().into_iter().map(|decision| decision.executor).collect();
    assert_eq!(executors.len(), 12);
    assert!(!executors.iter().any(|executor| executor == "split"), "{executors:?}");
}

fn running_tasks() -> usize {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    text.split_whitespace().nth(3).and_then(|word| word.split('/').next()?.parse().ok()).unwrap()
}
