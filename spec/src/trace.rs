// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace of a program: what `memlift record` leaves and `memlift whatif` reads.
//!
//! - **Layout** 0 header of 4096 bytes: u64 words at the places in [`word`], text at [`CPU_AT`] and [`COMMAND_AT`]
//!   [`WAKES_AT`] the last wake of each object, a word each ([`Wake`]): used while the program runs
//!   [`CHUNKS_AT`] chunks, back to back, each a multiple of 4096 bytes: 64 bytes [`Chunk`], then records of 64 bytes
//!   record: kind u16 · site u16 · parameter u32 · 7 words, whose meaning depends on the kind, see [`Kind`]
//! - **Order** little endian. A chunk belongs to one thread, which writes a record, then `used` with Release: what `used` covers is
//!   whole, whenever the program was killed. A page of zeros where a chunk should begin was claimed and never written
//! - **Rule** whoever reads it trusts nothing: [`Chunks`] and [`Record::decode`] name the field that is wrong and what to do
//! - **Not here** what records say together (`memlift-model`'s `whatif`); who writes them (`bindings/tap`)

use core::fmt;

/// First word of a trace.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLTRACE1");
/// Version of the layout.
pub const VERSION: u64 = 4;
/// Bytes of the header, and what chunks are multiples of.
pub const HEADER_BYTES: usize = 4096;
/// Where the words of wakes lie.
pub const WAKES_AT: usize = HEADER_BYTES;
/// Number of words of wakes, a power of two.
pub const WAKES: usize = 8192;
/// Where the first chunk lies.
pub const CHUNKS_AT: usize = WAKES_AT + 8 * WAKES;
/// Bytes of a record, and of what precedes the records of a chunk.
pub const RECORD_BYTES: usize = 64;
/// First word of a chunk.
pub const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"MLCH");
/// Most bytes of a chunk.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;
/// Least bytes that a trace may be limited to, and most.
pub const LIMIT_BYTES: (u64, u64) = (1 << 20, 1 << 40);
/// Where the text of the CPU lies, and its bytes; zeros after it.
pub const CPU_AT: (usize, usize) = (256, 64);
/// Where the command line lies, and its bytes.
pub const COMMAND_AT: (usize, usize) = (320, 704);
/// Times and durations are below this, nanoseconds: 36 years.
pub const TIME_NS_MAX: u64 = 1 << 60;
/// Sizes, and addresses of code, are below this, bytes.
pub const SIZE_MAX: u64 = 1 << 47;
/// Bytes of a module's name in one record of [`Kind::ModuleName`].
pub const NAME_PIECE: usize = 56;
/// Longest name of a module, bytes; a longer one is cut off.
pub const NAME_MAX: usize = 4096;

