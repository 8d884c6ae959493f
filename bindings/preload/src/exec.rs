// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `exec`: copies path, arguments and environment out of the arena.
//!
//! - **Flow** [`perform`] ──▶ copies everything to a mapping of this thread ──▶ the system call, which returns only if it
//!   failed
//! - **Order** the strings are copied and not pinned, because a child of vfork shares its memory with its parent, in which
//!   the pins would stay
//! - **Owner** one mapping per thread. The thread's next child uses it again, which is safe because the parent of a vfork
//!   waits meanwhile
//! - **Not here** the start of the new program: the environment names the job (`start`)

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memlift_zmem::mapping;

use crate::sys;
use crate::thread::current;
use crate::trap::Scene;

const PAGE_BYTES: usize = 4096;
/// Upper bound of the bytes of all strings. The kernel's own limit is a quarter of the stack's limit, and usually at most 6
/// MiB.
const MOST_STRING_BYTES: usize = 64 << 20;

/// Returns the number of pointers in a list that ends with zero, and the bytes of the strings that they point to.
fn measure(scene: &Scene<'_>, list: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    if list == 0 {
        return (0, 0);
    }
    loop {
        // SAFETY: the program promises a list that ends with zero, and the zero was not reached yet.
        let text = unsafe { (list as *const usize).add(count).read() };
        if text == 0 || bytes > MOST_STRING_BYTES {
            return (count, bytes);
        }
        bytes += scene.text_bytes(text);
        count += 1;
    }
}

/// Returns the address of `bytes` bytes in a mapping of this thread, which is kept for the next call.
///
/// # Errors
///
/// The result of `mmap`.
pub fn room(bytes: usize, (address_now, bytes_now): (&AtomicUsize, &AtomicUsize)) -> Result<usize, isize> {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    if bytes_now.load(Relaxed) >= bytes {
        return Ok(address_now.load(Relaxed));
    }
    // SAFETY: the old mapping belongs to this thread, and nobody uses it any more; the new one is at an address of the
    // kernel's choice.
    unsafe {
        let old = bytes_now.swap(0, Relaxed);
        if old != 0 {
            sys!(libc::SYS_munmap, address_now.load(Relaxed), old);
        }
        mapping::count_reserved(bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let address =
            sys!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, usize::MAX, 0);
        if address < 0 {
            return Err(address);
        }
        address_now.store(address as usize, Relaxed);
        bytes_now.store(bytes, Relaxed);
        Ok(address as usize)
    }
}

/// Copies a string to `end`, and moves `end` behind it. Returns the new address.
fn copy(scene: &Scene<'_>, text: usize, end: &mut usize) -> usize {
    let bytes = scene.text_bytes(text);
    let target = *end;
    // SAFETY: `measure` counted these bytes, so there is room for them. A string that has grown since is cut to its old end.
    unsafe {
        std::ptr::copy_nonoverlapping(text as *const u8, target as *mut u8, bytes);
        if bytes > 0 {
            *((target + bytes - 1) as *mut u8) = 0;
        }
    }
    *end += bytes;
    target
}

/// Performs `execve` or `execveat`.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let first = usize::from(number as i64 == libc::SYS_execveat);
    let mut arguments = arguments;
    let [path, argv, envp] = [arguments[first], arguments[first + 1], arguments[first + 2]];
    if path == 0 {
        return scene.call(number, arguments);
    }
    let (argument_count, argument_bytes) = measure(scene, argv);
    let (variable_count, variable_bytes) = measure(scene, envp);
    let lists = (argument_count + variable_count + 2) * size_of::<usize>();
    let bytes = lists + argument_bytes + variable_bytes + scene.text_bytes(path);
    if bytes > MOST_STRING_BYTES {
        return -(libc::E2BIG as isize);
    }
    let thread = current();
    let start = match room(bytes + PAGE_BYTES, (&thread.exec_address, &thread.exec_bytes)) {
        Ok(start) => start,
        Err(error) => return error,
    };
    let mut end = start + lists;
    let mut list = start;
    arguments[first] = copy(scene, path, &mut end);
    for (place, source, count) in [(first + 1, argv, argument_count), (first + 2, envp, variable_count)] {
        if source == 0 {
            continue;
        }
        arguments[place] = list;
        for index in 0..count {
            // SAFETY: only counted pointers are read, and the place of each in the new list was counted too.
            unsafe {
                let text = (source as *const usize).add(index).read();
                (list as *mut usize).write(copy(scene, text, &mut end));
            }
            list += size_of::<usize>();
        }
        // SAFETY: the zero at the end of the list was counted.
        unsafe { (list as *mut usize).write(0) };
        list += size_of::<usize>();
    }
    scene.call(number, arguments)
}
