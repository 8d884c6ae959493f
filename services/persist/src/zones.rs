// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zones of an object that is larger than one: how many, and what is done to them before it is stored.
//!
//! - **Not here** taking and losing directories: `span`

use crate::layout::{HEAD_SLABS, SUPERBLOCK_SLAB, ZONE_SLABS};

/// Where in a zone an object of more than a zone starts.
pub(crate) const HEAD_SLAB: u64 = SUPERBLOCK_SLAB;

/// Zones behind its first one that an object of so many slabs takes.
pub(crate) const fn body_zones(slabs: u64) -> u64 {
    slabs.saturating_sub(HEAD_SLABS).div_ceil(ZONE_SLABS)
}

/// Zones, the last of which may be shorter, of so many slabs.
pub(crate) const fn zones(slabs: u64) -> u64 {
    slabs.div_ceil(ZONE_SLABS)
}

/// Zones that were taken for an object, and what has to be done before it is stored there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Zones {
    /// Its first slab.
    pub first: u64,
    /// Its first zone, if that has no directory yet.
    pub restore: Option<u64>,
    /// Its other zones, those that still have a directory.
    pub lose: Vec<u64>,
}
