// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python classes `Arena`, `Ref` and `Subscription`; `memlift/arena.py` gives them the rest of their interface.
//!
//! - **Flow** put: the value is encoded (`values::Encoded`) and copied once. get: the value's memory becomes a `Slot`, and
//!   `values::decode` returns the value, with read-only views of the memory.
//! - **Order** waits are divided into slices, and signals are handled between them.

use crate::client::{configuration, seconds};
use crate::convert::DETACH_BYTES;
use crate::errors::{new, on_wait, raise};
use crate::queue::sliced;
use crate::slot::Slot;
use crate::values::{Allow, Encoded, decode};
use memlift::ground::region::HugePages;
use memlift::ipc::arena::{self, Handle, Published, Reserved, Slow, WhenFull};
use memlift::ipc::{self, Address, ArenaOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Instant;

/// An arena, in the process that writes it. Use `memlift.Arena`.
#[pyclass(module = "memlift._native", frozen, subclass)]
pub struct Arena {
    arena: ipc::Arena,
    allow: Allow,
}

/// Makes Python's value of a received one; `writable`: pages of its arrays that are written become this process's own.
fn value_of<'py>(
    py: Python<'py>,
    view: ipc::Payload,
    writable: bool,
    pickle: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let slot = match writable {
        true => Slot::copied(view).map_err(|error| raise(py, error))?,
        false => Slot::received(view),
    };
    decode(&Bound::new(py, slot)?, Allow { pickle, arguments: false })
}

/// Returns the time at which a wait of so many seconds ends; `None` for never.
fn until(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    Ok(seconds(timeout)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

impl Arena {
    /// Encodes a value and copies it into the arena.
    fn write(&self, py: Python<'_>, value: &Bound<'_, PyAny>, until: Option<Instant>) -> PyResult<Reserved> {
        let encoded = Encoded::new(value, self.allow)?;
        let bytes = encoded.bytes();
        let reserved = sliced(py, until, |until| self.arena.reserve(bytes, until))?;
        let mut reserved = reserved.ok_or_else(|| self.full(py, bytes))?;
        let parts = encoded.parts();
        let mut copy = || parts.iter().try_for_each(|(at, part)| reserved.write(*at, part));
        let copied = if bytes < DETACH_BYTES as u64 { copy() } else { py.detach(copy) };
        copied.map_err(|error| raise(py, error))?;
        Ok(reserved)
    }

    fn full(&self, py: Python<'_>, bytes: u64) -> PyErr {
        let stats = self.arena.stats();
        let text = format!(
            "no room for {bytes} bytes: values take {} of {} bytes, {} of them only since readers view them; release values, give `reads`, \
             wait longer, or raise bytes_max",
            stats.used_bytes, stats.budget_bytes, stats.ending_bytes
        );
        new(py, "ArenaFullError", (text,))
    }
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (name=None, *, bytes_max=None, on_full="wait", values_max=16384, readers_max=1024, huge_pages=true,
        numa_node=None, lock=false, allowed_uids=None, allow_pickle=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        name: Option<&Bound<'_, PyAny>>,
        bytes_max: Option<u64>,
        on_full: &str,
        values_max: u32,
        readers_max: usize,
        huge_pages: bool,
        numa_node: Option<u32>,
        lock: bool,
        allowed_uids: Option<Vec<u32>>,
        allow_pickle: bool,
    ) -> PyResult<Arena> {
        let when_full = match on_full {
            "wait" => WhenFull::Wait,
            "evict" => WhenFull::Evict,
            other => {
                return Err(PyValueError::new_err(format!("on_full is 'wait' or 'evict', not {other:?}")));
            }
        };
        let huge_pages = if huge_pages { HugePages::Auto } else { HugePages::Never };
        let options = ArenaOptions {
            bytes_max,
            values_max,
            readers_max,
            when_full,
            huge_pages,
            numa_node,
            lock,
            allowed_uids: Some(allowed_uids.unwrap_or_default()),
            socket_dir: configuration()?.ipc.socket_dir.clone(),
        };
        let name = name.map(crate::options::address).transpose()?;
        let arena =
            py.detach(|| ipc::Arena::new(name.as_deref(), options)).map_err(|error| raise(py, error))?;
        Ok(Arena { arena, allow: Allow { pickle: allow_pickle, arguments: false } })
    }

    #[getter]
    fn address(&self) -> String {
        self.arena.address().to_string()
    }

    #[pyo3(signature = (value, *, reads=None, timeout=None))]
    fn put(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        reads: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<Ref> {
        if reads == Some(0) {
            return Err(PyValueError::new_err(
                "reads is 1 or more: a value that nobody takes need not be put",
            ));
        }
        let reserved = self.write(py, value, until(timeout)?)?;
        Ok(Ref { handle: reserved.publish(reads) })
    }

    #[pyo3(signature = (topic, value, *, slow="wait", timeout=None))]
    fn publish(
        &self,
        py: Python<'_>,
        topic: &str,
        value: &Bound<'_, PyAny>,
        slow: &str,
        timeout: Option<f64>,
    ) -> PyResult<Ref> {
        let slow = match slow {
            "wait" => Slow::Wait,
            "drop" => Slow::Drop,
            other => return Err(PyValueError::new_err(format!("slow is 'wait' or 'drop', not {other:?}"))),
        };
        let until = until(timeout)?;
        let mut reserved = Some(self.write(py, value, until)?);
        let published = sliced(py, until, |until| {
            let Some(room) = reserved.take() else { return Err(ipc::Error::Closed { what: "arena" }) };
            match self.arena.publish(topic, room, slow, until)? {
                Published::Done(handle) => Ok(Some(handle)),
                Published::Behind(room) => {
                    reserved = Some(room);
                    Ok(None)
                }
            }
        })?;
        let handle = published.ok_or_else(|| {
            let pid = self.arena.slow_subscriber(topic).unwrap_or(0);
            let text = format!(
                "process {pid} follows {topic:?} and has no room for one more value: wait longer, publish with slow='drop', or let it \
                 follow with a larger `every`"
            );
            new(py, "ArenaFullError", (text,))
        })?;
        Ok(Ref { handle })
    }

    fn release(&self, reference: &Ref) {
        self.arena.release(&reference.handle);
    }

    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.arena.trim());
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.arena.close());
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.arena.stats();
        let dict = PyDict::new(py);
        dict.set_item("values", stats.values)?;
        dict.set_item("readers", stats.readers)?;
        dict.set_item("used_bytes", stats.used_bytes)?;
        dict.set_item("ending_bytes", stats.ending_bytes)?;
        dict.set_item("memory_bytes", stats.memory_bytes)?;
        dict.set_item("bytes_max", stats.budget_bytes)?;
        dict.set_item("evicted", stats.evicted)?;
        Ok(dict)
    }
}

