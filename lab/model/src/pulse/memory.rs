// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory node's memory as the accelerator sees it: ranges of addresses, each with its permission and its bytes.
//!
//! - **Order** a lookup compares an address with every entry, as a TCAM does; entries never overlap, so one answers at most
//! - **Owner** the node; addresses are those of the rack

use std::fmt;

/// Permitted use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Walks may read it.
    Read,
    /// Walks may read and change it.
    ReadWrite,
    /// Mapped, but walks may neither read nor change it.
    None,
}

/// Reason why an access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The address is in no entry: another node may have it.
    Elsewhere,
    /// The entry forbids it, or the access leaves its entry.
    Forbidden,
}

/// Reason why an entry was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry(String);

impl fmt::Display for BadEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadEntry {}

#[derive(Clone, Debug)]
struct Entry {
    base: u64,
    permission: Permission,
    bytes: Vec<u8>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct NodeMemory {
    entries: Vec<Entry>,
    most: usize,
}

impl NodeMemory {
    /// Empty, with room for `most` entries.
    #[must_use]
    pub fn new(most: usize) -> NodeMemory {
        NodeMemory { entries: Vec::new(), most }
    }

    /// Maps `bytes` at `base`.
    ///
    /// # Errors
    /// If the table is full, the range overlaps another or ends past the last address.
    pub fn map(&mut self, base: u64, permission: Permission, bytes: Vec<u8>) -> Result<(), BadEntry> {
        let Some(end) = base.checked_add(bytes.len() as u64) else {
            return Err(BadEntry(format!(
                "{} bytes at {base:#x} end past the last address: map them lower",
                bytes.len()
            )));
        };
        if self.entries.len() == self.most {
            return Err(BadEntry(format!(
                "the table has {} entries and no room: raise tcam_entries",
                self.most
            )));
        }
        for other in &self.entries {
            if base < other.base + other.bytes.len() as u64 && other.base < end {
                return Err(BadEntry(format!(
                    "{base:#x}..{end:#x} overlaps the entry at {:#x}: choose another base",
                    other.base
                )));
            }
        }
        self.entries.push(Entry { base, permission, bytes });
        Ok(())
    }

    /// Ranges that are mapped: base and length.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries.iter().map(|entry| (entry.base, entry.bytes.len() as u64))
    }

    fn find(&self, cur: u64, from: u64, bytes: usize) -> Result<(usize, usize), Miss> {
        let holds =
            |entry: &&Entry| cur.checked_sub(entry.base).is_some_and(|at| at < entry.bytes.len() as u64);
        let index = self.entries.iter().position(|entry| holds(&entry)).ok_or(Miss::Elsewhere)?;
        let offset = from.checked_sub(self.entries[index].base).ok_or(Miss::Forbidden)? as usize;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.entries[index].bytes.len());
        if inside { Ok((index, offset)) } else { Err(Miss::Forbidden) }
    }

    /// Reads `bytes` from `from`, all in the entry that has `cur`.
    ///
    /// # Errors
    /// [`Miss`].
    pub fn read(&self, cur: u64, from: u64, bytes: usize) -> Result<&[u8], Miss> {
        let (index, offset) = self.find(cur, from, bytes)?;
        match self.entries[index].permission {
            Permission::None => Err(Miss::Forbidden),
            _ => Ok(&self.entries[index].bytes[offset..offset + bytes]),
        }
    }

    /// The eight bytes at `at`, to change them.
    ///
    /// # Errors
    /// [`Miss`].
    pub fn word(&mut self, at: u64) -> Result<&mut [u8; 8], Miss> {
        let (index, offset) = self.find(at, at, 8)?;
        match self.entries[index].permission {
            Permission::ReadWrite => {
                self.entries[index].bytes[offset..].first_chunk_mut::<8>().ok_or(Miss::Forbidden)
            }
            _ => Err(Miss::Forbidden),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_answer_for_their_addresses_and_permissions() {
        let mut memory = NodeMemory::new(3);
        memory.map(0x1000, Permission::Read, (0..64).collect()).unwrap();
        memory.map(0x1040, Permission::ReadWrite, vec![9; 64]).unwrap();
        assert_eq!(memory.read(0x1008, 0x1004, 4), Ok(&[4, 5, 6, 7][..]));
        assert_eq!(memory.read(0x103f, 0x1038, 16), Err(Miss::Forbidden), "it leaves its entry");
        assert_eq!(memory.read(0x1000, 0xff8, 8), Err(Miss::Forbidden));
        assert_eq!(memory.read(0x2000, 0x2000, 8), Err(Miss::Elsewhere));
        assert_eq!(memory.read(u64::MAX, u64::MAX, 8), Err(Miss::Elsewhere));
        assert_eq!(memory.word(0x1000), Err(Miss::Forbidden));
        *memory.word(0x1078).unwrap() = [1; 8];
        assert_eq!(memory.word(0x1079), Err(Miss::Forbidden));
        assert_eq!(memory.read(0x1078, 0x1078, 8), Ok(&[1; 8][..]));
        for (base, bytes, wanted) in [(0x1030, 32, "overlaps"), (u64::MAX, 2, "past the last address")] {
            let error = memory.map(base, Permission::Read, vec![0; bytes]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        memory.map(0, Permission::None, vec![0; 8]).unwrap();
        assert_eq!(memory.read(0, 0, 8), Err(Miss::Forbidden));
        assert!(memory.map(0x9000, Permission::Read, vec![0]).unwrap_err().to_string().contains("no room"));
    }
}
