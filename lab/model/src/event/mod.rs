// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time and what happens in it: the core of every timed machine here.
//!
//! - **Flow** [`Calendar::after`] ─▶ [`Calendar::pop`], which gives the earliest event and moves the clock to it ─▶ the machine
//!   changes its state and enters what follows
//! - **Order** by picosecond; what is entered for the same picosecond comes out as it was entered. Nothing depends on an address, a
//!   thread, a hash or a floating-point unit: the same entries give the same sequence on every machine
//! - **Owner** one machine, one calendar, one thread
//! - **Not here** what events mean (`pulse`); where durations come from (`parameters`)

mod clock;
mod random;

pub use clock::{Rate, Time};
pub use random::Random;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// An entry: due time in the upper half of the key, serial number in the lower.
#[derive(Debug)]
struct Entry<E> {
    key: u128,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest is the earliest.
        other.key.cmp(&self.key)
    }
}

/// Events that are due, and the clock. See the module.
#[derive(Debug)]
pub struct Calendar<E> {
    /// The earliest of all, if it is not in the heap: what is entered for soon comes out next, and never goes through it.
    front: Option<Entry<E>>,
    heap: BinaryHeap<Entry<E>>,
    now: Time,
    serial: u64,
}

impl<E> Default for Calendar<E> {
    fn default() -> Self {
        Calendar { front: None, heap: BinaryHeap::new(), now: Time::ZERO, serial: 0 }
    }
}

impl<E> Calendar<E> {
    /// An empty one, at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time of the event that came out last.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events that came out so far.
    #[must_use]
    pub fn happened(&self) -> u64 {
        self.serial - self.due() as u64
    }

    /// Events that are still due.
    #[must_use]
    pub fn due(&self) -> usize {
        self.heap.len() + usize::from(self.front.is_some())
    }

    /// Enters an event for a time; one that lies in the past is due now.
    pub fn at(&mut self, time: Time, event: E) {
        let key = u128::from(time.max(self.now).as_ps()) << 64 | u128::from(self.serial);
        self.serial += 1;
        let entry = Entry { key, event };
        let first = self.front.as_ref().or(self.heap.peek()).is_none_or(|head| key < head.key);
        if !first {
            self.heap.push(entry);
        } else if let Some(later) = self.front.replace(entry) {
            self.heap.push(later);
        }
    }

    /// Enters an event for so much later than now.
    pub fn after(&mut self, delay: Time, event: E) {
        self.at(self.now + delay, event);
    }

    /// Returns the time of the earliest event.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.front.as_ref().or(self.heap.peek()).map(|entry| Time::from_ps((entry.key >> 64) as u64))
    }

    /// Moves the clock so much on if nothing is due until then: what would be the next event can happen at once. False: the clock stays.
    #[inline]
    pub fn skip(&mut self, delay: Time) -> bool {
        let then = self.now + delay;
        let free = self.next().is_none_or(|next| then < next);
        if free {
            self.now = then;
        }
        free
    }

    /// The earliest event; the clock goes to it.
    pub fn pop(&mut self) -> Option<E> {
        let entry = self.front.take().or_else(|| self.heap.pop())?;
        self.now = Time::from_ps((entry.key >> 64) as u64);
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_as_entered() {
        let mut calendar = Calendar::new();
        for (time, event) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c')] {
            calendar.at(Time::from_ps(time), event);
        }
        let mut seen = String::new();
        while let Some(event) = calendar.pop() {
            seen.push(event);
            if event == 'b' {
                calendar.after(Time::ZERO, 'x');
                calendar.at(Time::from_ps(5), 'y');
            }
        }
        assert_eq!(seen, "abcxyd");
        assert_eq!((calendar.now(), calendar.happened(), calendar.due()), (Time::from_ps(30), 6, 0));
    }

    #[test]
    fn the_clock_skips_time_in_which_nothing_is_due() {
        let mut calendar = Calendar::new();
        assert!(calendar.skip(Time::from_ps(3)));
        calendar.after(Time::from_ps(10), 'a');
        assert!(calendar.skip(Time::from_ps(9)) && !calendar.skip(Time::from_ps(1)));
        assert_eq!((calendar.now(), calendar.pop()), (Time::from_ps(12), Some('a')));
        assert_eq!((calendar.now(), calendar.happened()), (Time::from_ps(13), 1));
    }

    /// A sequence that depends on every rule above, written down once: another order or another generator changes it.
    #[test]
    fn a_seed_gives_one_sequence() {
        let run = |seed| {
            let (mut calendar, mut random, mut sum) = (Calendar::new(), Random::new(seed), 0_u64);
            (0..64_u64).for_each(|event| calendar.at(Time::from_ps(random.below(50)), event));
            for _ in 0..10_000 {
                let event = calendar.pop().expect("every event enters another");
                sum = sum.rotate_left(5) ^ event ^ calendar.now().as_ps();
                calendar.after(Time::from_ps(random.below(40)), random.below(1 << 20));
            }
            (sum, calendar.now().as_ps())
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert_eq!(run(7), (15_613_992_664_723_445_695, 3031));
    }
}
