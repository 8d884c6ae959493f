// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An alternate stack of ours for each thread: our handlers run there, wherever the program's stack is.
//!
//! - **Flow** [`give`] when a thread starts ──▶ every SIGBUS, SIGSEGV and SIGSYS arrives there, also when the stack that the
//!   thread works on (a coroutine's, in the arena) is away ──▶ the thread has ended: the next one takes the stack
//!   our own functions, called from such a stack ──▶ [`aside`]: on ours too, since the pager may put that stack away
//!   the program's `sigaltstack` ──▶ [`change`]: noted, and answered from the note; its handlers run on ours, which is
//!   as large as what it asked for
//! - **Layout** guard page · stack · [`Record`] at its end, in the page that is touched first
//!   a stack that the program gave a thread, in the arena ──▶ pinned while the thread lives: what libc and we know of
//!   the thread lies there
//! - **Owner** a list of all stacks. One is free again when its thread has marked it, in a destructor, and the kernel knows that
//!   thread no more: destructors that come later may still need it
//! - **Not here** a coroutine that is switched to inside a handler of the program's while that handler's frame lies on our stack

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::{Pager, Pins};

use crate::thread::{Quiet, Thread, current, inside};
use crate::trap::in_arena;
use crate::wrappers::Next;
use crate::{heap, start, sys};

const PAGE_BYTES: usize = 4096;
/// Room for the program's handlers too, which take signals while a trapped call waits. Only pages that are used take memory.
const STACK_BYTES: usize = 256 << 10;
/// Thread number of a record whose thread has ended, or that had none.
const NOBODY: i32 = 0;

struct Record {
    next: usize,
    thread: AtomicI32,
    ending: AtomicU32,
    start: usize,
    bytes: usize,
    /// The thread's own stack, where that lies in the arena.
    pins: Lock<Option<Own>>,
}

/// A stack that the program gave a thread.
struct Own {
    start: usize,
    bytes: usize,
    pins: Pins<'static>,
}

impl Own {
    fn pinned(start: usize, bytes: usize) -> Option<Own> {
        let pins = Pager::get()?.pin(start, bytes, true).ok()?;
        Some(Own { start, bytes, pins })
    }
}

/// First record of the list. Records are never taken out of it.
static STACKS: Lock<usize> = Lock::new(0);
/// The key whose destructor marks a thread's end; `u32::MAX` where there is none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

fn record(address: usize) -> Option<&'static Record> {
    // SAFETY: zero, or a record of the list, which stays mapped.
    unsafe { (address as *const Record).as_ref() }
}

fn own_number() -> i32 {
    // SAFETY: asks for a number.
    unsafe { sys!(libc::SYS_gettid) as i32 }
}

fn is_gone(thread: i32) -> bool {
    // SAFETY: asks whether the thread is there.
    unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), thread, 0) == -(libc::ESRCH as isize) }
}

/// Finds a free stack of at least so many bytes, or makes a new one.
fn find(bytes: usize) -> Option<&'static Record> {
    let thread = own_number();
    let mut first = STACKS.lock();
    let mut next = *first;
    while let Some(known) = record(next) {
        next = known.next;
        let owner = known.thread.load(Relaxed);
        let free = owner == NOBODY || known.ending.load(Relaxed) != 0 && is_gone(owner);
        if free {
            known.thread.store(NOBODY, Relaxed);
            let own = known.pins.lock().take();
            drop(own);
        }
        if free && known.bytes >= bytes {
            known.thread.store(thread, Relaxed);
            known.ending.store(0, Relaxed);
            return Some(known);
        }
    }
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new mapping; the record is written before anybody knows of it.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let whole = sys!(libc::SYS_mmap, 0, PAGE_BYTES + bytes, access, flags, usize::MAX, 0);
        let whole = usize::try_from(whole).ok()?;
        // Without the guard an overflow would be silent; the kernel refuses it when it has no room for one mapping more.
        if sys!(libc::SYS_mprotect, whole, PAGE_BYTES, libc::PROT_NONE) != 0 {
            sys!(libc::SYS_munmap, whole, PAGE_BYTES + bytes);
            return None;
        }
        let start = whole + PAGE_BYTES;
        let place = start + bytes - size_of::<Record>();
        (place as *mut Record).write(Record {
            next: *first,
            thread: AtomicI32::new(thread),
            ending: AtomicU32::new(0),
            start,
            bytes,
            pins: Lock::new(None),
        });
        *first = place;
        record(place)
    }
}

fn usable(record: &Record) -> usize {
    (record.bytes - size_of::<Record>()) & !63
}

fn is_on(thread: &Thread, at: usize) -> bool {
    record(thread.stack.load(Relaxed)).is_some_and(|stack| at.wrapping_sub(stack.start) <= stack.bytes)
}

