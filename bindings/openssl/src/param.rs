// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes named values (`OSSL_PARAM`) that the core passes.
//!
//! - **Flow** a list of [`Param`] ──[`each`]──▶ (name, param) ──[`get_size`], [`get_octets`], [`set_unsigned`], …──▶ bool.
//! - **Order** numbers are in the machine's byte order, 4 or 8 bytes wide, as in the core's lists.
//! - **Owner** the caller of the entry point owns list and data; nothing is kept after the call.

use crate::abi::{
    INTEGER, OCTET_PTR, OCTET_STRING, Param, UNMODIFIED, UNSIGNED_INTEGER, UTF8_PTR, UTF8_STRING,
};
use core::ffi::{CStr, c_void};
use core::ptr;

impl Param {
    /// The end of a list.
    pub const END: Param = Param::describe(None, 0, 0);

    const fn describe(name: Option<&'static CStr>, data_type: u32, data_bytes: usize) -> Param {
        let key = match name {
            Some(name) => name.as_ptr(),
            None => ptr::null(),
        };
        Param { key, data_type, data: ptr::null_mut(), data_bytes, return_bytes: UNMODIFIED }
    }

    /// Describes an unsigned number of 4 or 8 bytes.
    pub const fn uint(name: &'static CStr, bytes: usize) -> Param {
        Param::describe(Some(name), UNSIGNED_INTEGER, bytes)
    }

    /// Describes a signed number of 4 bytes.
    pub const fn int(name: &'static CStr) -> Param {
        Param::describe(Some(name), INTEGER, 4)
    }

    /// Describes a parameter that is a string of bytes.
    pub const fn octets(name: &'static CStr) -> Param {
        Param::describe(Some(name), OCTET_STRING, 0)
    }

    /// Describes a text that is passed by address.
    pub const fn text(name: &'static CStr) -> Param {
        Param::describe(Some(name), UTF8_PTR, 0)
    }
}

/// Calls `visit` with every entry of a list until it returns false; returns false then.
///
/// # Safety
/// `list` must be null, or a list that ends with a null key and whose entries are valid by OSSL_PARAM(3).
#[inline]
pub unsafe fn each(list: *mut Param, mut visit: impl FnMut(&[u8], &mut Param) -> bool) -> bool {
    if list.is_null() {
        return true;
    }
    let mut entry = list;
    // SAFETY: `entry` moves up to the null key, which ends the list.
    unsafe {
        while !(*entry).key.is_null() {
            if !visit(CStr::from_ptr((*entry).key).to_bytes(), &mut *entry) {
                return false;
            }
            entry = entry.add(1);
        }
    }
    true
}

/// Sets a number; returns false if it does not fit or the entry has another type.
pub fn set_unsigned(param: &mut Param, value: u64) -> bool {
    if !matches!(param.data_type, UNSIGNED_INTEGER | INTEGER) {
        return false;
    }
    if param.data.is_null() {
        param.return_bytes = 8;
        return true;
    }
    param.return_bytes = param.data_bytes;
    let signed = param.data_type == INTEGER;
    // SAFETY: the caller of the entry point provides `data_bytes` bytes at `data`; they need not be aligned.
    unsafe {
        match param.data_bytes {
            4 if value <= if signed { i32::MAX as u64 } else { u64::from(u32::MAX) } => {
                param.data.cast::<u32>().write_unaligned(value as u32);
            }
            8 if !signed || value <= i64::MAX as u64 => param.data.cast::<u64>().write_unaligned(value),
            _ => return false,
        }
    }
    true
}

/// Reads a number; returns `None` if it is negative or the entry has another type.
pub fn get_size(param: &Param) -> Option<usize> {
    if param.data.is_null() {
        return None;
    }
    // SAFETY: the caller of the entry point provides `data_bytes` bytes at `data`; they need not be aligned.
    let value = unsafe {
        match (param.data_type, param.data_bytes) {
            (UNSIGNED_INTEGER, 4) => u64::from(param.data.cast::<u32>().read_unaligned()),
            (UNSIGNED_INTEGER, 8) => param.data.cast::<u64>().read_unaligned(),
            (INTEGER, 4) => u64::try_from(param.data.cast::<i32>().read_unaligned()).ok()?,
            (INTEGER, 8) => u64::try_from(param.data.cast::<i64>().read_unaligned()).ok()?,
            _ => return None,
        }
    };
    usize::try_from(value).ok()
}

/// Returns the bytes of an entry; `None` if it has another type or no data.
pub fn get_octets(param: &Param) -> Option<&[u8]> {
    if param.data_type != OCTET_STRING || param.data.is_null() {
        return None;
    }
    // SAFETY: `data` has `data_bytes` bytes, which the caller does not change during the call.
    Some(unsafe { core::slice::from_raw_parts(param.data.cast(), param.data_bytes) })
}

/// Copies bytes into an entry; returns false if there is no room for all of them.
pub fn set_octets(param: &mut Param, bytes: &[u8]) -> bool {
    if param.data_type != OCTET_STRING {
        return false;
    }
    param.return_bytes = bytes.len();
    if param.data.is_null() {
        return true;
    }
    if param.data_bytes < bytes.len() {
        return false;
    }
    // SAFETY: `data` has room for `data_bytes` bytes, at least `bytes.len()`, and does not overlap our own memory.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), param.data.cast(), bytes.len()) };
    true
}

/// Copies bytes into an entry, or stores their address if the entry asks for that.
///
/// # Safety
/// If the entry asks for the address, `bytes` must stay valid as long as the caller may use the address.
pub unsafe fn set_octets_or_address(param: &mut Param, bytes: &[u8]) -> bool {
    if param.data_type != OCTET_PTR {
        return set_octets(param, bytes);
    }
    param.return_bytes = bytes.len();
    if !param.data.is_null() {
        // SAFETY: `data` is the address of a writable pointer.
        unsafe { param.data.cast::<*const c_void>().write_unaligned(bytes.as_ptr().cast()) };
    }
    true
}

/// Sets a text of static lifetime, by address or as a copy.
pub fn set_text(param: &mut Param, text: &'static CStr) -> bool {
    let bytes = text.count_bytes();
    match param.data_type {
        UTF8_PTR => {
            param.return_bytes = bytes;
            if !param.data.is_null() {
                // SAFETY: `data` is the address of a writable pointer.
                unsafe { param.data.cast::<*const core::ffi::c_char>().write_unaligned(text.as_ptr()) };
            }
            true
        }
        UTF8_STRING => {
            param.return_bytes = bytes;
            if param.data.is_null() {
                return true;
            }
            if param.data_bytes < bytes {
                return false;
            }
            // The zero at the end is only copied if it fits.
            let copied = param.data_bytes.min(bytes + 1);
            // SAFETY: at most `data_bytes` bytes are written, and at most the text with its zero is read.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), param.data.cast::<u8>(), copied) };
            true
        }
        _ => false,
    }
}
