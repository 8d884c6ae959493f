// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of address ranges and the nodes that own them. It changes from epoch to epoch while walks go on.
//!
//! - **Flow** [`Source`] (a file, a coordinator, etcd) ─▶ [`Map`] ─▶ [`Shared`], one per process ─▶ a [`View`] per shard or client,
//!   which says for a packet's epoch and address: [`Route::Here`], to a peer, refresh first, or an error
//! - **Order** a packet with an older epoch is routed by the newer map; one with a newer epoch, about what is not this node's in the older
//!   map, waits until the map has been read again. A range that moved is answered with its new [`Entry`]
//! - **Owner** [`Shared`]; a view holds one map for one round, and says when it has taken the next
//! - **Not here** translating an address to memory (`memory`), packets (`wire`), what a node does with a route (`node`)
//!
//! The parts: `range` the map, `change` every step from one map to the next, `encode`, `diff`; `file`, `coordinator` and `etcd`
//! are where maps come from; `migrate` moves a range between nodes while it is used.

mod bytes;
mod change;
pub mod coordinator;
mod diff;
mod encode;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod etcd_address;
pub mod file;
pub mod frame;
mod member;
pub mod message;
pub mod migrate;
mod node;
mod range;
mod remote;
mod shared;
mod source;

pub use change::{Join, Order};
pub use coordinator::Coordinator;
pub use diff::{Change, Diff, NodeChange, Piece};
pub use encode::{ENTRY_BYTES_MAX, Entry, MAP_BYTES_MAX};
pub use error::MapError;
pub use etcd_address::EtcdAddress;
pub use frame::Secret;
pub use member::Member;
pub use node::{Address, Node, NodeId, State};
pub use range::{ADDRESS_END, Cursor, Map, Move, PAGE_BYTES, Permissions, Place, Range};
pub use remote::{Peer, Remote};
pub use shared::{Access, Dirty, Hold, Route, Rule, Shared, View};
pub use source::{Authority, Source};
