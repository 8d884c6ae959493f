// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chains against the same steps one after the other, for every size, alignment and store.

use crate::corpus::{NONCE, SIZES, key, noise, text};
use memlift_ground::config::{Config, Placement, TransformConfig};
use memlift_offload::Engine;
use memlift_transform::{Cache, Chain, Error, Format, Options, Packing, Step, Transform};
use proptest::prelude::*;

const AAD: &[u8] = b"record 7";

pub fn settings(placement: Placement) -> TransformConfig {
    TransformConfig { placement, ..Config::defaults().transform }
}

pub fn transforms() -> Vec<Transform> {
    [Placement::Temporal, Placement::Streaming, Placement::Isolated, Placement::Adaptive]
        .map(|placement| Transform::new(Engine::global(), &settings(placement)))
        .into()
}

/// Ciphertext and tag by one plain call of the routine.
#[expect(unsafe_code, reason = "calls the routine on slices")]
fn sealed(source: &[u8], nonce: &[u8; 12], aad: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let mut target = vec![0; source.len()];
    let key = key();
    // SAFETY: both are of this length.
    let tag = unsafe { key.expanded().seal(nonce, aad, source.as_ptr(), target.as_mut_ptr(), source.len()) };
    (target, tag)
}

#[test]
fn flat_chains_that_keep_the_size_give_what_separate_passes_give() {
    let engine = Engine::global();
    let key = key();
    for transform in transforms() {
        for ordered in [false, true] {
            let options = Options { ordered, ..Options::default() };
            for bytes in SIZES.into_iter().chain([200_001]) {
                for offset in [0, 1, 33] {
                    let room = noise(bytes + 64);
                    let source = &room[offset..offset + bytes];
                    let (cipher, tag) = sealed(source, &NONCE, AAD);
                    let mut target = vec![0xa5; bytes + 65];
                    let chain = Chain::new(&[
                        Step::Crc32c { seed: 3 },
                        Step::Copy,
                        Step::Seal { key: &key, nonce: NONCE, aad: AAD },
                        Step::Crc32c { seed: 0 },
                    ])
                    .unwrap();
                    let done = transform.copy_with(&chain, source, &mut target[1..=bytes], &options).unwrap();
                    assert_eq!((done.read, done.written, done.tag), (bytes, bytes, Some(tag)));
                    assert_eq!(target[1..=bytes], cipher);
                    assert_eq!(done.crc, Some(engine.crc32c(source, 3)));
                    assert_eq!(done.crc_after, Some(engine.crc32c(&cipher, 0)));
                    assert!(target[0] == 0xa5 && target[bytes + 1..].iter().all(|&byte| byte == 0xa5));

                    let open = Step::Open { key: &key, nonce: NONCE, aad: AAD, tag };
                    let chain = Chain::new(&[open, Step::Crc32c { seed: 3 }]).unwrap();
                    let mut plain = vec![0; bytes];
                    let back = transform.copy_with(&chain, &cipher, &mut plain, &options).unwrap();
                    assert_eq!(plain, source);
                    assert_eq!(back.crc, done.crc);

                    let mut copied = vec![0; bytes];
                    let done =
                        transform.copy_with(Step::Crc32c { seed: 3 }, source, &mut copied, &options).unwrap();
                    assert_eq!((done.crc, copied.as_slice()), (back.crc, source));
                    copied.fill(0);
                    transform.copy_with(Step::Copy, source, &mut copied, &options).unwrap();
                    assert_eq!(copied, source);
                }
            }
        }
    }
}

#[test]
fn sealing_and_opening_work_in_place() {
    let key = key();
    for transform in transforms() {
        for bytes in SIZES {
            let plain = text(bytes);
            let mut buffer = plain.clone();
            let place = buffer.as_mut_ptr();
            let options = Options::default();
            let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
            #[expect(unsafe_code, reason = "a slice cannot be source and target at once")]
            // SAFETY: the buffer is this long.
            let done = unsafe {
                transform.copy_raw(seal, (place.cast_const(), bytes), (place, bytes), &options).unwrap()
            };
            assert_eq!((buffer.clone(), done.tag), {
                let (cipher, tag) = sealed(&plain, &NONCE, b"");
                (cipher, Some(tag))
            });
            let place = buffer.as_mut_ptr();
            let open = Step::Open { key: &key, nonce: NONCE, aad: b"", tag: done.tag.unwrap() };
            #[expect(unsafe_code, reason = "a slice cannot be source and target at once")]
            // SAFETY: the buffer is this long.
            unsafe {
                transform.copy_raw(open, (place.cast_const(), bytes), (place, bytes), &options).unwrap()
            };
            assert_eq!(buffer, plain);
        }
    }
}

