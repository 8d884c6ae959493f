// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace of a program: `memlift record` writes it, and `memlift whatif` reads it.
//!
//! - **Layout** 0 header of 4096 bytes: u64 words at the indices in [`word`], text at [`CPU_TEXT`] and [`COMMAND_TEXT`] · [`WAKES_AT`] the
//!   last wake of each object, a word each ([`Wake`]), used while the program runs · [`CHUNKS_AT`] chunks, one after the other, each a
//!   multiple of 4096 bytes: 64 bytes [`Chunk`], then records of 64 bytes. A record: kind u16 · site u16 · parameter u32 · 7 words, whose
//!   meaning depends on the kind, see [`Kind`].
//! - **Order** little endian. A chunk belongs to one thread, which writes a record, then `used` with Release: the records that `used`
//!   covers are complete, whenever the program was killed. A page of zeros at the place of a chunk was claimed and never written.
//! - **Rule** a reader trusts nothing in the file: [`Chunks`] and [`Record::decode`] return the wrong field and what to do.
//! - **Not here** the evaluation of records (`memlift-model`'s `whatif`), and the recording (`bindings/tap`).

use core::fmt;

/// First word of a trace.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLTRACE1");
/// Version of the layout.
pub const VERSION: u64 = 5;
/// Oldest version that a reader takes: it lacks [`Kind::Served`], and nothing else differs.
pub const VERSION_OLDEST: u64 = 4;
/// Bytes of the header; chunks are multiples of this.
pub const HEADER_BYTES: usize = 4096;
/// Offset of the table of wakes, bytes.
pub const WAKES_AT: usize = HEADER_BYTES;
/// Number of words in the table of wakes, a power of two.
pub const WAKES: usize = 8192;
/// Offset of the first chunk, bytes.
pub const CHUNKS_AT: usize = WAKES_AT + 8 * WAKES;
/// Bytes of a record, and of the head of a chunk.
pub const RECORD_BYTES: usize = 64;
/// First word of a chunk.
pub const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"MLCH");
/// Most bytes of a chunk.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;
/// Smallest and largest limit of a trace, bytes.
pub const LIMIT_BYTES: (u64, u64) = (1 << 20, 1 << 40);
/// Offset of the text that names the CPU, and its bytes; filled up with zeros.
pub const CPU_TEXT: (usize, usize) = (256, 64);
/// Offset of the command line, and its bytes; filled up with zeros.
pub const COMMAND_TEXT: (usize, usize) = (320, 704);
/// Upper bound of times and durations, nanoseconds: 36 years.
pub const TIME_NS_MAX: u64 = 1 << 60;
/// Upper bound of sizes and of addresses of code, bytes.
pub const SIZE_MAX: u64 = 1 << 47;
/// Bytes of a module's name in one record of [`Kind::ModuleName`].
pub const NAME_PIECE: usize = 56;
/// Longest name of a module, bytes; a longer one is cut.
pub const NAME_MAX: usize = 4096;

