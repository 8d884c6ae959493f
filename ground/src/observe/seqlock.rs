// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record of seven words with a sequence number: many writers, any number of readers elsewhere, and never a torn
//! record.
//!
//! - **Flow** [`write`]: sequence even → odd (compare-exchange) ──▶ words ──▶ sequence = done. [`read`]: sequence ──▶
//!   words ──▶ sequence again; the record counts only if both are the same even number
//! - **Order** writer: fence(Release) between the odd sequence and the words, so that a reader that sees a new word and
//!   then fences also sees the sequence odd or newer; the even one is stored with Release. Reader: the first load is
//!   Acquire; fence(Acquire) between the words and the second load.
//! - **Owner** a cell belongs to the writer that made its sequence odd. A writer that finds it odd, or newer than its
//!   own number, gives up: it was overtaken.
//! - **Not here** the memory of the words: a reader accesses it through a closure, because it may belong to another
//!   process.

#[cfg(loom)]
use loom::sync::atomic::fence;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::fence;

/// Words of a record.
pub(super) const WORDS: usize = 7;

/// An atomic word: std's, or loom's when the protocol is model-checked.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `current` by `new` and returns true if it did; Acquire if it did.
    fn replace(&self, current: u64, new: u64) -> bool;
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            fn load(&self, order: Ordering) -> u64 {
                <$type>::load(self, order)
            }

            fn store(&self, value: u64, order: Ordering) {
                <$type>::store(self, value, order);
            }

            fn replace(&self, current: u64, new: u64) -> bool {
                self.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
            }
        }
    };
}

word!(std::sync::atomic::AtomicU64);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64);

/// Writes record `number`; returns false if the cell is being written or holds a newer record.
#[must_use]
pub(super) fn write<W: Word>(sequence: &W, words: &[W; WORDS], number: u64, record: [u64; WORDS]) -> bool {
    let done = number.wrapping_add(1).wrapping_mul(2);
    let seen = sequence.load(Ordering::Relaxed);
    if !seen.is_multiple_of(2) || seen >= done || !sequence.replace(seen, done - 1) {
        return false;
    }
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(record) {
        word.store(value, Ordering::Relaxed);
    }
    sequence.store(done, Ordering::Release);
    true
}

/// Reads a cell once: returns the number and the record, or the reason that there is none.
pub(super) fn read(
    sequence: impl Fn(Ordering) -> u64,
    word: impl Fn(usize) -> u64,
) -> Result<(u64, [u64; WORDS]), Unread> {
    let before = sequence(Ordering::Acquire);
    if before == 0 {
        return Err(Unread::Empty);
    }
    if !before.is_multiple_of(2) {
        return Err(Unread::BeingWritten);
    }
    let record = std::array::from_fn(word);
    fence(Ordering::Acquire);
    if sequence(Ordering::Relaxed) != before {
        return Err(Unread::BeingWritten);
    }
    Ok((before / 2 - 1, record))
}

/// Reason that a cell gave no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unread {
    /// Nothing was ever written.
    Empty,
    /// The cell is being written at this moment.
    BeingWritten,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn older_and_interrupted_writers_give_up() {
        let sequence = AtomicU64::new(0);
        let words = [const { AtomicU64::new(0) }; WORDS];
        let look = || read(|order| sequence.load(order), |index| words[index].load(Ordering::Relaxed));
        assert_eq!(look(), Err(Unread::Empty));
        assert!(write(&sequence, &words, 5, [5; WORDS]));
        assert_eq!(look(), Ok((5, [5; WORDS])));
        assert!(!write(&sequence, &words, 4, [4; WORDS]), "an older one");
        assert!(!write(&sequence, &words, 5, [4; WORDS]), "the same one again");
        sequence.store(13, Ordering::Relaxed);
        assert!(!write(&sequence, &words, 9, [9; WORDS]), "somebody is writing");
        assert_eq!(look(), Err(Unread::BeingWritten));
    }
}

/// Run: `RUSTFLAGS="--cfg loom" cargo test -p memlift-ground --lib --release seqlock`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    struct Cell {
        sequence: AtomicU64,
        words: [AtomicU64; WORDS],
    }

    impl Cell {
        fn new() -> Arc<Cell> {
            Arc::new(Cell { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) })
        }

        fn write(&self, number: u64) -> bool {
            write(&self.sequence, &self.words, number, [number + 1; WORDS])
        }

        fn check(&self) {
            // The first and the last word stand for all, to keep loom's state space small.
            let seen = read(
                |order| self.sequence.load(order),
                |index| match index {
                    0 | 6 => self.words[index].load(Ordering::Relaxed),
                    _ => 0,
                },
            );
            if let Ok((number, words)) = seen {
                assert_eq!((words[0], words[6]), (number + 1, number + 1), "torn");
            }
        }
    }

    #[test]
    fn a_reader_never_sees_a_torn_record() {
        loom::model(|| {
            let cell = Cell::new();
            assert!(cell.write(0));
            let writer = cell.clone();
            let writing = thread::spawn(move || writer.write(256));
            cell.check();
            assert!(writing.join().unwrap());
            cell.check();
        });
    }

    #[test]
    fn two_writers_of_one_cell_leave_one_whole_record() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let cell = Cell::new();
            let other = cell.clone();
            let writing = thread::spawn(move || other.write(0));
            let newer = cell.write(256);
            let older = writing.join().unwrap();
            assert!(newer || older, "at least one gets through");
            cell.check();
        });
    }
}
