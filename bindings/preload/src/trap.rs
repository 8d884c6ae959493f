// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls on memory that may be absent: the memory is faulted in and pinned, the call is made, and the pins are
//! released.
//!
//! - **Flow** trapped instruction ──SIGSYS──▶ [`on_trap`] ──▶ [`Scene::perform`] ──▶ pin the memory that the table names ──▶
//!   make the call through the gate, with the program's signal mask ──▶ store the result in the frame. Functions that replace
//!   libc's (`wrappers`), and `syscall` ──▶ [`perform_for_function`] ──▶ the same steps without a signal
//! - **Order** this library's own code runs with signals blocked. They are let in only for the call itself, so that it is
//!   interrupted and restarted as it would be without this library. A range that is not the program's is not pinned, and the
//!   kernel reports `EFAULT`
//! - **Owner** pins belong to the call until it returns, or until its frame is gone (`held`)
//! - **Not here** buffers and vectors in pieces: `transfer`, `vector`; `exec`, `fork`, `memory`

use std::ffi::c_void;

use memlift_zmem::block::Counter;
use memlift_zmem::pager::{ARENA_BASE, ARENA_BYTES, Pager};

use crate::gate::call;
use crate::held::{Held, Mark};
use crate::table::{self, ABSENT, Extent};
use crate::thread::{self, OURS, Quiet};
use crate::{
    ending, exec, fork, itself, limits, memory, named, rings, robust, signal, stacks, standing, start, sys,
    transfer, vector,
};

/// Upper bound of the bytes that are pinned together, if a call can be done in parts.
pub const PIECE_BYTES: usize = 4 << 20;
const SMALLEST_PIECE_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

/// Returns true if the address lies in the arena.
pub fn in_arena(address: usize) -> bool {
    address.wrapping_sub(ARENA_BASE) < ARENA_BYTES
}

/// The surroundings of one system call.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The pins of the call.
    pub held: Held<'a>,
    /// The section of this library's own code; signals are blocked until it ends.
    pub quiet: Quiet,
    /// The program's signal mask.
    pub mask: u64,
    /// The frame of the trapped instruction, or null if a function was called.
    pub context: *mut c_void,
    /// Pager of this process.
    pub pager: &'static Pager,
}

/// Returns the upper bound of the bytes that are pinned together under this budget.
pub fn piece_bytes() -> usize {
    let share = start::total_bytes() / 16;
    (share & !(SMALLEST_PIECE_BYTES - 1)).clamp(SMALLEST_PIECE_BYTES, PIECE_BYTES)
}

