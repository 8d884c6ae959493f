// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a completion record so that a reader that sees its status also sees the rest.
//!
//! - **Layout** bytes 1..32 are stored plainly, then byte 0 as an atomic
//! - **Order** the status is stored last with Release; readers load it with Acquire (`load`)
//! - **Owner** the record belongs to the submitter; after the store of the status this side never accesses it again

use memlift_spec::{Completion, Descriptor, Flags, Status};
use std::ptr::{self, addr_of_mut};
use std::sync::atomic::{AtomicU8, Ordering};

/// Stores `completion` at the address in the descriptor: always if a completion was requested, otherwise only
/// after an error. Without a valid address nothing is written, as on hardware.
///
/// # Safety
///
/// A flagged completion address must be valid for writes of 32 bytes.
pub(super) unsafe fn store(descriptor: &Descriptor, completion: Completion) {
    let flags = descriptor.flags();
    let address = descriptor.completion_address;
    let wanted =
        flags.has(Flags::REQUEST_COMPLETION) || Status(completion.status).code() != Status::SUCCESS.code();
    if !flags.has(Flags::COMPLETION_VALID) || address == 0 || !address.is_multiple_of(32) || !wanted {
        return;
    }
    let record = ptr::with_exposed_provenance_mut::<Completion>(address as usize);
    // SAFETY: the caller promises 32 writable bytes, the alignment was checked above, and nobody else
    // accesses the record until the status is stored.
    unsafe {
        addr_of_mut!((*record).result).write(completion.result);
        addr_of_mut!((*record).fault_info).write(completion.fault_info);
        addr_of_mut!((*record).reserved).write(0);
        addr_of_mut!((*record).bytes_completed).write(completion.bytes_completed);
        addr_of_mut!((*record).fault_address).write(completion.fault_address);
        addr_of_mut!((*record).value).write(completion.value);
        addr_of_mut!((*record).value2).write(completion.value2);
        AtomicU8::from_ptr(addr_of_mut!((*record).status)).store(completion.status, Ordering::Release);
    }
}

/// Returns the status of a record that a backend may be writing.
///
/// # Safety
///
/// `record` must point to a live record whose status byte is only written atomically meanwhile.
pub(crate) unsafe fn load(record: *const Completion) -> Status {
    // SAFETY: the caller promises a live record; AtomicU8 has the layout of u8.
    let status = unsafe { AtomicU8::from_ptr(ptr::addr_of!((*record).status).cast_mut()) };
    Status(status.load(Ordering::Acquire))
}

/// Makes a record that contains only a status.
pub(super) const fn ended(status: Status) -> Completion {
    Completion { status: status.0, ..Completion::PENDING }
}
