// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of a pool: mechanism, sizes, durability.

use std::time::Duration;

/// How a pool makes transactions durable. Chosen when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Mechanism {
    /// After-images of what changed go to the log, one fence, and later to their place.
    #[default]
    Redo = 0,
    /// Before-images go to the log, a fence, then the change is made in place: no mirror in memory.
    Undo = 1,
    /// As redo, but by dirty 64-byte lines of pages; transactions between two checkpoints share one.
    Checkpoint = 2,
    /// Every page has two copies; a commit writes the lines that differ to the other one and turns the page over.
    Shadow = 3,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 4] =
        [Mechanism::Redo, Mechanism::Undo, Mechanism::Checkpoint, Mechanism::Shadow];

    pub(crate) fn from_byte(byte: u8) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|mechanism| *mechanism as u8 == byte)
    }

    /// Its name in lower case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Redo => "redo",
            Mechanism::Undo => "undo",
            Mechanism::Checkpoint => "checkpoint",
            Mechanism::Shadow => "shadow",
        }
    }
}

/// When a transaction counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// It is durable when the call returns.
    #[default]
    Sync,
    /// It is durable when the call returns, and shares its fence with others that commit at the same time; waits up to
    /// [`Options::group_wait`] for them.
    Group,
    /// The call returns at once; the transaction is durable after the next [`crate::Pool::sync`] or `Sync` commit, and without
    /// one [`Options::buffered_wait`] later. What is recovered is always a prefix, which lacks no more than that, and no more
    /// than [`Options::buffered_bytes`] of log.
    Buffered,
    /// It is durable as with `Group`, and the pool's replica has it when the call returns (module `replicate`). If the replica does not
    /// get it within [`Options::replica_wait`], the call fails with [`crate::Error::NotReplicated`]; the transaction stays all the same.
    Replicated,
}

/// Where a store becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Domain {
    /// Detected: MAP_SYNC → lines; memory file systems → lines; anything else → pages.
    #[default]
    Auto,
    /// By write-back of cache lines and a store fence. On an ordinary file that survives the death of the process only;
    /// [`crate::Pool::guarantee`] says so.
    Lines,
    /// By fdatasync of the file.
    Pages,
}