impl Scene<'_> {
    /// Makes the call itself, and lets the program's signals in meanwhile.
    pub fn call(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        let mask = self.mask;
        // SAFETY: the call and its arguments are the program's own; absent memory that they name was pinned.
        self.quiet.interruptible(mask, || unsafe { call(number, arguments) })
    }

    /// Pins the accessible part of a range in the arena until the call is over. Returns true if there is such a part.
    pub fn pin(&self, address: usize, bytes: usize, write: bool) -> bool {
        if bytes == 0 || !in_arena(address) {
            return false;
        }
        let bytes = self.pager.accessible(address, bytes, write);
        if bytes == 0 {
            return false;
        }
        match self.pager.pin(address, bytes, write) {
            Ok(pins) => {
                self.held.add((address, bytes, write), pins);
                true
            }
            Err(_) => false,
        }
    }

    /// Pins a range for good, because the kernel stores its address.
    fn pin_for_good(&self, address: usize, bytes: usize) {
        if in_arena(address) && self.pager.accessible(address, bytes, true) == bytes {
            std::mem::forget(self.pager.pin(address, bytes, true));
        }
    }

    /// Transfers `bytes` bytes in pieces: `act` gets an offset and a length, transfers that part and returns the kernel's
    /// result. Returns the sum, or the error if the first piece fails. Without `whole`, only the first piece is transferred.
    pub fn in_pieces(
        &mut self,
        (bytes, piece): (usize, usize),
        whole: bool,
        mut act: impl FnMut(&mut Self, usize, usize) -> isize,
    ) -> isize {
        let pinned = self.held.count();
        let mut done = 0;
        while done < bytes {
            let part = piece.min(bytes - done);
            let result = act(self, done, part);
            self.held.let_go(pinned);
            if result < 0 {
                return if done > 0 { done as isize } else { result };
            }
            done += result as usize;
            if (result as usize) < part || !whole {
                break;
            }
        }
        done as isize
    }

    /// Returns the length of a string with its zero byte, or the length of its readable part if it has no zero byte.
    pub fn text_bytes(&self, address: usize) -> usize {
        let mut length = 0;
        while length < 64 * PAGE_BYTES {
            let at = address + length;
            let rest = PAGE_BYTES - at % PAGE_BYTES;
            if in_arena(at) && self.pager.accessible(at, 1, false) == 0 {
                return length;
            }
            for step in 0..rest {
                // SAFETY: the byte is readable, as checked for this page; an absent page comes back when it is touched.
                if unsafe { ((at + step) as *const u8).read_volatile() } == 0 {
                    return length + step + 1;
                }
            }
            length += rest;
        }
        length
    }

    fn extent(&self, extent: Extent, arguments: &[usize; 6], address: usize) -> (usize, bool) {
        match extent {
            Extent::Text => (self.text_bytes(address), false),
            Extent::In(bytes) => (bytes, false),
            Extent::Out(bytes) => (bytes, true),
            Extent::InCount(argument, unit) => (count(arguments[argument as usize], unit), false),
            Extent::OutCount(argument, unit) => (count(arguments[argument as usize], unit), true),
            Extent::Bits => (count((arguments[0] as u32 as usize).div_ceil(64), 8), true),
            Extent::Request => {
                (Some(arguments[1] >> 16 & 0x3fff).filter(|&bytes| bytes != 0).unwrap_or(256), true)
            }
            Extent::Own => (0, false),
        }
    }

    /// Pins all memory that a call of any kind names, up to the amount that may be pinned together.
    pub fn pin_all(&self, number: usize, arguments: [usize; 6]) {
        let reads = matches!(
            number as i64,
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom | libc::SYS_getrandom
        );
        match number as i64 {
            libc::SYS_getrandom => {
                self.pin(arguments[0], arguments[1].min(PIECE_BYTES), true);
            }
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_recvfrom
            | libc::SYS_sendto => {
                self.pin(arguments[1], arguments[2].min(PIECE_BYTES), reads);
                if matches!(number as i64, libc::SYS_recvfrom | libc::SYS_sendto) {
                    self.pin(arguments[4], if reads { 256 } else { arguments[5].min(256) }, reads);
                    self.pin(if reads { arguments[5] } else { 0 }, 4, true);
                }
            }
            _ => {
                vector::pin(self, number, arguments);
                self.pin_plain(number, arguments);
            }
        }
    }

    /// Pins the memory that the table names for this call.
    fn pin_plain(&self, number: usize, arguments: [usize; 6]) {
        for &(argument, extent) in table::find(number) {
            let address = arguments[argument as usize];
            if in_arena(address) {
                let (bytes, write) = self.extent(extent, &arguments, address);
                // A range that cannot be pinned for writing is pinned for reading, since a futex may lie in read-only memory.
                let _ = self.pin(address, bytes, write) || self.pin(address, bytes, false);
            }
        }
    }

    /// Performs a call of which the table says everything.
    pub fn plain(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        self.pin_plain(number, arguments);
        self.call(number, arguments)
    }

    /// Performs any call and returns the result that the kernel would.
    pub fn perform(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        match number as i64 {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_getrandom => transfer::perform(self, number, arguments),
            libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_vmsplice
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev
            | libc::SYS_recvmsg
            | libc::SYS_sendmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendmmsg => vector::perform(self, number, arguments),
            libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_pkey_mprotect
            | libc::SYS_madvise
            | libc::SYS_mremap
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_munlock
            | libc::SYS_msync
            | libc::SYS_mincore
            | libc::SYS_mbind
            | libc::SYS_remap_file_pages
            | libc::SYS_mlockall
            | libc::SYS_munlockall => match memory::perform(number, arguments) {
                Some(result) => result,
                // The memory is outside the arena, and the result or the list of nodes may lie in it.
                None => named::any(self, number, arguments),
            },
            libc::SYS_process_madvise | table::SYS_FUTEX_WAITV | table::SYS_FUTEX_REQUEUE => {
                vector::perform(self, number, arguments)
            }
            libc::SYS_lseek => itself::seek(self, arguments),
            libc::SYS_execve | libc::SYS_execveat => exec::perform(self, number, arguments),
            libc::SYS_fork => fork::perform(self, number, arguments),
            libc::SYS_clone if arguments[0] as i32 & libc::CLONE_VM == 0 => {
                fork::perform(self, number, arguments)
            }
            libc::SYS_clone if arguments[1] != 0 && !self.context.is_null() => self.thread(number, arguments),
            libc::SYS_rt_sigaction => self.action(number, arguments),
            libc::SYS_rt_sigprocmask => self.change_mask(arguments),
            libc::SYS_rt_sigsuspend
            | libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2 => self.wait(number, arguments),
            // If it is called as a function, [`perform_for_function`] performs it.
            libc::SYS_sigaltstack if !self.context.is_null() => {
                // SAFETY: the frame is that of the handler that runs; the pointers are the program's own.
                unsafe {
                    let registers = &(*self.context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
                    let at = registers[libc::REG_RSP as usize] as usize;
                    stacks::change(arguments[0] as *const _, arguments[1] as *mut _, at, self.context)
                }
            }
            libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 => {
                match limits::perform(self, number, arguments) {
                    Some(result) => result,
                    None => self.plain(number, arguments),
                }
            }
            libc::SYS_io_uring_enter => rings::enter(self, arguments),
            libc::SYS_io_uring_register => rings::register(self, arguments),
            libc::SYS_io_submit => rings::submit(self, arguments),
            libc::SYS_exit | libc::SYS_exit_group => {
                robust::hold_list(self.pager);
                let whole = number as i64 == libc::SYS_exit && ending::ends_by_call();
                self.call(if whole { libc::SYS_exit_group as usize } else { number }, arguments)
            }
            // The kernel stores this address until the thread ends, so its pin is never released.
            libc::SYS_set_robust_list | libc::SYS_set_tid_address => {
                self.pin_for_good(
                    arguments[0],
                    if number as i64 == libc::SYS_set_tid_address { 4 } else { 24 },
                );
                self.call(number, arguments)
            }
            // Naming memory is optional, and would split the arena into more mappings.
            libc::SYS_prctl if arguments[0] as i32 == libc::PR_SET_VMA && in_arena(arguments[2]) => {
                -(libc::EINVAL as isize)
            }
            libc::SYS_ioctl
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
            | libc::SYS_seccomp
            | libc::SYS_prctl
            | libc::SYS_bpf => named::perform(self, number, arguments),
            _ if table::is_unlisted(number) => named::any(self, number, arguments),
            _ => self.plain(number, arguments),
        }
    }

    /// Performs a `clone` that makes a thread on a stack of its own. The new thread begins after the gate's instruction, on
    /// its new stack. The gate's `ret` takes it to the address after the trapped instruction, with the arguments in their
    /// registers, on which libraries rely.
    fn thread(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        let mut arguments = arguments;
        arguments[1] -= size_of::<usize>();
        // SAFETY: the frame is that of the handler that runs; the memory below the top of a new stack is not used yet.
        unsafe {
            let registers = &(*self.context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            (arguments[1] as *mut i64).write(registers[libc::REG_RIP as usize]);
        }
        self.plain(number, arguments)
    }

    fn action(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        let [which, new, old, bytes, ..] = arguments;
        if bytes != 8 {
            return -(libc::EINVAL as isize);
        }
        let mut action = signal::Action::default();
        let mut before = signal::Action::default();
        // SAFETY: the pointers are the program's own. The structures are copied, so that the kernel gets no pointer into the
        // arena.
        unsafe {
            if new != 0 {
                action = (new as *const signal::Action).read();
            }
            let pointer = if new == 0 { std::ptr::null() } else { &raw const action };
            let result = match signal::change(which as i32, pointer, &raw mut before) {
                Some(result) => result,
                None => {
                    action.strip();
                    sys!(number, which, pointer, &raw mut before, 8)
                }
            };
            if result == 0 && old != 0 {
                (old as *mut signal::Action).write(before);
            }
            result
        }
    }

    /// Performs `rt_sigprocmask`. For a trapped instruction, it changes the mask to which the handler returns.
    fn change_mask(&mut self, arguments: [usize; 6]) -> isize {
        let [how, new, old, bytes, ..] = arguments;
        if bytes != 8 {
            return -(libc::EINVAL as isize);
        }
        if self.context.is_null() {
            // SAFETY: the pointers are the program's own, which promises that they are null or valid.
            return unsafe {
                -(signal::pthread_sigmask(how as i32, new as *const _, old as *mut _) as isize)
            };
        }
        // SAFETY: the mask lies in the frame of the handler that runs; the pointers are the program's own.
        unsafe {
            let mask = signal::return_mask(self.context);
            let before = *mask;
            if new != 0 {
                let wanted = (new as *const u64).read();
                *mask = match how as i32 {
                    libc::SIG_BLOCK => before | wanted,
                    libc::SIG_UNBLOCK => before & !wanted,
                    libc::SIG_SETMASK => wanted,
                    _ => return -(libc::EINVAL as isize),
                } & !OURS;
            }
            if old != 0 {
                (old as *mut u64).write(before);
            }
        }
        0
    }

    /// Performs a call that waits with another signal mask, from which the three signals of this library are removed.
    fn wait(&mut self, number: usize, arguments: [usize; 6]) -> isize {
        let mut arguments = arguments;
        let mut pair = [0usize; 2];
        let place = match number as i64 {
            libc::SYS_rt_sigsuspend => 0,
            libc::SYS_ppoll => 3,
            libc::SYS_pselect6 => 5,
            _ => 4,
        };
        let mut mask = 0u64;
        // SAFETY: the pointers are the program's own, which promises that they are null or valid.
        unsafe {
            if arguments[place] != 0 {
                let mut address = arguments[place];
                if place == 5 {
                    pair = (address as *const [usize; 2]).read();
                    address = pair[0];
                }
                if address != 0 {
                    mask = (address as *const u64).read() & !OURS;
                    address = (&raw const mask) as usize;
                }
                arguments[place] = address;
                if place == 5 {
                    pair[0] = address;
                    arguments[place] = pair.as_ptr() as usize;
                }
            }
        }
        let result = self.plain(number, arguments);
        std::hint::black_box((&mask, &pair));
        result
    }
}

fn count(number: usize, unit: usize) -> usize {
    number.saturating_mul(unit).min(PIECE_BYTES)
}

/// Handles SIGSYS from this library's filter.
///
/// # Safety
///
/// `context` is what the kernel passed to the handler that runs.
pub unsafe fn on_trap(context: *mut c_void) {
    // SAFETY: the frame is the kernel's, and belongs to this handler while it runs.
    unsafe {
        let registers = &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = |index: libc::c_int| (*registers)[index as usize] as usize;
        let number = at(libc::REG_RAX);
        let arguments =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9].map(at);
        let Some(pager) = Pager::get() else {
            (*registers)[libc::REG_RAX as usize] = call(number, arguments) as i64;
            return;
        };
        pager.job().count(Counter::TrappedCalls, 1);
        let mask = *signal::return_mask(context);
        let quiet = Quiet::in_handler();
        if number as i64 != libc::SYS_restart_syscall {
            standing::returned();
        }
        robust::release();
        let mark = Mark::make();
        let mut scene = Scene { held: Held::new(&mark), quiet, mask, context, pager };
        let result = scene.perform(number, arguments);
        drop(scene);
        (*registers)[libc::REG_RAX as usize] = result as i64;
    }
}

