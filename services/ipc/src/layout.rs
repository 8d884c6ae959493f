// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control segment: everything that both sides of a session share besides payload.
//!
//! - **Layout**
//!   - 0 header, written by the client before it sends the segment: magic u64 · version u32 · ring entries u32
//!   - 128 request ring tail u32 (client writes) · 192 request ring head u32 (server writes)
//!   - 256 response ring tail u32 (server writes) · 320 response ring head u32 (client writes)
//!   - 384 server's park word u32 · 448 client's park word u32
//!   - 512 response ring is blocked u32 (server sets, client clears and rings)
//!   - 576 concurrency, written by the server for clients to adapt to: sessions u32 · busy handlers u32 · handlers u32 ·
//!     queued requests u32
//!   - 640 client's robust word u32 · 704 server's robust word u32; 0: that side has none
//!   - 4096 request ring: 256 messages of 128 bytes
//!   - 36864 response ring: 256 messages of 128 bytes · 69632 end
//! - **Order** each counter has a cache line of its own; tails are published with Release, read with Acquire.
//! - **Owner** each field has exactly one writer, but for the park words and the blocked word: one side sets them, the other
//!   clears them; and for the robust words, which the kernel marks for a side that dies. Heads and tails run freely and are taken modulo the entries.

use crate::message::MESSAGE_BYTES;

/// "memlift" and the major version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memlift\x01");
/// Oldest version of the protocol that this build speaks. Version 4 is the first from which later ones can be negotiated; its control
/// segment, whose header says 4, is that of all versions so far.
pub const OLDEST: u32 = 4;
/// Newest version of the protocol that this build speaks.
pub const NEWEST: u32 = 5;
/// First version with arguments by name, streams, pings and [`FailureCode::Draining`](crate::message::FailureCode::Draining).
pub const SERVICES_SINCE: u32 = 5;
/// Messages per ring; a power of two.
pub const RING_ENTRIES: u32 = 256;

/// Offset of the magic.
pub const MAGIC_AT: u64 = 0;
/// Offset of the version, which is that of the greeting: the client's oldest.
pub const VERSION_AT: u64 = 8;
/// Offset of the number of ring entries.
pub const ENTRIES_AT: u64 = 12;
/// Offset of the request ring's tail.
pub const REQUEST_TAIL_AT: u64 = 128;
/// Offset of the request ring's head.
pub const REQUEST_HEAD_AT: u64 = 192;
/// Offset of the response ring's tail.
pub const RESPONSE_TAIL_AT: u64 = 256;
/// Offset of the response ring's head.
pub const RESPONSE_HEAD_AT: u64 = 320;
/// Offset of the word by which clients learn that the server sleeps.
pub const SERVER_PARK_AT: u64 = 384;
/// Offset of the word by which the server learns that the client sleeps.
pub const CLIENT_PARK_AT: u64 = 448;
/// Offset of the word that says that the server has replies for which the ring had no room.
pub const RESPONSE_BLOCKED_AT: u64 = 512;
/// Offset of the number of sessions of this server.
pub const SESSIONS_AT: u64 = 576;
/// Offset of the number of handlers at work.
pub const BUSY_HANDLERS_AT: u64 = 580;
/// Offset of the number of handlers that there are.
pub const HANDLERS_AT: u64 = 584;
/// Offset of the number of requests that wait for one.
pub const QUEUED_AT: u64 = 588;
/// Offset of the word that the kernel marks when the client dies.
pub const CLIENT_ROBUST_AT: u64 = 640;
/// Offset of the word that the kernel marks when the server dies.
pub const SERVER_ROBUST_AT: u64 = 704;
/// Offset of the request ring.
pub const REQUEST_RING_AT: u64 = 4096;
/// Offset of the response ring.
pub const RESPONSE_RING_AT: u64 = REQUEST_RING_AT + RING_ENTRIES as u64 * MESSAGE_BYTES as u64;
/// Bytes of the control segment.
pub const CONTROL_BYTES: u64 = RESPONSE_RING_AT + RING_ENTRIES as u64 * MESSAGE_BYTES as u64;

const _: () = {
    assert!(RING_ENTRIES.is_power_of_two());
    assert!(RESPONSE_RING_AT == 36864);
    assert!(CONTROL_BYTES == 69632);
    assert!(CONTROL_BYTES.is_multiple_of(4096));
};

/// Messages of a session that may wait for room in the response ring; a client that asks for more without taking any is at fault.
pub const OVERFLOW_MAX: usize = 4 * RING_ENTRIES as usize;

/// Unanswered calls per session at most: each can put three messages into a ring, and the rings must not fill up.
pub const OUTSTANDING_MAX: usize = RING_ENTRIES as usize / 4;

/// Most segments per direction at a time. Their numbers go on from one to the next, also when others were retired.
pub const SEGMENTS_MAX: usize = 64;
/// Payloads start at multiples of this inside a segment, bytes.
pub const GRANULE_BYTES: u64 = 256;
