// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collections whose nodes lie on memory nodes: hash map, ordered map, list; and the programs that walk them.
//!
//! - **Flow** collection ──walks, writes, compare-and-swap──▶ [`heap::Heap`]: a client, or this process ([`image`]). Many values at a
//!   time: [`load`] takes pairs, from [`arrow`] too; [`bulk`] builds their nodes for a [`sink`], in slabs of the heap or at addresses
//!   that [`placement`] chooses
//! - **Order** a change takes effect at one compare-and-swap, exactly once; the replaced memory rests at its node until no walk can be
//!   there ([`pool::GRACE`])
//! - **Not here** requests, timers and caches (`client`). Of the paper's thirteen structures there are only the programs ([`shipped`]):
//!   their nodes have the layout of the library that built them

#[expect(unsafe_code, reason = "reads memory that is described by C structures")]
pub mod arrow;
mod addend;
pub mod bulk;
pub mod chain;
pub mod expiring;
pub mod hash;
pub mod heap;
pub mod image;
pub mod list;
pub mod load;
mod many;
pub mod ordered;
pub mod placement;
pub mod pool;
mod removal;
pub mod shipped;
pub mod sink;

pub use addend::Addend;
pub use chain::{Aggregate, Key};
pub use expiring::ExpiringMap;
pub use hash::HashMap;
pub use heap::{Heap, Outcome, Scratch, Walk, Walked};
pub use image::Image;
pub use list::List;
pub use ordered::OrderedMap;
