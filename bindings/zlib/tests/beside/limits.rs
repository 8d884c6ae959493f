// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules that hold whatever a program does: bounds, symbol versions, streams that are not ours, arenas of a fixed size.

use crate::both::{Libz, VERSION, deflate_init, empty, inflate_init, our_path, ours, sample, system, unpack};
use libz_rs_sys::{
    Z_BUF_ERROR, Z_DATA_ERROR, Z_FINISH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, Z_VERSION_ERROR, z_stream,
};
use std::ffi::{CString, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;

/// Bytes that nothing packs.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn bounds_hold_for_bytes_that_do_not_pack() {
    let libz = ours();
    let noise = noise(300_000);
    for bytes in
        [0, 1, 2, 100, 508, 4096, 16384, 24577, 32768, 32769, 65536, 90_112, 90_113, 131_072, 300_000]
    {
        for level in -1..10 {
            // SAFETY: pointers and lengths are those of the vectors.
            unsafe {
                let mut length = (libz.compressBound)(bytes as c_ulong);
                let mut packed = vec![0; length as usize];
                let code = (libz.compress2)(
                    packed.as_mut_ptr(),
                    &mut length,
                    noise.as_ptr(),
                    bytes as c_ulong,
                    level,
                );
                assert_eq!(code, Z_OK, "{bytes} bytes, level {level}");
                let mut short = bytes as c_ulong / 2;
                let code = (libz.compress2)(
                    packed.as_mut_ptr(),
                    &mut short,
                    noise.as_ptr(),
                    bytes as c_ulong,
                    level,
                );
                assert_eq!(code, Z_BUF_ERROR, "{bytes} bytes, level {level}");
            }
            for (bits, memory) in [(15, 8), (31, 9), (-15, 1), (-9, 1), (9, 9), (28, 5)] {
                let mut strm = empty();
                assert_eq!(deflate_init(&libz, &mut strm, level, bits, memory, 0), Z_OK);
                // SAFETY: the stream is initialized, its buffers are set.
                unsafe {
                    let bound = (libz.deflateBound)(&mut *strm, bytes as c_ulong);
                    let mut packed = vec![0; bound as usize];
                    (strm.next_in, strm.avail_in) = (noise.as_ptr(), bytes as u32);
                    (strm.next_out, strm.avail_out) = (packed.as_mut_ptr(), bound as u32);
                    let code = (libz.deflate)(&mut *strm, Z_FINISH);
                    assert_eq!(code, Z_STREAM_END, "{bytes} bytes, level {level}, window {bits}");
                    assert_eq!((libz.deflateEnd)(&mut *strm), Z_OK);
                }
            }
        }
    }
}

#[test]
fn streams_that_are_not_ours_are_refused() {
    let libz = ours();
    let refuse = |strm: &mut z_stream| {
        let mut buffer = [0u8; 64];
        (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), 64);
        // SAFETY: the state is null or points to readable memory.
        unsafe {
            assert_eq!((libz.deflate)(strm, Z_FINISH), Z_STREAM_ERROR);
            assert_eq!((libz.deflateReset)(strm), Z_STREAM_ERROR);
            assert_eq!((libz.deflateParams)(strm, 6, 0), Z_STREAM_ERROR);
            assert_eq!((libz.deflateEnd)(strm), Z_STREAM_ERROR);
            assert_eq!((libz.inflate)(strm, Z_FINISH), Z_STREAM_ERROR);
            assert_eq!((libz.inflateReset)(strm), Z_STREAM_ERROR);
            assert_eq!((libz.inflateSync)(strm), Z_STREAM_ERROR);
            assert_eq!((libz.inflateEnd)(strm), Z_STREAM_ERROR);
        }
    };
    let mut strm = empty();
    refuse(&mut strm);
    let mut foreign = vec![0u64; 1024];
    strm.state = foreign.as_mut_ptr().cast();
    refuse(&mut strm);

    let mut packer = empty();
    assert_eq!(deflate_init(&libz, &mut packer, 6, 15, 8, 0), Z_OK);
    // A stream that was moved without deflateCopy.
    let mut moved = empty();
    *moved = *packer;
    refuse(&mut moved);
    let mut reader = empty();
    assert_eq!(inflate_init(&libz, &mut reader, 15), Z_OK);
    // SAFETY: both streams are initialized, but not for these functions.
    unsafe {
        let mut buffer = [0u8; 64];
        for strm in [&mut packer, &mut reader] {
            (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), 64);
        }
        assert_eq!((libz.inflate)(&mut *packer, 0), Z_STREAM_ERROR);
        assert_eq!((libz.deflate)(&mut *reader, 0), Z_STREAM_ERROR);
        assert_eq!((libz.deflateEnd)(&mut *packer), Z_OK);
        assert_eq!((libz.inflateEnd)(&mut *reader), Z_OK);
    }
    refuse(&mut packer);
    refuse(&mut reader);
}

