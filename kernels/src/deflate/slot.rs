// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of the search for earlier bytes: for each hash, the last places that had it.
//!
//! - **Layout** one integer per hash, a place in each 16 bits, the latest lowest: [`u16`] has one place, [`u128`] eight. A new
//!   place moves the others up and the oldest out. 0 also means "none": a wrong candidate is harmless, because bytes
//!   and distance are compared.
//! - **Owner** [`Table`] owns the memory for the widest use; how much of it is used, and as which integers, is its [`Shape`].

use super::room::zeroed;

/// The last places with one hash.
pub trait Slot: Copy {
    /// Number of places in a slot.
    const WAYS: usize;
    /// Adds a place, and drops the oldest.
    fn with(self, place: usize) -> Self;
    /// The place that was added `way` places ago.
    fn place(self, way: usize) -> usize;
}

macro_rules! slot {
    ($($integer:ty),*) => {$(
        impl Slot for $integer {
            const WAYS: usize = size_of::<$integer>() / 2;

            #[inline(always)]
            fn with(self, place: usize) -> Self {
                self.checked_shl(16).unwrap_or(0) | place as $integer
            }

            #[inline(always)]
            fn place(self, way: usize) -> usize {
                (self >> (16 * way)) as u16 as usize
            }
        }
    )*};
}

slot!(u16, u32, u64, u128);

/// A slot as the low half of a wider one.
trait Low<T> {
    fn low(wide: T) -> Self;
}

macro_rules! low {
    ($($narrow:ty, $wide:ty);*) => {$(
        impl Low<$wide> for $narrow {
            #[inline(always)]
            fn low(wide: $wide) -> $narrow {
                wide as $narrow
            }
        }
    )*};
}

low!(u16, u32; u32, u64; u64, u128);

/// How many places a hash remembers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ways {
    One,
    Two,
    Four,
    Eight,
}

/// How the table is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub ways: Ways,
    /// The bits of a hash.
    pub hash_bits: u32,
    /// How many bytes are hashed: as many as the shortest match has. 3 or 5.
    pub shortest: usize,
}

impl Shape {
    /// Places that the table has.
    const fn places(self) -> usize {
        let ways = match self.ways {
            Ways::One => 1,
            Ways::Two => 2,
            Ways::Four => 4,
            Ways::Eight => 8,
        };
        ways << self.hash_bits
    }
}

/// The most places that a table has room for.
const PLACES: usize = 1 << 16;

/// Slots that change their kind together.
const BLOCK: usize = 16;

/// Memory for slots, aligned for each kind of them.
#[repr(align(64))]
struct Memory([u16; PLACES]);

/// A table of slots.
pub struct Table {
    memory: Box<Memory>,
    shape: Shape,
}

