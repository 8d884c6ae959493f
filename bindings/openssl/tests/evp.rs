// SPDX-License-Identifier: Apache-2.0 OR MIT
//! EVP with our provider against EVP with OpenSSL's own: the same calls, the same bytes and the same answers.

mod libcrypto;

use libcrypto::{Cipher, Crypto, NAMES, Numbers, Session, crypto};
use std::ffi::CStr;

struct Pair {
    theirs: Cipher,
    ours: Cipher,
}

fn pair(crypto: &'static Crypto, name: &CStr) -> Pair {
    Pair {
        theirs: crypto.cipher(name, c"default").expect("the default provider has AES-GCM"),
        ours: crypto.cipher(name, c"memlift").expect("our provider has AES-GCM"),
    }
}

fn begin(cipher: &Cipher, key: &[u8], iv: &[u8], seals: bool) -> Session {
    let mut session = cipher.session();
    assert!(session.init(None, None, seals));
    if iv.len() != 12 {
        assert!(session.set_iv_bytes(iv.len()));
    }
    assert!(session.init(Some(key), Some(iv), seals));
    assert_eq!(session.iv_bytes() as usize, iv.len());
    session
}

#[test]
fn random_messages_in_random_pieces_are_the_same() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let pair = pair(crypto, name);
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 + key_bytes as u64);
        for round in 0..400 {
            let key = numbers.bytes(key_bytes);
            let iv_bytes = if round % 3 == 0 { 1 + numbers.below(128) } else { 12 };
            let iv = numbers.bytes(iv_bytes);
            let longest = [0, 17, 100, 5000, 70_000][numbers.below(5)];
            let message_bytes = numbers.below(longest + 1);
            let message = numbers.bytes(message_bytes);
            let longest = [1, 6, 40, 3000][numbers.below(4)];
            let aad_bytes = numbers.below(longest);
            let aad = numbers.bytes(aad_bytes);
            let in_place = round % 2 == 0;

            let mut theirs = begin(&pair.theirs, &key, &iv, true);
            let mut ours = begin(&pair.ours, &key, &iv, true);
            for piece in numbers.pieces(&aad, 3) {
                assert!(theirs.aad(piece) && ours.aad(piece));
            }
            let mut sealed = Vec::new();
            for piece in numbers.pieces(&message, 4) {
                let expected = theirs.update(piece).unwrap();
                let made = if in_place {
                    let mut buffer = piece.to_vec();
                    assert_eq!(ours.update_in_place(&mut buffer), Some(buffer.len()));
                    buffer
                } else {
                    ours.update(piece).unwrap()
                };
                assert_eq!(made, expected);
                sealed.extend(made);
            }
            assert!(theirs.finish() && ours.finish());
            let tag = ours.tag(16).unwrap();
            assert_eq!(Some(&tag), theirs.tag(16).as_ref());
            assert_eq!(ours.tag(4).unwrap(), tag[..4]);

            let mut open = begin(&pair.ours, &key, &iv, false);
            for piece in numbers.pieces(&aad, 3) {
                assert!(open.aad(piece));
            }
            assert!(open.set_tag(&tag));
            let mut opened = Vec::new();
            for piece in numbers.pieces(&sealed, 4) {
                opened.extend(open.update(piece).unwrap());
            }
            assert_eq!(opened, message);
            assert!(open.finish());
        }
    }
}

#[test]
fn one_context_serves_many_messages_and_both_directions() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let pair = pair(crypto, name);
        let mut numbers = Numbers(77);
        let key = numbers.bytes(key_bytes);
        let mut theirs = begin(&pair.theirs, &key, &[0; 12], true);
        let mut ours = begin(&pair.ours, &key, &[0; 12], true);
        for _ in 0..50 {
            let iv = numbers.bytes(12);
            let message = numbers.bytes(300);
            assert!(theirs.init(None, Some(&iv), true) && ours.init(None, Some(&iv), true));
            assert!(theirs.aad(b"abc") && ours.aad(b"abc"));
            let sealed = ours.update(&message).unwrap();
            assert_eq!(Some(&sealed), theirs.update(&message).as_ref());
            assert!(theirs.finish() && ours.finish());
            let tag = ours.tag(16).unwrap();
            assert_eq!(Some(&tag), theirs.tag(16).as_ref());
            // The same context opens what it sealed.
            assert!(ours.init(None, Some(&iv), false));
            assert!(ours.set_tag(&tag));
            assert!(ours.aad(b"abc"));
            assert_eq!(ours.update(&sealed).as_ref(), Some(&message));
            assert!(ours.finish());
        }
    }
}

