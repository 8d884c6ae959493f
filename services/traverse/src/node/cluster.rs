// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node of a cluster. The map gives it its addresses, and ranges arrive and leave while it serves.
//!
//! - **Flow** log ─▶ join (`map::Member`) ─▶ [`Writer::apply_map`]: ranges that the map gives are mapped, others are dropped
//!   ─▶ shards, and one thread that runs [`Cluster::turn`]
//! - **Order** a node that was killed waits until the lease of its last start has run out, and then joins again
//! - **Replicated** [`Cluster::open_replicated`]: a process is the backup until etcd lets it join as the primary (`replica`)
//! - **Owner** a [`Cluster`] holds the membership; dropping it makes the node leave
//! - **Rule** a map file is edited by people: a range that an edit takes from a node stays in the node's memory, unreachable,
//!   until the node restarts

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::clock::Clock;
use super::gate::Gate;
use super::log::{LogError, RangeStep, Replayed};
use super::mover::Mover;
use super::replica::backup::{self, Answerer, FollowError, Following, Step};
use super::replica::primary::{Primary, PrimaryOptions};
use super::replica::stale::StaleReads;
use super::replica::{BackupState, secret};
use super::writer::Writer;
use super::{Node, NodeError, NodeOptions};
use crate::map::{ADDRESSES_MAX, REPLICATED, etcd_lease_s};
use crate::map::{Address, Authority, Join, Map, MapError, Member, NodeId, Replicas, Shared, Source, State};

/// Shortest pause of a process of a replicated node before it looks again.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause before it looks again, if nothing changes.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest time that a node waits for the lease of its last start to run out.
const WAIT_FOR_LEASE: Duration = Duration::from_secs(60);

/// Reason that a node cannot join the cluster, or cannot stay in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The node itself failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The map cannot be read, joined or changed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The node's log cannot be written.
    #[error("the node's log: {0}")]
    Log(#[from] LogError),
    /// The map and the memory of the node do not fit together.
    #[error("the map and this node's memory do not fit: {0}")]
    Unfit(String),
    /// The backup of this node has taken over.
    #[error(
        "node {0} is another process now: its backup has taken over. Start this one again, and it becomes the backup"
    )]
    Replaced(String),
    /// The log lacks the last start of the node.
    #[error(
        "the log of node {name} is older than the node's last start, which the map knows: it is a copy that was made before. Put the newest \
         log back. If that is lost: start the node without a log, with new addresses, and load its data again; or start it with this log and \
         --accept-older-log, which gives up all changes since the copy was made (clients and handles that know of one are refused, but data on other \
         nodes that refers to one may lead to other data)"
    )]
    OlderLog {
        /// Name of the node.
        name: String,
    },
    /// The primary does not take this process as its backup.
    #[error(
        "the primary at {primary} does not take this process as its backup: {why}. Start it again with what the primary needs"
    )]
    Refused {
        /// Address of the primary.
        primary: SocketAddr,
        /// The primary's reason.
        why: String,
    },
    /// The sockets of a replicated node cannot be opened, or its log cannot be put aside.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: String,
        /// Error of the system.
        #[source]
        error: std::io::Error,
    },
}

/// Settings of a node in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Settings of the node itself: `base` is not used; `bytes` is the memory that the node brings to the cluster.
    pub node: NodeOptions,
    /// Place from which the map is read.
    pub source: Source,
    /// Name of the node, which stays the same from start to start.
    pub name: String,
    /// Addresses at which the node listens. The other nodes reach it by the first UDP address.
    pub addresses: Vec<Address>,
}

/// Event of a process of a replicated node, before it is the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// It gets a copy from the primary at this address.
    Copying(SocketAddr),
    /// It has the whole copy, and gets each record.
    Following(SocketAddr),
    /// It waits, for the reason in the text.
    Waiting(String),
}

/// A node, its membership, and the mover of its ranges.
#[derive(Debug)]
pub struct Cluster {
    /// Dropped first: it ends before the membership does.
    primary: Option<Primary>,
    incarnation: u64,
    node: Node,
    member: Arc<Member>,
    mover: Mover,
    me: NodeId,
    is_map_file: bool,
    bytes: u64,
    epoch: u64,
}

