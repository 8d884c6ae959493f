// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python class of a client of memory nodes.
//!
//! - **Flow** [`WalkClient::walk`] and [`WalkClient::walk_many`] wait for their answers. [`WalkClient::submit`], [`WalkClient::turn`] and
//!   [`WalkClient::arm`] are for event loops, which watch one descriptor.
//! - **Order** waits release the GIL and handle signals several times a second: an exception of a signal handler ends the wait.
//! - **Owner** the client is behind one lock. It is taken without the GIL, so that a thread that waits for it does not block the others.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memlift::ground::region::process_mark;
use memlift::traverse::client::{Answer, Client, ClientError, Config, Reads, Request, Routing, Ticket};
use memlift::traverse::map::Source;
use memlift::traverse::structures::{Heap, Scratch, Walk};
use memlift::traverse::wire::{Keys, Stamp, Status};
use memlift_kind::apply;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::block::Block;
use super::program::WalkProgram;
use crate::errors::{new, on_wait, raised, walk_error};

/// Kinds of changes, under their Python names.
mod memlift_kind {
    use memlift::spec::formats::walk::ApplyKind;

    pub fn apply(swap: bool) -> ApplyKind {
        if swap { ApplyKind::CompareSwap } else { ApplyKind::FetchAdd }
    }
}

/// Result of a walk: status (0 done, 1 missing, 2 applied, 3 differs), value, scratchpad, result, iterations, visits, the nodes' clock
/// when it began.
pub type WalkResult = (u8, u64, Block, Block, u32, u32, u32);

/// A walk as Python describes it: program, address, scratchpad.
pub type Wanted<'py> = (PyRef<'py, WalkProgram>, u64, Vec<u8>);

/// The state behind the client's lock.
pub struct Open {
    pub client: Client,
    /// Tickets that an event loop waits for.
    watched: HashSet<Ticket>,
}

/// A client of memory nodes.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkClient {
    open: Mutex<Option<Open>>,
    process: u64,
    nodes: Vec<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the exception for an error: if a handler of a signal ended the wait, what the handler raised.
fn failed(py: Python<'_>, error: ClientError) -> PyErr {
    let raised = if matches!(error, ClientError::Interrupted) { raised() } else { None };
    raised.unwrap_or_else(|| walk_error(py, error))
}

fn walk_result(answer: Answer) -> Result<WalkResult, ClientError> {
    let status = match answer.status {
        Status::Done => 0,
        Status::Missing => 1,
        Status::Applied => 2,
        Status::Differs => 3,
        status => {
            return Err(ClientError::Rejected { status, reason: "no answer to a walk".to_owned() });
        }
    };
    let Answer { value, body, result, iterations, visits, since, .. } = answer;
    Ok((status, value, Block::new(body), Block::new(result), iterations, visits, since))
}

fn walk_of((program, start, scratch): Wanted<'_>) -> Walk {
    Walk { program: program.program(), start, scratch: Scratch(scratch) }
}

impl WalkClient {
    /// Runs a function with the client, without the GIL.
    pub fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Open) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        // Checked before the lock is taken: in a forked child a thread that only the parent has may hold the lock.
        if self.process != process_mark() {
            return Err(walk_error(py, ClientError::Forked));
        }
        let ran = py.detach(|| locked(&self.open).as_mut().map(run));
        match ran {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(failed(py, error)),
            None => Err(new(py, "ClosedError", ("the client was closed: connect again",))),
        }
    }
}

