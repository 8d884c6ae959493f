// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ISA-L's deflate as a rival, by dlopen: one stateless call per message, as a program would use it that knows ISA-L.
//!
//! - **Layout** the public head of struct isal_zstream; what follows is ISA-L's own and covered by [`STREAM_BYTES`]
//! - **Order** isal_deflate_stateless_init · fields · isal_deflate_stateless; stream and level buffer are reused, untouched between messages
//! - **Owner** the library stays loaded until the process ends
//!
//! Source: igzip_lib.h of ISA-L 2.30 (layout, sizes of level buffers).

use core::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use libloading::os::unix::Library;

use super::corpus;
use crate::BenchError;

const COMP_OK: c_int = 0;
const IGZIP_GZIP: u16 = 1;
/// Levels that are measured, from the fastest to the smallest output.
pub const LEVELS: [u32; 4] = [0, 1, 2, 3];
/// Bytes of ISAL_DEF_LVLn_DEFAULT, by level.
const LEVEL_BUFFER_BYTES: [usize; 4] = [0, 282_624, 331_776, 348_160];
/// More than sizeof(struct isal_zstream), which is 82384 in 2.30.
const STREAM_BYTES: usize = 256 << 10;

/// The head of struct isal_zstream.
#[repr(C)]
struct Head {
    next_in: *const u8,
    avail_in: u32,
    total_in: u32,
    next_out: *mut u8,
    avail_out: u32,
    total_out: u32,
    hufftables: *mut c_void,
    level: u32,
    level_buf_size: u32,
    level_buf: *mut u8,
    end_of_stream: u16,
    flush: u16,
    gzip_flag: u16,
    hist_bits: u16,
}

const _: () = assert!(offset_of!(Head, level) == 40 && offset_of!(Head, gzip_flag) == 60);

type Init = unsafe extern "C" fn(*mut Head);
type Deflate = unsafe extern "C" fn(*mut Head) -> c_int;

/// libisal.so.2 and its state for one thread.
#[derive(Debug)]
pub struct Isal {
    init: Init,
    deflate: Deflate,
    stream: Vec<u128>,
    level_buffer: Vec<u128>,
}

impl Isal {
    /// Loads it: installed, or as corpora/fetch left it; a run that is not `quick` fetches it. The error says what to install.
    pub fn open(quick: bool) -> Result<Isal, String> {
        let missing = |error| format!("libisal.so.2 is missing: sudo apt install libisal2 ({error})");
        let fetched = corpus::fetched("libisal2").map_err(|error| error.to_string())?;
        let fetched = fetched.join(format!("usr/lib/{}-linux-gnu/libisal.so.2", std::env::consts::ARCH));
        // SAFETY: loading ISA-L runs no code of consequence, and it stays loaded for ever.
        let load = || unsafe { Library::new("libisal.so.2").or_else(|_| Library::new(&fetched)) };
        let library = load().or_else(|error| {
            if quick {
                return Err(error);
            }
            corpus::fetch();
            load()
        });
        let library = library.map_err(missing)?;
        // SAFETY: the types are those that igzip_lib.h declares for these names.
        let isal = unsafe {
            Isal {
                init: *library.get(b"isal_deflate_stateless_init").map_err(missing)?,
                deflate: *library.get(b"isal_deflate_stateless").map_err(missing)?,
                stream: vec![0; STREAM_BYTES / size_of::<u128>()],
                level_buffer: vec![0; LEVEL_BUFFER_BYTES[3].div_ceil(size_of::<u128>())],
            }
        };
        std::mem::forget(library);
        Ok(isal)
    }

    /// One gzip message; gives the bytes written.
    pub fn pack(&mut self, level: u32, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        let stream: *mut Head = self.stream.as_mut_ptr().cast();
        let level_buf_size = LEVEL_BUFFER_BYTES[level as usize] as u32;
        // SAFETY: the stream is larger than ISA-L's structure and begins as `Head` says; buffers are live and as long
        // as stated; the level buffer is as large as the level wants, and 16-byte aligned.
        let result = unsafe {
            (self.init)(stream);
            (*stream).end_of_stream = 1;
            (*stream).gzip_flag = IGZIP_GZIP;
            (*stream).level = level;
            (*stream).level_buf_size = level_buf_size;
            (*stream).level_buf =
                if level == 0 { ptr::null_mut() } else { self.level_buffer.as_mut_ptr().cast() };
            (*stream).next_in = source.as_ptr();
            (*stream).avail_in = source.len() as u32;
            (*stream).next_out = target.as_mut_ptr();
            (*stream).avail_out = target.len() as u32;
            (self.deflate)(stream)
        };
        if result != COMP_OK {
            return Err(BenchError::Engine { reason: format!("isal_deflate_stateless gave {result}") });
        }
        // SAFETY: the stream was initialised above.
        Ok(unsafe { (*stream).total_out } as usize)
    }
}
