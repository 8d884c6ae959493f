// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python class of hash maps whose entries expire.
//!
//! - **Layout** its methods are those of `WalkHash`, with the time until an entry expires where a value is put: seconds, 0 for never, None for
//!   what the map says.
//! - **Order** an operation takes its client's lock; a map has no state of its own here.
//! - **Not here** the conversion of values and times: `memlift/traverse/_hash.py`.

use memlift::traverse::client::{Client, ClientError};
use memlift::traverse::structures::ExpiringMap;
use memlift::traverse::structures::chain::{Chain, Key};
use memlift::traverse::structures::expiring::{Handle, Terms, Ttl};
use memlift::traverse::structures::hash;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::block::Block;
use super::client::WalkClient;
use super::collections::{
    Content, Entry, PyKey, SCAN_HEADS, addend_of, as_many, columns, entries, fresh, optional,
};
use super::load::{copied, numbers};

/// A hash map on memory nodes whose entries expire.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkExpiring {
    client: Py<WalkClient>,
    map: ExpiringMap,
}

fn ttl_of(seconds: Option<u32>) -> Ttl {
    match seconds {
        None => Ttl::OfMap,
        Some(0) => Ttl::Never,
        Some(seconds) => Ttl::Seconds(seconds),
    }
}

/// Removes the stamps of the entries of a scan, and the expired entries.
fn live(found: Vec<Content>) -> Result<Vec<Content>, ClientError> {
    let entry = |(number, key, stored, since): Content| {
        let value = ExpiringMap::live(stored, since)?;
        Ok(value.map(|value| (number, key, value, since)))
    };
    found.into_iter().filter_map(|one| entry(one).transpose()).collect()
}

impl WalkExpiring {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&ExpiringMap, &mut Client) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        self.client.get().with(py, |open| run(&self.map, &mut open.client))
    }
}

#[pymethods]
impl WalkExpiring {
    #[staticmethod]
    fn create(
        py: Python<'_>,
        client: Py<WalkClient>,
        log2: u32,
        ttl_s: u32,
        entries_max: u64,
        bytes_max: u64,
    ) -> PyResult<WalkExpiring> {
        let terms = Terms { ttl_s, entries_max, bytes_max };
        let map = client.get().with(py, |open| ExpiringMap::create(&mut open.client, log2, terms))?;
        Ok(WalkExpiring { client, map })
    }

    #[staticmethod]
    fn open(
        py: Python<'_>,
        client: Py<WalkClient>,
        heads: u64,
        log2: u32,
        terms: u64,
    ) -> PyResult<WalkExpiring> {
        let handle = Handle { map: hash::Handle { heads, log2: log2.min(40) }, terms };
        let map = client.get().with(py, |open| ExpiringMap::open(&mut open.client, handle))?;
        Ok(WalkExpiring { client, map })
    }

    #[getter]
    fn handle(&self) -> (u64, u32) {
        let Handle { map, .. } = self.map.handle();
        (map.heads, map.log2)
    }

    /// Address of the terms.
    #[getter]
    fn terms(&self) -> u64 {
        self.map.handle().terms
    }

    /// Seconds until an entry expires (0: never), most entries, most bytes (0: any number).
    #[getter]
    fn limits(&self) -> (u32, u64, u64) {
        let terms = self.map.terms();
        (terms.ttl_s, terms.entries_max, terms.bytes_max)
    }