#[test]
fn wrong_arguments_get_zlibs_codes() {
    let libz = ours();
    let mut strm = empty();
    for (level, bits, memory, strategy) in [
        (10, 15, 8, 0),
        (-2, 15, 8, 0),
        (6, 16 + 8, 8, 0),
        (6, -16, 8, 0),
        (6, 32, 8, 0),
        (6, 15, 0, 0),
        (6, 15, 10, 0),
        (6, 15, 8, 5),
    ] {
        assert_eq!(deflate_init(&libz, &mut strm, level, bits, memory, strategy), Z_STREAM_ERROR);
    }
    for bits in [7, 48, -16, -7, 16 + 7] {
        assert_eq!(inflate_init(&libz, &mut strm, bits), Z_STREAM_ERROR);
    }
    let bytes = size_of::<z_stream>() as i32;
    // SAFETY: nothing is initialized; null is allowed.
    unsafe {
        let init = libz.deflateInit2_;
        assert_eq!(init(&mut *strm, 6, 8, 15, 8, 0, c"0.9".as_ptr(), bytes), Z_VERSION_ERROR);
        assert_eq!(init(&mut *strm, 6, 8, 15, 8, 0, VERSION.as_ptr(), bytes - 1), Z_VERSION_ERROR);
        assert_eq!(init(std::ptr::null_mut(), 6, 8, 15, 8, 0, VERSION.as_ptr(), bytes), Z_STREAM_ERROR);
        assert_eq!((libz.deflate)(std::ptr::null_mut(), 0), Z_STREAM_ERROR);
        assert_eq!((libz.deflateEnd)(std::ptr::null_mut()), Z_STREAM_ERROR);
    }
}

#[test]
fn a_stream_that_ends_early_says_so() {
    let libz = ours();
    for level in [1, 6, 9] {
        let mut strm = empty();
        assert_eq!(deflate_init(&libz, &mut strm, level, 15, 8, 0), Z_OK);
        let mut buffer = [0u8; 64];
        (strm.next_in, strm.avail_in) = (b"abc".as_ptr(), 3);
        (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), 64);
        // SAFETY: the stream is initialized, its buffers are set.
        unsafe {
            assert_eq!((libz.deflate)(&mut *strm, 0), Z_OK);
            assert_eq!((libz.deflateEnd)(&mut *strm), Z_DATA_ERROR);
        }
    }
}

/// Calls `deflate` with so much input and room. Gives the code and what was written.
fn deflate(libz: &Libz, strm: &mut z_stream, input: &[u8], room: usize, flush: i32) -> (i32, Vec<u8>) {
    let mut target = vec![0; room];
    (strm.next_in, strm.avail_in) = (input.as_ptr(), input.len() as u32);
    (strm.next_out, strm.avail_out) = (target.as_mut_ptr(), room as u32);
    // SAFETY: the stream is initialized, its buffers are set.
    let code = unsafe { (libz.deflate)(strm, flush) };
    target.truncate(room - strm.avail_out as usize);
    (code, target)
}

