// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream whose match tables live as long as it does: [`Chains`], for streams that are flushed, and behind zlib's interface.
//!
//! - **Flow** input ──▶ window ──[`search`]: hash chains, greedy or lazy──▶ tokens ──a block, when they are many or a flush comes──▶
//!   [`emit`]: the cheapest of stored, fixed and dynamic ──▶ output, as far as there is room; the rest in the next call
//! - **Layout** of memory that the owner brings ([`memory_bytes`]), as much as zlib has for the same settings: twice the window and one place per
//!   byte of it; the first place of each hash, of four bytes and of three; tokens; counts and codes.
//! - **Order** a place is an offset into the window, 16 bits. Those of a chain go down, and those before the window are not followed.
//! - **Owner** the memory is the owner's, for as long as the stream is used. Nothing is allocated here.
//! - **Not here** frames and checksums; return codes of zlib.

mod emit;
mod level;
mod search;

pub use level::{Level, Strategy};

use super::block::{Counts, Table};
use super::matcher::has_avx2;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use emit::Emit;

/// The most bytes ahead that a search wants: a match, and one byte more to look at.
const AHEAD_BYTES: usize = 258 + 3 + 1;
/// Bytes that wide reads may go behind the window.
const BEHIND_BYTES: usize = 16;
/// The most bytes that are written besides tokens and stored bytes: the header of a block, or the bytes that a flush adds.
const PENDING_BYTES: usize = 640;

/// Counts and codes of a block.
#[repr(align(64))]
struct Codes {
    counts: Counts,
    table: Table,
}

/// The point up to which a call writes once its input was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Holds back bytes whose match may still become longer.
    More,
    /// Writes all that was read.
    Flushed,
    /// Writes everything, and ends the message.
    Finished,
}

/// The buffers of one call, and what was done with them.
pub struct Io<'a> {
    /// Bytes to be packed.
    pub input: &'a [u8],
    /// Where packed bytes go.
    pub output: &'a mut [MaybeUninit<u8>],
    /// Bytes of the input that were read.
    pub read: usize,
    /// Bytes of the output that were written.
    pub written: usize,
}

impl Io<'_> {
    fn room(&self) -> usize {
        self.output.len() - self.written
    }
}

/// A stream, on memory that its owner brings.
#[derive(Clone)]
pub struct Chains {
    window: NonNull<u8>,
    prev: NonNull<u16>,
    head: NonNull<u16>,
    third: NonNull<u16>,
    tokens: NonNull<u32>,
    codes: NonNull<Codes>,
    fast: bool,
    window_bytes: usize,
    memory_level: u32,
    hash_bits: HashBits,
    /// Bytes of the window that were written, by input or with zeros; the chains' places for them were written too.
    initialized: usize,
    /// Number of tokens at which a block ends.
    most: usize,
    level: Level,
    strategy: Strategy,
    /// Where the search is, and the end of what was read.
    start: usize,
    filled: usize,
    /// Where the block begins; less than 0 when its first bytes left the window.
    block: isize,
    /// The first place that is not in the chains.
    hashed: usize,
    /// The match of the byte before `start`, which waits for a longer one; less than 3 bytes: none.
    length: usize,
    from: usize,
    /// True if that byte has no token yet.
    available: bool,
    /// Bytes since the last match.
    misses: u32,
    /// The shortest match that this block takes: three bytes or four.
    shortest: usize,
    /// True if the last block was begun.
    ended: bool,
    used: usize,
    emit: Emit,
    hold: u64,
    count: u32,
    pending: [u8; PENDING_BYTES],
    pending_at: usize,
    pending_end: usize,
}

/// Bytes of the two pieces of memory that a stream with these `windowBits` (9–15) and `memLevel` (1–9) needs.
pub const fn memory_bytes(window_bits: u32, memory_level: u32) -> (usize, usize) {
    let first = (4 << window_bits) + BEHIND_BYTES;
    let tables = 2 * HashBits::of(memory_level).places();
    (first, tables + 4 * tokens(memory_level) + size_of::<Codes>() + align_of::<Codes>())
}

/// The fewest bits of a hash of four bytes, and of three: with fewer, chains are mostly of other bytes. Memory levels 1 and 2 get 1 KiB more than
/// zlib takes for it.
const LEAST_HASH_BITS: u32 = 9;
const LEAST_THIRD_BITS: u32 = 8;

/// Bits of the hash of four bytes, at most.
const fn hash_bits(memory_level: u32) -> u32 {
    let bits = memory_level + 6;
    if bits < LEAST_HASH_BITS { LEAST_HASH_BITS } else { bits }
}

/// Bits of the hash of three bytes, of which only near places are used, at most.
const fn third_bits(memory_level: u32) -> u32 {
    let bits = memory_level + 6;
    if bits < LEAST_THIRD_BITS { LEAST_THIRD_BITS } else { bits }
}

