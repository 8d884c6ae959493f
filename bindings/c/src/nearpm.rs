// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NearPM's primitives by their names, on transactions of a pool.
//!
//! - **Flow** undolog_create, ckpoint_create ─▶ a range is kept as it was · applylog ─▶ ranges are copied · shadowcpy ─▶ a new
//!   object ── commit_log ─▶ one record, one fence
//! - **Order** what must be durable before what (PPO) is the commit's affair: the caller needs no fence between these calls
//! - **Source** NearPM, Table 2 and Figure 14. pool_id and thread_id are the transaction

use crate::fault::{Fault, run};
use crate::persist::{COptions, CPool, CType, open_with};
use crate::transact::{CTx, memlift_tx_add_range, memlift_tx_commit};
use memlift::persist::raw::read_raw;
use memlift::persist::{Error, Pool};
use std::ffi::{c_char, c_int};

/// Pages of a checkpoint.
const PAGE_BYTES: u64 = 4096;

/// `memlift_nearpm_redo`.
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
/// As for `memlift_pool_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_init_device(
    device_path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
) -> c_int {
    // SAFETY: `device_path` ends with a zero, `options` is null or readable, `pool` is null or writable, as the caller vouches.
    run(|| unsafe { open_with(device_path, options, pool, Pool::open_or_create) })
}

/// Keeps a range as it is and lends it.
///
/// # Safety
///
/// As for `memlift_tx_add_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_undolog_create(
    tx: *mut CTx,
    kind: CType,
    old_data: u64,
    from: u64,
    size: u64,
    data: *mut *mut u8,
) -> c_int {
    // SAFETY: `tx` has not ended and `data` is writable, as the caller vouches; null is refused.
    unsafe { memlift_tx_add_range(tx, kind, old_data, from, size, data) }
}

/// Copies the ranges of a redo log.
///
/// # Safety
///
/// `tx` has not ended; `redolog` has `size` ranges, whose data are readable and not the pool's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_applylog(tx: *mut CTx, redolog: *const CRedo, size: usize) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller vouches.
        let tx = unsafe { CTx::of(tx) }?;
        if redolog.is_null() && size > 0 {
            return Err(Fault::argument("redolog is NULL"));
        }
        let ranges = match size {
            0 => &[],
            // SAFETY: `size` ranges, and not null (above).
            _ => unsafe { std::slice::from_raw_parts(redolog, size) },
        };
        // All are looked at before the first is copied.
        for one in ranges {
            if one.data.is_null() && one.bytes > 0 {
                return Err(Fault::argument("a range of the redo log has NULL data"));
            }
            tx.look(|t| {
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
                // SAFETY: the caller vouches that the data is readable for `bytes`; it may lie in the pool's memory and overlap the
                // target, which has as many (`range_raw`).
                unsafe { std::ptr::copy(one.data, target.as_mut_ptr(), target.len()) };
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Commits.
///
/// # Safety
///
/// As for `memlift_tx_commit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_nearpm_commit_log(tx: *mut CTx) -> c_int {
    // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller vouches.
    unsafe { memlift_tx_commit(tx) }
}

/// Keeps whole pages as they are and lends them.
///
/// # Safety
///
/// As for `memlift_tx_add_range`.
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
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller vouches.
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
        // SAFETY: `data` is not null, so it is writable, as the caller vouches.
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
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller vouches.
        let tx = unsafe { CTx::of(tx) }?;
        if copy.is_null() {
            return Err(Fault::argument("copy is NULL"));
        }
        let (made, start) = tx.change(|t| {
            let bytes = read_raw(t, page, kind.id)?.to_vec();
            let (made, payload) = t.alloc_raw_lent(kind.id, bytes.len() as u64, &[&bytes])?;
            Ok((made, payload.as_mut_ptr()))
        })?;
        // SAFETY: `copy` is not null, so it is writable; `data` is null or writable, as the caller vouches.
        unsafe {
            copy.write(made);
            if !data.is_null() {
                data.write(start);
            }
        }
        Ok(())
    })
}
