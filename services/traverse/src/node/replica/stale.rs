// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads that a backup answers from its copy, for clients that accept old data.
//!
//! - **Flow** [`StaleReads::put`]: a packet with [`FLAG_STALE`](crate::wire::FLAG_STALE) ─▶ [`StaleReads::turn`]: a shard over the copy runs it ─▶
//!   the answer, with the same flag
//! - **Order** a copy is read from when etcd lists it, until the process is the primary or begins another copy; after the primary's last
//!   word at most for [`LAST_WORD`]
//! - **Clock** requests are judged by the clock of the newest record, not by this process's. Memory that was unlinked and used again since
//!   a read began has a record of a later clock in front of its new contents, so such a read is refused
//! - **Owner** the thread that answers clients; the thread that follows the primary begins and ends the reads

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::map::Shared;
use crate::node::clock::Clock;
use crate::node::route::{Owner, Router};
use crate::node::shard::Shard;
use crate::node::{Node, locked};
use crate::transport::{Peer, Transport, TransportError};
use crate::wire::PACKET_BYTES_MAX;

/// Longest time for which a copy is read from after the primary's last word.
const LAST_WORD: Duration = Duration::from_secs(60);
/// Turns of the shard between two looks at the socket.
const TURNS: usize = 64;
/// Most packets that wait for the shard.
const WAITING_MAX: usize = 1024;

/// See the module's header.
#[derive(Debug, Default)]
pub(in crate::node) struct StaleReads {
    reader: Mutex<Option<Reader>>,
    is_busy: AtomicBool,
}

#[derive(Debug)]
struct Reader {
    shard: Shard,
    queues: Arc<Mutex<Queues>>,
    /// End of the reads; `None`: the primary is heard.
    until: Option<Instant>,
}

/// Packets of the shard, in both directions.
#[derive(Debug, Default)]
struct Queues {
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    leaving: Vec<(SocketAddr, Vec<u8>)>,
}

impl StaleReads {
    /// Reads come from this node from now on, whose newest record has this clock.
    pub(in crate::node) fn begin(&self, node: &Node, shared: &Arc<Shared>, clock: &Arc<Clock>) {
        let core = node.core.clone();
        // A node that has joined names its cluster; a copy is asked before.
        core.cluster.store(node.writer().cluster, Ordering::Relaxed);
        let queues = Arc::new(Mutex::new(Queues::default()));
        let router = CopyRouter { shared: shared.clone(), epoch: 0 };
        let shard = Shard::of_copy(core, Box::new(Passed(queues.clone())), Box::new(router), clock.clone());
        *locked(&self.reader) = Some(Reader { shard, queues, until: None });
    }

    /// The primary is not heard any more.
    pub(in crate::node) fn lose_primary(&self) {
        if let Some(reader) = locked(&self.reader).as_mut() {
            reader.until = Some(Instant::now() + LAST_WORD);
        }
    }

    /// The copy is not read any more. The caller may drop the node now.
    pub(in crate::node) fn end(&self) {
        *locked(&self.reader) = None;
    }

    /// Takes a packet. Without a copy it is dropped, and its client asks the primary.
    pub(super) fn put(&self, from: SocketAddr, packet: &[u8]) {
        if let Some(reader) = locked(&self.reader).as_ref() {
            let mut queues = locked(&reader.queues);
            if queues.arrived.len() < WAITING_MAX {
                queues.arrived.push_back((from, packet.to_vec()));
            }
        }
    }

    /// Returns true if the shard has more to do.
    pub(super) fn are_under_way(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    /// Runs the shard, and sends its answers.
    pub(super) fn turn(&self, socket: &UdpSocket) {
        let mut held = locked(&self.reader);
        if held.as_ref().is_some_and(|reader| reader.until.is_some_and(|until| Instant::now() >= until)) {
            *held = None;
        }
        let mut is_busy = false;
        if let Some(reader) = held.as_mut() {
            for _ in 0..TURNS {
                // A shard of a copy writes no log, and its transport does not fail.
                is_busy = reader.shard.turn().unwrap_or(false);
                if !is_busy {
                    break;
                }
            }
            for (to, packet) in std::mem::take(&mut locked(&reader.queues).leaving) {
                // A lost answer is asked for again.
                let _ = socket.send_to(&packet, to);
            }
        }
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }
}

/// Transport of packets that come from, and go to, the socket of the thread that answers clients.
#[derive(Debug)]
struct Passed(Arc<Mutex<Queues>>);

impl Transport for Passed {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        let mut queues = locked(&self.0);
        let count = most.min(queues.arrived.len());
        let arrived: Vec<_> = queues.arrived.drain(..count).collect();
        drop(queues);
        arrived.iter().for_each(|(from, packet)| take(Peer::Socket(*from), packet));
        Ok(count)
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        let Peer::Socket(to) = to else { return Ok(false) };
        locked(&self.0).leaving.push((to, packet.to_vec()));
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<(), TransportError> {
        Ok(())
    }

    fn packet_bytes(&self) -> usize {
        PACKET_BYTES_MAX
    }
}

/// Router of a copy: a walk that leaves the copy's memory goes back to its client.
#[derive(Debug)]
struct CopyRouter {
    shared: Arc<Shared>,
    epoch: u64,
}

impl Router for CopyRouter {
    fn refresh(&mut self) -> bool {
        self.epoch = self.shared.map().epoch();
        false
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn owner(&mut self, _: u64, _: u64, _: bool) -> Owner {
        Owner::Local { base: 0, bytes: u64::MAX }
    }

    fn has_peers(&self) -> bool {
        false
    }
}
