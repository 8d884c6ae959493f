// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory node: it stores data, and runs walks over it for its clients.
//!
//! - **Flow** transport ─▶ [`Shard`] authenticates the packet. A walk: `registry`, a workspace (`lane`), rounds ─▶ answer, or
//!   forwarded to the next node ([`Router`]). A change: `writer`, carried out once (`once`), logged (`log`) ─▶ answer
//! - **Order** the answer to a change leaves after the log was written. Shards wait for the writer only, never for each other
//! - **Owner** the shards share [`Node`]; each [`Shard`] belongs to one thread, with a transport and a router of its own
//! - **Not here** the copies of a node in other processes (`replica`)

mod clock;
mod cluster;
mod compact;
mod control;
mod gate;
mod history;
mod lane;
mod log;
mod mover;
mod once;
mod outbox;
mod progress;
mod registry;
mod repair;
mod replica;
mod route;
mod shard;
mod snapshot;
mod stats;
mod stretch;
mod walks;
mod writer;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use memlift_ground::region::RegionError;

pub use clock::{Clock, GRACE};
pub use cluster::{Cluster, ClusterError, ClusterOptions, ReplicaEvent};
pub use compact::{Compacted, Compacting};
use gate::Gate;
use history::History;
pub use log::{Durability, LogEnd, LogError, LogReport, LogSaved, Replayed, check_log};
pub use mover::Mover;
pub use once::WINDOW;
pub use progress::{Leaving, leaving};
pub use registry::{PIECE_BYTES, Piece, Registry, Runner, UPLOAD_BYTES_MAX, program_of, upload_of};
pub use repair::repair_log;
pub use replica::BackupState;
pub use route::{Alone, Owner, Router};
pub use shard::Shard;
use stats::NodeRow;
pub use stats::{Counted, Counter, Stats};
pub use writer::Writer;

use crate::map::migrate::Progress;
use crate::memory::Memory;
use crate::transport::{Peer, Transport, TransportError};
use crate::wire::{Keys, Senders};

/// Default number of iterations in one visit.
pub const ITERATIONS_PER_VISIT: u32 = 4096;
/// Default of a node's first address.
pub const BASE: u64 = 1 << 32;

/// Reason that a node cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node's memory cannot be mapped.
    #[error("the node's memory: {0}")]
    Memory(#[from] RegionError),
    /// The node's log cannot be opened, read or written.
    #[error("the node's log: {0}")]
    Log(#[from] LogError),
    /// A record of the log cannot be replayed on this node.
    #[error("{}: {what}: the log does not fit this version or these sizes", path.display())]
    Replay {
        /// Path of the log.
        path: PathBuf,
        /// Reason that the replay failed, for people to read.
        what: String,
    },
    /// The transport to the clients failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The address range is not in whole pages, ends beyond 2^62, or exactly one of `base` and `bytes` is zero.
    #[error(
        "memory of {bytes} bytes does not fit behind address {base:#x}: both are multiples of 4096, below 2^62"
    )]
    Addresses {
        /// First address of the range.
        base: u64,
        /// Bytes of the range.
        bytes: u64,
    },
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// First global address.
    pub base: u64,
    /// Bytes of memory. With 0 here and in `base` the node has no memory until the map gives it addresses ([`Cluster`]).
    pub bytes: u64,
    /// True: all memory is touched (faulted in) at the start.
    pub prefault: bool,
    /// Walks in flight per shard and program; `None`: the node measures a good number.
    pub workspaces: Option<usize>,
    /// Iterations of one visit. A walk that needs more is answered with its state, and the client sends it again.
    pub iterations_per_visit: u32,
    /// Keys by which packets are authenticated. Without keys everybody who reaches the node may use it.
    pub keys: Keys,
    /// Path and durability of the log; `None`: changes are not logged.
    pub log: Option<(PathBuf, Durability)>,
    /// Programs held per tenant, besides those of the collections. When there are more, the least recently used one is dropped; its
    /// clients register it again.
    pub programs_per_tenant: usize,
    /// Client sessions whose changes are remembered: about 100 bytes for each session, and its unsettled requests.
    pub clients: usize,
    /// True: walks run as machine code where the CPU allows it.
    pub compile: bool,
    /// Seconds before unlinked memory becomes free again. Less than [`GRACE`] is safe only if no walk can still read the
    /// memory.
    pub grace_s: u32,
    /// True: a node of a cluster starts although its log lacks the node's last start. All changes since that log was copied are lost:
    /// clients and handles that know of one are refused, and data on other nodes that refers to one of them may lead to other data.
    pub accept_older_log: bool,
    /// Function that returns the system's time in seconds since 1970. Only the node's clock uses it, so leases and the choice of the primary
    /// do not depend on it.
    pub system_s: fn() -> u32,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            base: BASE,
            bytes: 1 << 30,
            prefault: true,
            workspaces: None,
            iterations_per_visit: ITERATIONS_PER_VISIT,
            keys: Keys::none(),
            log: None,
            programs_per_tenant: 256,
            clients: 1 << 18,
            compile: true,
            grace_s: GRACE,
            accept_older_log: false,
            system_s: clock::system_s,
        }
    }
}

