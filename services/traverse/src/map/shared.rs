// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The current map of a process, and each shard's view of it, which routes packets.
//!
//! - **Flow** a new map or a new hold ─▶ [`Shared`] increments its generation ─▶ each [`View`] adopts both at the start of its
//!   next round ─▶ [`Shared::settled`] returns true once the last view has
//! - **Order** a view uses one map and one set of holds for a whole round. So when a generation has settled, all work that was
//!   allowed by older maps and holds is finished: a migration learns in this way that nobody writes any more, without a lock per
//!   write
//! - **Owner** a shard owns its view. A shard that sleeps parks its view, so that nobody waits for it
//! - **Not here** the reasons for a hold (`migrate`); the handling of held packets: the node routes them again in its next round

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::node::{Node, NodeId};
use super::range::{Cursor, Map, Place, Range};
use super::{Entry, MapError};

/// Access that a packet makes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read, by a walk or a read.
    Read,
    /// To change, fill or allocate memory.
    Write,
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'v> {
    /// This node owns the address.
    Here(&'v Range),
    /// That node owns it: forward the packet with this view's epoch, or answer with [`View::entry`].
    Peer(&'v Range, &'v Node),
    /// The packet knows a newer map, and this node does not own the range in its older one: retry in the next round, while
    /// the map is being read again.
    Refresh,
    /// The range is being handed over: retry the packet in the next round.
    Held,
    /// The node that owns it is down.
    Down(&'v Range, &'v Node),
    /// The data at the address was lost.
    Lost(&'v Range),
    /// No node owns it.
    Nowhere,
    /// The address may only be read.
    Denied(&'v Range),
}

/// Accesses that are held back from a range while it moves to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// No access is held back; writes are recorded.
    Nothing,
    /// Changes, fills and allocations are held back; walks may still read.
    Writes,
    /// All accesses are held back: the range may already belong to another node.
    Everything,
}

/// Pieces of a range that were written since they were last copied.
#[derive(Debug)]
pub struct Dirty {
    base: u64,
    bytes: u64,
    piece_bytes: u64,
    words: Vec<AtomicU64>,
}

impl Dirty {
    /// Makes the record of a range with all pieces marked as written.
    #[must_use]
    pub fn all(base: u64, bytes: u64, piece_bytes: u64) -> Dirty {
        let pieces = bytes.div_ceil(piece_bytes);
        let word = |index: u64| AtomicU64::new(u64::MAX >> (64 - (pieces - index * 64).min(64)));
        Dirty { base, bytes, piece_bytes, words: (0..pieces.div_ceil(64)).map(word).collect() }
    }

    /// Records that bytes were written. Call it after the store: whoever takes the piece then sees the stored bytes.
    pub fn mark(&self, address: u64, bytes: u64) {
        let (from, to) = (address.max(self.base), address.saturating_add(bytes).min(self.base + self.bytes));
        if from >= to {
            return;
        }
        for piece in (from - self.base) / self.piece_bytes..=(to - 1 - self.base) / self.piece_bytes {
            self.words[(piece / 64) as usize].fetch_or(1 << (piece % 64), Ordering::AcqRel);
        }
    }

    /// Returns the next written piece from `piece` on, and marks it as unwritten.
    pub fn take(&self, piece: u64) -> Option<u64> {
        let mut index = (piece / 64) as usize;
        let mut below = (1u64 << (piece % 64)) - 1;
        while index < self.words.len() {
            let bits = self.words[index].load(Ordering::Relaxed) & !below;
            if bits != 0 {
                let bit = bits.trailing_zeros();
                self.words[index].fetch_and(!(1 << bit), Ordering::AcqRel);
                return Some(index as u64 * 64 + u64::from(bit));
            }
            (index, below) = (index + 1, 0);
        }
        None
    }

    /// Returns the number of written pieces.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

/// A range that is being handed over, and the accesses that are held back from it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The migration's id.
    pub id: u64,
    /// First address of the range.
    pub base: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// Accesses that are held back.
    pub hold: Hold,
    /// Pieces that were written and are still to be copied.
    pub dirty: Arc<Dirty>,
}

#[derive(Debug)]
struct Now {
    map: Arc<Map>,
    rules: Arc<Vec<Rule>>,
}

/// The current map of a process.
#[derive(Debug)]
pub struct Shared {
    me: Option<NodeId>,
    generation: AtomicU64,
    wanted: AtomicU64,
    now: Mutex<Now>,
    changed: Condvar,
    views: Mutex<Vec<Arc<ViewGeneration>>>,
}

/// The generation that a view uses, on a cache line of its own; [`PARKED`] if it uses none.
#[derive(Debug)]
#[repr(align(64))]
struct ViewGeneration(AtomicU64);

const PARKED: u64 = u64::MAX;

impl Shared {
    /// Makes the shared map of a process: of this node, or of a client (`None`).
    #[must_use]
    pub fn new(map: Map, me: Option<NodeId>) -> Arc<Shared> {
        let now = Mutex::new(Now { map: Arc::new(map), rules: Arc::default() });
        let (generation, wanted) = (AtomicU64::new(1), AtomicU64::new(0));
        Arc::new(Shared { me, generation, wanted, now, changed: Condvar::new(), views: Mutex::default() })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the node that this process is; `None` in a client.
    #[must_use]
    pub fn me(&self) -> Option<NodeId> {
        self.me
    }

    /// Returns the current map.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.now().map.clone()
    }

    /// Makes a map the current one if it is newer; returns true if it was.
    pub fn publish(&self, map: Map) -> bool {
        let mut now = self.now();
        // A map of another cluster assigns the same addresses to other data.
        let other = now.map.cluster() != 0 && map.cluster() != now.map.cluster();
        if other || map.epoch() <= now.map.epoch() {
            return false;
        }
        now.map = Arc::new(map);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
        true
    }

    /// Sets or (with `None`) removes the hold of a migration. Returns the generation from which the change is visible.
    pub fn hold(&self, id: u64, rule: Option<Rule>) -> u64 {
        let mut now = self.now();
        let mut rules: Vec<Rule> = now.rules.iter().filter(|rule| rule.id != id).cloned().collect();
        rules.extend(rule);
        now.rules = Arc::new(rules);
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.changed.notify_all();
        generation
    }

    /// Returns true if every view uses this generation or a later one.
    #[must_use]
    pub fn settled(&self, generation: u64) -> bool {
        let views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.iter().all(|seen| seen.0.load(Ordering::SeqCst) >= generation)
    }

    /// Records that a packet claims a newer epoch, so that the thread that waits for maps reads again.
    pub fn note_claimed_epoch(&self, epoch: u64) {
        if self.wanted.fetch_max(epoch, Ordering::Relaxed) < epoch {
            self.changed.notify_all();
        }
    }

    /// Returns the newest epoch that was claimed, if it is newer than the map.
    #[must_use]
    pub fn wanted(&self) -> Option<u64> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        (wanted > self.map().epoch()).then_some(wanted)
    }

    /// Drops the claim of a newer epoch after the newest map was read, which showed that the claim was wrong.
    pub fn settle_wanted(&self, claimed: u64) {
        let _ = self.wanted.compare_exchange(claimed, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Waits until the map is newer than `epoch` or `timeout` is over; returns the map.
    #[must_use]
    pub fn wait_newer(&self, epoch: u64, timeout: Duration) -> Arc<Map> {
        let now = self.now();
        let waited = self.changed.wait_timeout_while(now, timeout, |now| now.map.epoch() <= epoch);
        waited.unwrap_or_else(PoisonError::into_inner).0.map.clone()
    }

    /// Makes a view for one shard or client.
    #[must_use]
    pub fn view(self: &Arc<Self>) -> View {
        let seen = Arc::new(ViewGeneration(AtomicU64::new(0)));
        self.views.lock().unwrap_or_else(PoisonError::into_inner).push(seen.clone());
        let now = self.now();
        let (map, rules) = (now.map.clone(), now.rules.clone());
        drop(now);
        let mut view = View { shared: self.clone(), seen, map, rules, cursor: Cursor::default() };
        view.refresh();
        view
    }
}

/// One shard's view: the map and the holds that it uses for a whole round.
#[derive(Debug)]
pub struct View {
    shared: Arc<Shared>,
    seen: Arc<ViewGeneration>,
    map: Arc<Map>,
    rules: Arc<Vec<Rule>>,
    cursor: Cursor,
}

impl Drop for View {
    fn drop(&mut self) {
        let mut views = self.shared.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

impl View {
    /// Returns this node's first UDP socket in the map.
    #[must_use]
    pub fn home(&self) -> Option<std::net::SocketAddr> {
        self.map.node(self.shared.me()?)?.socket()
    }

    /// Adopts the newest map and holds; returns true if they changed. Call it at the start of each round, when no work in
    /// progress depends on an earlier answer. Costs one load if nothing changed.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        let generation = self.shared.generation.load(Ordering::SeqCst);
        if generation == self.seen.0.load(Ordering::Relaxed) {
            return false;
        }
        self.adopt();
        true
    }

    #[cold]
    fn adopt(&mut self) {
        let now = self.shared.now();
        self.map = now.map.clone();
        self.rules = now.rules.clone();
        // Read under the lock, so that it is the generation of exactly this map and these rules.
        let generation = self.shared.generation.load(Ordering::SeqCst);
        drop(now);
        self.seen.0.store(generation, Ordering::SeqCst);
    }

    /// Parks this view before its shard sleeps: the view uses no map until it is refreshed, and nobody waits for it.
    pub fn park(&mut self) {
        self.seen.0.store(PARKED, Ordering::SeqCst);
    }

    /// Adopts the newest map and holds again. Call it after [`View::park`], before anything else.
    pub fn unpark(&mut self) {
        // From this store on, `settled` waits for this view. A thread that called `settled` before had already incremented
        // the generation, and `adopt` reads it only now.
        self.seen.0.store(0, Ordering::SeqCst);
        self.adopt();
    }

    /// Returns the epoch of the map that this view uses; packets carry it.
    #[must_use]
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.map.epoch()
    }

    /// Returns the map that this view uses.
    #[must_use]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Routes a packet that carries `epoch` and is about `address`.
    #[must_use]
    pub fn route(&mut self, epoch: u64, address: u64, access: Access) -> Route<'_> {
        let newer = epoch > self.map.epoch();
        if newer {
            self.shared.note_claimed_epoch(epoch);
        }
        let Some(range) = self.cursor.find(&self.map, address) else {
            return if newer { Route::Refresh } else { Route::Nowhere };
        };
        // In any newer map this node's range is still its own, unless it has agreed to give the range up. So packets pass
        // even if the newer map cannot be read now.
        if newer && (range.owner.is_none() || range.owner != self.shared.me) {
            return Route::Refresh;
        }
        if access == Access::Write && !range.permissions.write() && range.owner.is_some() {
            return Route::Denied(range);
        }
        if range.owner.is_some() && range.owner == self.shared.me {
            return match self.held(address) {
                Hold::Everything => Route::Held,
                Hold::Writes if access == Access::Write => Route::Held,
                _ => Route::Here(range),
            };
        }
        match self.map.owner(range) {
            Place::Owned(range, node) => Route::Peer(range, node),
            Place::Down(range, node) => Route::Down(range, node),
            Place::Lost(range) => Route::Lost(range),
            Place::Nowhere => Route::Nowhere,
        }
    }

    fn held(&self, address: u64) -> Hold {
        let rule = self.rules.iter().find(|rule| address.wrapping_sub(rule.base) < rule.bytes);
        rule.map_or(Hold::Nothing, |rule| rule.hold)
    }

    /// Returns the ranges that are being handed over. Shards that cache translated ranges must not cache these.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Records that bytes of a range of this node were changed; call it in the round in which [`View::route`] allowed the
    /// change.
    #[inline]
    pub fn written(&self, address: u64, bytes: u64) {
        for rule in self.rules.iter() {
            rule.dirty.mark(address, bytes);
        }
    }

    /// Returns the map's entry for an address of another node.
    #[must_use]
    pub fn entry(&self, address: u64) -> Option<Entry> {
        Entry::of(&self.map, address)
    }

    /// Returns the node to which a packet about an address is sent.
    ///
    /// # Errors
    ///
    /// [`MapError::Nowhere`], [`MapError::Lost`], [`MapError::Down`]
    pub fn node_of(&self, address: u64) -> Result<&Node, MapError> {
        self.map.node_of(address)
    }
}
