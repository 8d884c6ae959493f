// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python classes of hash maps, ordered maps and lists on memory nodes: keys are numbers or bytes, values are bytes.
//!
//! - **Order** an operation takes its client's lock first, then the collection's, so threads use them in turn.
//! - **Owner** the nodes hold the data. An object here is a handle, with free memory for the next insert.
//! - **Not here** the conversion of values, and the mapping protocols: `_hash.py`, `_ordered.py` and `_list.py` in `memlift/traverse`.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memlift::traverse::client::{Client, ClientError, Request};
use memlift::traverse::structures::chain::{
    Chain, HEADER_BYTES, KEY_BYTES_MAX, Key, ScannedNode, VALUE_BYTES_MAX,
};
use memlift::traverse::structures::{Addend, Aggregate, HashMap, Heap, List, OrderedMap, hash, ordered};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::block::Block;
use super::client::{Open, WalkClient};
use super::load::{copied, numbers};

/// Number of heads that one scan covers.
pub const SCAN_HEADS: u64 = 512;

/// Key of a map: a number or a byte string.
#[derive(FromPyObject)]
pub enum PyKey {
    Number(u64),
    Bytes(PyBackedBytes),
}

impl PyKey {
    pub fn key(&self) -> Key<'_> {
        match self {
            PyKey::Number(number) => Key::Number(*number),
            PyKey::Bytes(bytes) => Key::Bytes(bytes),
        }
    }
}

/// Returns what is added to numbers of 64 bits.
pub fn addend_of(addend: i128, signed: bool) -> PyResult<Addend> {
    let fits = if signed {
        i64::try_from(addend).map(Addend::Signed)
    } else if addend >= 0 {
        u64::try_from(addend).map(Addend::Unsigned)
    } else {
        u64::try_from(-addend).map(Addend::Less)
    };
    fits.map_err(|error| PyOverflowError::new_err(format!("{addend}: {error}")))
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn optional<'py>(py: Python<'py>, value: Option<Vec<u8>>) -> Option<Bound<'py, PyBytes>> {
    value.map(|value| PyBytes::new(py, &value))
}

/// Returns values of one length side by side, and a byte for each that is 1 if it was found.
pub fn columns(values: Vec<Option<Vec<u8>>>, bytes: usize) -> Result<(Block, Block), ClientError> {
    let mut packed = vec![0; values.len() * bytes];
    let mut found = vec![0; values.len()];
    for (index, value) in values.into_iter().enumerate() {
        if let Some(value) = value {
            if value.len() != bytes {
                return Err(ClientError::TooLong {
                    what: "a value of another length",
                    bytes: value.len(),
                    most: bytes,
                });
            }
            packed[index * bytes..][..bytes].copy_from_slice(&value);
            found[index] = 1;
        }
    }
    Ok((Block::new(packed), Block::new(found)))
}

pub fn as_many(py: Python<'_>, wanted: usize, given: usize) -> PyResult<()> {
    if wanted == given {
        return Ok(());
    }
    Err(crate::errors::new(py, "BadArgumentError", (format!("values: {given} instead of {wanted}"),)))
}

pub type Entry<'py> = (Option<u64>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// An entry: a number, or a key of bytes, and a value; and the nodes' clock when it was found.
pub type Content = (Option<u64>, Vec<u8>, Vec<u8>, u32);

