// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that are refused, addresses that are silent, an etcd that is away: each is told, and costs no acknowledged change.

use std::path::Path;
use std::time::{Duration, Instant};

use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, ClientError, Config, Reads, Request};
use memlift_traverse::map::{MapError, State};
use memlift_traverse::structures::{HashMap, OrderedMap};
use rustix::process::Signal;

use crate::world::{Copy, LEASE_S, MEMORY, PATIENCE, World, under_writers, wait};

const LEASE: Duration = Duration::from_secs(LEASE_S);

fn is_older<T: std::fmt::Debug>(done: Result<T, ClientError>) {
    assert!(matches!(done, Err(ClientError::OlderLog { .. })), "{done:?}");
}

#[test]
fn copies_of_the_logs_of_both_processes_are_older() {
    let Some(world) = World::start(true) else { return };
    let [mut first, mut second] = world.two();
    let (mut client, mut handles) = (world.client(), Vec::new());
    let mut create = |client: &mut Client| {
        let mut map = HashMap::create(client, 4).expect("room");
        map.insert(client, 1, b"one").expect("inserted");
        handles.push((map.handle(), client.stamp_of(map.handle().heads)));
        map
    };
    let mut before = create(&mut client);
    let copies = [0, 1].map(|index| world.log(index).with_extension("copy"));
    for (index, copy) in copies.iter().enumerate() {
        std::fs::copy(world.log(index), copy).expect("copied");
    }
    let mut after = create(&mut client);
    first.kill();
    second.kill();
    for (index, copy) in copies.iter().enumerate() {
        std::fs::copy(copy, world.log(index)).expect("copied back");
    }
    let mut processes = [world.copy(0), world.copy(1)];
    wait("a node with a backup", || processes.iter().any(Copy::is_listed));
    let mut other = world.client();
    let mut secrets = HashMap::create(&mut other, 4).expect("room");
    secrets.insert(&mut other, 1, b"another application's").expect("inserted");
    is_older(after.get(&mut client, 1));
    is_older(after.insert(&mut client, 2, b"two"));
    is_older(before.get(&mut client, 1));
    let mut new = world.client();
    is_older(new.check_stamp(handles[1].0.heads, handles[1].1));
    new.check_stamp(handles[0].0.heads, handles[0].1).expect("the copies have it");
    assert_eq!(HashMap::open(handles[0].0).get(&mut new, 1).expect("read"), Some(b"one".to_vec()));

    // The backup takes over: that is another start, of which the copies know nothing. Clients go on.
    let listed = usize::from(processes[1].is_listed());
    processes[listed].kill();
    let last = &mut processes[1 - listed];
    world.map(|map| world.primary_of(map) == Some(last.at));
    new.check_stamp(handles[0].0.heads, handles[0].1).expect("the backup has it");
    secrets.insert(&mut other, 2, b"more").expect("a client of the last primary goes on");
    last.kill();
    std::fs::copy(&copies[1 - listed], world.log(1 - listed)).expect("copied back");
    let last = world.copy(1 - listed);
    wait("a word about it", || last.said().contains("no copy of the node is up"));
}

#[test]
fn a_replicated_node_does_not_start_with_a_log_from_before_its_last_start() {
    let Some(world) = World::start(true) else { return };
    let mut alone = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(alone.at));
    let copy = world.log(0).with_extension("copy");
    std::fs::copy(world.log(0), &copy).expect("copied");
    alone.kill();
    world.map(|map| world.primary_of(map).is_none());
    let mut again = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(again.at));
    again.kill();
    std::fs::copy(&copy, world.log(0)).expect("copied back");
    let mut older = world.copy(0);
    wait("its end", || older.has_ended());
    assert!(older.said().contains("older than the node's last start"), "{}", older.said());
}

