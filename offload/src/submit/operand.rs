// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operand block of an operation, in the flight's own memory.
//!
//! - **Owner** the flight; from submission to completion the executor uses it

#[cfg(feature = "log")]
use crate::log::Block;

/// Room for any operand block. Its address is taken when the flight has its final place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    None,
    #[cfg(feature = "log")]
    Near(Block),
}

impl Operand {
    /// Stores `block` here and returns its address, which stays valid as long as the flight.
    #[cfg(feature = "log")]
    pub fn put(&mut self, block: Block) -> u64 {
        *self = Operand::Near(block);
        match self {
            Operand::Near(block) => block.address(),
            Operand::None => 0,
        }
    }
}
