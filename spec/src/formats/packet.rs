// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packet between memory nodes and their clients: the same layout for requests, packets between nodes, and answers.
//!
//! - **Layout** header of 160 bytes · body · where the packet is authenticated, 16 bytes of MAC
//!   - 0 magic · 4 version u8 · 5 kind u8 · 6 flags u16 · 8 packet bytes u16 · 10 body bytes u16
//!   - 12 scratchpad bytes u16 · 14 status u8 · 15 hops u8 · 16 client u64 · 24 incarnation u32 · 28 attempt u32
//!   - 32 sequence u64 · 40 settled u64 · 48 tenant u32 · 52 iterations u32 · 56 epoch u64 · 64 address u64
//!   - 72 value u64 · 80 program, 16 bytes · 96 piece u32 · 100 pieces u32 · 104 reply address, 16 bytes
//!   - 120 reply port u16 · 122 reserved u16 · 124 clock u32 · 128 sender u64 · 136 nonce u64 · 144 cluster u64
//!   - 152 session u64
//! - **Order** little endian; reserved bytes are 0. `address` lies in the first two cache lines at a multiple of 8, so that a switch
//!   finds it without parsing.
//! - **Not here** the meaning of the fields together: `docs/formats/packet.md`.
//!
//! A program is identified by the first 16 bytes of its BLAKE3 hash. Finding a second program with the same identifier would take 2⁶⁴
//! tries, and could harm only the tenant that registered both, because programs belong to tenants.

/// The first four bytes of a packet.
pub const PACKET_MAGIC: [u8; 4] = *b"MLPK";
/// Version of the packet layout.
pub const PACKET_VERSION: u8 = 2;
/// Bytes of the header, before the body.
pub const PACKET_HEADER_BYTES: usize = 160;
/// Bytes of the MAC after the body, if [`FLAG_AUTHENTICATED`] is set.
pub const PACKET_MAC_BYTES: usize = 16;
/// Longest body: the largest scratchpad, with the operands of an apply before it.
pub const PACKET_BODY_BYTES_MAX: usize = 4096 + APPLY_OPERAND_BYTES;
/// Longest packet, bytes.
pub const PACKET_BYTES_MAX: usize = PACKET_HEADER_BYTES + PACKET_BODY_BYTES_MAX + PACKET_MAC_BYTES;
/// Largest packet that fits into a frame in every network: 1280 bytes, the smallest MTU of IPv6, minus 40 for IP and 8 for UDP.
pub const PACKET_BYTES_FRAME: usize = 1232;
/// Bytes of a program's identifier.
pub const PROGRAM_HASH_BYTES: usize = 16;
/// Bytes of the operands of an apply: kind, address, first and second operand, four u64.
pub const APPLY_OPERAND_BYTES: usize = 32;

/// Request: walk from `address` with `program`; the body is the scratchpad without the zeros at its end.
pub const KIND_WALK: u8 = 1;
/// Answer: ends a request; `status` says how.
pub const KIND_ANSWER: u8 = 2;
/// Piece of a streamed result; `piece` counts from 0, and the answer's `pieces` is the number of pieces.
pub const KIND_CHUNK: u8 = 3;
/// Request: registers piece `piece` of `pieces` of a program's image.
pub const KIND_REGISTER: u8 = 4;
/// Request: allocates `value` bytes of memory; the answer's `address` is the address.
pub const KIND_ALLOCATE: u8 = 5;
/// Request: frees the memory at `address`.
pub const KIND_FREE: u8 = 6;
/// Request: stores the body at `address`.
pub const KIND_WRITE: u8 = 7;
/// Request: reads the `value` bytes at `address`.
pub const KIND_READ: u8 = 8;
/// Request of a client, or of a node at which a walk has ended: changes eight bytes. The body is four u64, then the scratchpad.
pub const KIND_APPLY: u8 = 9;
/// Between nodes: a walk that writes has ended at another node than its first one; the first node settles it.
pub const KIND_DECIDED: u8 = 10;
/// Request: returns the epoch of the map, and what this node knows about `address`.
pub const KIND_MAP: u8 = 11;
/// `iterations` of an answer to [`KIND_MAP`] by the backup of a replicated node: it serves nothing, and says where the node is.
pub const MAP_BACKUP: u32 = 7;
/// Between nodes: a message about a range that is moved; `tenant` is [`TENANT_NODES`].
pub const KIND_MIGRATE: u8 = 12;
/// From a client that ends: all its requests are settled, and its session ends. There is no answer.
pub const KIND_END: u8 = 13;
/// Request: allocates blocks of memory; the body is the contents of the first one.
pub const KIND_PLACE: u8 = 16;
/// Request: retires blocks of memory that were unlinked; they are freed when no walk can be in them any more.
pub const KIND_RETIRE: u8 = 17;
/// Request: declares the terms of a map at `address`, so that the node sweeps the map.
pub const KIND_DECLARE: u8 = 18;

