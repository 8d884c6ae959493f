// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python class `Queue`; `memlift/queue.py` gives it the interface of multiprocessing's queues.
//!
//! - **Flow** put: the value is encoded (`values::Encoded`), copied once into a block, and published. get: the block becomes a `Slot`,
//!   and `values::decode` returns the value, with views of the block.
//! - **Layout** the label of an item of `put_call` is its number and mark. They can be read even if the value cannot.
//! - **Order** waits are divided into slices; between them signals are handled, and a queue that was closed ends the wait. Short items are copied out; so are all items while
//!   views hold more than half of the queue's memory, so that there is room for further puts.

use crate::client::{SLICE, seconds};
use crate::convert::{DETACH_BYTES, put_into};
use crate::errors::{corrupt, raise};
use crate::slot::Slot;
use crate::values::{Allow, Encoded, decode};
use memlift::ipc::{self, Error, Label, Ledger, QueueOptions};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Items up to this size are copied out when they are taken: a copy costs less than creating and ending a view. Bytes.
const COPY_BYTES: u64 = 4096;

/// An item that belongs to a call: number, mark, value, and the exception that reading the value raised.
type Call<'py> = (u64, u64, Bound<'py, PyAny>, Option<Py<PyAny>>);

/// A queue between processes that share its descriptors. Use `memlift.Queue`.
#[pyclass(module = "memlift._native", frozen, subclass)]
pub struct Queue {
    queue: ipc::Queue,
    allow: Allow,
    closed: AtomicBool,
    /// True if this object has put or taken something.
    used: AtomicBool,
}

impl Queue {
    fn open(&self) -> PyResult<&ipc::Queue> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(PyValueError::new_err("this queue is closed: make a new one, or close it later")),
            false => Ok(&self.queue),
        }
    }

    /// Waits in slices, as [`sliced`] does, until another thread of this process closes the queue.
    fn sliced<T: Send>(
        &self,
        py: Python<'_>,
        until: Option<Instant>,
        mut step: impl FnMut(Option<Instant>) -> Result<Option<T>, Error> + Send,
    ) -> PyResult<Option<T>> {
        let waited = sliced(py, until, |until| match self.closed.load(Ordering::Relaxed) {
            true => Err(Error::Closed { what: "queue" }),
            false => step(until),
        });
        waited.or_else(|error| self.open().and(Err(error)))
    }

    /// Puts a value with a label.
    fn put_labelled(
        &self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        label: Label,
        until: Option<Instant>,
    ) -> PyResult<()> {
        let queue = self.open()?;
        self.used.store(true, Ordering::Relaxed);
        let encoded = Encoded::new(obj, self.allow)?;
        let bytes = encoded.bytes();
        let head = encoded.head();
        if bytes <= ipc::Queue::INLINE_BYTES && bytes == head.len() as u64 {
            let step = |until| queue.put_labelled(head, label, until).map(|put| put.then_some(()));
            return self.sliced(py, until, step)?.ok_or_else(|| queue_exception(py, "Full"));
        }
        let reserved = self.sliced(py, until, |until| queue.reserve(bytes, until))?;
        let Some(mut reserved) = reserved else { return Err(queue_exception(py, "Full")) };
        let parts = encoded.parts();
        let copy = move || {
            for (at, part) in &parts {
                reserved.write(*at, part)?;
            }
            reserved.set_label(label)?;
            reserved.publish()
        };
        let copied = if bytes < DETACH_BYTES as u64 { copy() } else { py.detach(copy) };
        copied.map_err(|error| raise(py, error))
    }

    /// Takes the oldest item; returns its memory and its label, or `None` if there was none before `until`.
    fn take(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<Option<(Slot, Label)>> {
        let queue = self.open()?;
        self.used.store(true, Ordering::Relaxed);
        let Some(item) = self.sliced(py, until, |until| queue.get(until))? else { return Ok(None) };
        let item = if item.is_leased() && (item.bytes() <= COPY_BYTES || item.is_crowded()) {
            py.detach(|| item.detach())
        } else {
            Ok(item)
        };
        if item.as_ref().is_ok_and(|item| item.bytes() == 0) {
            return Err(corrupt(py, "empty"));
        }
        let slot = item.and_then(|item| {
            let label = item.label();
            Ok((Slot::taken(item)?, label))
        });
        slot.map(Some).map_err(|error| raise(py, error))
    }
}

