// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ours and the system's libz side by side, each loaded by path, with the functions that the tests call.
#![allow(dead_code, reason = "each test takes what it needs")]

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use libz_rs_sys::{Z_BUF_ERROR, Z_FINISH, Z_NEED_DICT, Z_OK, Z_STREAM_END, gz_header, gzFile, z_stream};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::path::{Path, PathBuf};

type Strm = *mut z_stream;
pub type InFunc = unsafe extern "C" fn(*mut c_void, *mut *const u8) -> c_uint;
pub type OutFunc = unsafe extern "C" fn(*mut c_void, *mut u8, c_uint) -> c_int;

macro_rules! functions {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        /// Functions of one libz, loaded at run time.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "libz's names")]
        pub struct Libz { $(pub $name: unsafe extern "C" fn($($kind),*) -> $result,)* }

        impl Libz {
            fn load(path: &Path) -> Option<Libz> {
                // SAFETY: both are libz: nothing happens at load, and the types are those of zlib.h.
                unsafe {
                    let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL).ok()?;
                    let libz = Libz { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).ok()?,)* };
                    std::mem::forget(library);
                    Some(libz)
                }
            }
        }
    };
}

functions! {
    zlibVersion() -> *const c_char;
    deflateInit2_(Strm, c_int, c_int, c_int, c_int, c_int, *const c_char, c_int) -> c_int;
    deflate(Strm, c_int) -> c_int;
    deflateEnd(Strm) -> c_int;
    deflateReset(Strm) -> c_int;
    deflateParams(Strm, c_int, c_int) -> c_int;
    deflateTune(Strm, c_int, c_int, c_int, c_int) -> c_int;
    deflateCopy(Strm, Strm) -> c_int;
    deflatePrime(Strm, c_int, c_int) -> c_int;
    deflatePending(Strm, *mut c_uint, *mut c_int) -> c_int;
    deflateSetDictionary(Strm, *const u8, c_uint) -> c_int;
    deflateGetDictionary(Strm, *mut u8, *mut c_uint) -> c_int;
    deflateBound(Strm, c_ulong) -> c_ulong;
    inflateInit2_(Strm, c_int, *const c_char, c_int) -> c_int;
    inflate(Strm, c_int) -> c_int;
    inflateEnd(Strm) -> c_int;
    inflateReset(Strm) -> c_int;
    inflateReset2(Strm, c_int) -> c_int;
    inflatePrime(Strm, c_int, c_int) -> c_int;
    inflateMark(Strm) -> c_long;
    inflateValidate(Strm, c_int) -> c_int;
    inflateUndermine(Strm, c_int) -> c_int;
    inflateGetHeader(Strm, *mut gz_header) -> c_int;
    inflateCopy(Strm, Strm) -> c_int;
    inflateSync(Strm) -> c_int;
    inflateSetDictionary(Strm, *const u8, c_uint) -> c_int;
    inflateGetDictionary(Strm, *mut u8, *mut c_uint) -> c_int;
    inflateResetKeep(Strm) -> c_int;
    deflateSetHeader(Strm, *mut gz_header) -> c_int;
    inflateSyncPoint(Strm) -> c_int;
    inflateCodesUsed(Strm) -> c_ulong;
    inflateBackInit_(Strm, c_int, *mut u8, *const c_char, c_int) -> c_int;
    inflateBack(Strm, InFunc, *mut c_void, OutFunc, *mut c_void) -> c_int;
    inflateBackEnd(Strm) -> c_int;
    compressBound(c_ulong) -> c_ulong;
    compress2(*mut u8, *mut c_ulong, *const u8, c_ulong, c_int) -> c_int;
    uncompress2(*mut u8, *mut c_ulong, *const u8, *mut c_ulong) -> c_int;
    gzopen(*const c_char, *const c_char) -> gzFile;
    gzbuffer(gzFile, c_uint) -> c_int;
    gzread(gzFile, *mut c_void, c_uint) -> c_int;
    gzwrite(gzFile, *const c_void, c_uint) -> c_int;
    gzgets(gzFile, *mut c_char, c_int) -> *mut c_char;
    gzgetc(gzFile) -> c_int;
    gzungetc(c_int, gzFile) -> c_int;
    gzputc(gzFile, c_int) -> c_int;
    gzflush(gzFile, c_int) -> c_int;
    gzseek(gzFile, i64, c_int) -> i64;
    gztell(gzFile) -> i64;
    gzoffset(gzFile) -> i64;
    gzeof(gzFile) -> c_int;
    gzdirect(gzFile) -> c_int;
    gzrewind(gzFile) -> c_int;
    gzclearerr(gzFile) -> ();
    gzsetparams(gzFile, c_int, c_int) -> c_int;
    gzerror(gzFile, *mut c_int) -> *const c_char;
    gzclose(gzFile) -> c_int;
    crc32(c_ulong, *const u8, c_uint) -> c_ulong;
    adler32(c_ulong, *const u8, c_uint) -> c_ulong;
}

pub const VERSION: &CStr = c"1.2.11";

/// Where the library lies that this test was built with.
pub fn our_path() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("deps");
    let near = folder.join("libmemlift_z.so");
    if near.exists() { near } else { folder.with_file_name("libmemlift_z.so") }
}

