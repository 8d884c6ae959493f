// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces functions of libz and libcrypto's EVP: each call is passed to the library that its caller would have called.
//!
//! - **Flow** the entry point ([`crate::entry`]) adds the caller's address as one more argument and jumps to `…_from`, which finds the
//!   replaced function ([`crate::real`]), calls it, and records the bytes that it read and wrote. Calls below the threshold are only
//!   counted; calls that a library makes of itself are only passed on.
//! - **Order** deflateInit_ and deflateInit2_, gzopen and gzdopen only store the stream's level, for the records of its later calls.
//! - **Layout** `z_stream` of zlib.h: next_in 0, avail_in 8, next_out 24, avail_out 32.
//! - **Rule** if no library has the function, the result is that for wrong arguments: -2 (Z_STREAM_ERROR), 0 from EVP, null and 0 from gz.
//! - **Not here** copies of a library that are linked into a program, and functions that a program got by dlsym: these calls do not pass
//!   here.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulong, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use memlift_spec::formats::trace::{Kind, Packing};

use crate::entry::entries;
use crate::real::function;
use crate::sink::{Touched, mark_if_due, timed, within_call};
use crate::thread::{COUNTED, current};

const Z_STREAM_ERROR: c_int = -2;
const Z_FINISH: u8 = 4;

/// Table of streams: the address shifted left by eight bits, [`FLUSHED`] if a flush was seen, and the level + 2. A new stream
/// replaces the one that had the same slot.
static LEVELS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn place_of(stream: usize) -> &'static AtomicU64 {
    &LEVELS[(stream >> 4 ^ stream >> 14) % LEVELS.len()]
}

const FLUSHED: u64 = 1 << 7;

/// Returns how a stream packs, as far as that is known.
fn packing_of(stream: usize, flush: c_int) -> Packing {
    let flush = flush as u8;
    let flushes = matches!(flush, 1 | 2 | 3 | 5);
    let word = place_of(stream).load(Relaxed);
    if word >> 8 != stream as u64 {
        return Packing { flush, level: None, flushed: flushes };
    }
    if flushes {
        place_of(stream).store(word | FLUSHED, Relaxed);
    }
    Packing { flush, level: Some((word & 0x7f) as i8 - 2), flushed: flushes || word & FLUSHED != 0 }
}

/// Smaller calls are only counted; before the trace is mapped, all are.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on, records calls of at least `bytes` bytes.
pub fn begin(bytes: usize) {
    THRESHOLD.store(bytes, Relaxed);
}

/// Counts, records or only passes one call, which returns to `caller`.
fn call<R>(
    kind: Kind,
    parameter: u32,
    caller: usize,
    bytes: usize,
    real: impl FnOnce() -> R,
    touched: impl FnOnce(&R) -> Touched,
) -> R {
    let (thread, here) = (current(), 0u8);
    let here = &raw const here as usize;
    if within_call(thread, here) {
        return real();
    }
    if bytes < THRESHOLD.load(Relaxed) {
        if let Some(place) = COUNTED.iter().position(|one| *one == kind)
            && thread.count(place, bytes)
        {
            mark_if_due(thread);
        }
        return real();
    }
    let real = || {
        thread.outer.store(here, Relaxed);
        let result = real();
        thread.outer.store(0, Relaxed);
        result
    };
    timed(kind, parameter, caller, bytes, real, touched)
}

entries! {
    deflate => deflate_from, "rdx";
    inflate => inflate_from, "rdx";
    compress => compress_from, "r8";
    compress2 => compress2_from, "r9";
    uncompress => uncompress_from, "r8";
    gzopen => gzopen_from, "rdx";
    gzopen64 => gzopen64_from, "rdx";
    gzdopen => gzdopen_from, "rdx";
    gzwrite => gzwrite_from, "rcx";
    gzfwrite => gzfwrite_from, "r8";
    gzputs => gzputs_from, "rdx";
    EVP_EncryptUpdate => encrypt_from, "r9";
    EVP_DecryptUpdate => decrypt_from, "r9";
    EVP_CipherUpdate => cipher_from, "r9";
    EVP_DigestUpdate => digest_from, "rcx";
}

