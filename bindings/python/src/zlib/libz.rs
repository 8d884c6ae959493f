// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads `libmemlift_z.so` in addition to the interpreter's own libz, and provides streams of it.
//!
//! - **Flow** path ──▶ [`load`], once per process ──▶ [`Stream`]: init, any number of [`Stream::run`], end.
//! - **Layout** `z_stream` of zlib.h.
//! - **Order** the library is loaded with RTLD_DEEPBIND: an interpreter that is linked to a libz of its own keeps it, and this library
//!   only calls its own functions.
//! - **Owner** a stream's state points back to its `z_stream`, which therefore must not move, and is in a box.
//! - **Not here** the Python interface: zlib.rs.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::memory::Span;

pub const Z_NO_FLUSH: c_int = 0;
pub const Z_SYNC_FLUSH: c_int = 2;
pub const Z_FINISH: c_int = 4;
pub const Z_OK: c_int = 0;
pub const Z_STREAM_END: c_int = 1;
pub const Z_NEED_DICT: c_int = 2;
pub const Z_STREAM_ERROR: c_int = -2;
pub const Z_MEM_ERROR: c_int = -4;
pub const Z_BUF_ERROR: c_int = -5;

#[repr(C)]
struct Z {
    next_in: *const u8,
    avail_in: c_uint,
    total_in: c_ulong,
    next_out: *mut u8,
    avail_out: c_uint,
    total_out: c_ulong,
    msg: *const c_char,
    state: *mut c_void,
    /// Null selects the library's own allocator.
    zalloc: *const c_void,
    zfree: *const c_void,
    opaque: *mut c_void,
    data_type: c_int,
    adler: c_ulong,
    reserved: c_ulong,
}

const Z_BYTES: c_int = size_of::<Z>() as c_int;

type Sum = unsafe extern "C" fn(c_ulong, *const u8, usize) -> c_ulong;

/// Functions of the library, with the types of zlib.h.
struct Libz {
    deflate_init:
        unsafe extern "C" fn(*mut Z, c_int, c_int, c_int, c_int, c_int, *const c_char, c_int) -> c_int,
    inflate_init: unsafe extern "C" fn(*mut Z, c_int, *const c_char, c_int) -> c_int,
    run: [unsafe extern "C" fn(*mut Z, c_int) -> c_int; 2],
    end: [unsafe extern "C" fn(*mut Z) -> c_int; 2],
    copy: [unsafe extern "C" fn(*mut Z, *mut Z) -> c_int; 2],
    set_dictionary: [unsafe extern "C" fn(*mut Z, *const u8, c_uint) -> c_int; 2],
    crc32: Sum,
    adler32: Sum,
    version: *const c_char,
}

// SAFETY: functions of zlib may be called from any thread; the version is a constant of the library, which is never unloaded.
unsafe impl Send for Libz {}
// SAFETY: a shared `Libz` only gives copies of its functions, and the version is never written to.
unsafe impl Sync for Libz {}

static LIBZ: OnceLock<Libz> = OnceLock::new();

/// Loads the library; a second call does nothing.
pub fn load(path: &OsStr) -> Result<(), String> {
    if LIBZ.get().is_some() {
        return Ok(());
    }
    // SAFETY: the library belongs to this package; when it is loaded it only names its counters.
    let library =
        unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) };
    let library: &Library = Box::leak(Box::new(library.map_err(|error| error.to_string())?));
    // SAFETY: the types are those that zlib.h declares for these names, and the library is never unloaded.
    let functions = unsafe {
        (|| -> Result<Libz, libloading::Error> {
            let version = *library.get::<unsafe extern "C" fn() -> *const c_char>(b"zlibVersion")?;
            Ok(Libz {
                deflate_init: *library.get(b"deflateInit2_")?,
                inflate_init: *library.get(b"inflateInit2_")?,
                run: [*library.get(b"deflate")?, *library.get(b"inflate")?],
                end: [*library.get(b"deflateEnd")?, *library.get(b"inflateEnd")?],
                copy: [*library.get(b"deflateCopy")?, *library.get(b"inflateCopy")?],
                set_dictionary: [
                    *library.get(b"deflateSetDictionary")?,
                    *library.get(b"inflateSetDictionary")?,
                ],
                crc32: *library.get(b"crc32_z")?,
                adler32: *library.get(b"adler32_z")?,
                version: version(),
            })
        })()
    };
    let _ = LIBZ.set(functions.map_err(|error| error.to_string())?);
    Ok(())
}

fn libz() -> &'static Libz {
    LIBZ.get().expect("memlift.zlib loads it before anything of it can be called")
}

/// Returns the version that the library reports.
pub fn version() -> String {
    // SAFETY: the version is a constant C string of the library.
    unsafe { CStr::from_ptr(libz().version) }.to_string_lossy().into_owned()
}

/// Continues the CRC-32 `start` over the bytes.
pub fn crc32(start: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of a slice.
    unsafe { (libz().crc32)(start.into(), bytes.as_ptr(), bytes.len()) as u32 }
}

/// Continues the Adler-32 `start` over the bytes.
pub fn adler32(start: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of a slice.
    unsafe { (libz().adler32)(start.into(), bytes.as_ptr(), bytes.len()) as u32 }
}

/// Settings of a stream that packs; see deflateInit2 in zlib.h.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    pub level: c_int,
    pub method: c_int,
    pub wbits: c_int,
    pub mem_level: c_int,
    pub strategy: c_int,
}

