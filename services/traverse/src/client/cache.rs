// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cache of pieces of node memory at the client; the least recently used piece is evicted first.
//!
//! - **Layout** pieces of [`PIECE_BYTES`] bytes, at multiples of that
//! - **Order** a piece is used until it is [`Cache::max_age`] old or the map's epoch has changed. Until then a walk may miss
//!   changes made since. When a walk reads memory that a cached piece points to, the read carries the clock at which the piece
//!   was read, so that the node refuses it once that memory may have been reused. Nodes of ordered maps never change: the cell,
//!   which each walk reads anew, decides which version is seen
//! - **Owner** one client

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Bytes of a piece. A window touches one or two pieces.
pub const PIECE_BYTES: u64 = 256;

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    used: u64,
    read: Instant,
    epoch: u64,
    /// The nodes' clock when the piece was requested, and a clock that is not earlier than its read.
    clocks: (u32, u32),
}

/// See the module's header.
#[derive(Debug)]
pub struct Cache {
    pieces: HashMap<u64, Piece>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    most: usize,
    /// Age after which a piece is not used any more.
    pub max_age: Duration,
    /// Lookups that found a usable piece.
    pub hits: u64,
    /// Lookups that found no usable piece.
    pub misses: u64,
}

impl Cache {
    /// Makes a cache for `bytes` bytes of pieces.
    #[must_use]
    pub fn new(bytes: usize, max_age: Duration) -> Cache {
        Cache {
            pieces: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            most: bytes / PIECE_BYTES as usize,
            max_age,
            hits: 0,
            misses: 0,
        }
    }

    /// Returns the bytes of all pieces in the cache.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pieces.len() * PIECE_BYTES as usize
    }

    /// Returns the piece that starts at `place`, if it may be used in this epoch, with its clocks ([`Cache::put`]).
    pub fn get(&mut self, place: u64, epoch: u64) -> Option<(&[u8], (u32, u32))> {
        let fresh = self
            .pieces
            .get(&place)
            .is_some_and(|piece| piece.epoch == epoch && piece.read.elapsed() < self.max_age);
        if !fresh {
            self.misses += 1;
            self.forget(place);
            return None;
        }
        self.hits += 1;
        self.clock += 1;
        let piece = self.pieces.get_mut(&place)?;
        self.by_use.remove(&piece.used);
        piece.used = self.clock;
        self.by_use.insert(self.clock, place);
        Some((&piece.bytes, piece.clocks))
    }

    /// Stores a piece with two times of the nodes' clock: one from when the piece was requested, and one that is not earlier
    /// than its read. If there is no room, the least recently used piece is evicted.
    pub fn put(&mut self, place: u64, bytes: Vec<u8>, epoch: u64, clocks: (u32, u32)) {
        self.forget(place);
        if self.most == 0 {
            return;
        }
        while self.pieces.len() >= self.most {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.pieces.remove(&oldest);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, place);
        self.pieces.insert(place, Piece { bytes, used: self.clock, read: Instant::now(), epoch, clocks });
    }

    /// Drops all pieces.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.by_use.clear();
    }

    /// Drops a piece.
    pub fn forget(&mut self, place: u64) {
        if let Some(piece) = self.pieces.remove(&place) {
            self.by_use.remove(&piece.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_and_another_epoch_is_another_world() {
        let mut cache = Cache::new(3 * 256, Duration::from_secs(3600));
        for place in [0, 256, 512] {
            cache.put(place, vec![place as u8; 256], 1, (0, 0));
        }
        assert!(cache.get(0, 1).is_some(), "used again");
        cache.put(768, vec![0; 256], 1, (0, 0));
        assert!(cache.get(256, 1).is_none() && cache.get(0, 1).is_some() && cache.bytes() == 768);
        assert!(cache.get(0, 2).is_none() && cache.get(0, 1).is_none(), "an old epoch's piece is dropped");
        let mut old = Cache::new(1 << 20, Duration::ZERO);
        old.put(0, vec![0; 256], 1, (0, 0));
        assert!(old.get(0, 1).is_none(), "too old at once");
    }
}
