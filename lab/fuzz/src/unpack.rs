// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The codec of transform at hostile streams of all formats: it reads what the model reads.
//!
//! - **Order** what both read is the same; nothing is written behind the target
//! - **Layout** format u8 · room u16 · stream

use crate::mutate::messages;
use crate::{Guarded, Input};
use memlift_model::naive::{self, UnpackError};
use memlift_spec::{Effort, Format};
use memlift_transform::codec::{Codec, CodecError};

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let format = input.pick(&Format::ALL);
    let room = input.word();
    let stream = input.rest();
    // Formats that leave nothing open.
    let strict = matches!(format, Format::Lz4 | Format::Pages);
    let mut target = Guarded::new(room, 0x44);
    let ours = Codec::new().unpack(format, stream, target.get());
    let bytes = target.checked();
    let model = naive::unpack(format, stream, room);
    match (ours, model) {
        (Ok(done), Ok(model)) => {
            assert_eq!((done.read, done.written), (model.read, model.bytes.len()), "{}", format.name());
            assert!(bytes[..done.written] == model.bytes, "another message came out of {}", format.name());
        }
        (Err(error), Ok(model)) => {
            // The standard leaves this open, or a frame is longer than it says.
            assert!(
                !strict,
                "{error}, but the model unpacks {} bytes of {}",
                model.bytes.len(),
                format.name()
            );
        }
        // More Zstandard than the model knows.
        (_, Err(status)) if format == Format::Pages && status == UnpackError::Unknown => {}
        (Err(error), Err(status)) if strict => {
            let same = (error == CodecError::TargetTooSmall) == (status == UnpackError::TargetTooSmall);
            assert!(same, "{error}, but the model says {status}");
        }
        (Ok(_), Err(status)) if strict => panic!("taken, but the model says {status}"),
        _ => {}
    }
}

/// Streams packed by the model and by the product.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for message in messages() {
        for (number, format) in Format::ALL.into_iter().enumerate() {
            let room = (message.len() as u16 + 2).to_le_bytes();
            let mut packed = vec![0; 10_000];
            let bytes = Codec::new().pack(format, Effort::Default, &message, &mut packed);
            let packed = &packed[..bytes.expect("room for all")];
            seeds.push([&[number as u8], &room[..], packed].concat());
            seeds.push([&[number as u8], &room[..], &naive::pack(format, &message)].concat());
        }
    }
    seeds
}
