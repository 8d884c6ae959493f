// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The descriptor: one operation on memory in 64 bytes, in the layout of Intel DSA (`dsa_hw_desc`).
//!
//! - **Layout**
//!   - 0 pasid:20 · 11 reserved · privileged:1   u32 (software writes 0)
//!   - 4 flags:24 · opcode:8                     u32
//!   - 8 completion address                      u64, 32-byte aligned
//!   - 16 source / pattern / batch list address   u64
//!   - 24 target / second source / pattern        u64
//!   - 32 size in bytes / descriptors in a batch  u32
//!   - 36 interrupt handle                        u16
//!   - 38 reserved                                u16
//!   - 40 operation specific                      24 bytes, see the accessors' docs
//! - **Owner** a descriptor contains addresses of the process that wrote it, so it is meaningless in another process. Data that crosses a
//!   process boundary uses offsets into regions.
//! - **Order** little endian; only x86-64 and other little-endian machines are supported.

use crate::limits;

/// The operation of a descriptor, and the name of a kind of work in statistics and decisions.
///
/// | range | owner |
/// |---|---|
/// | 0x00–0x7f | Intel DSA / IAA |
/// | 0x80–0x9f | memlift's names of work in statistics: strided copies, transforms; no descriptor has them |
/// | 0xa0–0xff | free |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($code);)*
            /// Every opcode with a name, in numeric order.
            pub const NAMED: &'static [Opcode] = &[$(Opcode::$name),*];
            /// Returns the short lower-case name, as in stats, `explain` and bench rows; `"unknown"` if there is none.
            pub const fn name(self) -> &'static str {
                match self.0 { $($code => $text,)* _ => "unknown" }
            }
        }
    };
}

opcodes! {
    /// Does nothing and succeeds.
    NOOP = 0x00, "noop";
    /// Executes an array of descriptors; source is the array, size its length.
    BATCH = 0x01, "batch";
    /// Completes when everything that was submitted before it to the same queue has completed.
    DRAIN = 0x02, "drain";
    /// Copies; source and target may overlap.
    MEMMOVE = 0x03, "memmove";
    /// Fills with an 8-byte pattern (16 bytes with [`Flags::FILL_16`]).
    FILL = 0x04, "fill";
    /// Compares two sources.
    COMPARE = 0x05, "compare";
    /// Compares a source with a repeated 8-byte pattern.
    COMPARE_PATTERN = 0x06, "compare_pattern";
    /// Writes a delta record of the differences between two sources, in units of 8 bytes.
    DELTA_CREATE = 0x07, "delta_create";
    /// Applies a delta record to a target.
    DELTA_APPLY = 0x08, "delta_apply";
    /// Copies one source to two targets.
    DUALCAST = 0x09, "dualcast";
    /// Fetches address translations for a range.
    TRANSLATION_FETCH = 0x0a, "translation_fetch";
    /// CRC-32C of a source.
    CRC = 0x10, "crc";
    /// Copies and returns the CRC-32C of the copied bytes.
    COPY_CRC = 0x11, "copy_crc";
    /// Checks T10 data integrity fields.
    DIF_CHECK = 0x12, "dif_check";
    /// Copies and inserts T10 data integrity fields.
    DIF_INSERT = 0x13, "dif_insert";
    /// Copies and strips T10 data integrity fields.
    DIF_STRIP = 0x14, "dif_strip";
    /// Copies and replaces T10 data integrity fields.
    DIF_UPDATE = 0x15, "dif_update";
    /// Generates a separate buffer of T10 data integrity fields.
    DIX_GENERATE = 0x17, "dix_generate";
    /// Writes a range back from the caches and evicts it.
    CACHE_FLUSH = 0x20, "cache_flush";
    /// Statistics only: a copy of equally spaced rows to a packed target.
    STRIDED_COPY = 0x80, "strided_copy";
    /// Statistics only: AES-GCM, plaintext to ciphertext.
    SEAL = 0x90, "seal";
    /// Statistics only: AES-GCM, ciphertext to plaintext.
    OPEN = 0x91, "open";
    /// Statistics only: compression.
    PACK = 0x92, "pack";
    /// Statistics only: decompression.
    UNPACK = 0x93, "unpack";
    /// Statistics only: a walk over pointers, at the nodes or over a cache of theirs.
    WALK = 0x94, "walk";
}

/// The 24 flag bits of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Flags(pub u32);

