// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mmap family: private anonymous memory of 64 KiB and more lies in the arena.
//!
//! - **Flow** [`perform`] is called for each call of the family, from this file's functions that replace libc's, from
//!   `syscall` and from trapped instructions ──▶ the pager, the kernel, or both if a range lies partly in the arena
//! - **Layout** not in the arena: shared memory, files, stacks, memory that grows downwards, below 4 GiB, in huge pages or
//!   executable, and memory that was placed elsewhere by `MAP_FIXED` or by a hint that the program needs. A private file that
//!   is mapped over a part of the arena: the file is read immediately, and its bytes lie in the arena
//! - **Not here** the pager's part. Memory that is shared with other processes or with a file cannot be mapped over a part of
//!   the arena, because the pager would have to skip single pages: that is refused with `ENOTSUP`

use std::ffi::{c_int, c_uint, c_void};

use memlift_zmem::pager::{ARENA_BASE, Pager};

use crate::gate::{call, to_libc_result};
use crate::{limits, locked, marks, spliced, stacks, start, sys, thread, trap, whole};

/// Size below which mappings stay where the kernel puts them.
pub const SMALLEST: usize = 64 << 10;
/// Size above which a mapping is taken for mere address space and not for memory.
const LARGEST: usize = 1 << 40;
const PAGE_BYTES: usize = 4096;
const ELSEWHERE: i32 = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_32BIT | libc::MAP_HUGETLB;

/// Position of a range relative to the arena.
enum Place {
    Outside,
    Arena,
    Both,
}

fn place(pager: &Pager, address: usize, bytes: usize) -> Place {
    let (end, arena_end) = (address.saturating_add(bytes.max(1)), pager.arena_end());
    if end <= ARENA_BASE || address >= arena_end {
        Place::Outside
    } else if address >= ARENA_BASE && end <= arena_end {
        Place::Arena
    } else {
        Place::Both
    }
}

fn result<T>(outcome: Result<T, i32>, value: impl FnOnce(T) -> isize) -> isize {
    match outcome {
        Ok(inner) => value(inner),
        Err(number) => -(number as isize),
    }
}

/// Performs one call of the family and returns the result that the kernel would. Returns `None` if the call does not concern
/// the arena.
pub fn perform(number: usize, arguments: [usize; 6]) -> Option<isize> {
    let pager = Pager::get()?;
    let result = perform_in(pager, number, arguments);
    if result.is_some() {
        limits::settle();
    }
    result
}

