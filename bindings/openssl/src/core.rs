// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The OpenSSL core that loaded this provider: its version, its configuration and its list of errors.
//!
//! - **Flow** `OSSL_provider_init` gives a table of functions ──▶ [`Core`] ──▶ [`Core::version`], [`Core::flag`], [`Core::raise`].
//! - **Owner** there is one `Core` per library context that loads the provider. It lives until teardown, and cipher contexts point to it;
//!   OpenSSL tears a provider down after the last of them.
//! - **Order** every function of the core is optional: without the error functions, errors have no reason.

use crate::abi::{
    CORE_GET_PARAMS, CORE_NEW_ERROR, CORE_SET_ERROR_DEBUG, CORE_VSET_ERROR, Dispatch, ERROR_LIBRARY, Param,
    Reason,
};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::{mem, ptr};

type GetParams = unsafe extern "C" fn(*const c_void, *mut Param) -> c_int;
type NewError = unsafe extern "C" fn(*const c_void);
type SetErrorDebug = unsafe extern "C" fn(*const c_void, *const c_char, c_int, *const c_char);
/// The last argument is a `va_list`, which all 64-bit Unix ABIs pass as one pointer.
type VsetError = unsafe extern "C" fn(*const c_void, u32, *const c_char, *mut c_void);

/// The functions of the core, and the handle by which it knows this provider.
pub struct Core {
    handle: *const c_void,
    get_params: Option<GetParams>,
    new_error: Option<NewError>,
    set_error_debug: Option<SetErrorDebug>,
    vset_error: Option<VsetError>,
}

impl Core {
    /// Stores the functions that the table offers.
    ///
    /// # Safety
    /// `handle` and `table` must be what the core passed to `OSSL_provider_init`.
    pub unsafe fn new(handle: *const c_void, table: *const Dispatch) -> Core {
        let mut core =
            Core { handle, get_params: None, new_error: None, set_error_debug: None, vset_error: None };
        let mut entry = table;
        // SAFETY: the table ends with an id of 0, and each function has the type that belongs to its id.
        unsafe {
            while !entry.is_null() && (*entry).id != 0 {
                let function = (*entry).function;
                if !function.is_null() {
                    match (*entry).id {
                        CORE_GET_PARAMS => {
                            core.get_params = Some(mem::transmute::<*const c_void, GetParams>(function));
                        }
                        CORE_NEW_ERROR => {
                            core.new_error = Some(mem::transmute::<*const c_void, NewError>(function));
                        }
                        CORE_SET_ERROR_DEBUG => {
                            core.set_error_debug =
                                Some(mem::transmute::<*const c_void, SetErrorDebug>(function));
                        }
                        CORE_VSET_ERROR => {
                            core.vset_error = Some(mem::transmute::<*const c_void, VsetError>(function));
                        }
                        _ => {}
                    }
                }
                entry = entry.add(1);
            }
        }
        core
    }

    /// Returns major and minor number of the running OpenSSL; `None` if it does not tell.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.with_text(c"openssl-version", |text| {
            let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
            Some((numbers.next()??, numbers.next()??))
        })
    }

    /// Returns a yes-or-no value of the provider's section in openssl.cnf; `None` if it is missing or neither.
    pub fn flag(&self, name: &'static CStr) -> Option<bool> {
        self.with_text(name, |text| match text {
            "1" | "yes" | "true" | "on" => Some(true),
            "0" | "no" | "false" | "off" => Some(false),
            _ => None,
        })
    }

    /// Calls `then` with the text that the core has under this name.
    fn with_text<T>(&self, name: &'static CStr, then: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut text: *const c_char = ptr::null();
        let mut list = [Param::text(name), Param::END];
        list[0].data = ptr::from_mut(&mut text).cast();
        // SAFETY: the list ends with `END`, and its entry takes the address of a text that lives in the core.
        let text = unsafe {
            if self.get_params?(self.handle, list.as_mut_ptr()) == 0 || text.is_null() {
                return None;
            }
            CStr::from_ptr(text).to_str().ok()?
        };
        then(text)
    }

    /// Adds an error to the thread's list. Returns false, so that a caller can return the result.
    #[cold]
    pub fn raise(&self, reason: Reason) -> bool {
        let mut no_arguments = [0u64; 8];
        // SAFETY: the handle is the core's own; without a format nothing is read through the argument list.
        unsafe {
            if let (Some(new_error), Some(vset_error)) = (self.new_error, self.vset_error) {
                new_error(self.handle);
                if let Some(set_error_debug) = self.set_error_debug {
                    set_error_debug(self.handle, c"memlift".as_ptr(), 0, c"aes_gcm".as_ptr());
                }
                let number = ERROR_LIBRARY | reason as u32;
                vset_error(self.handle, number, ptr::null(), no_arguments.as_mut_ptr().cast());
            }
        }
        false
    }
}