/// Returns true if a call may access absent memory.
pub fn concerns(number: usize, arguments: &[usize; 6]) -> bool {
    table::find(number).iter().any(|(argument, _)| in_arena(arguments[*argument as usize]))
        || table::is_unlisted(number) && arguments.iter().any(|&argument| in_arena(argument))
        || table::INDIRECT.contains(&(number as i64))
        || matches!(number as i64, libc::SYS_read | libc::SYS_write) && itself::is_marked(arguments[0])
}

/// Performs a call for a function that replaces libc's. Returns `None` if the call does not concern the arena.
pub fn perform_for_function(number: usize, arguments: [usize; 6]) -> Option<isize> {
    if !start::covered() || thread::inside() {
        return None;
    }
    let pager = Pager::get()?;
    let mine = match number as i64 {
        libc::SYS_sigaltstack => {
            let [new, old, ..] = arguments;
            // SAFETY: the pointers are the program's own, which promises that they are null or valid.
            return Some(unsafe { signal::alternate_stack(new as *const _, old as *mut _) });
        }
        libc::SYS_rt_sigaction | libc::SYS_rt_sigprocmask => true,
        libc::SYS_exit if !pager.active() => !ending::first_ends() && ending::ends_by_call(),
        libc::SYS_fork => return fork::perform_for_function(number, arguments),
        libc::SYS_clone if arguments[0] as i32 & libc::CLONE_VM == 0 => {
            return fork::perform_for_function(number, arguments);
        }
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_madvise | libc::SYS_mremap => true,
        libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 => true,
        // Locks and pins that are made while nothing is absent hold later, too.
        libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock
        | libc::SYS_mlockall
        | libc::SYS_munlockall
        | libc::SYS_vmsplice => true,
        number if ABSENT.contains(&number) => return Some(-(libc::ENOSYS as isize)),
        _ => pager.active() && concerns(number, &arguments),
    };
    if !mine {
        return None;
    }
    Some(perform_now(pager, number, arguments))
}

/// Performs a call for a function, on a stack that cannot become absent.
pub fn perform_now(pager: &'static Pager, number: usize, arguments: [usize; 6]) -> isize {
    stacks::on_stack_outside_arena(|| {
        let quiet = Quiet::begin();
        let mask = quiet.outer_mask();
        standing::returned();
        robust::release();
        let mark = Mark::make();
        let mut scene = Scene { held: Held::new(&mark), quiet, mask, context: std::ptr::null_mut(), pager };
        scene.perform(number, arguments)
    })
}
