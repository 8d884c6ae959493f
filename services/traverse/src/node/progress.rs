// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks a node how much of a range that leaves it has reached the target.
//!
//! - **Flow** a packet of kind map about an address of the range ─▶ its node ─▶ the answer: `piece` of `pieces` have arrived,
//!   and `iterations` is the current step
//! - **Not here** how a node knows its progress (`mover`)

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use crate::map::migrate::MigrationPhase;
use crate::wire::{Header, Keys, Kind, PACKET_BYTES_MAX};

/// Progress of a range that leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Pieces of `migrate::PIECE_BYTES` bytes whose current contents the target has.
    pub settled: u64,
    /// Pieces of the whole range.
    pub pieces: u64,
    /// Step that the migration is at.
    pub step: MigrationPhase,
}

/// Asks the node at a socket for the progress of the range with this address. Returns `None` if the range is not leaving, or
/// no answer came in time.
#[must_use]
pub fn leaving(
    node: SocketAddr,
    address: u64,
    keys: &Keys,
    tenant: u32,
    timeout: Duration,
) -> Option<Leaving> {
    let any: SocketAddr = match (node.is_ipv4(), node.ip().is_loopback()) {
        (true, true) => ([127, 0, 0, 1], 0).into(),
        (true, false) => ([0, 0, 0, 0], 0).into(),
        (false, true) => (std::net::Ipv6Addr::LOCALHOST, 0).into(),
        (false, false) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(node).ok()?;
    socket.set_read_timeout(Some(timeout)).ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let header = Header {
        client: now,
        sender: now,
        nonce: now,
        sequence: 1,
        settled: 1,
        tenant,
        address,
        ..Header::new(Kind::Map)
    };
    let mut packet = Vec::new();
    keys.seal(&header, &[], &mut packet);
    socket.send(&packet).ok()?;
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let count = socket.recv(&mut bytes).ok()?;
    let answer = keys.open(&bytes[..count]).ok()?.header;
    if (answer.kind, answer.client) != (Kind::Answer, now) {
        return None;
    }
    let step = MigrationPhase::from_number(answer.iterations)?;
    Some(Leaving { settled: answer.piece.into(), pieces: answer.pieces.into(), step })
}
