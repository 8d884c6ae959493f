// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The decoder of a stream. It makes the same steps as zlib, so it stops where zlib stops, with the same unused bits.
//!
//! - **Flow** [`Decoder::run`] makes one step after the other until input, room or the stream ends, or the flush asks for a stop. Symbols
//!   are decoded by [`fast`](super::fast) while there is plenty of input and room, else one by one. [`Decoder::inflate`] is one call of
//!   `inflate`: it runs, saves the last bytes in the window, and updates counts, checksum and `data_type`.
//! - **Order** input is read byte by byte, never more than a step needs, so the program sees the same input position and unused bits as
//!   with zlib.
//! - **Owner** everything but the window is in the struct. The window is allocated when a call leaves bytes that a later one may refer to.
//! - **Not here** the steps before the first block ([`front`](super::front)).

use super::fast::{self, Cursor, History, INPUT_BYTES, ROOM_BYTES, Stop, Tables};
use super::tables::{
    self, Alphabet, Counts, END, EXCEPTION, LINK, LITERAL, WIDE_BITS, Wide, code_bits, extra_bits, value,
};
use crate::memory::Memory;
use core::ffi::{CStr, c_int, c_long, c_ulong};
use core::mem::MaybeUninit;
use core::ptr;
use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_FINISH, Z_MEM_ERROR, Z_NEED_DICT, Z_OK, Z_STREAM_END,
    Z_STREAM_ERROR, Z_TREES, gz_header, z_stream,
};
use memlift_kernels::deflate::{adler32, crc32};

/// Steps of the decoder, in the order of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mode {
    Head,
    Flags,
    Time,
    Os,
    ExtraLength,
    Extra,
    Name,
    Comment,
    HeadCrc,
    DictionaryId,
    Dictionary,
    /// Before a block; a flush may stop here.
    Type,
    TypeDo,
    Stored,
    /// Before the bytes of a stored block; `Z_TREES` stops here.
    CopyBegin,
    Copy,
    Table,
    LengthLengths,
    CodeLengths,
    /// Before the symbols of a block; `Z_TREES` stops here.
    SymbolsBegin,
    Symbol,
    LengthExtra,
    Distance,
    DistanceExtra,
    Match,
    Literal,
    Check,
    Length,
    Done,
    Bad,
    NoMemory,
    Sync,
}

/// Tables that `inflateCodesUsed` counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    None,
    Lengths,
    Literals,
    All,
}

/// Bytes of output after which they are added to the checksum.
const SUMMED_BYTES: usize = 16 << 10;
/// Bytes of output of a block after which it gets a wide table if its codes are short, so that many entries have two symbols. To fill
/// the table takes about as long as to unpack these bytes.
const LONG_BYTES: usize = 4 << 10;
/// Bytes of input of a block after which it gets a wide table whatever its codes are: entries of a literal and a length save wrong
/// guesses of the CPU, and a block of so many bytes is probably a longer one.
const LONG_INPUT_BYTES: usize = 8 << 10;
/// Programs that know the length of a message say that there is as much room as a number can hold; zlib touches the message's bytes only.
const CREDIBLE_ROOM_BYTES: usize = 1 << 30;
/// Order in which the lengths of the code length code are stored.
const ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const LENGTHS: usize = 286 + 32;

