// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routes: the node that a request goes to first, and the transport to it.
//!
//! - **Flow** nodes report their ranges when a client connects; a map, or the entry in an answer `WrongNode`, changes
//!   these routes
//! - **Order** the latest report counts. A wrong route costs a hop only: nodes forward walks to the owner of the address
//! - **Not here** the map itself (`map`)

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use crate::map::{Address, Entry, Map, Node};
use crate::transport::{Peer, Transport};
use crate::wire::Stamp;

/// A transport, and the nodes that are reached over it.
#[derive(Debug)]
pub struct Link {
    /// Transport for the packets of these nodes, in both directions.
    pub transport: Box<dyn Transport>,
    /// Names of the nodes (for messages) and their addresses.
    pub nodes: Vec<(String, Peer)>,
}

/// A node that can be reached.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub name: String,
    pub link: usize,
    pub peer: Peer,
    /// Number of the node's memory (the cluster); 0: the node has not answered yet.
    pub cluster: u64,
    /// Newest stamp that the node has answered with. Each request names it: a node that was started with an older copy of its log
    /// does not know it, and refuses.
    pub stamp: Stamp,
    /// True for a place where a replicated node may be later. Nothing is allocated there, and nothing is sent there but the question
    /// where the node is.
    pub is_backup: bool,
    /// Place of the backup that the map lists, the epoch of that map, and the time at which the backup last did not answer.
    pub backup: Option<Peer>,
    pub backup_epoch: u64,
    pub backup_silent: Option<Instant>,
    /// True if this client has sent a change to the node.
    pub changed: bool,
    /// Time of the node's last answer.
    pub heard: Option<Instant>,
    /// Time since which the node has not answered. Nothing is allocated there before it is asked again.
    pub silent: Option<Instant>,
    /// True if somebody claims for the node, without proof by a key, that our key is wrong.
    pub key_refused: bool,
    /// True if the node's last words were that it may not answer, since it cannot reach etcd.
    pub has_no_lease: bool,
    /// Version of packets that somebody claims for the node, if it is not this client's.
    pub other_version: Option<u8>,
}

impl Reach {
    pub fn new(name: String, link: usize, peer: Peer, cluster: u64) -> Reach {
        Reach {
            name,
            link,
            peer,
            cluster,
            stamp: Stamp::default(),
            is_backup: false,
            backup: None,
            backup_epoch: 0,
            backup_silent: None,
            changed: false,
            heard: None,
            silent: None,
            key_refused: false,
            has_no_lease: false,
            other_version: None,
        }
    }
}

/// Ranges of addresses by first address; the values are the end and the node's index.
#[derive(Debug, Default)]
pub(super) struct Routes {
    ranges: BTreeMap<u64, (u64, usize)>,
    pub epoch: u64,
    last: (u64, u64, usize),
}

impl Routes {
    pub fn owner(&mut self, address: u64) -> Option<usize> {
        let (base, end, node) = self.last;
        if address.wrapping_sub(base) < end.wrapping_sub(base) {
            return Some(node);
        }
        let (&base, &(end, node)) = self.ranges.range(..=address).next_back()?;
        if address >= end {
            return None;
        }
        self.last = (base, end, node);
        Some(node)
    }

    /// Returns the first address of a node, as far as it is known.
    pub fn first_of(&self, node: usize) -> Option<u64> {
        self.ranges.iter().find(|(_, (_, owner))| *owner == node).map(|(&base, _)| base)
    }

    /// Makes a node the owner of the addresses from `base` up to `end`.
    pub fn assign(&mut self, base: u64, end: u64, node: usize) {
        if base >= end {
            return;
        }
        self.last = (0, 0, 0);
        // An older range that overlaps keeps its parts before `base` and behind `end`.
        if let Some((&before, &(stop, owner))) = self.ranges.range(..base).next_back()
            && stop > base
        {
            self.ranges.insert(before, (base, owner));
            if stop > end {
                self.ranges.insert(end, (stop, owner));
            }
        }
        let inside: Vec<u64> = self.ranges.range(base..end).map(|(&first, _)| first).collect();
        for first in inside {
            if let Some((stop, owner)) = self.ranges.remove(&first)
                && stop > end
            {
                self.ranges.insert(end, (stop, owner));
            }
        }
        self.ranges.insert(base, (end, node));
    }
}