#[pymethods]
impl WalkClient {
    #[new]
    #[pyo3(signature = (nodes, *, map=None, tenant=0, key=None, window=128, deadline=10.0, iterations=1 << 22, hops=64,
                        read="leased", stale_ok=false, bounce=false, ended=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        nodes: Vec<String>,
        map: Option<&str>,
        tenant: u32,
        key: Option<&[u8]>,
        window: usize,
        deadline: f64,
        iterations: u32,
        hops: u8,
        read: &str,
        stale_ok: bool,
        bounce: bool,
        ended: Option<Py<PyAny>>,
    ) -> PyResult<WalkClient> {
        let wrong = |text: String| new(py, "BadArgumentError", (text,));
        let keys = match key {
            None => Keys::none(),
            Some(key) => match <[u8; 32]>::try_from(key) {
                Ok(key) => Keys::none().with(tenant, key),
                Err(_) => return Err(wrong(format!("a key of {} bytes: it has 32", key.len()))),
            },
        };
        let deadline = Duration::try_from_secs_f64(deadline)
            .ok()
            .filter(|deadline| *deadline < memlift::traverse::structures::pool::GRACE)
            .ok_or_else(|| wrong(format!("a deadline of {deadline} s: more than 0 and less than 30")))?;
        if !(1..=512).contains(&window) {
            return Err(wrong(format!("window={window}: 1 to 512")));
        }
        let reads = match read {
            "leased" => Reads::Leased,
            "confirmed" => Reads::Confirmed,
            _ => return Err(wrong(format!("read={read:?}: 'leased' or 'confirmed'"))),
        };
        let routing = if bounce { Routing::Bounce } else { Routing::Peer };
        let config = Config {
            tenant,
            keys,
            window,
            deadline,
            iterations,
            hops,
            routing,
            reads,
            stale_ok,
            on_wait: Some(on_wait(ended)),
            ..Config::default()
        };
        let source = map.map(Source::parse).transpose().map_err(|error| wrong(error.to_string()))?;
        let connect = || -> Result<Client, ClientError> {
            match source {
                Some(source) => Client::of_map(&source.connect()?.read()?, config),
                None => {
                    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                    Client::reach(&nodes, config)
                }
            }
        };
        let client = py.detach(connect).map_err(|error| failed(py, error))?;
        let open = Mutex::new(Some(Open { client, watched: HashSet::new() }));
        Ok(WalkClient { open, process: process_mark(), nodes })
    }

    /// Makes a walk and waits for its answer.
    #[pyo3(signature = (program, start, scratch))]
    fn walk(
        &self,
        py: Python<'_>,
        program: PyRef<'_, WalkProgram>,
        start: u64,
        scratch: Vec<u8>,
    ) -> PyResult<WalkResult> {
        let walk = walk_of((program, start, scratch));
        self.with(py, |open| walk_result(open.client.call(Request::walk(&walk))?))
    }

    /// Makes several walks at the same time; for a failed one, the list has an exception.
    fn walk_many<'py>(&self, py: Python<'py>, walks: Vec<Wanted<'py>>) -> PyResult<Bound<'py, PyList>> {
        let walks: Vec<Walk> = walks.into_iter().map(walk_of).collect();
        let answers = self.with(py, |open| {
            let answers = open.client.call_many(walks.iter().map(Request::walk));
            // The wait was interrupted, so the other answers are dropped.
            if answers.iter().any(|answer| matches!(answer, Err(ClientError::Interrupted))) {
                return Err(ClientError::Interrupted);
            }
            Ok(answers.into_iter().map(|answer| answer.and_then(walk_result)).collect::<Vec<_>>())
        })?;
        let list = PyList::empty(py);
        for answer in answers {
            match answer {
                Ok(result) => list.append(result)?,
                Err(error) => list.append(walk_error(py, error).into_value(py))?,
            }
        }
        Ok(list)
    }

    /// Sends a walk and returns its ticket. Waits if there is no room. If `watched`, its answer is returned by `turn`.
    fn submit(
        &self,
        py: Python<'_>,
        program: PyRef<'_, WalkProgram>,
        start: u64,
        scratch: Vec<u8>,
        watched: bool,
    ) -> PyResult<u64> {
        let walk = walk_of((program, start, scratch));
        self.with(py, |open| {
            let ticket = open.client.submit(Request::walk(&walk))?;
            if watched {
                open.watched.insert(ticket);
            }
            Ok(ticket.number())
        })
    }

    /// Returns true if `submit` would not wait.
    fn has_room(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |open| Ok(open.client.has_room()))
    }

    /// Waits for the answer of a ticket.
    fn result(&self, py: Python<'_>, ticket: u64) -> PyResult<WalkResult> {
        self.with(py, |open| walk_result(open.client.result(Ticket::numbered(ticket))?))
    }

    /// Drops the answer of a ticket that will not be waited for.
    fn abandon(&self, py: Python<'_>, ticket: u64) -> PyResult<()> {
        self.with(py, |open| {
            let ticket = Ticket::numbered(ticket);
            open.watched.remove(&ticket);
            open.client.abandon(ticket);
            Ok(())
        })
    }

    /// Returns the descriptor that becomes readable if `turn` has returned False as its second result.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.with(py, |open| Ok(open.client.descriptor()?.as_raw_fd()))
    }

    /// Makes one turn of an event loop. Returns the answers that have arrived, as (ticket, answer or exception); True if the
    /// next turn should follow without waiting for the descriptor; and the seconds after which the next turn is due at the
    /// latest (None: no walk is open).
    fn turn<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, bool, Option<f64>)> {
        let (ended, again, due) = self.with(py, |open| {
            open.client.disarm();
            let mut again = true;
            // Repeats while answers arrive, but a limited number of times, because the loop has other work, too.
            for _ in 0..16 {
                while open.client.poll()? > 0 {}
                if !open.client.arm()? {
                    again = false;
                    break;
                }
                open.client.disarm();
            }
            let mut ended = Vec::new();
            let client = &mut open.client;
            open.watched.retain(|&ticket| match client.take(ticket) {
                Some(answer) => {
                    ended.push((ticket.number(), answer.and_then(walk_result)));
                    false
                }
                None => true,
            });
            let due =
                open.client.due().map(|due| due.saturating_duration_since(Instant::now()).as_secs_f64());
            Ok((ended, again, due))
        })?;
        let list = PyList::empty(py);
        for (ticket, answer) in ended {
            match answer {
                Ok(result) => list.append((ticket, result))?,
                Err(error) => list.append((ticket, walk_error(py, error).into_value(py)))?,
            }
        }
        Ok((list, again, due))
    }

    fn read<'py>(&self, py: Python<'py>, address: u64, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = self.with(py, |open| open.client.read(address, bytes))?;
        Ok(PyBytes::new(py, &read))
    }

    fn write(&self, py: Python<'_>, address: u64, data: &[u8]) -> PyResult<()> {
        self.with(py, |open| open.client.write(address, data))
    }

    /// Allocates memory of a node; with `None`, of the nodes in turn.
    #[pyo3(signature = (bytes, node=None))]
    fn allocate(&self, py: Python<'_>, bytes: u64, node: Option<usize>) -> PyResult<u64> {
        self.with(py, |open| match node {
            None => open.client.allocate(bytes),
            Some(node) => Ok(open.client.call(Request::allocate(node % open.client.nodes(), bytes))?.address),
        })
    }

    fn free(&self, py: Python<'_>, address: u64, bytes: u64) -> PyResult<()> {
        self.with(py, |open| open.client.free(address, bytes))
    }

    /// Returns (True if it was swapped, the value before).
    fn compare_swap(&self, py: Python<'_>, address: u64, expected: u64, fresh: u64) -> PyResult<(bool, u64)> {
        self.with(py, |open| {
            let answer = open.client.call(Request::apply(apply(true), address, expected, fresh))?;
            Ok((answer.status == Status::Applied, answer.value))
        })
    }

    /// Returns the memory that an address belongs to; 0: not known.
    fn memory_of(&self, py: Python<'_>, address: u64) -> PyResult<u64> {
        self.with(py, |open| Ok(open.client.memory_of(address)))
    }

    /// Raises an exception if the address belongs to another memory than `memory`.
    fn check_memory(&self, py: Python<'_>, address: u64, memory: u64) -> PyResult<()> {
        self.with(py, |open| open.client.check_memory(address, memory))
    }

    /// Returns the newest stamp of the node that has an address, for a handle: (start of the node, changes).
    fn stamp_of(&self, py: Python<'_>, address: u64) -> PyResult<(u64, u64)> {
        self.with(py, |open| {
            let stamp = open.client.stamp_of(address);
            Ok((stamp.run, stamp.changes))
        })
    }

    /// Raises an exception if the node that has the address does not know what it had acknowledged.
    fn check_stamp(&self, py: Python<'_>, address: u64, stamp: (u64, u64)) -> PyResult<()> {
        let stamp = Stamp { run: stamp.0, changes: stamp.1 };
        self.with(py, |open| open.client.check_stamp(address, stamp))
    }

    /// Adds `addend` to the number at `address`; returns the number before.
    fn fetch_add(&self, py: Python<'_>, address: u64, addend: u64) -> PyResult<u64> {
        self.with(py, |open| Ok(open.client.call(Request::apply(apply(false), address, addend, 0))?.value))
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counts, trip, under_way, epoch, nodes) = self.with(py, |open| {
            let client = &open.client;
            Ok((client.counts(), client.round_trip(), client.under_way(), client.epoch(), client.nodes()))
        })?;
        let dict = PyDict::new(py);
        dict.set_item("sent", counts.sent)?;
        dict.set_item("received", counts.received)?;
        dict.set_item("again", counts.again)?;
        dict.set_item("from_backups", counts.from_backups)?;
        dict.set_item("continued", counts.continued)?;
        dict.set_item("uploads", counts.uploads)?;
        dict.set_item("stray", counts.stray)?;
        dict.set_item("under_way", under_way)?;
        dict.set_item("epoch", epoch)?;
        dict.set_item("nodes", nodes)?;
        dict.set_item("round_trip_seconds", trip.map(|trip| trip.as_secs_f64()))?;
        Ok(dict)
    }

    #[getter]
    fn nodes(&self) -> Vec<String> {
        self.nodes.clone()
    }

    /// Closes the client; open walks are abandoned.
    fn close(&self, py: Python<'_>) {
        if self.process == process_mark() {
            py.detach(|| locked(&self.open).take());
        }
    }
}
