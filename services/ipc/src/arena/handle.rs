// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A handle: the few bytes by which any process finds a value in an arena.
//!
//! - **Layout** `mlA1` · user of the arena's process, u32 · number of the arena, 16 bytes · block, u32 · generation, u64 · length of the
//!   value, u64 · the arena's address, UTF-8 to the end; little endian
//! - **Owner** nobody: a handle is a name. The arena keeps the value until it was released, taken as often as was said, or evicted

use crate::address::Address;
use crate::error::Error;

const MARK: &[u8; 4] = b"mlA1";
const FIXED: usize = 44;
/// Longest address that a handle has, bytes.
const ADDRESS_MAX: usize = 107;

/// A place in the directory, with the value that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockId {
    pub block: u32,
    pub generation: u64,
}

/// Names a value in an arena, in this process or in another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle {
    pub(crate) uid: u32,
    pub(crate) arena: [u64; 2],
    pub(crate) id: BlockId,
    pub(crate) bytes: u64,
    pub(crate) address: Address,
}

impl Handle {
    /// Length of the value, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of the arena.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The bytes that stand for it: 44, and the address.
    pub fn to_vec(&self) -> Vec<u8> {
        let address = self.address.to_string();
        let mut bytes = Vec::with_capacity(FIXED + address.len());
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&self.uid.to_le_bytes());
        bytes.extend_from_slice(&self.arena[0].to_le_bytes());
        bytes.extend_from_slice(&self.arena[1].to_le_bytes());
        bytes.extend_from_slice(&self.id.block.to_le_bytes());
        bytes.extend_from_slice(&self.id.generation.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(address.as_bytes());
        bytes
    }

    /// Reads what [`to_vec`](Handle::to_vec) made.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if these bytes are no handle.
    pub fn from_bytes(bytes: &[u8]) -> Result<Handle, Error> {
        let bad = || Error::peer_fault("bytes that are no handle of an arena");
        if bytes.len() <= FIXED || bytes.len() > FIXED + ADDRESS_MAX || &bytes[..4] != MARK {
            return Err(bad());
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let address = std::str::from_utf8(&bytes[FIXED..]).map_err(|_| bad())?;
        Ok(Handle {
            uid: word(4),
            arena: [long(8), long(16)],
            id: BlockId { block: word(24), generation: long(28) },
            bytes: long(36),
            // The configured folder of this process does not count: the handle says where.
            address: Address::parse(address, None)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_handle_comes_back_and_other_bytes_are_refused(
            uid in any::<u32>(),
            numbers in any::<[u64; 4]>(),
            block in any::<u32>(),
            name in "[a-z][a-z0-9._-]{0,40}",
            cut in 0usize..60,
        ) {
            let handle = Handle {
                uid,
                arena: [numbers[0], numbers[1]],
                id: BlockId { block, generation: numbers[2] },
                bytes: numbers[3],
                address: Address::parse(&name, None).unwrap(),
            };
            let bytes = handle.to_vec();
            prop_assert_eq!(Handle::from_bytes(&bytes).unwrap(), handle);
            prop_assert!(Handle::from_bytes(&bytes[..cut.min(FIXED)]).is_err());
            prop_assert!(Handle::from_bytes(&[b"x", bytes.as_slice()].concat()).is_err());
        }
    }
}
