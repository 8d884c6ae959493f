// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much time packing may take.

/// How small the output becomes, at the cost of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Effort {
    /// Fastest: text takes at most about 1.28 times the bytes of zlib's level 6.
    Fast,
    /// Fast; at most 1.09 times the bytes of zlib's level 6, over all messages of one kind taken together.
    Default,
    /// About as small as zlib's level 6, or smaller.
    Small,
}
