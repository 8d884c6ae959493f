// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools and types of objects: `include/memlift_persist.h` describes each function.
//!
//! - **Flow** C ──▶ memlift::persist::raw: [`Handle`], descriptions of types.
//! - **Owner** the caller that opened a pool closes it; a pool with open transactions or read locks is not closed.
//! - **Layout** types are written to the root's table of types, which maps a u64 id to the text of a [`ForeignType`].

use crate::claim::is_held;
use crate::fault::{Fault, null, run};
use crate::replica::{CReplica, Replica};
use memlift::persist::raw::{ForeignField, ForeignType, Handle, Table, root, root_or};
use memlift::persist::{BackupOptions, Domain, Error, Mechanism, Options, Pool, Survives, View};
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long the replica is waited for where the program does not say.
const REPLICA_WAIT: Duration = Duration::from_secs(30);

/// Object behind a `memlift_pool` pointer.
pub struct CPool {
    /// Dropped before the pool.
    pub(crate) replica: Option<Replica>,
    pub(crate) handle: Handle,
    read_only: bool,
    /// Number of open transactions and read locks.
    pub(crate) open: Arc<AtomicUsize>,
}

/// The C type `memlift_pool_options` of `memlift_persist.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct COptions {
    heap_bytes: u64,
    max_bytes: u64,
    lane_bytes: u64,
    mechanism: u32,
    domain: u32,
    read_only: u32,
    prefault: u32,
    mirror_bytes: u64,
    readers_bytes: u64,
    wait_s: f64,
    replicate: Option<NonNull<c_char>>,
    replica_wait_s: f64,
}

/// The C type `memlift_pool_guarantee_t` of `memlift_persist.h`.
#[repr(C)]
pub struct CGuarantee {
    survives_power_failure: u32,
    domain: u32,
}

/// The C type `memlift_field` of `memlift_persist.h`.
#[repr(C)]
pub struct CField {
    name: *const c_char,
    offset: u64,
    bytes: u64,
    /// In the words of C; null: not known.
    kind: *const c_char,
}

/// The C type `memlift_type` of `memlift_persist.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CType {
    /// Hash of the type's name, size and fields.
    pub id: u64,
    /// Size of an object; 0 if each object has its own length.
    pub bytes: u64,
}

const _: () = assert!(size_of::<COptions>() == 80 && size_of::<CGuarantee>() == 8);
const _: () = assert!(size_of::<CField>() == 32 && size_of::<CType>() == 16);

pub(crate) fn closed() -> Fault {
    Fault::argument("the pool belongs to the process that this one was forked from")
}

/// Returns the text at a pointer, and refuses null.
///
/// # Safety
///
/// `text` is null or ends with a zero.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Fault> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: `text` is not null, so the caller guarantees that it ends with a zero and lives during the call.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn options_of(options: Option<&COptions>) -> Result<Options, Fault> {
    let given = options.copied().unwrap_or_default();
    let default = Options::default();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let heap_bytes = or(given.heap_bytes, default.heap_bytes);
    let domain = match given.domain {
        0 => Domain::Auto,
        1 => Domain::Lines,
        2 => Domain::Pages,
        other => return Err(Fault::argument(&format!("{other} is no domain"))),
    };
    let mechanism = Mechanism::ALL
        .into_iter()
        .find(|one| *one as u32 == given.mechanism)
        .ok_or_else(|| Fault::argument(&format!("{} is no mechanism", given.mechanism)))?;
    let seconds = |value: f64, name: &str| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Fault::argument(&format!("{name} is a number of seconds from 0 on")))
    };
    let wait = seconds(given.wait_s, "wait_s")?;
    let replica_wait = seconds(given.replica_wait_s, "replica_wait_s")?;
    Ok(Options {
        heap_bytes,
        max_bytes: or(given.max_bytes, default.max_bytes).max(heap_bytes),
        lane_bytes: or(given.lane_bytes, default.lane_bytes),
        // Transactions run one at a time, and one lane is shared.
        lanes: 2,
        mechanism,
        domain,
        prefault: given.prefault != 0,
        read_only: given.read_only != 0,
        mirror_bytes: (given.mirror_bytes != 0).then_some(given.mirror_bytes),
        readers_bytes: given.readers_bytes,
        wait,
        replica_wait: if replica_wait.is_zero() { REPLICA_WAIT } else { replica_wait },
        ..default
    })
}

