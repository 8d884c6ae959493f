// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions, read locks and the objects in them: `include/memlift_persist.h` describes each function.
//!
//! - **Flow** C ──▶ memlift::persist::raw: [`OpenTx`], [`OpenRead`], objects of run-time types.
//! - **Order** a thread can have one transaction or read lock per pool ([`Claim`]): a second one would wait for the first for ever. If
//!   an operation fails in the middle, its transaction can only be aborted.
//! - **Owner** a transaction or read lock is ended by its owner, on the thread that began it.

use crate::claim::Claim;
use crate::fault::{BAD_ORDER, Fault, null, run};
use crate::persist::{CPool, CType, closed, pool_of};
use memlift::persist::raw::{OpenRead, OpenTx, read_raw, root, root_or};
use memlift::persist::{Durability, Error, Tx, View};
use std::ffi::c_int;

/// Object behind a `memlift_tx` pointer.
pub struct CTx {
    tx: OpenTx,
    doomed: Option<String>,
    claim: Claim,
}

/// Object behind a `memlift_reader` pointer.
pub struct CReader {
    read: OpenRead,
    claim: Claim,
}

impl CTx {
    /// Borrows a transaction for a call on its own thread, and refuses null.
    ///
    /// # Safety
    ///
    /// `tx` is null, or came from `memlift_tx_begin` and has not ended.
    pub(crate) unsafe fn of<'a>(tx: *mut CTx) -> Result<&'a mut CTx, Fault> {
        // SAFETY: the caller guarantees that `tx` is null, or was boxed by `memlift_tx_begin` and has not ended.
        let tx = unsafe { tx.as_mut() }.ok_or_else(|| null("tx"))?;
        tx.claim.check()?;
        Ok(tx)
    }

    /// Runs an operation that changes something; if it fails, the transaction can only be aborted.
    pub(crate) fn change<R>(
        &mut self,
        work: impl for<'p> FnOnce(&mut Tx<'p>) -> Result<R, Error>,
    ) -> Result<R, Fault> {
        let result = self.tx.with(work);
        if let Err(error) = &result {
            self.doomed.get_or_insert_with(|| error.to_string());
        }
        Ok(result?)
    }

    /// Runs an operation that only reads; if it fails, the transaction can continue.
    pub(crate) fn read<R>(
        &mut self,
        work: impl for<'p> FnOnce(&mut Tx<'p>) -> Result<R, Error>,
    ) -> Result<R, Fault> {
        Ok(self.tx.with(work)?)
    }
}

/// Begins a transaction.
///
/// # Safety
///
/// `pool` is open, and `tx` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_begin(pool: *mut CPool, durability: c_int, tx: *mut *mut CTx) -> c_int {
    run(|| {
        if tx.is_null() {
            return Err(null("tx"));
        }
        // SAFETY: `tx` is not null, so it is writable; `pool` is null or open, as the caller guarantees.
        let pool = unsafe {
            tx.write(std::ptr::null_mut());
            pool_of(pool)?
        };
        let durability = match durability {
            0 => Durability::Sync,
            1 => Durability::Group,
            2 => Durability::Buffered,
            3 if pool.replica.is_some() => Durability::Replicated,
            3 => return Err(Fault::argument("MEMLIFT_REPLICATED: open the pool with `replicate`")),
            other => return Err(Fault::argument(&format!("{other} is no durability"))),
        };
        let claim = Claim::new(&pool.open)?;
        let begun = pool.handle.with(|pool| pool.begin(durability)).ok_or_else(closed)??;
        // SAFETY: `tx` is not null, so it is writable, as the caller guarantees.
        unsafe { tx.write(Box::into_raw(Box::new(CTx { tx: begun, doomed: None, claim }))) };
        Ok(())
    })
}

/// Commits a transaction.
///
/// # Safety
///
/// `tx` has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_commit(tx: *mut CTx) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, which `of` refuses, or boxed by `memlift_tx_begin` and not ended; the caller gives it up.
        let ended = unsafe {
            CTx::of(tx)?;
            Box::from_raw(tx)
        };
        let CTx { tx, doomed, claim } = *ended;
        if let Some(reason) = doomed {
            drop(tx);
            let text =
                format!("something in the transaction had failed before, nothing of it happened: {reason}");
            return Err(Fault { code: BAD_ORDER, text: Some(text) });
        }
        let committed = tx.commit();
        drop(claim);
        Ok(committed?)
    })
}

