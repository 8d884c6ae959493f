// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a device writes: records of our own, the submitter's records, and a page that tells a forked child from its parent.
//!
//! - **Order** a device stores a record's status last; it is loaded with Acquire, and the rest is read after it. Towards the submitter
//!   the same: status last, with Release
//! - **Owner** [`Records`] are on the heap and stay where they are. When a device may still write them they are leaked, not freed
//! - **Not here** when: see `flight`

use memlift_spec::{Completion, Descriptor, Flags, Status};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

/// Stores a record and its status last, at an aligned address.
///
/// # Safety
///
/// 32 bytes there are writable, and nobody else touches them until the status is seen.
unsafe fn store(record: *mut Completion, done: &Completion) {
    // SAFETY: the caller vouches for 32 writable bytes at an aligned address, which nobody else touches until the status is seen.
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

/// Returns true if hardware would find a place for the record of `d`.
pub(crate) const fn has_record(d: &Descriptor) -> bool {
    d.flags().has(Flags::COMPLETION_VALID)
        && d.completion_address != 0
        && d.completion_address.is_multiple_of(32)
}

/// Tells the submitter how `wish` ended, if it wants to know: always when it asked, else when something went wrong.
///
/// # Safety
///
/// The submitter's memory is still lent.
pub(crate) unsafe fn deliver(wish: &Descriptor, done: &Completion) {
    let wanted = wish.flags().has(Flags::REQUEST_COMPLETION) || done.status != Status::SUCCESS.0;
    if has_record(wish) && wanted {
        // SAFETY: the submitter's memory is lent, as the caller vouches, so 32 bytes are writable; `has_record` checked the
        // alignment.
        unsafe { store(ptr::with_exposed_provenance_mut(wish.completion_address as usize), done) };
    }
}

/// The members of a batch.
///
/// # Safety
///
/// The list is aligned and lent, and has `size` descriptors.
pub(crate) unsafe fn members(batch: &Descriptor) -> Vec<Descriptor> {
    let list = ptr::with_exposed_provenance::<Descriptor>(batch.source as usize);
    // SAFETY: the caller vouches that the list is aligned and lent and has `size` descriptors; `index` is less.
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

    /// Makes a record pending again. No device may have its address.
    pub fn clear(&mut self, index: usize) {
        *self.0[index].get_mut() = Completion::PENDING;
        // A device gets the address next: the pointer is exposed anew.
        self.address(index);
    }

    /// Returns the record that a device has written.
    pub fn load(&self, index: usize) -> Option<Completion> {
        let record = self.0[index].get();
        // SAFETY: the record is ours and alive. A device stores its status last, and nothing after it.
        unsafe {
            let status = AtomicU8::from_ptr(&raw mut (*record).status).load(Ordering::Acquire);
            (status != 0).then(|| Completion { status, ..record.read_volatile() })
        }
    }
}

const PAGE: usize = 4096;

/// A page that is zero in every forked child.
#[derive(Debug)]
pub(crate) struct Home(NonNull<AtomicU8>);

// SAFETY: the page is only read after `new`, and atomically.
unsafe impl Send for Home {}
// SAFETY: shared uses are atomic loads of a page that stays mapped until drop.
unsafe impl Sync for Home {}

impl Home {
    /// Marks this process.
    pub fn new() -> rustix::io::Result<Home> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping somewhere, which nobody else knows.
        let page = unsafe {
            let page = mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE)?;
            if let Err(error) = madvise(page, PAGE, Advice::LinuxWipeOnFork) {
                let _ = munmap(page, PAGE);
                return Err(error);
            }
            page
        };
        let mark = NonNull::new(page.cast::<AtomicU8>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: the page is mapped, writable and zero, which is an AtomicU8.
        unsafe { mark.as_ref() }.store(1, Ordering::Relaxed);
        Ok(Home(mark))
    }

    /// Returns true if this is the process that made it.
    pub fn is_here(&self) -> bool {
        // SAFETY: mapped until drop.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) == 1
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference into it any more.
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
        // SAFETY: the record is ours; the test plays the device.
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
            let mut wish = Descriptor::new(memlift_spec::Opcode::NOOP, Flags(flags));
            wish.completion_address = records.address(0);
            // SAFETY: the record is alive.
            unsafe { deliver(&wish, &Completion { status, ..Completion::PENDING }) };
            assert_eq!(records.load(0).is_some(), told, "{flags} {status}");
        }
    }
}