/// Tenant of packets between nodes; no client has it.
pub const TENANT_NODES: u32 = u32::MAX;

/// Flag: the last 16 bytes are a MAC.
pub const FLAG_AUTHENTICATED: u16 = 1;
/// Flag: the walk may end with an apply; it is settled once, at the node that received it first.
pub const FLAG_WRITES: u16 = 2;
/// Flag: a node has forwarded this packet. The answer goes to the reply address, which belongs to the first node.
pub const FLAG_FORWARDED: u16 = 4;
/// Flag: this is not the first visit, so scratchpad and address are not those that the client sent.
pub const FLAG_CONTINUED: u16 = 8;
/// Flag of a decision or an answer between nodes: relay it to the client.
pub const FLAG_RELAY: u16 = 16;
/// Flag: the sender obtained its addresses at `clock`; memory that was freed since then may have been reused.
pub const FLAG_SINCE: u16 = 32;
/// Flag: a replicated node answers only after its backup has said, after the last load, that it has not taken over. A release that
/// does not know the flag drops the packet.
pub const FLAG_CONFIRMED: u16 = 64;
/// Flag of a read: a backup may answer, from its copy. Of an answer: it comes from a backup's copy, and may be older than what was
/// acknowledged. A release that does not know the flag drops the packet.
pub const FLAG_STALE: u16 = 128;

/// Status: the walk ended; the scratchpad is its result.
pub const STATUS_DONE: u8 = 0;
/// Status: the walk ended and found nothing.
pub const STATUS_MISSING: u8 = 1;
/// Status: the apply was executed; `value` is the value before it.
pub const STATUS_APPLIED: u8 = 2;
/// Status: a compare-and-swap found another value, which is in `value`; nothing was changed.
pub const STATUS_DIFFERS: u8 = 3;
/// Status: the iterations of one visit are used up; send the state again to continue.
pub const STATUS_CONTINUE: u8 = 4;
/// Status: concurrent writers interfered too often; start again.
pub const STATUS_RETRY: u8 = 5;
/// Status: queues are full; send again later.
pub const STATUS_BUSY: u8 = 6;
/// Status: this node does not hold the program; register it.
pub const STATUS_NEED_PROGRAM: u8 = 7;
/// Status: `address` does not belong to this node. The body starts with the `value` bytes of its entry in the map, if there is
/// one; a walk's scratchpad follows if [`FLAG_CONTINUED`] is set. `epoch` is the node's.
pub const STATUS_WRONG_NODE: u8 = 8;
/// Status: the packet has passed the number of nodes that its `hops` allows.
pub const STATUS_HOPS: u8 = 9;
/// Status: the walk has made all iterations that it was allowed in total.
pub const STATUS_ITERATIONS: u8 = 10;
/// Status: `address` does not belong to this tenant, or may not be written.
pub const STATUS_FORBIDDEN: u8 = 11;
/// Status: there is no memory for this request.
pub const STATUS_FULL: u8 = 12;
/// Status: the request is invalid; the body says why.
pub const STATUS_BAD_REQUEST: u8 = 13;
/// Status: the program was refused; the body says why.
pub const STATUS_REFUSED: u8 = 14;
/// Status: by `settled` or its incarnation, this request was finished before.
pub const STATUS_STALE: u8 = 15;
/// Status: the limit of programs or clients is reached; the body says which.
pub const STATUS_LIMIT: u8 = 16;
/// Status, not an end: the request was forwarded to the node of the entry in the body, and this is not its first attempt.
pub const STATUS_SENT_ON: u8 = 17;
/// Status: this session has ended or was forgotten. Nothing was done now; it is not known any more if the request was executed
/// before.
pub const STATUS_EXPIRED: u8 = 18;
/// Status: another process uses this client's number.
pub const STATUS_TAKEN: u8 = 19;
/// Status: the packet is for the memory of another cluster, or of an earlier start; `value` is the `cluster` of this one.
pub const STATUS_FOREIGN: u8 = 20;
/// Status: memory may have been reused since the clock of [`FLAG_SINCE`]; nothing was changed. Start again.
pub const STATUS_OUTDATED: u8 = 21;
/// Status: the packet's MAC does not match its tenant's key, or the tenant has no key. Such an answer cannot be authenticated,
/// so it is only a hint.
pub const STATUS_WRONG_KEY: u8 = 22;
/// Status: the disk of the node's log is full: the node accepts no changes, but can still be read.
pub const STATUS_LOG_FULL: u8 = 24;
/// Status, not an end: the node has a backup and no lease, since it cannot reach etcd: it may not answer. Nothing is said about the
/// request.
pub const STATUS_NO_LEASE: u8 = 25;
/// First status of a program's fault; the rest is the number of a `Verdict`.
pub const STATUS_FAULT: u8 = 0x80;

/// Offsets of the header's fields, bytes.
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
