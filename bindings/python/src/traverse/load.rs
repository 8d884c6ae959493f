// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads whole collections from Arrow streams, CSV files, numpy arrays, or pairs.
//!
//! - **Flow** source ──▶ pairs ──▶ `memlift::traverse::structures::load` ──▶ handle. The caller's function is told how many pairs are
//!   written.
//! - **Order** the load runs without the GIL, except for that function. If the function raises, the load ends and its memory is freed.
//! - **Owner** the load consumes an Arrow stream; it borrows arrays until it ends, and they must not be changed meanwhile.

use std::cell::RefCell;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use memlift::traverse::client::{Client, ClientError, Result};
use memlift::traverse::structures::arrow::{Content, Rows, Stream};
use memlift::traverse::structures::bulk::{self, Numbers};
use memlift::traverse::structures::load::{self, OwnedKey};
use pyo3::ffi;
use pyo3::prelude::*;

use super::client::WalkClient;
use super::collections::PyKey;
use crate::errors::{new, unsupported};
use crate::memory::Input;

/// Structure to build: a hash map of 2^n chains, or an ordered map.
#[derive(Clone, Copy)]
enum Made {
    Hash(Option<u32>),
    Sorted,
    Unsorted,
}

impl Made {
    fn new(py: Python<'_>, kind: &str, log2: Option<u32>) -> PyResult<Made> {
        match kind {
            "hash" => Ok(Made::Hash(log2)),
            "sorted" => Ok(Made::Sorted),
            "unsorted" => Ok(Made::Unsorted),
            _ => Err(new(py, "BadArgumentError", (format!("{kind:?}: hash, sorted or unsorted"),))),
        }
    }
}

/// Handle of the collection: heads and log2 of their number, or cell and bytes of a value.
type Handle = (u64, u64);
/// The handle; names, kinds and sizes of the columns in a value.
type Loaded = (Handle, Vec<(String, String, usize)>);

/// The caller's progress function, and the exception that it raised.
struct Progress<'p> {
    call: Option<&'p Py<PyAny>>,
    raised: RefCell<Option<PyErr>>,
}

impl Progress<'_> {
    fn tell(&self, taken: u64) {
        if let Some(call) = self.call {
            let told = Python::attach(|py| call.call1(py, (taken,)).map(drop));
            self.note(told);
        }
    }

    fn note(&self, told: PyResult<()>) {
        if let Err(error) = told {
            self.raised.borrow_mut().get_or_insert(error);
        }
    }

    /// Returns the pairs, and stops at an exception; handles signals on the way.
    fn watch<T>(&self, pairs: impl Iterator<Item = Result<T>>) -> impl Iterator<Item = Result<T>> {
        let mut taken = 0_u32;
        pairs.map(move |pair| {
            taken = taken.wrapping_add(1);
            if taken.is_multiple_of(1 << 14) {
                self.note(Python::attach(|py| py.check_signals()));
            }
            if self.raised.borrow().is_some() { Err(ClientError::Interrupted) } else { pair }
        })
    }
}

fn build<V: AsRef<[u8]>>(
    client: &mut Client,
    made: Made,
    pairs: impl Iterator<Item = Result<(OwnedKey, V)>>,
    value_bytes: usize,
    progress: &Progress<'_>,
) -> Result<Handle> {
    let told = |taken| progress.tell(taken);
    let pairs = progress.watch(pairs);
    let mut row = 0_u64;
    let numbered = |pair: Result<(OwnedKey, V)>| {
        row += 1;
        match pair? {
            (OwnedKey::Number(key), value) => Ok((key, value)),
            (OwnedKey::Bytes(_), _) => {
                let reason = "an ordered map's keys are numbers, and this one is of bytes".to_owned();
                Err(ClientError::Input { line: row, reason })
            }
        }
    };
    match made {
        Made::Hash(log2) => {
            load::hash(client, pairs, log2, told).map(|handle| (handle.heads, u64::from(handle.log2)))
        }
        Made::Sorted => {
            let handle = load::ordered(client, pairs.map(numbered), value_bytes, told)?;
            Ok((handle.cell, handle.value_bytes as u64))
        }
        Made::Unsorted => {
            let handle = load::ordered_unsorted(client, pairs.map(numbered), value_bytes, told)?;
            Ok((handle.cell, handle.value_bytes as u64))
        }
    }
}

fn run<V: AsRef<[u8]>>(
    py: Python<'_>,
    client: &WalkClient,
    made: Made,
    pairs: impl Iterator<Item = Result<(OwnedKey, V)>> + Send,
    value_bytes: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Handle> {
    let (built, raised) = client.with(py, |open| {
        let progress = Progress { call: progress.as_ref(), raised: RefCell::new(None) };
        let built = build(&mut open.client, made, pairs, value_bytes, &progress);
        Ok((built, progress.raised.into_inner()))
    })?;
    match (raised, built) {
        (Some(raised), _) => Err(raised),
        (None, Ok(handle)) => Ok(handle),
        // Passes the error through `with` again, because it knows the exception of a signal handler.
        (None, Err(error)) => client.with(py, |_| Err(error)),
    }
}

/// Returns a copy of a buffer's bytes.
pub fn copied(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let input = Input::new(object)?;
    // SAFETY: the buffer is exported while `input` lives, and is copied here while the GIL is held.
    Ok(unsafe { input.slice() }.to_vec())
}

/// Returns the numbers in a buffer of u64.
pub fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let bytes = copied(object)?;
    if !bytes.len().is_multiple_of(8) {
        return Err(unsupported(object.py(), "an array of numbers that are not of 8 bytes"));
    }
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
}

