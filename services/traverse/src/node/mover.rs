// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of a node that moves ranges to other nodes and from them, while the shards serve.
//!
//! - **Flow** packets of kind migrate ── a shard ──▶ [`Mover::turn`] ─▶ `map::migrate` ─▶ the node's memory ([`Host`]),
//!   answers by the node's own socket, and requests to the map's authority
//! - **Order** the log is written before other nodes are told of a step. The map's authority may get the same request twice
//! - **Owner** one mover per node. Steps that change something take the writer's lock; copying does not
//! - **Not here** the protocol (`map::migrate`), the effect of a step on the allocator and the log (`stretch`)

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::cluster::ClusterError;
use super::log::{LogError, RangeStep};
use super::{Core, MoverPeer, Node, locked};
use crate::map::migrate::{Arrival, Ask, Host, Message, Migrations, Outcome, Progress, RECORD_BYTES_MAX};
use crate::map::{MapError, Member, NodeId, Order};
use crate::wire::{Header, Kind, TENANT_NODES};

/// Packets that may wait for the mover. A packet that finds no room is dropped, and its sender repeats it.
const WAITING: usize = 4096;
/// Packets handled between two polls of all migrations.
const BATCH: usize = 256;
/// Longest sleep of the mover while something moves.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause between two requests to the map's authority, and after one that failed.
const ASK_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Pause between two updates of the progress that the shards report.
const PROGRESS_PAUSE: Duration = Duration::from_millis(50);

/// See the module's header.
#[derive(Debug)]
pub struct Mover {
    core: Arc<Core>,
    member: Arc<Member>,
    migrations: Migrations,
    inbox: Receiver<(MoverPeer, Vec<u8>)>,
    /// Socket by which this node talks to the others; `None`: they cannot reach it.
    speaker: Option<UdpSocket>,
    begun: Instant,
    next_ask_at: Instant,
    next_progress_at: Instant,
    out: Vec<(NodeId, Message)>,
    trouble: Option<String>,
}

impl Mover {
    pub(super) fn new(
        node: &Node,
        member: Arc<Member>,
        me: NodeId,
        incarnation: u64,
        speaker: Option<UdpSocket>,
    ) -> Mover {
        let (sender, inbox) = sync_channel(WAITING);
        let _ = node.core.mover.set(sender);
        let now = Instant::now();
        Mover {
            core: node.core.clone(),
            migrations: Migrations::new(member.shared().clone(), me, incarnation),
            member,
            inbox,
            speaker,
            begun: now,
            next_ask_at: now,
            next_progress_at: now,
            out: Vec::new(),
            trouble: None,
        }
    }

    /// Returns true if no range is arriving or leaving.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.migrations.is_idle()
    }

    /// Returns the ranges that are leaving, each with its progress.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.migrations.progress()
    }

    /// Returns the ranges that are arriving, each with its progress.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.migrations.arrivals()
    }

    /// Returns the migrations that ended since the last call.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        self.migrations.outcomes()
    }

    /// Returns the error of the last request to the map's authority, for people to read; `None` if it succeeded.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Waits for a packet, at most `at_most`, and at most 2 ms while something moves; then handles packets and polls all
    /// migrations.
    ///
    /// # Errors
    ///
    /// The log cannot be written: the node must stop.
    pub fn turn(&mut self, at_most: Duration) -> Result<(), ClusterError> {
        let pause = if self.is_idle() { at_most } else { at_most.min(PAUSE) };
        let mut next = match self.inbox.recv_timeout(pause) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            // The node is gone, so nobody is left to move ranges for.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let shared = self.member.shared().clone();
        let map = shared.map();
        let reached = self.speaker.is_some();
        let mut host = NodeHost { core: &self.core, reached, failed: None, changed: false };
        for _ in 0..BATCH {
            let Some((from, bytes)) = next else { break };
            // The number in a message is authenticated. A node of an earlier version sends none and is recognized by its
            // socket.
            let is_it = |node: &&crate::map::Node| match from.number {
                0 => node.socket() == Some(from.socket),
                number => u64::from(node.id.0) + 1 == number,
            };
            let node = map.nodes().iter().find(is_it).map(|node| node.id);
            if let (Some(node), Ok(message)) = (node, Message::decode(&bytes)) {
                self.migrations.receive(node, message, &mut host, &mut self.out);
            }
            next = self.inbox.try_recv().ok();
        }
        self.migrations.poll(self.begun.elapsed(), &mut host, &mut self.out);
        let NodeHost { failed, changed, .. } = host;
        if let Some(error) = failed {
            return Err(ClusterError::Log(error));
        }
        let mut writer = locked(&self.core.writer);
        if changed || writer.epoch < map.epoch() {
            writer.saw(map.epoch());
            if changed {
                writer.commit_now()?;
            } else {
                // An epoch alone may wait in memory until the disk has room.
                writer.commit()?;
            }
        }
        drop(writer);
        self.send_queued(&map);
        if Instant::now() >= self.next_progress_at {
            self.next_progress_at = Instant::now() + PROGRESS_PAUSE;
            *locked(&self.core.progress) = self.migrations.progress();
        }
        self.ask_authority();
        Ok(())
    }

    /// Sends the queued messages; the migrations repeat a message that is lost.
    fn send_queued(&mut self, map: &crate::map::Map) {
        let mut packet = Vec::new();
        for (to, message) in self.out.drain(..) {
            let Some(socket) = map.node(to).and_then(crate::map::Node::socket) else { continue };
            let header = Header {
                client: self.core.identity,
                cluster: self.core.cluster.load(Ordering::Relaxed),
                value: self.member.id().map_or(0, |me| u64::from(me.0) + 1),
                sequence: 1,
                tenant: TENANT_NODES,
                epoch: map.epoch(),
                clock: self.core.clock.now(),
                sender: self.core.identity,
                nonce: self.core.nonce.fetch_add(1, Ordering::Relaxed),
                ..Header::new(Kind::Migrate)
            };
            packet.clear();
            self.core.keys.seal(&header, &message.encode(), &mut packet);
            if let Some(speaker) = &self.speaker {
                let _ = speaker.send_to(&packet, socket);
            }
        }
    }

    fn ask_authority(&mut self) {
        let now = Instant::now();
        if now < self.next_ask_at {
            return;
        }
        let Some(ask) = self.migrations.asks().first().copied() else { return };
        let order = match ask {
            Ask::Commit(id) => Order::Commit(id),
            Ask::Cancel(id) => Order::Cancel(id),
        };
        let asked = match self.member.order(&order) {
            // The order may have been carried out before, or come too late: the newest map shows which.
            Err(MapError::Refused { .. }) => self.member.refresh().map(drop),
            other => other.map(drop),
        };
        self.trouble = asked.err().map(|error| error.to_string());
        self.next_ask_at = Instant::now() + if self.trouble.is_some() { ASK_PAUSE.1 } else { ASK_PAUSE.0 };
    }
}

