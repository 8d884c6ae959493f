// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits on address space that the program sets (`RLIMIT_AS`, `RLIMIT_DATA`): they hold for the program's own memory, without
//! the reservations of this library.
//!
//! - **Flow** the program sets a limit ──▶ [`perform`] gives the kernel that limit plus this library's address space. Memory
//!   outside the arena is limited by the kernel; [`admits`] limits mappings in the arena, and [`settle`] then lowers the
//!   kernel's limit by what they took. The program reads back what it set
//! - **Heap** freed memory of the heap stays mapped. When a call fails, [`reclaim`] counts that memory, and the limit no longer
//!   does
//! - **Layout** the program's limits lie in limits of the kernel: `carried`
//! - **Order** nothing here takes a lock. A thread that sets the kernel's limit from sums that another thread changes leaves a
//!   limit that is wrong by one mapping; [`renew`] corrects it when a call fails
//! - **Errors** the limit of a process counts as a soft one if the kernel's hard limit was finite before: it cannot be raised
//! - **Not here** limits under which the program was started: the arena takes its share of them (`memlift_zmem::pager`)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use memlift_zmem::mapping;
use memlift_zmem::pager::{Mechanism, Pager};
use tikv_jemalloc_sys as je;

use crate::activate::{after, decimal, for_lines, hexadecimal};
use crate::carried::{
    CARRIER, EXACT, INFINITE, LIMITED, Limit, MARK, Marked, adopt, kernel, mark, set_kernel,
};
use crate::gate::{errno, to_libc_result};
use crate::thread::{Quiet, inside};
use crate::trap::{self, Scene};
use crate::{heap, kept, start, sys, whole};

/// Address space of this library's threads and of the libraries that only it uses, bytes; an upper bound.
const SLACK_BYTES: u64 = 2 << 20;
const FILE_NAME: &[u8] = b"/libmemlift_preload.so";
/// Number of the right to raise a hard limit.
const RESOURCE_CAPABILITY: u32 = 24;
const NO_MEMORY: isize = -(libc::ENOMEM as isize);

/// True if the program's address space is limited.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Hard limits that the kernel's hard limit cannot express, because that was finite before.
static HARD: [AtomicU64; 2] = [const { AtomicU64::new(INFINITE) }; 2];
/// Address space that the heap has freed and keeps, at the last call of [`reclaim`], bytes.
static RETAINED: AtomicU64 = AtomicU64::new(0);
/// First and last address of this library's file; zero until [`library`] has looked.
static LIBRARY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Returns a limit as the program has set it.
fn seen(process: usize, index: usize) -> Limit {
    let kernel_limit = kernel(process, LIMITED[index]);
    let mut hard = kernel_limit.hard;
    if hard != INFINITE && hard >= MARK {
        hard -= MARK;
    }
    let mut soft = kernel_limit.soft;
    if let Some(marked) = Marked::decode(kernel(process, CARRIER)) {
        soft = marked.get(index);
    }
    if process == 0 && !start::in_vfork_child() {
        let exact = EXACT[index].load(Relaxed);
        if exact >> 10 == soft >> 10 {
            soft = exact;
        }
        hard = hard.min(HARD[index].load(Relaxed));
    }
    Limit { soft: soft.min(hard), hard }
}

/// Returns the address space and the data (with stacks) of the process, bytes.
fn used() -> [u64; 2] {
    let mut used = [0; 2];
    for_lines(c"/proc/self/statm", &mut [0u8; 256], |line| {
        let mut fields = line.split(|&byte| byte == b' ').map(|field| decimal(field) as u64 * 4096);
        used = [fields.next().unwrap_or(0), fields.nth(4).unwrap_or(0)];
    });
    used
}

/// Returns the addresses where this library's file is mapped.
fn library() -> std::ops::Range<u64> {
    if LIBRARY[1].load(Relaxed) == 0 {
        let (mut start, mut end) = (u64::MAX, 0);
        for_lines(c"/proc/self/maps", &mut [0u8; 4352], |line| {
            if line.ends_with(FILE_NAME) {
                start = start.min(hexadecimal(line));
                end = end.max(hexadecimal(after(line, b"-")));
            }
        });
        LIBRARY[0].store(start.min(end), Relaxed);
        LIBRARY[1].store(end, Relaxed);
    }
    LIBRARY[0].load(Relaxed)..LIBRARY[1].load(Relaxed)
}

/// Returns the part of [`used`] that is not the program's memory.
fn own() -> [u64; 2] {
    let reserved = mapping::reserved_bytes() + heap::reserved_bytes();
    let library = library();
    let own = reserved as u64 + (library.end - library.start) + SLACK_BYTES + RETAINED.load(Relaxed);
    let Some(pager) = Pager::get() else { return [own; 2] };
    let mapped = pager.mapped_bytes() as u64;
    let unused = (pager.arena_bytes() as u64).saturating_sub(mapped);
    // Where absent memory is memory without access, it does not count as data until it comes back.
    let hidden = if pager.mechanism() == Mechanism::Protect { mapped } else { 0 };
    [own + unused, own + hidden]
}

