// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The message: one entry of a ring, 128 bytes, and what it may say about a payload.
//!
//! - **Layout**
//!   - 0 kind u8 · 1 flags u8 · 2 payload u8 (0 none, 1 bytes, 2 tensor, 3 value) · 3 element kind u8 (a letter) ·
//!   - 4 element bytes u8 · 5 dimensions u8 · 6 status u16
//!   - 8 job u64 · 16 operation u64 (hash of its name) · 24 segment u32 · 28 CRC-32C of the payload u32
//!   - 32 offset u64 · 40 bytes u64 · 48 deadline u64 (CLOCK_MONOTONIC ns, 0 none) · 56 ns at the server u64
//!   - 64 shape: 8 × u64 · a short payload behind it, in what is left of the 64 bytes ([`FLAG_EMBEDDED`])
//! - **Owner** the producer's until its ring's tail passes it; the consumer copies it once and judges the copy.

use crate::error::Error;
use bytemuck::{Pod, Zeroable};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 128;
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 8;

/// Purpose of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Client: run an operation.
    Call = 1,
    /// Server: its result.
    Reply = 2,
    /// Server: its failure; the payload is text.
    Failure = 3,
    /// Either: a slot of yours that I was viewing is free. `job` names the request; `segment` and `offset` the
    /// response.
    Release = 4,
    /// Server: the reply of `job` needs `bytes` of room in the response pool.
    NeedRoom = 5,
    /// Client: there is none; drop that reply.
    NoRoom = 6,
    /// Client: asks for the state of `job`.
    Query = 7,
    /// Server: `job` is queued (`status` 1, `bytes` before it) or taken (`status` 2, `bytes` of `offset` done, as its handler says).
    State = 8,
    /// Client: let go of `segment` of the direction `status`, which was not used for a while.
    Retire = 9,
    /// Server: `segment` of the direction `status` is not mapped any more (`bytes` 1), or still in use (`bytes` 0).
    Retired = 10,
}

impl Kind {
    /// The kinds are numbered from 1 on without gaps.
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::{Call, Failure, NeedRoom, NoRoom, Query, Release, Reply, Retire, Retired, State};
        const KINDS: [Kind; 10] =
            [Call, Reply, Failure, Release, NeedRoom, NoRoom, Query, State, Retire, Retired];
        KINDS.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// Reply flag: the server still views the request's slot and will send a [`Kind::Release`] for it.
pub const FLAG_RETAINED: u8 = 1;
/// Call or reply flag: `crc` is the CRC-32C of the payload. A call that has it wants it of its reply.
pub const FLAG_CRC: u8 = 2;
/// Call flag: the reply is to say how long the server took.
pub const FLAG_TIMED: u8 = 4;
/// Call flag: the reply is to be copied through the cache.
pub const FLAG_CACHED: u8 = 8;
/// Call flag: the reply is to be copied past the cache.
pub const FLAG_UNCACHED: u8 = 16;
/// Call or reply flag: the slot holds packed pages. `bytes` are theirs; the payload's are the tensor's, else `shape[0]`.
pub const FLAG_PACKED: u8 = 32;
/// Call flag: the reply is to be packed, if it becomes smaller.
pub const FLAG_PACK: u8 = 64;
/// Call, reply or failure flag: the payload lies in the message, behind its shape, and in no segment. There is nothing to give back.
pub const FLAG_EMBEDDED: u8 = 128;
/// All flags of a call.
pub const CALL_FLAGS: u8 =
    FLAG_CRC | FLAG_TIMED | FLAG_CACHED | FLAG_UNCACHED | FLAG_PACKED | FLAG_PACK | FLAG_EMBEDDED;

/// State: waiting for a handler.
pub const STATE_QUEUED: u16 = 1;
/// State: a handler has it.
pub const STATE_TAKEN: u16 = 2;

/// Why a call failed, as it crosses the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum FailureCode {
    /// The handler raised.
    Handler = 1,
    /// No such operation.
    UnknownOperation = 2,
    /// The deadline had passed before the handler started.
    Deadline = 3,
    /// The server is short of memory.
    OutOfMemory = 4,
    /// The request was malformed.
    BadRequest = 5,
    /// The request's CRC is not that of what arrived.
    Corrupt = 6,
    /// The server ends, and has not begun the call.
    Draining = 7,
}

