// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot of a pool that another process writes, as its reader has it; and how the two speak.
//!
//! - **Flow** reader: opens the file ─▶ connects to the writer, shows its descriptor ─▶ a snapshot's number and the table of old pages (`old_pages`) ─▶
//!   reads the file, with old pages where it was stored to since
//! - **Rule** a reader believes what it read only if the writer lives and has not taken the snapshot back, looked at afterwards
//! - **Trust** the reader shows a descriptor of the pool's file, so it may read what it gets. The writer is the file's owner, root, or the
//!   reader's own user; whatever it says is looked at before it is used
//! - **Names** the socket has an abstract name made of the file's device and number: no file is left behind, and processes of another
//!   network namespace do not find it
//! - **Not here** the writer's side: `readers`

#[expect(unsafe_code, reason = "maps memory that another process reads, and names a word to the kernel")]
mod old_pages;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use memlift_ground::rights;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::error::{Error, Result};
use crate::fresh::file_error;
pub(crate) use old_pages::{OldPages, PAGE, SNAPSHOTS_MAX, Sizes};

const MAGIC: u64 = u64::from_le_bytes(*b"MLREAD01");
/// A reader's request: magic, and eight bytes that are 0.
pub(crate) const ASK_BYTES: usize = 16;
/// A writer's answer: magic, status, index, snapshot, pages, room.
pub(crate) const ANSWER_BYTES: usize = 40;
/// How long a reader waits for a snapshot. Long enough for a disk that is busy; a process that is stopped does not answer at all.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A reader's request.
pub(crate) fn ask() -> [u8; ASK_BYTES] {
    let mut bytes = [0; ASK_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes
}

/// The writer's name for readers of a file.
pub(crate) fn name(file: &File) -> std::io::Result<SocketAddr> {
    let about = file.metadata()?;
    SocketAddr::from_abstract_name(format!("memlift-pool-{:x}-{:x}", about.dev(), about.ino()))
}

/// Status of an answer.
pub(crate) mod status {
    pub const GIVEN: u32 = 0;
    pub const CROWDED: u32 = 1;
    pub const STOPPED: u32 = 2;
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    pub status: u32,
    pub index: u32,
    pub snapshot: u64,
    pub pages: u64,
    pub room: u64,
}

impl Answer {
    pub(crate) fn encode(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.status.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.index.to_le_bytes());
        for (at, word) in [self.snapshot, self.pages, self.room].into_iter().enumerate() {
            bytes[16 + at * 8..24 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Option<Answer> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        (word(0) == MAGIC).then(|| Answer {
            status: half(8),
            index: half(12),
            snapshot: word(16),
            pages: word(24),
            room: word(32),
        })
    }
}

pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let rights: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    rights::send(socket, bytes, &rights, SendFlags::empty())
}

/// Receives bytes, and the first descriptor that came with them.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let got = rights::receive(socket, bytes, RecvFlags::empty())?;
    Ok((got.bytes, got.descriptors.into_iter().next()))
}

/// A snapshot: its place in the table, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotId {
    index: usize,
    number: u64,
}

/// A snapshot of a pool that another process writes: what a reader has of it.
#[derive(Debug)]
pub(crate) struct WriterSnapshot {
    old_pages: OldPages,
    now: SnapshotId,
    /// Open for as long as the snapshot is wanted.
    socket: UnixStream,
    /// An answer may still come, of an earlier request: nothing is asked here any more.
    unsure: bool,
}

/// The request of one snapshot.
struct Request<'a> {
    file: &'a File,
    path: &'a Path,
    deadline: Instant,
}

impl Request<'_> {
    fn refuse(&self, why: &str) -> Error {
        Error::Argument { what: format!("{}: {why}", self.path.display()) }
    }

    fn failed(&self, errno: Errno) -> Error {
        file_error("read beside the writer of", self.path)(errno.into())
    }

    fn odd(&self) -> Error {
        self.refuse("the process that writes the pool answers something else: is it another release?")
    }

    /// Asks for a snapshot, and waits for it.
    fn send(&self, socket: &UnixStream) -> Result<(Answer, Option<OwnedFd>)> {
        match send(socket.as_fd(), &ask(), Some(self.file.as_fd())) {
            // A writer without a place for a reader has answered before.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err(self.failed(errno)),
        }
        let (mut bytes, mut reset) = ([0; ANSWER_BYTES], false);
        let (got, table) = loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.refuse(
                    "the process that writes the pool did not answer for 10 s: it is stopped, or its disk hangs",
                ));
            }
            let wait = rustix::event::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
            match receive(socket.as_fd(), &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // A writer without a place for a reader answers, but does not read: the answer comes after this.
                Err(Errno::CONNRESET) if !reset => reset = true,
                Err(Errno::CONNRESET) => break (0, None),
                Err(errno) => return Err(self.failed(errno)),
                Ok(received) => break received,
            }
        };
        if got == 0 {
            return Err(Error::SnapshotGone { why: "the process that wrote the pool has just closed it" });
        }
        let given = (got == ANSWER_BYTES).then(|| Answer::decode(&bytes)).flatten();
        let given = given.ok_or_else(|| self.odd())?;
        match given.status {
            status::GIVEN if (given.index as usize) < SNAPSHOTS_MAX => Ok((given, table)),
            status::CROWDED => Err(self.refuse("240 readers are the most that it has at once: close one")),
            status::STOPPED => {
                let reason = "the process that writes the pool says that its disk failed".to_owned();
                Err(Error::Stopped { reason })
            }
            _ => Err(self.odd()),
        }
    }
}

