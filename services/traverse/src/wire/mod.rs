// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packet: one format for requests, forwarded requests, and answers.
//!
//! - **Flow** bytes ──[`Keys::open`]──▶ [`Packet::parse`]: length, every field ──▶ MAC compared ──▶ [`Header`] and body,
//!   borrowed. [`Header`] and body ──[`Header::format`]──▶ bytes ──[`Keys::seal`]──▶ bytes with MAC
//! - **Layout** `memlift_spec::formats::packet`; the meaning of the fields: `docs/formats/packet.md`
//! - **Owner** bytes from a peer are copied out of shared memory before they are parsed
//! - **Not here** the effect of a packet (`node`), and its transport (`transport`)

mod header;
mod keys;
mod kind;
mod replay;

pub use header::{ApplyOperands, Hash, Header, Packet, PacketError, Reply, Stamp, other_version, used};
pub use keys::{KeyError, Keys};
pub use kind::{Kind, Status};
pub use memlift_spec::formats::packet::{
    FLAG_AUTHENTICATED, FLAG_CONFIRMED, FLAG_CONTINUED, FLAG_FORWARDED, FLAG_RELAY, FLAG_SINCE, FLAG_STALE,
    FLAG_WRITES, PACKET_BODY_BYTES_MAX, PACKET_BYTES_FRAME, PACKET_BYTES_MAX, PACKET_HEADER_BYTES,
    PACKET_MAC_BYTES, TENANT_NODES,
};
pub use replay::{Replay, Senders};
