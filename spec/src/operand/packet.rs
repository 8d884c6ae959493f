// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packet of traverse: one layout for what a client asks, what nodes send on, and what comes back.
//!
//! - **Layout** header of 160 bytes · body · where the packet is authenticated, 16 bytes of MAC
//!   - 0 magic · 4 version u8 · 5 kind u8 · 6 flags u16 · 8 packet bytes u16 · 10 body bytes u16
//!   - 12 scratchpad bytes u16 · 14 status u8 · 15 hops u8 · 16 client u64 · 24 incarnation u32 · 28 attempt u32
//!   - 32 sequence u64 · 40 settled u64 · 48 tenant u32 · 52 iterations u32 · 56 epoch u64 · 64 address u64
//!   - 72 value u64 · 80 program, 16 bytes · 96 piece u32 · 100 pieces u32 · 104 reply address, 16 bytes
//!   - 120 reply port u16 · 122 reserved u16 · 124 clock u32 · 128 sender u64 · 136 nonce u64 · 144 cluster u64
//!   - 152 session u64
//! - **Order** little endian; reserved bytes are 0. `address` lies in the first two cache lines at a multiple of 8, so that a
//!   switch finds it without parsing
//! - **Not here** what the fields mean together: `docs/formats/packet.md`
//!
//! The program is named by the first 16 bytes of its BLAKE3: a second program with the same name would take 2⁶⁴ tries to find
//! and could harm only the tenant that registered both, since programs belong to tenants.

/// The first four bytes.
pub const PACKET_MAGIC: [u8; 4] = *b"MLPK";
/// Version of the packet layout.
pub const PACKET_VERSION: u8 = 2;
/// Bytes before the body.
pub const PACKET_HEADER_BYTES: usize = 160;
/// Bytes after the body, with [`FLAG_AUTHENTICATED`].
pub const PACKET_MAC_BYTES: usize = 16;
/// The longest body: the largest scratchpad with the operands of an apply before it.
pub const PACKET_BODY_BYTES_MAX: usize = 4096 + APPLY_OPERAND_BYTES;
/// The longest packet.
pub const PACKET_BYTES_MAX: usize = PACKET_HEADER_BYTES + PACKET_BODY_BYTES_MAX + PACKET_MAC_BYTES;
/// Largest packet that fits into a frame everywhere: 1280 bytes are IPv6's smallest, less 40 of IP and 8 of UDP.
pub const PACKET_BYTES_FRAME: usize = 1232;
/// Bytes of a program's name.
pub const PROGRAM_HASH_BYTES: usize = 16;
/// Kind, address, first and second operand of an apply: four u64.
pub const APPLY_OPERAND_BYTES: usize = 32;

/// A request: walk from `address` with `program`; the body is the scratchpad without the zeros at its end.
pub const KIND_WALK: u8 = 1;
/// The end of a request: `status` says how.
pub const KIND_ANSWER: u8 = 2;
/// A piece of a result that is streamed; `piece` counts from 0, the answer's `pieces` says how many there were.
pub const KIND_CHUNK: u8 = 3;
/// A request: piece `piece` of `pieces` of a program's image.
pub const KIND_REGISTER: u8 = 4;
/// A request: `value` bytes of memory; the answer's `address` is where.
pub const KIND_ALLOCATE: u8 = 5;
/// A request: give back the memory at `address`.
pub const KIND_FREE: u8 = 6;
/// A request: store the body at `address`.
pub const KIND_WRITE: u8 = 7;
/// A request: the `value` bytes at `address`.
pub const KIND_READ: u8 = 8;
/// A request, of a client or of the node that decided it: change eight bytes. The body is four u64, then the scratchpad.
pub const KIND_APPLY: u8 = 9;
/// Node to node: a walk that writes has ended at a node that is not its first one; the first one settles it.
pub const KIND_DECIDED: u8 = 10;
/// A request: the map's epoch, and what this node knows about `address`.
pub const KIND_MAP: u8 = 11;
/// Node to node: a message about a range that moves; `tenant` is [`TENANT_NODES`].
pub const KIND_MIGRATE: u8 = 12;
/// A client goes: all its requests are settled, and its session ends. It is not answered.
pub const KIND_END: u8 = 13;
/// Kind: blocks of memory are wanted, and the body is what the first one shall hold.
pub const KIND_PLACE: u8 = 16;
/// Kind: blocks of memory were unlinked; they are free once no walk can be there.
pub const KIND_RETIRE: u8 = 17;

/// The tenant that nodes are to each other; no client is.
pub const TENANT_NODES: u32 = u32::MAX;

/// The last 16 bytes are a MAC.
pub const FLAG_AUTHENTICATED: u16 = 1;
/// The walk may end with an apply: it is settled once, at the node that got it first.
pub const FLAG_WRITES: u16 = 2;
/// A node sent this on: the answer goes to the reply address, and the first node is the reply address's.
pub const FLAG_FORWARDED: u16 = 4;
/// Not the first visit: scratchpad and address are no longer the client's.
pub const FLAG_CONTINUED: u16 = 8;
/// In a decision or an answer that travels from node to node: relay it to the client.
pub const FLAG_RELAY: u16 = 16;
/// The sender got the addresses that it asks by at `clock`: memory that was given back since may have been used again.
pub const FLAG_SINCE: u16 = 32;

