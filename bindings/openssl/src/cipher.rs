// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions that OpenSSL calls for a cipher; [`table`](crate::table) lists them.
//!
//! - **Flow** EVP calls these functions with pointers; they call [`context`](crate::context) and [`record`](crate::record) with slices
//!   and translate a [`Reason`]. A TLS 1.3 record takes five calls and no allocation: init, update (additional data), update, final, get
//!   the tag.
//! - **Order** no panic leaves: every function catches panics, and a context in which one was caught refuses all further calls.
//! - **Owner** OpenSSL owns a context from `newctx` to `freectx`, and uses one context from one thread at a time.
//! - **Layout** unknown parameters are ignored (libssl also sets "tls-version" and "tls-mac-size" on AEAD ciphers).

use crate::abi::*;
use crate::context::{Context, NONCE_BYTES_MAX};
use crate::core::Core;
use crate::param::{each, get_octets, get_size, set_octets, set_octets_or_address, set_unsigned};
use crate::record;
use ::core::ffi::{c_int, c_uchar, c_void};
use ::core::{ptr, slice};
use memlift_kernels::aead::{NONCE_BYTES, TAG_BYTES};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The object behind OpenSSL's handle: a context, and the core that requested it.
struct CipherHandle {
    context: Context,
    core: *const Core,
    broken: bool,
}

impl CipherHandle {
    #[cold]
    fn raise(&self, reason: Reason) -> bool {
        // SAFETY: the core lives until teardown, and OpenSSL tears a provider down after its last context.
        unsafe { (*self.core).raise(reason) }
    }

    #[cold]
    fn fail(&self, reason: Option<Reason>) -> bool {
        if let Some(reason) = reason {
            self.raise(reason);
        }
        false
    }
}

/// Runs `work` on a context; returns 1 if it succeeds, and 0 if it fails or panics.
///
/// # Safety
/// `handle` must be null or come from `newctx`, and be used by this thread only during the call.
#[inline]
unsafe fn with(handle: *mut c_void, work: impl FnOnce(&mut CipherHandle) -> bool) -> c_int {
    // SAFETY: the caller guarantees that `handle` is null, or was boxed by `newctx` and is used by this thread only.
    let Some(handle) = (unsafe { handle.cast::<CipherHandle>().as_mut() }) else { return 0 };
    if handle.broken {
        return 0;
    }
    match catch_unwind(AssertUnwindSafe(|| work(handle))) {
        Ok(done) => c_int::from(done),
        Err(_) => {
            handle.broken = true;
            0
        }
    }
}

pub unsafe extern "C" fn newctx<const KEY_BYTES: usize>(provider: *mut c_void) -> *mut c_void {
    let made = catch_unwind(|| {
        Box::new(CipherHandle { context: Context::new(KEY_BYTES), core: provider.cast(), broken: false })
    });
    made.map_or(ptr::null_mut(), |handle| Box::into_raw(handle).cast())
}

pub unsafe extern "C" fn freectx(handle: *mut c_void) {
    if !handle.is_null() {
        // SAFETY: the box came from `newctx` or `dupctx`, and OpenSSL frees it once. A panic in a drop leaks memory at worst.
        let _ =
            catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(handle.cast::<CipherHandle>()) })));
    }
}

pub unsafe extern "C" fn dupctx(handle: *mut c_void) -> *mut c_void {
    // SAFETY: OpenSSL passes a context that was not freed, or null.
    let Some(handle) = (unsafe { handle.cast::<CipherHandle>().as_ref() }) else { return ptr::null_mut() };
    if handle.broken {
        return ptr::null_mut();
    }
    let made = catch_unwind(AssertUnwindSafe(|| {
        Box::new(CipherHandle { context: handle.context.clone(), core: handle.core, broken: false })
    }));
    made.map_or(ptr::null_mut(), |handle| Box::into_raw(handle).cast())
}

