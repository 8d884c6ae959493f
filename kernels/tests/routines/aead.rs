// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM against an independent implementation (RustCrypto's `aes-gcm`): every length, alignment and order, each way
//! in and every level of instructions; and what is refused.
#![cfg(feature = "aead")]

use aes_gcm::aead::{Aead, KeyInit, Payload};
use memlift_kernels::Isa;
use memlift_kernels::aead::{
    Key, KeyLength, MESSAGE_BYTES_MAX, Refused, Scatter, Stream, TAG_BYTES, WrongTag, tags_equal,
};

/// Seeded random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.next() as u8).collect()
    }
}

/// A message and what the independent implementation makes of it.
struct Message {
    key: Vec<u8>,
    nonce: [u8; 12],
    aad: Vec<u8>,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    tag: [u8; TAG_BYTES],
}

impl Message {
    fn new(random: &mut Random, key_bytes: usize, bytes: usize, aad_bytes: usize) -> Message {
        let (key, nonce) = (random.bytes(key_bytes), random.bytes(12));
        let (aad, plain) = (random.bytes(aad_bytes), random.bytes(bytes));
        let payload = Payload { msg: &plain, aad: &aad };
        let mut sealed = if key_bytes == 16 {
            aes_gcm::Aes128Gcm::new_from_slice(&key).unwrap().encrypt(nonce[..].into(), payload)
        } else {
            aes_gcm::Aes256Gcm::new_from_slice(&key).unwrap().encrypt(nonce[..].into(), payload)
        }
        .unwrap();
        let tag = sealed.split_off(bytes).try_into().unwrap();
        Message { key, nonce: nonce.try_into().unwrap(), aad, plain, sealed, tag }
    }
}

/// A key per level.
fn keys(secret: &[u8]) -> Vec<(Isa, Key)> {
    let prepared = |isa| {
        let key = Key::new(secret).unwrap();
        assert!(key.prepare(isa) && !key.prepare(isa));
        (isa, key)
    };
    Isa::ALL.into_iter().map(prepared).collect()
}

/// Memory with a border that must not change.
struct Bordered {
    memory: Vec<u8>,
    at: usize,
    bytes: usize,
}

const BORDER_BYTES: usize = 64;

impl Bordered {
    /// `bytes` bytes at an address that leaves `offset` when divided by 64.
    fn new(bytes: usize, offset: usize, content: Option<&[u8]>) -> Bordered {
        let mut memory = vec![0xa5; bytes + offset + 3 * BORDER_BYTES];
        let at = BORDER_BYTES + memory.as_ptr().align_offset(64) + offset;
        if let Some(content) = content {
            memory[at..at + bytes].copy_from_slice(content);
        }
        Bordered { memory, at, bytes }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.memory[self.at..].as_mut_ptr()
    }

    #[track_caller]
    fn check(&self, content: &[u8]) {
        let (before, rest) = self.memory.split_at(self.at);
        let (inside, after) = rest.split_at(self.bytes);
        assert!(inside == content);
        assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "the border is as it was");
    }
}

