// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every example ends well and says what its documentation promises.

use std::process::Command;

#[test]
fn a_backend_of_ones_own_that_faults_and_vanishes_loses_no_byte() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-backend")).output().expect("it starts");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    for wanted in ["out of order", "faulted in the middle", "vanished", "every byte is right"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}