/// Places of the header's words, in words.
pub mod word {
    /// [`MAGIC`](super::MAGIC); stored last.
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION).
    pub const VERSION: usize = 1;
    /// Bytes that the file may have.
    pub const LIMIT: usize = 2;
    /// Calls of the memcpy family below so many bytes are counted, not recorded.
    pub const THRESHOLD: usize = 3;
    /// The same for calls that pack, unpack, encrypt, decrypt or digest.
    pub const TRANSFORM_THRESHOLD: usize = 4;
    /// When it began, nanoseconds since 1970.
    pub const START_UNIX_NS: usize = 5;
    /// The same instant on `CLOCK_MONOTONIC`; times in records count from it.
    pub const START_MONOTONIC_NS: usize = 6;
    /// CPUs that the program could use.
    pub const CORES: usize = 7;
    /// Bytes of the file that are claimed, header included; more than the limit once that was met.
    pub const CLAIMED: usize = 8;
    /// Processes so far.
    pub const PROCESSES: usize = 9;
    /// Threads so far.
    pub const THREADS: usize = 10;
    /// Records for which there was no room.
    pub const DROPPED: usize = 11;
    /// Cost of recording one call, picoseconds; 0 unknown.
    pub const RECORD_COST_PS: usize = 12;
    /// Cost of counting one call, picoseconds; 0 unknown.
    pub const COUNT_COST_PS: usize = 13;
    /// 0 while it is being written, 1 when the program has ended.
    pub const FINISHED: usize = 16;
    /// From the program's start to its end, nanoseconds.
    pub const WALL_NS: usize = 17;
    /// CPU time of the program and its children, nanoseconds.
    pub const CPU_NS: usize = 18;
    /// Its exit code, as a shell shows it.
    pub const EXIT_CODE: usize = 19;
    /// Words that are in use.
    pub const USED: usize = 20;
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A call of memcpy or mempcpy; like all calls: start ns · wall ns · source · target · bytes read · bytes written · faults
    /// (minor in the lower half, major in the upper; counted for large calls only, else all ones).
    Copy = 1,
    /// A call of memmove.
    Move = 2,
    /// A call of memset.
    Fill = 3,
    /// A call of memcmp or bcmp; both sides as source and target, `bytes read` of each.
    Compare = 4,
    /// A call of deflate, compress or compress2; the parameter is a [`Packing`].
    Deflate = 16,
    /// A call of inflate or uncompress.
    Inflate = 17,
    /// A call of EVP_EncryptUpdate, or of EVP_CipherUpdate where it encrypts.
    Encrypt = 32,
    /// A call of EVP_DecryptUpdate.
    Decrypt = 33,
    /// A call of EVP_DigestUpdate.
    Digest = 34,
    /// An operation of memlift's own; the parameter is its opcode.
    Operation = 48,
    /// A commit of memlift's persistent memory, until it was durable; the parameter is its mechanism, 0 redo, 1 undo, 2 checkpoint,
    /// 3 shadow. Like the next three: start ns · wall ns · 0 · 0 · bytes read · bytes written · parts. Bytes that it changed, twice;
    /// parts: ranges.
    Commit = 49,
    /// Walks of memlift's traversal that a client waited for together; the parameter is how many. Written: bytes of their answers;
    /// parts: steps of all.
    Walk = 50,
    /// Packed pages that memlift's compressed memory brought back for a fault. Read: bytes packed; parts: pages.
    PageIn = 51,
    /// Pages that it put away. Written: bytes packed; parts: pages.
    PageOut = 52,
    /// How far a thread is: time ns · its CPU ns so far · minor faults · major faults · times that it waited · times that it was
    /// displaced · ns so far in which it could run and had no core, plus 1; 0: unknown.
    Mark = 64,
    /// The same, at its end.
    End = 65,
    /// Calls that were only counted since the thread's last record of this parameter; the parameter is their kind:
    /// time ns · calls · bytes · 0 · 0 · 0 · 0.
    Counted = 66,
    /// The end of a process: time ns · its CPU ns · minor faults · major faults · most resident bytes · 0 · 0.
    Exit = 67,
    /// A wait of 20 µs or more: start ns · wall ns · number of the thread that ended it, 0: none of the program · time ns of what that
    /// thread did to end it · 0 · 0 · 0; the parameter is what was waited for, a [`Reason`]. A second one of the same start corrects
    /// the first: what epoll_wait waited for is known when it is read.
    Waited = 68,
    /// A call site of the process, told once before the first call from it: time ns · return address · 0 · 0 · 0 · 0 · 0. The record's
    /// site is its number.
    Site = 69,
    /// Mapped code with a site in it: time ns · first address · address after its end · where it begins in its file, bytes · inode
    /// of the file · device of the file · 0. The parameter is the bytes of its name, which the records after it hold; 0: code without
    /// a file.
    Module = 70,
    /// Bytes of the name of the module before it: [`NAME_PIECE`] of them, zeros after the last.
    ModuleName = 71,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 22] = [
        Kind::Copy,
        Kind::Move,
        Kind::Fill,
        Kind::Compare,
        Kind::Deflate,
        Kind::Inflate,
        Kind::Encrypt,
        Kind::Decrypt,
        Kind::Digest,
        Kind::Operation,
        Kind::Commit,
        Kind::Walk,
        Kind::PageIn,
        Kind::PageOut,
        Kind::Mark,
        Kind::End,
        Kind::Counted,
        Kind::Exit,
        Kind::Waited,
        Kind::Site,
        Kind::Module,
        Kind::ModuleName,
    ];

    /// The kind of this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Returns true if it is a call that somebody else could do.
    #[must_use]
    pub const fn is_call(self) -> bool {
        (self as u32) < Kind::Mark as u32
    }

    /// Returns true if it is a service's own work, which has parts and no addresses.
    #[must_use]
    pub const fn is_work(self) -> bool {
        matches!(self, Kind::Commit | Kind::Walk | Kind::PageIn | Kind::PageOut)
    }

    /// As people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Copy => "memcpy",
            Kind::Move => "memmove",
            Kind::Fill => "memset",
            Kind::Compare => "memcmp",
            Kind::Deflate => "deflate",
            Kind::Inflate => "inflate",
            Kind::Encrypt => "encrypt",
            Kind::Decrypt => "decrypt",
            Kind::Digest => "digest",
            Kind::Operation => "memlift",
            Kind::Commit => "commit",
            Kind::Walk => "walk",
            Kind::PageIn => "page in",
            Kind::PageOut => "page out",
            Kind::Mark => "mark",
            Kind::End => "end of a thread",
            Kind::Counted => "counted",
            Kind::Exit => "end of a process",
            Kind::Waited => "wait",
            Kind::Site => "call site",
            Kind::Module => "module",
            Kind::ModuleName => "name of a module",
        }
    }
}

