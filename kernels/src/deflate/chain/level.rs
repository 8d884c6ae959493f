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

/// The row of levels 7 to 9: at most zlib's size at level 9 on all corpora of the bench, and searched deeper, no file becomes smaller by more than
/// chance, so that a higher level would sometimes be larger.
const BEST: Level = level(Kind::Lazy, 16, 128, 258, 160);

/// Chains here are of four equal bytes, zlib's of three, and lead away from places that are no longer match: less depth finds more.
const LEVELS: [Level; 10] = [
    level(Kind::Stored, 0, 0, 0, 0),
    level(Kind::Greedy, 4, 8, 8, 3),
    level(Kind::Greedy, 4, 12, 16, 6),
    level(Kind::Greedy, 4, 16, 32, 12),
    level(Kind::Lazy, 8, 16, 32, 12),
    level(Kind::Lazy, 16, 32, 64, 32),
    level(Kind::Lazy, 32, 64, 160, 96),
    BEST,
    BEST,
    BEST,
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
