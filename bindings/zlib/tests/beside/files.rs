// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `gz*` beside the system's zlib: good, damaged and cut files deliver the same bytes, errors and places, call by call; what is written is
//! read by both.

use crate::both::{Libz, Random, our_path, ours, sample, system, system_path};
use libloading::Library;
use libz_rs_sys::gzFile;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn open(libz: &Libz, path: &Path, mode: &CStr) -> gzFile {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path without zeros");
    // SAFETY: C strings.
    let file = unsafe { (libz.gzopen)(path.as_ptr(), mode.as_ptr()) };
    assert!(!file.is_null());
    file
}

/// The error and its text.
fn error(libz: &Libz, file: gzFile) -> (c_int, String) {
    let mut code = 0;
    // SAFETY: an open file; its text is a C string.
    let text = unsafe { CStr::from_ptr((libz.gzerror)(file, &mut code)) };
    (code, text.to_string_lossy().into_owned())
}

/// Writes a file in random pieces, with flushes, seeks and changes of level. Returns what it contains.
fn write(libz: &Libz, path: &Path, random: &mut Random) -> Vec<u8> {
    let mode = random.pick(&[c"wb", c"wb1", c"wb9", c"wb6f", c"wb3R", c"wbT", c"wb0"]);
    let message = sample(random.size(300_000), random.number());
    let (file, mut at, mut wrote) = (open(libz, path, mode), 0, Vec::new());
    // SAFETY: an open file; pointers and lengths are those of the message.
    unsafe {
        if random.one_in(3) {
            assert_eq!((libz.gzbuffer)(file, 1 + random.size(100_000) as u32), 0);
        }
        while at < message.len() {
            let piece = (1 + random.size(60_000)).min(message.len() - at);
            match random.below(12) {
                0 => {
                    let flush = random.pick(&[0, 1, 2, 3, 4]);
                    assert_eq!((libz.gzflush)(file, flush), 0);
                }
                1 => {
                    let gap = random.size(20_000) as i64;
                    let place = (libz.gzseek)(file, gap, 1);
                    assert_eq!(place, (wrote.len() as i64) + gap);
                    assert_eq!((libz.gztell)(file), place);
                    wrote.resize(place as usize, 0);
                }
                2 if mode != c"wbT" => {
                    let (level, strategy) = (random.below(10) as i32, random.below(5) as i32);
                    assert_eq!((libz.gzsetparams)(file, level, strategy), 0);
                }
                3 => {
                    assert_eq!((libz.gzputc)(file, message[at].into()), message[at].into());
                    wrote.push(message[at]);
                    at += 1;
                }
                _ => {
                    let source = message[at..].as_ptr().cast();
                    assert_eq!((libz.gzwrite)(file, source, piece as u32), piece as i32);
                    wrote.extend_from_slice(&message[at..at + piece]);
                    at += piece;
                }
            }
        }
        assert_eq!((libz.gzclose)(file), 0);
    }
    wrote
}

/// Reads a file by random calls; returns the result of each, and the bytes read.
fn read(libz: &Libz, path: &Path, seed: u64) -> (Vec<String>, Vec<u8>) {
    let mut random = Random(seed);
    let (mut said, mut all) = (Vec::new(), Vec::new());
    let file = open(libz, path, c"rb");
    // SAFETY: an open file; buffers are as long as said.
    unsafe {
        if random.one_in(3) {
            (libz.gzbuffer)(file, 1 + random.size(50_000) as u32);
        }
        let (plain, most) = (random.one_in(2), 1 + random.size(100_000));
        for _ in 0..3000 {
            let mut buffer = vec![0u8; 1 + random.below(most)];
            let (op, offset) = (if plain { 9 } else { random.below(12) }, random.size(40_000) as i64);
            let code = match op {
                0 => (libz.gzgetc)(file).into(),
                1 => (libz.gzungetc)(offset as i32 & 0xff, file).into(),
                2 => {
                    let line = (libz.gzgets)(file, buffer.as_mut_ptr().cast(), buffer.len() as i32);
                    if line.is_null() { -1 } else { CStr::from_ptr(line).count_bytes() as i64 }
                }
                3 => (libz.gzseek)(file, offset, 1),
                4 if random.one_in(4) => (libz.gzseek)(file, offset, 0),
                5 if random.one_in(8) => (libz.gzrewind)(file).into(),
                6 if random.one_in(8) => {
                    (libz.gzclearerr)(file);
                    0
                }
                7 => (libz.gzdirect)(file).into(),
                _ => {
                    let got = (libz.gzread)(file, buffer.as_mut_ptr().cast(), buffer.len() as u32);
                    all.extend_from_slice(&buffer[..got.max(0) as usize]);
                    got.into()
                }
            };
            let places = ((libz.gztell)(file), (libz.gzoffset)(file), (libz.gzeof)(file));
            let failed = error(libz, file);
            said.push(format!(
                "{op} {code} {places:?} {failed:?} {:x}",
                buffer.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))
            ));
            if plain && code <= 0 {
                break;
            }
        }
        said.push(format!("{}", (libz.gzclose)(file)));
    }
    (said, all)
}

#[test]
fn files_are_read_as_zlib_reads_them() {
    read_both(0..24, 2);
}

#[test]
#[ignore = "a minute: make soak"]
fn soak_files_are_read_as_zlib_reads_them() {
    read_both(1000..1400, 4);
}