/// Reads keys and values of nodes that a scan has found, with many requests at the same time.
fn contents(open: &mut Open, seen: &[ScannedNode]) -> Result<Vec<Content>, ClientError> {
    let most = open.client.packet_bytes();
    // Lengths that a node reports are checked.
    let absurd = |one: &&ScannedNode| {
        one.key_bytes as usize > KEY_BYTES_MAX || one.value_bytes as usize > VALUE_BYTES_MAX
    };
    if let Some(one) = seen.iter().find(absurd) {
        return Err(ClientError::Corrupt { address: one.address, what: "node of a chain" });
    }
    let room = |one: &ScannedNode| (one.key_bytes as usize).next_multiple_of(8);
    let bytes = |one: &ScannedNode| room(one) + one.value_bytes as usize;
    let inside = |one: &ScannedNode| one.key_bytes == 0 && one.value_bytes <= 8;
    let short: Vec<Request> = seen
        .iter()
        .filter(|one| !inside(one) && bytes(one) <= most)
        .map(|one| Request::read(one.address + HEADER_BYTES as u64, bytes(one)).since(one.since))
        .collect();
    let mut read = open.client.call_many(short).into_iter();
    let mut entries = Vec::with_capacity(seen.len());
    for one in seen {
        let body = if inside(one) {
            one.first.to_le_bytes()[..one.value_bytes as usize].to_vec()
        } else if bytes(one) <= most {
            let corrupt = ClientError::Corrupt { address: one.address, what: "node of a chain" };
            read.next().unwrap_or(Err(corrupt))?.body
        } else {
            open.client.read_since(one.address + HEADER_BYTES as u64, bytes(one), one.since)?
        };
        if body.len() != bytes(one) {
            return Err(ClientError::Corrupt { address: one.address, what: "node of a chain" });
        }
        let number = (one.key_bytes == 0).then_some(one.key_word);
        entries.push((
            number,
            body[..one.key_bytes as usize].to_vec(),
            body[room(one)..].to_vec(),
            one.since,
        ));
    }
    Ok(entries)
}

/// Reads the contents of the nodes that a scan finds; scans again if these nodes were too old to be read.
pub fn fresh(
    open: &mut Open,
    scan: impl Fn(&mut Client) -> Result<Vec<ScannedNode>, ClientError>,
) -> Result<Vec<Content>, ClientError> {
    for _ in 0..100 {
        let seen = scan(&mut open.client)?;
        match contents(open, &seen) {
            Err(ClientError::Outdated) => {}
            found => return found,
        }
    }
    Err(ClientError::Outdated)
}

pub fn entries<'py>(py: Python<'py>, found: Vec<Content>) -> Vec<Entry<'py>> {
    let entry = |(number, key, value, _): Content| {
        let key = number.is_none().then(|| PyBytes::new(py, &key));
        (number, key, PyBytes::new(py, &value))
    };
    found.into_iter().map(entry).collect()
}

/// A hash map on memory nodes.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkHash {
    client: Py<WalkClient>,
    map: Mutex<HashMap>,
    handle: hash::Handle,
}

#[pymethods]
impl WalkHash {
    #[staticmethod]
    fn create(py: Python<'_>, client: Py<WalkClient>, log2: u32) -> PyResult<WalkHash> {
        let map = client.get().with(py, |open| HashMap::create(&mut open.client, log2))?;
        Ok(WalkHash { client, handle: map.handle(), map: Mutex::new(map) })
    }

    #[staticmethod]
    fn open(client: Py<WalkClient>, heads: u64, log2: u32) -> WalkHash {
        let handle = hash::Handle { heads, log2: log2.min(40) };
        WalkHash { client, handle, map: Mutex::new(HashMap::open(handle)) }
    }

    #[getter]
    fn handle(&self) -> (u64, u32) {
        (self.handle.heads, self.handle.log2)
    }

