// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGBUS and SIGSEGV: faults in the arena are answered, others are passed on.
//!
//! - **Flow** kernel ──▶ handler (all signals blocked) ──▶ [`handle`] ──the arena's fault──▶ return: the instruction runs
//!   again ──any other fault──▶ the handler that was installed before, or the default action
//! - **Order** the handler preserves errno. SIGBUS runs on the stack of the thread, because an alternate stack may lie in the
//!   arena itself
//! - **Not here** replacing `sigaction` for the program (the preloaded library)

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Fault, Pager};
use crate::{Error, Result};

/// The action that was installed before the pager's, one per signal: SIGBUS, SIGSEGV.
struct Previous {
    set: AtomicBool,
    action: std::cell::UnsafeCell<std::mem::MaybeUninit<libc::sigaction>>,
}

// SAFETY: the action is written once by `install` before it sets `set`, and read only after `set` is true.
unsafe impl Sync for Previous {}

static PREVIOUS: [Previous; 2] = [const {
    Previous {
        set: AtomicBool::new(false),
        action: std::cell::UnsafeCell::new(std::mem::MaybeUninit::uninit()),
    }
}; 2];

fn slot(signal: i32) -> &'static Previous {
    &PREVIOUS[usize::from(signal == libc::SIGSEGV)]
}

/// Returns true if the fault was a write, which this processor reports.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel passes a ucontext; the register contains the page fault's error code.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    error & 2 != 0
}

/// Returns true: without such a report each fault counts as a write, so its page becomes writable and its copy is freed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_context: *mut libc::c_void) -> bool {
    true
}

/// Handles one signal. Returns true if the fault was in the arena and the instruction may run again.
///
/// # Safety
///
/// Called from a handler of SIGBUS or SIGSEGV with the arguments that the kernel passed, and with all signals blocked.
pub unsafe fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    // SAFETY: this is the kernel's siginfo of a fault; the address is valid for the codes that are checked below.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    const SEGV_ACCERR: i32 = 2;
    let fault = match signal {
        libc::SIGBUS => code == libc::BUS_ADRERR,
        libc::SIGSEGV => code == SEGV_ACCERR,
        _ => false,
    };
    if !fault || !Pager::contains(address) {
        return false;
    }
    let Some(pager) = Pager::get() else { return false };
    // SAFETY: this is the C library's accessor; the word belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the caller promises that it is the handler of this fault, with all signals blocked.
    let outcome = unsafe { on_own_stack(pager, address, is_write(context), context) };
    // SAFETY: the word that the accessor returns belongs to this thread and lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
    outcome != Fault::NotMine
}

/// Arguments and result of [`run_fault`], which gets one pointer.
struct FaultCall {
    pager: &'static Pager,
    address: usize,
    write: bool,
    fault: Fault,
}

extern "C" fn run_fault(call: *mut FaultCall) {
    // SAFETY: `call` points to a local variable of the caller, which lives until this function returns.
    let call = unsafe { &mut *call };
    // SAFETY: the caller is the handler of this fault, with all signals blocked.
    call.fault = unsafe { call.pager.fault(call.address, call.write) };
}

