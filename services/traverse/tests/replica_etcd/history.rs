// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories of eight clients under faults of processes, networks and etcd, checked for linearizability.
//!
//! - **Flow** a network of namespaces (`net`) ─▶ clients in threads note each operation, with the time before it was asked and after it was
//!   answered ─▶ faults at random ─▶ a file ─▶ `tools/linearizability`, which uses porcupine, an existing checker
//! - **Unknown** an operation that ended with an error may have happened at any time since; its client goes on as another one
//! - **Needs** etcd, root, `ip` of iproute2, and Go 1.21 with the module porcupine; without them the test says so and is skipped
//! - **Settings** MEMLIFT_TEST_SECONDS, MEMLIFT_TEST_SEED

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, Config, Reads, Request};
use memlift_traverse::map::Authority;
use memlift_traverse::structures::{HashMap, hash};
use rustix::process::Signal;

use crate::etcd_world::Server;
use crate::net::{HOSTS, Net, ip_of};
use crate::world::{Copy, LEASE_S, WRITERS, World, wait};

/// Words and entries of a map that the clients change.
const WORDS: u64 = 5;
const ENTRIES: u64 = 5;
/// Longest wait of a client for one answer, in leases.
const DEADLINE: u32 = 8;
/// Faults of one history.
const ROUNDS: usize = 8;
const PORT: u16 = 7700;

/// Seeded random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// Data that the clients share.
struct Shared {
    words: Vec<u64>,
    map: hash::Handle,
    begun: Instant,
    stop: AtomicBool,
    operations: AtomicU64,
    unknown: AtomicU64,
}

/// Outcome of an operation: `None` for what is not there.
type Outcome = Option<u64>;

impl Shared {
    /// Runs one client until the end; returns its history as lines of JSON.
    fn client(&self, world: &World, index: u64, seed: u64) -> String {
        let mut random = Random(seed ^ (index << 32));
        let reads = if index.is_multiple_of(2) { Reads::Leased } else { Reads::Confirmed };
        let deadline = Duration::from_secs(LEASE_S) * DEADLINE;
        let config = || Config { reads, ..world.config(deadline) };
        let connect = || Client::udp(&world.at[..2], config());
        let (mut client, mut map) = (None, HashMap::open(self.map));
        let mut lines = String::new();
        while !self.stop.load(Ordering::Relaxed) {
            let Some(open) = &mut client else {
                // No node may answer now.
                client = connect().ok();
                continue;
            };
            let (kind, value) = (random.below(10), random.below(4));
            let is_word = random.below(2) == 0;
            let key = random.below(if is_word { WORDS } else { ENTRIES });
            let begun = self.begun.elapsed();
            let (name, done) = if is_word {
                self.on_word(open, self.words[key as usize], kind, value)
            } else {
                self.on_entry(open, &mut map, key, kind, value)
            };
            let ended = self.begun.elapsed();
            self.operations.fetch_add(1, Ordering::Relaxed);
            let place = if is_word { "word" } else { "entry" };
            let _ = write!(
                lines,
                "{{\"client\":{index},\"key\":\"{place} {key}\",\"op\":\"{name}\",\"value\":{value},\"call\":{}",
                begun.as_nanos()
            );
            match done {
                Ok((status, outcome)) => {
                    let (found, out) = (outcome.is_some(), outcome.unwrap_or(0));
                    let _ = writeln!(
                        lines,
                        ",\"return\":{},\"done\":{status},\"found\":{found},\"out\":{out}}}",
                        ended.as_nanos()
                    );
                }
                Err(error) => {
                    println!("client {index}: {place} {key}, {name} {value}: {error}");
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    lines.push_str(",\"return\":-1}\n");
                    client = None;
                }
            }
            std::thread::sleep(Duration::from_millis(random.below(8)));
        }
        lines
    }