/// The state of a decoder.
#[derive(Clone)]
pub struct Decoder {
    pub mode: Mode,
    pub last: bool,
    /// Bits: 1: a zlib frame is accepted, 2: a gzip frame is accepted, 4: checksums are compared.
    pub wrap: u8,
    pub has_dictionary: bool,
    /// Flags of a gzip frame, 0 for a zlib frame, −1 before a frame.
    pub flags: c_int,
    pub check: u32,
    /// Bytes delivered to the program so far.
    pub total: u64,
    pub head: *mut gz_header,
    /// log2 of the window's size; 0 if it is taken from the frame.
    pub window_bits: u32,
    pub window: *mut u8,
    /// Size of the window; 0 before it is used.
    pub size: usize,
    pub held: usize,
    pub next: usize,
    pub hold: u64,
    pub bits: u32,
    /// Bytes left of a match or a stored block; in a frame's header, the length of a field or the position in it.
    pub length: u32,
    pub offset: u32,
    extra: u32,
    /// For `inflateMark`: the original length of a match (`was`), and the bits since the last symbol (`back`).
    was: u32,
    back: i32,
    fixed: bool,
    literal_bits: u32,
    distance_bits: u32,
    used: Used,
    counts: [Counts; 2],
    literal_lengths: u16,
    distance_lengths: u16,
    length_lengths: u16,
    /// Number of code lengths read; in a sync, number of matching bytes of the pattern.
    pub have: u32,
    lengths: [u8; LENGTHS],
    literals: [u32; tables::LITERAL_ENTRIES],
    distances: [u32; tables::DISTANCE_ENTRIES],
}

/// Buffers of one call.
pub struct Io {
    pub input: *const u8,
    pub have: usize,
    pub output: *mut u8,
    pub room: usize,
    /// Start of the output of the call, or of `inflateBack`'s window.
    pub begin: *mut u8,
    /// End of the output bytes that are in the checksum.
    pub summed: *const u8,
    /// Largest distance, if the output is the window itself.
    pub most_distance: usize,
    pub message: Option<&'static CStr>,
}

/// Returns true if input and output overlap. That works with zlib as long as the output stays behind the input.
fn overlap(io: &Io) -> bool {
    let (input, output) = (io.input as usize, io.output as usize);
    input < output + io.room && output < input + io.have
}

impl Decoder {
    pub fn new(window_bits: c_int) -> Decoder {
        let mut core = Decoder {
            mode: Mode::Head,
            last: false,
            wrap: 0,
            has_dictionary: false,
            flags: -1,
            check: 0,
            total: 0,
            head: ptr::null_mut(),
            window_bits: 0,
            window: ptr::null_mut(),
            size: 0,
            held: 0,
            next: 0,
            hold: 0,
            bits: 0,
            length: 0,
            offset: 0,
            extra: 0,
            was: 0,
            back: -1,
            fixed: true,
            literal_bits: 0,
            distance_bits: 0,
            used: Used::None,
            counts: [[0; 16]; 2],
            literal_lengths: 0,
            distance_lengths: 0,
            length_lengths: 0,
            have: 0,
            lengths: [0; LENGTHS],
            literals: [0; tables::LITERAL_ENTRIES],
            distances: [0; tables::DISTANCE_ENTRIES],
        };
        core.set_bits(window_bits);
        core
    }

    /// Sets the checked `windowBits` of `inflateInit2`.
    pub fn set_bits(&mut self, bits: c_int) {
        (self.wrap, self.window_bits) = match bits {
            ..0 => (0, bits.unsigned_abs()),
            0..48 => ((bits >> 4) as u8 + 5, bits as u32 & 15),
            _ => (((bits >> 4) + 5) as u8, bits as u32),
        };
    }

    /// Prepares for the next stream of the same kind, and keeps the window's contents.
    pub fn reset_state(&mut self) {
        self.mode = Mode::Head;
        (self.last, self.has_dictionary, self.flags) = (false, false, -1);
        self.total = 0;
        self.head = ptr::null_mut();
        (self.hold, self.bits) = (0, 0);
        self.used = Used::None;
        self.back = -1;
    }

    /// Forgets the window's contents.
    pub fn forget_window(&mut self) {
        (self.size, self.held, self.next) = (0, 0, 0);
    }

    /// Frees the window's memory.
    pub fn free_window(&mut self, memory: &Memory) {
        if let Some(window) = ptr::NonNull::new(self.window) {
            // SAFETY: `save_window` got it from the same memory, and nobody uses it any more.
            unsafe { memory.free(window) };
            self.window = ptr::null_mut();
        }
    }

