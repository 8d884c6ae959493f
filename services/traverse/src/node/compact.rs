// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compaction of the log: a new file with a snapshot of memory, and the records since, replaces it.
//!
//! - **Flow** under the writer's lock: note the state (`snapshot`) and the log's length ─▶ without the lock, while the
//!   node serves: write the snapshot, whose memory may change meanwhile ─▶ copy the records that the old log got meanwhile, until few are
//!   left ─▶ under the lock: copy the rest, sync, rename
//! - **Order** memory is read after the log's length was noted, and records hold the bytes that were stored. So replaying the
//!   copied records over the snapshot gives the memory as it is at the end, whatever changed while it was written. The new file
//!   is complete and synced before it gets the log's name, so a crash leaves either the old log or the new one
//! - **Owner** one compaction runs at a time, and none while a range arrives or leaves: a snapshot cannot hold that intermediate
//!   state

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memlift_ground::own_file;

use super::log::frame::{Head, Records};
use super::log::{Change, Entry, LogError, is_log, lock};
use super::snapshot::Snapshot;
use super::{Node, locked};

/// The copying of new records without the writer's lock ends with a pass that copies at most this many bytes.
const REST_BYTES: u64 = 256 << 10;

/// Stages of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacting {
    /// The new file exists, with its head and first record.
    Begun,
    /// The new file holds the snapshot of memory.
    Copied,
    /// The new file also holds the records logged meanwhile, and is synced.
    Synced,
    /// The new file has the log's name.
    Renamed,
}