/// One message, as bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Message {
    /// See [`Kind`].
    pub kind: u8,
    /// See [`FLAG_RETAINED`] and those below it.
    pub flags: u8,
    /// 0 none, 1 bytes, 2 tensor, 3 value.
    pub payload: u8,
    /// Letter of the element type.
    pub element_kind: u8,
    /// Bytes of one element.
    pub element_bytes: u8,
    /// Dimensions of the tensor.
    pub dimensions: u8,
    /// See [`FailureCode`].
    pub status: u16,
    /// The call this is about.
    pub job: u64,
    /// Hash of the operation's name, see [`operation_hash`].
    pub operation: u64,
    /// Number of the payload's segment.
    pub segment: u32,
    /// CRC-32C of the payload, with [`FLAG_CRC`]; else 0.
    pub crc: u32,
    /// Payload offset in its segment, bytes.
    pub offset: u64,
    /// Length in the segment or in the message, bytes.
    pub bytes: u64,
    /// CLOCK_MONOTONIC nanoseconds; 0: none.
    pub deadline_ns: u64,
    /// Of a reply to a call with [`FLAG_TIMED`]: nanoseconds from when a thread began with it to the reply; else 0.
    pub took_ns: u64,
    /// Shape of the tensor, outermost first; of anything else, with [`FLAG_PACKED`], the payload's length in bytes. With
    /// [`FLAG_EMBEDDED`] the payload follows it.
    pub shape: [u64; DIMENSIONS_MAX],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Message>() == MESSAGE_BYTES);
    assert!(offset_of!(Message, flags) == 1);
    assert!(offset_of!(Message, payload) == 2);
    assert!(offset_of!(Message, element_kind) == 3);
    assert!(offset_of!(Message, element_bytes) == 4);
    assert!(offset_of!(Message, dimensions) == 5);
    assert!(offset_of!(Message, status) == 6);
    assert!(offset_of!(Message, job) == 8);
    assert!(offset_of!(Message, operation) == 16);
    assert!(offset_of!(Message, segment) == 24);
    assert!(offset_of!(Message, crc) == 28);
    assert!(offset_of!(Message, offset) == 32);
    assert!(offset_of!(Message, bytes) == 40);
    assert!(offset_of!(Message, deadline_ns) == 48);
    assert!(offset_of!(Message, took_ns) == 56);
    assert!(offset_of!(Message, shape) == 64);
};

impl Message {
    /// A message of `kind` about `job`, everything else zero.
    pub fn new(kind: Kind, job: u64) -> Message {
        Message { kind: kind as u8, job, ..Message::zeroed() }
    }

    /// Returns the message's purpose.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] for a kind that does not exist.
    pub fn kind(&self) -> Result<Kind, Error> {
        Kind::from_byte(self.kind).ok_or_else(|| Error::peer_fault(format!("message kind {}", self.kind)))
    }

    /// Says where and what the payload is.
    pub fn describe(&mut self, shape: &Shape, segment: u32, offset: u64, bytes: u64) {
        self.segment = segment;
        self.offset = offset;
        self.bytes = bytes;
        match shape {
            Shape::None => self.payload = 0,
            Shape::Bytes => self.payload = 1,
            Shape::Value => self.payload = 3,
            Shape::Tensor(tensor) => {
                self.payload = 2;
                self.element_kind = tensor.element.kind;
                self.element_bytes = tensor.element.bytes;
                self.dimensions = tensor.shape().len() as u8;
                self.shape[..tensor.shape().len()].copy_from_slice(tensor.shape());
            }
        }
    }

    /// Returns this message with the payload that `other` describes or embeds.
    #[must_use]
    pub fn with_payload_of(mut self, other: &Message) -> Message {
        let Message { payload, element_kind, element_bytes, dimensions, bytes, shape, .. } = *other;
        self.flags |= other.flags & FLAG_EMBEDDED;
        Message { payload, element_kind, element_bytes, dimensions, bytes, shape, ..self }
    }

    /// Room for a payload of that shape in the message itself, bytes.
    fn room(shape: &Shape) -> usize {
        let dimensions = if let Shape::Tensor(tensor) = shape { tensor.shape().len() } else { 0 };
        (DIMENSIONS_MAX - dimensions) * size_of::<u64>()
    }