#[test]
fn a_wrong_tag_message_or_aad_fails_at_the_end() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let pair = pair(crypto, name);
        let mut numbers = Numbers(5);
        let (key, iv, message) = (numbers.bytes(key_bytes), numbers.bytes(12), numbers.bytes(1000));
        let mut seal = begin(&pair.ours, &key, &iv, true);
        assert!(seal.aad(b"head"));
        let sealed = seal.update(&message).unwrap();
        assert!(seal.finish());
        let tag = seal.tag(16).unwrap();
        for wrong in 0..4 {
            let (mut sealed, mut tag, mut head) = (sealed.clone(), tag.clone(), *b"head");
            match wrong {
                0 => {}
                1 => sealed[999] ^= 1,
                2 => tag[15] ^= 0x80,
                _ => head[0] ^= 1,
            }
            for cipher in [&pair.ours, &pair.theirs] {
                let mut open = begin(cipher, &key, &iv, false);
                assert!(open.set_tag(&tag));
                assert!(open.aad(&head));
                assert!(open.update(&sealed).is_some());
                assert_eq!(open.finish(), wrong == 0);
                assert!(!open.finish(), "a message ends once");
            }
            // A tag that was cut is compared as far as it goes.
            let mut open = begin(&pair.ours, &key, &iv, false);
            assert!(open.set_tag(&tag[..12]) && open.aad(&head));
            assert!(open.update(&sealed).is_some());
            assert_eq!(open.finish(), wrong == 0 || wrong == 2);
        }
    }
}

#[test]
fn a_copy_goes_on_by_itself() {
    let Some(crypto) = crypto() else { return };
    for (name, key_bytes) in NAMES {
        let pair = pair(crypto, name);
        let mut numbers = Numbers(6);
        let (key, iv) = (numbers.bytes(key_bytes), numbers.bytes(12));
        let (head, left, right) = (numbers.bytes(77), numbers.bytes(501), numbers.bytes(33));
        let mut first = begin(&pair.ours, &key, &iv, true);
        // At every point of a message: before it, after the aad, after some bytes, after the tag.
        let mut copies = vec![first.copy().unwrap()];
        assert!(first.aad(&head));
        copies.push(first.copy().unwrap());
        let mut sealed = first.update(&left).unwrap();
        copies.push(first.copy().unwrap());
        sealed.extend(first.update(&right).unwrap());
        assert!(first.finish());
        copies.push(first.copy().unwrap());
        let tag = first.tag(16).unwrap();
        drop(first);
        for (at, mut copy) in copies.into_iter().enumerate() {
            let mut made = sealed[..if at < 2 { 0 } else { left.len() }].to_vec();
            if at < 1 {
                assert!(copy.aad(&head));
            }
            if at < 2 {
                made.extend(copy.update(&left).unwrap());
            }
            if at < 3 {
                made.extend(copy.update(&right).unwrap());
                assert!(copy.finish());
                assert_eq!(made, sealed);
            } else {
                assert!(copy.update(&right).is_none(), "the nonce is spent in the copy, too");
            }
            assert_eq!(copy.tag(16).unwrap(), tag);
        }
    }
}

