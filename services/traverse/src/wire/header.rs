// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header of a packet: parsed and formatted field by field.
//!
//! - **Flow** [`Packet::parse`] borrows the body without copying it
//! - **Order** a parsed packet formats to the same bytes, except for the MAC
//! - **Owner** parsing checks everything: lengths must add up exactly, kinds and statuses must be known, reserved bytes
//!   must be 0
//! - **Not here** authentication: `keys` checks the MAC of a parsed packet

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use memlift_spec::formats::packet::{
    APPLY_OPERAND_BYTES, FLAG_AUTHENTICATED, FLAG_CONFIRMED, FLAG_CONTINUED, FLAG_FORWARDED, FLAG_RELAY,
    FLAG_SINCE, FLAG_STALE, FLAG_WRITES, PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES, PACKET_MAC_BYTES,
    PACKET_MAGIC, PACKET_VERSION, PROGRAM_HASH_BYTES, at,
};

use super::{Kind, Status};

/// The largest scratchpad.
const SCRATCH_BYTES_MAX: usize = PACKET_BODY_BYTES_MAX - APPLY_OPERAND_BYTES;
const FLAGS_KNOWN: u16 = FLAG_AUTHENTICATED
    | FLAG_WRITES
    | FLAG_FORWARDED
    | FLAG_CONTINUED
    | FLAG_RELAY
    | FLAG_SINCE
    | FLAG_CONFIRMED
    | FLAG_STALE;

/// Name of a program in packets: the first bytes of its BLAKE3 hash.
pub type Hash = [u8; PROGRAM_HASH_BYTES];

/// Address for the answer, if it does not go back to the sender of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Reply {
    /// IPv6 address, or an IPv4 address mapped into IPv6. Without a port: a [`Stamp`], or zeros.
    pub address: [u8; 16],
    /// UDP port; 0: the answer goes to the sender.
    pub port: u16,
}

impl Reply {
    /// Makes the reply address of a socket.
    #[must_use]
    pub fn to(socket: SocketAddr) -> Reply {
        let address = match socket.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Reply { address: address.octets(), port: socket.port() }
    }

    /// Returns the stamp that a packet without a reply port carries; the default if it carries none.
    #[must_use]
    pub fn stamp(self) -> Stamp {
        if self.port != 0 {
            return Stamp::default();
        }
        let word = |at: usize| self.address[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Stamp { run: word(0), changes: word(8) }
    }

    /// Returns the socket; `None`: the answer goes to the sender.
    #[must_use]
    pub fn socket(self) -> Option<SocketAddr> {
        (self.port != 0)
            .then(|| SocketAddr::new(Ipv6Addr::from_octets(self.address).to_canonical(), self.port))
    }
}

/// State that a node had acknowledged when it answered: the number of its start, and the number of changes.
///
/// - **Layout** in the reply address of packets that name no reply port: start u64, changes u64
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Stamp {
    /// Number of the node's start; 0: not known.
    pub run: u64,
    /// Number of changes that the node's memory has seen, over all its starts.
    pub changes: u64,
}

impl Stamp {
    /// Returns the reply address that carries the stamp.
    #[must_use]
    pub fn reply(self) -> Reply {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&self.run.to_le_bytes());
        address[8..].copy_from_slice(&self.changes.to_le_bytes());
        Reply { address, port: 0 }
    }
}

/// Reason that bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Fewer bytes than a header, or not the number of bytes that the header states.
    #[error("a packet was cut: {got} bytes where {expected} belong")]
    Cut {
        /// Bytes that arrived.
        got: usize,
        /// Bytes that a header has, or that the header states.
        expected: usize,
    },
    /// The bytes do not start with the protocol's magic.
    #[error("not a packet of memlift walks: it does not start with MLPK")]
    Magic,
    /// The packet has another version than this side.
    #[error("a packet of version {0}, this side speaks version {PACKET_VERSION}: update the older side")]
    Version(u8),
    /// A field holds a value that is not allowed.
    #[error("a packet's field `{0}` holds what it must not")]
    Field(&'static str),
    /// The MAC is wrong or missing.
    #[error(
        "a packet of tenant {0} is not authenticated with the tenant's key: compare both sides' key files"
    )]
    Forged(u32),
}

