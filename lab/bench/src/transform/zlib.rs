// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system's zlib as a rival, by dlopen: what nginx's gzip filter and a decoder do with it for one message.
//!
//! - **Pack** deflateInit2 · deflate(Z_FINISH) · deflateEnd, level 6, gzip. Window and memory level shrink with the message, and the
//!   memory is one block per message that zlib's allocations are carved from: as in nginx's filter, which takes it
//!   from the request's pool. The output buffer is one piece; nginx's are chained, so this favours the rival.
//! - **Unpack** inflateInit2 · inflate(Z_FINISH) · inflateEnd
//! - **Owner** the library stays loaded until the process ends
//!
//! Source: nginx, ngx_http_gzip_filter_module.c (sizes); zlib.h (layout of z_stream).

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr;

use libloading::os::unix::Library;

use crate::BenchError;
use memlift_cli::zlib_h::{DeflateInit2, End, InflateInit2, Run, Stream, Z_FINISH, Z_STREAM_END, stream};

const Z_OK: c_int = 0;
const Z_DEFLATED: c_int = 8;
const GZIP_WINDOW_BITS: c_int = 16;
const LEVEL: c_int = 6;

/// Functions of the system's libz.so.1.
#[derive(Clone, Copy, Debug)]
pub struct Zlib {
    deflate_init2: DeflateInit2,
    deflate: Run,
    deflate_end: End,
    inflate_init2: InflateInit2,
    inflate: Run,
    inflate_end: End,
    version: &'static CStr,
}

impl Zlib {
    /// Loads it. The error says what to install.
    pub fn open() -> Result<Zlib, String> {
        let missing = |error| format!("libz.so.1 is missing: sudo apt install zlib1g ({error})");
        // SAFETY: loading the system's zlib runs no code of consequence, and it stays loaded for ever.
        let library = unsafe { Library::new("libz.so.1") }.map_err(missing)?;
        // SAFETY: the types are those that zlib.h declares for these names.
        let zlib = unsafe {
            let version =
                *library.get::<unsafe extern "C" fn() -> *const c_char>(b"zlibVersion").map_err(missing)?;
            Zlib {
                deflate_init2: *library.get(b"deflateInit2_").map_err(missing)?,
                deflate: *library.get(b"deflate").map_err(missing)?,
                deflate_end: *library.get(b"deflateEnd").map_err(missing)?,
                inflate_init2: *library.get(b"inflateInit2_").map_err(missing)?,
                inflate: *library.get(b"inflate").map_err(missing)?,
                inflate_end: *library.get(b"inflateEnd").map_err(missing)?,
                version: CStr::from_ptr(version()),
            }
        };
        std::mem::forget(library);
        Ok(zlib)
    }

    /// Returns `zlib` and its version.
    pub fn version(&self) -> String {
        format!("zlib {}", self.version.to_string_lossy())
    }

    /// One message as nginx packs it; gives the bytes written.
    pub fn pack(&self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        let (window_bits, memory_level) = nginx_sizes(source.len());
        let mut block = Block::new(8192 + (1 << (window_bits + 2)) + (1 << (memory_level + 9)));
        let mut stream = stream(source, target);
        stream.zalloc = Some(carve);
        stream.zfree = Some(keep);
        stream.opaque = ptr::from_mut(&mut block).cast();
        // SAFETY: the stream is laid out as zlib.h says and describes live buffers; the block outlives the stream's use,
        // which ends with deflateEnd.
        let result = unsafe {
            let began = (self.deflate_init2)(
                &mut stream,
                LEVEL,
                Z_DEFLATED,
                window_bits + GZIP_WINDOW_BITS,
                memory_level,
                0,
                self.version.as_ptr(),
                size_of::<Stream>() as c_int,
            );
            if began != Z_OK {
                return Err(failed("deflateInit2", began));
            }
            let result = (self.deflate)(&mut stream, Z_FINISH);
            (self.deflate_end)(&mut stream);
            result
        };
        if result == Z_STREAM_END { Ok(stream.total_out as usize) } else { Err(failed("deflate", result)) }
    }

