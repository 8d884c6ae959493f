// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools, transactions and objects: `include/memlift_persist.h` says what each function does.
//!
//! Flow    C ──▶ memlift::persist::raw: [`Handle`], [`OpenTx`], [`OpenRead`], objects of run-time types
//! Order   a thread has one transaction or read lock per pool ([`MINE`]): a second one would wait for the first for ever. An
//!         operation that fails in the middle dooms its transaction
//! Owner   whoever began a transaction or read lock ends it; a pool with open ones is not closed
//! Layout  types are written to the root's table of types: u64 id ─▶ `bytes name`, then `offset bytes name` for each field, in lines

use crate::fault::{BAD_ORDER, Fault, run};
use memlift::persist::raw::{
    ForeignField, ForeignType, Handle, OpenRead, OpenTx, Table, read_raw, root, root_or,
};
use memlift::persist::{Domain, Durability, Error, Mechanism, Options, Pool, Survives, Tx, View};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// What `memlift_pool` points to.
pub struct CPool {
    handle: Handle,
    read_only: bool,
    /// Transactions and read locks that are open.
    open: Arc<AtomicUsize>,
}

/// `memlift_pool_options`.
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
}

/// `memlift_pool_guarantee_t`.
#[repr(C)]
pub struct CGuarantee {
    survives_power_failure: u32,
    domain: u32,
}

/// `memlift_field`.
#[repr(C)]
pub struct CField {
    name: *const c_char,
    offset: u64,
    bytes: u64,
}

/// `memlift_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CType {
    /// Its hash.
    pub id: u64,
    /// Bytes of an object; 0: each has its own length.
    pub bytes: u64,
}

const _: () = assert!(size_of::<COptions>() == 40 && size_of::<CGuarantee>() == 8);
const _: () = assert!(size_of::<CField>() == 24 && size_of::<CType>() == 16);

