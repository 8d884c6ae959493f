// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cluster of real processes: this program starts itself as coordinator and as nodes, which talk over loopback.
//!
//! - **Flow** a node that is told to dies by SIGKILL as soon as it sees itself at a step of a migration
//! - **Owner** processes are killed when the world is dropped
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use memlift_traverse::client::{Client, Config};
use memlift_traverse::map::coordinator::Options;
use memlift_traverse::map::migrate::{MigrationPhase, Outcome};
use memlift_traverse::map::{Authority, Coordinator, Map, Order, Peer, Source};
use memlift_traverse::node::{Cluster, ClusterOptions, Durability, NodeOptions};
use memlift_traverse::sweep::{Reached, Sweeper};
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::Keys;

/// Bytes of memory that each node brings.
pub const MEMORY: u64 = 4 << 20;
/// The lease of tests in which nodes die.
pub const SHORT: Duration = Duration::from_millis(1500);
/// The lease of those in which none does: none may count as down, however busy the machine is.
pub const LONG: Duration = Duration::from_secs(60);

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by another test"))
}

fn die() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("gone");
}

#[test]
#[ignore = "the coordinator of another test"]
fn serve_as_the_coordinator_of_another_test() {
    let file = setting("MEMLIFT_TEST_FILE").into();
    let peer = Peer::parse(&setting("MEMLIFT_TEST_AT")).expect("an address");
    let lease = Duration::from_millis(setting("MEMLIFT_TEST_LEASE").parse().expect("milliseconds"));
    let options = Options { file, lease, secret: None };
    let _running = Coordinator::start(&peer, options).expect("it starts");
    loop {
        std::thread::park();
    }
}

/// Returns true once a migration is at the step at which this node is to die.
fn reached(cluster: &mut Cluster, step: &str) -> bool {
    let mover = cluster.mover();
    let leaves = |wanted| mover.progress().iter().any(|one| one.step == wanted);
    let comes = mover.arrivals();
    match step {
        "copying" => {
            mover.progress().iter().any(|one| one.step == MigrationPhase::Copying && one.settled > 100)
        }
        "draining" => leaves(MigrationPhase::Draining),
        "sealing" => leaves(MigrationPhase::Sealing),
        "committing" => leaves(MigrationPhase::Committing),
        "accepted" => !comes.is_empty(),
        "half" => comes.iter().any(|one| one.missing < one.pieces / 2),
        "sealed" => comes.iter().any(|one| one.sealed),
        "given" => mover.outcomes().iter().any(|one| matches!(one, Outcome::Given { .. })),
        "taken" => mover.outcomes().iter().any(|one| matches!(one, Outcome::Taken { .. })),
        _ => false,
    }
}

#[test]
#[ignore = "a node of another test"]
fn serve_as_a_node_of_another_test() {
    let at: SocketAddr = setting("MEMLIFT_TEST_AT").parse().expect("an address");
    let source = Source::parse(&setting("MEMLIFT_TEST_SOURCE")).expect("a source");
    let step = setting("MEMLIFT_TEST_DIE");
    let udp = Udp::bind(at, false).expect("a free port");
    let speaker = udp.speaker().expect("shared");
    let log = Some((PathBuf::from(setting("MEMLIFT_TEST_LOG")), Durability::Process));
    let node =
        NodeOptions { bytes: MEMORY, prefault: false, workspaces: Some(8), log, ..NodeOptions::default() };
    let name = setting("MEMLIFT_TEST_NAME");
    let options =
        ClusterOptions { node, source, name, addresses: vec![memlift_traverse::map::Address::Udp(at)] };
    let (mut cluster, _) = Cluster::open(options, Some(speaker)).unwrap_or_else(|error| panic!("{error}"));
    let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
    let stop = Arc::new(AtomicBool::new(false));
    let by_map = Reached::Map(Arc::clone(cluster.shared()));
    let mut sweeper = Sweeper::new(cluster.node().clone(), by_map, Keys::none(), Arc::clone(&stop));
    std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&stop).expect("serves"));
        scope.spawn(|| sweeper.serve());
        loop {
            cluster.turn(Duration::from_millis(20)).unwrap_or_else(|error| panic!("{error}"));
            if reached(&mut cluster, &step) {
                die();
            }
            cluster.node().compact_beyond(256 << 10).expect("made short");
        }
    });
}

/// A process, killed at the end.
pub struct Process(Child);

