// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fan (figure 15): a blade of recency nodes for each control block, and a ring of the blocks that want memory.
//!
//! - **Order** the compressor goes round the ring; at each block it takes as many pages as the block says from the old end of its blade.
//!   A block joins the ring behind all others, and leaves it as soon as its objectives are met or its blade is too short
//! - **Owner** all links lie in reserved memory; the fan itself is where the compressor is
//! - **Not here** packing (`controller`)

use super::PAGE;
use super::layout::Reserved;

/// Where the compressor is.
#[derive(Clone, Debug, Default)]
pub struct Fan {
    /// Link to its block.
    cursor: u16,
    /// Pages left of its visit there; 0 before the first.
    left: u32,
}

impl Fan {
    /// The block that the compressor is at; `None` if no block wants memory.
    #[must_use]
    pub fn block(&self) -> Option<u16> {
        self.cursor.checked_sub(1)
    }

    /// The page to pack next, of the block that the compressor is at.
    pub fn oldest(&mut self, reserved: &Reserved, block: u16) -> u32 {
        if self.left == 0 {
            self.left = reserved.visit(block);
        }
        reserved.lru(block) - 1
    }

    /// The compressor has looked at a page of a block, which may have left the ring by that.
    pub fn went(&mut self, reserved: &Reserved, block: u16) {
        if self.block() == Some(block) {
            self.left -= 1;
            if self.left == 0 {
                self.cursor = reserved.next(block);
            }
        }
    }

    /// Puts a block into the ring or takes it out, as its objectives say.
    pub fn join(&mut self, reserved: &mut Reserved, block: u16) {
        let (wants, own) = (wants(reserved, block), block + 1);
        match (reserved.next(block) != 0, self.cursor) {
            (inside, _) if inside == wants => {}
            (true, _) => {
                let (previous, next) = (reserved.previous(block), reserved.next(block));
                reserved.set_next(previous - 1, next);
                reserved.set_previous(next - 1, previous);
                reserved.set_next(block, 0);
                reserved.set_previous(block, 0);
                if self.cursor == own {
                    self.cursor = if next == own { 0 } else { next };
                    self.left = 0;
                }
            }
            (false, 0) => {
                reserved.set_next(block, own);
                reserved.set_previous(block, own);
                (self.cursor, self.left) = (own, 0);
            }
            (false, cursor) => {
                let previous = reserved.previous(cursor - 1);
                reserved.set_next(previous - 1, own);
                reserved.set_previous(block, previous);
                reserved.set_next(block, cursor);
                reserved.set_previous(cursor - 1, own);
            }
        }
    }
}

/// Returns true if a block wants memory and has something to pack.
#[must_use]
pub fn wants(reserved: &Reserved, block: u16) -> bool {
    let objective = i64::try_from(reserved.unused_objective(block)).unwrap_or(i64::MAX);
    let plain = u64::from(reserved.blade(block)) * PAGE as u64;
    reserved.unused(block) < objective && plain > reserved.cache_objective(block)
}

/// A page becomes the youngest of its blade.
pub fn link(reserved: &mut Reserved, page: u32) {
    let (block, own) = (reserved.owner(page), page + 1);
    let mru = reserved.mru(block);
    reserved.set_older(page, mru);
    match mru {
        0 => reserved.set_lru(block, own),
        mru => reserved.set_newer(mru - 1, own),
    }
    reserved.set_mru(block, own);
    reserved.set_blade(block, reserved.blade(block) + 1);
}

/// A page leaves its blade.
pub fn unlink(reserved: &mut Reserved, page: u32) {
    let (newer, older, block) = (reserved.newer(page), reserved.older(page), reserved.owner(page));
    match newer {
        0 => reserved.set_mru(block, older),
        newer => reserved.set_older(newer - 1, older),
    }
    match older {
        0 => reserved.set_lru(block, newer),
        older => reserved.set_newer(older - 1, newer),
    }
    reserved.set_newer(page, 0);
    reserved.set_older(page, 0);
    reserved.set_blade(block, reserved.blade(block) - 1);
}