fn perform_in(pager: &'static Pager, number: usize, arguments: [usize; 6]) -> Option<isize> {
    let [address, bytes, third, fourth, fifth, _] = arguments;
    let number = number as i64;
    match number {
        libc::SYS_mmap => return map(pager, arguments),
        libc::SYS_mlockall => return Some(whole::lock(pager, address)),
        libc::SYS_munlockall => return Some(whole::unlock(pager)),
        _ => {}
    }
    match place(pager, address, bytes) {
        Place::Arena => {}
        Place::Outside if number == libc::SYS_mremap && fourth as i32 & libc::MREMAP_FIXED != 0 => {
            // Memory outside is moved over a part of the arena.
            return matches!(place(pager, fifth, third), Place::Outside)
                .then_some(())
                .map_or(Some(-(libc::EINVAL as isize)), |()| None);
        }
        Place::Outside => return None,
        Place::Both => return split(pager, number, arguments),
    }
    if number == libc::SYS_madvise
        && locked::forbids(third as i32)
        && let Some(start) = locked::first_locked(address, bytes)
    {
        if start > address && address.is_multiple_of(PAGE_BYTES) {
            // The kernel has advised the part before the locked memory when it finds that.
            let _quiet = thread::Quiet::begin();
            let _ = pager.advise(address, start - address, third as i32);
        }
        return Some(-(libc::EINVAL as isize));
    }
    match number {
        libc::SYS_mlock => return Some(locked::lock(pager, address, bytes, 0)),
        libc::SYS_mlock2 => return Some(locked::lock(pager, address, bytes, third)),
        libc::SYS_munlock => locked::release(pager, address, bytes),
        libc::SYS_munmap => {
            locked::release(pager, address, bytes);
            spliced::release(address, bytes);
        }
        libc::SYS_mremap => {
            spliced::release(address, bytes);
            let lock = locked::mode_at(address);
            locked::release(pager, address, bytes);
            let result = remap(pager, arguments);
            if let Some(mode) = lock {
                // The lock moves with the memory, and also holds for the part by which it grew.
                let (start, bytes) = if result < 0 { (address, bytes) } else { (result as usize, third) };
                locked::lock(pager, start, bytes, mode);
            }
            return Some(result);
        }
        libc::SYS_madvise => {
            if let Some(result) = marks::advise(pager, address, bytes, third as i32) {
                return Some(result);
            }
        }
        libc::SYS_mincore => return Some(residence(pager, address, bytes, third)),
        _ => {}
    }
    if number == libc::SYS_munmap {
        marks::forget(address, bytes);
    }
    let _quiet = thread::Quiet::begin();
    let outcome = match number {
        libc::SYS_munmap => result(pager.unmap(address, bytes), |()| 0),
        libc::SYS_mprotect => result(pager.protect(address, bytes, third as i32), |()| 0),
        libc::SYS_pkey_mprotect if fourth as i32 == -1 => {
            result(pager.protect(address, bytes, third as i32), |()| 0)
        }
        libc::SYS_pkey_mprotect => -(libc::EINVAL as isize),
        libc::SYS_madvise => result(pager.advise(address, bytes, third as i32), |()| 0),
        libc::SYS_munlock | libc::SYS_msync => {
            result(pager.mapped(address & !(PAGE_BYTES - 1), bytes + address % PAGE_BYTES), |()| 0)
        }
        libc::SYS_mbind | libc::SYS_remap_file_pages => 0,
        _ => return None,
    };
    Some(outcome)
}

/// Performs `mremap` of a range in the arena.
fn remap(pager: &'static Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, new_bytes, flags, target, _] = arguments;
    let flags = flags as i32;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if fixed && !matches!(place(pager, target, new_bytes), Place::Arena) {
        return -(libc::EINVAL as isize);
    }
    let _quiet = thread::Quiet::begin();
    let grows = if fixed { new_bytes } else { new_bytes.saturating_sub(bytes) };
    if !limits::admits(|| grows) {
        return -(libc::ENOMEM as isize);
    }
    let moved = pager.remap(address, bytes, new_bytes, flags, target);
    if let Ok(new) = moved {
        if fixed {
            locked::release(pager, new, new_bytes);
            spliced::release(new, new_bytes);
            marks::forget(new, new_bytes);
        }
        let stays = flags & libc::MREMAP_DONTUNMAP != 0;
        marks::moved((address, bytes), (new, new_bytes), stays);
    }
    result(moved, |new| new as isize)
}

/// Performs `mincore` on a range in the arena: a page is resident if it has memory, and not if it is compressed or spilled.
fn residence(pager: &Pager, address: usize, bytes: usize, vector: usize) -> isize {
    if !address.is_multiple_of(PAGE_BYTES) {
        return -(libc::EINVAL as isize);
    }
    let pages = bytes.div_ceil(PAGE_BYTES);
    let mut done = 0;
    while done < pages {
        let mut part = [0u8; 256];
        let count = part.len().min(pages - done);
        {
            let _quiet = thread::Quiet::begin();
            let first = address + done * PAGE_BYTES;
            if let Err(number) = pager.mapped(first, count * PAGE_BYTES) {
                return -(number as isize);
            }
            pager.residence(first, &mut part[..count]);
        }
        // The vector is the program's memory, which may be absent, so it is written when signals are let in again.
        let target = vector.wrapping_add(done);
        if !may_be_written(pager, target, count) {
            return -(libc::EFAULT as isize);
        }
        // SAFETY: the bytes may be written, and are the program's, which gives them for this result.
        unsafe { (target as *mut u8).copy_from_nonoverlapping(part.as_ptr(), count) };
        done += count;
    }
    0
}

