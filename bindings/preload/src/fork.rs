// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fork at the level of the system call: no code of the program, libc or malloc runs in the child before its memory is
//! usable.
//!
//! - **Flow** in an active process, `fork`, and `clone` without CLONE_VM, are trapped ──▶ [`perform`] ──▶ pager and heap are
//!   locked ──▶ system call ──▶ parent and child unlock them; the child first registers its arena anew. In a dormant process,
//!   hooks of libc's fork ([`prepare`], [`parent`], [`child`]) do the same. Nothing is absent then, and nothing becomes
//!   absent meanwhile because the pager is locked
//! - **Order** what the child will take outside the arena is charged before the fork. libc uses the heap between its hooks and
//!   the system call, and in the child before its hooks. With absent memory the hooks would therefore be too early and too late
//! - **Not here** vfork and threads: they share the memory

use std::sync::atomic::Ordering::Relaxed;

use memlift_zmem::pager::{Pager, charge_start};

use crate::thread::{Quiet, current};
use crate::trap::{self, Scene};
use crate::{heap, held, marks, stacks, start};

/// Charges what a child takes outside the arena: structures of the kernel, a page of page tables for 2 MiB of the arena, and
/// copies of the pages that it writes first.
fn charge(pager: &Pager) {
    const FIXED_BYTES: usize = 512 << 10;
    let _quiet = Quiet::begin();
    charge_start(pager.job(), Some(pager), FIXED_BYTES + pager.admitted_bytes() / 512);
}

fn still(pager: &Pager) {
    pager.before_fork();
    heap::before_fork();
}

fn go_on(pager: &'static Pager, child: bool) {
    heap::after_fork();
    if child {
        start::forked();
        pager.after_fork_child();
        stacks::forked_and_whole();
        held::forked_and_whole(pager);
        marks::forked(pager);
    } else {
        pager.after_fork_parent();
    }
}

/// Performs a trapped fork. If the child shall have a stack of its own, it gets that when the handler returns; until then it
/// needs the handler's stack.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let mut arguments = arguments;
    let clone = number as i64 == libc::SYS_clone;
    let stack = if clone { arguments[1] } else { 0 };
    if stack != 0 {
        if scene.context.is_null() {
            return -(libc::EINVAL as isize);
        }
        arguments[1] = 0;
    }
    if clone {
        scene.pin(arguments[2], 4, true);
        scene.pin(arguments[3], 4, true);
    }
    charge(scene.pager);
    still(scene.pager);
    // SAFETY: this is the program's own fork, with this library's locks held, so no state of the pager is half changed.
    let result = unsafe { crate::gate::call(number, arguments) };
    go_on(scene.pager, result == 0);
    if result == 0 && stack != 0 {
        // SAFETY: the frame belongs to this handler; when it returns, the child goes on with the stack that the program gave
        // it.
        unsafe {
            let context = scene.context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
        }
    }
    result
}

/// Performs a fork by `syscall`, which no hook of libc sees. Returns `None` if there is no pager.
pub fn perform_for_function(number: usize, arguments: [usize; 6]) -> Option<isize> {
    let pager = Pager::get()?;
    if number as i64 == libc::SYS_clone && arguments[1] != 0 {
        // A child that begins on a stack of its own returns to nowhere from this function.
        return Some(-(libc::EINVAL as isize));
    }
    if pager.active() || !begin() {
        let result = trap::perform_now(pager, number, arguments);
        if result == 0 {
            start::start_evictor_if_due();
        }
        return Some(result);
    }
    // SAFETY: the call is the program's own. The gate makes it, so it is not trapped; the pager is locked.
    let result = unsafe { crate::gate::call(number, arguments) };
    after(result == 0);
    Some(result)
}

/// Locks the pager for a fork of a dormant process. Returns false if the process is active by now; then a trap does that.
pub fn begin() -> bool {
    prepare();
    current().forking.load(Relaxed) == 1
}

/// Hook that libc runs before its fork.
pub extern "C" fn prepare() {
    let Some(pager) = Pager::get() else { return };
    let quiet = Quiet::begin();
    current().forking.store(0, Relaxed);
    if pager.active() {
        return;
    }
    charge(pager);
    still(pager);
    // If the pager became active before it was locked, the system call of the fork is trapped, and the trap does this work.
    if pager.active() {
        return go_on(pager, false);
    }
    current().forking.store(1, Relaxed);
    std::mem::forget(quiet);
}

fn after(is_child: bool) {
    let Some(pager) = Pager::get() else { return };
    if current().forking.swap(0, Relaxed) == 1 {
        go_on(pager, is_child);
        Quiet::resume();
    }
    if is_child {
        start::start_evictor_if_due();
    }
}

/// Hook that libc runs in the parent after its fork.
pub extern "C" fn parent() {
    after(false);
}

/// Hook that libc runs in the child after its fork.
pub extern "C" fn child() {
    after(true);
}