impl Cluster {
    /// Replays the log, joins, and maps the memory that the map gives the node. `speaker` is the socket at which other nodes
    /// reach this one ([`crate::transport::udp::Udp::speaker`]); without it no range arrives or leaves.
    ///
    /// # Errors
    ///
    /// [`ClusterError`]: the node has not joined, or has joined and left again.
    pub fn open(
        options: ClusterOptions,
        speaker: Option<UdpSocket>,
    ) -> Result<(Cluster, Replayed), ClusterError> {
        let ClusterOptions { node, source, name, addresses } = options;
        let (bytes, prefault, accepts_older) = (node.bytes, node.prefault, node.accept_older_log);
        let (node, replayed) = Node::open(NodeOptions { base: 0, bytes: 0, ..node })?;
        let is_map_file = matches!(source, Source::File(_));
        let (known, cluster) = (node.writer().epoch, node.cluster());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let incarnation = now.as_nanos() as u64;
        let recovered = replayed.records > 0;
        let join = Join { name, addresses, incarnation, bytes, recovered, epoch: known, tenant: 0, cluster };
        if !is_map_file {
            let map = wait_for_lease(&source, &join)?;
            if !accepts_older {
                node.fits(&map, &join)?;
            }
        }
        // Logged before the map has it: a log without the map's last start is a copy.
        node.begin_run(incarnation)?;
        let member = Arc::new(Member::join(source, join)?);
        let cluster = Cluster::joined(node, member, incarnation, speaker, is_map_file, (bytes, prefault))?;
        Ok((cluster, replayed))
    }

    /// Brings the node's memory in line with the map that it has joined. `memory` is the bytes that the node brings, and whether they are
    /// touched now.
    fn joined(
        node: Node,
        member: Arc<Member>,
        incarnation: u64,
        speaker: Option<UdpSocket>,
        is_map_file: bool,
        memory: (u64, bool),
    ) -> Result<Cluster, ClusterError> {
        let (bytes, prefault) = memory;
        let cluster = node.cluster();
        let me = member.id().ok_or_else(|| ClusterError::Unfit("it did not join as a node".to_owned()))?;
        let map = member.shared().map();
        // A map file written by hand may give the same addresses to two nodes, so each node's memory has a number of its
        // own.
        match (map.cluster(), cluster) {
            (0, 0) => node.join_cluster(memlift_ground::region::random())?,
            (0, _) => {}
            (of_map, _) => node.join_cluster(of_map)?,
        }
        let mut writer = node.writer();
        writer.apply_map(&map, me, !is_map_file, prefault).map_err(ClusterError::Unfit)?;
        writer.commit_now()?;
        drop(writer);
        let mover = Mover::new(&node, member.clone(), me, incarnation, speaker);
        let epoch = map.epoch();
        Ok(Cluster { primary: None, incarnation, node, member, mover, me, is_map_file, bytes, epoch })
    }

    /// Returns the node that serves the ranges.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the node's copy of the map; a shard's router is a view of it.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        self.member.shared()
    }

    /// Returns the node's number in the map.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.me
    }

    /// Returns the state of a replicated node's backup; `None`: the node is not replicated.
    #[must_use]
    pub fn backup(&self) -> Option<BackupState> {
        self.primary.as_ref().map(Primary::state)
    }

    /// Returns the current problem with the map's source, for people to read; `None` if there is none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.member.trouble().or_else(|| self.mover.trouble().map(str::to_owned))
    }

    /// Returns the mover, which knows the ranges that arrive and leave.
    pub fn mover(&mut self) -> &mut Mover {
        &mut self.mover
    }

    /// Runs one turn of the mover, which sleeps at most `at_most`; then applies a newer map file.
    ///
    /// # Errors
    ///
    /// The log cannot be written, or a map file gives the node more memory than it has: the node must stop.
    pub fn turn(&mut self, at_most: Duration) -> Result<(), ClusterError> {
        self.mover.turn(at_most)?;
        let map = self.member.shared().map();
        if let Some(gate) = self.node.core.gate.get()
            && let Some(node) = map.node(self.me)
            && (gate.is_replaced() || node.incarnation != self.incarnation)
        {
            gate.replace();
            return Err(ClusterError::Replaced(node.name.clone()));
        }
        if self.is_map_file && map.epoch() > self.epoch {
            self.epoch = map.epoch();
            let own = map.ranges().iter().filter(|range| range.owner == Some(self.me));
            let wanted: u64 = own.map(|range| range.bytes).sum();
            if wanted > self.bytes {
                return Err(ClusterError::Unfit(format!(
                    "the map file of epoch {} gives it {wanted} bytes, it has {}: start it with more memory",
                    map.epoch(),
                    self.bytes
                )));
            }
            let mut writer = self.node.writer();
            writer.apply_map(&map, self.me, false, false).map_err(ClusterError::Unfit)?;
            writer.commit_now()?;
        }
        Ok(())
    }
}

