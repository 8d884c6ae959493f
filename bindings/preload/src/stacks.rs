// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An alternate stack of this library's for each thread. The library's handlers run on it, no matter where the program's
//! stack is.
//!
//! - **Flow** when a thread starts, [`ensure_installed`] installs its alternate stack ──▶ every SIGBUS, SIGSEGV and SIGSYS
//!   is handled there, even if the stack that the thread works on is absent (that of a coroutine, in the arena) ──▶ after
//!   the thread has ended, another thread takes the alternate stack. This library's functions, called from a stack in the
//!   arena, run on the alternate stack too ([`on_stack_outside_arena`]), since the pager may evict the thread's own. The
//!   program's `sigaltstack` ──▶ [`change`] records it and answers from the record; the program's handlers run on this
//!   library's stack, which is at least as large as the one that it asked for
//! - **Layout** guard page · stack · [`Record`] at the stack's end, on the page that is touched first. If the program gives a
//!   thread a stack in the arena, that stack is pinned as long as the thread lives, because data of libc and of this library
//!   about the thread lies there
//! - **Owner** a list of all stacks. A stack is free again when a destructor of its thread has marked it and the kernel no
//!   longer knows that thread, because later destructors may still need the stack
//! - **Not here** a coroutine that is switched to inside a handler of the program, while that handler's frame lies on this
//!   library's stack

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use memlift_zmem::lock::Lock;
use memlift_zmem::mapping;
use memlift_zmem::pager::{Pager, Pins, charge_start};

use crate::thread::{Quiet, Thread, current, inside, is_gone};
use crate::trap::in_arena;
use crate::wrappers::Next;
use crate::{heap, limits, start, sys};

const PAGE_BYTES: usize = 4096;
/// Size of an alternate stack. It has room for the program's handlers too, which may run while a trapped call waits. Only
/// pages that are used take memory.
const STACK_BYTES: usize = 256 << 10;
/// Bytes that a thread takes when it starts: structures and stack of the kernel, the first pages of its own stack and of its
/// alternate one, page tables.
const THREAD_BYTES: usize = 48 << 10;
/// Thread number of a record without a thread.
const NOBODY: i32 = 0;

struct Record {
    next: usize,
    thread: AtomicI32,
    ending: AtomicU32,
    start: usize,
    bytes: usize,
    /// Pins of the thread's own stack, if that lies in the arena.
    pins: Lock<Option<Own>>,
}

/// A stack in the arena that the program gave to a thread.
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

/// First record of the list. Records are never removed from it.
static STACKS: Lock<usize> = Lock::new(0);
/// Key whose destructor marks a thread's end; `u32::MAX` if there is none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

fn record(address: usize) -> Option<&'static Record> {
    // SAFETY: the address is zero, or that of a record of the list, which stays mapped.
    unsafe { (address as *const Record).as_ref() }
}

fn own_number() -> i32 {
    // SAFETY: the call takes no argument.
    unsafe { sys!(libc::SYS_gettid) as i32 }
}

/// Takes a free stack of at least `bytes` bytes, or makes a new one.
fn take_stack(bytes: usize) -> Option<&'static Record> {
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
    mapping::count_reserved(PAGE_BYTES + bytes);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: the mapping is new, at an address of the kernel's choice, and the record is written before it is in the list.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let whole = sys!(libc::SYS_mmap, 0, PAGE_BYTES + bytes, access, flags, usize::MAX, 0);
        let whole = usize::try_from(whole).ok()?;
        // Without the guard page an overflow would not be noticed. The kernel refuses the page if it has no mapping left.
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

/// Gives this thread a stack of at least `bytes` bytes. Returns false if there is none; its handlers then run on the stack
/// that it works on.
fn install(thread: &Thread, bytes: usize, flags: c_int, context: *mut c_void) -> bool {
    let old = record(thread.stack.load(Relaxed));
    let Some(stack) =
        old.filter(|old| usable(old) >= bytes).or_else(|| take_stack(bytes + size_of::<Record>() + 64))
    else {
        return false;
    };
    let current_flags = thread.alternate[2].load(Relaxed) as c_int;
    if old.is_some_and(|old| std::ptr::eq(old, stack)) && flags == current_flags {
        return true;
    }
    let new = libc::stack_t { ss_sp: stack.start as *mut c_void, ss_flags: flags, ss_size: usable(stack) };
    if context.is_null() {
        // SAFETY: the stack belongs to this thread and stays mapped; `new` lives over the call.
        if unsafe { sys!(libc::SYS_sigaltstack, &raw const new, 0) } != 0 {
            return false;
        }
    } else {
        // The handler runs on the old stack; it will return to the one that its frame names.
        // SAFETY: the frame is that of the handler that runs on this thread.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack = new };
    }
    thread.stack.store(std::ptr::from_ref(stack) as usize, Relaxed);
    if let Some(old) = old.filter(|old| !std::ptr::eq(*old, stack)) {
        // This handler may still run on the old stack.
        old.ending.store(1, Relaxed);
    }
    let key = KEY.load(Relaxed);
    if key != u32::MAX {
        // SAFETY: the key is this library's. It is one of the first, so that libc has a place for its value in the thread
        // itself.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(stack).cast()) };
    }
    true
}

/// Gives this thread an alternate stack, if it has none.
pub fn ensure_installed() {
    let thread = current();
    if thread.stack.load(Relaxed) == 0 {
        install(thread, STACK_BYTES, 0, std::ptr::null_mut());
    }
}

