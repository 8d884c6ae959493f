// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift run` as its users meet it: real programs under real budgets, exit codes, signals, reports, refusals, live changes.
//! `memlift record` and `whatif`: the same programs watched, and what their traces say.
//!
//! - **Not here** what happens inside the program: bindings/preload/tests. Spill disks that are full or fail: spill.rs

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::place::{Place, python, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Fills `mib` MiB with words that repeat after a while, reads them again twice, and prints their sum.
const FILL: &str = "
import sys
mib, seed = int(sys.argv[1]), int(sys.argv[2])
parts = []
for part in range(mib):
    word = (seed + part) * 2654435761 % 4294967296
    parts.append(bytearray(b''.join(((word + i) % 100000).to_bytes(8, 'little') for i in range(256)) * 512))
total = 0
for again in range(2):
    for part in parts:
        total = (total * 31 + sum(part[::509])) % (1 << 61)
print(total)
";

#[test]
fn exit_codes_output_and_signals_are_the_programs() {
    let place = Place::new();
    let output =
        place.run(&["run", "-q", "--memory", "256M", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "out\n"));
    assert_eq!(text(&output.stderr), "err\n");
    let output = place.run(&["run", "-q", "--memory", "256M", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137));
    // A signal to the command is a signal to the program.
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = place.memlift(&["run", "-q", "--memory", "256M", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    assert_eq!(lines.next().expect("a line").expect("read"), "caught");
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
}

#[test]
fn a_job_larger_than_its_budget_ends_well_and_borrows_no_more_than_the_grace() {
    let place = Place::new();
    let python = python();
    let free = Command::new(&python).args(["-c", FILL, "192", "5"]).output().expect("python starts");
    let (output, report) = place.report(&["--memory", "96M", "--", &python, "-c", FILL, "192", "5"]);
    assert_eq!(text(&output.stdout), text(&free.stdout), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
    assert_eq!(report["exit_code"], 0);
    assert_eq!(number("budget_bytes"), f64::from(96 << 20));
    assert!(number("peak_counted_bytes") > f64::from(16 << 20), "{report:#}");
    // Memory borrowed while pages were compressed is the grace, 10 MiB.
    assert!(number("peak_counted_bytes") <= f64::from(106 << 20), "{report:#}");
    // More than one where python3 is a script of a version manager.
    assert!(report["processes"].as_u64() >= Some(1), "{report:#}");
}

/// Each process takes some 700 KiB, which cannot be compressed. Sixty of them do not fit at a time, but some always do.
#[test]
fn processes_that_start_together_wait_for_room() {
    let place = Place::new();
    let script = "for i in $(seq 60); do sleep 0.6 & done; wait; echo done";
    let output = place.run(&["run", "-q", "--memory", "32M", "--", "sh", "-c", script]);
    let seen = (output.status.code(), text(&output.stdout));
    assert_eq!(seen, (Some(0), "done\n".to_owned()), "{}", text(&output.stderr));
}

#[test]
fn without_userfaultfd_a_job_larger_than_its_budget_ends_well_too() {
    let place = Place::new();
    let arguments = ["-c", FILL, "96", "7"];
    let free = Command::new(python()).args(arguments).output().expect("python starts");
    let output = place
        .memlift(&["run", "--memory", "64M", "--", &python()])
        .args(arguments)
        .env("MEMLIFT_DISABLE", "uffd,uffd_kernel")
        .output()
        .expect("it runs");
    assert_eq!(text(&output.stdout), text(&free.stdout), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_cannot_fit_is_said_in_words_with_its_exit_code() {
    let place = Place::new();
    let random = "import os\nparts = [os.urandom(1 << 20) for _ in range(128)]\nprint(len(parts))";
    let (output, report) =
        place.report(&["--memory", "48M", "--on-overflow", "fail", "--", &python(), "-c", random]);
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("more than its budget"), "{}", text(&output.stderr));
    assert!(report["compressed_memory_faults"].as_u64() >= Some(1), "{report:#}");
    assert!(report["least_budget_bytes"].as_u64() > report["budget_bytes"].as_u64(), "{report:#}");
}

#[test]
fn what_cannot_be_covered_is_refused_with_the_reason() {
    let place = Place::new();
    let copy = place.folder.path().join("static");
    let mut elf = std::fs::read("/bin/sh").expect("a shell");
    elf[56..58].copy_from_slice(&[0, 0]);
    std::fs::write(&copy, elf).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&copy, mode).expect("set");
    for (arguments, code, said) in [
        (
            vec!["run", "--memory", "64M", "--backend", "user", "--", copy.to_str().expect("UTF-8")],
            3,
            "statically linked",
        ),
        (vec!["run", "--memory", "64M", "--", "no-such-program-anywhere"], 3, "no such program"),
        (vec!["run", "--memory", "1K", "--", "true"], 2, "less than 8M"),
        (vec!["run", "--memory", "900T", "--", "true"], 2, "more than a machine"),
        (vec!["run", "--memory", "100T", "--", "true"], 3, "were asked for"),
        (vec!["run", "--memory", "64M", "--spill", "/nonexistent", "--", "true"], 3, "no such folder"),
        (vec!["run", "--memory", "64M", "--spill", "/dev/shm", "--", "true"], 2, "tmpfs"),
        (
            vec!["run", "--memory", "64M", "--unused", "64M", "--", "true"],
            2,
            "--unused 64.0 MiB: the budget is",
        ),
        (
            vec!["run", "--memory", "64M", "--min-uncompressed", "65M", "--", "true"],
            2,
            "the budget is 64.0 MiB",
        ),
        (vec!["run", "--memory", "64M", "--report", "/nonexistent/r", "--", "true"], 3, "--report"),
        (vec!["run", "--memory", "64M", "--", "/etc/passwd"], 3, "not a file that may be executed"),
        (vec!["run", "--memory", "64M", "--on-overflow", "maybe", "--", "true"], 2, "pause"),
        (vec!["job", "set", "99", "--memory", "1G"], 3, "no job 99"),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_running_job_is_listed_and_changed() {
    let place = Place::new();
    let mut command =
        place.memlift(&["run", "-q", "--memory", "200M", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut child: Child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    let list = || -> Value {
        let output = place.run(&["--json", "job", "list"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let jobs = list();
    let job = &jobs["jobs"][0];
    assert_eq!((&job["name"], &job["total_bytes"]), (&Value::from("sh"), &Value::from(200u64 << 20)));
    let number = job["job"].to_string();
    assert!(place.run(&["job", "set", &number, "--memory", "300M", "--unused", "10M"]).status.success());
    assert!(place.run(&["job", "set", &number, "--steal", "50M"]).status.success());
    let output = place.run(&["job", "set", &number, "--memory", "1K"]);
    assert_eq!(output.status.code(), Some(2), "a typo does not end the job");
    assert!(text(&output.stderr).contains("less than 8M"), "{}", text(&output.stderr));
    for part in ["--unused", "--min-uncompressed"] {
        // Of what it has, and of what it would be given by the same call.
        for more in [vec!["250M"], vec!["80M", "--memory", "64M"]] {
            let output = place.run(&[vec!["job", "set", &number, part], more].concat());
            assert_eq!(output.status.code(), Some(2));
            let said = text(&output.stderr);
            assert!(said.contains(part) && said.contains("the budget is"), "{said}");
        }
    }
    let jobs = list();
    assert_eq!(jobs["jobs"][0]["total_bytes"], 250u64 << 20);
    assert_eq!(jobs["jobs"][0]["unused_objective_bytes"], 10u64 << 20);
    assert!(place.run(&["job", "set", &number, "--memory", "125M"]).status.success());
    assert_eq!(list()["jobs"][0]["unused_objective_bytes"], 5u64 << 20, "it shrinks with the budget");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
    assert_eq!(list()["jobs"], Value::Array(Vec::new()));
}

#[test]
fn processes_that_wait_take_little_of_the_budget() {
    let place = Place::new();
    // Six shells that wait for each other. Their allocators have 6 MiB or more each, of which they touch some hundred KiB.
    let nest = "[ $1 = 0 ] && { echo ready; read line; exit; }; sh -c \"$0\" \"$0\" $(($1 - 1)); true";
    let mut command = place.memlift(&["run", "-q", "--memory", "64M", "--", "sh", "-c", nest, nest, "5"]);
    let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    let output = place.run(&["--json", "job", "list"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let job = &list["jobs"][0];
    let mine = 64 * MIB - job["unused_bytes"].as_u64().expect("a number");
    assert_eq!(job["pids"].as_array().map(Vec::len), Some(6), "{list:#}");
    assert!(mine < 32 * MIB, "{} MiB: {list:#}", mine / MIB);
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_quiet_run_says_nothing_and_writes_the_report_that_was_asked_for() {
    let place = Place::new();
    let file = place.folder.path().join("report.json");
    let report = file.to_str().expect("UTF-8");
    let output = place.run(&["run", "-q", "--memory", "64M", "--report", report, "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let written: Value = serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert!(written["exit_code"] == 0, "{written}");
    let output = place.run(&["run", "-q", "--memory", "64M", "--report", "-", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_profile_names_a_budget_that_is_enough() {
    let place = Place::new();
    let drawing = place.folder.path().join("curve.svg");
    let output = place.run(&[
        "--json",
        "run",
        "--profile=100,70",
        "--slow-down",
        "1000",
        "--plot",
        drawing.to_str().expect("UTF-8"),
        "--",
        &python(),
        "-c",
        FILL,
        "64",
        "5",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let profile: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(profile["runs"].as_array().map(Vec::len), Some(2), "{profile:#}");
    assert_eq!(profile["smallest_budget_bytes"], profile["runs"][1]["budget_bytes"], "{profile:#}");
    assert!(std::fs::read_to_string(&drawing).expect("drawn").contains("</svg>"));
}

#[test]
fn two_runs_make_a_curve_of_all_budgets_between() {
    let place = Place::new();
    let drawing = place.folder.path().join("curve.svg");
    let drawing = drawing.to_str().expect("UTF-8");
    let arguments = ["--json", "run", "--profile", "--plot", drawing, "--", &python(), "-c", FILL, "64", "5"];
    let output = place.run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let profile: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(profile["runs"].as_array().map(Vec::len), Some(1), "{profile:#}");
    let curve = profile["curve"].as_array().expect("a curve");
    let of = |name: &str| -> Vec<f64> {
        curve.iter().map(|point| point[name].as_f64().unwrap_or(f64::INFINITY)).collect()
    };
    let (percents, slow_downs) = (of("percent"), of("slow_down"));
    assert!(curve.len() > 20 && percents.is_sorted() && slow_downs.is_sorted_by(|one, other| one >= other));
    assert!((percents[0] - 50.0).abs() < 1.0 && slow_downs[curve.len() - 1] == 1.0, "{profile:#}");
    let best = profile["smallest_budget_bytes"].as_f64().expect("a budget");
    let need = profile["unlimited"]["peak_counted_bytes"].as_f64().expect("a size");
    assert!(best >= need / 2.0 - 1.0 && best <= need, "{profile:#}");
    let drawn = std::fs::read_to_string(drawing).expect("drawn");
    assert!(drawn.contains("<polyline") && drawn.matches("<circle").count() == 1, "{drawn}");
}

/// Fills memory with bytes that do not compress, says so, and reads them until a line comes.
const RANDOM: &str = "
import os, select, sys
parts = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]
print('ready', flush=True)
rounds = 0
while rounds < 3 or not select.select([sys.stdin], [], [], 0)[0]:
    total = sum(part[::4096].count(7) for part in parts)
    more = bytearray(1 << 20)
    rounds += 1
print('done', flush=True)
";

/// The lines about a job that does not fit name the budget with which it does.
#[test]
fn a_job_that_cannot_fit_says_so_at_once_and_the_budget_that_it_names_is_enough() {
    let place = Place::new();
    let python = python();
    let mut command = place.memlift(&["run", "-q", "--memory", "200M", "--", &python, "-c", RANDOM, "96"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut next = || said.next().expect("a line").expect("read");
    assert!(place.run(&["job", "set", "1", "--memory", "64M"]).status.success());
    // About a second later on an idle machine, whichever of the two reasons it then has.
    let first = next();
    assert!(first.contains("for what it holds now it needs --memory"), "{first}");
    let again = loop {
        let line = next();
        if line.contains("paused for 5 s, 60 s at most") {
            break line;
        }
        assert!(line.contains("--memory"), "{line}");
    };
    let needed = again.split("--memory ").nth(1).and_then(|rest| rest.split('M').next()).expect("a budget");
    assert!(needed.parse::<u64>().is_ok_and(|needed| (96..144).contains(&needed)), "{again}");
    assert!(place.run(&["job", "set", "1", "--memory", &format!("{needed}M")]).status.success());
    child.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    assert_eq!(lines.next().expect("a line").expect("read"), "done");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_job_that_was_asked_to_ends_with_the_process_that_started_it() {
    let place = Place::new();
    let memlift = place.memlift(&[]);
    let script = "\"$0\" run -q --memory 64M --end-with-parent -- sh -c 'echo $$; exec sleep 1000' & sleep 0.5; read line";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(memlift.get_program());
    shell.envs(memlift.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let pid: i32 = lines.next().expect("a line").expect("read").parse().expect("a number");
    child.kill().expect("it is this test's child");
    child.wait().expect("it ended");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while rustix::process::test_kill_process(Pid::from_raw(pid).expect("a process")).is_ok() {
        assert!(std::time::Instant::now() < deadline, "the program lives on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn progress_is_a_line_every_few_seconds() {
    let place = Place::new();
    let output = place.run(&["run", "-q", "--progress=1", "--memory", "64M", "--", "sleep", "2.5"]);
    let said = text(&output.stderr);
    assert_eq!(
        said.lines().filter(|line| line.contains("of 64.0 MiB") && line.contains("all of it fits")).count(),
        2,
        "{said}"
    );
}

#[test]
fn a_signal_ends_the_whole_profile() {
    let place = Place::new();
    // Each run makes a file of its own, and the program makes nothing of the signal.
    let script = "trap 'exit 0' TERM; touch $0/$$; while :; do sleep 0.05; done";
    let folder = place.folder.path().join("runs");
    std::fs::create_dir(&folder).expect("a folder");
    let arguments = ["run", "--profile", "--", "sh", "-c", script, folder.to_str().expect("UTF-8")];
    let child = place.memlift(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it starts");
    let runs = || std::fs::read_dir(&folder).expect("it is there").count();
    while runs() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    assert_eq!((runs(), text(&output.stdout)), (1, String::new()));
    assert!(text(&output.stderr).contains("not finished"), "{}", text(&output.stderr));
}

/// Copies, packs, unpacks; a thread and a forked child do so too.
const WATCHED: &str = "
import os, subprocess, sys, threading, zlib
try:
    # A child of vfork ends where its parent's memory is.
    subprocess.run(['/no/such/program'])
except FileNotFoundError:
    pass
data = bytes(range(256)) * 4096
def work():
    packed = zlib.compress(data, 1)
    assert zlib.decompress(packed) == data
    copies = [bytearray(data) for _ in range(8)]
    assert all(copy == data for copy in copies)
thread = threading.Thread(target=work)
thread.start()
thread.join()
if os.fork() == 0:
    work()
    os._exit(0)
assert os.wait()[1] == 0
print('done', len(data))
sys.exit(int(sys.argv[1]))
";

fn path(place: &Place, name: &str) -> String {
    place.folder.path().join(name).to_str().expect("UTF-8").to_owned()
}

fn whatif(place: &Place, arguments: &[&str]) -> Value {
    let output = place.run(&[&["whatif", "--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_recorded_program_is_as_ever_and_its_trace_holds_what_it_did() {
    let place = Place::new();
    let trace = path(&place, "a.trace");
    let output = place.run(&["record", "-q", "-o", &trace, "--", &python(), "-c", WATCHED, "7"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "done 1048576\n"));
    assert_eq!(text(&output.stderr), "");

    let answer = whatif(&place, &[&trace]);
    let seen = &answer["trace"];
    // More processes where python3 is a script of a version manager.
    let (processes, threads) = (seen["processes"].as_u64(), seen["threads"].as_u64());
    assert!(processes >= Some(2) && threads >= Some(3) && seen["finished"] == true, "{seen}");
    let kind = |name: &str| {
        let kinds = seen["calls"].as_array().expect("a list");
        kinds.iter().find(|kind| kind["kind"] == name).cloned().unwrap_or_else(|| panic!("no {name}: {seen}"))
    };
    // The thread's work and the child's.
    assert!(kind("deflate")["bytes"].as_u64() >= Some(2 << 20), "{seen}");
    assert!(
        kind("inflate")["calls"].as_u64() >= Some(2) && kind("memcpy")["bytes"].as_u64() >= Some(16 << 20)
    );
    let share = seen["share_seen"].as_f64().expect("a number");
    assert!(share > 0.0 && share <= 1.0 && seen["wall_ns"].as_u64() > Some(0), "{seen}");
    assert!(answer["wall"]["model_s"].as_f64() > Some(0.0) && answer["origin"].is_string());

    let dsa = whatif(&place, &["--device", "dsa", "--from", "64K", &trace]);
    assert!(dsa["with"]["offloaded_bytes"].as_u64() >= Some(1), "{dsa}");
    assert!(dsa["parameters"].as_array().is_some_and(|all| all.len() > 10), "{dsa}");
    let swept = whatif(
        &place,
        &["--device", "dsa", "--from", "64K", "--sweep", "start=0..2us", "--steps", "3", &trace],
    );
    let runs: Vec<f64> = swept["sweep"]["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|run| run["run"]["waiting_s"].as_f64().expect("a number"))
        .collect();
    assert!(runs.len() == 3 && runs[0] < runs[1] && runs[1] < runs[2], "{runs:?}");
    let near = whatif(&place, &["--device", "smartdimm", "--from", "1K", &trace]);
    assert!(near["with"]["offloaded"].as_u64() >= Some(2), "{near}");
    for device in ["nearpm", "pulse", "dmu"] {
        let answer =
            whatif(&place, &["--device", device, &trace])["answer"].as_str().expect("text").to_owned();
        assert!(answer.contains(&format!("nothing for {device}")), "{answer}");
    }

    let lines = path(&place, "lines");
    let sums = whatif(&place, &["--export", &lines, &trace]);
    let written = std::fs::read_to_string(&lines).expect("the export");
    let of = |start: &str| written.lines().filter(|line| line.starts_with(start)).count() as u64;
    assert_eq!((Some(of("LD 0x")), Some(of("ST 0x"))), (sums["loads"].as_u64(), sums["stores"].as_u64()));
    assert!(of("ST 0x") > (16 << 20) / 64 && of("LD 0x") + of("ST 0x") == written.lines().count() as u64);
}

/// Pages that a job has packed are in its trace, and DMU unpacks them.
#[test]
fn a_recorded_job_under_a_budget_tells_of_its_packed_pages() {
    let place = Place::new();
    let trace = path(&place, "job.trace");
    let (limit, budget) = (["--limit", "64M"], ["run", "--quiet", "--memory", "160M"]);
    let command = env!("CARGO_BIN_EXE_memlift");
    let recorded = [&["record", "-q", "-o", &trace], &limit[..], &["--", command], &budget[..]].concat();
    let output = place.run(&[&recorded[..], &[&python(), "-c", FILL, "200", "3"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer = whatif(&place, &["--device", "dmu", "--from", "1", &trace]);
    let pages = |name: &str| {
        let kinds = answer["trace"]["calls"].as_array().expect("a list");
        let kind =
            kinds.iter().find(|kind| kind["kind"] == name).unwrap_or_else(|| panic!("no {name}: {answer}"));
        kind["calls"].as_u64().expect("a number")
    };
    assert_eq!(answer["with"]["offloaded"].as_u64(), Some(pages("page in") + pages("page out")));
    assert!(pages("page in") > 100 && pages("page out") > 10, "{answer}");
    assert!(whatif(&place, &["--device", "nearpm", &trace])["answer"].is_string());
    let lines = path(&place, "lines");
    whatif(&place, &["--export", &lines, &trace]);
    let written = std::fs::read_to_string(&lines).expect("the export");
    assert!(!written.lines().any(|line| line == "LD 0x0"), "work of services has no addresses");
}

/// Commits of a pool that serves clients are in its trace, and NearPM makes them.
#[test]
fn a_recorded_store_tells_of_its_commits() {
    let place = Place::new();
    let (trace, pool) = (path(&place, "kv.trace"), path(&place, "kv.pool"));
    let command = env!("CARGO_BIN_EXE_memlift");
    let serve =
        ["record", "-q", "-o", &trace, "--", command, "pool", "serve", &pool, "--listen", "127.0.0.1:0"];
    let mut child = place.memlift(&serve).stdout(Stdio::piped()).spawn().expect("started");
    let mut said = BufReader::new(child.stdout.take().expect("piped")); // open until its end: it writes more than one line
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let address = line.trim().rsplit(' ').next().expect("an address");
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
    for number in 0..50 {
        write!(stream, "SET key{number} value{number}\r\n").expect("sent");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, "+OK\r\n");
    }
    let process = Pid::from_raw(child.id() as i32).expect("an id");
    kill_process(process, Signal::TERM).expect("told to end");
    child.wait().expect("ended");
    let answer = whatif(&place, &["--device", "nearpm", "--from", "1", &trace]);
    assert!(answer["with"]["offloaded"].as_u64() >= Some(50), "{answer}");
    let time = |who: &str| answer["commits_on_its_memory"][who].as_f64().expect("seconds");
    assert!(time("device_s") > 0.0 && time("device_s") < time("cpu_s"), "{answer}");
}

/// A C program of this text.
fn compiled(place: &Place, text: &str) -> String {
    let (source, program) = (path(place, "program.c"), path(place, "program"));
    std::fs::write(&source, text).expect("written");
    let built = Command::new("cc").args(["-O1", "-pthread", "-o", &program, &source]).status();
    assert!(built.expect("a C compiler").success());
    program
}

/// Threads are cancelled while they wait for a pipe and a semaphore; then a call fails.
const CANCELLED: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static int pipes[2], cleaned;
static sem_t semaphore;
static void clean(void *unused) { (void)unused; cleaned++; }
static void *waits(void *way) {
    char byte;
    pthread_cleanup_push(clean, 0);
    if ((way ? sem_wait(&semaphore) : (int)read(pipes[0], &byte, 1)) < 0) cleaned += 10;
    pthread_cleanup_pop(0);
    return 0;
}
int main(void) {
    pthread_t threads[2];
    struct timespec soon = {0, 30000000};
    int cancelled = 0;
    char byte;
    if (pipe(pipes) || sem_init(&semaphore, 0, 0)) return 1;
    for (int one = 0; one < 2; one++) pthread_create(&threads[one], 0, waits, one ? &byte : 0);
    nanosleep(&soon, 0);
    for (int one = 0; one < 2; one++) {
        void *result;
        pthread_cancel(threads[one]);
        pthread_join(threads[one], &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    int failed = (int)read(-1, &byte, 1);
    printf("%d cancelled, %d cleaned, %d %s\n", cancelled, cleaned, failed, errno == EBADF ? "EBADF" : "?");
    return 0;
}
"#;

#[test]
fn threads_that_wait_are_cancelled_and_calls_fail_as_ever() {
    let place = Place::new();
    let program = compiled(&place, CANCELLED);
    let output = place.run(&["record", "-q", "-o", &path(&place, "d.trace"), "--", &program]);
    assert_eq!(text(&output.stdout), "2 cancelled, 2 cleaned, -1 EBADF\n", "{}", text(&output.stderr));
}

#[test]
fn a_killed_program_and_a_full_trace_can_be_read_and_wrong_ones_say_what_is_wrong() {
    let place = Place::new();
    let trace = path(&place, "b.trace");
    let script = "import os; data = bytes(1 << 20); copies = [bytearray(data) for _ in range(32)]; os.kill(os.getpid(), 9)";
    let output = place.run(&["record", "-o", &trace, "--", &python(), "-c", script]);
    assert_eq!(output.status.code(), Some(137));
    assert!(text(&output.stderr).contains("b.trace: "), "{}", text(&output.stderr));
    let kinds = whatif(&place, &[&trace])["trace"]["calls"].clone();
    let copies = |kind: &&Value| kind["kind"] == "memcpy" && kind["bytes"].as_u64() >= Some(32 << 20);
    assert!(kinds.as_array().is_some_and(|kinds| kinds.iter().any(|kind| copies(&kind))), "{kinds}");

    let script = "a = bytearray(100); n = sum(len(bytes(a)) for _ in range(100000)); print(n)";
    let output = place.run(&[
        "record",
        "-o",
        &trace,
        "--limit",
        "1M",
        "--force",
        "--threshold",
        "1",
        "--",
        &python(),
        "-c",
        script,
    ]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "10000000\n"));
    assert!(text(&output.stderr).contains("larger --limit"), "{}", text(&output.stderr));
    assert!(std::fs::metadata(&trace).expect("a trace").len() <= 1 << 20);
    assert!(whatif(&place, &[&trace])["trace"]["dropped"].as_u64() > Some(0));

    let mut bytes = std::fs::read(&trace).expect("read");
    bytes[8] = 9;
    std::fs::write(&trace, &bytes).expect("written");
    for (arguments, code, wanted) in [
        (vec!["whatif", &trace], 1, "version (byte 8): 0x9: this memlift reads versions 4 and 5"),
        (vec!["whatif", "/dev/null"], 2, "it is a device: name a plain file"),
        (vec!["whatif", "no-such.trace"], 3, "record one first"),
        (vec!["whatif", "--sweep", "start=1", &trace], 2, "NAME=A..B"),
        (vec!["record", "--limit", "1K", "--", "true"], 2, "give 1M to 1T"),
        (vec!["record", "-o", "/proc/no", "--", "true"], 2, "-o"),
        (vec!["record", "--", "no-such-program-here"], 3, "there is no such program"),
    ] {
        let output = place.run(&arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn the_programs_own_use_of_zlib_is_what_check_measures() {
    let place = Place::new();
    let trace = path(&place, "flushed.trace");
    let program = "import zlib; s = zlib.compressobj(1); data = b'some text, ' * 91\n\
        for _ in range(300): s.compress(data); s.flush(zlib.Z_SYNC_FLUSH)\n\
        zlib.compress(b'another text' * 3000, 9)";
    let python = succeeds_with(&python(), "import sys; print(sys.executable)");
    let output = place.run(&["record", "-q", "-o", &trace, "--", &python, "-c", program]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.run(&["dropin", "check", &python, "--trace", &trace, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let copies = document["copies"].as_array().expect("a list");
    let measured: Vec<&Value> = copies.iter().filter(|copy| copy["dropin"] == "libmemlift_z.so").collect();
    let Some(copy) = measured.iter().find(|copy| copy["reached"] == true) else {
        return println!("not run: this Python has a zlib of its own");
    };
    let shapes = copy["measured"]["shapes"].as_array().unwrap_or_else(|| panic!("{copy}"));
    let works: Vec<&str> = shapes.iter().filter_map(|shape| shape["work"].as_str()).collect();
    assert!(works.contains(&"deflate level 1, flushed each 1.0 KiB"), "{works:?}");
    assert!(works.iter().any(|work| work.contains("level 9")), "{works:?}");
    let shares: f64 = shapes.iter().filter_map(|shape| shape["share"].as_f64()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    for (wrong, code) in [("/dev/zero", 2), ("/etc/hostname", 1), ("/no/such/trace", 3)] {
        let output = place.run(&["dropin", "check", &python, "--trace", wrong]);
        assert_eq!(output.status.code(), Some(code), "{wrong}");
    }
}

/// Writes 64 KiB at a time to a .gz file of level 3.
const GZ: &str = r#"
#include <stdlib.h>
void *gzopen(const char *, const char *);
int gzwrite(void *, const void *, unsigned), gzputs(void *, const char *), gzclose(void *);
int main(int count, char **arguments) {
    char *text = malloc(65536);
    void *file = count > 1 ? gzopen(arguments[1], "wb3") : 0;
    if (!text || !file) return 1;
    for (int at = 0; at < 65536; at++) text[at] = "some words, and more of them. "[at % 30 * 7 % 30];
    for (int times = 0; times < 60; times++)
        if (gzwrite(file, text, 65536) != 65536) return 2;
    return gzputs(file, "the end") < 0 || gzclose(file);
}
"#;

#[test]
fn writes_to_gz_files_are_measured_as_the_program_makes_them() {
    let place = Place::new();
    let (source, program, trace) = (path(&place, "gz.c"), path(&place, "gz"), path(&place, "gz.trace"));
    std::fs::write(&source, GZ).expect("written");
    let built = Command::new("cc").args(["-O1", "-o", &program, &source, "-l:libz.so.1"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return println!("not run: no C compiler, or no libz.so.1");
    }
    let output = place.run(&["record", "-q", "-o", &trace, "--", &program, &path(&place, "out.gz")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = place.run(&["dropin", "check", &program, "--trace", &trace, "--json"]);
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    let copies = document["copies"].as_array().expect("a list");
    let shapes = copies.iter().find_map(|copy| copy["measured"]["shapes"].as_array());
    let works: Vec<&str> = shapes.into_iter().flatten().filter_map(|shape| shape["work"].as_str()).collect();
    assert_eq!(works.len(), 1, "{document:#}");
    assert!(works[0].contains("level 3") && works[0].contains("64.0 KiB"), "{works:?}");
}

/// Output of a Python program.
fn succeeds_with(python: &str, program: &str) -> String {
    let output = Command::new(python).args(["-c", program]).output().expect("python starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}