/// A process of a replicated node, on its way to become the primary.
struct Candidate<'c> {
    options: &'c ClusterOptions,
    incarnation: u64,
    /// First UDP address at which clients reach this process.
    address: SocketAddr,
    lease: Duration,
    stop: &'c AtomicBool,
    reads: &'c StaleReads,
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Next step of a candidate.
enum Role {
    /// It may join as the primary.
    Primary,
    /// It copies the primary at this address, which has this incarnation; etcd had the copies in this epoch.
    Backup(SocketAddr, u64, u64),
    /// It waits, for the reason in the text.
    Wait(&'static str),
}

impl Candidate<'_> {
    /// Decides by what etcd says. `replica` is the number of the copy that this process has; 0: none.
    fn role(&self, map: &Map, listed: Option<Replicas>, replica: u64, begun: Instant) -> Role {
        let node = map.node_named(&self.options.name);
        let up = node.filter(|node| node.state == State::Up);
        let Some(listed) = listed else {
            return match up {
                None => Role::Primary,
                Some(_) if begun.elapsed() < WAIT_FOR_LEASE => {
                    Role::Wait("a node of this name is up that is not replicated: stop it first")
                }
                // The refusal says the rest.
                Some(_) => Role::Primary,
            };
        };
        let is_listed = replica != 0 && (listed.primary == replica || listed.backup == replica);
        match (is_listed, up) {
            // The backup has all that was answered, also if this machine lost what it had not synced: it goes first, if it is there.
            (true, None)
                if listed.primary == replica && listed.backup != 0 && begun.elapsed() < self.lease * 2 =>
            {
                Role::Wait("the backup may take over")
            }
            (true, None) => Role::Primary,
            (true, Some(_)) => Role::Wait("the primary is up, and has not dropped this copy yet"),
            (false, Some(primary)) => match primary.socket() {
                Some(address) => Role::Backup(address, primary.incarnation, listed.epoch),
                None => Role::Wait("the primary has no UDP address"),
            },
            (false, None) => Role::Wait("no copy of the node is up: start one that has its data"),
        }
    }

    /// Opens the node with the state of its log.
    fn open(&self) -> Result<(Node, Replayed), NodeError> {
        Node::open(NodeOptions { base: 0, bytes: 0, ..self.options.node.clone() })
    }

    /// Opens an empty node. A log that is there gets the name FILE.old, unless it is only a part of a copy.
    fn open_empty(&self, is_part: bool) -> Result<Node, ClusterError> {
        if let Some((path, _)) = &self.options.node.log
            && path.exists()
        {
            if is_part {
                std::fs::remove_file(path).map_err(|error| ClusterError::System {
                    what: format!("{} is removed, since the node's data is copied again", path.display()),
                    error,
                })?;
                return Ok(self.open()?.0);
            }
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            std::fs::rename(path, &old).map_err(|error| ClusterError::System {
                what: format!("{} is put aside, since the node's data is copied", path.display()),
                error,
            })?;
        }
        Ok(self.open()?.0)
    }

