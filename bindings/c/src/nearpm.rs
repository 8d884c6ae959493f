// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The primitives of NearPM under their names, on transactions of a pool.
//!
//! - **Flow** undolog_create and ckpoint_create save a range before it is changed, applylog copies ranges, shadowcpy copies an object to
//!   a new one, and commit_log writes one record with one fence.
//! - **Order** the commit ensures the order in which changes become durable (PPO): the caller needs no fence between these calls.
//! - **Source** NearPM, Table 2 and Figure 14. A transaction replaces pool_id and thread_id.

use crate::fault::{Fault, run};
use crate::persist::{COptions, CPool, CType, open_with};
use crate::transact::{CTx, memlift_tx_add_range, memlift_tx_commit};
use memlift::persist::raw::read_raw;
use memlift::persist::{Error, Pool};
use std::ffi::{c_char, c_int};

/// Page size of a checkpoint, bytes.
const PAGE_BYTES: u64 = 4096;

/// The C type `memlift_nearpm_redo` of `memlift_persist.h`.
#[repr(C)]
pub struct CRedo {
    kind: CType,
    object: u64,
    from: u64,
    bytes: u64,
    data: *const u8,
}

const _: () = assert!(size_of::<CRedo>() == 48);

/// Opens or creates a pool.
///
/// # Safety
///
/// The conditions of `memlift_pool_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_init_device(
    device_path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
) -> c_int {
    // SAFETY: `device_path` ends with a zero, `options` is null or readable, `pool` is null or writable, as the caller guarantees.
    run(|| unsafe { open_with(device_path, options, pool, Pool::open_or_create) })
}

/// Saves a range before it is changed, and returns its address for writing.
///
/// # Safety
///
/// The conditions of `memlift_tx_add_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_undolog_create(
    tx: *mut CTx,
    kind: CType,
    old_data: u64,
    from: u64,
    size: u64,
    data: *mut *mut u8,
) -> c_int {
    // SAFETY: the caller guarantees that `tx` has not ended and `data` is writable; null is refused.
    unsafe { memlift_tx_add_range(tx, kind, old_data, from, size, data) }
}

/// Copies the ranges of a redo log into their objects.
///
/// # Safety
///
/// `tx` has not ended; `redolog` has `size` ranges, whose data are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_applylog(tx: *mut CTx, redolog: *const CRedo, size: usize) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if redolog.is_null() && size > 0 {
            return Err(Fault::argument("redolog is NULL"));
        }
        let ranges = match size {
            0 => &[],
            // SAFETY: `redolog` is not null (checked above), so the caller guarantees `size` ranges.
            _ => unsafe { std::slice::from_raw_parts(redolog, size) },
        };
        // All ranges are checked before the first is copied.
        for one in ranges {
            if one.data.is_null() && one.bytes > 0 {
                return Err(Fault::argument("a range of the redo log has NULL data"));
            }
            tx.read(|t| {
                let bytes = read_raw(t, one.object, one.kind.id)?.len() as u64;
                match one.from.checked_add(one.bytes) {
                    Some(end) if end <= bytes => Ok(()),
                    _ => Err(Error::Pointer { wanted: "range of this object", offset: one.object }),
                }
            })?;
        }
        for one in ranges.iter().filter(|one| one.bytes > 0) {
            tx.change(|t| {
                let target = t.range_raw(one.object, one.kind.id, one.from, one.bytes)?;
                // SAFETY: the caller guarantees that the data is readable for `bytes`; `range_raw` returned a target of the
                // same length. Both may lie in the pool's memory and overlap, which `copy` allows.
                unsafe { std::ptr::copy(one.data, target.as_mut_ptr(), target.len()) };
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Commits the transaction.
///
/// # Safety
///
/// The conditions of `memlift_tx_commit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_commit_log(tx: *mut CTx) -> c_int {
    // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
    unsafe { memlift_tx_commit(tx) }
}

/// Saves whole pages before they are changed, and returns their address for writing.
///
/// # Safety
///
/// The conditions of `memlift_tx_add_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_ckpoint_create(
    tx: *mut CTx,
    kind: CType,
    old_data: u64,
    from: u64,
    size: u64,
    data: *mut *mut u8,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if data.is_null() {
            return Err(Fault::argument("data is NULL"));
        }
        let start = tx.change(|t| {
            let bytes = read_raw(t, old_data, kind.id)?.len() as u64;
            let end = from.checked_add(size).filter(|end| *end <= bytes);
            let end = end.ok_or(Error::Pointer { wanted: "range of this object", offset: old_data })?;
            let (first, last) = (from / PAGE_BYTES * PAGE_BYTES, end.next_multiple_of(PAGE_BYTES).min(bytes));
            let pages = t.range_raw(old_data, kind.id, first, last - first)?;
            Ok(pages[(from - first) as usize..].as_mut_ptr())
        })?;
        // SAFETY: `data` is not null, so the caller guarantees that it is writable.
        unsafe { data.write(start) };
        Ok(())
    })
}

/// Copies an object to a new one.
///
/// # Safety
///
/// `tx` has not ended, `copy` is writable, `data` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_shadowcpy(
    tx: *mut CTx,
    kind: CType,
    page: u64,
    copy: *mut u64,
    data: *mut *mut u8,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if copy.is_null() {
            return Err(Fault::argument("copy is NULL"));
        }
        let (made, start) = tx.change(|t| {
            let bytes = read_raw(t, page, kind.id)?.to_vec();
            let (made, payload) = t.alloc_raw_lent(kind.id, bytes.len() as u64, &[&bytes])?;
            Ok((made, payload.as_mut_ptr()))
        })?;
        // SAFETY: `copy` is not null, so it is writable; `data` is null or writable, as the caller guarantees.
        unsafe {
            copy.write(made);
            if !data.is_null() {
                data.write(start);
            }
        }
        Ok(())
    })
}
