// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A log as a node finds it at its start.
//!
//! - **Flow** [`OpenLog::open`]: lock, head ─▶ [`OpenLog::replay`]: entries in order, then the rest is judged as a torn end
//!   or as damage ─▶ [`OpenLog::start`]: the torn end is cut off, a first record is written and synced
//! - **Order** the file does not change before [`OpenLog::start`]
//! - **Damage** a bad record is damage if a later record's `durable_to` lies behind it. For records written with
//!   [`Durability::Process`] since this machine's last start it is damage if any whole record follows, because the system's
//!   cache keeps the order of writes

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlift_ground::locked_file::LockedFile;

use super::entry::{Change, Entry, RangeStep};
use super::frame::{self, Behind, HEAD_BYTES, Head, HeadFault, Record, Records};
use super::sync::Sync;
use super::{Durability, Log, LogError, is_full, lock};

/// Records found in a log at a node's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Number of records, without those that only note a start of a node, or the time.
    pub records: u64,
    /// Bytes that a crash had left at the end, and that were cut off.
    pub cut_bytes: u64,
}

/// Returns the boot id of the machine; zeros if the system has none.
pub(super) fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Result of [`survey`]: the end of the good records, and the records behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Survey {
    pub records: u64,
    /// Position behind the last record before the first bad one.
    pub good_to: u64,
    /// Number of whole records behind the first bad one.
    pub behind: u64,
    /// True if the first bad record is damage, and not part of a torn end.
    pub is_damaged: bool,
}

/// Reads all records; `take` receives those before the first bad one, `take_behind` those behind it.
pub(super) fn survey(
    file: &File,
    head: &Head,
    length: u64,
    boot: [u8; 16],
    mut take: impl FnMut(Record) -> io::Result<()>,
    mut take_behind: impl FnMut(Record) -> io::Result<()>,
) -> io::Result<Survey> {
    // True while records are from the current boot of the machine and were written without a sync per commit.
    let mut writes_in_order = false;
    let mut note = |entry: &Entry| {
        if let Change::Start(of, durability) = &entry.change {
            writes_in_order = *durability == Durability::Process && *of == boot && boot != [0; 16];
        }
        writes_in_order
    };
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
    let mut records = Records::new(reader, *head, HEAD_BYTES as u64, length);
    let mut count = 0;
    while let Some(record) = records.next()? {
        note(&record.entry);
        count += 1;
        take(record)?;
    }
    let good_to = records.position;
    let mut found = Survey { records: count, good_to, behind: 0, is_damaged: false };
    frame::behind(file, head, good_to, length, |one| {
        let durable_to = match one {
            Behind::Frame(durable_to) => durable_to,
            Behind::Whole(record) => {
                found.behind += 1;
                let reached = if note(&record.entry) { record.position } else { record.durable_to };
                take_behind(record)?;
                reached
            }
        };
        found.is_damaged |= good_to < durable_to;
        Ok(())
    })?;
    Ok(found)
}

