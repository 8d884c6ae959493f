// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages in pieces.

use crate::corpus::{NONCE, key, text};
use memlift_transform::{Error, OpenStream, SealStream, Step, copy};

#[test]
fn pieces_make_the_same_message_as_the_whole() {
    let key = key();
    let plain = text(30_011);
    let mut whole = vec![0; plain.len()];
    let tag =
        copy(Step::Seal { key: &key, nonce: NONCE, aad: b"q" }, &plain, &mut whole).unwrap().tag.unwrap();
    for piece in [1, 7, 16, 1000, 4096, 30_011] {
        let mut seal = SealStream::new(&key, &NONCE, b"q");
        let mut cipher = vec![0; plain.len()];
        for (from, to) in plain.chunks(piece).zip(cipher.chunks_mut(piece)) {
            seal.push(from, to).unwrap();
        }
        assert_eq!((cipher.as_slice(), seal.finish()), (whole.as_slice(), tag), "pieces of {piece}");
        let mut open = OpenStream::new(&key, &NONCE, b"q");
        for (from, plain) in cipher.chunks(piece).zip(plain.chunks(piece)) {
            assert_eq!(open.push(from).unwrap().expose(), plain);
        }
        assert_eq!(open.finish(&tag).unwrap(), plain);
    }
}

#[test]
fn a_wrong_tag_gives_nothing() {
    let key = key();
    let mut open = OpenStream::new(&key, &NONCE, b"");
    assert_eq!(open.push(b"made up").unwrap().bytes(), 7);
    assert_eq!(open.finish(&[0; 16]).unwrap_err(), Error::WrongTag);
    let mut seal = SealStream::new(&key, &NONCE, b"");
    assert_eq!(seal.push(b"four", &mut [0; 3]), Err(Error::TargetTooSmall { needed: 4, has: 3 }));
}