#[test]
fn every_length() {
    let random = &mut Random(1);
    for bytes in (0..=1100).chain([2047, 2304, 4096, 5000, 16384, 70_001]) {
        let aad_bytes = [0, 5, 13, 16, 100][random.below(5)];
        let message = Message::new(random, [16, 32][bytes % 2], bytes, aad_bytes);
        let Message { nonce, aad, plain, sealed, tag, .. } = &message;
        let key = Key::new(&message.key).unwrap();
        assert_eq!(key.key_bytes(), message.key.len());
        let mut target = vec![0; bytes];
        // SAFETY: everything is as long as the message.
        unsafe {
            assert_eq!(key.seal(nonce, aad, plain.as_ptr(), target.as_mut_ptr(), bytes), *tag);
            assert_eq!(target, *sealed);
            // In place.
            assert_eq!(key.open(nonce, aad, tag, target.as_ptr(), target.as_mut_ptr(), bytes), Ok(()));
            assert_eq!(target, *plain);
        }
        for (isa, key) in keys(&message.key) {
            let mut target = vec![0; bytes];
            // SAFETY: everything is as long as the message.
            unsafe {
                let made = key.seal_streaming(nonce, aad, plain.as_ptr(), target.as_mut_ptr(), bytes);
                assert_eq!(made, Ok(*tag), "{bytes} {isa}");
                assert_eq!(target, *sealed, "{bytes} {isa}");
                let verdict =
                    key.open_streaming(nonce, aad, tag, target.as_ptr(), target.as_mut_ptr(), bytes);
                assert_eq!(verdict, Ok(()), "{bytes} {isa}");
                assert_eq!(target, *plain, "{bytes} {isa}");
                let mut scatter = Scatter::seal(&key, nonce, aad);
                assert_eq!(scatter.update(0, target.as_ptr(), target.as_mut_ptr(), bytes), Ok(()));
                assert_eq!(scatter.tag(bytes as u64), Ok(*tag), "{bytes} {isa}");
                assert_eq!(target, *sealed, "{bytes} {isa}");
                let verdict = key.open(nonce, aad, tag, target.as_ptr(), target.as_mut_ptr(), bytes);
                assert_eq!((verdict, &target), (Ok(()), plain), "{bytes} {isa}");
                assert_eq!(key.seal(nonce, aad, plain.as_ptr(), target.as_mut_ptr(), bytes), *tag);
                assert_eq!(target, *sealed, "{bytes} {isa}");
            }
        }
    }
}

#[test]
fn every_alignment() {
    let random = &mut Random(2);
    for bytes in [1, 16, 63, 64, 127, 300, 577, 4096] {
        let message = Message::new(random, 16, bytes, 13);
        let Message { nonce, aad, plain, sealed, tag, .. } = &message;
        let keys = keys(&message.key);
        for offset in 0..64 {
            let mut source = Bordered::new(bytes, random.below(64), Some(plain));
            let source_pointer = source.pointer();
            for (isa, key) in &keys {
                let mut target = Bordered::new(bytes, offset, None);
                let pointer = target.pointer();
                // SAFETY: everything is as long as the message.
                unsafe {
                    assert_eq!(key.seal(nonce, aad, source_pointer, pointer, bytes), *tag);
                    target.check(sealed);
                    pointer.write_bytes(0, bytes);
                    let made = key.seal_streaming(nonce, aad, source_pointer, pointer, bytes);
                    assert_eq!(made, Ok(*tag), "{bytes} at {offset} {isa}");
                    target.check(sealed);
                    assert_eq!(key.open_streaming(nonce, aad, tag, pointer, pointer, bytes), Ok(()));
                    target.check(plain);
                    let mut scatter = Scatter::seal(key, nonce, aad);
                    pointer.write_bytes(0, bytes);
                    assert_eq!(scatter.update(0, source_pointer, pointer, bytes), Ok(()));
                    assert_eq!(scatter.tag(bytes as u64), Ok(*tag), "{bytes} at {offset} {isa}");
                    target.check(sealed);
                }
            }
            source.check(plain);
        }
    }
}

#[test]
fn streams_of_any_pieces() {
    let first = Message::new(&mut Random(3), 32, 0, 0);
    let key = Key::new(&first.key).unwrap();
    pieces_through(&first.key, Stream::seal(&key, &[9; 99]), Stream::open(&key, &[8]));
    for isa in Isa::ALL {
        let [mut sealing, mut opening] =
            [true, false].map(|seals| Stream::up_to(&[5; 32], seals, isa).unwrap());
        // A second key in the same memory.
        sealing.restart(&[1; 12]);
        sealing.aad(b"of the first key");
        assert_eq!(sealing.rekey(&[1; 16]), Err(KeyLength { bytes: 16 }));
        sealing.rekey(&first.key).unwrap();
        opening.rekey(&first.key).unwrap();
        pieces_through(&first.key, sealing, opening);
    }
}