/// How to create or open a pool.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the heap at first; it grows by itself. It may be larger than memory: with redo and checkpoint, what is only read is the file's page
    /// cache, and what is written costs memory until [`Options::mirror_bytes`] gives it back; undo has no mirror; a shadow pool
    /// is read into memory whole and refused when it does not fit.
    pub heap_bytes: u64,
    /// Bytes up to which it may grow; by default 64 GiB, or an eighth of the addresses that the process may have (`ulimit -v`).
    pub max_bytes: u64,
    /// Lanes of the log: transactions that can be under way at once, plus one that groups share.
    pub lanes: u32,
    /// Bytes of each lane, rounded up to a power of two. A transaction may log all of it (undo) or a quarter (checkpoint,
    /// shadow); with redo, what half of it does not take goes through free slabs of the heap.
    pub lane_bytes: u64,
    /// Sections: parts of the pool that are locked apart.
    pub sections: u32,
    /// How transactions are made durable.
    pub mechanism: Mechanism,
    /// Where stores become durable.
    pub domain: Domain,
    /// How long a `Group` commit waits for company at most, where the group before it had more members than have joined by then.
    pub group_wait: Duration,
    /// How long a `Buffered` transaction may stay in memory before a thread of the pool begins to make it durable. The thread
    /// starts with the first such transaction and sleeps while there is none. Zero: no thread, so it waits for a sync.
    pub buffered_wait: Duration,
    /// Bytes of log that `Buffered` transactions may have in memory: a commit that goes beyond makes them durable before it
    /// returns. A quarter of a lane is the most.
    pub buffered_bytes: u64,
    /// Touch every page of image and file when the pool is opened.
    pub prefault: bool,
    /// No writing. A pool that was not closed is recovered in this process's memory, and its file stays as it is; one that is
    /// interleaved over several files is refused then. One that a process has open for writing is read as it is now, if that process
    /// lets others read ([`Options::readers_bytes`]).
    pub read_only: bool,
    /// Redo and checkpoint, one file: other processes may open the pool with [`Options::read_only`] meanwhile, and see it as it was when they
    /// did. Pages that change are kept for them as they were, in so much memory at most, in bytes; a snapshot that would need more ends
    /// with [`crate::Error::SnapshotGone`]. A thread answers them; without a reader it sleeps and nothing is kept. 0: no process may.
    pub readers_bytes: u64,
    /// How long opening waits for another process that has the pool open, until it closes it or ends. Processes that open it for
    /// writing, write and close it take turns so. Zero: not at all, which is [`crate::Error::InUse`].
    pub wait: Duration,
    /// How long a `Replicated` transaction waits for the replica.
    pub replica_wait: Duration,
    /// Redo and checkpoint: private memory that the mirror of the heap may take, in bytes (1 MiB at least); beyond it, the log is
    /// applied and the memory given back ([`crate::Pool::trim`]) at the end of a commit. A transaction may go beyond it while it
    /// runs. None: a quarter of the memory that this process may have, by its cgroups and the machine; with
    /// [`Options::prefault`] as much as the heap.
    pub mirror_bytes: Option<u64>,
    /// Redo and checkpoint: a thread of the pool applies the log while commits go on, and not the thread whose commit fills half a
    /// lane. The thread is started when it is first needed. A commit that finds its lane full applies the log itself. If it is
    /// worth it depends on the machine (`docs/design/persist.md`): `examples/applier.rs` measures it. Shadow pools ignore it.
    pub apply_behind: bool,
    /// Interleaved pools: bytes of the heap that lie in one file before the next one's turn; a power of two, 64 KiB at least.
    /// Chosen when the pool is created. The mirror takes a mapping per stripe, so a large heap wants large stripes: 1 MiB is
    /// good for 29 GiB.
    pub stripe_bytes: u64,
    /// Checksums of pages, chosen when a redo or checkpoint pool is created where whole pages become durable (a disk's file system):
    /// what does not have its checksum when it is first followed is an error, and never a value. They take 0.4 % of the heap.
    pub checksums: bool,
    /// Interleaved pools: every commit synchronises all files. What is acknowledged is as safe without: the log, in the first
    /// file, keeps everything until all files have it.
    pub sync_every_device: bool,
}

impl Options {
    /// Bytes that the mirror may take; None: there is no limit.
    pub(crate) fn mirror_limit(&self) -> Option<u64> {
        self.mirror_bytes.or_else(|| {
            let limit = memlift_ground::region::Headroom::read().limit_bytes;
            (!self.prefault && limit != u64::MAX).then_some(limit / 4)
        })
    }
}

/// Returns true if a file of so many bytes may not fit into the memory that this process may have, beside a mirror. Its mappings are
/// read page by page then: what the kernel reads ahead (up to megabytes for each page fault, as the disk's `read_ahead_kb` says)
/// would throw out pages that are still used.
pub(crate) fn exceeds_memory(bytes: u64) -> bool {
    /// No limit of memory is looked up for a file of this size: no process lives with so little.
    const FITS: u64 = 16 << 20;
    bytes > FITS && bytes > memlift_ground::region::Headroom::read().limit_bytes / 2
}

/// A pool takes twice as many addresses as it may grow to: most are left to the program.
fn default_max_bytes() -> u64 {
    let addresses = rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX);
    (addresses / 8).min(64 << 30) & !4095
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heap_bytes: 256 << 10,
            max_bytes: default_max_bytes(),
            lanes: 8,
            lane_bytes: 1 << 20,
            sections: 1,
            mechanism: Mechanism::Redo,
            domain: Domain::Auto,
            group_wait: Duration::from_micros(50),
            buffered_wait: Duration::from_millis(50),
            buffered_bytes: 1 << 20,
            prefault: false,
            read_only: false,
            readers_bytes: 0,
            wait: Duration::ZERO,
            replica_wait: Duration::from_secs(60),
            mirror_bytes: None,
            apply_behind: false,
            checksums: true,
            stripe_bytes: 1 << 20,
            sync_every_device: false,
        }
    }
}