#[test]
fn packing_chains_are_the_steps_one_after_the_other() {
    let engine = Engine::global();
    let key = key();
    for transform in transforms() {
        for format in Format::ALL.into_iter().filter(|&format| memlift_transform::supported(format)) {
            for source in [text(20_481), noise(4097), Vec::new(), vec![0; 65_536], text(300_000)] {
                let pack = Step::Pack { format, packing: Packing::Default };
                let bound = memlift_transform::bound(format, source.len());
                let mut packed = vec![0; bound];
                let alone = transform.copy(pack, &source, &mut packed).unwrap();
                packed.truncate(alone.written);

                let seal = Step::Seal { key: &key, nonce: NONCE, aad: AAD };
                let chain = Chain::new(&[Step::Crc32c { seed: 0 }, pack, seal]).unwrap();
                let mut target = vec![0; bound];
                let done = transform.copy(&chain, &source, &mut target).unwrap();
                let (cipher, tag) = sealed(&packed, &NONCE, AAD);
                assert_eq!((done.written, done.tag), (cipher.len(), Some(tag)));
                assert_eq!(target[..done.written], cipher);
                assert_eq!(done.crc, Some(engine.crc32c(&source, 0)));

                let mut plain = vec![0; source.len()];
                let back = transform.copy(Step::Unpack { format }, &packed, &mut plain).unwrap();
                assert_eq!((back.read, back.written), (packed.len(), source.len()));
                assert_eq!(plain, source);
                plain.fill(0);
                let open = Step::Open { key: &key, nonce: NONCE, aad: AAD, tag };
                let chain = Chain::new(&[open, Step::Unpack { format }, Step::Crc32c { seed: 0 }]).unwrap();
                match transform.copy(&chain, &cipher, &mut plain) {
                    Ok(back) => assert_eq!((back.crc, &plain), (done.crc, &source)),
                    Err(error) => assert!(matches!(error, Error::Chain(_)) && cipher.len() > 80 * 1024),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn framed_chains_come_back(
        bytes in prop_oneof![0usize..300, 0usize..=5 * 4096 + 1, 60_000usize..200_000],
        pages in 1usize..=16,
        packs in any::<bool>(),
        seals in any::<bool>(),
        checks in any::<bool>(),
        noisy in any::<bool>(),
        cold in any::<bool>(),
        ordered in any::<bool>(),
        which in 0usize..4,
    ) {
        prop_assume!(packs || seals);
        let transform = &transforms()[which];
        let key = key();
        let source = if noisy { noise(bytes) } else { text(bytes) };
        let (mut there, mut back) = (Vec::new(), Vec::new());
        if checks {
            there.push(Step::Crc32c { seed: 11 });
        }
        if packs {
            there.push(Step::Pack { format: Format::Deflate, packing: Packing::Fast });
        }
        if seals {
            there.push(Step::Seal { key: &key, nonce: NONCE, aad: AAD });
            back.push(Step::Open { key: &key, nonce: NONCE, aad: AAD, tag: [0; 16] });
        }
        if packs {
            back.push(Step::Unpack { format: Format::Deflate });
        }
        if checks {
            back.push(Step::Crc32c { seed: 11 });
        }
        let options = Options {
            ordered,
            cache: if cold { Cache::Cold } else { Cache::Auto },
            ..Options::default()
        };
        let chain = Chain::framed(&there, pages * 4096).unwrap();
        let bound = chain.bound(bytes).unwrap();
        let mut target = vec![0xee; bound + 1];
        let done = transform.copy_with(&chain, &source, &mut target[..bound], &options).unwrap();
        prop_assert_eq!(target[bound], 0xee);
        prop_assert_eq!(done.read, bytes);
        prop_assert_eq!(done.crc, checks.then(|| Engine::global().crc32c(&source, 11)));
        if packs && !noisy && bytes > 60_000 && pages > 2 {
            prop_assert!(done.written < bytes / 2, "{} of {bytes}", done.written);
        }
        let frames = &target[..done.written];
        let mut plain = vec![0; bytes];
        let chain = Chain::framed(&back, pages * 4096).unwrap();
        let again = transform.copy_with(&chain, frames, &mut plain, &options).unwrap();
        prop_assert_eq!((again.read, again.written, again.crc), (done.written, bytes, done.crc));
        prop_assert_eq!(plain, source);
    }

    #[test]
    fn any_size_and_alignment_of_up_to_five_pages(
        bytes in 0usize..=5 * 4096 + 1,
        from in 0usize..64,
        to in 0usize..64,
        which in 0usize..4,
    ) {
        let transform = &transforms()[which];
        let key = key();
        let room = text(bytes + 64);
        let source = &room[from..from + bytes];
        let mut target = vec![0x5a; bytes + 130];
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: AAD };
        let done = transform.copy(seal, source, &mut target[to..to + bytes]).unwrap();
        let (cipher, tag) = sealed(source, &NONCE, AAD);
        prop_assert_eq!(&target[to..to + bytes], &cipher[..]);
        prop_assert_eq!(done.tag, Some(tag));
        prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|&byte| byte == 0x5a));
    }
}
