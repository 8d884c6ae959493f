// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls: CompCpy with the arguments and rules of the paper, and the same transforms for any address and size.
//!
//! - **Order** arguments are checked in this order: pointers, alignment (compcpy), then the checks of the service.
//! - **Owner** buffers belong to the caller; a pointer to no bytes may be null.
//!
//! Source: SmartDIMM, Algorithm 2. `size` is a `size_t` here; in the paper it has 16 bits.

use crate::context::{Context, context};
use crate::fault::{Fault, run};
use memlift::transform::{self, Step, Transform};
use std::ffi::c_int;
use std::ptr::NonNull;

/// Checks that `bytes` bytes can lie at `start`; null is allowed for no bytes.
fn place(start: *const u8, bytes: usize, what: &str) -> Result<*const u8, Fault> {
    if isize::try_from(bytes).is_err() {
        return Err(Fault::argument(&format!("{what} has {bytes} bytes, which is more than there can be")));
    }
    if start.is_null() {
        if bytes > 0 {
            return Err(Fault::argument(&format!("{what} is NULL and has {bytes} bytes")));
        }
        return Ok(NonNull::dangling().as_ptr());
    }
    Ok(start)
}

/// Copies `size` bytes of pages and does the context's steps on the way; with a null context it only copies.
///
/// # Safety
///
/// `dbuff` is writable for `size` rounded up to whole pages, `sbuff` readable for `size`; nobody else changes either during the
/// call, and only this thread uses the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_compcpy(
    dbuff: *mut u8,
    sbuff: *const u8,
    size: usize,
    context: *mut Context,
    ordered: c_int,
) -> c_int {
    run(|| {
        // Null counts as aligned. It is allowed for no bytes, and then no memory is accessed.
        for (start, what) in [(dbuff.cast_const(), "dbuff"), (sbuff, "sbuff")] {
            place(start, size, what)?;
        }
        // SAFETY: the caller guarantees `size` readable bytes at `sbuff`, `size` rounded up to whole pages at `dbuff`, and that
        // only this thread uses `context`. The pointers are null only if there are no bytes, and then no memory is accessed.
        unsafe {
            let (dbuff, sbuff) = match size {
                0 if dbuff.is_null() || sbuff.is_null() => {
                    let page = transform::PAGE_BYTES as *mut u8;
                    let or_page = |start: *mut u8| if start.is_null() { page } else { start };
                    (or_page(dbuff), or_page(sbuff.cast_mut()).cast_const())
                }
                _ => (dbuff, sbuff),
            };
            if context.is_null() {
                transform::compcpy(dbuff, sbuff, size, Step::Copy, ordered != 0)?;
                return Ok(());
            }
            self::context(context)?
                .transform(|op, _| transform::compcpy(dbuff, sbuff, size, op, ordered != 0))
        }
    })
}

/// Copies `source` to the start of `target` and does the context's steps on the way; with a null context it only copies.
///
/// # Safety
///
/// The conditions of `memlift_compcpy`, for the given numbers of bytes; `written` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_transform(
    context: *mut Context,
    source: *const u8,
    source_bytes: usize,
    target: *mut u8,
    target_bytes: usize,
    written: *mut usize,
) -> c_int {
    let mut bytes = 0;
    let code = run(|| {
        let from = (place(source, source_bytes, "source")?, source_bytes);
        let to = (place(target, target_bytes, "target")?.cast_mut(), target_bytes);
        let global = Transform::global();
        // SAFETY: the caller guarantees that `source` is readable for `source_bytes`, `target` writable for `target_bytes`,
        // that nobody else changes either during the call, and that only this thread uses `context`. `place` has refused null
        // for one byte or more.
        unsafe {
            if context.is_null() {
                bytes = global.copy_raw(Step::Copy, from, to, &transform::Options::default())?.written;
                return Ok(());
            }
            self::context(context)?.transform(|op, options| {
                let outcome = global.copy_raw(op, from, to, options)?;
                bytes = outcome.written;
                Ok(outcome)
            })
        }
    });
    if !written.is_null() {
        // SAFETY: the caller guarantees that `written` is null or writable, and it is not null here.
        unsafe { written.write(bytes) };
    }
    code
}

/// Returns the CRC-32C of `bytes` bytes; `seed` is 0, or the value of the preceding bytes. Returns 0 if an argument is invalid.
///
/// # Safety
///
/// `source` is readable for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_crc32c(source: *const u8, bytes: usize, seed: u32) -> u32 {
    let mut crc = 0;
    run(|| {
        let source = place(source, bytes, "source")?;
        // SAFETY: the caller guarantees `bytes` readable bytes; `place` has refused null for one byte or more.
        crc = unsafe { Transform::global().engine().crc32c_raw(source, bytes, seed) };
        Ok(())
    });
    crc
}
