// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model as a device, and the product's codecs beside the model's: each opens what the other sealed, each unpacks what the other
//! packed, and both refuse the same.

use memlift_conformance::{Plan, run};
use memlift_kernels::aead::Key;
use memlift_kernels::pages::{MAX_PACKED_BYTES, METHODS, Method, PAGE_BYTES, Packer};
use memlift_model::Model;
use memlift_model::event::Random;
use memlift_model::naive::{self, UnpackError};
use memlift_spec::{Effort, Format};
use memlift_transform::codec::{Codec, CodecError};

/// Unpacks with the product's codec; the stream must end with `packed`.
fn unpacked(format: Format, packed: &[u8], room: usize) -> Result<Vec<u8>, CodecError> {
    let mut target = vec![0_u8; room];
    let done = Codec::new().unpack(format, packed, &mut target)?;
    assert_eq!(done.read, packed.len());
    target.truncate(done.written);
    Ok(target)
}

fn message(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + seed).wrapping_mul(index / 19 + 7) >> 3) as u8).collect()
}

#[test]
fn the_model_conforms_through_this_process_s_memory() {
    let plan = Plan::from_environment();
    if let Err(failure) = run(&Model::new(3), &Plan { cases: plan.cases / 3, ..plan }) {
        panic!("model: {failure}");
    }
}

#[test]
fn what_one_packs_the_other_unpacks() {
    for (seed, bytes) in [0, 1, 100, 4096, 16_384, 65_535, 70_000, 300_000].into_iter().enumerate() {
        let message = message(bytes, seed);
        for format in Format::ALL {
            let stored = naive::pack(format, &message);
            assert_eq!(unpacked(format, &stored, bytes), Ok(message.clone()), "{format:?}");
            let small = unpacked(format, &stored, bytes.saturating_sub(1));
            assert!(bytes == 0 || small == Err(CodecError::TargetTooSmall), "{format:?} of {bytes} bytes");
            // The model reads no compressed blocks of Zstandard.
            if format != Format::Zstd {
                let mut packed = vec![0; bytes + bytes / 8 + 64];
                let written =
                    Codec::new().pack(format, Effort::Default, &message, &mut packed).expect("room for all");
                let read = naive::unpack(format, &packed[..written], bytes).expect("just packed");
                assert!(read.bytes == message && read.read == written, "{format:?} of {bytes} bytes");
            }
        }
    }
}

/// A stream of `message` that is sound, cut off, or changed; and the room for what comes out, or one byte less.
fn spoilt(random: &mut Random, format: Format, message: &[u8]) -> (Vec<u8>, usize) {
    let wrapped = matches!(format, Format::Deflate | Format::Zlib | Format::Gzip);
    let mut packed = match random.word() % 4 {
        0 if wrapped => naive::wrap(format, message, naive::stored(message, 1000)),
        1 if wrapped => naive::wrap(format, message, naive::fixed(message)),
        2 if wrapped => naive::wrap(format, message, naive::dynamic(message)),
        _ => naive::pack(format, message),
    };
    let mut room = message.len() + (random.word() % 9) as usize;
    match random.word() % 6 {
        // A part of an LZ4 block may be another block.
        0 if packed.len() > 1 && format != Format::Lz4 => packed.truncate(packed.len() - 1),
        // Block type 3 does not exist.
        1 if wrapped => packed[[0, 2, 10][format as usize]] |= 6,
        2 if matches!(format, Format::Zlib | Format::Gzip) => *packed.last_mut().expect("a trailer") ^= 1,
        3 if !message.is_empty() => room = message.len() - 1,
        _ => {}
    }
    (packed, room)
}

