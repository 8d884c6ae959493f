// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bad input: what is refused, with which words, and what it leaves behind.

use crate::chains::transforms;
use crate::corpus::{NONCE, key, noise, text};
use memlift_transform::{Chain, Error, Format, Key, Options, PAGE_BYTES, Packing, Step, compcpy};

#[test]
fn a_wrong_tag_key_nonce_or_aad_leaves_zeros() {
    let (key, other) = (key(), Key::new(&[1; 32]).unwrap());
    for transform in transforms() {
        for bytes in [1, 100, 4096, 70_000, 300_000] {
            let plain = text(bytes);
            let mut cipher = vec![0; bytes];
            let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"a" };
            let tag = transform.copy(seal, &plain, &mut cipher).unwrap().tag.unwrap();
            let mut flipped = cipher.clone();
            flipped[bytes / 2] ^= 1;
            let mut late = tag;
            late[15] ^= 0x80;
            let right = Step::Open { key: &key, nonce: NONCE, aad: b"a", tag };
            let wrong = [
                (&flipped, right),
                (&cipher, Step::Open { key: &key, nonce: NONCE, aad: b"a", tag: late }),
                (&cipher, Step::Open { key: &other, nonce: NONCE, aad: b"a", tag }),
                (&cipher, Step::Open { key: &key, nonce: [0; 12], aad: b"a", tag }),
                (&cipher, Step::Open { key: &key, nonce: NONCE, aad: b"b", tag }),
            ];
            for (source, step) in wrong {
                let mut target = vec![0xcc; bytes + 1];
                let chain = Chain::new(&[step, Step::Crc32c { seed: 0 }]).unwrap();
                let error = transform.copy(&chain, source, &mut target[..bytes]).unwrap_err();
                assert_eq!(error, Error::WrongTag);
                // Nothing was written, or zeros were.
                let untouched = target.iter().all(|&byte| byte == 0xcc);
                assert!(untouched || target[..bytes].iter().all(|&byte| byte == 0));
                assert_eq!(target[bytes], 0xcc);
                for (window, plain) in target.chunks(16).zip(plain.chunks(16)) {
                    assert!(window != plain || plain.len() < 16);
                }
            }
        }
    }
}

