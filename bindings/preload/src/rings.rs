// SPDX-License-Identifier: Apache-2.0 OR MIT
//! io_uring rings that were made before activation. The kernel reads and writes the buffers of their entries at a time of its
//! own choice.
//!
//! - **Flow** at activation, [`adopt_ring`] pins registered buffers, and the memory of entries that may still be in
//!   progress, for good. A ring that the kernel reads without a system call, or whose memory cannot be found, is refused
//!   with a message. Later, in trapped calls, [`enter`] and [`register`] bring back the memory that waiting entries name and
//!   pin it for good, before they make the call
//! - **Layout** heads, tails and entries lie in shared memory. Their offsets are chosen by the kernel, and learned from a
//!   ring that this library makes itself. `/proc/self/maps` shows a ring's memory with its inode, and `fdinfo` its registered
//!   buffers
//! - **Order** no new ring can be made after activation, so the list of rings is complete. An entry is read in the trap; a
//!   thread that changes it afterwards would also race with the kernel
//! - **Not here** buffers that a program hands over in a ring of their own (`IORING_REGISTER_PBUF_RING`): they cannot be
//!   seen, so such rings are refused

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::activate::{self, decimal, for_lines, hexadecimal};
use crate::kept::{self, exempt};
use crate::thread::OURS;
use crate::trap::{PIECE_BYTES, Scene, in_arena};
use crate::{named, sys};

const ENTRY_BYTES: usize = 64;
const ENTRIES_OFFSET: u64 = 0x1000_0000;
/// Number of checks, a millisecond apart, until which requests from before activation must have ended.
const MOST_CHECKS: usize = 2_000;
/// Number of buffer groups, which have 16-bit numbers.
const GROUPS: u32 = 1 << 16;

/// The memory of one ring.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    inode: u64,
    rings: (usize, usize),
    entries: (usize, usize),
    mask: u32,
    completions: u32,
}

/// True if a ring is mapped whose descriptor is closed, so that the program names it by a number that only the kernel knows.
static HIDDEN: AtomicBool = AtomicBool::new(false);
static RINGS: Lock<Vec<Ring>> = Lock::new(Vec::new());
static OFFSETS: Lock<Option<Offsets>> = Lock::new(None);

/// Offsets of the fields in a ring's shared memory.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    head: usize,
    tail: usize,
    completed: usize,
    completions: usize,
}

/// The kernel's `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    head: [u32; 10],
    submissions: [u32; 10],
    completions: [u32; 10],
}

const _: () = assert!(size_of::<Params>() == 120);

/// Learns the layout of a ring's memory from the kernel, before the filter forbids new rings.
pub fn learn() {
    *OFFSETS.lock() = offsets();
}

fn offsets() -> Option<Offsets> {
    let mut params = Params::default();
    // SAFETY: `params` lives over the call.
    let fd = unsafe { sys!(libc::SYS_io_uring_setup, 1, &raw mut params) };
    let fd = usize::try_from(fd).ok()?;
    // SAFETY: the descriptor was opened above, and nobody uses it after this call.
    unsafe { sys!(libc::SYS_close, fd) };
    let place = |offsets: &[u32; 10], index: usize| offsets[index] as usize;
    Some(Offsets {
        head: place(&params.submissions, 0),
        tail: place(&params.submissions, 1),
        completed: place(&params.completions, 1),
        completions: place(&params.completions, 5),
    })
}

