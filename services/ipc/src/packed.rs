// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packed transfer: a payload that crosses in packed pages and so takes less of the pools, for processor time on both sides.
//!
//! - **Flow** `Outgoing` ──[`pack`]──▶ private stream ──copied──▶ slot of the stream's size ──copied──▶ private ──[`unpack`]──▶ `Payload`
//! - **Layout** one message of `kernels/src/pages/message.rs` for every MiB of the payload, the last for what is left
//! - **Order** the CRC is the payload's, not the stream's: taken before it is packed, compared after it was unpacked
//! - **Owner** neither codec sees shared memory: the peer could change what was judged. What arrived belongs to this process alone,
//!   and its slot is free at once
//! - **Not here** payloads below a page, and those that do not become an eighth smaller: they cross as they are
#![expect(unsafe_code, reason = "reads this process's arrays")]

use crate::error::Error;
use crate::payload::{Outgoing, Payload};
use crate::transfer::{Transfer, crc_of};
use memlift_kernels::pages::{Effort, Packer, bound};
use std::cell::RefCell;

/// Smallest payload that is packed, bytes.
pub(crate) const PACK_FROM: u64 = 4096;
/// Payload of one message of the stream, bytes.
const STEP: usize = 1 << 20;

thread_local! {
    static PACKER: RefCell<Box<Packer>> = RefCell::new(Box::new(Packer::new()));
}

/// A payload's stream.
pub(crate) struct Packed {
    stream: Vec<u8>,
    /// The payload's CRC-32C, if it was wanted.
    pub crc: Option<u32>,
}

impl Packed {
    /// Returns the stream as data to send, with the shape of the payload that it holds.
    pub fn outgoing(&self, data: &Outgoing<'_>) -> Outgoing<'_> {
        let mut stream = Outgoing::from(self.stream.as_slice());
        stream.shape = data.shape.clone();
        stream
    }
}

/// Packs the data; `None`: it is below [`PACK_FROM`] or does not become an eighth smaller.
pub(crate) fn pack(data: &Outgoing<'_>, crc: bool) -> Option<Packed> {
    let bytes = data.bytes() as usize;
    if data.bytes() < PACK_FROM {
        return None;
    }
    let mut gathered = Vec::new();
    let source = if data.is_contiguous() {
        // SAFETY: the maker of `data` vouches for `bytes` readable bytes, which nobody writes while it lives.
        unsafe { std::slice::from_raw_parts(data.source(), bytes) }
    } else {
        gathered.resize(bytes, 0);
        // SAFETY: the vector is as long as the data, and new.
        unsafe { data.copy_here(gathered.as_mut_ptr(), Transfer::PLAIN) };
        &gathered
    };
    let mut stream = Vec::new();
    PACKER.with_borrow_mut(|packer| {
        for (step, piece) in source.chunks(STEP).enumerate() {
            let length = stream.len();
            stream.resize(length + bound(piece.len()), 0);
            let written = packer.pack_message(piece, &mut stream[length..], Effort::Fast)?;
            stream.truncate(length + written);
            // Data that does not pack well at its start is not packed to its end.
            if stream.len() > (step * STEP + piece.len()) / 8 * 7 {
                return None;
            }
        }
        Some(())
    })?;
    // SAFETY: `source` is a borrowed slice of `data.bytes()` bytes.
    let crc = crc.then(|| unsafe { crc_of(source.as_ptr(), data.bytes()) });
    Some(Packed { stream, crc })
}

/// Unpacks a stream into memory of this process alone.
///
/// # Errors
///
/// [`Error::PeerFault`] if it is no stream of `bytes` bytes; [`Error::Memory`] if there is no room for them.
pub(crate) fn unpack(packed: &Payload, bytes: u64) -> Result<Payload, Error> {
    let stream = packed.to_vec();
    let corrupt = || Error::peer_fault("a packed payload that is none, or of another length than it says");
    Payload::private(packed.shape().clone(), bytes, |target| {
        let mut left = stream.as_slice();
        PACKER.with_borrow_mut(|packer| {
            for piece in target.chunks_mut(STEP) {
                let (read, written) = packer.unpack_message(left, piece).map_err(|_| corrupt())?;
                if written != piece.len() {
                    return Err(corrupt());
                }
                left = &left[read..];
            }
            if left.is_empty() { Ok(()) } else { Err(corrupt()) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrived(stream: &[u8]) -> Payload {
        Payload::private(crate::message::Shape::Bytes, stream.len() as u64, |target| {
            target.copy_from_slice(stream);
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn what_was_packed_comes_back_and_no_more() {
        let random: Vec<u8> = (0..200_000u64)
            .map(|i| (i * i * i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0])
            .collect();
        assert!(pack(&Outgoing::from(random.as_slice()), false).is_none(), "it would not become smaller");
        for bytes in [PACK_FROM as usize, 5000, STEP, STEP + 1, 3 * STEP + 4097] {
            let data: Vec<u8> = (0..bytes).map(|i| (i / 64) as u8).collect();
            let packed = pack(&Outgoing::from(data.as_slice()), true).expect("it packs");
            assert!(packed.stream.len() < bytes / 2);
            let view = arrived(&packed.stream);
            let whole = unpack(&view, bytes as u64).unwrap();
            assert_eq!((whole.to_vec(), Some(whole.crc32c())), (data, packed.crc));
            for lie in [bytes as u64 - 1, bytes as u64 + 1, 0, bytes as u64 + (1 << 21)] {
                assert!(matches!(unpack(&view, lie), Err(Error::PeerFault { .. })), "{lie} of {bytes}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_stream_is_taken_or_refused(stream in proptest::collection::vec(any::<u8>(), 0..300), bytes in 0u64..20_000) {
            match unpack(&arrived(&stream), bytes) {
                Ok(whole) => prop_assert_eq!(whole.bytes(), bytes),
                Err(error) => prop_assert!(matches!(error, Error::PeerFault { .. }), "{error}"),
            }
        }
    }
}