    /// An operation on a word. Returns its name; true if a compare-and-swap has swapped; and the value before it.
    fn on_word(
        &self,
        client: &mut Client,
        word: u64,
        kind: u64,
        value: u64,
    ) -> (&'static str, Result<(bool, Outcome), String>) {
        use memlift_traverse::wire::Status;
        let (name, request) = match kind {
            0..5 => ("read", Request::read(word, 8)),
            5 | 6 => ("write", Request::write(word, &value.to_le_bytes())),
            7 => ("add", Request::apply(ApplyKind::FetchAdd, word, value, 0)),
            _ => ("swap", Request::apply(ApplyKind::CompareSwap, word, value, value + 1)),
        };
        let done = client.call(request).map_err(|error| error.to_string()).map(|answer| {
            let before = if name == "read" {
                u64::from_le_bytes(answer.body[..].try_into().expect("a word"))
            } else {
                answer.value
            };
            (answer.status != Status::Differs, Some(before))
        });
        (name, done)
    }

    /// An operation on an entry. Returns its name; true if it has found, or made, what it names; and the value.
    fn on_entry(
        &self,
        client: &mut Client,
        map: &mut HashMap,
        key: u64,
        kind: u64,
        value: u64,
    ) -> (&'static str, Result<(bool, Outcome), String>) {
        let said = |error: memlift_traverse::client::ClientError| error.to_string();
        match kind {
            0..5 => {
                let read = map.get(client, key).map_err(said);
                let value = |bytes: Vec<u8>| u64::from_le_bytes(bytes[..].try_into().expect("a word"));
                ("get", read.map(|read| (read.is_some(), read.map(value))))
            }
            5..8 => {
                let fresh = map.insert(client, key, &value.to_le_bytes()).map_err(said);
                ("put", fresh.map(|fresh| (fresh, None)))
            }
            _ => ("remove", map.remove(client, key).map_err(said).map(|removed| (removed, None))),
        }
    }
}

/// Builds the checker; `None` without Go or without the module.
fn checker(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("linearizability");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/linearizability");
    let built = Command::new("go").arg("build").arg("-o").arg(&program).arg(".").current_dir(source).output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            println!("skipped: go build: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("skipped: go: {error}");
            None
        }
    }
}

/// A fault of the network or of etcd lasts this long: a tenth of a lease to two and a half.
fn pause(random: &mut Random) {
    std::thread::sleep(Duration::from_millis(LEASE_S * 100 + random.below(LEASE_S * 2400)));
}

/// Causes one fault, and ends it. Returns its name.
fn fault(world: &World, net: &Net, copies: &mut [Copy; 2], random: &mut Random) -> String {
    let one = random.below(2) as usize;
    start_ended(world, copies);
    match random.below(10) {
        0 | 1 => {
            copies[one].kill();
            format!("kill {}", HOSTS[one])
        }
        2 => {
            copies.iter_mut().for_each(Copy::kill);
            "kill both".to_owned()
        }
        3 => {
            copies[one].signal(Signal::STOP);
            pause(random);
            copies[one].signal(Signal::CONT);
            format!("stop {}", HOSTS[one])
        }
        4 => {
            world.server.stop();
            pause(random);
            world.server.run();
            "kill etcd".to_owned()
        }
        5 => {
            world.server.signal(Signal::STOP);
            pause(random);
            world.server.signal(Signal::CONT);
            "stop etcd".to_owned()
        }
        _ => {
            // One of the processes, and the other one, etcd, or the clients; or all others.
            let others: Vec<usize> = match random.below(4) {
                0 => (0..HOSTS.len()).filter(|other| *other != one).collect(),
                1 => vec![1 - one],
                2 => vec![2],
                _ => vec![3],
            };
            let ways = random.below(3);
            let pairs: Vec<(usize, usize)> =
                others.iter().flat_map(|other| [(one, *other), (*other, one)]).collect();
            let cut: Vec<(usize, usize)> =
                pairs.into_iter().filter(|(from, _)| ways == 0 || (*from == one) == (ways == 1)).collect();
            cut.iter().for_each(|(from, to)| net.cut(*from, *to));
            pause(random);
            cut.iter().for_each(|(from, to)| net.heal(*from, *to));
            let names: Vec<String> =
                cut.iter().map(|(from, to)| format!("{}>{}", HOSTS[*from], HOSTS[*to])).collect();
            format!("cut {}", names.join(" "))
        }
    }
}

fn start_ended(world: &World, copies: &mut [Copy; 2]) {
    for (index, copy) in copies.iter_mut().enumerate() {
        if copy.has_ended() {
            *copy = world.copy(index);
        }
    }
}