/// Names a value in an arena. Use `memlift.Ref`.
#[pyclass(module = "memlift", name = "Ref", frozen, eq)]
#[derive(Clone, PartialEq)]
pub struct Ref {
    handle: Handle,
}

#[pymethods]
impl Ref {
    #[new]
    fn new(py: Python<'_>, data: &[u8]) -> PyResult<Ref> {
        Ok(Ref { handle: Handle::from_bytes(data).map_err(|error| raise(py, error))? })
    }

    /// Returns the value: its arrays are views of the arena's memory, read-only unless `writable`. ExpiredError if it is gone.
    #[pyo3(signature = (*, timeout=10.0, writable=false, allow_pickle=false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        writable: bool,
        allow_pickle: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = match arena::get_now(&self.handle) {
            Ok(None) => {
                let opening = opening(timeout)?;
                py.detach(|| arena::get(&self.handle, opening))
            }
            Ok(Some(view)) => Ok(view),
            Err(error) => Err(error),
        };
        let view = view.map_err(|error| raise(py, error))?;
        value_of(py, view, writable, allow_pickle)
    }

    /// Gives the value up in every process: it cannot be taken any more, and its memory is free with the last view.
    #[pyo3(signature = (*, timeout=10.0))]
    fn release(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let opening = opening(timeout)?;
        py.detach(|| arena::release(&self.handle, opening)).map_err(|error| raise(py, error))
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.handle.bytes()
    }

    #[getter]
    fn address(&self) -> String {
        self.handle.address().to_string()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.handle.to_vec())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, pyo3::types::PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<Ref>(), (self.__bytes__(py),))
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.__bytes__(py).hash()
    }

    fn __repr__(&self) -> String {
        format!("<memlift.Ref of {} bytes in {}>", self.handle.bytes(), self.handle.address())
    }
}

/// Limits of opening a session with an arena. A signal's handler that raises ends it.
fn opening(timeout: Option<f64>) -> PyResult<ipc::Opening> {
    Ok(ipc::Opening { timeout: seconds(timeout)?, on_wait: Some(on_wait(None)) })
}

/// Follows a topic of an arena. Use `memlift.Subscription`.
#[pyclass(module = "memlift._native", frozen, subclass)]
pub struct Subscription {
    follower: arena::Subscription,
    writable: bool,
    allow_pickle: bool,
    /// Number of the value that came last, and values missed.
    last: Mutex<(u64, u64)>,
}

#[pymethods]
impl Subscription {
    #[new]
    #[pyo3(signature = (address, topic, *, every=None, timeout=10.0, writable=false, allow_pickle=false))]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        topic: &str,
        every: Option<u32>,
        timeout: Option<f64>,
        writable: bool,
        allow_pickle: bool,
    ) -> PyResult<Subscription> {
        let opening = opening(timeout)?;
        let (address, folder) = (crate::options::address(address)?, configuration()?.ipc.socket_dir.clone());
        let open = || {
            let address = Address::parse(&address, folder.as_deref())?;
            arena::Subscription::open(&address, topic, every, opening)
        };
        let follower = py.detach(open).map_err(|error| raise(py, error))?;
        Ok(Subscription { follower, writable, allow_pickle, last: Mutex::new((0, 0)) })
    }

    #[pyo3(signature = (*, timeout=None))]
    fn get<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let limit = seconds(timeout)?;
        let update = sliced(py, until(timeout)?, |until| self.follower.next(until))?;
        let Some(update) = update else {
            return Err(raise(py, ipc::Error::DeadlineExceeded { limit: limit.unwrap_or_default() }));
        };
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (update.number, update.missed);
        value_of(py, update.value, self.writable, self.allow_pickle)
    }

    #[getter]
    fn number(&self) -> u64 {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0
    }

    #[getter]
    fn missed(&self) -> u64 {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1
    }

    fn fileno(&self) -> i32 {
        self.follower.as_fd().as_raw_fd()
    }
}
