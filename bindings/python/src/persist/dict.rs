// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A persistent dict: a table of the pool, stored under a name.
//!
//! - **Order** the offset of the table is cached until something is removed or rolled back; then it is looked up again by its name.
//! - **Not here** the mapping protocol: `memlift/persist.py`.

use std::sync::{Arc, Mutex, PoisonError};

use memlift::persist::View;
use memlift::persist::raw::{Looking, Put, Table};
use pyo3::prelude::*;

use super::pool::{Inner, Kind, Named, Trouble, Writing};
use super::value;

/// Size of a batch of an iteration, for which locks are taken once: most pairs, and most bytes.
const BATCH_PAIRS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// A persistent dict.
#[pyclass(module = "memlift._native", frozen)]
pub struct PersistDict {
    inner: Arc<Inner>,
    name: String,
    pickle: bool,
    /// Cached: the pool's generation, and the table's offset.
    known: Mutex<(u64, u64)>,
}

impl PersistDict {
    pub fn new(inner: Arc<Inner>, name: String, pickle: bool) -> PersistDict {
        PersistDict { inner, name, pickle, known: Mutex::new((0, 0)) }
    }

    fn table<V: View>(&self, view: &V) -> Result<Table, Trouble> {
        let generation = self.inner.generation();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 == generation {
            return Ok(Table::at(known.1));
        }
        let Some(Named { kind: Kind::Dict, offset, .. }) = Inner::find(view, &self.name)? else {
            return Err(Trouble::Gone(format!(
                "there is no dict {:?} in the pool any more: it was removed, or the transaction that made it was rolled \
                 back; pool.dict makes it again",
                self.name
            )));
        };
        *known = (generation, offset);
        Ok(Table::at(offset))
    }

    fn read<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Looking<'_>, Table) -> Result<R, Trouble> + Send,
    ) -> PyResult<R> {
        self.inner.read(py, |view| work(view, self.table(view)?))
    }

    fn write<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Writing<'_, '_>, Table) -> Result<R, Trouble> + Send,
    ) -> PyResult<R> {
        self.inner.write(py, |writing| {
            let table = self.table(writing.tx)?;
            work(writing, table)
        })
    }
}

#[pymethods]
impl PersistDict {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.read(py, |view, table| Ok(table.len(view)?))? as usize)
    }

    fn get<'py>(&self, key: &Bound<'py, PyAny>, missing: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, key) = (key.py(), value::key(key)?);
        let found = self.read(py, |view, table| Ok(table.get(view, &key)?.map(<[u8]>::to_vec)))?;
        found.map_or(Ok(missing), |bytes| value::decode(py, &bytes, self.pickle))
    }

    fn contains(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, key) = (key.py(), value::key(key)?);
        self.read(py, |view, table| Ok(table.get(view, &key)?.is_some()))
    }

    /// Sets the value of a key; returns True if the key is new.
    fn set(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, key, value) = (key.py(), value::key(key)?, value::encode(value, self.pickle)?);
        self.write(py, |writing, table| Ok(table.put(writing.tx, &key, &value)? == Put::Inserted))
    }

    /// Removes a key; returns False if there is no such key.
    fn remove(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, key) = (key.py(), value::key(key)?);
        self.write(py, |writing, table| Ok(table.remove(writing.tx, &key)?))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, |writing, table| Ok(table.clear(writing.tx)?))
    }

    /// Returns the key that was inserted last, or `missing`.
    fn last<'py>(&self, missing: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = missing.py();
        let key = self.read(py, |view, table| Ok(table.last(view)?))?;
        key.map_or(Ok(missing), |bytes| value::decode(py, &bytes, false))
    }

    /// Returns the pairs that follow the key with the bytes `after`: a number that changes with each insertion and removal, the
    /// bytes of the last key, and keys with values (None for values that are not requested). Returns None if the key `after`
    /// was removed.
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn batch<'py>(
        &self,
        py: Python<'py>,
        after: Option<Vec<u8>>,
        values: bool,
    ) -> PyResult<Option<(u64, Option<Vec<u8>>, Vec<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)>)>> {
        let (version, pairs) = self.read(py, |view, table| {
            let pairs = table.batch(view, after.as_deref(), BATCH_PAIRS, BATCH_BYTES)?;
            Ok((table.version(view)?, pairs))
        })?;
        let Some(pairs) = pairs else { return Ok(None) };
        let last = pairs.last().map(|(key, _)| key.clone());
        let read = |(key, bytes): (Vec<u8>, Vec<u8>)| {
            let value = values.then(|| value::decode(py, &bytes, self.pickle)).transpose()?;
            Ok((value::decode(py, &key, false)?, value))
        };
        Ok(Some((version, last, pairs.into_iter().map(read).collect::<PyResult<_>>()?)))
    }
}
