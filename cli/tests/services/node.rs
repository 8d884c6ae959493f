// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift node` and `memlift map` as their users meet them: started for real, ended by a signal, what bad input gets.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const CLUSTER: &str = r#"
epoch = 4
[[node]]
name = "a"
addresses = ["127.0.0.1:7700"]
[[range]]
base = "0x200000000"
bytes = "1M"
node = "a"
"#;

fn memlift(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift"));
    command.args(arguments).current_dir(folder).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    memlift(folder, arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(folder: &Path, arguments: &[&str], code: i32, wanted: &str) {
    let output = run(folder, arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.starts_with("memlift: error: ") && said.contains(wanted), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

/// One that serves until it gets a signal; killed when the test ends in another way.
struct Serving {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Serving {
    /// With the first line that it says.
    fn start(folder: &Path, arguments: &[&str]) -> (Serving, String) {
        let mut child =
            memlift(folder, arguments).stdout(Stdio::piped()).spawn().expect("the command starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut serving = Serving { child, lines };
        let mut first = String::new();
        serving.lines.read_line(&mut first).expect("read");
        (serving, first)
    }

    /// Waits for a clean end and returns the output until then.
    fn end(mut self, signal: Signal) -> String {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("read");
        assert_eq!(self.child.wait().expect("waited").code(), Some(0), "{rest}");
        rest
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn value(line: &str) -> Value {
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn a_node_starts_says_what_it_is_and_ends_by_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let ring = format!("shm:cli-{}", std::process::id());
    let arguments =
        ["node", "--memory", "1M", "--listen", "127.0.0.1:0", "--listen", &ring, "--log", "log", "--json"];
    for signal in [Signal::INT, Signal::TERM] {
        let (node, first) = Serving::start(at, &arguments);
        let start = value(&first);
        assert_eq!(start["bytes"], 1 << 20);
        // The second start reads what the first one left: who the memory is, and its clock.
        assert!(start["log_records"].as_u64().is_some_and(|count| count <= 2), "{first}");
        let places = start["listen"].as_array().expect("places");
        assert!(places[0].as_str().is_some_and(|place| !place.ends_with(":0")), "{first}");
        assert_eq!(places[1], ring.as_str());
        let rest = node.end(signal);
        let last = value(rest.lines().last().expect("a last line"));
        assert_eq!((&last["walks"], &last["free_bytes"]), (&0.into(), &(1 << 20).into()));
    }
    fails(at, &["node", "--memory", "512K", "--listen", &ring, "--log", "log"], 1, "1048576 bytes");
    a_log_is_checked_and_repaired(at, &ring);
    let (node, first) = Serving::start(at, &["node", "--memory", "1M", "--listen", "127.0.0.1:0"]);
    assert!(
        first.starts_with("node on 127.0.0.1:") && first.contains("1.0 MiB from 0x100000000 on"),
        "{first}"
    );
    assert!(node.end(Signal::INT).contains("0 walks/s"));
}

#[test]
fn a_node_says_what_is_wrong_with_its_arguments() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let with = |more: &[&'static str]| [&["node", "--memory", "1M"], more].concat();
    assert!(succeeds(at, &["node", "--help"]).contains("Examples:"));
    fails(at, &with(&[]), 2, "--listen");
    fails(at, &with(&["--listen", "nowhere"]), 2, "127.0.0.1:7700");
    fails(at, &with(&["--listen", "0.0.0.0:0"]), 2, "keys");
    fails(at, &with(&["--listen", "shm:"]), 2, "letters");
    fails(at, &["node", "--memory", "0", "--listen", "shm:x"], 2, "more than 0");
    fails(at, &with(&["--listen", "shm:x", "--durability", "disk"]), 2, "--log");
    fails(at, &with(&["--listen", "shm:x", "--map", "cluster"]), 2, "--name");
    std::fs::write(at.join("cluster"), CLUSTER).expect("written");
    fails(at, &with(&["--listen", "shm:x", "--map", "cluster", "--name", "b"]), 2, "called b");
    let small = ["node", "--memory", "4K", "--listen", "shm:x", "--map", "cluster", "--name", "a"];
    fails(at, &small, 2, "1048576 bytes, it has 4096");
    fails(at, &with(&["--listen", "shm:x", "--coordinator", "nowhere", "--name", "a"]), 2, "HOST:PORT");
    fails(
        at,
        &with(&["--listen", "shm:x", "--coordinator", "unix:none", "--name", "a"]),
        3,
        "does not answer",
    );
    fails(at, &with(&["--listen", "shm:x", "--coordinator", "unix:none"]), 2, "--name");
    let no_log = ["--listen", "shm:x", "--coordinator", "unix:none", "--name", "a", "--accept-older-log"];
    fails(at, &with(&no_log), 2, "--log");
    let replicated = ["--listen", "shm:x", "--coordinator", "unix:none", "--name", "a", "--replicate"];
    fails(at, &with(&replicated), 2, "--coordinator");
    fails(at, &with(&["--listen", "shm:x", "--name", "a", "--replicate"]), 2, "--etcd");
    let replicated = ["--listen", "shm:x", "--etcd", "http://127.0.0.1:1", "--name", "a", "--replicate"];
    fails(at, &with(&replicated), 2, "UDP");
    let two = ["--listen", "shm:x", "--coordinator", "unix:none", "--map", "cluster", "--name", "a"];
    fails(at, &with(&two), 2, "cannot be used with");
    fails(at, &with(&["--listen", "shm:x", "--log-limit", "1M"]), 2, "--log");
    let placed = with(&["--listen", "127.0.0.1:0", "--map", "cluster", "--name", "a", "--json"]);
    let (node, first) = Serving::start(at, &placed);
    assert_eq!(value(&first)["base"], 0x2_0000_0000_u64);
    node.end(Signal::INT);
}

#[test]
fn the_keys_of_a_node_are_its_own() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let arguments = ["node", "--memory", "1M", "--listen", "0.0.0.0:0", "--keys", "keys"];
    fails(at, &arguments, 3, "keys: ");
    let write = |text: &str, mode| {
        std::fs::write(at.join("keys"), text).expect("written");
        std::fs::set_permissions(at.join("keys"), std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let good = format!("1 {}\n", "ab".repeat(32));
    write(&good, 0o640);
    fails(at, &arguments, 1, "chmod 600 keys");
    write("# none\n", 0o600);
    fails(at, &arguments, 1, "no key in it");
    write("1 zz\n", 0o600);
    fails(at, &arguments, 1, "line 1");
    write(&good, 0o600);
    let (node, first) = Serving::start(at, &arguments);
    assert!(first.starts_with("node on 0.0.0.0:"), "{first}");
    node.end(Signal::TERM);
}

#[test]
fn a_map_is_checked_shown_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    std::fs::write(at.join("cluster"), CLUSTER).expect("written");
    assert_eq!(
        succeeds(at, &["map", "check", "cluster"]).trim(),
        "cluster: valid, epoch 4, 1 nodes, 1 ranges"
    );
    let shown = value(&succeeds(at, &["map", "show", "--map", "cluster", "--json"]));
    assert_eq!((&shown["ranges"][0]["node"], &shown["nodes"][0]["up"]), (&"a".into(), &true.into()));
    assert!(succeeds(at, &["map", "show", "--map", "cluster"]).contains("0x200000000  0x200100000  a"));
    std::fs::write(at.join("wrong"), CLUSTER.replace("node = \"a\"", "node = \"b\"")).expect("written");
    fails(at, &["map", "check", "wrong"], 1, "line 9");
    fails(at, &["map", "cancel", "1", "--map", "cluster"], 1, "memlift map serve");
    fails(at, &["map", "show"], 2, "--coordinator");
    fails(at, &["map", "serve", "--file", "kept", "--listen", "nowhere"], 2, "HOST:PORT");
    fails(at, &["map", "serve", "--file", "kept", "--listen", "0.0.0.0:0"], 1, "--key");

    let socket = ["--coordinator", "unix:socket"];
    fails(at, &[&["map", "show"][..], &socket].concat(), 3, "does not answer");
    let (coordinator, first) =
        Serving::start(at, &["map", "serve", "--file", "kept", "--listen", "unix:socket"]);
    assert_eq!(first.trim(), "coordinator at unix:socket, epoch 1");
    let shown = value(&succeeds(at, &[&["map", "show", "--json"][..], &socket].concat()));
    assert_eq!((&shown["epoch"], &shown["nodes"]), (&1.into(), &Value::Array(Vec::new())));
    fails(at, &[&["map", "cancel", "7"][..], &socket].concat(), 1, "7 is not planned");
    fails(at, &[&["map", "forget", "a"][..], &socket].concat(), 1, "called a");
    assert_eq!(coordinator.end(Signal::INT), "");
}

#[test]
fn nodes_join_a_coordinator_and_a_range_moves_between_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let keeper = ["map", "serve", "--file", "kept", "--listen", "unix:socket", "--lease-s", "2"];
    let (coordinator, _) = Serving::start(at, &keeper);
    let node = |name: &str, log: &str| {
        let listen = ["node", "--memory", "1M", "--listen", "127.0.0.1:0", "--json"];
        let joins = ["--coordinator", "unix:socket", "--name", name, "--log", log];
        Serving::start(at, &[&listen[..], &joins].concat())
    };
    let (a, first) = node("a", "a.log");
    assert_eq!(value(&first)["base"], 0x1_0000_0000_u64, "{first}");
    let (b, first) = node("b", "b.log");
    assert_eq!(value(&first)["base"], 0x1_4000_0000_u64, "{first}");

    let socket = ["--coordinator", "unix:socket"];
    let moving = [&["map", "move", "0x100000000", "512K", "b"][..], &socket].concat();
    let said = succeeds(at, &moving);
    assert!(said.contains("512.0 KiB from a to b") && said.contains("the range is b's"), "{said}");
    let shown = succeeds(at, &[&["map", "show"][..], &socket].concat());
    assert!(shown.contains("0x100000000  0x100080000  b"), "{shown}");
    let back =
        value(&succeeds(at, &[&["map", "move", "0x100000000", "512K", "a", "--json"][..], &socket].concat()));
    assert_eq!(back["node"], "a");
    fails(at, &[&["map", "move", "0x100000000", "1M", "c"][..], &socket].concat(), 1, "called c");

    let said = a.end(Signal::TERM);
    assert!(said.contains("\"given\"") && said.contains("\"taken\""), "{said}");
    // The range that came back is in the log; the other node has nothing left of it.
    let (a, first) = node("a", "a.log");
    assert_eq!(value(&first)["bytes"], 1 << 20, "{first}");
    a.end(Signal::INT);
    let said = b.end(Signal::INT);
    assert!(said.contains("\"taken\"") && said.contains("\"given\""), "{said}");
    coordinator.end(Signal::INT);
}

/// The log that a node has left, looked at, damaged and repaired; then a node with more memory starts with it.
fn a_log_is_checked_and_repaired(at: &Path, ring: &str) {
    assert!(succeeds(at, &["node", "log", "check", "log"]).contains("whole"));
    let good = std::fs::read(at.join("log")).expect("the log");
    let mut broken = good.clone();
    broken[70] ^= 1;
    std::fs::write(at.join("log"), &broken).expect("written");
    let damaged = run(at, &["node", "log", "check", "log", "--json"]);
    assert_eq!(damaged.status.code(), Some(1), "{damaged:?}");
    let report = value(&text(&damaged.stdout));
    assert_eq!((&report["state"], &report["good_to"]), (&"damaged".into(), &64.into()));
    fails(at, &["node", "--memory", "1M", "--listen", ring, "--log", "log"], 1, "damaged at byte 64");
    assert_eq!(std::fs::read(at.join("log")).expect("there"), broken, "the file is left as it is");
    succeeds(at, &["node", "log", "repair", "log", "--out", "repaired"]);
    fails(at, &["node", "log", "repair", "log", "--out", "repaired"], 1, "repaired");
    let more = ["node", "--memory", "2M", "--listen", "127.0.0.1:0", "--log", "repaired", "--json"];
    let (node, first) = Serving::start(at, &more);
    assert_eq!(value(&first)["bytes"], 2 << 20, "{first}");
    fails(at, &["node", "log", "check", "repaired"], 1, "another node");
    node.end(Signal::INT);
    fails(at, &["node"], 2, "--memory");
}

#[test]
fn a_node_follows_its_map_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    std::fs::write(at.join("cluster"), CLUSTER).expect("written");
    let arguments =
        ["node", "--memory", "2M", "--listen", "127.0.0.1:0", "--map", "cluster", "--name", "a", "--json"];
    let (mut node, first) = Serving::start(at, &[&arguments[..], &["--interval", "1"]].concat());
    assert_eq!(value(&first)["bytes"], 1 << 20);
    let more = "[[range]]\nbase = \"0x300000000\"\nbytes = \"1M\"\nnode = \"a\"\n";
    std::fs::write(at.join("cluster"), CLUSTER.replace("epoch = 4", "epoch = 5") + more).expect("written");
    loop {
        let mut line = String::new();
        node.lines.read_line(&mut line).expect("read");
        if value(&line)["free_bytes"] == 2 << 20 {
            break;
        }
    }
    node.end(Signal::INT);
}
