// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores of nodes and clients: nodes have the first core that this process may use, clients the second.
//!
//! - **Order** on one core both share it, and `qualifies` says so

use std::sync::OnceLock;

use crate::pin::Pinned;

/// Role of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A memory node, or a server that stands in for one.
    Node,
    /// A client that sends requests.
    Client,
}

/// The calling thread, held to its role's core until this is dropped.
#[derive(Debug)]
pub struct Held {
    _pinned: Option<Pinned>,
}

impl Held {
    /// Holds the calling thread.
    pub fn new(role: Role) -> Held {
        cores();
        let _pinned = match role {
            Role::Node => Pinned::first(None),
            Role::Client => Pinned::second(),
        };
        Held { _pinned }
    }
}

/// Cores that this process may use, as long as none of its threads is held.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(crate::machine::cores)
}

/// In words, for `qualifies`.
pub fn text() -> &'static str {
    if cores() > 1 { "node on one core, client on another, pinned" } else { "one core for all" }
}
