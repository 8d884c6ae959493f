// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes of a B+tree.
//!
//! - **Layout** leaf: [`Order`], pointer to the next leaf, 14 keys, 14 values, in slots that stay where they are. With u64 keys
//!   the head is 128 bytes. Inner: count, 33 children, 32 keys, sorted
//! - **Why** an insert into a leaf changes one slot and the order's word, not half of the node; the log has just that. Inner
//!   nodes change once in several inserts and are read always, so they are sorted
//! - **Source** the permutation word is Masstree's (Mao, Kohler, Morris 2012, §4.6.2)

use super::super::{damaged, key};
use crate::Persist;
use crate::error::{Error, Result};
use crate::ptr::PPtr;
use crate::structures::Key;
use crate::view::{View, prefetch};

/// Entries of a leaf.
pub(super) const SLOTS: usize = 14;
/// A leaf with fewer looks for a neighbour to join.
pub(super) const LEAF_LOW: usize = 5;
/// Two leaves join when they have no more than this together.
pub(super) const LEAF_JOIN: usize = 12;
/// Separators of an inner node.
pub(super) const KEYS: usize = 32;
/// An inner node with fewer joins a neighbour or borrows.
pub(super) const INNER_LOW: usize = 10;

/// The order of a leaf's slots by their keys. Bits 0–3 hold the count, then a nibble holds each slot's number; slots from
/// `count` on are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order(u64);

impl Order {
    /// Nothing in use.
    pub const EMPTY: Order = {
        let (mut word, mut slot) = (0, 0);
        while slot < SLOTS as u64 {
            word |= slot << (4 + slot * 4);
            slot += 1;
        }
        Order(word)
    };

    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn read(word: u64) -> Result<Order> {
        if (word & 15) as usize > SLOTS {
            return Err(damaged("a leaf of a B+tree has more entries than slots"));
        }
        Ok(Order(word))
    }

    #[inline]
    pub fn count(self) -> usize {
        (self.0 & 15) as usize
    }

    /// The slot of the entry with this rank; of a free one from `count` on.
    #[inline]
    pub fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + rank * 4)) as usize & 15
    }

    /// Puts the first free slot at `rank`.
    #[inline]
    pub fn insert(self, rank: usize) -> Order {
        let (slots, count) = (self.0 >> 4, self.count());
        let free = slots >> (count * 4) & 15;
        let below = (1u64 << (rank * 4)) - 1;
        let above = !((1u64 << ((count + 1) * 4)) - 1);
        let between = slots & !below & !above & ((1u64 << (count * 4)) - 1);
        let slots = slots & below | free << (rank * 4) | between << 4 | slots & above;
        Order(slots << 4 | (count as u64 + 1))
    }

    /// Frees the slot at `rank`.
    #[inline]
    pub fn remove(self, rank: usize) -> Order {
        let (slots, count) = (self.0 >> 4, self.count());
        let gone = slots >> (rank * 4) & 15;
        let below = (1u64 << (rank * 4)) - 1;
        let above = !((1u64 << (count * 4)) - 1);
        let between = slots & !below & !above & !(15 << (rank * 4));
        let slots = slots & below | between >> 4 | gone << ((count - 1) * 4) | slots & above;
        Order(slots << 4 | (count as u64 - 1))
    }

    /// The first `count` entries only.
    pub fn first(self, count: usize) -> Order {
        Order(self.0 & !15 | count as u64)
    }

    /// Without the first `count` entries.
    pub fn without_first(self, count: usize) -> Order {
        (0..count).fold(self, |order, _| order.remove(0))
    }
}

/// A leaf: keys and values in slots, their order in `order`.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub(super) struct BTreeLeaf<K, V> {
    pub order: u64,
    pub next: PPtr<BTreeLeaf<K, V>>,
    pub keys: [K; SLOTS],
    pub values: [V; SLOTS],
}

impl<K: Key, V: Persist> BTreeLeaf<K, V> {
    /// With one entry. Free slots hold copies: there is no other value of an unknown type at hand.
    pub fn with(key: K, value: V) -> Self {
        let order = Order::EMPTY.insert(0).word();
        BTreeLeaf { order, next: PPtr::NULL, keys: [key; SLOTS], values: [value; SLOTS] }
    }

    /// Asks for order and keys, which a search reads one after the other.
    #[inline(always)]
    pub fn prefetch_head(&self) {
        prefetch(&self.order);
        prefetch(&self.keys);
    }

    #[inline]
    pub fn order(&self) -> Result<Order> {
        Order::read(self.order)
    }

    /// Rank of the first key that is not less, and whether it is equal.
    #[inline(always)]
    pub fn search<W: View>(&self, view: &W, order: Order, query: &K::Query) -> Result<(usize, bool)> {
        key::search(view, query, order.count(), |rank| self.key(order.slot(rank)))
    }

    #[inline]
    pub fn key(&self, slot: usize) -> Result<&K> {
        self.keys.get(slot).ok_or_else(|| damaged("a leaf of a B+tree names a slot that there is not"))
    }

