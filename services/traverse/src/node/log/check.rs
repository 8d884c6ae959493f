// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks a log without a node, and copies the readable records of a damaged one.
//!
//! - **Flow** [`check_log`] reads a log and returns how the file ends; [`repair_log`] writes the good records to a new
//!   file
//! - **Order** the original file is never changed
//! - **Not here** the check that an entry can be carried out: the caller of [`repair_log`] answers it for each entry

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use memlift_ground::fresh_file::FreshFile;

use super::LogError;
use super::entry::Entry;
use super::frame::{HEAD_BYTES, Head, Record};
use super::open::{boot, open_file, survey};

/// State of the end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// The file ends with a whole record.
    Whole,
    /// The file ends with parts of records that had not reached the disk at a crash; the next start cuts them off.
    Torn {
        /// Offset of the first byte that will be cut off.
        at: u64,
        /// Bytes that will be cut off.
        bytes: u64,
    },
    /// Bytes that had reached the disk have changed; no node starts with this file.
    Damaged {
        /// Offset of the first bad record.
        at: u64,
        /// Number of good records behind it.
        behind: u64,
    },
}

/// Result of [`check_log`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogReport {
    /// Format version of the file.
    pub version: u32,
    /// First address of the memory for which the log was begun.
    pub base: u64,
    /// Bytes of that memory; 0: the map of a cluster defines the node's addresses.
    pub memory_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Good records before the first bad one.
    pub records: u64,
    /// End of the file: whole, torn or damaged.
    pub end: LogEnd,
}

/// Records that `repair_log` copied and left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSaved {
    /// Records that were copied.
    pub records: u64,
    /// Good records that were not copied: they lie behind the damage, or depend on lost records.
    pub left_out: u64,
}

/// Reads a log. `take` receives the records before the first bad one, `take_behind` the good ones behind it.
fn scan(
    path: &Path,
    take: impl FnMut(Record) -> io::Result<()>,
    take_behind: impl FnMut(Record) -> io::Result<()>,
) -> Result<LogReport, LogError> {
    let (file, head, length) = open_file(path, OpenOptions::new().read(true))?;
    let Some(head) = head else {
        let end = LogEnd::Torn { at: 0, bytes: length };
        return Ok(LogReport { version: 0, base: 0, memory_bytes: 0, file_bytes: length, records: 0, end });
    };
    let found = survey(&file, &head, length, boot(), take, take_behind).map_err(LogError::system(path))?;
    let end = match found.good_to {
        at if found.is_damaged => LogEnd::Damaged { at, behind: found.behind },
        at if at < length => LogEnd::Torn { at, bytes: length - at },
        _ => LogEnd::Whole,
    };
    let Head { version, base, bytes: memory_bytes, .. } = head;
    Ok(LogReport { version, base, memory_bytes, file_bytes: length, records: found.records, end })
}

/// Reads a log that no node has open.
///
/// # Errors
///
/// [`LogError`]: the file cannot be read, is open in a node, or is not a log; [`LogError::Damaged`] at byte 0 if its head is
/// damaged.
pub fn check_log(path: &Path) -> Result<LogReport, LogError> {
    scan(path, |_| Ok(()), |_| Ok(()))
}

/// Copies good records into `to`, which must not exist yet: those before the first bad one and, with `behind`, those behind
/// it for which `may_follow` returns true. `may_follow` is called with every record that could be copied, in order; its
/// result only counts behind the damage.
///
/// # Errors
///
/// The errors of [`check_log`]; or `to` cannot be created or written. `to` appears once it is complete.
pub fn repair_log(
    path: &Path,
    to: &Path,
    behind: bool,
    mut may_follow: impl FnMut(&Entry) -> bool,
) -> Result<LogSaved, LogError> {
    let report = check_log(path)?;
    let system = LogError::system(to);
    let mut head = Head::new(report.base, report.memory_bytes).map_err(&system)?;
    head.version = head.version.max(report.version);
    if to.symlink_metadata().is_ok() {
        return Err(system(io::ErrorKind::AlreadyExists.into()));
    }
    let fresh = FreshFile::create(to, 0o666).map_err(&system)?;
    let file = fresh.file().try_clone().map_err(&system)?;
    let saved = copy(path, &head, file, behind, &mut may_follow).map_err(|error| match error {
        Copying::Log(error) => error,
        Copying::Target(error) => system(error),
    })?;
    fresh.publish(false).map_err(system)?;
    Ok(saved)
}

/// The file that failed: the log that is read, or the copy.
enum Copying {
    Log(LogError),
    Target(io::Error),
}

fn copy(
    path: &Path,
    head: &Head,
    file: std::fs::File,
    behind: bool,
    may_follow: &mut dyn FnMut(&Entry) -> bool,
) -> Result<LogSaved, Copying> {
    struct Target<'a> {
        file: BufWriter<std::fs::File>,
        position: u64,
        buffer: Vec<u8>,
        saved: LogSaved,
        may_follow: &'a mut dyn FnMut(&Entry) -> bool,
    }
    let file = BufWriter::new(file);
    let target = Target {
        file,
        position: HEAD_BYTES as u64,
        buffer: Vec::new(),
        saved: LogSaved::default(),
        may_follow,
    };
    // `RefCell`, because two closures use the target, one after the other.
    let target = RefCell::new(target);
    target.borrow_mut().file.write_all(&head.encode()).map_err(Copying::Target)?;
    let put = |record: &Record, is_behind: bool| {
        let target = &mut *target.borrow_mut();
        let may = (!is_behind || behind) && (target.may_follow)(&record.entry);
        if is_behind && !may {
            target.saved.left_out += 1;
            return Ok(());
        }
        target.saved.records += 1;
        target.buffer.clear();
        head.put(target.position, 0, &record.entry, &mut target.buffer);
        target.position += target.buffer.len() as u64;
        target.file.write_all(&target.buffer)
    };
    scan(path, |record| put(&record, false), |record| put(&record, true)).map_err(Copying::Log)?;
    let Target { mut file, saved, .. } = target.into_inner();
    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(Copying::Target)?;
    Ok(saved)
}
