// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM at any message in any order, against the model; and at hostile ciphertext, which never opens.
//!
//! - **Layout** key's length u8 · key · nonce · additional data: length u16 · way u8 · place of a change u16 · bit u8 · message up to
//!   4 KiB

use crate::mutate::{Random, messages};
use crate::{Guarded, Input};
use memlift_kernels::aead::{Key, Scatter, Stream, WrongTag};
use memlift_model::naive;

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut key_bytes = vec![0; input.pick(&[16, 32])];
    for byte in &mut key_bytes {
        *byte = input.byte();
    }
    let nonce: [u8; 12] = std::array::from_fn(|_| input.byte());
    let aad = input.piece(200);
    let (way, place, bit) = (input.byte(), input.word(), input.byte());
    let plain = input.take(4096);
    let key = Key::new(&key_bytes).expect("a length that there is");
    let (cipher, tag) = naive::gcm(true, &key_bytes, &nonce, aad, plain);
    let bytes = plain.len();

    let mut target = Guarded::new(bytes, 0);
    // SAFETY: for all of it: both sides have as many bytes as are said, and are apart or equal.
    unsafe {
        let made = match way % 4 {
            0 => key.seal(&nonce, aad, plain.as_ptr(), target.get().as_mut_ptr(), bytes),
            1 => {
                target.get().copy_from_slice(plain);
                let place = target.get().as_mut_ptr();
                key.seal(&nonce, aad, place, place, bytes)
            }
            2 => streamed(&key, &nonce, aad, plain, target.get(), place),
            _ => scattered(&key, &nonce, aad, plain, target.get(), place),
        };
        assert_eq!(made, tag);
        assert!(target.checked() == cipher, "another ciphertext");

        let mut opened = Guarded::new(bytes, 0x22);
        let to = opened.get().as_mut_ptr();
        assert_eq!(key.open(&nonce, aad, &tag, cipher.as_ptr(), to, bytes), Ok(()));
        assert!(opened.checked() == plain);
    }
    hostile(&key, &nonce, aad, (&cipher, tag), place, bit);
}

/// Changes one bit of ciphertext, tag, nonce or additional data.
fn hostile(
    key: &Key,
    nonce: &[u8; 12],
    aad: &[u8],
    (cipher, mut tag): (&[u8], [u8; 16]),
    place: usize,
    bit: u8,
) {
    let (mut cipher, mut nonce, mut aad) = (cipher.to_vec(), *nonce, aad.to_vec());
    let mut all: Vec<&mut u8> = cipher.iter_mut().chain(&mut tag).chain(&mut nonce).chain(&mut aad).collect();
    let places = all.len();
    *all[place % places] ^= 1 << (bit % 8);
    let mut target = Guarded::new(cipher.len(), 0x33);
    let to = target.get().as_mut_ptr();
    // SAFETY: both have as many bytes.
    let opened = unsafe { key.open(&nonce, &aad, &tag, cipher.as_ptr(), to, cipher.len()) };
    assert_eq!(opened, Err(WrongTag));
    assert!(target.checked().iter().all(|&byte| byte == 0), "something of the plaintext stays");
}

/// In order, in pieces.
unsafe fn streamed(
    key: &Key,
    nonce: &[u8],
    aad: &[u8],
    plain: &[u8],
    target: &mut [u8],
    seed: usize,
) -> [u8; 16] {
    let mut random = Random(seed as u64);
    let mut stream = Stream::seal(key, nonce);
    let cut = random.below(aad.len() + 1);
    stream.aad(&aad[..cut]);
    stream.aad(&aad[cut..]);
    let mut done = 0;
    while done < plain.len() {
        let part = (1 + random.below(300)).min(plain.len() - done);
        // SAFETY: the part lies in both.
        unsafe { stream.update(plain[done..].as_ptr(), target[done..].as_mut_ptr(), part) };
        done += part;
    }
    stream.finish()
}

/// In any order, in pieces that begin at multiples of 16.
unsafe fn scattered(
    key: &Key,
    nonce: &[u8; 12],
    aad: &[u8],
    plain: &[u8],
    target: &mut [u8],
    seed: usize,
) -> [u8; 16] {
    let mut random = Random(seed as u64);
    let mut ranges = Vec::new();
    let mut begin = 0;
    while begin < plain.len() {
        let end = (begin + 16 * (1 + random.below(20))).min(plain.len());
        ranges.insert(random.below(ranges.len() + 1), begin..end);
        begin = end;
    }
    let mut scatter = Scatter::seal(key, nonce, aad);
    for range in ranges {
        let (from, to) = (plain[range.start..].as_ptr(), target[range.start..].as_mut_ptr());
        // SAFETY: the range lies in both.
        let taken = unsafe { scatter.update(range.start as u64, from, to, range.len()) };
        taken.expect("ranges that do not overlap are taken");
    }
    scatter.tag(plain.len() as u64).expect("everything was given")
}

/// Messages behind a key.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, message) in messages().into_iter().enumerate() {
        for way in 0..4 {
            let front = [
                vec![number as u8],
                vec![9; 44 + 16 * (number % 2) - 16],
                vec![5, 0, 1, 2, 3, 4, 5, way, 7, 0, 1],
            ];
            seeds.push([front.concat(), message.clone()].concat());
        }
    }
    seeds
}
