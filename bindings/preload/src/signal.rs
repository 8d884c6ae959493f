// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes over SIGBUS, SIGSEGV and SIGSYS (below: the three signals). The program's handlers get those that do not concern the
//! arena.
//!
//! - **Flow** signal ──▶ [`on_signal`]. A fault in the arena ──▶ the pager ──▶ the instruction runs again. A trapped system
//!   call ──▶ `trap`. Any other ──▶ [`hand_on`]: the program's handler with its mask, or the default action
//! - **Layout** the program's dispositions of the three signals lie in [`ACTIONS`]; in the kernel, this library's handlers
//!   stay installed. Masks never contain the three signals. Those that the program believes blocked are recorded in the
//!   thread's state, and if another process sends such a signal, it waits there
//! - **Order** the handlers block all signals except for the three. So no handler of the program runs, and touches the arena,
//!   while a lock of the pager is held
//! - **Not here** other signals: they are passed to the kernel unchanged, except that the three are removed from their masks

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::{self, Pager};

use crate::gate::{self, errno, set_errno, to_libc_result};
use crate::thread::{self, OURS, Quiet, bit, current, set_mask};
use crate::{filter, robust, stacks, standing, start, sys, trap};

/// A disposition in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// Removes the three signals from the mask of a handler.
    pub fn strip(&mut self) {
        self.mask &= !OURS;
    }
}

const SA_RESTORER: u64 = 0x0400_0000;
const THREE: [c_int; 3] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS];
const FROM_SECCOMP: c_int = 1;
const SI_TKILL: c_int = -6;

static ACTIONS: Lock<[Action; 3]> =
    Lock::new([Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 }; 3]);

fn index(signal: c_int) -> Option<usize> {
    THREE.iter().position(|&ours| ours == signal)
}

fn kernel_action(signal: c_int, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both structures live over the call.
    unsafe { sys!(libc::SYS_rt_sigaction, signal, new, old, 8) }
}

fn ours() -> Action {
    Action {
        handler: on_signal as *const () as usize,
        flags: SA_RESTORER
            | (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART) as u64,
        restorer: gate::restorer(),
        mask: !OURS,
    }
}

/// Installs a handler for [`standing::POLITE_PROBE_SIGNAL`] for a while, if the program has none. Returns the program's
/// action.
pub fn install_polite_handler() -> Option<Action> {
    let mut old = Action::default();
    let known = kernel_action(standing::POLITE_PROBE_SIGNAL, None, Some(&mut old)) >= 0;
    if !known || (old.handler != libc::SIG_DFL && old.handler != libc::SIG_IGN) {
        return None;
    }
    let polite = Action { handler: on_polite as *const () as usize, ..ours() };
    (kernel_action(standing::POLITE_PROBE_SIGNAL, Some(&polite), None) >= 0).then_some(old)
}

/// Restores the program's action for [`standing::POLITE_PROBE_SIGNAL`], unless the program has set another one meanwhile.
pub fn remove_polite_handler(old: &Action) {
    let mut now = Action::default();
    kernel_action(standing::POLITE_PROBE_SIGNAL, None, Some(&mut now));
    if now.handler == on_polite as *const () as usize {
        kernel_action(standing::POLITE_PROBE_SIGNAL, Some(old), None);
    }
}

unsafe extern "C" fn on_polite(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let number = errno();
    // SAFETY: the kernel passed `info`, which is valid until the handler returns.
    unsafe {
        if (*info).si_code == SI_TKILL {
            standing::take_probe_signal((*info).si_pid());
        }
    }
    set_errno(number);
}

/// Installs this library's handlers for the three signals where they are not installed, and records the replaced ones as the
/// program's.
///
/// # Errors
///
/// The kernel's error number.
pub fn install() -> Result<(), i32> {
    for (index, signal) in THREE.into_iter().enumerate() {
        let mut old = Action::default();
        let result = kernel_action(signal, None, Some(&mut old));
        if result < 0 {
            return Err(-result as i32);
        }
        if old.handler == ours().handler {
            continue;
        }
        ACTIONS.lock()[index] = old;
        let result = kernel_action(signal, Some(&ours()), None);
        if result < 0 {
            return Err(-result as i32);
        }
    }
    Ok(())
}

/// Unblocks the three signals in this thread, and records those that it had blocked.
pub fn unblock() {
    let old = set_mask(libc::SIG_UNBLOCK, OURS);
    current().believed_blocked.store((old & OURS) as u32, Relaxed);
}