/// Indices of the header's words.
pub mod word {
    /// [`MAGIC`](super::MAGIC); stored last.
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION).
    pub const VERSION: usize = 1;
    /// Bytes that the file may have.
    pub const LIMIT: usize = 2;
    /// Calls of the memcpy family of fewer bytes are only counted, not recorded.
    pub const THRESHOLD: usize = 3;
    /// Calls that pack, unpack, encrypt, decrypt or digest fewer bytes are only counted, not recorded.
    pub const TRANSFORM_THRESHOLD: usize = 4;
    /// Time at which the recording began, nanoseconds since 1970.
    pub const START_UNIX_NS: usize = 5;
    /// The same instant on `CLOCK_MONOTONIC`; times in records are relative to it.
    pub const START_MONOTONIC_NS: usize = 6;
    /// Number of CPUs that the program could use.
    pub const CORES: usize = 7;
    /// Bytes of the file that are claimed, including the header; more than the limit if that was reached.
    pub const CLAIMED: usize = 8;
    /// Number of processes so far.
    pub const PROCESSES: usize = 9;
    /// Number of threads so far.
    pub const THREADS: usize = 10;
    /// Number of records for which there was no room.
    pub const DROPPED: usize = 11;
    /// Cost of recording one call, picoseconds; 0 if unknown.
    pub const RECORD_COST_PS: usize = 12;
    /// Cost of counting one call, picoseconds; 0 if unknown.
    pub const COUNT_COST_PS: usize = 13;
    /// 0 while the trace is being written, 1 after the program has ended.
    pub const FINISHED: usize = 16;
    /// Time from the program's start to its end, nanoseconds.
    pub const WALL_NS: usize = 17;
    /// CPU time of the program and its children, nanoseconds.
    pub const CPU_NS: usize = 18;
    /// Exit code of the program, as a shell shows it.
    pub const EXIT_CODE: usize = 19;
    /// Number of words that are used.
    pub const USED: usize = 20;
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A call of memcpy or mempcpy. Words of all calls: start ns · wall ns · source · target · bytes read · bytes written ·
    /// faults (minor in the lower half, major in the upper; counted for large calls only, else all ones).
    Copy = 1,
    /// A call of memmove.
    Move = 2,
    /// A call of memset.
    Fill = 3,
    /// A call of memcmp or bcmp; the two sides are source and target, and `bytes read` counts one side.
    Compare = 4,
    /// A call of deflate, compress or compress2; the parameter is a [`Packing`].
    Deflate = 16,
    /// A call of inflate or uncompress.
    Inflate = 17,
    /// A call of EVP_EncryptUpdate, or of EVP_CipherUpdate.
    Encrypt = 32,
    /// A call of EVP_DecryptUpdate.
    Decrypt = 33,
    /// A call of EVP_DigestUpdate.
    Digest = 34,
    /// An operation of memlift's own; the parameter is its opcode.
    Operation = 48,
    /// A commit of memlift's persistent memory, up to the time when it was durable; the parameter is its mechanism: 0 redo, 1
    /// undo, 2 checkpoint, 3 shadow. Words of this and the next three kinds: start ns · wall ns · 0 · 0 · bytes read · bytes
    /// written · parts. Here both byte counts are the bytes that the commit changed, and the parts are ranges.
    Commit = 49,
    /// Walks of memlift's traversal that a client waited for together; the parameter is their number. Bytes written: bytes of their
    /// answers; parts: steps of all walks.
    Walk = 50,
    /// Packed pages that memlift's compressed memory unpacked after a fault. Bytes read: packed bytes; parts: pages.
    PageIn = 51,
    /// Pages that memlift's compressed memory packed. Bytes written: packed bytes; parts: pages.
    PageOut = 52,
    /// Progress of a thread: time ns · its CPU ns so far · minor faults · major faults · times that it waited · times that it
    /// was preempted · ns so far in which it was ready and had no core, plus 1 (0 if unknown).
    Mark = 64,
    /// Progress of a thread at its end, with the words of `Mark`.
    End = 65,
    /// Calls that were only counted, since the thread's last record with this parameter; the parameter is their kind. Words:
    /// time ns · calls · bytes · 0 · 0 · 0 · 0.
    Counted = 66,
    /// The end of a process: time ns · its CPU ns · minor faults · major faults · most resident bytes · 0 · 0.
    Exit = 67,
    /// A wait of 20 µs or more: start ns · wall ns · number of the thread that ended it (0 if none of the program did) · time
    /// ns at which that thread ended it · 0 · 0 · 0; the parameter is a [`Reason`]. A second record with the same start
    /// corrects the first: the descriptor that ended an epoll_wait is known only when it is read.
    Waited = 68,
    /// A call site of the process, recorded once before the first call from it: time ns · return address · 0 · 0 · 0 · 0 · 0.
    /// The record's `site` is its number.
    Site = 69,
    /// Mapped code that contains a site: time ns · first address · address after its end · its offset in its file, bytes ·
    /// inode of the file · device of the file · 0. The parameter is the length of its name, which the following records
    /// contain; 0 for code without a file.
    Module = 70,
    /// Bytes of the name of the module before this record: [`NAME_PIECE`] of them, filled up with zeros.
    ModuleName = 71,
    /// Requests that the thread has answered since its last record of this kind: time ns · requests · bytes read · bytes written ·
    /// ns at which the first of them was read · ns at which the last of them was answered · ns between reading and answering, summed. A
    /// request is answered by the first bytes that are written to an accepted connection after bytes were read from it.
    Served = 72,
}

impl Kind {
    /// All kinds, in numeric order.
    pub const ALL: [Kind; 23] = [
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
        Kind::Served,
    ];