/// Status: the scratchpad is the answer.
pub const STATUS_DONE: u8 = 0;
/// Status: the walk ended and found nothing.
pub const STATUS_MISSING: u8 = 1;
/// Status: the apply was carried out; `value` is what was there before.
pub const STATUS_APPLIED: u8 = 2;
/// Status: a compare-and-swap found something else, which is in `value`; nothing was changed.
pub const STATUS_DIFFERS: u8 = 3;
/// Status: the iterations of one visit are used up; send the state again to go on.
pub const STATUS_CONTINUE: u8 = 4;
/// Status: writers were in the way too often; start again.
pub const STATUS_RETRY: u8 = 5;
/// Status: queues are full; send again later.
pub const STATUS_BUSY: u8 = 6;
/// Status: this node does not hold the program; register it.
pub const STATUS_NEED_PROGRAM: u8 = 7;
/// Status: `address` is not this node's. The body starts with the `value` bytes of the map's entry for it, where the map has one;
/// a walk's scratchpad follows when [`FLAG_CONTINUED`] is set. `epoch` is the node's.
pub const STATUS_WRONG_NODE: u8 = 8;
/// Status: the packet passed through as many nodes as its `hops` allowed.
pub const STATUS_HOPS: u8 = 9;
/// Status: the walk made as many iterations as it was allowed altogether.
pub const STATUS_ITERATIONS: u8 = 10;
/// Status: `address` is not this tenant's, or not to be written.
pub const STATUS_FORBIDDEN: u8 = 11;
/// Status: no memory is left for this.
pub const STATUS_FULL: u8 = 12;
/// Status: the request makes no sense; the body says why.
pub const STATUS_BAD_REQUEST: u8 = 13;
/// Status: the program was refused; the body says why.
pub const STATUS_REFUSED: u8 = 14;
/// Status: `settled` or the incarnation says that this request is long over.
pub const STATUS_STALE: u8 = 15;
/// Status: this many are held already (programs, clients); the body says which.
pub const STATUS_LIMIT: u8 = 16;
/// Status, no end: the request was sent on to the node of the entry in the body, and this is not its first attempt.
pub const STATUS_SENT_ON: u8 = 17;
/// Status: this session is over: forgotten, or ended. Nothing was done now; what was done before is not known any more.
pub const STATUS_EXPIRED: u8 = 18;
/// Status: another process uses this client's number.
pub const STATUS_TAKEN: u8 = 19;
/// Status: the packet is for the memory of another cluster, or of an earlier start; `value` is this one's `cluster`.
pub const STATUS_FOREIGN: u8 = 20;
/// Status: since [`FLAG_SINCE`]'s clock memory may have been used again; nothing was changed. Start again.
pub const STATUS_OUTDATED: u8 = 21;
/// Status: the packet's MAC is not that of its tenant's key, or the tenant has none. Nobody can prove such an answer: it is a hint.
pub const STATUS_WRONG_KEY: u8 = 22;
/// Status: the disk of the node's log is full: it takes no changes, and goes on reading.
pub const STATUS_LOG_FULL: u8 = 24;
/// From here on: a fault of the program, the number of `Verdict`.
pub const STATUS_FAULT: u8 = 0x80;

/// Offsets of the header's fields, in bytes.
#[expect(missing_docs, reason = "named as in the module's header")]
pub mod at {
    pub const VERSION: usize = 4;
    pub const KIND: usize = 5;
    pub const FLAGS: usize = 6;
    pub const PACKET_BYTES: usize = 8;
    pub const BODY_BYTES: usize = 10;
    pub const SCRATCH_BYTES: usize = 12;
    pub const STATUS: usize = 14;
    pub const HOPS: usize = 15;
    pub const CLIENT: usize = 16;
    pub const INCARNATION: usize = 24;
    pub const ATTEMPT: usize = 28;
    pub const SEQUENCE: usize = 32;
    pub const SETTLED: usize = 40;
    pub const TENANT: usize = 48;
    pub const ITERATIONS: usize = 52;
    pub const EPOCH: usize = 56;
    pub const ADDRESS: usize = 64;
    pub const VALUE: usize = 72;
    pub const PROGRAM: usize = 80;
    pub const PIECE: usize = 96;
    pub const PIECES: usize = 100;
    pub const REPLY_ADDRESS: usize = 104;
    pub const REPLY_PORT: usize = 120;
    pub const RESERVED: usize = 122;
    pub const CLOCK: usize = 124;
    pub const SENDER: usize = 128;
    pub const NONCE: usize = 136;
    pub const CLUSTER: usize = 144;
    pub const SESSION: usize = 152;
}

const _: () = {
    assert!(at::SESSION + 8 == PACKET_HEADER_BYTES);
    assert!(at::ADDRESS == 64, "switches read it there");
    assert!(PACKET_HEADER_BYTES + 1024 + APPLY_OPERAND_BYTES + PACKET_MAC_BYTES <= PACKET_BYTES_FRAME);
    assert!(PACKET_BYTES_MAX < u16::MAX as usize);
};