/// Gives this thread a stack of so many bytes. If there is none, its handlers run on the stack that it works on.
fn install(thread: &Thread, bytes: usize, flags: c_int, context: *mut c_void) -> bool {
    let old = record(thread.stack.load(Relaxed));
    let Some(stack) =
        old.filter(|old| usable(old) >= bytes).or_else(|| find(bytes + size_of::<Record>() + 64))
    else {
        return false;
    };
    let current_flags = thread.alternate[2].load(Relaxed) as c_int;
    if old.is_some_and(|old| std::ptr::eq(old, stack)) && flags == current_flags {
        return true;
    }
    let new = libc::stack_t { ss_sp: stack.start as *mut c_void, ss_flags: flags, ss_size: usable(stack) };
    if context.is_null() {
        // SAFETY: the stack is this thread's, and lives as long.
        if unsafe { sys!(libc::SYS_sigaltstack, &raw const new, 0) } != 0 {
            return false;
        }
    } else {
        // The handler works on the old one: what its frame names is what it returns to.
        // SAFETY: the frame is this handler's.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack = new };
    }
    thread.stack.store(std::ptr::from_ref(stack) as usize, Relaxed);
    if let Some(old) = old.filter(|old| !std::ptr::eq(*old, stack)) {
        // This handler may still run on it.
        old.ending.store(1, Relaxed);
    }
    let key = KEY.load(Relaxed);
    if key != u32::MAX {
        // SAFETY: a key of ours; one of the first, so that libc has a place for it in the thread itself.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(stack).cast()) };
    }
    true
}

/// Gives this thread its stack.
pub fn give() {
    let thread = current();
    if thread.stack.load(Relaxed) == 0 {
        install(thread, STACK_BYTES, 0, std::ptr::null_mut());
    }
}

unsafe extern "C" fn run<F: FnOnce() -> R, R>(pair: *mut c_void) {
    // SAFETY: `aside` passes a pair of these types.
    let (body, result) = unsafe { &mut *pair.cast::<(Option<F>, Option<R>)>() };
    if let Some(body) = body.take() {
        *result = Some(body());
    }
}

/// Runs code that enters the pager: on this thread's own stack if the current one lies in the arena.
pub fn aside<F: FnOnce() -> R, R>(body: F) -> R {
    let mut pair = (Some(body), None::<R>);
    let place: *mut c_void = (&raw mut pair).cast();
    let stack = if in_arena(place as usize) { record(current().stack.load(Relaxed)) } else { None };
    let Some(stack) = stack else {
        // SAFETY: a pair of the function's types.
        unsafe { run::<F, R>(place) };
        return pair.1.expect("it ran");
    };
    // The body and its result lie on a stack that may go away: they are moved at start and end, with no lock held.
    let top = (stack.start + usable(stack)) & !15;
    // SAFETY: the stack is this thread's, and not in use: this thread works on another. The old pointer lies in a register
    // that the function keeps; the rest is what C's functions may change.
    unsafe {
        core::arch::asm!(
            "xchg rsp, r12",
            "call r13",
            "mov rsp, r12",
            inout("r12") top => _,
            in("r13") run::<F, R> as unsafe extern "C" fn(*mut c_void),
            in("rdi") place,
            clobber_abi("C"),
        );
    }
    pair.1.expect("it ran")
}

extern "C" fn thread_ends(stack: *mut c_void) {
    if let Some(stack) = record(stack as usize) {
        stack.ending.store(1, Relaxed);
    }
}

/// Runs once, before the program makes threads.
pub fn begin() {
    let mut key = 0;
    // SAFETY: a place for the key; the destructor lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Relaxed);
    }
    give();
}

/// In the child of a fork: all stacks but this thread's are free.
pub fn forked() {
    // SAFETY: the child has one thread; the list is whole at any time, since one store adds to it.
    unsafe { STACKS.reset() };
    let own = current().stack.load(Relaxed);
    let mut next = *STACKS.lock();
    while let Some(known) = record(next) {
        known.thread.store(if next == own { own_number() } else { NOBODY }, Relaxed);
        // SAFETY: the child has one thread, so a lock that is held belongs to a thread that does not exist here.
        unsafe { known.pins.reset() };
        if next != own {
            std::mem::forget(known.pins.lock().take());
        }
        next = known.next;
    }
}

/// In the child of a fork, when its pager is whole: pins are forgotten there, but this thread still works on its stack.
pub fn forked_and_whole() {
    let Some(stack) = record(current().stack.load(Relaxed)) else { return };
    let mut own = stack.pins.lock();
    if let Some(Own { start, bytes, pins }) = own.take() {
        std::mem::forget(pins);
        *own = Own::pinned(start, bytes);
    }
}

const AUTODISARM: c_int = c_int::MIN;
const LEAST_BYTES: usize = 2048;

