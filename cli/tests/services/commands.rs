// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command as its users meet it: run for real, its output, its exit code, what bad input gets.
//!
//! - **Method** the test process itself uses memlift, so that there is something to observe
//! - **Not here** verbs of memlift-lab: its own tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use memlift::ground::config::Config;
use memlift::ground::observe::{self, Executor};
use memlift::ipc::{Client, ClientOptions, Reply, Server, ServerOptions};
use serde_json::Value;

fn memlift(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift"));
    command.args(arguments).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    memlift(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).expect("JSON")
}

/// Makes this process one that can be observed.
fn work() -> u32 {
    let opcode = memlift::spec::Opcode::MEMMOVE;
    observe::record(Executor::InlineNt, opcode, 1 << 20, 50_000, true);
    std::process::id()
}

/// Ends the process when the test does, whichever way.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a verb takes its file.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    /// It needs a plain file.
    Plain,
    /// A pipe may stand for it, as in `<(command)`.
    Stream,
    /// It is a program that is started or examined.
    Program,
}

/// The verbs that read a file, `F` in their arguments.
const READERS: [(&str, Input); 25] = [
    ("pool info F", Input::Plain),
    ("pool check F", Input::Plain),
    ("pool repair F --in-place", Input::Plain),
    ("pool dump F", Input::Plain),
    ("pool compact F", Input::Plain),
    ("pool backup F D/copy", Input::Plain),
    ("pool convert F D/copy", Input::Plain),
    ("pool replicate F D/copies --once", Input::Plain),
    ("pool serve F --listen 127.0.0.1:0", Input::Plain),
    ("node log check F", Input::Plain),
    ("node log repair F --out D/log", Input::Plain),
    ("node --memory 1M --listen 127.0.0.1:0 --log F", Input::Plain),
    ("map serve --file F --listen unix:D/socket", Input::Plain),
    ("dropin check --trace F sh", Input::Plain),
    ("node --memory 1M --listen 127.0.0.1:0 --keys F", Input::Stream),
    ("node --memory 1M --listen 127.0.0.1:0 --name a --map F", Input::Stream),
    ("node --memory 1M --listen 127.0.0.1:0 --name a --coordinator h:1 --key F", Input::Stream),
    ("map check F", Input::Stream),
    ("map show --map F", Input::Stream),
    ("map show --coordinator h:1 --key F", Input::Stream),
    ("map show --coordinator h:1?key=F", Input::Stream),
    ("map serve --file D/map --listen unix:D/socket --key F", Input::Stream),
    ("run --memory 64M -- F", Input::Program),
    ("record -o D/trace -- F", Input::Program),
    ("dropin check F", Input::Program),
];

/// Runs a verb of [`READERS`] on a file; a verb that waits for something is ended.
fn read_by(verb: &str, file: &str, user: Option<u32>) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::chown(folder.path(), user, user).expect("ours");
    let place = folder.path().to_str().expect("UTF-8");
    let word = |word: &str| match (word.strip_suffix('F'), word.split_once("D/")) {
        (Some(before), _) => format!("{before}{file}"),
        (None, Some((before, name))) => format!("{before}{place}/{name}"),
        (None, None) => word.to_owned(),
    };
    let words: Vec<String> = verb.split(' ').map(word).collect();
    let mut command = Command::new("timeout");
    command.arg("60").arg(env!("CARGO_BIN_EXE_memlift")).args(&words).env_remove("MEMLIFT_CONFIG");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_fault_of_a_file_has_one_code_in_every_verb() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::create_dir(at("folder")).expect("a folder");
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("a named pipe");
    std::fs::write(at("garbage"), [0xff; 5000]).expect("writable");
    for name in ["folder", "garbage"] {
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o700)).expect("ours");
    }
    for (verb, input) in READERS {
        // A node and a pool's server make the file where there is none.
        let makes = ["--log F", "pool serve F", "--file F"].iter().any(|part| verb.contains(part));
        for (name, code) in [("missing", 3), ("folder", 2), ("pipe", 2), ("garbage", 1)] {
            // Nobody writes into the pipe, and a program's contents are its own.
            let left_out = (name == "missing" && makes)
                || (name == "pipe" && input == Input::Stream)
                || (name == "garbage" && input == Input::Program);
            if !left_out {
                let (found, said) = read_by(verb, &at(name), None);
                assert_eq!(found, Some(code), "{verb} {name}: {said}");
                assert!(said.contains(&at(name)), "{verb} {name}: {said}");
            }
        }
    }
}

