// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Socket files: bound without removing anybody's file, and removed only while they are still ours.
//!
//! - **Flow** `bind` at the path ─▶ if the path is taken by a socket of this user to which no process is bound: remove it, `bind`
//!   again ─▶ `listen`
//! - **Order** the folder is locked (`flock`) from the check of the path to the `listen`, so that of two servers that start at
//!   the same time neither removes the socket of the other
//! - **Owner** a [`SocketFile`] identifies its file by device and inode. [`remove`](SocketFile::remove) leaves any other file
//!   alone
//! - **Not here** names in the abstract namespace, which leave no files
//!
//! A datagram socket finds out if a process is bound to a socket file: the kernel answers `ECONNREFUSED` if no socket is bound to
//! the inode, and something else if one is, whatever its type and even if it does not listen yet. The owner of the socket does
//! not notice.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::locked_file::LockedFile;

/// Attempts to bind while the file at the path keeps changing.
const ATTEMPTS: u32 = 8;
/// Attempts to lock the folder, a millisecond apart. Another program may hold a lock on it for reasons of its own.
const LOCK_ATTEMPTS: u32 = 200;

/// Kind of file that occupies a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Occupant {
    /// A socket that some process has bound.
    Bound,
    /// A socket of another user.
    OtherUser(u32),
    /// Another kind of file, named with an article.
    File(&'static str),
    /// The address of a server that shares it with nobody.
    Unshared,
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Occupant::Bound => f.write_str("a socket that a running program has bound"),
            Occupant::OtherUser(uid) => write!(f, "a socket of user {uid}"),
            Occupant::File(kind) => f.write_str(kind),
            Occupant::Unshared => f.write_str("the address of a server that shares it with nobody"),
        }
    }
}

/// Reason that a path could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// A file that is not ours to remove lies at the path. It was not touched.
    #[error("{} is {by}, which is left as it is: choose another path, or remove it yourself", path.display())]
    Taken {
        /// Path to be bound.
        path: PathBuf,
        /// Kind of file at the path.
        by: Occupant,
    },
    /// A system call failed.
    #[error("{}: {doing} failed: {source}", path.display())]
    System {
        /// Path to be bound.
        path: PathBuf,
        /// The call that failed.
        doing: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl SocketFileError {
    /// Converts to an error of the standard library: `AddrInUse`, or the kernel's error.
    pub fn into_io(self) -> io::Error {
        match self {
            SocketFileError::Taken { .. } => io::Error::new(io::ErrorKind::AddrInUse, self.to_string()),
            SocketFileError::System { source, .. } => source,
        }
    }
}

/// A socket file that this process has made.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Binds `socket` to `path`, sets the file's `mode` if one is given, and listens. A socket file of this user to which no
    /// process is bound is replaced.
    ///
    /// # Errors
    ///
    /// [`SocketFileError::Taken`] for any other file at the path: a file, a folder, a link, a FIFO, a bound socket, a socket
    /// of another user.
    pub fn listen(
        socket: impl AsFd,
        path: &Path,
        mode: Option<u32>,
        backlog: i32,
    ) -> Result<SocketFile, SocketFileError> {
        let failed = |doing| {
            let path = path.to_owned();
            move |errno: Errno| SocketFileError::System { path, doing, source: errno.into() }
        };
        let address = SocketAddrUnix::new(path).map_err(failed("reading the path"))?;
        let _folder = lock_folder(path);
        let mut attempts = 0;
        while let Err(errno) = rustix::net::bind(&socket, &address) {
            attempts += 1;
            if errno != Errno::ADDRINUSE || attempts > ATTEMPTS {
                return Err(failed("bind")(errno));
            }
            remove_dead(path)?;
        }
        // By the inode, because the name may lead elsewhere by now.
        let (file, stat) = open_path(path).map_err(failed("looking at the socket"))?;
        if let Some(mode) = mode {
            let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmod(by_descriptor.as_str(), Mode::from_raw_mode(mode)).map_err(failed("chmod"))?;
        }
        rustix::net::listen(&socket, backlog).map_err(failed("listen"))?;
        // Absolute, so that the name stays valid after a chdir.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(SocketFile { path, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Takes over the duty to remove the socket file that lies at the path, from another process that has the same socket.
    ///
    /// # Errors
    ///
    /// [`SocketFileError::Taken`] if another kind of file lies there; [`SocketFileError::System`] if there is none.
    pub fn at(path: &Path) -> Result<SocketFile, SocketFileError> {
        let (_, stat) = open_path(path).map_err(|errno| SocketFileError::System {
            path: path.to_owned(),
            doing: "looking at the socket",
            source: errno.into(),
        })?;
        if !is_socket(&stat) {
            return Err(SocketFileError::Taken { path: path.to_owned(), by: Occupant::File(kind(&stat)) });
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(SocketFile { path, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns the device and the inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another file lies at its path by now. Call it in the process that made it.
    pub fn remove(&self) {
        let _folder = lock_folder(&self.path);
        let is_ours = rustix::fs::lstat(&self.path)
            .is_ok_and(|stat| is_socket(&stat) && (stat.st_dev, stat.st_ino) == (self.device, self.inode));
        if is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket file to which no process is bound. It is no error if there is no file.
fn remove_dead(path: &Path) -> Result<(), SocketFileError> {
    let failed = |doing| {
        let path = path.to_owned();
        move |errno: Errno| SocketFileError::System { path, doing, source: errno.into() }
    };
    let taken = |by| SocketFileError::Taken { path: path.to_owned(), by };
    let (file, stat) = match open_path(path) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("looking at what lies there")(errno)),
    };
    if !is_socket(&stat) {
        return Err(taken(Occupant::File(kind(&stat))));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(taken(Occupant::OtherUser(stat.st_uid)));
    }
    let probe = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(failed("socket"))?;
    let by_descriptor = SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(failed("reading the path"))?;
    let answer = match rustix::net::connect(&probe, &by_descriptor) {
        // Without /proc the name is used instead of the inode.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let address = SocketAddrUnix::new(path).map_err(failed("reading the path"))?;
            rustix::net::connect(&probe, &address)
        }
        answer => answer,
    };
    if answer != Err(Errno::CONNREFUSED) {
        return Err(taken(Occupant::Bound));
    }
    let is_same = rustix::fs::lstat(path)
        .is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) && is_socket(&now));
    if is_same {
        std::fs::remove_file(path).map_err(|source| SocketFileError::System {
            path: path.to_owned(),
            doing: "removing a dead server's socket",
            source,
        })?;
    }
    Ok(())
}

/// Opens the path itself, without following a link.
fn open_path(path: &Path) -> Result<(OwnedFd, Stat), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let stat = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH)?;
    Ok((file, stat))
}