    /// One gzip message; gives the bytes written.
    pub fn unpack(&self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        let mut stream = stream(source, target);
        // SAFETY: the stream is laid out as zlib.h says and describes live buffers; without zalloc zlib takes malloc.
        let result = unsafe {
            let began = (self.inflate_init2)(
                &mut stream,
                15 + GZIP_WINDOW_BITS,
                self.version.as_ptr(),
                size_of::<Stream>() as c_int,
            );
            if began != Z_OK {
                return Err(failed("inflateInit2", began));
            }
            let result = (self.inflate)(&mut stream, Z_FINISH);
            (self.inflate_end)(&mut stream);
            result
        };
        if result == Z_STREAM_END { Ok(stream.total_out as usize) } else { Err(failed("inflate", result)) }
    }

    /// Fails unless `packed` unpacks to `source`.
    pub fn verify(&self, name: &str, who: &str, packed: &[u8], source: &[u8]) -> Result<(), BenchError> {
        let mut target = vec![0; source.len() + 1];
        let wrong = || BenchError::Wrong { name: name.to_owned(), rival: who.to_owned() };
        let bytes = self.unpack(packed, &mut target).map_err(|_| wrong())?;
        if target[..bytes] == *source { Ok(()) } else { Err(wrong()) }
    }
}

fn failed(what: &'static str, code: c_int) -> BenchError {
    BenchError::Engine { reason: format!("zlib's {what} gave {code}") }
}

/// Window bits and memory level for a response of known length.
fn nginx_sizes(bytes: usize) -> (c_int, c_int) {
    let (mut window_bits, mut memory_level) = (15, 8);
    while window_bits > 9 && bytes < (1 << (window_bits - 1)) - 262 {
        window_bits -= 1;
        memory_level -= 1;
    }
    (window_bits, memory_level.max(1))
}

/// One malloc per message, from which zlib's allocations are carved.
struct Block {
    start: *mut u8,
    layout: Layout,
    used: usize,
}

impl Block {
    fn new(bytes: usize) -> Block {
        let layout = Layout::from_size_align(bytes, 16).expect("a small, aligned size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        Block { start, layout, used: 0 }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: allocated with this layout, and whoever carved from it has ended its stream.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}

unsafe extern "C" fn carve(opaque: *mut c_void, items: c_uint, size: c_uint) -> *mut c_void {
    // SAFETY: opaque is the block that `pack` passed, alive and borrowed by nobody else during the call.
    let block = unsafe { &mut *opaque.cast::<Block>() };
    let bytes = (items as usize * size as usize).next_multiple_of(16);
    if block.start.is_null() || bytes > block.layout.size() - block.used {
        return ptr::null_mut();
    }
    // SAFETY: `used` and what follows lie inside the block, as compared above.
    let start = unsafe { block.start.add(block.used) };
    block.used += bytes;
    start.cast()
}

unsafe extern "C" fn keep(_opaque: *mut c_void, _address: *mut c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_wrong_ones_are_found() {
        let zlib = Zlib::open().expect("libz.so.1");
        let source: Vec<u8> = (0..20_000_u32).map(|index| ((index * index) >> 7) as u8).collect();
        for bytes in [0, 1, 255, 4096, 16_384, 20_000] {
            let mut packed = vec![0; bytes + 1024];
            let length = zlib.pack(&source[..bytes], &mut packed).expect("packs");
            zlib.verify("x", "y", &packed[..length], &source[..bytes]).expect("the same bytes");
            packed[length / 2] ^= 8;
            assert!(zlib.verify("x", "y", &packed[..length], &source[..bytes]).is_err());
        }
    }

    #[test]
    fn sizes_are_those_of_nginx() {
        assert_eq!(nginx_sizes(4096), (13, 6));
        assert_eq!(nginx_sizes(16_384), (15, 8));
        assert_eq!(nginx_sizes(100_000), (15, 8));
        assert_eq!(nginx_sizes(1), (9, 2));
    }
}
