// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening socket, and who may connect to it.
//!
//! Owner   a socket file is removed by the process that made it; one that a dead server left is taken over, after a
//!         connection to it was refused. One descriptor is kept for turning connections away when there are no others

use super::ServerOptions;
use crate::address::Address;
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork::SessionSocket;
use crate::handshake::{self, Welcome};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(super) struct Listener {
    socket: SessionSocket,
    file: Option<PathBuf>,
    /// Given up to take one connection, and refuse it, when there are no other descriptors left.
    spare: RefCell<Option<OwnedFd>>,
}

impl Listener {
    /// `shared`: users other than our own may connect.
    pub(super) fn bind(address: &Address, shared: bool) -> Result<Listener, Error> {
        let target = address.socket()?;
        let new_socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(Error::system("socket"))
        };
        let socket = new_socket()?;
        let in_use = || Error::AddressInUse { address: address.to_string() };
        match rustix::net::bind(&socket, &target) {
            Ok(()) => {}
            Err(rustix::io::Errno::ADDRINUSE) => {
                let Address::Path(path) = address else { return Err(in_use()) };
                let probe = new_socket()?;
                match rustix::net::connect(&probe, &target) {
                    Err(rustix::io::Errno::CONNREFUSED) => {}
                    _ => return Err(in_use()),
                }
                std::fs::remove_file(path)
                    .map_err(|source| Error::System { doing: "removing a dead server's socket", source })?;
                rustix::net::bind(&socket, &target).map_err(Error::system("bind"))?;
            }
            Err(errno) => return Err(Error::system("binding the server's address")(errno)),
        }
        let file = match address {
            Address::Path(path) => Some(path.clone()),
            Address::Abstract(_) => None,
        };
        if let Some(file) = file.as_ref().filter(|_| shared) {
            // Who may is judged by what the kernel says about them, not by the file.
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).map_err(|source| {
                Error::System { doing: "letting others use the server's socket", source }
            })?;
        }
        rustix::net::listen(&socket, 128).map_err(Error::system("listen"))?;
        Ok(Listener { socket: SessionSocket::new(socket), file, spare: RefCell::new(spare()) })
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Error> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                Ok(None)
            }
            Err(errno @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                // Left in the queue it would be waited for without end, on both sides.
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
        if let Some(file) = self.file.take().filter(|_| self.socket.is_ours()) {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Peer {
    /// Why this peer may not have a session, if so.
    pub(super) fn refusal(self, options: &ServerOptions, sessions: usize) -> Option<String> {
        let own = rustix::process::getuid().as_raw();
        let allowed = match &options.allowed_uids {
            None => true,
            Some(uids) => {
                self.uid == own || uids.contains(&self.uid) || options.allowed_gids.contains(&self.gid)
            }
        };
        if !allowed {
            return Some(format!(
                "user {} (group {}) is not allowed here (the server runs as {own}); allow it with allowed_uids",
                self.uid, self.gid
            ));
        }
        (sessions >= options.sessions_max)
            .then(|| format!("{sessions} sessions are open, which is the limit; raise sessions_max"))
    }
}
