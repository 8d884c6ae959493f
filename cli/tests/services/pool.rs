// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool` as its users meet it: each verb, its exit code, and what is left behind when it fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use memlift::persist::{Options, PPtr, PSlice, Persist, Pool};
use serde_json::Value;

const SIGXFSZ: i32 = 25;

#[derive(Clone, Copy, Persist)]
#[persist(crate = memlift::persist)]
#[repr(C)]
struct Word {
    count: u64,
    text: PSlice<u8>,
    next: PPtr<Word>,
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift"));
    command.args(arguments).current_dir(folder).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null());
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&succeeds(folder, &arguments)).expect("JSON")
}

/// Exit code and message.
fn fails(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = run(folder, arguments);
    let said = text(&output.stderr);
    assert!(said.starts_with("memlift: error: "), "{arguments:?}: {said}");
    (output.status.code().expect("a code"), said)
}

fn fill(path: &Path) {
    let pool = Pool::open(path, &Options { max_bytes: 1 << 30, ..Options::default() }).expect("opened");
    pool.tx(|t| {
        let text = t.alloc_slice(b"persist")?;
        let last = t.alloc(Word { count: 1, text, next: PPtr::NULL })?;
        let first = t.alloc(Word { count: u64::MAX, text, next: last })?;
        t.set_root(first)
    })
    .expect("committed");
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("listed").count()
}

#[test]
fn a_pool_is_made_described_dumped_and_converted() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let made = json(
        at,
        &[
            "pool",
            "create",
            "a.pool",
            "--size",
            "1M",
            "--lanes",
            "2",
            "--lane-bytes",
            "64K",
            "--sections",
            "3",
        ],
    );
    assert_eq!(made["header"]["heap_bytes"], 1 << 20);
    assert!(made["guarantee"]["text"].as_str().expect("text").contains("survives"));
    fill(&at.join("a.pool"));
    let info = json(at, &["pool", "info", "a.pool"]);
    assert_eq!((&info["header"]["sections"], &info["header"]["clean"]), (&3.into(), &true.into()));
    assert_eq!(info["root"]["type"], "Word");
    let shown = succeeds(at, &["pool", "info", "a.pool"]);
    assert!(shown.contains("closed; nothing to recover") && shown.contains("Word"), "{shown}");
    let checked = json(at, &["pool", "check", "a.pool"]);
    assert_eq!((&checked["sound"], &checked["findings"]), (&true.into(), &Value::Array(Vec::new())));
    let lines = succeeds(at, &["pool", "dump", "a.pool", "--type", "Word", "--json"]);
    let words: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(words.len(), 2);
    assert_eq!(words[1]["value"]["count"], u64::MAX);
    assert_eq!(words[1]["value"]["next"]["pointer"], words[0]["offset"]);
    assert_eq!(words[0]["value"]["text"]["first"][0]["text"], "\"persist\"");
    let offset = words[0]["offset"].to_string();
    let one = succeeds(at, &["pool", "dump", "a.pool", "--offset", &offset]);
    assert!(one.contains("count: 1, text: 7 u8") && one.contains("next: null"), "{one}");
    assert_eq!(succeeds(at, &["pool", "dump", "a.pool", "--limit", "1"]).lines().count(), 1);
    succeeds(at, &["pool", "convert", "a.pool", "b.pool", "--mechanism", "undo", "--size", "2M"]);
    let info = json(at, &["pool", "info", "b.pool"]);
    assert_eq!(
        (&info["header"]["mechanism"], &info["header"]["heap_bytes"]),
        (&"undo".into(), &(2 << 20).into())
    );
    let repaired = json(at, &["pool", "repair", "a.pool", "c.pool"]);
    assert_eq!(repaired["changes"], Value::Array(Vec::new()));
    let compacted = json(at, &["pool", "compact", "a.pool"]);
    assert_eq!((&compacted["moved"], &compacted["path"]), (&0.into(), &"a.pool".into()), "{compacted}");
    assert!(compacted["disk_bytes"].as_u64() < compacted["disk_bytes_before"].as_u64(), "{compacted}");
    assert!(succeeds(at, &["pool", "compact", "a.pool"]).contains("on the disk"));
    assert_eq!(succeeds(at, &["pool", "dump", "a.pool", "--type", "Word", "--json"]), lines);
    succeeds(at, &["pool", "check", "a.pool"]);
    assert_eq!(fails(at, &["pool", "compact", "none.pool"]).0, 3);
    assert_eq!(count(at), 3, "nothing else is left");
}

