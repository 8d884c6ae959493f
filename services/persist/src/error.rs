// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The crate's errors, each with what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a pool or a transaction was refused. Nothing that was acknowledged is lost by any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the operating system failed.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// The attempted action, as a verb phrase.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The pool is open already, in this or another process.
    #[error("{} is open already, in this process or another one: a pool has one owner at a time. Close it there first, or let others read it there (Options::readers_bytes; readers in Python) and open it for reading", .path.display())]
    InUse {
        /// The pool's file.
        path: PathBuf,
    },
    /// The file exists.
    #[error("{} exists: open it, or remove it first", .path.display())]
    Exists {
        /// The file that is there already.
        path: PathBuf,
    },
    /// Not a pool.
    #[error("this is not a memlift pool: it does not start with the magic bytes (docs/formats/pool.md)")]
    NotAPool,
    /// Another version of the format.
    #[error(
        "the pool has format version {found}, this program knows {known}: use the release that wrote it, or `memlift pool convert`"
    )]
    Version {
        /// The format version of the file.
        found: u32,
        /// The format version of this program.
        known: u32,
    },
    /// A feature that this program does not know.
    #[error("the pool uses features that this program does not know (bits {bits:#x}): use a newer release")]
    Feature {
        /// The feature bits that this program does not know.
        bits: u32,
    },
    /// The file was changed by something other than memlift, or a device lost what it had promised.
    #[error(
        "the pool is damaged: {what}. `memlift pool check` says more, `memlift pool repair` works on a copy"
    )]
    Corrupt {
        /// The contradiction that was found.
        what: String,
    },
    /// Damage in the log that is no torn tail: opening would lose what was acknowledged.
    #[error(
        "the log is damaged: {what}; up to {transactions} acknowledged transactions would be lost. Restore the pool from a backup, or go on without them: `memlift pool repair --accept-loss {}`",
        pool_files(files)
    )]
    LogDamaged {
        /// Where, and what lies behind.
        what: String,
        /// Transactions that would be lost, at most.
        transactions: u64,
        /// The pool's files, in the order of their devices.
        files: Vec<PathBuf>,
    },
    /// The root object has another type.
    #[error(
        "the pool's root has another layout than {wanted}: the type changed, or this is another program's pool (`memlift pool info` names its types; see Migrates)"
    )]
    Layout {
        /// The type asked for.
        wanted: &'static str,
    },
    /// The heap has no room.
    #[error(
        "the pool is full: no room for {bytes} bytes in a heap of {heap_bytes}; raise `Options::max_bytes`, or free something"
    )]
    Full {
        /// Bytes that were asked for.
        bytes: u64,
        /// Size of the heap.
        heap_bytes: u64,
    },
    /// A transaction wrote more than the log takes: a lane with undo, a quarter with checkpoints and shadow copies (24 bytes for
    /// each page of 4 KiB). With redo there is no such limit.
    #[error(
        "the transaction wrote {bytes} bytes, more than a lane of the log takes ({lane_bytes}): split it, or create the pool with larger `Options::lane_bytes`"
    )]
    TooLarge {
        /// Bytes of its record.
        bytes: u64,
        /// Bytes of a lane; with checkpoints, half of that.
        lane_bytes: u64,
    },
    /// A pointer that does not point to an object of its type, or not any more.
    #[error("no {wanted} at {offset:#x}: the pointer is null, stale, or of another pool")]
    Pointer {
        /// Name of the type that was asked for.
        wanted: &'static str,
        /// The pointer's value: bytes from the start of the heap.
        offset: u64,
    },
    /// An object of a section that the transaction did not lock.
    #[error("the {wanted} at {offset:#x} belongs to section {section}, which this transaction did not name")]
    Section {
        /// Name of the object's type.
        wanted: &'static str,
        /// Bytes from the start of the heap.
        offset: u64,
        /// The section that owns the object.
        section: u16,
    },
    /// Two borrows of one object.
    #[error("the two objects are the same one, at {offset:#x}")]
    Same {
        /// Bytes from the start of the heap.
        offset: u64,
    },
    /// The disk refused to make something durable; what it holds is not known.
    #[error(
        "the pool is stopped: the disk failed to make the log durable ({reason}). What was acknowledged is safe; close the pool, look at the disk, open it again to recover"
    )]
    Stopped {
        /// The system's error, as text.
        reason: String,
    },
    /// A number or combination that makes no sense.
    #[error("{what}")]
    Argument {
        /// The fault, and a value that would be right.
        what: String,
    },
    /// A reader beside another process's writer: what it has not read yet of its snapshot is not to be had any more.
    #[error("the snapshot is gone: {why}; take a new one (Pool::refresh), or open the pool again")]
    SnapshotGone {
        /// Reason for that.
        why: &'static str,
    },
    /// The replica of a pool in an object store.
    #[error("the replica {url}: {what}")]
    Replica {
        /// The replica's place, without a password.
        url: String,
        /// The fault, and what to do about it.
        what: String,
    },
    /// The store of a replica: it cannot be reached, refuses what is asked, or lacks the bucket.
    #[error(
        "the store of the replica {url} does not do what is asked ({what}). Look at its address, and at the keys and settings in the environment (docs/guides/persist.md, Replication)"
    )]
    ReplicaStore {
        /// The replica's place, without a password.
        url: String,
        /// The call that failed, and the store's error.
        what: String,
    },
    /// Nothing was replicated to this place.
    #[error(
        "there is no replica of a pool at {url}: look at the address; `memlift pool replicate FILE {url}` makes one"
    )]
    NoReplica {
        /// The place, without a password.
        url: String,
    },
    /// Another process writes the replica.
    #[error(
        "the replica {url} belongs to another process since {since}: {owner}. This process ships nothing any more. If it is the one that should, stop the other one and start this one again"
    )]
    Fenced {
        /// The replica's place, without a password.
        url: String,
        /// The other writer: host, process and file.
        owner: String,
        /// When it began, in UTC.
        since: String,
    },
    /// The transaction is durable in the pool's file, but the replica does not have it.
    #[error("the transaction is in the pool's file, but the replica does not have it: {why}")]
    NotReplicated {
        /// Reason for that.
        why: String,
    },
    /// The pool was opened for reading only.
    #[error("the pool is open for reading only: open it with write access to change it")]
    ReadOnly,
    /// The caller's own reason to abort.
    #[error("aborted: {0}")]
    Aborted(String),
}

/// Files as arguments of `memlift pool`.
fn pool_files(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(" --with ")
}

impl Error {
    /// Damage, in words.
    pub(crate) fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt { what: what.into() }
    }
}

/// Advice where address space is short: a pool takes what it may grow to twice, once for its file and once for its heap.
pub(crate) const LOWER_MAX: &str = "lower what the pool may grow to (max_bytes; size_max in Python), of which it takes twice as much address space, or raise the limit (ulimit -v)";

/// A result whose error is this crate's.
pub type Result<T, E = Error> = std::result::Result<T, E>;