/// Returns the index of a node of the map. A new node is added if it has a socket and some link has sockets.
pub(super) fn known(reaches: &mut Vec<Reach>, node: &Node, cluster: u64, epoch: u64) -> Option<usize> {
    let named = reaches.iter().find(|reach| reach.name == node.name);
    let before = named.map(|reach| reach.peer);
    let found = known_primary(reaches, node, cluster)?;
    // The addresses after the first one may be those of a backup, which knows where the node is once its primary is gone. The process
    // at the address that the node had before may be a backup by now.
    let before = before.and_then(|peer| match peer {
        Peer::Socket(socket) => Some(socket),
        Peer::Ring(_) => None,
    });
    for socket in node.sockets().chain(before) {
        add_backup(reaches, found, socket);
    }
    // An older map may name a backup that has missed changes since.
    if epoch >= reaches[found].backup_epoch {
        let listed = node.sockets().nth(1).filter(|_| node.is_replicated());
        let reach = &mut reaches[found];
        (reach.backup, reach.backup_epoch) = (listed.map(Peer::Socket), epoch);
    }
    Some(found)
}

/// Adds an address at which a node may be later, unless it is known.
fn add_backup(reaches: &mut Vec<Reach>, node: usize, socket: SocketAddr) {
    let Reach { link, peer, cluster, .. } = reaches[node];
    let at = Peer::Socket(socket);
    if matches!(peer, Peer::Socket(_)) && !reaches.iter().any(|reach| reach.peer == at) {
        reaches.push(Reach { is_backup: true, ..Reach::new(socket.to_string(), link, at, cluster) });
    }
}

/// Reaches a node from now on at another of its own addresses, at which it has answered.
pub(super) fn reach_at(reaches: &mut Vec<Reach>, index: usize, node: &Node, peer: Peer) {
    let Peer::Socket(answered) = peer else { return };
    if node.is_replicated() || !node.sockets().any(|socket| socket == answered) {
        return;
    }
    if let Peer::Socket(before) = std::mem::replace(&mut reaches[index].peer, peer) {
        add_backup(reaches, index, before);
    }
}

fn known_primary(reaches: &mut Vec<Reach>, node: &Node, cluster: u64) -> Option<usize> {
    // The other sockets of a replicated node are not the node, but its backup.
    let own = if node.is_replicated() { 1 } else { usize::MAX };
    let same = |reach: &Reach| {
        let ring = |address: &Address| matches!(address, Address::Shm(path) if reach.name == *path);
        !reach.is_backup
            && (node.sockets().take(own).any(|socket| reach.peer == Peer::Socket(socket))
                || node.addresses.iter().any(ring))
    };
    let named = reaches.iter().position(|reach| reach.name == node.name);
    if let Some(found) = named.or_else(|| reaches.iter().position(same)) {
        let reach = &mut reaches[found];
        // A restarted node may listen at another address. One that is not replicated may answer at any of its addresses.
        if let (Peer::Socket(at), Some(socket)) = (reach.peer, node.socket()) {
            if node.is_replicated() || !node.sockets().any(|own| own == at) {
                reach.peer = Peer::Socket(socket);
            }
            node.name.clone_into(&mut reach.name);
        }
        return Some(found);
    }
    let socket = node.socket()?;
    let link = reaches.iter().find(|reach| matches!(reach.peer, Peer::Socket(_)))?.link;
    reaches.push(Reach::new(node.name.clone(), link, Peer::Socket(socket), cluster));
    Some(reaches.len() - 1)
}

pub(super) fn take_entry(routes: &mut Routes, reaches: &mut Vec<Reach>, entry: &Entry) -> bool {
    let Some(node) = entry.node.as_ref().and_then(|node| known(reaches, node, entry.cluster, entry.epoch))
    else {
        return false;
    };
    routes.epoch = routes.epoch.max(entry.epoch);
    routes.assign(entry.range.base, entry.range.end(), node);
    true
}

pub(super) fn take_map(routes: &mut Routes, reaches: &mut Vec<Reach>, map: &Map) {
    if map.epoch() < routes.epoch {
        return;
    }
    *routes = Routes { epoch: map.epoch(), ..Routes::default() };
    for range in map.ranges() {
        let owner = range.owner.and_then(|id| map.node(id));
        if let Some(node) = owner.and_then(|node| known(reaches, node, map.cluster(), map.epoch())) {
            routes.assign(range.base, range.end(), node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Routes;

    #[test]
    fn what_is_heard_last_counts_and_the_rest_stays() {
        let mut routes = Routes::default();
        routes.assign(100, 200, 1);
        routes.assign(200, 300, 2);
        routes.assign(150, 250, 3);
        routes.assign(160, 170, 4);
        let owners: Vec<Option<usize>> =
            [99, 100, 149, 150, 160, 169, 170, 249, 250, 299, 300].map(|at| routes.owner(at)).to_vec();
        let right =
            [None, Some(1), Some(1), Some(3), Some(4), Some(4), Some(3), Some(3), Some(2), Some(2), None];
        assert_eq!(owners, right);
        routes.assign(0, 1000, 5);
        assert_eq!(routes.owner(165), Some(5));
        assert_eq!(routes.ranges.len(), 1);
    }
}
