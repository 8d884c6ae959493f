// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reserved memory of figure 14, as bytes: control blocks, then a recency node and a translation for each physical page.
//!
//! - **Layout** control block, 64 B: 0 total allocation objective u64 · 8 unused allocation i64 · 16 unused allocation objective u64 ·
//!   24 min uncompressed cache objective u64 · 32 accesses to compressed pages u64 · 40 pages to compress during a visit u32 ·
//!   44 LRU page u32 · 48 MRU page u32 · 52 next block u16 · 54 previous block u16 · 56 pages of the blade u32 · 60 zeros.
//!   Recency node, 16 B: 0 newer page u32 · 4 older page u32 · 8 control block u16 · 10 zeros.
//!   Translation, 8 B: bits 0 to 2 [`State`] · 3 to 15 bytes · 16 to 63 machine address in units of 64 B
//! - **Order** little endian. Links are one more than what they name, 0 is none: memory that is all zeros has every page free, in
//!   block 0, and nothing in the ring
//! - **Owner** the OS stores what [`Field`] names; the rest is the controller's
//!
//! The fields, and the sizes of a block and a translation, are the paper's; their places are not published.

/// Bytes of a control block.
pub const BLOCK: u64 = 64;
/// Control blocks: 1 MB of them.
pub const BLOCKS: u16 = 16_384;
/// Bytes of a recency node.
pub const NODE: u64 = 16;
/// Bytes of a translation.
pub const TRANSLATION: u64 = 8;
/// Where the nodes begin.
const NODES: u64 = BLOCK * BLOCKS as u64;

/// State of a physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All zeros, without memory: a free page.
    Zero,
    /// As it is, on its block's blade.
    Plain,
    /// As it is and off the blade, since packing gained too little.
    Stubborn,
    /// Packed, to a size that is a multiple of 64 bytes.
    Packed,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The page's state.
    pub state: State,
    /// Bytes that it is packed to, or all of a page.
    pub bytes: usize,
    /// Its machine address, a multiple of 64.
    pub address: u64,
}

impl Place {
    /// A page of zeros.
    pub const ZERO: Place = Place { state: State::Zero, bytes: 0, address: 0 };
}

/// A field that the OS may store, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// A block's total allocation objective, 8 bytes.
    Total(u16),
    /// A block's unused allocation objective, 8 bytes.
    Unused(u16),
    /// A block's min uncompressed cache objective, 8 bytes.
    Cache(u16),
    /// Pages to compress during a visit, 4 bytes.
    Visit(u16),
    /// The control block of a page, 2 bytes.
    Page(u32),
}

impl Field {
    /// Its offset in reserved memory.
    #[must_use]
    pub const fn at(self) -> u64 {
        match self {
            Field::Total(block) => block as u64 * BLOCK,
            Field::Unused(block) => block as u64 * BLOCK + 16,
            Field::Cache(block) => block as u64 * BLOCK + 24,
            Field::Visit(block) => block as u64 * BLOCK + 40,
            Field::Page(page) => NODES + page as u64 * NODE + 8,
        }
    }

    /// Returns the field at an offset; `None` where the OS may not store.
    #[must_use]
    pub fn named(at: u64, pages: u32) -> Option<Field> {
        if at < NODES {
            let block = (at / BLOCK) as u16;
            return [Field::Total(block), Field::Unused(block), Field::Cache(block), Field::Visit(block)]
                .into_iter()
                .find(|field| field.at() == at);
        }
        let page = u32::try_from((at - NODES) / NODE).ok().filter(|page| *page < pages)?;
        Some(Field::Page(page)).filter(|field| field.at() == at)
    }
}

/// The bytes. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    bytes: Vec<u8>,
    pages: u32,
}

macro_rules! fields {
    ($($get:ident $set:ident $of:ident $by:ty, $at:literal $value:ty, $what:literal;)*) => {
        $(
            #[doc = concat!("The ", $what, ".")]
            #[must_use]
            pub fn $get(&self, index: $by) -> $value {
                let at = self.$of(index) + $at;
                self.bytes[at..].first_chunk().map_or(0, |bytes| <$value>::from_le_bytes(*bytes))
            }

            #[doc = concat!("Writes the ", $what, ".")]
            pub fn $set(&mut self, index: $by, value: $value) {
                let at = self.$of(index) + $at;
                self.bytes[at..at + size_of::<$value>()].copy_from_slice(&value.to_le_bytes());
            }
        )*
    };
}

impl Reserved {
    /// For so many physical pages, all zeros.
    #[must_use]
    pub fn new(pages: u32) -> Reserved {
        let bytes = NODES + u64::from(pages) * (NODE + TRANSLATION);
        Reserved { bytes: vec![0; bytes as usize], pages }
    }

