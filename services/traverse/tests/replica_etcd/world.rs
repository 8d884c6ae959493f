// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes of a replicated node with their etcd, and clients that note what was acknowledged.
//!
//! - **Flow** [`World::copy`] starts this program again as a process of node `a` ([`serve`]); [`under_writers`] runs clients in threads
//! - **Owner** processes are killed when their [`Copy`] is dropped

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, Config, Request};
use memlift_traverse::map::{Address, Authority, Map, Source, State};
use memlift_traverse::node::{BackupState, Cluster, ClusterOptions, Durability, NodeOptions};
use memlift_traverse::structures::HashMap;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::Keys;
use rustix::process::Signal;

use crate::etcd_world::Server;

pub const MEMORY: u64 = 8 << 20;
/// Lease in seconds. A busy machine may hold a process up for about as long; then the backup takes over, which every test allows.
pub const LEASE_S: u64 = 3;
pub const WRITERS: u64 = 8;

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by another test"))
}

/// Seconds by which the wall clock of this process is wrong.
static JUMPED_S: AtomicI64 = AtomicI64::new(0);

fn system_s() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).expect("later");
    (now.as_secs().cast_signed() + JUMPED_S.load(Ordering::SeqCst)) as u32
}

/// Has the wall clock of this process jump whenever the file says another number of seconds.
fn jump_by(file: &Path) {
    loop {
        if let Some(jumped) = std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()) {
            JUMPED_S.store(jumped, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Serves as a process of the node of another test, which has set the environment.
pub fn serve() {
    let at: SocketAddr = setting("MEMLIFT_TEST_AT").parse().expect("an address");
    let source = Source::parse(&setting("MEMLIFT_TEST_SOURCE")).expect("a source");
    let log = std::env::var_os("MEMLIFT_TEST_LOG").map(|log| (PathBuf::from(log), Durability::Disk));
    let state = PathBuf::from(setting("MEMLIFT_TEST_STATE"));
    let keys = keys_in(std::env::var_os("MEMLIFT_TEST_KEYS").map(PathBuf::from).as_deref());
    let bytes = std::env::var("MEMLIFT_TEST_BYTES").map_or(MEMORY, |bytes| bytes.parse().expect("a number"));
    let udp = Udp::bind(at, !keys.is_empty()).expect("a free port");
    let speaker = udp.speaker().expect("shared");
    if let Some(file) = std::env::var_os("MEMLIFT_TEST_JUMP") {
        std::thread::spawn(move || jump_by(Path::new(&file)));
    }
    let node = NodeOptions {
        bytes,
        prefault: false,
        workspaces: Some(8),
        log,
        keys,
        system_s,
        ..NodeOptions::default()
    };
    let stop = AtomicBool::new(false);
    // A node that is not replicated, with another address that comes first and is silent.
    let silent = std::env::var("MEMLIFT_TEST_SILENT").ok().map(|silent| silent.parse().expect("an address"));
    let addresses = silent.into_iter().chain([at]).map(Address::Udp).collect();
    let name = std::env::var("MEMLIFT_TEST_NAME").unwrap_or_else(|_| "a".to_owned());
    let options = ClusterOptions { node, source, name, addresses };
    let opened = match silent {
        Some(_) => Cluster::open(options, Some(speaker)).map(Some),
        None => Cluster::open_replicated(&options, speaker, 1 << 20, &stop, &mut |event| {
            println!("{at}: {event:?}");
        }),
    };
    let (mut cluster, _) = match opened {
        Ok(opened) => opened.expect("never stopped"),
        Err(error) => {
            println!("{at}: {error}");
            std::process::exit(4);
        }
    };
    println!("{at}: primary");
    let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
    std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&stop).expect("serves"));
        let mut last = None;
        loop {
            if let Err(error) = cluster.turn(Duration::from_millis(20)) {
                println!("{at}: {error}");
                // As the command does: the process ends.
                std::process::exit(3);
            }
            let backup = cluster.backup();
            if backup != last {
                println!("{at}: {backup:?}");
                let text = if matches!(backup, Some(BackupState::Listed(_))) { "listed" } else { "alone" };
                std::fs::write(&state, text).expect("written");
                last = backup;
            }
            cluster.node().compact_beyond(256 << 10).expect("made short");
        }
    });
}

fn keys_in(file: Option<&Path>) -> Keys {
    file.map_or_else(Keys::none, |file| {
        Keys::parse(&std::fs::read_to_string(file).expect("a key file")).expect("keys")
    })
}

/// A process of the node, killed at the end.
pub struct Copy {
    pub child: Child,
    pub at: SocketAddr,
    state: PathBuf,
    said: PathBuf,
}

