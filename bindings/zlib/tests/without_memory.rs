// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Out of memory is a code, never the end of the program; and after a good init, whatever zlib does without allocating is done.
//!
//! - **Flow** a child initializes its streams, lets its address space grow no more and takes what malloc still has; then it packs and unpacks,
//!   and writes down codes. Or a program's own `zalloc` refuses after init.

mod both;

use both::{Libz, deflate_init, empty, inflate_init, ours, sample, unpack};
use libz_rs_sys::{Z_FINISH, Z_MEM_ERROR, Z_OK, Z_STREAM_END, z_stream};
use std::ffi::{c_uint, c_ulong, c_void};
use std::process::Command;

const CHILD: &str = "MEMLIFT_TEST_WITHOUT_MEMORY";

/// Lets the address space grow no more, and takes what malloc can still give.
fn take_all_memory() {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    // SAFETY: plain calls; what is taken is never used.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_AS, &mut limit);
        limit.rlim_cur = pages * libc::sysconf(libc::_SC_PAGESIZE) as u64;
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        let mut bytes = 1 << 20;
        while bytes >= 16 {
            if std::hint::black_box(libc::malloc(bytes)).is_null() {
                bytes /= 2;
            }
        }
    }
}

/// Packs all of the message with the flush before its end. Returns the last code.
fn pack(libz: &Libz, strm: &mut z_stream, message: &[u8], packed: &mut [u8], flush: i32) -> i32 {
    let half = message.len() / 2;
    (strm.next_out, strm.avail_out) = (packed.as_mut_ptr(), packed.len() as u32);
    // SAFETY: the stream is initialized, its buffers are set.
    unsafe {
        (strm.next_in, strm.avail_in) = (message.as_ptr(), half as u32);
        let code = (libz.deflate)(strm, flush);
        if code != Z_OK {
            return code;
        }
        (strm.next_in, strm.avail_in) = (message[half..].as_ptr(), (message.len() - half) as u32);
        (libz.deflate)(strm, Z_FINISH)
    }
}

#[test]
#[ignore = "a child of the test below"]
fn child_has_no_memory() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let libz = ours();
    let message = sample(200_000, 4);
    let (mut packed, mut out) = (vec![0; 400_000], vec![0; 200_000]);
    let mut length = packed.len() as c_ulong;
    // SAFETY: for all of it: pointers and lengths are those of vectors, streams are initialized.
    let codes = unsafe {
        assert_eq!(
            (libz.compress2)(packed.as_mut_ptr(), &mut length, message.as_ptr(), message.len() as c_ulong, 9),
            Z_OK
        );
        let mut streams: Vec<Box<z_stream>> = (0..5).map(|_| empty()).collect();
        let mut fresh = empty();
        let (mut reader, mut copy) = (empty(), empty());
        for (strm, level) in streams.iter_mut().zip([6, 1, 9, 0, 6]) {
            assert_eq!(deflate_init(&libz, strm, level, 15, 8, 0), Z_OK);
        }
        assert_eq!(inflate_init(&libz, &mut reader, 15), Z_OK);
        let mut other = vec![0; 400_000];
        let mut codes = Vec::with_capacity(20);
        take_all_memory();
        for (strm, flush) in streams.iter_mut().zip([0, 2, 0, 3, 1]) {
            codes.push(pack(&libz, strm, &message, &mut other, flush));
        }
        let mut written = out.len() as c_ulong;
        let mut read = length;
        codes.push((libz.uncompress2)(out.as_mut_ptr(), &mut written, packed.as_ptr(), &mut read));
        // All of it at once needs no window; part of it does.
        (reader.next_in, reader.avail_in) = (packed.as_ptr(), length as u32);
        (reader.next_out, reader.avail_out) = (out.as_mut_ptr(), out.len() as u32);
        codes.push((libz.inflate)(&mut *reader, Z_FINISH));
        (libz.inflateReset)(&mut *reader);
        (reader.next_in, reader.avail_in) = (packed.as_ptr(), length as u32);
        (reader.next_out, reader.avail_out) = (out.as_mut_ptr(), 1000);
        codes.push((libz.inflate)(&mut *reader, 0));
        codes.push(deflate_init(&libz, &mut fresh, 6, 15, 8, 0));
        codes.push(inflate_init(&libz, &mut fresh, 15));
        let mut room = other.len() as c_ulong;
        for level in [6, 9] {
            let bytes = message.len() as c_ulong;
            codes.push((libz.compress2)(other.as_mut_ptr(), &mut room, message.as_ptr(), bytes, level));
        }
        codes.push((libz.deflateCopy)(&mut *copy, &mut *streams[0]));
        codes.push((libz.inflateCopy)(&mut *copy, &mut *reader));
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_AS, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_AS, &limit);
        codes
    };
    let done = [Z_STREAM_END; 5];
    let rest = [
        Z_OK,
        Z_STREAM_END,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
        Z_MEM_ERROR,
    ];
    assert_eq!(codes, [&done[..], &rest].concat());
}

