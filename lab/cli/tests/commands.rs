// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift-lab` as its users meet it: its exit codes, what bad input gets.
//!
//! - **Not here** the numbers of `bench` and `tour`: `make test` runs both quickly

use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift-lab"));
    command.args(arguments).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null()).output().expect("it starts")
}

#[test]
fn usage_errors_have_their_code_and_style() {
    for arguments in [&["bogus"][..], &["bench", "bogus"], &["tour", "bogus"], &["whatif", "--steps", "1"]] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("memlift: error: ") && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn wrong_questions_say_what_is_possible() {
    for (arguments, wanted) in [
        (&["--batch", "1"][..], "2..=1024"),
        (&["--batch", "1025"], "2..=1024"),
        (&["--batch", "some"], "--batch"),
        (&["--ahead", "0"], "1..=64"),
        (&["--ahead", "1", "--device", "dmu"], "give --device dsa"),
        (&["--async", "--first-use", "later"], "give recorded, at-once, or a time"),
        (&["--async", "--first-use", "5"], "500ns, 2us"),
        (&["--first-use", "at-once"], "give --async, --batch"),
        (&["--sites", "5"], "give --async, --batch"),
        (&["--async", "--sites", "0"], "1..=100"),
        (&["--async", "--device", "smartdimm"], "give --device dsa"),
        (&["--batch", "4", "--device", "cpu"], "give --device dsa"),
        (&["--async", "--sweep", "start=1..2"], "--sweep"),
        (&["--cores", "0"], "1..=1024"),
        (&["--cores", "1", "--device", "dsa"], "leave --device out"),
    ] {
        let output = run(&[&["whatif"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("memlift: error: ") && said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn wrong_exports_say_what_is_possible() {
    for (arguments, wanted) in [
        (&["--format", "gem5"][..], "--export"),
        (&["--pages", "virtual"], "--export"),
        (&["--export", "x", "--format", "dramsim"], "simpleo3"),
        (&["--export", "x", "--pages", "random"], "first-touch"),
        (&["--export", "x", "--format", "simpleo3", "--instructions", "0"], "0.001 to 1000"),
        (&["--export", "x", "--async"], "--async"),
    ] {
        let output = run(&[&["whatif"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn bench_names_its_rows_when_asked_for_none() {
    let output = run(&["bench", "copy", "--only", "nothing/like/this"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("copy/"), "{said}");
}

#[test]
fn a_missing_file_has_the_code_of_every_verb() {
    for arguments in [
        &["whatif", "/none/here", "--device", "cpu"][..],
        &["whatif", "/none/here", "--device", "dsa", "--parameters", "/none/there"],
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {said}");
        assert!(said.contains("/none/"), "{arguments:?}: {said}");
    }
}

#[test]
fn input_that_is_no_file_or_has_other_contents_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let made = Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo starts");
    assert!(made.success());
    std::fs::write(at("garbage"), [0xff; 5000]).expect("writable");
    std::fs::write(at("empty"), "").expect("writable");
    let trace = ["whatif"];
    let parameters = ["reproduce", "pulse-fig10", "--parameters"];
    let tried = [
        (&trace[..], "/dev/zero", 2),
        (&trace, "pipe", 2),
        (&trace, "folder", 2),
        (&trace, "garbage", 1),
        (&trace, "empty", 1),
        (&parameters, "/dev/zero", 1),
        (&parameters, "folder", 2),
        (&parameters, "missing", 3),
        (&parameters, "garbage", 1),
    ];
    std::fs::create_dir(at("folder")).expect("a folder");
    for (arguments, name, code) in tried {
        let path = if name.starts_with('/') { name.to_owned() } else { at(name) };
        let output = run(&[arguments, &[&path]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {name}: {said}");
        assert!(said.contains(&path), "{arguments:?} {name}: {said}");
    }
}
