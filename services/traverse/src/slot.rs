// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A walk in flight, and the address range in which its hops are translated: all state that a round of the scheduler reads and
//! writes.
//!
//! - **Layout** [`Slot`] is two cache lines: the state that a round reads for every walk, then the [`Walk`] of its step. [`Region`]
//!   is the one range of global addresses that a round translates without the slow path
//! - **Flow** the scheduler fills a slot ([`Slot::start`]) ──round──▶ one step per slot in state [`RUN`]: on `Next` inside the region
//!   `cur`, `host` and `hops_left` advance; on any other result the slot becomes [`STOPPED`] with its `verdict`, for the slow path.
//!   The numbers of the slots that stopped in a round are listed in [`Slot::nth_stopped`], so that nobody has to search for them
//! - **Owner** one thread has the slots during a round; `scratch` belongs to its slot alone
//! - **Not here** the slow path (`node`), and permissions to read a range (`memory`)

use crate::step::Walk;

/// [`Slot::state`]: the slot holds no walk; a round skips it.
pub const FREE: u32 = 0;
/// [`Slot::state`]: the slot's next step is due.
pub const RUN: u32 = 1;
/// [`Slot::state`]: the last step asked for something that a round cannot do; a round skips it.
pub const STOPPED: u32 = 2;

/// One walk that is in flight.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// Host address of the node at `cur`; valid while the slot is [`RUN`].
    pub host: *const u8,
    /// The walk's scratchpad, as long as the program asks for.
    pub scratch: *mut u8,
    /// Global address of the node for the next step; in a slot that [`STOPPED`] with `Next`, the address to continue at.
    pub cur: u64,
    /// Steps that may still end in `Next`: never 0 in a slot that is [`RUN`]. When it becomes 0, the slot stops with
    /// `Next`.
    pub hops_left: u32,
    /// [`FREE`], [`RUN`] or [`STOPPED`].
    pub state: u32,
    /// Return value of the last step of a [`STOPPED`] slot; [`crate::step::Verdict::from_return`] decodes it.
    pub verdict: u32,
    /// One entry of a list over the whole array: entry n holds the number of the n-th slot that stopped in the last round.
    pub nth_stopped: u32,
    /// Words for the scheduler's own use; rounds do not change them.
    pub owner: [u64; 3],
    /// Output of the last step. Each step starts with `fuel`, which no round changes.
    pub walk: Walk,
}

const _: () = {
    assert!(size_of::<Slot>() == 128 && align_of::<Slot>() == 64);
    assert!(core::mem::offset_of!(Slot, walk) == 64 && core::mem::offset_of!(Slot, owner) == 40);
};

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            host: core::ptr::null(),
            scratch: core::ptr::null_mut(),
            cur: 0,
            hops_left: 0,
            state: FREE,
            verdict: 0,
            nth_stopped: 0,
            owner: [0; 3],
            walk: Walk::default(),
        }
    }
}

impl Slot {
    /// Makes the next step of the slot due, at a node that is mapped at `host`, with `hops` steps left.
    pub fn start(&mut self, cur: u64, host: *const u8, hops: u32) {
        self.cur = cur;
        self.host = host;
        self.hops_left = hops;
        self.state = if hops == 0 { STOPPED } else { RUN };
        self.verdict = 0;
    }
}

/// A range of global addresses in which a round may step the program, and its mapping.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Region {
    /// The lowest `cur_ptr` whose whole window lies in the range.
    pub base: u64,
    /// Number of addresses from `base` on whose window lies in the range.
    pub bytes: u64,
    /// Host address of `base`.
    pub host: *const u8,
}

const _: () = assert!(size_of::<Region>() == 24);

impl Region {
    /// The empty region: every hop takes the slow path.
    pub const NONE: Region = Region { base: 0, bytes: 0, host: core::ptr::null() };

    /// Makes the region of all `cur_ptr`s whose window (`window_bytes` from `cur_ptr + window_first` on) lies in the
    /// `bytes` bytes from the global address `base` on, which are mapped at `host`.
    #[must_use]
    pub fn new(base: u64, bytes: u64, host: *const u8, window_first: i16, window_bytes: u16) -> Region {
        let before = u64::from(window_first.min(0).unsigned_abs());
        let after = i64::from(window_first).saturating_add(i64::from(window_bytes)).max(1).cast_unsigned();
        let Some(left) = bytes.checked_sub(before + after - 1) else { return Region::NONE };
        if left == 0 || base.checked_add(bytes - 1).is_none() {
            return Region::NONE;
        }
        Region { base: base + before, bytes: left, host: host.wrapping_add(before as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::Region;

    #[test]
    fn a_region_holds_exactly_the_pointers_whose_window_fits() {
        for (first, bytes) in [(0_i16, 64_u16), (-16, 32), (-256, 256), (8, 8), (0, 1), (-8, 256)] {
            let region = Region::new(0x1000, 4096, core::ptr::without_provenance(0x7000), first, bytes);
            let fits = |cur: i64| {
                cur + i64::from(first.min(0)) >= 0x1000
                    && (0x1000..0x2000).contains(&cur)
                    && cur + i64::from(first) + i64::from(bytes) <= 0x2000
            };
            for cur in 0xE00..0x2200_i64 {
                let within = cur.cast_unsigned().wrapping_sub(region.base) < region.bytes;
                assert_eq!(within, fits(cur), "cur {cur:#x}, window {first}+{bytes}");
            }
            assert_eq!(region.host as u64 - 0x7000, region.base - 0x1000);
        }
        assert_eq!(Region::new(0, 63, core::ptr::null(), 0, 64).bytes, 0, "too short for one window");
        assert_eq!(Region::new(u64::MAX, 64, core::ptr::null(), 0, 8).bytes, 0, "past the last address");
    }
}
