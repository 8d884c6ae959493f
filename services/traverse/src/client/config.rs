// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a client behaves.

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
    /// On whose behalf.
    pub tenant: u32,
    /// The tenant's key; none: nodes that ask for none.
    pub keys: Keys,
    /// Requests under way at a time; at most 512.
    pub window: usize,
    /// How long an answer is waited for: less than removed nodes rest ([`crate::structures::pool::GRACE`]).
    pub deadline: Duration,
    /// Iterations of a walk, over all nodes; walks of the collections themselves go on beyond that.
    pub iterations: u32,
    /// Times that a walk may be sent from node to node on one visit; walks of the collections themselves go on beyond that.
    pub hops: u8,
    /// Side that sends walks on: the node, or this client.
    pub routing: Routing,
    /// Times that a walk is started again because of writers.
    pub restarts: u32,
    /// The client's number; `None`: by chance, another one every minute. Nodes refuse a second client of one number; whoever uses
    /// one again raises the incarnation. A client with a number of its own that was quiet for ten minutes gets
    /// [`super::ClientError::SessionOver`] once.
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
