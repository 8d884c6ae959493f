// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the owners of addresses. A shard asks its router before it looks into its own memory, and again when it finds
//! nothing there.
//!
//! - **Order** a shard asks once per range and not per hop: it uses an answer until [`Router::refresh`] reports a change
//! - **Not here** the source of maps (`map`)

use std::net::SocketAddr;

use crate::map;

/// Owner of an address, as a router reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This node owns the address, and all others of this range.
    Local {
        /// First address of the range.
        base: u64,
        /// Bytes of the range.
        bytes: u64,
    },
    /// Another node owns it, at this socket address.
    Peer(SocketAddr),
    /// The address is moving to another node, or the packet knows a newer map than this node: try again soon.
    Later,
    /// No reachable node owns it.
    Unknown,
    /// The address may only be read.
    Denied,
}

/// A shard's view of the other nodes.
pub trait Router: Send + std::fmt::Debug {
    /// Adopts news of the map; returns true if there were any. Called at the start of each turn, when no work in progress
    /// depends on an earlier answer.
    fn refresh(&mut self) -> bool {
        false
    }

    /// Called before the shard sleeps (true) and after (false).
    fn sleeps(&mut self, sleeps: bool) {
        let _ = sleeps;
    }

    /// Returns the epoch of the newest map that the router knows; 0 without a map.
    fn epoch(&self) -> u64;

    /// Returns the owner of `address`, for a packet of map epoch `epoch`. `write` is true if the address will be written.
    fn owner(&mut self, epoch: u64, address: u64, write: bool) -> Owner;

    /// Returns true if an answer of `owner` holds for its whole range until the next `refresh` with news.
    fn keeps(&self) -> bool {
        true
    }

    /// Called after bytes at an address were changed.
    fn written(&self, address: u64, bytes: u64) {
        let _ = (address, bytes);
    }

    /// Returns true if there are other nodes.
    fn has_peers(&self) -> bool {
        true
    }

    /// Returns true if `socket` is the address of a node of the map.
    fn is_node(&self, socket: SocketAddr) -> bool {
        let _ = socket;
        false
    }

    /// Returns the socket at which the other nodes reach this one, as the map gives it.
    fn home(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns the map's entry about an address, encoded for clients; empty if there is none.
    fn entry(&self, address: u64) -> Vec<u8> {
        let _ = address;
        Vec::new()
    }
}

/// Router of a node without a cluster: it owns every address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Router for Alone {
    fn epoch(&self) -> u64 {
        0
    }

    fn owner(&mut self, _: u64, _: u64, _: bool) -> Owner {
        Owner::Local { base: 0, bytes: u64::MAX }
    }

    fn has_peers(&self) -> bool {
        false
    }
}

impl Router for map::View {
    fn refresh(&mut self) -> bool {
        map::View::refresh(self)
    }

    fn sleeps(&mut self, sleeps: bool) {
        if sleeps { self.park() } else { self.unpark() }
    }

    fn epoch(&self) -> u64 {
        map::View::epoch(self)
    }

    fn owner(&mut self, epoch: u64, address: u64, write: bool) -> Owner {
        let access = if write { map::Access::Write } else { map::Access::Read };
        match self.route(epoch, address, access) {
            map::Route::Here(range) => Owner::Local { base: range.base, bytes: range.bytes },
            map::Route::Peer(_, node) => node.socket().map_or(Owner::Unknown, Owner::Peer),
            map::Route::Refresh | map::Route::Held => Owner::Later,
            map::Route::Denied(_) => Owner::Denied,
            map::Route::Down(..) | map::Route::Lost(_) | map::Route::Nowhere => Owner::Unknown,
        }
    }

    fn keeps(&self) -> bool {
        // Walks only read, so a rule that holds back writes or nothing does not concern them; a change of a rule counts as
        // news.
        self.rules().iter().all(|rule| rule.hold != map::Hold::Everything)
    }

    fn written(&self, address: u64, bytes: u64) {
        map::View::written(self, address, bytes);
    }

    fn is_node(&self, socket: SocketAddr) -> bool {
        self.map().nodes().iter().any(|node| node.socket() == Some(socket))
    }

    fn home(&self) -> Option<SocketAddr> {
        map::View::home(self)
    }

    fn entry(&self, address: u64) -> Vec<u8> {
        map::View::entry(self, address).map(|entry| entry.encode()).unwrap_or_default()
    }
}
