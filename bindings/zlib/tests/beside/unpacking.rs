// SPDX-License-Identifier: Apache-2.0 OR MIT
//! inflate and uncompress, on ours and on the system's libz: the same verdict on good, cut and corrupt streams, and the
//! same bytes.

use crate::both;
use crate::both::{Libz, deflate_init, empty, ours, sample, system, unpack};
use libz_rs_sys::{Z_FINISH, Z_OK, Z_STREAM_END};
use proptest::prelude::*;
use std::ffi::c_ulong;

fn pack(libz: &Libz, level: i32, bits: i32, message: &[u8]) -> Vec<u8> {
    let mut strm = empty();
    assert_eq!(deflate_init(libz, &mut strm, level, bits, 8, 0), Z_OK);
    let mut packed = vec![0; message.len() + message.len() / 8 + 100];
    (strm.next_in, strm.avail_in) = (message.as_ptr(), message.len() as u32);
    (strm.next_out, strm.avail_out) = (packed.as_mut_ptr(), packed.len() as u32);
    // SAFETY: the stream is initialized, its buffers are set.
    unsafe {
        assert_eq!((libz.deflate)(&mut *strm, Z_FINISH), Z_STREAM_END);
        assert_eq!((libz.deflateEnd)(&mut *strm), Z_OK);
    }
    packed.truncate(strm.total_out as usize);
    packed
}

/// Programs unpack in place: the packed bytes lie so far behind the start of the message that the output never overtakes them.
#[test]
fn in_place_works_as_with_zlib() {
    let mut random = both::Random(7);
    for case in 0..100 {
        let mut message = Vec::new();
        while message.len() < 6000 + case {
            // Packing gains little, so the output comes near to the input.
            match random.below(8) {
                0 => message.extend_from_slice(random.pick(&[&b" of the"[..], b" and ", b"\n\tGET"])),
                _ => message.extend([random.number() as u8 & 127, random.number() as u8 & 127]),
            }
        }
        for libz in [Some(ours()), system()].into_iter().flatten() {
            let packed = pack(&libz, 9, 15, &message);
            let mut memory = vec![0u8; message.len() + 1000];
            let start = message.len() + 10 - packed.len();
            memory[start..][..packed.len()].copy_from_slice(&packed);
            let mut strm = empty();
            assert_eq!(both::inflate_init(&libz, &mut strm, 15), Z_OK);
            let base = memory.as_mut_ptr();
            (strm.next_in, strm.avail_in) = (base.wrapping_add(start), packed.len() as u32);
            (strm.next_out, strm.avail_out) = (base, memory.len() as u32);
            // SAFETY: the stream is initialized, input and output lie in the vector.
            unsafe {
                assert_eq!((libz.inflate)(&mut *strm, Z_FINISH), Z_STREAM_END, "case {case}");
                assert_eq!((libz.inflateEnd)(&mut *strm), Z_OK);
            }
            assert!(memory[..message.len()] == message, "case {case}");
        }
    }
}