/// Clears the list in the child of a fork: rings that it inherits access its parent's memory.
pub fn forked() {
    // SAFETY: the child has one thread, and the thread that forked did not hold the lock.
    unsafe { RINGS.reset() };
    std::mem::forget(std::mem::take(&mut *RINGS.lock()));
    HIDDEN.store(false, Relaxed);
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the ring's memory is mapped as long as the program uses it. The kernel chose the offset inside of it,
        // aligned, and program and kernel change the word only by atomic stores.
        unsafe { &*((self.rings.0 + offset) as *const AtomicU32) }
    }

    /// Returns the entry at an index. The program may still be writing its words.
    fn entry(&self, index: usize) -> Option<[u64; 8]> {
        let at = self.entries.0 + index * ENTRY_BYTES;
        if at + ENTRY_BYTES > self.entries.1 {
            return None;
        }
        // SAFETY: the entry lies in the ring's memory, as checked above, is aligned, and is accessed only as atomics.
        let words = unsafe { &*(at as *const [AtomicU64; 8]) };
        Some(std::array::from_fn(|index| words[index].load(Relaxed)))
    }

    fn all_entries(&self) -> usize {
        (self.entries.1 - self.entries.0) / ENTRY_BYTES
    }

    /// Brings back the memory of entries that wait to be submitted, and pins it for good.
    fn exempt_waiting(&self, pager: &'static Pager, offsets: Offsets) {
        let (head, tail) = (self.word(offsets.head).load(Acquire), self.word(offsets.tail).load(Acquire));
        let waiting = tail.wrapping_sub(head).min(self.mask + 1);
        for turn in 0..waiting {
            let place = (head.wrapping_add(turn) & self.mask) as usize;
            // The entry's index is its place itself, or the word at that place in an array after the completions, which have
            // 16 or 32 bytes each.
            self.exempt_at(pager, place);
            for bytes in [16, 32] {
                let array =
                    (offsets.completions + (self.completions as usize + 1) * bytes).next_multiple_of(64);
                if self.rings.0 + array + 4 * (self.mask as usize + 1) <= self.rings.1 {
                    let index = self.word(array + 4 * place).load(Relaxed) as usize;
                    if index != place && index <= self.mask as usize {
                        self.exempt_at(pager, index);
                    }
                }
            }
        }
    }

    /// Handles the entry at an index; entries have 64 or 128 bytes, so both positions are tried.
    fn exempt_at(&self, pager: &'static Pager, index: usize) {
        for at in [index, 2 * index, 2 * index + 1] {
            if let Some(entry) = self.entry(at) {
                exempt_named(pager, &entry);
            }
        }
    }
}

/// Brings back the memory that an entry names, and pins it for good.
fn exempt_named(pager: &'static Pager, entry: &[u64; 8]) {
    const READV: u8 = 1;
    const WRITEV: u8 = 2;
    const READ_FIXED: u8 = 4;
    const WRITE_FIXED: u8 = 5;
    const SENDMSG: u8 = 9;
    const RECVMSG: u8 = 10;
    const MADVISE: u8 = 25;
    const PROVIDE_BUFFERS: u8 = 31;
    const SENDMSG_ZC: u8 = 48;
    const READV_FIXED: u8 = 60;
    const WRITEV_FIXED: u8 = 61;
    /// Bytes that are pinned at a pointer without a length of its own: for a path, a socket's name, a time.
    const SMALL: usize = 4096 + 256;
    let code = entry[0] as u8;
    let count = (entry[0] >> 32) as u32 as usize;
    let (second, first, length) = (entry[1] as usize, entry[2] as usize, entry[3] as u32 as usize);
    let third = entry[6] as usize;
    match code {
        // The kernel's own pins hold registered buffers.
        READ_FIXED | WRITE_FIXED => {}
        READV | WRITEV | READV_FIXED | WRITEV_FIXED => exempt_vector(pager, first, length),
        SENDMSG | RECVMSG | SENDMSG_ZC => {
            exempt(pager, first, size_of::<libc::msghdr>());
            if let Some(header) = copied::<libc::msghdr>(pager, first) {
                exempt_vector(pager, header.msg_iov as usize, header.msg_iovlen);
                exempt(pager, header.msg_name as usize, header.msg_namelen as usize);
                exempt(pager, header.msg_control as usize, header.msg_controllen);
            }
        }
        MADVISE if in_arena(first) => {
            kept::refuse(&[c"io_uring gives memory advice"]);
        }
        PROVIDE_BUFFERS => exempt(pager, first, length.saturating_mul(count)),
        _ => {
            exempt(pager, first, length.max(SMALL));
            exempt(pager, second, SMALL);
            exempt(pager, third, SMALL);
        }
    }
}

