// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replica of a pool: begun when the pool is opened, ended before it is closed; restores and listings.
//!
//! - **Order** the GIL is released while the store is waited for, and taken some ten times a second to handle signals: Ctrl-C ends a wait
//! - **Not here** the work: `memlift::persist::replicate`

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memlift::persist::replicate::{Fetched, ReplicaOptions, Replication, history, restore_watched};
use memlift::persist::{Error, Pool};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::persist_error;

/// Between two pieces of a wait, signals are handled.
const PIECE: Duration = Duration::from_millis(50);

/// Settings of a replica.
pub struct Place {
    pub interval: Duration,
    pub retain: Duration,
    pub wait: Duration,
}

/// The replica of a pool.
pub struct Replica {
    url: String,
    /// None: it has ended.
    replication: Mutex<Option<Replication>>,
    patience: Duration,
}

/// Microseconds since 1970.
fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl Replica {
    /// Takes the replica over; pages follow.
    pub fn begin(py: Python<'_>, pool: &Pool, url: &str, place: Place) -> PyResult<Replica> {
        let options = ReplicaOptions { interval: place.interval, retain: place.retain };
        let (raised, goes_on) = watched(None);
        let begun = py.detach(|| pool.replicate_watched(url, &options, move || goes_on(Fetched::default())));
        let replication = raised_or(py, &raised, begun)?;
        Ok(Replica { url: url.to_owned(), replication: Mutex::new(Some(replication)), patience: place.wait })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Replication>> {
        self.replication.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how far it is.
    pub fn status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(status) = py.detach(|| self.lock().as_ref().map(Replication::status)) else {
            return Ok(None);
        };
        let found = PyDict::new(py);
        found.set_item("url", &self.url)?;
        found.set_item("sequence", status.sequence)?;
        found.set_item("committed", status.committed.unwrap_or(status.sequence))?;
        found.set_item("complete_until", status.complete_until.map(micros))?;
        found.set_item("lag", status.lag.map(|lag| lag.as_secs_f64()))?;
        found.set_item("segments", status.segments)?;
        found.set_item("sent_bytes", status.bytes)?;
        found.set_item("trouble", status.trouble)?;
        found.set_item("ended", status.ended)?;
        Ok(Some(found))
    }

    /// Waits until it has everything that was committed before; gives the error when it does not.
    fn wait_for(&self, py: Python<'_>, patience: Duration) -> PyResult<Result<(), Error>> {
        let started = Instant::now();
        loop {
            let left = patience.saturating_sub(started.elapsed());
            let waited = py.detach(|| self.lock().as_ref().map_or(Ok(()), |one| one.wait(left.min(PIECE))));
            let why = match waited {
                Err(Error::NotReplicated { why }) => why,
                done => return Ok(done),
            };
            let status = py.detach(|| self.lock().as_ref().map(Replication::status)).unwrap_or_default();
            if left <= PIECE || status.ended {
                let late = || format!("it did not come within {} s", patience.as_secs_f32());
                let why = if status.trouble.is_some() { why } else { late() };
                return Ok(Err(Error::NotReplicated { why }));
            }
            py.check_signals()?;
        }
    }

    /// Waits until it has everything that was committed before.
    pub fn wait(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let patience = Duration::try_from_secs_f64(patience).unwrap_or(self.patience);
        self.wait_for(py, patience)?.map_err(|error| persist_error(py, error))
    }

    /// Waits until it has everything, and ends it. Returns the reason why it lacks something.
    pub fn end(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let waited = self.wait_for(py, self.patience);
        py.detach(|| drop(self.lock().take()));
        Ok(waited?.err().map(|error| error.to_string()))
    }
}

/// Handles signals for a call that waits on this thread; keeps what a handler raised.
fn watched(
    progress: Option<Py<PyAny>>,
) -> (Arc<Mutex<Option<PyErr>>>, impl Fn(Fetched) -> bool + Send + Sync + 'static) {
    let raised: Arc<Mutex<Option<PyErr>>> = Arc::default();
    let theirs = Arc::clone(&raised);
    let told = Mutex::new(None::<Fetched>);
    let goes_on = move |fetched: Fetched| {
        let went = Python::attach(|py| {
            py.check_signals()?;
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(progress) = progress.as_ref().filter(|_| fetched.total > 0 && *told != Some(fetched))
            {
                *told = Some(fetched);
                progress.call1(py, (fetched.done, fetched.total))?;
            }
            PyResult::Ok(())
        });
        match went {
            Ok(()) => true,
            Err(error) => {
                theirs.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                false
            }
        }
    };
    (raised, goes_on)
}

fn raised_or<T>(py: Python<'_>, raised: &Mutex<Option<PyErr>>, done: Result<T, Error>) -> PyResult<T> {
    match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(raised) => Err(raised),
        None => done.map_err(|error| persist_error(py, error)),
    }
}

/// Makes a new file of a replica. Returns the moment (microseconds since 1970), transaction, segments and bytes.
#[pyfunction]
pub fn restore_replica(
    py: Python<'_>,
    url: &str,
    target: PathBuf,
    at: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u64, u64, u64, u64)> {
    let at = at.map(|at| UNIX_EPOCH + Duration::from_micros(at));
    let (raised, goes_on) = watched(progress);
    let done = py.detach(|| restore_watched(url, &target, at, goes_on));
    let done = raised_or(py, &raised, done)?;
    Ok((micros(done.time), done.sequence, done.segments, done.bytes))
}

/// Returns the contents of a replica, with moments in microseconds since 1970.
#[pyfunction]
pub fn replica_history(py: Python<'_>, url: &str) -> PyResult<Py<PyDict>> {
    let (raised, goes_on) = watched(None);
    let done = py.detach(|| history(url, move || goes_on(Fetched::default())));
    let found = raised_or(py, &raised, done)?;
    let dict = PyDict::new(py);
    let moments = |all: &[SystemTime]| all.iter().copied().map(micros).collect::<Vec<_>>();
    let stretches: Vec<(u64, u64, Vec<u64>)> = found
        .stretches
        .iter()
        .map(|one| (micros(one.from), micros(one.until), moments(&one.snapshots)))
        .collect();
    let writers: Vec<(String, u64)> =
        found.writers.into_iter().map(|one| (one.owner, micros(one.since))).collect();
    dict.set_item("stretches", stretches)?;
    dict.set_item("writers", writers)?;
    dict.set_item("segments", found.segments)?;
    dict.set_item("bytes", found.bytes)?;
    dict.set_item("missing", found.missing)?;
    Ok(dict.unbind())
}