/// Returns true if the program may write these bytes, which may change meanwhile.
fn may_be_written(pager: &Pager, address: usize, bytes: usize) -> bool {
    if trap::in_arena(address) {
        return pager.accessible(address, bytes, true) == bytes;
    }
    // SAFETY: the kernel writes these bytes, or fails if they may not be written. The caller overwrites them.
    unsafe { sys!(libc::SYS_getrandom, address, bytes, 0) == bytes as isize }
}

/// Performs a call on a range that crosses an end of the arena, part by part.
fn split(pager: &Pager, number: i64, arguments: [usize; 6]) -> Option<isize> {
    match number {
        libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_madvise | libc::SYS_msync => {}
        // The end of the arena is never the middle of a mapping, and behind it nothing may be mapped.
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock | libc::SYS_mincore => {
            return Some(-(libc::ENOMEM as isize));
        }
        libc::SYS_mremap => return Some(-(libc::EFAULT as isize)),
        _ => return Some(-(libc::EINVAL as isize)),
    }
    let [address, bytes, ..] = arguments;
    let end = address.saturating_add(bytes);
    let cuts = [address, address.max(ARENA_BASE), end.min(pager.arena_end()), end];
    for pair in cuts.windows(2) {
        if pair[0] >= pair[1] {
            continue;
        }
        let mut part = arguments;
        part[0] = pair[0];
        part[1] = pair[1] - pair[0];
        // SAFETY: the call is the program's own, on a part of the range that it named.
        let result = perform(number as usize, part).unwrap_or_else(|| unsafe { call(number as usize, part) });
        if result < 0 {
            return Some(result);
        }
    }
    Some(0)
}

fn map(pager: &'static Pager, arguments: [usize; 6]) -> Option<isize> {
    let [address, bytes, prot, flags, ..] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    if !arguments[5].is_multiple_of(PAGE_BYTES) {
        // The kernel checks the offset even if it is not used.
        return Some(-(libc::EINVAL as isize));
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let plain = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    if fixed {
        match place(pager, address, bytes) {
            Place::Outside => return None,
            Place::Both => return Some(-(libc::EINVAL as isize)),
            Place::Arena => {}
        }
        if !address.is_multiple_of(PAGE_BYTES) || bytes == 0 {
            return Some(-(libc::EINVAL as isize));
        }
        if flags & libc::MAP_FIXED_NOREPLACE == 0 {
            locked::release(pager, address, bytes);
            spliced::release(address, bytes);
            marks::forget(address, bytes);
        }
        let _quiet = thread::Quiet::begin();
        if flags & libc::MAP_FIXED_NOREPLACE != 0 {
            // The call is refused if any page is mapped.
            let taken = (0..bytes.div_ceil(PAGE_BYTES))
                .any(|page| pager.mapped(address + page * PAGE_BYTES, PAGE_BYTES).is_ok());
            if taken {
                return Some(-(libc::EEXIST as isize));
            }
        }
        let new_bytes = || {
            let pages = (0..bytes.div_ceil(PAGE_BYTES)).map(|page| address + page * PAGE_BYTES);
            pages.filter(|&page| pager.mapped(page, PAGE_BYTES).is_err()).count() * PAGE_BYTES
        };
        if !limits::admits(new_bytes) {
            return Some(-(libc::ENOMEM as isize));
        }
        let done = if plain {
            result(pager.map(bytes, prot, Some(address)), |address| address as isize)
        } else {
            overlay(pager, arguments)
        };
        return Some(if done < 0 { done } else { whole::mapped(pager, address, bytes, flags) });
    }
    let elsewhere = flags & ELSEWHERE != 0 || prot & libc::PROT_EXEC != 0;
    if !plain || elsewhere || !(SMALLEST..=LARGEST).contains(&bytes) {
        return None;
    }
    if wants_address(address) && matches!(place(pager, address, bytes), Place::Outside) {
        return None;
    }
    let _quiet = thread::Quiet::begin();
    if !limits::admits(|| bytes) {
        return Some(-(libc::ENOMEM as isize));
    }
    let mapped =
        if address == 0 { pager.map(bytes, prot, None) } else { pager.map_near(bytes, prot, address) };
    Some(result(mapped, |address| whole::mapped(pager, address, bytes, flags)))
}

/// Returns true if a hint is an address that the program needs, and will ask for again and again until it gets it: below 2
/// GiB (for code with 32-bit jumps), or a multiple of 4 GiB above 512 GiB (for garbage collectors that store marks in
/// addresses). Other hints need not be followed: random ones against attacks, and those of a Java heap with short pointers,
/// which can lie elsewhere too.
fn wants_address(hint: usize) -> bool {
    const SHORT_JUMPS: usize = 2 << 30;
    const SHORT_POINTERS: usize = 512 << 30;
    const ROUND: usize = 4 << 30;
    hint != 0 && (hint < SHORT_JUMPS || hint >= SHORT_POINTERS && hint.is_multiple_of(ROUND))
}

/// Maps a private file over a part of the arena, by reading its bytes.
fn overlay(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, prot, flags, fd, offset] = arguments;
    if flags as i32 & libc::MAP_TYPE != libc::MAP_PRIVATE {
        return -(libc::ENOTSUP as isize);
    }
    // SAFETY: stat is plain data, for which all zero is valid, and `status` lives over the call.
    let (known, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (sys!(libc::SYS_fstat, fd, &raw mut status), status)
    };
    if known < 0 {
        return known;
    }
    const ZEROS: libc::dev_t = libc::makedev(1, 5);
    let has_bytes = match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => true,
        libc::S_IFCHR if status.st_rdev == ZEROS => false,
        _ => return -(libc::ENOTSUP as isize),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if let Err(number) = pager.map(bytes, access, Some(address)) {
        return -(number as isize);
    }
    let read = if has_bytes { fill(pager, (address, bytes), fd, offset) } else { Ok(()) };
    match read.and_then(|()| pager.protect(address, bytes, prot as i32)) {
        Ok(()) => address as isize,
        Err(number) => {
            let _ = pager.unmap(address, bytes);
            -(number as isize)
        }
    }
}

