// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a backup: what an acknowledged insert takes, and how long clients wait when the primary is killed.
//!
//! - **Flow** a real etcd ─▶ two processes of this program as one node ([`serve`]) ─▶ inserts by one client, one at a time, over UDP ─▶ rows
//! - **Rows** replicated/insert: the median of an insert into a hash map that its backup has in memory. alone: the same without a backup ·
//!   redis_wait: SET and WAIT 1 with a replica · redis_aof: SET, appended to its file and synced before the reply, without a replica ·
//!   budget: [`BUDGET_S`]. failover/ms: from the kill of the primary to the next acknowledged insert; budget: two leases
//! - **Check** after each run all inserted keys are read again on both sides; after each fail-over every key that was ever acknowledged
//! - **Missing** no etcd, or no Redis: the text says what to install

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_traverse::client::{Client, Config};
use memlift_traverse::map::{Address, Map, Source, State};
use memlift_traverse::node::{Cluster, ClusterOptions, NodeOptions};
use memlift_traverse::structures::{HashMap, Key};
use memlift_traverse::transport::udp::Udp;

use super::apps::nodes::{Nodes, Over, failed};
use super::apps::{Of, Ran, compare, machine_text};
use super::pin::{Held, Role};
use super::stores::{Redis, Server, Store};
use super::ycsb::Random;
use super::{Stop, unknown};
use crate::child::Bound;
use crate::contender::CHILD_ARGUMENT;
use crate::definition::Definition;
use crate::pairs::Side;
use crate::statistics::{Pair, median};
use crate::{BenchError, Row, machine, python};

/// Word after [`CHILD_ARGUMENT`] that starts a process of the node.
pub const NAME: &str = "replicated";

/// Time that a replicated insert may take.
const BUDGET_S: f64 = 100e-6;
/// Inserts of a run.
const INSERTS: usize = 2000;
const INSERTS_QUICK: usize = 20;
/// Fail-overs of the row, and the lease in seconds.
const FAILOVERS: usize = 7;
const LEASE_S: u64 = 3;
const LEASE_QUICK_S: u64 = 1;
const MEMORY: u64 = 256 << 20;
/// Chains of the hash map, as a power of two.
const LOG2: u32 = 14;
/// Longest wait for a process to be what it shall be.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures the row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    match (definition.name.as_str(), definition.rival.as_str()) {
        ("failover/ms", "budget") => failover(definition, quick),
        ("replicated/insert", _) => insert(definition, quick),
        _ => Err(unknown(definition)),
    }
}

fn bad_command() -> BenchError {
    BenchError::Engine { reason: "a process of a replicated node is started by its bench".to_owned() }
}

/// Serves as a process of the node: arguments are the map's source and the address.
pub fn serve(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<(), BenchError> {
    let words: Vec<String> =
        arguments.map(|one| one.into_string().map_err(|_| bad_command())).collect::<Result<_, _>>()?;
    let [source, at] = &words[..] else { return Err(bad_command()) };
    let at: SocketAddr = at.parse().map_err(|_| bad_command())?;
    let _held = Held::new(Role::Node);
    let udp = Udp::bind(at, false).map_err(failed)?;
    let speaker = udp.speaker().map_err(failed)?;
    let node = NodeOptions { bytes: MEMORY, prefault: false, ..NodeOptions::default() };
    let source = Source::parse(source).map_err(failed)?;
    let options = ClusterOptions { node, source, name: "a".to_owned(), addresses: vec![Address::Udp(at)] };
    let stop = AtomicBool::new(false);
    let opened = Cluster::open_replicated(&options, speaker, u64::MAX, &stop, &mut |_| {}).map_err(failed)?;
    let Some((mut cluster, _)) = opened else { return Ok(()) };
    let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _held = Held::new(Role::Node);
            let served = shard.serve(&stop);
            stop.store(true, Ordering::Relaxed);
            served
        });
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = cluster.turn(Duration::from_millis(20)) {
                stop.store(true, Ordering::Relaxed);
                return Err(failed(error));
            }
        }
        Ok(())
    })
}

/// An etcd of this row's own.
#[derive(Debug)]
struct Etcd {
    /// Dropped first: it ends before its folder goes.
    _child: Bound,
    _folder: tempfile::TempDir,
    source: String,
}