/// Creates or opens a pool; if that fails, `pool` becomes null.
///
/// # Safety
///
/// Both texts end with a zero, `options` is null or readable, `pool` is null or writable.
pub(crate) unsafe fn open_with(
    path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
    open: impl FnOnce(PathBuf, &Options) -> Result<Pool, Error>,
) -> Result<(), Fault> {
    if pool.is_null() {
        return Err(null("pool"));
    }
    // SAFETY: `pool` is not null, so it is writable; `path` ends with a zero, and `options` is null or readable, as the caller
    // guarantees.
    let (path, options) = unsafe {
        pool.write(std::ptr::null_mut());
        (text(path, "path")?, options.as_ref())
    };
    // SAFETY: a text of the options ends with a zero, as the caller guarantees.
    let url = options.and_then(|one| one.replicate).map(|url| unsafe { CStr::from_ptr(url.as_ptr()) });
    let options = options_of(options)?;
    let opened = open(PathBuf::from(OsStr::from_bytes(path.to_bytes())), &options)?;
    opened.read(|r| root(r))?; // refuses a pool of another program
    let place = |url: &CStr| Replica::begin(&opened, &url.to_string_lossy(), options.replica_wait);
    let replica = url.map(place).transpose()?;
    let handle = Handle::new(opened);
    let made = CPool { replica, handle, read_only: options.read_only, open: Arc::default() };
    // SAFETY: `pool` is not null, so the caller guarantees room for a pointer.
    unsafe { pool.write(Box::into_raw(Box::new(made))) };
    Ok(())
}

/// Creates a pool.
///
/// # Safety
///
/// `path` ends with a zero, `options` is null or readable, `pool` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_create(
    path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
) -> c_int {
    // SAFETY: `path` ends with a zero, `options` is null or readable, `pool` is null or writable, as the caller guarantees.
    run(|| unsafe { open_with(path, options, pool, Pool::create) })
}

/// Opens a pool.
///
/// # Safety
///
/// The conditions of `memlift_pool_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_open(
    path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
) -> c_int {
    // SAFETY: `path` ends with a zero, `options` is null or readable, `pool` is null or writable, as the caller guarantees.
    run(|| unsafe { open_with(path, options, pool, Pool::open) })
}

/// Closes a pool.
///
/// # Safety
///
/// `pool` is null, or open, and no other thread is in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_close(pool: *mut CPool) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is null or was opened and not closed.
        let Some(open) = (unsafe { pool.as_ref() }) else { return Ok(()) };
        if open.open.load(Ordering::Acquire) != 0 {
            return Err(Fault::order("a transaction or read lock of the pool is open: end it first"));
        }
        // SAFETY: the pool was boxed by `open_with`, and the caller gives it up.
        let mut pool = unsafe { Box::from_raw(pool) };
        let lacks = match pool.replica.take() {
            Some(replica) if pool.handle.with(|_| ()).is_some() => replica.end(),
            _ => Ok(()),
        };
        pool.handle.close()?;
        Ok(lacks?)
    })
}

/// Borrows a pool, and refuses null.
///
/// # Safety
///
/// `pool` is null, or open.
pub(crate) unsafe fn pool_of<'a>(pool: *mut CPool) -> Result<&'a CPool, Fault> {
    // SAFETY: the caller guarantees that `pool` is null, or open and not closed during the call.
    unsafe { pool.as_ref() }.ok_or_else(|| null("pool"))
}

/// Makes all committed transactions durable.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_sync(pool: *mut CPool) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        let pool = unsafe { pool_of(pool) }?;
        Ok(pool.handle.with(|pool| pool.sync()).ok_or_else(closed)??)
    })
}

/// Tells how far the replica is.
///
/// # Safety
///
/// `pool` is open, `replica` null or writable, `trouble` null or writable for `trouble_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_replica(
    pool: *mut CPool,
    replica: *mut CReplica,
    trouble: *mut c_char,
    trouble_bytes: usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        let (found, why) = replica_of(unsafe { pool_of(pool) }?)?.status();
        if !replica.is_null() {
            // SAFETY: `replica` is not null, so the caller guarantees that it is writable.
            unsafe { replica.write(found) };
        }
        // SAFETY: `trouble` is null or writable for `trouble_bytes`, as the caller guarantees.
        unsafe { write_text(&why, trouble, trouble_bytes) };
        Ok(())
    })
}

fn replica_of(pool: &CPool) -> Result<&Replica, Fault> {
    pool.handle.with(|_| ()).ok_or_else(closed)?;
    pool.replica.as_ref().ok_or_else(|| Fault::argument("the pool has no replica: open it with `replicate`"))
}

/// Waits until the replica has everything.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_wait_replica(pool: *mut CPool, timeout_s: f64) -> c_int {
    run(|| {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|_| Fault::argument("timeout_s is a number of seconds from 0 on"))?;
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        Ok(replica_of(unsafe { pool_of(pool) }?)?.wait(timeout)?)
    })
}

/// Makes a new file of a replica.
///
/// # Safety
///
/// Both texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_replica_restore(
    url: *const c_char,
    target: *const c_char,
    time_us: u64,
) -> c_int {
    run(|| {
        // SAFETY: both texts end with a zero, as the caller guarantees; null is refused.
        let (url, target) = unsafe { (text(url, "url")?, text(target, "target")?) };
        let target = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
        Ok(crate::replica::restore(&url.to_string_lossy(), &target, time_us)?)
    })
}

/// Writes a text, cut off to its room, with a zero at its end.
///
/// # Safety
///
/// `target` is null or writable for `bytes`.
unsafe fn write_text(text: &str, target: *mut c_char, bytes: usize) {
    if target.is_null() || bytes == 0 {
        return;
    }
    let words = CString::new(text).unwrap_or_default();
    let fits = words.as_bytes().len().min(bytes - 1);
    // SAFETY: the caller guarantees `bytes` writable bytes; the text with its zero is cut to that.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), target, fits);
        target.add(fits).write(0);
    }
}

