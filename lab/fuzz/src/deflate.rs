// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels' packers at any message, whole and in pieces with flushes: zlib-rs gets the message back.
//!
//! - **Layout** format u8 · effort u8 · room u16 · window u8, then pieces: flush u8 · length u16 · output u16; the message is all
//!   of the data, twice

use crate::mutate::messages;
use crate::reference;
use crate::{Guarded, Input};
use libz_rs_sys::Z_STREAM_END;
use memlift_kernels::deflate::{Effort, Flush, Format, PackStream, Packer, bound};
use std::cell::RefCell;

thread_local! {
    static PACKER: RefCell<Packer> = RefCell::new(Packer::new());
}

fn check(format: Format, packed: &[u8], message: &[u8]) {
    let theirs = reference::inflate(format, packed, message.len() + 1);
    assert_eq!((theirs.code, theirs.read), (Z_STREAM_END, packed.len()), "{}", theirs.text);
    assert!(theirs.bytes == message, "another message came out");
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let format = input.pick(&[Format::Raw, Format::Zlib, Format::Gzip]);
    let effort = input.pick(&[Effort::Fast, Effort::Default, Effort::Small]);
    let message = [data, data].concat();
    let most = bound(format, message.len());
    let mut target = Guarded::new(most, 0x11);
    let packed = PACKER.with_borrow_mut(|packer| packer.pack(format, effort, &message, target.get()));
    let bytes = packed.expect("the bound suffices");
    check(format, &target.checked()[..bytes], &message);
    let mut small = Guarded::new(input.word() % (most + 1), 0x11);
    let again = PACKER.with_borrow_mut(|packer| packer.pack(format, effort, &message, small.get()));
    small.checked();
    if let Ok(written) = again {
        check(format, &small.checked()[..written], &message);
    }
    pieces(format, effort, &message, input);
}

fn pieces(format: Format, effort: Effort, message: &[u8], mut input: Input<'_>) {
    let mut stream = PackStream::new(format, effort);
    stream.set_window_bits(9 + u32::from(input.byte()) % 7);
    let (mut packed, mut read) = (Vec::new(), 0);
    loop {
        let end = input.is_empty();
        let flush = if end {
            Flush::Finish
        } else {
            input.pick(&[Flush::None, Flush::None, Flush::Sync, Flush::Full])
        };
        let length = if end { message.len() } else { input.word() };
        let upto = message.len().min(read + length);
        let mut room = 1 + input.word() % 700;
        loop {
            let mut target = Guarded::new(room, 0x11);
            let pushed = stream.push(&message[read..upto], target.get(), flush);
            packed.extend_from_slice(&target.checked()[..pushed.written]);
            read += pushed.read;
            if !pushed.more {
                break;
            }
            assert!(pushed.read + pushed.written > 0 || room < 16, "no progress with {room} bytes of room");
            room += 1;
        }
        assert_eq!(read, upto, "a push that is done has read everything");
        if end {
            break;
        }
    }
    assert!(stream.is_finished());
    check(format, &packed, message);
}

/// Messages behind some choices.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, message) in messages().into_iter().enumerate() {
        for effort in 0..3 {
            seeds.push([&[number as u8, effort, 200, 0, 6, 2, 60, 0, 30, 0], &message[..]].concat());
        }
    }
    seeds
}