    /// Does one call of `inflate` whose arguments were checked.
    ///
    /// # Safety
    /// `strm` and its buffers are valid; the window came from `memory`.
    pub unsafe fn inflate(&mut self, strm: *mut z_stream, memory: &Memory, flush: c_int) -> c_int {
        // SAFETY: the caller guarantees the stream, its buffers and the window.
        unsafe {
            if self.mode == Mode::Type {
                self.mode = Mode::TypeDo; // the last call stopped here
            }
            let (have, room) = ((*strm).avail_in as usize, (*strm).avail_out as usize);
            let mut io = Io {
                input: (*strm).next_in,
                have,
                output: (*strm).next_out,
                room,
                begin: (*strm).next_out,
                summed: (*strm).next_out,
                most_distance: usize::MAX,
                message: None,
            };
            // Output bytes are added to the checksum before the checksum at the end of the frame is compared.
            let mut counted = 0;
            let mut code = self.run(&mut io, strm, flush, &mut counted);
            if let Some(text) = io.message {
                (*strm).msg = text.as_ptr().cast_mut();
            }
            ((*strm).next_in, (*strm).avail_in) = (io.input, io.have as u32);
            ((*strm).next_out, (*strm).avail_out) = (io.output, io.room as u32);
            if code == Z_NEED_DICT || code == Z_MEM_ERROR || code == Z_STREAM_ERROR {
                return code;
            }
            let (read, written) = (have - io.have, room - io.room - counted);
            let may_go_on = self.mode < Mode::Bad && (self.mode < Mode::Check || flush != Z_FINISH);
            if (self.size != 0 || (written != 0 && may_go_on))
                && !self.save_window(memory, io.output, written)
            {
                self.mode = Mode::NoMemory;
                return Z_MEM_ERROR;
            }
            (*strm).total_in += read as c_ulong;
            self.count(strm, &mut io, written);
            let stopped = match self.mode {
                Mode::Type => 128,
                Mode::SymbolsBegin | Mode::CopyBegin => 256,
                _ => 0,
            };
            (*strm).data_type = self.bits as c_int + if self.last { 64 } else { 0 } + stopped;
            if code == Z_OK && ((read == 0 && written == 0) || flush == Z_FINISH) {
                code = Z_BUF_ERROR;
            }
            code
        }
    }

    /// Adds `bytes` bytes of output to the counts, and those that are not in the checksum yet to it.
    unsafe fn count(&mut self, strm: *mut z_stream, io: &mut Io, bytes: usize) {
        // SAFETY: the caller guarantees the stream, and the buffers of the call.
        unsafe {
            (*strm).total_out += bytes as c_ulong;
            self.total += bytes as u64;
            self.sum_output(io);
            if self.wrap & 4 != 0 && bytes != 0 {
                (*strm).adler = self.check.into();
            }
        }
    }

    /// Adds the output that is not in the checksum yet to it.
    unsafe fn sum_output(&mut self, io: &mut Io) {
        let bytes = io.output as usize - io.summed as usize;
        if self.wrap & 4 != 0 && bytes != 0 {
            // SAFETY: the bytes from `summed` to `output` were written by this call.
            self.check = self.summed(unsafe { core::slice::from_raw_parts(io.summed, bytes) });
        }
        io.summed = io.output;
    }

    fn summed(&self, bytes: &[u8]) -> u32 {
        if self.flags != 0 { crc32(self.check, bytes) } else { adler32(self.check, bytes) }
    }

    /// Saves the `bytes` bytes before `end` in the window; returns false if there is no memory for it.
    ///
    /// # Safety
    /// The bytes can be read; the window came from `memory`.
    pub unsafe fn save_window(&mut self, memory: &Memory, end: *const u8, bytes: usize) -> bool {
        // SAFETY: the window has `size` bytes and `next` is less; no more than the rest is written to it.
        unsafe {
            let whole = 1usize << self.window_bits;
            if self.window.is_null() {
                let Some(window) = memory.get(whole) else { return false };
                self.window = window.as_ptr();
            }
            if self.size == 0 {
                (self.size, self.held, self.next) = (whole, 0, 0);
            }
            if bytes >= self.size {
                ptr::copy_nonoverlapping(end.sub(self.size), self.window, self.size);
                (self.held, self.next) = (self.size, 0);
                return true;
            }
            let first = bytes.min(self.size - self.next);
            ptr::copy_nonoverlapping(end.sub(bytes), self.window.add(self.next), first);
            let second = bytes - first;
            ptr::copy_nonoverlapping(end.sub(second), self.window, second);
            self.held = (self.held + bytes).min(self.size);
            self.next = if second != 0 { second } else { (self.next + first) % self.size };
            true
        }
    }