/// Every length in any pieces through two streams of one key.
fn pieces_through(secret: &[u8], mut sealing: Stream, mut opening: Stream) {
    let random = &mut Random(3);
    let key = Key::new(secret).unwrap();
    let pieces = |random: &mut Random, bytes: usize| {
        let mut cuts: Vec<usize> =
            (0..random.below(6)).map(|_| random.below(bytes + 1)).chain([0, bytes]).collect();
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect::<Vec<_>>()
    };
    for bytes in (0..=600).chain([4096, 16384, 33_333]) {
        let aad_bytes = random.below(70);
        let mut message = Message::new(random, 32, bytes, aad_bytes);
        // The same key for all, so that the streams go on.
        message.key = secret.to_vec();
        let Message { nonce, aad, plain, .. } = &message;
        let mut sealed = vec![0; bytes];
        // SAFETY: as long as the message.
        let tag = unsafe { key.seal(nonce, aad, plain.as_ptr(), sealed.as_mut_ptr(), bytes) };
        for (stream, source, result) in [(&mut sealing, plain, &sealed), (&mut opening, &sealed, plain)] {
            stream.restart(nonce);
            for piece in pieces(random, aad_bytes) {
                stream.aad(&aad[piece]);
                // No message yet.
                // SAFETY: no bytes.
                unsafe { stream.update(core::ptr::dangling(), core::ptr::dangling_mut(), 0) };
            }
            let mut target = source.clone();
            let mut copy = None;
            for piece in pieces(random, bytes) {
                let in_place = target[piece.clone()].as_mut_ptr();
                // SAFETY: the piece is inside.
                unsafe { stream.update(in_place, in_place, piece.len()) };
                if copy.is_none() {
                    copy = Some((stream.clone(), piece.end));
                }
            }
            assert_eq!((stream.tag(), stream.tag()), (tag, tag), "{bytes}");
            assert_eq!(target, *result, "{bytes}");
            // A clone goes on from where it was made.
            let (mut copy, at) = copy.unwrap();
            let mut rest = source[at..].to_vec();
            // SAFETY: in place.
            unsafe { copy.update(rest.as_ptr(), rest.as_mut_ptr(), rest.len()) };
            assert_eq!((rest, copy.finish()), (result[at..].to_vec(), tag), "{bytes}");
        }
    }
    // Out of order.
    let mut byte = 0u8;
    let byte = &raw mut byte;
    assert_eq!(sealing.try_aad(b"late"), Err(Refused::Order));
    // SAFETY: one byte.
    assert_eq!(unsafe { sealing.try_update(byte, byte, 1) }, Err(Refused::Order));
    sealing.restart(&[1; 12]);
    // SAFETY: one byte.
    assert_eq!(unsafe { sealing.try_update(byte, byte, 1) }, Ok(()));
    assert_eq!(sealing.try_aad(b"late"), Err(Refused::Order));
}

/// Ranges that begin at multiples of 16 and together are the message, in any order.
fn ranges(random: &mut Random, bytes: usize) -> Vec<(usize, usize)> {
    let blocks = bytes.div_ceil(16);
    let mut cuts: Vec<usize> = (0..random.below(12)).map(|_| 16 * random.below(blocks.max(1))).collect();
    if random.below(4) == 0 {
        cuts = (0..blocks).step_by(4).map(|block| 16 * block).collect();
    }
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut ranges: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1].min(bytes) - pair[0])).collect();
    for i in (1..ranges.len()).rev() {
        ranges.swap(i, random.below(i + 1));
    }
    ranges
}