/// Tokens of a block, as many as zlib's: `compressBound` has room for the stored blocks of so many literals.
const fn tokens(memory_level: u32) -> usize {
    1 << (memory_level + 6)
}

/// Bits of the hashes of a stream.
#[derive(Clone, Copy)]
struct HashBits {
    four: u32,
    three: u32,
}

impl HashBits {
    const fn of(memory_level: u32) -> HashBits {
        HashBits { four: hash_bits(memory_level), three: third_bits(memory_level) }
    }

    /// Those for a message of so many bytes: it fills no more places, and fewer are to be cleared.
    fn for_message(self, bytes: usize) -> HashBits {
        let most = bytes.max(64).ilog2() + 2;
        HashBits { four: self.four.min(most), three: self.three.min(most) }
    }

    /// Places in both tables, which follow each other.
    const fn places(self) -> usize {
        (1 << self.four) + (1 << self.three)
    }
}

impl Chains {
    /// A stream. `first` and `second` have as many bytes as [`memory_bytes`] says, aligned to 8. `first` begins with `history` bytes that the reader has
    /// as well, and `waiting` bytes that were read: together no more than two windows. `expected`: all bytes that are to come, if known.
    ///
    /// # Safety
    /// The memory is the stream's alone while it is used, and stays where it is; these bytes of it are initialized.
    pub unsafe fn new(
        first: NonNull<u8>,
        second: NonNull<u8>,
        window_bits: u32,
        memory_level: u32,
        history: usize,
        waiting: usize,
        expected: Option<usize>,
    ) -> Chains {
        let window_bytes = 1usize << window_bits;
        let all = HashBits::of(memory_level);
        let hash_bits = expected.map_or(all, |bytes| all.for_message(history + waiting + bytes));
        // SAFETY: all of it lies within the two pieces, whose sizes are the sums of these parts.
        unsafe {
            let held = history + waiting;
            assert!(held <= 2 * window_bytes);
            let prev = first.add(2 * window_bytes + BEHIND_BYTES).cast();
            let codes = second.add(second.align_offset(align_of::<Codes>())).cast::<Codes>();
            codes.write(Codes { counts: Counts::new(), table: Table::new() });
            let head = codes.add(1).cast::<u16>();
            let third = head.add(1 << hash_bits.four);
            head.write_bytes(0, hash_bits.places());
            let tokens = head.add(all.places()).cast();
            let mut chains = Chains {
                window: first,
                prev,
                head,
                third,
                tokens,
                codes,
                fast: has_avx2(crate::active().isa),
                window_bytes,
                memory_level,
                hash_bits,
                initialized: 0,
                most: self::tokens(memory_level) - 1,
                level: Level::of(6),
                strategy: Strategy::Default,
                start: history,
                filled: held,
                block: history as isize,
                hashed: 0,
                ended: false,
                length: 0,
                from: 0,
                available: false,
                misses: 0,
                shortest: 3,
                used: 0,
                emit: Emit::Idle,
                hold: 0,
                count: 0,
                pending: [0; PENDING_BYTES],
                pending_at: 0,
                pending_end: 0,
            };
            chains.initialize_behind();
            chains.catch_up();
            chains
        }
    }

    /// A copy in other memory of the same sizes.
    ///
    /// # Safety
    /// As [`new`](Chains::new), with the settings of this stream.
    pub unsafe fn copy(&self, first: NonNull<u8>, second: NonNull<u8>) -> Chains {
        let memory_level = self.memory_level;
        let window_bits = self.window_bytes.ilog2();
        // SAFETY: the caller vouches for both pieces of memory, as for `new`; all parts have the same sizes in both, and
        // everything that is copied was initialized.
        unsafe {
            let fresh = Chains::new(first, second, window_bits, memory_level, 0, 0, None);
            fresh.window.copy_from_nonoverlapping(self.window, 2 * self.window_bytes);
            fresh.prev.cast::<u8>().copy_from_nonoverlapping(self.prev.cast(), 2 * self.window_bytes);
            fresh.head.copy_from_nonoverlapping(self.head, self.hash_bits.places());
            fresh.tokens.copy_from_nonoverlapping(self.tokens, self.used);
            fresh.codes.copy_from_nonoverlapping(self.codes, 1);
            let third = fresh.head.add(1 << self.hash_bits.four);
            let Chains { window, prev, head, tokens, codes, .. } = fresh;
            Chains { window, prev, head, third, tokens, codes, ..self.clone() }
        }
    }

    /// Sets how searches are made from now on. If the kind changes, the caller first writes all that was read.
    pub fn set_level(&mut self, level: Level, strategy: Strategy) {
        if self.level.kind != level.kind {
            self.hashed = self.start;
        }
        (self.level, self.strategy) = (level, strategy);
    }