/// All fields but the body. Integers are in host order; `docs/formats/packet.md` defines their meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Kind of packet: a request, an answer, or a message between nodes.
    pub kind: Kind,
    /// Flags of the packet, `FLAG_*`.
    pub flags: u16,
    /// Status with which the request ended; [`Status::Done`] in requests.
    pub status: Status,
    /// Number of times that the packet may still be forwarded.
    pub hops: u8,
    /// Bytes of the walk's scratchpad; the body omits the zeros at its end.
    pub scratch_bytes: u16,
    /// Number of the client that asks: drawn at random, or set by its configuration.
    pub client: u64,
    /// Incarnation: grows each time that the client starts with the same number.
    pub incarnation: u32,
    /// Number of this attempt at the request, from 0.
    pub attempt: u32,
    /// Number of the client's request, from 1.
    pub sequence: u64,
    /// The client's requests before this one are settled: it will not repeat them.
    pub settled: u64,
    /// Tenant that the request is made for.
    pub tenant: u32,
    /// Iterations left, over all visits.
    pub iterations: u32,
    /// Epoch of the sender's map.
    pub epoch: u64,
    /// `cur_ptr` of a walk, or the address that the request is about.
    pub address: u64,
    /// A value that depends on the kind, for example the bytes requested, or the value read.
    pub value: u64,
    /// Hash of the program; 0 if there is none.
    pub program: Hash,
    /// Number of this piece, from 0.
    pub piece: u32,
    /// Number of all pieces.
    pub pieces: u32,
    /// Address to which answers are sent.
    pub reply: Reply,
    /// Number of the client or node that sent this packet.
    pub sender: u64,
    /// Number of the packet; a sender never uses a number twice.
    pub nonce: u64,
    /// Seconds of the nodes' clock. In a request: the newest that its sender knows; with `FLAG_SINCE`, the clock at which it
    /// read the addresses that it uses. In an answer: the clock at which reading for it began.
    pub clock: u32,
    /// Number of the memory to which the addresses belong: a cluster's, or the memory's own without a cluster; 0: not known.
    pub cluster: u64,
    /// In a request: the client's session, a number that grows. In an answer: the node's clock.
    pub session: u64,
}

impl Header {
    /// Makes a header of this kind; all other fields are 0.
    #[must_use]
    pub fn new(kind: Kind) -> Header {
        Header {
            kind,
            flags: 0,
            status: Status::Done,
            hops: 0,
            scratch_bytes: 0,
            client: 0,
            incarnation: 0,
            attempt: 0,
            sequence: 0,
            settled: 0,
            tenant: 0,
            iterations: 0,
            epoch: 0,
            address: 0,
            value: 0,
            program: [0; PROGRAM_HASH_BYTES],
            piece: 0,
            pieces: 0,
            reply: Reply::default(),
            sender: 0,
            nonce: 0,
            clock: 0,
            cluster: 0,
            session: 0,
        }
    }

    /// Returns the header of an answer to this request.
    #[must_use]
    #[inline]
    pub fn answer(&self, status: Status) -> Header {
        Header {
            client: self.client,
            incarnation: self.incarnation,
            attempt: self.attempt,
            sequence: self.sequence,
            tenant: self.tenant,
            program: self.program,
            clock: self.clock,
            status,
            ..Header::new(Kind::Answer)
        }
    }

