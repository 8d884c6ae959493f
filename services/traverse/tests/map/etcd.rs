// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map in a real etcd: changes at the same time, a node that dies, an etcd that is away for a while.
//!
//! - **Needs** `etcd` on the PATH (Debian: etcd-server) or where `tools/etcd` puts it; without it each test says so and is
//!   skipped. Each test starts one of its own, on ports of its own, with its data in a folder of its own
#![cfg(feature = "etcd")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::etcd_world::{Server, program};
use crate::{join, until};
use memlift_traverse::client::{Client, Config};
use memlift_traverse::map::{Address, Authority, Join, Map, MapError, Member, Order, Source, State};
use memlift_traverse::node::{Cluster, ClusterOptions, NodeOptions};
use memlift_traverse::structures::HashMap;
use memlift_traverse::transport::udp::Udp;

fn is(map: &Map, name: &str, state: State) -> bool {
    map.node_named(name).is_some_and(|node| node.state == state)
}

#[test]
fn nodes_that_join_at_once_all_get_addresses_of_their_own() {
    let Some(server) = Server::start() else { return };
    std::thread::scope(|scope| {
        for index in 0..6u16 {
            let mut etcd = server.etcd().with_lease_s(60);
            scope.spawn(move || etcd.join(&join(&format!("n{index}"), 100 + index, 1)).expect("joined"));
        }
    });
    let map = server.etcd().read().expect("read");
    // Six changes, six epochs: none was made from a map that another had replaced.
    assert_eq!((map.nodes().len(), map.ranges().len(), map.epoch()), (6, 6, 7));
}

#[test]
fn a_node_that_dies_is_down_for_everybody() {
    let Some(server) = Server::start() else { return };
    let client = Member::watch(server.source()).expect("watching");
    let a = Member::join(server.source(), join("a", 1, 1)).expect("joined");
    let mut dead = server.etcd();
    let (map, b, _) = dead.join(&join("b", 2, 1)).expect("joined");
    let base = map.ranges()[1].base;
    dead.renew(b, 1).expect("in time");
    until(&client, |map| is(map, "b", State::Up));
    until(&client, |map| is(map, "b", State::Down));
    assert!(matches!(client.shared().map().node_of(base), Err(MapError::Down { .. })));
    assert!(is(&client.shared().map(), "a", State::Up) && a.trouble().is_none());
    assert!(matches!(dead.renew(b, 1), Err(MapError::LeaseLost { .. })));

    // The same start again: its data is there. Another start without it: its addresses are lost.
    let (map, again, _) = dead.join(&Join { recovered: true, ..join("b", 2, 1) }).expect("joined");
    assert!(again == b && map.node_of(base).is_ok());
    until(&client, |map| is(map, "b", State::Up));
    until(&client, |map| is(map, "b", State::Down));
    dead.join(&join("b", 2, 2)).expect("joined");
    until(&client, |map| matches!(map.node_of(base), Err(MapError::Lost { .. })));

    drop(a);
    until(&client, |map| is(map, "a", State::Down));
}

#[test]
fn a_node_whose_key_was_deleted_by_hand_comes_back() {
    let (Some(server), Some(_)) = (Server::start(), program("etcdctl", "etcd-client")) else { return };
    let member = Member::join(server.source(), join("a", 100, 1)).expect("joined");
    let watcher = Member::watch(server.source()).expect("watches");
    server.ctl(&["del", "test/map/node/a/1"]);
    until(&watcher, |map| is(map, "a", State::Down));
    until(&watcher, |map| is(map, "a", State::Up));
    assert_eq!(watcher.shared().map().node_named("a").map(|node| node.id), member.id());
}

#[test]
fn etcd_is_spoken_to_over_tls_with_a_certificate_a_user_and_a_password() {
    let (Some(mut server), Some(_)) = (Server::stopped(), program("etcdctl", "etcd-client")) else { return };
    let folder = server.folder.path().to_owned();
    if !certificates(&folder) {
        println!("skipped: openssl is not installed");
        return;
    }
    let file = |name: &str| folder.join(name).display().to_string();
    let tls = format!("ca={}&cert={}&key={}", file("ca.pem"), file("client.pem"), file("client.key"));
    server.secured = Some(tls.clone());
    server.run();
    std::fs::write(folder.join("password"), "right\n").expect("written");
    for command in [
        &["user", "add", "root:root", "--interactive=false"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "memlift:right", "--interactive=false"],
        &["role", "add", "maps"],
        &["role", "grant-permission", "--prefix=true", "maps", "readwrite", "test/map/"],
        &["user", "grant-role", "memlift", "maps"],
        &["auth", "enable"],
    ] {
        server.ctl(command);
    }
    let refused = |options: &str, part: &str| {
        let text = format!("etcd:https://localhost:{}/test/map?{options}", server.ports[0]);
        let source = Source::parse(&text).expect("a source");
        let error = source.connect().expect("later").read().expect_err(options);
        let MapError::Unreachable { source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains(part), "{options}: {source}");
    };
    let login = format!("user=memlift&password-file={}", file("password"));
    refused(&tls, "user name is empty");
    refused(&format!("{tls}&user=nobody&password-file={}", file("password")), "authentication failed");
    refused(&format!("{login}&cert={}&key={}", file("client.pem"), file("client.key")), "certificate");
    refused(&format!("{login}&ca={}", file("ca.pem")), "");
    refused(&format!("{tls}&user=memlift&password-file={}", file("none")), "none");
    server.secured = Some(format!("{tls}&{login}"));
    let member = Member::join(server.source(), join("a", 100, 1)).expect("joined");
    let watcher = Member::watch(server.source()).expect("watches");
    // Its tokens are gone with it: everybody gets another one.
    server.stop();
    server.run();
    drop(member);
    until(&watcher, |map| is(map, "a", State::Down));
}

