// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real libcrypto, loaded at run time, and as much of EVP as the tests need.
//!
//! - **Flow** [`crypto`] ──dlopen──▶ libcrypto.so.3 ──OSSL_PROVIDER_load──▶ default, and the library under test
//! - **Owner** one libcrypto per test process, never unloaded. A [`Cipher`] and a [`Session`] free what they hold.
//!   `MEMLIFT_TEST_LIBCRYPTO` names another one than the system's.
//! - **Order** `MEMLIFT_OPENSSL=force` is set before the provider is loaded, so that tests run on every CPU and OpenSSL.
#![allow(dead_code, reason = "every test file uses another part")]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            /// # Safety
            /// `library` must come from `dlopen` of libcrypto.
            unsafe fn load(library: *mut c_void) -> Option<Functions> {
                // SAFETY: the types are those of OpenSSL's manual pages.
                unsafe {
                    Some(Functions { $($name: {
                        let name = CString::new(stringify!($name)).unwrap();
                        let address = libc::dlsym(library, name.as_ptr());
                        if address.is_null() {
                            return None;
                        }
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(address)
                    },)* })
                }
            }
        }
    };
}

type Any = *mut c_void;

functions! {
    OSSL_LIB_CTX_new() -> Any;
    OSSL_LIB_CTX_free(Any);
    OSSL_PROVIDER_load(Any, *const c_char) -> Any;
    OSSL_PROVIDER_unload(Any) -> c_int;
    OSSL_PROVIDER_get_params(Any, *mut Param) -> c_int;
    EVP_CIPHER_fetch(Any, *const c_char, *const c_char) -> Any;
    EVP_CIPHER_free(Any);
    EVP_CIPHER_CTX_new() -> Any;
    EVP_CIPHER_CTX_free(Any);
    EVP_CIPHER_CTX_copy(Any, Any) -> c_int;
    EVP_CIPHER_CTX_ctrl(Any, c_int, c_int, Any) -> c_int;
    EVP_CIPHER_CTX_get_iv_length(Any) -> c_int;
    EVP_CIPHER_CTX_get_updated_iv(Any, Any, usize) -> c_int;
    EVP_CipherInit_ex(Any, Any, Any, *const c_uchar, *const c_uchar, c_int) -> c_int;
    EVP_CipherUpdate(Any, *mut c_uchar, *mut c_int, *const c_uchar, c_int) -> c_int;
    EVP_CipherFinal_ex(Any, *mut c_uchar, *mut c_int) -> c_int;
    EVP_Cipher(Any, *mut c_uchar, *const c_uchar, u32) -> c_int;
    ERR_get_error() -> c_ulong;
    ERR_clear_error();
    OpenSSL_version_num() -> c_ulong;
}

#[repr(C)]
pub struct Param {
    pub key: *const c_char,
    pub data_type: u32,
    pub data: *mut c_void,
    pub data_bytes: usize,
    pub return_bytes: usize,
}

pub const SET_IV_BYTES: c_int = 0x9;
pub const GET_TAG: c_int = 0x10;
pub const SET_TAG: c_int = 0x11;
pub const SET_IV_FIXED: c_int = 0x12;
pub const IV_GEN: c_int = 0x13;
pub const TLS1_AAD: c_int = 0x16;
pub const SET_IV_INV: c_int = 0x18;

pub struct Crypto {
    pub f: Functions,
    pub provider: Any,
}

// SAFETY: libcrypto's functions and providers may be used from any thread.
unsafe impl Send for Crypto {}
// SAFETY: `f` and `provider` never change after loading, and libcrypto allows calls from several threads at once.
unsafe impl Sync for Crypto {}

/// The library under test: cargo builds it beside the tests.
pub fn provider_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libmemlift_openssl.so");
    assert!(path.exists(), "{} is missing: cargo builds it for `cargo test`", path.display());
    path
}

