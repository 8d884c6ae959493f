// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of real programs, replayed without a device: the replay takes the recorded time.
//!
//! - **Programs** `programs.toml`: one thread, several, children, pipes, servers. Those that are not installed are left out, and said
//! - **Not here** ten recordings of each, and the slow ones: `tools/replays`

use std::process::Command;

use super::place::{Place, text};
use super::{path, unchanged};

/// A replay may be off by this part of the recorded time.
const OFF: f64 = 0.02;

/// Runs a line of the shell in the programs' folder.
fn shell(place: &Place, line: &str) {
    let output = Command::new("sh").args(["-ec", line]).current_dir(place.folder.path()).output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
}

#[test]
fn a_trace_that_is_replayed_unchanged_takes_the_recorded_time() {
    let list: toml::Table = toml::from_str(include_str!("programs.toml")).expect("a list");
    let place = Place::new();
    shell(&place, list["prepare"].as_str().expect("text"));
    let (mut held, mut missed) = (0, Vec::new());
    for program in list["program"].as_array().expect("a list") {
        let field = |name: &str| program.get(name).and_then(toml::Value::as_str);
        let name = field("name").expect("a name");
        if program.get("slow").is_some() {
            continue;
        }
        let needs = program.get("needs").and_then(toml::Value::as_array);
        let missing = needs.into_iter().flatten().filter_map(toml::Value::as_str).find(|need| {
            let found = Command::new("sh").args(["-c", "command -v \"$0\"", need]).output();
            !found.expect("a shell").status.success()
        });
        if let Some(missing) = missing {
            eprintln!("{name}: {missing} is not installed");
            continue;
        }
        if let Some(line) = field("prepare") {
            shell(&place, line);
        }
        let file = path(&place, "program.trace");
        let run = field("run").expect("a line");
        let mut recording =
            place.memlift(&["record", "-q", "--threshold", "64", "-o", &file, "--", "sh", "-c", run]);
        let output = recording.current_dir(place.folder.path()).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        let output = place.run(&["whatif", "--device", "dsa", "--json", &file]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        let answer = serde_json::from_slice(&output.stdout).expect("JSON");
        let ratio = unchanged(&answer);
        eprintln!("{name}: {ratio:.4}, {}", answer["trace"]["waits"]);
        std::fs::remove_file(&file).expect("removed");
        if (ratio - 1.0).abs() < OFF { held += 1 } else { missed.push((name, ratio)) }
    }
    assert!(held > 0 && missed.is_empty(), "{missed:?}");
}
