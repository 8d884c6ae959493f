// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `MEMLIFT_ISA` chooses the table: the test runs itself again as a child, once for each value.

use memlift_kernels::{ISA_VARIABLE, Isa, active, for_isa};
use std::process::Command;

/// Runs `report` in a new process with this value of `MEMLIFT_ISA`; gives the level it used and its standard error.
fn child(value: Option<&str>) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().expect("the test knows its own file"));
    command.args(["--exact", "choice::report", "--ignored", "--nocapture", "--test-threads=1"]);
    match value {
        Some(value) => command.env(ISA_VARIABLE, value),
        None => command.env_remove(ISA_VARIABLE),
    };
    let output = command.output().expect("the test can run itself");
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).expect("the report is text");
    let (_, isa) = stdout.split_once("active=").expect("the child reports");
    let isa = isa.split_whitespace().next().expect("the child reports a name");
    (isa.to_owned(), String::from_utf8(output.stderr).expect("warnings are text"))
}

#[test]
#[ignore = "run by the other tests in a child process"]
fn report() {
    for _ in 0..3 {
        println!("active={}", active().isa);
    }
    let source = [1u8, 2, 3];
    let mut target = [0u8; 3];
    // SAFETY: three bytes on both sides.
    unsafe { (active().copy)(target.as_mut_ptr(), source.as_ptr(), 3) };
    assert_eq!(source, target);
}

#[test]
fn every_level_can_be_chosen() {
    for isa in Isa::ALL {
        let (used, warning) = child(Some(isa.name()));
        assert_eq!(used, isa.best_available_below().name());
        assert_eq!(warning.is_empty(), isa.available(), "{warning}");
    }
}

#[test]
fn the_best_level_is_the_default() {
    let best = Isa::Avx512.best_available_below().name();
    assert_eq!(child(None), (best.to_owned(), String::new()));
    assert_eq!(child(Some("")), (best.to_owned(), String::new()));
}

#[test]
fn an_unknown_value_is_reported_once() {
    let (used, warning) = child(Some("avx1024"));
    assert_eq!(used, Isa::Avx512.best_available_below().name());
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("MEMLIFT_ISA=avx1024: unknown"), "{warning}");
    assert!(warning.contains("scalar, sse2, avx2, avx512"), "{warning}");
}

#[test]
fn tables_belong_to_their_level() {
    for isa in Isa::ALL {
        assert_eq!(for_isa(isa).is_some(), isa.available());
        if let Some(kernels) = for_isa(isa) {
            assert_eq!(kernels.isa, isa);
        }
    }
}
