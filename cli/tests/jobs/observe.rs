// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift metrics` and `memlift top` beside real processes of every service: a server and its client, a pool, a memory node, a job
//! under a budget, a drop-in. What they counted stays when they have ended, and Prometheus's own tools find nothing wrong.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::place::{Place, python, text};
use memlift::ipc::{CachePolicy, CallOptions, Client, ClientOptions, Device, Reply, Server, ServerOptions};
use memlift::persist::{Domain, Durability, Options, Pool, kv::Kv};
use memlift::place::{CallReason, StoreReason, WalkReason, reason_text};
use memlift::transform;
use memlift::traverse::client::{Client as Walker, Config, cache::Cache, choice::Chooser};
use memlift::traverse::structures::{HashMap, OrderedMap};

/// Ends a process when the test does, whichever way.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that has said its first line.
fn started(mut command: Command) -> (Ended, String) {
    let mut child = Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    (child, line.trim().to_owned())
}

/// The page of an exporter: series and numbers.
fn scrape(address: &str) -> (String, BTreeMap<String, f64>) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let body = answer.split_once("\r\n\r\n").expect("a body").1.to_owned();
    let series = body.lines().filter(|line| !line.starts_with('#'));
    let parsed = series.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name.to_owned(), value.parse().expect("a number"))
    });
    let parsed = parsed.collect();
    (body, parsed)
}

/// The sum of the series of a family that have all these labels.
fn sum(page: &BTreeMap<String, f64>, family: &str, labels: &[&str]) -> f64 {
    let of = page.iter().filter(|(series, _)| {
        series.split('{').next() == Some(family) && labels.iter().all(|label| series.contains(label))
    });
    of.map(|(_, value)| value).sum()
}

