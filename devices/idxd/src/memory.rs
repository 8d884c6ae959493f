// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a device writes: our own records; also the submitter's records, and a page that distinguishes a forked child from its parent.
//!
//! - **Order** a device stores the status of a record last; it is loaded with Acquire, and the rest is read afterwards. The submitter's
//!   record is written in the same way: status last, with Release.
//! - **Owner** [`Records`] are on the heap and do not move. If a device may still write them, they are leaked, not freed.
//! - **Not here** the moments of these accesses: see `flight`.

use memlift_spec::{Completion, Descriptor, Flags, Status};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

/// Stores a record at an aligned address, its status last.
///
/// # Safety
///
/// The 32 bytes at `record` are writable, and nobody else accesses them until the status is set.
unsafe fn store(record: *mut Completion, done: &Completion) {
    // SAFETY: the caller guarantees 32 writable bytes at an aligned address, which nobody else accesses until the status is set.
    unsafe {
        (&raw mut (*record).result).write(done.result);
        (&raw mut (*record).fault_info).write(done.fault_info);
        (&raw mut (*record).reserved).write(0);
        (&raw mut (*record).bytes_completed).write(done.bytes_completed);
        (&raw mut (*record).fault_address).write(done.fault_address);
        (&raw mut (*record).value).write(done.value);
        (&raw mut (*record).value2).write(done.value2);
        AtomicU8::from_ptr(&raw mut (*record).status).store(done.status, Ordering::Release);
    }
}

/// Returns true if the descriptor names a valid address for its record.
pub(crate) const fn has_record(d: &Descriptor) -> bool {
    d.flags().has(Flags::COMPLETION_VALID)
        && d.completion_address != 0
        && d.completion_address.is_multiple_of(32)
}

/// Writes the submitter's record of `submitted`, if it is wanted: always if the submitter requested it, else only after a failure.
///
/// # Safety
///
/// The submitter's memory is still lent.
pub(crate) unsafe fn deliver(submitted: &Descriptor, done: &Completion) {
    let wanted = submitted.flags().has(Flags::REQUEST_COMPLETION) || done.status != Status::SUCCESS.0;
    if has_record(submitted) && wanted {
        // SAFETY: the caller guarantees that the submitter's memory is lent, so 32 bytes are writable; `has_record` checked the
        // alignment.
        unsafe { store(ptr::with_exposed_provenance_mut(submitted.completion_address as usize), done) };
    }
}

/// Returns a copy of the members of a batch.
///
/// # Safety
///
/// The list is aligned and lent, and has `size` descriptors.
pub(crate) unsafe fn members(batch: &Descriptor) -> Vec<Descriptor> {
    let list = ptr::with_exposed_provenance::<Descriptor>(batch.source as usize);
    // SAFETY: the caller guarantees that the list is aligned and lent and has `size` descriptors; `index` is less.
    (0..batch.size as usize).map(|index| unsafe { list.add(index).read() }).collect()
}

/// Records that a device writes.
#[derive(Debug)]
pub(crate) struct Records(Box<[UnsafeCell<Completion>]>);

// SAFETY: a record is cleared only while no device has its address, and read only after its status was seen with Acquire.
unsafe impl Send for Records {}

impl Records {
    pub fn new(count: usize) -> Records {
        Records((0..count).map(|_| UnsafeCell::new(Completion::PENDING)).collect())
    }

    pub fn address(&self, index: usize) -> u64 {
        self.0[index].get().expose_provenance() as u64
    }

    /// Sets a record to pending. No device may have its address.
    pub fn clear(&mut self, index: usize) {
        *self.0[index].get_mut() = Completion::PENDING;
        // The device gets the address after this, so the pointer's provenance is exposed again.
        self.address(index);
    }

    /// Returns the record if a device has written it.
    pub fn load(&self, index: usize) -> Option<Completion> {
        let record = self.0[index].get();
        // SAFETY: this owns the record. A device stores its status last, and nothing after it.
        unsafe {
            let status = AtomicU8::from_ptr(&raw mut (*record).status).load(Ordering::Acquire);
            (status != 0).then(|| Completion { status, ..record.read_volatile() })
        }
    }
}

const PAGE: usize = 4096;

/// A page that is zero in every forked child.
#[derive(Debug)]
pub(crate) struct ForkMark(NonNull<AtomicU8>);

// SAFETY: after `new` the page is only read, by atomic loads.
unsafe impl Send for ForkMark {}
// SAFETY: shared uses are atomic loads of a page that stays mapped until drop.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Allocates the page and sets it to 1 in this process.
    pub fn new() -> rustix::io::Result<ForkMark> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is a new mapping, which nobody else has.
        let page = unsafe {
            let page = mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE)?;
            if let Err(error) = madvise(page, PAGE, Advice::LinuxWipeOnFork) {
                let _ = munmap(page, PAGE);
                return Err(error);
            }
            page
        };
        let mark = NonNull::new(page.cast::<AtomicU8>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: the page is mapped, writable and zero, which is a valid AtomicU8.
        unsafe { mark.as_ref() }.store(1, Ordering::Relaxed);
        Ok(ForkMark(mark))
    }

    /// Returns true in the process that created the page.
    pub fn is_here(&self) -> bool {
        // SAFETY: the page is mapped until drop.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) == 1
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_seen_whole_and_can_be_used_again() {
        let mut records = Records::new(2);
        assert_eq!(records.address(1) - records.address(0), 32);
        let done = Completion { status: 3, bytes_completed: 77, value: 5, ..Completion::PENDING };
        // SAFETY: the record belongs to the test, which acts as the device.
        unsafe { store(ptr::with_exposed_provenance_mut(records.address(1) as usize), &done) };
        assert_eq!((records.load(0), records.load(1)), (None, Some(done)));
        records.clear(1);
        assert_eq!(records.load(1), None);
    }

    #[test]
    fn only_who_asked_or_failed_is_told() {
        for (flags, status, told) in
            [(0, 5, false), (4, 1, false), (4, 5, true), (12, 1, true), (12, 2, true)]
        {
            let mut records = Records::new(1);
            records.clear(0);
            let mut submitted = Descriptor::new(memlift_spec::Opcode::NOOP, Flags(flags));
            submitted.completion_address = records.address(0);
            // SAFETY: the record lives until the end of the test.
            unsafe { deliver(&submitted, &Completion { status, ..Completion::PENDING }) };
            assert_eq!(records.load(0).is_some(), told, "{flags} {status}");
        }
    }
}
