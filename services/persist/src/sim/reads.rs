// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes that a recovery read, in order: images that differ only elsewhere need not be tried.
//!
//! - **Order** extents in the order of first reading, so that a decision tree can branch where recovery branches
//!
//! The idea is Jaaru's (ASPLOS '21): explore by what recovery reads, not by what could have been lost.

/// No byte lies here.
pub(crate) const SIZE: u64 = u64::MAX;
/// Extents kept before all is taken as read, which is always sound.
const EXTENTS: usize = 4096;
/// The extents, from the last, that a new one is compared with; missing a repetition costs only room.
const RECENT: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    /// Device, first byte, end; [`SIZE`] twice stands for the device's size.
    pub(crate) extents: Vec<(u32, u64, u64)>,
    /// Too many to keep: everything counts as read.
    pub(crate) everything: bool,
}

impl Reads {
    pub(crate) fn bytes(&mut self, device: u32, offset: u64, len: u64) {
        if len > 0 {
            self.add((device, offset, offset + len));
        }
    }

    pub(crate) fn size(&mut self, device: u32) {
        let extent = (device, SIZE, SIZE);
        if !self.extents[..self.extents.len().min(RECENT)].contains(&extent) {
            self.add(extent);
        }
    }

    fn add(&mut self, extent: (u32, u64, u64)) {
        let recent = self.extents.len().saturating_sub(RECENT);
        let (device, start, end) = extent;
        if self.everything
            || self.extents[recent..].iter().any(|&(d, s, e)| d == device && s <= start && end <= e)
        {
            return;
        }
        let full = self.extents.len() == EXTENTS;
        match self.extents.last_mut() {
            Some(last) if last.0 == device && last.2 == start => last.2 = end,
            _ if full => self.everything = true,
            _ => self.extents.push(extent),
        }
    }

    pub(crate) fn extend(&mut self, other: &Reads) {
        other.extents.iter().for_each(|e| self.add(*e));
        self.everything |= other.everything;
    }
}