/// Loads the libmemlift_z.so that was built with the tests.
pub fn ours() -> Libz {
    Libz::load(&our_path()).expect("libmemlift_z.so is built with the tests and has all functions")
}

/// Where the system's libz lies.
pub fn system_path() -> Option<PathBuf> {
    let folders =
        ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"];
    folders.iter().map(|folder| Path::new(folder).join("libz.so.1")).find(|path| path.exists())
}

/// Loads the system's libz.so.1; `None` where there is none.
pub fn system() -> Option<Libz> {
    let libz = system_path().and_then(|path| Libz::load(&path));
    if libz.is_none() {
        eprintln!("not run: no libz.so.1 of the system to compare with");
    }
    libz
}

/// A stream with nothing in it.
pub fn empty() -> Box<z_stream> {
    let mut stream = Box::new(z_stream::default());
    (stream.zalloc, stream.zfree) = (None, None);
    stream
}

/// `deflateInit2`.
pub fn deflate_init(
    libz: &Libz,
    strm: &mut z_stream,
    level: i32,
    bits: i32,
    memory: i32,
    strategy: i32,
) -> i32 {
    let bytes = size_of::<z_stream>() as i32;
    // SAFETY: a stream that is not initialized.
    unsafe { (libz.deflateInit2_)(strm, level, 8, bits, memory, strategy, VERSION.as_ptr(), bytes) }
}

/// `inflateInit2`.
pub fn inflate_init(libz: &Libz, strm: &mut z_stream, bits: i32) -> i32 {
    // SAFETY: a stream that is not initialized.
    unsafe { (libz.inflateInit2_)(strm, bits, VERSION.as_ptr(), size_of::<z_stream>() as i32) }
}

/// Unpacks in pieces: the last return code, what came out, how much was read.
pub fn unpack(
    libz: &Libz,
    bits: i32,
    packed: &[u8],
    dictionary: &[u8],
    step: usize,
    room: usize,
    flush: i32,
) -> (i32, Vec<u8>, usize) {
    let mut strm = empty();
    assert_eq!(inflate_init(libz, &mut strm, bits), Z_OK);
    let (mut out, mut buffer, mut given) = (Vec::new(), vec![0u8; room], 0);
    // SAFETY: input and output are those of the slices.
    let code = unsafe {
        if bits < 0 && !dictionary.is_empty() {
            let bytes = dictionary.len() as u32;
            assert_eq!((libz.inflateSetDictionary)(&mut *strm, dictionary.as_ptr(), bytes), Z_OK);
        }
        loop {
            if strm.avail_in == 0 && given < packed.len() {
                let next = (packed.len() - given).min(step);
                strm.next_in = packed[given..].as_ptr();
                strm.avail_in = next as u32;
                given += next;
            }
            (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), room as u32);
            let before = strm.avail_in;
            let code = (libz.inflate)(&mut *strm, flush);
            let written = room - strm.avail_out as usize;
            out.extend_from_slice(&buffer[..written]);
            if code == Z_NEED_DICT {
                let bytes = dictionary.len() as u32;
                let code = (libz.inflateSetDictionary)(&mut *strm, dictionary.as_ptr(), bytes);
                if code == Z_OK {
                    continue;
                }
            }
            let stuck = written == 0 && strm.avail_in == before && given == packed.len();
            if !(code == Z_OK || code == Z_BUF_ERROR) || stuck {
                break code;
            }
        }
    };
    let read = given - strm.avail_in as usize;
    if dictionary.is_empty() {
        assert_eq!(strm.total_in as usize, read); // zlib forgets to count the front when it asks for a dictionary
    }
    assert_eq!(strm.total_out as usize, out.len());
    if code == Z_STREAM_END {
        // SAFETY: as before; a stream that ended stays so.
        unsafe {
            (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), room as u32);
            assert_eq!((libz.inflate)(&mut *strm, Z_FINISH), Z_STREAM_END);
            assert_eq!(strm.avail_out as usize, room);
        }
    }
    // SAFETY: initialized above.
    assert_eq!(unsafe { (libz.inflateEnd)(&mut *strm) }, Z_OK);
    (code, out, read)
}

/// Bytes of several kinds, the same for the same seed: words, bytes that do not pack, zeros, by turns.
pub fn sample(bytes: usize, seed: u64) -> Vec<u8> {
    let words = [
        "<p>",
        "</p>",
        "the ",
        "page ",
        "class=",
        "\"left\" ",
        "of ",
        "memory",
        "\n",
        "copy ",
        "0x",
        "<a href=",
    ];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out = Vec::with_capacity(bytes + 4096);
    while out.len() < bytes {
        let length = (next() % 3000) as usize;
        match next() % 5 {
            0 => out.extend((0..length).map(|_| (next() >> 32) as u8)),
            1 => out.extend(std::iter::repeat_n((next() % 3) as u8, length)),
            _ => {
                let end = out.len() + length;
                while out.len() < end {
                    out.extend_from_slice(words[(next() % words.len() as u64) as usize].as_bytes());
                }
            }
        }
    }
    out.truncate(bytes);
    out
}

/// Seeded random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number that is small as often as large.
    pub fn size(&mut self, end: usize) -> usize {
        let shift = self.below(usize::BITS as usize - end.leading_zeros() as usize);
        self.below((end >> shift).max(1))
    }
}