/// Sender of a message from another node's mover.
#[derive(Clone, Copy, Debug)]
struct MoverPeer {
    /// Number in the map plus 1 that the sending node claims; 0: the message has none.
    number: u64,
    socket: SocketAddr,
}

/// Channel by which other shards pass packets for this shard's peers to it.
type Inbox = Sender<(Peer, Vec<u8>)>;
/// Shard and peer of a client, by tenant and client number.
type Relays = HashMap<(u32, u64), (usize, Peer)>;

/// State that the shards of a node share.
#[derive(Debug)]
struct Core {
    memory: Arc<Memory>,
    writer: Mutex<Writer>,
    registry: RwLock<Registry>,
    senders: Mutex<Senders>,
    /// Shard and peer of each client whose packets were forwarded with this node as the reply address.
    relays: Mutex<Relays>,
    /// The channels of all shards: a packet for a peer of another shard is passed through them.
    inboxes: Mutex<Vec<Inbox>>,
    /// Number and address of the first shard that reaches other nodes; the other shards send through it.
    gateway: OnceLock<(usize, SocketAddr)>,
    keys: Keys,
    /// Channel to the mover: messages of other nodes about ranges that move, each with its sender's address.
    mover: OnceLock<SyncSender<(MoverPeer, Vec<u8>)>>,
    /// Progress of the ranges that are leaving this node now.
    progress: Mutex<Vec<Progress>>,
    /// Locked while the log is compacted.
    compacting: Mutex<()>,
    clock: Arc<Clock>,
    /// The starts of the node, and how many changes it has acknowledged.
    history: Arc<History>,
    /// Gate of a replicated node, which holds answers until the backup has the changes.
    gate: OnceLock<Arc<Gate>>,
    /// Number of the cluster that the memory belongs to. Without a cluster it is a number of the memory itself.
    cluster: AtomicU64,
    /// True while the log cannot be written because its disk is full.
    log_full: AtomicBool,
    workspaces: OnceLock<usize>,
    iterations_per_visit: u32,
    /// This node's number as a sender of packets; `nonce` is the number of its next packet.
    identity: u64,
    nonce: AtomicU64,
    stats: Arc<Stats>,
    row: NodeRow,
}

impl Core {
    /// Returns the number of workspaces per lane. Unless the options give it, the first call measures it; the node has its
    /// memory by then.
    fn workspaces(&self) -> usize {
        *self.workspaces.get_or_init(|| lane_width(&self.memory))
    }
}

/// Locks a mutex even if its holder panicked: guarded values are changed in single steps, so they are whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A memory node. Threads of the caller serve it with the shards of [`Node::shard`].
#[derive(Clone, Debug)]
pub struct Node {
    core: Arc<Core>,
}