/// Aborts a transaction.
///
/// # Safety
///
/// `tx` is null or has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_abort(tx: *mut CTx) -> c_int {
    run(|| {
        if tx.is_null() {
            return Ok(());
        }
        // SAFETY: `tx` is null, which `of` refuses, or boxed by `memlift_tx_begin` and not ended; the caller gives it up.
        unsafe {
            CTx::of(tx)?;
            drop(Box::from_raw(tx));
        }
        Ok(())
    })
}

/// Allocates a new object.
///
/// # Safety
///
/// `tx` has not ended, `object` is writable, `data` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_alloc(
    tx: *mut CTx,
    kind: CType,
    bytes: u64,
    object: *mut u64,
    data: *mut *mut u8,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if object.is_null() {
            return Err(null("object"));
        }
        if kind.bytes != 0 && bytes != 0 && bytes != kind.bytes {
            return Err(Fault::argument("the type has a size: give 0, or that"));
        }
        let bytes = kind.bytes.max(bytes);
        // A size that no pool can hold is refused before the transaction is changed.
        if bytes > 6 << 40 {
            return Err(Fault::argument("an object has 6 TiB at most"));
        }
        let (offset, start) = tx.change(|t| {
            let (offset, payload) = t.alloc_raw_lent(kind.id, bytes, &[])?;
            Ok((offset, payload.as_mut_ptr()))
        })?;
        // SAFETY: `object` is not null, so it is writable; `data` is null or writable, as the caller guarantees.
        unsafe {
            object.write(offset);
            if !data.is_null() {
                data.write(start);
            }
        }
        Ok(())
    })
}

/// Frees an object.
///
/// # Safety
///
/// `tx` has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_free(tx: *mut CTx, kind: CType, object: u64) -> c_int {
    // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
    run(|| unsafe { CTx::of(tx) }?.change(|t| t.free_raw(object, kind.id)))
}

/// Adds a range to the transaction, so that it may be changed, and returns its address.
///
/// # Safety
///
/// `tx` has not ended, `data` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_add_range(
    tx: *mut CTx,
    kind: CType,
    object: u64,
    from: u64,
    bytes: u64,
    data: *mut *mut u8,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if data.is_null() {
            return Err(null("data"));
        }
        let start = tx.change(|t| Ok(t.range_raw(object, kind.id, from, bytes)?.as_mut_ptr()))?;
        // SAFETY: `data` is not null, so it is writable, as the caller guarantees.
        unsafe { data.write(start) };
        Ok(())
    })
}

/// Adds a range to the transaction and copies bytes to it.
///
/// # Safety
///
/// `tx` has not ended, `source` is readable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_write(
    tx: *mut CTx,
    kind: CType,
    object: u64,
    from: u64,
    source: *const u8,
    bytes: u64,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if bytes == 0 {
            return Ok(());
        }
        if source.is_null() {
            return Err(null("source"));
        }
        tx.change(|t| {
            let target = t.range_raw(object, kind.id, from, bytes)?;
            // SAFETY: the caller guarantees `bytes` readable bytes; `range_raw` checked that the object has that many from
            // there. The source may be the pool's memory, even the same bytes: `copy` allows that.
            unsafe { std::ptr::copy(source, target.as_mut_ptr(), bytes as usize) };
            Ok(())
        })
    })
}

/// Writes an object's address and length to the addresses that the caller gave.
///
/// # Safety
///
/// `data` is writable, `bytes` null or writable.
unsafe fn give(found: (*const u8, u64), data: *mut *const u8, bytes: *mut u64) -> Result<(), Fault> {
    if data.is_null() {
        return Err(null("data"));
    }
    // SAFETY: `data` is not null, so it is writable; `bytes` is null or writable, as the caller guarantees.
    unsafe {
        data.write(found.0);
        if !bytes.is_null() {
            bytes.write(found.1);
        }
    }
    Ok(())
}

fn object<V: View>(view: &V, object: u64, kind: CType) -> Result<(*const u8, u64), Error> {
    let payload = read_raw(view, object, kind.id)?;
    Ok((payload.as_ptr(), payload.len() as u64))
}

