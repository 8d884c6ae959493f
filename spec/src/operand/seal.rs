// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operand block of SEAL and OPEN: key, nonce, additional data and tag of one AES-GCM message.
//!
//! Layout   0 opcode u8 · 1 version u8 · 2 block bytes u16 · 4 reserved u32
//!          8 key address u64 · 16 key bytes u32 (16: AES-128, 32: AES-256) · 20 prepared kind u32
//!         24 prepared address u64 · 32 additional data address u64 · 40 additional data bytes u64
//!         48 nonce 12 bytes · 60 hints u32 · 64 tag 16 bytes (SEAL writes it, OPEN reads it)
//!         80 reserved 48 bytes · 128 end
//! Order    SEAL writes the tag before the completion's status. After any other status than success the tag's
//!          bytes mean nothing (SEAL) or are unchanged (OPEN).
//! Owner    the submitter's memory. Key and additional data are only read. The block must not overlap the target.
//!
//! `prepared` saves the expansion of the key: an address of something that only the submitter's own kernels
//! understand, named by `prepared_kind`. Who does not know the kind takes the key's bytes, which are always there.
//!
//! Source: NIST SP 800-38D (96-bit nonces, 128-bit tags).

use crate::Opcode;
use crate::limits::CACHE_LINE_BYTES;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// `prepared` is 0.
pub const PREPARED_NONE: u32 = 0;
/// `prepared` is the address of a key that `memlift-kernels`, as linked into the submitting process, expanded from
/// the same bytes.
pub const PREPARED_KERNELS: u32 = 1;

/// SEAL, OPEN. See the module's header for the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct SealBlock {
    /// [`Opcode::SEAL`] or [`Opcode::OPEN`].
    pub opcode: u8,
    /// 1.
    pub version: u8,
    /// 128.
    pub block_bytes: u16,
    /// 0.
    pub reserved: u32,
    /// Where the key's bytes are.
    pub key_address: u64,
    /// 16 or 32.
    pub key_bytes: u32,
    /// What `prepared_address` points to: [`PREPARED_NONE`], [`PREPARED_KERNELS`].
    pub prepared_kind: u32,
    /// The expanded key, or 0.
    pub prepared_address: u64,
    /// Additional data: checked, not sealed. Any address for 0 bytes.
    pub aad_address: u64,
    /// Bytes of additional data.
    pub aad_bytes: u64,
    /// Never used twice with one key.
    pub nonce: [u8; NONCE_BYTES],
    /// [`HINT_PRIVATE`](super::HINT_PRIVATE) or 0.
    pub hints: u32,
    /// SEAL writes it, OPEN compares it in constant time.
    pub tag: [u8; TAG_BYTES],
    /// 0.
    pub reserved2: [u64; 6],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<SealBlock>() == 2 * CACHE_LINE_BYTES && align_of::<SealBlock>() == CACHE_LINE_BYTES);
    assert!(offset_of!(SealBlock, opcode) == 0);
    assert!(offset_of!(SealBlock, version) == 1);
    assert!(offset_of!(SealBlock, block_bytes) == 2);
    assert!(offset_of!(SealBlock, reserved) == 4);
    assert!(offset_of!(SealBlock, key_address) == 8);
    assert!(offset_of!(SealBlock, key_bytes) == 16);
    assert!(offset_of!(SealBlock, prepared_kind) == 20);
    assert!(offset_of!(SealBlock, prepared_address) == 24);
    assert!(offset_of!(SealBlock, aad_address) == 32);
    assert!(offset_of!(SealBlock, aad_bytes) == 40);
    assert!(offset_of!(SealBlock, nonce) == 48);
    assert!(offset_of!(SealBlock, hints) == 60);
    assert!(offset_of!(SealBlock, tag) == 64);
    assert!(offset_of!(SealBlock, reserved2) == 80);
};

impl SealBlock {
    /// Size of the block in bytes.
    pub const BYTES: usize = core::mem::size_of::<SealBlock>();
    /// What `version` is.
    pub const VERSION: u8 = 1;

    /// A block for SEAL, without additional data.
    pub const fn seal(key_address: u64, key_bytes: u32, nonce: [u8; NONCE_BYTES]) -> SealBlock {
        SealBlock {
            opcode: Opcode::SEAL.0,
            version: SealBlock::VERSION,
            block_bytes: SealBlock::BYTES as u16,
            reserved: 0,
            key_address,
            key_bytes,
            prepared_kind: PREPARED_NONE,
            prepared_address: 0,
            aad_address: 0,
            aad_bytes: 0,
            nonce,
            hints: 0,
            tag: [0; TAG_BYTES],
            reserved2: [0; 6],
        }
    }

    /// A block for OPEN, without additional data.
    pub const fn open(
        key_address: u64,
        key_bytes: u32,
        nonce: [u8; NONCE_BYTES],
        tag: [u8; TAG_BYTES],
    ) -> SealBlock {
        let mut block = SealBlock::seal(key_address, key_bytes, nonce);
        block.opcode = Opcode::OPEN.0;
        block.tag = tag;
        block
    }

    /// The same with additional data.
    #[must_use]
    pub const fn with_aad(mut self, aad_address: u64, aad_bytes: u64) -> SealBlock {
        self.aad_address = aad_address;
        self.aad_bytes = aad_bytes;
        self
    }

    /// The same with hints.
    #[must_use]
    pub const fn with_hints(mut self, hints: u32) -> SealBlock {
        self.hints = hints;
        self
    }

    /// The same with an expanded key.
    #[must_use]
    pub const fn with_prepared(mut self, prepared_kind: u32, prepared_address: u64) -> SealBlock {
        self.prepared_kind = prepared_kind;
        self.prepared_address = prepared_address;
        self
    }
}
