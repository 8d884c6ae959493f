// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls whose memory is named by memory: vectors, messages and lists of futexes.
//!
//! - **Flow** [`perform`] ──▶ pin the vector and the memory that it names ──▶ call. If that is more than may be pinned
//!   together ──▶ a vector of this library's own with part of it, again and again
//! - **Order** the vector is the program's, and may change meanwhile; then the kernel may access absent memory and report
//!   `EFAULT`
//! - **Owner** lists lie in this library's own heap, because a handler's stack may be small
//! - **Not here** calls with one buffer: `transfer`

use libc::{iovec, mmsghdr, msghdr};

use crate::activate::{decimal, for_lines};
use crate::table::{SYS_FUTEX_REQUEUE, SYS_FUTEX_WAITV};
use crate::transfer::reads_whole;
use crate::trap::{PIECE_BYTES, Scene, in_arena, piece_bytes};
use crate::{kept, spliced, sys};

/// Upper bound of the parts of a vector, and of the messages of a call, set by the kernel.
const MOST_PARTS: usize = 1024;

/// Performs one of these calls.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let flags = match number as i64 {
        libc::SYS_sendmsg => arguments[2],
        libc::SYS_sendmmsg => arguments[3],
        _ => 0,
    };
    if number as i64 == libc::SYS_vmsplice || flags as i32 & libc::MSG_ZEROCOPY != 0 {
        // The kernel sends these pages from their place, even after the call has returned.
        scene.pager.stop_recycling();
    }
    if number as i64 == libc::SYS_vmsplice
        && let Some(parts) = list::<iovec>(scene, arguments[1], arguments[2])
    {
        for part in parts {
            spliced::pin(scene.pager, part.iov_base as usize, part.iov_len);
        }
    }
    match number as i64 {
        libc::SYS_recvmsg | libc::SYS_sendmsg => message(scene, number, arguments),
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => messages(scene, number, arguments),
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => other_process(scene, number, arguments),
        libc::SYS_process_madvise => advise(scene, arguments),
        SYS_FUTEX_WAITV | SYS_FUTEX_REQUEUE => futexes(scene, number, arguments),
        _ => vector(scene, number, arguments),
    }
}

/// Performs `process_madvise`. The kernel would advise memory in the arena without the pager's knowledge.
fn advise(scene: &mut Scene<'_>, arguments: [usize; 6]) -> isize {
    let [process, address, count, advice, flags, _] = arguments;
    let number = libc::SYS_process_madvise as usize;
    let Some(parts) = list::<iovec>(scene, address, count) else { return scene.call(number, arguments) };
    if flags != 0 || !is_own(process as i32) {
        scene.pin(address, size_of_val(parts), false);
        return scene.call(number, arguments);
    }
    let mut done = 0;
    for part in parts {
        let arguments = [part.iov_base as usize, part.iov_len, advice, 0, 0, 0];
        let result = scene.perform(libc::SYS_madvise as usize, arguments);
        if result < 0 {
            return if done > 0 { done } else { result };
        }
        done += part.iov_len as isize;
    }
    done
}

/// Returns true if a descriptor of a process stands for this one.
fn is_own(descriptor: i32) -> bool {
    const SELF: std::ops::RangeInclusive<i32> = -10001..=-10000;
    let mut own = SELF.contains(&descriptor);
    if let Ok(number) = usize::try_from(descriptor) {
        let path = kept::path_of(b"/proc/self/fdinfo/", number, b"");
        let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return false };
        // SAFETY: the call takes no argument.
        let process = unsafe { sys!(libc::SYS_getpid) } as usize;
        for_lines(path, &mut [0u8; 1024], |line| {
            own |= line.strip_prefix(b"Pid:").is_some_and(|rest| decimal(rest) == process);
        });
    }
    own
}