/// Calls in any order, sensible or not, get the same answers; where they succeed, the same bytes.
#[test]
fn calls_in_any_order_get_the_same_answers() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-128-GCM");
    let mut numbers = Numbers(0xfeed_beef);
    let mut successes = 0;
    for _ in 0..3000 {
        let mut seals = numbers.below(2) == 0;
        let mut theirs = pair.theirs.session();
        let mut ours = pair.ours.session();
        assert!(theirs.init(None, None, seals) && ours.init(None, None, seals));
        let mut iv_bytes = 12;
        let (mut keyed, mut given) = (false, false);
        // OpenSSL leaves open what follows a failure, additional data after the message or a key in its middle.
        let (mut data, mut begun) = (false, false);
        // OpenSSL 3.0 keeps the tag that it refuses in place of the one it made.
        let mut spoilt = false;
        let mut story = Vec::new();
        for _ in 0..10 {
            // Without a nonce, who seals makes one: then no two are the same.
            let operation = if given { numbers.below(9) } else { [0, 1, 6, 7, 8][numbers.below(5)] };
            let (a, b) = match operation {
                0 if !begun => {
                    let key = numbers.bytes(16);
                    keyed = true;
                    (theirs.init(Some(&key), None, seals), ours.init(Some(&key), None, seals))
                }
                1 => {
                    let iv = numbers.bytes(iv_bytes);
                    (data, begun, given) = (false, false, true);
                    (theirs.init(None, Some(&iv), seals), ours.init(None, Some(&iv), seals))
                }
                2 if !data => {
                    let aad = numbers.bytes(20);
                    let answers = (theirs.aad(&aad), ours.aad(&aad));
                    begun |= answers.0;
                    answers
                }
                3 | 4 => {
                    let bytes = numbers.below(200);
                    let piece = numbers.bytes(bytes);
                    let (a, b) = (theirs.update(&piece), ours.update(&piece));
                    if a.is_some() && bytes > 0 {
                        (data, begun) = (true, true);
                    }
                    assert_eq!(a, b, "{story:?}, then {operation}");
                    (a.is_some(), b.is_some())
                }
                5 => {
                    let answers = (theirs.finish(), ours.finish());
                    if answers.0 {
                        (data, begun, spoilt) = (false, false, false);
                    } else if answers == (false, false) {
                        break;
                    }
                    answers
                }
                6 if !spoilt => {
                    let (a, b) = (theirs.tag(16), ours.tag(16));
                    assert_eq!(a, b, "{story:?}, then {operation}");
                    (a.is_some(), b.is_some())
                }
                7 => {
                    let tag = numbers.bytes(16);
                    spoilt |= seals;
                    (theirs.set_tag(&tag), ours.set_tag(&tag))
                }
                8 if !begun => {
                    let bytes = 1 + numbers.below(30);
                    iv_bytes = bytes;
                    (theirs.set_iv_bytes(bytes), ours.set_iv_bytes(bytes))
                }
                _ => {
                    if !begun && keyed && numbers.below(4) == 0 {
                        seals = !seals;
                        let iv = numbers.bytes(iv_bytes);
                        (theirs.init(None, Some(&iv), seals), ours.init(None, Some(&iv), seals))
                    } else {
                        continue;
                    }
                }
            };
            story.push((operation, a));
            successes += usize::from(a);
            assert_eq!(a, b, "{story:?}: OpenSSL says {a}, we say {b}");
            if !a && matches!(operation, 2..=4) && !keyed {
                continue;
            }
        }
    }
    assert!(successes > 3000, "too few calls succeeded to mean anything: {successes}");
}

#[test]
fn a_nonce_is_made_where_none_is_given_and_never_used_twice() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-256-GCM");
    let key = [9u8; 32];
    let mut ours = pair.ours.session();
    assert!(ours.init(Some(&key), None, true));
    let sealed = ours.update(b"hello").unwrap();
    assert!(ours.finish());
    let tag = ours.tag(16).unwrap();
    let iv = ours.updated_iv(12).unwrap();
    assert_ne!(iv, [0; 12]);
    let mut theirs = begin(&pair.theirs, &key, &iv, false);
    assert!(theirs.set_tag(&tag));
    assert_eq!(theirs.update(&sealed).unwrap(), b"hello");
    assert!(theirs.finish());
    assert!(ours.update(b"again").is_none());
    assert!(!ours.finish());
    // The opening side must be told the nonce.
    let mut open = pair.ours.session();
    assert!(open.init(Some(&key), None, false));
    assert!(open.update(b"hello").is_none());
}

#[test]
fn overlapping_buffers_are_refused() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-128-GCM");
    let mut ours = begin(&pair.ours, &[1; 16], &[2; 12], true);
    let mut buffer = [7u8; 100];
    let address = buffer.as_mut_ptr();
    assert_ne!(ours.raw(address.wrapping_add(1), address, 64), 64);
    assert_eq!(buffer, [7; 100]);
    assert_eq!(ours.raw(address, address, 64), 64);
    assert_ne!(buffer[..64], [7; 64]);
    assert_eq!(buffer[64..], [7; 36]);
}

#[test]
fn errors_have_openssls_reasons() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-128-GCM");
    let mut reasons = [0; 2];
    for (cipher, reason) in [&pair.theirs, &pair.ours].into_iter().zip(&mut reasons) {
        let mut session = cipher.session();
        assert!(session.init(None, None, true));
        crypto.reason();
        assert!(!session.set_tag(&[0; 16]), "who seals makes the tag");
        *reason = crypto.reason();
    }
    assert_ne!(reasons[1], 0);
    // OpenSSL 3.0 calls it an invalid tag, later ones a tag that is not needed.
    assert!(reasons[0] == reasons[1] || reasons == [110, 120], "{reasons:?}");
    let mut open = begin(&pair.ours, &[1; 16], &[2; 12], false);
    assert!(open.update(b"xyz").is_some());
    crypto.reason();
    assert!(!open.finish(), "no tag was given");
    assert_eq!(crypto.reason(), 119);
}

