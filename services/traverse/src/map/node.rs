// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory node as the map describes it: name, addresses, state.
//!
//! - **Order** an id is never given twice. An incarnation is one start of the node's process; a promise to an earlier
//!   incarnation (a planned migration) does not hold for a later one
//! - **Not here** the work of a node

use std::fmt;
use std::net::SocketAddr;

use super::MapError;
use crate::resolve::resolve;

/// Most bytes of a node's name.
pub const NAME_BYTES_MAX: usize = 63;
/// Most addresses of one node.
pub const ADDRESSES_MAX: usize = 4;
/// Bit of a replicated node's incarnations. A release that does not know it takes it for a part of the number.
pub(crate) const REPLICATED: u64 = 1 << 63;
/// Most bytes of a shared-memory address: the limit of a Unix socket's path.
pub const SHM_BYTES_MAX: usize = 107;

/// A node's number, which names it in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Address at which a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `127.0.0.1:7700`, `host:7700`, or `udp:…`.
    Udp(SocketAddr),
    /// `shm:PATH`: the socket through which a shared-memory ring is opened, on the same machine.
    Shm(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp(address) => write!(f, "udp:{address}"),
            Address::Shm(path) => write!(f, "shm:{path}"),
        }
    }
}

impl Address {
    /// Parses `HOST:PORT`, `udp:HOST:PORT` or `shm:PATH`, as a map's file has it; a host's name is looked up.
    ///
    /// # Errors
    ///
    /// The text has none of these forms, the name was not found, or the address cannot be listened at.
    pub fn resolve(text: &str) -> Result<Address, MapError> {
        if let Some(path) = text.strip_prefix("shm:") {
            let address = Address::Shm(path.to_owned());
            return if address.is_good() {
                Ok(address)
            } else {
                Err(MapError::invalid(format!(
                    "{text:?}: after shm: comes a path of 1 to {SHM_BYTES_MAX} bytes"
                )))
            };
        }
        let socket = resolve(text.strip_prefix("udp:").unwrap_or(text));
        let address =
            Address::Udp(socket.map_err(|reason| MapError::invalid(format!("{reason}, or shm:PATH")))?);
        if address.is_good() {
            Ok(address)
        } else {
            Err(MapError::invalid(format!(
                "{text:?}: nobody can be reached at port 0 or at an unspecified address"
            )))
        }
    }

    /// Returns true if a node could listen there, and the encoding contains all of the address.
    pub(crate) fn is_good(&self) -> bool {
        match self {
            Address::Udp(SocketAddr::V4(address)) => address.port() != 0 && !address.ip().is_unspecified(),
            Address::Udp(SocketAddr::V6(address)) => {
                address.port() != 0
                    && !address.ip().is_unspecified()
                    && address.flowinfo() == 0
                    && address.scope_id() == 0
            }
            Address::Shm(path) => {
                !path.is_empty() && path.len() <= SHM_BYTES_MAX && !path.chars().any(char::is_control)
            }
        }
    }
}

/// State of a node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The lease has not run out.
    Up,
    /// The lease ran out: nobody answers for the node's ranges.
    Down,
}

/// One memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's number in the map.
    pub id: NodeId,
    /// Name of the node: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Addresses at which the node listens; the first is preferred.
    pub addresses: Vec<Address>,
    /// Number of this start of the node's process; no two starts have the same. The top bit is set if the node is replicated.
    pub incarnation: u64,
    /// State of the node's lease.
    pub state: State,
}

impl Node {
    /// Returns the first UDP address at which others reach the node, if it has one.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        self.sockets().next()
    }

    /// Returns true if the node is replicated. Its first UDP address is then the primary's, and the others are its backup's; those of
    /// another node are all its own.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.incarnation & REPLICATED != 0
    }

    /// Returns true if another process may take over when this one is down.
    #[must_use]
    pub fn has_backup(&self) -> bool {
        self.is_replicated() && self.sockets().count() > 1
    }

    /// Returns the UDP addresses.
    pub fn sockets(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().filter_map(|address| match address {
            Address::Udp(socket) => Some(*socket),
            Address::Shm(_) => None,
        })
    }

    /// Checks the fields that a node reports about itself.
    pub(super) fn validate(&self) -> Result<(), MapError> {
        if !is_name(&self.name) {
            return Err(MapError::invalid(format!(
                "node name {:?}: 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'",
                self.name.chars().take(NAME_BYTES_MAX + 1).collect::<String>()
            )));
        }
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES_MAX {
            return Err(MapError::invalid(format!(
                "node {} has {} addresses: 1 to {ADDRESSES_MAX} are possible",
                self.name,
                self.addresses.len()
            )));
        }
        match self.addresses.iter().find(|address| !address.is_good()) {
            Some(bad) => {
                Err(MapError::invalid(format!("node {}: nobody can be reached at {bad}", self.name)))
            }
            None => Ok(()),
        }
    }
}

/// Returns true if a text is a valid name of a node.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