/// Sizes of the log before and after a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the log before compaction.
    pub before_bytes: u64,
    /// Bytes of the log after compaction.
    pub after_bytes: u64,
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// The new file that will become the log.
struct Sink {
    file: BufWriter<File>,
    head: Head,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Sink {
    fn entry(&mut self, entry: &Entry, durable_to: u64) -> io::Result<()> {
        self.buffer.clear();
        self.head.version = self.head.version.max(entry.version());
        self.head.put(self.bytes, durable_to, entry, &mut self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)
    }

    /// Copies the records of the old log from `from` to `end`.
    fn follow(&mut self, mut old: &File, head: Head, from: u64, end: u64) -> io::Result<()> {
        old.seek(SeekFrom::Start(from))?;
        let mut records = Records::new(BufReader::new(old), head, from, end);
        while let Some(record) = records.next()? {
            self.entry(&record.entry, 0)?;
        }
        // This process wrote the records, so none can be bad.
        if records.position == end { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Syncs the file, and adds a record that says so: from then on, bad bytes before that record are recognized as damage.
    fn seal(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().write_all_at(&self.head.encode(), 0)?;
        self.file.get_ref().sync_all()?;
        self.entry(&Entry { change: Change::None, request: None }, self.bytes)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

impl Node {
    /// Shortens the log to about the size of the memory in use, while the node serves. Returns `None` if there is no log,
    /// its disk is full, another compaction runs, or a range is arriving or leaving.
    ///
    /// # Errors
    ///
    /// [`LogError`]: the old log stays in use, undamaged. Only if syncing the folder fails is the new log in use.
    pub fn compact(&self) -> Result<Option<Compacted>, LogError> {
        self.compact_watched(&mut |_| {})
    }

    /// Does what [`Node::compact`] does, and calls `at` with each stage that is reached.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::compact`].
    pub fn compact_watched(&self, at: &mut dyn FnMut(Compacting)) -> Result<Option<Compacted>, LogError> {
        let done = self.compact_once(at);
        if let Err(LogError::System { path, .. }) = &done
            && path.extension().is_some_and(|extension| extension == "new")
        {
            // An unfinished file would take room on a disk that may be full.
            let _ = std::fs::remove_file(path);
        }
        done
    }

    fn compact_once(&self, at: &mut dyn FnMut(Compacting)) -> Result<Option<Compacted>, LogError> {
        let Ok(_alone) = self.core.compacting.try_lock() else { return Ok(None) };
        let mut writer = self.writer();
        if writer.allocator.has_detached() || !writer.reserved.is_empty() {
            return Ok(None);
        }
        if !writer.commit()? {
            return Ok(None);
        }
        let Some(log) = &writer.log else { return Ok(None) };
        // If the path is a symbolic link, its target is replaced.
        let path = log.path.canonicalize().unwrap_or_else(|_| log.path.clone());
        let new = beside(&path);
        let system = |error: io::Error| LogError::System { path: new.clone(), error };
        let (mut position, before_bytes) = (log.bytes, log.bytes);
        let (snapshot, replica) = (Snapshot::of(&writer), writer.replica);
        let (head_of, old_head, start) = (log.memory, log.head, log.start_entry());
        drop(writer);

        let file = own_file::open(&new, is_log).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => LogError::Foreign(new.clone()),
            _ => system(error),
        })?;
        let locked = lock(file, &new)?;
        locked.set_len(0).map_err(system)?;
        let head = Head::new(head_of.0, head_of.1).map_err(system)?;
        let file = BufWriter::with_capacity(1 << 20, locked.try_clone().map_err(system)?);
        // Records that the old log gets meanwhile may need a higher version: `seal` writes the head again.
        let mut sink = Sink { file, head, bytes: 0, buffer: Vec::new() };
        let written = || -> io::Result<()> {
            let head = sink.head.encode();
            sink.file.write_all(&head)?;
            sink.bytes = head.len() as u64;
            sink.entry(&start, 0)?;
            at(Compacting::Begun);
            snapshot.pass_on(&self.core, head_of, &mut |entry| sink.entry(&entry, 0))?;
            if replica != 0 {
                sink.entry(&Entry { change: Change::Replica(replica), request: None }, 0)?;
            }
            at(Compacting::Copied);
            Ok(())
        };
        written().map_err(system)?;
        let snapshot_bytes = sink.bytes;

        let old = File::open(&path).map_err(system)?;
        loop {
            let end = self.writer().log.as_ref().map_or(position, |log| log.bytes);
            sink.follow(&old, old_head, position, end).map_err(system)?;
            let little = end - position <= REST_BYTES;
            position = end;
            if little {
                break;
            }
        }
        sink.file.flush().and_then(|()| sink.file.get_ref().sync_data()).map_err(system)?;
        at(Compacting::Synced);

        let mut writer = self.writer();
        if !writer.commit()? {
            let _ = std::fs::remove_file(&new);
            return Ok(None);
        }
        let Some(log) = &mut writer.log else { return Ok(None) };
        sink.follow(&old, old_head, position, log.bytes).and_then(|()| sink.seal()).map_err(system)?;
        let (head, bytes) = (sink.head, sink.bytes);
        sink.file.into_inner().map_err(|error| system(error.into_error()))?;
        std::fs::rename(&new, &path).map_err(system)?;
        // From here on the new file is the log, even if a later step fails.
        log.replace(locked, head, bytes, snapshot_bytes);
        at(Compacting::Renamed);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| LogError::System { path: path.clone(), error })?;
        Ok(Some(Compacted { before_bytes, after_bytes: bytes }))
    }

    /// Returns the bytes of the log, and the bytes of its last snapshot; (0, 0) without a log.
    #[must_use]
    pub fn log_bytes(&self) -> (u64, u64) {
        locked(&self.core.writer).log.as_ref().map_or((0, 0), |log| (log.bytes, log.snapshot_bytes))
    }

    /// Compacts the log if it is longer than `limit_bytes` and more than twice its last snapshot.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::compact`].
    pub fn compact_beyond(&self, limit_bytes: u64) -> Result<Option<Compacted>, LogError> {
        let (bytes, snapshot_bytes) = self.log_bytes();
        if bytes > limit_bytes.max(snapshot_bytes.saturating_mul(2)) { self.compact() } else { Ok(None) }
    }
}