#[test]
fn a_silent_address_of_a_node_is_gone_round_and_a_node_that_is_down_is_told() {
    let Some(world) = World::start(false) else { return };
    let silent = world.at[1].to_string();
    let mut node = world.copy_with(0, |command| {
        command.env("MEMLIFT_TEST_SILENT", &silent);
    });
    let map = world.map(|map| map.node_named("a").is_some_and(|node| node.state == State::Up));
    assert_eq!(map.node_named("a").expect("a").socket(), Some(world.at[1]), "the silent one is the first");
    // By the map, by the silent address and the other one, and by the other one alone.
    let config = world.config(PATIENCE * 5);
    let mut clients = [
        Client::of_map(&map, config.clone()).unwrap_or_else(|error| panic!("{error}")),
        Client::udp(&[world.at[1], world.at[0]], config.clone()).unwrap_or_else(|error| panic!("{error}")),
        Client::udp(&world.at[..1], config).unwrap_or_else(|error| panic!("{error}")),
    ];
    let word = clients[2].call(Request::allocate(0, 8)).expect("memory").address;
    for (index, client) in clients.iter_mut().enumerate() {
        let value = (index as u64 + 1).to_le_bytes();
        client.call(Request::write(word, &value)).unwrap_or_else(|error| panic!("client {index}: {error}"));
        let read =
            client.call(Request::read(word, 8)).unwrap_or_else(|error| panic!("client {index}: {error}"));
        assert_eq!(read.body, value, "client {index}");
    }
    // No other process can be this node: nothing is to be waited for.
    node.kill();
    world.map(|map| map.node_named("a").is_some_and(|node| node.state == State::Down));
    // A second node tells it, because nobody is left at the first one's addresses.
    let mut other = world.copy_with(2, |command| {
        command.env("MEMLIFT_TEST_SILENT", "127.0.0.1:1").env("MEMLIFT_TEST_NAME", "b");
    });
    let map = world.map(|map| map.node_named("b").is_some_and(|node| node.state == State::Up));
    let mut client = Client::udp(&[world.at[2], world.at[0]], world.config(PATIENCE * 5)).expect("connected");
    client.use_map(&map);
    let begun = Instant::now();
    let told = client.call(Request::read(word, 8)).expect_err("it is down");
    assert!(matches!(&told, ClientError::Map(MapError::Down { node, .. }) if node == "a"), "{told}");
    assert!(begun.elapsed() < PATIENCE, "it was waited for: {:?}", begun.elapsed());
    other.kill();
}

#[test]
fn a_client_that_came_after_a_fail_over_follows_the_next_one() {
    let Some(world) = World::start(false) else { return };
    let [mut first, mut second] = world.two();
    first.kill();
    world.map(|map| world.primary_of(map) == Some(second.at));
    let first = world.copy(0);
    wait("another backup", || second.is_listed());
    // The first of its addresses is the backup's, and it is told both by either process.
    let mut clients = [(); 6].map(|()| world.client());
    let map = HashMap::create(&mut clients[0], 4).expect("a map").handle();
    let put = |client: &mut Client, key: u64| {
        HashMap::open(map).insert(client, key, b"value").unwrap_or_else(|error| panic!("{key}: {error}"))
    };
    for (key, client) in clients.iter_mut().enumerate() {
        client.call(Request::allocate(0, 8)).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert!(put(client, key as u64));
    }
    second.kill();
    let begun = Instant::now();
    for (key, client) in clients.iter_mut().enumerate() {
        assert!(!put(client, key as u64));
    }
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    drop(first);
}

#[test]
fn a_process_that_cannot_be_the_backup_says_why_and_ends() {
    let Some(world) = World::start(true) else { return };
    let [first, mut second] = world.two();
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    second.kill();
    // This change is acknowledged by the first process alone, so the other copy is not the node's any more.
    client.call(Request::write(word, &7u64.to_le_bytes())).expect("written");
    let log = std::fs::read(world.log(1)).expect("its log");
    let mut second = world.copy_with(1, |command| {
        command.env("MEMLIFT_TEST_BYTES", (MEMORY / 2).to_string());
    });
    wait("its end", || second.has_ended());
    let said = second.said();
    let reason = format!("the node has {MEMORY} bytes of memory, the backup {}", MEMORY / 2);
    assert!(said.contains(&format!("does not take this process as its backup: {reason}")), "{said}");
    let waits = said.lines().filter(|line| line.contains("Waiting") && line.contains(&reason)).count();
    assert_eq!(waits, 1, "{said}");
    assert!(said.lines().count() < 12, "{said}");
    let refused = format!("Refused(\"{}\"", world.at[1]);
    let said = first.said();
    assert!(
        said.lines().filter(|line| line.contains(&refused) && line.contains(&reason)).count() == 1,
        "{said}"
    );
    // The attempts have lost nothing of its log.
    let old = std::fs::read(world.log(1).with_extension("log.old")).expect("put aside");
    assert!(old.starts_with(&log), "{} bytes were put aside of {}", old.len(), log.len());
    let second = world.copy(1);
    wait("a backup", || first.is_listed());
    drop(second);
}