    pub fn tables(&self) -> Tables {
        if self.fixed {
            return Tables {
                wide: ptr::null(),
                literals: tables::FIXED_LITERALS.as_ptr(),
                literal_bits: tables::FIXED_LITERAL_BITS,
                distances: tables::FIXED_DISTANCES.as_ptr(),
                distance_bits: tables::FIXED_DISTANCE_BITS,
            };
        }
        Tables {
            wide: ptr::null(),
            literals: self.literals.as_ptr(),
            literal_bits: self.literal_bits,
            distances: self.distances.as_ptr(),
            distance_bits: self.distance_bits,
        }
    }

    fn fail(&mut self, io: &mut Io, text: &'static CStr) {
        io.message = Some(text);
        self.mode = Mode::Bad;
    }

    /// Makes steps until input or room is missing, the data is wrong, or the stream is done. `counted` is the number of output
    /// bytes that were already counted.
    ///
    /// # Safety
    /// `io` has valid buffers, `begin` is at or before `output`, and `strm` is valid.
    pub unsafe fn run(
        &mut self,
        io: &mut Io,
        strm: *mut z_stream,
        flush: c_int,
        counted: &mut usize,
    ) -> c_int {
        macro_rules! need {
            ($count:expr) => {
                // SAFETY: the caller guarantees a valid input.
                if !unsafe { self.need(io, $count) } {
                    return Z_OK;
                }
            };
        }
        loop {
            match self.mode {
                Mode::Type | Mode::TypeDo => {
                    if self.mode == Mode::Type && (flush == Z_BLOCK || flush == Z_TREES) {
                        return Z_OK;
                    }
                    if self.last {
                        self.drop(self.bits & 7);
                        self.mode = Mode::Check;
                        continue;
                    }
                    need!(3);
                    self.last = self.hold & 1 != 0;
                    let kind = self.hold >> 1 & 3;
                    self.drop(3);
                    match kind {
                        0 => self.mode = Mode::Stored,
                        1 => {
                            self.fixed = true;
                            self.mode = Mode::SymbolsBegin;
                            if flush == Z_TREES {
                                return Z_OK;
                            }
                        }
                        2 => self.mode = Mode::Table,
                        _ => self.fail(io, c"invalid block type"),
                    }
                }
                Mode::Stored => {
                    self.drop(self.bits & 7);
                    need!(32);
                    let (length, inverse) = (self.hold as u16, (self.hold >> 16) as u16);
                    if length != !inverse {
                        self.fail(io, c"invalid stored block lengths");
                        continue;
                    }
                    self.length = length.into();
                    (self.hold, self.bits) = (0, 0);
                    self.mode = Mode::CopyBegin;
                    if flush == Z_TREES {
                        return Z_OK;
                    }
                }
                Mode::CopyBegin | Mode::Copy => {
                    self.mode = Mode::Copy;
                    if self.length == 0 {
                        self.mode = Mode::Type;
                        continue;
                    }
                    let take = (self.length as usize).min(io.have).min(io.room);
                    if take == 0 {
                        return Z_OK;
                    }
                    // SAFETY: `take` is at most the bytes to read and the room to write, and the buffers do not overlap.
                    unsafe {
                        ptr::copy_nonoverlapping(io.input, io.output, take);
                        (io.input, io.output) = (io.input.add(take), io.output.add(take));
                    }
                    (io.have, io.room) = (io.have - take, io.room - take);
                    self.length -= take as u32;
                    if io.output as usize - io.summed as usize >= SUMMED_BYTES {
                        // SAFETY: the conditions are those of `run`, which its caller guarantees.
                        unsafe { self.sum_output(io) };
                    }
                }
                Mode::Table => {
                    need!(14);
                    self.literal_lengths = (self.hold & 31) as u16 + 257;
                    self.distance_lengths = (self.hold >> 5 & 31) as u16 + 1;
                    self.length_lengths = (self.hold >> 10 & 15) as u16 + 4;
                    self.drop(14);
                    if self.literal_lengths > 286 || self.distance_lengths > 30 {
                        self.fail(io, c"too many length or distance symbols");
                        continue;
                    }
                    self.have = 0;
                    self.mode = Mode::LengthLengths;
                }
                Mode::LengthLengths => {
                    while self.have < self.length_lengths.into() {
                        need!(3);
                        self.lengths[ORDER[self.have as usize] as usize] = (self.hold & 7) as u8;
                        self.have += 1;
                        self.drop(3);
                    }
                    for &symbol in &ORDER[self.have as usize..] {
                        self.lengths[symbol as usize] = 0;
                    }
                    self.used = Used::None;
                    let built = tables::build(Alphabet::CodeLengths, &self.lengths[..19], &mut self.literals);
                    let Ok((bits, counts)) = built else {
                        self.fail(io, c"invalid code lengths set");
                        continue;
                    };
                    (self.literal_bits, self.counts[0], self.used) = (bits, counts, Used::Lengths);
                    self.have = 0;
                    self.mode = Mode::CodeLengths;
                }
                Mode::CodeLengths => {
                    // SAFETY: the caller guarantees a valid input.
                    if !unsafe { self.read_lengths(io) } {
                        return Z_OK;
                    }
                    if self.mode == Mode::Bad {
                        continue;
                    }
                    if self.build_tables(io) {
                        self.mode = Mode::SymbolsBegin;
                        if flush == Z_TREES {
                            return Z_OK;
                        }
                    }
                }
                Mode::SymbolsBegin
                | Mode::Symbol
                | Mode::LengthExtra
                | Mode::Distance
                | Mode::DistanceExtra
                | Mode::Match
                | Mode::Literal => {
                    if self.mode == Mode::SymbolsBegin {
                        self.mode = Mode::Symbol;
                    }
                    // SAFETY: the conditions are those of `run`, which its caller guarantees.
                    if !unsafe { self.symbols(io) } {
                        return Z_OK;
                    }
                }
                Mode::Check => {
                    if self.wrap != 0 {
                        need!(32);
                        let written = io.output as usize - io.begin as usize - *counted;
                        // SAFETY: the conditions are those of `run`, which its caller guarantees.
                        unsafe { self.count(strm, io, written) };
                        *counted += written;
                        let said = self.hold as u32;
                        let said = if self.flags != 0 { said } else { said.swap_bytes() };
                        if self.wrap & 4 != 0 && said != self.check {
                            self.fail(io, c"incorrect data check");
                            continue;
                        }
                        (self.hold, self.bits) = (0, 0);
                    }
                    self.mode = Mode::Length;
                }
                Mode::Length => {
                    if self.wrap != 0 && self.flags != 0 {
                        need!(32);
                        if self.wrap & 4 != 0 && self.hold as u32 != self.total as u32 {
                            self.fail(io, c"incorrect length check");
                            continue;
                        }
                        (self.hold, self.bits) = (0, 0);
                    }
                    self.mode = Mode::Done;
                }
                Mode::Done => return Z_STREAM_END,
                Mode::Bad => return Z_DATA_ERROR,
                Mode::NoMemory => return Z_MEM_ERROR,
                Mode::Sync => return Z_STREAM_ERROR,
                _ => {
                    // SAFETY: the conditions are those of `run`, which its caller guarantees.
                    if let Some(code) = unsafe { self.front(io, strm) } {
                        return code;
                    }
                }
            }
        }
    }