    fn get<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |map, client| map.get(client, key.key()))?;
        Ok(optional(py, value))
    }

    /// Returns (True if there is an entry, the seconds that it has left; None: it does not expire).
    fn ttl(&self, py: Python<'_>, key: PyKey) -> PyResult<(bool, Option<u32>)> {
        let left = self.with(py, |map, client| map.ttl(client, key.key()))?;
        Ok((left.is_some(), left.flatten()))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<PyKey>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let values = self.with(py, |map, client| {
            let keys: Vec<Key<'_>> = keys.iter().map(PyKey::key).collect();
            map.get_many(client, &keys)
        })?;
        Ok(values.into_iter().map(|value| optional(py, value)).collect())
    }

    fn get_array(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        value_bytes: usize,
    ) -> PyResult<(Block, Block)> {
        let keys = numbers(keys)?;
        self.with(py, |map, client| {
            let keys: Vec<Key<'_>> = keys.iter().map(|&key| Key::Number(key)).collect();
            columns(map.get_many(client, &keys)?, value_bytes)
        })
    }

    #[pyo3(signature = (key, value, ttl=None))]
    fn insert(&self, py: Python<'_>, key: PyKey, value: PyBackedBytes, ttl: Option<u32>) -> PyResult<bool> {
        self.with(py, |map, client| map.insert(client, key.key(), &value, ttl_of(ttl)))
    }

    #[pyo3(signature = (key, value, ttl=None))]
    fn insert_new<'py>(
        &self,
        py: Python<'py>,
        key: PyKey,
        value: PyBackedBytes,
        ttl: Option<u32>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let kept = self.with(py, |map, client| map.insert_new(client, key.key(), &value, ttl_of(ttl)))?;
        Ok(optional(py, kept))
    }

    #[pyo3(signature = (keys, values, ttl=None))]
    fn insert_many(
        &self,
        py: Python<'_>,
        keys: Vec<PyKey>,
        values: Vec<PyBackedBytes>,
        ttl: Option<u32>,
    ) -> PyResult<u64> {
        as_many(py, keys.len(), values.len())?;
        self.with(py, |map, client| {
            let pairs: Vec<(Key<'_>, &[u8])> =
                keys.iter().zip(&values).map(|(key, value)| (key.key(), &value[..])).collect();
            map.insert_many(client, &pairs, ttl_of(ttl))
        })
    }

    #[pyo3(signature = (keys, values, value_bytes, ttl=None))]
    fn insert_array(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        value_bytes: usize,
        ttl: Option<u32>,
    ) -> PyResult<u64> {
        let (keys, values) = (numbers(keys)?, copied(values)?);
        as_many(py, keys.len() * value_bytes, values.len())?;
        self.with(py, |map, client| {
            let values = values.chunks_exact(value_bytes.max(1));
            let pairs: Vec<(Key<'_>, &[u8])> =
                keys.iter().zip(values).map(|(&key, value)| (Key::Number(key), value)).collect();
            map.insert_many(client, &pairs, ttl_of(ttl))
        })
    }

    fn remove(&self, py: Python<'_>, key: PyKey) -> PyResult<bool> {
        self.with(py, |map, client| map.remove(client, key.key()))
    }

    fn take<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |map, client| map.take(client, key.key()))?;
        Ok(optional(py, value))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |map, client| map.clear(client))
    }

    /// Adds to a signed number, or to an unsigned one.
    fn add(&self, py: Python<'_>, key: u64, addend: i128, signed: bool) -> PyResult<Option<u64>> {
        let addend = addend_of(addend, signed)?;
        self.with(py, |map, client| map.add(client, key, addend))
    }

    /// Returns the walk that finds a key: address and scratchpad, for the program `hash_get` or `hash_get_bytes`.
    fn find_walk(&self, key: PyKey) -> PyResult<(u64, Vec<u8>)> {
        let walk = self.map.chain(key.key()).find_walk(key.key(), true);
        walk.map(|walk| (walk.start, walk.scratch.0))
            .map_err(|error| Python::attach(|py| crate::errors::walk_error(py, error)))
    }

    /// Returns the value in the result of such a walk, if it was not expired at the clock `since`.
    fn live<'py>(
        &self,
        py: Python<'py>,
        stored: Vec<u8>,
        since: u32,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = ExpiringMap::live(stored, since).map_err(|error| crate::errors::walk_error(py, error))?;
        Ok(optional(py, value))
    }

    /// Returns entries of the chains from `head` on, as (number, key bytes, value), and the next chain; None after the last.
    fn batch<'py>(&self, py: Python<'py>, head: u64) -> PyResult<(Vec<Entry<'py>>, Option<u64>)> {
        let map = self.map.handle().map;
        let heads = 1_u64 << map.log2;
        if head >= heads {
            return Ok((Vec::new(), None));
        }
        let last = head.saturating_add(SCAN_HEADS).min(heads) - 1;
        let found = self.client.get().with(py, |open| {
            let first = Chain(map.heads + 8 * head);
            live(fresh(open, |client| first.scan(client, map.heads + 8 * last))?)
        })?;
        Ok((entries(py, found), (last + 1 < heads).then_some(last + 1)))
    }

    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |map, client| map.live_entries(client))
    }

    /// Frees the map's memory on the nodes.
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |map, client| ExpiringMap::drop(client, map.handle()))
    }
}