    /// The way of searching in use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Bytes that were read and are in no block yet.
    pub fn waiting(&self) -> usize {
        (self.filled as isize - self.block) as usize
    }

    /// Bytes that were read and have no token yet.
    pub fn ahead(&self) -> usize {
        self.filled - self.start
    }

    /// Returns true if the last block was begun: nothing more is read.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The history in the window, at most one window.
    pub fn history(&self) -> &[u8] {
        let bytes = self.filled.min(self.window_bytes);
        // SAFETY: everything below `filled` was written.
        unsafe { core::slice::from_raw_parts(self.window.as_ptr().add(self.filled - bytes), bytes) }
    }

    /// Takes bytes as history, which the reader has as well. Nothing waits.
    pub fn learn(&mut self, mut bytes: &[u8]) {
        bytes = &bytes[bytes.len().saturating_sub(self.window_bytes)..];
        while !bytes.is_empty() {
            let read = self.fill(bytes);
            bytes = &bytes[read..];
            (self.start, self.block) = (self.filled, self.filled as isize);
            self.catch_up();
        }
        (self.length, self.available) = (0, false);
    }

    /// Forgets the history, for readers that start here. Everything was written.
    pub fn forget(&mut self) {
        // SAFETY: both tables, which follow each other.
        unsafe { self.head.write_bytes(0, self.hash_bits.places()) };
        self.hashed = self.start;
        if self.start == self.filled {
            (self.start, self.filled, self.block, self.hashed) = (0, 0, 0, 0);
        }
    }

    /// Reads and writes as far as it goes. `true`: what `until` asks for is done, and all of it written but for bits in hand.
    pub fn run(&mut self, io: &mut Io<'_>, until: Until) -> bool {
        loop {
            if !self.drain(io) || self.ended {
                return self.emit == Emit::Idle && self.pending_at == self.pending_end;
            }
            io.read += self.fill(&io.input[io.read..]);
            let more = until == Until::More || io.read != io.input.len();
            let ended =
                if self.level.kind == level::Kind::Stored { self.store(more) } else { self.search(more) };
            match ended {
                search::Ended::Full => self.begin_block(false),
                search::Ended::Short if io.read == io.input.len() => return false,
                search::Ended::Short => {}
                search::Ended::Empty => {
                    let finish = until == Until::Finished;
                    self.ended = finish;
                    if self.used != 0
                        || finish
                        || self.level.kind == level::Kind::Stored && self.waiting() != 0
                    {
                        self.begin_block(finish);
                    }
                    return self.drain(io);
                }
            }
        }
    }

    /// Reads as much of the input as the window takes. Returns how many bytes.
    fn fill(&mut self, input: &[u8]) -> usize {
        let mut read = 0;
        while read != input.len() && self.filled - self.start < AHEAD_BYTES {
            if self.start >= 2 * self.window_bytes - AHEAD_BYTES {
                self.slide();
            }
            let take = (2 * self.window_bytes - self.filled).min(input.len() - read);
            // SAFETY: the room was looked at; the window is the stream's alone.
            unsafe {
                let target = self.window.as_ptr().add(self.filled);
                target.copy_from_nonoverlapping(input[read..].as_ptr(), take);
            }
            self.filled += take;
            read += take;
        }
        self.initialize_behind();
        read
    }

    /// Writes zeros where wide reads may go behind the bytes that were read, and into the chains of bytes that were read for the first time.
    fn initialize_behind(&mut self) {
        let end = self.filled + BEHIND_BYTES;
        if self.initialized < end {
            let zeros = self.filled.max(self.initialized);
            let (from, to) = (self.initialized.min(self.window_bytes), end.min(self.window_bytes));
            // SAFETY: the window has two halves and `BEHIND_BYTES` bytes more, the chains have as many places as a half; both are the stream's alone.
            unsafe {
                self.window.add(zeros).write_bytes(0, end - zeros);
                self.prev.add(from).write_bytes(0, to - from);
            }
            self.initialized = end;
        }
    }

    /// Moves the upper half of the window down.
    fn slide(&mut self) {
        let bytes = self.window_bytes;
        // SAFETY: the window has two halves; the chains have as many places as a half, the tables as many as their hashes.
        unsafe {
            let window = self.window.as_ptr();
            window.copy_from(window.add(bytes), self.filled - bytes);
            let tables = core::slice::from_raw_parts_mut(self.head.as_ptr(), self.hash_bits.places());
            for place in tables {
                *place = place.saturating_sub(bytes as u16);
            }
            let prev = self.prev.as_ptr();
            for at in 0..bytes {
                *prev.add(at) = (*prev.add(at)).saturating_sub(bytes as u16);
            }
        }
        self.start -= bytes;
        self.filled -= bytes;
        self.block -= bytes as isize;
        self.hashed -= bytes;
        self.from = self.from.saturating_sub(bytes);
    }
}
