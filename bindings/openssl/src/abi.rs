// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Types, numbers and names of OpenSSL 3's provider interface, as its manual pages (provider-base(7), provider-cipher(7),
//! OSSL_PARAM(3)) and public headers define them.
//!
//! - **Layout** C structs of `core.h`; numbers of `core_dispatch.h`; names of `core_names.h`; reasons of `proverr.h`. They are fixed for
//!   OpenSSL 3 and later: new ones are added, none is changed.
//! - **Order** every table ends with an entry of zeros.
//! - **Not here** behaviour.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// `OSSL_DISPATCH`: a function, and the number that identifies it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dispatch {
    pub id: c_int,
    /// Address of a function with the signature that belongs to `id`.
    pub function: *const c_void,
}

// SAFETY: a number and an address of code, both of which never change.
unsafe impl Sync for Dispatch {}

impl Dispatch {
    pub const END: Dispatch = Dispatch { id: 0, function: core::ptr::null() };
}

/// `OSSL_ALGORITHM`.
#[repr(C)]
pub struct Algorithm {
    pub names: *const c_char,
    pub properties: *const c_char,
    pub implementation: *const Dispatch,
    pub description: *const c_char,
}

// SAFETY: all fields are addresses of constants.
unsafe impl Sync for Algorithm {}

/// `OSSL_PARAM`: a named value that is passed in or out. A list of them ends with a null key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Param {
    pub key: *const c_char,
    pub data_type: c_uint,
    pub data: *mut c_void,
    pub data_bytes: usize,
    pub return_bytes: usize,
}

// SAFETY: shared ones are constants that only describe a parameter: their name is constant and `data` is null.
unsafe impl Sync for Param {}

pub const UNSIGNED_INTEGER: c_uint = 2;
pub const INTEGER: c_uint = 1;
pub const UTF8_STRING: c_uint = 4;
pub const OCTET_STRING: c_uint = 5;
pub const UTF8_PTR: c_uint = 6;
pub const OCTET_PTR: c_uint = 7;
/// `OSSL_PARAM_UNMODIFIED`.
pub const UNMODIFIED: usize = usize::MAX;

/// Numbers of functions that the core offers.
pub const CORE_GET_PARAMS: c_int = 2;
pub const CORE_NEW_ERROR: c_int = 5;
pub const CORE_SET_ERROR_DEBUG: c_int = 6;
pub const CORE_VSET_ERROR: c_int = 7;

/// Numbers of functions that a provider offers.
pub const PROVIDER_TEARDOWN: c_int = 1024;
pub const PROVIDER_GETTABLE_PARAMS: c_int = 1025;
pub const PROVIDER_GET_PARAMS: c_int = 1026;
pub const PROVIDER_QUERY_OPERATION: c_int = 1027;

/// `OSSL_OP_CIPHER`.
pub const OPERATION_CIPHER: c_int = 2;

/// Numbers of functions that a cipher offers.
pub const CIPHER_NEWCTX: c_int = 1;
pub const CIPHER_ENCRYPT_INIT: c_int = 2;
pub const CIPHER_DECRYPT_INIT: c_int = 3;
pub const CIPHER_UPDATE: c_int = 4;
pub const CIPHER_FINAL: c_int = 5;
pub const CIPHER_CIPHER: c_int = 6;
pub const CIPHER_FREECTX: c_int = 7;
pub const CIPHER_DUPCTX: c_int = 8;
pub const CIPHER_GET_PARAMS: c_int = 9;
pub const CIPHER_GET_CTX_PARAMS: c_int = 10;
pub const CIPHER_SET_CTX_PARAMS: c_int = 11;
pub const CIPHER_GETTABLE_PARAMS: c_int = 12;
pub const CIPHER_GETTABLE_CTX_PARAMS: c_int = 13;
pub const CIPHER_SETTABLE_CTX_PARAMS: c_int = 14;

/// `EVP_CIPH_GCM_MODE`.
pub const MODE_GCM: c_uint = 6;

/// Reasons of failed calls, with the numbers of OpenSSL's own providers, so that OpenSSL has texts for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    CipherOperationFailed = 102,
    FailedToGetParameter = 103,
    FailedToSetParameter = 104,
    InvalidKeyLength = 105,
    OutputBufferTooSmall = 106,
    InvalidAad = 108,
    InvalidIvLength = 109,
    InvalidTag = 110,
    TagNotSet = 119,
    TagNotNeeded = 120,
    TooManyRecords = 126,
}

/// `ERR_LIB_PROV`, at its place in an error number.
pub const ERROR_LIBRARY: u32 = 57 << 23;