    /// Returns the kind of this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Kind> {
        if (number as usize) < KINDS.len() { KINDS[number as usize] } else { None }
    }

    /// Returns true if the record is of a call, whose work could be done elsewhere.
    #[must_use]
    pub const fn is_call(self) -> bool {
        (self as u32) < Kind::Mark as u32
    }

    /// Returns true if the record is of a service's own work, which has parts and no addresses.
    #[must_use]
    pub const fn is_work(self) -> bool {
        matches!(self, Kind::Commit | Kind::Walk | Kind::PageIn | Kind::PageOut)
    }

    /// Returns the common name.
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
            Kind::Served => "requests",
        }
    }
}

/// The kind of each number: a record is decoded without a search.
const KINDS: [Option<Kind>; 128] = {
    let mut kinds = [None; 128];
    let mut index = 0;
    while index < Kind::ALL.len() {
        kinds[Kind::ALL[index] as usize] = Some(Kind::ALL[index]);
        index += 1;
    }
    kinds
};

/// Settings of a call that packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// zlib's flush argument, 0 to 6; 4 (Z_FINISH) for a call that packs a whole message.
    pub flush: u8,
    /// Level of the stream, -1 to 9; `None` if the stream was made before the trace began, or by a function that is not recorded.
    pub level: Option<i8>,
    /// True if the stream was flushed before its end, by this call or an earlier one.
    pub flushed: bool,
}

impl Packing {
    /// Encodes the settings as a record's parameter: flush in bits 0–7, level + 2 in bits 8–15 (0 if it is not known), flushed
    /// in bit 16.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let level = match self.level {
            Some(level) => (level as i32 + 2) as u32,
            None => 0,
        };
        self.flush as u32 | level << 8 | (self.flushed as u32) << 16
    }

    /// Decodes a record's parameter.
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
    /// A condition, semaphore, lock or futex, or the end of a thread.
    Memory = 1,
    /// The end of a process.
    Process = 2,
    /// A pipe or a socket.
    Stream = 3,
    /// A time, as in a sleep.
    Time = 4,
    /// Not a wait: the thread was started by the thread that the record names.
    Start = 5,
}

impl Reason {
    /// Returns the reason of this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Reason> {
        [Reason::Memory, Reason::Process, Reason::Stream, Reason::Time, Reason::Start]
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }
}

/// The last wake of an object: the thread that did it, and the time in units of 16 ns. Objects are distinguished by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Number of the thread in the trace, from 1.
    pub thread: u32,
    /// Time of the wake, nanoseconds since the trace's start.
    pub time_ns: u64,
}

impl Wake {
    const TIME_BITS: u32 = 44;

    /// Encodes a word of the table; `None` if the thread's number (2^20 or more) or the time (78 hours or more) does not fit.
    #[must_use]
    pub const fn encode(self) -> Option<u64> {
        let time = self.time_ns >> 4;
        if self.thread == 0 || self.thread >> (64 - Wake::TIME_BITS) != 0 || time >> Wake::TIME_BITS != 0 {
            return None;
        }
        Some((self.thread as u64) << Wake::TIME_BITS | time)
    }

    /// Decodes a word of the table; `None` if no wake is stored there.
    #[must_use]
    pub const fn decode(word: u64) -> Option<Wake> {
        let thread = (word >> Wake::TIME_BITS) as u32;
        let time_ns = (word & ((1 << Wake::TIME_BITS) - 1)) << 4;
        if thread == 0 { None } else { Some(Wake { thread, time_ns }) }
    }
}

/// Value for the faults of a call if they were not counted.
pub const FAULTS_UNKNOWN: u64 = u64::MAX;

/// A decoded record of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of the record.
    pub kind: Kind,
    /// For calls, the number of the call site in its process, from 1; 0 if it is not known.
    pub site: u16,
    /// Parameter of the record, see [`Kind`]; 0 for a kind without one.
    pub parameter: u32,
    /// Words of the record, see [`Kind`].
    pub words: [u64; 7],
}

impl Record {
    /// Encodes the record as words of the file.
    #[must_use]
    pub const fn encode(&self) -> [u64; 8] {
        let [a, b, c, d, e, f, g] = self.words;
        [self.kind as u64 | (self.site as u64) << 16 | (self.parameter as u64) << 32, a, b, c, d, e, f, g]
    }