impl Process {
    fn start(role: &str, settings: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", role, "--ignored", "--nocapture"]).envs(settings.iter().copied());
        command.stdout(Stdio::null()).stdin(Stdio::null());
        Process(command.spawn().expect("starts"))
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn died(&mut self) -> bool {
        self.0.try_wait().expect("asked").is_some()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, signal).expect("sent");
        // Each thread stops when it next looks.
        let stopped =
            |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
        let all = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("it is there");
            tasks.flatten().all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(stopped))
        };
        while signal == rustix::process::Signal::STOP && !all() {
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A coordinator and nodes, each of which can be started again where it was.
pub struct World {
    pub coordinator: Process,
    /// How long a node counts as alive that says nothing.
    pub lease: Duration,
    pub nodes: Vec<Process>,
    pub at: Vec<SocketAddr>,
    /// Removed last: the others write to it while they live.
    pub folder: tempfile::TempDir,
}

impl World {
    pub fn start(nodes: usize, dies: &[(usize, &str)], lease: Duration) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let coordinator = World::coordinator(folder.path(), lease);
        let at = (0..nodes)
            .map(|_| UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port"))
            .collect();
        let mut world = World { coordinator, lease, nodes: Vec::new(), at, folder };
        world.map(|_| true);
        for index in 0..nodes {
            let die = dies.iter().find(|(node, _)| *node == index).map_or("never", |(_, step)| step);
            let node = world.node(index, die);
            world.nodes.push(node);
            // One after the other: so each has the addresses that the test thinks it has.
            world.map(|map| map.nodes().len() > index);
        }
        world
    }

    fn socket(folder: &Path) -> String {
        format!("unix:{}", folder.join("coordinator").display())
    }

    pub fn coordinator(folder: &Path, lease: Duration) -> Process {
        let file = folder.join("map");
        let settings = [
            ("MEMLIFT_TEST_AT", World::socket(folder)),
            ("MEMLIFT_TEST_FILE", file.to_str().expect("UTF-8").to_owned()),
            ("MEMLIFT_TEST_LEASE", lease.as_millis().to_string()),
        ];
        let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
        Process::start("cluster_world::serve_as_the_coordinator_of_another_test", &settings)
    }

    fn source(&self) -> Source {
        Source::parse(&format!("coordinator:{}", World::socket(self.folder.path()))).expect("a source")
    }

    fn authority(&self) -> Box<dyn Authority> {
        self.source().connect().expect("a coordinator")
    }

    pub fn node(&self, index: usize, die: &str) -> Process {
        let name = ["a", "b", "c"][index];
        let log = self.folder.path().join(format!("{name}.log"));
        let settings = [
            ("MEMLIFT_TEST_NAME", name.to_owned()),
            ("MEMLIFT_TEST_AT", self.at[index].to_string()),
            ("MEMLIFT_TEST_SOURCE", format!("coordinator:{}", World::socket(self.folder.path()))),
            ("MEMLIFT_TEST_LOG", log.to_str().expect("UTF-8").to_owned()),
            ("MEMLIFT_TEST_DIE", die.to_owned()),
        ];
        let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
        Process::start("cluster_world::serve_as_a_node_of_another_test", &settings)
    }

    /// Waits until the map is as wanted, and returns it.
    pub fn map(&self, wanted: impl Fn(&Map) -> bool) -> Map {
        let mut authority = self.authority();
        loop {
            if let Ok(map) = authority.read()
                && wanted(&map)
            {
                return map;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Plans a move; waits for a node that counts as down because the machine is busy.
    pub fn plan(&self, base: u64, bytes: u64, to: &str) -> u64 {
        let mut authority = self.authority();
        let order = Order::Plan { base, bytes, to: to.to_owned() };
        let mut tries = 0;
        loop {
            match authority.order(&order) {
                Ok((_, id)) => return id,
                Err(error) => assert!(tries < 3000, "{error}"),
            }
            tries += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns true if a migration is over.
    pub fn is_over(&self, id: u64) -> bool {
        self.authority().read().is_ok_and(|map| map.moves().iter().all(|one| one.id != id))
    }

    /// Waits until a migration is over; returns the name of the owner.
    pub fn over(&self, id: u64, base: u64) -> String {
        let map = self.map(|map| map.moves().iter().all(|one| one.id != id));
        let owner = map.find(base).and_then(|range| range.owner).expect("an owner");
        map.node(owner).expect("known").name.clone()
    }

    pub fn client(&self) -> Client {
        let config = Config { deadline: Duration::from_secs(90), ..Config::default() };
        Client::udp(&self.at, config).unwrap_or_else(|error| panic!("{error}"))
    }
}