/// `sigaltstack` of the program, whose stack pointer is `at`; in a handler, with its frame.
///
/// # Safety
///
/// The pointers are the program's; the frame is this handler's, or null.
pub unsafe fn change(
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    at: usize,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's. Read and written outside our stretch: they may lie in the arena.
    let wanted = if new.is_null() { None } else { Some(unsafe { new.read() }) };
    let thread = current();
    let [address, bytes, flags] = [0, 1, 2].map(|index: usize| thread.alternate[index].load(Relaxed));
    // The note's bytes are zero where there is none.
    let on = bytes != 0 && flags as c_int & AUTODISARM == 0 && is_on(thread, at);
    let before = libc::stack_t {
        ss_sp: address as *mut c_void,
        ss_flags: match (bytes, on) {
            (0, _) => libc::SS_DISABLE,
            (_, true) => libc::SS_ONSTACK,
            _ => flags as c_int & AUTODISARM,
        },
        ss_size: bytes,
    };
    if let Some(wanted) = wanted {
        let mode = wanted.ss_flags & !AUTODISARM;
        if on {
            return -(libc::EPERM as isize);
        }
        if mode != libc::SS_DISABLE && mode != libc::SS_ONSTACK && mode != 0 {
            return -(libc::EINVAL as isize);
        }
        let enabled = mode != libc::SS_DISABLE;
        if enabled && wanted.ss_size < LEAST_BYTES {
            return -(libc::ENOMEM as isize);
        }
        let disarm = if enabled { wanted.ss_flags & AUTODISARM } else { 0 };
        let size = if enabled { wanted.ss_size.max(STACK_BYTES) } else { STACK_BYTES };
        let quiet = (!inside()).then(Quiet::begin);
        let installed = install(thread, size, disarm, context);
        drop(quiet);
        if !installed {
            return -(libc::ENOMEM as isize);
        }
        let note =
            if enabled { [wanted.ss_sp as usize, wanted.ss_size, disarm as u32 as usize] } else { [0; 3] };
        for (place, value) in thread.alternate.iter().zip(note) {
            place.store(value, Relaxed);
        }
    }
    if !old.is_null() {
        // SAFETY: the caller's.
        unsafe { old.write(before) };
    }
    0
}

type Routine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

#[repr(C)]
struct First {
    routine: Routine,
    argument: *mut c_void,
    own: Option<Own>,
}

/// The stack that the program gives a thread, where that lies in the arena.
fn own_stack(attributes: *const libc::pthread_attr_t) -> Result<Option<Own>, c_int> {
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the program's attributes, and places for the answer.
    let known = !attributes.is_null()
        && unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut bytes) } == 0;
    if !known || !in_arena(start as usize) {
        return Ok(None);
    }
    let _quiet = Quiet::begin();
    Own::pinned(start as usize, bytes).map(Some).ok_or(libc::EAGAIN)
}

/// Runs first in a new thread. Unwinding passes through here when the thread is cancelled or exits.
unsafe extern "C-unwind" fn thread_starts(first: *mut c_void) -> *mut c_void {
    let (routine, argument) = {
        let _quiet = Quiet::begin();
        // SAFETY: `pthread_create` wrote it for this thread.
        let First { routine, argument, own } = unsafe { first.cast::<First>().read() };
        heap::free(first.cast());
        give();
        match record(current().stack.load(Relaxed)) {
            Some(stack) => *stack.pins.lock() = own,
            // Without a record nothing tells when the thread ends: the pins stay.
            None => std::mem::forget(own),
        }
        (routine, argument)
    };
    // SAFETY: the program's routine and its argument.
    unsafe { routine(argument) }
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        Routine,
        *mut c_void,
    ) -> c_int;
    static NEXT: Next = Next::new(c"pthread_create");
    // SAFETY: libc's function.
    let next = unsafe { std::mem::transmute::<usize, Create>(NEXT.address()) };
    if !start::covered() || inside() {
        // SAFETY: the caller's.
        return unsafe { next(thread, attributes, routine, argument) };
    }
    start::tend();
    let own = match aside(|| own_stack(attributes)) {
        Ok(own) => own,
        Err(number) => return number,
    };
    let first = {
        let _quiet = Quiet::begin();
        let first = heap::allocate(size_of::<First>(), 16).cast::<First>();
        if first.is_null() {
            return libc::EAGAIN;
        }
        // SAFETY: the block is as large.
        unsafe { first.write(First { routine, argument, own }) };
        first
    };
    // SAFETY: the caller's; the block is the new thread's.
    let result = unsafe { next(thread, attributes, thread_starts, first.cast()) };
    if result != 0 {
        let _quiet = Quiet::begin();
        // SAFETY: no thread took it.
        drop(unsafe { first.read() });
        heap::free(first.cast());
    }
    result
}