    /// Describes a payload that fits into the message, and gives the place for its bytes; `None`: it does not fit.
    pub fn embed(&mut self, shape: &Shape, bytes: u64) -> Option<&mut [u8]> {
        let room = Message::room(shape);
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| 0 < bytes && bytes <= room)?;
        self.describe(shape, 0, 0, bytes as u64);
        self.flags |= FLAG_EMBEDDED;
        let start = size_of_val(&self.shape) - room;
        Some(&mut bytemuck::bytes_of_mut(&mut self.shape)[start..start + bytes])
    }

    /// The payload that lies in the message itself, if it does. Call it on a copy of the message whose [`shape`](Message::shape) was judged.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if it is said to, and cannot.
    pub fn embedded(&self, shape: &Shape) -> Result<Option<&[u8]>, Error> {
        if self.flags & FLAG_EMBEDDED == 0 {
            return Ok(None);
        }
        let room = Message::room(shape);
        let start = size_of_val(&self.shape) - room;
        match usize::try_from(self.bytes) {
            Ok(bytes) if bytes <= room && !self.is_packed() => {
                Ok(Some(&bytemuck::bytes_of(&self.shape)[start..start + bytes]))
            }
            _ => Err(Error::peer_fault(format!("{} bytes in a message", self.bytes))),
        }
    }

    /// Says that the slot holds packed pages of a payload of `bytes`.
    pub fn describe_packed(&mut self, bytes: u64) {
        self.flags |= FLAG_PACKED;
        if self.payload != 2 {
            self.shape[0] = bytes;
        }
    }

    /// Returns true if the slot holds packed pages.
    pub fn is_packed(&self) -> bool {
        self.flags & FLAG_PACKED != 0
    }

    /// Length of the payload, unpacked, bytes.
    pub fn payload_bytes(&self, shape: &Shape) -> u64 {
        match shape {
            _ if !self.is_packed() => self.bytes,
            Shape::Tensor(tensor) => tensor.bytes(),
            _ => self.shape[0],
        }
    }

    /// Returns the payload's kind, checked: known element type, and a shape whose bytes are exactly the payload's.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] naming what is wrong.
    pub fn shape(&self) -> Result<Shape, Error> {
        match self.payload {
            _ if self.is_packed() && self.bytes == 0 => Err(Error::peer_fault("packed pages of no bytes")),
            0 if self.bytes == 0 => Ok(Shape::None),
            0 => Err(Error::peer_fault("bytes without a payload")),
            1 => Ok(Shape::Bytes),
            3 => Ok(Shape::Value),
            2 => {
                let element = ElementType { kind: self.element_kind, bytes: self.element_bytes };
                if !element.is_known() {
                    return Err(Error::peer_fault(format!("element type {element:?}")));
                }
                let dimensions = usize::from(self.dimensions);
                if dimensions > DIMENSIONS_MAX {
                    return Err(Error::peer_fault(format!("{dimensions} dimensions")));
                }
                let tensor = Tensor::new(element, &self.shape[..dimensions])
                    .map_err(|error| Error::peer_fault(error.to_string()))?;
                if !self.is_packed() && tensor.bytes() != self.bytes {
                    return Err(Error::peer_fault("a shape that does not fit the payload's length"));
                }
                Ok(Shape::Tensor(tensor))
            }
            other => Err(Error::peer_fault(format!("payload kind {other}"))),
        }
    }
}

/// Kind of a payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// No payload at all.
    None,
    /// Bytes without a type.
    Bytes,
    /// A C-contiguous array of numbers.
    Tensor(Tensor),
    /// Bytes that describe themselves (`docs/formats/values.md`).
    Value,
}

/// Element type of an array, in the letters of numpy's array interface: `b` bool, `i` signed, `u` unsigned, `f`
/// float, `c` complex; and the bytes of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ElementType {
    /// `b`, `i`, `u`, `f` or `c`.
    pub kind: u8,
    /// Bytes of one element.
    pub bytes: u8,
}

impl ElementType {
    /// Floating-point number of 32 bits.
    pub const F32: ElementType = ElementType { kind: b'f', bytes: 4 };
    /// Floating-point number of 64 bits.
    pub const F64: ElementType = ElementType { kind: b'f', bytes: 8 };
    /// Unsigned integer of 8 bits.
    pub const U8: ElementType = ElementType { kind: b'u', bytes: 1 };
    /// Unsigned integer of 64 bits.
    pub const U64: ElementType = ElementType { kind: b'u', bytes: 8 };
    /// Signed integer of 64 bits.
    pub const I64: ElementType = ElementType { kind: b'i', bytes: 8 };

    /// Returns true if both sides of a session know it.
    pub fn is_known(self) -> bool {
        matches!(
            (self.kind, self.bytes),
            (b'b', 1) | (b'i' | b'u', 1 | 2 | 4 | 8) | (b'f', 2 | 4 | 8) | (b'c', 8 | 16)
        )
    }
}

