// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool replicate`, `restore` and `serve --replicate` as their users meet them: killed, fenced, without their store.
#![cfg(feature = "replicate")]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

fn memlift(folder: &Path, environment: &[(&str, String)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift"));
    command.args(arguments).current_dir(folder).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Commands with one folder and environment.
struct Shell<'a> {
    folder: &'a Path,
    environment: Vec<(&'static str, String)>,
}

impl<'a> Shell<'a> {
    fn at(folder: &'a Path) -> Shell<'a> {
        Shell { folder, environment: Vec::new() }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        memlift(self.folder, &self.environment, arguments).output().expect("the command starts")
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.succeeds(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    /// Exit code and message; the message as JSON has the same code.
    fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said: Value =
            serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        let code = output.status.code().expect("a code");
        assert_eq!(said["error"]["exit_code"], code, "{said}");
        (code, said["error"]["message"].as_str().expect("text").to_owned())
    }

    fn serve(&self, pool: &str, more: &[&str]) -> Server {
        let arguments = [&["pool", "serve", pool, "--listen", "127.0.0.1:0"], more].concat();
        let mut command = memlift(self.folder, &self.environment, &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("an address");
        let Some(address) = line.trim().rsplit(' ').next().filter(|word| word.contains(':')) else {
            let mut said = String::new();
            let _ = child.stderr.take().expect("piped").read_to_string(&mut said);
            panic!("{arguments:?}: {line} {said}");
        };
        Server { address: address.to_owned(), child }
    }

    /// Values of keys in a pool that nobody has open.
    fn values(&self, pool: &str, keys: &[String]) -> Vec<Option<String>> {
        self.succeeds(&["pool", "check", pool]);
        let server = self.serve(pool, &[]);
        let mut client = server.client();
        keys.iter().map(|key| client.get(key)).collect()
    }
}

/// A server that is killed when this is dropped.
struct Server {
    address: String,
    child: Child,
}

impl Server {
    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Client { replies: BufReader::new(stream.try_clone().expect("the same")), stream }
    }

    fn signal(&self, name: &str) {
        let number = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &number]).status().expect("runs").success());
    }

    /// Waits for its end; gives its exit code and what it said on standard error.
    fn ends(&mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut said = String::new();
        let _ = self.child.stderr.take().expect("piped").read_to_string(&mut said);
        (self.child.wait().expect("ended").code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    /// The first line of the reply; None: the connection is gone.
    fn ask(&mut self, request: &str) -> Option<String> {
        self.stream.write_all(format!("{request}\r\n").as_bytes()).ok()?;
        let mut reply = String::new();
        let read = self.replies.read_line(&mut reply).ok()?;
        (read > 0).then(|| reply.trim_end().to_owned())
    }

    fn bulk(&mut self, request: &str) -> Option<String> {
        let length = self.ask(request)?.strip_prefix('$')?.parse::<i64>().ok()?;
        let mut bytes = vec![0; usize::try_from(length).ok()? + 2];
        self.replies.read_exact(&mut bytes).expect("the reply");
        bytes.truncate(bytes.len() - 2);
        Some(text(&bytes))
    }

    fn get(&mut self, key: &str) -> Option<String> {
        self.bulk(&format!("GET {key}"))
    }

    /// A line of INFO.
    fn info(&mut self, name: &str) -> String {
        let all = self.bulk("INFO").expect("a reply");
        let line = all.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
    }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn url(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_owned()
}

/// Seeded random numbers (xorshift).
fn dice(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 11) % below
}

#[test]
fn a_pool_is_copied_listed_and_restored_to_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, shell) = (folder.path(), Shell::at(folder.path()));
    let set = |value: &str| {
        let mut server = shell.serve("kv.pool", &[]);
        assert_eq!(server.client().ask(&format!("SET a {value}")).as_deref(), Some("+OK"));
        server.signal("TERM");
        assert_eq!(server.ends().0, Some(0));
    };
    set("first");
    let place = url(at, "copy");
    let sent = shell.json(&["pool", "replicate", "kv.pool", &place, "--once"]);
    assert_eq!((&sent["snapshot"], &sent["segment"]), (&true.into(), &2.into()), "{sent}");
    set("second");
    let sent = shell.json(&["pool", "replicate", "kv.pool", &place, "--once"]);
    assert_eq!(sent["snapshot"], false, "{sent}");
    assert!(sent["bytes"].as_u64() < Some(200_000) && sent["lag_s"].as_f64() < Some(60.0), "{sent}");
    let listed = shell.json(&["pool", "restore", &place, "--list"]);
    assert_eq!(listed["stretches"][0]["segments"], 2, "{listed}");
    assert_eq!(listed["writers"].as_array().map(Vec::len), Some(2), "{listed}");
    let shown = shell.succeeds(&["pool", "restore", &place, "--list"]);
    assert!(shown.contains("any time from") && shown.contains("kv.pool, process"), "{shown}");
    let first = listed["stretches"][0]["from"].as_str().expect("a time");
    let restored = shell.json(&["pool", "restore", &place, "first.pool", "--at", first]);
    assert_eq!(restored["time"], first, "{restored}");
    shell.succeeds(&["pool", "restore", &place, "last.pool"]);
    let key = ["a".to_owned()];
    assert_eq!(shell.values("first.pool", &key), [Some("first".to_owned())]);
    assert_eq!(shell.values("last.pool", &key), [Some("second".to_owned())]);
    // Nothing is overwritten, and mistakes have their exit codes.
    let before = std::fs::read(at.join("first.pool")).expect("read");
    for (code, words, arguments) in [
        (2, "exists", &["pool", "restore", &place, "first.pool"][..]),
        (2, "--at yesterday", &["pool", "restore", &place, "x.pool", "--at", "yesterday"]),
        (1, "it begins at", &["pool", "restore", &place, "x.pool", "--at", "2001-01-01T00:00:00Z"]),
        (3, "there is no replica", &["pool", "restore", ".", "x.pool"]),
        (3, "nowhere", &["pool", "restore", "nowhere", "--list"]),
        (2, "a replica's place is", &["pool", "replicate", "kv.pool", "ftp://host/path", "--once"]),
        (3, "none.pool", &["pool", "replicate", "none.pool", &place, "--once"]),
    ] {
        let (found, said) = shell.fails(arguments);
        assert!(found == code && said.contains(words), "{arguments:?}: {found} {said}");
    }
    assert_eq!(std::fs::read(at.join("first.pool")).expect("read"), before);
    shell.succeeds(&["pool", "create", "other.pool"]);
    let (code, said) = shell.fails(&["pool", "replicate", "other.pool", &place, "--once"]);
    assert!(code == 2 && said.contains("another pool"), "{code} {said}");
    for arguments in [
        &["pool", "restore", &place][..],
        &["pool", "restore", &place, "x.pool", "--list"],
        &["pool", "serve", "kv.pool", "--durability", "replicated"],
        &["pool", "replicate", "kv.pool", &place, "--interval", "0"],
    ] {
        assert_eq!(shell.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    // A damaged object costs what lies behind it.
    let segments = at.join("copy/log");
    let last = std::fs::read_dir(&segments)
        .expect("listed")
        .map(|one| one.expect("there").path())
        .max()
        .expect("some");
    let mut bytes = std::fs::read(&last).expect("read");
    *bytes.last_mut().expect("pages") ^= 1;
    std::fs::write(&last, bytes).expect("written");
    let (code, said) = shell.fails(&["pool", "restore", &place, "x.pool"]);
    assert!(code == 1 && said.contains(&format!("a restore is possible up to {first}")), "{code} {said}");
    assert!(!at.join("x.pool").exists());
}

/// `memlift pool replicate` beside a server, and its lines.
fn replicate(shell: &Shell<'_>, pool: &str, place: &str) -> (Server, Lines<BufReader<ChildStdout>>) {
    let arguments = ["pool", "replicate", pool, place, "--interval", "0.05", "--json"];
    let mut command = memlift(shell.folder, &shell.environment, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (Server { address: String::new(), child }, lines)
}

#[test]
fn a_served_pool_is_replicated_by_another_process_until_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, shell) = (folder.path(), Shell::at(folder.path()));
    let place = url(at, "copy");
    let server = shell.serve("kv.pool", &[]);
    let mut client = server.client();
    let (mut replicator, mut lines) = replicate(&shell, "kv.pool", &place);
    let mut next =
        || serde_json::from_str::<Value>(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert_eq!(next()["snapshot"], true);
    for turn in 0..5 {
        assert_eq!(client.ask(&format!("SET a {turn}")).as_deref(), Some("+OK"));
        let sent = next();
        assert_eq!(sent["snapshot"], false, "{sent}");
        assert!(sent["lag_s"].as_f64().is_some() && sent["sent_bytes"].as_u64() > Some(0), "{sent}");
    }
    let closed = shell.serve("closed.pool", &["--readers", "0"]);
    let (code, said) = shell.fails(&["pool", "replicate", "closed.pool", &url(at, "other"), "--once"]);
    assert!(
        code == 3 && said.contains("serve --replicate") && said.contains("readers=True"),
        "{code} {said}"
    );
    drop(closed);
    replicator.signal("TERM");
    let (code, said) = replicator.ends();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    drop(server);
    shell.succeeds(&["pool", "restore", &place, "restored.pool"]);
    assert_eq!(shell.values("restored.pool", &["a".to_owned()]), [Some("4".to_owned())]);
    // A server that replicates by itself is not sent away by mistake.
    let mut server = shell.serve("kv.pool", &["--replicate", &place]);
    let mut client = server.client();
    let (code, said) = shell.fails(&["pool", "replicate", "kv.pool", &place, "--once"]);
    assert!(code == 2 && said.contains("--take-over"), "{code} {said}");
    shell.succeeds(&["pool", "replicate", "kv.pool", &place, "--once", "--take-over"]);
    // The server ends as soon as it sees that, now or a moment ago.
    let answer = client.ask("SET a 5");
    let (code, said) = server.ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("belongs to another process") && said.contains("stop the other one"), "{said}");
    let kept = shell.values("kv.pool", &["a".to_owned()]);
    let all = [Some("5".to_owned())];
    assert!(kept == all || answer.is_none(), "all that was answered is in the file: {answer:?}, {kept:?}");
}

/// An S3 server, which ends with this.
struct Moto(Child);

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

/// An S3 server with the bucket `words`, and the environment for it; None: there is no moto, and it says so.
fn moto() -> Option<(Moto, Vec<(&'static str, String)>)> {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/setup");
    let made = Command::new(setup).arg("moto").output().expect("started");
    if !made.status.success() {
        println!("not run: no moto: {}", text(&made.stderr));
        return None;
    }
    let script = r#"
import time, urllib.request
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/words", method="PUT")).close()
print(f"http://{host}:{port}", flush=True)
time.sleep(3600)
"#;
    let mut command = Command::new(text(&made.stdout).trim());
    let child = command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut moto = Moto(child.expect("started"));
    let mut lines = BufReader::new(moto.0.stdout.take().expect("piped")).lines();
    let address = lines.next().expect("an address").expect("text");
    let environment = [
        ("AWS_ENDPOINT", address.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "us-east-1"),
    ];
    Some((moto, environment.map(|(name, value)| (name, value.to_owned())).to_vec()))
}

/// Sets keys, kills the server in the middle, restores elsewhere and goes on there; every value that was answered is there.
fn kills(shell: &Shell<'_>, place: &str) {
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64 | 1;
    let mut told = vec![0u64; 50];
    let mut pool = "kv 0.pool".to_owned();
    for turn in 1..=4 {
        let mut server = shell.serve(&pool, &["--replicate", place, "--durability", "replicated"]);
        let mut client = server.client();
        let (wanted, started) = (10 + dice(&mut seed, 60), Instant::now());
        let killer = std::thread::spawn({
            let (number, after) = (server.child.id().to_string(), dice(&mut seed, 3_000));
            move || {
                std::thread::sleep(Duration::from_millis(after));
                Command::new("kill").args(["-KILL", &number]).status().expect("runs")
            }
        });
        for count in 0.. {
            let key = dice(&mut seed, told.len() as u64) as usize;
            let value = told[key] + 1;
            let filler = "x".repeat(dice(&mut seed, 5_000) as usize);
            match client.ask(&format!("SET key{key} {value}:{filler}")).as_deref() {
                Some("+OK") => told[key] = value,
                // It was killed; this value may be there or not.
                None => break,
                Some(other) => panic!("{other} after {:?}", started.elapsed()),
            }
            if count == wanted {
                server.child.kill().expect("killed");
            }
        }
        killer.join().expect("ran");
        server.child.wait().expect("gone");
        let restored = format!("kv {turn}.pool");
        shell.succeeds(&["pool", "restore", place, &restored]);
        let keys: Vec<String> = (0..told.len()).map(|key| format!("key{key}")).collect();
        for (key, found) in shell.values(&restored, &keys).into_iter().enumerate() {
            let found: u64 = found
                .map_or(0, |value| value.split(':').next().expect("a number").parse().expect("a number"));
            assert!(
                found == told[key] || found == told[key] + 1,
                "key{key}: {} was answered, {found} is there",
                told[key]
            );
            told[key] = found;
        }
        pool = restored;
    }
    assert!(told.iter().sum::<u64>() > 10, "{told:?}");
}

#[test]
fn nothing_that_was_answered_is_lost_when_the_server_is_killed_and_its_disk_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    kills(&Shell::at(folder.path()), &url(folder.path(), "copy"));
}

#[test]
fn nothing_that_was_answered_is_lost_when_the_copy_is_in_an_s3_server() {
    let Some((_moto, environment)) = moto() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    kills(&Shell { folder: folder.path(), environment }, "s3://words/served");
}

#[test]
fn of_two_servers_the_later_one_has_the_replica_and_the_other_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, shell) = (folder.path(), Shell::at(folder.path()));
    let place = url(at, "copy");
    let mut first = shell.serve("first.pool", &["--replicate", &place, "--durability", "replicated"]);
    let mut client = first.client();
    assert_eq!(client.ask("SET a 1").as_deref(), Some("+OK"));
    shell.succeeds(&["pool", "restore", &place, "second.pool"]);
    let second = shell.serve("second.pool", &["--replicate", &place, "--durability", "replicated"]);
    assert_eq!(second.client().ask("SET a 2").as_deref(), Some("+OK"));
    // It has not noticed yet: this is answered with an error, or not at all.
    let answer = client.ask("SET a 3");
    assert!(answer.as_ref().is_none_or(|line| line.starts_with("-NOREPLICAS")), "{answer:?}");
    let (code, said) = first.ends();
    assert_eq!(code, Some(1), "{said}");
    let number = format!("second.pool, process {}", second.child.id());
    assert!(said.contains(&number) && said.contains("stop the other one"), "{said}");
    drop(second);
    shell.succeeds(&["pool", "restore", &place, "third.pool"]);
    assert_eq!(shell.values("third.pool", &["a".to_owned()]), [Some("2".to_owned())]);
}