/// Result of one call of deflate or inflate.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub code: c_int,
    /// Bytes read from the source.
    pub read: usize,
    /// Bytes written to the target.
    pub written: usize,
}

/// Index into the pairs of functions of [`Libz`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Packs = 0,
    Unpacks = 1,
}

/// A stream that packs or unpacks.
pub struct Stream {
    z: Box<Z>,
    direction: Direction,
    /// True from a successful init to the end.
    is_open: bool,
}

// SAFETY: zlib allows a stream on any thread, one at a time, which `&mut self` ensures.
unsafe impl Send for Stream {}

impl Stream {
    fn closed(direction: Direction) -> Stream {
        // SAFETY: all fields are numbers and pointers that may be null: this is the state that zlib.h requires before init.
        Stream { z: Box::new(unsafe { std::mem::zeroed() }), direction, is_open: false }
    }

    fn opened(mut self, code: c_int) -> Result<Stream, Failed> {
        self.is_open = code == Z_OK;
        if self.is_open { Ok(self) } else { Err(self.failed(code)) }
    }

    /// Creates a stream that packs; the error is the one that zlib reports.
    pub fn packs(packing: Packing) -> Result<Stream, Failed> {
        let mut stream = Stream::closed(Direction::Packs);
        let Packing { level, method, wbits, mem_level, strategy } = packing;
        let version = libz().version;
        // SAFETY: a new z_stream that stays in its box, of the size that is passed.
        let code = unsafe {
            (libz().deflate_init)(
                &raw mut *stream.z,
                level,
                method,
                wbits,
                mem_level,
                strategy,
                version,
                Z_BYTES,
            )
        };
        stream.opened(code)
    }

    /// Creates a stream that unpacks; the error is the one that zlib reports.
    pub fn unpacks(wbits: c_int) -> Result<Stream, Failed> {
        let mut stream = Stream::closed(Direction::Unpacks);
        // SAFETY: a new z_stream that stays in its box, of the size that is passed.
        let code = unsafe { (libz().inflate_init)(&raw mut *stream.z, wbits, libz().version, Z_BYTES) };
        stream.opened(code)
    }

    /// Makes one call of deflate or inflate. Of a source or target of more than 4 GiB only the first part is used.
    ///
    /// # Safety
    ///
    /// The source is readable and the target writable, and nobody else changes either during the call.
    pub unsafe fn run(&mut self, source: Span, target: Span, flush: c_int) -> Ran {
        if !self.is_open {
            return Ran { code: Z_STREAM_ERROR, read: 0, written: 0 };
        }
        let part = |bytes: usize| c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
        let (input, room) = (part(source.bytes()), part(target.bytes()));
        // If only a part of the source is passed, its end is not the end of the input.
        let flush = if input as usize == source.bytes() { flush } else { Z_NO_FLUSH };
        self.z.next_in = source.start();
        self.z.avail_in = input;
        self.z.next_out = target.start();
        self.z.avail_out = room;
        // SAFETY: the stream is open and of this direction; the caller guarantees its buffers.
        let code = unsafe { (libz().run[self.direction as usize])(&raw mut *self.z, flush) };
        self.z.next_in = ptr::null();
        self.z.next_out = ptr::null_mut();
        let (read, written) = ((input - self.z.avail_in) as usize, (room - self.z.avail_out) as usize);
        (self.z.avail_in, self.z.avail_out) = (0, 0);
        Ran { code, read, written }
    }

    /// Sets a dictionary; returns zlib's code.
    pub fn set_dictionary(&mut self, bytes: &[u8]) -> c_int {
        let Ok(length) = c_uint::try_from(bytes.len()) else { return Z_STREAM_ERROR };
        if !self.is_open {
            return Z_STREAM_ERROR;
        }
        // SAFETY: the stream is open and of this direction; pointer and length are those of a slice.
        unsafe { (libz().set_dictionary[self.direction as usize])(&raw mut *self.z, bytes.as_ptr(), length) }
    }

    /// Creates a second stream in the same state; the error is the one that zlib reports.
    pub fn copy(&mut self) -> Result<Stream, Failed> {
        let mut copy = Stream::closed(self.direction);
        if !self.is_open {
            return Err(self.failed(Z_STREAM_ERROR));
        }
        // SAFETY: the stream is open, and the new z_stream stays in its box.
        let code = unsafe { (libz().copy[self.direction as usize])(&raw mut *copy.z, &raw mut *self.z) };
        copy.opened(code)
    }

    /// Ends the stream and frees its memory; returns zlib's code.
    pub fn end(&mut self) -> c_int {
        if !std::mem::take(&mut self.is_open) {
            return Z_OK;
        }
        // SAFETY: the stream is open and of this direction, and was just marked as ended.
        unsafe { (libz().end[self.direction as usize])(&raw mut *self.z) }
    }

    /// Returns true until the stream has ended.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns an error with this code and the text that the library has for it.
    pub fn failed(&self, code: c_int) -> Failed {
        let text = ptr::NonNull::new(self.z.msg.cast_mut());
        // SAFETY: zlib sets `msg` to a constant string of the library, or to null.
        let text = text.map(|text| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned());
        Failed { code, text: text.filter(|text| !text.is_empty()) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end();
    }
}

/// An error of zlib.
#[derive(Clone, Debug)]
pub struct Failed {
    pub code: c_int,
    /// Text that the library has set.
    pub text: Option<String>,
}
