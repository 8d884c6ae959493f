// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A topic and its subscribers, as the books have them; `publish.rs` moves values through them.

use super::handle::BlockId;
use super::packet::Packet;
use crate::fork::SessionSocket;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most values that may wait for one subscriber.
pub const DEPTH_MAX: u64 = 1 << 16;

/// A topic, as its arena knows it.
#[derive(Debug, Default)]
pub struct Topic {
    pub latest: Option<BlockId>,
    pub published: u64,
}

/// The topic that a subscriber follows, and the values that it has yet to get.
#[derive(Debug)]
pub struct Following {
    pub topic: String,
    /// Values that may wait; 0: the latest only.
    pub depth: u64,
    pub waiting: VecDeque<(BlockId, u64)>,
    pub sent: Option<BlockId>,
    /// True if it asked for the next value.
    pub asks: bool,
    pub missed: u64,
}

/// A packet to be sent once the lock is free.
pub type Parcel = (u64, Arc<SessionSocket>, Packet);

/// Behaviour of a publisher towards subscribers that are behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Slow {
    /// It waits until each of them has room.
    #[default]
    Wait,
    /// Their oldest waiting value goes, and is counted as missed.
    Drop,
}

impl Following {
    /// The values that are held for it.
    pub fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.waiting.iter().map(|(id, _)| *id).chain(self.sent)
    }

    pub fn is_full(&self) -> bool {
        self.depth != 0 && !self.asks && self.waiting.len() as u64 >= self.depth
    }
}