/// Returns the address and length of an object.
///
/// # Safety
///
/// `tx` has not ended, `data` is writable, `bytes` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_get(
    tx: *mut CTx,
    kind: CType,
    object: u64,
    data: *mut *const u8,
    bytes: *mut u64,
) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        let found = tx.read(|t| self::object(t, object, kind))?;
        // SAFETY: `data` and `bytes` are null or writable, as the caller guarantees.
        unsafe { give(found, data, bytes) }
    })
}

/// Makes an object the root.
///
/// # Safety
///
/// `tx` has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_set_root(tx: *mut CTx, kind: CType, object: u64) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        tx.change(|t| {
            if object != 0 {
                read_raw(t, object, kind.id)?;
            }
            let at = root_or(t)?;
            let root = t.get_mut(at)?;
            (root.object, root.object_type) = if object == 0 { (0, 0) } else { (object, kind.id) };
            Ok(())
        })
    })
}

fn root_object<V: View>(view: &V, kind: CType) -> Result<u64, Error> {
    let root = root(view)?;
    if root.object != 0 && root.object_type != kind.id {
        return Err(Error::Pointer { wanted: "root of this type", offset: root.object });
    }
    Ok(root.object)
}

/// Returns the root object.
///
/// # Safety
///
/// `tx` has not ended, `object` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_root(tx: *mut CTx, kind: CType, object: *mut u64) -> c_int {
    run(|| {
        // SAFETY: `tx` is null, or from `memlift_tx_begin` and has not ended, as the caller guarantees.
        let tx = unsafe { CTx::of(tx) }?;
        if object.is_null() {
            return Err(null("object"));
        }
        let found = tx.read(|t| root_object(t, kind))?;
        // SAFETY: `object` is not null, so it is writable, as the caller guarantees.
        unsafe { object.write(found) };
        Ok(())
    })
}

/// Locks the pool for reading.
///
/// # Safety
///
/// `pool` is open, and `reader` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_begin(pool: *mut CPool, reader: *mut *mut CReader) -> c_int {
    run(|| {
        if reader.is_null() {
            return Err(null("reader"));
        }
        // SAFETY: `reader` is not null, so it is writable; `pool` is null or open, as the caller guarantees.
        let pool = unsafe {
            reader.write(std::ptr::null_mut());
            pool_of(pool)?
        };
        let claim = Claim::new(&pool.open)?;
        let read = pool.handle.with(|pool| pool.read()).ok_or_else(closed)??;
        // SAFETY: `reader` is not null, so it is writable, as the caller guarantees.
        unsafe { reader.write(Box::into_raw(Box::new(CReader { read, claim }))) };
        Ok(())
    })
}

/// Ends a read lock.
///
/// # Safety
///
/// `reader` is null or has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_end(reader: *mut CReader) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `reader` is null, or was boxed by `memlift_read_begin` and has not ended.
        let Some(open) = (unsafe { reader.as_ref() }) else { return Ok(()) };
        open.claim.check()?;
        // SAFETY: the reader was boxed by `memlift_read_begin`, and the caller gives it up.
        let read = unsafe { Box::from_raw(reader) };
        Ok(read.read.check()?)
    })
}

/// Returns the address and length of an object.
///
/// # Safety
///
/// `reader` has not ended, `data` is writable, `bytes` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_get(
    reader: *mut CReader,
    kind: CType,
    object: u64,
    data: *mut *const u8,
    bytes: *mut u64,
) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `reader` is null, or was boxed by `memlift_read_begin` and has not ended.
        let reader = unsafe { reader.as_ref() }.ok_or_else(|| null("reader"))?;
        reader.claim.check()?;
        let found = self::object(&reader.read, object, kind)?;
        // SAFETY: `data` and `bytes` are null or writable, as the caller guarantees.
        unsafe { give(found, data, bytes) }
    })
}

/// Returns the root object.
///
/// # Safety
///
/// `reader` has not ended, `object` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_root(reader: *mut CReader, kind: CType, object: *mut u64) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `reader` is null, or was boxed by `memlift_read_begin` and has not ended.
        let reader = unsafe { reader.as_ref() }.ok_or_else(|| null("reader"))?;
        reader.claim.check()?;
        if object.is_null() {
            return Err(null("object"));
        }
        let found = root_object(&reader.read, kind)?;
        // SAFETY: `object` is not null, so it is writable, as the caller guarantees.
        unsafe { object.write(found) };
        Ok(())
    })
}
