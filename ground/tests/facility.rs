// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Masks of the environment, seen from child processes: this test binary runs itself with `MEMLIFT_DISABLE`.

use std::process::{Command, Output};

use memlift_ground::facility::{self, Availability, Facility};

fn child(test: &str, disable: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("MEMLIFT_DISABLE", disable)
        .output()
        .unwrap()
}

#[test]
fn every_facility_can_be_masked() {
    let output = child("child_finds_everything_masked", &facility::known_names());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("MEMLIFT_DISABLE"),
        "no warning of known names"
    );
}

#[test]
#[ignore = "run by every_facility_can_be_masked"]
fn child_finds_everything_masked() {
    for &facility in Facility::ALL {
        assert_eq!(facility::detect(facility), Availability::Masked, "{facility}");
        assert!(!facility::usable(facility), "{facility}");
    }
}

#[test]
fn an_unknown_name_is_warned_of_once() {
    let output = child("child_asks_often", "populate_write,warp_drive");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.matches("warp_drive").count(), 1, "{stderr}");
    assert!(stderr.contains("memfd_seal") && stderr.contains("io_uring"), "the known names: {stderr}");
}

#[test]
#[ignore = "run by an_unknown_name_is_warned_of_once"]
fn child_asks_often() {
    for _ in 0..100 {
        assert!(!facility::usable(Facility::PopulateWrite));
    }
    assert_ne!(facility::detect(Facility::MemfdSeal), Availability::Masked);
}

#[test]
fn masking_at_run_time_takes_effect_at_once() {
    // Not used by another test of this binary.
    let before = facility::usable(Facility::IoUring);
    assert_eq!(facility::mask("io_uring, no_such_thing"), ["no_such_thing"]);
    assert!(!facility::usable(Facility::IoUring), "was {before}");
    assert_eq!(facility::detect(Facility::IoUring), Availability::Masked);
}

#[test]
fn what_every_supported_kernel_has_is_found() {
    assert_eq!(facility::detect(Facility::MemfdSeal), Availability::Usable);
}