    /// Copies the primary and follows it, until the connection ends or the primary is up no more.
    fn follow(
        &self,
        node: &Node,
        primary: (SocketAddr, u64, u64),
        shared: &Arc<Shared>,
        log_limit_bytes: u64,
        told: &mut dyn FnMut(ReplicaEvent),
    ) -> Result<(), FollowError> {
        let (at, incarnation, epoch) = primary;
        let patience = self.lease / 2;
        let secret = secret(&self.options.node.keys);
        let clock = Arc::new(Clock::default());
        let following = Following {
            name: &self.options.name,
            replica: memlift_ground::region::random().max(1),
            address: self.address,
            bytes: self.options.node.bytes,
            secret: secret.as_ref(),
            epoch,
            clock: &clock,
        };
        let stream = backup::connect(at, patience)?;
        let (is_over, is_complete) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let name = &self.options.name;
                while !is_over.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
                    let known = shared.map().epoch();
                    let _ = shared.wait_newer(known, Duration::from_millis(20));
                    if !backup::is_up(shared, name, incarnation) {
                        break;
                    }
                }
                backup::end(&stream);
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(50));
                    // A snapshot of half a copy would be none. A log that cannot be made short stays valid.
                    if is_complete.load(Ordering::SeqCst) {
                        let _ = node.compact_beyond(log_limit_bytes);
                    }
                }
            });
            // The other threads end also after a panic.
            let _ends = Ends(&is_over);
            let ended = backup::follow(node, &stream, &following, &mut |step| match step {
                Step::Begun => told(ReplicaEvent::Copying(at)),
                Step::Complete => {
                    is_complete.store(true, Ordering::SeqCst);
                    told(ReplicaEvent::Following(at));
                }
                Step::Listed => self.reads.begin(node, shared, &clock),
            });
            self.reads.lose_primary();
            backup::end(&stream);
            ended
        })
    }
}

impl Cluster {
    /// Opens a process of a replicated node, and returns once it is the primary; until then it is the backup, or waits. Returns `None` if
    /// `stop` became true before. `speaker` is the socket at which clients reach this process. A log that is longer than
    /// `log_limit_bytes` is made short while the process is the backup. `told` hears what happens.
    ///
    /// # Errors
    ///
    /// [`ClusterError`]: the source is no etcd, or etcd does not answer the first request; the log cannot be used.
    pub fn open_replicated(
        options: &ClusterOptions,
        speaker: UdpSocket,
        log_limit_bytes: u64,
        stop: &AtomicBool,
        told: &mut dyn FnMut(ReplicaEvent),
    ) -> Result<Option<(Cluster, Replayed)>, ClusterError> {
        let Some(lease_s) = etcd_lease_s(&options.source) else {
            return Err(MapError::refused(
                "a replicated node needs --etcd: only etcd decides who is its primary",
            )
            .into());
        };
        let keys = &options.node.keys;
        if !keys.nodes_can_speak() {
            let what =
                "there is no line `nodes HEX` in the key file: give all processes of the node the same";
            return Err(MapError::refused(what).into());
        }
        let first = options.addresses.iter().find_map(|address| match address {
            Address::Udp(socket) => Some(*socket),
            Address::Shm(_) => None,
        });
        let address = first.ok_or_else(|| MapError::refused("a replicated node listens at a UDP address"))?;
        let system = |what: &str| {
            let what = what.to_owned();
            move |error| ClusterError::System { what, error }
        };
        let own = speaker.local_addr().map_err(system("the socket's address"))?;
        // Copies come over TCP, at the port of the first UDP address.
        let listener =
            TcpListener::bind(own).map_err(system(&format!("listen on {own} for the backup (TCP)")))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (incarnation, lease) = (now.as_nanos() as u64 | REPLICATED, Duration::from_secs(lease_s));
        // In the map, the UDP addresses behind the first one are the backup's.
        let mut options = options.clone();
        options.addresses.retain(|one| *one == Address::Udp(address) || matches!(one, Address::Shm(_)));
        options.addresses.truncate(ADDRESSES_MAX - 1);
        let options = &options;
        let reads = StaleReads::default();
        let candidate = Candidate { options, incarnation, address, lease, stop, reads: &reads };
        let (mut node, replayed) = candidate.open()?;
        // Marks the primary down when its lease is over, and brings each new map.
        let watching = Member::watch(options.source.clone())?;
        let is_over = AtomicBool::new(false);
        let name = &options.name;
        let answerer = Answerer { socket: &speaker, keys, shared: watching.shared(), name, reads: &reads };
        let member = std::thread::scope(|scope| {
            scope.spawn(|| answerer.serve(&is_over));
            let _ends = Ends(&is_over);
            candidate.become_primary(&mut node, &replayed, watching.shared(), log_limit_bytes, told)
        })?;
        // Its thread may take a quarter of a second to end, and clients wait.
        std::thread::spawn(move || drop(watching));
        let Some((member, replica)) = member else { return Ok(None) };
        let member = Arc::new(member);
        let gate = Arc::new(Gate::new(member.lease().clone()));
        let _ = node.core.gate.set(gate.clone());
        {
            let mut writer = node.writer();
            writer.gate = Some(gate.clone());
            // A copy has the allocator of the primary, without this process's settings.
            writer.allocator.set_grace(options.node.grace_s);
        }
        let memory = (options.node.bytes, options.node.prefault);
        let mut cluster =
            Cluster::joined(node.clone(), member.clone(), incarnation, Some(speaker), false, memory)?;
        let primary = PrimaryOptions {
            name: options.name.clone(),
            primary: (incarnation, replica),
            addresses: options.addresses.clone(),
            secret: secret(keys),
            patience: lease / 2,
        };
        let started = Primary::start(node, member, gate, listener, primary);
        cluster.primary = Some(started.map_err(system("start a thread"))?);
        Ok(Some((cluster, replayed)))
    }
}