impl Flags {
    /// No flag is set.
    pub const NONE: Flags = Flags(0);
    /// In a batch: the member starts only when all earlier members are done, and is skipped if one of them failed.
    pub const FENCE: Flags = Flags(0x0001);
    /// The device may block on a page fault instead of completing partially.
    pub const BLOCK_ON_FAULT: Flags = Flags(0x0002);
    /// The completion address is valid.
    pub const COMPLETION_VALID: Flags = Flags(0x0004);
    /// A completion record is requested.
    pub const REQUEST_COMPLETION: Flags = Flags(0x0008);
    /// An interrupt is requested.
    pub const REQUEST_INTERRUPT: Flags = Flags(0x0010);
    /// Traffic-class selector bit, unused by software.
    pub const COMPLETION_STEERING: Flags = Flags(0x0020);
    /// Compares the result with the expected one; the status is 2 if they differ.
    pub const CHECK_RESULT: Flags = Flags(0x0080);
    /// The target will be read soon, so it is left in cache. Without this flag software may store past the cache.
    pub const CACHE_CONTROL: Flags = Flags(0x0100);
    /// Traffic class of address 1.
    pub const ADDRESS1_CLASS: Flags = Flags(0x0200);
    /// Traffic class of address 2.
    pub const ADDRESS2_CLASS: Flags = Flags(0x0400);
    /// Traffic class of address 3.
    pub const ADDRESS3_CLASS: Flags = Flags(0x0800);
    /// Traffic class of the completion record.
    pub const COMPLETION_CLASS: Flags = Flags(0x1000);
    /// Writes become visible in the order of their addresses.
    pub const STRICT_ORDER: Flags = Flags(0x2000);
    /// Reads the target back before completing.
    pub const READBACK: Flags = Flags(0x4000);
    /// Steering tag for the target.
    pub const TARGET_STEERING: Flags = Flags(0x8000);
    /// CRC: the seed is at `crc_seed_address`.
    pub const CRC_SEED_ADDRESS: Flags = Flags(1 << 16);
    /// CRC: seed and result are neither inverted nor reflected.
    pub const CRC_BYPASS_INVERT: Flags = Flags(1 << 17);
    /// CRC: the data is not reflected.
    pub const CRC_BYPASS_REFLECT: Flags = Flags(1 << 18);
    /// FILL: the pattern has 16 bytes.
    pub const FILL_16: Flags = Flags(1 << 18);
    /// All bits of the flags field.
    pub const MASK: Flags = Flags(0x00ff_ffff);

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns true if every flag of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A request for one operation. Copying a descriptor copies none of the memory that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// `pasid[19:0]`, reserved, `privileged[31]`; software writes 0.
    pub pasid: u32,
    /// `flags[23:0]`, `opcode[31:24]`; see [`Descriptor::flags`] and [`Descriptor::opcode`].
    pub flags_opcode: u32,
    /// Address of the [`Completion`](crate::Completion), aligned to 32 bytes.
    pub completion_address: u64,
    /// Source; for FILL the pattern itself; for BATCH the address of the list. (The pattern of COMPARE_PATTERN is in `target`.)
    pub source: u64,
    /// Target; second source of COMPARE and DELTA_CREATE; pattern of COMPARE_PATTERN.
    pub target: u64,
    /// Number of bytes; for BATCH the number of descriptors.
    pub size: u32,
    /// Interrupt handle of the completion interrupt.
    pub interrupt_handle: u16,
    /// Reserved, must be 0.
    pub reserved: u16,
    /// Operation-specific words at offsets 40, 48 and 56.
    pub operation: [u64; 3],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Descriptor>() == limits::DESCRIPTOR_BYTES);
    assert!(align_of::<Descriptor>() == limits::DESCRIPTOR_BYTES);
    assert!(offset_of!(Descriptor, pasid) == 0);
    assert!(offset_of!(Descriptor, flags_opcode) == 4);
    assert!(offset_of!(Descriptor, completion_address) == 8);
    assert!(offset_of!(Descriptor, source) == 16);
    assert!(offset_of!(Descriptor, target) == 24);
    assert!(offset_of!(Descriptor, size) == 32);
    assert!(offset_of!(Descriptor, interrupt_handle) == 36);
    assert!(offset_of!(Descriptor, reserved) == 38);
    assert!(offset_of!(Descriptor, operation) == 40);
    assert!(cfg!(target_endian = "little"));
};

impl Descriptor {
    /// Returns a descriptor of `opcode` with all other fields zero.
    pub const fn new(opcode: Opcode, flags: Flags) -> Descriptor {
        Descriptor {
            pasid: 0,
            flags_opcode: (opcode.0 as u32) << 24 | (flags.0 & Flags::MASK.0),
            completion_address: 0,
            source: 0,
            target: 0,
            size: 0,
            interrupt_handle: 0,
            reserved: 0,
            operation: [0; 3],
        }
    }

    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        Opcode((self.flags_opcode >> 24) as u8)
    }

    /// Returns the 24 flag bits.
    pub const fn flags(&self) -> Flags {
        Flags(self.flags_opcode & Flags::MASK.0)
    }

    /// Sets `flags` in addition to those already set.
    pub const fn add_flags(&mut self, flags: Flags) {
        self.flags_opcode |= flags.0 & Flags::MASK.0;
    }

    /// COMPARE, COMPARE_PATTERN: returns the expected result, u8 at offset 40.
    pub const fn expected_result(&self) -> u8 {
        self.operation[0] as u8
    }

    /// DUALCAST: returns the second target, u64 at offset 40.
    pub const fn target2(&self) -> u64 {
        self.operation[0]
    }

    /// DELTA_CREATE: returns the address of the record, u64 at offset 40.
    pub const fn delta_address(&self) -> u64 {
        self.operation[0]
    }

    /// DELTA_CREATE: returns the room for the record in bytes, u32 at offset 48.
    pub const fn delta_bytes_max(&self) -> u32 {
        self.operation[1] as u32
    }

    /// DELTA_CREATE: returns the mask of acceptable results, u8 at offset 56.
    pub const fn expected_result_mask(&self) -> u8 {
        self.operation[2] as u8
    }

    /// DELTA_APPLY: returns the size of the record at `source`, u32 at offset 40.
    pub const fn delta_record_bytes(&self) -> u32 {
        self.operation[0] as u32
    }

    /// CRC, COPY_CRC: returns the seed, u32 at offset 40. 0 gives the standard CRC-32C; the previous value continues it.
    pub const fn crc_seed(&self) -> u32 {
        self.operation[0] as u32
    }

    /// CRC, COPY_CRC with [`Flags::CRC_SEED_ADDRESS`]: returns the address of the seed, u64 at offset 48.
    pub const fn crc_seed_address(&self) -> u64 {
        self.operation[1]
    }

    /// FILL with [`Flags::FILL_16`]: returns the upper 8 bytes of the pattern, u64 at offset 40.
    pub const fn pattern_upper(&self) -> u64 {
        self.operation[0]
    }
}
