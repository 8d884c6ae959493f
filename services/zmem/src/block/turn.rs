// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring and the turn: one process at a time compresses ahead of need; blocks take turns, and so do processes within a
//! block.
//!
//! ```text
//! ring:  a bit per block ─▶ blade: a bit per slot of the block ─▶ turn = sequence · block · slot + 1
//! ```
//!
//! - **Flow** [`join`] ─▶ [`wait`] until the turn names this slot ─▶ [`Visit`] ──drop──▶ [`pass`]: the turn goes to the next
//!   block in the ring that has a member, and there to the next slot after the one visited last
//! - **Order** one word holds the turn. It changes only by compare-and-exchange, with a sequence number that does not repeat
//!   soon. A visit is a permission to spend time, not a lock: a holder that lost its turn does no harm
//! - **Owner** a holder that died (pidfd), or that did not pass the turn on for [`PATIENCE`] checks (stopped, frozen), loses
//!   its turn to any process that waits. A block leaves the ring when the last slot leaves its blade (the block's bits, one
//!   per slot)
//! - **Not here** the amount to compress (the pager), the decision to compress (the objectives)

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::atomic::{AtomicU64, futex_wait, futex_wake};
use super::pid::Process;
use super::shared::{BLOCKS, SLOTS, Shared};
use super::slot::LIVE;

/// Time after which a waiter checks that the holder of the turn lives.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// Number of such checks after which a living holder loses the turn.
pub(super) const PATIENCE: u32 = 5;

/// One turn: its sequence number, and the block and slot that hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    pub sequence: u32,
    pub block: u16,
    /// `None` if no process wanted the turn when it was passed.
    pub slot: Option<u16>,
}

impl Turn {
    pub fn from_word(word: u64) -> Turn {
        let slot = (word as u16).checked_sub(1).map(|slot| slot % SLOTS as u16);
        Turn { sequence: (word >> 32) as u32, block: (word >> 16) as u16 % BLOCKS as u16, slot }
    }

    pub fn word(self) -> u64 {
        let slot = self.slot.map_or(0, |slot| slot + 1);
        u64::from(self.sequence) << 32 | u64::from(self.block) << 16 | u64::from(slot)
    }
}

/// Returns the next set bit after `after`; the search wraps, and `after` itself comes last.
fn next_bit(words: &[AtomicU64], after: usize) -> Option<usize> {
    let bits = words.len() * 64;
    let (first, shift) = ((after + 1) % bits / 64, (after + 1) % 64);
    for step in 0..=words.len() {
        let at = (first + step) % words.len();
        let mut word = words[at].load(Ordering::SeqCst);
        if step == 0 {
            word &= u64::MAX << shift;
        } else if step == words.len() {
            word &= !(u64::MAX << shift);
        }
        if word != 0 {
            return Some(at * 64 + word.trailing_zeros() as usize);
        }
    }
    None
}

fn is_set(words: &[AtomicU64], bit: usize) -> bool {
    words[bit / 64].load(Ordering::SeqCst) >> (bit % 64) & 1 != 0
}