    #[inline]
    pub fn value(&self, slot: usize) -> Result<&V> {
        self.values.get(slot).ok_or_else(|| damaged("a leaf of a B+tree names a slot that there is not"))
    }

    /// Fills a slot.
    pub fn set(&mut self, slot: usize, key: K, value: V) -> Result<()> {
        self.key(slot)?;
        (self.keys[slot], self.values[slot]) = (key, value);
        Ok(())
    }

    /// Where a slot's key is, from the leaf's start.
    pub const fn key_at(slot: usize) -> usize {
        std::mem::offset_of!(Self, keys) + slot * size_of::<K>()
    }

    /// Where a slot's value is.
    pub const fn value_at(slot: usize) -> usize {
        std::mem::offset_of!(Self, values) + slot * size_of::<V>()
    }
}

/// An inner node. Child i has the keys less than keys[i], and not less than keys[i − 1].
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub(super) struct BTreeInner<K> {
    pub count: u64,
    pub children: [u64; KEYS + 1],
    pub keys: [K; KEYS],
}

impl<K: Key> BTreeInner<K> {
    #[inline]
    pub fn count(&self) -> Result<usize> {
        if self.count > KEYS as u64 {
            return Err(damaged("an inner node of a B+tree has more keys than it can"));
        }
        Ok(self.count as usize)
    }

    /// The child to look into.
    #[inline(always)]
    pub fn child<W: View>(&self, view: &W, query: &K::Query) -> Result<usize> {
        let (at, equal) = key::search(view, query, self.count()?, |at| Ok(&self.keys[at]))?;
        Ok(at + usize::from(equal))
    }

    /// Puts a key at `at` and the child behind it.
    pub fn insert(&mut self, at: usize, key: K, child: u64) -> Result<()> {
        let count = self.count()?;
        if at > count || count == KEYS {
            return Err(twice());
        }
        self.keys.copy_within(at..count, at + 1);
        self.children.copy_within(at + 1..count + 1, at + 2);
        self.keys[at] = key;
        self.children[at + 1] = child;
        self.count += 1;
        Ok(())
    }

    /// Takes out the key at `at` and the child behind it.
    pub fn remove(&mut self, at: usize) -> Result<K> {
        let count = self.count()?;
        if at >= count {
            return Err(twice());
        }
        let key = self.keys[at];
        self.keys.copy_within(at + 1..count, at);
        self.children.copy_within(at + 2..count + 1, at + 1);
        self.count -= 1;
        Ok(key)
    }

    /// Splits off what is behind the key at `at`, which goes up.
    pub fn split(&mut self, at: usize) -> (K, Self) {
        let (count, mut right) = (self.count as usize, *self);
        right.keys.copy_within(at + 1..count, 0);
        right.children.copy_within(at + 1..count + 1, 0);
        right.count = (count - at - 1) as u64;
        self.count = at as u64;
        (self.keys[at], right)
    }

    /// Takes over what `right` has; `between` comes down.
    pub fn join(&mut self, between: K, right: &Self) {
        let (count, more) = (self.count as usize, right.count as usize);
        self.keys[count] = between;
        self.keys[count + 1..=count + more].copy_from_slice(&right.keys[..more]);
        self.children[count + 1..count + more + 2].copy_from_slice(&right.children[..=more]);
        self.count += 1 + more as u64;
    }
}

/// The error for a path that meets one node twice, which changed under it: the file is damaged.
#[cold]
fn twice() -> Error {
    damaged("an inner node of a B+tree is its own child")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_of_numbers_is_whole_lines() {
        assert_eq!(size_of::<BTreeLeaf<u64, [u64; 8]>>(), 1024);
        assert_eq!(BTreeLeaf::<u64, [u64; 8]>::value_at(0), 128);
    }

    proptest::proptest! {
        #[test]
        fn an_order_is_a_list_of_slots(steps in proptest::collection::vec((proptest::bool::ANY, 0usize..64), 0..200)) {
            let (mut order, mut model) = (Order::EMPTY, Vec::new());
            for (add, pick) in steps {
                if add && model.len() < SLOTS {
                    let (rank, slot) = (pick % (model.len() + 1), order.slot(model.len()));
                    order = order.insert(rank);
                    model.insert(rank, slot);
                } else if !add && !model.is_empty() {
                    let rank = pick % model.len();
                    order = order.remove(rank);
                    model.remove(rank);
                }
                let slots: Vec<usize> = (0..order.count()).map(|rank| order.slot(rank)).collect();
                assert_eq!(slots, model);
                let mut all: Vec<usize> = (0..SLOTS).map(|rank| order.slot(rank)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..SLOTS).collect::<Vec<_>>());
                let cut = pick % (model.len() + 1);
                assert_eq!(order.first(cut).count(), cut);
                let rest = order.without_first(cut);
                assert_eq!((0..rest.count()).map(|rank| rest.slot(rank)).collect::<Vec<_>>(), model[cut..]);
            }
        }
    }
}
