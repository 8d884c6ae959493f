// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test in a process of its own: a process has one pager.

use std::process::Command;

/// Names the test that this process is for.
const VARIABLE: &str = "MEMLIFT_TEST_CHILD";

/// Runs `body` in a new process of this test program, as the test `name`; its failure is this test's.
pub fn in_child(name: &str, body: impl FnOnce()) {
    in_child_with(name, |_| {}, body);
}

/// As [`in_child`], with `prepare` for the command: environment, user.
pub fn in_child_with(name: &str, prepare: impl FnOnce(&mut Command), body: impl FnOnce()) {
    if std::env::var(VARIABLE).is_ok_and(|child| child == name) {
        return body();
    }
    let program = std::env::current_exe().expect("the test program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, name);
    prepare(&mut command);
    let output = command.output().expect("the test program runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{name} in its own process: {}", output.status);
    assert!(text.contains("1 passed"), "{name} did not run in its own process");
}