    /// Reads the code lengths of a block; returns false if input is missing.
    unsafe fn read_lengths(&mut self, io: &mut Io) -> bool {
        let all = u32::from(self.literal_lengths + self.distance_lengths);
        while self.have < all {
            let mask = (1u64 << self.literal_bits) - 1;
            let mut entry = self.literals[(self.hold & mask) as usize];
            while code_bits(entry) > self.bits {
                // SAFETY: the caller guarantees a valid input.
                if !unsafe { self.pull(io) } {
                    return false;
                }
                entry = self.literals[(self.hold & mask) as usize];
            }
            let (symbol, bits) = (value(entry), code_bits(entry));
            if symbol < 16 {
                self.drop(bits);
                self.lengths[self.have as usize] = symbol as u8;
                self.have += 1;
                continue;
            }
            let (extra, least) = [(2, 3), (3, 3), (7, 11)][symbol as usize - 16];
            // SAFETY: the caller guarantees a valid input.
            if !unsafe { self.need(io, bits + extra) } {
                return false;
            }
            self.drop(bits);
            if symbol == 16 && self.have == 0 {
                self.fail(io, c"invalid bit length repeat");
                return true;
            }
            let length = if symbol == 16 { self.lengths[self.have as usize - 1] } else { 0 };
            let times = least + (self.hold as u32 & ((1 << extra) - 1));
            self.drop(extra);
            if self.have + times > all {
                self.fail(io, c"invalid bit length repeat");
                return true;
            }
            self.lengths[self.have as usize..(self.have + times) as usize].fill(length);
            self.have += times;
        }
        true
    }