/// Reads a file's bytes into mapped memory, up to the end of the file.
fn fill(pager: &Pager, (address, bytes): (usize, usize), fd: usize, offset: usize) -> Result<(), i32> {
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(trap::piece_bytes());
        let pins = pager.pin(address + done, part, true)?;
        // SAFETY: the range is mapped, and present because of its pins.
        let got = unsafe { sys!(libc::SYS_pread64, fd, address + done, part, offset + done) };
        drop(pins);
        match usize::try_from(got) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(_) if got == -(libc::EINTR as isize) => {}
            Err(_) => return Err(-got as i32),
        }
    }
    Ok(())
}

fn go(number: libc::c_long, arguments: [usize; 6]) -> isize {
    if start::covered() && !thread::inside() {
        start::start_evictor_if_due();
        if let Some(result) = stacks::on_stack_outside_arena(|| perform(number as usize, arguments)) {
            // Check again: the program may never map memory again, and only fill what it has.
            start::start_evictor_if_due();
            return to_libc_result(result);
        }
    }
    // SAFETY: the call and its arguments are the program's own, which makes the promises of libc's function.
    let mut result = unsafe { call(number as usize, arguments) };
    if start::covered() && !thread::inside() && limits::renew(result) {
        // SAFETY: the same call once more; it has changed nothing when it failed.
        result = unsafe { call(number as usize, arguments) };
    }
    if number == libc::SYS_mmap
        && result >= 0
        && start::covered()
        && !thread::inside()
        && let Some(pager) = Pager::get()
    {
        return to_libc_result(whole::mapped(pager, result as usize, arguments[1], 0));
    }
    to_libc_result(result)
}

/// Performs `mlockall` or `munlockall`, called as a function.
pub fn of_all(number: libc::c_long, flags: usize) -> c_int {
    go(number, [flags, 0, 0, 0, 0, 0]) as c_int
}

