// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Portals: the ways by which a descriptor reaches a work queue.
//!
//! | queue | mapped | instruction | if the queue is full |
//! |---|---|---|---|
//! | shared | yes | ENQCMD | refused; tried [`RETRIES`] times more |
//! | dedicated | yes | MOVDIR64B | not reported: the caller counts |
//! | shared | no | write(2) | the kernel tries ENQCMDS `enqcmds_retries` times more; EAGAIN if it accepted none |
//! | dedicated | no | write(2) | not reported: the kernel uses MOVDIR64B, and the caller counts |
//!
//! - **Flow** the queue's file is opened and its page mapped. A kernel with the fix of INTEL-SA-01084 (Linux 6.9 and stable kernels since)
//!   maps queues of devices that it holds unsafe (`user_submission_safe`) for CAP_SYS_RAWIO only, and takes descriptors by write(2); there it
//!   refuses BATCH on such devices. An earlier kernel maps every queue and has no write(2).
//! - **Order** an SFENCE before each descriptor: the device must see all earlier stores before it sees the descriptor.
//! - **Owner** forked children do not inherit the page (the kernel leaves it out), so they must neither use nor unmap it.
//! - **Not here** how many descriptors were submitted, and how many a queue holds: see `backend`.

use crate::discover::{Mode, WorkQueue};
use memlift_spec::Descriptor;
use rustix::fs::{Mode as FileMode, OFlags, open as open_file};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of immediate retries for a full shared queue. It stays full for microseconds, so more retries would only waste the
/// core.
pub const RETRIES: u32 = 3;

/// A way of submitting descriptors to a device.
///
/// # Safety
///
/// An implementor uses a descriptor's memory only as the device would: from [`offer`](Portal::offer) until the status in that
/// descriptor's record is set, which is stored last, with Release.
pub unsafe trait Portal: Send + Sync {
    /// Returns `enqcmd`, `movdir64b` or `write`, for reports.
    fn name(&self) -> &'static str;

    /// Submits descriptors to the device in order; returns how many it accepted. If these are fewer than given, the queue is
    /// full.
    ///
    /// # Errors
    /// The first descriptor was not accepted and never will be: EINVAL if the kernel refuses it.
    ///
    /// # Safety
    /// The conditions of [`Backend::submit`](memlift_spec::Backend::submit).
    unsafe fn offer(&self, descriptors: &[Descriptor]) -> io::Result<usize>;
}

/// Instructions that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instructions {
    /// True if the CPU has ENQCMD (shared queues).
    pub enqcmd: bool,
    /// True if the CPU has MOVDIR64B (dedicated queues).
    pub movdir64b: bool,
}

impl Instructions {
    /// Detects the instructions of this CPU.
    pub fn detect() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        {
            let features = std::arch::x86_64::__cpuid_count(7, 0).ecx;
            Instructions { enqcmd: features >> 29 & 1 == 1, movdir64b: features >> 28 & 1 == 1 }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Instructions { enqcmd: false, movdir64b: false }
    }
}

/// Ways by which the kernel takes a program's descriptors for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways {
    /// True if it maps the queue's page.
    pub maps: bool,
    /// True if it takes descriptors by write(2).
    pub writes: bool,
}

/// Asks the kernel which ways into `queue` this program has. No descriptor is submitted.
///
/// # Errors
/// Those of opening the file, see [`open`].
pub fn ways(queue: &WorkQueue) -> io::Result<Ways> {
    let file = open_queue(queue)?;
    Ok(Ways { maps: Mapped::new(&file, queue.mode).is_ok(), writes: writes(&file) })
}

fn open_queue(queue: &WorkQueue) -> io::Result<OwnedFd> {
    Ok(open_file(&queue.path, OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty())?)
}

/// Returns true if the file takes write(2). An empty write submits nothing; a driver without the call refuses it with EINVAL.
fn writes(file: &OwnedFd) -> bool {
    rustix::io::write(file, &[]).is_ok()
}