/// libcrypto with both providers; `None`, and one line that says so, where it is missing.
pub fn crypto() -> Option<&'static Crypto> {
    static CRYPTO: OnceLock<Option<Crypto>> = OnceLock::new();
    let crypto = CRYPTO.get_or_init(|| {
        // SAFETY: set before libcrypto is there, inside the first test that asks; the others wait.
        unsafe { std::env::set_var("MEMLIFT_OPENSSL", "force") };
        // SAFETY: loads a library and two providers with valid names.
        unsafe {
            let name = std::env::var("MEMLIFT_TEST_LIBCRYPTO").unwrap_or("libcrypto.so.3".to_owned());
            let name = CString::new(name).unwrap();
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            let f = Functions::load(library)?;
            assert!(!(f.OSSL_PROVIDER_load)(ptr::null_mut(), c"default".as_ptr()).is_null());
            let path = CString::new(provider_path().to_str().unwrap()).unwrap();
            let provider = (f.OSSL_PROVIDER_load)(ptr::null_mut(), path.as_ptr());
            assert!(!provider.is_null(), "OpenSSL refuses the provider");
            Some(Crypto { f, provider })
        }
    });
    if crypto.is_none() {
        println!("not run: libcrypto.so.3 is not on this machine");
    }
    crypto.as_ref()
}

impl Crypto {
    pub fn cipher(&'static self, name: &CStr, provider: &CStr) -> Option<Cipher> {
        let properties = CString::new(format!("provider={}", provider.to_str().unwrap())).unwrap();
        // SAFETY: C strings.
        let cipher =
            unsafe { (self.f.EVP_CIPHER_fetch)(ptr::null_mut(), name.as_ptr(), properties.as_ptr()) };
        (!cipher.is_null()).then_some(Cipher { crypto: self, cipher })
    }

    /// The last error's reason, and an empty list.
    pub fn reason(&self) -> u64 {
        // SAFETY: reads and clears this thread's list.
        unsafe {
            let mut last = 0;
            loop {
                match (self.f.ERR_get_error)() {
                    0 => return u64::from(last as u32 & 0x7f_ffff),
                    error => last = error,
                }
            }
        }
    }

    /// A number that the provider gives.
    pub fn provider_number(&self, name: &CStr) -> u64 {
        let mut value = 0u64;
        let mut list = [
            Param {
                key: name.as_ptr(),
                data_type: 2,
                data: ptr::from_mut(&mut value).cast(),
                data_bytes: 8,
                return_bytes: usize::MAX,
            },
            Param { key: ptr::null(), data_type: 0, data: ptr::null_mut(), data_bytes: 0, return_bytes: 0 },
        ];
        // SAFETY: a list with one entry that has room for a number.
        assert_eq!(unsafe { (self.f.OSSL_PROVIDER_get_params)(self.provider, list.as_mut_ptr()) }, 1);
        assert_eq!(list[0].return_bytes, 8, "{name:?} was not given");
        value
    }
}

pub struct Cipher {
    crypto: &'static Crypto,
    cipher: Any,
}

// SAFETY: an EVP_CIPHER is constant once it was fetched.
unsafe impl Sync for Cipher {}

impl Cipher {
    pub fn session(&self) -> Session {
        // SAFETY: makes an empty context.
        let context = unsafe { (self.crypto.f.EVP_CIPHER_CTX_new)() };
        Session { f: &self.crypto.f, context, cipher: self.cipher }
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        // SAFETY: contexts hold references of their own.
        unsafe { (self.crypto.f.EVP_CIPHER_free)(self.cipher) };
    }
}

/// An `EVP_CIPHER_CTX`.
pub struct Session {
    f: &'static Functions,
    context: Any,
    cipher: Any,
}

// SAFETY: a context may move between threads.
unsafe impl Send for Session {}

impl Session {
    pub fn init(&mut self, key: Option<&[u8]>, iv: Option<&[u8]>, encrypts: bool) -> bool {
        let address = |bytes: Option<&[u8]>| bytes.map_or(ptr::null(), <[u8]>::as_ptr);
        let cipher = std::mem::replace(&mut self.cipher, ptr::null_mut());
        // SAFETY: key and iv are as long as the cipher and its iv length want, which the tests see to.
        unsafe {
            (self.f.EVP_CipherInit_ex)(
                self.context,
                cipher,
                ptr::null_mut(),
                address(key),
                address(iv),
                c_int::from(encrypts),
            ) == 1
        }
    }