thread_local! {
    /// Pools of which this thread has a transaction or a read lock, by the address of their counter.
    static MINE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// That this thread has one open; gone when it ends.
struct Claim {
    open: Arc<AtomicUsize>,
    thread: ThreadId,
}

impl Claim {
    fn new(pool: &CPool) -> Result<Claim, Fault> {
        let place = Arc::as_ptr(&pool.open).addr();
        MINE.with_borrow_mut(|mine| {
            if mine.contains(&place) {
                return Err(Fault::order(
                    "this thread has a transaction or read lock of the pool open: end it first",
                ));
            }
            mine.push(place);
            Ok(())
        })?;
        pool.open.fetch_add(1, Ordering::AcqRel);
        Ok(Claim { open: Arc::clone(&pool.open), thread: std::thread::current().id() })
    }

    fn check(&self) -> Result<(), Fault> {
        if self.thread == std::thread::current().id() {
            return Ok(());
        }
        Err(Fault::order("a transaction or read lock is used by the thread that began it, and by no other"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let place = Arc::as_ptr(&self.open).addr();
        MINE.with_borrow_mut(|mine| mine.retain(|one| *one != place));
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What `memlift_tx` points to.
pub struct CTx {
    tx: OpenTx,
    doomed: Option<String>,
    claim: Claim,
}

/// What `memlift_reader` points to.
pub struct CReader {
    read: OpenRead,
    claim: Claim,
}

fn null(what: &str) -> Fault {
    Fault::argument(&format!("{what} is NULL"))
}

fn closed() -> Fault {
    Fault::argument("the pool belongs to the process that this one was forked from")
}

impl CTx {
    /// The transaction behind a pointer, for its own thread.
    ///
    /// # Safety
    ///
    /// `tx` is null, or was given by `memlift_tx_begin` and has not ended.
    pub(crate) unsafe fn of<'a>(tx: *mut CTx) -> Result<&'a mut CTx, Fault> {
        // SAFETY: the caller's promise.
        let tx = unsafe { tx.as_mut() }.ok_or_else(|| null("tx"))?;
        tx.claim.check()?;
        Ok(tx)
    }

    /// Changes something; a failure dooms the transaction.
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

    /// Looks; a failure changes nothing.
    pub(crate) fn look<R>(
        &mut self,
        work: impl for<'p> FnOnce(&mut Tx<'p>) -> Result<R, Error>,
    ) -> Result<R, Fault> {
        Ok(self.tx.with(work)?)
    }
}

/// The text behind a pointer.
///
/// # Safety
///
/// `text` is null or ends with a zero.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Fault> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
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
    Ok(Options {
        heap_bytes,
        max_bytes: or(given.max_bytes, default.max_bytes).max(heap_bytes),
        lane_bytes: or(given.lane_bytes, default.lane_bytes),
        // One transaction runs at a time, and one lane is shared.
        lanes: 2,
        mechanism,
        domain,
        prefault: given.prefault != 0,
        read_only: given.read_only != 0,
        ..default
    })
}

/// Makes or opens a pool; `pool` becomes null when that fails.
///
/// # Safety
///
/// Texts end with a zero, `options` is null or readable, `pool` is null or writable.
pub(crate) unsafe fn open_with(
    path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
    open: impl FnOnce(PathBuf, &Options) -> Result<Pool, Error>,
) -> Result<(), Fault> {
    if pool.is_null() {
        return Err(null("pool"));
    }
    // SAFETY: the caller's promise.
    let (path, options) = unsafe {
        pool.write(std::ptr::null_mut());
        (text(path, "path")?, options.as_ref())
    };
    let options = options_of(options)?;
    let opened = open(PathBuf::from(OsStr::from_bytes(path.to_bytes())), &options)?;
    opened.read(|r| root(r))?; // another program's pool is refused now
    let made = CPool { handle: Handle::new(opened), read_only: options.read_only, open: Arc::default() };
    // SAFETY: as above.
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
    // SAFETY: passed on from the caller.
    run(|| unsafe { open_with(path, options, pool, Pool::create) })
}

/// Opens a pool.
///
/// # Safety
///
/// As for `memlift_pool_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_open(
    path: *const c_char,
    options: *const COptions,
    pool: *mut *mut CPool,
) -> c_int {
    // SAFETY: passed on from the caller.
    run(|| unsafe { open_with(path, options, pool, Pool::open) })
}

/// Closes a pool.
///
/// # Safety
///
/// `pool` is null, or was opened and not closed, and no other thread is in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_close(pool: *mut CPool) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let Some(open) = (unsafe { pool.as_ref() }) else { return Ok(()) };
        if open.open.load(Ordering::Acquire) != 0 {
            return Err(Fault::order("a transaction or read lock of the pool is open: end it first"));
        }
        // SAFETY: it was boxed by `open_with`, and is given up by the caller.
        let pool = unsafe { Box::from_raw(pool) };
        pool.handle.close()?;
        Ok(())
    })
}

/// The pool behind a pointer.
///
/// # Safety
///
/// `pool` is null, or open.
unsafe fn pool_of<'a>(pool: *mut CPool) -> Result<&'a CPool, Fault> {
    // SAFETY: the caller's promise.
    unsafe { pool.as_ref() }.ok_or_else(|| null("pool"))
}

/// Makes everything durable.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pool_sync(pool: *mut CPool) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let pool = unsafe { pool_of(pool) }?;
        Ok(pool.handle.with(|pool| pool.sync()).ok_or_else(closed)??)
    })
}

/// What committed transactions survive.
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
        // SAFETY: the caller's promise.
        let pool = unsafe { pool_of(pool) }?;
        let found = pool.handle.with(|pool| pool.guarantee()).ok_or_else(closed)?;
        if !guarantee.is_null() {
            let survives_power_failure = u32::from(found.survives == Survives::PowerFailure);
            let domain = if found.domain == Domain::Lines { 1 } else { 2 };
            // SAFETY: writable (the caller's promise).
            unsafe { guarantee.write(CGuarantee { survives_power_failure, domain }) };
        }
        if !text.is_null() && text_bytes > 0 {
            let words = CString::new(found.to_string()).unwrap_or_default();
            let bytes = words.as_bytes().len().min(text_bytes - 1);
            // SAFETY: writable for `text_bytes`, of which at most all are written.
            unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr(), text, bytes);
                text.add(bytes).write(0);
            }
        }
        Ok(())
    })
}