/// Makes a folder unusable, and usable again when this is dropped.
struct Gone(PathBuf, PathBuf);

impl Gone {
    fn of(folder: PathBuf) -> Gone {
        let aside = folder.with_extension("aside");
        std::fs::rename(&folder, &aside).expect("moved");
        std::fs::write(&folder, "no folder").expect("written");
        Gone(folder, aside)
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("removed");
        std::fs::rename(&self.1, &self.0).expect("moved back");
    }
}

#[test]
fn a_server_goes_on_while_its_store_is_away_and_refuses_to_begin_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, shell) = (folder.path(), Shell::at(folder.path()));
    // Nobody listens there.
    let away = Shell {
        folder: at,
        environment: [
            "AWS_ENDPOINT",
            "AWS_ALLOW_HTTP",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_REGION",
        ]
        .into_iter()
        .zip(["http://127.0.0.1:1", "true", "test", "test", "us-east-1"].map(str::to_owned))
        .collect(),
    };
    let arguments = ["pool", "serve", "kv.pool", "--listen", "127.0.0.1:0", "--replicate", "s3://words/kv"];
    let (code, said) = away.fails(&arguments);
    assert!(
        code == 3 && said.contains("s3://words/kv") && said.contains("leave --replicate out"),
        "{code} {said}"
    );
    let (code, said) = away.fails(&["pool", "restore", "s3://words/kv", "new.pool"]);
    assert!(code == 3 && said.contains("environment"), "{code} {said}");
    // With `group`, writes go on without the copy, and the copy follows when it can.
    let place = url(at, "copy");
    let mut server = shell.serve("kv.pool", &["--replicate", &place]);
    let mut client = server.client();
    assert_eq!(client.ask("SET a 1").as_deref(), Some("+OK"));
    eventually("the copy is there", || client.info("replica_lag_seconds") != "-1");
    assert_eq!(client.info("replica"), "ok");
    let metric = |family: &str| {
        let page = shell.succeeds(&["metrics", "--once"]);
        let of_pool = |line: &&str| {
            let named = ["name=\"kv.pool\"", "role=\"replica\""].iter().all(|label| line.contains(label));
            named && line.starts_with(&format!("memlift_persist_replica_{family}{{"))
        };
        let line = page.lines().find(of_pool).unwrap_or_else(|| panic!("no {family} in {page}"));
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let complete = metric("as_of_timestamp_seconds");
    assert!((now - 600.0..now + 600.0).contains(&complete), "{complete} at {now}");
    assert!(metric("segments_total") >= 1.0 && metric("bytes_total") > 4096.0);
    let gone = Gone::of(at.join("copy"));
    assert_eq!(client.ask("SET a 2").as_deref(), Some("+OK"));
    eventually("it is said", || client.info("replica") == "failing");
    assert!(client.info("replica_trouble").contains("copy"));
    eventually("it is exported", || metric("failing") == 1.0);
    assert_eq!(client.ask("SET a 3").as_deref(), Some("+OK"));
    drop(gone);
    eventually("it goes on", || client.info("replica") == "ok");
    eventually("that is exported, too", || metric("failing") == 0.0);
    let _ = client.ask("SET a 4");
    // A clean end waits for the copy.
    server.signal("TERM");
    let (code, said) = server.ends();
    assert!(code == Some(0) && said.contains("warning") && said.contains("again"), "{code:?} {said}");
    shell.succeeds(&["pool", "restore", &place, "restored.pool"]);
    assert_eq!(shell.values("restored.pool", &["a".to_owned()]), [Some("4".to_owned())]);
    // With `replicated`, a client is told, and the server goes on.
    let mut server = shell.serve("kv.pool", &["--replicate", &place, "--durability", "replicated"]);
    let mut client = server.client();
    assert_eq!(client.ask("SET a 5").as_deref(), Some("+OK"));
    let gone = Gone::of(at.join("copy"));
    let refused = client.ask("SET a 6").expect("an answer");
    assert!(refused.starts_with("-NOREPLICAS") && refused.contains("in the pool's file"), "{refused}");
    assert_eq!(client.ask("PING"), None, "the connection is closed");
    drop(gone);
    eventually("writes are answered again", || server.client().ask("SET a 7").as_deref() == Some("+OK"));
    let gone = Gone::of(at.join("copy"));
    let _ = server.client().ask("SET a 8");
    server.signal("TERM");
    let (code, said) = server.ends();
    assert!(code == Some(1) && said.contains("the next start sends it"), "{code:?} {said}");
    drop(gone);
    shell.succeeds(&["pool", "replicate", "kv.pool", &place, "--once"]);
    shell.succeeds(&["pool", "restore", &place, "last.pool"]);
    assert_eq!(shell.values("last.pool", &["a".to_owned()]), [Some("8".to_owned())]);
}

#[test]
fn ctrl_c_ends_a_restore_that_waits_for_its_store_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    // A store that takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = format!("http://{}", silent.local_addr().expect("an address"));
    let environment =
        ["AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]
            .into_iter()
            .zip([address.as_str(), "true", "test", "test", "us-east-1"].map(str::to_owned))
            .collect();
    let shell = Shell { folder: folder.path(), environment };
    let mut command =
        memlift(shell.folder, &shell.environment, &["pool", "restore", "s3://words/kv", "new.pool"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut restore = Server { address: String::new(), child };
    let _asked = silent.accept().expect("it asks");
    std::thread::sleep(Duration::from_millis(100));
    restore.signal("INT");
    let (code, said) = restore.ends();
    assert!(code == Some(1) && said.contains("there is no file"), "{code:?} {said}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
}