/// Returns the place of the mask to which a handler returns.
///
/// # Safety
///
/// `context` is what the kernel passed to a handler that has not returned yet.
pub unsafe fn return_mask(context: *mut c_void) -> *mut u64 {
    // SAFETY: the caller promises a context of the kernel; the kernel's mask is the first word of glibc's.
    unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// Returns the address after the instruction that was trapped.
///
/// # Safety
///
/// `context` is what the kernel passed to a handler that has not returned yet.
unsafe fn called_from(context: *mut c_void) -> usize {
    // SAFETY: the caller promises a context of the kernel.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] as usize }
}

unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let number = errno();
    // SAFETY: the kernel passed both pointers, which are valid until the handler returns.
    unsafe {
        let code = (*info).si_code;
        if signal == libc::SIGSYS && code == FROM_SECCOMP && filter::is_mark((*info).si_errno) {
            if called_from(context) == gate::probe_return() {
                filter::answer_probe((*info).si_errno);
            } else {
                trap::on_trap(context);
            }
            set_errno(number);
            return;
        }
        if signal == standing::PROBE_SIGNAL
            && code == SI_TKILL
            && standing::take_probe_signal((*info).si_pid())
        {
            set_errno(number);
            return;
        }
        if signal != libc::SIGSYS && code > 0 && Pager::get().is_some() {
            let _quiet = Quiet::in_handler();
            robust::release();
            if pager::signal::handle(signal, info, context) {
                set_errno(number);
                return;
            }
        }
        set_errno(number);
        hand_on(signal, info, context);
        set_errno(number);
    }
}

/// Runs the program's handler, or lets the default action happen.
///
/// # Safety
///
/// Called from a handler with the arguments that the kernel passed to it.
unsafe fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(index) = index(signal) else { return };
    let thread = current();
    // SAFETY: the caller promises the kernel's `info`.
    let sent = unsafe { (*info).si_code } <= 0;
    let believed_blocked = u64::from(thread.believed_blocked.load(Relaxed)) & bit(signal) != 0;
    if sent && (thread::inside() || believed_blocked) {
        thread.pending.fetch_or(bit(signal) as u32, Relaxed);
        return;
    }
    let action = {
        // Signals are blocked, so the holder of the lock cannot be this thread.
        let mut actions = ACTIONS.lock();
        let action = actions[index];
        if action.flags & libc::SA_RESETHAND as u64 != 0 {
            actions[index].handler = libc::SIG_DFL;
        }
        action
    };
    if action.handler == libc::SIG_IGN && sent {
        return;
    }
    if signal == libc::SIGSEGV && !sent {
        // SAFETY: the caller promises the kernel's `info`.
        unsafe { correct_code(info) };
    }
    if action.handler == libc::SIG_DFL || action.handler == libc::SIG_IGN || believed_blocked {
        let default = Action { handler: libc::SIG_DFL, ..Action::default() };
        kernel_action(signal, Some(&default), None);
        if sent || signal == libc::SIGSYS {
            // SAFETY: the call takes numbers only. It sends a signal to this thread, which ends the process when the handler
            // returns.
            unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), sys!(libc::SYS_gettid), signal) };
        }
        // Otherwise the instruction faults again, and the default action follows.
        return;
    }
    // SAFETY: the mask lies in the kernel's frame; the handler is the program's for this signal, and is called as the kernel
    // would.
    unsafe {
        let mask = return_mask(context);
        let own = if action.flags & libc::SA_NODEFER as u64 != 0 { 0 } else { bit(signal) };
        set_mask(libc::SIG_SETMASK, (*mask | action.mask | own) & !OURS);
        let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            std::mem::transmute(action.handler);
        handler(signal, info, context);
        *mask &= !OURS;
    }
}

/// Corrects the code of a fault on unmapped memory of the arena: the reservation below it has no access, so the kernel reports
/// an access that is not allowed.
///
/// # Safety
///
/// `info` is what the kernel passed to a handler of a fault.
unsafe fn correct_code(info: *mut libc::siginfo_t) {
    const SEGV_MAPERR: c_int = 1;
    // SAFETY: the caller promises the kernel's `info` of a fault, which has an address.
    let address = unsafe { (*info).si_addr() as usize };
    let Some(pager) = Pager::get().filter(|_| Pager::contains(address)) else { return };
    if pager.mapped(address & !4095, 4096).is_err() {
        // SAFETY: as above; the field is the handler's to change.
        unsafe { (*info).si_code = SEGV_MAPERR };
    }
}

/// Performs the program's `rt_sigaction` for one of the three signals. Returns `None` for other signals.
///
/// # Safety
///
/// The pointers are the program's: each is null or valid.
pub unsafe fn change(signal: c_int, new: *const Action, old: *mut Action) -> Option<isize> {
    let index = index(signal)?;
    // SAFETY: the caller promises valid pointers. They are used while signals are let in, because they may refer to absent
    // memory.
    unsafe {
        let wanted = if new.is_null() { None } else { Some(new.read()) };
        let quiet = Quiet::begin();
        // A child of vfork shares the table with its parent, and must not change it.
        let mut actions = ACTIONS.lock();
        let before = actions[index];
        if let Some(wanted) = wanted.filter(|_| !start::in_vfork_child()) {
            actions[index] = wanted;
        }
        drop(actions);
        drop(quiet);
        if !old.is_null() {
            old.write(before);
        }
    }
    Some(0)
}