/// How a call packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// zlib's flush argument, 0 to 6; 4 (Z_FINISH) of a call that packs a whole message.
    pub flush: u8,
    /// The stream's level, -1 to 9; `None`: the stream was made before the trace began, or by a function that is not seen.
    pub level: Option<i8>,
    /// The stream was flushed before its end, by this call or an earlier one.
    pub flushed: bool,
}

impl Packing {
    /// As a record's parameter: flush in bits 0–7, level + 2 in bits 8–15, 0 where it is not known; flushed in bit 16.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let level = match self.level {
            Some(level) => (level as i32 + 2) as u32,
            None => 0,
        };
        self.flush as u32 | level << 8 | (self.flushed as u32) << 16
    }

    /// From a record's parameter.
    #[must_use]
    pub const fn decode(parameter: u32) -> Packing {
        let level = (parameter >> 8 & 0xff) as i32;
        let known = level >= 1 && level <= 11;
        Packing {
            flush: parameter as u8,
            level: if known { Some((level - 2) as i8) } else { None },
            flushed: parameter >> 16 & 1 == 1,
        }
    }
}

/// Kinds of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// A condition, semaphore, lock or futex, or a thread's end.
    Memory = 1,
    /// The end of a process.
    Process = 2,
    /// A pipe or a socket.
    Stream = 3,
    /// A time: it slept.
    Time = 4,
    /// No wait: the thread's start by the thread that is named.
    Start = 5,
}

impl Reason {
    /// The reason of this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Reason> {
        [Reason::Memory, Reason::Process, Reason::Stream, Reason::Time, Reason::Start]
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }
}

/// The last wake of an object: which thread, and when, to 16 ns. Objects are told apart by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Number of the thread in the trace, from 1.
    pub thread: u32,
    /// Time of the wake, nanoseconds since the trace's start.
    pub time_ns: u64,
}

impl Wake {
    const TIME_BITS: u32 = 44;

    /// As a word of the table; `None`: the thread's number (2^20 and more) or the time (78 hours) does not fit.
    #[must_use]
    pub const fn encode(self) -> Option<u64> {
        let time = self.time_ns >> 4;
        if self.thread == 0 || self.thread >> (64 - Wake::TIME_BITS) != 0 || time >> Wake::TIME_BITS != 0 {
            return None;
        }
        Some((self.thread as u64) << Wake::TIME_BITS | time)
    }

    /// From a word of the table; `None`: nobody was woken there.
    #[must_use]
    pub const fn decode(word: u64) -> Option<Wake> {
        let thread = (word >> Wake::TIME_BITS) as u32;
        let time_ns = (word & ((1 << Wake::TIME_BITS) - 1)) << 4;
        if thread == 0 { None } else { Some(Wake { thread, time_ns }) }
    }
}

/// Faults of a call that were not counted.
pub const FAULTS_UNKNOWN: u64 = u64::MAX;