/// Waits until both processes run and one is the other's backup; those that have ended are started again.
fn mend(world: &World, copies: &mut [Copy; 2]) {
    wait("two copies", || {
        start_ended(world, copies);
        std::thread::sleep(Duration::from_millis(100));
        let Ok(map) = world.server.etcd().read() else { return false };
        let primary = world.primary_of(&map);
        let both = map.node_named("a").is_some_and(|node| node.addresses.len() == 2);
        both && copies.iter().any(|copy| copy.is_listed() && primary == Some(copy.at))
    });
}

#[test]
#[ignore = "soak"]
fn soak_histories_of_eight_clients_under_faults_are_linearizable() {
    let Some(server) = Server::stopped() else { return };
    let Some(check) = checker(server.folder.path()) else { return };
    let Some(net) = Net::start() else { return };
    net.enter("clients");
    let number =
        |name: &str, default: u64| std::env::var(name).map_or(default, |one| one.parse().expect("a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later");
    let seed = number("MEMLIFT_TEST_SEED", u64::from(now.subsec_nanos()));
    let lasts = Duration::from_secs(number("MEMLIFT_TEST_SECONDS", 600));
    println!("MEMLIFT_TEST_SEED={seed}");
    let mut server = server;
    (server.space, server.ports) = (Some((net.space("etcd"), ip_of(2))), [2379, 2380]);
    server.run();
    let at = [0, 1].map(|host| (ip_of(host), PORT).into());
    let mut world = World::of(server, at.to_vec());
    world.spaces = [0, 1].map(|host| net.space(HOSTS[host])).to_vec();
    let keys = world.server.folder.path().join("keys");
    std::fs::write(&keys, format!("1 {}\nnodes {}\n", "ab".repeat(32), "cd".repeat(32))).expect("written");
    world.keys = Some(keys);
    let mut copies = world.two();
    let mut random = Random(seed);
    let (mut histories, mut operations, mut unknown, mut faults) = (0, 0, 0, Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        let mut client = world.client();
        let word = |_| {
            let word = client.call(Request::allocate(0, 8)).expect("memory").address;
            client.call(Request::write(word, &[0; 8])).expect("written");
            word
        };
        let words = (0..WORDS).map(word).collect();
        let map = HashMap::create(&mut client, 2).expect("a map").handle();
        drop(client);
        let shared = Shared {
            words,
            map,
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        };
        let (world, shared, seed) = (&world, &shared, random.below(u64::MAX));
        let history = std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..WRITERS).map(|index| scope.spawn(move || shared.client(world, index, seed))).collect();
            let work = std::panic::AssertUnwindSafe(|| {
                for _ in 0..ROUNDS {
                    std::thread::sleep(Duration::from_millis(random.below(1000)));
                    let name = fault(world, &net, &mut copies, &mut random);
                    println!("{:8.1} s: {name}", begun.elapsed().as_secs_f64());
                    faults.push(name);
                    // A second fault may come before the first one is mended.
                    if random.below(4) != 0 {
                        mend(world, &mut copies);
                    }
                }
                mend(world, &mut copies);
            });
            let done = std::panic::catch_unwind(work);
            shared.stop.store(true, Ordering::Relaxed);
            let lines: Vec<String> =
                clients.into_iter().map(|client| client.join().expect("a client")).collect();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            lines.concat()
        });
        histories += 1;
        operations += shared.operations.load(Ordering::Relaxed);
        unknown += shared.unknown.load(Ordering::Relaxed);
        let file =
            std::env::temp_dir().join(format!("memlift-history-{}-{histories}.json", std::process::id()));
        std::fs::write(&file, history).expect("written");
        let checked = Command::new(&check).arg(&file).stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        println!(
            "history {histories}: {} operations, {}",
            shared.operations.load(Ordering::Relaxed),
            said.trim()
        );
        assert!(checked.status.success(), "{} (kept), seed {seed}: {said}", file.display());
        std::fs::remove_file(&file).expect("removed");
    }
    println!(
        "{histories} histories, {operations} operations ({unknown} with unknown outcome), {} faults, 0 violations",
        faults.len()
    );
}
