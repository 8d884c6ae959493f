// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The coordinator, over real sockets: leases, restarts, several at a time, and those who should not ask.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::{join, until};
use memlift_traverse::map::coordinator::Options;
use memlift_traverse::map::{
    Access, Authority, Coordinator, Join, Map, MapError, Member, Order, Peer, Remote, Route, Secret, Source,
};

const LEASE: Duration = Duration::from_millis(600);

fn start(file: &Path, listen: &str, secret: Option<Secret>) -> Coordinator {
    let options = Options { file: file.to_owned(), lease: LEASE, secret };
    Coordinator::start(&Peer::parse(listen).expect("an address"), options).expect("started")
}

fn source(coordinator: &Coordinator) -> Source {
    Source::Coordinator(coordinator.address().clone(), None)
}

#[test]
fn what_lies_at_a_coordinators_places_and_is_not_its_own_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let begin = |map: &str, socket: &str| {
        let options = Options { file: at(map), lease: LEASE, secret: None };
        Coordinator::start(&Peer::Unix(at(socket)), options)
    };
    std::fs::write(at("precious"), "data").expect("written");
    let refused = begin("map", "precious").expect_err("a file lies there").to_string();
    assert!(refused.contains("a regular file"), "{refused}");
    assert_eq!(std::fs::read_to_string(at("precious")).expect("still there"), "data");

    // Its socket was replaced by a file: that is not its to remove.
    let coordinator = begin("map", "socket").expect("started");
    std::fs::remove_file(at("socket")).expect("its socket");
    std::fs::write(at("socket"), "data").expect("written");
    drop(coordinator);
    assert_eq!(std::fs::read_to_string(at("socket")).expect("still there"), "data");

    // A file at the name beside the map, where each new map is written first.
    std::fs::write(at("map.new"), "data").expect("written");
    let coordinator = begin("map", "other").expect("started");
    let joined = Remote::new(coordinator.address().clone(), None).join(&join("a", 1, 1));
    assert!(joined.is_err(), "the map cannot be written");
    assert_eq!(std::fs::read_to_string(at("map.new")).expect("still there"), "data");
    drop(coordinator);

    // A map behind a link stays where the link leads to.
    std::fs::remove_file(at("map.new")).expect("removed");
    std::fs::create_dir(at("elsewhere")).expect("made");
    let real = start(&at("elsewhere/real"), "127.0.0.1:0", None);
    Remote::new(real.address().clone(), None).join(&join("a", 1, 1)).expect("joined");
    drop(real);
    std::os::unix::fs::symlink(at("elsewhere/real"), at("linked")).expect("linked");
    let coordinator = begin("linked", "third").expect("started");
    Remote::new(coordinator.address().clone(), None).join(&join("b", 2, 1)).expect("joined");
    drop(coordinator);
    assert!(at("linked").symlink_metadata().expect("there").is_symlink());
    let again = start(&at("elsewhere/real"), "127.0.0.1:0", None);
    assert_eq!(again.map().nodes().len(), 2);
}

#[test]
fn a_node_that_dies_is_down_and_one_that_lives_stays_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = start(&folder.path().join("map"), "127.0.0.1:0", None);
    let client = Member::watch(source(&coordinator)).expect("watching");
    let a = Member::join(source(&coordinator), join("a", 1, 1)).expect("joined");
    // Joins, and never renews: as a process does that was killed.
    let mut dead = Remote::new(coordinator.address().clone(), None);
    let (map, b, lease) = dead.join(&join("b", 2, 1)).expect("joined");
    assert_eq!(lease, LEASE);
    let base = map.ranges()[1].base;

    until(&client, |map| map.nodes().len() == 2);
    let mut view = client.shared().view();
    assert!(matches!(view.route(view.epoch(), base, Access::Read), Route::Peer(_, node) if node.id == b));
    until(&client, |map| map.node_of(base).is_err());
    assert!(view.refresh());
    assert!(matches!(view.route(view.epoch(), base, Access::Read), Route::Down(_, node) if node.id == b));
    assert!(matches!(dead.renew(b, 1), Err(MapError::LeaseLost { .. })));
    let text = client.shared().map().node_of(base).expect_err("down").to_string();
    assert!(text.contains("node b") && text.contains("memlift map forget b"), "{text}");
    let now = client.shared().map();
    assert!(now.node_of(now.ranges()[0].base).is_ok(), "a renews");
    assert_eq!(a.trouble(), None);

    // In order: at once.
    drop(a);
    until(&client, |map| map.node_of(map.ranges()[0].base).is_err());
}