/// Element type and shape of a C-contiguous array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    element: ElementType,
    dimensions: u8,
    shape: [u64; DIMENSIONS_MAX],
    bytes: u64,
}

impl Tensor {
    /// Describes an array; `shape` outermost first, empty for a scalar.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedType`] for an unknown element type, more than 8 dimensions, or a size beyond u64.
    pub fn new(element: ElementType, shape: &[u64]) -> Result<Tensor, Error> {
        if !element.is_known() {
            return Err(Error::UnsupportedType(format!(
                "element type '{}{}'",
                char::from(element.kind),
                element.bytes
            )));
        }
        if shape.len() > DIMENSIONS_MAX {
            return Err(Error::UnsupportedType(format!(
                "an array of {} dimensions (at most {DIMENSIONS_MAX})",
                shape.len()
            )));
        }
        let bytes = shape
            .iter()
            .try_fold(u64::from(element.bytes), |bytes, &n| bytes.checked_mul(n))
            .ok_or_else(|| Error::UnsupportedType("an array of more than 2^64 bytes".into()))?;
        let mut own = [0; DIMENSIONS_MAX];
        own[..shape.len()].copy_from_slice(shape);
        Ok(Tensor { element, dimensions: shape.len() as u8, shape: own, bytes })
    }

    /// Type of the array's elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Shape, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape[..usize::from(self.dimensions)]
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Hashes an operation's name as it stands in a message: FNV-1a, 64 bits. A server refuses two names that collide.
pub const fn operation_hash(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_tensor_reads_back() {
        let tensor = Tensor::new(ElementType::F32, &[200_000, 30]).unwrap();
        let mut message = Message::new(Kind::Call, 7);
        message.describe(&Shape::Tensor(tensor), 1, 256, tensor.bytes());
        assert_eq!(message.shape().unwrap(), Shape::Tensor(tensor));
        assert_eq!(message.bytes, 24_000_000);
    }

    #[test]
    fn short_payloads_fit_behind_their_shape() {
        let bytes: Vec<u8> = (1..=64).collect();
        let tensor = |shape: &[u64]| Shape::Tensor(Tensor::new(ElementType::U8, shape).unwrap());
        for (shape, room) in [
            (Shape::Bytes, 64),
            (Shape::Value, 64),
            (tensor(&[]), 64),
            (tensor(&[56]), 56),
            (tensor(&[1, 2, 3, 4, 1, 1, 1]), 8),
            (tensor(&[1; 8]), 0),
        ] {
            for count in 1..=65 {
                let mut message = Message::new(Kind::Call, 7);
                match message.embed(&shape, count) {
                    Some(place) => place.copy_from_slice(&bytes[..count as usize]),
                    None => {
                        assert!(count > room, "{shape:?} {count}");
                        assert_eq!(message.embedded(&shape).unwrap(), None);
                        continue;
                    }
                }
                assert!(count <= room, "{shape:?} {count}");
                assert_eq!(message.embedded(&shape).unwrap(), Some(&bytes[..count as usize]));
                message.bytes = room + 1;
                assert!(matches!(message.embedded(&shape), Err(Error::PeerFault { .. })));
                message.bytes = count;
                message.flags |= FLAG_PACKED;
                assert!(matches!(message.embedded(&shape), Err(Error::PeerFault { .. })));
            }
        }
    }

    #[test]
    fn lies_about_the_shape_are_faults() {
        let tensor = Tensor::new(ElementType::F64, &[4, 4]).unwrap();
        let mut message = Message::new(Kind::Call, 7);
        message.describe(&Shape::Tensor(tensor), 0, 0, tensor.bytes());
        let mut liar = message;
        liar.shape[0] = u64::MAX;
        assert!(matches!(liar.shape(), Err(Error::PeerFault { .. })));
        liar = message;
        liar.dimensions = 9;
        assert!(matches!(liar.shape(), Err(Error::PeerFault { .. })));
        liar = message;
        liar.element_kind = b'O';
        assert!(matches!(liar.shape(), Err(Error::PeerFault { .. })));
        liar = message;
        liar.bytes += 1;
        assert!(matches!(liar.shape(), Err(Error::PeerFault { .. })));
        liar = message;
        liar.payload = 9;
        assert!(matches!(liar.shape(), Err(Error::PeerFault { .. })));
    }
}
