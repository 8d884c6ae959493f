// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hash maps and ordered maps on memory nodes: the second half of `memlift_traverse.h`.
//!
//! - **Owner** the nodes hold the data. An object here is a handle that shares its client, and keeps free memory for the next insert.
//! - **Order** an operation takes its client's lock first, then the collection's.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memlift::traverse::client::Client;
use memlift::traverse::structures::{HashMap, Heap, Key, OrderedMap, hash, ordered};
use memlift::traverse::wire::Stamp;

use crate::fault::{self, Fault, free, write_boxed};
use crate::walk::{Walks, borrow_object, bytes, copy_out, write_result};

/// The C type `memlift_hash` of `memlift_traverse.h`.
pub struct Hash {
    walks: Walks,
    map: Mutex<HashMap>,
    handle: hash::Handle,
    /// Stamp of the node when the map was made.
    stamp: Stamp,
}

/// The C type `memlift_ordered` of `memlift_traverse.h`.
pub struct Ordered {
    walks: Walks,
    map: Mutex<OrderedMap>,
    handle: ordered::Handle,
    /// Stamp of the node when the map was made.
    stamp: Stamp,
}

/// The C type `memlift_hash_handle` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HashHandle {
    heads: u64,
    log2: u64,
    memory: u64,
    run: u64,
    changes: u64,
}

/// The C type `memlift_ordered_handle` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OrderedHandle {
    cell: u64,
    value_bytes: u64,
    memory: u64,
    run: u64,
    changes: u64,
}

/// The C type `memlift_key` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WalkKey {
    number: u64,
    bytes: *const c_void,
    length: usize,
}

/// The C type `memlift_aggregate` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Totals {
    count: u64,
    sum: i64,
    min: i64,
    max: i64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key<'a>(key: WalkKey) -> Result<Key<'a>, Fault> {
    if key.bytes.is_null() {
        return Ok(Key::Number(key.number));
    }
    Ok(Key::Bytes(bytes(key.bytes, key.length, "the key")?))
}

/// Checks that an address of a handle is still the one that it was. Returns the stamp for handles that are made of it.
fn checked(client: &mut Client, address: u64, memory: u64, stamp: Stamp) -> Result<Stamp, Fault> {
    client.check_memory(address, memory)?;
    client.check_stamp(address, stamp)?;
    Ok(if stamp.run == 0 { client.stamp_of(address) } else { stamp })
}

/// Writes if a value was found, its length, and its bytes, to the addresses that the caller gave.
fn value_out(
    value: Option<Vec<u8>>,
    to: *mut c_void,
    room: usize,
    length: *mut usize,
    found: *mut c_int,
) -> Result<(), Fault> {
    write_result(found, c_int::from(value.is_some()), "found")?;
    let value = value.unwrap_or_default();
    if !length.is_null() {
        write_result(length, value.len(), "length")?;
    }
    copy_out(&value, to, room, "the value")
}

fn flag(to: *mut c_int, value: bool) -> Result<(), Fault> {
    if to.is_null() { Ok(()) } else { write_result(to, c_int::from(value), "flag") }
}

/// Creates an empty hash map.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_create(
    walks: *const Walks,
    expected: u64,
    map: *mut *mut Hash,
) -> c_int {
    fault::run(|| {
        let walks = borrow_object(walks, "walks")?.clone();
        let log2 = expected.max(1).checked_next_power_of_two().map_or(64, u64::ilog2);
        let made = HashMap::create(&mut *walks.lock()?, log2)?;
        let (handle, stamp) = (made.handle(), walks.lock()?.stamp_of(made.handle().heads));
        let hash = Hash { handle, stamp, map: Mutex::new(made), walks };
        // SAFETY: `map` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(map, hash, "map") }
    })
}

/// Opens the hash map of a handle.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_open(
    walks: *const Walks,
    handle: HashHandle,
    map: *mut *mut Hash,
) -> c_int {
    fault::run(|| {
        let walks = borrow_object(walks, "walks")?.clone();
        if handle.log2 > 40 {
            return Err(Fault::argument("the handle is none of a hash map"));
        }
        let stamp = Stamp { run: handle.run, changes: handle.changes };
        let stamp = {
            let mut client = walks.lock()?;
            checked(&mut client, handle.heads, handle.memory, stamp)?
        };
        let handle = hash::Handle { heads: handle.heads, log2: handle.log2 as u32 };
        let hash = Hash { walks, map: Mutex::new(HashMap::open(handle)), handle, stamp };
        // SAFETY: `map` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(map, hash, "map") }
    })
}

/// Returns the handle by which others can open the map.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_where(map: *const Hash, handle: *mut HashHandle) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let (at, memory) = (map.handle, map.walks.lock()?.memory_of(map.handle.heads));
        let Stamp { run, changes } = map.stamp;
        let at = HashHandle { heads: at.heads, log2: at.log2.into(), memory, run, changes };
        write_result(handle, at, "handle")
    })
}

/// Frees the local object; the map on the nodes stays.
///
/// # Safety
///
/// `map` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_close(map: *mut Hash) {
    // SAFETY: the map came from one of the functions above, and the caller does not use it again.
    unsafe { free(map) };
}

/// Returns the value of a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_get(
    map: *const Hash,
    wanted: WalkKey,
    value: *mut c_void,
    room: usize,
    length: *mut usize,
    found: *mut c_int,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let got = locked_both(map, |client, map| map.get(client, key(wanted)?).map_err(Fault::from))?;
        value_out(got, value, room, length, found)
    })
}

