// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns of writers that are in each other's way: one changes the map, the others sleep instead of doing work in vain.
//!
//! - **Layout** the word behind the root's address in a map's cell: number of the next ticket u32, ticket whose turn it is u32
//! - **Flow** a change that another writer was faster than ─▶ [`Turns::enter`]: a ticket, and a wait as long as the changes before it
//!   take ─▶ changes, for [`HOLD`] if one comes right after the other ─▶ [`Turns::leave`]: the next ticket's turn. Writers that met
//!   nobody take none
//! - **Order** nothing depends on it: a change takes effect at the root's compare-and-swap. A ticket that nobody uses (its writer has
//!   ended, or is stopped) is passed over after [`PATIENCE`]
//! - **Source** tickets with waits in proportion to the place in the queue: Mellor-Crummey and Scott, TOCS 9(1), 1991

use std::time::{Duration, Instant};

use super::super::heap::{Heap, Scratch};
use crate::client::Result;

/// Changes for which a writer takes tickets after it has met another one.
const CROWD: u32 = 16;
/// Time for which a turn serves changes that come one right after the other: handing it on costs as much as several changes.
const HOLD: Duration = Duration::from_millis(2);
/// Longest time from one change to the next that makes them come right after each other.
const GAP: Duration = Duration::from_micros(200);
/// Time after which a turn that nobody ends is the next ticket's.
const PATIENCE: Duration = Duration::from_millis(10);
/// Longest wait for a turn. Then the change is tried without one: the word may be damaged.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Shortest and longest time between two looks at whose turn it is.
const LOOKS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(40)];
/// Attempts to end a turn while others take tickets.
const TRIES: u32 = 100;
/// One more turn, in the word.
const NEXT_TURN: u64 = 1 << 32;

/// A writer's view of a map's queue.
#[derive(Debug)]
pub(super) struct Turns {
    /// Changes that still take a ticket.
    crowded: u32,
    /// A turn that is not over.
    held: Option<Turn>,
    /// The last change came right after the one before.
    follows: bool,
    ended: Option<Instant>,
}

/// A turn that has come.
#[derive(Debug)]
pub(super) struct Turn {
    ticket: u32,
    began: Instant,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { crowded: 0, held: None, follows: false, ended: None }
    }

    /// Returns true if other writers were met lately.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded > 0
    }

    /// Waits for a turn, [`WAIT_MAX`] at most; `word` is the address of the queue's word.
    pub(super) fn enter(&mut self, heap: &mut impl Heap, word: u64) -> Result<Turn> {
        self.follows = self.ended.is_some_and(|ended| ended.elapsed() < GAP);
        if let Some(turn) = self.held.take() {
            if turn.began.elapsed() < HOLD {
                return Ok(turn);
            }
            end(heap, word, &turn)?;
        }
        let mut queue = heap.fetch_add(word, 1)?;
        let ticket = queue as u32;
        let asked = Instant::now();
        let mut moved = asked;
        self.crowded = if ticket == turn_of(queue) { self.crowded.saturating_sub(1) } else { CROWD };
        loop {
            let turn = turn_of(queue);
            // Tickets are 32 bits: what lies behind is negative. A turn that was passed over has gone by.
            let ahead = ticket.wrapping_sub(turn) as i32;
            if ahead <= 0 || asked.elapsed() > WAIT_MAX {
                return Ok(Turn { ticket, began: Instant::now() });
            }
            if moved.elapsed() > PATIENCE {
                // One of those who wait ends it; the others see that it has moved.
                let _ = heap.compare_swap(word, queue, queue.wrapping_add(NEXT_TURN))?;
            } else {
                heap.rest((HOLD * (ahead as u32 - 1)).clamp(LOOKS[0], LOOKS[1]))?;
            }
            queue = Scratch(heap.read(word, 8)?).word(0);
            if turn_of(queue) != turn {
                moved = Instant::now();
            }
        }
    }

    /// Ends a turn, or holds it for a change that is likely to follow.
    pub(super) fn leave(&mut self, heap: &mut impl Heap, word: u64, turn: Turn) -> Result<()> {
        self.ended = Some(Instant::now());
        if self.follows && turn.began.elapsed() < HOLD {
            self.held = Some(turn);
            return Ok(());
        }
        end(heap, word, &turn)
    }

    /// Another writer was faster.
    pub(super) fn met(&mut self) {
        self.crowded = CROWD;
    }
}

/// Ends a turn, unless it was passed over.
fn end(heap: &mut impl Heap, word: u64, turn: &Turn) -> Result<()> {
    let mut queue = Scratch(heap.read(word, 8)?).word(0);
    for _ in 0..TRIES {
        if turn_of(queue) != turn.ticket {
            break;
        }
        match heap.compare_swap(word, queue, queue.wrapping_add(NEXT_TURN))? {
            Ok(()) => break,
            Err(now) => queue = now,
        }
    }
    Ok(())
}

/// The ticket whose turn it is.
fn turn_of(queue: u64) -> u32 {
    (queue >> 32) as u32
}
