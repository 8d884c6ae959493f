// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One libz of two: the system's, and memlift's drop-in, both by dlopen and called through the same functions of zlib.h.
//!
//! - **Order** the system's is loaded first and stays: a library that is asked for by name is the first one loaded that calls itself so, and the
//!   drop-in calls itself `libz.so.1` too.
//! - **Owner** both stay loaded until the process ends; a [`Packing`] ends its stream when it is dropped.

use core::ffi::{CStr, c_char, c_int, c_uint};
use std::ffi::OsStr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::BenchError;
use memlift_cli::libraries::Dropin;
use memlift_cli::zlib_h::{DeflateInit2, End, InflateInit2, Run, Stream, Z_FINISH, Z_STREAM_END, stream};

const Z_OK: c_int = 0;
const Z_SYNC_FLUSH: c_int = 2;
const Z_DEFLATED: c_int = 8;
const MEMORY_LEVEL: c_int = 8;
/// Raw deflate with the largest window.
const WINDOW_BITS: c_int = -15;

/// Functions of one libz.
#[derive(Clone, Copy, Debug)]
pub struct Libz {
    deflate_init2: DeflateInit2,
    deflate: Run,
    deflate_reset: End,
    deflate_end: End,
    inflate_init2: InflateInit2,
    inflate: Run,
    inflate_end: End,
    version: &'static CStr,
}

impl Libz {
    /// Loads the drop-in and the system's. The error says what to install.
    pub fn both() -> Result<[Libz; 2], String> {
        let missing = |error: String| format!("libz.so.1 is missing: sudo apt install zlib1g ({error})");
        let theirs = Libz::load(OsStr::new("libz.so.1")).map_err(missing)?;
        let path = Dropin::Libz.find().ok_or_else(|| Dropin::Libz.advice())?;
        let ours = Libz::load(path.as_os_str())?;
        if core::ptr::fn_addr_eq(ours.deflate, theirs.deflate) {
            return Err(
                "the system's libz.so.1 is memlift's: unset LD_PRELOAD and LD_LIBRARY_PATH".to_owned()
            );
        }
        Ok([ours, theirs])
    }

    fn load(name: &OsStr) -> Result<Libz, String> {
        let text = |error: libloading::Error| error.to_string();
        // SAFETY: loading a libz runs no code of consequence, and it stays loaded for ever.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(text)?;
        // SAFETY: the types are those that zlib.h declares for these names.
        let libz = unsafe {
            let version =
                *library.get::<unsafe extern "C" fn() -> *const c_char>(b"zlibVersion").map_err(text)?;
            Libz {
                deflate_init2: *library.get(b"deflateInit2_").map_err(text)?,
                deflate: *library.get(b"deflate").map_err(text)?,
                deflate_reset: *library.get(b"deflateReset").map_err(text)?,
                deflate_end: *library.get(b"deflateEnd").map_err(text)?,
                inflate_init2: *library.get(b"inflateInit2_").map_err(text)?,
                inflate: *library.get(b"inflate").map_err(text)?,
                inflate_end: *library.get(b"inflateEnd").map_err(text)?,
                version: CStr::from_ptr(version()),
            }
        };
        std::mem::forget(library);
        Ok(libz)
    }

    /// Returns `zlib` and its version.
    pub fn version(&self) -> String {
        format!("zlib {}", self.version.to_string_lossy())
    }

    /// A stream that packs at this level.
    pub fn packing(&self, level: u32) -> Result<Packing, BenchError> {
        let mut stream = Box::new(stream(&[], &mut []));
        // SAFETY: the stream is laid out as zlib.h says, and stays where it is until it is ended.
        let code = unsafe {
            (self.deflate_init2)(
                &mut *stream,
                level as c_int,
                Z_DEFLATED,
                WINDOW_BITS,
                MEMORY_LEVEL,
                0,
                self.version.as_ptr(),
                size_of::<Stream>() as c_int,
            )
        };
        if code == Z_OK { Ok(Packing { libz: *self, stream }) } else { Err(failed("deflateInit2", code)) }
    }

    /// Unpacks raw deflate into `target` as far as it goes. Returns the bytes written.
    pub fn unpack(&self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        let mut stream = stream(source, target);
        // SAFETY: the stream is laid out as zlib.h says and describes live buffers.
        let code = unsafe {
            let began = (self.inflate_init2)(
                &mut stream,
                WINDOW_BITS,
                self.version.as_ptr(),
                size_of::<Stream>() as c_int,
            );
            if began != Z_OK {
                return Err(failed("inflateInit2", began));
            }
            let code = (self.inflate)(&mut stream, Z_SYNC_FLUSH);
            (self.inflate_end)(&mut stream);
            code
        };
        match code {
            Z_OK | Z_STREAM_END => Ok(stream.total_out as usize),
            code => Err(failed("inflate", code)),
        }
    }
}

/// A stream that packs.
pub struct Packing {
    libz: Libz,
    stream: Box<Stream>,
}

impl Packing {
    /// Begins the next stream.
    pub fn reset(&mut self) {
        // SAFETY: the stream was initialized, and lives.
        unsafe { (self.libz.deflate_reset)(&mut *self.stream) };
    }

    /// One message of a stream, flushed. Returns the bytes written.
    pub fn flush(&mut self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        self.run(source, target, Z_SYNC_FLUSH, Z_OK)
    }

    /// The last message of a stream. Returns the bytes written.
    pub fn finish(&mut self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        self.run(source, target, Z_FINISH, Z_STREAM_END)
    }

    fn run(
        &mut self,
        source: &[u8],
        target: &mut [u8],
        flush: c_int,
        wanted: c_int,
    ) -> Result<usize, BenchError> {
        (self.stream.next_in, self.stream.avail_in) = (source.as_ptr(), source.len() as c_uint);
        (self.stream.next_out, self.stream.avail_out) = (target.as_mut_ptr(), target.len() as c_uint);
        // SAFETY: the stream was initialized, and describes live buffers.
        let code = unsafe { (self.libz.deflate)(&mut *self.stream, flush) };
        let room = self.stream.avail_out as usize;
        if code == wanted && room != 0 { Ok(target.len() - room) } else { Err(failed("deflate", code)) }
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        // SAFETY: the stream was initialized, and is not used any more.
        unsafe { (self.libz.deflate_end)(&mut *self.stream) };
    }
}

fn failed(what: &'static str, code: c_int) -> BenchError {
    BenchError::Engine { reason: format!("libz's {what} gave {code}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_messages_come_back() {
        let zlib = Libz::load(OsStr::new("libz.so.1")).expect("libz.so.1");
        let mut packing = zlib.packing(6).expect("a stream");
        let (mut packed, mut used) = (vec![0; 4096], 0);
        for message in [&b"one two three"[..], b"one two four"] {
            used += packing.flush(message, &mut packed[used..]).expect("room");
        }
        let mut target = vec![0; 100];
        let bytes = zlib.unpack(&packed[..used], &mut target).expect("unpacks");
        assert_eq!(&target[..bytes], b"one two threeone two four");
    }
}