fn read_both(files: std::ops::Range<u64>, seeds: u64) {
    let Some(theirs) = system() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (memlift, path) = (ours(), folder.path().join("file.gz"));
    for number in files {
        let mut random = Random(number);
        let writer = if random.one_in(2) { memlift } else { theirs };
        write(&writer, &path, &mut random);
        let mut bytes = std::fs::read(&path).expect("just written");
        match random.below(5) {
            _ if bytes.is_empty() => {}
            0 => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 + random.below(255) as u8;
            }
            1 => bytes.truncate(random.below(bytes.len())),
            2 => bytes.extend_from_slice(b"what follows is no gzip"),
            3 => bytes.extend_from_within(..),
            _ => {}
        }
        std::fs::write(&path, &bytes).expect("a folder of ours");
        for seed in 0..seeds {
            let (ours, theirs) = (read(&memlift, &path, seed), read(&theirs, &path, seed));
            for (step, (a, b)) in ours.0.iter().zip(&theirs.0).enumerate() {
                assert_eq!(a, b, "file {number}, seed {seed}, step {step}");
            }
            assert!(ours == theirs, "file {number}, seed {seed}");
        }
    }
}

#[test]
fn what_is_written_is_read_by_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memlift, path) = (ours(), folder.path().join("file.gz"));
    for number in 0..24 {
        let wrote = write(&memlift, &path, &mut Random(number ^ 0x77));
        for libz in [Some(memlift), system()].into_iter().flatten() {
            let file = open(&libz, &path, c"rb");
            let mut all = vec![0u8; wrote.len() + 10];
            // SAFETY: an open file, a buffer of this size.
            unsafe {
                let got = (libz.gzread)(file, all.as_mut_ptr().cast(), all.len() as u32);
                assert_eq!((got, error(&libz, file).0), (wrote.len() as i32, 0), "file {number}");
                assert_eq!((libz.gzclose)(file), 0);
            }
            all.truncate(wrote.len());
            assert!(all == wrote, "file {number}");
        }
    }
}

type Printf = unsafe extern "C" fn(gzFile, *const c_char, ...) -> c_int;

#[test]
fn formatted_texts_are_written_as_zlib_writes_them() {
    let Some(theirs) = system_path() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let run = |path: &Path, libz: &Libz| {
        // SAFETY: the library is loaded already; `gzprintf` has this type.
        let printf: Printf = unsafe {
            let library = Library::new(path).expect("a libz");
            let printf = *library.get::<Printf>(b"gzprintf\0").expect("a function of libz");
            std::mem::forget(library);
            printf
        };
        let mut all = Vec::new();
        let file_path = folder.path().join("file.gz");
        for (mode, buffer) in [(c"wT", 100), (c"wb", 0), (c"wb", 2), (c"wb", 100), (c"ab", 9000)] {
            let file = open(libz, &file_path, mode);
            // SAFETY: an open file; formats fit their arguments, and texts are C strings.
            unsafe {
                if buffer != 0 {
                    assert_eq!((libz.gzbuffer)(file, buffer), 0);
                }
                for width in
                    [0, 1, 2, 3, 97, 98, 99, 100, 101, 4095, 4096, 8190, 8191, 8192, 8999, 9000, 20_000]
                {
                    let text = CString::new("x".repeat(width)).expect("no zeros");
                    all.push((printf(file, c"%s".as_ptr(), text.as_ptr()), (libz.gztell)(file)));
                    let number = c_int::try_from(width).expect("small");
                    all.push((printf(file, c"%*d\n".as_ptr(), number, 42 as c_int), (libz.gztell)(file)));
                }
                all.push((printf(file, c"".as_ptr()), (libz.gzbuffer)(file, 100).into()));
                // After an error nothing is written until it is cleared.
                all.push(((libz.gzwrite)(file, c"x".as_ptr().cast(), 1 << 31), 0));
                all.push((printf(file, c"x".as_ptr()), 0));
                all.push((printf(file, c"".as_ptr()), 0));
                (libz.gzclearerr)(file);
                all.push((printf(file, c"end %d".as_ptr(), 7 as c_int), (libz.gztell)(file)));
                all.push(((libz.gzclose)(file), 0));
                let file = open(libz, &file_path, c"rb");
                all.push((printf(file, c"x".as_ptr()), 0));
                all.push((printf(file, c"".as_ptr()), 0));
                let mut text = vec![0u8; 200_000];
                let got = (libz.gzread)(file, text.as_mut_ptr().cast(), 200_000);
                all.push((got, text.iter().map(|&byte| i64::from(byte)).sum()));
                all.push(((libz.gzclose)(file), 0));
                all.push((printf(std::ptr::null_mut(), c"x".as_ptr()), 0));
            }
        }
        all
    };
    assert_eq!(run(&our_path(), &ours()), run(&theirs, &system().expect("it is there")));
}

#[test]
fn flushes_end_with_the_smallest_buffers() {
    let folder = tempfile::tempdir().expect("a folder");
    let (libz, path) = (ours(), folder.path().join("file.gz"));
    let message = sample(3000, 3);
    for (buffer, flush) in (1..10).flat_map(|buffer| (1..5).map(move |flush| (buffer, flush))) {
        let file = open(&libz, &path, c"wb");
        let mut back = vec![0u8; 3001];
        // SAFETY: open files; pointers and lengths are those of the message and the buffer.
        unsafe {
            assert_eq!((libz.gzbuffer)(file, buffer), 0);
            for piece in message.chunks(1000) {
                assert_eq!((libz.gzwrite)(file, piece.as_ptr().cast(), 1000), 1000);
                assert_eq!((libz.gzflush)(file, flush), 0);
            }
            assert_eq!((libz.gzclose)(file), 0);
            let file = open(&libz, &path, c"rb");
            assert_eq!((libz.gzread)(file, back.as_mut_ptr().cast(), 3001), 3000);
            assert_eq!((libz.gzclose)(file), 0);
        }
        assert!(back[..3000] == message, "buffer {buffer}, flush {flush}");
    }
}
