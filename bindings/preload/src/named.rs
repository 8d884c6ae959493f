// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls with a structure that may name further memory: `ioctl`, socket options, filters, `bpf`, registrations of io_uring.
//!
//! - **Flow** [`perform`] pins the structure ──▶ call ──`EFAULT`──▶ the structure's words that are addresses in the arena ──▶
//!   the memory there is pinned ──▶ call again, with more memory each time
//! - **Order** the kernel tests all memory of such a call before it acts, or says nothing about it, as a rule; a call that
//!   failed with `EFAULT` is therefore made again
//! - **Not here** vectors and messages: `vector`. A structure that names a structure that names memory

use memlift_zmem::pager::Pager;

use crate::trap::{Scene, in_arena};
use crate::{kept, sys, words};

const PAGE_BYTES: usize = 4096;
/// Words of a structure that are read.
const WORDS: usize = 32;
/// Upper bounds of the bytes that are pinned at each address, from one try to the next.
const TRIES: [usize; 3] = [64 << 10, 4 << 20, 64 << 20];
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const PR_SET_SECCOMP: usize = 22;
const STRICT: usize = 1;

/// Returns the address of the structure of a call, or 0.
fn structure(number: usize, arguments: &[usize; 6]) -> usize {
    match number as i64 {
        libc::SYS_bpf => arguments[1],
        libc::SYS_ioctl | libc::SYS_seccomp => arguments[2],
        libc::SYS_setsockopt | libc::SYS_getsockopt => arguments[3],
        libc::SYS_prctl if arguments[0] == PR_SET_SECCOMP => arguments[2],
        _ => 0,
    }
}

/// Returns the words of a structure up to the end of its page, read through the kernel, because the address may be wrong.
fn words_of(address: usize) -> ([usize; WORDS], usize) {
    let mut words = [0; WORDS];
    let bytes = size_of_val(&words).min(4096 - address % 4096);
    let (own, other) = ([words.as_mut_ptr() as usize, bytes], [address, bytes]);
    // SAFETY: the lengths of both ranges are passed; if the other range is not mapped, the call fails.
    let got = unsafe {
        sys!(libc::SYS_process_vm_readv, sys!(libc::SYS_getpid), own.as_ptr(), 1, other.as_ptr(), 1, 0)
    };
    (words, usize::try_from(got).unwrap_or(0) / size_of::<usize>())
}

/// Pins up to `most` bytes of a range that the kernel may write, or only read if the program may not write it.
fn pin(scene: &Scene<'_>, address: usize, most: usize) -> bool {
    scene.pin(address, most, true) || scene.pin(address, most, false)
}

/// Performs a call of which the table says nothing: any argument that is an address in the arena is taken for a pointer.
pub fn any(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    for address in arguments.into_iter().filter(|&argument| in_arena(argument)) {
        pin(scene, address, PAGE_BYTES);
    }
    let mut result = scene.call(number, arguments);
    for address in arguments.into_iter().filter(|&argument| in_arena(argument)) {
        result = again(scene, number, arguments, (address, result));
    }
    result
}

/// Performs one of these calls.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let address = structure(number, &arguments);
    if number as i64 == libc::SYS_ioctl && arguments[1] as u32 as usize == UFFDIO_REGISTER {
        refuse_to_share(scene.pager, address);
    }
    if number as i64 == libc::SYS_prctl && arguments[..2] == [PR_SET_SECCOMP, STRICT] {
        words::die(&[
            c"memlift: the program enters the kernel's strict mode (seccomp), in which its memory cannot come back; ",
            c"run it without memlift, or with the kernel's backend\n",
        ]);
    }
    let result = scene.plain(number, arguments);
    again(scene, number, arguments, (address, result))
}

/// Makes a call again that failed with `EFAULT`, with the memory that the structure at `address` names, and returns its
/// result.
pub fn again(
    scene: &mut Scene<'_>,
    number: usize,
    arguments: [usize; 6],
    (address, mut result): (usize, isize),
) -> isize {
    const FAULT: isize = -(libc::EFAULT as isize);
    for most in TRIES {
        if result != FAULT || address == 0 {
            break;
        }
        let mut any = pin(scene, address, most);
        let (words, count) = words_of(address);
        for word in words[..count].iter().filter(|&&word| in_arena(word)) {
            any |= pin(scene, *word, most);
        }
        if !any {
            break;
        }
        result = scene.call(number, arguments);
    }
    result
}

/// Ends the process with a message if it is about to answer faults in the arena itself.
fn refuse_to_share(pager: &Pager, address: usize) {
    let ([start, bytes, ..], count) = words_of(address);
    if count >= 2 && in_arena(start) && pager.mapped(start & !4095, bytes.max(1)).is_ok() {
        kept::refuse(&[
            c"it answers faults in its memory itself (userfaultfd), and a page has one pager only",
        ]);
    }
}