/// Opens a file that should be a log, and returns its head and length. The head is `None` if no record was ever
/// written.
pub(super) fn open_file(
    path: &Path,
    options: &OpenOptions,
) -> Result<(LockedFile, Option<Head>, u64), LogError> {
    let system = LogError::system(path);
    let file = options.open(path).map_err(&system)?;
    if !file.metadata().map_err(&system)?.is_file() {
        // Opening a FIFO would wait for a writer, and a device must not be written to.
        return Err(LogError::Foreign(path.to_owned()));
    }
    let file = lock(file, path)?;
    let length = file.metadata().map_err(&system)?.len();
    let mut first = Vec::new();
    (&*file).take(HEAD_BYTES as u64).read_to_end(&mut first).map_err(&system)?;
    if length <= HEAD_BYTES as u64 && Head::is_torn(&first) {
        return Ok((file, None, length));
    }
    let decoded = first.as_slice().try_into().map_err(|_| HeadFault::Foreign).and_then(Head::decode);
    match decoded {
        Ok(head) => Ok((file, Some(head), length)),
        Err(HeadFault::Foreign) => Err(LogError::Foreign(path.to_owned())),
        Err(HeadFault::Version(version)) => Err(LogError::Version { path: path.to_owned(), version }),
        Err(HeadFault::Broken) => Err(LogError::Damaged { path: path.to_owned(), at: 0, behind: 0 }),
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct OpenLog {
    file: LockedFile,
    path: PathBuf,
    /// `None` if no record was ever written.
    head: Option<Head>,
    length: u64,
    /// First address and bytes of the node's memory.
    memory: (u64, u64),
    /// Bytes of memory that the log accounts for.
    logged_bytes: u64,
    good_to: u64,
    boot: [u8; 16],
}

impl OpenLog {
    /// Opens a log, or begins one, for the memory of `bytes` bytes from `base` on.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn open(path: &Path, base: u64, bytes: u64) -> Result<OpenLog, LogError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let (file, head, length) = open_file(path, options)?;
        let logged_bytes = head.map_or(bytes, |head| head.bytes);
        if let Some(head) = head.filter(|head| head.base != base || head.bytes > bytes) {
            return Err(LogError::Other { path: path.to_owned(), base: head.base, bytes: head.bytes });
        }
        let (path, memory) = (path.to_owned(), (base, bytes));
        Ok(OpenLog {
            file,
            path,
            head,
            length,
            memory,
            logged_bytes,
            good_to: HEAD_BYTES as u64,
            boot: boot(),
        })
    }

    /// Returns the bytes of memory that the log accounts for; before the replay, those of the node that began it.
    #[must_use]
    pub fn first_bytes(&self) -> u64 {
        self.logged_bytes
    }

    /// Passes the entries of the log to `take`, in order.
    ///
    /// # Errors
    ///
    /// [`LogError::Damaged`]; [`LogError::Other`] if a node with this log has had more memory than this one.
    pub fn replay(&mut self, mut take: impl FnMut(Entry)) -> Result<Replayed, LogError> {
        let Some(head) = self.head else { return Ok(Replayed { records: 0, cut_bytes: self.length }) };
        let (path, system) = (self.path.clone(), LogError::system(&self.path));
        let logged_bytes = &mut self.logged_bytes;
        let mut records = 0;
        let each = |record: Record| {
            records += u64::from(!matches!(
                record.entry.change,
                Change::Start(..) | Change::Run(..) | Change::Clock(..)
            ));
            if let Change::RangeStep(RangeStep::Grow, _, bytes) = record.entry.change {
                *logged_bytes += bytes;
            }
            take(record.entry);
            Ok(())
        };
        let found = survey(&self.file, &head, self.length, self.boot, each, |_| Ok(())).map_err(system)?;
        if found.is_damaged {
            return Err(LogError::Damaged { path, at: found.good_to, behind: found.behind });
        }
        if self.logged_bytes > self.memory.1 {
            return Err(LogError::Other { path, base: self.memory.0, bytes: self.logged_bytes });
        }
        self.good_to = found.good_to;
        Ok(Replayed { records, cut_bytes: self.length - found.good_to })
    }

    /// Returns the addresses that the node has and the log does not account for: first address, bytes.
    #[must_use]
    pub fn grown(&self) -> Option<(u64, u64)> {
        (self.memory.1 > self.logged_bytes)
            .then(|| (self.memory.0 + self.logged_bytes, self.memory.1 - self.logged_bytes))
    }

    /// Cuts off a torn end, and continues behind the last record.
    ///
    /// # Errors
    ///
    /// An error of the system. A full disk is an error only while the file has no head: otherwise the node starts, and
    /// refuses changes.
    pub fn start(self, durability: Durability) -> Result<Log, LogError> {
        let path = self.path.clone();
        let (system, grown) = (LogError::system(&path), self.grown());
        let head = match self.head {
            Some(head) => {
                self.file.set_len(self.good_to).map_err(&system)?;
                head
            }
            None => {
                let head = Head::new(self.memory.0, self.memory.1).map_err(&system)?;
                self.file.set_len(0).map_err(&system)?;
                self.file.write_all_at(&head.encode(), 0).map_err(&system)?;
                head
            }
        };
        self.file.sync_all().map_err(&system)?;
        let file = Arc::new(self.file);
        let mut log = Log {
            sync: Sync::start(&file, durability, self.good_to),
            file,
            path: self.path,
            durability,
            head,
            memory: self.memory,
            waiting: Vec::new(),
            bytes: self.good_to,
            snapshot_bytes: 0,
            written_version: head.version,
            full: None,
        };
        let start = Entry { change: Change::Start(self.boot, durability), request: None };
        log.append(&start);
        if let Some((base, bytes)) = grown {
            log.append(&Entry { change: Change::RangeStep(RangeStep::Grow, base, bytes), request: None });
        }
        if log.commit()? {
            // Synced, so that a later change of these records is recognized as damage, not as a torn end.
            match log.file.sync_data() {
                Ok(()) => log.sync.wrote(log.bytes, true),
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(system(error)),
            }
        }
        Ok(log)
    }
}
