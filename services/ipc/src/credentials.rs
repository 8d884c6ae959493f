// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process at the other end of a socket, as the kernel reports it (`SO_PEERCRED`).
//!
//! - **Order** the kernel notes it when the session's socket connects or listens; later changes of user do not count
//! - **Not here** access control: `server/listen.rs` and `client/mod.rs` decide about that

use crate::error::Error;
use rustix::fd::{AsFd, AsRawFd};

/// The other end of a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// 0 for a process of a PID namespace into which this process cannot see.
    pub pid: u32,
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// Asks the kernel. Not by rustix, whose `Pid` cannot be the 0 that stands for a process of another container.
    pub fn of(socket: &impl AsFd) -> Result<Peer, Error> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes of a structure of three integers, for which any bytes are valid.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if rc != 0 {
            return Err(Error::System { doing: "SO_PEERCRED", source: std::io::Error::last_os_error() });
        }
        Ok(Peer { pid: credentials.pid as u32, uid: credentials.uid, gid: credentials.gid })
    }
}
