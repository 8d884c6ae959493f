// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools from C: every function, the example, and what is there after kill -9.
//!
//! - **Flow** `persist.c` ─▶ every function of memlift_persist.h · `killed.c run` ─▶ lines with what was acknowledged ─▶ SIGKILL
//!   at a moment chosen by chance ─▶ `killed.c check`: all of it is there, and nothing in part ─▶ again on the same pool

mod program;

use memlift::persist::check::check;
use memlift::persist::dump::{Filter, dump};
use program::{compile, compiled, run, start};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn every_function_does_what_the_header_says() {
    if let Some(said) = compiled("tests/persist.c", false) {
        assert!(said.ends_with("all as the header says\n"), "{said}");
    }
}

#[test]
fn the_example_remembers_what_earlier_runs_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("examples/pool.c", &program, true) {
        return;
    }
    for last in ["1 0 \n", "3 2 1 0 \n", "5 4 3 2 1 0 \n"] {
        let said = run(start(&program).arg(folder.path()));
        assert!(said.ends_with(last) && said.contains("survives"), "{said}");
    }
}

#[test]
fn tools_show_objects_of_c_by_field_and_follow_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, pool) = (folder.path().join("program"), folder.path().join("numbers.pool"));
    if !compile("examples/pool.c", &program, false) {
        return;
    }
    run(start(&program).arg(folder.path()));
    let mut shown = Vec::new();
    let nodes = Filter { name: Some("node".to_owned()), offset: None };
    dump(&*pool, &nodes, |object| {
        shown.push((object.offset, object.value.to_string()));
        true
    })
    .expect("dumped");
    let [(last, first_line), (_, second_line)] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(first_line, "{ number: 0, next: null }");
    assert_eq!(*second_line, format!("{{ number: 1, next: node {last:#x} }}"));
    let report = check(&*pool).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn every_acknowledged_transaction_survives_kill_9() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("tests/killed.c", &program, false) {
        return;
    }
    let mut chance = 12345u32;
    for domain in ["1", "2"] {
        for durability in ["0", "1", "2"] {
            let pool = folder.path().join(format!("{domain}{durability}.pool"));
            let with = |what: &str| {
                let mut command = start(&program);
                command.arg(&pool).args([what, durability, domain]);
                command
            };
            let mut last = 0;
            for life in 0..6 {
                let mut child = with("run").stdout(Stdio::piped()).spawn().expect("it starts");
                let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
                chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let mut acknowledged = last;
                for line in lines.by_ref().take(1 + (chance >> 26) as usize) {
                    acknowledged = number(&line.expect("a line"));
                }
                child.kill().expect("SIGKILL");
                // Lines that it printed before the signal reached it count, too; a line is one write.
                for line in lines {
                    acknowledged = number(&line.expect("a line"));
                }
                child.wait().expect("it ended");
                let found = number(run(&mut with("check")).trim());
                assert!(found >= acknowledged, "life {life}: {found} of {acknowledged}");
                assert!(found > last, "life {life} did nothing");
                last = found;
            }
        }
    }
}

fn number(line: &str) -> u64 {
    line.parse().unwrap_or_else(|_| panic!("{line:?}"))
}