/// Builds a map from an object with `__arrow_c_stream__`: a table, a frame, a reader of batches.
#[pyfunction]
#[pyo3(signature = (client, kind, source, key, values, log2, progress))]
#[expect(clippy::too_many_arguments, reason = "called by the Python half only")]
pub fn walk_load_arrow(
    py: Python<'_>,
    client: &WalkClient,
    kind: &str,
    source: &Bound<'_, PyAny>,
    key: &str,
    values: Option<Vec<String>>,
    log2: Option<u32>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Loaded> {
    let made = Made::new(py, kind, log2)?;
    let capsule = source.call_method0("__arrow_c_stream__")?;
    // SAFETY: the call checks the object, and fails unless it is a capsule of that name.
    let stream = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"arrow_array_stream".as_ptr()) };
    if stream.is_null() {
        return Err(PyErr::fetch(py));
    }
    let names: Option<Vec<&str>> = values.as_ref().map(|names| names.iter().map(String::as_str).collect());
    // SAFETY: a capsule of that name holds a stream of the Arrow C stream interface, whose contents a consumer moves out. The
    // capsule lives until the end of this function; when it is dropped it finds the stream already released.
    let rows = unsafe { Rows::new(stream.cast::<Stream>(), key, names.as_deref()) };
    let rows = rows.map_err(|error| crate::errors::walk_error(py, error))?;
    let contents = rows
        .contents()
        .into_iter()
        .map(|(name, content)| match content {
            Content::Signed => (name.to_owned(), "i8".to_owned(), 8),
            Content::Unsigned => (name.to_owned(), "u8".to_owned(), 8),
            Content::Float => (name.to_owned(), "f8".to_owned(), 8),
            Content::Fixed(bytes) => (name.to_owned(), format!("V{bytes}"), bytes),
            Content::Bytes => (name.to_owned(), "bytes".to_owned(), 0),
        })
        .collect();
    let value_bytes = match (rows.value_bytes(), made) {
        (Some(bytes), _) => bytes,
        (None, Made::Hash(_)) => 0,
        (None, _) => {
            let text = "an ordered map's values have one length: cast the column to numbers or to bytes of a fixed width";
            return Err(new(py, "BadInputError", (text,)));
        }
    };
    let handle = run(py, client, made, rows, value_bytes, progress)?;
    Ok((handle, contents))
}

/// Builds a map from a file of comma-separated values; columns are given by number.
#[pyfunction]
#[pyo3(signature = (client, kind, path, key, value, scale, as_float, log2, progress))]
#[expect(clippy::too_many_arguments, reason = "called by the Python half only")]
pub fn walk_load_csv(
    py: Python<'_>,
    client: &WalkClient,
    kind: &str,
    path: PathBuf,
    key: usize,
    value: usize,
    scale: Option<f64>,
    as_float: bool,
    log2: Option<u32>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Handle> {
    let made = Made::new(py, kind, log2)?;
    let file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let numbers = match (scale, as_float) {
        (scale, true) => Numbers::Float(scale.unwrap_or(1.0)),
        (Some(scale), false) => Numbers::Scaled(scale),
        (None, false) => Numbers::Whole,
    };
    let pairs = bulk::csv(file, key, value, numbers)
        .map(|pair| pair.map(|(key, value)| (OwnedKey::Number(key), value)));
    run(py, client, made, pairs, 8, progress)
}

/// Builds a map from an array of u64 keys and an array of the same number of values of `value_bytes` bytes.
#[pyfunction]
#[pyo3(signature = (client, kind, keys, values, value_bytes, log2, progress))]
#[expect(clippy::too_many_arguments, reason = "called by the Python half only")]
pub fn walk_load_arrays(
    py: Python<'_>,
    client: &WalkClient,
    kind: &str,
    keys: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    value_bytes: usize,
    log2: Option<u32>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Handle> {
    let made = Made::new(py, kind, log2)?;
    let (keys, values) = (Input::new(keys)?, Input::new(values)?);
    // SAFETY: both are exported until the inputs are dropped at the end. The caller is required not to change them; if it does,
    // the map has old and new bytes.
    let (keys, values) = unsafe { (keys.slice(), values.slice()) };
    if value_bytes == 0 || keys.len() / 8 * value_bytes != values.len() || !keys.len().is_multiple_of(8) {
        let text = format!(
            "{} bytes of keys and {} of values: 8 and {value_bytes} for each pair",
            keys.len(),
            values.len()
        );
        return Err(new(py, "BadInputError", (text,)));
    }
    let word = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("eight bytes"));
    let keys = keys.chunks_exact(8).map(move |key| OwnedKey::Number(word(key)));
    run(py, client, made, keys.zip(values.chunks_exact(value_bytes)).map(Ok), value_bytes, progress)
}

/// Builds a map from pairs of keys and bytes.
#[pyfunction]
#[pyo3(signature = (client, kind, pairs, value_bytes, log2, progress))]
pub fn walk_load_pairs(
    py: Python<'_>,
    client: &WalkClient,
    kind: &str,
    pairs: Vec<(PyKey, pyo3::pybacked::PyBackedBytes)>,
    value_bytes: usize,
    log2: Option<u32>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Handle> {
    let made = Made::new(py, kind, log2)?;
    let pairs = pairs.into_iter().map(|(key, value)| {
        let key = match key {
            PyKey::Number(number) => OwnedKey::Number(number),
            PyKey::Bytes(bytes) => OwnedKey::Bytes(bytes.to_vec()),
        };
        Ok((key, value))
    });
    run(py, client, made, pairs, value_bytes, progress)
}
