// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream whose match tables live as long as it does, [`Chains`], for streams that are flushed, and for zlib's interface.
//!
//! - **Flow** input ──▶ window ──[`search`]: hash chains, greedy or lazy──▶ tokens. When there are enough tokens or a flush comes,
//!   [`emit`] writes them as a block, the smallest of stored, fixed and dynamic. What does not fit into the output is written in the next
//!   call.
//! - **Layout** the owner provides the memory ([`memory_bytes`]), as much as zlib uses for the same settings: twice the window and one
//!   chain entry per byte of the window; the first position of each hash, of four bytes and of three; tokens; counts and codes.
//! - **Order** a position is a 16-bit offset into the window. Positions in a chain decrease, and a chain is not followed beyond the window.
//! - **Owner** the memory belongs to the owner and is lent for as long as the stream is used. Nothing is allocated here.
//! - **Not here** frames and checksums; return codes of zlib.

mod emit;
mod level;
mod search;

pub use level::{Level, Strategy};

use super::code_table::{Counts, Table};
use super::contents::Contents;
use super::isa::has_avx2;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use emit::Emit;

/// Most bytes that a search reads ahead: a match, and the bytes that are compared behind it.
const AHEAD_BYTES: usize = 258 + 3 + 1;
/// Bytes behind the window that wide reads may reach.
const BEHIND_BYTES: usize = 16;
/// Most bytes that are written besides tokens and stored bytes: the header of a block, or the bytes that a flush adds.
const PENDING_BYTES: usize = 640;

/// Counts and codes of a block.
#[repr(align(64))]
struct Codes {
    counts: Counts,
    table: Table,
}

/// How much a call writes after it has read its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// All but the bytes at the end whose match may still become longer.
    More,
    /// Everything that was read.
    Flushed,
    /// Everything, and the end of the message.
    Finished,
}

/// Buffers of one call, and how much of them was used.
pub struct Io<'a> {
    /// Bytes to pack.
    pub input: &'a [u8],
    /// Memory for the packed bytes.
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

/// A stream, on memory that its owner provides.
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
    /// Bytes of the window that are initialized, by input or by zeros; the chain entries for them are initialized, too.
    initialized: usize,
    /// Number of tokens at which a block ends.
    block_tokens: usize,
    level: Level,
    strategy: Strategy,
    /// Position of the search (`start`), and end of the bytes that were read (`filled`).
    start: usize,
    filled: usize,
    /// Position where the current block begins; negative if its first bytes have left the window.
    block: isize,
    /// First position that is not in the chains.
    hashed: usize,
    /// Length of the match at the byte before `start`, which is kept until the next byte is searched; less than 3 if there is
    /// none.
    length: usize,
    /// Position of the bytes that this match repeats.
    match_at: usize,
    /// True if the byte before `start` has no token yet.
    available: bool,
    /// Number of bytes since the last match.
    misses: u32,
    /// The shortest match that this block takes: three bytes or four.
    shortest: usize,
    /// True if the last block was begun.
    ended: bool,
    /// Kind of the literals of the first block since the last [`take_contents`](Chains::take_contents).
    contents: Option<Contents>,
    used: usize,
    emit: Emit,
    hold: u64,
    count: u32,
    pending: [u8; PENDING_BYTES],
    pending_at: usize,
    pending_end: usize,
}

/// Returns the sizes of the two pieces of memory that a stream with these `windowBits` (9–15) and `memLevel` (1–9) needs.
pub const fn memory_bytes(window_bits: u32, memory_level: u32) -> (usize, usize) {
    let first = (4 << window_bits) + BEHIND_BYTES;
    let tables = 2 * HashBits::of(memory_level).places();
    (first, tables + 4 * tokens(memory_level) + size_of::<Codes>() + align_of::<Codes>())
}

/// Fewest bits of the hash of four bytes, and of three: with fewer bits, most entries of a chain would be other bytes. For memory
/// levels 1 and 2 this takes 1 KiB more than zlib.
const LEAST_HASH_BITS: u32 = 9;
const LEAST_THIRD_BITS: u32 = 8;

/// Returns the most bits of the hash of four bytes.
const fn hash_bits(memory_level: u32) -> u32 {
    let bits = memory_level + 6;
    if bits < LEAST_HASH_BITS { LEAST_HASH_BITS } else { bits }
}

/// Returns the most bits of the hash of three bytes, of which only near positions are used.
const fn third_bits(memory_level: u32) -> u32 {
    let bits = memory_level + 6;
    if bits < LEAST_THIRD_BITS { LEAST_THIRD_BITS } else { bits }
}

/// Returns the number of tokens of a block, the same as zlib's: `compressBound` counts on stored blocks of this many literals.
const fn tokens(memory_level: u32) -> usize {
    1 << (memory_level + 6)
}

/// Bits of the two hashes of a stream.
#[derive(Clone, Copy)]
struct HashBits {
    four: u32,
    three: u32,
}

impl HashBits {
    const fn of(memory_level: u32) -> HashBits {
        HashBits { four: hash_bits(memory_level), three: third_bits(memory_level) }
    }

    /// Returns the bits for a message of `bytes` bytes: a short message fills few entries, and clearing fewer takes less time.
    fn for_message(self, bytes: usize) -> HashBits {
        let most = bytes.max(64).ilog2() + 2;
        HashBits { four: self.four.min(most), three: self.three.min(most) }
    }

    /// Returns the number of entries of both tables together, which lie one after the other.
    const fn places(self) -> usize {
        (1 << self.four) + (1 << self.three)
    }
}