impl WriterSnapshot {
    /// Asks the process that has the pool open for a snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`]: it lets nobody read; [`Error::SnapshotGone`]: it closes the pool; [`Error::Argument`]: it does not answer, has too
    /// many readers, or is another user's; [`Error::Stopped`].
    pub fn of(file: &File, path: &Path) -> Result<WriterSnapshot> {
        let request = Request { file, path, deadline: Instant::now() + ANSWER_TIME };
        let socket =
            connect(file, request.deadline).map_err(file_error("read beside the writer of", path))?;
        let Some(socket) = socket else { return Err(Error::InUse { path: path.to_owned() }) };
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|errno| request.failed(errno))?;
        let owner = file.metadata().map_err(file_error("stat", path))?.uid();
        if ![0, owner, rustix::process::geteuid().as_raw()].contains(&peer.uid.as_raw()) {
            return Err(request.refuse("who says that it writes the pool is neither its owner nor this user"));
        }
        let (given, table) = request.send(&socket)?;
        let sizes = Sizes { pages: given.pages, room: given.room };
        match table.map(|table| OldPages::of(table, sizes)) {
            Some(Ok(Some(old))) => {
                let now = SnapshotId { index: given.index as usize, number: given.snapshot };
                Ok(WriterSnapshot { old_pages: old, now, socket, unsure: false })
            }
            Some(Err(errno)) => Err(file_error("map the old pages of", path)(errno.into())),
            _ => Err(request.odd()),
        }
    }

    /// Asks for a new snapshot, and gives the one before, which the writer keeps until it is asked again.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotGone`] when the writer has ended; as [`WriterSnapshot::of`].
    pub fn renew(&mut self, file: &File, path: &Path) -> Result<SnapshotId> {
        if self.unsure {
            return Err(Error::SnapshotGone { why: "its writer did not answer before" });
        }
        let request = Request { file, path, deadline: Instant::now() + ANSWER_TIME };
        let given = request.send(&self.socket);
        self.unsure = given.is_err();
        if let Some(why) = self.old_pages.why_ended() {
            return Err(Error::SnapshotGone { why });
        }
        let given = given?.0;
        let now = SnapshotId { index: given.index as usize, number: given.snapshot };
        Ok(std::mem::replace(&mut self.now, now))
    }

    /// Goes back to the snapshot before.
    pub fn put_back(&mut self, before: SnapshotId) {
        self.now = before;
    }

    /// Returns true if a page of the file was stored to since a snapshot that is not gone.
    pub fn changed(&self, before: SnapshotId, page: u64) -> bool {
        self.old_pages.changed(page, before.number)
    }

    /// Returns true if a snapshot is not to be had any more.
    pub fn is_gone(&self, snapshot: SnapshotId) -> bool {
        self.old_pages.why_gone(snapshot.index, snapshot.number).is_some()
    }

    /// Fills `target` with the bytes that the file had from `offset` on when the snapshot was taken.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotGone`]; the system's own.
    pub fn read(&self, file: &File, path: &Path, offset: u64, target: &mut [u8]) -> Result<()> {
        let read = file.read_exact_at(target, offset);
        let mut at = 0;
        while at < target.len() {
            let (page, inside) = ((offset + at as u64) / PAGE, ((offset + at as u64) % PAGE) as usize);
            let part = (target.len() - at).min(PAGE as usize - inside);
            self.old_pages.put(page, self.now.number, inside, &mut target[at..at + part]);
            at += part;
        }
        // Whatever went wrong, it did because the file is another one by now, if it is.
        if let Some(why) = self.old_pages.why_gone(self.now.index, self.now.number) {
            return Err(Error::SnapshotGone { why });
        }
        read.map_err(file_error("read", path))
    }
}

/// Connects to the writer. None: nobody listens.
fn connect(file: &File, deadline: Instant) -> std::io::Result<Option<UnixStream>> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let name = name(file)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_abstract_name().unwrap_or_default())?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(Some(UnixStream::from(socket))),
            Err(Errno::CONNREFUSED) => return Ok(None),
            // So many want to be let in.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