fn copied<T: Copy>(pager: &Pager, address: usize) -> Option<T> {
    let bytes = size_of::<T>();
    if address == 0 || in_arena(address) && pager.accessible(address, bytes, false) < bytes {
        return None;
    }
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let (own, other) = ([value.as_mut_ptr() as usize, bytes], [address, bytes]);
    // The memory is read through the kernel, because an old entry may name memory that is no longer mapped.
    // SAFETY: the lengths of both ranges are passed; if the other range is not mapped, the call fails.
    let got = unsafe {
        sys!(libc::SYS_process_vm_readv, sys!(libc::SYS_getpid), own.as_ptr(), 1, other.as_ptr(), 1, 0)
    };
    // SAFETY: the call has written all bytes of the value, which is plain data.
    (got == bytes as isize).then(|| unsafe { value.assume_init() })
}

fn exempt_vector(pager: &'static Pager, address: usize, count: usize) {
    const MOST_PARTS: usize = 1024;
    if count > MOST_PARTS {
        return;
    }
    exempt(pager, address, count * size_of::<libc::iovec>());
    for index in 0..count {
        let Some(part) = copied::<libc::iovec>(pager, address + index * size_of::<libc::iovec>()) else {
            return;
        };
        exempt(pager, part.iov_base as usize, part.iov_len);
    }
}

/// Handles a ring that was made before activation. Returns the bytes of its registered buffers. Refuses the process if the
/// ring cannot be followed.
pub fn adopt_ring(pager: &'static Pager, fd: usize, number: &[u8], moves: bool, buffer: &mut [u8]) -> usize {
    let Some(offsets) = *OFFSETS.lock() else {
        kept::refuse(&[c"an io_uring ring was made before memory was short, and none can be made now to learn its layout"]);
    };
    let info = kept::path(b"/proc/self/fdinfo/", number);
    let Ok(info) = std::ffi::CStr::from_bytes_until_nul(&info) else { return 0 };
    let (mut ring, mut registered) = (Ring::default(), 0);
    for check in 0.. {
        let (mut listed, mut buffers, mut polled) = (false, false, false);
        registered = 0;
        for_lines(info, buffer, |line| {
            let value = |name: &[u8]| line.strip_prefix(name);
            if let Some(rest) = value(b"ino:") {
                ring.inode = decimal(rest) as u64;
            } else if let Some(rest) = value(b"SqMask:") {
                ring.mask = hexadecimal(activate::after(rest, b"0x")) as u32;
            } else if let Some(rest) = value(b"CqMask:") {
                ring.completions = hexadecimal(activate::after(rest, b"0x")) as u32;
            } else if let Some(rest) = value(b"SqThread:") {
                polled = !rest.contains(&b'-');
            } else if line.starts_with(b"UserBufs:") {
                (listed, buffers) = (true, true);
            } else if line.starts_with(b"PollList:") {
                buffers = false;
            } else if buffers && line.contains(&b'/') {
                // An example of such a line: "    0: 0x7f0000000000/4096"
                let text = activate::after(line, b"0x");
                let address = hexadecimal(text) as usize;
                let bytes = decimal(activate::after(text, b"/"));
                registered += bytes;
                if !moves {
                    exempt(pager, address, bytes);
                }
            }
        });
        if polled {
            kept::refuse(&[c"an io_uring ring has a thread of the kernel's (IORING_SETUP_SQPOLL), which takes requests without a call"]);
        }
        if listed {
            break;
        }
        if check == MOST_CHECKS {
            kept::refuse(&[c"an io_uring ring is too busy to say which buffers it has"]);
        }
        pause();
    }
    locate(&mut ring, buffer);
    if ring.rings.0 == 0 || ring.entries.0 == 0 || ring.mask == 0 && ring.all_entries() == 0 {
        kept::refuse(&[c"an io_uring ring lies in memory that cannot be found (IORING_SETUP_NO_MMAP)"]);
    }
    if has_groups(fd) {
        kept::refuse(&[c"an io_uring ring has buffers of which only the kernel knows (provided buffers), or may be asked by one thread alone"]);
    }
    pin_requests_in_progress(pager, &ring, offsets);
    let mut rings = RINGS.lock();
    if !rings.iter().any(|known| known.inode == ring.inode) {
        rings.push(ring);
    }
    registered
}