/// An authority, and what it signed for a server and a client; returns false without openssl.
fn certificates(folder: &Path) -> bool {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let name = "subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n";
    std::fs::write(folder.join("extensions"), name).expect("written");
    // Without a common name: etcd's gateway refuses certificates of clients that have one as soon as users are on.
    let fresh = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {fresh} -keyout ca.key -out ca.pem -subj /CN=authority -days 2"))
        && ["server", "client"].into_iter().all(|who| {
            openssl(&format!("req {fresh} -keyout {who}.key -out {who}.csr -subj /O={who}"))
                && openssl(&format!(
                    "x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {who}.pem -days 2 -extfile extensions"
                ))
        })
}

#[test]
fn a_change_from_an_old_map_is_fenced() {
    let Some(server) = Server::start() else { return };
    let [mut one, mut two] = [server.etcd().with_lease_s(60), server.etcd().with_lease_s(60)];
    let (_, a, _) = one.join(&join("a", 1, 1)).expect("joined");
    let (map, ..) = two.join(&join("b", 2, 1)).expect("joined");
    let base = map.ranges()[0].base;
    let (_, id) = one.order(&Order::Plan { base, bytes: 4096, to: "b".to_owned() }).expect("planned");
    // Meanwhile b starts again: what it had copied is gone, and the commit is refused whoever asks.
    two.order(&Order::Leave(map.node_named("b").expect("b").id, 1)).expect("left");
    two.join(&Join { recovered: true, ..join("b", 2, 2) }).expect("joined");
    for etcd in [&mut one, &mut two] {
        let refused = etcd.order(&Order::Commit(id)).expect_err("fenced");
        assert!(refused.to_string().contains("not planned"), "{refused}");
    }
    assert_eq!(two.read().expect("read").find(base).expect("there").owner, Some(a));
    let (_, id) = one.order(&Order::Plan { base, bytes: 4096, to: "b".to_owned() }).expect("planned");
    let (map, _) = one.order(&Order::Commit(id)).expect("committed");
    assert_ne!(map.find(base).expect("there").owner, Some(a));
    assert!(two.order(&Order::Commit(id)).is_err(), "once");
}

#[test]
fn an_etcd_that_is_away_stops_nothing_but_changes() {
    let Some(server) = Server::start() else { return };
    let client = Member::watch(server.source()).expect("watching");
    let a = Member::join(server.source(), join("a", 1, 1)).expect("joined");
    let mut dead = server.etcd();
    dead.join(&join("dead", 2, 1)).expect("joined");
    until(&client, |map| is(map, "dead", State::Up) && is(map, "a", State::Up));
    server.stop();
    while a.trouble().is_none() || client.trouble().is_none() {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Longer than the lease of one second.
    std::thread::sleep(Duration::from_secs(3));
    assert!(is(&client.shared().map(), "a", State::Up), "nobody can say otherwise");
    let trouble = client.trouble().expect("etcd is away");
    assert!(trouble.contains("etcd at") && trouble.contains("does not answer"), "{trouble}");
    assert!(matches!(client.order(&Order::Forget("a".to_owned())), Err(MapError::Unreachable { .. })));
    assert!(Member::join(server.source(), join("c", 3, 1)).is_err());

    server.run();
    // A deletion that nobody watched is noticed: the node that never came back is down, the one that renews is up.
    until(&client, |map| is(map, "dead", State::Down));
    while a.trouble().is_some() || client.trouble().is_some() {
        std::thread::sleep(Duration::from_millis(50));
    }
    until(&client, |map| is(map, "a", State::Up));
    let c = Member::join(server.source(), join("c", 3, 1)).expect("joined");
    until(&client, |map| is(map, "c", State::Up));
    assert!(c.trouble().is_none());
}

/// A node whose map is in that etcd, in threads of this process.
fn node<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    server: &Server,
    name: &str,
    stop: &Arc<AtomicBool>,
) -> SocketAddr {
    let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a socket");
    let (at, speaker) = (udp.address(), udp.speaker().expect("shared"));
    let node = NodeOptions { bytes: 4 << 20, prefault: false, workspaces: Some(8), ..NodeOptions::default() };
    let addresses = vec![Address::Udp(at)];
    let options = ClusterOptions { node, source: server.source(), name: name.to_owned(), addresses };
    let (mut cluster, _) = Cluster::open(options, Some(speaker)).unwrap_or_else(|error| panic!("{error}"));
    let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
    let (one, two) = (stop.clone(), stop.clone());
    scope.spawn(move || shard.serve(&one).expect("serves"));
    scope.spawn(move || {
        while !two.load(Ordering::Relaxed) {
            cluster.turn(Duration::from_millis(20)).unwrap_or_else(|error| panic!("{error}"));
        }
    });
    at
}