/// Maps memory for the program at `caller`, or for the heap.
///
/// # Safety
///
/// The promises of libc's `mmap`.
unsafe extern "C" fn map_for(
    address: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    caller: usize,
) -> isize {
    let arguments = [address, bytes, prot as usize, flags as usize, fd as usize, offset as usize];
    let mut result = go(libc::SYS_mmap, arguments);
    if result == -1 && limits::reclaim_for(caller) {
        result = go(libc::SYS_mmap, arguments);
    }
    result
}

macro_rules! mmap {
    ($($name:ident)+) => {$(
        /// Behaves as libc's function of this name.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            _address: *mut c_void,
            _bytes: usize,
            _prot: c_int,
            _flags: c_int,
            _fd: c_int,
            _offset: i64,
        ) -> *mut c_void {
            // The return address becomes the seventh argument.
            core::arch::naked_asm!(
                "push qword ptr [rsp]",
                "call {map_for}",
                "add rsp, 8",
                "ret",
                map_for = sym map_for,
            );
        }
    )+};
}

mmap! { mmap mmap64 }

/// Behaves as libc's `mremap`; the fifth argument is used only with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`.
///
/// # Safety
///
/// The promises of libc's `mremap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let fixed = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let new_address = if fixed { new_address as usize } else { 0 };
    let arguments = [address as usize, bytes, new_bytes, flags as usize, new_address, 0];
    let mut result = go(libc::SYS_mremap, arguments);
    if result == -1 && limits::reclaim_for(0) {
        result = go(libc::SYS_mremap, arguments);
    }
    result as *mut c_void
}

/// Behaves as libc's `posix_madvise`; returns the error number.
///
/// # Safety
///
/// The promises of libc's `posix_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // POSIX's advice "will not be needed" keeps the contents of the memory, while Linux's drops them.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let number = crate::gate::errno();
    let result = go(libc::SYS_madvise, [address as usize, bytes, advice as usize, 0, 0, 0]);
    let outcome = if result == 0 { 0 } else { crate::gate::errno() };
    crate::gate::set_errno(number);
    outcome
}

/// Behaves as libc's `pkey_alloc` on a kernel without protection keys. No page of the arena may have a key, since the pager
/// could not read a page whose key its thread has switched off. Programs work without keys (V8 does).
#[unsafe(no_mangle)]
pub extern "C" fn pkey_alloc(flags: c_uint, rights: c_uint) -> c_int {
    if start::covered() {
        return to_libc_result(-(libc::ENOSYS as isize)) as c_int;
    }
    // SAFETY: the call takes no pointer.
    to_libc_result(unsafe {
        call(libc::SYS_pkey_alloc as usize, [flags as usize, rights as usize, 0, 0, 0, 0])
    }) as c_int
}

macro_rules! family {
    ($($name:ident = $number:ident ($($argument:ident: $type:ty),+);)+) => {$(
        /// Behaves as libc's function of this name.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            let mut arguments = [0usize; 6];
            for (place, value) in arguments.iter_mut().zip([$($argument as usize),+]) {
                *place = value;
            }
            go(libc::$number, arguments) as c_int
        }
    )+};
}

family! {
    munmap = SYS_munmap(address: *mut c_void, bytes: usize);
    mprotect = SYS_mprotect(address: *mut c_void, bytes: usize, prot: c_int);
    pkey_mprotect = SYS_pkey_mprotect(address: *mut c_void, bytes: usize, prot: c_int, key: c_int);
    madvise = SYS_madvise(address: *mut c_void, bytes: usize, advice: c_int);
    mlock = SYS_mlock(address: *const c_void, bytes: usize);
    mlock2 = SYS_mlock2(address: *const c_void, bytes: usize, flags: u32);
    munlock = SYS_munlock(address: *const c_void, bytes: usize);
    msync = SYS_msync(address: *mut c_void, bytes: usize, flags: c_int);
    mincore = SYS_mincore(address: *mut c_void, bytes: usize, vector: *mut u8);
}
