// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node of a cluster. The map gives it its addresses, and ranges arrive and leave while it serves.
//!
//! - **Flow** log ─▶ join (`map::Member`) ─▶ [`Writer::apply_map`]: ranges that the map gives are mapped, others are dropped
//!   ─▶ shards, and one thread that runs [`Cluster::turn`]
//! - **Order** a node that was killed waits until the lease of its last start has run out, and then joins again
//! - **Owner** a [`Cluster`] holds the membership; dropping it makes the node leave
//! - **Rule** a map file is edited by people: a range that an edit takes from a node stays in the node's memory, unreachable,
//!   until the node restarts
//!   restarts

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::log::{LogError, RangeStep, Replayed};
use super::mover::Mover;
use super::writer::Writer;
use super::{Node, NodeError, NodeOptions};
use crate::map::{Address, Join, Map, MapError, Member, NodeId, Shared, Source, State};

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

/// A node, its membership, and the mover of its ranges.
#[derive(Debug)]
pub struct Cluster {
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
        let (bytes, prefault) = (node.bytes, node.prefault);
        let (node, replayed) = Node::open(NodeOptions { base: 0, bytes: 0, ..node })?;
        let is_map_file = matches!(source, Source::File(_));
        let (known, cluster) = (node.writer().epoch, node.cluster());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let incarnation = now.as_nanos() as u64;
        let recovered = replayed.records > 0;
        let join = Join { name, addresses, incarnation, bytes, recovered, epoch: known, tenant: 0, cluster };
        if !is_map_file {
            wait_for_lease(&source, &join)?;
        }
        let member = Arc::new(Member::join(source, join)?);
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
        Ok((Cluster { node, member, mover, me, is_map_file, bytes, epoch }, replayed))
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

/// Waits, a minute at most, while the map shows a node of this name as up: the last start of this node may have been killed
/// just now.
fn wait_for_lease(source: &Source, join: &Join) -> Result<(), MapError> {
    let until = Instant::now() + WAIT_FOR_LEASE;
    let mut authority = source.connect()?;
    loop {
        let map = authority.read()?;
        let up = map.nodes().iter().any(|node| node.name == join.name && node.state == State::Up);
        if !up || Instant::now() >= until {
            return Ok(());
        }
        authority.wait(map.epoch(), Duration::from_millis(500))?;
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