#[test]
fn a_reset_with_output_pending_loses_no_room() {
    let libz = ours();
    let message = b"<p class=\"left\">a page of memory, the page of a copy</p>\n".repeat(300);
    for room in [1324, 1, 700, 1323] {
        let mut strm = empty();
        assert_eq!(deflate_init(&libz, &mut strm, 5, -9, 2, 2), Z_OK);
        assert_eq!(deflate(&libz, &mut strm, &message[..16808], room, 2).0, Z_OK);
        // SAFETY: the stream is initialized, its buffers are set.
        let mut packed = unsafe {
            assert_eq!((libz.deflateReset)(&mut *strm), Z_OK);
            let mut target = [0; 28];
            (strm.next_in, strm.avail_in) = (message.as_ptr(), 0);
            (strm.next_out, strm.avail_out) = (target.as_mut_ptr(), 28);
            assert_eq!((libz.deflateParams)(&mut *strm, 0, 4), Z_OK);
            target[..28 - strm.avail_out as usize].to_vec()
        };
        let (code, out) = deflate(&libz, &mut strm, &message[..4030], 327, 1);
        assert_eq!(code, Z_OK);
        packed.extend(out);
        let read = 4030 - strm.avail_in as usize;
        let (code, out) = deflate(&libz, &mut strm, &message[read..], 40_000, Z_FINISH);
        assert_eq!(code, Z_STREAM_END);
        packed.extend(out);
        // SAFETY: the stream is initialized.
        assert_eq!(unsafe { (libz.deflateEnd)(&mut *strm) }, Z_OK);
        let (code, out, _) = unpack(&libz, -15, &packed, &[], usize::MAX, message.len() + 1, Z_FINISH);
        assert_eq!(code, Z_STREAM_END);
        assert!(out == message);
    }
}

#[test]
fn bits_behind_the_end_are_zlibs() {
    let message = sample(5000, 1);
    for (level, bits) in [(6, 15), (6, -15), (9, 15), (9, -15), (9, 31), (0, 31)] {
        let run = |libz: &Libz| {
            let mut strm = empty();
            assert_eq!(deflate_init(libz, &mut strm, level, bits, 8, 0), Z_OK);
            assert_eq!(deflate(libz, &mut strm, &message, 9000, Z_FINISH).0, Z_STREAM_END);
            let mut seen = Vec::new();
            for (count, value) in [(3, 5), (16, 0xbeef), (0, 0), (7, 1), (16, 0x1234), (5, 0x1f)] {
                let (mut pending, mut held) = (0, 0);
                // SAFETY: the stream is initialized.
                unsafe {
                    seen.push((libz.deflatePrime)(&mut *strm, count, value));
                    assert_eq!((libz.deflatePending)(&mut *strm, &mut pending, &mut held), Z_OK);
                }
                seen.extend([pending as i32, held]);
            }
            let (code, behind) = deflate(libz, &mut strm, &[], 100, Z_FINISH);
            seen.push(code);
            seen.push(deflate(libz, &mut strm, &[], 100, Z_FINISH).0);
            // SAFETY: the stream is initialized.
            unsafe {
                assert_eq!((libz.deflateReset)(&mut *strm), Z_OK);
                assert_eq!((libz.deflateEnd)(&mut *strm), Z_OK);
            }
            (seen, behind)
        };
        let ours = run(&ours());
        assert_eq!(ours.1, [0x7d, 0xf7, 0x0d, 0xd0, 0x48], "level {level}, window {bits}");
        if let Some(theirs) = system() {
            assert_eq!(ours, run(&theirs), "level {level}, window {bits}");
        }
    }
}

/// The fields of a stream that a program reads: counts, checksum, kind of the data, error text.
fn seen(strm: &z_stream) -> (c_ulong, c_ulong, i32, Option<String>) {
    // SAFETY: error texts are constant C strings of the library.
    let text = (!strm.msg.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(strm.msg) });
    (strm.total_in, strm.adler, strm.data_type, text.map(|text| text.to_string_lossy().into_owned()))
}