/// The kernel kills a process that writes behind the size it allows: here at many places of the work.
#[test]
fn a_command_that_is_killed_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    succeeds(at, &["pool", "create", "a.pool", "--size", "2M"]);
    fill(&at.join("a.pool"));
    let verbs = [
        &["pool", "repair", "a.pool", "b.pool"][..],
        &["pool", "convert", "a.pool", "b.pool", "--size", "2M"],
        &["pool", "backup", "a.pool", "b.pool"],
        &["pool", "create", "b.pool", "--size", "2M"],
    ];
    for arguments in verbs {
        let mut killed = 0;
        for blocks in (0..12).map(|shift| 1 << shift) {
            let mut command = Command::new("bash");
            command.args(["-c", "ulimit -c 0; ulimit -f $0; exec \"$@\"", &blocks.to_string()]);
            command.arg(env!("CARGO_BIN_EXE_memlift")).args(arguments).current_dir(at);
            let ended = command.stdin(Stdio::null()).output().expect("bash starts");
            if ended.status.signal() == Some(SIGXFSZ) {
                killed += 1;
                assert_eq!(count(at), 1, "{arguments:?} with files of {blocks} KiB");
            } else if at.join("b.pool").exists() {
                std::fs::remove_file(at.join("b.pool")).expect("there");
            }
        }
        assert!(killed > 5, "{arguments:?}: killed {killed} times of 12");
    }
}

#[test]
fn damage_has_its_exit_code_and_is_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    succeeds(at, &["pool", "create", "a.pool", "--size", "1M", "--lanes", "2", "--lane-bytes", "64K"]);
    let path = at.join("a.pool");
    fill(&path);
    let heap =
        json(at, &["pool", "info", "a.pool"])["header"]["heap_start"].as_u64().expect("a number") as usize;
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[heap + 6 * 16 + 12] ^= 0x40; // a slab's entry
    std::fs::write(&path, &bytes).expect("written");
    let (code, said) = fails(at, &["pool", "check", "a.pool"]);
    assert!(code == 1 && said.contains("memlift pool repair a.pool"), "{code} {said}");
    let repaired = json(at, &["pool", "repair", "a.pool", "b.pool"]);
    assert_eq!(repaired["changes"].as_array().map(Vec::len), Some(1), "{repaired}");
    succeeds(at, &["pool", "check", "b.pool"]);
    assert_eq!(std::fs::read(&path).expect("read"), bytes, "the source is as it was");
    succeeds(at, &["pool", "repair", "a.pool", "--in-place"]);
    succeeds(at, &["pool", "check", "a.pool"]);
}

