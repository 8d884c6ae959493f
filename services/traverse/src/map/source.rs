// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a map as written on a command line, and the operations that every kind of source offers.
//!
//! - **Flow** text ─[`Source::parse`]─▶ [`Source`] ─[`Source::connect`]─▶ an [`Authority`] ─▶ `member` keeps a process up to date
//! - **Order** [`Authority::wait`] never returns an older map than an earlier call
//! - **Not here** the file, the coordinator, etcd: each has a file of its own

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MapError;
use super::change::{Join, Order};
use super::etcd_address::{EtcdAddress, FORM, LEASE_S};
use super::file::Watched;
use super::frame::Secret;
use super::node::NodeId;
use super::range::Map;
use super::remote::{Peer, Remote};
use super::replicas::{BackupOrder, Replicas};

/// Place from which a map is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `file:PATH`, or a path.
    File(PathBuf),
    /// `coordinator:HOST:PORT` or `coordinator:unix:PATH`, with `?key=FILE` if the coordinator requires a key.
    Coordinator(Peer, Option<Secret>),
    /// `etcd:` and the text of an [`EtcdAddress`].
    Etcd(EtcdAddress),
}

/// A store of the map, which nodes and clients read, and which carries out their changes.
pub trait Authority: Send {
    /// Reads the newest map.
    ///
    /// # Errors
    ///
    /// [`MapError::Unreachable`], or an error in the map
    fn read(&mut self) -> Result<Map, MapError>;

    /// Waits for a map that is newer than `epoch`; returns `None` if there is none after `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`Authority::read`]
    fn wait(&mut self, epoch: u64, timeout: Duration) -> Result<Option<Map>, MapError>;

    /// A node joins. Returns the map, the node's number, and the duration of its lease.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`], [`MapError::Unreachable`]
    fn join(&mut self, join: &Join) -> Result<(Map, NodeId, Duration), MapError>;

    /// Renews the lease of a node.
    ///
    /// # Errors
    ///
    /// [`MapError::LeaseLost`]: join again. [`MapError::Unreachable`]: try again
    fn renew(&mut self, node: NodeId, incarnation: u64) -> Result<(), MapError>;

    /// Changes the map. Returns the new one, and the id of the migration if one was planned.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`], [`MapError::Unreachable`] (then the change may have been made: read the map)
    fn order(&mut self, order: &Order) -> Result<(Map, u64), MapError>;

    /// Reads the newest map, and the copies of a node; `None`: the node is not replicated.
    ///
    /// # Errors
    ///
    /// The errors of [`Authority::read`]; [`MapError::Refused`] if this authority cannot decide about copies
    fn replicas(&mut self, name: &str) -> Result<(Map, Option<Replicas>), MapError> {
        let _ = name;
        Err(MapError::refused(ONLY_ETCD))
    }

    /// A copy of a node joins as its primary. Returns what [`Authority::join`] returns.
    ///
    /// # Errors
    ///
    /// The errors of [`Authority::join`]; [`MapError::Replaced`]
    fn join_replica(&mut self, join: &Join, replica: u64) -> Result<(Map, NodeId, Duration), MapError> {
        let _ = (join, replica);
        Err(MapError::refused(ONLY_ETCD))
    }

    /// A primary lists another backup, or none. Returns the new map and the copies.
    ///
    /// # Errors
    ///
    /// [`MapError::Replaced`]; [`MapError::Unreachable`]: the change may have been made or not
    fn set_backup(&mut self, order: &BackupOrder) -> Result<(Map, Replicas), MapError> {
        let _ = order;
        Err(MapError::refused(ONLY_ETCD))
    }
}

const ONLY_ETCD: &str = "only etcd decides who is a node's primary: a replicated node needs --etcd";

/// Returns the length of a node's lease in seconds; `None`: the source is no etcd.
pub(crate) fn etcd_lease_s(source: &Source) -> Option<u64> {
    match source {
        Source::Etcd(address) => Some(address.lease_s.unwrap_or(LEASE_S)),
        _ => None,
    }
}