/// Opens a portal to `queue`: the mapped page if the kernel and `allowed` permit it, else write(2).
///
/// # Errors
/// Those of opening the file: EACCES without permission, EBUSY for a dedicated queue that is in use, ENOENT in a container
/// without the file. Unsupported if the page cannot be used and the kernel takes nothing by write(2).
pub fn open(queue: &WorkQueue, allowed: Instructions) -> io::Result<Box<dyn Portal>> {
    let file = open_queue(queue)?;
    let here = Instructions::detect();
    let can = match queue.mode {
        Mode::Shared => allowed.enqcmd && here.enqcmd,
        Mode::Dedicated => allowed.movdir64b && here.movdir64b,
    };
    if can && let Ok(mapped) = Mapped::new(&file, queue.mode) {
        return Ok(Box::new(mapped));
    }
    if !writes(&file) {
        let why =
            "its page cannot be used, and this kernel takes nothing by write(2), which Linux has since 6.9";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(Box::new(Written::new(file)))
}

/// A file to which descriptors are written, for kernels that do not map the page.
#[derive(Debug)]
pub struct Written(File);

impl Written {
    /// Creates a portal that writes to `file`.
    pub fn new(file: OwnedFd) -> Written {
        Written(File::from(file))
    }
}

const DESCRIPTOR: usize = size_of::<Descriptor>();

// SAFETY: only the other end of the file, a device or a test that acts as one, uses the descriptors.
unsafe impl Portal for Written {
    fn name(&self) -> &'static str {
        "write"
    }

    unsafe fn offer(&self, descriptors: &[Descriptor]) -> io::Result<usize> {
        // SAFETY: a descriptor is 64 bytes without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(descriptors.as_ptr().cast::<u8>(), size_of_val(descriptors))
        };
        loop {
            return match rustix::io::write(self.0.as_fd(), bytes) {
                Ok(written) => Ok(written / DESCRIPTOR),
                Err(rustix::io::Errno::AGAIN) => Ok(0),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

const PAGE: usize = 4096;

/// The mapped page of a queue. Descriptors may be stored to any 64 bytes of it; using different ones lets more stores be in
/// flight.
#[derive(Debug)]
struct Mapped {
    page: NonNull<u8>,
    next: AtomicUsize,
    mode: Mode,
}

// SAFETY: the page belongs to a device, which takes each store of 64 bytes as a whole, from any thread.
unsafe impl Send for Mapped {}
// SAFETY: `next` is atomic, and the device takes each store of 64 bytes as a whole, also from several threads.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &OwnedFd, mode: Mode) -> io::Result<Mapped> {
        // SAFETY: this is a new mapping at an address of the kernel's choice.
        let page = unsafe {
            mmap(ptr::null_mut(), PAGE, ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE, file, 0)?
        };
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapped { page, next: AtomicUsize::new(0), mode })
    }

    fn door(&self) -> *mut u8 {
        let line = self.next.fetch_add(1, Ordering::Relaxed) % (PAGE / DESCRIPTOR);
        self.page.as_ptr().wrapping_add(line * DESCRIPTOR)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping. A forked child, where it does not exist, never drops this value.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

// SAFETY: only the device uses the descriptors.
unsafe impl Portal for Mapped {
    fn name(&self) -> &'static str {
        match self.mode {
            Mode::Shared => "enqcmd",
            Mode::Dedicated => "movdir64b",
        }
    }

    unsafe fn offer(&self, descriptors: &[Descriptor]) -> io::Result<usize> {
        for (taken, descriptor) in descriptors.iter().enumerate() {
            // SAFETY: the page is a portal, and `open` checked that the CPU has the instruction.
            let full = unsafe {
                match self.mode {
                    Mode::Shared => !(0..=RETRIES).any(|_| instruction::enqcmd(self.door(), descriptor)),
                    Mode::Dedicated => {
                        instruction::movdir64b(self.door(), descriptor);
                        false
                    }
                }
            };
            if full {
                return Ok(taken);
            }
        }
        Ok(descriptors.len())
    }
}

#[cfg(target_arch = "x86_64")]
mod instruction {
    use memlift_spec::Descriptor;
    use std::arch::asm;

    /// Submits a descriptor; returns true if the queue accepted it.
    ///
    /// # Safety
    /// The CPU has ENQCMD, `door` is a portal, and the kernel has given this process a PASID when it opened the queue.
    pub unsafe fn enqcmd(door: *mut u8, descriptor: &Descriptor) -> bool {
        let refused: u8;
        // SAFETY: the instruction only reads the 64 bytes of the descriptor and stores to the portal; ZF is set if it was
        // refused.
        unsafe {
            asm!("sfence", "enqcmd {door}, [{descriptor}]", "setz {refused}", door = in(reg) door,
                 descriptor = in(reg) descriptor, refused = lateout(reg_byte) refused, options(nostack));
        }
        refused == 0
    }

    /// Submits a descriptor to a dedicated queue.
    ///
    /// # Safety
    /// The CPU has MOVDIR64B, `door` is a portal of a dedicated queue, and the queue has room.
    pub unsafe fn movdir64b(door: *mut u8, descriptor: &Descriptor) {
        // SAFETY: the instruction reads the 64 bytes of the descriptor and stores them to `door`, which the caller guarantees.
        unsafe {
            asm!("sfence", "movdir64b {door}, [{descriptor}]", door = in(reg) door,
                 descriptor = in(reg) descriptor, options(nostack));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instruction {
    use memlift_spec::Descriptor;

    pub unsafe fn enqcmd(_: *mut u8, _: &Descriptor) -> bool {
        unreachable!("not detected on this machine")
    }

    pub unsafe fn movdir64b(_: *mut u8, _: &Descriptor) {
        unreachable!("not detected on this machine")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_spec::{Flags, Opcode};
    use std::io::Read;

    fn noops(count: u64) -> Vec<Descriptor> {
        (0..count)
            .map(|index| Descriptor { source: index, ..Descriptor::new(Opcode::NOOP, Flags::NONE) })
            .collect()
    }

    #[test]
    fn what_is_written_arrives_whole_and_a_full_file_takes_nothing() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let portal = Written::new(writer);
        let offered = noops(5);
        // SAFETY: NOOPs access no memory.
        assert_eq!(unsafe { portal.offer(&offered) }.unwrap(), 5);
        let mut bytes = [0; 5 * 64];
        File::from(reader.try_clone().unwrap()).read_exact(&mut bytes).unwrap();
        for (index, bytes) in bytes.chunks(64).enumerate() {
            assert_eq!(bytes[16..24], (index as u64).to_le_bytes());
        }
        let many = noops(64);
        // SAFETY: NOOPs access no memory.
        while unsafe { portal.offer(&many) }.unwrap() > 0 {}
        drop(reader);
        // SAFETY: NOOPs access no memory.
        assert!(unsafe { portal.offer(&many) }.is_err(), "nobody is at the other end");
    }

    /// A file without write(2) stands for the driver of a kernel before 6.9, which has none either and gives the same EINVAL.
    #[test]
    fn a_queue_without_write_is_known_before_anything_is_sent() {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&epoll, &[]), Err(rustix::io::Errno::INVAL));
        assert!(!writes(&epoll));
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(writes(&writer));
    }

    /// MOVDIR64B can store to any memory, so the instruction itself is tested if the CPU has it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_direct_store_moves_64_bytes() {
        if !Instructions::detect().movdir64b {
            return;
        }
        let (from, mut to) = (noops(8)[7], noops(1)[0]);
        // SAFETY: the CPU has the instruction, and its target is 64 aligned bytes of this test.
        unsafe { instruction::movdir64b((&raw mut to).cast(), &from) };
        assert_eq!(std::hint::black_box(to), from);
    }
}
