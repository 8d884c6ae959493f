// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system's libcrypto.so.3, by dlopen: one AES-GCM context of the default provider, or of ours in the same libcrypto.
//!
//! - **Flow** OSSL_LIB_CTX_new ─▶ provider loaded into it ─▶ EVP_CIPHER_fetch ─▶ context with a key; per message
//!   EVP_CipherInit_ex (nonce only) · update · final · get or set the tag: as libssl does for a record
//! - **Place** our provider is found as `memlift_cli::libraries` says
//! - **Owner** libraries, contexts and ciphers live until the process ends

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use libloading::os::unix::Library;

use memlift_cli::libraries::Dropin;

use crate::BenchError;

const CTRL_GET_TAG: c_int = 0x10;
const CTRL_SET_TAG: c_int = 0x11;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
const PROVIDER: &CStr = c"libmemlift_openssl";

type Handle = *mut c_void;
type InitFn = unsafe extern "C" fn(Handle, Handle, Handle, *const u8, *const u8, c_int) -> c_int;
type UpdateFn = unsafe extern "C" fn(Handle, *mut u8, *mut c_int, *const u8, c_int) -> c_int;
type FinalFn = unsafe extern "C" fn(Handle, *mut u8, *mut c_int) -> c_int;
type CtrlFn = unsafe extern "C" fn(Handle, c_int, c_int, *mut c_void) -> c_int;

/// The system's libcrypto.so.3, loaded.
#[derive(Debug)]
pub struct Libcrypto {
    libcrypto: Library,
    /// Its version as it states it.
    pub version: String,
}

/// Provider whose AES-GCM a context uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    /// The default provider of libcrypto.
    Default,
    /// The provider of memlift.
    Memlift,
}

impl Libcrypto {
    /// Loads it. The error says what to install.
    pub fn open() -> Result<Libcrypto, String> {
        let missing = |error| format!("libcrypto.so.3 is missing: sudo apt install libssl3 ({error})");
        // SAFETY: loading the system's libcrypto runs its initialisation, which is made for this.
        let libcrypto = unsafe { Library::new("libcrypto.so.3") }.map_err(missing)?;
        // SAFETY: the type is that of crypto.h; the text is static.
        let version = unsafe {
            let version = libcrypto
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"OpenSSL_version")
                .map_err(missing)?;
            CStr::from_ptr(version(0)).to_string_lossy().into_owned()
        };
        Ok(Libcrypto { libcrypto, version })
    }

    /// An AES-128-GCM context with this key, that seals or opens.
    pub fn context(&self, provider: Provider, key: &[u8; 16], seals: bool) -> Result<Context, String> {
        // SAFETY: every type is that of the OpenSSL 3 headers for its name; handles that are passed on are not null.
        unsafe {
            let library_context = self.call0(b"OSSL_LIB_CTX_new")?;
            let load: unsafe extern "C" fn(Handle, *const c_char) -> Handle =
                self.symbol(b"OSSL_PROVIDER_load")?;
            let name = match provider {
                Provider::Default => c"default",
                Provider::Memlift => {
                    let set_path: unsafe extern "C" fn(Handle, *const c_char) -> c_int =
                        self.symbol(b"OSSL_PROVIDER_set_default_search_path")?;
                    let path = Dropin::OpenSsl.find().ok_or_else(|| Dropin::OpenSsl.advice())?;
                    let folder = CString::new(path.parent().unwrap_or(&path).as_os_str().as_bytes())
                        .map_err(|error| error.to_string())?;
                    set_path(library_context, folder.as_ptr());
                    PROVIDER
                }
            };
            if load(library_context, name.as_ptr()).is_null() {
                return Err(format!("libcrypto does not load the provider {name:?}: {}", self.error()));
            }
            let fetch: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> Handle =
                self.symbol(b"EVP_CIPHER_fetch")?;
            let cipher = fetch(library_context, c"AES-128-GCM".as_ptr(), ptr::null());
            if cipher.is_null() {
                return Err(format!(
                    "the provider {name:?} offers no AES-128-GCM to {}: {}",
                    self.version,
                    self.error()
                ));
            }
            let context = Context {
                handle: self.call0(b"EVP_CIPHER_CTX_new")?,
                init: self.symbol(b"EVP_CipherInit_ex")?,
                update: self.symbol(b"EVP_CipherUpdate")?,
                last: self.symbol(b"EVP_CipherFinal_ex")?,
                ctrl: self.symbol(b"EVP_CIPHER_CTX_ctrl")?,
                seals,
            };
            let result = (context.init)(
                context.handle,
                cipher,
                ptr::null_mut(),
                key.as_ptr(),
                ptr::null(),
                c_int::from(seals),
            );
            if result == 1 { Ok(context) } else { Err(format!("EVP_CipherInit_ex: {}", self.error())) }
        }
    }

    /// # Safety
    /// `T` is the type of the function that has this name.
    unsafe fn symbol<T: Copy>(&self, name: &[u8]) -> Result<T, String> {
        // SAFETY: `T` is the type of the function with this name, as the caller vouches.
        unsafe { self.libcrypto.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| error.to_string())
    }

    /// # Safety
    /// The function of this name takes nothing and gives a handle.
    unsafe fn call0(&self, name: &[u8]) -> Result<Handle, String> {
        // SAFETY: the function takes nothing and gives a handle, as the caller vouches; `self` holds its library.
        let handle = unsafe { self.symbol::<unsafe extern "C" fn() -> Handle>(name)?() };
        if handle.is_null() {
            Err(String::from_utf8_lossy(name).into_owned() + " gave null")
        } else {
            Ok(handle)
        }
    }

    /// The first error on libcrypto's queue.
    fn error(&self) -> String {
        let mut text = [0u8; 256];
        // SAFETY: the types are those of err.h; the buffer's length is passed.
        unsafe {
            let get: Result<unsafe extern "C" fn() -> u64, _> = self.symbol(b"ERR_get_error");
            let describe: Result<unsafe extern "C" fn(u64, *mut c_char, usize), _> =
                self.symbol(b"ERR_error_string_n");
            if let (Ok(get), Ok(describe)) = (get, describe) {
                describe(get(), text.as_mut_ptr().cast(), text.len());
            }
        }
        CStr::from_bytes_until_nul(&text)
            .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    }
}