impl Candidate<'_> {
    /// Waits, and follows the primary, until this process has joined as the primary. Returns the membership and the number of its copy;
    /// `None`: it was stopped.
    fn become_primary(
        &self,
        node: &mut Node,
        replayed: &Replayed,
        shared: &Arc<Shared>,
        log_limit_bytes: u64,
        told: &mut dyn FnMut(ReplicaEvent),
    ) -> Result<Option<(Member, u64)>, ClusterError> {
        let name = &self.options.name;
        let mut authority: Box<dyn Authority> = self.options.source.connect()?;
        let begun = Instant::now();
        let (mut has_state, mut last) = (replayed.records > 0, None);
        let (mut is_part, mut pause, mut refused_since) = (false, PAUSE, None);
        let mut wait = |why: String, at_most: Duration, told: &mut dyn FnMut(ReplicaEvent)| {
            let event = ReplicaEvent::Waiting(why);
            if last.as_ref() != Some(&event) {
                told(event.clone());
                last = Some(event);
            }
            // A newer map ends the pause.
            let known = shared.map().epoch();
            let until = Instant::now() + at_most;
            while Instant::now() < until && shared.map().epoch() == known && !self.stop.load(Ordering::SeqCst)
            {
                let _ = shared.wait_newer(known, PAUSE.min(at_most));
            }
        };
        while !self.stop.load(Ordering::SeqCst) {
            let (map, listed) = match authority.replicas(name) {
                Ok(read) => read,
                Err(error) => {
                    wait(error.to_string(), PAUSE, told);
                    continue;
                }
            };
            let replica = node.writer().replica;
            let role = self.role(&map, listed, replica, begun);
            shared.publish(map);
            match role {
                Role::Wait(why) => wait(why.to_owned(), PAUSE * 4, told),
                Role::Backup(at, of, epoch) => {
                    self.reads.end();
                    if has_state {
                        // A copy that was complete may be the last one there is.
                        let is_part = is_part && node.writer().replica == 0;
                        // Dropped first: the empty node takes the log's lock.
                        *node = Node::open(NodeOptions {
                            base: 0,
                            bytes: 0,
                            log: None,
                            ..NodeOptions::default()
                        })?
                        .0;
                        *node = self.open_empty(is_part)?;
                    }
                    (has_state, is_part) = (true, true);
                    match self.follow(node, (at, of, epoch), shared, log_limit_bytes, told) {
                        Err(FollowError::Refused(why)) => {
                            let since = *refused_since.get_or_insert_with(Instant::now);
                            if since.elapsed() >= self.lease * 2 {
                                return Err(ClusterError::Refused { primary: at, why });
                            }
                            pause = (pause * 2).min(PAUSE_MAX.min(self.lease));
                            wait(
                                format!("the primary at {at} does not take this process: {why}"),
                                pause,
                                told,
                            );
                        }
                        Err(FollowError::Broken(error)) => {
                            let is_copy = node.writer().replica != 0;
                            refused_since = None;
                            pause = if is_copy { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
                            wait(format!("the primary at {at}: {error}"), pause, told);
                        }
                        Ok(()) => {}
                    }
                }
                Role::Primary => {
                    let replica = match replica {
                        0 => {
                            let mut writer = node.writer();
                            writer.number(memlift_ground::region::random().max(1));
                            writer.commit_now()?;
                            writer.replica
                        }
                        replica => replica,
                    };
                    let join = self.join(node, has_state);
                    if !self.options.node.accept_older_log {
                        node.fits(&shared.map(), &join)?;
                    }
                    node.begin_run(self.incarnation)?;
                    match Member::join_replica(self.options.source.clone(), join, replica) {
                        Ok(member) => return Ok(Some((member, replica))),
                        Err(error @ MapError::Refused { .. }) if listed.is_none() => return Err(error.into()),
                        // Another copy was faster, or etcd does not answer: what it says next decides.
                        Err(error) => wait(error.to_string(), PAUSE, told),
                    }
                }
            }
        }
        Ok(None)
    }

    fn join(&self, node: &Node, recovered: bool) -> Join {
        let (epoch, cluster) = {
            let writer = node.writer();
            (writer.epoch, writer.cluster)
        };
        Join {
            name: self.options.name.clone(),
            addresses: self.options.addresses.clone(),
            incarnation: self.incarnation,
            bytes: self.options.node.bytes,
            recovered,
            epoch,
            tenant: 0,
            cluster,
        }
    }
}