/// Looks for rings that are mapped and have no descriptor in this process (`IORING_REGISTER_RING_FDS`, then `close`). The
/// rings with a descriptor were adopted.
pub fn find_hidden(buffer: &mut [u8]) {
    let rings = RINGS.lock().clone();
    let mut hidden = false;
    for_lines(c"/proc/self/maps", buffer, |line| {
        if line.ends_with(b"anon_inode:[io_uring]") {
            let inode = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(4);
            hidden |=
                inode.is_some_and(|inode| !rings.iter().any(|ring| ring.inode == decimal(inode) as u64));
        }
    });
    HIDDEN.store(hidden, Relaxed);
}

fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: `time` lives over the call.
    unsafe { sys!(libc::SYS_nanosleep, &raw const time, 0) };
}

/// Finds the places of a ring's memory in this process.
fn locate(ring: &mut Ring, buffer: &mut [u8]) {
    for_lines(c"/proc/self/maps", buffer, |line| {
        if !line.ends_with(b"anon_inode:[io_uring]") {
            return;
        }
        let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
        let (range, offset, inode) = (fields.next(), fields.nth(1), fields.nth(1));
        let (Some(range), Some(offset), Some(inode)) = (range, offset, inode) else { return };
        if decimal(inode) as u64 != ring.inode {
            return;
        }
        let place = (hexadecimal(range) as usize, hexadecimal(activate::after(range, b"-")) as usize);
        match hexadecimal(offset) {
            0 => ring.rings = place,
            ENTRIES_OFFSET => ring.entries = place,
            _ => {}
        }
    });
}

/// Returns true if the ring has groups of provided buffers, of either kind, or if the kernel does not say.
fn has_groups(fd: usize) -> bool {
    const PBUF_STATUS: usize = 26;
    for group in 0..GROUPS {
        let mut status = [group, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the structure lives over the call.
        let result = unsafe { sys!(libc::SYS_io_uring_register, fd, PBUF_STATUS, status.as_mut_ptr(), 1) };
        match -result as i32 {
            libc::ENOENT => {}
            // A kernel before 6.8 does not know this request, and says so for the first group.
            _ => return true,
        }
    }
    false
}

/// Pins the memory of requests that may be in progress. The entries of the latest requests still lie in the ring. If older
/// requests may be in progress too, waits until they have ended.
fn pin_requests_in_progress(pager: &'static Pager, ring: &Ring, offsets: Offsets) {
    for index in 0..ring.all_entries() {
        if let Some(entry) = ring.entry(index)
            && entry != [0; 8]
        {
            exempt_named(pager, &entry);
        }
    }
    for _ in 0..MOST_CHECKS {
        let begun = ring.word(offsets.head).load(Acquire);
        let ended = ring.word(offsets.completed).load(Acquire);
        if begun == ended || begun <= ring.mask + 1 {
            return;
        }
        pause();
    }
    kept::refuse(&[c"io_uring requests have been under way since before memory was short"]);
}

/// Performs `io_uring_enter` after bringing back the memory of entries that wait to be submitted. Every ring was made before
/// activation.
pub fn enter(scene: &mut Scene<'_>, arguments: [usize; 6]) -> isize {
    const EXTENDED: usize = 1 << 3;
    const REGISTERED: usize = 1 << 4;
    if arguments[3] & REGISTERED != 0 && HIDDEN.load(Relaxed) {
        kept::refuse(&[c"an io_uring ring has no descriptor (IORING_REGISTER_RING_FDS)"]);
    }
    let rings = RINGS.lock().clone();
    match *OFFSETS.lock() {
        Some(offsets) if !rings.is_empty() => {
            rings.iter().for_each(|ring| ring.exempt_waiting(scene.pager, offsets));
        }
        _ if arguments[1] == 0 => {}
        _ => kept::refuse(&[c"an io_uring ring is used that was not found when memory became short"]),
    }
    let mut arguments = arguments;
    let (mut mask, mut time, mut extended) = (0u64, [0u64; 2], [0u64; 3]);
    let mut place = arguments[4];
    if place != 0 && arguments[3] & EXTENDED != 0 {
        // SAFETY: the program promises a structure of three words, and a time if that is given.
        unsafe {
            extended = (place as *const [u64; 3]).read();
            if extended[2] != 0 {
                time = (extended[2] as *const [u64; 2]).read();
                extended[2] = (&raw const time) as u64;
            }
        }
        arguments[4] = extended.as_ptr() as usize;
        place = extended[0] as usize;
    }
    if place != 0 {
        // SAFETY: the program promises a mask of 64 bits there.
        mask = unsafe { (place as *const u64).read() } & !OURS;
        match arguments[3] & EXTENDED {
            0 => arguments[4] = (&raw const mask) as usize,
            _ => extended[0] = (&raw const mask) as u64,
        }
    }
    let result = scene.call(libc::SYS_io_uring_enter as usize, arguments);
    std::hint::black_box((&mask, &time, &extended));
    result
}

/// Performs `io_uring_register` after bringing back buffers; if pins of the kernel cannot be seen, they are also pinned for
/// good.
pub fn register(scene: &mut Scene<'_>, arguments: [usize; 6]) -> isize {
    const BUFFERS: usize = 0;
    const BUFFERS_2: usize = 15;
    const BUFFERS_UPDATE: usize = 16;
    const PBUF_RING: usize = 22;
    let [_, code, argument, count, ..] = arguments;
    let pager = scene.pager;
    let vector = |scene: &Scene<'_>, address: usize, count: usize| {
        scene.pin(address, count.min(1 << 14) * size_of::<libc::iovec>(), false);
        for index in 0..count.min(1 << 14) {
            let Some(part) = copied::<libc::iovec>(pager, address + index * size_of::<libc::iovec>()) else {
                return;
            };
            if pager.sees_pins() {
                scene.pin(part.iov_base as usize, part.iov_len, true);
            } else {
                exempt(pager, part.iov_base as usize, part.iov_len);
            }
        }
    };
    match code & 0x7fff_ffff {
        BUFFERS => vector(scene, argument, count),
        BUFFERS_2 | BUFFERS_UPDATE => {
            scene.pin(argument, 32, false);
            if let Some(update) = copied::<[u64; 4]>(pager, argument) {
                let parts = if code == BUFFERS_2 { update[0] as u32 } else { update[3] as u32 } as usize;
                let address = if code == BUFFERS_2 { update[2] } else { update[1] } as usize;
                vector(scene, address, parts);
            }
        }
        // Answer like a kernel without buffer rings, because this library could not see the buffers in such a ring.
        PBUF_RING => return -(libc::EINVAL as isize),
        _ => {
            scene.pin(argument, 4096.min(PIECE_BYTES), true);
        }
    }
    let number = libc::SYS_io_uring_register as usize;
    let result = scene.call(number, arguments);
    // Tags and tables of files, which structures name.
    named::again(scene, number, arguments, (argument, result))
}