    /// Returns true if a flag is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Appends header and body to `packet`, and room for a MAC if its flag is set.
    ///
    /// # Panics
    ///
    /// If the body is longer than `PACKET_BODY_BYTES_MAX`.
    #[inline]
    pub fn format(&self, body: &[u8], packet: &mut Vec<u8>) {
        assert!(body.len() <= PACKET_BODY_BYTES_MAX, "a body of {} bytes fits into no packet", body.len());
        let mac = if self.has(FLAG_AUTHENTICATED) { PACKET_MAC_BYTES } else { 0 };
        let bytes = PACKET_HEADER_BYTES + body.len() + mac;
        packet.reserve(bytes);
        let start = packet.len();
        packet.resize(start + PACKET_HEADER_BYTES, 0);
        let head = packet[start..].first_chunk_mut::<PACKET_HEADER_BYTES>().expect("as many were added");
        // Written as whole words: rings read packets as words, and a load that spans two smaller stores would have to wait
        // for both.
        let mut put = |at: usize, word: u64| head[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let four = |a: u16, b: u16, c: u16, d: u16| {
            u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
        };
        let [version, kind] = [PACKET_VERSION, self.kind as u8].map(u16::from);
        let [status, hops] = [self.status.byte(), self.hops].map(u16::from);
        put(0, u64::from(u32::from_le_bytes(PACKET_MAGIC)) | four(0, 0, version | kind << 8, self.flags));
        put(at::PACKET_BYTES, four(bytes as u16, body.len() as u16, self.scratch_bytes, status | hops << 8));
        put(at::CLIENT, self.client);
        put(at::INCARNATION, pair(self.incarnation, self.attempt));
        put(at::SEQUENCE, self.sequence);
        put(at::SETTLED, self.settled);
        put(at::TENANT, pair(self.tenant, self.iterations));
        put(at::EPOCH, self.epoch);
        put(at::ADDRESS, self.address);
        put(at::VALUE, self.value);
        let words = |bytes: &[u8; 16]| {
            let (low, high) = bytes.split_at(8);
            [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("eight bytes")))
        };
        let [low, high] = words(&self.program);
        put(at::PROGRAM, low);
        put(at::PROGRAM + 8, high);
        put(at::PIECE, pair(self.piece, self.pieces));
        let [low, high] = words(&self.reply.address);
        put(at::REPLY_ADDRESS, low);
        put(at::REPLY_ADDRESS + 8, high);
        put(at::REPLY_PORT, pair(u32::from(self.reply.port), self.clock));
        put(at::SENDER, self.sender);
        put(at::NONCE, self.nonce);
        put(at::CLUSTER, self.cluster);
        put(at::SESSION, self.session);
        packet.extend_from_slice(body);
        packet.extend_from_slice(&[0; PACKET_MAC_BYTES][..mac]);
    }
}

/// Returns the version of a packet if it is another one than this side's. Magic and version have the same places in all versions.
#[must_use]
#[inline]
pub fn other_version(packet: &[u8]) -> Option<u8> {
    let version = *packet.strip_prefix(&PACKET_MAGIC)?.first()?;
    (version != PACKET_VERSION).then_some(version)
}

