// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels' unpacker at hostile streams, against zlib-rs.
//!
//! - **Order** what zlib-rs takes we take, with the same bytes; what we take and zlib-rs does not breaks a rule of RFC 1951
//!   that does not change what comes out ([`LENIENT`])
//! - **Layout** format u8 · room u16 · stream

use crate::mutate::messages;
use crate::reference;
use crate::{Guarded, Input};
use libz_rs_sys::{Z_DATA_ERROR, Z_STREAM_END};
use memlift_kernels::deflate::{Effort, Format, Packer, Unpacker};
use memlift_model::naive;
use std::cell::RefCell;

/// Streams that libdeflate does not refuse: symbols without a meaning in the standard, codes that nobody uses, the header's
/// own checksum, a window that is smaller than what distances need.
const LENIENT: [&str; 10] = [
    "invalid literal/length code",
    "invalid distance code",
    "too many length or distance symbols",
    "invalid literal/lengths set",
    "invalid distances set",
    "invalid code lengths set",
    "invalid code -- missing end-of-block",
    "header crc mismatch",
    "invalid distance too far back",
    // zlib-rs overwrites what it said at first.
    "repeated call with bad state",
];

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::new(Unpacker::new());
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let format = input.pick(&[Format::Raw, Format::Zlib, Format::Gzip]);
    let room = input.word();
    let stream = input.rest();
    let mut target = Guarded::new(room, 0x11);
    let ours = UNPACKER.with_borrow_mut(|unpacker| unpacker.unpack(format, stream, target.get()));
    let bytes = target.checked();
    let theirs = reference::inflate(format, stream, room + 1);
    let whole = theirs.code == Z_STREAM_END && theirs.bytes.len() <= room;
    match ours {
        Ok(done) if whole => {
            assert_eq!((done.read, done.written), (theirs.read, theirs.bytes.len()));
            assert!(bytes[..done.written] == theirs.bytes, "another message came out");
        }
        Ok(_) => assert!(
            theirs.code == Z_DATA_ERROR && LENIENT.contains(&theirs.text.as_str()),
            "taken, but zlib-rs says {} {:?}",
            theirs.code,
            theirs.text
        ),
        Err(error) => assert!(!whole, "{error}, but zlib-rs unpacks {} bytes", theirs.bytes.len()),
    }
}

/// Stored, fixed and dynamic blocks of every format.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for message in messages() {
        let streams = [naive::stored(&message, 500), naive::fixed(&message), naive::dynamic(&message)];
        for stream in streams {
            for (number, format) in memlift_spec::Format::ALL[..3].iter().enumerate() {
                let room = (message.len() as u16 + 2).to_le_bytes();
                let packed = naive::wrap(*format, &message, stream.clone());
                seeds.push([&[number as u8], &room[..], &packed].concat());
            }
        }
    }
    let (mut packer, mut packed) = (Packer::new(), vec![0; 8000]);
    for message in messages() {
        for effort in [Effort::Fast, Effort::Default, Effort::Small] {
            let bytes = packer.pack(Format::Raw, effort, &message, &mut packed).expect("room for all");
            seeds.push([&[0, 0xff, 0x7f], &packed[..bytes]].concat());
        }
    }
    seeds
}
