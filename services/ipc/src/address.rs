// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a server is found.
//!
//! A bare name is a socket in Linux's abstract namespace, `memlift/<uid>/<name>`: nothing on disk, gone with the
//! server, seen only in the same network namespace. Anything with a `/` is a socket file, which also works between
//! containers that share nothing but a folder.

use crate::error::Error;
use rustix::net::SocketAddrUnix;
use std::fmt;
use std::path::PathBuf;

/// A server's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A name in the abstract namespace.
    Abstract(String),
    /// A socket file.
    Path(PathBuf),
}

impl Address {
    /// Reads a name or a path. With `ipc.socket_dir` configured, a bare name is a file in that folder.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] for an empty, overlong or odd name.
    pub fn parse(text: &str, socket_dir: Option<&std::path::Path>) -> Result<Address, Error> {
        let bad = |reason: &str| Error::BadAddress { address: text.into(), reason: reason.into() };
        if text.contains('/') {
            if text.len() > 107 {
                return Err(bad("a socket's path may have 107 bytes at most"));
            }
            return Ok(Address::Path(text.into()));
        }
        if text.is_empty() || text.len() > 64 {
            return Err(bad("a name has 1 to 64 characters"));
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Err(bad("a name has only letters, digits, '.', '_' and '-'; a path has a '/'"));
        }
        match socket_dir {
            Some(folder) => Ok(Address::Path(folder.join(format!("{text}.sock")))),
            None => Ok(Address::Abstract(text.into())),
        }
    }

    pub(crate) fn socket(&self) -> Result<SocketAddrUnix, Error> {
        self.socket_of(rustix::process::getuid().as_raw())
    }

    /// The socket of that address, of another user's server.
    pub(crate) fn socket_of(&self, uid: u32) -> Result<SocketAddrUnix, Error> {
        let bad = |errno: rustix::io::Errno| Error::BadAddress {
            address: self.to_string(),
            reason: errno.to_string(),
        };
        match self {
            Address::Abstract(name) => {
                SocketAddrUnix::new_abstract_name(format!("memlift/{uid}/{name}").as_bytes()).map_err(bad)
            }
            Address::Path(path) => SocketAddrUnix::new(path).map_err(bad),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => f.write_str(name),
            Address::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        assert_eq!(Address::parse("features", None).unwrap(), Address::Abstract("features".into()));
        assert_eq!(Address::parse("./a.sock", None).unwrap(), Address::Path("./a.sock".into()));
        let folder = std::path::Path::new("/run/memlift");
        assert_eq!(
            Address::parse("features", Some(folder)).unwrap(),
            Address::Path("/run/memlift/features.sock".into())
        );
    }

    #[test]
    fn odd_names_are_refused_with_a_reason() {
        for bad in ["", "a b", "ü", &"x".repeat(65), &format!("/{}", "x".repeat(200))] {
            assert!(matches!(Address::parse(bad, None), Err(Error::BadAddress { .. })), "{bad:?}");
        }
    }
}