fn locked_both<T>(
    map: &Hash,
    run: impl FnOnce(&mut memlift::traverse::client::Client, &mut HashMap) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut client = map.walks.lock()?;
    run(&mut client, &mut locked(&map.map))
}

/// Sets the value of a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_insert(
    map: *const Hash,
    wanted: WalkKey,
    value: *const c_void,
    length: usize,
    fresh: *mut c_int,
) -> c_int {
    fault::run(|| {
        let (map, value) = (borrow_object(map, "map")?, bytes(value, length, "value")?);
        let new = locked_both(map, |client, map| Ok(map.insert(client, key(wanted)?, value)?))?;
        flag(fresh, new)
    })
}

/// Removes a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_delete(
    map: *const Hash,
    wanted: WalkKey,
    removed: *mut c_int,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let gone = locked_both(map, |client, map| Ok(map.remove(client, key(wanted)?)?))?;
        flag(removed, gone)
    })
}

/// Adds a number to the value of a key; both are taken for `int64_t`.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_hash_add(
    map: *const Hash,
    number: u64,
    addend: u64,
    before: *mut u64,
    found: *mut c_int,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let old = locked_both(map, |client, map| Ok(map.add(client, number, addend.cast_signed())?))?;
        if let (Some(old), false) = (old, before.is_null()) {
            write_result(before, old, "before")?;
        }
        flag(found, old.is_some())
    })
}

/// Creates an empty ordered map.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_create(
    walks: *const Walks,
    value_bytes: usize,
    map: *mut *mut Ordered,
) -> c_int {
    fault::run(|| {
        let walks = borrow_object(walks, "walks")?.clone();
        let made = OrderedMap::create(&mut *walks.lock()?, value_bytes)?;
        let (handle, stamp) = (made.handle(), walks.lock()?.stamp_of(made.handle().cell));
        let ordered = Ordered { handle, stamp, map: Mutex::new(made), walks };
        // SAFETY: `map` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(map, ordered, "map") }
    })
}

/// Opens the ordered map of a handle.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_open(
    walks: *const Walks,
    handle: OrderedHandle,
    map: *mut *mut Ordered,
) -> c_int {
    fault::run(|| {
        let walks = borrow_object(walks, "walks")?.clone();
        if !(1..=ordered::VALUE_BYTES_MAX as u64).contains(&handle.value_bytes) {
            return Err(Fault::argument("the handle is none of an ordered map"));
        }
        let stamp = Stamp { run: handle.run, changes: handle.changes };
        let stamp = {
            let mut client = walks.lock()?;
            checked(&mut client, handle.cell, handle.memory, stamp)?
        };
        let handle = ordered::Handle { cell: handle.cell, value_bytes: handle.value_bytes as usize };
        let ordered = Ordered { walks, map: Mutex::new(OrderedMap::open(handle)), handle, stamp };
        // SAFETY: `map` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(map, ordered, "map") }
    })
}

/// Returns the handle by which others can open the map.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_where(map: *const Ordered, handle: *mut OrderedHandle) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let (at, memory) = (map.handle, map.walks.lock()?.memory_of(map.handle.cell));
        let Stamp { run, changes } = map.stamp;
        let value_bytes = at.value_bytes as u64;
        write_result(handle, OrderedHandle { cell: at.cell, value_bytes, memory, run, changes }, "handle")
    })
}

/// Frees the local object; the map on the nodes stays.
///
/// # Safety
///
/// `map` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_close(map: *mut Ordered) {
    // SAFETY: the map came from one of the functions above, and the caller does not use it again.
    unsafe { free(map) };
}

/// Returns the value of a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_get(
    map: *const Ordered,
    number: u64,
    value: *mut c_void,
    room: usize,
    found: *mut c_int,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let mut client = map.walks.lock()?;
        let got = locked(&map.map).get(&mut *client, number)?;
        value_out(got, value, room, std::ptr::null_mut(), found)
    })
}

/// Sets the value of a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_insert(
    map: *const Ordered,
    number: u64,
    value: *const c_void,
    length: usize,
    fresh: *mut c_int,
) -> c_int {
    fault::run(|| {
        let (map, value) = (borrow_object(map, "map")?, bytes(value, length, "value")?);
        let mut client = map.walks.lock()?;
        let new = locked(&map.map).insert(&mut *client, number, value)?;
        flag(fresh, new)
    })
}

/// Removes a key.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_delete(
    map: *const Ordered,
    number: u64,
    removed: *mut c_int,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let mut client = map.walks.lock()?;
        let gone = locked(&map.map).remove(&mut *client, number)?;
        flag(removed, gone)
    })
}

/// Returns the records in a range of keys.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_range(
    map: *const Ordered,
    first: u64,
    last: u64,
    records: *mut c_void,
    room: usize,
    count: *mut usize,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let record = map.handle.record_bytes();
        let limit = room / record;
        let result = if first > last || limit == 0 {
            Vec::new()
        } else {
            map.walks.lock()?.walk(&map.handle.range_walk(first..=last, limit as u64))?.result
        };
        write_result(count, result.len() / record, "count")?;
        copy_out(&result, records, room, "the range")
    })
}

/// Returns totals over a range of keys.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_ordered_aggregate(
    map: *const Ordered,
    first: u64,
    last: u64,
    totals: *mut Totals,
) -> c_int {
    fault::run(|| {
        let map = borrow_object(map, "map")?;
        let mut client = map.walks.lock()?;
        let found = locked(&map.map).aggregate(&mut *client, first..=last)?;
        write_result(
            totals,
            Totals { count: found.count, sum: found.sum, min: found.min, max: found.max },
            "totals",
        )
    })
}