#[test]
fn an_empty_file_and_one_that_may_not_be_read_have_one_code_in_every_verb() {
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    for (name, mode) in [("empty", 0o600), ("closed", 0)] {
        std::fs::write(at(name), "").expect("writable");
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).expect("ours");
    }
    for (verb, _) in READERS.into_iter().filter(|(_, input)| *input != Input::Program) {
        // A map and a log without an entry are whole, and a node, a coordinator or a pool's server starts from an empty file.
        let whole = ["map check", "--map F", "node log", "--log F", "pool serve", "--file F"];
        if !whole.iter().any(|part| verb.contains(part)) {
            let (code, said) = read_by(verb, &at("empty"), None);
            assert_eq!(code, Some(1), "{verb}: {said}");
            assert!(said.contains(&at("empty")), "{verb}: {said}");
        }
    }
    let user = rustix::process::getuid().is_root().then_some(NOBODY);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    std::os::unix::fs::chown(at("closed"), user, user).expect("ours");
    let mut probe = Command::new(env!("CARGO_BIN_EXE_memlift"));
    user.into_iter().for_each(|user| {
        probe.uid(user).gid(user);
    });
    if probe.arg("--version").output().is_err() {
        eprintln!("skipped: nobody may not enter the build's folder");
        return;
    }
    for (verb, _) in READERS.into_iter().filter(|(_, input)| *input != Input::Program) {
        let (code, said) = read_by(verb, &at("closed"), user);
        assert_eq!(code, Some(1), "{verb}: {said}");
        assert!(said.contains("Permission denied") && said.contains(&at("closed")), "{verb}: {said}");
    }
}

#[test]
fn a_pipe_may_stand_for_a_text_file() {
    let line = format!("printf '' | {} map check /dev/stdin", env!("CARGO_BIN_EXE_memlift"));
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn help_and_reports_fit_the_columns_that_a_variable_gives() {
    work();
    let services = ["ipc", "transform", "persist", "traverse", "zmem", "devices", "machine"];
    let pages = services.map(|service| vec!["help", service]);
    for arguments in [vec!["--help"], vec!["doctor"], vec!["top", "--once"]].into_iter().chain(pages) {
        let output = memlift(&arguments).env("COLUMNS", "60").output().expect("the command starts");
        let page = text(&output.stdout);
        // The path of a file stays whole, however long it is.
        let is_wide = |line: &&str| line.chars().count() > 60 && line.split_whitespace().count() > 1;
        let wide: Vec<&str> = page.lines().filter(is_wide).collect();
        assert!(!page.is_empty() && wide.is_empty(), "{arguments:?}: {wide:#?}");
    }
    // The help of every verb, as its manual pages list them.
    let folder = tempfile::tempdir().expect("a folder");
    succeeds(&["man", folder.path().to_str().expect("UTF-8")]);
    for entry in std::fs::read_dir(folder.path()).expect("listed").flatten() {
        let name = entry.file_name().into_string().expect("UTF-8");
        let verbs: Vec<&str> = name.trim_end_matches(".1").split('-').skip(1).chain(["--help"]).collect();
        if ["bench", "tour", "whatif", "reproduce"].contains(&verbs[0]) {
            continue;
        }
        let output = memlift(&verbs).env("COLUMNS", "60").output().expect("the command starts");
        let page = text(&output.stdout);
        let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > 60).collect();
        assert!(output.status.success() && wide.is_empty(), "{verbs:?}: {wide:#?}");
    }
}