/// Waits, a minute at most, while the map shows a node of this name as up: the last start of this node may have been killed
/// just now.
fn wait_for_lease(source: &Source, join: &Join) -> Result<Map, MapError> {
    let until = Instant::now() + WAIT_FOR_LEASE;
    let mut authority = source.connect()?;
    loop {
        let map = authority.read()?;
        let up = map.nodes().iter().any(|node| node.name == join.name && node.state == State::Up);
        if !up || Instant::now() >= until {
            return Ok(map);
        }
        authority.wait(map.epoch(), Duration::from_millis(500))?;
    }
}

impl Node {
    /// Checks that the log of this node has the start that the map knows.
    fn fits(&self, map: &Map, join: &Join) -> Result<(), ClusterError> {
        let Some(known) = map.node_named(&join.name) else { return Ok(()) };
        let (runs, _) = self.core.history.all();
        // Logs that earlier releases wrote have no starts.
        let has_all = runs.is_empty() || runs.iter().any(|run| run.incarnation == known.incarnation);
        // With another cluster's log the map refuses the node, and says so.
        let is_of_another = join.cluster != 0 && map.cluster() != join.cluster;
        if has_all || !join.recovered || is_of_another {
            return Ok(());
        }
        Err(ClusterError::OlderLog { name: join.name.clone() })
    }

    /// Logs that a start begins, which joins the cluster with this incarnation.
    fn begin_run(&self, incarnation: u64) -> Result<(), LogError> {
        let mut writer = self.writer();
        writer.begin_run(incarnation);
        writer.commit_now()
    }
}

impl Writer {
    /// Brings the node's memory in line with the map. With `all`, memory that the map does not give this node is dropped;
    /// and it is an error if a range is missing that the map has given this node since an epoch that the node has already
    /// seen.
    pub(super) fn apply_map(
        &mut self,
        map: &Map,
        me: NodeId,
        all: bool,
        prefault: bool,
    ) -> Result<(), String> {
        let mine: Vec<_> = map.ranges().iter().filter(|range| range.owner == Some(me)).collect();
        if all {
            for (base, bytes) in self.allocator.detached() {
                self.step(RangeStep::Attach, base, bytes)?;
            }
            let reserved: Vec<(u64, u64)> =
                self.reserved.iter().map(|(base, bytes)| (*base, *bytes)).collect();
            for (base, bytes) in reserved {
                self.step(RangeStep::Discard, base, bytes)?;
            }
            for (base, bytes) in self.stretches() {
                let mut at = base;
                for range in mine.iter().filter(|range| range.base < base + bytes && base < range.end()) {
                    if at < range.base {
                        self.drop_stretch(at, range.base - at)?;
                    }
                    at = range.end();
                }
                if at < base + bytes {
                    self.drop_stretch(at, base + bytes - at)?;
                }
            }
        }
        let here = self.stretches();
        for range in mine {
            let covered = |(base, bytes): &(u64, u64)| *base <= range.base && range.end() <= base + bytes;
            if here.iter().any(covered) {
                continue;
            }
            if here.iter().any(|(base, bytes)| *base < range.end() && range.base < base + bytes) {
                return Err(format!("of {:#x} to {:#x} it has a part only", range.base, range.end()));
            }
            if all && self.epoch > 0 && range.since <= self.epoch {
                return Err(format!(
                    "{:#x} to {:#x} have been this node's since epoch {}, and its log does not have them: restore the log, or start \
                     without it and lose them",
                    range.base,
                    range.end(),
                    range.since
                ));
            }
            self.grant(range.base, range.bytes, prefault)?;
        }
        self.saw(map.epoch());
        Ok(())
    }
}