#[test]
fn nodes_go_on_while_etcd_is_away_and_move_ranges_when_it_is_back() {
    // Longer than a lease.
    etcd_is_away_for(Duration::from_secs(8));
}

#[test]
#[ignore = "soak"]
fn soak_nodes_go_on_while_etcd_is_away_for_a_minute() {
    etcd_is_away_for(Duration::from_secs(60));
}

fn etcd_is_away_for(away: Duration) {
    let Some(server) = Server::start() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let at = ["a", "b"].map(|name| node(scope, &server, name, &stop));
        let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
        let mut client = Client::udp(&at, config).expect("connected");
        let mut map = HashMap::create(&mut client, 6).expect("a map");
        let mut count = 0..;
        let mut work = |client: &mut Client, times: usize| {
            for key in count.by_ref().take(times) {
                map.insert(client, key, &u64::to_le_bytes(key)).expect("inserted");
                assert!(map.get(client, key / 2).expect("asked").is_some());
            }
        };
        work(&mut client, 50);
        let watching = Member::watch(server.source()).expect("watching");
        server.stop();
        while watching.trouble().is_none() {
            work(&mut client, 10);
        }
        let until = std::time::Instant::now() + away;
        while std::time::Instant::now() < until {
            work(&mut client, 10);
            std::thread::sleep(Duration::from_millis(20));
        }
        let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a socket");
        let addresses = vec![Address::Udp(udp.address())];
        let node = NodeOptions { bytes: 4 << 20, prefault: false, ..NodeOptions::default() };
        let options = ClusterOptions { node, source: server.source(), name: "c".to_owned(), addresses };
        let refused = Cluster::open(options, None).expect_err("nobody keeps the map").to_string();
        assert!(refused.contains("etcd at") && refused.contains("does not answer"), "{refused}");
        server.run();
        until_up(&watching, &["a", "b"]);
        let base = watching.shared().map().ranges()[0].base;
        let order = Order::Plan { base, bytes: 4 << 20, to: "b".to_owned() };
        let id = watching.order(&order).unwrap_or_else(|error| panic!("{error}"));
        while watching.shared().map().moves().iter().any(|one| one.id == id) {
            work(&mut client, 5);
        }
        let now = watching.shared().map();
        let owner = now.find(base).and_then(|range| range.owner).and_then(|owner| now.node(owner));
        assert_eq!(owner.map(|owner| owner.name.as_str()), Some("b"));
        work(&mut client, 50);
        stop.store(true, Ordering::Relaxed);
    });
}

fn until_up(member: &Member, names: &[&str]) {
    until(member, |map| member.trouble().is_none() && names.iter().all(|name| is(map, name, State::Up)));
}

/// Passes bytes between its clients and an etcd, until it stands still.
fn passing(to: u16) -> (u16, Arc<AtomicBool>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, is_silent) = (listener.local_addr().expect("bound").port(), Arc::new(AtomicBool::new(false)));
    let told = is_silent.clone();
    // Its threads end with the process: what stands still keeps its connections open.
    std::thread::spawn(move || {
        for one in listener.incoming() {
            let (one, told) = (one.expect("a connection"), told.clone());
            let other = std::net::TcpStream::connect(("127.0.0.1", to)).expect("etcd");
            let ways = [
                (one.try_clone().expect("a descriptor"), other.try_clone().expect("a descriptor")),
                (other, one),
            ];
            for (mut from, mut to) in ways {
                let told = told.clone();
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = std::io::Read::read(&mut from, &mut bytes) {
                        while told.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        if std::io::Write::write_all(&mut to, &bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (port, is_silent)
}

#[test]
fn one_silent_host_of_several_costs_no_lease() {
    let Some(server) = Server::start() else { return };
    let (port, is_silent) = passing(server.ports[0]);
    let own = server.ports[0];
    let text = format!("etcd:http://127.0.0.1:{port},http://127.0.0.1:{own}/test/map?lease=4");
    let member = Member::join(Source::parse(&text).expect("a source"), join("a", 1, 1)).expect("joined");
    let watcher = Member::watch(server.source()).expect("watching");
    let epoch = watcher.shared().map().epoch();
    is_silent.store(true, Ordering::SeqCst);
    // If the host were waited for longer, the lease would be over by then.
    let map = watcher.shared().wait_newer(epoch, Duration::from_secs(8));
    assert!(is(&map, "a", State::Up), "its lease was lost");
    assert!(member.lease().holds());
    is_silent.store(false, Ordering::SeqCst);
}
