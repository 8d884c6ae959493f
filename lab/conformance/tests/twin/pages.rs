// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults that the kernel raises: pages are made inaccessible with mprotect, the device stops at them, and the CPU that goes on runs
//! into them for real.
//!
//! - **Flow** pages protected ─▶ the twin asks the kernel (process_vm_readv, process_vm_writev) and reports a fault ─▶ `Idxd` ─▶ the engine's
//!   routines ─▶ SIGSEGV ─▶ a handler here makes the page accessible, as an operating system pages in ─▶ right bytes

use super::address;
use super::idxd::{CALM, bytes, described, fly, over, queue, wire_of};
use memlift_model::Twin;
use memlift_spec::{Completion, Descriptor, Opcode, Status};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// The one stretch of memory that the handler pages in.
static STRETCH: AtomicUsize = AtomicUsize::new(0);
static PAGED_IN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn page_in(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid record; mprotect and signal are system calls and touch no memory of ours.
    unsafe {
        let at = (*info).si_addr() as usize;
        let start = STRETCH.load(Ordering::Relaxed);
        if at.wrapping_sub(start) < PAGES * PAGE {
            let page = std::ptr::without_provenance_mut(at & !(PAGE - 1));
            libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
            PAGED_IN.fetch_add(1, Ordering::Relaxed);
        } else {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
    }
}

/// A stretch whose pages can be taken away. One test uses it.
fn stretch() -> *mut u8 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a new mapping; the handler is a plain function.
        unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(
                std::ptr::null_mut(),
                PAGES * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                -1,
                0,
            );
            assert_ne!(pages, libc::MAP_FAILED);
            STRETCH.store(pages.expose_provenance(), Ordering::Relaxed);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = page_in as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
        }
    });
    std::ptr::with_exposed_provenance_mut(STRETCH.load(Ordering::Relaxed))
}

/// Returns true if the kernel refuses that access, found out without a signal.
fn absent(at: u64, write: bool) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at as usize), iov_len: 1 };
    // SAFETY: one byte is copied to and from our own memory by the kernel, which checks both ends.
    unsafe {
        let me = libc::getpid();
        let read = libc::process_vm_readv(me, &raw const here, 1, &raw const there, 1, 0);
        let written = |done: isize| {
            done == 1 && libc::process_vm_writev(me, &raw const here, 1, &raw const there, 1, 0) == 1
        };
        if write { !written(read) } else { read != 1 }
    }
}

/// Takes pages away: all access of every third, writing of every fifth.
fn protect(base: *mut u8, round: usize) -> usize {
    let mut taken = 0;
    for page in 0..PAGES {
        let access = match () {
            () if (page + round).is_multiple_of(3) => libc::PROT_NONE,
            () if (page + round).is_multiple_of(5) => libc::PROT_READ,
            () => continue,
        };
        // SAFETY: the page is of our stretch, and nobody has a reference into it.
        assert_eq!(unsafe { libc::mprotect(base.add(page * PAGE).cast(), PAGE, access) }, 0);
        taken += 1;
    }
    taken
}

#[test]
fn pages_that_are_really_gone_are_paged_in_and_the_bytes_are_right() {
    let base = stretch();
    let at = |offset: usize| address(base) + offset as u64;
    let all = PAGES * PAGE;
    let plain = bytes(all);
    let wire = wire_of(Twin::new(4, CALM).with_pages(Box::new(absent)));
    let device = over(&queue(4), &wire);
    // (source, target, bytes), in the stretch: apart, forwards onto itself, backwards onto itself.
    let moves = [(0, all / 2, all / 2), (3 * PAGE + 100, 50, all / 2), (50, 3 * PAGE + 100, all / 2)];
    for (round, (from, to, size)) in moves.into_iter().enumerate() {
        // SAFETY: the stretch is ours and accessible, or paged in by the handler.
        unsafe { base.copy_from_nonoverlapping(plain.as_ptr(), all) };
        let mut expected = plain.clone();
        expected.copy_within(from..from + size, to);
        assert!(protect(base, round) > 20);
        let mut record = Completion::PENDING;
        let done = fly(&device, described(Opcode::MEMMOVE, at(from), at(to), size, &raw mut record));
        assert_eq!((done.status(), done.bytes_completed as usize), (Status::SUCCESS, size));
        // SAFETY: the stretch has `all` bytes, and its pages are accessible, or the handler makes them so.
        assert!(unsafe { std::slice::from_raw_parts(base, all) } == expected, "round {round}");
    }
    for opcode in [Opcode::CRC, Opcode::FILL, Opcode::COMPARE, Opcode::DELTA_CREATE, Opcode::DELTA_APPLY] {
        // SAFETY: the stretch has `all` bytes, and its pages are accessible, or the handler makes them so.
        unsafe { base.copy_from_nonoverlapping(plain.as_ptr(), all) };
        let mut image = plain.clone();
        let base_of_image = at(0);
        let (from, to, size) = (0, all / 2, 20 * PAGE);
        let mut record = Completion::PENDING;
        let mut descriptor: Descriptor = described(opcode, at(from), at(to), size, &raw mut record);
        match opcode {
            Opcode::CRC => descriptor.target = 0,
            Opcode::FILL => descriptor.source = 0x0102_0304_0506_0708,
            Opcode::DELTA_CREATE => {
                descriptor.operation[0] = at(all - 10 * PAGE);
                descriptor.operation[1] = 4 * PAGE as u64 / 10 * 10;
            }
            Opcode::DELTA_APPLY => {
                let entry = [7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 9, 9, 9, 9, 9, 9, 9, 9];
                image[..20].copy_from_slice(&entry);
                // SAFETY: the stretch has more than 20 bytes, and its pages are accessible, or the handler makes them so.
                unsafe { base.copy_from_nonoverlapping(entry.as_ptr(), 20) };
                descriptor.operation[0] = 20;
            }
            _ => {}
        }
        protect(base, 0);
        let mut model = memlift_model::Image { base: base_of_image, bytes: &mut image };
        let expected = memlift_model::perform(&mut model, &descriptor, false);
        let done = fly(&device, descriptor);
        assert_eq!(done, expected, "{}", opcode.name());
        // SAFETY: the stretch has `all` bytes, and its pages are accessible, or the handler makes them so.
        assert!(unsafe { std::slice::from_raw_parts(base, all) } == image, "{}", opcode.name());
    }
    let stats = device.stats();
    assert!(stats.faults >= 6 && PAGED_IN.load(Ordering::Relaxed) > 20, "{stats:?}");
}