/// Scrapes until `holds`; what a process counts is shown within a second or so.
fn eventually(address: &str, what: &str, holds: impl Fn(&BTreeMap<String, f64>) -> bool) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (body, page) = scrape(address);
        if holds(&page) {
            return body;
        }
        assert!(Instant::now() < until, "{what}: {body}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The exporter, and the address that it listens on.
fn exporter(place: &Place) -> (Ended, String) {
    let (exporter, line) = started(place.memlift(&["metrics", "--listen", "127.0.0.1:0"]));
    let address = line.strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (exporter, address.expect("an address").to_owned())
}

#[test]
fn every_service_is_seen_and_what_it_counted_stays() {
    let place = Place::new();
    let (_exporter, address) = exporter(&place);

    // ipc: both ends are this process.
    let name = format!("observe-{}", std::process::id());
    let server = Server::bind(&name, ServerOptions::default()).expect("a server");
    server.register("echo", |request| Ok(Reply::bytes(request.to_vec()))).expect("registered");
    server.start().expect("started");
    let client = Client::connect(&name, ClientOptions::default()).expect("a client");
    for _ in 0..7 {
        client.call("echo", [1u8; 64].as_slice(), None).expect("an answer");
    }

    // persist: a pool on a disk's file system, whose commits are synced.
    let path = place.folder.path().join("observe.pool");
    let options = Options { domain: Domain::Pages, ..Options::default() };
    let pool = Pool::create(&path, &options).expect("a pool");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    for number in 0..5u32 {
        store.set(&number.to_le_bytes(), b"value", 0).expect("set");
    }

    // traverse: a node of its own process.
    let node = ["node", "--memory", "8M", "--listen", "127.0.0.1:0", "--json"];
    let (node, line) = started(place.memlift(&node));
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let listens: std::net::SocketAddr =
        said["listen"][0].as_str().expect("an address").parse().expect("an address");
    let mut walker = Walker::udp(&[listens], Config::default()).expect("it answers");
    let mut map = HashMap::create(&mut walker, 4).expect("a map");
    for number in 0..20u64 {
        map.insert(&mut walker, number, b"entry").expect("inserted");
        assert!(map.get(&mut walker, number).expect("read").is_some());
    }

    // zmem: a job, and in it a drop-in's program would be; here it sleeps until it is told to end.
    let waits = "print('ready', flush=True); input()";
    let job = started(place.memlift(&["run", "-q", "--memory", "256M", "--", &python(), "-c", waits])).0;

    // transform: libz of another program.
    let mut packs = Command::new(python());
    let work = "import zlib; [zlib.decompress(zlib.compress(b'text ' * 2000)) for _ in range(6)]; print('done', flush=True); input()";
    packs.args(["-c", work]).env("MEMLIFT_STATS", "1").env("LD_PRELOAD", place.library("libmemlift_z.so"));
    let zlib = started(packs).0;

    let ipc = format!("name=\"{name}\"");
    let sees = |page: &BTreeMap<String, f64>| {
        let node = format!("name=\"{listens}\"");
        [
            ("memlift_ipc_calls_total", vec![ipc.as_str(), "role=\"server\""], 7.0),
            ("memlift_ipc_replies_total", vec![ipc.as_str(), "role=\"client\""], 7.0),
            ("memlift_ipc_bytes_in_total", vec![ipc.as_str(), "role=\"server\""], 7.0 * 64.0),
            ("memlift_persist_transactions_total", vec!["name=\"observe.pool\""], 5.0),
            ("memlift_persist_sync_seconds_count", vec!["name=\"observe.pool\""], 5.0),
            ("memlift_persist_heap_bytes", vec!["name=\"observe.pool\"", "role=\"pool\""], 1.0),
            ("memlift_traverse_requests_total", vec![node.as_str(), "role=\"client\""], 20.0),
            ("memlift_traverse_node_changes_total", vec![node.as_str(), "job=\"memlift\""], 20.0),
            ("memlift_traverse_node_walks_total", vec![node.as_str()], 20.0),
            ("memlift_traverse_node_live_bytes", vec![node.as_str()], 20.0),
            ("memlift_zmem_budget_bytes", vec!["service=\"zmem\"", "role=\"job\""], f64::from(256 << 20)),
            ("memlift_zmem_processes", vec!["role=\"job\""], 1.0),
            ("memlift_dropin_messages_total", vec!["name=\"zlib\""], 12.0),
            ("memlift_dropin_serving", vec!["name=\"zlib\""], 1.0),
        ]
        .iter()
        .all(|(family, labels, least)| sum(page, family, labels) >= *least)
    };
    let body = eventually(&address, "all services", sees);
    checked_by_prometheus(&body);
    let top = text(&place.run(&["top", "--once"]).stdout);
    for wanted in [name.as_str(), "observe.pool", &listens.to_string(), "zmem", "drop-in", "calls 7"] {
        assert!(top.contains(wanted), "no {wanted} in {top}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&place.run(&["metrics", "--once", "--json"]).stdout).expect("JSON");
    assert_eq!(json["jobs"][0]["numbers"]["service"], "zmem");
    let of_job = json["jobs"][0]["pids"][0].as_u64().expect("a process").to_string();
    for (pid, wanted) in [(of_job, "zmem"), (std::process::id().to_string(), "observe.pool")] {
        let explained = place.run(&["explain", &pid]);
        assert!(explained.status.success() && text(&explained.stdout).contains(wanted), "{explained:?}");
    }

    // All end: gauges go, counters stay.
    drop((job, zlib, node, walker, pool, client, server));
    let ended = |page: &BTreeMap<String, f64>| {
        !body.is_empty()
            && sum(page, "memlift_zmem_budget_bytes", &["role=\"job\""]) == 0.0
            && sum(page, "memlift_dropin_serving", &["name=\"zlib\""]) == 0.0
            && sum(page, "memlift_persist_heap_bytes", &["observe.pool"]) == 0.0
    };
    let body = eventually(&address, "the ends", ended);
    let (_, page) = scrape(&address);
    for (family, label, wanted) in [
        ("memlift_ipc_calls_total", ipc.as_str(), 14.0),
        ("memlift_persist_transactions_total", "observe.pool", 5.0),
        ("memlift_dropin_messages_total", "name=\"zlib\"", 12.0),
        ("memlift_traverse_node_walks_total", "role=\"node\"", 20.0),
    ] {
        assert!(sum(&page, family, &[label]) >= wanted, "{family}: {body}");
    }
}

/// A copy, a message, calls and walks of this process: each decision is in the same table, with its reason.
#[test]
fn the_decisions_of_every_service_are_explained_in_one_table() {
    let place = Place::new();
    let name = format!("explained-{}", std::process::id());
    let server = Server::bind(&name, ServerOptions::default()).expect("a server");
    server
        .register("length", |request| Ok(Reply::bytes(request.to_vec().len().to_le_bytes().to_vec())))
        .expect("registered");
    server.start().expect("started");
    let client = Client::connect(&name, ClientOptions::default()).expect("a client");
    let data = vec![7u8; 1 << 20];
    // One call in sixteen tries a way that is not known yet.
    for _ in 0..34 {
        client.call("length", data.as_slice(), None).expect("an answer");
    }
    let fixed = CallOptions { device: Device::Inline, cache: CachePolicy::Off, ..CallOptions::default() };
    client.call("length", data.as_slice(), fixed).expect("an answer");

    let options = transform::Options { cache: transform::Cache::Cold, ..transform::Options::default() };
    let mut target = vec![0u8; 1 << 16];
    transform::Transform::global()
        .copy_with(transform::Step::Copy, &data[..1 << 16], &mut target, &options)
        .expect("copied");

    let node = ["node", "--memory", "8M", "--listen", "127.0.0.1:0", "--json"];
    let (_node, line) = started(place.memlift(&node));
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let listens = said["listen"][0].as_str().expect("an address").parse().expect("an address");
    let mut walker = Walker::udp(&[listens], Config::default()).expect("it answers");
    let mut map = OrderedMap::create(&mut walker, 8).expect("a map");
    map.insert(&mut walker, 4, &7u64.to_le_bytes()).expect("inserted");
    let mut chooser = Chooser::new(Cache::new(1 << 16, Duration::from_secs(60)));
    for _ in 0..4 {
        chooser.walk(&mut walker, &map.handle().get_walk(4), None).expect("an answer");
    }

    let pid = std::process::id().to_string();
    let explained = place.run(&["explain", &pid]);
    let table = text(&explained.stdout);
    for reason in [
        CallReason::Requested as u16,
        CallReason::Explored as u16,
        StoreReason::Tried as u16,
        WalkReason::Explored as u16,
        WalkReason::Fastest as u16,
    ] {
        let words = reason_text(reason);
        assert!(explained.status.success() && table.contains(words), "no {words:?} in {table}");
    }
    assert!(table.contains("walk ") && table.contains("remote"), "{table}");
}

/// Lets `promtool` look at a page, where it is installed.
fn checked_by_prometheus(page: &str) {
    let Ok(mut tool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return eprintln!("promtool is not installed: the page was not checked by it");
    };
    tool.stdin.take().expect("piped").write_all(page.as_bytes()).expect("written");
    let output = tool.wait_with_output().expect("it ends");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Every family that the dashboard and the alerts ask for is one that the code exports.
#[test]
fn the_dashboard_and_the_alerts_ask_for_what_is_exported() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file");
    let dashboard = read("packaging/grafana/memlift.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 10));
    let sources = [
        "cli/src/metrics.rs",
        "cli/src/sample.rs",
        "services/ipc/src/row.rs",
        "services/persist/src/pool_row.rs",
        "services/persist/src/replica_row.rs",
        "services/traverse/src/node/stats.rs",
        "services/traverse/src/client/row.rs",
    ]
    .map(read)
    .concat();
    let asked = dashboard + &read("packaging/prometheus/memlift.rules.yml");
    let mut families = 0;
    for (at, _) in asked.match_indices("memlift_") {
        let word: String =
            asked[at..].chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '_').collect();
        let family = ["_bucket", "_count", "_sum"]
            .iter()
            .fold(word.as_str(), |word, end| word.strip_suffix(end).unwrap_or(word));
        let field = ["ipc_", "persist_", "zmem_", "traverse_"]
            .iter()
            .find_map(|service| family.strip_prefix("memlift_")?.strip_prefix(service));
        // A node's counters are named by what they count.
        let counted = field.and_then(|field| field.strip_prefix("node_")?.strip_suffix("_total"));
        let known = [Some(family), field, counted].into_iter().flatten();
        let quoted = known.map(|name| format!("\"{name}\"")).any(|name| sources.contains(&name));
        assert!(quoted, "{word} is asked for, and nothing exports it");
        families += 1;
    }
    assert!(families > 20, "{families}");
    let rules = Command::new("promtool")
        .args(["test", "rules", "packaging/prometheus/memlift.rules.test.yml"])
        .current_dir(&root)
        .output();
    match rules {
        Ok(output) => assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr)),
        Err(_) => eprintln!("promtool is not installed: the alerts were not tested by it"),
    }
}
