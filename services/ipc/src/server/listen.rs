// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening socket, and who may connect to it.
//!
//! Owner   a socket file is removed by the process that made it; one that a dead server left is taken over, after a
//!         connection to it was refused

use super::ServerOptions;
use crate::address::Address;
use crate::error::Error;
use crate::fork::SessionSocket;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::path::PathBuf;

pub(super) struct Listener {
    socket: SessionSocket,
    file: Option<PathBuf>,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub pid: u32,
    pub uid: u32,
}

impl Listener {
    pub(super) fn bind(address: &Address) -> Result<Listener, Error> {
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
        rustix::net::listen(&socket, 128).map_err(Error::system("listen"))?;
        Ok(Listener { socket: SessionSocket::new(socket), file })
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Error> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                Ok(None)
            }
            Err(errno) => Err(Error::system("accepting a connection")(errno)),
        }
    }
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
    /// Who connected, as the kernel says.
    pub(super) fn of(socket: &impl AsFd) -> Result<Peer, Error> {
        let credentials =
            rustix::net::sockopt::socket_peercred(socket).map_err(Error::system("SO_PEERCRED"))?;
        Ok(Peer { pid: credentials.pid.as_raw_nonzero().get() as u32, uid: credentials.uid.as_raw() })
    }

    /// Why this peer may not have a session, if so.
    pub(super) fn refusal(self, options: &ServerOptions, sessions: usize) -> Option<String> {
        let own = rustix::process::getuid().as_raw();
        let allowed = match &options.allowed_uids {
            None => true,
            Some(uids) => self.uid == own || uids.contains(&self.uid),
        };
        if !allowed {
            return Some(format!(
                "user {} is not allowed here (the server runs as {own}); allow it with allowed_uids",
                self.uid
            ));
        }
        (sessions >= options.sessions_max)
            .then(|| format!("{sessions} sessions are open, which is the limit; raise sessions_max"))
    }
}