    fn get<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.client.get().with(py, |open| locked(&self.map).get(&mut open.client, key.key()))?;
        Ok(optional(py, value))
    }

    /// Returns the values of several keys; the walks run at the same time.
    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<PyKey>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let values = self.client.get().with(py, |open| {
            let map = locked(&self.map);
            let walks = keys.iter().map(|key| map.chain(key.key()).find_walk(key.key(), true));
            let walks = walks.collect::<Result<Vec<_>, _>>()?;
            let answers = open.client.walk_many(&walks);
            let found = answers.into_iter().zip(&keys);
            found
                .map(|(walked, key)| Chain::found(&mut open.client, key.key(), true, walked?))
                .collect::<Result<Vec<_>, _>>()
        })?;
        Ok(values.into_iter().map(|value| optional(py, value)).collect())
    }

    /// Does the same as `get_many` for numbers in a buffer of u64, with values of one length: returns (values, found).
    fn get_array(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        value_bytes: usize,
    ) -> PyResult<(Block, Block)> {
        let keys = numbers(keys)?;
        self.client.get().with(py, |open| {
            let values = locked(&self.map).get_many(&mut open.client, &keys)?;
            columns(values, value_bytes)
        })
    }

    fn insert(&self, py: Python<'_>, key: PyKey, value: PyBackedBytes) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.map).insert(&mut open.client, key.key(), &value))
    }

    /// Sets the values of several keys; returns how many of the keys are new.
    fn insert_many(&self, py: Python<'_>, keys: Vec<PyKey>, values: Vec<PyBackedBytes>) -> PyResult<u64> {
        as_many(py, keys.len(), values.len())?;
        self.client.get().with(py, |open| {
            let pairs: Vec<(Key<'_>, &[u8])> =
                keys.iter().zip(&values).map(|(key, value)| (key.key(), &value[..])).collect();
            locked(&self.map).insert_many(&mut open.client, &pairs)
        })
    }

    /// Does the same as `insert_many` for numbers in a buffer of u64, with values of one length side by side.
    fn insert_array(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        value_bytes: usize,
    ) -> PyResult<u64> {
        let (keys, values) = (numbers(keys)?, copied(values)?);
        as_many(py, keys.len() * value_bytes, values.len())?;
        self.client.get().with(py, |open| {
            let values = values.chunks_exact(value_bytes.max(1));
            let pairs: Vec<(Key<'_>, &[u8])> =
                keys.iter().zip(values).map(|(&key, value)| (Key::Number(key), value)).collect();
            locked(&self.map).insert_many(&mut open.client, &pairs)
        })
    }

    fn remove(&self, py: Python<'_>, key: PyKey) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.map).remove(&mut open.client, key.key()))
    }

    /// Sets the value of a key that has none; otherwise returns the value that it keeps.
    fn insert_new<'py>(
        &self,
        py: Python<'py>,
        key: PyKey,
        value: PyBackedBytes,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let kept = self
            .client
            .get()
            .with(py, |open| locked(&self.map).insert_new(&mut open.client, key.key(), &value))?;
        Ok(optional(py, kept))
    }

    /// Removes a key, and returns its value.
    fn take<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.client.get().with(py, |open| locked(&self.map).take(&mut open.client, key.key()))?;
        Ok(optional(py, value))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().with(py, |open| locked(&self.map).clear(&mut open.client))
    }

    /// Adds to a signed number, or to an unsigned one.
    fn add(&self, py: Python<'_>, key: u64, addend: i128, signed: bool) -> PyResult<Option<u64>> {
        let addend = addend_of(addend, signed)?;
        self.client.get().with(py, |open| locked(&self.map).add(&mut open.client, key, addend))
    }

    /// Returns the walk that finds a key: address and scratchpad, for the program `hash_get` or `hash_get_bytes`.
    fn find_walk(&self, key: PyKey) -> PyResult<(u64, Vec<u8>)> {
        let walk = locked(&self.map).chain(key.key()).find_walk(key.key(), true);
        walk.map(|walk| (walk.start, walk.scratch.0))
            .map_err(|error| Python::attach(|py| crate::errors::walk_error(py, error)))
    }

    /// Returns entries of the chains from `head` on, as (number, key bytes, value), and the next chain; None after the last.
    fn batch<'py>(&self, py: Python<'py>, head: u64) -> PyResult<(Vec<Entry<'py>>, Option<u64>)> {
        let heads = 1_u64 << self.handle.log2;
        if head >= heads {
            return Ok((Vec::new(), None));
        }
        let last = head.saturating_add(SCAN_HEADS).min(heads) - 1;
        let found = self.client.get().with(py, |open| {
            let first = Chain(self.handle.heads + 8 * head);
            fresh(open, |client| first.scan(client, self.handle.heads + 8 * last))
        })?;
        Ok((entries(py, found), (last + 1 < heads).then_some(last + 1)))
    }

    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        self.client.get().with(py, |open| Ok(locked(&self.map).scan(&mut open.client)?.len()))
    }

    /// Frees the map's memory on the nodes.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().with(py, |open| HashMap::open(self.handle).drop(&mut open.client))
    }
}

/// An ordered map on memory nodes.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkOrdered {
    client: Py<WalkClient>,
    map: Mutex<OrderedMap>,
    handle: ordered::Handle,
}

/// Count, sum, smallest, greatest.
type Totals = (u64, i64, i64, i64);

fn totals(aggregate: Aggregate) -> Totals {
    (aggregate.count, aggregate.sum, aggregate.min, aggregate.max)
}