#[test]
fn ranges_in_any_order() {
    let random = &mut Random(4);
    for bytes in (0..=520).chain([1000, 1500, 4096, 16384, 65536, 70_001, 1_200_000]) {
        let aad_bytes = random.below(40);
        let message = Message::new(random, [32, 16][bytes % 2], bytes, aad_bytes);
        let Message { nonce, aad, plain, sealed, tag, .. } = &message;
        for (isa, key) in keys(&message.key) {
            let mut scatter = Scatter::seal(&key, &[7; 12], b"another message");
            // SAFETY: one byte.
            unsafe { scatter.update(160, plain.as_ptr(), [0].as_mut_ptr(), 1.min(bytes)) }.unwrap();
            scatter.restart(nonce, aad);
            let mut target = vec![0; bytes];
            for (at, bytes) in ranges(random, bytes) {
                // SAFETY: the range is inside.
                unsafe { scatter.update(at as u64, plain[at..].as_ptr(), target[at..].as_mut_ptr(), bytes) }
                    .unwrap();
            }
            assert_eq!(scatter.tag(bytes as u64), Ok(*tag), "{bytes} {isa}");
            assert_eq!(target, *sealed, "{bytes} {isa}");
            // In place, and back.
            let mut opening = Scatter::open(&key, nonce, aad);
            for (at, bytes) in ranges(random, bytes) {
                let in_place = target[at..].as_mut_ptr();
                // SAFETY: the range is inside.
                unsafe { opening.update(at as u64, in_place, in_place, bytes) }.unwrap();
            }
            assert!(tags_equal(&opening.tag(bytes as u64).unwrap(), tag), "{bytes} {isa}");
            assert_eq!(target, *plain, "{bytes} {isa}");
        }
    }
}

#[test]
fn ranges_that_are_refused() {
    let key = Key::new(&[1; 16]).unwrap();
    let mut scatter = Scatter::seal(&key, &[2; 12], &[]);
    let mut memory = [3u8; 256];
    let pointer = memory.as_mut_ptr();
    let mut update = |at: u64, bytes: usize, shift: usize| {
        // SAFETY: at most 192 bytes, moved by at most 64.
        unsafe { scatter.update(at, pointer, pointer.add(shift), bytes) }
    };
    assert_eq!(update(8, 16, 0), Err(Refused::Misaligned));
    assert_eq!(update(32, 16, 0), Ok(()));
    assert_eq!(update(32, 16, 0), Err(Refused::Repeated));
    assert_eq!(update(16, 17, 0), Err(Refused::Repeated));
    assert_eq!(update(0, 48, 16), Err(Refused::Overlap));
    assert_eq!(update(0, 32, 32), Ok(()));
    assert_eq!(update(48, 20, 64), Ok(()));
    assert_eq!(update(64, 16, 64), Err(Refused::Repeated), "four bytes of it came");
    assert_eq!(update(MESSAGE_BYTES_MAX - 16, 17, 0), Err(Refused::TooLong));
    assert_eq!(update(u64::MAX - 15, 1, 0), Err(Refused::TooLong));
    for bytes in [0, 48, 67, 69, 80] {
        assert_eq!(scatter.tag(bytes), Err(Refused::Missing), "{bytes}");
    }
    assert!(scatter.tag(68).is_ok());
    // The last bytes that GCM has counters for.
    // SAFETY: 16 bytes.
    assert_eq!(unsafe { scatter.update(MESSAGE_BYTES_MAX - 16, pointer, pointer, 16) }, Ok(()));
    assert_eq!(scatter.tag(68), Err(Refused::Missing));
}