/// Returns the exception `queue.Full` or `queue.Empty`.
fn queue_exception(py: Python<'_>, name: &'static str) -> PyErr {
    static FULL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let cell = if name == "Full" { &FULL } else { &EMPTY };
    let class = cell.get_or_try_init(py, || PyResult::Ok(py.import("queue")?.getattr(name)?.unbind()));
    match class.and_then(|class| class.bind(py).call0()) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Returns the time at which a wait ends: now, later, or `None` for never.
fn limit(block: bool, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    if !block {
        return Ok(Some(Instant::now()));
    }
    // As in Python's own queues, a negative timeout is no error.
    let timeout = timeout.map(|seconds| if seconds < 0.0 { 0.0 } else { seconds });
    Ok(seconds(timeout)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// Tries in slices, and handles signals between them; returns `None` after `until`.
pub fn sliced<T: Send>(
    py: Python<'_>,
    until: Option<Instant>,
    mut step: impl FnMut(Option<Instant>) -> Result<Option<T>, Error> + Send,
) -> PyResult<Option<T>> {
    loop {
        let slice = Instant::now() + SLICE;
        let slice = until.map_or(slice, |until| until.min(slice));
        match py.detach(|| step(Some(slice))) {
            Ok(Some(done)) => return Ok(Some(done)),
            Ok(None) if until.is_some_and(|until| until <= Instant::now()) => return Ok(None),
            Ok(None) => py.check_signals()?,
            Err(error) => return Err(raise(py, error)),
        }
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (maxsize=0, *, bytes_max=None, allow_pickle=false, ledger="none", fds=None))]
    fn new(
        py: Python<'_>,
        maxsize: i64,
        bytes_max: Option<u64>,
        allow_pickle: bool,
        ledger: &str,
        fds: Option<(i32, i32)>,
    ) -> PyResult<Queue> {
        let made = match fds {
            Some((fd, bell)) => ipc::Queue::from_fds([duplicate(fd)?, duplicate(bell)?]),
            None => {
                let ledger = match ledger {
                    "none" => Ledger::None,
                    "tasks" => Ledger::Tasks,
                    "calls" => Ledger::Calls,
                    other => return Err(PyValueError::new_err(format!("a queue has no ledger of {other}"))),
                };
                let items_max = u64::try_from(maxsize).unwrap_or(0);
                let options = QueueOptions { items_max, bytes_max, ledger };
                py.detach(|| ipc::Queue::new(&options))
            }
        };
        let queue = made.map_err(|error| raise(py, error))?;
        let allow = Allow { pickle: allow_pickle, arguments: false };
        Ok(Queue { queue, allow, closed: AtomicBool::new(false), used: AtomicBool::new(false) })
    }

    /// Returns a descriptor that is readable while an item waits, for select, `multiprocessing.connection.wait` and event
    /// loops. Do not read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let ready = self.open()?.readiness().map_err(|error| raise(py, error))?;
        Ok(ready.as_raw_fd())
    }

    /// Returns the descriptors that are passed to another process.
    fn _descriptors(&self) -> (i32, i32) {
        self.queue.as_fds().map(|fd| fd.as_raw_fd()).into()
    }

    #[getter]
    fn _allow_pickle(&self) -> bool {
        self.allow.pickle
    }

    #[getter]
    fn _maxsize(&self) -> u64 {
        self.queue.items_max()
    }

    #[pyo3(signature = (obj, block=true, timeout=None))]
    fn put(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        self.put_labelled(py, obj, Label::default(), limit(block, timeout)?)
    }

    /// Puts a value that belongs to a call. Even if the value cannot be read, the getter learns number and mark.
    #[pyo3(signature = (number, mark, obj, block=true))]
    fn put_call(
        &self,
        py: Python<'_>,
        number: u64,
        mark: u64,
        obj: &Bound<'_, PyAny>,
        block: bool,
    ) -> PyResult<()> {
        self.put_labelled(py, obj, [number, mark], limit(block, None)?)
    }

    /// Returns the next value that belongs to a call as (number, mark, value, None), or as (number, mark, None, exception) if
    /// it cannot be read.
    fn get_call<'py>(&self, py: Python<'py>) -> PyResult<Call<'py>> {
        let (slot, [number, mark]) = self.take(py, None)?.ok_or_else(|| queue_exception(py, "Empty"))?;
        let none = py.None().into_bound(py);
        match Bound::new(py, slot).and_then(|slot| decode(&slot, self.allow)) {
            Ok(value) => Ok((number, mark, value, None)),
            Err(error) => Ok((number, mark, none, Some(error.into_value(py).into_any()))),
        }
    }

    fn put_nowait(&self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(py, obj, false, None)
    }

    /// Returns the next value. out: as for `Client.call`; a value that does not fit into it is the exception's `item`.
    #[pyo3(signature = (block=true, timeout=None, *, out=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        block: bool,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (slot, _) = self.take(py, limit(block, timeout)?)?.ok_or_else(|| queue_exception(py, "Empty"))?;
        let item = decode(&Bound::new(py, slot)?, self.allow)?;
        let Some(out) = out else { return Ok(item) };
        put_into(&item, out).or_else(|error| {
            error.value(py).setattr("item", item)?;
            Err(error)
        })
    }

    fn get_nowait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, false, None, None)
    }

    fn qsize(&self) -> usize {
        self.queue.len()
    }

    /// Raises OSError if the queue was used and then closed by this process, as multiprocessing's queue does.
    fn empty(&self) -> PyResult<bool> {
        if self.closed.load(Ordering::Relaxed) && self.used.load(Ordering::Relaxed) {
            return Err(PyOSError::new_err("this queue is closed"));
        }
        Ok(self.queue.is_empty())
    }

    fn full(&self) -> bool {
        let limit = self.queue.items_max();
        let stats = self.queue.stats();
        limit != 0 && stats.items + u64::from(stats.writing) >= limit
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Marks one taken item as processed; returns `False` if there is none.
    fn _task_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.open()?.task_done().map_err(|error| raise(py, error))
    }

    /// Waits until all items were taken and marked as processed.
    fn _join(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.open()?;
        self.sliced(py, None, |until| queue.join(until).map(|done| done.then_some(()))).map(drop)
    }

    /// Returns the identity of this process, for `lost`.
    fn _identity(&self, py: Python<'_>) -> PyResult<u32> {
        self.queue.identity().map_err(|error| raise(py, error))
    }

    /// Marks the call that this process has taken as answered.
    fn settle_call(&self, py: Python<'_>) -> PyResult<()> {
        self.queue.settle_call().map_err(|error| raise(py, error))
    }

    /// Returns the number of a call that a process took before it died without settling it; each such call is returned once.
    fn lost(&self, py: Python<'_>, identity: u32) -> PyResult<Option<u64>> {
        py.detach(|| self.queue.lost(identity)).map_err(|error| raise(py, error))
    }

    /// Counts of items and bytes in the queue.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.queue.stats();
        let dict = PyDict::new(py);
        dict.set_item("items", stats.items)?;
        dict.set_item("writing", stats.writing)?;
        dict.set_item("reading", stats.reading)?;
        dict.set_item("memory_bytes", stats.memory_bytes)?;
        dict.set_item("viewed_bytes", stats.viewed_bytes)?;
        dict.set_item("bytes_max", stats.budget_bytes)?;
        Ok(dict)
    }
}

/// Returns an own descriptor for the same queue.
#[expect(unsafe_code, reason = "takes a descriptor by its number, as Python gives it")]
fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyOSError::new_err("a queue's descriptor is no negative number"));
    }
    // SAFETY: the descriptor is only duplicated here; if the number is not open, that fails with EBADF.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?)
}