/// An EVP_CIPHER_CTX with its key.
#[derive(Debug)]
pub struct Context {
    handle: Handle,
    init: InitFn,
    update: UpdateFn,
    last: FinalFn,
    ctrl: CtrlFn,
    seals: bool,
}

impl Context {
    /// One message; the tag is written when sealing and checked when opening.
    #[inline]
    pub fn message(
        &mut self,
        nonce: &[u8; 12],
        source: &[u8],
        target: &mut [u8],
        tag: &mut [u8; TAG_BYTES],
    ) -> Result<(), BenchError> {
        assert!(source.len() <= target.len(), "AES-GCM writes as much as it reads");
        let (mut written, mut rest) = (0, 0);
        let tag_at: *mut c_void = tag.as_mut_ptr().cast();
        // SAFETY: the context is initialised with a key; buffers are live, the target as long as the source (asserted),
        // the tag as long as stated. AES-GCM's final writes nothing.
        let right = unsafe {
            (self.init)(self.handle, ptr::null_mut(), ptr::null_mut(), ptr::null(), nonce.as_ptr(), -1) == 1
                && (self.seals || (self.ctrl)(self.handle, CTRL_SET_TAG, TAG_BYTES as c_int, tag_at) == 1)
                && (self.update)(
                    self.handle,
                    target.as_mut_ptr(),
                    &mut written,
                    source.as_ptr(),
                    source.len() as c_int,
                ) == 1
                && (self.last)(self.handle, target.as_mut_ptr(), &mut rest) == 1
                && (!self.seals || (self.ctrl)(self.handle, CTRL_GET_TAG, TAG_BYTES as c_int, tag_at) == 1)
        };
        if right && written as usize + rest as usize == source.len() {
            return Ok(());
        }
        Err(BenchError::Engine { reason: "EVP refused a message".to_owned() })
    }
}