    /// Decodes 64 bytes of the file, which lie at offset `at`.
    ///
    /// # Errors
    /// The field that is wrong, if the record is invalid.
    pub fn decode(bytes: &[u8; RECORD_BYTES], at: u64) -> Result<Record, Fault> {
        let (all, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(all[index]);
        let fault = |field, found, fix| Err(Fault { at, field, found, fix });
        let found = word(0) & 0xffff;
        let Some(kind) = Kind::from_number(found as u32) else {
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
            if Reason::from_number(record.parameter).is_none() {
                return fault(
                    "record.parameter",
                    record.parameter.into(),
                    "a reason, 1 to 5, is expected: record again",
                );
            }
        }
        if kind == Kind::Served {
            record.check_served(at)?;
        }
        if kind == Kind::Counted && !Kind::from_number(record.parameter).is_some_and(Kind::is_call) {
            return fault(
                "record.parameter",
                record.parameter.into(),
                "counts calls of a kind that is no call: record again",
            );
        }
        Ok(record)
    }

    /// Checks the requests of a record at offset `at`.
    fn check_served(&self, at: u64) -> Result<(), Fault> {
        let fault = |field, found, fix| Err(Fault { at, field, found, fix });
        let [_, _, _, _, first, last, inside] = self.words;
        for (field, found) in [("record.first", first), ("record.last", last), ("record.inside", inside)] {
            if found >= TIME_NS_MAX {
                return fault(field, found, "a time below 2^60 ns is expected: record again");
            }
        }
        if last < first {
            return fault(
                "record.last",
                last,
                "a time not before the first request is expected: record again",
            );
        }
        Ok(())
    }

    /// Checks a site or a module at offset `at`.
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
    /// Size of the chunk, bytes.
    pub bytes: u32,
    /// Bytes in use, including these 64.
    pub used: u32,
    /// Number of the chunk in its thread, from 0.
    pub sequence: u32,
    /// Number of its process in the trace, from 1.
    pub process: u32,
    /// Number of its thread in the trace, from 1.
    pub thread: u32,
    /// Id of the process.
    pub pid: u32,
    /// Id of the thread.
    pub tid: u32,
    /// Number of the process that this one was forked from, if that was recorded; else 0.
    pub parent: u32,
    /// Id of the process that started this one.
    pub parent_pid: u32,
    /// Name of the thread, filled up with zeros.
    pub name: [u8; 16],
}

/// Offset of [`Chunk::used`] in a chunk, bytes.
pub const CHUNK_USED_AT: usize = 8;

impl Chunk {
    /// Encodes the head as words of the file; `used` is stored last and separately.
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

    /// Decodes the head of a chunk at offset `at`, from where `rest` bytes of the trace are left. Returns `None` for a page of zeros, which
    /// was claimed and never written: the next chunk begins a page later.
    ///
    /// # Errors
    /// The field that is wrong, if no chunk begins there.
    pub fn decode(bytes: &[u8; RECORD_BYTES], at: u64, rest: u64) -> Result<Option<Chunk>, Fault> {
        let half = |from: usize| number(bytes, from, 4) as u32;
        let fault = |field, found, fix| Err(Fault { at, field, found, fix });
        if half(0) == 0 {
            return Ok(None);
        }
        if half(0) != CHUNK_MAGIC {
            return fault(
                "chunk.magic",
                half(0).into(),
                "no chunk begins here: the file was damaged, record again",
            );
        }
        let mut name = [0; 16];
        name.copy_from_slice(&bytes[40..56]);
        let chunk = Chunk {
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
        };
        let (length, used) = (chunk.bytes as usize, chunk.used as usize);
        if length == 0 || !length.is_multiple_of(HEADER_BYTES) || length > CHUNK_BYTES_MAX {
            let fix = "a multiple of 4096 up to 262144 is expected: the file was damaged, record again";
            return fault("chunk.bytes", length as u64, fix);
        }
        if length as u64 > rest {
            let fix = "the chunk ends beyond the file: it was cut off; copy it again, or record again";
            return fault("chunk.bytes", length as u64, fix);
        }
        if used < RECORD_BYTES || used > length || !used.is_multiple_of(RECORD_BYTES) {
            let fix = "64 up to the chunk's bytes, in steps of 64, is expected: record again";
            return fault("chunk.used", used as u64, fix);
        }
        if chunk.process == 0 {
            return fault("chunk.process", 0, "processes count from 1: record again");
        }
        if chunk.thread == 0 {
            return fault("chunk.thread", 0, "threads count from 1: record again");
        }
        Ok(Some(chunk))
    }
}

/// An error in a trace: its offset, the field, the value found, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset from the file's start, bytes.
    pub at: u64,
    /// Name of the wrong field.
    pub field: &'static str,
    /// Value of the wrong field.
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

/// The header of a trace, checked.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    bytes: &'a [u8; HEADER_BYTES],
}