#[pymethods]
impl WalkOrdered {
    #[staticmethod]
    fn create(py: Python<'_>, client: Py<WalkClient>, value_bytes: usize) -> PyResult<WalkOrdered> {
        let map = client.get().with(py, |open| OrderedMap::create(&mut open.client, value_bytes))?;
        Ok(WalkOrdered { client, handle: map.handle(), map: Mutex::new(map) })
    }

    #[staticmethod]
    fn open(py: Python<'_>, client: Py<WalkClient>, cell: u64, value_bytes: usize) -> PyResult<WalkOrdered> {
        if !(1..=ordered::VALUE_BYTES_MAX).contains(&value_bytes) {
            let text = format!("values of {value_bytes} bytes: 1 to {}", ordered::VALUE_BYTES_MAX);
            return Err(crate::errors::new(py, "BadArgumentError", (text,)));
        }
        let handle = ordered::Handle { cell, value_bytes };
        Ok(WalkOrdered { client, handle, map: Mutex::new(OrderedMap::open(handle)) })
    }

    #[getter]
    fn handle(&self) -> (u64, usize) {
        (self.handle.cell, self.handle.value_bytes)
    }

    fn get<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.client.get().with(py, |open| locked(&self.map).get(&mut open.client, key))?;
        Ok(optional(py, value))
    }

    /// Returns the values of numbers in a buffer of u64: (values, found).
    fn get_array(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<(Block, Block)> {
        let keys = numbers(keys)?;
        self.client.get().with(py, |open| {
            let values = locked(&self.map).get_many(&mut open.client, &keys)?;
            columns(values, self.handle.value_bytes)
        })
    }

    /// Returns the records of keys from `first` to `last`, both included, as the node sent them: key u64, then the value,
    /// filled up to 8 bytes.
    fn range(&self, py: Python<'_>, first: u64, last: u64, limit: u64) -> PyResult<Block> {
        if first > last || limit == 0 {
            return Ok(Block::new(Vec::new()));
        }
        let walk = self.handle.range_walk(first..=last, limit);
        let walked = self.client.get().with(py, |open| {
            let walked = open.client.walk(&walk)?;
            match walked.result.len().is_multiple_of(self.handle.record_bytes()) {
                true => Ok(walked),
                false => {
                    Err(ClientError::Corrupt { address: self.handle.cell, what: "range of whole records" })
                }
            }
        })?;
        Ok(Block::new(walked.result))
    }

    /// Returns the last `limit` records of a range, in the form of `range`.
    fn last(&self, py: Python<'_>, first: u64, last: u64, limit: u64) -> PyResult<Block> {
        let walked = self
            .client
            .get()
            .with(py, |open| locked(&self.map).last_walk(&mut open.client, first..=last, limit))?;
        Ok(Block::new(walked.map_or_else(Vec::new, |walked| walked.result)))
    }

    /// Returns totals of consecutive ranges. The buffer of u64 has their first numbers in ascending order; each range ends
    /// before the next one, and the last one at `last`.
    fn buckets(&self, py: Python<'_>, begins: &Bound<'_, PyAny>, last: u64) -> PyResult<Vec<Totals>> {
        let begins = numbers(begins)?;
        let ends = begins.iter().skip(1).map(|next| next.saturating_sub(1)).chain([last]);
        let ranges: Vec<RangeInclusive<u64>> =
            begins.iter().zip(ends).map(|(&begin, end)| begin..=end).collect();
        let found = self
            .client
            .get()
            .with(py, |open| locked(&self.map).aggregate_many_wrapping(&mut open.client, &ranges))?;
        Ok(found.into_iter().map(totals).collect())
    }

    /// Returns the aggregate of a range; the sum wraps.
    fn aggregate(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<Totals> {
        let map = &self.map;
        self.client
            .get()
            .with(py, |open| locked(map).aggregate_wrapping(&mut open.client, first..=last).map(totals))
    }

    fn insert(&self, py: Python<'_>, key: u64, value: PyBackedBytes) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.map).insert(&mut open.client, key, &value))
    }

    /// Sets the value of a key that has none; returns False if it has one.
    fn insert_new(&self, py: Python<'_>, key: u64, value: PyBackedBytes) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.map).insert_new(&mut open.client, key, &value))
    }

    /// Removes a key, and returns its value.
    fn take<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.client.get().with(py, |open| locked(&self.map).take(&mut open.client, key))?;
        Ok(optional(py, value))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().with(py, |open| locked(&self.map).clear(&mut open.client))
    }

    /// Sets the values, side by side, of numbers in a buffer of u64; returns how many of the numbers are new.
    fn insert_array(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let (keys, values) = (numbers(keys)?, copied(values)?);
        let value_bytes = self.handle.value_bytes;
        as_many(py, keys.len() * value_bytes, values.len())?;
        self.client.get().with(py, |open| {
            let values = values.chunks_exact(value_bytes);
            let pairs: Vec<(u64, &[u8])> = keys.iter().copied().zip(values).collect();
            locked(&self.map).insert_many(&mut open.client, &pairs)
        })
    }

    fn remove(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.map).remove(&mut open.client, key))
    }

    /// Frees the map's memory on the nodes.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().with(py, |open| OrderedMap::open(self.handle).drop(&mut open.client))
    }

    /// Returns address and scratchpad of the walk that finds a key, and the name of its program.
    fn find_walk(&self, key: u64) -> (u64, Vec<u8>, String) {
        let walk = self.handle.get_walk(key);
        (walk.start, walk.scratch.0, walk.program.name().to_owned())
    }

    /// Returns the value in the scratchpad of such a walk's answer.
    fn found<'py>(&self, py: Python<'py>, status: u8, scratch: &[u8]) -> Option<Bound<'py, PyBytes>> {
        use memlift::traverse::structures::{Outcome, Scratch, Walked};
        let outcome = if status == 0 { Outcome::Done } else { Outcome::Missing };
        let walked = Walked { outcome, scratch: Scratch(scratch.to_vec()), result: Vec::new(), since: 0 };
        optional(py, self.handle.found(&walked))
    }

    /// Does the same as `find_walk` for a range.
    fn range_walk(&self, first: u64, last: u64, limit: u64) -> (u64, Vec<u8>, String) {
        let walk = self.handle.range_walk(first..=last, limit);
        (walk.start, walk.scratch.0, walk.program.name().to_owned())
    }
}