impl Copy {
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("sent");
        // Each thread stops by itself, and may answer a request until then.
        let tasks = format!("/proc/{}/task", self.child.id());
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            stat.map_or(true, |stat| {
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 't', 'Z', 'X']))
            })
        };
        while signal == Signal::STOP && !std::fs::read_dir(&tasks).is_ok_and(|mut all| all.all(stands)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("asked").is_some()
    }

    /// Returns what the process has printed so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("its output")
    }

    /// Returns true while this process is the primary and its backup is listed.
    pub fn is_listed(&self) -> bool {
        std::fs::read_to_string(&self.state).is_ok_and(|text| text == "listed")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An etcd, and the addresses at which the copies listen.
pub struct World {
    pub server: Server,
    pub at: Vec<SocketAddr>,
    has_logs: bool,
    /// Key file of processes and clients.
    pub keys: Option<PathBuf>,
    /// Network namespaces of the processes; empty: they are in this one.
    pub spaces: Vec<String>,
}

impl World {
    pub fn start(has_logs: bool) -> Option<World> {
        let server = Server::start()?;
        // Below the ports that the system gives to connections: a copy needs the same number for UDP and TCP, at each start.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first = u64::from(std::process::id()) * 64;
        let place = || {
            let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
            SocketAddr::from(([127, 0, 0, 1], port as u16))
        };
        let is_free = |at: &SocketAddr| UdpSocket::bind(at).is_ok() && TcpListener::bind(at).is_ok();
        let at = std::iter::repeat_with(place).filter(is_free).take(3).collect();
        Some(World { has_logs, ..World::of(server, at) })
    }

    pub fn of(server: Server, at: Vec<SocketAddr>) -> World {
        World { server, at, has_logs: true, keys: None, spaces: Vec::new() }
    }

    pub fn log(&self, index: usize) -> PathBuf {
        self.server.folder.path().join(format!("{index}.log"))
    }

    pub fn copy(&self, index: usize) -> Copy {
        self.copy_with(index, |_| {})
    }

    /// Starts a copy with more, or other, settings in its environment.
    pub fn copy_with(&self, index: usize, settings: impl FnOnce(&mut Command)) -> Copy {
        let at = self.at[index];
        let folder = self.server.folder.path();
        let (state, said) = (folder.join(format!("state-{index}")), folder.join(format!("said-{index}")));
        let _ = std::fs::remove_file(&state);
        let program = std::env::current_exe().expect("this test");
        let mut command = match self.spaces.get(index) {
            None => Command::new(program),
            Some(space) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", space]).arg(program);
                command
            }
        };
        command
            .args(["--exact", "serve_as_a_copy_of_the_node_of_another_test", "--ignored", "--nocapture"])
            .env("MEMLIFT_TEST_AT", at.to_string())
            .env("MEMLIFT_TEST_SOURCE", format!("{}?lease={LEASE_S}", self.server.text()))
            .env("MEMLIFT_TEST_STATE", &state)
            .stdin(Stdio::null());
        if self.has_logs {
            command.env("MEMLIFT_TEST_LOG", self.log(index));
        }
        if let Some(keys) = &self.keys {
            command.env("MEMLIFT_TEST_KEYS", keys);
        }
        let output = std::fs::File::create(&said).expect("its output");
        if std::env::var_os("MEMLIFT_TEST_TALK").is_none() {
            command.stderr(output.try_clone().expect("a descriptor")).stdout(output);
        }
        settings(&mut command);
        Copy { child: command.spawn().expect("starts"), at, state, said }
    }

    /// Starts two copies, and waits until the second one is the backup of the first.
    pub fn two(&self) -> [Copy; 2] {
        let first = self.copy(0);
        self.map(|map| self.primary_of(map) == Some(first.at));
        let second = self.copy(1);
        wait("a backup", || first.is_listed());
        [first, second]
    }

    pub fn primary_of(&self, map: &Map) -> Option<SocketAddr> {
        map.node_named("a")
            .filter(|node| node.state == State::Up)
            .and_then(memlift_traverse::map::Node::socket)
    }

    pub fn map(&self, wanted: impl Fn(&Map) -> bool) -> Map {
        let mut etcd = self.server.etcd();
        let begun = Instant::now();
        loop {
            if let Ok(map) = etcd.read()
                && wanted(&map)
            {
                return map;
            }
            assert!(begun.elapsed() < PATIENCE, "the map never was as wanted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn client(&self) -> Client {
        let config = self.config(PATIENCE);
        Client::udp(&self.at[..2], config).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn config(&self, deadline: Duration) -> Config {
        let keys = keys_in(self.keys.as_deref());
        Config { deadline, tenant: u32::from(!keys.is_empty()), keys, ..Config::default() }
    }
}

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < PATIENCE, "there never was {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Eight writers: each adds to a number of its own, and puts into a map that all share. Each notes the changes that were acknowledged.
pub struct Writers {
    pub numbers: Vec<u64>,
    pub map: memlift_traverse::structures::hash::Handle,
    pub added: Vec<AtomicU64>,
    /// Additions that were acknowledged, of each writer; its entry in the map may not be there yet.
    pub acknowledged: Vec<AtomicU64>,
    pub stop: AtomicBool,
    /// The longest time that a change took.
    pub longest: Mutex<Duration>,
}

impl Writers {
    pub fn new(client: &mut Client) -> Writers {
        let numbers =
            (0..WRITERS).map(|_| client.call(Request::allocate(0, 8)).expect("memory").address).collect();
        let map = HashMap::create(client, 6).expect("a map").handle();
        let none = || (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let (added, acknowledged) = (none(), none());
        Writers { numbers, map, added, acknowledged, stop: AtomicBool::new(false), longest: Mutex::default() }
    }

    pub fn run(&self, world: &World, index: usize) {
        let mut client = world.client();
        let mut map = HashMap::open(self.map);
        while !self.stop.load(Ordering::Relaxed) {
            let before = self.added[index].load(Ordering::Relaxed);
            let begun = Instant::now();
            let answer = client.call(Request::apply(ApplyKind::FetchAdd, self.numbers[index], 1, 0));
            let answer = answer.unwrap_or_else(|error| panic!("writer {index}, change {before}: {error}"));
            assert_eq!(answer.value, before, "writer {index}: a change was lost, or made twice");
            self.acknowledged[index].store(before + 1, Ordering::SeqCst);
            let key = (index as u64) << 32 | before;
            map.insert(&mut client, key, &before.to_le_bytes()).unwrap_or_else(|error| panic!("{error}"));
            self.added[index].store(before + 1, Ordering::Relaxed);
            let mut longest = self.longest.lock().expect("whole");
            *longest = longest.max(begun.elapsed());
        }
    }

    /// Reads the writers' numbers: none may be older than what was acknowledged or read before the reading began.
    pub fn read(&self, world: &World) {
        let mut client = world.client();
        let mut seen = vec![0; self.numbers.len()];
        while !self.stop.load(Ordering::Relaxed) {
            for (index, number) in self.numbers.iter().enumerate() {
                let least = self.acknowledged[index].load(Ordering::SeqCst).max(seen[index]);
                let read = client.call(Request::read(*number, 8)).unwrap_or_else(|error| panic!("{error}"));
                let value = u64::from_le_bytes(read.body[..].try_into().expect("a word"));
                assert!(value >= least, "writer {index}: {value} was read after {least}");
                seen[index] = value;
            }
        }
    }

    pub fn total(&self) -> u64 {
        self.added.iter().map(|one| one.load(Ordering::Relaxed)).sum()
    }

    /// Waits for that many changes more.
    pub fn wait_for(&self, more: u64) {
        let wanted = self.total() + more;
        wait("another change", || self.total() >= wanted);
    }

    /// Each acknowledged change is there once.
    pub fn check(&self, world: &World) {
        let mut client = world.client();
        let mut map = HashMap::open(self.map);
        for (index, added) in self.added.iter().enumerate() {
            let added = added.load(Ordering::Relaxed);
            let read = client.call(Request::read(self.numbers[index], 8)).expect("read").body;
            assert_eq!(u64::from_le_bytes(read[..].try_into().expect("a word")), added, "writer {index}");
            for change in 0..added {
                let key = (index as u64) << 32 | change;
                let value = map.get(&mut client, key).expect("read");
                assert_eq!(
                    value.as_deref(),
                    Some(&change.to_le_bytes()[..]),
                    "writer {index}, change {change}"
                );
            }
        }
    }
}

/// Runs the writers while `work` runs, then checks that nothing is lost and nothing was made twice. The processes that `work` returns live
/// until then.
pub fn under_writers<T>(world: &World, work: impl FnOnce(&Writers) -> T) {
    let writers = Writers::new(&mut world.client());
    let _processes = std::thread::scope(|scope| {
        for index in 0..WRITERS as usize {
            let writers = &writers;
            scope.spawn(move || writers.run(world, index));
        }
        for _ in 0..2 {
            scope.spawn(|| writers.read(world));
        }
        writers.wait_for(200);
        // The writers end also if `work` fails, so that the test ends.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&writers)));
        writers.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    writers.check(world);
    println!(
        "{} changes, the longest took {:?}",
        writers.total() * 2,
        writers.longest.lock().expect("whole")
    );
}