#[test]
fn damage_in_the_log_names_the_command_that_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let (path, copy) = (at.join("open.pool"), at.join("a.pool"));
    let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() }).expect("created");
    for text in [&b"first"[..], b"second", b"third"] {
        pool.tx(|t| t.alloc_slice(text).map(drop)).expect("committed");
    }
    let mut bytes = std::fs::read(&path).expect("read");
    pool.close().expect("closed");
    let log = 81920..bytes.len();
    let second = log.start + bytes[log].windows(6).position(|text| text == b"second").expect("in the log");
    bytes[second] ^= 1;
    std::fs::write(&copy, &bytes).expect("written");
    let checked = run(at, &["pool", "check", "a.pool"]);
    let said = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("memlift pool repair --accept-loss a.pool"), "{said}");
    for arguments in [
        &["pool", "repair", "a.pool", "--in-place"][..],
        &["pool", "repair", "a.pool", "b.pool"],
        &["pool", "convert", "a.pool", "b.pool"],
    ] {
        let (_, said) = fails(at, arguments);
        assert!(said.contains("memlift pool repair --accept-loss a.pool"), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read(&copy).expect("read"), bytes, "nothing was stored");
    let repaired = json(at, &["pool", "repair", "--accept-loss", "a.pool", "b.pool"]);
    let changes = repaired["changes"].to_string();
    assert!(changes.contains("2 transactions from 2 on are lost, as accepted"), "{changes}");
    assert_eq!(std::fs::read(&copy).expect("read"), bytes, "the source is as it was");
    succeeds(at, &["pool", "repair", "--accept-loss", "a.pool"]);
    succeeds(at, &["pool", "check", "a.pool"]);
    let report = json(at, &["pool", "info", "a.pool"]);
    assert_eq!(report["types"][0]["objects"], 1, "{report}");
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    for arguments in [
        &["pool"][..],
        &["pool", "create", "a.pool", "--size", "many"],
        &["pool", "create", "a.pool", "--mechanism", "magic"],
        &["pool", "create", "a.pool", "--lanes", "1"],
        &["pool", "create", "a.pool", "--sections", "0"],
        &["pool", "create", "a.pool", "--size", "9000T"],
        &["pool", "repair", "a.pool"],
        &["pool", "dump", "a.pool", "--offset", "here"],
    ] {
        let output = run(at, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(count(at), 0);
    for verb in ["info", "check", "dump"] {
        assert_eq!(fails(at, &["pool", verb, "nowhere.pool"]).0, 3, "{verb}");
    }
    std::fs::write(at.join("text"), "hello").expect("written");
    let (code, said) = fails(at, &["pool", "info", "text"]);
    assert!(code == 1 && said.contains("text: this is not a memlift pool"), "{said}");
    succeeds(at, &["pool", "create", "a.pool", "--size", "1M"]);
    let (code, said) = fails(at, &["pool", "create", "a.pool"]);
    assert!(code == 2 && said.contains("exists"), "{said}");
    let pool = Pool::open(at.join("a.pool"), &Options::default()).expect("opened");
    for arguments in [&["pool", "check", "a.pool"][..], &["pool", "repair", "a.pool", "--in-place"]] {
        let (code, said) = fails(at, arguments);
        assert!(code == 3 && said.contains("one owner at a time"), "{said}");
    }
    drop(pool);
    for arguments in [
        &["pool", "create", "none/b.pool"][..],
        &["pool", "backup", "a.pool", "none/b.pool"],
        &["pool", "convert", "a.pool", "none/b.pool"],
        &["pool", "repair", "a.pool", "none/b.pool"],
    ] {
        let (code, said) = fails(at, arguments);
        assert!(code == 3 && said.contains("none: there is no such folder"), "{arguments:?}: {said}");
    }
    assert_eq!(count(at), 2);
}

#[test]
fn a_disk_without_room_gets_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    // A limit on the size of files stands for the disk: 1024 blocks of 512 or 1024 bytes.
    let shell = |arguments: &str| {
        let script =
            format!("trap '' XFSZ; ulimit -f 1024; exec {} {arguments}", env!("CARGO_BIN_EXE_memlift"));
        Command::new("sh")
            .args(["-c", &script])
            .current_dir(at)
            .stdin(Stdio::null())
            .output()
            .expect("starts")
    };
    let output = shell("pool create big.pool --size 64M");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("big.pool") && said.contains("too large"), "{said}");
    assert_eq!(count(at), 0, "nothing is left");
    succeeds(at, &["pool", "create", "a.pool", "--size", "128K", "--lanes", "2", "--lane-bytes", "64K"]);
    for arguments in ["pool convert a.pool b.pool --size 64M", "pool convert a.pool b.pool --lane-bytes 1M"] {
        assert_eq!(shell(arguments).status.code(), Some(1), "{arguments}");
        assert_eq!(count(at), 1, "{arguments}: nothing is left");
    }
}

#[test]
fn a_full_or_read_only_file_system_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    // In a mount namespace of its own; where that is not allowed, there is no file system to try it on.
    let mounted = |options: &str, command: &str| {
        let script = format!(
            "mount -t tmpfs -o size=1m,{options} none {0} && cd {0} && {1} {command}; code=$?; ls -A {0} | wc -l; exit $code",
            at.display(),
            env!("CARGO_BIN_EXE_memlift")
        );
        Command::new("unshare").args(["-rm", "sh", "-c", &script]).stdin(Stdio::null()).output()
    };
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        return;
    }
    let output = mounted("rw", "pool create a.pool --size 64M").expect("starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("make room"), "{said}");
    assert_eq!(text(&output.stdout).trim(), "0", "nothing is left");
    let output = mounted("ro", "pool create a.pool --size 128K").expect("starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn a_pool_that_cannot_grow_goes_on_with_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=12m none {0} && cd {0} && {1} pool create a.pool --size 1M >&2 \
         && {{ {1} pool serve a.pool --listen 127.0.0.1:0 & echo $!; wait; {1} pool check a.pool; echo checked $?; }}",
        folder.path().display(),
        env!("CARGO_BIN_EXE_memlift")
    );
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        return; // no file system of its own to fill
    }
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().expect("starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = || {
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    };
    let server = line();
    let address = line().rsplit(' ').next().expect("an address").to_owned();
    let mut stream = TcpStream::connect(&address).expect("connected");
    let mut replies = BufReader::new(stream.try_clone().expect("the same"));
    let mut ask = |request: String| {
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reply = String::new();
        replies.read_line(&mut reply).expect("a reply");
        reply.trim().to_owned()
    };
    let value = "x".repeat(3000);
    let mut kept = 0;
    let refused = loop {
        let reply = ask(format!("SET key{kept} {value}\r\n"));
        if reply != "+OK" {
            break reply;
        }
        kept += 1;
    };
    assert!(refused.contains("No space left on device"), "{refused}");
    assert!(kept > 100, "{kept}");
    assert_eq!(ask("DBSIZE\r\n".to_owned()), format!(":{kept}"));
    assert_eq!(ask("DEL key0 key1\r\n".to_owned()), ":2");
    assert_eq!(ask(format!("SET key0 {value}\r\n")), "+OK", "what was freed is used again");
    assert!(Command::new("kill").args(["-KILL", &server]).status().expect("runs").success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("checked 0"), "{rest}");
    child.wait().expect("ended");
}