/// Copies the pool into a new file.
///
/// # Safety
///
/// `pool` is open, `target` a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_backup(
    pool: *mut CPool,
    target: *const c_char,
    bytes_per_second: u64,
) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        let pool = unsafe { pool_of(pool) }?;
        // SAFETY: the caller guarantees a text that ends with a zero; null is refused.
        let target = unsafe { text(target, "target") }?;
        if is_held(&pool.open) {
            return Err(Fault::order("copy the pool before the transaction or read lock begins"));
        }
        let target = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
        let options = BackupOptions { bytes_per_second: NonZeroU64::new(bytes_per_second) };
        let done = pool.handle.with(|pool| pool.backup(target, options, |_, _| true));
        done.ok_or_else(closed)??;
        Ok(())
    })
}

/// Makes the reads that follow see what another process has committed since.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_refresh(pool: *mut CPool) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        let pool = unsafe { pool_of(pool) }?;
        if is_held(&pool.open) {
            return Err(Fault::order("end the read lock before a newer snapshot"));
        }
        pool.handle.refresh()?.ok_or_else(closed)
    })
}

/// Returns which failures committed transactions survive.
///
/// # Safety
///
/// `pool` is open, `guarantee` null or writable, `text` null or writable for `text_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_guarantee(
    pool: *mut CPool,
    guarantee: *mut CGuarantee,
    text: *mut c_char,
    text_bytes: usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open; null is refused.
        let pool = unsafe { pool_of(pool) }?;
        let found = pool.handle.with(|pool| pool.guarantee()).ok_or_else(closed)?;
        if !guarantee.is_null() {
            let survives_power_failure = u32::from(found.survives == Survives::PowerFailure);
            let domain = if found.domain == Domain::Lines { 1 } else { 2 };
            // SAFETY: `guarantee` is not null, so the caller guarantees that it is writable.
            unsafe { guarantee.write(CGuarantee { survives_power_failure, domain }) };
        }
        // SAFETY: `text` is null or writable for `text_bytes`, as the caller guarantees.
        unsafe { write_text(&found.to_string(), text, text_bytes) };
        Ok(())
    })
}

/// Describes a type of objects, and returns its identifier and size.
///
/// # Safety
///
/// `pool` is open, texts end with a zero, `fields` has `field_count` fields, `kind` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_type(
    pool: *mut CPool,
    name: *const c_char,
    bytes: u64,
    fields: *const CField,
    field_count: usize,
    kind: *mut CType,
) -> c_int {
    run(|| {
        // SAFETY: the caller guarantees that `pool` is open and `name` ends with a zero; null is refused.
        let (pool, name) = unsafe { (pool_of(pool)?, self::text(name, "name")?) };
        if kind.is_null() || (fields.is_null() && field_count > 0) {
            return Err(null("type, or fields"));
        }
        let mut described =
            ForeignType { name: name.to_string_lossy().into_owned(), bytes, fields: Vec::new() };
        for at in 0..if fields.is_null() { 0 } else { field_count } {
            // SAFETY: the caller guarantees `field_count` fields, whose texts end with a zero.
            let (field, name, kind) = unsafe {
                let field = &*fields.add(at);
                let kind = if field.kind.is_null() { c"" } else { CStr::from_ptr(field.kind) };
                (field, self::text(field.name, "a field's name")?, kind)
            };
            let (name, kind) = (name.to_string_lossy().into_owned(), kind.to_string_lossy().into_owned());
            described.fields.push(ForeignField { name, offset: field.offset, bytes: field.bytes, kind });
        }
        described.check()?;
        let id = described.layout();
        if is_held(&pool.open) {
            return Err(Fault::order("describe types before the transaction or read lock begins"));
        }
        pool.handle.with(|open| register(open, &described, id, pool.read_only)).ok_or_else(closed)??;
        // SAFETY: `kind` is not null, so the caller guarantees that it is writable.
        unsafe { kind.write(CType { id, bytes }) };
        Ok(())
    })
}

/// Writes a type's description to the pool, unless the pool has it, or has one that says more.
fn register(pool: &Pool, described: &ForeignType, id: u64, read_only: bool) -> Result<(), Fault> {
    let key = id.to_le_bytes();
    let words = described.text();
    let known = pool.read(|r| match root(r)?.types {
        0 => Ok::<_, Error>(false),
        types => {
            let known = Table::at(types).get(r, &key)?;
            Ok(known.is_some_and(|known| !described.is_typed() || known == words.as_bytes()))
        }
    })?;
    if known || read_only {
        return Ok(());
    }
    pool.tx(|t| {
        let at = root_or(t)?;
        let mut types = t.get(at)?.types;
        if types == 0 {
            types = Table::create(t)?.offset();
            t.get_mut(at)?.types = types;
        }
        Table::at(types).put(t, &key, words.as_bytes()).map(drop)
    })?;
    Ok(())
}