#[test]
fn calls_behind_the_end_are_zlibs() {
    let Some(theirs) = system() else { return };
    let (message, dictionary) = (sample(5000, 1), sample(50_000, 2));
    for (level, bits) in [(6, 15), (6, -15), (6, 31), (9, 15), (9, -12), (1, 31), (0, 15), (0, -15), (0, 31)]
    {
        for bytes in [0, 5000] {
            let run = |libz: &Libz| {
                let mut strm = empty();
                assert_eq!(deflate_init(libz, &mut strm, level, bits, 8, 0), Z_OK);
                assert_eq!(deflate(libz, &mut strm, &message[..bytes], 9000, Z_FINISH).0, Z_STREAM_END);
                let mut all = vec![(Z_STREAM_END, seen(&strm))];
                // SAFETY: the stream is initialized, its buffers are set, the dictionary is readable.
                unsafe {
                    for length in [0, 300, 50_000] {
                        let code = (libz.deflateSetDictionary)(&mut *strm, dictionary.as_ptr(), length);
                        all.push((code, seen(&strm)));
                    }
                    all.push(((libz.deflateSetHeader)(&mut *strm, std::ptr::null_mut()), seen(&strm)));
                    for (level, strategy) in [(level, 0), (0, 0), (9, 0), (6, 2), (10, 0)] {
                        all.push(((libz.deflateParams)(&mut *strm, level, strategy), seen(&strm)));
                    }
                    all.push((deflate(libz, &mut strm, &[], 100, Z_FINISH).0, seen(&strm)));
                    all.push((deflate(libz, &mut strm, &[], 100, 0).0, seen(&strm)));
                    all.push(((libz.deflateReset)(&mut *strm), seen(&strm)));
                    all.push(((libz.deflateEnd)(&mut *strm), seen(&strm)));
                }
                all
            };
            assert_eq!(run(&ours()), run(&theirs), "level {level}, window {bits}, {bytes} bytes");
        }
    }
}

#[test]
fn the_kind_of_data_is_zlibs() {
    let Some(theirs) = system() else { return };
    let text = b"a line of text, and one more\n".repeat(150);
    let with = |byte: u8, at: usize| {
        let mut bytes = text.clone();
        bytes[at] = byte;
        bytes
    };
    let messages =
        [vec![], text.clone(), with(0, 0), with(7, 9), with(31, 4000), with(200, 7), vec![7; 9], vec![b'x']];
    for message in &messages {
        for level in [0, 1, 3, 6, 9] {
            for (bits, strategy) in [(15, 0), (-15, 0), (31, 0), (9, 0), (15, 1), (15, 2), (15, 3), (15, 4)] {
                for flushes in [&[4][..], &[0, 4], &[0, 2, 4], &[1, 4], &[0, 5, 4]] {
                    let run = |libz: &Libz| {
                        let mut strm = empty();
                        assert_eq!(deflate_init(libz, &mut strm, level, bits, 8, strategy), Z_OK);
                        let mut all = vec![strm.data_type];
                        for (number, &flush) in flushes.iter().enumerate() {
                            let input = if number == 0 { &message[..] } else { &[] };
                            let (code, _) = deflate(libz, &mut strm, input, 9000, flush);
                            all.extend([code, strm.data_type]);
                        }
                        // SAFETY: the stream is initialized.
                        unsafe {
                            assert_eq!((libz.deflateReset)(&mut *strm), Z_OK);
                            all.push(strm.data_type);
                            assert_eq!((libz.deflateEnd)(&mut *strm), Z_OK);
                        }
                        all
                    };
                    let case = (&message[..message.len().min(20)], level, bits, strategy, flushes);
                    assert_eq!(run(&ours()), run(&theirs), "{case:?}");
                }
            }
        }
    }
}

#[test]
fn checksums_begin_with_any_value_as_zlibs() {
    let Some(theirs) = system() else { return };
    let bytes = noise(300);
    for start in [0, 1, 0xffff_ffff, 0xfff0_fff0, 0xfff1_fff1, 0xffff_0001, 0x1_0000_0001, !0, 0xffff_fff0] {
        for length in [0, 1, 2, 15, 16, 17, 300] {
            // SAFETY: the bytes are readable.
            let [ours, theirs] = [ours(), theirs].map(|libz| unsafe {
                ((libz.adler32)(start, bytes.as_ptr(), length), (libz.crc32)(start, bytes.as_ptr(), length))
            });
            assert_eq!(ours, theirs, "{start:x}, {length} bytes");
        }
    }
}