#[test]
fn processes_of_a_node_with_keys_know_each_other_and_no_one_else() {
    let Some(mut world) = World::start(false) else { return };
    let write = |name: &str, nodes: &str| {
        let path = world.server.folder.path().join(name);
        let text = format!("1 {}\n2 {}\n{nodes}", "ab".repeat(32), "ac".repeat(32));
        std::fs::write(&path, text).expect("written");
        path
    };
    let own = write("keys", &format!("nodes {}\n", "cd".repeat(32)));
    let wrong = write("wrong", &format!("nodes {}\n", "ce".repeat(32)));
    let none = write("none", "");
    world.keys = Some(own);
    let mut first = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(first.at));
    let mut lost = world.copy_with(1, |command| {
        command.env("MEMLIFT_TEST_KEYS", &none);
    });
    wait("its end", || lost.has_ended());
    assert!(lost.said().contains("nodes HEX"), "{}", lost.said());
    let stranger = world.copy_with(1, |command| {
        command.env("MEMLIFT_TEST_KEYS", &wrong);
    });
    wait("the reason", || stranger.said().contains("compare both sides' key files"));
    wait("the reason", || first.said().contains("compare both sides' key files"));
    assert!(!first.is_listed());
    drop(stranger);
    let second = world.copy(1);
    wait("a backup", || first.is_listed());
    under_writers(&world, |writers| {
        first.kill();
        world.map(|map| world.primary_of(map) == Some(second.at));
        writers.wait_for(100);
        second
    });
}

#[test]
fn an_etcd_that_is_away_for_less_or_more_than_a_lease_costs_time_and_nothing_else() {
    let Some(world) = World::start(false) else { return };
    let copies = world.two();
    let mut hasty = Client::udp(&world.at[..2], world.config(LEASE * 2)).expect("connected");
    let word = hasty.call(Request::allocate(0, 8)).expect("memory").address;
    under_writers(&world, |writers| {
        for away in [LEASE / 3, LEASE * 2] {
            world.server.stop();
            std::thread::sleep(away);
            if away > LEASE {
                let told = hasty.call(Request::read(word, 8)).expect_err("nobody may answer").to_string();
                assert!(told.contains("cannot reach etcd"), "{told}");
            }
            world.server.run();
            writers.wait_for(50);
        }
        // One that stands still is no other.
        world.server.signal(Signal::STOP);
        std::thread::sleep(LEASE * 2);
        world.server.signal(Signal::CONT);
        writers.wait_for(50);
    });
    drop(copies);
}

#[test]
fn a_read_that_may_be_stale_is_answered_by_the_backup_and_another_one_never() {
    let Some(world) = World::start(false) else { return };
    let [mut first, second] = world.two();
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    client.call(Request::write(word, &7u64.to_le_bytes())).expect("written");
    let mut map = HashMap::create(&mut client, 4).expect("room");
    let long = vec![9; 6000];
    map.insert(&mut client, 1, &long).expect("room");
    map.insert(&mut client, 2, b"short").expect("room");
    let mut ordered = OrderedMap::create(&mut client, 8).expect("room");
    ordered.insert(&mut client, 5, &[5; 8]).expect("room");
    let is_seven = |client: &mut Client, read: Request| {
        let read = client.call(read).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read.body, 7u64.to_le_bytes());
    };
    // Its programs are registered, and each change was acknowledged by the backup.
    assert_eq!(map.get(&mut client, 1).expect("read").as_deref(), Some(&long[..]));
    assert_eq!(ordered.get(&mut client, 5).expect("read").as_deref(), Some(&[5; 8][..]));
    is_seven(&mut client, Request::read(word, 8));
    assert_eq!(client.counts().from_backups, 0, "nobody asked for old data");
    // A busy machine may make a backup look silent.
    wait("an answer of the backup", || {
        is_seven(&mut client, Request::read(word, 8).stale_ok());
        client.counts().from_backups > 0
    });
    let config = Config { stale_ok: true, ..world.config(PATIENCE) };
    let mut stale = Client::udp(&world.at[..2], config).unwrap_or_else(|error| panic!("{error}"));
    let mut copy = HashMap::open(map.handle());
    let from_backups = |stale: &mut Client, copy: &mut HashMap| {
        let before = stale.counts().from_backups;
        assert_eq!(copy.get(stale, 1).expect("read").as_deref(), Some(&long[..]));
        assert_eq!(copy.get(stale, 2).expect("read").as_deref(), Some(&b"short"[..]));
        assert_eq!(copy.get(stale, 3).expect("read"), None);
        is_seven(stale, Request::read(word, 8));
        stale.counts().from_backups - before
    };
    wait("answers of the backup", || from_backups(&mut stale, &mut copy) == 4);
    assert_eq!(ordered.get(&mut stale, 5).expect("read").as_deref(), Some(&[5; 8][..]));
    // The backup reads at addresses that it has found, and not at those that the node itself has found.
    wait("two answers of the backup", || {
        let before = stale.counts().from_backups;
        let found = stale.call(Request::read(word, 8)).expect("read").since;
        is_seven(&mut stale, Request::read(word, 8).since(found));
        stale.counts().from_backups == before + 2
    });
    let found = client.call(Request::read(word, 8)).expect("read").since;
    let before = client.counts().from_backups;
    is_seven(&mut client, Request::read(word, 8).since(found).stale_ok());
    assert_eq!(client.counts().from_backups, before, "the copy may not have it yet");
    for refused in [
        stale.call(Request::write(word, &[0; 8])).map(drop),
        stale.call(Request::apply(ApplyKind::FetchAdd, word, 1, 0)).map(drop),
        copy.insert(&mut stale, 1, b"no").map(drop),
    ] {
        assert!(matches!(refused, Err(ClientError::StaleClient)), "{refused:?}");
    }
    // The primary answers what the backup does not.
    second.signal(Signal::STOP);
    is_seven(&mut stale, Request::read(word, 8));
    second.signal(Signal::CONT);
    wait("a backup that answers", || first.is_listed() && from_backups(&mut stale, &mut copy) > 0);
    first.kill();
    let answered = from_backups(&mut stale, &mut copy);
    if world.primary_of(&world.map(|_| true)) == Some(first.at) {
        assert!(answered > 0, "nobody is the primary");
    }
    // Then the backup is the primary, and answers as such.
    world.map(|map| world.primary_of(map) == Some(second.at));
    is_seven(&mut client, Request::read(word, 8));
    wait("answers of a primary", || from_backups(&mut stale, &mut copy) == 0);
}