/// A linked list on memory nodes.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkList {
    client: Py<WalkClient>,
    list: Mutex<List>,
    head: u64,
}

#[pymethods]
impl WalkList {
    #[staticmethod]
    fn create(py: Python<'_>, client: Py<WalkClient>) -> PyResult<WalkList> {
        let list = client.get().with(py, |open| List::create(&mut open.client))?;
        Ok(WalkList { client, head: list.head(), list: Mutex::new(list) })
    }

    #[staticmethod]
    fn open(client: Py<WalkClient>, head: u64) -> WalkList {
        WalkList { client, head, list: Mutex::new(List::open(head)) }
    }

    #[getter]
    fn head(&self) -> u64 {
        self.head
    }

    fn push(&self, py: Python<'_>, number: u64, value: PyBackedBytes, front: bool) -> PyResult<()> {
        self.client.get().with(py, |open| {
            let mut list = locked(&self.list);
            match front {
                true => list.push_front(&mut open.client, number, &value),
                false => list.push_back(&mut open.client, number, &value),
            }
        })
    }

    fn find<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.client.get().with(py, |open| locked(&self.list).find(&mut open.client, number))?;
        Ok(optional(py, value))
    }

    fn remove(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        self.client.get().with(py, |open| locked(&self.list).remove(&mut open.client, number))
    }

    /// Returns all entries, as (number, None, value).
    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Vec<Entry<'py>>> {
        let found =
            self.client.get().with(py, |open| fresh(open, |client| locked(&self.list).scan(client)))?;
        Ok(entries(py, found))
    }

    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        self.client.get().with(py, |open| Ok(locked(&self.list).scan(&mut open.client)?.len()))
    }

    /// Frees the list's memory on the nodes.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().with(py, |open| List::open(self.head).drop(&mut open.client))
    }

    fn sum(&self, py: Python<'_>) -> PyResult<Totals> {
        self.client.get().with(py, |open| locked(&self.list).sum_wrapping(&mut open.client).map(totals))
    }
}
