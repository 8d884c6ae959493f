// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening socket, and who may connect to it.
//!
//! - **Owner** a socket file is removed by the process that made it, while it is still the one that it made; one that a dead server left
//!   is taken over (`memlift_ground::socket_file`). Of servers that share it, the last one removes it (`group`). One descriptor is kept for turning connections away when there are no others

use super::ServerOptions;
use super::group::Group;
use crate::address::Address;
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork::SessionSocket;
use crate::handshake::{self, Welcome};
use memlift_ground::socket_file::{Occupant, SocketFile, SocketFileError};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Returns true for errors that another path would not have.
fn is_of_path(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), InvalidInput | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

pub(crate) struct Listener {
    socket: SessionSocket,
    file: Option<SocketFile>,
    /// Given up to take one connection, and refuse it, when there are no other descriptors left.
    spare: RefCell<Option<OwnedFd>>,
    /// The servers that share it; None: it is this server's alone.
    group: Option<Arc<Group>>,
}

impl Listener {
    /// `shared`: users other than our own may connect.
    pub(crate) fn bind(address: &Address, shared: bool) -> Result<Listener, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::system("socket"))?;
        let file = match address {
            Address::Path(path) => {
                // The kernel's word about a peer decides, not the rights of the file.
                let mode = shared.then_some(0o666);
                let made = SocketFile::listen(&socket, path, mode, BACKLOG);
                Some(made.map_err(|error| match error {
                    SocketFileError::Taken { path, by } => {
                        Error::AddressInUse { address: path.display().to_string(), by }
                    }
                    SocketFileError::System { path, doing, source } if is_of_path(&source) => {
                        Error::BadAddress {
                            address: path.display().to_string(),
                            reason: format!(
                                "{doing} failed ({source}): its folder must be there and writable"
                            ),
                        }
                    }
                    SocketFileError::System { doing, source, .. } => Error::System { doing, source },
                })?)
            }
            Address::Abstract(_) => {
                rustix::net::bind(&socket, &address.socket()?).map_err(|errno| match errno {
                    rustix::io::Errno::ADDRINUSE => {
                        Error::AddressInUse { address: address.to_string(), by: Occupant::Bound }
                    }
                    errno => Error::system("binding the server's address")(errno),
                })?;
                rustix::net::listen(&socket, BACKLOG).map_err(Error::system("listen"))?;
                None
            }
        };
        Ok(Listener { socket: SessionSocket::new(socket), file, spare: RefCell::new(spare()), group: None })
    }

    /// Shares it, with a group that `found` makes for its file.
    pub(super) fn with_group(
        mut self,
        found: impl FnOnce(Option<&SocketFile>) -> Result<Group, Error>,
    ) -> Result<Listener, Error> {
        self.group = Some(Arc::new(found(self.file.as_ref())?));
        Ok(self)
    }

    /// A listener that other servers made, and that this one shares now.
    pub(super) fn joined(socket: SessionSocket, file: Option<SocketFile>, group: Arc<Group>) -> Listener {
        Listener { socket, file, spare: RefCell::new(spare()), group: Some(group) }
    }

    /// The servers that share it.
    pub(super) fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref()
    }

    /// Returns true if a connection waits.
    pub(super) fn has_caller(&self) -> bool {
        let mut asked = [PollFd::new(&self.socket, PollFlags::IN)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut asked, Some(&at_once)), Ok(0))
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&self) -> Result<Option<OwnedFd>, Error> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                Ok(None)
            }
            Err(errno @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                // If it were left in the queue, both sides would wait for each other without end.
                drop(self.spare.take());
                let accepted = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC);
                if let Ok(socket) = accepted {
                    let reason =
                        "the server has no file descriptors left: raise its RLIMIT_NOFILE (ulimit -n)";
                    let _ = handshake::send(&socket, &Welcome::refused(reason), &[]);
                }
                self.spare.replace(spare());
                Err(Error::system("accepting a connection")(errno))
            }
            Err(errno) => Err(Error::system("accepting a connection")(errno)),
        }
    }
}

fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A fork's child leaves file and group to its parent.
        if !self.socket.is_ours() {
            return;
        }
        let is_last = self.group.take().is_none_or(|group| group.is_ours() && group.leave());
        if let Some(file) = self.file.take().filter(|_| is_last) {
            file.remove();
        }
    }
}

impl Peer {
    /// Returns the reason why this peer may not have a session, if there is one.
    pub(super) fn refusal(self, options: &ServerOptions, sessions: usize) -> Option<String> {
        let own = rustix::process::getuid().as_raw();
        if !is_allowed(self, options.allowed_uids.as_deref(), &options.allowed_gids) {
            return Some(format!(
                "user {} (group {}) is not allowed here (the server runs as {own}); allow it with allowed_uids",
                self.uid, self.gid
            ));
        }
        (sessions >= options.sessions_max)
            .then(|| format!("{sessions} sessions are open, which is the limit; raise sessions_max"))
    }
}

/// Returns true if a peer is of our own user, or of one of those users or groups; `None` stands for every user.
pub(crate) fn is_allowed(peer: Peer, uids: Option<&[u32]>, gids: &[u32]) -> bool {
    let own = rustix::process::getuid().as_raw();
    uids.is_none_or(|uids| peer.uid == own || uids.contains(&peer.uid) || gids.contains(&peer.gid))
}