/// A record of a chunk, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of the record.
    pub kind: Kind,
    /// For calls, the number of the call site in its process, from 1; 0: not known.
    pub site: u16,
    /// See [`Kind`]; 0 where it says nothing of it.
    pub parameter: u32,
    /// See [`Kind`].
    pub words: [u64; 7],
}

impl Record {
    /// As words of the file.
    #[must_use]
    pub const fn encode(&self) -> [u64; 8] {
        let [a, b, c, d, e, f, g] = self.words;
        [self.kind as u64 | (self.site as u64) << 16 | (self.parameter as u64) << 32, a, b, c, d, e, f, g]
    }

    /// From 64 bytes of the file, which lie at `at`.
    ///
    /// # Errors
    /// The field that is wrong.
    pub fn decode(bytes: &[u8; RECORD_BYTES], at: u64) -> Result<Record, Fault> {
        let word = |index: usize| number(bytes, 8 * index, 8);
        let fault = |field, found, fix| Err(Fault { at, field, found, fix });
        let found = word(0) & 0xffff;
        let Some(kind) = Kind::of(found as u32) else {
            return fault(
                "record.kind",
                found,
                "no kind of this version; if the machine went down, the end of the file was lost: record again",
            );
        };
        let mut words = [0; 7];
        words.iter_mut().enumerate().for_each(|(index, place)| *place = word(index + 1));
        let record = Record { kind, site: (word(0) >> 16) as u16, parameter: (word(0) >> 32) as u32, words };
        if kind == Kind::ModuleName {
            return Ok(record);
        }
        if record.words[0] >= TIME_NS_MAX {
            return fault("record.time", record.words[0], "a time below 2^60 ns is expected: record again");
        }
        if kind.is_call() {
            if record.words[1] >= TIME_NS_MAX {
                return fault("record.wall", record.words[1], "less than 2^60 ns is expected: record again");
            }
            for (field, index) in [("record.bytes_read", 4), ("record.bytes_written", 5)] {
                if record.words[index] >= SIZE_MAX {
                    return fault(
                        field,
                        record.words[index],
                        "less than 2^47 bytes are expected: record again",
                    );
                }
            }
            if kind.is_work() && record.words[6] > u64::from(u32::MAX) {
                return fault("record.parts", record.words[6], "less than 2^32 are expected: record again");
            }
            if kind == Kind::Commit && record.parameter > 3 {
                return fault(
                    "record.parameter",
                    record.parameter.into(),
                    "a mechanism, 0 to 3, is expected: record again",
                );
            }
        } else if matches!(kind, Kind::Site | Kind::Module) {
            record.check_code(at)?;
        } else if record.words[1] >= TIME_NS_MAX {
            return fault("record.cpu", record.words[1], "less than 2^60 is expected: record again");
        }
        if kind == Kind::Waited {
            if record.words[3] >= TIME_NS_MAX {
                return fault(
                    "record.woken_at",
                    record.words[3],
                    "a time below 2^60 ns is expected: record again",
                );
            }
            if record.words[2] > u64::from(u32::MAX) {
                return fault("record.waker", record.words[2], "less than 2^32 is expected: record again");
            }
            if Reason::of(record.parameter).is_none() {
                return fault(
                    "record.parameter",
                    record.parameter.into(),
                    "a reason, 1 to 5, is expected: record again",
                );
            }
        }
        if kind == Kind::Counted && !Kind::of(record.parameter).is_some_and(Kind::is_call) {
            return fault(
                "record.parameter",
                record.parameter.into(),
                "counts calls of a kind that is no call: record again",
            );
        }
        Ok(record)
    }

    /// Checks a site or a module, which lies at `at`.
    fn check_code(&self, at: u64) -> Result<(), Fault> {
        let fault = |field, found, fix| Err(Fault { at, field, found, fix });
        let [_, first, end, ..] = self.words;
        if first >= SIZE_MAX {
            return fault("record.address", first, "an address below 2^47 is expected: record again");
        }
        if self.kind == Kind::Site && self.site == 0 {
            return fault("record.site", 0, "call sites count from 1: record again");
        }
        if self.kind == Kind::Module && !(first..SIZE_MAX).contains(&end) {
            return fault("record.end", end, "an address behind the first one is expected: record again");
        }
        if self.kind == Kind::Module && self.parameter as usize > NAME_MAX {
            return fault(
                "record.parameter",
                self.parameter.into(),
                "a name of 4096 bytes at most is expected: record again",
            );
        }
        Ok(())
    }
}