/// Every place that asks for the wall clock: a new one must not decide about a lease or a primary.
#[test]
fn the_wall_clock_is_read_in_known_places_only() {
    fn reads(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                reads(&entry, found);
            } else if std::fs::read_to_string(&entry).is_ok_and(|text| text.contains("SystemTime::now")) {
                found.push(entry.strip_prefix(SOURCES).expect("inside").display().to_string());
            }
        }
    }
    const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut found = Vec::new();
    reads(Path::new(SOURCES), &mut found);
    found.sort();
    // Numbers of packets; the logical clock; numbers of starts, compared for equality; times to print; the clock that a backup tells.
    let known = [
        "client/connect.rs",
        "node/clock.rs",
        "node/cluster.rs",
        "node/mod.rs",
        "node/progress.rs",
        "node/replica/backup.rs",
    ];
    assert_eq!(found, known);
}

/// Only the logical clock of a node follows the wall clock: no lease does, and no choice of a primary.
#[test]
fn wall_clocks_that_jump_lose_no_change_and_make_no_read_old() {
    let Some(world) = World::start(false) else { return };
    let jumps = [0, 1].map(|index| world.server.folder.path().join(format!("jump-{index}")));
    let start = |index: usize| {
        world.copy_with(index, |command| {
            command.env("MEMLIFT_TEST_JUMP", &jumps[index]);
        })
    };
    let jump = |index: usize, seconds: i64| {
        // Renamed, so that a process never reads half a number.
        let whole = jumps[index].with_extension("new");
        std::fs::write(&whole, seconds.to_string()).expect("written");
        std::fs::rename(&whole, &jumps[index]).expect("renamed");
    };
    let mut first = start(0);
    world.map(|map| world.primary_of(map) == Some(first.at));
    let second = start(1);
    wait("a backup", || first.is_listed());
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    let before = client.call(Request::read(word, 8)).expect("read").since;
    jump(0, 3_600);
    wait("a clock that jumped", || client.call(Request::read(word, 8)).expect("read").since > before + 3_000);
    under_writers(&world, |writers| {
        for [one, other] in [[3_600, 0], [-3_600, 7_200], [40, -7_200], [-86_000, 72_000]] {
            jump(0, one);
            jump(1, other);
            writers.wait_for(60);
        }
        // With jumps of more than a lease on both sides, nobody took over, or each one that was replaced has ended.
        let takes_over = !first.has_ended();
        first.kill();
        if takes_over {
            world.map(|map| world.primary_of(map) == Some(second.at));
        }
        jump(1, -3_600);
        writers.wait_for(60);
        second
    });
}

#[test]
fn a_confirmed_read_waits_for_the_backup_and_another_one_for_the_lease_alone() {
    let Some(world) = World::start(false) else { return };
    let [first, second] = world.two();
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    client.call(Request::write(word, &7u64.to_le_bytes())).expect("written");
    let confirms = Config { reads: Reads::Confirmed, ..world.config(PATIENCE) };
    let mut confirming = Client::udp(&world.at[..2], confirms).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(confirming.call(Request::read(word, 8)).expect("read").body, 7u64.to_le_bytes());
    let stopped = Instant::now();
    second.signal(Signal::STOP);
    assert_eq!(client.call(Request::read(word, 8)).expect("read").body, 7u64.to_le_bytes());
    // The backup is silent, so this one waits until etcd lists none: half a lease after its last word.
    assert_eq!(confirming.call(Request::read(word, 8)).expect("read").body, 7u64.to_le_bytes());
    assert!(stopped.elapsed() >= LEASE / 4, "nobody was asked: {:?}", stopped.elapsed());
    assert_eq!(confirming.call(Request::read(word, 8)).expect("read").body, 7u64.to_le_bytes());
    drop(first);
}