/// Gives the kernel the limits of the program plus this library's address space.
fn apply() {
    let (used, own) = (used(), own());
    let mut limited = false;
    for (index, resource) in LIMITED.into_iter().enumerate() {
        let (before, limit) = (kernel(0, resource), seen(0, index));
        let mut soft = before.hard;
        if limit.soft != INFINITE {
            limited = true;
            // Calls of this library that replace a mapping need a limit that is not exceeded.
            soft = limit.soft.saturating_add(own[index]).max(used[index]).min(before.hard);
        }
        if soft != before.soft {
            set_kernel(0, resource, Limit { soft, hard: before.hard });
        }
    }
    if !start::in_vfork_child() {
        ACTIVE.store(limited, Relaxed);
    }
}

/// Begins to hold the limits that this image inherited; this library has made its reservations.
pub fn begin() {
    if Marked::decode(kernel(0, CARRIER)).is_some() {
        apply();
    }
    mapping::before_growth(settle);
}

/// Sets the kernel's limits anew after the address space of the program or of this library has changed.
pub fn settle() {
    if ACTIVE.load(Relaxed) {
        apply();
    }
}

/// Returns true if this many more bytes of the arena may be mapped.
pub fn admits(bytes: impl FnOnce() -> usize) -> bool {
    if !ACTIVE.load(Relaxed) {
        return true;
    }
    let limit = seen(0, 0).soft;
    limit == INFINITE || used()[0].saturating_add(bytes() as u64) <= limit.saturating_add(own()[0])
}

/// Sets the kernel's limits anew after a call has failed with `result`. Returns true if the call may succeed now.
pub fn renew(result: isize) -> bool {
    if result != NO_MEMORY {
        return false;
    }
    let _quiet = Quiet::begin();
    let limits = || LIMITED.map(|resource| kernel(0, resource));
    let before = limits();
    adopt();
    if Marked::decode(kernel(0, CARRIER)).is_none() {
        return false;
    }
    apply();
    limits() != before
}

/// Counts the memory that the heap has freed and keeps, which libc's heap would have unmapped, and sets the kernel's limits
/// anew. Returns true if there is such memory. Not to be called by the heap, whose locks it takes.
pub fn reclaim() -> bool {
    if !ACTIVE.load(Relaxed) || inside() {
        return false;
    }
    let (mut epoch, mut retained, mut bytes) = (1u64, 0usize, size_of::<u64>());
    // SAFETY: the names are C strings; the values live over the calls and have the sizes that are passed.
    unsafe {
        let none = std::ptr::null_mut();
        // 4096 is jemalloc's number that stands for all of its arenas.
        je::mallctl(c"arena.4096.purge".as_ptr(), none, std::ptr::null_mut(), none, 0);
        let epoch = (&raw mut epoch).cast();
        je::mallctl(c"epoch".as_ptr(), none, std::ptr::null_mut(), epoch, size_of::<u64>());
        let retained = (&raw mut retained).cast();
        je::mallctl(c"stats.retained".as_ptr(), retained, &raw mut bytes, none, 0);
    }
    RETAINED.store(retained as u64, Relaxed);
    let _quiet = Quiet::begin();
    apply();
    retained > 0
}

/// Does the same after a failed call of the program at `caller`. Returns true if the call may succeed now.
pub fn reclaim_for(caller: usize) -> bool {
    ACTIVE.load(Relaxed) && errno() == libc::ENOMEM && !library().contains(&(caller as u64)) && reclaim()
}

/// Sets a limit; returns the result that the kernel would.
fn set(process: usize, index: usize, new: Limit) -> isize {
    let (before, old) = (kernel(process, LIMITED[index]), seen(process, index));
    if new.soft > new.hard {
        return -(libc::EINVAL as isize);
    }
    if new.hard > old.hard && !whole::has_capability(RESOURCE_CAPABILITY) {
        return -(libc::EPERM as isize);
    }
    let raisable = before.hard >= MARK;
    let hard = match new.hard {
        INFINITE => INFINITE,
        finite if raisable && finite < MARK => MARK + finite,
        finite if !raisable => before.hard.max(finite),
        _ => before.hard,
    };
    if hard != before.hard {
        let result = set_kernel(process, LIMITED[index], Limit { soft: before.soft.min(hard), hard });
        if result != 0 {
            return result;
        }
    }
    if !mark(process, index, new.soft) {
        return -(libc::EPERM as isize);
    }
    if process != 0 {
        // The other process raises its limit when its next call fails, or in its next image.
        return set_kernel(process, LIMITED[index], Limit { soft: new.soft, hard });
    }
    if !start::in_vfork_child() {
        EXACT[index].store(new.soft, Relaxed);
        HARD[index].store(if raisable { INFINITE } else { new.hard }, Relaxed);
    }
    apply();
    0
}

