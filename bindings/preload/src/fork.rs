// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fork at the system call itself: no code of the program, libc or malloc runs in the child before its memory is whole.
//!
//! - **Flow** active: trapped `clone` without CLONE_VM, `fork` ──▶ [`perform`] ──▶ pager and heap stand still ──▶ call ──▶ both
//!   sides go on; the child's arena is registered anew first
//!   dormant: libc's own hooks ([`prepare`], [`parent`], [`child`]) do the same: nothing is absent then, and it stays
//!   so because the pager stands still
//! - **Order** libc touches the heap between its hooks and the system call, and in the child before its hooks: so with absent
//!   memory the hooks are no place for this
//! - **Not here** vfork and threads: they have the memory in common

use std::sync::atomic::Ordering::Relaxed;

use memlift_zmem::pager::Pager;

use crate::thread::{Quiet, current};
use crate::trap::Scene;
use crate::{heap, held, stacks, start};

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
    } else {
        pager.after_fork_parent();
    }
}

/// Performs a trapped fork. The child gets its own stack when the handler returns: until then it needs the handler's.
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
    still(scene.pager);
    // SAFETY: the program's fork, with everything of ours at rest.
    let result = unsafe { crate::gate::call(number, arguments) };
    go_on(scene.pager, result == 0);
    if result == 0 && stack != 0 {
        // SAFETY: the frame is this handler's; the child returns onto the stack that it was given.
        unsafe {
            let context = scene.context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
        }
    }
    result
}

/// Hook before libc's fork.
pub extern "C" fn prepare() {
    let Some(pager) = Pager::get() else { return };
    let quiet = Quiet::begin();
    current().forking.store(0, Relaxed);
    if pager.active() {
        return;
    }
    still(pager);
    // If the pager became active before everything stood still, the fork's system call is trapped and does this itself.
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
        start::tend();
    }
}

/// Hook in the parent after libc's fork.
pub extern "C" fn parent() {
    after(false);
}

/// Hook in the child after libc's fork.
pub extern "C" fn child() {
    after(true);
}