/// Behaves as libc's `sigaction`.
///
/// # Safety
///
/// The promises of libc's `sigaction`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // The signals 32 and 33 belong to the thread library.
    if matches!(signal, 32 | 33) {
        set_errno(libc::EINVAL);
        return -1;
    }
    let mut action = Action::default();
    let mut before = Action::default();
    // SAFETY: the caller makes the promises of libc's `sigaction`; the first words of the masks are the kernel's masks.
    unsafe {
        if !new.is_null() {
            action.handler = (*new).sa_sigaction;
            action.flags = (*new).sa_flags as u32 as u64 | SA_RESTORER;
            action.restorer = gate::restorer();
            action.mask = (&raw const (*new).sa_mask).cast::<u64>().read();
        }
        let pointer = if new.is_null() { std::ptr::null() } else { &raw const action };
        let result = match change(signal, pointer, &raw mut before) {
            Some(result) if start::covered() => result,
            _ => {
                let stripped = Action { mask: action.mask & !OURS, ..action };
                let pointer = if new.is_null() { std::ptr::null() } else { &raw const stripped };
                sys!(libc::SYS_rt_sigaction, signal, pointer, &raw mut before, 8)
            }
        };
        if result == 0 && !old.is_null() {
            old.write_bytes(0, 1);
            (*old).sa_sigaction = before.handler;
            (*old).sa_flags = (before.flags & !SA_RESTORER) as c_int;
            (&raw mut (*old).sa_mask).cast::<u64>().write(before.mask);
        }
        to_libc_result(result) as c_int
    }
}

unsafe fn simple(signal: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: sigaction is plain data, for which all zero is valid; the caller promises a valid handler.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if sigaction(signal, &raw const new, &raw mut old) < 0 { libc::SIG_ERR } else { old.sa_sigaction }
    }
}

/// Behaves as libc's `signal`: the handler stays installed, and interrupted calls are restarted.
///
/// # Safety
///
/// The promises of libc's `signal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller makes the promises of `signal`.
    unsafe { simple(signal, handler, libc::SA_RESTART) }
}

/// Behaves as libc's `sysv_signal`: the handler runs once, and interrupted calls are not restarted.
///
/// # Safety
///
/// The promises of libc's `sysv_signal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller makes the promises of `sysv_signal`.
    unsafe { simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// The function that `signal` stands for in programs compiled as strict ISO C.
///
/// # Safety
///
/// The promises of libc's `__sysv_signal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller makes the promises of `__sysv_signal`.
    unsafe { simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// Behaves as libc's `pthread_sigmask`; returns the error number.
///
/// # Safety
///
/// The promises of libc's `pthread_sigmask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let thread = current();
    let believed_blocked = u64::from(thread.believed_blocked.load(Relaxed));
    // SAFETY: the caller makes the promises of libc's `pthread_sigmask`; the first words of the masks are the kernel's masks.
    unsafe {
        let wanted = if new.is_null() { None } else { Some(new.cast::<u64>().read()) };
        let mut before = 0u64;
        // The signals 32 and 33 belong to the thread library and stay as they are.
        let stripped = wanted.map(|mask| mask & !OURS & !(3 << 31));
        let result = sys!(
            libc::SYS_rt_sigprocmask,
            how,
            stripped.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            &raw mut before,
            8
        );
        if result < 0 {
            return -result as c_int;
        }
        if !old.is_null() {
            old.write_bytes(0, 1);
            old.cast::<u64>().write(before | believed_blocked);
        }
        if let Some(mask) = wanted {
            let now = match how {
                libc::SIG_BLOCK => believed_blocked | mask & OURS,
                libc::SIG_UNBLOCK => believed_blocked & !(mask & OURS),
                _ => mask & OURS,
            };
            thread.believed_blocked.store(now as u32, Relaxed);
            if believed_blocked & !now != 0 && thread.pending.load(Relaxed) != 0 {
                drop(Quiet::begin());
            }
        }
    }
    0
}

/// Behaves as libc's `sigprocmask`.
///
/// # Safety
///
/// The promises of libc's `sigprocmask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller makes the promises of `sigprocmask`.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        number => {
            set_errno(number);
            -1
        }
    }
}

/// Performs `sigaltstack` when it is called as a function: handlers run on a stack of this library that is at least as large.
///
/// # Safety
///
/// The pointers are the program's: each is null or valid.
pub unsafe fn alternate_stack(new: *const libc::stack_t, old: *mut libc::stack_t) -> isize {
    let here = 0u8;
    // SAFETY: the caller promises valid pointers; there is no frame of a handler.
    unsafe { stacks::change(new, old, &raw const here as usize, std::ptr::null_mut()) }
}

/// Behaves as libc's `sigaltstack`.
///
/// # Safety
///
/// The promises of libc's `sigaltstack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller makes the promises of `sigaltstack`.
    to_libc_result(unsafe {
        if start::covered() { alternate_stack(new, old) } else { sys!(libc::SYS_sigaltstack, new, old) }
    }) as c_int
}