/// Returns true if a process is under this library: its gate is mapped.
fn is_covered(process: usize) -> bool {
    let path = kept::path_of(b"/proc/", process, b"/maps");
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let mut found = false;
    for_lines(path, &mut [0u8; 4096], |line| found |= line.starts_with(b"1fff00000000-"));
    found
}

/// Copies a limit from or to memory of the program, which is pinned; fails if that may not be accessed.
fn copy(number: i64, own: usize, other: usize) -> bool {
    let (own, other) = ([own, size_of::<Limit>()], [other, size_of::<Limit>()]);
    // SAFETY: the own range is a limit that lives over the call; if the other is not accessible, the call fails.
    let done = unsafe { sys!(number, sys!(libc::SYS_getpid), own.as_ptr(), 1, other.as_ptr(), 1, 0) };
    done == size_of::<Limit>() as isize
}

/// Performs `getrlimit`, `setrlimit` or `prlimit64`. Returns `None` for the limits that this library leaves to the kernel.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> Option<isize> {
    let (process, resource, new, old) = match number as i64 {
        libc::SYS_getrlimit => (0, arguments[0], 0, arguments[1]),
        libc::SYS_setrlimit => (0, arguments[0], arguments[1], 0),
        _ => (arguments[0], arguments[1], arguments[2], arguments[3]),
    };
    let resource = resource as u32;
    // SAFETY: the call takes no argument.
    let own = process == 0 || process == unsafe { sys!(libc::SYS_getpid) } as usize;
    let process = if own { 0 } else { process };
    // SAFETY: the kernel only looks if the process may be asked.
    if !own && (unsafe { sys!(libc::SYS_prlimit64, process, resource, 0, 0) } != 0 || !is_covered(process)) {
        return None;
    }
    let index = LIMITED.iter().position(|&limited| limited == resource);
    if index.is_none() && (resource != CARRIER || Marked::decode(kernel(process, CARRIER)).is_none()) {
        return None;
    }
    let before = match index {
        Some(index) => seen(process, index),
        None => Limit { soft: INFINITE, hard: INFINITE },
    };
    if number as i64 == libc::SYS_getrlimit && old == 0 || number as i64 == libc::SYS_setrlimit && new == 0 {
        return Some(-(libc::EFAULT as isize));
    }
    if new != 0 {
        let mut wanted = Limit { soft: 0, hard: 0 };
        scene.pin(new, size_of::<Limit>(), false);
        if !copy(libc::SYS_process_vm_readv, (&raw mut wanted) as usize, new) {
            return Some(-(libc::EFAULT as isize));
        }
        let result = index.map_or(0, |index| set(process, index, std::hint::black_box(wanted)));
        if result != 0 {
            return Some(result);
        }
    }
    if old != 0 {
        scene.pin(old, size_of::<Limit>(), true);
        if !copy(libc::SYS_process_vm_writev, (&raw const before) as usize, old) {
            return Some(-(libc::EFAULT as isize));
        }
    }
    Some(0)
}

fn call(arguments: [usize; 6]) -> std::ffi::c_int {
    let number = libc::SYS_prlimit64 as usize;
    let result = match Pager::get() {
        Some(pager) if start::covered() && !inside() => trap::perform_now(pager, number, arguments),
        // SAFETY: the call and its arguments are the program's own.
        _ => unsafe { crate::gate::call(number, arguments) },
    };
    to_libc_result(result) as std::ffi::c_int
}

macro_rules! functions {
    ($($name:ident ($($argument:ident),+) = [$($place:expr),+];)+) => {$(
        /// Behaves as libc's function of this name.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: usize),+) -> std::ffi::c_int {
            call([$($place),+, 0, 0])
        }
    )+};
}

functions! {
    getrlimit(resource, limit) = [0, resource & 0xffff_ffff, 0, limit];
    getrlimit64(resource, limit) = [0, resource & 0xffff_ffff, 0, limit];
    setrlimit(resource, limit) = [0, resource & 0xffff_ffff, limit, 0];
    setrlimit64(resource, limit) = [0, resource & 0xffff_ffff, limit, 0];
    prlimit(process, resource, new, old) = [process & 0xffff_ffff, resource & 0xffff_ffff, new, old];
    prlimit64(process, resource, new, old) = [process & 0xffff_ffff, resource & 0xffff_ffff, new, old];
}