/// As nginx reckons its arena: from window and memory level, and nothing is ever given back.
struct Arena {
    memory: Vec<u64>,
    used: usize,
}

unsafe extern "C" fn arena_get(arena: *mut c_void, items: c_uint, bytes: c_uint) -> *mut c_void {
    // SAFETY: the arena is that of the stream.
    let arena = unsafe { &mut *arena.cast::<Arena>() };
    let mut bytes = (items * bytes) as usize;
    if items == 1 && !bytes.is_multiple_of(512) && bytes < 8192 {
        bytes = 8192;
    }
    let words = bytes.div_ceil(8);
    if arena.used + words > arena.memory.len() {
        return std::ptr::null_mut();
    }
    arena.used += words;
    arena.memory[arena.used - words..].as_mut_ptr().cast()
}

unsafe extern "C" fn arena_free(_: *mut c_void, _: *mut c_void) {}

fn pack_in_arena(libz: &Libz, message: &[u8], level: i32) -> Vec<u8> {
    let (mut bits, mut memory) = (15, 8);
    while message.len() + 262 < (1 << (bits - 1)) && memory > 1 {
        (bits, memory) = (bits - 1, memory - 1);
    }
    let bytes = 8192 + 16 + (1usize << (bits + 2)) + (1 << (memory + 9));
    let mut arena = Arena { memory: vec![0; bytes / 8], used: 0 };
    let mut strm = empty();
    strm.zalloc = Some(arena_get);
    strm.zfree = Some(arena_free);
    strm.opaque = (&raw mut arena).cast();
    assert_eq!(deflate_init(libz, &mut strm, level, bits + 16, memory, 0), Z_OK);
    let (mut packed, mut buffer) = (Vec::new(), [0u8; 4096]);
    let pieces = message.chunks(32768).count();
    for (place, piece) in message.chunks(32768).enumerate() {
        (strm.next_in, strm.avail_in) = (piece.as_ptr(), piece.len() as u32);
        let flush = if place + 1 == pieces { Z_FINISH } else { 0 };
        loop {
            (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), 4096);
            // SAFETY: the stream is initialized, its buffers are set.
            let code = unsafe { (libz.deflate)(&mut *strm, flush) };
            packed.extend_from_slice(&buffer[..4096 - strm.avail_out as usize]);
            assert!(code == Z_OK || code == Z_STREAM_END, "{code}");
            if code == Z_STREAM_END || (flush == 0 && strm.avail_out != 0) {
                break;
            }
        }
    }
    // No deflateEnd: nginx drops the arena when a client goes away, and nothing must be lost.
    packed
}

#[test]
fn an_arena_of_zlibs_size_is_enough() {
    let libz = ours();
    for bytes in [300, 4096, 8000, 16384, 32768, 40_000, 65536, 300_000] {
        for message in [sample(bytes, 7), noise(bytes)] {
            for level in 1..7 {
                let packed = pack_in_arena(&libz, &message, level);
                let (code, out, _) = unpack(&libz, 31, &packed, &[], usize::MAX, bytes + 1, Z_FINISH);
                assert_eq!(code, Z_STREAM_END);
                assert!(out == message);
            }
        }
    }
}

#[test]
fn threads_do_not_meet() {
    let libz = ours();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..40 {
                    let message = sample(1000 + thread * 9000 + round * 100, round as u64);
                    let packed = pack_in_arena(&libz, &message, 6);
                    let (code, out, _) = unpack(&libz, 31, &packed, &[], 4096, message.len() + 1, Z_FINISH);
                    assert_eq!(code, Z_STREAM_END);
                    assert!(out == message);
                }
            });
        }
    });
}