impl Etcd {
    fn start(lease_s: u64) -> Result<Etcd, Stop> {
        let script = python::unpack()?.join("engines/traverse/fetch");
        let output = Command::new("sh").arg(&script).arg("etcd-server").stdin(Stdio::null()).output();
        let output = output.map_err(BenchError::file(&script))?;
        if !output.status.success() {
            return Err(Stop::Missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let program =
            PathBuf::from(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default());
        let folder = tempfile::tempdir().map_err(BenchError::system("making a folder"))?;
        let ports = [free_place()?.port(), free_place()?.port()];
        let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(program);
        command.arg("--data-dir").arg(folder.path().join("data")).args(["--name", "one", "--logger", "zap"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        // A lease of a second needs elections faster than that.
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        if !std::env::consts::ARCH.starts_with("x86") {
            command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH);
        }
        let child = Bound::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let source = format!("etcd:{client}/bench?lease={lease_s}");
        let etcd = Etcd { _child: child, _folder: folder, source };
        etcd.wait(|_| true)?;
        Ok(etcd)
    }

    /// Waits until the map is as wanted.
    fn wait(&self, wanted: impl Fn(&Map) -> bool) -> Result<(), BenchError> {
        let mut authority =
            Source::parse(&self.source).and_then(|source| source.connect()).map_err(failed)?;
        let begun = Instant::now();
        while !authority.read().is_ok_and(|map| wanted(&map)) {
            if begun.elapsed() > PATIENCE {
                return Err(failed("the processes of the node did not become one"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// An address whose port is free for UDP and TCP.
fn free_place() -> Result<SocketAddr, BenchError> {
    let system = || BenchError::system("finding a free port");
    loop {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).map_err(system())?;
        let at = socket.local_addr().map_err(system())?;
        if TcpListener::bind(at).is_ok() {
            return Ok(at);
        }
    }
}

/// The two processes of the node; the first one is the primary.
#[derive(Debug)]
struct Processes {
    etcd: Etcd,
    processes: Vec<(Bound, SocketAddr)>,
}

impl Processes {
    fn start(quick: bool) -> Result<Processes, Stop> {
        let etcd = Etcd::start(if quick { LEASE_QUICK_S } else { LEASE_S })?;
        let mut pair = Processes { etcd, processes: Vec::new() };
        pair.add()?;
        pair.add()?;
        Ok(pair)
    }

    /// Starts another process, and waits until it is the primary or the backup.
    fn add(&mut self) -> Result<(), BenchError> {
        let at = free_place()?;
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let mut command = Command::new(program);
        command.arg(CHILD_ARGUMENT).arg(NAME).arg(&self.etcd.source).arg(at.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.processes.push((Bound::start(&mut command)?, at));
        let places: Vec<SocketAddr> = self.processes.iter().map(|(_, at)| *at).collect();
        self.etcd.wait(|map| {
            map.node_named("a")
                .is_some_and(|node| node.state == State::Up && node.sockets().collect::<Vec<_>>() == places)
        })
    }

    fn client(&self) -> Result<Client, BenchError> {
        let places: Vec<SocketAddr> = self.processes.iter().map(|(_, at)| *at).collect();
        Client::udp(&places, Config { deadline: PATIENCE, ..Config::default() }).map_err(failed)
    }
}

/// Keys of a run, and their values.
fn pairs_of(seed: u64, count: usize) -> Vec<(u64, u64)> {
    let mut random = Random(seed.wrapping_mul(0x9fb2_1c65_1e98_df25));
    (0..count).map(|_| (random.bits(), random.bits())).collect()
}

/// Runs `work` for each pair; the run's time is the median of one.
fn timed_each(
    pairs: &[(u64, u64)],
    mut work: impl FnMut(u64, u64) -> Result<(), BenchError>,
) -> Result<Ran, BenchError> {
    let cpu = machine::cpu_seconds();
    let mut times = Vec::with_capacity(pairs.len());
    for &(key, value) in pairs {
        let begun = Instant::now();
        work(key, value)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let cpu_s = (machine::cpu_seconds() - cpu) / pairs.len() as f64;
    Ok(Ran { checksum: 0, seconds: median(times), cpu_s })
}

/// A client with a map.
struct Inserter {
    client: Client,
    map: HashMap,
}

impl Inserter {
    fn new(mut client: Client) -> Result<Inserter, BenchError> {
        let map = HashMap::create(&mut client, LOG2).map_err(failed)?;
        Ok(Inserter { client, map })
    }

    fn insert(&mut self, key: u64, value: u64) -> Result<(), BenchError> {
        let fresh = self.map.insert(&mut self.client, Key::Number(key), &value.to_le_bytes());
        if fresh.map_err(failed)? { Ok(()) } else { Err(failed("a key was there before")) }
    }

    fn checksum(&mut self, keys: &[u64]) -> Result<u64, BenchError> {
        let found = self.map.get_many(&mut self.client, keys).map_err(failed)?;
        found.into_iter().try_fold(0_u64, |sum, value| {
            let value = value.and_then(|value| value.try_into().ok()).map(u64::from_le_bytes);
            let value = value.ok_or_else(|| failed("an acknowledged key is not there"))?;
            Ok(sum.rotate_left(1) ^ value)
        })
    }

    fn run(&mut self, pairs: &[(u64, u64)]) -> Result<Ran, BenchError> {
        let ran = timed_each(pairs, |key, value| self.insert(key, value))?;
        let keys: Vec<u64> = pairs.iter().map(|pair| pair.0).collect();
        Ok(Ran { checksum: self.checksum(&keys)?, ..ran })
    }
}

/// Redis with what makes an insert as safe.
struct SafeRedis {
    redis: Redis,
    waits: bool,
    /// Dropped after the client: the store, and its replica.
    servers: Vec<Server>,
}

impl SafeRedis {
    fn start(waits: bool) -> Result<SafeRedis, Stop> {
        let more: &[&str] = if waits { &[] } else { &["--appendonly", "yes", "--appendfsync", "always"] };
        let first = Server::start_with(Store::Redis, true, MEMORY, more)?;
        let mut redis = Redis::new(first.line()?);
        let mut servers = vec![first];
        if waits {
            let port = servers[0].port().to_string();
            let replica = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
            servers.push(Server::start_with(Store::Redis, true, MEMORY, &replica)?);
            let begun = Instant::now();
            while redis.set_safely(0, 0, true)? == 0 {
                if begun.elapsed() > PATIENCE {
                    return Err(failed("the replica of Redis did not come").into());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(SafeRedis { redis, waits, servers })
    }

    fn run(&mut self, pairs: &[(u64, u64)]) -> Result<Ran, BenchError> {
        let (redis, waits) = (&mut self.redis, self.waits);
        let ran = timed_each(pairs, |key, value| match (redis.set_safely(key, value, waits)?, waits) {
            (0, true) => Err(failed("no replica of Redis acknowledged")),
            _ => Ok(()),
        })?;
        let keys: Vec<u64> = pairs.iter().map(|pair| pair.0).collect();
        let values = self.redis.get_many(&keys)?;
        let checksum = values.into_iter().fold(0_u64, |sum, value| sum.rotate_left(1) ^ value);
        Ok(Ran { checksum, ..ran })
    }
}

enum Theirs {
    Alone(Box<Inserter>, #[expect(dead_code, reason = "serves until it is dropped")] Nodes),
    Redis(SafeRedis),
}

fn insert(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let count = if quick { INSERTS_QUICK } else { INSERTS };
    let rival = definition.rival.as_str();
    let mut theirs = match rival {
        "redis_wait" | "redis_aof" => Some(Theirs::Redis(SafeRedis::start(rival == "redis_wait")?)),
        "alone" => {
            let nodes = Nodes::with_spare(1, 2 << 20, MEMORY, Over::Udp)?;
            Some(Theirs::Alone(Box::new(Inserter::new(nodes.client(Config::default())?)?), nodes))
        }
        "budget" => None,
        _ => return Err(unknown(definition)),
    };
    let pair = Processes::start(quick)?;
    let mut ours = Inserter::new(pair.client()?)?;
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let pairs = pairs_of(seed, count);
        match (side, &mut theirs) {
            (Side::Ours, _) => ours.run(&pairs),
            (Side::Theirs, Some(Theirs::Alone(alone, _))) => alone.run(&pairs),
            (Side::Theirs, Some(Theirs::Redis(redis))) => redis.run(&pairs),
            (Side::Theirs, None) => {
                let checksum = pairs.iter().fold(0_u64, |sum, pair| sum.rotate_left(1) ^ pair.1);
                Ok(Ran { checksum, seconds: BUDGET_S, cpu_s: 0.0 })
            }
        }
    })?;
    let their_text = match &theirs {
        None => format!("the budget, {} us", BUDGET_S * 1e6),
        Some(Theirs::Alone(..)) => "a node without a backup".to_owned(),
        Some(Theirs::Redis(redis)) => format!(
            "{}, TCP on loopback, {}",
            redis.servers[0].version,
            if redis.waits { "SET and WAIT 1 0" } else { "SET, appendfsync always" }
        ),
    };
    row.qualifies = format!(
        "median of {count} inserts of 8 B into a hash map, one at a time; ours: UDP on loopback, the backup has it in memory; theirs: \
         {their_text}; {}",
        machine_text()
    );
    Ok(row)
}

fn failover(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let mut pair = Processes::start(quick)?;
    let mut inserter = Inserter::new(pair.client()?)?;
    let lease_s = if quick { LEASE_QUICK_S } else { LEASE_S };
    let (mut times, mut keys): (Vec<Pair>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut random = Random(1);
    let count = if quick { 1 } else { FAILOVERS };
    for _ in 0..count {
        // At any time of a lease.
        let until = Instant::now() + Duration::from_millis(random.bits() % (lease_s * 1000));
        while keys.is_empty() || Instant::now() < until {
            let key = random.bits();
            inserter.insert(key, key)?;
            keys.push(key);
        }
        let begun = Instant::now();
        drop(pair.processes.remove(0));
        let key = random.bits();
        inserter.insert(key, key)?;
        times.push((begun.elapsed().as_secs_f64(), 2.0 * lease_s as f64));
        keys.push(key);
        for keys in keys.chunks(1000) {
            inserter.checksum(keys)?;
        }
        pair.add()?;
    }
    let mut row = Row::new(definition);
    row.count.insert("failovers".to_owned(), times.len() as u64);
    let longest = times.iter().map(|time| time.0).fold(0.0, f64::max);
    row.count.insert("longest_ms".to_owned(), (longest * 1e3) as u64);
    row.qualifies = format!(
        "from SIGKILL of the primary to the next acknowledged insert, leases of {lease_s} s; theirs: two leases; every acknowledged key was \
         read again; {}",
        super::pin::text()
    );
    Ok(row.measured(definition, &times, quick))
}
