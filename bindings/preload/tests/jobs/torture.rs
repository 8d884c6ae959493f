// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything at once at random, while the budget changes: contents are right, or the test fails. Ten seconds by default;
//! `MEMLIFT_TORTURE_S` says how many, and the long one runs an hour.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::job::{Job, MIB};

fn torture(seconds: u64) {
    let job = Job::new(64 * MIB);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Up and down, never below what the job needs at least.
            let mut turn = 0usize;
            while !over.load(Ordering::Relaxed) {
                turn = turn.wrapping_mul(5).wrapping_add(3) % 16;
                job.registry.set_total(job.admission.block(), (48 + 2 * turn) * MIB).expect("a new total");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let said = std::panic::catch_unwind(|| job.check("torture", &[&seconds.to_string(), "64"]));
        over.store(true, Ordering::Relaxed);
        assert_eq!(said.unwrap_or_else(|error| std::panic::resume_unwind(error)), "right\n");
    });
}

#[test]
fn contents_are_right_whatever_happens() {
    torture(std::env::var("MEMLIFT_TORTURE_S").ok().and_then(|text| text.parse().ok()).unwrap_or(10));
}

#[test]
#[ignore = "soak"]
fn soak_contents_are_right_for_an_hour() {
    torture(std::env::var("MEMLIFT_TORTURE_S").ok().and_then(|text| text.parse().ok()).unwrap_or(3600));
}