/// Sets direction, key, nonce and parameters of a context.
///
/// # Safety
/// The arguments are those of OpenSSL: `key` and `nonce` are null or as long as given, `params` is null or a list.
#[inline]
unsafe fn init(
    handle: *mut c_void,
    seals: bool,
    (key, key_bytes): (*const c_uchar, usize),
    (nonce, nonce_bytes): (*const c_uchar, usize),
    params: *mut Param,
) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`; `key` and `nonce` are null or as long as given, and `params` is null or a
    // list.
    unsafe {
        with(handle, |handle| {
            let key = (!key.is_null()).then(|| slice::from_raw_parts(key, key_bytes));
            let nonce = (!nonce.is_null()).then(|| slice::from_raw_parts(nonce, nonce_bytes));
            match handle.context.init(seals, key, nonce) {
                Ok(()) => set_all(handle, params),
                Err(reason) => handle.raise(reason),
            }
        })
    }
}

pub unsafe extern "C" fn encrypt_init(
    handle: *mut c_void,
    key: *const c_uchar,
    key_bytes: usize,
    nonce: *const c_uchar,
    nonce_bytes: usize,
    params: *mut Param,
) -> c_int {
    // SAFETY: OpenSSL's arguments fulfil the conditions of `init`.
    unsafe { init(handle, true, (key, key_bytes), (nonce, nonce_bytes), params) }
}

pub unsafe extern "C" fn decrypt_init(
    handle: *mut c_void,
    key: *const c_uchar,
    key_bytes: usize,
    nonce: *const c_uchar,
    nonce_bytes: usize,
    params: *mut Param,
) -> c_int {
    // SAFETY: OpenSSL's arguments fulfil the conditions of `init`.
    unsafe { init(handle, false, (key, key_bytes), (nonce, nonce_bytes), params) }
}

/// Handles one call for additional data (no target), for message bytes, for a record, or for the end (no source).
///
/// # Safety
/// `source` must be null or readable, `target` null or writable, for `bytes` bytes.
#[inline]
unsafe fn process(
    handle: &mut CipherHandle,
    target: *mut c_uchar,
    source: *const c_uchar,
    bytes: usize,
) -> Result<usize, Option<Reason>> {
    let context = &mut handle.context;
    if let Some(additional) = context.record.announced {
        if !ptr::eq(target, source) || target.is_null() {
            context.record.announced = None;
            return Err(None);
        }
        // SAFETY: source and target are the same buffer, so it is readable and writable for `bytes` bytes.
        return unsafe { record::cipher(context, &additional, target, bytes) };
    }
    if source.is_null() {
        return context.finish().map(|()| 0);
    }
    // SAFETY: `source` is not null, so the caller guarantees `bytes` readable bytes; `target` is null or writable for `bytes`
    // bytes.
    let done = unsafe {
        if target.is_null() {
            context.additional(slice::from_raw_parts(source, bytes))
        } else {
            context.update(source, target, bytes)
        }
    };
    if done { Ok(bytes) } else { Err(None) }
}

pub unsafe extern "C" fn update(
    handle: *mut c_void,
    target: *mut c_uchar,
    written_bytes: *mut usize,
    target_bytes: usize,
    source: *const c_uchar,
    bytes: usize,
) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`, buffers of the given lengths, and a writable `written_bytes`.
    unsafe {
        with(handle, |handle| {
            *written_bytes = 0;
            if bytes == 0 {
                return true;
            }
            if target_bytes < bytes {
                return handle.raise(Reason::OutputBufferTooSmall);
            }
            match process(handle, target, source, bytes) {
                Ok(bytes) => {
                    *written_bytes = bytes;
                    true
                }
                Err(reason) => handle.raise(reason.unwrap_or(Reason::CipherOperationFailed)),
            }
        })
    }
}

pub unsafe extern "C" fn finish(
    handle: *mut c_void,
    _target: *mut c_uchar,
    written_bytes: *mut usize,
    _target_bytes: usize,
) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`, a target of the given length, and a writable `written_bytes`.
    unsafe {
        with(handle, |handle| {
            *written_bytes = 0;
            if handle.context.record.announced.take().is_some() {
                return false;
            }
            match handle.context.finish() {
                Ok(()) => true,
                Err(reason) => handle.fail(reason),
            }
        })
    }
}

/// The function of `EVP_Cipher`: does an update, or the end if there is no source.
pub unsafe extern "C" fn cipher(
    handle: *mut c_void,
    target: *mut c_uchar,
    written_bytes: *mut usize,
    target_bytes: usize,
    source: *const c_uchar,
    bytes: usize,
) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`, and buffers of the given lengths.
    unsafe {
        with(handle, |handle| {
            if target_bytes < bytes {
                return handle.raise(Reason::OutputBufferTooSmall);
            }
            match process(handle, target, source, bytes) {
                Ok(_) => {
                    *written_bytes = bytes;
                    true
                }
                Err(reason) => handle.fail(reason),
            }
        })
    }
}

pub unsafe extern "C" fn get_params<const KEY_BYTES: usize>(params: *mut Param) -> c_int {
    // SAFETY: OpenSSL passes null or a list that ends with a null key.
    let done = catch_unwind(|| unsafe {
        each(params, |name, param| {
            let value = match name {
                b"mode" => u64::from(MODE_GCM),
                b"keylen" => KEY_BYTES as u64,
                b"ivlen" => NONCE_BYTES as u64,
                b"blocksize" | b"aead" | b"custom-iv" => 1,
                b"cts" | b"tls-multi" | b"has-randkey" => 0,
                _ => return true,
            };
            set_unsigned(param, value)
        })
    });
    c_int::from(done.unwrap_or(false))
}