/// Performs a call with a list of futexes, each of which has its value, its address and its flags.
fn futexes(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    const REQUEUED: usize = 2;
    let waits = number as i64 == SYS_FUTEX_WAITV;
    let count = if waits { arguments[1] } else { REQUEUED };
    if let Some(futexes) = list::<[usize; 3]>(scene, arguments[0], count) {
        scene.pin(arguments[0], size_of_val(futexes), false);
        for [_, address, _] in futexes {
            let _ =
                scene.pin(*address, size_of::<u64>(), true) || scene.pin(*address, size_of::<u64>(), false);
        }
    }
    if waits {
        scene.pin(arguments[3], size_of::<libc::timespec>(), false);
    }
    scene.call(number, arguments)
}

/// Pins the buffers that the vectors of a call name, if the call is one with vectors.
pub fn pin(scene: &Scene<'_>, number: usize, arguments: [usize; 6]) {
    let reads = matches!(
        number as i64,
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_recvmsg | libc::SYS_recvmmsg
    );
    let vector = |address: usize, count: usize| {
        if let Some(parts) = list::<iovec>(scene, address, count) {
            scene.pin(address, size_of_val(parts), false);
            pin_all(scene, parts, reads);
        }
    };
    match number as i64 {
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => vector(arguments[1], arguments[2]),
        libc::SYS_recvmsg | libc::SYS_sendmsg => {
            if let Some([header]) = list::<msghdr>(scene, arguments[1], 1) {
                scene.pin(arguments[1], size_of::<msghdr>(), true);
                vector(header.msg_iov as usize, header.msg_iovlen);
                pin_message(scene, header, &[], reads);
            }
        }
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => {
            let count = (arguments[2] as u32 as usize).min(MOST_PARTS);
            let Some(headers) = list::<mmsghdr>(scene, arguments[1], count) else { return };
            scene.pin(arguments[1], size_of_val(headers), true);
            for header in headers {
                vector(header.msg_hdr.msg_iov as usize, header.msg_hdr.msg_iovlen);
                pin_message(scene, &header.msg_hdr, &[], reads);
            }
        }
        _ => {}
    }
}

/// Returns the program's array of `count` values, or `None` if it is too long or cannot be read.
fn list<'a, T>(scene: &Scene<'_>, address: usize, count: usize) -> Option<&'a [T]> {
    let bytes = count.checked_mul(size_of::<T>())?;
    if address == 0
        || count > MOST_PARTS
        || in_arena(address) && scene.pager.accessible(address, bytes, false) < bytes
    {
        return None;
    }
    // SAFETY: the program promises `count` values of plain data there; for the arena it was checked that they are readable.
    Some(unsafe { std::slice::from_raw_parts(address as *const T, count) })
}

fn pin_all(scene: &Scene<'_>, vector: &[iovec], write: bool) {
    for part in vector {
        scene.pin(part.iov_base as usize, part.iov_len, write);
    }
}

fn sum(vector: &[iovec]) -> usize {
    vector.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len))
}

/// Returns up to `most` bytes of the vector from offset `skip` on.
fn part(vector: &[iovec], mut skip: usize, most: usize) -> Vec<iovec> {
    let mut left = most;
    let mut parts = Vec::new();
    for source in vector {
        let start = skip.min(source.iov_len);
        skip -= start;
        let length = (source.iov_len - start).min(left);
        left -= length;
        if length > 0 {
            parts.push(iovec { iov_base: source.iov_base.wrapping_byte_add(start), iov_len: length });
        }
    }
    parts
}

fn vector(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let call = number as i64;
    let Some(parts) = list::<iovec>(scene, arguments[1], arguments[2]) else {
        return scene.call(number, arguments);
    };
    let reads = matches!(call, libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2);
    let (bytes, piece) = (sum(parts), piece_bytes());
    if bytes <= piece || bytes > isize::MAX as usize {
        scene.pin(arguments[1], size_of_val(parts), false);
        pin_all(scene, parts, reads);
        return scene.call(number, arguments);
    }
    // The copy is needed because the program's vector may be absent when the kernel reads it.
    let parts = parts.to_vec();
    let at = matches!(call, libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_pwritev | libc::SYS_pwritev2)
        && arguments[3] as isize != -1;
    let whole = !reads || reads_whole(arguments[0]);
    scene.in_pieces((bytes, piece), whole, |scene, done, length| {
        let some = part(&parts, done, length);
        let mut arguments = arguments;
        arguments[1] = some.as_ptr() as usize;
        arguments[2] = some.len();
        if at {
            arguments[3] += done;
        }
        pin_all(scene, &some, reads);
        scene.call(number, arguments)
    })
}