#[test]
fn the_counters_tell_what_was_done() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-128-GCM");
    assert_eq!(crypto.provider_number(c"memlift-serves"), 1);
    let before = crypto.provider_number(c"memlift-sealed-bytes");
    let refused = crypto.provider_number(c"memlift-refused");
    let mut seal = begin(&pair.ours, &[1; 16], &[2; 12], true);
    seal.update(&[0; 1 << 20]).unwrap();
    assert!(seal.finish());
    drop(seal);
    let mut open = begin(&pair.ours, &[1; 16], &[2; 12], false);
    assert!(open.set_tag(&[0; 16]));
    assert!(!open.finish());
    drop(open);
    // Other tests count, too.
    assert!(crypto.provider_number(c"memlift-sealed-bytes") >= before + (1 << 20));
    assert!(crypto.provider_number(c"memlift-refused") > refused);
    assert!(crypto.provider_number(c"memlift-sealed") > 0);
}

#[test]
fn threads_and_forks_go_on_with_their_own_contexts() {
    let Some(crypto) = crypto() else { return };
    let pair = pair(crypto, c"AES-128-GCM");
    let mut numbers = Numbers(3);
    let (key, iv, message) = (numbers.bytes(16), numbers.bytes(12), numbers.bytes(4000));
    let mut theirs = begin(&pair.theirs, &key, &iv, true);
    let mut expected = theirs.update(&message).unwrap();
    expected.extend(theirs.update(&message).unwrap());
    assert!(theirs.finish());
    let tag = theirs.tag(16).unwrap();

    // Fork in the middle of a message: parent and child both finish it.
    let mut ours = begin(&pair.ours, &key, &iv, true);
    let first = ours.update(&message).unwrap();
    assert_eq!(first, expected[..4000]);
    // SAFETY: the child uses what it inherited and leaves by _exit.
    let child = unsafe { libc::fork() };
    let second = ours.update(&message).unwrap();
    let right = second == expected[4000..] && ours.finish() && ours.tag(16).as_ref() == Some(&tag);
    if child == 0 {
        // SAFETY: no destructor of the parent's runs in the child.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child computed something else");
    assert!(right);

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut ours = begin(&pair.ours, &key, &iv, true);
                    let mut made = ours.update(&message).unwrap();
                    made.extend(ours.update(&message).unwrap());
                    assert!(ours.finish());
                    assert_eq!(made, expected);
                    assert_eq!(ours.tag(16).as_ref(), Some(&tag));
                }
            });
        }
    });
}

#[test]
fn it_can_be_loaded_and_closed_again_and_again() {
    let Some(crypto) = crypto() else { return };
    let path = std::ffi::CString::new(libcrypto::provider_path().to_str().unwrap()).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    // SAFETY: a library context of this thread's own; what is made in it is freed before it.
                    unsafe {
                        let context = (crypto.f.OSSL_LIB_CTX_new)();
                        let provider = (crypto.f.OSSL_PROVIDER_load)(context, path.as_ptr());
                        assert!(!provider.is_null());
                        let name = c"AES-128-GCM".as_ptr();
                        let cipher = (crypto.f.EVP_CIPHER_fetch)(context, name, std::ptr::null());
                        assert!(!cipher.is_null());
                        let session = (crypto.f.EVP_CIPHER_CTX_new)();
                        let (key, iv) = ([1u8; 16], [2u8; 12]);
                        let null = std::ptr::null_mut();
                        let done =
                            (crypto.f.EVP_CipherInit_ex)(session, cipher, null, key.as_ptr(), iv.as_ptr(), 1);
                        assert_eq!(done, 1);
                        let (mut buffer, mut written) = ([0u8; 64], 0);
                        let address = buffer.as_mut_ptr();
                        let done = (crypto.f.EVP_CipherUpdate)(session, address, &mut written, address, 64);
                        assert_eq!((done, written), (1, 64));
                        (crypto.f.EVP_CIPHER_CTX_free)(session);
                        (crypto.f.EVP_CIPHER_free)(cipher);
                        assert_eq!((crypto.f.OSSL_PROVIDER_unload)(provider), 1);
                        (crypto.f.OSSL_LIB_CTX_free)(context);
                    }
                }
            })
        })
        .collect();
    // Threads that used it end after it was closed: what they clean up must still be there.
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