impl Node {
    /// Maps the memory and replays the log, if there is one; also returns how much was replayed.
    ///
    /// # Errors
    ///
    /// [`NodeError`]: the machine has not enough memory, or the log belongs to another node or is damaged.
    pub fn open(options: NodeOptions) -> Result<(Node, Replayed), NodeError> {
        let (base, bytes) = (options.base, options.bytes);
        let end = base.checked_add(bytes).filter(|&end| end <= crate::map::ADDRESS_END);
        if (base == 0) != (bytes == 0)
            || !base.is_multiple_of(4096)
            || !bytes.is_multiple_of(4096)
            || end.is_none()
        {
            return Err(NodeError::Addresses { base, bytes });
        }
        let memory = Arc::new(Memory::new(base, bytes, options.prefault)?);
        let workspaces = OnceLock::new();
        if let Some(chosen) = options.workspaces {
            let _ = workspaces.set(chosen.clamp(1, 1024));
        }
        let mut registry = Registry::new(options.programs_per_tenant, options.compile);
        let log = options.log.as_ref().map(|(path, durability)| (path.as_path(), *durability));
        let (mut writer, replayed) =
            Writer::open(memory.clone(), options.clients, log, &mut registry, Clock::of(options.system_s))?;
        writer.clock.tick();
        // A node of a cluster learns its cluster's number when it joins.
        if writer.cluster == 0 && bytes > 0 {
            writer.belongs_to(memlift_ground::region::random());
        }
        // A node of a cluster begins its run when it knows its incarnation.
        if bytes > 0 {
            writer.begin_run(0);
            writer.commit()?;
        }
        let (clock, history) = (writer.clock.clone(), writer.history.clone());
        let cluster = AtomicU64::new(writer.cluster);
        writer.allocator.set_grace(options.grace_s);
        let log_full = AtomicBool::new(writer.is_full());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let core = Core {
            memory,
            writer: Mutex::new(writer),
            registry: RwLock::new(registry),
            senders: Mutex::new(Senders::new(options.clients)),
            relays: Mutex::default(),
            inboxes: Mutex::default(),
            gateway: OnceLock::new(),
            keys: options.keys,
            mover: OnceLock::new(),
            progress: Mutex::default(),
            compacting: Mutex::default(),
            clock,
            history,
            gate: OnceLock::new(),
            cluster,
            log_full,
            workspaces,
            iterations_per_visit: options.iterations_per_visit.max(1),
            identity: memlift_ground::region::random(),
            nonce: AtomicU64::new(now.as_nanos() as u64),
            stats: Arc::default(),
            row: NodeRow::default(),
        };
        Ok((Node { core: Arc::new(core) }, replayed))
    }

    /// Adds a shard. Its thread calls [`Shard::turn`] or [`Shard::serve`].
    #[must_use]
    pub fn shard(&self, transport: Box<dyn Transport>, router: Box<dyn Router>) -> Shard {
        let (sender, inbox) = std::sync::mpsc::channel();
        let mut inboxes = locked(&self.core.inboxes);
        inboxes.push(sender);
        if let Some(local) = transport.local() {
            let _ = self.core.gateway.set((inboxes.len() - 1, local));
        }
        Shard::new(self.core.clone(), inboxes.len() - 1, inbox, transport, router)
    }