// These functions have arguments on the stack, so the caller's address cannot be added: they store the level, and jump.
macro_rules! inits {
    ($($name:ident => $from:ident;)*) => {$(
        /// # Safety
        /// The conditions of the library's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "sub rsp, 8",
                "mov rdx, qword ptr [rsp + 56]",
                "call {}",
                "add rsp, 8", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2: mov eax, {none}",
                "ret",
                sym $from, none = const Z_STREAM_ERROR,
            )
        }

        unsafe extern "C" fn $from(stream: usize, level: c_int, caller: usize) -> *const c_void {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
            let level = (level.clamp(-1, 9) + 2) as u64;
            place_of(stream).store((stream as u64) << 8 | level, Relaxed);
            function(NAME, caller, $name as *const () as usize)
        }
    )*};
}

inits! {
    deflateInit_ => init_from;
    deflateInit2_ => init2_from;
}

#[repr(C)]
struct Stream {
    next_in: *const c_uchar,
    avail_in: c_uint,
    total_in: c_ulong,
    next_out: *mut c_uchar,
    avail_out: c_uint,
}

const _: () = assert!(core::mem::offset_of!(Stream, next_out) == 24);

type StreamFn = unsafe extern "C" fn(*mut Stream, c_int) -> c_int;

/// Calls and records a function that takes a stream and a flush.
///
/// # Safety
/// The conditions of zlib: `stream` was initialized by its library, or is null.
unsafe fn stream(
    kind: Kind,
    name: &'static CStr,
    ours: usize,
    stream: *mut Stream,
    flush: c_int,
    caller: usize,
) -> c_int {
    let real = function(name, caller, ours);
    if real.is_null() {
        return Z_STREAM_ERROR;
    }
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real = || unsafe { core::mem::transmute::<*const c_void, StreamFn>(real)(stream, flush) };
    // SAFETY: the stream is null, or the caller's, which nobody else uses during the call; it is read before and after.
    let state = || unsafe {
        stream.as_ref().map_or((0, 0, 0, 0), |stream| {
            (
                stream.next_in as usize,
                stream.avail_in as usize,
                stream.next_out as usize,
                stream.avail_out as usize,
            )
        })
    };
    let (source, input, target, room) = state();
    let parameter = if kind == Kind::Deflate { packing_of(stream as usize, flush).encode() } else { 0 };
    call(kind, parameter, caller, input.max(1), real, |_| {
        let (_, left, _, free) = state();
        Touched { source, target, read: input.saturating_sub(left), written: room.saturating_sub(free) }
    })
}

unsafe extern "C" fn deflate_from(strm: *mut Stream, flush: c_int, caller: usize) -> c_int {
    // SAFETY: the arguments are those of the caller, who guarantees zlib's conditions.
    unsafe { stream(Kind::Deflate, c"deflate", deflate as *const () as usize, strm, flush, caller) }
}

unsafe extern "C" fn inflate_from(strm: *mut Stream, flush: c_int, caller: usize) -> c_int {
    // SAFETY: the arguments are those of the caller, who guarantees zlib's conditions.
    unsafe { stream(Kind::Inflate, c"inflate", inflate as *const () as usize, strm, flush, caller) }
}

type WholeFn = unsafe extern "C" fn(*mut c_uchar, *mut c_ulong, *const c_uchar, c_ulong, c_int) -> c_int;

/// Calls and records compress, compress2 or uncompress. compress and uncompress have four arguments and ignore the fifth.
///
/// # Safety
/// The conditions of zlib's function.
unsafe fn whole(
    kind: Kind,
    name: &'static CStr,
    ours: usize,
    arguments: (*mut c_uchar, *mut c_ulong, *const c_uchar, c_ulong, c_int),
    caller: usize,
) -> c_int {
    let real = function(name, caller, ours);
    if real.is_null() {
        return Z_STREAM_ERROR;
    }
    let (target, written, source, bytes, level) = arguments;
    // SAFETY: the library's function of this name has this type, except for a fifth argument that it may ignore; the arguments
    // are the caller's.
    let real = || unsafe {
        core::mem::transmute::<*const c_void, WholeFn>(real)(target, written, source, bytes, level)
    };
    let packing = Packing { flush: Z_FINISH, level: Some(level.clamp(-1, 9) as i8), flushed: false };
    let parameter = if kind == Kind::Deflate { packing.encode() } else { 0 };
    call(kind, parameter, caller, bytes as usize, real, |result| {
        // SAFETY: `written` is null, or the caller's number, which the library has written.
        let written = if *result == 0 { unsafe { written.as_ref() }.copied().unwrap_or(0) } else { 0 };
        Touched {
            source: source as usize,
            target: target as usize,
            read: bytes as usize,
            written: written as usize,
        }
    })
}