unsafe extern "C" fn run<F: FnOnce() -> R, R>(pair: *mut c_void) {
    // SAFETY: `on_stack_outside_arena` passes a pair of these types, which it does not use until this returns.
    let (body, result) = unsafe { &mut *pair.cast::<(Option<F>, Option<R>)>() };
    if let Some(body) = body.take() {
        *result = Some(body());
    }
}

/// Runs code that enters the pager. It runs on this thread's alternate stack if the current one lies in the arena.
pub fn on_stack_outside_arena<F: FnOnce() -> R, R>(body: F) -> R {
    let mut pair = (Some(body), None::<R>);
    let place: *mut c_void = (&raw mut pair).cast();
    let stack = if in_arena(place as usize) { record(current().stack.load(Relaxed)) } else { None };
    let Some(stack) = stack else {
        // SAFETY: `place` points to a pair of these types, which nobody else uses until the call returns.
        unsafe { run::<F, R>(place) };
        return pair.1.expect("it ran");
    };
    // The body and its result lie on a stack that may become absent. They are moved only at the start and at the end, when no
    // lock is held.
    let top = (stack.start + usable(stack)) & !15;
    // SAFETY: the alternate stack belongs to this thread and is not in use, because the thread works on another one. The old
    // stack pointer is in a register that the called function preserves; the other registers are declared as changed.
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

/// Prepares the list; runs once, before the program makes threads.
pub fn begin() {
    let mut key = 0;
    // SAFETY: `key` lives over the call, and the destructor lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Relaxed);
    }
    ensure_installed();
}

/// Frees all stacks except for this thread's, in the child of a fork.
pub fn forked() {
    // SAFETY: the child has one thread. The list is consistent at any time, since a single store adds a record to it.
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

/// Pins the stack of this thread again in the child of a fork, after its pager is usable: the child's pager has no pins, but
/// the thread still works on its stack.
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

/// Performs `sigaltstack` of the program. `at` is its stack pointer; `context` is the frame if this is called in a handler.
///
/// # Safety
///
/// The pointers are the program's, null or valid; the frame is that of the handler that runs, or null.
pub unsafe fn change(
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    at: usize,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises a valid pointer. It is read while signals are let in, because it may refer to absent
    // memory.
    let wanted = if new.is_null() { None } else { Some(unsafe { new.read() }) };
    let thread = current();
    let [address, bytes, flags] = [0, 1, 2].map(|index: usize| thread.alternate[index].load(Relaxed));
    // The recorded number of bytes is zero if the program has no alternate stack.
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
        // SAFETY: the caller promises that `old` is null or may be written.
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

/// Pins the stack that the program gives to a new thread, if it lies in the arena.
fn own_stack(attributes: *const libc::pthread_attr_t) -> Result<Option<Own>, c_int> {
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are the program's valid ones, and both variables live over the call.
    let known = !attributes.is_null()
        && unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut bytes) } == 0;
    if !known || !in_arena(start as usize) {
        return Ok(None);
    }
    let _quiet = Quiet::begin();
    Own::pinned(start as usize, bytes).map(Some).ok_or(libc::EAGAIN)
}

/// Runs first in a new thread. If the thread is cancelled or exits, unwinding passes through this function.
unsafe extern "C-unwind" fn thread_starts(first: *mut c_void) -> *mut c_void {
    let (routine, argument) = {
        let _quiet = Quiet::begin();
        // SAFETY: `pthread_create` wrote the block for this thread, which reads it once and then frees it.
        let First { routine, argument, own } = unsafe { first.cast::<First>().read() };
        heap::free(first.cast());
        ensure_installed();
        match record(current().stack.load(Relaxed)) {
            Some(stack) => *stack.pins.lock() = own,
            // Without a record nothing tells that the thread has ended, so the pins stay for good.
            None => std::mem::forget(own),
        }
        (routine, argument)
    };
    // SAFETY: routine and argument are those that the program passed to `pthread_create`.
    unsafe { routine(argument) }
}

/// Behaves as libc's `pthread_create`.
///
/// # Safety
///
/// The promises of libc's `pthread_create`.
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
    // SAFETY: libc's function of this name has this type.
    let next = unsafe { std::mem::transmute::<usize, Create>(NEXT.address()) };
    if !start::covered() || inside() {
        // SAFETY: the caller makes the promises of `pthread_create`.
        return unsafe { next(thread, attributes, routine, argument) };
    }
    start::start_evictor_if_due();
    // libc maps the stack by itself, and would fail where the heap has memory that it does not need.
    limits::reclaim();
    if let Some(pager) = Pager::get() {
        let _quiet = Quiet::begin();
        charge_start(pager.job(), Some(pager), THREAD_BYTES);
    }
    let own = match on_stack_outside_arena(|| own_stack(attributes)) {
        Ok(own) => own,
        Err(number) => return number,
    };
    let first = {
        let _quiet = Quiet::begin();
        let first = heap::allocate(size_of::<First>(), 16).cast::<First>();
        if first.is_null() {
            return libc::EAGAIN;
        }
        // SAFETY: the block is large enough and aligned, and nobody else has its address yet.
        unsafe { first.write(First { routine, argument, own }) };
        first
    };
    // SAFETY: the caller makes the promises of libc's `pthread_create`; the block is passed to the new thread.
    let result = unsafe { next(thread, attributes, thread_starts, first.cast()) };
    if result != 0 {
        let _quiet = Quiet::begin();
        // SAFETY: no thread was made, so the block still belongs to this call, which reads it once.
        drop(unsafe { first.read() });
        heap::free(first.cast());
    }
    result
}