#[test]
fn a_program_without_memory_goes_on() {
    let test = std::env::current_exe().expect("a test has a path");
    let child = Command::new(test)
        .args(["--ignored", "--exact", "child_has_no_memory", "--test-threads", "1"])
        .env(CHILD, "1")
        .output()
        .expect("the test runs");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// A `zalloc` that refuses when it is told to.
struct Mean {
    refuses: bool,
    asked: usize,
}

unsafe extern "C" fn mean_get(mean: *mut c_void, items: c_uint, bytes: c_uint) -> *mut c_void {
    // SAFETY: the stream's own.
    unsafe {
        let mean = &mut *mean.cast::<Mean>();
        mean.asked += 1;
        if mean.refuses { std::ptr::null_mut() } else { libc::malloc(items as usize * bytes as usize) }
    }
}

unsafe extern "C" fn mean_free(_: *mut c_void, memory: *mut c_void) {
    // SAFETY: it came from malloc.
    unsafe { libc::free(memory) };
}

#[test]
fn an_init_without_memory_has_zlibs_text() {
    let Some(theirs) = both::system() else { return };
    for bits in [15, -15, 31] {
        let codes = [ours(), theirs].map(|libz| {
            let mut mean = Box::new(Mean { refuses: true, asked: 0 });
            let mut strm = empty();
            strm.zalloc = Some(mean_get);
            strm.zfree = Some(mean_free);
            strm.opaque = (&raw mut *mean).cast();
            let deflate = (deflate_init(&libz, &mut strm, 6, bits, 8, 0), strm.msg.is_null());
            let inflate = (both::inflate_init(&libz, &mut strm, bits), strm.msg.is_null());
            (deflate, inflate, strm.state.is_null())
        });
        assert_eq!(codes[0], codes[1], "{bits}");
        assert_eq!(codes[0].0.0, Z_MEM_ERROR);
    }
}

#[test]
fn deflate_asks_for_nothing_after_init() {
    let libz = ours();
    let message = sample(60_000, 9);
    for (level, bits, memory, strategy) in [
        (6, 15, 8, 0),
        (1, -9, 1, 0),
        (9, 31, 9, 0),
        (0, 15, 8, 0),
        (4, -12, 5, 1),
        (6, 15, 8, 2),
        (6, 15, 3, 3),
        (6, 31, 8, 4),
    ] {
        for flush in 0..6 {
            let mut mean = Box::new(Mean { refuses: false, asked: 0 });
            let mut strm = empty();
            strm.zalloc = Some(mean_get);
            strm.zfree = Some(mean_free);
            strm.opaque = (&raw mut *mean).cast();
            assert_eq!(deflate_init(&libz, &mut strm, level, bits, memory, strategy), Z_OK);
            assert!(mean.asked != 0);
            mean.refuses = true;
            let mut packed = vec![0; 100_000];
            let flush = if flush == 4 { 0 } else { flush };
            assert_eq!(pack(&libz, &mut strm, &message, &mut packed, flush), Z_STREAM_END);
            let (code, out, _) = unpack(&libz, bits, &packed, &[], usize::MAX, message.len() + 1, Z_FINISH);
            assert_eq!(code, Z_STREAM_END);
            assert!(out == message);
            // SAFETY: the stream is initialized.
            unsafe {
                assert_eq!((libz.deflateReset)(&mut *strm), Z_OK);
                assert_eq!((libz.deflateParams)(&mut *strm, 9, 0), Z_OK);
                let mut copy = empty();
                assert_eq!((libz.deflateCopy)(&mut *copy, &mut *strm), Z_MEM_ERROR);
                assert_eq!((libz.deflateEnd)(&mut *strm), Z_OK);
            }
        }
    }
}