impl Table {
    /// An empty table. `None`: there is no memory.
    pub fn new(shape: Shape) -> Option<Table> {
        assert!(shape.places() <= PLACES);
        // SAFETY: zeros are a value of it.
        Some(Table { memory: unsafe { zeroed()? }, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Forgets all places; they are remembered in this shape from here on.
    pub fn reshape(&mut self, shape: Shape) {
        self.used().fill(0);
        assert!(shape.places() <= PLACES);
        self.shape = shape;
    }

    /// Remembers this many places per hash from here on, and keeps the last of those that are known.
    pub fn set_ways(&mut self, ways: Ways) {
        while self.shape.ways != ways {
            let step = match (self.shape.ways, self.shape.ways < ways) {
                (Ways::One, _) => self.widen::<u16, u32>(Ways::Two),
                (Ways::Two, true) => self.widen::<u32, u64>(Ways::Four),
                (Ways::Four, true) => self.widen::<u64, u128>(Ways::Eight),
                (Ways::Two, false) => self.narrow::<u32, u16>(Ways::One),
                (Ways::Four, false) => self.narrow::<u64, u32>(Ways::Two),
                (Ways::Eight, _) => self.narrow::<u128, u64>(Ways::Four),
            };
            self.shape.ways = step;
        }
    }

    /// Slots of one kind become slots of the next wider kind.
    fn widen<A: Slot, B: Slot + From<A>>(&mut self, ways: Ways) -> Ways {
        let (from, to) = (self.slots::<A>(), self.slots::<B>());
        for block in (0..(1 << self.shape.hash_bits) / BLOCK).rev() {
            // SAFETY: both kinds of slots are inside the memory, which is aligned for either, and any bytes are a slot.
            // The last block goes first: a block is read before it is written, and later ones are not read any more.
            unsafe {
                let block = (from.cast::<[A; BLOCK]>().add(block), to.cast::<[B; BLOCK]>().add(block));
                block.1.write(block.0.read().map(B::from));
            }
        }
        ways
    }

    /// Slots of one kind become slots of the next narrower kind; the memory that they leave is zeros again.
    fn narrow<A: Slot, B: Slot + Low<A>>(&mut self, ways: Ways) -> Ways {
        let used = self.shape.places();
        let (from, to) = (self.slots::<A>(), self.slots::<B>());
        for block in 0..(1 << self.shape.hash_bits) / BLOCK {
            // SAFETY: as in `widen`; the first block goes first.
            unsafe {
                let block = (from.cast::<[A; BLOCK]>().add(block), to.cast::<[B; BLOCK]>().add(block));
                block.1.write(block.0.read().map(B::low));
            }
        }
        self.memory.0[used / 2..used].fill(0);
        ways
    }

    /// Makes all places smaller by `bytes`: the base moved forward.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.used() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// The first of the slots: 2^`hash_bits` of the kind that the shape says.
    pub fn slots<T: Slot>(&mut self) -> *mut T {
        assert!(T::WAYS << self.shape.hash_bits <= PLACES);
        self.memory.0.as_mut_ptr().cast()
    }

    fn used(&mut self) -> &mut [u16] {
        &mut self.memory.0[..self.shape.places()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_places_stay() {
        fn check<T: Slot>(none: T) {
            let slot = (1..=20).fold(none, Slot::with);
            assert!((0..T::WAYS).all(|way| slot.place(way) == 20 - way));
        }
        check(0u16);
        check(0u32);
        check(0u64);
        check(0u128);
    }

    #[test]
    fn the_last_four_stay_where_slots_become_wider_and_narrower() {
        let shape = Shape { ways: Ways::Four, hash_bits: 13, shortest: 5 };
        let mut table = Table::new(shape).expect("memory");
        // SAFETY: the slots are those of the shape, and nobody else uses them.
        let four =
            |table: &mut Table| unsafe { core::slice::from_raw_parts_mut(table.slots::<u64>(), 1 << 13) };
        for (hash, slot) in four(&mut table).iter_mut().enumerate() {
            *slot = hash as u64 * 0x0003_0002_0001_0001;
        }
        let before = four(&mut table).to_vec();
        table.set_ways(Ways::Eight);
        // SAFETY: `set_ways` made 2^13 slots of 128 bits, and only this slice uses them.
        let eight = unsafe { core::slice::from_raw_parts_mut(table.slots::<u128>(), 1 << 13) };
        assert!(eight.iter().zip(&before).all(|(wide, &slot)| *wide == u128::from(slot)));
        eight[5] |= 77 << 64;
        table.set_ways(Ways::Four);
        assert!(four(&mut table) == &before[..]);
        table.set_ways(Ways::One);
        table.set_ways(Ways::Two);
        table.reshape(Shape { ways: Ways::One, ..shape });
        assert!(table.memory.0.iter().all(|&place| place == 0));
    }

    #[test]
    fn places_move_with_the_base_and_are_forgotten() {
        let shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 5 };
        let mut table = Table::new(shape).expect("memory");
        table.used()[7] = 900;
        table.used()[8] = 90;
        table.rebase(100);
        assert_eq!(table.used()[7..9], [800, 0]);
        table.reshape(Shape { ways: Ways::One, ..shape });
        table.reshape(shape);
        assert!(table.used().iter().all(|&place| place == 0));
    }
}