#[cfg(symbol_versions)]
#[test]
fn symbols_have_libzs_versions() {
    let path = CString::new(our_path().as_os_str().as_bytes()).expect("a path without zeros");
    // SAFETY: our library; nothing happens at load.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    for (name, version) in [
        (c"compressBound", c"ZLIB_1.2.0"),
        (c"deflateBound", c"ZLIB_1.2.0"),
        (c"inflateBack", c"ZLIB_1.2.0"),
        (c"inflateBackEnd", c"ZLIB_1.2.0"),
        (c"inflateBackInit_", c"ZLIB_1.2.0"),
        (c"inflateCopy", c"ZLIB_1.2.0"),
        (c"gzclearerr", c"ZLIB_1.2.0.2"),
        (c"gzungetc", c"ZLIB_1.2.0.2"),
        (c"zlibCompileFlags", c"ZLIB_1.2.0.2"),
        (c"deflatePrime", c"ZLIB_1.2.0.8"),
        (c"adler32_combine", c"ZLIB_1.2.2"),
        (c"crc32_combine", c"ZLIB_1.2.2"),
        (c"deflateSetHeader", c"ZLIB_1.2.2"),
        (c"inflateGetHeader", c"ZLIB_1.2.2"),
        (c"deflateTune", c"ZLIB_1.2.2.3"),
        (c"gzdirect", c"ZLIB_1.2.2.3"),
        (c"inflatePrime", c"ZLIB_1.2.2.4"),
        (c"adler32_combine64", c"ZLIB_1.2.3.3"),
        (c"crc32_combine64", c"ZLIB_1.2.3.3"),
        (c"gzopen64", c"ZLIB_1.2.3.3"),
        (c"gzseek64", c"ZLIB_1.2.3.3"),
        (c"gztell64", c"ZLIB_1.2.3.3"),
        (c"inflateUndermine", c"ZLIB_1.2.3.3"),
        (c"inflateMark", c"ZLIB_1.2.3.4"),
        (c"inflateReset2", c"ZLIB_1.2.3.4"),
        (c"gzbuffer", c"ZLIB_1.2.3.5"),
        (c"gzclose_r", c"ZLIB_1.2.3.5"),
        (c"gzclose_w", c"ZLIB_1.2.3.5"),
        (c"gzoffset", c"ZLIB_1.2.3.5"),
        (c"gzoffset64", c"ZLIB_1.2.3.5"),
        (c"deflatePending", c"ZLIB_1.2.5.1"),
        (c"deflateResetKeep", c"ZLIB_1.2.5.2"),
        (c"gzgetc_", c"ZLIB_1.2.5.2"),
        (c"inflateResetKeep", c"ZLIB_1.2.5.2"),
        (c"gzvprintf", c"ZLIB_1.2.7.1"),
        (c"inflateGetDictionary", c"ZLIB_1.2.7.1"),
        (c"adler32_z", c"ZLIB_1.2.9"),
        (c"crc32_z", c"ZLIB_1.2.9"),
        (c"deflateGetDictionary", c"ZLIB_1.2.9"),
        (c"gzfread", c"ZLIB_1.2.9"),
        (c"gzfwrite", c"ZLIB_1.2.9"),
        (c"inflateCodesUsed", c"ZLIB_1.2.9"),
        (c"inflateValidate", c"ZLIB_1.2.9"),
        (c"uncompress2", c"ZLIB_1.2.9"),
        (c"crc32_combine_gen", c"ZLIB_1.2.12"),
        (c"crc32_combine_gen64", c"ZLIB_1.2.12"),
        (c"crc32_combine_op", c"ZLIB_1.2.12"),
    ] {
        // SAFETY: the library stays loaded.
        let symbol = unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} {version:?}");
    }
    for name in
        [c"deflate", c"inflate", c"compress", c"gzopen", c"gzprintf", c"zError", c"get_crc_table", c"gzerror"]
    {
        // SAFETY: the library stays loaded.
        assert!(!unsafe { libc::dlsym(library, name.as_ptr()) }.is_null(), "{name:?}");
    }
}
