// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owners of addresses: a shard asks before it looks into its own memory, and when it finds nothing there.
//!
//! - **Order** asked once per range and not per hop: a shard keeps what it was told until [`Router::refresh`] says that it
//!   changed
//! - **Not here** where maps come from (`map`)

use std::net::SocketAddr;

use crate::map;

/// Owner of an address, as a router answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This node's, as all from `base` on for `bytes`.
    Local {
        /// First address of the range.
        base: u64,
        /// Bytes of the range.
        bytes: u64,
    },
    /// Another node, at this socket address.
    Peer(SocketAddr),
    /// It is changing hands, or the packet knows a newer map than this node: try again soon.
    Later,
    /// No node that can be reached.
    Unknown,
    /// The address may only be read.
    Denied,
}

/// A shard's view of the other nodes.
pub trait Router: Send + std::fmt::Debug {
    /// Takes in news of the map; returns true if there were any. Called at the start of each turn, when nothing is under way that
    /// an earlier answer allowed.
    fn refresh(&mut self) -> bool {
        false
    }

    /// Called before the shard sleeps (true) and after (false).
    fn sleeps(&mut self, sleeps: bool) {
        let _ = sleeps;
    }

    /// Epoch of the map that it knows; 0 without one.
    fn epoch(&self) -> u64;

    /// Returns the owner of `address`, for a packet with `epoch`.
    fn owner(&mut self, epoch: u64, address: u64, write: bool) -> Owner;

    /// Returns true if an answer of `owner` holds for its whole range until the next `refresh` with news.
    fn keeps(&self) -> bool {
        true
    }

    /// Called after bytes at an address were changed.
    fn written(&self, address: u64, bytes: u64) {
        let _ = (address, bytes);
    }

    /// Returns true if there are other nodes at all.
    fn has_peers(&self) -> bool {
        true
    }

    /// Returns true if a node of the map sends from there.
    fn is_node(&self, socket: SocketAddr) -> bool;

    /// Returns the socket at which the other nodes reach this one, as the map has it.
    fn home(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns the map's entry about an address, as clients read it; empty if there is none.
    fn entry(&self, address: u64) -> Vec<u8>;
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

    fn is_node(&self, _: SocketAddr) -> bool {
        false
    }

    fn entry(&self, _: u64) -> Vec<u8> {
        Vec::new()
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
        // A rule that holds only writes, or nothing, does not concern a walk; each change of a rule is news.
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
