// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the kernel or a device holds on to: found at activation, no matter how it was handed over before.
//!
//! - **Flow** [`find_kernel_held_memory`] (activation) examines each descriptor. io_uring rings ──▶ [`rings`]. Devices and
//!   sockets that hold memory ──▶ their pages stay because of the kernel's pins, or the process is refused with a message.
//!   Sockets and pipes that may still send memory ──▶ that memory is not overwritten ([`Pager::stop_recycling`])
//! - **Order** the filter is installed before, so that no more memory is handed over unnoticed; no page is absent yet
//! - **Pins** if pages are moved out (UFFDIO_MOVE), the kernel itself refuses to move a pinned page. Without it pins cannot
//!   be seen: memory that is listed somewhere is pinned here, and a process with pins that are listed nowhere is refused
//! - **Owner** the ranges that are pinned for good ([`exempt`]) are one list; the child of a fork begins with an empty one
//! - **Not here** later calls: `rings`, `trap`

use std::ffi::CStr;

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::activate::{self, for_entries, for_lines};
use crate::trap::in_arena;
use crate::{descriptors, processes, rings, sys, words};

/// Ranges that are pinned for good. They do not overlap.
static KEPT: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());

/// Prefixes of descriptor names through which a device or the kernel pins memory, page by page.
const PINNING: &[&[u8]] =
    &[b"/dev/infiniband/", b"/dev/vfio/", b"/dev/iommu", b"/dev/hfi1", b"/dev/nvidia", b"/dev/dri/"];
/// Prefixes of descriptor names through which the kernel accesses memory later without a pin, and would find absent pages.
const REACHING: &[&[u8]] = &[b"/dev/kvm", b"anon_inode:kvm-", b"/dev/kfd", b"/dev/vhost-"];

const AF_XDP: i32 = 44;

/// Brings back the program's pages in a range of the arena, and pins them for good.
pub fn exempt(pager: &'static Pager, address: usize, bytes: usize) {
    if bytes == 0 || !in_arena(address) {
        return;
    }
    let writable = pager.accessible(address, bytes, true);
    let (bytes, write) =
        if writable > 0 { (writable, true) } else { (pager.accessible(address, bytes, false), false) };
    let Ok(pins) = pager.pin(address, bytes, write) else { return };
    let (start, end) = (address & !0xfff, (address + bytes).next_multiple_of(0x1000));
    let mut list = KEPT.lock();
    let known = list.iter().any(|&(from, to)| from <= start && end <= to);
    if known {
        drop(list);
        // An earlier range pins this part already, so bringing it back was enough.
        drop(pins);
        return;
    }
    let mut merged = (start, end);
    list.retain(|&(from, to)| {
        let touches = from <= merged.1 && merged.0 <= to;
        if touches {
            merged = (merged.0.min(from), merged.1.max(to));
        }
        !touches
    });
    list.push(merged);
    drop(list);
    std::mem::forget(pins);
}

/// Clears the list in the child of a fork: the kernel holds none of the child's memory, and the child's pager has no pins.
pub fn forked() {
    // SAFETY: the child has one thread, and the thread that forked did not hold the lock, because no fork happens inside
    // `exempt`.
    unsafe { KEPT.reset() };
    std::mem::forget(std::mem::take(&mut *KEPT.lock()));
    rings::forked();
}

fn begins(name: &[u8], list: &[&[u8]]) -> bool {
    list.iter().any(|start| name.starts_with(start))
}

/// Returns the path `folder` followed by `name`, with a zero byte at the end.
pub fn path(folder: &[u8], name: &[u8]) -> [u8; 64] {
    let mut path = [0u8; 64];
    let mut end = 0;
    for part in [folder, name] {
        let part = &part[..part.len().min(63 - end)];
        path[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    path
}

/// Returns the path `before`, `number` in decimal digits, `after`, with a zero byte at the end.
pub fn path_of(before: &[u8], number: usize, after: &[u8]) -> [u8; 64] {
    let (mut digits, mut at, mut rest) = ([0u8; 20], 20, number);
    while rest > 0 || at == 20 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let start = path(before, &digits[at..]);
    let end = start.iter().position(|&byte| byte == 0).unwrap_or(0);
    path(&start[..end], after)
}

/// Returns an option of a socket, or -1 if there is none.
fn option(fd: usize, level: i32, name: i32) -> i32 {
    let (mut value, mut bytes) = (-1i32, 4u32);
    // SAFETY: both variables live over the call.
    let result = unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut bytes) };
    if result == 0 { value } else { -1 }
}