fn is_socket(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket
}

fn kind(stat: &Stat) -> &'static str {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "something else than a socket",
    }
}

/// Locks the folder of the path. `None`: it cannot be read, or another program keeps it locked; the lock only decides
/// between two servers that start at the same time.
fn lock_folder(path: &Path) -> Option<LockedFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for _ in 0..LOCK_ATTEMPTS {
        let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
        match LockedFile::exclusive(File::from(opened)) {
            Ok(locked) => return Some(locked),
            Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    fn socket() -> OwnedFd {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap()
    }

    fn listen(path: &Path) -> Result<(OwnedFd, SocketFile), SocketFileError> {
        let socket = socket();
        let file = SocketFile::listen(&socket, path, None, 1)?;
        Ok((socket, file))
    }

    /// Checks that the error names the file at the path, and that the file is unchanged.
    fn is_left_alone(path: &Path, said: &str) {
        let before = path.symlink_metadata().unwrap();
        let error = listen(path).expect_err(said);
        assert!(matches!(error, SocketFileError::Taken { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        let after = path.symlink_metadata().unwrap();
        assert_eq!((before.ino(), before.file_type()), (after.ino(), after.file_type()), "{said}");
    }

    #[test]
    fn what_is_no_dead_socket_of_ours_is_named_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "precious").unwrap();
        is_left_alone(&at("file"), "a regular file");
        assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "precious");
        std::fs::create_dir(at("folder")).unwrap();
        is_left_alone(&at("folder"), "a folder");
        symlink(at("file"), at("link")).unwrap();
        is_left_alone(&at("link"), "a symbolic link");
        symlink(at("nowhere"), at("dangling")).unwrap();
        is_left_alone(&at("dangling"), "a symbolic link");
        let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        is_left_alone(&at("fifo"), "a FIFO");

        let _stream = UnixListener::bind(at("stream")).unwrap();
        is_left_alone(&at("stream"), "a running program");
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        is_left_alone(&at("datagram"), "a running program");
        let (_own, _file) = listen(&at("own")).unwrap();
        is_left_alone(&at("own"), "a running program");
        // Bound and not listening yet, like another server that is just starting.
        let starting = socket();
        rustix::net::bind(&starting, &SocketAddrUnix::new(at("starting")).unwrap()).unwrap();
        is_left_alone(&at("starting"), "a running program");
        // A link to a dead socket still counts as a link.
        drop(UnixListener::bind(at("dead")).unwrap());
        symlink(at("dead"), at("to dead")).unwrap();
        is_left_alone(&at("to dead"), "a symbolic link");
        if rustix::process::geteuid().is_root() {
            drop(UnixListener::bind(at("others")).unwrap());
            std::os::unix::fs::chown(at("others"), Some(65_534), None).unwrap();
            is_left_alone(&at("others"), "a socket of user 65534");
        }
    }

    #[test]
    fn a_dead_socket_is_replaced_whatever_its_type() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead");
        drop(UnixListener::bind(&path).unwrap());
        drop(listen(&path).unwrap());
        drop(UnixDatagram::bind(folder.path().join("other")).unwrap());
        drop(listen(&folder.path().join("other")).unwrap());
        let (_socket, file) = listen(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().file_type().is_socket());
        file.remove();
        assert!(path.symlink_metadata().is_err());
    }

    #[test]
    fn what_has_replaced_our_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let (_socket, file) = listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        file.remove();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        let (_other, _theirs) = listen(&path).unwrap();
        file.remove();
        assert!(path.symlink_metadata().unwrap().file_type().is_socket(), "another server's");
    }

    #[test]
    fn of_many_that_start_at_once_over_a_dead_socket_one_wins_and_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("race");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let won: Vec<_> = std::thread::scope(|scope| {
                let starters: Vec<_> = (0..6).map(|_| scope.spawn(|| listen(&path).ok())).collect();
                starters.into_iter().filter_map(|starter| starter.join().unwrap()).collect()
            });
            assert_eq!(won.len(), 1);
            let address = SocketAddrUnix::new(&path).unwrap();
            rustix::net::connect(socket(), &address).expect("the winner listens at the path");
            won[0].1.remove();
        }
    }
}