/// A parsed packet: all its fields have valid values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// All fields of the header.
    pub header: Header,
    /// Bytes after the header, without the MAC.
    pub body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet. Does not check its MAC: see [`super::Keys::open`].
    ///
    /// # Errors
    ///
    /// The first fault found.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        let Some((head, rest)) = bytes.split_first_chunk::<PACKET_HEADER_BYTES>() else {
            return Err(PacketError::Cut { got: bytes.len(), expected: PACKET_HEADER_BYTES });
        };
        if head[..4] != PACKET_MAGIC {
            return Err(PacketError::Magic);
        }
        if head[at::VERSION] != PACKET_VERSION {
            return Err(PacketError::Version(head[at::VERSION]));
        }
        let flags = u16_at(head, at::FLAGS);
        if flags & !FLAGS_KNOWN != 0 {
            return Err(PacketError::Field("flags"));
        }
        let mac = if flags & FLAG_AUTHENTICATED != 0 { PACKET_MAC_BYTES } else { 0 };
        let body_bytes = usize::from(u16_at(head, at::BODY_BYTES));
        let expected = PACKET_HEADER_BYTES + body_bytes + mac;
        if bytes.len() != expected {
            return Err(PacketError::Cut { got: bytes.len(), expected });
        }
        if usize::from(u16_at(head, at::PACKET_BYTES)) != expected {
            return Err(PacketError::Field("packet bytes"));
        }
        if body_bytes > PACKET_BODY_BYTES_MAX {
            return Err(PacketError::Field("body bytes"));
        }
        let kind = Kind::from_byte(head[at::KIND]).ok_or(PacketError::Field("kind"))?;
        let status = Status::from_byte(head[at::STATUS]).ok_or(PacketError::Field("status"))?;
        let scratch_bytes = u16_at(head, at::SCRATCH_BYTES);
        if usize::from(scratch_bytes) > SCRATCH_BYTES_MAX {
            return Err(PacketError::Field("scratchpad bytes"));
        }
        let before_scratch = match kind {
            Kind::Apply | Kind::Decided => APPLY_OPERAND_BYTES,
            _ => 0,
        };
        let holds_scratch = matches!(kind, Kind::Walk | Kind::Apply | Kind::Decided);
        if holds_scratch
            && !(before_scratch..=before_scratch + usize::from(scratch_bytes)).contains(&body_bytes)
        {
            return Err(PacketError::Field("scratchpad bytes"));
        }
        if head[at::RESERVED..at::CLOCK].iter().any(|&byte| byte != 0) {
            return Err(PacketError::Field("reserved"));
        }
        let (piece, pieces) = (u32_at(head, at::PIECE), u32_at(head, at::PIECES));
        if kind == Kind::Register && piece >= pieces {
            return Err(PacketError::Field("piece"));
        }
        let sequence = u64_at(head, at::SEQUENCE);
        if sequence == 0 || sequence == u64::MAX || u64_at(head, at::SETTLED) > sequence {
            return Err(PacketError::Field("sequence"));
        }
        let reply = Reply { address: array_at(head, at::REPLY_ADDRESS), port: u16_at(head, at::REPLY_PORT) };
        if flags & FLAG_FORWARDED != 0 && reply.port == 0 {
            return Err(PacketError::Field("reply port"));
        }
        let header = Header {
            kind,
            flags,
            status,
            hops: head[at::HOPS],
            scratch_bytes,
            client: u64_at(head, at::CLIENT),
            incarnation: u32_at(head, at::INCARNATION),
            attempt: u32_at(head, at::ATTEMPT),
            sequence,
            settled: u64_at(head, at::SETTLED),
            tenant: u32_at(head, at::TENANT),
            iterations: u32_at(head, at::ITERATIONS),
            epoch: u64_at(head, at::EPOCH),
            address: u64_at(head, at::ADDRESS),
            value: u64_at(head, at::VALUE),
            program: array_at(head, at::PROGRAM),
            piece,
            pieces,
            reply,
            sender: u64_at(head, at::SENDER),
            nonce: u64_at(head, at::NONCE),
            clock: u32_at(head, at::CLOCK),
            cluster: u64_at(head, at::CLUSTER),
            session: u64_at(head, at::SESSION),
        };
        Ok(Packet { header, body: &rest[..body_bytes] })
    }

    /// Returns the operands of an apply or a decision, and the scratchpad behind them.
    #[must_use]
    pub fn operands(&self) -> Option<(ApplyOperands, &'a [u8])> {
        let (words, scratch) = self.body.split_at_checked(APPLY_OPERAND_BYTES)?;
        let word = |index: usize| {
            u64::from_le_bytes(words[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
        };
        Some((ApplyOperands { kind: word(0), address: word(1), a: word(2), b: word(3) }, scratch))
    }
}

/// Operands of an apply: the change, and the address at which it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApplyOperands {
    /// Number of the change; 0 in a decision to change nothing.
    pub kind: u64,
    /// Global address of the eight bytes, a multiple of 8.
    pub address: u64,
    /// The value expected, or the addend.
    pub a: u64,
    /// The new value.
    pub b: u64,
}

impl ApplyOperands {
    /// Encodes the operands as they stand at the start of a body.
    #[must_use]
    pub fn bytes(&self) -> [u8; APPLY_OPERAND_BYTES] {
        let mut bytes = [0; APPLY_OPERAND_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.kind, self.address, self.a, self.b]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Returns the part of a scratchpad that is sent: all bytes but the zeros at its end.
#[must_use]
pub fn used(scratch: &[u8]) -> &[u8] {
    let mut rest = scratch;
    // Whole cache lines first: most of a scratchpad is never written.
    while let Some((before, line)) = rest.split_last_chunk::<64>()
        && line.iter().fold(0, |all, byte| all | byte) == 0
    {
        rest = before;
    }
    let end = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &rest[..end]
}

fn array_at<const N: usize>(head: &[u8; PACKET_HEADER_BYTES], at: usize) -> [u8; N] {
    head[at..at + N].try_into().expect("inside of the header")
}

fn u16_at(head: &[u8; PACKET_HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes(array_at(head, at))
}

fn u32_at(head: &[u8; PACKET_HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(array_at(head, at))
}

fn u64_at(head: &[u8; PACKET_HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(array_at(head, at))
}