#[test]
fn a_store_is_served_and_survives_being_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let refused = run(at, &["pool", "serve", "kv.pool", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    let talk = |request: &str, expected: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlift"));
        command.args(["pool", "serve", "kv.pool", "--listen", "127.0.0.1:0"]).current_dir(at);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("an address");
        let address = line.trim().rsplit(' ').next().expect("an address");
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reply = vec![0; expected.len()];
        stream.read_exact(&mut reply).expect("a reply");
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(text(&reply), expected);
    };
    talk("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n", "+OK\r\n");
    talk("*2\r\n$3\r\nGET\r\n$1\r\na\r\n", "$5\r\nhello\r\n");
    succeeds(at, &["pool", "check", "kv.pool"]);
}

#[test]
fn completions_and_help_name_the_verbs() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = succeeds(folder.path(), &["completions", "bash"]);
    for verb in ["create", "info", "check", "repair", "dump", "compact", "convert"] {
        assert!(
            script.contains(&format!("pool__{verb}")) || script.contains(&format!("pool__subcmd__{verb}")),
            "{verb}"
        );
        let help = succeeds(folder.path(), &["pool", verb, "--help"]);
        assert!(help.contains("Examples:\n  memlift pool"), "{verb}: {help}");
    }
}

#[test]
fn an_interleaved_pool_is_named_by_one_of_its_files_or_by_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (folder.path(), folder.path().join("there"));
    std::fs::create_dir(&there).expect("made");
    let paths = [here.join("a.pool"), here.join("b.pool")];
    let options = Options { heap_bytes: 1 << 20, max_bytes: 1 << 30, ..Options::default() };
    let pool = Pool::create_interleaved(&paths, &options).expect("created");
    pool.tx(|t| {
        let text = t.alloc_slice(b"persist")?;
        let word = t.alloc(Word { count: 1, text, next: PPtr::NULL })?;
        t.set_root(word)
    })
    .expect("committed");
    pool.close().expect("closed");

    assert!(succeeds(here, &["pool", "info", "b.pool"]).contains("interleaved over 2 files"));
    assert_eq!(json(here, &["pool", "check", "a.pool"])["sound"], true);
    assert!(succeeds(here, &["pool", "dump", "b.pool", "--type", "Word"]).contains("count: 1"));
    succeeds(here, &["pool", "convert", "b.pool", "single.pool"]);
    assert_eq!(json(here, &["pool", "info", "single.pool"])["header"]["devices"], 1);

    std::fs::rename(&paths[1], there.join("b.pool")).expect("moved");
    let (code, said) = fails(here, &["pool", "check", "a.pool"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("device 1 is not in its folder"), "{said}");
    assert_eq!(json(here, &["pool", "check", "a.pool", "--with", "there/b.pool"])["sound"], true);
    succeeds(here, &["pool", "repair", "a.pool", "good.pool", "--with", "there/b.pool"]);
    assert_eq!(json(here, &["pool", "check", "good.pool"])["sound"], true);
    assert!(here.join("good.pool.1").exists());
}

#[test]
fn a_copy_is_a_pool_and_overwrites_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    succeeds(at, &["pool", "create", "a.pool", "--size", "1M"]);
    fill(&at.join("a.pool"));
    let made = json(at, &["pool", "backup", "a.pool", "b.pool", "--rate", "1G"]);
    assert!(made["bytes"].as_u64().expect("bytes") > 0);
    let dumped =
        |name: &str| succeeds(at, &["pool", "dump", name]).lines().skip(1).collect::<Vec<_>>().join("\n");
    assert_eq!(dumped("b.pool"), dumped("a.pool"));
    succeeds(at, &["pool", "check", "b.pool"]);
    let before = std::fs::read(at.join("b.pool")).expect("read");
    let (code, said) = fails(at, &["pool", "backup", "a.pool", "b.pool"]);
    assert!(code == 2 && said.contains("b.pool"), "{code} {said}");
    assert_eq!(std::fs::read(at.join("b.pool")).expect("read"), before);
    assert_eq!(fails(at, &["pool", "backup", "a.pool", "c.pool", "--rate", "0"]).0, 2);
    assert_eq!(fails(at, &["pool", "backup", "none.pool", "c.pool"]).0, 3);
    let owner = Pool::open(at.join("a.pool"), &Options::default()).expect("opened");
    let (code, said) = fails(at, &["pool", "backup", "a.pool", "c.pool"]);
    assert!(code == 3 && said.contains("pool.backup"), "{code} {said}");
    drop(owner);
    assert_eq!(count(at), 2);
}