impl Source {
    /// Parses the text of a command line.
    ///
    /// # Errors
    ///
    /// [`MapError::Source`] lists the valid forms; [`MapError::File`], [`MapError::Refused`] concern a key
    /// file
    pub fn parse(text: &str) -> Result<Source, MapError> {
        let fault = |what| MapError::Source { text: text.to_owned(), what };
        if let Some(rest) = text.strip_prefix("coordinator:") {
            let (peer, key) = rest.split_once("?key=").map_or((rest, None), |(peer, key)| (peer, Some(key)));
            let peer = Peer::parse(peer).filter(|_| key != Some(""));
            let peer =
                peer.ok_or_else(|| fault("after coordinator: comes HOST:PORT or unix:PATH, and ?key=FILE"))?;
            let secret = key.map(|key| Secret::read(Path::new(key))).transpose()?;
            return Ok(Source::Coordinator(peer, secret));
        }
        if let Some(rest) = text.strip_prefix("etcd:") {
            return EtcdAddress::parse(rest).map(Source::Etcd).ok_or_else(|| fault(FORM));
        }
        let path = text.strip_prefix("file:").unwrap_or(text);
        if path.is_empty() || (path == text && path.contains("://")) {
            return Err(fault(
                "write file:PATH, coordinator:HOST:PORT, coordinator:unix:PATH or etcd:http://HOST:PORT",
            ));
        }
        Ok(Source::File(PathBuf::from(path)))
    }

    /// Returns the same source; requests to a coordinator are authenticated with this secret.
    #[must_use]
    pub fn with_secret(self, secret: Secret) -> Source {
        match self {
            Source::Coordinator(peer, _) => Source::Coordinator(peer, Some(secret)),
            other => other,
        }
    }

    /// Opens the source. Nothing is sent to a coordinator or etcd before the first request.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if this build lacks that kind of source
    pub fn connect(&self) -> Result<Box<dyn Authority>, MapError> {
        match self {
            Source::File(path) => Ok(Box::new(FileAuthority { file: Watched::new(path.clone()), map: None })),
            Source::Coordinator(peer, secret) => Ok(Box::new(Remote::new(peer.clone(), secret.clone()))),
            #[cfg(feature = "etcd")]
            Source::Etcd(address) => Ok(Box::new(super::etcd::Etcd::new(address.clone()))),
            #[cfg(not(feature = "etcd"))]
            Source::Etcd(..) => Err(MapError::refused(
                "this program was built without etcd: build it with the feature `etcd` of the crate memlift, or use a coordinator",
            )),
        }
    }
}

/// A file as an authority.
#[derive(Debug)]
struct FileAuthority {
    file: Watched,
    map: Option<Map>,
}

impl FileAuthority {
    fn newest(&mut self) -> Result<&Map, MapError> {
        match (self.file.read()?, &mut self.map) {
            (Some(map), known) if known.as_ref().is_none_or(|known| map.epoch() > known.epoch()) => {
                *known = Some(map)
            }
            (Some(map), Some(known)) if map.epoch() == known.epoch() && map != *known => {
                return Err(MapError::refused(format!(
                    "the map file changed and its epoch is still {}: raise it",
                    known.epoch()
                )));
            }
            _ => {}
        }
        self.map
            .as_ref()
            .ok_or_else(|| MapError::refused("the map file could not be read when it was last looked at"))
    }
}

impl Authority for FileAuthority {
    fn read(&mut self) -> Result<Map, MapError> {
        self.newest().cloned()
    }

    fn wait(&mut self, epoch: u64, timeout: Duration) -> Result<Option<Map>, MapError> {
        let until = std::time::Instant::now() + timeout;
        loop {
            let map = self.newest()?;
            if map.epoch() > epoch {
                return Ok(Some(map.clone()));
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(Duration::from_millis(200)));
        }
    }

    fn join(&mut self, join: &Join) -> Result<(Map, NodeId, Duration), MapError> {
        let map = self.read()?;
        let node = map.node_named(&join.name).ok_or_else(|| {
            MapError::refused(format!(
                "the map file has no [[node]] called {}: enter it, and its [[range]]",
                join.name
            ))
        })?;
        let id = node.id;
        let needs: u64 =
            map.ranges().iter().filter(|range| range.owner == Some(id)).map(|range| range.bytes).sum();
        if needs > join.bytes {
            return Err(MapError::refused(format!(
                "the map file gives node {} {needs} bytes, it has {}: give it more memory (--memory), or fewer addresses",
                join.name, join.bytes
            )));
        }
        Ok((map, id, Duration::MAX))
    }

    fn renew(&mut self, _: NodeId, _: u64) -> Result<(), MapError> {
        Ok(())
    }

    fn order(&mut self, _: &Order) -> Result<(Map, u64), MapError> {
        Err(MapError::refused(
            "a map file is changed by hand: to move ranges while they are used, run `memlift map serve` or etcd",
        ))
    }
}
