// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In a debugger: its reads of a process under a budget find absent pages too.
//!
//! - **Flow** `memlift job attach` names the process in the environment ──▶ [`begin`] ──▶ the functions that read another
//!   process's memory (`pread` of `/proc/PID/mem`, `process_vm_readv`) call [`perform`] ──▶ pages of the arena come from
//!   [`Outside`], all other memory from the kernel
//! - **Order** each page of the arena is looked up before it is read: where pages are made absent by taking their access
//!   away, the kernel gives zeros for them without an error
//! - **Writes** to a page of the arena are made only if the page is present and has no copy; others fail, as the process would
//!   lose them
//! - **Not here** a process under a budget, whose own calls are handled by `trap`

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::outside::{self, Contents, Outside};

use crate::thread::{Quiet, inside};

const PAGE_BYTES: usize = 4096;
/// Largest number of parts of a call.
const MOST_PARTS: usize = 1024;

static ON: AtomicBool = AtomicBool::new(false);
static OUTSIDE: Lock<Option<Outside>> = Lock::new(None);

/// Opens the process that the environment names, if it names one.
pub fn begin() {
    match outside::from_environment() {
        Some(Ok(outside)) => {
            *OUTSIDE.lock() = Some(outside);
            ON.store(true, Ordering::Release);
        }
        Some(Err(error)) => {
            crate::words::say_text(&format!("memlift: memory that is away cannot be read: {error}\n"));
        }
        None => {}
    }
}

/// Returns true in a debugger that `memlift job attach` started.
pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// A part of the other process's memory, and its place here.
struct Part {
    address: u64,
    here: usize,
    bytes: usize,
}

/// Performs a call that reads or writes memory of the process. Returns `None` if the call does not concern its arena; the
/// kernel then makes it.
///
/// # Safety
///
/// The promises of the system call.
pub unsafe fn perform(number: usize, arguments: [usize; 6]) -> Option<isize> {
    if !is_on() || inside() {
        return None;
    }
    let _quiet = Quiet::begin();
    let mut lock = OUTSIDE.lock();
    let outside = lock.as_mut()?;
    let number = number as i64;
    let write = matches!(number, libc::SYS_pwrite64 | libc::SYS_process_vm_writev);
    let parts = match number {
        libc::SYS_pread64 | libc::SYS_pwrite64 => {
            let [fd, here, bytes, address, ..] = arguments;
            // The end is tested too, because a read may begin before the arena.
            let touches = outside.contains(address as u64)
                || outside.contains((address as u64).saturating_add(bytes as u64).saturating_sub(1));
            if !touches || !is_memory_of(fd, outside.pid()) {
                return None;
            }
            vec![Part { address: address as u64, here, bytes }]
        }
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            if arguments[0] != outside.pid() as usize {
                return None;
            }
            // SAFETY: the caller promises valid lists of parts.
            let parts = unsafe { parts(arguments) }?;
            if !parts.iter().any(|part| outside.contains(part.address)) {
                return None;
            }
            parts
        }
        _ => return None,
    };
    let mut done = 0;
    for part in &parts {
        // SAFETY: the caller promises memory of this size here.
        let copied = unsafe { copy(outside, part, write) };
        done += copied;
        if copied < part.bytes {
            break;
        }
    }
    let error =
        if matches!(number, libc::SYS_pread64 | libc::SYS_pwrite64) { libc::EIO } else { libc::EFAULT };
    Some(if done == 0 && parts.iter().any(|part| part.bytes > 0) { -(error as isize) } else { done as isize })
}

/// Returns true if a descriptor is the memory of a process or of one of its threads.
fn is_memory_of(fd: usize, pid: u32) -> bool {
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { return false };
    let rest = path.strip_prefix(format!("/proc/{pid}")).ok();
    rest.is_some_and(|rest| rest == Path::new("mem") || rest.starts_with("task") && rest.ends_with("mem"))
}

/// Pairs the two lists of a call, so that each part lies in one piece on both sides.
///
/// # Safety
///
/// The lists are valid.
unsafe fn parts([_, here, here_count, there, there_count, _]: [usize; 6]) -> Option<Vec<Part>> {
    if here_count > MOST_PARTS || there_count > MOST_PARTS {
        return None;
    }
    // SAFETY: the caller promises lists of these lengths.
    let lists = [(here, here_count), (there, there_count)].map(|(list, count)| unsafe {
        if count == 0 { &[][..] } else { std::slice::from_raw_parts(list as *const libc::iovec, count) }
    });
    let (mut parts, mut at) = (Vec::new(), [(0, 0); 2]);
    while at[0].0 < here_count && at[1].0 < there_count {
        let [here, there] = [0, 1].map(|side| {
            let part = &lists[side][at[side].0];
            (part.iov_base as usize + at[side].1, part.iov_len - at[side].1)
        });
        let bytes = here.1.min(there.1);
        if bytes > 0 {
            parts.push(Part { address: there.0 as u64, here: here.0, bytes });
        }
        for (side, rest) in [here.1, there.1].into_iter().enumerate() {
            at[side] = if rest == bytes { (at[side].0 + 1, 0) } else { (at[side].0, at[side].1 + bytes) };
        }
    }
    Some(parts)
}

/// Copies a part page by page. Returns the bytes that were copied.
///
/// # Safety
///
/// The part's place here is memory of its size, which may be written if this is no `write`.
unsafe fn copy(outside: &mut Outside, part: &Part, write: bool) -> usize {
    let mut done = 0;
    while done < part.bytes {
        let address = part.address + done as u64;
        let offset = address as usize % PAGE_BYTES;
        let bytes = (PAGE_BYTES - offset).min(part.bytes - done);
        let here = (part.here + done) as *mut u8;
        let in_arena = outside.contains(address);
        let right = if write {
            let may = !in_arena || outside.may_be_written(address);
            // SAFETY: the caller promises memory of this size here.
            may && outside.write(address, unsafe { std::slice::from_raw_parts(here, bytes) }).is_ok()
        } else if in_arena {
            let mut page = [0; PAGE_BYTES];
            let contents = outside.page_at(address, &mut page);
            // SAFETY: the caller promises memory of this size here.
            unsafe { here.copy_from_nonoverlapping(page[offset..].as_ptr(), bytes) };
            matches!(contents, Contents::Zeros | Contents::Present | Contents::Absent)
        } else {
            // SAFETY: the caller promises memory of this size here, which may be written.
            outside.read(address, unsafe { std::slice::from_raw_parts_mut(here, bytes) }).is_ok()
        };
        if !right {
            break;
        }
        done += bytes;
    }
    done
}
