// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of address ranges and the nodes that own them. It changes from epoch to epoch while walks continue.
//!
//! - **Flow** [`Source`] (a file, a coordinator, etcd) ─▶ [`Map`] ─▶ [`Shared`], one per process ─▶ a [`View`] per shard or client. The
//!   view returns for a packet's epoch and address: [`Route::Here`], a peer, a refresh, or an error
//! - **Order** a packet with an older epoch is routed by the newer map. A packet with a newer epoch, about addresses that this node does
//!   not own in its older map, waits until the map was read again. A request for a range that has moved is answered with its new [`Entry`]
//! - **Owner** [`Shared`]; a view uses one map for a whole round, and records when it has adopted the next
//! - **Not here** translating an address to memory (`memory`), packets (`wire`), a node's use of a route (`node`)
//!
//! The parts: `range` is the map, `change` every step from one map to the next; `encode` and `diff` are its bytes and differences; maps
//! come from `file`, `coordinator` and `etcd`; `migrate` moves a range between nodes while it is used.

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
pub mod lease;
mod member;
pub mod message;
pub mod migrate;
mod node;
mod range;
mod remote;
mod replicas;
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
pub(crate) use node::{ADDRESSES_MAX, REPLICATED, is_name};
pub use node::{Address, Node, NodeId, State};
pub use range::{ADDRESS_END, Cursor, Map, Move, PAGE_BYTES, Permissions, Place, Range};
pub use remote::{Peer, Remote};
pub use replicas::{BackupOrder, Replicas};
pub use shared::{Access, Dirty, Hold, Route, Rule, Shared, View};
pub(crate) use source::etcd_lease_s;
pub use source::{Authority, Source};