/// Describes a type.
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
        // SAFETY: the caller's promise.
        let (pool, name) = unsafe { (pool_of(pool)?, self::text(name, "name")?) };
        if kind.is_null() || (fields.is_null() && field_count > 0) {
            return Err(null("type, or fields"));
        }
        let mut described =
            ForeignType { name: name.to_string_lossy().into_owned(), bytes, fields: Vec::new() };
        for at in 0..if fields.is_null() { 0 } else { field_count } {
            // SAFETY: `fields` has `field_count` fields, whose names end with a zero.
            let (field, name) = unsafe {
                let field = &*fields.add(at);
                (field, self::text(field.name, "a field's name")?)
            };
            let name = name.to_string_lossy().into_owned();
            described.fields.push(ForeignField { name, offset: field.offset, bytes: field.bytes });
        }
        described.check()?;
        let id = described.layout();
        if MINE.with_borrow(|mine| mine.contains(&Arc::as_ptr(&pool.open).addr())) {
            return Err(Fault::order("describe types before the transaction or read lock begins"));
        }
        pool.handle.with(|open| register(open, &described, id, pool.read_only)).ok_or_else(closed)??;
        // SAFETY: writable (the caller's promise).
        unsafe { kind.write(CType { id, bytes }) };
        Ok(())
    })
}

/// Writes a description to the pool unless it is there.
fn register(pool: &Pool, described: &ForeignType, id: u64, read_only: bool) -> Result<(), Fault> {
    let key = id.to_le_bytes();
    let known = pool.read(|r| match root(r)?.types {
        0 => Ok::<_, Error>(false),
        types => Ok(Table::at(types).get(r, &key)?.is_some()),
    })?;
    if known || read_only {
        return Ok(());
    }
    let mut words = format!("{} {}\n", described.bytes, described.name);
    for field in &described.fields {
        words += &format!("{} {} {}\n", field.offset, field.bytes, field.name);
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

/// Begins a transaction.
///
/// # Safety
///
/// `pool` is open, `tx` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_begin(pool: *mut CPool, durability: c_int, tx: *mut *mut CTx) -> c_int {
    run(|| {
        if tx.is_null() {
            return Err(null("tx"));
        }
        // SAFETY: the caller's promise.
        let pool = unsafe {
            tx.write(std::ptr::null_mut());
            pool_of(pool)?
        };
        let durability = match durability {
            0 => Durability::Sync,
            1 => Durability::Group,
            2 => Durability::Buffered,
            other => return Err(Fault::argument(&format!("{other} is no durability"))),
        };
        let claim = Claim::new(pool)?;
        let begun = pool.handle.with(|pool| pool.begin(durability)).ok_or_else(closed)??;
        // SAFETY: writable (the caller's promise).
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
        // SAFETY: the caller's promise; it was boxed by `memlift_tx_begin`.
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
        // SAFETY: as in `memlift_tx_commit`.
        unsafe {
            CTx::of(tx)?;
            drop(Box::from_raw(tx));
        }
        Ok(())
    })
}

/// A new object.
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
        // SAFETY: the caller's promise.
        let tx = unsafe { CTx::of(tx) }?;
        if object.is_null() {
            return Err(null("object"));
        }
        if kind.bytes != 0 && bytes != 0 && bytes != kind.bytes {
            return Err(Fault::argument("the type has a size: give 0, or that"));
        }
        let bytes = kind.bytes.max(bytes);
        // More than a zone holds is refused before memory is taken for it.
        if bytes > 64 << 20 {
            return Err(Fault::argument("an object has 64 MiB at most"));
        }
        let (offset, start) = tx.change(|t| {
            let (offset, payload) = t.alloc_raw_lent(kind.id, &[&vec![0; bytes as usize]])?;
            Ok((offset, payload.as_mut_ptr()))
        })?;
        // SAFETY: writable (the caller's promise).
        unsafe {
            object.write(offset);
            if !data.is_null() {
                data.write(start);
            }
        }
        Ok(())
    })
}

/// Gives an object back.
///
/// # Safety
///
/// `tx` has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_free(tx: *mut CTx, kind: CType, object: u64) -> c_int {
    // SAFETY: the caller's promise.
    run(|| unsafe { CTx::of(tx) }?.change(|t| t.free_raw(object, kind.id)))
}