/// The head of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes of the chunk.
    pub bytes: u32,
    /// Bytes in use, these 64 included.
    pub used: u32,
    /// Number of the chunk in its thread, from 0.
    pub sequence: u32,
    /// Number of its process in the trace, from 1.
    pub process: u32,
    /// Number of its thread in the trace, from 1.
    pub thread: u32,
    /// The process's id.
    pub pid: u32,
    /// The thread's id.
    pub tid: u32,
    /// Number of the process that this one was forked from, if that was recorded; else 0.
    pub parent: u32,
    /// Id of the process that started this one.
    pub parent_pid: u32,
    /// The thread's name, zeros after it.
    pub name: [u8; 16],
}

/// Where [`Chunk::used`] lies in a chunk.
pub const CHUNK_USED_AT: usize = 8;

impl Chunk {
    /// As words of the file; `used` is stored last, by itself.
    #[must_use]
    pub fn encode(&self) -> [u64; 8] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let text = |from: usize| number(&self.name, from, 8);
        [
            pair(CHUNK_MAGIC, self.bytes),
            pair(self.used, self.sequence),
            pair(self.process, self.thread),
            pair(self.pid, self.tid),
            pair(self.parent, self.parent_pid),
            text(0),
            text(8),
            0,
        ]
    }

    fn decode(bytes: &[u8]) -> Chunk {
        let half = |at: usize| number(bytes, at, 4) as u32;
        let mut name = [0; 16];
        name.copy_from_slice(&bytes[40..56]);
        Chunk {
            bytes: half(4),
            used: half(8),
            sequence: half(12),
            process: half(16),
            thread: half(20),
            pid: half(24),
            tid: half(28),
            parent: half(32),
            parent_pid: half(36),
            name,
        }
    }
}

/// A fault of a trace: its place, the field, the value found, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Bytes from the file's start.
    pub at: u64,
    /// Field that is wrong.
    pub field: &'static str,
    /// The value found.
    pub found: u64,
    /// The expected value, and what to do.
    pub fix: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (byte {}): {:#x}: {}", self.field, self.at, self.found, self.fix)
    }
}

fn number(bytes: &[u8], at: usize, count: usize) -> u64 {
    (0..count).rev().fold(0, |sum, index| sum << 8 | u64::from(bytes[at + index]))
}

/// A trace whose header passed.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    bytes: &'a [u8],
}

impl<'a> File<'a> {
    /// Looks at the header.
    ///
    /// # Errors
    /// The field that is wrong.
    pub fn open(bytes: &'a [u8]) -> Result<File<'a>, Fault> {
        let fault = |field, index: usize, found, fix| Err(Fault { at: 8 * index as u64, field, found, fix });
        if bytes.len() < CHUNKS_AT {
            let found = bytes.len() as u64;
            return fault(
                "size",
                0,
                found,
                "a trace has at least 69632 bytes: give what `memlift record` wrote",
            );
        }
        let file = File { bytes };
        let of = |index| file.word(index);
        if of(word::MAGIC) != MAGIC {
            return fault(
                "magic",
                word::MAGIC,
                of(word::MAGIC),
                "this is no trace: give what `memlift record` wrote",
            );
        }
        if of(word::VERSION) != VERSION {
            let fix = "this memlift reads version 4: use the memlift that recorded it, or record again";
            return fault("version", word::VERSION, of(word::VERSION), fix);
        }
        let limit = of(word::LIMIT);
        if !(LIMIT_BYTES.0..=LIMIT_BYTES.1).contains(&limit) || !limit.is_multiple_of(HEADER_BYTES as u64) {
            return fault("limit", word::LIMIT, limit, "1 MiB to 1 TiB, in pages, is expected: record again");
        }
        if of(word::CLAIMED) < CHUNKS_AT as u64 || of(word::CLAIMED) >= SIZE_MAX {
            return fault(
                "claimed",
                word::CLAIMED,
                of(word::CLAIMED),
                "at least 69632 bytes, up to the first chunk, are expected: record again",
            );
        }
        for (name, index) in [("processes", word::PROCESSES), ("threads", word::THREADS)] {
            if of(index) > u64::from(u32::MAX) {
                return fault(name, index, of(index), "fewer than 2^32 are expected: record again");
            }
        }
        for (name, index) in [("wall", word::WALL_NS), ("cpu", word::CPU_NS)] {
            if of(index) >= TIME_NS_MAX {
                return fault(name, index, of(index), "less than 2^60 ns is expected: record again");
            }
        }
        if of(word::FINISHED) > 1 {
            return fault("finished", word::FINISHED, of(word::FINISHED), "0 or 1 is expected: record again");
        }
        let end = of(word::CLAIMED).min(limit);
        if (bytes.len() as u64) < end {
            let fix =
                "the file is shorter than what was claimed: it was cut off; copy it again, or record again";
            return fault("claimed", word::CLAIMED, of(word::CLAIMED), fix);
        }
        Ok(file)
    }

    /// A word of the header, by its place in [`word`].
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        number(self.bytes, 8 * index, 8)
    }