impl Chains {
    /// Creates a stream. `first` and `second` have the sizes of [`memory_bytes`] and are aligned to 8. `first` begins with
    /// `history` bytes that the reader has as well, then `waiting` bytes that were read but not packed: together at most two
    /// windows. `expected` is the number of all bytes to come, if it is known.
    ///
    /// # Safety
    /// Only the stream uses the memory while the stream lives, the memory does not move, and the history and waiting bytes are
    /// initialized.
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
        // SAFETY: every part lies within the two pieces, whose sizes are the sums of the parts.
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
                block_tokens: self::tokens(memory_level) - 1,
                level: Level::of(6),
                strategy: Strategy::Default,
                start: history,
                filled: held,
                block: history as isize,
                hashed: 0,
                ended: false,
                contents: None,
                length: 0,
                match_at: 0,
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

    /// Copies the stream to other memory of the same sizes.
    ///
    /// # Safety
    /// The conditions of [`new`](Chains::new), with the settings of this stream.
    pub unsafe fn copy(&self, first: NonNull<u8>, second: NonNull<u8>) -> Chains {
        let memory_level = self.memory_level;
        let window_bits = self.window_bytes.ilog2();
        // SAFETY: the caller guarantees both pieces of memory, as for `new`; all parts have the same sizes in both streams, and
        // everything that is copied is initialized.
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

    /// Changes how the next bytes are searched. If the method changes, the caller must first have written all that was read.
    pub fn set_level(&mut self, level: Level, strategy: Strategy) {
        if self.level.method != level.method {
            self.hashed = self.start;
        }
        (self.level, self.strategy) = (level, strategy);
    }

    /// Returns the search parameters in use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the number of bytes that were read and are in no block yet.
    pub fn waiting(&self) -> usize {
        (self.filled as isize - self.block) as usize
    }

    /// Returns the number of bytes that were read and have no token yet.
    pub fn ahead(&self) -> usize {
        self.filled - self.start
    }

    /// Returns true if the last block was begun; no more input is read then.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the kind of the literals of the first block that was begun since the last call, if one was; blocks of level 0 have none.
    pub fn take_contents(&mut self) -> Option<Contents> {
        self.contents.take()
    }

    /// Returns the history in the window, at most one window.
    pub fn history(&self) -> &[u8] {
        let bytes = self.filled.min(self.window_bytes);
        // SAFETY: everything below `filled` was written.
        unsafe { core::slice::from_raw_parts(self.window.as_ptr().add(self.filled - bytes), bytes) }
    }

    /// Takes bytes as history that the reader has as well. All bytes read before must be written.
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

    /// Forgets the history, so that a reader can start here. All bytes read before must be written.
    pub fn forget(&mut self) {
        // SAFETY: the two tables lie one after the other, with `places` entries in all.
        unsafe { self.head.write_bytes(0, self.hash_bits.places()) };
        self.hashed = self.start;
        if self.start == self.filled {
            (self.start, self.filled, self.block, self.hashed) = (0, 0, 0, 0);
        }
    }

    /// Reads input and writes output as far as possible. Returns true if everything that `until` asks for is written, except
    /// for unstored bits.
    pub fn run(&mut self, io: &mut Io<'_>, until: Until) -> bool {
        loop {
            if !self.drain(io) || self.ended {
                return self.emit == Emit::Idle && self.pending_at == self.pending_end;
            }
            io.read += self.fill(&io.input[io.read..]);
            let more = until == Until::More || io.read != io.input.len();
            let ended = if self.level.method == level::SearchMethod::Stored {
                self.store(more)
            } else {
                self.search(more)
            };
            match ended {
                search::Ended::Full => self.begin_block(false),
                search::Ended::Short if io.read == io.input.len() => return false,
                search::Ended::Short => {}
                search::Ended::Empty => {
                    let finish = until == Until::Finished;
                    self.ended = finish;
                    if self.used != 0
                        || finish
                        || self.level.method == level::SearchMethod::Stored && self.waiting() != 0
                    {
                        self.begin_block(finish);
                    }
                    return self.drain(io);
                }
            }
        }
    }

    /// Reads as much of the input as fits into the window; returns the number of bytes.
    fn fill(&mut self, input: &[u8]) -> usize {
        let mut read = 0;
        while read != input.len() && self.filled - self.start < AHEAD_BYTES {
            if self.start >= 2 * self.window_bytes - AHEAD_BYTES {
                self.slide();
            }
            let take = (2 * self.window_bytes - self.filled).min(input.len() - read);
            // SAFETY: the room in the window was checked, and only this stream uses the window.
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

    /// Initializes the bytes behind the input that wide reads may reach, and the chain entries of bytes that are new in the
    /// window, with zeros.
    fn initialize_behind(&mut self) {
        let end = self.filled + BEHIND_BYTES;
        if self.initialized < end {
            let zeros = self.filled.max(self.initialized);
            let (from, to) = (self.initialized.min(self.window_bytes), end.min(self.window_bytes));
            // SAFETY: the window has two halves and `BEHIND_BYTES` more, the chains one entry per byte of a half; only this
            // stream uses both.
            unsafe {
                self.window.add(zeros).write_bytes(0, end - zeros);
                self.prev.add(from).write_bytes(0, to - from);
            }
            self.initialized = end;
        }
    }

    /// Moves the upper half of the window to the lower half.
    fn slide(&mut self) {
        let bytes = self.window_bytes;
        // SAFETY: the window has two halves, the chains one entry per byte of a half, and the tables one entry per hash.
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
        self.match_at = self.match_at.saturating_sub(bytes);
    }
}