    /// Returns the memory that the node serves.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.core.memory
    }

    /// Locks the writer; programs in this process use it to change the memory themselves.
    pub fn writer(&self) -> MutexGuard<'_, Writer> {
        locked(&self.core.writer)
    }

    /// Returns the number of the cluster that the memory belongs to; without a cluster, the number of the memory itself.
    /// Requests that name another number are refused.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.core.cluster.load(Ordering::Relaxed)
    }

    /// Assigns the memory to this cluster, and logs that.
    ///
    /// # Errors
    ///
    /// The log cannot be written.
    pub(super) fn join_cluster(&self, cluster: u64) -> Result<(), LogError> {
        let mut writer = self.writer();
        writer.belongs_to(cluster);
        self.core.cluster.store(cluster, Ordering::Relaxed);
        writer.commit_now()
    }

    /// Returns true while the disk of the log is full. The node then refuses changes and serves reads.
    #[must_use]
    pub fn is_log_full(&self) -> bool {
        self.core.log_full.load(Ordering::Relaxed)
    }

    /// Returns the counters of all shards.
    #[must_use]
    pub fn stats(&self) -> &Arc<Stats> {
        &self.core.stats
    }

    /// Returns the number of walks in flight per shard and program.
    #[must_use]
    pub fn workspaces(&self) -> usize {
        self.core.workspaces()
    }

    /// Registers a program in this process, as an upload by a client would.
    ///
    /// # Errors
    ///
    /// The reason that the program was refused, or the error of the log.
    pub fn register(&self, tenant: u32, program: crate::program::Program) -> Result<(), String> {
        let upload = upload_of(&program);
        let mut registry = self.core.registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.insert(tenant, program).map_err(|(_, reason)| reason)?;
        drop(registry);
        let mut writer = self.writer();
        writer.registered(tenant, upload);
        writer.commit_now().map_err(|error| error.to_string())
    }

    /// Returns the terms of maps that the node sweeps: tenant, address, and whether the node has the address now.
    #[must_use]
    pub fn declared(&self) -> Vec<(u32, u64, bool)> {
        let writer = self.writer();
        let stretches = writer.stretches();
        let is_here = |at: u64| stretches.iter().any(|&(base, bytes)| at.wrapping_sub(base) < bytes);
        writer.declared.iter().map(|(&address, &tenant)| (tenant, address, is_here(address))).collect()
    }

    /// Stops sweeping the map whose terms are at an address, and logs that.
    pub fn undeclare(&self, address: u64) {
        self.writer().undeclare(address);
    }

    /// Returns tenant, name and hash of each program that the node holds.
    #[must_use]
    pub fn programs(&self) -> Vec<(u32, String, crate::wire::Hash)> {
        let registry = self.core.registry.read().unwrap_or_else(PoisonError::into_inner);
        registry
            .list()
            .map(|(tenant, runner)| (tenant, runner.program().name().to_owned(), runner.hash()))
            .collect()
    }
}

/// Returns the default number of workspaces of a lane. It is measured. Memory below 64 MiB gets 8 without a measurement: it
/// stays in the cache, where few walks in flight answer sooner.
fn lane_width(memory: &Memory) -> usize {
    if memory.bytes() < 64 << 20 { 8 } else { calibrate(memory) }
}

/// Chases pointers through the empty memory with more and more walks at a time (the width), and returns the least width
/// whose rate is within a thirtieth of the best. As in a round, nearly all of a hop's cost is its cache miss.
fn calibrate(memory: &Memory) -> usize {
    const WIDTHS: [usize; 8] = [8, 16, 24, 32, 48, 64, 96, 128];
    const HOPS: u64 = 1 << 17;
    let mask = (1 << (memory.bytes() / 64).min(1 << 22).ilog2()) - 1;
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let base = memory.base();
    let place = |seed: u64| base + (seed.wrapping_mul(step) >> 20 & mask) * 64;
    let mut rates = [0.0_f64; WIDTHS.len()];
    for (rate, width) in rates.iter_mut().zip(WIDTHS) {
        let seeds = (1..=width as u64).map(|seed| seed.wrapping_mul(step));
        let mut cursors: Vec<(u64, u64)> = seeds.map(|seed| (seed, place(seed))).collect();
        let start = std::time::Instant::now();
        for _ in 0..HOPS / width as u64 {
            for (seed, address) in &mut cursors {
                // Empty memory holds zeros: the word changes nothing, but the next address now depends on the load.
                let read = memory.word(*address).load(Ordering::Relaxed);
                *seed = seed.wrapping_add(step).rotate_left(11) ^ read;
                *address = place(*seed);
                crate::round::prefetch(memory.host(*address));
            }
        }
        std::hint::black_box(&cursors);
        *rate = HOPS as f64 / start.elapsed().as_secs_f64();
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    rates.iter().zip(WIDTHS).find(|(rate, _)| **rate >= best * 29.0 / 30.0).map_or(32, |(_, width)| width)
}