/// Performs `io_submit` for a context that was made before activation. The memory that its blocks name is brought back, and
/// pinned until the call returns; afterwards the kernel's own pins hold it.
pub fn submit(scene: &mut Scene<'_>, arguments: [usize; 6]) -> isize {
    const VECTORS: std::ops::RangeInclusive<u16> = 7..=8;
    let [_, count, list, ..] = arguments;
    let count = count.min(1 << 12);
    scene.pin(list, count * size_of::<usize>(), false);
    for index in 0..count {
        let Some(address) = copied::<usize>(scene.pager, list + index * size_of::<usize>()) else { break };
        scene.pin(address, ENTRY_BYTES, true);
        let Some(block) = copied::<[u64; 8]>(scene.pager, address) else { continue };
        let (buffer, bytes) = (block[3] as usize, block[4] as usize);
        let both = |address: usize, bytes: usize| {
            let _ = scene.pin(address, bytes, true) || scene.pin(address, bytes, false);
        };
        if VECTORS.contains(&(block[2] as u16)) {
            both(buffer, bytes.min(1024) * size_of::<libc::iovec>());
            for part in 0..bytes.min(1024) {
                match copied::<libc::iovec>(scene.pager, buffer + part * size_of::<libc::iovec>()) {
                    Some(part) => both(part.iov_base as usize, part.iov_len),
                    None => break,
                }
            }
        } else {
            both(buffer, bytes);
        }
    }
    scene.call(libc::SYS_io_submit as usize, arguments)
}