#[test]
fn wrong_tags_leave_zeros() {
    let random = &mut Random(5);
    for bytes in [1, 100, 5000] {
        let message = Message::new(random, 16, bytes, 20);
        let Message { nonce, aad, sealed, tag, .. } = &message;
        for (_, key) in keys(&message.key) {
            for bit in 0..8 * TAG_BYTES {
                let mut wrong = *tag;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!tags_equal(tag, &wrong));
                for streaming in [false, true] {
                    let mut target = Bordered::new(bytes, bit % 64, Some(sealed));
                    let pointer = target.pointer();
                    // SAFETY: as long as the message, in place.
                    let verdict = unsafe {
                        if streaming {
                            key.open_streaming(nonce, aad, &wrong, pointer, pointer, bytes)
                        } else {
                            key.open(nonce, aad, &wrong, pointer, pointer, bytes)
                        }
                    };
                    assert_eq!(verdict, Err(WrongTag));
                    target.check(&vec![0; bytes]);
                }
            }
            // Any bit of what the tag is over.
            for bit in 0..8 * bytes.min(20) {
                let mut changed = sealed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let target = changed.as_mut_ptr();
                // SAFETY: as long as the message, in place.
                let verdict = unsafe { key.open_streaming(nonce, aad, tag, target, target, bytes) };
                assert_eq!(verdict, Err(WrongTag));
                let mut other_aad = aad.clone();
                other_aad[bit / 8] ^= 1 << (bit % 8);
                changed.clone_from(sealed);
                // SAFETY: as long as the message, in place.
                let verdict = unsafe {
                    key.open(nonce, &other_aad, tag, changed.as_ptr(), changed.as_mut_ptr(), bytes)
                };
                assert_eq!(verdict, Err(WrongTag));
            }
        }
    }
    assert!(tags_equal(&[], &[]) && !tags_equal(&[0; 16], &[0; 12]));
}

#[test]
fn overlaps_and_lengths_that_are_refused() {
    for bytes in (0..70).filter(|bytes| ![16, 32].contains(bytes)) {
        assert_eq!(Key::new(&vec![0; bytes]).err().map(|wrong| wrong.bytes), Some(bytes));
    }
    let mut memory = [9u8; 200];
    let before = memory;
    let pointer = memory.as_mut_ptr();
    for (isa, key) in keys(&[1; 32]) {
        let mut stream = Stream::seal(&key, &[2; 12]);
        for (from, to) in [(0, 1), (1, 0), (0, 99), (99, 0)] {
            // SAFETY: 100 bytes each, inside.
            unsafe {
                let (source, target) = (pointer.add(from), pointer.add(to));
                assert_eq!(key.try_seal(&[0; 12], &[], source, target, 100), Err(Refused::Overlap));
                assert_eq!(
                    key.seal_streaming(&[0; 12], &[], source, target, 100),
                    Err(Refused::Overlap),
                    "{isa}"
                );
                assert_eq!(stream.try_update(source, target, 100), Err(Refused::Overlap));
            }
        }
        // Refused before a byte is touched, so no memory of that length is needed.
        let bytes = MESSAGE_BYTES_MAX as usize + 1;
        // SAFETY: nothing is read or written.
        unsafe {
            let source = core::ptr::null();
            let target = core::ptr::null_mut();
            assert_eq!(key.try_seal(&[0; 12], &[], source, target, bytes), Err(Refused::TooLong));
            assert_eq!(key.seal_streaming(&[0; 12], &[], source, target, bytes), Err(Refused::TooLong));
            assert_eq!(stream.try_update(pointer, pointer, 1), Ok(()));
            assert_eq!(stream.try_update(source, target, bytes - 1), Err(Refused::TooLong));
            pointer.write(9);
            assert_eq!(stream.try_update(pointer, pointer.add(100), 0), Ok(()));
        }
    }
    assert_eq!(memory, before);
    // A message that could not have been sealed cannot be opened.
    let key = Key::new(&[1; 32]).unwrap();
    let pointer = memory.as_mut_ptr();
    // SAFETY: 100 bytes each, inside.
    assert_eq!(unsafe { key.open(&[0; 12], &[], &[0; 16], pointer, pointer.add(1), 100) }, Err(WrongTag));
    assert!(memory[1..101] == [0; 100] && memory[101..] == before[101..]);
}

