// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes of one buffer; those of large buffers are done in pieces.
//!
//! - **Flow** [`perform`] ──▶ [`Scene::in_pieces`]: pin, call. A large buffer ──▶ piece by piece until one is short or fails
//! - **Order** a file is read until the count is reached, as the kernel does. A read of a stream returns with the first
//!   piece, since the next piece might wait. Writes go on with the next piece: a blocking descriptor takes all, and any other
//!   reports when it is full
//! - **Not here** vectors: `vector`

use crate::trap::{PIECE_BYTES, Scene, piece_bytes};
use crate::{itself, sys};

/// Returns true if a read of the descriptor is short only at the end of the file, that is, for a file or a block device.
pub fn reads_whole(fd: usize) -> bool {
    // SAFETY: stat is plain data, for which all zero is valid, and `status` lives over the call.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        sys!(libc::SYS_fstat, fd, &raw mut status) == 0
            && matches!(status.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
    }
}

/// Performs `read`, `write`, `pread64`, `pwrite64`, `recvfrom`, `sendto` or `getrandom`.
pub fn perform(scene: &mut Scene<'_>, number: usize, arguments: [usize; 6]) -> isize {
    let call = number as i64;
    let (buffer, length) = if call == libc::SYS_getrandom { (0, 1) } else { (1, 2) };
    let reads = matches!(call, libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom | libc::SYS_getrandom);
    let socket = matches!(call, libc::SYS_recvfrom | libc::SYS_sendto);
    let (address, bytes) = (arguments[buffer], arguments[length]);
    // The kernel transfers at most this many bytes in one call.
    let bytes = bytes.min(0x7fff_f000);
    // A message must be transferred by one call, so a socket gets the largest piece.
    let piece = if socket { PIECE_BYTES } else { piece_bytes() };

    if socket && arguments[4] != 0 {
        scene.pin(arguments[4], if reads { 256 } else { arguments[5].min(256) }, reads);
        if reads {
            scene.pin(arguments[5], 4, true);
        }
    }
    let whole = !reads
        || call == libc::SYS_getrandom
        || call == libc::SYS_recvfrom && arguments[3] as i32 & libc::MSG_WAITALL != 0
        || call != libc::SYS_recvfrom && bytes > piece && reads_whole(arguments[0]);
    if call == libc::SYS_sendto && arguments[3] as i32 & libc::MSG_ZEROCOPY != 0 {
        scene.pager.stop_recycling();
    }
    if let Some(result) = itself::perform(scene, number, arguments) {
        return result;
    }
    // A transfer of no bytes is a call too.
    if bytes == 0 {
        return scene.call(number, arguments);
    }
    scene.in_pieces((bytes, piece), whole, |scene, done, part| {
        let mut arguments = arguments;
        arguments[buffer] = address.wrapping_add(done);
        arguments[length] = part;
        if matches!(call, libc::SYS_pread64 | libc::SYS_pwrite64) {
            arguments[3] += done;
        }
        scene.pin(arguments[buffer], part, reads);
        scene.call(number, arguments)
    })
}