unsafe extern "C" fn compress_from(
    target: *mut c_uchar,
    written: *mut c_ulong,
    source: *const c_uchar,
    bytes: c_ulong,
    caller: usize,
) -> c_int {
    let ours = compress as *const () as usize;
    // SAFETY: the arguments are those of the caller, who guarantees zlib's conditions.
    unsafe { whole(Kind::Deflate, c"compress", ours, (target, written, source, bytes, -1), caller) }
}

unsafe extern "C" fn compress2_from(
    target: *mut c_uchar,
    written: *mut c_ulong,
    source: *const c_uchar,
    bytes: c_ulong,
    level: c_int,
    caller: usize,
) -> c_int {
    let ours = compress2 as *const () as usize;
    // SAFETY: the arguments are those of the caller, who guarantees zlib's conditions.
    unsafe { whole(Kind::Deflate, c"compress2", ours, (target, written, source, bytes, level), caller) }
}

unsafe extern "C" fn uncompress_from(
    target: *mut c_uchar,
    written: *mut c_ulong,
    source: *const c_uchar,
    bytes: c_ulong,
    caller: usize,
) -> c_int {
    let ours = uncompress as *const () as usize;
    // SAFETY: the arguments are those of the caller, who guarantees zlib's conditions.
    unsafe { whole(Kind::Inflate, c"uncompress", ours, (target, written, source, bytes, 0), caller) }
}

/// Returns the level in a mode of gzopen; -1 if there is none.
///
/// # Safety
/// `mode` is null, or a C string.
unsafe fn level_of(mode: *const c_char) -> c_int {
    let mut level = -1;
    if mode.is_null() {
        return level;
    }
    for at in 0..16 {
        // SAFETY: the loop ends at the string's zero, so `at` is not behind it.
        let letter = unsafe { mode.add(at).read() };
        match letter as u8 {
            0 => break,
            digit @ b'0'..=b'9' => level = c_int::from(digit - b'0'),
            _ => {}
        }
    }
    level
}

fn note_level(stream: *mut c_void, level: c_int) {
    let level = (level.clamp(-1, 9) + 2) as u64;
    place_of(stream as usize).store((stream as u64) << 8 | level, Relaxed);
}

type OpenFn = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
type OpenDescriptorFn = unsafe extern "C" fn(c_int, *const c_char) -> *mut c_void;

macro_rules! opens {
    ($($from:ident, $ours:ident, $name:literal, $first:ty, $type:ty;)+) => {$(
        unsafe extern "C" fn $from(first: $first, mode: *const c_char, caller: usize) -> *mut c_void {
            let real = function($name, caller, $ours as *const () as usize);
            if real.is_null() {
                return core::ptr::null_mut();
            }
            // SAFETY: the library's function of this name has this type; the arguments are the caller's.
            let stream = unsafe { core::mem::transmute::<*const c_void, $type>(real)(first, mode) };
            if !stream.is_null() {
                // SAFETY: the library has accepted the mode, so it is a C string.
                note_level(stream, unsafe { level_of(mode) });
            }
            stream
        }
    )+};
}

opens! {
    gzopen_from, gzopen, c"gzopen", *const c_char, OpenFn;
    gzopen64_from, gzopen64, c"gzopen64", *const c_char, OpenFn;
    gzdopen_from, gzdopen, c"gzdopen", c_int, OpenDescriptorFn;
}

/// Records a write to a .gz file. The library packs the bytes when its buffer is full, so the packed size is not known.
fn gz_write<R>(
    stream: *mut c_void,
    source: usize,
    bytes: usize,
    caller: usize,
    real: impl FnOnce() -> R,
) -> R {
    let parameter = packing_of(stream as usize, 0).encode();
    call(Kind::Deflate, parameter, caller, bytes, real, |_| Touched {
        source,
        target: 0,
        read: bytes,
        written: 0,
    })
}

type WriteFn = unsafe extern "C" fn(*mut c_void, *const c_void, c_uint) -> c_int;
type WriteItemsFn = unsafe extern "C" fn(*const c_void, usize, usize, *mut c_void) -> usize;
type PutsFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;

