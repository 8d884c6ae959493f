// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns of writers that compete for a map: one changes the map while the others sleep, instead of doing work that would be lost.
//!
//! - **Layout** the word behind the root's address in a map's cell: number of the next ticket u32, ticket whose turn it is u32
//! - **Flow** a change lost to another writer ─▶ [`Turns::enter`]: take a ticket, and wait as long as the changes before it take ─▶
//!   changes, for [`TURN_TIME`] if they follow each other quickly ─▶ [`Turns::leave`]: the turn passes to the next ticket. Writers that
//!   have met no other writer take no tickets
//! - **Order** correctness does not depend on turns: a change takes effect at the root's compare-and-swap. The turn of a ticket whose
//!   writer has ended or is stopped is skipped after [`PATIENCE`]
//! - **Source** tickets with waits in proportion to the position in the queue: Mellor-Crummey and Scott, TOCS 9(1), 1991

use std::time::{Duration, Instant};

use super::super::addend::Addend;
use super::super::heap::{Heap, Scratch};
use crate::client::Result;

/// Changes for which a writer takes tickets after it has lost to another writer.
const CROWD: u32 = 16;
/// Time for which a turn is kept for changes that follow each other quickly: passing it on costs as much as several changes.
const TURN_TIME: Duration = Duration::from_millis(2);
/// Longest time between two changes that follow each other quickly.
const GAP: Duration = Duration::from_micros(200);
/// Time after which a turn that its writer does not end passes to the next ticket.
const PATIENCE: Duration = Duration::from_millis(10);
/// Longest wait for a turn. After it the change is tried without one, because the word may be damaged.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Shortest and longest time between two reads of the queue's word.
const POLL_PAUSE: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(40)];
/// Attempts to end a turn while others take tickets.
const TRIES: u32 = 100;
/// Increment of the word that passes the turn to the next ticket.
const NEXT_TURN: u64 = 1 << 32;

/// A writer's view of a map's queue.
#[derive(Debug)]
pub(super) struct Turns {
    /// Number of changes that still take a ticket.
    crowded: u32,
    /// A turn that was kept for the next change.
    held: Option<Turn>,
    /// True if the last change followed the one before quickly.
    follows: bool,
    ended: Option<Instant>,
}

/// A turn that this writer has got.
#[derive(Debug)]
pub(super) struct Turn {
    ticket: u32,
    began: Instant,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { crowded: 0, held: None, follows: false, ended: None }
    }

    /// Returns true if this writer has recently lost to others.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded > 0
    }

    /// Waits for a turn, at most [`WAIT_MAX`]; `word` is the address of the queue's word.
    pub(super) fn enter(&mut self, heap: &mut impl Heap, word: u64) -> Result<Turn> {
        self.follows = self.ended.is_some_and(|ended| ended.elapsed() < GAP);
        if let Some(turn) = self.held.take() {
            if turn.began.elapsed() < TURN_TIME {
                return Ok(turn);
            }
            end(heap, word, &turn)?;
        }
        let mut queue = heap.fetch_add(word, Addend::Unsigned(1))?;
        let ticket = queue as u32;
        let asked = Instant::now();
        let mut moved = asked;
        self.crowded = if ticket == turn_of(queue) { self.crowded.saturating_sub(1) } else { CROWD };
        loop {
            let turn = turn_of(queue);
            // Ticket numbers wrap, so the difference is signed: it is negative if the ticket's turn was skipped.
            let ahead = ticket.wrapping_sub(turn) as i32;
            if ahead <= 0 || asked.elapsed() > WAIT_MAX {
                return Ok(Turn { ticket, began: Instant::now() });
            }
            if moved.elapsed() > PATIENCE {
                // One of the waiting writers skips the turn; the others see that the word has changed.
                let _ = heap.compare_swap(word, queue, queue.wrapping_add(NEXT_TURN))?;
            } else {
                heap.rest((TURN_TIME * (ahead as u32 - 1)).clamp(POLL_PAUSE[0], POLL_PAUSE[1]))?;
            }
            queue = Scratch(heap.read(word, 8)?).word(0);
            if turn_of(queue) != turn {
                moved = Instant::now();
            }
        }
    }

    /// Ends a turn, or keeps it for a change that is likely to follow.
    pub(super) fn leave(&mut self, heap: &mut impl Heap, word: u64, turn: Turn) -> Result<()> {
        self.ended = Some(Instant::now());
        if self.follows && turn.began.elapsed() < TURN_TIME {
            self.held = Some(turn);
            return Ok(());
        }
        end(heap, word, &turn)
    }

    /// Notes that another writer was faster.
    pub(super) fn lost_to_other(&mut self) {
        self.crowded = CROWD;
    }
}

/// Ends a turn, unless it was skipped.
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

/// Returns the ticket whose turn it is.
fn turn_of(queue: u64) -> u32 {
    (queue >> 32) as u32
}