fn pin_message(scene: &Scene<'_>, header: &msghdr, parts: &[iovec], reads: bool) {
    scene.pin(header.msg_name as usize, header.msg_namelen as usize, reads);
    scene.pin(header.msg_control as usize, header.msg_controllen, reads);
    pin_all(scene, parts, reads);
}

fn message(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let reads = number as i64 == libc::SYS_recvmsg;
    let Some([header]) = list::<msghdr>(scene, arguments[1], 1) else { return scene.call(number, arguments) };
    let Some(parts) = list::<iovec>(scene, header.msg_iov as usize, header.msg_iovlen) else {
        scene.pin(arguments[1], size_of::<msghdr>(), reads);
        return scene.call(number, arguments);
    };
    let parts = parts.to_vec();
    let bytes = sum(&parts);
    let mut copy = Box::new(*header);
    let act = |scene: &mut Scene<'_>, done: usize, length: usize| {
        let some = if length < bytes { part(&parts, done, length) } else { parts.clone() };
        copy.msg_iov = some.as_ptr().cast_mut();
        copy.msg_iovlen = some.len();
        if done > 0 {
            // Control data, such as descriptors, was sent with the first bytes.
            copy.msg_controllen = 0;
        }
        pin_message(scene, &copy, &some, reads);
        let mut again = arguments;
        again[1] = (&raw const *copy) as usize;
        let result = scene.call(number, again);
        if reads && result >= 0 {
            // SAFETY: the program promises a header that may be written, which the kernel itself would write.
            unsafe {
                let header = arguments[1] as *mut msghdr;
                (*header).msg_namelen = copy.msg_namelen;
                (*header).msg_controllen = copy.msg_controllen;
                (*header).msg_flags = copy.msg_flags;
            }
        }
        result
    };
    // A message without bytes, but with a name or descriptors, is a call too.
    scene.in_pieces((bytes.max(1), PIECE_BYTES), !reads, act)
}

fn messages(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let reads = number as i64 == libc::SYS_recvmmsg;
    let count = (arguments[2] as u32 as usize).min(MOST_PARTS);
    let Some(headers) = list::<mmsghdr>(scene, arguments[1], count) else {
        return scene.call(number, arguments);
    };
    scene.pin(arguments[1], size_of_val(headers), true);
    if reads {
        scene.pin(arguments[4], 16, true);
    }
    let mut bytes = 0;
    let mut taken = 0;
    for header in headers {
        let header = &header.msg_hdr;
        if let Some(parts) = list::<iovec>(scene, header.msg_iov as usize, header.msg_iovlen) {
            bytes += sum(parts);
            if taken > 0 && bytes > PIECE_BYTES {
                break;
            }
            scene.pin(header.msg_iov as usize, size_of_val(parts), false);
            pin_message(scene, header, parts, reads);
        }
        taken += 1;
    }
    // Transferring fewer messages than requested is a valid result of both calls.
    let mut arguments = arguments;
    arguments[2] = taken;
    scene.call(number, arguments)
}

fn other_process(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let reads = number as i64 == libc::SYS_process_vm_readv;
    // SAFETY: the call takes no argument.
    let own = unsafe { sys!(libc::SYS_getpid) } as usize == arguments[0];
    for (address, count, write, here) in
        [(arguments[1], arguments[2], reads, true), (arguments[3], arguments[4], !reads, own)]
    {
        let Some(parts) = list::<iovec>(scene, address, count) else { continue };
        scene.pin(address, size_of_val(parts), false);
        if here {
            if sum(parts) > 16 * PIECE_BYTES {
                return -(libc::ENOMEM as isize);
            }
            pin_all(scene, parts, write);
        }
    }
    scene.call(number, arguments)
}