    /// Builds the tables of a block; returns false if zlib would refuse the codes.
    fn build_tables(&mut self, io: &mut Io) -> bool {
        let (literals, all) =
            (usize::from(self.literal_lengths), usize::from(self.literal_lengths + self.distance_lengths));
        if self.lengths[256] == 0 {
            self.fail(io, c"invalid code -- missing end-of-block");
            return false;
        }
        self.used = Used::None;
        let lengths = &self.lengths[..literals];
        let Ok((bits, counts)) = tables::build(Alphabet::Literals, lengths, &mut self.literals) else {
            self.fail(io, c"invalid literal/lengths set");
            return false;
        };
        (self.literal_bits, self.counts[0], self.used) = (bits, counts, Used::Literals);
        let lengths = &self.lengths[literals..all];
        let Ok((bits, counts)) = tables::build(Alphabet::Distances, lengths, &mut self.distances) else {
            self.fail(io, c"invalid distances set");
            return false;
        };
        (self.distance_bits, self.counts[1]) = (bits, counts);
        (self.used, self.fixed) = (Used::All, false);
        true
    }

    /// Decodes symbols up to the end of the block; returns false if input or room is missing.
    ///
    /// # Safety
    /// The conditions of [`run`](Decoder::run).
    #[inline(always)]
    unsafe fn symbols(&mut self, io: &mut Io) -> bool {
        let mut tables = self.tables();
        let mut wide = MaybeUninit::uninit();
        let history = History {
            begin: io.begin,
            window: self.window,
            size: self.size,
            held: self.held,
            next: self.next,
            most: io.most_distance,
        };
        let exact = io.most_distance != usize::MAX || io.room > CREDIBLE_ROOM_BYTES || overlap(io);
        // A symbol that an earlier call began is counted for `inflateMark`.
        let mut marked = true;
        // SAFETY: the caller guarantees the buffers; every read and write is checked against `have` and `room`; the tables are
        // the block's.
        unsafe {
            loop {
                match self.mode {
                    Mode::Symbol => {
                        if io.have >= INPUT_BYTES && io.room >= ROOM_BYTES {
                            match self.fast(io, &mut tables, &mut wide, &history, exact) {
                                Stop::Short => {}
                                Stop::EndOfBlock => {
                                    (self.back, self.mode) = (-1, Mode::Type);
                                    return true;
                                }
                                Stop::BadLiteral => {
                                    self.fail(io, c"invalid literal/length code");
                                    return true;
                                }
                                Stop::BadDistance => {
                                    self.fail(io, c"invalid distance code");
                                    return true;
                                }
                                Stop::TooFar => {
                                    self.fail(io, c"invalid distance too far back");
                                    return true;
                                }
                            }
                        }
                        // With this much input and room, zlib decodes in a loop that does not count for `inflateMark`.
                        marked = io.have < 6 || io.room < 258;
                        if marked {
                            self.back = 0;
                        }
                        let Some(entry) = self.peek(io, tables.literals, tables.literal_bits, marked) else {
                            return false;
                        };
                        if entry & LITERAL != 0 {
                            self.length = value(entry) & 255;
                            self.mode = Mode::Literal;
                            continue;
                        }
                        if entry & EXCEPTION != 0 {
                            if entry & END != 0 {
                                (self.back, self.mode) = (-1, Mode::Type);
                            } else {
                                self.fail(io, c"invalid literal/length code");
                            }
                            return true;
                        }
                        (self.length, self.extra) = (value(entry), extra_bits(entry));
                        self.mode = Mode::LengthExtra;
                    }
                    Mode::LengthExtra => {
                        if !self.need(io, self.extra) {
                            return false;
                        }
                        self.length += self.hold as u32 & ((1 << self.extra) - 1);
                        self.drop(self.extra);
                        self.back += if marked { self.extra as i32 } else { 0 };
                        self.was = self.length;
                        self.mode = Mode::Distance;
                    }
                    Mode::Distance => {
                        let Some(entry) = self.peek(io, tables.distances, tables.distance_bits, marked)
                        else {
                            return false;
                        };
                        if entry & EXCEPTION != 0 {
                            self.fail(io, c"invalid distance code");
                            return true;
                        }
                        (self.offset, self.extra) = (value(entry), extra_bits(entry));
                        self.mode = Mode::DistanceExtra;
                    }
                    Mode::DistanceExtra => {
                        if !self.need(io, self.extra) {
                            return false;
                        }
                        self.offset += self.hold as u32 & ((1 << self.extra) - 1);
                        self.drop(self.extra);
                        self.back += if marked { self.extra as i32 } else { 0 };
                        self.mode = Mode::Match;
                    }
                    Mode::Match => {
                        if io.room == 0 {
                            return false;
                        }
                        let (distance, delivered) =
                            (self.offset as usize, io.output as usize - io.begin as usize);
                        if distance > delivered && history.lacks(distance, delivered) {
                            self.fail(io, c"invalid distance too far back");
                            return true;
                        }
                        let take = (self.length as usize).min(io.room);
                        if distance > delivered {
                            fast::copy_far(io.output, distance, take, &history);
                        } else {
                            fast::copy(io.output, distance, take);
                        }
                        io.output = io.output.add(take);
                        io.room -= take;
                        self.length -= take as u32;
                        if self.length == 0 {
                            self.mode = Mode::Symbol;
                        }
                    }
                    _ => {
                        if io.room == 0 {
                            return false;
                        }
                        io.output.write(self.length as u8);
                        io.output = io.output.add(1);
                        io.room -= 1;
                        self.mode = Mode::Symbol;
                    }
                }
            }
        }
    }