impl<'a> Header<'a> {
    /// Checks the header.
    ///
    /// # Errors
    /// The field that is wrong, if the header is invalid.
    pub fn open(bytes: &'a [u8; HEADER_BYTES]) -> Result<Header<'a>, Fault> {
        let fault = |field, index: usize, found, fix| Err(Fault { at: 8 * index as u64, field, found, fix });
        let header = Header { bytes };
        let of = |index| header.word(index);
        if of(word::MAGIC) != MAGIC {
            return fault(
                "magic",
                word::MAGIC,
                of(word::MAGIC),
                "this is no trace: give what `memlift record` wrote",
            );
        }
        if !(VERSION_OLDEST..=VERSION).contains(&of(word::VERSION)) {
            let fix =
                "this memlift reads versions 4 and 5: use the memlift that recorded it, or record again";
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
        Ok(header)
    }

    /// Returns the error for an input that ends before the first chunk, after `bytes` bytes.
    #[must_use]
    pub fn too_short(bytes: u64) -> Fault {
        let fix = "a trace has at least 69632 bytes: give what `memlift record` wrote";
        Fault { at: 0, field: "size", found: bytes, fix }
    }

    /// Returns the error for an input that ends before [`Header::end`].
    #[must_use]
    pub fn cut_off(&self) -> Fault {
        let fix = "the file is shorter than what was claimed: it was cut off; copy it again, or record again";
        Fault { at: 8 * word::CLAIMED as u64, field: "claimed", found: self.word(word::CLAIMED), fix }
    }

    /// Returns a word of the header, by its index in [`word`].
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        number(self.bytes, 8 * index, 8)
    }

    /// Returns a text of the header ([`CPU_TEXT`] or [`COMMAND_TEXT`]) up to its first zero. It may be no UTF-8.
    #[must_use]
    pub fn text(&self, place: (usize, usize)) -> &'a [u8] {
        let text = &self.bytes[place.0..place.0 + place.1];
        &text[..text.iter().position(|byte| *byte == 0).unwrap_or(text.len())]
    }

    /// Returns the offset at which the last chunk ends, bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.word(word::CLAIMED).min(self.word(word::LIMIT))
    }
}

/// A trace in memory, whose header was checked.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    bytes: &'a [u8],
    header: Header<'a>,
}

impl<'a> File<'a> {
    /// Checks the header.
    ///
    /// # Errors
    /// The field that is wrong, if the header is invalid.
    pub fn open(bytes: &'a [u8]) -> Result<File<'a>, Fault> {
        let Some(head) = bytes.first_chunk().filter(|_| bytes.len() >= CHUNKS_AT) else {
            return Err(Header::too_short(bytes.len() as u64));
        };
        let header = Header::open(head)?;
        if (bytes.len() as u64) < header.end() {
            return Err(header.cut_off());
        }
        Ok(File { bytes, header })
    }

    /// Returns the chunks of the trace, in order.
    #[must_use]
    pub fn chunks(&self) -> Chunks<'a> {
        Chunks { bytes: &self.bytes[..self.header.end() as usize], at: CHUNKS_AT }
    }
}

/// Iterates over the chunks, with the offset and the bytes of each one's records.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<(Chunk, u64, &'a [u8]), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.bytes.get(self.at..)?;
            let at = self.at as u64;
            match Chunk::decode(rest.first_chunk()?, at, rest.len() as u64) {
                Ok(None) => self.at += HEADER_BYTES,
                Ok(Some(chunk)) => {
                    self.at += chunk.bytes as usize;
                    let records = &rest[RECORD_BYTES..chunk.used as usize];
                    return Some(Ok((chunk, at + RECORD_BYTES as u64, records)));
                }
                Err(fault) => {
                    self.at = usize::MAX;
                    return Some(Err(fault));
                }
            }
        }
    }
}

const _: () =
    assert!(HEADER_BYTES >= COMMAND_TEXT.0 + COMMAND_TEXT.1 && CPU_TEXT.0 + CPU_TEXT.1 <= COMMAND_TEXT.0);
const _: () = assert!(word::USED * 8 <= CPU_TEXT.0 && CHUNK_BYTES_MAX.is_multiple_of(HEADER_BYTES));
