// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's router that leaves it to the switch to find the node for an address.
//!
//! - **Order** the view answers for addresses of this node, and for those that cannot be reached; packets for addresses of
//!   other nodes are sent to the service address
//! - **Not here** the map of the switch ([`super::Switch::update`])

use std::net::{SocketAddr, SocketAddrV4};

use crate::map::View;
use crate::node::{Owner, Router};

/// See the module's header.
#[derive(Debug)]
pub struct Through {
    view: View,
    service: SocketAddrV4,
}

impl Through {
    /// Makes a router that forwards walks through the switch at `service`.
    #[must_use]
    pub fn new(view: View, service: SocketAddrV4) -> Through {
        Through { view, service }
    }
}

impl Router for Through {
    fn refresh(&mut self) -> bool {
        Router::refresh(&mut self.view)
    }

    fn sleeps(&mut self, sleeps: bool) {
        self.view.sleeps(sleeps);
    }

    fn epoch(&self) -> u64 {
        Router::epoch(&self.view)
    }

    fn owner(&mut self, epoch: u64, address: u64, write: bool) -> Owner {
        match self.view.owner(epoch, address, write) {
            Owner::Peer(_) => Owner::Peer(SocketAddr::V4(self.service)),
            other => other,
        }
    }

    fn keeps(&self) -> bool {
        self.view.keeps()
    }

    fn written(&self, address: u64, bytes: u64) {
        Router::written(&self.view, address, bytes);
    }

    fn is_node(&self, socket: SocketAddr) -> bool {
        self.view.is_node(socket)
    }

    fn entry(&self, address: u64) -> Vec<u8> {
        Router::entry(&self.view, address)
    }
}
