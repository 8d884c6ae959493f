// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory under an exact budget: `memlift_zmem.h`.
//!
//! - **Flow** memlift_zmem_enter (once per process) ──▶ memlift_zmem_alloc ──▶ `zmem::blocks` returns an address ──▶ memlift_zmem_free.
//! - **Owner** a block belongs to the caller until it is freed; pins hold its pages until they are released.
//! - **Not here** the arithmetic of the budget (`memlift::zmem`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use memlift::zmem::block::{Objectives, OnOverflow};
use memlift::zmem::pager::{Pager, Pins};
use memlift::zmem::{Error, arena, blocks};

use crate::fault::{self, BAD_ORDER, FILE_FAILED, Fault, NO_MEMORY, free, null, write_boxed};

/// The C type `memlift_zmem_options` of `memlift_zmem.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZmemOptions {
    unused_bytes: u64,
    min_uncompressed_bytes: u64,
    pause_on_overflow: u32,
    reserved: u32,
}

/// The C type `memlift_zmem_numbers_t` of `memlift_zmem.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZmemNumbers {
    total_bytes: i64,
    unused_bytes: i64,
    faults: u64,
    pages_in: u64,
    pages_packed: u64,
    pages_spilled: u64,
    present_bytes: u64,
    store_bytes: u64,
    mapped_bytes: u64,
}

/// The C type `memlift_zmem_pins` of `memlift_zmem.h`.
pub struct ZmemPins(#[expect(dead_code, reason = "dropped to let the pages go")] Pins<'static>);

fn failed(error: &Error) -> Fault {
    let code = match error {
        Error::Started => BAD_ORDER,
        Error::Map { .. } | Error::Admission { .. } => NO_MEMORY,
        _ => FILE_FAILED,
    };
    Fault { code, text: Some(error.to_string()) }
}

fn pager() -> Result<&'static Pager, Fault> {
    Pager::get().ok_or_else(|| Fault::order("this process is no job: call memlift_zmem_enter first"))
}

fn block(address: *mut c_void) -> Result<NonNull<u8>, Fault> {
    match NonNull::new(address.cast::<u8>()) {
        Some(block) if Pager::contains(address.addr()) => Ok(block),
        _ => Err(Fault::argument("the address is not from memlift_zmem_alloc")),
    }
}

fn no_room(bytes: usize) -> Fault {
    Fault { code: NO_MEMORY, text: Some(format!("the arena has no room for {bytes} bytes: free something")) }
}

/// Makes this process a job with a budget.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_enter(
    name: *const c_char,
    total_bytes: u64,
    options: *const ZmemOptions,
) -> c_int {
    fault::run(|| {
        if name.is_null() {
            return Err(null("name"));
        }
        // SAFETY: `name` is not null, so it is a text that ends with a zero byte, as the header demands.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: `options` is null, or readable as the header demands.
        let options = unsafe { options.as_ref() }.copied();
        let total = usize::try_from(total_bytes).map_err(|_| Fault::argument("total_bytes is too large"))?;
        let number = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let unused = options.map_or(0, |options| number(options.unused_bytes));
        let pause = options.is_some_and(|options| options.pause_on_overflow != 0);
        let objectives = Objectives {
            total,
            unused: if unused == 0 { (total / 64).max(1 << 20) } else { unused },
            min_uncompressed: options.map_or(0, |options| number(options.min_uncompressed_bytes)),
            on_overflow: OnOverflow::parse(if pause { "pause" } else { "fail" }).unwrap_or(OnOverflow::Fail),
        };
        arena::enter(&name, &objectives).map(drop).map_err(|error| failed(&error))
    })
}

/// Changes the job's total budget.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_zmem_set_total(total_bytes: u64) -> c_int {
    fault::run(|| {
        let job = pager()?.job();
        let total = usize::try_from(total_bytes).map_err(|_| Fault::argument("total_bytes is too large"))?;
        job.registry().set_total(job.block(), total).map_err(|error| failed(&error))
    })
}

/// Allocates a block of zeros.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_alloc(bytes: usize, block: *mut *mut c_void) -> c_int {
    fault::run(|| {
        if block.is_null() {
            return Err(null("block"));
        }
        let made = blocks::allocate(pager()?, bytes).ok_or_else(|| no_room(bytes))?;
        // SAFETY: `block` is not null, so it has room for a pointer, as the header demands.
        unsafe { block.write(made.as_ptr().cast()) };
        Ok(())
    })
}

/// Changes the size of a block.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_resize(block: *mut *mut c_void, bytes: usize) -> c_int {
    fault::run(|| {
        if block.is_null() {
            return Err(null("block"));
        }
        // SAFETY: `block` is not null, so it points to a pointer, as the header demands.
        let old = self::block(unsafe { block.read() })?;
        // SAFETY: `old` is a block that is not freed, and nobody uses it during the call, as the header demands.
        let made = unsafe { blocks::resize(pager()?, old, bytes) }.ok_or_else(|| no_room(bytes))?;
        // SAFETY: `block` is not null, so it has room for a pointer, as the header demands.
        unsafe { block.write(made.as_ptr().cast()) };
        Ok(())
    })
}

/// Frees a block.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    fault::run(|| {
        let block = self::block(block)?;
        // SAFETY: the block is not freed, and nobody uses it any more, as the header demands.
        unsafe { blocks::release(pager()?, block) };
        Ok(())
    });
}

/// Keeps the pages of a range in memory.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_pin(
    address: *const c_void,
    bytes: usize,
    write: c_int,
    pins: *mut *mut ZmemPins,
) -> c_int {
    fault::run(|| {
        let held = pager()?.pin(address.addr(), bytes, write != 0).map_err(|errno| {
            let reason = std::io::Error::from_raw_os_error(errno);
            Fault { code: NO_MEMORY, text: Some(format!("{bytes} bytes cannot be kept present: {reason}")) }
        })?;
        // SAFETY: `pins` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(pins, ZmemPins(held), "pins") }
    })
}

/// Releases pinned pages.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_unpin(pins: *mut ZmemPins) {
    // SAFETY: null, or boxed by `memlift_zmem_pin`; the caller gives it up.
    unsafe { free(pins) }
}

/// Returns the pager's counters and memory use.
///
/// # Safety
///
/// The conditions of `memlift_zmem.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_zmem_numbers(numbers: *mut ZmemNumbers) -> c_int {
    fault::run(|| {
        if numbers.is_null() {
            return Err(null("numbers"));
        }
        let pager = pager()?;
        let (now, job) = (pager.numbers(), pager.job());
        let value = ZmemNumbers {
            total_bytes: job.total(),
            unused_bytes: job.unused(),
            faults: now.faults,
            pages_in: now.pages_in,
            pages_packed: now.pages_packed,
            pages_spilled: now.pages_spilled,
            present_bytes: (now.present_bytes + now.native_bytes) as u64,
            store_bytes: now.store_bytes as u64,
            mapped_bytes: now.mapped_bytes as u64,
        };
        // SAFETY: `numbers` is not null, so it has room for the numbers, as the header demands.
        unsafe { numbers.write(value) };
        Ok(())
    })
}

const _: () = assert!(size_of::<ZmemNumbers>() == 72 && size_of::<ZmemOptions>() == 24);