#[test]
fn both_refuse_the_same_streams() {
    let mut random = Random::new(7);
    let (mut sound, mut refused) = (0, 0);
    for _ in 0..3000 {
        let format = Format::ALL[(random.word() % 6) as usize];
        let bytes = (random.word() % 4500) as usize;
        let mut message: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        if random.word().is_multiple_of(2) {
            message
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| at % 17 > 2)
                .for_each(|(at, byte)| *byte = (at / 64) as u8);
        }
        let (packed, room) = spoilt(&mut random, format, &message);
        match (unpacked(format, &packed, room), naive::unpack(format, &packed, room)) {
            (Ok(ours), Ok(model)) => {
                assert!(ours == model.bytes, "{format:?}: other bytes");
                sound += 1;
            }
            (Err(ours), Err(model)) => {
                let small = (ours == CodecError::TargetTooSmall, model == UnpackError::TargetTooSmall);
                assert_eq!(small.0, small.1, "{format:?}: {ours:?}, the model says {model:?}");
                refused += 1;
            }
            (ours, model) => panic!(
                "{format:?} of {bytes} bytes: {:?}, {:?}",
                ours.map(|m| m.len()),
                model.map(|m| m.read)
            ),
        }
    }
    assert!(sound > 1000 && refused > 300, "{sound} sound, {refused} refused");
}

/// Every way to pack a page, written down twice.
#[test]
fn the_model_reads_packed_pages_of_every_method() {
    let values: [fn(u64) -> u64; 5] = [
        |index| 1_700_000_000_000_000_000 + index * 1_000_000_007,
        |index| if index.is_multiple_of(97) { 1 << 63 } else { index * 7919 % 1000 },
        |index| u64::from((index as f32 * 1.25).to_bits()) | u64::from((index as f32).to_bits()) << 32,
        |index| {
            ((index * 7919 % 20_000) as f64 / if index.is_multiple_of(90) { 3.0 } else { 100.0 }).to_bits()
        },
        |index| index % 100 * 0x3_0000_0005,
    ];
    let (mut packer, mut seen) = (Packer::new(), std::collections::BTreeSet::new());
    for value in values {
        let mut page = [0; PAGE_BYTES];
        for (index, number) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *number = value(index as u64).to_le_bytes();
        }
        for method in METHODS {
            let mut stream = vec![0; MAX_PACKED_BYTES + 2];
            let Some(bytes) = packer.pack_as(method, &page, &mut stream[2..]) else { continue };
            stream.truncate(bytes + 2);
            stream[..2].copy_from_slice(&(bytes as u16).to_le_bytes());
            stream.extend([0, 0x60]);
            let dense = method as u8 >= Method::Dense as u8 && method != Method::Decimal8;
            match memlift_model::naive::unpack(Format::Pages, &stream, PAGE_BYTES) {
                Ok(done) => assert!(done.bytes == page && done.read == stream.len(), "{method:?}"),
                // The model reads no compressed blocks of Zstandard.
                Err(status) => assert!(dense && status == UnpackError::Unknown, "{method:?}: {status}"),
            }
            seen.insert(method as u8);
            assert_eq!(unpacked(Format::Pages, &stream, PAGE_BYTES), Ok(page.to_vec()));
        }
    }
    assert_eq!(seen.len(), METHODS.len(), "some method packed none of the pages: {seen:?}");
}

#[test]
fn what_one_seals_the_other_opens() {
    let (key, aad, nonce) = (message(32, 1), message(77, 2), [4; 12]);
    for bytes in [0, 1, 15, 16, 17, 255, 4096, 16_385, 70_000] {
        let plain = message(bytes, 3);
        for key_bytes in [16, 32] {
            let key = &key[..key_bytes];
            let ours = Key::new(key).expect("a length of AES");
            let (cipher, tag) = naive::gcm(true, key, &nonce, &aad, &plain);
            let mut target = vec![0xee_u8; bytes];
            // SAFETY: source and target are vectors of `bytes` each.
            #[expect(unsafe_code, reason = "the kernel takes addresses")]
            let sealed = unsafe { ours.seal(&nonce, &aad, plain.as_ptr(), target.as_mut_ptr(), bytes) };
            assert!(target == cipher && sealed == tag, "{bytes} bytes");
            // SAFETY: `cipher` and `target` are vectors of `bytes` each.
            #[expect(unsafe_code, reason = "the kernel takes addresses")]
            let mut open = |tag: &[u8; 16]| unsafe {
                ours.open(&nonce, &aad, tag, cipher.as_ptr(), target.as_mut_ptr(), bytes).is_ok()
            };
            let mut wrong = tag;
            wrong[bytes % 16] ^= 0x80;
            assert!(open(&tag));
            assert!(!open(&wrong));
            assert!(target.iter().all(|&byte| byte == 0), "a refused text leaves zeros");
        }
    }
}
