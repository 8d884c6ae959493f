// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of a coordinator, over TCP or a Unix socket.
//!
//! - **Order** a failed connection is dropped, and the next request opens a new one. A request is never repeated automatically,
//!   because the first one may have been carried out: the caller knows if repeating is safe
//! - **Owner** the holder of the [`Remote`]; a call blocks for at most [`ANSWER_TIMEOUT`] beyond the wait that was asked for

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::MapError;
use super::change::{Join, Order};
use super::frame::{Frames, Protocol, Secret, Side};
use super::message::{Answer, Request};
use super::node::NodeId;
use super::range::Map;
use super::source::Authority;

/// Longest time that an answer may take.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Address at which a coordinator listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl Peer {
    /// Parses `HOST:PORT` or `unix:PATH`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Peer> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (!path.is_empty()).then(|| Peer::Unix(PathBuf::from(path)));
        }
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| Peer::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => f.write_str(address),
            Peer::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// Access to the map of a coordinator, over one connection that is reopened when it breaks.
pub struct Remote {
    peer: Peer,
    secret: Option<Secret>,
    frames: Option<Frames<Box<dyn Stream>>>,
    epoch: u64,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("peer", &self.peer).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Remote {
    /// Makes the access to a coordinator; nothing is sent before the first request.
    #[must_use]
    pub fn new(peer: Peer, secret: Option<Secret>) -> Remote {
        Remote { peer, secret, frames: None, epoch: 0 }
    }

    fn open(&self) -> io::Result<Frames<Box<dyn Stream>>> {
        let stream: Box<dyn Stream> = match &self.peer {
            Peer::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                Box::new(stream)
            }
            Peer::Tcp(address) => Box::new(tcp(address, ANSWER_TIMEOUT)?),
        };
        Frames::greet(stream, Protocol::Map, self.secret.as_ref(), Side::Client)
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        if self.frames.is_none() {
            self.frames = Some(self.open()?);
        }
        let frames = self.frames.as_mut().expect("opened above");
        frames.send(&request.encode())?;
        frames.receive()
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, MapError> {
        let answer = self.exchange(request).map_err(|source| {
            self.frames = None;
            MapError::Unreachable { what: format!("coordinator {}", self.peer), epoch: self.epoch, source }
        })?;
        match Answer::decode(&answer) {
            Ok(Answer::Refused(what)) => Err(MapError::Refused { what }),
            Ok(Answer::Map(map, number, lease_ms)) => {
                self.epoch = self.epoch.max(map.epoch());
                Ok(Answer::Map(map, number, lease_ms))
            }
            other => other.inspect_err(|_| self.frames = None),
        }
    }

    fn map(&mut self, request: &Request) -> Result<(Map, u64, u64), MapError> {
        match self.ask(request)? {
            Answer::Map(map, number, lease_ms) => Ok((map, number, lease_ms)),
            _ => Err(MapError::refused(
                "the coordinator's answer does not fit the question: update the older side",
            )),
        }
    }
}

/// Opens a TCP connection with timeouts.
pub(super) fn tcp(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Authority for Remote {
    fn read(&mut self) -> Result<Map, MapError> {
        Ok(self.map(&Request::Read)?.0)
    }

    fn wait(&mut self, epoch: u64, timeout: Duration) -> Result<Option<Map>, MapError> {
        // Shorter than an answer may take, so that one read timeout fits all requests.
        let wait_ms = timeout.min(ANSWER_TIMEOUT / 2).as_millis() as u64;
        match self.ask(&Request::Wait(epoch, wait_ms))? {
            Answer::Map(map, ..) if map.epoch() > epoch => Ok(Some(map)),
            _ => Ok(None),
        }
    }

    fn join(&mut self, join: &Join) -> Result<(Map, NodeId, Duration), MapError> {
        let (map, number, lease_ms) = self.map(&Request::Join(join.clone()))?;
        let node = u16::try_from(number).ok().map(NodeId).filter(|node| map.node(*node).is_some());
        let node =
            node.ok_or_else(|| MapError::refused("the coordinator names a node that is not in its map"))?;
        Ok((map, node, Duration::from_millis(lease_ms)))
    }

    fn renew(&mut self, node: NodeId, incarnation: u64) -> Result<(), MapError> {
        match self.ask(&Request::Renew(node, incarnation))? {
            Answer::LeaseLost => Err(MapError::LeaseLost { node: node.to_string() }),
            _ => Ok(()),
        }
    }

    fn order(&mut self, order: &Order) -> Result<(Map, u64), MapError> {
        let (map, number, _) = self.map(&Request::Order(order.clone()))?;
        Ok((map, number))
    }
}