/// Programs that know how long a message is say that there is room without end: nothing behind the message is touched.
#[test]
fn room_that_is_not_there_is_not_touched() {
    let line = |number: usize| format!("10:{:02} GET /item/{} 200 us\n", number % 60, number * 7919 % 99_991);
    let message = (0..9000).map(line).collect::<String>().into_bytes();
    let page = 4096;
    let pages = message.len().next_multiple_of(page);
    for libz in [Some(ours()), system()].into_iter().flatten() {
        let packed = pack(&libz, 6, 15, &message);
        let mut strm = empty();
        assert_eq!(both::inflate_init(&libz, &mut strm, 15), Z_OK);
        // SAFETY: new memory, whose last page nobody may touch; the message ends before that page. The stream is initialized.
        unsafe {
            let (read, shared) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let base = libc::mmap(std::ptr::null_mut(), pages + page, read, shared, -1, 0).cast::<u8>();
            assert!(!base.cast::<libc::c_void>().eq(&libc::MAP_FAILED));
            assert_eq!(libc::mprotect(base.add(pages).cast(), page, libc::PROT_NONE), 0);
            let target = base.add(pages - message.len());
            (strm.next_in, strm.avail_in) = (packed.as_ptr(), packed.len() as u32);
            (strm.next_out, strm.avail_out) = (target, u32::MAX);
            assert_eq!((libz.inflate)(&mut *strm, Z_FINISH), Z_STREAM_END);
            assert_eq!((libz.inflateEnd)(&mut *strm), Z_OK);
            assert!(std::slice::from_raw_parts(target, message.len()) == message);
            assert_eq!(libc::munmap(base.cast(), pages + page), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_verdict_is_the_same(
        level in 0..10i32, bits in prop_oneof![Just(15), Just(31), Just(-15), 9..16i32, 25..32i32],
        read_bits in prop_oneof![3 => Just(None), 1 => Just(Some(47)), 1 => (9..16i32).prop_map(Some)],
        bytes in prop_oneof![0usize..3000, 0usize..200_000],
        change in prop_oneof![2 => Just(None), 1 => (any::<prop::sample::Index>(), 1u8..).prop_map(Some)],
        cut in prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
        trailing in 0usize..20,
        step in prop_oneof![2 => Just(usize::MAX), 1 => 1usize..5000],
        room in prop_oneof![1 => Just(0), 1 => 1usize..100, 2 => 1usize..40_000],
        flush in prop_oneof![2 => Just(Z_FINISH), 1 => Just(2), 1 => Just(0)], seed: u64,
    ) {
        let Some(theirs) = system() else { return Ok(()) };
        let message = sample(bytes, seed);
        let mut packed = pack(&theirs, level, bits, &message);
        let end = packed.len();
        packed.extend(std::iter::repeat_n(0xa5, trailing));
        if let Some((place, difference)) = &change {
            let place = place.index(packed.len());
            packed[place] ^= difference;
        }
        if let Some(place) = &cut {
            packed.truncate(place.index(packed.len() + 1));
        }
        let read_bits = read_bits.unwrap_or(bits);
        let room = if room == 0 { bytes + 1 } else { room };
        let got = unpack(&ours(), read_bits, &packed, &[], step, room, flush);
        let expected = unpack(&theirs, read_bits, &packed, &[], step, room, flush);
        prop_assert_eq!(got.0, expected.0);
        if got.0 == Z_STREAM_END {
            prop_assert_eq!(got.2, expected.2);
            prop_assert!(got.1 == expected.1);
        } else {
            let both = got.1.len().min(expected.1.len());
            prop_assert!(got.1[..both] == expected.1[..both]);
        }
        if change.is_none() && cut.is_none() && read_bits == bits {
            prop_assert_eq!((got.0, got.2), (Z_STREAM_END, end));
            prop_assert!(got.1 == message);
        }
    }

    #[test]
    fn whole_buffers_too(
        level in -1..10i32, bytes in prop_oneof![0usize..3000, 0usize..200_000], short in 0usize..3,
        change in prop_oneof![2 => Just(None), 1 => (any::<prop::sample::Index>(), 1u8..).prop_map(Some)], seed: u64,
    ) {
        let Some(theirs) = system() else { return Ok(()) };
        let ours = ours();
        let message = sample(bytes, seed);
        // SAFETY: pointers and lengths are those of the vectors.
        unsafe {
            let bound = (ours.compressBound)(bytes as c_ulong);
            prop_assert_eq!(bound, (theirs.compressBound)(bytes as c_ulong));
            let (mut packed, mut length) = (vec![0; bound as usize], bound);
            prop_assert_eq!((ours.compress2)(packed.as_mut_ptr(), &mut length, message.as_ptr(), bytes as c_ulong, level), Z_OK);
            packed.truncate(length as usize);
            if let Some((place, difference)) = &change {
                let place = place.index(packed.len());
                packed[place] ^= difference;
            }
            let results = [ours, theirs].map(|libz| {
                let room = bytes.saturating_sub(short);
                let (mut out, mut written, mut read) = (vec![0; room + 1], room as c_ulong, packed.len() as c_ulong);
                let code = (libz.uncompress2)(out.as_mut_ptr(), &mut written, packed.as_ptr(), &mut read);
                out.truncate(written as usize);
                (code, (code == Z_OK).then_some((out, read)))
            });
            prop_assert!(results[0] == results[1], "{} {}", results[0].0, results[1].0);
            if change.is_none() && (short == 0 || bytes == 0) {
                prop_assert_eq!(results[0].0, Z_OK);
            }
            let sums = [ours, theirs].map(|libz| (
                (libz.crc32)(seed & 0xffff_ffff, message.as_ptr(), bytes as u32),
                (libz.adler32)(1, message.as_ptr(), bytes as u32),
            ));
            prop_assert_eq!(sums[0], sums[1]);
        }
    }
}