/// Announces a range.
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
        // SAFETY: the caller's promise.
        let tx = unsafe { CTx::of(tx) }?;
        if data.is_null() {
            return Err(null("data"));
        }
        let start = tx.change(|t| Ok(t.range_raw(object, kind.id, from, bytes)?.as_mut_ptr()))?;
        // SAFETY: writable (the caller's promise).
        unsafe { data.write(start) };
        Ok(())
    })
}

/// Announces a range and copies to it.
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
        // SAFETY: the caller's promise.
        let tx = unsafe { CTx::of(tx) }?;
        if bytes == 0 {
            return Ok(());
        }
        if source.is_null() {
            return Err(null("source"));
        }
        tx.change(|t| {
            let target = t.range_raw(object, kind.id, from, bytes)?;
            // SAFETY: readable for `bytes` (the caller's promise), which the object has from there (`range_raw`). Source may be
            // the pool's memory, even the same bytes: `copy` allows that.
            unsafe { std::ptr::copy(source, target.as_mut_ptr(), bytes as usize) };
            Ok(())
        })
    })
}

/// Gives an object's address and length.
///
/// # Safety
///
/// `data` is writable, `bytes` null or writable.
unsafe fn give(found: (*const u8, u64), data: *mut *const u8, bytes: *mut u64) -> Result<(), Fault> {
    if data.is_null() {
        return Err(null("data"));
    }
    // SAFETY: the caller's promise.
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

/// Looks at an object.
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
        // SAFETY: the caller's promise.
        let tx = unsafe { CTx::of(tx) }?;
        let found = tx.look(|t| self::object(t, object, kind))?;
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
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

/// The root.
///
/// # Safety
///
/// `tx` has not ended, `object` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tx_root(tx: *mut CTx, kind: CType, object: *mut u64) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let tx = unsafe { CTx::of(tx) }?;
        if object.is_null() {
            return Err(null("object"));
        }
        let found = tx.look(|t| root_object(t, kind))?;
        // SAFETY: writable (the caller's promise).
        unsafe { object.write(found) };
        Ok(())
    })
}

/// Locks for reading.
///
/// # Safety
///
/// `pool` is open, `reader` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_begin(pool: *mut CPool, reader: *mut *mut CReader) -> c_int {
    run(|| {
        if reader.is_null() {
            return Err(null("reader"));
        }
        // SAFETY: the caller's promise.
        let pool = unsafe {
            reader.write(std::ptr::null_mut());
            pool_of(pool)?
        };
        let claim = Claim::new(pool)?;
        let read = pool.handle.with(|pool| pool.look()).ok_or_else(closed)??;
        // SAFETY: writable (the caller's promise).
        unsafe { reader.write(Box::into_raw(Box::new(CReader { read, claim }))) };
        Ok(())
    })
}

/// Unlocks.
///
/// # Safety
///
/// `reader` is null or has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_end(reader: *mut CReader) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let Some(open) = (unsafe { reader.as_ref() }) else { return Ok(()) };
        open.claim.check()?;
        // SAFETY: it was boxed by `memlift_read_begin`, and is given up by the caller.
        drop(unsafe { Box::from_raw(reader) });
        Ok(())
    })
}

/// Looks at an object.
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
        // SAFETY: the caller's promise.
        let reader = unsafe { reader.as_ref() }.ok_or_else(|| null("reader"))?;
        reader.claim.check()?;
        let found = self::object(&reader.read, object, kind)?;
        // SAFETY: the caller's promise.
        unsafe { give(found, data, bytes) }
    })
}

/// The root.
///
/// # Safety
///
/// `reader` has not ended, `object` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_read_root(reader: *mut CReader, kind: CType, object: *mut u64) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { reader.as_ref() }.ok_or_else(|| null("reader"))?;
        reader.claim.check()?;
        if object.is_null() {
            return Err(null("object"));
        }
        let found = root_object(&reader.read, kind)?;
        // SAFETY: writable (the caller's promise).
        unsafe { object.write(found) };
        Ok(())
    })
}