    pub fn control(&mut self, command: c_int, number: c_int, bytes: *mut u8) -> c_int {
        // SAFETY: the tests give as many bytes as the command takes.
        unsafe { (self.f.EVP_CIPHER_CTX_ctrl)(self.context, command, number, bytes.cast()) }
    }

    pub fn set_iv_bytes(&mut self, bytes: usize) -> bool {
        self.control(SET_IV_BYTES, bytes as c_int, ptr::null_mut()) == 1
    }

    pub fn set_tag(&mut self, tag: &[u8]) -> bool {
        let mut tag = tag.to_vec();
        self.control(SET_TAG, tag.len() as c_int, tag.as_mut_ptr()) == 1
    }

    pub fn tag(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut tag = vec![0; bytes];
        (self.control(GET_TAG, bytes as c_int, tag.as_mut_ptr()) == 1).then_some(tag)
    }

    pub fn aad(&mut self, aad: &[u8]) -> bool {
        let mut written = 0;
        // SAFETY: no target.
        let done = unsafe {
            (self.f.EVP_CipherUpdate)(
                self.context,
                ptr::null_mut(),
                &mut written,
                aad.as_ptr(),
                aad.len() as c_int,
            )
        };
        done == 1
    }

    /// `None` where EVP says no.
    pub fn update(&mut self, source: &[u8]) -> Option<Vec<u8>> {
        let mut target = vec![0xaa; source.len()];
        let mut written = 0;
        // SAFETY: GCM writes as many bytes as it reads.
        let done = unsafe {
            (self.f.EVP_CipherUpdate)(
                self.context,
                target.as_mut_ptr(),
                &mut written,
                source.as_ptr(),
                source.len() as c_int,
            )
        };
        assert!(done != 1 || written as usize == source.len());
        (done == 1).then_some(target)
    }

    /// How many bytes EVP says it wrote; `None` where it says no.
    pub fn update_in_place(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut written = 0;
        // SAFETY: one buffer is source and target.
        let done = unsafe {
            (self.f.EVP_CipherUpdate)(
                self.context,
                buffer.as_mut_ptr(),
                &mut written,
                buffer.as_ptr(),
                buffer.len() as c_int,
            )
        };
        (done == 1).then_some(written as usize)
    }

    /// `EVP_Cipher`, as it answers.
    pub fn raw(&mut self, target: *mut u8, source: *const u8, bytes: usize) -> c_int {
        // SAFETY: the tests give null or `bytes` bytes.
        unsafe { (self.f.EVP_Cipher)(self.context, target, source, bytes as u32) }
    }

    pub fn finish(&mut self) -> bool {
        let mut rest = [0u8; 32];
        let mut written = 0;
        // SAFETY: GCM writes nothing here.
        let done = unsafe { (self.f.EVP_CipherFinal_ex)(self.context, rest.as_mut_ptr(), &mut written) };
        assert!(done != 1 || written == 0);
        done == 1
    }

    pub fn updated_iv(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut iv = vec![0u8; bytes];
        // SAFETY: room for as many bytes as are said.
        let done =
            unsafe { (self.f.EVP_CIPHER_CTX_get_updated_iv)(self.context, iv.as_mut_ptr().cast(), bytes) };
        (done == 1).then_some(iv)
    }

    pub fn iv_bytes(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { (self.f.EVP_CIPHER_CTX_get_iv_length)(self.context) }
    }

    pub fn copy(&self) -> Option<Session> {
        // SAFETY: both contexts are alive.
        unsafe {
            let context = (self.f.EVP_CIPHER_CTX_new)();
            let copy = Session { f: self.f, context, cipher: ptr::null_mut() };
            ((self.f.EVP_CIPHER_CTX_copy)(context, self.context) == 1).then_some(copy)
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.f.EVP_CIPHER_CTX_free)(self.context) };
    }
}

/// Numbers that look random, the same at every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }

    pub fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// Cut points of `bytes`, at most `pieces` pieces.
    pub fn pieces<'a>(&mut self, bytes: &'a [u8], pieces: usize) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = (1..pieces).map(|_| self.below(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect()
    }
}

pub const NAMES: [(&CStr, usize); 2] = [(c"AES-128-GCM", 16), (c"AES-256-GCM", 32)];