unsafe extern "C" fn gzwrite_from(
    stream: *mut c_void,
    source: *const c_void,
    bytes: c_uint,
    caller: usize,
) -> c_int {
    let real = function(c"gzwrite", caller, gzwrite as *const () as usize);
    if real.is_null() {
        return 0;
    }
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real = || unsafe { core::mem::transmute::<*const c_void, WriteFn>(real)(stream, source, bytes) };
    gz_write(stream, source as usize, bytes as usize, caller, real)
}

unsafe extern "C" fn gzfwrite_from(
    source: *const c_void,
    size: usize,
    items: usize,
    stream: *mut c_void,
    caller: usize,
) -> usize {
    let real = function(c"gzfwrite", caller, gzfwrite as *const () as usize);
    if real.is_null() {
        return 0;
    }
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real =
        || unsafe { core::mem::transmute::<*const c_void, WriteItemsFn>(real)(source, size, items, stream) };
    gz_write(stream, source as usize, size.saturating_mul(items), caller, real)
}

unsafe extern "C" fn gzputs_from(stream: *mut c_void, text: *const c_char, caller: usize) -> c_int {
    let real = function(c"gzputs", caller, gzputs as *const () as usize);
    if real.is_null() {
        return -1;
    }
    // SAFETY: the text is null, or the caller's C string.
    let bytes = if text.is_null() { 0 } else { unsafe { CStr::from_ptr(text) }.count_bytes() };
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real = || unsafe { core::mem::transmute::<*const c_void, PutsFn>(real)(stream, text) };
    gz_write(stream, text as usize, bytes, caller, real)
}

type CipherFn = unsafe extern "C" fn(*mut c_void, *mut c_uchar, *mut c_int, *const c_uchar, c_int) -> c_int;
type Cipher = (*mut c_void, *mut c_uchar, *mut c_int, *const c_uchar, c_int);

/// Calls and records an update of a cipher.
///
/// # Safety
/// The conditions of OpenSSL's function.
unsafe fn cipher(kind: Kind, name: &'static CStr, ours: usize, arguments: Cipher, caller: usize) -> c_int {
    let real = function(name, caller, ours);
    if real.is_null() {
        return 0;
    }
    let (context, target, written, source, bytes) = arguments;
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real = || unsafe {
        core::mem::transmute::<*const c_void, CipherFn>(real)(context, target, written, source, bytes)
    };
    let bytes = usize::try_from(bytes).unwrap_or(0);
    call(kind, 0, caller, bytes, real, |result| Touched {
        source: source as usize,
        target: target as usize,
        read: bytes,
        // Without a target the bytes are only authenticated.
        written: if target.is_null() || *result != 1 { 0 } else { bytes },
    })
}

macro_rules! ciphers {
    ($($from:ident, $kind:ident, $ours:ident;)+) => {$(
        unsafe extern "C" fn $from(
            context: *mut c_void,
            target: *mut c_uchar,
            written: *mut c_int,
            source: *const c_uchar,
            bytes: c_int,
            caller: usize,
        ) -> c_int {
            // The name as a C string.
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($ours), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
            let ours = $ours as *const () as usize;
            // SAFETY: the arguments are those of the caller, who guarantees OpenSSL's conditions.
            unsafe { cipher(Kind::$kind, NAME, ours, (context, target, written, source, bytes), caller) }
        }
    )+};
}

// EVP_CipherUpdate encrypts or decrypts, depending on its context. Both cost the same, and it is recorded as encrypting.
ciphers! {
    encrypt_from, Encrypt, EVP_EncryptUpdate;
    decrypt_from, Decrypt, EVP_DecryptUpdate;
    cipher_from, Encrypt, EVP_CipherUpdate;
}

unsafe extern "C" fn digest_from(
    context: *mut c_void,
    source: *const c_void,
    bytes: usize,
    caller: usize,
) -> c_int {
    type DigestFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
    let real = function(c"EVP_DigestUpdate", caller, EVP_DigestUpdate as *const () as usize);
    if real.is_null() {
        return 0;
    }
    // SAFETY: the library's function of this name has this type; the arguments are the caller's.
    let real = || unsafe { core::mem::transmute::<*const c_void, DigestFn>(real)(context, source, bytes) };
    call(Kind::Digest, 0, caller, bytes, real, |_| Touched {
        source: source as usize,
        target: 0,
        read: bytes,
        written: 0,
    })
}
