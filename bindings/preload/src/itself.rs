// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/proc/self/mem`: the program reads and writes its own memory as a file.
//!
//! - **Flow** an offset in the arena, of a descriptor that is this process's memory ──▶ the memory there is pinned ──▶ the call
//! - **Layout** `pread` and `pwrite` name the offset. For `read` and `write`, [`seek`] marks a descriptor whose position was set
//!   to an address of the arena
//! - **Not here** vectors (`preadv`); the memory of another process

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::trap::{Scene, in_arena, piece_bytes};
use crate::{kept, sys};

/// One bit for each of the first descriptors.
static MARKED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    while at > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    &digits[at..]
}

/// Returns true if a descriptor is the memory of this process or of one of its threads.
fn is_own_memory(fd: usize) -> bool {
    let mut digits = [0; 20];
    let link = kept::path(b"/proc/self/fd/", decimal(fd, &mut digits));
    let mut place = [0u8; 64];
    // SAFETY: the path ends with a zero byte, and the length of the buffer is passed.
    let got = unsafe { sys!(libc::SYS_readlink, link.as_ptr(), place.as_mut_ptr(), place.len()) };
    // SAFETY: the call takes no argument.
    let process = unsafe { sys!(libc::SYS_getpid) };
    let name = &place[..usize::try_from(got).unwrap_or(0)];
    let rest = name
        .strip_prefix(b"/proc/")
        .and_then(|rest| rest.strip_prefix(decimal(process as usize, &mut digits)));
    rest.is_some_and(|rest| rest == b"/mem" || rest.starts_with(b"/task/") && rest.ends_with(b"/mem"))
}

/// Returns true if a descriptor's position was set to an address of the arena.
pub fn is_marked(fd: usize) -> bool {
    MARKED.get(fd / 64).is_some_and(|word| word.load(Relaxed) >> (fd % 64) & 1 != 0)
}

/// Performs `lseek` to an offset that is an address of the arena.
pub fn seek(scene: &mut Scene<'_>, arguments: [usize; 6]) -> isize {
    let result = scene.call(libc::SYS_lseek as usize, arguments);
    if let Some(word) = MARKED.get(arguments[0] / 64)
        && result >= 0
        && is_own_memory(arguments[0])
    {
        word.fetch_or(1 << (arguments[0] % 64), Relaxed);
    }
    result
}

/// Performs a read or write of this process's own memory. Returns `None` if the call is not one.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> Option<isize> {
    let [fd, buffer, bytes, offset, ..] = arguments;
    let call = number as i64;
    let named = matches!(call, libc::SYS_pread64 | libc::SYS_pwrite64);
    let positioned = matches!(call, libc::SYS_read | libc::SYS_write) && is_marked(fd);
    if !named && !positioned {
        return None;
    }
    let position = if named {
        offset
    } else {
        // SAFETY: the call takes numbers only, and leaves the position as it is.
        let now = unsafe { sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
        now as usize
    };
    if !in_arena(position) || !is_own_memory(fd) {
        return None;
    }
    let reads = matches!(call, libc::SYS_read | libc::SYS_pread64);
    let at = if reads { libc::SYS_pread64 } else { libc::SYS_pwrite64 };
    let result = scene.in_pieces((bytes.min(0x7fff_f000), piece_bytes()), true, |scene, done, part| {
        scene.pin(buffer.wrapping_add(done), part, reads);
        // The kernel writes to pages without write access too. The pager would not notice that, so it is refused.
        if !scene.pin(position + done, part, !reads) && !reads {
            return -(libc::EIO as isize);
        }
        scene.call(at as usize, [fd, buffer.wrapping_add(done), part, position + done, 0, 0])
    });
    if !named && result > 0 {
        // SAFETY: the call takes numbers only.
        unsafe { sys!(libc::SYS_lseek, fd, position + result as usize, libc::SEEK_SET) };
    }
    Some(result)
}
