// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose an address is: what a shard asks before it looks into its own memory, and when it finds nothing there.
//!
//! - **Order** asked once per range and not per hop: a shard keeps what it was told until [`Router::refresh`] says that it changed
//! - **Not here** where maps come from (`map`)

use std::net::SocketAddr;

use crate::map;

/// Whose an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This node's, as all from `base` on for `bytes`.
    Local {
        /// First address.
        base: u64,
        /// How many.
        bytes: u64,
    },
    /// That node's.
    Peer(SocketAddr),
    /// It is changing hands, or the packet knows a newer map than this node: try again soon.
    Later,
    /// Nobody's who can be reached.
    Unknown,
    /// It may only be read.
    Denied,
}

/// What a shard knows of the other nodes.
pub trait Router: Send + std::fmt::Debug {
    /// Takes news; whether there were any. At the start of each turn, when nothing is under way that an earlier answer allowed.
    fn refresh(&mut self) -> bool {
        false
    }

    /// Before sleeping (true) and after (false).
    fn sleeps(&mut self, sleeps: bool) {
        let _ = sleeps;
    }

    /// Of the map.
    fn epoch(&self) -> u64;

    /// Whose `address` is, for a packet with `epoch`.
    fn owner(&mut self, epoch: u64, address: u64, write: bool) -> Owner;

    /// Returns true if an answer of `owner` holds for its whole range until the next `refresh` with news.
    fn keeps(&self) -> bool {
        true
    }

    /// Bytes at an address were changed.
    fn written(&self, address: u64, bytes: u64) {
        let _ = (address, bytes);
    }

    /// Returns true if there are other nodes at all.
    fn has_peers(&self) -> bool {
        true
    }

    /// Returns true if a node of the map sends from there: only those may send on the packets of others.
    fn is_node(&self, socket: SocketAddr) -> bool;

    /// What the map says about an address, as clients read it.
    fn entry(&self, address: u64) -> Vec<u8>;
}

/// One node, and no others.
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

pub(super) fn socket_of(node: &map::Node) -> Option<SocketAddr> {
    node.addresses.iter().find_map(|address| match address {
        map::Address::Udp(socket) => Some(*socket),
        map::Address::Shm(_) => None,
    })
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
            map::Route::Peer(_, node) => socket_of(node).map_or(Owner::Unknown, Owner::Peer),
            map::Route::Refresh | map::Route::Held => Owner::Later,
            map::Route::Denied(_) => Owner::Denied,
            map::Route::Down(..) | map::Route::Lost(_) | map::Route::Nowhere => Owner::Unknown,
        }
    }

    fn keeps(&self) -> bool {
        // What keeps only writes, or nothing, does not concern a walk; each change of a rule is news.
        self.rules().iter().all(|rule| rule.hold != map::Hold::Everything)
    }

    fn written(&self, address: u64, bytes: u64) {
        map::View::written(self, address, bytes);
    }

    fn is_node(&self, socket: SocketAddr) -> bool {
        self.map().nodes().iter().any(|node| socket_of(node) == Some(socket))
    }

    fn entry(&self, address: u64) -> Vec<u8> {
        map::View::entry(self, address).map(|entry| entry.encode()).unwrap_or_default()
    }
}
