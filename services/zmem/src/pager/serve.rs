// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults by messages: one thread reads them from the userfaultfd and answers the faults of all threads.
//!
//! - **Flow** message (address, flags) ──▶ the same call as in a signal handler ──▶ the waiting thread is woken
//! - **Order** all signals are blocked in this thread, and it never faults on the arena itself. A message may be out of date: a
//!   thread that a signal woke, but that does not run yet, stays in the kernel's list when its page is answered, and is
//!   reported once more while it goes on and may unmap the page
//! - **Owner** the caller that starts the pager with [`super::Options::handler_thread`] runs [`Pager::serve`] on a thread; in
//!   the child of a fork it starts a new one
//! - **Not here** the choice of this mechanism ([`Pager::start`]). With it, system calls may touch absent pages

use super::kernel;
use super::{Mechanism, Pager};
use crate::mapping::PAGE_BYTES;
use crate::uffd::errno;

const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1 << 0;
const FLAG_WP: u64 = 1 << 1;

/// The kernel's `struct uffd_msg` for a page fault.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Message>() == 32);

impl Pager {
    /// Body of the thread that answers faults, if the mechanism is [`Mechanism::Thread`]; returns immediately otherwise.
    pub fn serve(&self) {
        if self.engine.mechanism != Mechanism::Thread {
            return;
        }
        kernel::own_thread();
        let mut messages = [Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 }; 16];
        loop {
            let descriptor = self.engine.uffd.descriptor();
            // SAFETY: the array is borrowed for the call and its size is passed; every bit pattern is a valid message.
            let bytes = unsafe {
                libc::syscall(libc::SYS_read, descriptor, messages.as_mut_ptr(), size_of_val(&messages))
            };
            let count = usize::try_from(bytes).unwrap_or(0) / size_of::<Message>();
            if count == 0 {
                match errno() {
                    libc::EINTR | libc::EAGAIN => continue,
                    _ => kernel::end(
                        "memlift: faults cannot be read any more; the job ends rather than hang\n",
                        71,
                    ),
                }
            }
            for message in messages.iter().take(count).filter(|message| message.event == EVENT_PAGEFAULT) {
                self.serve_fault(message.address as usize, message.flags & (FLAG_WRITE | FLAG_WP) != 0);
            }
        }
    }

    fn serve_fault(&self, address: usize, write: bool) {
        let start = address & !(PAGE_BYTES - 1);
        // SAFETY: this thread handles the fault in place of the waiting thread, with all signals blocked.
        let _ = unsafe { self.fault(address, write) };
        // If the fault is the program's own mistake, the thread faults again, and the kernel reports that fault.
        self.engine.uffd.wake(start, PAGE_BYTES);
    }
}
