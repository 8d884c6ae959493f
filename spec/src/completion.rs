// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The completion record: tells the submitter how an operation ended (`dsa_completion_record`).
//!
//! - **Layout** 0 status u8 · 1 result u8 · 2 fault info u8 · 3 reserved u8 · 4 bytes completed u32 (descriptors completed for a batch) ·
//!   8 fault address u64 · 16 value: 16 bytes, depends on the operation.
//! - **Order** `status` is stored last, with Release; a waiter loads it with Acquire. 0 means that the operation has not ended.
//! - **Owner** the submitter's memory, lent to the backend until the operation has ended.
//! - **Not here** waiting: the engine does that.
//!
//! Codes below 0x40 are those of the hardware; from 0x40 on they are memlift's own.

use crate::limits;

/// How an operation ended: the low 7 bits of the status byte. Bit 7 means that a faulting access was a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Status(pub u8);

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Status = Status($code);)*
            /// Returns the meaning of the code as text.
            pub const fn text(self) -> &'static str {
                match self.code() { $($code => $text,)* _ => "unknown status" }
            }
        }
    };
}

statuses! {
    NONE = 0x00, "not completed yet";
    SUCCESS = 0x01, "success";
    SUCCESS_PREDICATE = 0x02, "success, but the result is not the expected one";
    PAGE_FAULT = 0x03, "page fault: completed in part";
    PAGE_RESPONSE_INVALID = 0x04, "page request refused";
    BATCH_FAILED = 0x05, "at least one member of the batch failed";
    BATCH_LIST_FAULT = 0x06, "page fault on the batch's descriptor list";
    DELTA_ORDER = 0x07, "delta record: offsets do not increase";
    DELTA_RANGE = 0x08, "delta record: offset outside the target";
    DIF_ERROR = 0x09, "data integrity field does not match";
    BAD_OPCODE = 0x10, "operation not supported by this backend";
    BAD_FLAGS = 0x11, "flags not allowed for this operation";
    BAD_RESERVED = 0x12, "a reserved field is not zero";
    BAD_SIZE = 0x13, "transfer size out of range";
    BAD_COUNT = 0x14, "descriptor count of the batch out of range";
    BAD_DELTA_SIZE = 0x15, "delta record size out of range";
    OVERLAP = 0x16, "buffers overlap";
    DUALCAST_ALIGN = 0x17, "the two targets differ in their low 12 address bits";
    LIST_ALIGN = 0x18, "descriptor list is not 64-byte aligned";
    BAD_INTERRUPT = 0x19, "invalid interrupt handle";
    COMPLETION_FAULT = 0x1a, "page fault on the completion address";
    COMPLETION_ALIGN = 0x1b, "completion address is not 32-byte aligned";
    ADDRESS_ALIGN = 0x1c, "an address is not aligned as the operation needs";
    BAD_PRIVILEGE = 0x1d, "privilege not allowed";
    BAD_TRAFFIC_CLASS = 0x1e, "traffic class not allowed";
    READBACK_FAULT = 0x1f, "page fault while reading back";
    HARDWARE_1 = 0x20, "hardware error";
    HARDWARE_2 = 0x21, "hardware error";
    TRANSLATION = 0x22, "address translation failed";
    DEVICE_LOST = 0x4a, "the device stopped answering and may still write: the operation's memory must never be used again";
    ABANDONED = 0x7f, "not attempted: an earlier member of the batch failed before a fence";
}

impl Status {
    /// Bit that is set in addition to the code if the access that faulted was a write.
    pub const FAULT_WAS_WRITE: u8 = 0x80;

    /// Returns the code without the direction bit.
    pub const fn code(self) -> u8 {
        self.0 & 0x7f
    }

    /// Returns true if the operation was done, whatever its result.
    pub const fn is_success(self) -> bool {
        matches!(self.code(), 0x01 | 0x02)
    }

    /// Returns true if the operation is still in flight.
    pub const fn is_pending(self) -> bool {
        self.0 == 0
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} (status 0x{:02x})", self.text(), self.0)
    }
}

/// The completion record of one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
pub struct Completion {
    /// Status, see [`Status`]; written last.
    pub status: u8,
    /// COMPARE: 0 equal, 1 different. DELTA_CREATE: 0 equal, 1 delta, 2 record full. MEMMOVE after a fault: 0 the start of the
    /// range is done, 1 the end is done.
    pub result: u8,
    /// Kind of the fault, on devices that report it.
    pub fault_info: u8,
    /// Reserved, must be 0.
    pub reserved: u8,
    /// Bytes done; for COMPARE the offset of the first difference; for BATCH the members done.
    pub bytes_completed: u32,
    /// Address that faulted.
    pub fault_address: u64,
    /// CRC value (u64 at 16), or size of the delta record (u32 at 16).
    pub value: u64,
    /// Upper half of the value; no operation that memlift submits has one.
    pub value2: u64,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Completion>() == limits::COMPLETION_BYTES);
    assert!(align_of::<Completion>() == limits::COMPLETION_BYTES);
    assert!(offset_of!(Completion, status) == 0);
    assert!(offset_of!(Completion, result) == 1);
    assert!(offset_of!(Completion, fault_info) == 2);
    assert!(offset_of!(Completion, reserved) == 3);
    assert!(offset_of!(Completion, bytes_completed) == 4);
    assert!(offset_of!(Completion, fault_address) == 8);
    assert!(offset_of!(Completion, value) == 16);
    assert!(offset_of!(Completion, value2) == 24);
};

impl Completion {
    /// The record of an operation that has not ended.
    pub const PENDING: Completion = Completion {
        status: 0,
        result: 0,
        fault_info: 0,
        reserved: 0,
        bytes_completed: 0,
        fault_address: 0,
        value: 0,
        value2: 0,
    };

    /// Returns how the operation ended.
    pub const fn status(&self) -> Status {
        Status(self.status)
    }

    /// CRC, COPY_CRC: returns the checksum.
    pub const fn crc(&self) -> u32 {
        self.value as u32
    }

    /// DELTA_CREATE: returns the size of the delta record.
    pub const fn delta_record_bytes(&self) -> u32 {
        self.value as u32
    }
}