    /// Runs the loop of [`fast`](super::fast), and adds the output to the checksum while it is in the nearest cache.
    ///
    /// # Safety
    /// The conditions of [`run`](Decoder::run), with enough input and room for one turn.
    unsafe fn fast(
        &mut self,
        io: &mut Io,
        tables: &mut Tables,
        wide: &mut MaybeUninit<Wide>,
        history: &History,
        exact: bool,
    ) -> Stop {
        let may_widen = !exact && !self.fixed && tables.wide.is_null();
        let mut has_pairs = may_widen.then_some(true);
        let begin = io.input;
        loop {
            // SAFETY: the caller guarantees the buffers, and input and room for one turn; so does the end of the loop.
            unsafe {
                let is_first = has_pairs == Some(true);
                let room = io.room.min(if is_first { LONG_BYTES } else { SUMMED_BYTES });
                let (input_end, output_end) = (io.input.add(io.have), io.output.add(room));
                let mut cursor = Cursor {
                    input: io.input,
                    input_end,
                    output: io.output,
                    output_end,
                    hold: self.hold,
                    bits: self.bits,
                };
                let stop = fast::run(&mut cursor, *tables, history, exact);
                io.room -= cursor.output as usize - io.output as usize;
                (io.input, io.have) = (cursor.input, input_end as usize - cursor.input as usize);
                io.output = cursor.output;
                (self.hold, self.bits) = (cursor.hold, cursor.bits);
                if stop != Stop::Short || io.have < INPUT_BYTES || io.room < ROOM_BYTES {
                    return stop;
                }
                self.sum_output(io);
                if has_pairs.is_some() && io.room >= SUMMED_BYTES {
                    let lengths = &self.lengths[..usize::from(self.literal_lengths)];
                    if is_first {
                        has_pairs = Some(tables::has_pairs(lengths, &self.counts[0]));
                    }
                    if has_pairs == Some(true) || io.input as usize - begin as usize >= LONG_INPUT_BYTES {
                        has_pairs = None;
                        let wide = wide.write([0; 1 << WIDE_BITS]);
                        let first = core::slice::from_raw_parts(tables.literals, 1 << tables.literal_bits);
                        tables::widen(first, tables.literal_bits, lengths, &self.counts[0], wide);
                        tables.wide = wide.as_ptr();
                    }
                } else {
                    has_pairs = None;
                }
            }
        }
    }