    /// Number of physical pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    fn block(&self, block: u16) -> usize {
        (u64::from(block) * BLOCK) as usize
    }

    fn node(&self, page: u32) -> usize {
        (NODES + u64::from(page) * NODE) as usize
    }

    fn entry(&self, page: u32) -> usize {
        self.node(self.pages) + (u64::from(page) * TRANSLATION) as usize
    }

    fields! {
        total set_total block u16, 0 u64, "total allocation objective of a block, bytes";
        unused set_unused block u16, 8 i64, "unused allocation of a block, bytes";
        unused_objective set_unused_objective block u16, 16 u64, "unused allocation objective of a block, bytes";
        cache_objective set_cache_objective block u16, 24 u64, "min uncompressed cache objective of a block, bytes";
        accesses set_accesses block u16, 32 u64, "accesses to a block's compressed pages";
        visit set_visit block u16, 40 u32, "pages to compress during a visit";
        lru set_lru block u16, 44 u32, "link to the least recently used page of a blade";
        mru set_mru block u16, 48 u32, "link to the most recently used page of a blade";
        next set_next block u16, 52 u16, "link to the next block of the ring";
        previous set_previous block u16, 54 u16, "link to the previous block of the ring";
        blade set_blade block u16, 56 u32, "number of pages of a blade";
        newer set_newer node u32, 0 u32, "link to the next younger page";
        older set_older node u32, 4 u32, "link to the next older page";
        owner set_owner node u32, 8 u16, "control block of a page";
        translation set_translation entry u32, 0 u64, "translation of a page, as bits";
    }

    /// Where a page is.
    #[must_use]
    pub fn place(&self, page: u32) -> Place {
        let bits = self.translation(page);
        let state = match bits & 7 {
            1 => State::Plain,
            2 => State::Stubborn,
            3 => State::Packed,
            _ => State::Zero,
        };
        Place { state, bytes: (bits >> 3 & 0x1fff) as usize, address: bits >> 16 << 6 }
    }

    /// Says where a page is.
    pub fn set_place(&mut self, page: u32, place: Place) {
        let state = place.state as u64;
        self.set_translation(page, state | (place.bytes as u64) << 3 | place.address >> 6 << 16);
    }

    /// Eight bytes at an offset, as the OS loads them; `None` if they are not aligned or not of a block or a node.
    #[must_use]
    pub fn load(&self, at: u64) -> Option<u64> {
        let end = NODES + u64::from(self.pages) * NODE;
        let at = Some(at).filter(|at| at % 8 == 0 && *at < end)? as usize;
        self.bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_layout_says_and_do_not_meet() {
        let mut reserved = Reserved::new(3);
        reserved.set_total(1, 1);
        reserved.set_unused(1, -2);
        reserved.set_unused_objective(1, 3);
        reserved.set_cache_objective(1, 4);
        reserved.set_accesses(1, 5);
        reserved.set_visit(1, 6);
        reserved.set_lru(1, 7);
        reserved.set_mru(1, 8);
        reserved.set_next(1, 9);
        reserved.set_previous(1, 10);
        reserved.set_blade(1, 11);
        let word = |at: u64| reserved.load(64 + at).unwrap();
        assert_eq!([word(0), word(16), word(24), word(32)], [1, 3, 4, 5]);
        assert_eq!(
            (word(8) as i64, word(40), word(48), word(56)),
            (-2, 6 | 7 << 32, 8 | 9 << 32 | 10 << 48, 11)
        );
        assert_eq!((reserved.unused(1), reserved.lru(0), reserved.bytes.len()), (-2, 0, (1 << 20) + 3 * 24));
        reserved.set_newer(2, 12);
        reserved.set_older(2, 13);
        reserved.set_owner(2, 14);
        let node = NODES + 2 * NODE;
        assert_eq!((reserved.load(node), reserved.load(node + 8)), (Some(12 | 13 << 32), Some(14)));
        assert_eq!(
            [reserved.load(node + 16), reserved.load(3)],
            [None, None],
            "translations are not the OS's"
        );
    }

    #[test]
    fn places_are_eight_bytes() {
        let mut reserved = Reserved::new(2);
        for (state, bytes, address) in
            [(State::Packed, 3561, 0x3_ffff_ffc0), (State::Plain, 4096, 4096), (State::Stubborn, 4096, 0)]
        {
            let place = Place { state, bytes, address };
            reserved.set_place(1, place);
            assert_eq!((reserved.place(1), reserved.place(0)), (place, Place::ZERO));
        }
    }

    #[test]
    fn stores_go_to_the_os_s_fields_only() {
        for field in
            [Field::Total(3), Field::Unused(0), Field::Cache(16_383), Field::Visit(1), Field::Page(4)]
        {
            assert_eq!(Field::named(field.at(), 5), Some(field));
        }
        let refused = [8, 32, 44, 48, 52, 56, 1, NODES, NODES + 4, Field::Page(5).at(), u64::MAX];
        assert!(refused.into_iter().all(|at| Field::named(at, 5).is_none()));
    }
}