fn holds_bytes(fd: usize) -> bool {
    let mut bytes = 0i32;
    // SAFETY: the variable lives over the call.
    unsafe { sys!(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut bytes) == 0 && bytes > 0 }
}

/// Ends the process with a message, because its memory cannot be kept under the budget without harm.
pub fn refuse(what: &[&CStr]) -> ! {
    words::say(&[c"memlift: the kernel reaches this program's memory by itself: "]);
    words::say(what);
    words::die(&[c"; run it without memlift, or with the kernel's backend\n"]);
}

/// Finds memory that the kernel holds on to; `buffer` is used for reading.
pub fn find_kernel_held_memory(pager: &'static Pager, buffer: &mut [u8]) {
    processes::refuse_sharing();
    let moves = pager.sees_pins();
    let (entries, buffer) = buffer.split_at_mut(buffer.len() / 2);
    let (mut known_bytes, mut user_faults) = (0, false);
    for_entries(c"/proc/self/fd", entries, |number| {
        let Some(fd) = std::str::from_utf8(number).ok().and_then(|text| text.parse::<usize>().ok()) else {
            return;
        };
        let link = path(b"/proc/self/fd/", number);
        let mut place = [0u8; 256];
        // SAFETY: the path ends with a zero byte, and the length of the buffer is passed.
        let got = unsafe { sys!(libc::SYS_readlink, link.as_ptr(), place.as_mut_ptr(), place.len()) };
        let name = &place[..usize::try_from(got).unwrap_or(0)];
        if name == b"anon_inode:[io_uring]" {
            known_bytes += rings::adopt_ring(pager, fd, number, moves, buffer);
            // Some kernels do not pin the memory that a ring sends from.
            pager.stop_recycling();
        } else if name == b"anon_inode:[userfaultfd]" && !descriptors::is_registered(fd as i32) {
            user_faults = true;
        } else if begins(name, REACHING) {
            refuse(&[c"a virtual machine or a device of its own is open"]);
        } else if begins(name, PINNING) && !moves {
            refuse(&[c"a device that pins memory is open, and this kernel does not say which (userfaultfd MOVE, Linux 6.8)"]);
        } else if name.starts_with(b"socket:") {
            if option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == AF_XDP && !moves {
                refuse(&[c"an AF_XDP socket is open, and this kernel does not say which memory it has (userfaultfd MOVE, Linux 6.8)"]);
            }
            if option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY) > 0 {
                pager.stop_recycling();
            }
        } else if name.starts_with(b"pipe:") && holds_bytes(fd) {
            pager.stop_recycling();
        }
    });
    rings::find_hidden(buffer);
    if user_faults && has_watched_memory(buffer) {
        refuse(&[c"it answers faults in its memory itself (userfaultfd), and a page has one pager only"]);
    }
    if moves {
        return;
    }
    let mut aio = false;
    for_lines(c"/proc/self/maps", buffer, |line| {
        aio |= !activate::after(line, b" /[aio]").is_empty() || line.ends_with(b" /[aio]")
    });
    if aio {
        refuse(&[c"asynchronous I/O (io_setup) was set up before memory was short, and this kernel does not say what it reaches (userfaultfd MOVE, Linux 6.8)"]);
    }
    if pinned_bytes(buffer) > known_bytes.next_multiple_of(0x1000) {
        refuse(&[
            c"memory is pinned (VmPin), and this kernel does not say which (userfaultfd MOVE, Linux 6.8)",
        ]);
    }
}

/// Returns true if a mapping in the arena is registered with a userfaultfd. This library has registered none yet.
fn has_watched_memory(buffer: &mut [u8]) -> bool {
    let (mut inside, mut found) = (false, false);
    for_lines(c"/proc/self/smaps", buffer, |line| {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let has = |flag: &[u8]| flags.windows(flag.len()).any(|window| window == flag);
            found |= inside && (has(b" um") || has(b" uw") || has(b" ui"));
        } else if line.iter().position(|&byte| byte == b'-').is_some_and(|dash| dash <= 16) {
            inside = in_arena(activate::hexadecimal(line) as usize);
        }
    });
    found
}

/// Returns the number of bytes that are pinned according to the kernel.
fn pinned_bytes(buffer: &mut [u8]) -> usize {
    let mut bytes = 0;
    for_lines(c"/proc/self/status", buffer, |line| {
        if let Some(rest) = line.strip_prefix(b"VmPin:") {
            bytes = activate::decimal(rest) * 1024;
        }
    });
    bytes
}
