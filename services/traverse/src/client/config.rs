// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of a client.

use std::time::Duration;

use crate::wire::Keys;

/// The side that sends a walk on when it leaves a node for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// The node sends it on, and the last one answers the client.
    #[default]
    Peer,
    /// It comes back to the client, which sends it on (PULSE-ACC, for comparison).
    Bounce,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tenant that requests are made for.
    pub tenant: u32,
    /// The tenant's key; without keys, only nodes that ask for none answer.
    pub keys: Keys,
    /// Requests under way at a time; at most 512.
    pub window: usize,
    /// Time that an answer is waited for; shorter than retired memory rests ([`crate::structures::pool::GRACE`]).
    pub deadline: Duration,
    /// Iterations of a walk, over all nodes; walks of the collections themselves go on beyond that.
    pub iterations: u32,
    /// Times that a walk may be sent from node to node on one visit; walks of the collections themselves go on beyond that.
    pub hops: u8,
    /// Side that sends walks on: the node, or this client.
    pub routing: Routing,
    /// Times that a walk is started again because of concurrent writers.
    pub restarts: u32,
    /// The client's number; `None`: drawn at random for each session, and a client that makes changes begins one every 30 to 60
    /// seconds. Nodes refuse a second process with the same number; a process that uses a number again raises the incarnation. A
    /// client with a fixed number that was quiet for ten minutes gets [`super::ClientError::SessionOver`] once.
    pub client: Option<u64>,
    /// Number of this start of the client: raise it each time that the client's number is used again.
    pub incarnation: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tenant: 0,
            keys: Keys::none(),
            window: 128,
            deadline: Duration::from_secs(10),
            iterations: 1 << 22,
            hops: 64,
            routing: Routing::Peer,
            restarts: 1000,
            client: None,
            incarnation: 1,
        }
    }
}
