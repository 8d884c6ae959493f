// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Portals: the ways by which a descriptor reaches a work queue.
//!
//! | queue | mapped | instruction | full |
//! |---|---|---|---|
//! | shared | yes | ENQCMD | refused; tried [`RETRIES`] times more |
//! | dedicated | yes | MOVDIR64B | nobody says: the caller counts |
//! | any | no | write(2) | EAGAIN |
//!
//! - **Flow** open the queue's file ─▶ mmap its page. Current kernels refuse that without CAP_SYS_RAWIO (INTEL-SA-01084): write(2) then,
//!   which refuses BATCH on such devices
//! - **Order** SFENCE before each: the device must see what was stored before it sees the descriptor
//! - **Owner** the page is not inherited by forked children (the kernel leaves it out), who must neither use nor unmap it
//! - **Not here** what was submitted before, how many a queue holds: see `backend`

use crate::discover::{Mode, WorkQueue};
use memlift_spec::Descriptor;
use rustix::fs::{Mode as FileMode, OFlags, open as open_file};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a shared queue that is full is asked again at once. It stays full for microseconds: more would only burn the core.
pub const RETRIES: u32 = 3;

/// Takes descriptors to a device.
///
/// # Safety
///
/// An implementor uses a descriptor's memory only as the device that it stands for would: from [`offer`](Portal::offer) until that
/// descriptor's record has a status, which is stored last with Release.
pub unsafe trait Portal: Send + Sync {
    /// `enqcmd`, `movdir64b`, `write`, for reports.
    fn name(&self) -> &'static str;

    /// Gives descriptors to the device in their order; says how many it took. Fewer: it is full.
    ///
    /// # Errors
    /// The first was not taken, and never will be: EINVAL for one that the kernel does not let through.
    ///
    /// # Safety
    /// As for [`Backend::submit`](memlift_spec::Backend::submit).
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
    /// Finds the instructions that this CPU has.
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

/// Opens the way to `queue`: the mapped page where the kernel and `allowed` let us, else write(2).
///
/// # Errors
/// Of opening the file: EACCES without the right, EBUSY for a dedicated queue that has its user, ENOENT where a container lacks it.
pub fn open(queue: &WorkQueue, allowed: Instructions) -> io::Result<Box<dyn Portal>> {
    let file = open_file(&queue.path, OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty())?;
    let here = Instructions::detect();
    let can = match queue.mode {
        Mode::Shared => allowed.enqcmd && here.enqcmd,
        Mode::Dedicated => allowed.movdir64b && here.movdir64b,
    };
    if can && let Ok(mapped) = Mapped::new(&file, queue.mode) {
        return Ok(Box::new(mapped));
    }
    Ok(Box::new(Written::new(file)))
}

/// A file that descriptors are written to: what the kernel offers where it does not map.
#[derive(Debug)]
pub struct Written(File);

impl Written {
    /// Writes to `file`.
    pub fn new(file: OwnedFd) -> Written {
        Written(File::from(file))
    }
}

const DESCRIPTOR: usize = size_of::<Descriptor>();

// SAFETY: only the file's other end, a device or who stands for one, uses the descriptors.
unsafe impl Portal for Written {
    fn name(&self) -> &'static str {
        "write"
    }

    unsafe fn offer(&self, descriptors: &[Descriptor]) -> io::Result<usize> {
        // SAFETY: descriptors are 64 bytes without padding each.
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

/// A queue's page. Any 64 bytes of it are the queue's door, and using them in turn lets more stores be under way.
#[derive(Debug)]
struct Mapped {
    page: NonNull<u8>,
    next: AtomicUsize,
    mode: Mode,
}

// SAFETY: the page is a device's: stores of 64 bytes from any thread are whole.
unsafe impl Send for Mapped {}
// SAFETY: `next` is atomic, and the device takes stores of 64 bytes from several threads whole.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &OwnedFd, mode: Mode) -> io::Result<Mapped> {
        // SAFETY: a new mapping somewhere.
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
        // SAFETY: the mapping is ours. A forked child, where it does not exist, never drops it.
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
            // SAFETY: the page is a portal, and `open` looked for the instruction.
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

    /// Returns true if the queue took it.
    ///
    /// # Safety
    /// ENQCMD is there, `door` is a portal, and the kernel has given this process a PASID by opening the queue.
    pub unsafe fn enqcmd(door: *mut u8, descriptor: &Descriptor) -> bool {
        let refused: u8;
        // SAFETY: reads the 64 bytes of the descriptor and stores to the portal alone; ZF says that it was not taken.
        unsafe {
            asm!("sfence", "enqcmd {door}, [{descriptor}]", "setz {refused}", door = in(reg) door,
                 descriptor = in(reg) descriptor, refused = lateout(reg_byte) refused, options(nostack));
        }
        refused == 0
    }

    /// # Safety
    /// MOVDIR64B is there, `door` is a portal of a dedicated queue, and the queue has room.
    pub unsafe fn movdir64b(door: *mut u8, descriptor: &Descriptor) {
        // SAFETY: reads the 64 bytes of the descriptor and stores them to `door`, which the caller vouches for.
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
        // SAFETY: NOOPs touch no memory.
        assert_eq!(unsafe { portal.offer(&offered) }.unwrap(), 5);
        let mut bytes = [0; 5 * 64];
        File::from(reader.try_clone().unwrap()).read_exact(&mut bytes).unwrap();
        for (index, bytes) in bytes.chunks(64).enumerate() {
            assert_eq!(bytes[16..24], (index as u64).to_le_bytes());
        }
        let many = noops(64);
        // SAFETY: NOOPs touch no memory.
        while unsafe { portal.offer(&many) }.unwrap() > 0 {}
        drop(reader);
        // SAFETY: NOOPs touch no memory.
        assert!(unsafe { portal.offer(&many) }.is_err(), "nobody is at the other end");
    }

    /// MOVDIR64B stores to any memory: where the CPU has it, the instruction itself is tested.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_direct_store_moves_64_bytes() {
        if !Instructions::detect().movdir64b {
            return;
        }
        let (from, mut to) = (noops(8)[7], noops(1)[0]);
        // SAFETY: the instruction is there, and its target is 64 aligned bytes of our own.
        unsafe { instruction::movdir64b((&raw mut to).cast(), &from) };
        assert_eq!(std::hint::black_box(to), from);
    }
}
