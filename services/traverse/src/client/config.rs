// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of a client.

use std::time::Duration;

use memlift_ground::on_wait::OnWait;

use crate::wire::Keys;

/// The side that forwards a walk when it leaves a node for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// The node forwards it, and the last node answers the client.
    #[default]
    Peer,
    /// The walk comes back to the client, which forwards it (PULSE-ACC, for comparison).
    Bounce,
}

/// Proof that a replicated node wants before it answers a read, that its backup has not taken over meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Its lease in etcd held after the last load. This relies on clocks whose rates differ by less than 6 %.
    #[default]
    Leased,
    /// Its backup has said so, after the last load. This needs no clock, and takes a round trip between the two.
    Confirmed,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tenant in whose name requests are made.
    pub tenant: u32,
    /// The tenant's key. Without keys, only nodes that require none answer.
    pub keys: Keys,
    /// Most requests in flight at a time; at most 512.
    pub window: usize,
    /// Longest wait for an answer. It must be shorter than the grace time of retired memory
    /// ([`crate::structures::pool::GRACE`]).
    pub deadline: Duration,
    /// Most iterations of a walk, over all nodes; walks of the shipped collections continue beyond that.
    pub iterations: u32,
    /// Most times that a walk may be forwarded from node to node on one visit; walks of the shipped collections continue
    /// beyond that.
    pub hops: u8,
    /// Side that forwards walks: the node, or this client.
    pub routing: Routing,
    /// Proof that replicated nodes want before they answer reads; others answer as usual.
    pub reads: Reads,
    /// True: reads and walks that change nothing are sent to the backup of a replicated node first, and may be older than what was
    /// acknowledged. Such a client changes nothing: its changes end with [`super::ClientError::StaleClient`].
    pub stale_ok: bool,
    /// Most times that a walk is started again because of concurrent writers.
    pub restarts: u32,
    /// The client's number. `None`: a random number for each session, and a client that makes changes begins a session every
    /// 30 to 60 seconds. Nodes refuse a second process with the same number; a process that uses a number again must raise
    /// the incarnation. A client with a fixed number that was idle for ten minutes gets [`super::ClientError::SessionOver`]
    /// once.
    pub client: Option<u64>,
    /// Number of this start of the client: raise it each time that the client's number is used again.
    pub incarnation: u32,
    /// Callback that may end a wait, that for the first answers (connecting) too.
    pub on_wait: Option<OnWait>,
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
            reads: Reads::Leased,
            stale_ok: false,
            restarts: 1000,
            client: None,
            incarnation: 1,
            on_wait: None,
        }
    }
}
