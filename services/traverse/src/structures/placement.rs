// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the addresses of nodes in a structure that is built as a whole: the ranges, the size of slabs, the order.
//!
//! - **Flow** ranges ──cut into slabs──▶ [`Placement::next`]: an address for each node
//! - **Order** [`Order::Sequential`] fills one range after the other; [`Order::Time`] fills slab after slab, and takes slabs from
//!   the ranges in turn (PULSE's BTrDB, §6); [`Order::Random`] puts each node into a randomly drawn slab (its WiredTiger)
//! - **Not here** the memory: the caller has allocated the ranges

/// Addresses and sizes of nodes are multiples of this number of bytes.
pub(super) const PLACE_BYTES: u64 = 16;

/// Order in which nodes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Range after range.
    Sequential,
    /// Slab after slab, taken from the ranges in turn.
    Time,
    /// A slab drawn at random for each node; the value is the generator's seed.
    Random(u64),
}

/// Size of a slab in the paper: a page.
pub const SLAB_4K: u64 = 4 << 10;
/// Size of a slab: a huge page.
pub const SLAB_2M: u64 = 2 << 20;
/// Size of a slab: a gigantic page.
pub const SLAB_1G: u64 = 1 << 30;

/// Bytes left free at the end of each range, because a program's window may reach past the node it reads.
const TAIL_BYTES: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Slab {
    next: u64,
    end: u64,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Placement {
    slabs: Vec<Slab>,
    /// Index of the slab in use; not used by [`Order::Random`].
    current: usize,
    random: Option<u64>,
}

impl Placement {
    /// Makes a placement of nodes in `ranges` (first address, bytes).
    #[must_use]
    pub fn new(ranges: &[(u64, u64)], slab_bytes: u64, order: Order) -> Placement {
        let slab_bytes = slab_bytes.max(512);
        let cut = |&(base, bytes): &(u64, u64)| -> Vec<Slab> {
            let end = base + bytes.saturating_sub(TAIL_BYTES);
            let mut slabs = Vec::new();
            let mut next = base;
            while next < end {
                let stop = (next + slab_bytes).min(end);
                slabs.push(Slab { next, end: stop });
                next = stop;
            }
            slabs
        };
        let by_range: Vec<Vec<Slab>> = ranges.iter().map(cut).collect();
        let slabs = match order {
            Order::Sequential => by_range.concat(),
            Order::Time | Order::Random(_) => {
                let most = by_range.iter().map(Vec::len).max().unwrap_or(0);
                (0..most)
                    .flat_map(|turn| by_range.iter().filter_map(move |slabs| slabs.get(turn)).copied())
                    .collect()
            }
        };
        let random = if let Order::Random(seed) = order { Some(seed) } else { None };
        Placement { slabs, current: 0, random }
    }

    /// Draws the next number from a SplitMix64 generator.
    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns an address for `bytes` bytes, at a multiple of the least power of two that holds them (256 at most); `None`
    /// if all ranges are full.
    pub fn next(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.next_multiple_of(PLACE_BYTES).max(PLACE_BYTES);
        let align = bytes.next_power_of_two().min(256);
        loop {
            let index = match &mut self.random {
                Some(state) if !self.slabs.is_empty() => {
                    (Self::draw(state) % self.slabs.len() as u64) as usize
                }
                _ => self.current,
            };
            let slab = self.slabs.get_mut(index)?;
            let address = slab.next.next_multiple_of(align);
            if address + bytes <= slab.end {
                slab.next = address + bytes;
                return Some(address);
            }
            if self.random.is_some() {
                self.slabs.swap_remove(index);
            } else {
                self.current += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_never_overlap_and_stay_in_their_ranges() {
        let ranges = [(0x10_0000, 64 << 10), (0x90_0000, 32 << 10)];
        for order in [Order::Sequential, Order::Time, Order::Random(7)] {
            let mut placement = Placement::new(&ranges, SLAB_4K, order);
            let mut taken = std::collections::BTreeMap::new();
            for turn in 0_u64.. {
                let bytes = [32, 256, 248][turn as usize % 3];
                let Some(address) = placement.next(bytes) else { break };
                assert!(ranges.iter().any(|&(base, all)| address >= base && address + bytes <= base + all));
                assert_eq!(address % bytes.next_power_of_two(), 0);
                taken.insert(address, bytes);
            }
            let ends = taken.iter().map(|(address, bytes)| address + bytes);
            assert!(ends.zip(taken.keys().skip(1)).all(|(end, &next)| end <= next), "{order:?}");
            assert!(taken.values().sum::<u64>() > 60 << 10, "{order:?} leaves little");
        }
    }

    #[test]
    fn orders_differ_as_they_say() {
        let ranges = [(0, 1 << 20), (1 << 30, 1 << 20)];
        let crossings = |order| {
            let mut placement = Placement::new(&ranges, SLAB_4K, order);
            let far: Vec<bool> = (0..1024).map(|_| placement.next(256).expect("room") >= 1 << 30).collect();
            far.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        assert_eq!(crossings(Order::Sequential), 0);
        assert_eq!(crossings(Order::Time), 63, "every sixteenth node");
        assert!(crossings(Order::Random(1)) > 400, "about every second node");
    }
}