#[test]
fn one_key_in_many_threads() {
    let message = &Message::new(&mut Random(6), 16, 10_000, 13);
    let key = &Key::new(&message.key).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..50 {
                    let Message { nonce, aad, plain, sealed, tag, .. } = message;
                    let mut target = vec![0; plain.len()];
                    let pointer = target.as_mut_ptr();
                    // SAFETY: as long as the message.
                    unsafe {
                        assert_eq!(key.seal(nonce, aad, plain.as_ptr(), pointer, plain.len()), *tag);
                        assert_eq!(key.open(nonce, aad, tag, pointer, pointer, plain.len()), Ok(()));
                        let made = key.seal_streaming(nonce, aad, plain.as_ptr(), pointer, plain.len());
                        assert_eq!(made, Ok(*tag));
                    }
                    assert_eq!(target, *sealed);
                }
            });
        }
    });
}

#[test]
fn secrets_are_not_printed() {
    let key = Key::new(&[0xab; 16]).unwrap();
    let texts = [
        format!("{key:?}"),
        format!("{:?}", Stream::seal(&key, &[1; 12])),
        format!("{:?}", Scatter::seal(&key, &[1; 12], &[])),
    ];
    for text in texts {
        assert!(!text.contains("171") && !text.contains("ab, ab"), "{text}");
    }
}

/// 4 GiB and 68 bytes: a source of zeros that all are one page, a target that is the same 2 MiB over and over.
#[cfg(target_os = "linux")]
#[test]
fn messages_of_more_than_4_gib() {
    const FRAME_BYTES: usize = 2 << 20;
    let bytes = (4usize << 30) + 68;
    let mapped_bytes = bytes.next_multiple_of(FRAME_BYTES);
    // SAFETY: fresh mappings, checked; the frames are put over a reservation of ours.
    let (source, target) = unsafe {
        let map = |at: *mut libc::c_void, bytes: usize, protection: i32, flags: i32, file: i32| {
            let address = libc::mmap(at, bytes, protection, flags | libc::MAP_NORESERVE, file, 0);
            assert_ne!(address, libc::MAP_FAILED);
            address.cast::<u8>()
        };
        let nowhere = core::ptr::null_mut();
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let source = map(nowhere, mapped_bytes, libc::PROT_READ, private, -1);
        let target = map(nowhere, mapped_bytes, libc::PROT_NONE, private, -1);
        let file = libc::memfd_create(c"frame".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, FRAME_BYTES as i64) == 0);
        for at in (0..mapped_bytes).step_by(FRAME_BYTES) {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            map(target.add(at).cast(), FRAME_BYTES, writable, libc::MAP_SHARED | libc::MAP_FIXED, file);
        }
        libc::close(file);
        (source, target)
    };
    let key = Key::new(&[3; 16]).unwrap();
    let mut stream = Stream::seal(&key, &[4; 12]);
    // SAFETY: both are mapped for the message's length and longer.
    let tags = unsafe {
        stream.update(source, target, bytes);
        let last = core::slice::from_raw_parts(target.add(bytes - 68), 68).to_vec();
        target.write_bytes(0, 100);
        let streaming = key.seal_streaming(&[4; 12], &[], source, target, bytes).unwrap();
        assert_eq!(core::slice::from_raw_parts(target.add(bytes - 68), 68), last);
        // Far places are the same in any order.
        let mut scatter = Scatter::seal(&key, &[4; 12], &[]);
        let cut = (4u64 << 30) - 16;
        scatter.update(cut, source, target, 84).unwrap();
        assert_eq!(core::slice::from_raw_parts(target.add(16), 68), last);
        [stream.finish(), streaming, key.seal(&[4; 12], &[], source, target, bytes)]
    };
    // SAFETY: nothing refers to the mappings any more.
    unsafe {
        libc::munmap(source.cast(), mapped_bytes);
        libc::munmap(target.cast(), mapped_bytes);
    }
    assert_eq!(tags, [tags[0]; 3]);
}