#[test]
fn a_bad_block_in_the_middle_leaves_no_plaintext_of_the_message() {
    let key = key();
    for transform in transforms() {
        let plain = text(100_000);
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
        let chain = Chain::framed(&[seal], 8192).unwrap();
        let mut frames = vec![0; chain.bound(plain.len()).unwrap()];
        transform.copy(&chain, &plain, &mut frames).unwrap();
        let middle = frames.len() / 2;
        frames[middle] ^= 4;
        let open = Step::Open { key: &key, nonce: NONCE, aad: b"", tag: [0; 16] };
        let mut target = vec![0; plain.len()];
        let error = transform.copy(Chain::framed(&[open], 8192).unwrap(), &frames, &mut target).unwrap_err();
        assert_eq!(error, Error::WrongTag);
        assert!(target.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn frames_that_are_cut_changed_or_swapped_are_refused_and_nothing_is_written_outside() {
    let key = key();
    let transform = &transforms()[0];
    let plain = text(20_000);
    for seals in [false, true] {
        let pack = Step::Pack { format: Format::Zlib, packing: Packing::Default };
        let unpack = Step::Unpack { format: Format::Zlib };
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"x" };
        let open = Step::Open { key: &key, nonce: NONCE, aad: b"x", tag: [0; 16] };
        let crc = Step::Crc32c { seed: 0 };
        let there: &[Step<'_>] = if seals { &[crc, pack, seal] } else { &[crc, pack] };
        let back: &[Step<'_>] = if seals { &[open, unpack, crc] } else { &[unpack, crc] };
        let (there, back) = (Chain::framed(there, 4096).unwrap(), Chain::framed(back, 4096).unwrap());
        let mut frames = vec![0; there.bound(plain.len()).unwrap()];
        let written = transform.copy(&there, &plain, &mut frames).unwrap().written;
        frames.truncate(written);
        let mut target = vec![0; plain.len() + 1];
        let (end, room) = (plain.len(), &mut target);
        for cut in [0, 1, 63, 64, 80, 95, 96, 200, written / 2, written - 1] {
            room[end] = 0x77;
            let error = transform.copy(&back, &frames[..cut], &mut room[..end]).unwrap_err();
            assert!(matches!(error, Error::Corrupt | Error::WrongTag), "{cut}: {error}");
            assert_eq!(room[end], 0x77);
        }
        // Any single byte: refused, or (a checksum that nobody asked for) the right bytes all the same.
        for at in 0..written {
            let mut changed = frames.clone();
            changed[at] ^= 0x21;
            let result = transform.copy(&back, &changed, &mut room[..end]);
            if result.is_ok() {
                assert!(!seals && room[..end] == plain, "byte {at}");
            }
            assert_eq!(room[end], 0x77);
        }
    }
}

#[test]
fn corrupt_streams_of_every_format_are_refused() {
    for transform in transforms() {
        for format in Format::ALL.into_iter().filter(|&format| memlift_transform::supported(format)) {
            let plain = text(9000);
            let mut packed = vec![0; memlift_transform::bound(format, plain.len())];
            let pack = Step::Pack { format, packing: Packing::Default };
            let written = transform.copy(pack, &plain, &mut packed).unwrap().written;
            let mut target = vec![0; plain.len() + 1];
            let unpack = Step::Unpack { format };
            for cut in [0, 1, written / 2, written - 1] {
                match transform.copy(unpack, &packed[..cut], &mut target[..9000]) {
                    Err(error) => assert_eq!(error, Error::Corrupt, "{} cut at {cut}", format.name()),
                    // An LZ4 block has no end mark: cut between two sequences it is a shorter message.
                    Ok(done) => assert!(format == Format::Lz4 && done.written < 9000),
                }
            }
            let error = transform.copy(unpack, &packed[..written], &mut target[..8999]).unwrap_err();
            assert_eq!(error, Error::UnpackedTooLarge { has: 8999 });
            assert_eq!(target[9000], 0);
        }
    }
}

#[test]
fn too_little_room_is_said_with_the_room_that_suffices() {
    let key = key();
    for transform in transforms() {
        let plain = noise(5000);
        let mut target = vec![0x99; 5001];
        let pack = Step::Pack { format: Format::Gzip, packing: Packing::Default };
        let needed = memlift_transform::bound(Format::Gzip, 5000);
        let error = transform.copy(pack, &plain, &mut target[..5000]).unwrap_err();
        assert_eq!(error, Error::Incompressible { bytes: 5000, has: 5000, needed });
        let error = transform.copy(pack, &plain, &mut target[..10]).unwrap_err();
        assert_eq!(error, Error::TargetTooSmall { needed, has: 10 });
        assert_eq!(target[5000], 0x99);
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
        target.fill(0x99);
        let error = transform.copy(seal, &plain, &mut target[..4999]).unwrap_err();
        assert_eq!(error, Error::TargetTooSmall { needed: 5000, has: 4999 });
        assert!(target.iter().all(|&byte| byte == 0x99));
        let chain = Chain::framed(&[pack, seal], 4096).unwrap();
        let error = transform.copy(&chain, &plain, &mut target).unwrap_err();
        assert_eq!(error, Error::TargetTooSmall { needed: chain.bound(5000).unwrap(), has: 5001 });
        assert!(target.iter().all(|&byte| byte == 0x99));
    }
}

#[test]
fn overlaps_are_refused_before_anything_is_written() {
    let key = key();
    for transform in transforms() {
        let mut buffer = text(10_000);
        let before = buffer.clone();
        let place = buffer.as_mut_ptr();
        let options = Options::default();
        let steps = [
            Step::Copy,
            Step::Seal { key: &key, nonce: NONCE, aad: b"" },
            Step::Pack { format: Format::Zlib, packing: Packing::Default },
        ];
        for step in steps {
            #[expect(unsafe_code, reason = "slices cannot overlap")]
            // SAFETY: both ranges lie in the buffer.
            let result = unsafe {
                let source = (place.cast_const(), 5000);
                transform.copy_raw(step, source, (place.add(4999), 5000), &options)
            };
            assert_eq!(result, Err(Error::Overlap));
        }
        assert_eq!(buffer, before);
    }
}

#[test]
fn chains_that_make_no_sense_say_which_do() {
    let key = key();
    let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
    let pack = Step::Pack { format: Format::Zlib, packing: Packing::Default };
    let crc = Step::Crc32c { seed: 0 };
    for steps in [&[seal, seal][..], &[seal, pack], &[pack, pack], &[crc, crc], &[seal, crc, seal]] {
        assert!(matches!(Chain::new(steps), Err(Error::Chain(_))), "{steps:?}");
    }
    let counted = Step::Seal { key: &key, nonce: [1; 12], aad: b"" };
    for (steps, block) in [(&[seal][..], 5000), (&[seal], 1 << 20), (&[counted], 4096), (&[crc], 4096)] {
        assert!(matches!(Chain::framed(steps, block), Err(Error::Chain(_))), "{steps:?} {block}");
    }
    assert!(matches!(Key::new(b"short").map_err(Error::from), Err(Error::Key(_))));
}

#[repr(align(4096))]
struct Pages([u8; 4 * PAGE_BYTES]);

#[test]
fn compcpy_keeps_the_papers_rules() {
    let key = key();
    let (mut source, mut target) = (Box::new(Pages([7; 4 * 4096])), Box::new(Pages([0; 4 * 4096])));
    source.0[..10_000].copy_from_slice(&text(10_000));
    let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
    let (from, to) = (source.0.as_ptr(), target.0.as_mut_ptr());
    #[expect(unsafe_code, reason = "the call takes addresses")]
    // SAFETY: all ranges lie in the pages.
    unsafe {
        for ordered in [false, true] {
            let done = compcpy(to, from, 10_000, seal, ordered).unwrap();
            let open = Step::Open { key: &key, nonce: NONCE, aad: b"", tag: done.tag.unwrap() };
            let mut back = Box::new(Pages([0; 4 * 4096]));
            compcpy(back.0.as_mut_ptr(), to, 10_000, open, ordered).unwrap();
            assert_eq!(back.0[..10_000], source.0[..10_000]);
        }
        for (to, from, what) in [(to.add(8), from, "target"), (to, from.add(64), "source")] {
            let error = compcpy(to, from, 4096, seal, false).unwrap_err();
            assert!(matches!(error, Error::NotAligned { what: named, align: 4096, .. } if named == what));
        }
        let pack = Step::Pack { format: Format::Deflate, packing: Packing::Default };
        let done = compcpy(to, from, 10_000, pack, true).unwrap();
        assert!(done.written < 5000);
        let random = noise(4096);
        source.0[..4096].copy_from_slice(&random);
        let error = compcpy(to, source.0.as_ptr(), 4096, pack, false).unwrap_err();
        assert!(matches!(error, Error::Incompressible { .. }), "as many pages as the source has: {error}");
    }
}