#[test]
fn usage_errors_have_their_code_and_style() {
    for arguments in [
        &["bogus"][..],
        &[],
        &["top", "--interval-ms", "0"],
        &["metrics"],
        &["metrics", "--listen", "nowhere"],
        &["metrics", "--listen", "0.0.0.0:0"],
        &["explain"],
        &["explain", "copy"],
        &["explain", "copy", "many"],
        &["explain", "nobody"],
        &["explain", "1", "4096"],
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("memlift: error: ") || arguments.is_empty(), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_option_that_does_not_exist_is_not_taken_for_a_program() {
    for verb in ["run", "record"] {
        let output = run(&[verb, "--qiet", "true"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb}: {said}");
        assert!(
            said.contains("unexpected argument '--qiet'") && said.contains("'--quiet'"),
            "{verb}: {said}"
        );
    }
}

#[test]
fn a_noun_without_its_verb_gets_the_help_as_it_is() {
    for noun in [&[][..], &["pool"], &["ipc"], &["map"], &["job"], &["dropin"], &["config"], &["node", "log"]]
    {
        let output = run(noun);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{noun:?}: {said}");
        assert!(said.contains("Usage: ") && !said.starts_with("memlift: "), "{noun:?}: {said}");
        let output = memlift(noun).arg("--json").output().expect("the command starts");
        let error: Value = serde_json::from_slice(&output.stderr).expect("one JSON document");
        let message = error["error"]["message"].as_str().expect("a text");
        assert!(message.starts_with("a verb is missing\n"), "{noun:?}: {message}");
    }
}

#[test]
fn sizes_have_fractions_and_errors_have_units() {
    let said = |arguments: &[&str], code: i32| {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    };
    assert!(succeeds(&["explain", "copy", "1.5M"]).starts_with("a copy of 1.5 MiB"));
    assert!(said(&["run", "--memory", "0.5M", "--", "true"], 2).contains("512.0 KiB"));
    assert!(said(&["run", "--memory", "99T", "--", "true"], 3).contains("99.0 TiB were asked for"));
    let node = ["node", "--listen", "127.0.0.1:0", "--memory"];
    assert!(said(&[&node[..], &["100T"]].concat(), 3).contains(" TiB are needed but "));
    for wrong in ["1X", "0", "1.5"] {
        assert!(said(&[&node[..], &[wrong]].concat(), 2).contains(wrong));
    }
}

#[test]
fn a_spill_folder_that_is_none_is_named() {
    let run_in = |folder: &str| run(&["run", "--memory", "64M", "--spill", folder, "--", "true"]);
    for (folder, code, words) in
        [("/none/here", 3, "there is no such folder"), ("/dev/null", 2, "this is not a folder")]
    {
        let output = run_in(folder);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(words), "{folder}: {said}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["pool", "--help"],
        &["help", "ipc"],
        &["config", "show"],
        &["completions", "bash"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = memlift(arguments).stdout(full).output().expect("the command starts");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with("memlift: error: standard output: No space left"), "{arguments:?}: {said}");
    }
}

#[test]
fn lists_answer_to_both_of_their_names() {
    for [noun, one, other] in [["ipc", "ls", "list"], ["job", "list", "ls"]] {
        for verb in [one, other] {
            succeeds(&[noun, verb]);
        }
        assert!(succeeds(&[noun, "--help"]).contains(&format!("[alias: {other}]")));
    }
}

#[test]
fn help_of_a_service_lists_the_inner_verbs_and_fits_a_narrow_terminal() {
    for (service, verbs) in [
        ("ipc", &["ipc ls", "ipc ping"][..]),
        ("persist", &["pool create", "pool serve"]),
        ("traverse", &["node ", "node log check", "map move"]),
        ("zmem", &["run ", "job list", "jupyter install"]),
        ("machine", &["doctor ", "config show"]),
    ] {
        let page = succeeds(&["help", service]);
        let listed = |verb: &&str| page.lines().any(|line| line.trim_start().starts_with(verb));
        assert!(verbs.iter().all(listed), "{page}");
        assert_eq!(succeeds(&["help", "--json", service]), page);
    }
    for arguments in ["--help", "help ipc", "help transform", "help persist", "help traverse", "help machine"]
    {
        // A terminal of 60 columns, by util-linux; where it is not installed, only widths of files are checked.
        let line = format!("stty cols 60; {} {arguments}", env!("CARGO_BIN_EXE_memlift"));
        let Ok(output) =
            Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output()
        else {
            return;
        };
        let page = text(&output.stdout);
        let wide: Vec<&str> = page.lines().filter(|line| line.trim_end().chars().count() > 60).collect();
        assert!(page.contains("memlift") && wide.is_empty(), "{wide:#?}\n{page}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let help = succeeds(&["--help"]);
    assert!(help.contains("Exit codes") && help.starts_with("Memory work lifted off the core"), "{help}");
    for service in ["ipc", "transform", "persist", "traverse", "zmem", "devices"] {
        assert!(help.contains(&format!("({service})")), "{service}: {help}");
        let page = succeeds(&["help", service]);
        assert!(page.contains("Guide: docs/guides/") && page.starts_with(service), "{page}");
    }
    assert!(succeeds(&["help", "doctor"]).contains("--path"));
    assert_eq!(succeeds(&["--version"]).trim(), format!("memlift {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    for (arguments, code, kind) in [
        (&["--json", "pool", "info", "/nowhere/at.pool"][..], 3, "unavailable"),
        (&["pool", "info", "--json", "/nowhere/at.pool"], 3, "unavailable"),
        (&["--json", "explain", "nobody"], 2, "usage"),
        (&["--json", "dropin"], 2, "usage"),
        (&["pool", "create", "--json", "--what"], 2, "usage"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let error: Value = serde_json::from_slice(&output.stderr).expect("one JSON document");
        assert_eq!(
            (&error["error"]["kind"], &error["error"]["exit_code"]),
            (&kind.into(), &code.into()),
            "{error}"
        );
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.len() > 10), "{error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    // Arguments behind the dashes are the program's.
    let output = run(&["run", "--memory", "1", "--", "true", "--json"]);
    assert!(text(&output.stderr).starts_with("memlift: error: "), "{}", text(&output.stderr));
}

#[test]
fn every_verb_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let man = folder.path().join("man1");
    succeeds(&["man", man.to_str().expect("a plain name")]);
    for page in ["memlift", "memlift-run", "memlift-pool-serve", "memlift-dropin-enable", "memlift-node"] {
        let text = std::fs::read_to_string(man.join(format!("{page}.1"))).expect(page);
        assert!(text.contains(".SH NAME") && text.contains(page), "{page}");
    }
}

#[test]
fn completions_name_every_verb() {
    let script = succeeds(&["completions", "bash"]);
    for verb in [
        "tour",
        "doctor",
        "calibrate",
        "bench",
        "ipc",
        "top",
        "metrics",
        "explain",
        "config",
        "dropin",
        "pool",
    ] {
        assert!(script.contains(verb), "{verb}");
    }
}

#[test]
fn doctor_reports_every_section() {
    let report = succeeds(&["doctor"]);
    for wanted in [
        "cpu",
        "memory cgroup",
        "populate_write",
        "bare names",
        "AES-GCM",
        "durable commit",
        "socket buffers",
        "library for programs",
        "Intel DSA",
        "calibration",
        "Python",
        "verdict",
    ] {
        assert!(report.contains(wanted), "{wanted}: {report}");
    }
    let document = json(&["doctor", "--json"]);
    let sections = document["sections"].as_array().expect("sections");
    assert_eq!(sections.len(), 12);
    for section in sections {
        let checks = section["checks"].as_array().expect("checks");
        assert!(!checks.is_empty(), "{section}");
        for check in checks {
            assert!(matches!(check["state"].as_str(), Some("usable" | "absent" | "broken")), "{check}");
        }
    }
}

#[test]
fn doctor_has_a_verdict_for_each_service_and_prints_its_commands() {
    let document = json(&["doctor", "--json"]);
    for service in ["ipc", "transform", "persist", "traverse", "zmem"] {
        let verdict = document["verdicts"][service]["verdict"].as_str();
        assert!(
            matches!(verdict, Some("ready" | "works with limits" | "not here")),
            "{service}: {verdict:?}"
        );
    }
    let output =
        memlift(&["doctor", "--json"]).env("MEMLIFT_DISABLE", "memfd_seal").output().expect("starts");
    let masked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(masked["verdicts"]["ipc"]["verdict"], "not here");
    let script = succeeds(&["doctor", "--fix"]);
    assert!(script.lines().all(|line| !line.contains('→')) && script.starts_with("# "), "{script}");
    let mut shell = Command::new("sh");
    assert!(shell.args(["-n", "-c", &script]).status().expect("a shell").success(), "{script}");
}

#[test]
fn doctor_shows_a_mask() {
    let output = memlift(&["doctor", "--json"]).env("MEMLIFT_DISABLE", "thp").output().expect("starts");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = document["sections"].as_array().expect("sections").iter().flat_map(|section| {
        section["checks"].as_array().expect("checks").iter().filter(|check| check["what"] == "thp")
    });
    let found: Vec<_> = checks.map(|check| (check["state"].clone(), check["found"].clone())).collect();
    assert_eq!(found, [("absent".into(), "masked".into())]);
}

#[test]
fn doctor_fails_without_what_sessions_stand_on() {
    let output = memlift(&["doctor"]).env("MEMLIFT_DISABLE", "memfd_seal").output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("✗ memfd_seal"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("memlift: error: memlift cannot do without: memfd_seal"));
}

#[test]
fn config_names_origins() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("memlift.toml");
    std::fs::write(&file, "[engine]\nwait = \"block\"\n").expect("written");
    let show = |json: bool| {
        let mut command = memlift(if json { &["config", "show", "--json"] } else { &["config", "show"] });
        command.env("MEMLIFT_CONFIG", &file).env("MEMLIFT_SPIN_US_MAX", "7").output().expect("starts")
    };
    let document: Value = serde_json::from_slice(&show(true).stdout).expect("JSON");
    let origin = |key: &str| {
        let settings = document["settings"].as_array().expect("settings");
        let setting = settings.iter().find(|setting| setting["key"] == key).expect("the key");
        (
            setting["value"].as_str().expect("text").to_owned(),
            setting["origin"].as_str().expect("text").to_owned(),
        )
    };
    assert_eq!(origin("engine.wait"), ("block".to_owned(), file.display().to_string()));
    assert_eq!(origin("engine.spin_us_max"), ("7".to_owned(), "MEMLIFT_SPIN_US_MAX".to_owned()));
    assert_eq!(origin("engine.split").1, "default");
    assert!(text(&show(false).stdout).contains("engine.spin_us_max"));
}

#[test]
fn a_bad_configuration_says_what_is_allowed() {
    let output = memlift(&["config", "show"]).env("MEMLIFT_WAIT", "maybe").output().expect("starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("MEMLIFT_WAIT") && said.contains("block"), "{said}");
}

#[test]
fn top_and_metrics_see_this_process() {
    let pid = work();
    let top = succeeds(&["top", "--once"]);
    let has = |line: &str| ["memmove", "inline_nt", &pid.to_string()].iter().all(|word| line.contains(word));
    assert!(top.lines().any(has), "{top}");
    let document = json(&["top", "--once", "--json"]);
    let pids: Vec<_> = document["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter_map(|process| process["process"]["pid"].as_u64())
        .collect();
    assert!(pids.contains(&u64::from(pid)), "{pids:?}");
    let page = succeeds(&["metrics", "--once"]);
    let wanted = "service=\"copy\",executor=\"inline_nt\",opcode=\"memmove\"} ";
    assert!(
        page.lines()
            .any(|line| line.starts_with("memlift_operations_total{job=\"services") && line.contains(wanted)),
        "{page}"
    );
}

#[test]
fn metrics_are_served_over_http() {
    work();
    let mut server = Ended(
        memlift(&["metrics", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().expect("starts"),
    );
    let mut said = String::new();
    BufReader::new(server.0.stdout.take().expect("piped")).read_line(&mut said).expect("a line");
    let address =
        said.trim().strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let mut stream = TcpStream::connect(address.expect(&said)).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.contains("memlift_processes{job=\"services"), "{body}");
}

#[test]
fn an_address_in_use_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound").to_string();
    let output = run(&["metrics", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("name another port"));
}

#[test]
fn ipc_ls_shows_a_server_and_its_session() {
    let name = format!("ls-{}", std::process::id());
    let server = Server::bind(&name, ServerOptions::default()).expect("a server");
    server.register("echo", |request| Ok(Reply::bytes(request.to_vec()))).expect("registered");
    server.start().expect("started");
    let client = Client::connect(&name, ClientOptions::default()).expect("a client");
    let answer = client.call("echo", b"four".as_slice(), None).expect("an answer");
    assert_eq!(answer.to_vec(), b"four");
    let document = json(&["ipc", "ls", "--json"]);
    let pid = u64::from(std::process::id());
    let servers = document["servers"].as_array().expect("servers");
    assert!(servers.iter().any(|one| one["name"] == name.as_str() && one["pid"] == pid), "{document}");
    let sessions = document["sessions"].as_array().expect("sessions");
    let roles: Vec<&str> = sessions
        .iter()
        .filter(|one| one["pid"] == pid && one["session"]["name"] == name.as_str())
        .filter_map(|one| one["session"]["role"].as_str())
        .collect();
    assert!(roles.contains(&"server") && roles.contains(&"client"), "{document}");
    assert!(succeeds(&["ipc", "ls"]).contains(&name));
    assert!(succeeds(&["metrics", "--once"]).contains(&format!("name=\"{name}\",role=\"client\"")));
}

#[test]
fn ipc_ping_says_if_a_server_is_ready() {
    let name = format!("ping-{}", std::process::id());
    let missing = run(&["ipc", "ping", &name]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains(&name));
    let waited = run(&["ipc", "ping", &name, "--wait", "0.2"]);
    assert_eq!(waited.status.code(), Some(3));
    let server =
        Server::bind(&name, ServerOptions { ready: false, ..ServerOptions::default() }).expect("a server");
    // It listens, and nobody serves yet.
    assert_eq!(run(&["ipc", "ping", &name, "--timeout", "0.2"]).status.code(), Some(1));
    server.start().expect("started");
    let early = run(&["ipc", "ping", &name, "--timeout", "30"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(text(&early.stderr).contains("is not ready"), "{}", text(&early.stderr));
    server.set_ready(true);
    assert!(succeeds(&["ipc", "ping", &name, "--timeout", "30"]).contains("is ready"));
    let document = json(&["ipc", "ping", &name, "--timeout", "30", "--json"]);
    assert_eq!(
        (&document["state"], &document["sessions"]),
        (&Value::from("ready"), &Value::from(1)),
        "{document}"
    );
    assert_eq!(run(&["ipc", "ping", &name, "--timeout", "-1"]).status.code(), Some(2));
}

#[test]
fn explain_shows_the_decisions_of_a_process() {
    let source = vec![7_u8; 32 << 20];
    let mut target = vec![0_u8; source.len()];
    // Uncalibrated: a calibration of this user's may find that copies of this size need no decision.
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none.json");
    let config =
        Config::load_from(&[], [("MEMLIFT_CALIBRATION".into(), none.into())]).expect("a configuration");
    let engine = memlift::offload::Engine::open(&config).expect("an engine");
    engine.copy(&mut target, &source);
    assert_eq!(source, target);
    let pid = std::process::id().to_string();
    let report = succeeds(&["explain", &pid]);
    assert!(report.lines().any(|line| line.contains("memmove") && line.contains("32.0 MiB")), "{report}");
    let document = json(&["explain", &pid, "--json"]);
    let decisions = document["decisions"].as_array().expect("decisions");
    assert!(decisions.iter().all(|one| one["why"].is_string()) && !decisions.is_empty(), "{document}");
}

#[test]
fn calibrate_is_kept_and_explains_a_copy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("calibration.json");
    let with = |arguments: &[&str]| {
        let output = memlift(arguments).env("MEMLIFT_CALIBRATION", &file).output().expect("starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let before = with(&["explain", "copy", "64M", "--json"]);
    assert_eq!(before["origin"]["kind"], "builtin");
    let measured = with(&["calibrate", "--json"]);
    assert_eq!(measured["saved"], file.display().to_string());
    assert!(measured["calibration"]["model"]["curves"].as_array().is_some_and(|curves| !curves.is_empty()));
    let after = with(&["explain", "copy", "64M", "--json"]);
    // Other tests may keep the machine busy: the numbers are then kept, and not decided by.
    let trust = &measured["calibration"]["trust"];
    let trusted = trust["trusted"].as_bool().expect("a verdict");
    let origin = if trusted { "file" } else { "untrusted" };
    assert_eq!((after["origin"]["kind"].as_str(), after["bytes"].as_u64()), (Some(origin), Some(64 << 20)));
    assert_eq!((&after["trust"]["trusted"], &after["trust"]["why"]), (&trust["trusted"], &trust["why"]));
    assert!(after["shape"].as_str().is_some_and(|shape| shape == "rep" || shape.contains('x')), "{after}");
    assert!(after["candidates"].as_array().is_some_and(|candidates| candidates.len() >= 2), "{after}");
    let output =
        memlift(&["explain", "copy", "64M"]).env("MEMLIFT_CALIBRATION", &file).output().expect("starts");
    let said = text(&output.stdout);
    let verdict = if trusted { ", trusted, of 20" } else { "not trusted, built-in numbers used" };
    assert!(said.contains(verdict) && said.contains("in the shape "), "{said}");
    let doctor = with(&["doctor", "--json"]);
    let sections = doctor["sections"].as_array().expect("sections");
    let section = sections.iter().find(|section| section["section"] == "calibration").expect("the section");
    assert_eq!(section["checks"][0]["state"], if trusted { "usable" } else { "absent" }, "{section}");
    let found = section["checks"][0]["found"].as_str().expect("text");
    assert!(
        found.starts_with(if trusted { "trusted, of 20" } else { "not trusted, built-in numbers used" }),
        "{found}"
    );
    assert_eq!(section["checks"][1]["what"], "shape of copies", "{section}");
}

#[test]
fn a_verb_of_the_lab_says_what_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("memlift");
    // By a process of its own: a child that another test forks here would hold this file open for writing, and it could not start.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_memlift")).arg(&alone).status();
    assert!(copied.expect("cp starts").success());
    for verb in ["bench", "tour", "whatif", "reproduce"] {
        let output = Command::new(&alone).args([verb, "--help"]).env("PATH", "").output().expect("starts");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{verb}: {said}");
        assert!(said.contains("memlift-lab is not here") && said.contains("cargo build"), "{verb}: {said}");
    }
}

#[test]
fn explain_tells_who_cannot_be_observed() {
    // Process ids end at 4194304 on Linux.
    let output = run(&["explain", "4194305"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let mut other = Ended(Command::new("sleep").arg("60").spawn().expect("sleep starts"));
    let output = run(&["explain", &other.0.id().to_string()]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no memlift stats page"), "{}", text(&output.stderr));
    let _ = other.0.try_wait();
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = memlift(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}
