// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Synchronous calls: seal, open, pack, unpack on the caller's core, for services that need no chain.
//!
//! Flow     slices ──▶ kernel; from 64 KiB on the call is counted in the stats page
//! Owner    slices are borrowed for the call; packing works with tables that the thread keeps

use super::{Codec, CodecError, SealKey, Unpacked};
use crate::engine::Engine;
use crate::observe::{self, Executor};
use memlift_kernels::aead::WrongTag;
use memlift_spec::{Effort, Format, Opcode};
use std::cell::RefCell;

/// Calls below this are not counted: looking at the clock would be noticed.
const COUNTED_BYTES: usize = 64 * 1024;

thread_local! {
    static CODEC: RefCell<Codec> = RefCell::new(Codec::new());
}

fn counted<T, E>(opcode: Opcode, bytes: usize, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    if bytes < COUNTED_BYTES {
        return work();
    }
    let start_ns = observe::now_ns();
    let result = work();
    let took_ns = observe::now_ns().saturating_sub(start_ns);
    observe::record(Executor::InlineTemporal, opcode, bytes as u64, took_ns, result.is_ok());
    result
}

impl Engine {
    /// Encrypts `source` into `target` with AES-GCM; gives the tag. A (key, nonce) pair seals one message, ever.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn seal(
        &self,
        key: &SealKey,
        nonce: &[u8; 12],
        aad: &[u8],
        source: &[u8],
        target: &mut [u8],
    ) -> [u8; 16] {
        assert_eq!(target.len(), source.len(), "seal: target and source must have the same length");
        let sealed = counted(Opcode::SEAL, source.len(), || {
            let (from, to) = (source.as_ptr(), target.as_mut_ptr());
            // SAFETY: both slices have this length, and a unique borrow overlaps no other.
            Ok::<_, WrongTag>(unsafe { key.expanded().seal(nonce, aad, from, to, source.len()) })
        });
        sealed.expect("sealing has no wrong tag")
    }

    /// Decrypts `source` into `target`.
    ///
    /// # Errors
    ///
    /// [`WrongTag`]: the target is zeroed.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn open_sealed(
        &self,
        key: &SealKey,
        nonce: &[u8; 12],
        aad: &[u8],
        tag: &[u8; 16],
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(), WrongTag> {
        assert_eq!(target.len(), source.len(), "open_sealed: target and source must have the same length");
        counted(Opcode::OPEN, source.len(), || {
            let (from, to) = (source.as_ptr(), target.as_mut_ptr());
            // SAFETY: both slices have this length, and a unique borrow overlaps no other.
            unsafe { key.expanded().open(nonce, aad, tag, from, to, source.len()) }
        })
    }

    /// Packs one whole message; gives the bytes written. [`bound`](super::bound) bytes of target always suffice.
    ///
    /// # Errors
    ///
    /// [`CodecError::TargetTooSmall`], [`CodecError::Unsupported`].
    pub fn pack(
        &self,
        format: Format,
        effort: Effort,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<usize, CodecError> {
        CODEC.with_borrow_mut(|codec| {
            counted(Opcode::PACK, source.len(), || codec.pack(format, effort, source, target))
        })
    }

    /// Unpacks the message at the start of `source`.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    pub fn unpack(&self, format: Format, source: &[u8], target: &mut [u8]) -> Result<Unpacked, CodecError> {
        CODEC.with_borrow_mut(|codec| {
            counted(Opcode::UNPACK, source.len(), || codec.unpack(format, source, target))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::bound;

    #[test]
    fn what_is_packed_and_sealed_comes_back_in_every_format() {
        let engine = Engine::global();
        let key = SealKey::new(&[3; 32]).unwrap();
        let message: Vec<u8> = (0..100_000u32).map(|index| (index / 300) as u8).collect();
        for format in Format::ALL {
            let mut packed = vec![0; bound(format, message.len())];
            let written = engine.pack(format, Effort::Default, &message, &mut packed).unwrap();
            assert!(written < message.len() / 4, "{}: {written}", format.name());
            let mut sealed = vec![0; written];
            let tag = engine.seal(&key, &[9; 12], b"aad", &packed[..written], &mut sealed);
            let mut opened = vec![0; written];
            engine.open_sealed(&key, &[9; 12], b"aad", &tag, &sealed, &mut opened).unwrap();
            let mut again = vec![0; message.len()];
            let done = engine.unpack(format, &opened, &mut again).unwrap();
            assert_eq!((done.read, done.written), (written, message.len()));
            assert_eq!(again, message);
            assert_eq!(engine.open_sealed(&key, &[9; 12], b"", &tag, &sealed, &mut opened), Err(WrongTag));
            assert!(opened.iter().all(|&byte| byte == 0));
        }
    }
}