#[test]
fn a_coordinator_that_was_away_has_its_map_and_its_nodes_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, socket) = (folder.path().join("map"), folder.path().join("socket"));
    let listen = format!("unix:{}", socket.display());
    let coordinator = start(&file, &listen, None);
    let a = Member::join(source(&coordinator), join("a", 1, 1)).expect("joined");
    let client = Member::watch(source(&coordinator)).expect("watching");
    let before = coordinator.map();
    let second = Options { file: file.clone(), lease: LEASE, secret: None };
    let refused =
        Coordinator::start(&Peer::Tcp("127.0.0.1:0".to_owned()), second).expect_err("one for each map");
    assert!(refused.to_string().contains("another coordinator"), "{refused}");
    drop(coordinator);

    // Longer than a lease: nobody says that a is down, everybody goes on with what they have.
    while a.trouble().is_none() || client.trouble().is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(LEASE * 2);
    assert_eq!(client.shared().map(), before);
    let trouble = client.trouble().expect("nobody answers");
    assert!(trouble.contains("does not answer"), "{trouble}");
    let told = client.order(&Order::Forget("a".to_owned()));
    assert!(matches!(told, Err(MapError::Unreachable { .. })), "{told:?}");

    let coordinator = start(&file, &listen, None);
    assert_eq!(coordinator.map(), before);
    while a.trouble().is_some() || client.trouble().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(LEASE * 2);
    assert!(client.shared().map().node_of(before.ranges()[0].base).is_ok(), "a renewed in time");
    let _b = Member::join(source(&coordinator), join("b", 2, 1)).expect("joined");
    until(&client, |map| map.nodes().len() == 2);
}

#[test]
fn an_old_map_file_or_a_damaged_one_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("map");
    let coordinator = start(&file, "127.0.0.1:0", None);
    drop(Member::join(source(&coordinator), join("a", 1, 1)).expect("joined"));
    drop(coordinator);
    let bytes = std::fs::read(&file).expect("written");
    let map = Map::decode(&bytes).expect("a map");
    std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("damaged");
    let options = Options { file: file.clone(), lease: LEASE, secret: None };
    assert!(Coordinator::start(&Peer::Tcp("127.0.0.1:0".to_owned()), options).is_err());
    assert_eq!(std::fs::read(&file).expect("there").len(), bytes.len() - 1, "left as it is");

    std::fs::remove_file(&file).expect("removed");
    let coordinator = start(&file, "127.0.0.1:0", None);
    let knows = Join { epoch: map.epoch(), recovered: true, ..join("a", 1, 2) };
    let refused = Member::join(source(&coordinator), knows).expect_err("an old map");
    assert!(refused.to_string().contains("put the newest back"), "{refused}");
}

#[test]
fn a_claim_of_an_epoch_that_is_not_is_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = start(&folder.path().join("map"), "127.0.0.1:0", None);
    let a = Member::join(source(&coordinator), join("a", 1, 1)).expect("joined");
    let mut view = a.shared().view();
    let base = view.map().ranges()[0].base;
    let epoch = view.epoch();
    assert!(matches!(view.route(epoch + 9, 42, Access::Read), Route::Refresh));
    assert!(
        matches!(view.route(epoch + 9, base, Access::Read), Route::Here(_)),
        "it is this node's until that agrees"
    );
    while a.shared().wanted().is_some() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(view.route(epoch, base, Access::Write), Route::Here(_)));
    assert!(
        matches!(view.route(epoch - 1, base, Access::Write), Route::Here(_)),
        "older is routed by the newer map"
    );
}

#[test]
fn beyond_this_machine_a_key_is_needed_and_the_right_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("map");
    let options = Options { file: file.clone(), lease: LEASE, secret: None };
    let refused = Coordinator::start(&Peer::Tcp("0.0.0.0:0".to_owned()), options).expect_err("no key");
    assert!(refused.to_string().contains("--key"), "{refused}");

    let secret = Secret::new([7; 32]);
    let coordinator = start(&file, "0.0.0.0:0", Some(secret.clone()));
    let Peer::Tcp(address) = coordinator.address() else { panic!("TCP") };
    let peer = Peer::Tcp(address.replace("0.0.0.0", "127.0.0.1"));
    Remote::new(peer.clone(), Some(secret)).read().expect("the right key");
    for wrong in [None, Some(Secret::new([8; 32]))] {
        let error = Remote::new(peer.clone(), wrong).read().expect_err("a wrong key");
        assert!(matches!(error, MapError::Unreachable { .. }), "{error}");
    }

    let key = folder.path().join("key");
    std::fs::write(&key, format!("{}\n", "07".repeat(32))).expect("written");
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(0o644);
    assert!(Secret::read(&key).expect_err("others may read it").to_string().contains("chmod 600"));
    mode(0o600);
    assert_eq!(Secret::read(&key).expect("a key"), Secret::new([7; 32]));
    std::fs::write(&key, "secret").expect("written");
    assert!(Secret::read(&key).is_err());
}

#[test]
fn hostile_bytes_end_their_own_connection_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = start(&folder.path().join("map"), "127.0.0.1:0", None);
    let Peer::Tcp(address) = coordinator.address() else { panic!("TCP") };
    let mut good = Remote::new(coordinator.address().clone(), None);
    good.read().expect("a map");
    let greeting = [&b"MLCO"[..], &[1, 0, 0, 0], &[9; 16]].concat();
    let hostile: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n__________________",
        &greeting,
        &[&greeting[..], &u32::MAX.to_le_bytes()].concat(),
        &[&greeting[..], &1u32.to_le_bytes(), &[1], &[0; 32]].concat(),
        &[&greeting[..], &0u32.to_le_bytes(), &[0; 32]].concat(),
    ];
    for bytes in hostile {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(bytes).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.len() <= 24, "a greeting at most, not {heard:?}");
        good.read().expect("others are served");
    }
}
