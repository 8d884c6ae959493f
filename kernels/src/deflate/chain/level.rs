// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How hard a stream searches: one row per level of zlib.

/// The way of searching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Everything is stored; nothing is searched.
    Stored,
    /// The first match that is found is taken.
    Greedy,
    /// A match waits for a longer one at the next byte.
    Lazy,
}

/// The matches that a stream uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// All matches and codes: the smallest output.
    Default,
    /// Short matches are not taken.
    Filtered,
    /// No matches, only codes of literals.
    HuffmanOnly,
    /// Runs of one byte only.
    Runs,
    /// Only the fixed code: no codes of a block's own.
    Fixed,
}

/// A way of searching and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// The way of searching.
    pub(super) kind: Kind,
    /// From this length on, a quarter of the places is looked at for a longer match.
    pub good: u32,
    /// Lazy: from this length on, no longer match is looked for. Greedy: up to this length, places inside of a match are learned.
    pub lazy: u32,
    /// A match of this length ends the search.
    pub nice: u32,
    /// The most places that are looked at.
    pub depth: u32,
}

const fn level(kind: Kind, good: u32, lazy: u32, nice: u32, depth: u32) -> Level {
    Level { kind, good, lazy, nice, depth }
}

/// Chains here are of four equal bytes, zlib's of three: they are shorter, so that less depth finds more.
const LEVELS: [Level; 10] = [
    level(Kind::Stored, 0, 0, 0, 0),
    level(Kind::Greedy, 4, 4, 8, 4),
    level(Kind::Greedy, 4, 5, 16, 8),
    level(Kind::Greedy, 4, 6, 32, 32),
    level(Kind::Lazy, 4, 4, 16, 16),
    level(Kind::Lazy, 8, 16, 32, 32),
    level(Kind::Lazy, 8, 16, 128, 128),
    level(Kind::Lazy, 8, 32, 128, 256),
    level(Kind::Lazy, 32, 128, 258, 1024),
    level(Kind::Lazy, 32, 258, 258, 4096),
];

impl Level {
    /// The same way of searching with other limits.
    pub const fn tuned(self, good: u32, lazy: u32, nice: u32, depth: u32) -> Level {
        Level { kind: self.kind, good, lazy, nice, depth }
    }

    /// Returns true if both search in the same way: a stream changes between them without writing what it has.
    pub fn is_like(&self, other: &Level) -> bool {
        self.kind == other.kind
    }

    /// The row of a level, 0 to 9.
    pub const fn of(level: usize) -> Level {
        LEVELS[level]
    }
}
