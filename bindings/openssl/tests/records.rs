// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS 1.2 records as libssl asks for them, against OpenSSL's own provider, in both directions.

mod libcrypto;

use libcrypto::{Cipher, IV_GEN, NAMES, Numbers, SET_IV_FIXED, SET_IV_INV, Session, TLS1_AAD, crypto};

const SALT: [u8; 4] = [1, 2, 3, 4];

fn side(cipher: &Cipher, key: &[u8], seals: bool) -> Session {
    let mut session = cipher.session();
    assert!(session.init(Some(key), None, seals));
    let mut salt = SALT;
    assert_eq!(session.control(SET_IV_FIXED, 4, salt.as_mut_ptr()), 1);
    session
}

fn announce(session: &mut Session, sequence: u64, bytes: usize) -> i32 {
    let mut additional = [0u8; 13];
    additional[..8].copy_from_slice(&sequence.to_be_bytes());
    additional[8..11].copy_from_slice(&[23, 3, 3]);
    additional[11..].copy_from_slice(&(bytes as u16).to_be_bytes());
    session.control(TLS1_AAD, 13, additional.as_mut_ptr())
}

/// A record as libssl has it in its buffer: room for the nonce, payload, room for the tag.
fn seal(session: &mut Session, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut record = [&[0; 8], payload, &[0; 16]].concat();
    assert_eq!(announce(session, sequence, payload.len() + 8), 16);
    assert_eq!(session.update_in_place(&mut record), Some(record.len()));
    record
}

fn open(session: &mut Session, sequence: u64, record: &mut [u8]) -> Option<usize> {
    assert_eq!(announce(session, sequence, record.len()), 16);
    session.update_in_place(record)
}

#[test]
fn records_pass_between_both_providers() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let [theirs, ours] = [c"default", c"memlift"].map(|provider| crypto.cipher(name, provider).unwrap());
        let mut numbers = Numbers(12);
        let key = numbers.bytes(key_bytes);
        for (sealer, opener) in [(&ours, &theirs), (&theirs, &ours), (&ours, &ours)] {
            let mut sealing = side(sealer, &key, true);
            let mut opening = side(opener, &key, false);
            let mut last = None;
            for sequence in 0..100 {
                let payload_bytes = [0, 1, 15, 16, 100, 1000, 4096, 16384][numbers.below(8)];
                let payload = numbers.bytes(payload_bytes);
                let mut record = seal(&mut sealing, sequence, &payload);
                let explicit = u64::from_be_bytes(record[..8].try_into().unwrap());
                assert_eq!(last.map_or(explicit, |last: u64| last.wrapping_add(1)), explicit);
                last = Some(explicit);
                assert_eq!(open(&mut opening, sequence, &mut record), Some(payload_bytes));
                assert_eq!(record[8..8 + payload_bytes], payload);
            }
        }
    }
}

#[test]
fn a_spoiled_record_is_refused_and_leaves_no_plaintext() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let ours = crypto.cipher(name, c"memlift").unwrap();
        let mut numbers = Numbers(13);
        let key = numbers.bytes(key_bytes);
        let payload = numbers.bytes(777);
        let mut sealing = side(&ours, &key, true);
        let mut opening = side(&ours, &key, false);
        for (sequence, spoiled_at) in [0usize, 8, 400, 784, 785, 800].into_iter().enumerate() {
            let mut record = seal(&mut sealing, sequence as u64, &payload);
            let mut good = record.clone();
            record[spoiled_at] ^= 0x10;
            assert_eq!(open(&mut opening, sequence as u64, &mut record), None);
            assert!(record[8..785].iter().all(|byte| *byte == 0), "plaintext of a failed tag");
            assert_eq!(
                open(&mut opening, sequence as u64 + 1, &mut good.clone()),
                None,
                "another place in order"
            );
            assert_eq!(open(&mut opening, sequence as u64, &mut good), Some(777));
            assert_eq!(good[8..785], payload);
        }
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let Some(crypto) = crypto() else { return };
    for provider in [c"default", c"memlift"] {
        let cipher = crypto.cipher(c"AES-128-GCM", provider).unwrap();
        let mut opening = side(&cipher, &[3; 16], false);
        assert!(announce(&mut opening, 0, 23) <= 0, "too short for nonce and tag");
        assert_eq!(announce(&mut opening, 0, 24), 16);
        assert_eq!(opening.update_in_place(&mut [0; 23]), None);
        let mut sealing = side(&cipher, &[3; 16], true);
        assert!(announce(&mut sealing, 0, 7) <= 0);
        let mut five = [0; 5];
        assert!(sealing.control(TLS1_AAD, 5, five.as_mut_ptr()) <= 0);
        assert!(sealing.control(SET_IV_FIXED, 3, five.as_mut_ptr()) <= 0, "too short a fixed field");
        assert!(sealing.control(SET_IV_FIXED, 5, five.as_mut_ptr()) <= 0, "too long a fixed field");
        // Source and target must be one.
        assert_eq!(announce(&mut sealing, 0, 18), 16);
        assert!(sealing.update(&[0; 34]).is_none());
        // Without a fixed field there is no nonce.
        let mut bare = cipher.session();
        assert!(bare.init(Some(&[3; 16]), None, true));
        assert_eq!(announce(&mut bare, 0, 18), 16);
        assert_eq!(bare.update_in_place(&mut [0; 34]), None);
    }
}

/// The calls of programs that cut records themselves: a counted nonce, then plain updates.
#[test]
fn counted_nonces_work_without_records() {
    let Some(crypto) = crypto() else { return };
    let [theirs, ours] =
        [c"default", c"memlift"].map(|provider| crypto.cipher(c"AES-128-GCM", provider).unwrap());
    for (sealer, opener) in [(&ours, &theirs), (&theirs, &ours)] {
        let mut sealing = side(sealer, &[5; 16], true);
        let mut opening = side(opener, &[5; 16], false);
        for round in 0..10u8 {
            let mut explicit = [0u8; 8];
            assert_eq!(sealing.control(IV_GEN, 8, explicit.as_mut_ptr()), 1);
            assert!(sealing.aad(&[round; 13]));
            let sealed = sealing.update(&[round; 100]).unwrap();
            assert!(sealing.finish());
            let tag = sealing.tag(16).unwrap();
            assert_eq!(opening.control(SET_IV_INV, 8, explicit.as_mut_ptr()), 1);
            assert!(opening.set_tag(&tag) && opening.aad(&[round; 13]));
            assert_eq!(opening.update(&sealed).unwrap(), [round; 100]);
            assert!(opening.finish());
        }
        // A whole nonce given at once: length -1. 0 asks for a whole nonce back.
        let mut whole: [u8; 12] = *b"saltnonce\xff\xff\xff";
        for side in [&mut sealing, &mut opening] {
            assert_eq!(side.control(SET_IV_FIXED, -1, whole.as_mut_ptr()), 1);
        }
        let mut given = [0u8; 12];
        assert_eq!(sealing.control(IV_GEN, 0, given.as_mut_ptr()), 1);
        assert_eq!(given, whole);
        assert_eq!(sealing.control(IV_GEN, 12, given.as_mut_ptr()), 1);
        assert_eq!(given, *b"saltnoncf\0\0\0");
    }
}
