// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operand block of an operation, in the flight's own memory.
//!
//! Owner   the flight; from submission to completion it belongs to the executor, which writes SEAL's tag into it

#[cfg(feature = "persist")]
use crate::persist::Block;
use memlift_spec::StridedCopy;
#[cfg(feature = "transform")]
use memlift_spec::{PackBlock, SealBlock};

/// Room for any block. Its address is taken when the flight has its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    None,
    Strided(StridedCopy),
    #[cfg(feature = "transform")]
    Seal(SealBlock),
    #[cfg(feature = "transform")]
    Pack(PackBlock),
    #[cfg(feature = "persist")]
    Near(Block),
}

impl From<StridedCopy> for Operand {
    fn from(block: StridedCopy) -> Operand {
        Operand::Strided(block)
    }
}

impl Operand {
    /// Keeps `block` here and gives its address.
    pub fn put(&mut self, block: Operand) -> u64 {
        *self = block;
        let address = match self {
            Operand::None => 0,
            Operand::Strided(block) => std::ptr::from_mut(block).expose_provenance(),
            #[cfg(feature = "transform")]
            Operand::Seal(block) => std::ptr::from_mut(block).expose_provenance(),
            #[cfg(feature = "transform")]
            Operand::Pack(block) => std::ptr::from_mut(block).expose_provenance(),
            #[cfg(feature = "persist")]
            Operand::Near(block) => return block.address(),
        };
        address as u64
    }

    /// SEAL's tag.
    #[cfg(feature = "transform")]
    pub fn tag(&self) -> Option<[u8; 16]> {
        match self {
            Operand::Seal(block) => Some(block.tag),
            _ => None,
        }
    }
}