/// Answers a fault on the stack of the thread that faulted, below the part in use, if the handler runs on a small alternate
/// stack (it may have 8 KiB only). Otherwise, or if the thread's stack may itself be absent, answers it on the current stack.
///
/// # Safety
///
/// The promises of [`handle`].
#[cfg(target_arch = "x86_64")]
unsafe fn on_own_stack(
    pager: &'static Pager,
    address: usize,
    write: bool,
    context: *mut libc::c_void,
) -> Fault {
    const RED_ZONE: usize = 128;
    const ENOUGH_BYTES: usize = 64 << 10;
    let mut call = FaultCall { pager, address, write, fault: Fault::Retry };
    // SAFETY: the kernel passes a ucontext that lives until the handler returns.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let alternate = &context.uc_stack;
    let is_alternate = |stack: usize| {
        alternate.ss_flags & libc::SS_DISABLE == 0
            && stack.wrapping_sub(alternate.ss_sp as usize) < alternate.ss_size
    };
    let stack = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    if !is_alternate((&raw const call) as usize)
        || is_alternate(stack)
        || alternate.ss_size >= ENOUGH_BYTES
        || Pager::contains(stack - RED_ZONE)
    {
        run_fault(&raw mut call);
        return call.fault;
    }
    // SAFETY: the thread's own code does not run while its handler does, so the stack below its red zone is free. `r12` holds
    // the current stack pointer, and the called function preserves `r12`.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {run_fault}",
            "mov rsp, r12",
            stack = in(reg) (stack - RED_ZONE) & !15,
            run_fault = sym run_fault,
            in("rdi") &raw mut call,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    call.fault
}

/// Answers the fault on the current stack.
///
/// # Safety
///
/// The promises of [`handle`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn on_own_stack(
    pager: &'static Pager,
    address: usize,
    write: bool,
    _context: *mut libc::c_void,
) -> Fault {
    let mut call = FaultCall { pager, address, write, fault: Fault::Retry };
    run_fault(&raw mut call);
    call.fault
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with its own arguments, and with all signals blocked, as `install` asked.
    if !unsafe { handle(signal, info, context) } {
        // SAFETY: these are the kernel's own arguments, valid until this handler returns, and all signals are blocked.
        unsafe { hand_on(signal, info, context) };
    }
}

/// Does what would happen without the pager: calls the earlier handler, or restores the default action.
///
/// # Safety
///
/// The promises of [`handle`].
unsafe fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = slot(signal);
    if previous.set.load(Ordering::Acquire) {
        // SAFETY: `install` wrote the action before it set the flag.
        let action = unsafe { (*previous.action.get()).assume_init_ref() };
        match action.sa_sigaction {
            libc::SIG_IGN | libc::SIG_DFL => {}
            function if action.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: a handler with SA_SIGINFO has this type.
                let function = unsafe {
                    std::mem::transmute::<usize, extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)>(
                        function,
                    )
                };
                return function(signal, info, context);
            }
            function => {
                // SAFETY: a handler without SA_SIGINFO has this type.
                let function = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(function) };
                return function(signal);
            }
        }
    }
    // The default action happens when the instruction faults again after the return.
    // SAFETY: sigaction is plain data for which all zero is valid, namely SIG_DFL without flags; it lives over the call.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const default, std::ptr::null_mut());
    }
}

/// Installs handlers of SIGBUS and SIGSEGV that run with all signals blocked. They call [`handle`], and pass other faults to
/// the handlers that were installed before.
///
/// # Errors
///
/// The kernel refuses to install a handler.
pub fn install() -> Result<()> {
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        let previous = slot(signal);
        // SAFETY: sigaction is plain data, for which all zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        // A stack overflow can be reported only on another stack.
        action.sa_flags = libc::SA_SIGINFO | if signal == libc::SIGSEGV { libc::SA_ONSTACK } else { 0 };
        // SAFETY: the set is part of `action`, which is borrowed for the call.
        unsafe { libc::sigfillset(&raw mut action.sa_mask) };
        // SAFETY: sigaction is plain data, for which all zero is valid.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both structures live over the call; the handler is async-signal-safe and lives as long as the process.
        if unsafe { libc::sigaction(signal, &raw const action, &raw mut old) } != 0 {
            return Err(Error::Faults { source: std::io::Error::last_os_error() });
        }
        if old.sa_sigaction != handler as *const () as usize && !previous.set.load(Ordering::Acquire) {
            // SAFETY: the action is written only once, and read only after the flag is set. A fault before that takes the
            // default action.
            unsafe { (*previous.action.get()).write(old) };
            previous.set.store(true, Ordering::Release);
        }
    }
    Ok(())
}