/// Access of migrations to the node.
struct NodeHost<'a> {
    core: &'a Core,
    reached: bool,
    failed: Option<LogError>,
    changed: bool,
}

impl NodeHost<'_> {
    fn step(&mut self, what: RangeStep, base: u64, bytes: u64) -> Result<(), String> {
        self.changed = true;
        locked(&self.core.writer).step(what, base, bytes)
    }

    /// A backup has no part in moves, so the ranges of a replicated node stay.
    fn check_not_replicated(&self) -> Result<(), String> {
        match self.core.gate.get() {
            Some(_) => {
                Err("ranges do not move from or to a replicated node: start it without --replicate"
                    .to_owned())
            }
            None => Ok(()),
        }
    }

    /// Writes the log, so that the steps taken so far are durable before the next message leaves.
    fn commit(&mut self) {
        if let Err(error) = locked(&self.core.writer).commit_now() {
            self.failed.get_or_insert(error);
        }
    }
}

impl Host for NodeHost<'_> {
    fn begin(&mut self, base: u64, bytes: u64) -> Result<(), String> {
        self.check_not_replicated()?;
        if !self.reached {
            return Err("the node listens at no UDP address, by which others reach it".to_owned());
        }
        if !self.core.keys.nodes_can_speak() {
            return Err("there is no line `nodes HEX` in the key file: give all nodes the same".to_owned());
        }
        self.step(RangeStep::Cut, base, bytes)
    }

    fn load(&mut self, address: u64, target: &mut [u8]) {
        let mut bytes = Vec::with_capacity(target.len());
        self.core.memory.load(address, target.len(), &mut bytes);
        target.copy_from_slice(&bytes);
    }

    fn export(&mut self, base: u64, bytes: u64) -> Result<Vec<Vec<u8>>, String> {
        self.changed = true;
        let all = locked(&self.core.writer).export(base, bytes)?;
        Ok(all.chunks(RECORD_BYTES_MAX).map(<[u8]>::to_vec).collect())
    }

    fn cancel_leave(&mut self, base: u64, bytes: u64) {
        // The step fails only if nothing was detached, and then there is nothing to undo.
        let _ = self.step(RangeStep::Attach, base, bytes);
    }

    fn release(&mut self, base: u64, bytes: u64) {
        let _ = self.step(RangeStep::Give, base, bytes);
        self.commit();
    }

    fn reserve(&mut self, base: u64, bytes: u64) -> Result<(), String> {
        self.check_not_replicated()?;
        self.step(RangeStep::Reserve, base, bytes)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) {
        self.changed = true;
        locked(&self.core.writer).store_arriving(address, bytes);
    }

    fn import(&mut self, base: u64, bytes: u64, records: &[Vec<u8>]) -> Result<(), String> {
        self.changed = true;
        locked(&self.core.writer).import(base, bytes, &records.concat())
    }

    fn discard(&mut self, base: u64, bytes: u64) {
        self.changed = true;
        // Dropping cannot fail: the ends of the range were checked when it arrived.
        let _ = locked(&self.core.writer).drop_stretch(base, bytes);
    }
}