fn set(words: &[AtomicU64], bit: usize) {
    words[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
}

fn clear(words: &[AtomicU64], bit: usize) {
    words[bit / 64].fetch_and(!(1 << (bit % 64)), Ordering::SeqCst);
}

/// Puts the slot into its block's blade, and the block into the ring.
pub(super) fn join(shared: &Shared, block: usize, slot: usize) {
    set(&shared.blade(block).0, slot);
    set(&shared.header().ring, block);
}

/// Takes the slot out of its blade, and the block out of the ring if the slot was the blade's last. Passes the turn on if the
/// slot had it.
pub(super) fn leave(shared: &Shared, block: usize, slot: usize) {
    let blade = &shared.blade(block).0;
    clear(blade, slot);
    if next_bit(blade, slot).is_none() {
        clear(&shared.header().ring, block);
        // A slot may have joined between the check and the clearing.
        if next_bit(blade, slot).is_some() {
            set(&shared.header().ring, block);
        }
    }
    let turn = Turn::from_word(shared.header().turn.load(Ordering::SeqCst));
    if turn.slot == Some(slot as u16) {
        pass(shared, turn);
    }
}

/// Returns true if the slot is in its block's blade.
pub(super) fn wants(shared: &Shared, block: usize, slot: usize) -> bool {
    is_set(&shared.blade(block).0, slot)
}

/// Returns true if the block's blade contains a slot other than `own`.
pub(super) fn others_want(shared: &Shared, block: usize, own: usize) -> bool {
    next_bit(&shared.blade(block).0, own).is_some_and(|slot| slot != own)
}

/// Returns the turn that follows `turn`.
fn successor(shared: &Shared, turn: Turn) -> Turn {
    let sequence = turn.sequence.wrapping_add(1);
    let mut block = usize::from(turn.block);
    for _ in 0..BLOCKS {
        let Some(next) = next_bit(&shared.header().ring, block) else { break };
        block = next;
        let last = shared.block(block).mru.load(Ordering::Relaxed) as usize;
        let last = last.checked_sub(1).unwrap_or(SLOTS - 1) % SLOTS;
        if let Some(slot) = next_bit(&shared.blade(block).0, last) {
            return Turn { sequence, block: block as u16, slot: Some(slot as u16) };
        }
    }
    Turn { sequence, block: turn.block, slot: None }
}

/// Passes `turn` on to its successor, unless the turn has changed already.
pub(super) fn pass(shared: &Shared, turn: Turn) {
    // The holder of this turn counts as the slot visited last, even if it died before it saw its turn; otherwise the same
    // dead slot would be found as the next one again and again.
    if let Some(slot) = turn.slot {
        shared.block(usize::from(turn.block)).mru.store(u32::from(slot) + 1, Ordering::Relaxed);
    }
    let next = successor(shared, turn);
    let header = shared.header();
    if header.turn.compare_exchange(turn.word(), next.word(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    if let Some(slot) = next.slot {
        let before = shared.block(usize::from(turn.block));
        before.ring_next.store(u32::from(next.block) + 1, Ordering::Relaxed);
        shared.block(usize::from(next.block)).lru.store(u32::from(slot) + 1, Ordering::Relaxed);
    }
    header.turned.fetch_add(1, Ordering::SeqCst);
    if header.turn_waiters.load(Ordering::SeqCst) != 0 {
        futex_wake(&header.turned, i32::MAX, true);
    }
}

/// A block's turn, held by one of its processes.
#[derive(Debug)]
#[must_use]
pub struct Visit<'a> {
    shared: &'a Shared,
    turn: Turn,
    /// Number of pages to compress before the visit is dropped.
    pub pages: u32,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        pass(self.shared, self.turn);
    }
}

/// Waits for the slot's turn. Returns `None` if the slot left the ring meanwhile.
pub(super) fn wait(shared: &Shared, block: usize, slot: usize) -> Option<Visit<'_>> {
    let header = shared.header();
    let mut looks = 0;
    let mut seen = None;
    loop {
        let turned = header.turned.load(Ordering::SeqCst);
        if !wants(shared, block, slot) {
            return None;
        }
        let turn = Turn::from_word(header.turn.load(Ordering::SeqCst));
        match turn.slot {
            Some(holder) if usize::from(holder) == slot && usize::from(turn.block) == block => {
                let own = shared.block(block);
                own.mru.store(slot as u32 + 1, Ordering::Relaxed);
                return Some(Visit { shared, turn, pages: own.pages_per_visit().max(1) });
            }
            Some(holder) if wants(shared, usize::from(turn.block), usize::from(holder)) => {
                looks = if seen == Some(turn) { looks + 1 } else { 0 };
                seen = Some(turn);
                // Every check after the first follows a full wait during which the turn did not change.
                if looks > 0 && (looks > PATIENCE || !lives(shared, usize::from(holder))) {
                    pass(shared, turn);
                    continue;
                }
            }
            // Either no slot has the turn, or the one that has it no longer wants it.
            _ => {
                pass(shared, turn);
                continue;
            }
        }
        header.turn_waiters.fetch_add(1, Ordering::SeqCst);
        futex_wait(&header.turned, turned, true, Some(LOOK));
        header.turn_waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lives(shared: &Shared, slot: usize) -> bool {
    let slot = shared.slot(slot);
    slot.state.load(Ordering::Acquire) == LIVE
        && Process { pid: slot.pid.load(Ordering::Relaxed), started: slot.started.load(Ordering::Relaxed) }
            .lives()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_bit_is_found_around() {
        let words = [AtomicU64::new(1 << 3), AtomicU64::new(1 << 63)];
        assert_eq!(next_bit(&words, 3), Some(127));
        assert_eq!(next_bit(&words, 127), Some(3));
        assert_eq!(next_bit(&words, 63), Some(127));
        assert_eq!(next_bit(&words[..1], 3), Some(3));
        assert_eq!(next_bit(&[AtomicU64::new(0)], 5), None);
    }

    #[test]
    fn words_of_any_content_name_blocks_and_slots_that_exist() {
        let turn = Turn::from_word(u64::MAX);
        assert!(usize::from(turn.block) < BLOCKS && usize::from(turn.slot.expect("one")) < SLOTS);
        let turn = Turn { sequence: 7, block: 255, slot: Some(511) };
        assert_eq!(Turn::from_word(turn.word()), turn);
    }

    #[test]
    fn blocks_take_turns_and_so_do_their_processes() {
        let shared = Shared::create().expect("a registry");
        for (block, slot) in [(1, 10), (1, 11), (2, 12)] {
            join(&shared, block, slot);
        }
        let mut visits = Vec::new();
        for _ in 0..8 {
            let turn = successor(&shared, Turn::from_word(shared.header().turn.load(Ordering::SeqCst)));
            let (block, slot) = (usize::from(turn.block), usize::from(turn.slot.expect("somebody wants it")));
            pass(&shared, Turn::from_word(shared.header().turn.load(Ordering::SeqCst)));
            let visit = wait(&shared, block, slot).expect("it is its turn");
            std::mem::forget(visit);
            visits.push((block, slot));
        }
        assert_eq!(visits, [(1, 10), (2, 12), (1, 11), (2, 12), (1, 10), (2, 12), (1, 11), (2, 12)]);
        leave(&shared, 2, 12);
        let turn = successor(&shared, Turn::from_word(shared.header().turn.load(Ordering::SeqCst)));
        assert_eq!(turn.block, 1);
        leave(&shared, 1, 10);
        leave(&shared, 1, 11);
        assert_eq!(next_bit(&shared.header().ring, 0), None);
        assert!(wait(&shared, 1, 10).is_none(), "it left the ring");
    }
}
