// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The algorithms of this provider, as OpenSSL reads them: ciphers, their functions, their parameters.
//!
//! - **Layout** constants only; every list ends with an entry of zeros. The parameters are those of OpenSSL's own provider.

use crate::abi::*;
use crate::cipher::{
    cipher, decrypt_init, dupctx, encrypt_init, finish, freectx, get_ctx_params, get_params, newctx,
    set_ctx_params, update,
};
use ::core::ffi::{c_int, c_void};
use ::core::ptr;

static PARAMS: [Param; 10] = [
    Param::uint(c"mode", 4),
    Param::uint(c"keylen", 8),
    Param::uint(c"ivlen", 8),
    Param::uint(c"blocksize", 8),
    Param::int(c"aead"),
    Param::int(c"custom-iv"),
    Param::int(c"cts"),
    Param::int(c"tls-multi"),
    Param::int(c"has-randkey"),
    Param::END,
];

static GETTABLE: [Param; 9] = [
    Param::uint(c"keylen", 8),
    Param::uint(c"ivlen", 8),
    Param::uint(c"taglen", 8),
    Param::octets(c"iv"),
    Param::octets(c"updated-iv"),
    Param::octets(c"tag"),
    Param::uint(c"tlsaadpad", 8),
    Param::octets(c"tlsivgen"),
    Param::END,
];

static SETTABLE: [Param; 6] = [
    Param::uint(c"ivlen", 8),
    Param::octets(c"tag"),
    Param::octets(c"tlsaad"),
    Param::octets(c"tlsivfixed"),
    Param::octets(c"tlsivinv"),
    Param::END,
];

unsafe extern "C" fn gettable_params(_provider: *mut c_void) -> *const Param {
    PARAMS.as_ptr()
}

unsafe extern "C" fn gettable_ctx_params(_held: *mut c_void, _provider: *mut c_void) -> *const Param {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable_ctx_params(_held: *mut c_void, _provider: *mut c_void) -> *const Param {
    SETTABLE.as_ptr()
}

const fn table<const KEY_BYTES: usize>() -> [Dispatch; 15] {
    const fn entry(id: c_int, function: *const c_void) -> Dispatch {
        Dispatch { id, function }
    }
    [
        entry(CIPHER_NEWCTX, newctx::<KEY_BYTES> as *const c_void),
        entry(CIPHER_FREECTX, freectx as *const c_void),
        entry(CIPHER_DUPCTX, dupctx as *const c_void),
        entry(CIPHER_ENCRYPT_INIT, encrypt_init as *const c_void),
        entry(CIPHER_DECRYPT_INIT, decrypt_init as *const c_void),
        entry(CIPHER_UPDATE, update as *const c_void),
        entry(CIPHER_FINAL, finish as *const c_void),
        entry(CIPHER_CIPHER, cipher as *const c_void),
        entry(CIPHER_GET_PARAMS, get_params::<KEY_BYTES> as *const c_void),
        entry(CIPHER_GET_CTX_PARAMS, get_ctx_params as *const c_void),
        entry(CIPHER_SET_CTX_PARAMS, set_ctx_params as *const c_void),
        entry(CIPHER_GETTABLE_PARAMS, gettable_params as *const c_void),
        entry(CIPHER_GETTABLE_CTX_PARAMS, gettable_ctx_params as *const c_void),
        entry(CIPHER_SETTABLE_CTX_PARAMS, settable_ctx_params as *const c_void),
        Dispatch::END,
    ]
}

static AES_128_GCM: [Dispatch; 15] = table::<16>();
static AES_256_GCM: [Dispatch; 15] = table::<32>();

/// The ciphers of this provider, with the names and object identifiers under which OpenSSL knows them.
pub static CIPHERS: [Algorithm; 3] = [
    Algorithm {
        names: c"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6".as_ptr(),
        properties: c"provider=memlift".as_ptr(),
        implementation: AES_128_GCM.as_ptr(),
        description: c"AES-128-GCM with vector instructions".as_ptr(),
    },
    Algorithm {
        names: c"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46".as_ptr(),
        properties: c"provider=memlift".as_ptr(),
        implementation: AES_256_GCM.as_ptr(),
        description: c"AES-256-GCM with vector instructions".as_ptr(),
    },
    Algorithm {
        names: ptr::null(),
        properties: ptr::null(),
        implementation: ptr::null(),
        description: ptr::null(),
    },
];
