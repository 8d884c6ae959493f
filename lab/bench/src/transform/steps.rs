// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many instructions a call executes, counted one by one: a verdict where time is too noisy for one.
//!
//! - **Flow** fork ─▶ the child asks to be traced, stops itself, makes the call, stops itself again ─▶ the parent steps it from the
//!   first stop to the second and counts; the same around nothing gives what the stops cost
//! - **Count** a step that does not move the instruction pointer is an iteration of a repeated string instruction and
//!   counts with its first one: however long a `rep movsb` is, it counts 1
//! - **Needs** ptrace of an own child, which no privilege and no hardware counter stands behind; a sandbox may forbid it
//! - **Owner** the child ends with SIGKILL, whatever happened
//!
//! The call runs in a copy of this process in which only the calling thread lives: it must take no lock and allocate nothing.

use std::io;

/// A call that takes longer than this is not counted to its end.
const STEPS_MAX: u64 = 20_000_000;

/// Instructions that `call` executes; None where this process may not trace its child, or the call goes on for too long.
#[cfg(target_arch = "x86_64")]
pub fn instructions(call: &mut dyn FnMut()) -> Option<u64> {
    let empty = traced(&mut || ())?;
    let all = traced(call)?;
    all.checked_sub(empty)
}

/// Stepping is written for x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
pub fn instructions(_call: &mut dyn FnMut()) -> Option<u64> {
    None
}

#[cfg(target_arch = "x86_64")]
fn traced(call: &mut dyn FnMut()) -> Option<u64> {
    // SAFETY: the child calls nothing but ptrace, raise, `call` and _exit; the caller promises in this module's header
    // that `call` needs no other thread.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return None;
    }
    if child == 0 {
        // SAFETY: system calls without pointers; _exit never returns.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(1);
            }
            libc::raise(libc::SIGSTOP);
            call();
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let count = step(child).ok().flatten();
    // SAFETY: the child is ours and not yet reaped, so its number cannot be another process's.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    count
}

/// Steps from the first stop to the second; None when the child ended or took too long.
#[cfg(target_arch = "x86_64")]
fn step(child: libc::pid_t) -> io::Result<Option<u64>> {
    if wait(child)? != Some(libc::SIGSTOP) {
        return Ok(None);
    }
    let (mut count, mut last) = (0, 0);
    while count < STEPS_MAX {
        request(libc::PTRACE_SINGLESTEP, child, 0)?;
        match wait(child)? {
            Some(libc::SIGTRAP) => {}
            Some(libc::SIGSTOP) => return Ok(Some(count)),
            _ => return Ok(None),
        }
        let at = request(libc::PTRACE_PEEKUSER, child, std::mem::offset_of!(libc::user, regs.rip))?;
        count += u64::from(at != last);
        last = at;
    }
    Ok(None)
}

/// The signal that stopped the child; None when it ended.
#[cfg(target_arch = "x86_64")]
fn wait(child: libc::pid_t) -> io::Result<Option<i32>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is live for the call.
        if unsafe { libc::waitpid(child, &mut status, 0) } == child {
            return Ok(libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn request(what: libc::c_uint, child: libc::pid_t, address: usize) -> io::Result<i64> {
    // SAFETY: errno is this thread's own; the requests used here touch no memory of this process.
    unsafe {
        *libc::__errno_location() = 0;
        let result = libc::ptrace(what, child, address, 0);
        // A word of the child may be -1, so only errno tells.
        if *libc::__errno_location() == 0 { Ok(result) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn spin(turns: u64) {
        for turn in 0..turns {
            std::hint::black_box(turn);
        }
    }

    #[test]
    fn twice_the_turns_are_twice_the_instructions() {
        let count = |turns| instructions(&mut || spin(turns)).expect("tracing an own child is allowed");
        let (thousand, two_thousand) = (count(1000), count(2000));
        assert!(thousand >= 2000, "{thousand}");
        let growth = (two_thousand - count(0)) as f64 / (thousand - count(0)) as f64;
        assert!((growth - 2.0).abs() < 0.05, "{growth}");
        assert_eq!(thousand, count(1000), "counting is exact");
    }
}