    /// Reads the next symbol's entry and removes its code; returns `None` if input is missing. `marked` says that its bits
    /// count for `inflateMark`.
    ///
    /// # Safety
    /// The input is valid; the table has `bits` index bits.
    unsafe fn peek(&mut self, io: &mut Io, table: *const u32, bits: u32, marked: bool) -> Option<u32> {
        // SAFETY: an index has no more bits than its table; links lead to second tables within the same memory.
        unsafe {
            loop {
                let mut entry = *table.add((self.hold & ((1 << bits) - 1)) as usize);
                let mut first = 0;
                if entry & LINK != 0 && self.bits >= bits {
                    first = bits;
                    let index = self.hold >> first & ((1 << code_bits(entry)) - 1);
                    entry = *table.add((u64::from(value(entry)) + index) as usize);
                }
                if entry & LINK == 0 && first + code_bits(entry) <= self.bits {
                    self.drop(first + code_bits(entry));
                    if marked {
                        self.back += (first + code_bits(entry)) as i32;
                    }
                    return Some(entry);
                }
                if !self.pull(io) {
                    return None;
                }
            }
        }
    }

    /// Adds one byte of the input to the unused bits; returns false if there is none.
    #[inline(always)]
    unsafe fn pull(&mut self, io: &mut Io) -> bool {
        if io.have == 0 {
            return false;
        }
        // SAFETY: `have` says that a byte is left.
        unsafe {
            self.hold |= u64::from(*io.input) << self.bits;
            io.input = io.input.add(1);
        }
        io.have -= 1;
        self.bits += 8;
        true
    }

    /// Reads until there are at least `count` unused bits; returns false if input is missing.
    #[inline(always)]
    pub unsafe fn need(&mut self, io: &mut Io, count: u32) -> bool {
        while self.bits < count {
            // SAFETY: the caller guarantees a valid input.
            if !unsafe { self.pull(io) } {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    pub fn drop(&mut self, count: u32) {
        self.hold >>= count;
        self.bits -= count;
    }

    /// Returns the value of `inflateMark`.
    pub fn mark(&self) -> c_long {
        let rest = match self.mode {
            Mode::Copy => self.length,
            Mode::Match => self.was.wrapping_sub(self.length),
            _ => 0,
        };
        ((c_long::from(self.back) as c_ulong) << 16) as c_long + c_long::from(rest)
    }

    /// Returns the value of `inflateCodesUsed`.
    pub fn codes_used(&self) -> c_ulong {
        let entries = match self.used {
            Used::None => 0,
            Used::Lengths => tables::zlib_entries(&self.counts[0], 7),
            Used::Literals => tables::zlib_entries(&self.counts[0], 9),
            Used::All => tables::zlib_entries(&self.counts[0], 9) + tables::zlib_entries(&self.counts[1], 6),
        };
        entries as c_ulong
    }
}