pub unsafe extern "C" fn get_ctx_params(handle: *mut c_void, params: *mut Param) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`, and null or a list.
    unsafe { with(handle, |handle| each(params, |name, param| get_one(handle, name, param))) }
}

/// Sets one parameter that OpenSSL asks for; returns false if that fails.
///
/// # Safety
/// `param` must be an entry of a list from OpenSSL.
unsafe fn get_one(handle: &mut CipherHandle, name: &[u8], param: &mut Param) -> bool {
    let context = &mut handle.context;
    let done = match name {
        b"ivlen" => set_unsigned(param, context.nonce_bytes as u64),
        b"keylen" => set_unsigned(param, context.key_bytes as u64),
        b"taglen" => set_unsigned(param, context.tag_bytes.unwrap_or(TAG_BYTES) as u64),
        b"tlsaadpad" => set_unsigned(param, context.record.pad_bytes as u64),
        b"tag" => {
            let Some(made_bytes) = context.tag_bytes.filter(|_| context.seals) else {
                return handle.raise(Reason::TagNotSet);
            };
            let bytes = if param.data.is_null() { made_bytes } else { param.data_bytes };
            if bytes == 0 || bytes > TAG_BYTES {
                return handle.raise(Reason::InvalidTag);
            }
            set_octets(param, &context.tag[..bytes])
        }
        b"iv" | b"updated-iv" => {
            if !context.ensure_nonce() {
                return false;
            }
            let bytes = context.nonce_bytes;
            if param.data_type == OCTET_STRING && !param.data.is_null() && param.data_bytes < bytes {
                return handle.raise(Reason::InvalidIvLength);
            }
            // SAFETY: the nonce lies in the context, which the caller keeps alive while it uses the address.
            unsafe { set_octets_or_address(param, context.nonce_now()) }
        }
        b"tlsivgen" => {
            let bytes = match param.data_bytes {
                0 => context.nonce_bytes,
                more => more.min(context.nonce_bytes),
            };
            if param.data_type != OCTET_STRING || param.data.is_null() {
                return false;
            }
            // SAFETY: the caller has room for the number of bytes requested; 0 requests a whole nonce.
            let target = unsafe { slice::from_raw_parts_mut(param.data.cast::<u8>(), bytes) };
            return record::next_nonce(context, target);
        }
        _ => true,
    };
    done || handle.raise(Reason::FailedToSetParameter)
}

pub unsafe extern "C" fn set_ctx_params(handle: *mut c_void, params: *mut Param) -> c_int {
    // SAFETY: OpenSSL passes a context of `newctx`, and null or a list.
    unsafe { with(handle, |handle| set_all(handle, params)) }
}

/// Takes all parameters of a list.
///
/// # Safety
/// `params` must be null or a list from OpenSSL.
#[inline]
unsafe fn set_all(handle: &mut CipherHandle, params: *mut Param) -> bool {
    // SAFETY: the caller guarantees that `params` is null or a list from OpenSSL.
    unsafe { each(params, |name, param| set_one(handle, name, param)) }
}

/// Takes one parameter; returns false if its value is refused.
///
/// # Safety
/// `param` must be an entry of a list from OpenSSL.
unsafe fn set_one(handle: &mut CipherHandle, name: &[u8], param: &mut Param) -> bool {
    let context = &mut handle.context;
    match name {
        b"tag" => {
            let Some(tag) = get_octets(param).filter(|tag| tag.len() <= TAG_BYTES) else {
                return handle.raise(Reason::FailedToGetParameter);
            };
            if context.seals {
                return handle.raise(Reason::TagNotNeeded);
            }
            if tag.is_empty() {
                return handle.raise(Reason::InvalidTag);
            }
            context.tag[..tag.len()].copy_from_slice(tag);
            context.tag_bytes = Some(tag.len());
            true
        }
        b"ivlen" => {
            let Some(bytes) = get_size(param) else { return handle.raise(Reason::FailedToGetParameter) };
            context.set_nonce_bytes(bytes).map_or_else(|reason| handle.raise(reason), |()| true)
        }
        b"tlsaad" => {
            let Some(additional) = get_octets(param) else {
                return handle.raise(Reason::FailedToGetParameter);
            };
            record::announce(context, additional).map_or_else(|reason| handle.raise(reason), |()| true)
        }
        b"tlsivfixed" => {
            // A length of -1 means that a whole nonce is given.
            let whole = param.data_bytes == usize::MAX;
            if whole {
                param.data_bytes = context.nonce_bytes;
            }
            let done =
                get_octets(param).filter(|nonce| nonce.len() <= NONCE_BYTES_MAX).is_some_and(|nonce| {
                    if whole {
                        record::set_whole(context, nonce);
                        return true;
                    }
                    record::set_fixed(context, nonce)
                });
            if whole {
                param.data_bytes = usize::MAX;
            }
            done || handle.raise(Reason::FailedToGetParameter)
        }
        b"tlsivinv" => get_octets(param).is_some_and(|nonce| record::peer_nonce(context, nonce)),
        _ => true,
    }
}