    /// A text of the header, up to its first zero: [`CPU_AT`] or [`COMMAND_AT`]. It may be no UTF-8.
    #[must_use]
    pub fn text(&self, place: (usize, usize)) -> &'a [u8] {
        let text = &self.bytes[place.0..place.0 + place.1];
        &text[..text.iter().position(|byte| *byte == 0).unwrap_or(text.len())]
    }

    /// Returns the chunks of the trace, in order.
    #[must_use]
    pub fn chunks(&self) -> Chunks<'a> {
        let end = self.word(word::CLAIMED).min(self.word(word::LIMIT)).min(self.bytes.len() as u64);
        Chunks { bytes: &self.bytes[..end as usize], at: CHUNKS_AT }
    }
}

/// Chunk after chunk, with where its records begin and their bytes.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<(Chunk, u64, &'a [u8]), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.bytes.get(self.at..).filter(|rest| rest.len() >= RECORD_BYTES)?;
            let at = self.at as u64;
            let magic = number(rest, 0, 4);
            if magic == 0 {
                self.at += HEADER_BYTES;
                continue;
            }
            self.at = usize::MAX;
            let fault = |field, found, fix| Some(Err(Fault { at, field, found, fix }));
            if magic != u64::from(CHUNK_MAGIC) {
                return fault(
                    "chunk.magic",
                    magic,
                    "no chunk begins here: the file was damaged, record again",
                );
            }
            let chunk = Chunk::decode(rest);
            let (bytes, used) = (chunk.bytes as usize, chunk.used as usize);
            if bytes == 0 || !bytes.is_multiple_of(HEADER_BYTES) || bytes > CHUNK_BYTES_MAX {
                let fix = "a multiple of 4096 up to 262144 is expected: the file was damaged, record again";
                return fault("chunk.bytes", bytes as u64, fix);
            }
            if bytes > rest.len() {
                let fix = "the chunk ends beyond the file: it was cut off; copy it again, or record again";
                return fault("chunk.bytes", bytes as u64, fix);
            }
            if used < RECORD_BYTES || used > bytes || !used.is_multiple_of(RECORD_BYTES) {
                let fix = "64 up to the chunk's bytes, in steps of 64, is expected: record again";
                return fault("chunk.used", used as u64, fix);
            }
            if chunk.process == 0 {
                return fault("chunk.process", 0, "processes count from 1: record again");
            }
            if chunk.thread == 0 {
                return fault("chunk.thread", 0, "threads count from 1: record again");
            }
            self.at = at as usize + bytes;
            return Some(Ok((chunk, at + RECORD_BYTES as u64, &rest[RECORD_BYTES..used])));
        }
    }
}

const _: () = assert!(HEADER_BYTES >= COMMAND_AT.0 + COMMAND_AT.1 && CPU_AT.0 + CPU_AT.1 <= COMMAND_AT.0);
const _: () = assert!(word::USED * 8 <= CPU_AT.0 && CHUNK_BYTES_MAX.is_multiple_of(HEADER_BYTES));
