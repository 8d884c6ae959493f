// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Search parameters of a stream: one row per level of zlib.

/// Method of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchMethod {
    /// Everything is stored; nothing is searched.
    Stored,
    /// The first match found is taken.
    Greedy,
    /// A match is taken only if the next byte has no longer one.
    Lazy,
}

/// Kinds of matches and codes that a stream uses.
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

/// A search method and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Method of the search.
    pub(super) method: SearchMethod,
    /// If the match so far has at least this length, only a quarter of the candidates is compared for a longer one.
    pub good: u32,
    /// Lazy: from this length on, the next byte is not searched for a longer match. Greedy: positions inside matches up to this
    /// length are inserted into the chains.
    pub lazy: u32,
    /// A match of this length ends the search.
    pub nice: u32,
    /// Most candidates that are compared.
    pub depth: u32,
}

const fn level(method: SearchMethod, good: u32, lazy: u32, nice: u32, depth: u32) -> Level {
    Level { method, good, lazy, nice, depth }
}

/// Row of levels 7 to 9. On every corpus of the benchmark it packs at least as small as zlib's level 9, and a deeper search
/// makes no file smaller by more than chance; so a deeper level 9 would sometimes be larger than level 8.
const BEST: Level = level(SearchMethod::Lazy, 16, 128, 258, 160);

/// Chains here link positions with four equal bytes (zlib's: three) and skip positions that cannot be longer matches, so less
/// depth finds more.
const LEVELS: [Level; 10] = [
    level(SearchMethod::Stored, 0, 0, 0, 0),
    level(SearchMethod::Greedy, 4, 8, 8, 3),
    level(SearchMethod::Greedy, 4, 12, 16, 6),
    level(SearchMethod::Greedy, 4, 16, 32, 12),
    level(SearchMethod::Lazy, 8, 16, 32, 12),
    level(SearchMethod::Lazy, 16, 32, 64, 32),
    level(SearchMethod::Lazy, 32, 64, 160, 96),
    BEST,
    BEST,
    BEST,
];

impl Level {
    /// Returns the same method with other limits.
    pub const fn tuned(self, good: u32, lazy: u32, nice: u32, depth: u32) -> Level {
        Level { method: self.method, good, lazy, nice, depth }
    }

    /// Returns true if both use the same method; only then can a stream change between them without first writing the bytes it
    /// has read.
    pub fn is_like(&self, other: &Level) -> bool {
        self.method == other.method
    }

    /// Returns the row of a level, 0 to 9.
    pub const fn of(level: usize) -> Level {
        LEVELS[level]
    }
}
