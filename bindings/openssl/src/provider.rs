// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions that OpenSSL calls for the provider itself.
//!
//! - **Flow** dlopen ──▶ [`OSSL_provider_init`] ──▶ a query for ciphers returns our table, or null if the provider does not serve.
//!   `openssl list -providers -verbose` shows the reason ("build info") by get_params, and programs can also read the counters there.
//! - **Owner** there is one [`Provider`] per library context, from init to teardown; the counters belong to the process.
//! - **Order** loading reads the environment and the CPU's features, and touches nothing else.

use crate::abi::*;
use crate::choice::{Choice, choose, cpu, with_asked};
use crate::core::Core;
use crate::param::{each, set_text, set_unsigned};
use crate::table::CIPHERS;
use crate::tally::{ASIDE, OPEN, ROWS, SEAL};
use ::core::ffi::{CStr, c_int, c_void};
use ::core::ptr;
use memlift_kernels::counters::{self, Amount, State};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// State of the provider. `core` is the first field, because a cipher context gets this address and uses it as a [`Core`].
#[repr(C)]
struct Provider {
    core: Core,
    choice: Choice,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"unknown",
};

/// The entry point that the core looks for in the library.
///
/// # Safety
/// The arguments are those of provider-base(7).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn OSSL_provider_init(
    handle: *const c_void,
    offered: *const Dispatch,
    ours: *mut *const Dispatch,
    provider: *mut *mut c_void,
) -> c_int {
    let made = catch_unwind(|| {
        // SAFETY: both arguments are those that the core passed.
        let core = unsafe { Core::new(handle, offered) };
        let choice = with_asked(|asked| choose(asked, core.flag(c"serves"), cpu(), core.version()));
        counters::declare("memlift:openssl", &ROWS);
        // The page shows the state separately, so the reason is stored without the part before the colon.
        let reason = choice.reason.to_str().unwrap_or_default();
        let why = reason.split_once(": ").map_or(reason, |(_, why)| why);
        counters::set_state(if choice.serves { State::Serving } else { State::PassingOn }, why);
        counters::share_if_asked();
        Box::into_raw(Box::new(Provider { core, choice }))
    });
    let Ok(made) = made else { return 0 };
    // SAFETY: the core passes addresses of two writable pointers.
    unsafe {
        *ours = FUNCTIONS.as_ptr();
        *provider = made.cast();
    }
    1
}

static FUNCTIONS: [Dispatch; 5] = [
    Dispatch { id: PROVIDER_TEARDOWN, function: teardown as *const c_void },
    Dispatch { id: PROVIDER_GETTABLE_PARAMS, function: gettable_params as *const c_void },
    Dispatch { id: PROVIDER_GET_PARAMS, function: get_params as *const c_void },
    Dispatch { id: PROVIDER_QUERY_OPERATION, function: query as *const c_void },
    Dispatch::END,
];

unsafe extern "C" fn teardown(provider: *mut c_void) {
    if !provider.is_null() {
        // SAFETY: the box came from init and is torn down once. It is plain memory, so its drop does not panic.
        let _ =
            catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(provider.cast::<Provider>()) })));
    }
}

unsafe extern "C" fn query(
    provider: *mut c_void,
    operation: c_int,
    no_cache: *mut c_int,
) -> *const Algorithm {
    // SAFETY: the core passes our provider, and null or the address of a writable number.
    let provider = unsafe {
        if !no_cache.is_null() {
            *no_cache = 0;
        }
        provider.cast::<Provider>().as_ref()
    };
    let Some(provider) = provider.filter(|_| operation == OPERATION_CIPHER) else { return ptr::null() };
    if provider.choice.serves {
        return CIPHERS.as_ptr();
    }
    let _ = catch_unwind(|| counters::add(ASIDE, &Amount { count: 1, ..Amount::default() }));
    ptr::null()
}

static PARAMS: [Param; 13] = [
    Param::text(c"name"),
    Param::text(c"version"),
    Param::text(c"buildinfo"),
    Param::uint(c"status", 4),
    Param::uint(c"memlift-serves", 4),
    Param::text(c"memlift-reason"),
    Param::uint(c"memlift-sealed", 8),
    Param::uint(c"memlift-sealed-bytes", 8),
    Param::uint(c"memlift-opened", 8),
    Param::uint(c"memlift-opened-bytes", 8),
    Param::uint(c"memlift-refused", 8),
    Param::uint(c"memlift-aside", 8),
    Param::END,
];

unsafe extern "C" fn gettable_params(_provider: *mut c_void) -> *const Param {
    PARAMS.as_ptr()
}

unsafe extern "C" fn get_params(provider: *mut c_void, params: *mut Param) -> c_int {
    // SAFETY: the core passes our provider.
    let Some(provider) = (unsafe { provider.cast::<Provider>().as_ref() }) else { return 0 };
    let choice = provider.choice;
    // SAFETY: OpenSSL passes null or a list that ends with a null key.
    let done = catch_unwind(|| unsafe {
        each(params, |name, param| match name {
            b"name" => set_text(param, c"memlift AES-GCM provider"),
            b"version" => set_text(param, VERSION),
            b"status" => set_unsigned(param, 1),
            b"memlift-serves" => set_unsigned(param, u64::from(choice.serves)),
            b"buildinfo" | b"memlift-reason" => set_text(param, choice.reason),
            b"memlift-sealed" => set_unsigned(param, counters::get(SEAL).count),
            b"memlift-sealed-bytes" => set_unsigned(param, counters::get(SEAL).source_bytes),
            b"memlift-opened" => set_unsigned(param, counters::get(OPEN).count),
            b"memlift-opened-bytes" => set_unsigned(param, counters::get(OPEN).source_bytes),
            b"memlift-refused" => set_unsigned(param, counters::get(OPEN).failures),
            b"memlift-aside" => set_unsigned(param, counters::get(ASIDE).count),
            _ => true,
        })
    });
    c_int::from(done.unwrap_or(false))
}
