// SPDX-License-Identifier: Apache-2.0 OR MIT
//! File descriptors that travel with bytes over a Unix socket (`SCM_RIGHTS`).
//!
//! - **Flow** [`send`] ─▶ the kernel keeps the descriptors with the bytes ─▶ [`receive`] opens them in the other process, close-on-exec
//! - **Owner** a received descriptor is the receiver's; those that were not taken out are closed with [`Received`]
//! - **Not here** checks of what arrived: the number and kind of the descriptors are the sender's choice

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors in one message at most.
pub const DESCRIPTORS_MAX: usize = 8;

/// One message, or a part of a stream, as it arrived.
#[derive(Debug)]
pub struct Received {
    /// Bytes that were written into the buffer.
    pub bytes: usize,
    /// True if the message was longer than the buffer.
    pub is_cut: bool,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// True if more descriptors were sent: too many, or this process has too few left.
    pub misses_descriptors: bool,
}

/// Sends bytes with descriptors, and returns the number of bytes sent. A receiver that is gone is an error and not a signal.
///
/// # Errors
///
/// Those of sendmsg, and `INVAL` for more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The room for eight may hold one more, because it is rounded up.
    if descriptors.len() > DESCRIPTORS_MAX
        || !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(Errno::INVAL);
    }
    sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)
}

/// Receives bytes and descriptors.
///
/// # Errors
///
/// Those of recvmsg.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(Received {
        bytes: got.bytes,
        is_cut: got.flags.contains(ReturnFlags::TRUNC),
        descriptors: rights.flatten().collect(),
        misses_descriptors: got.flags.contains(ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_arrive_with_their_bytes_and_close_on_exec() {
        let (one, other) = pair();
        for count in [0, 1, 3, DESCRIPTORS_MAX] {
            let rights = vec![one.as_fd(); count];
            assert_eq!(send(&one, b"bytes", &rights, SendFlags::empty()), Ok(5));
            let mut bytes = [0; 8];
            let got = receive(&other, &mut bytes, RecvFlags::empty()).unwrap();
            assert_eq!((got.bytes, &bytes[..5], got.descriptors.len()), (5, &b"bytes"[..], count));
            assert!(!got.is_cut && !got.misses_descriptors);
            let flags = |fd: &OwnedFd| rustix::io::fcntl_getfd(fd).unwrap();
            assert!(got.descriptors.iter().all(|fd| flags(fd).contains(rustix::io::FdFlags::CLOEXEC)));
        }
        let many = vec![one.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(&one, b"x", &many, SendFlags::empty()), Err(Errno::INVAL));
    }

    #[test]
    fn a_message_that_is_too_long_says_so_and_a_receiver_that_is_gone_is_an_error() {
        let (one, other) = pair();
        send(&one, b"too long", &[one.as_fd()], SendFlags::empty()).unwrap();
        let got = receive(&other, &mut [0; 3], RecvFlags::empty()).unwrap();
        assert!(got.is_cut && got.descriptors.len() == 1);
        drop(other);
        assert_eq!(send(&one, b"x", &[], SendFlags::empty()), Err(Errno::PIPE));
    }
}
