// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python classes `Client`, `Future` and `Pipeline`.
//!
//! - **Order** waits are divided into slices, and signals are handled between them, so that Ctrl-C works.
//! - **Flow** a call that is idempotent and whose server died ─▶ `again` opens another session ─▶ the call is made once more
//! - **Owner** a `Client` has the session that it began with, and the one that has replaced it, if any

use crate::convert::{Argument, Given, loan_layout, loan_to_python, payload_into};
use crate::errors::{on_wait, raise};
use crate::options::{CallArguments, explanation, state};
use crate::values::{Allow, joined, takes_several};
use memlift::ground::complete::WaitPolicy;
use memlift::ground::config::Config;
use memlift::ipc::{self, Batch, CallOptions, ClientOptions, Error, Health, Limit, Mode, PING, Payload};
use pyo3::exceptions::{PyBaseException, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait before signals are handled again.
pub const SLICE: Duration = Duration::from_millis(200);

/// Longest wait for the greeting of a server before signals are handled again.
const SLICE_MAX: Duration = Duration::from_secs(2);

/// Converts a time limit from Python, in seconds. Infinity is the longest there is.
pub fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds).or_else(|_| match seconds > 0.0 {
                true => Ok(Duration::MAX),
                false => Err(PyValueError::new_err(format!(
                    "a timeout of {seconds} s: give seconds, zero or more, or None for no limit"
                ))),
            })
        })
        .transpose()
}

/// Returns the wait policy of this name.
pub fn wait_policy(name: &str) -> PyResult<WaitPolicy> {
    match name {
        "auto" => Ok(WaitPolicy::AUTO),
        "block" => Ok(WaitPolicy::BLOCK),
        "spin" => Ok(WaitPolicy::SPIN),
        other => Err(PyValueError::new_err(format!("wait={other:?}: choose 'auto', 'block' or 'spin'"))),
    }
}

/// Returns the effective user of this process.
pub fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |own| std::os::unix::fs::MetadataExt::uid(&own))
}

/// Loads the configuration of this process, for options that the caller leaves open.
pub fn configuration() -> PyResult<Config> {
    Config::load().map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// A connection to a server.
///
/// Any number of threads may use it. Open it after a fork, not before.
#[pyclass(module = "memlift._native", frozen, subclass)]
pub struct Client {
    first: Link,
    /// True once `later` has the session.
    replaced: AtomicBool,
    closed: AtomicBool,
    later: Mutex<Option<Link>>,
    timeout: Option<Duration>,
    /// Longest wait for a server that is not there.
    server_wait: Option<Duration>,
    /// True if calls that do not say otherwise may be made twice.
    idempotent: bool,
    allow_pickle: bool,
}

/// A session, and what its server may send.
#[derive(Clone)]
pub struct Link {
    client: ipc::Client,
    allow: Allow,
}

impl Link {
    /// Unpickling can run code, so it is only allowed between processes of the same user.
    fn new(py: Python<'_>, client: ipc::Client, allow_pickle: bool) -> PyResult<Link> {
        let pickle = allow_pickle && client.peer_uid().map_err(|error| raise(py, error))? == own_uid();
        Ok(Link { client, allow: Allow { pickle, arguments: false } })
    }

    fn call(
        &self,
        py: Python<'_>,
        operation: &str,
        data: &Bound<'_, PyAny>,
        options: &CallOptions,
        limit: Limit,
    ) -> PyResult<Payload> {
        let mut job = self.start(py, operation, data, options, limit, Mode::Sync)?;
        wait_with_signals(py, |slice| job.wait_within(slice), None)
    }

    fn start(
        &self,
        py: Python<'_>,
        operation: &str,
        data: &Bound<'_, PyAny>,
        options: &CallOptions,
        limit: Limit,
        mode: Mode,
    ) -> PyResult<ipc::Job> {
        let argument = Argument::new(data, self.allow)?;
        let outgoing = argument.outgoing();
        let client = &self.client;
        until_there_is_room(py, limit, || {
            client.call_async_within(operation, outgoing.clone(), options, limit, mode, Some(SLICE))
        })
    }
}

/// Opens a session, and tries again until `wait` is over as long as there is no server; signals are handled between the tries.
fn until_there_is_a_server(
    py: Python<'_>,
    wait: Duration,
    open: impl Fn(Duration) -> Result<ipc::Client, Error> + Sync,
) -> PyResult<ipc::Client> {
    let begun = Instant::now();
    let mut slice = SLICE;
    loop {
        let left = wait.saturating_sub(begun.elapsed());
        match py.detach(|| open(left.min(slice))) {
            Ok(client) => return Ok(client),
            Err(Error::ServerUnavailable { source, .. }) if left > slice => {
                py.check_signals()?;
                // It is there, and slower than that.
                if source.kind() == std::io::ErrorKind::TimedOut {
                    slice = (slice * 2).min(SLICE_MAX);
                }
            }
            Err(error) => return Err(raise(py, error)),
        }
    }
}

/// Reads the argument `wait`: a number of seconds to wait for the server, or the name of a wait policy.
fn wait_argument(wait: Option<&Bound<'_, PyAny>>) -> PyResult<(Option<Duration>, Option<WaitPolicy>)> {
    match wait {
        None => Ok((None, None)),
        Some(wait) => match wait.extract::<f64>() {
            Ok(wait) => Ok((seconds(Some(wait))?, None)),
            Err(_) => Ok((None, Some(wait_policy(wait.extract()?)?))),
        },
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address, *, timeout=None, pool_bytes=None, response_pool_bytes=None, pool_bytes_max=None,
                        message_bytes_max=None, outstanding=None, wait=None, policy=None, idempotent=false, allow_pickle=false, ended=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        pool_bytes: Option<u64>,
        response_pool_bytes: Option<u64>,
        pool_bytes_max: Option<u64>,
        message_bytes_max: Option<u64>,
        outstanding: Option<usize>,
        wait: Option<&Bound<'_, PyAny>>,
        policy: Option<&str>,
        idempotent: bool,
        allow_pickle: bool,
        ended: Option<Py<PyAny>>,
    ) -> PyResult<Client> {
        let address = crate::options::address(address)?;
        let config = configuration()?;
        let mut options = ClientOptions::from_config(&config);
        options.request_pool_bytes = pool_bytes.unwrap_or(options.request_pool_bytes);
        options.response_pool_bytes = response_pool_bytes.unwrap_or(options.response_pool_bytes);
        options.pool_bytes_max = pool_bytes_max.unwrap_or(options.pool_bytes_max);
        options.message_bytes_max = message_bytes_max.unwrap_or(options.message_bytes_max);
        options.outstanding_max = outstanding.unwrap_or(options.outstanding_max);
        // Opening the session has the same time limit as a call.
        options.timeout = seconds(timeout)?.or(options.timeout);
        let timeout = options.timeout;
        options.on_wait = Some(on_wait(ended));
        let (server_wait, named) = wait_argument(wait)?;
        if let Some(policy) = policy.map(wait_policy).transpose()?.or(named) {
            options.wait = policy;
        }
        let client = match server_wait {
            None => {
                py.detach(|| ipc::Client::connect(&address, options)).map_err(|error| raise(py, error))?
            }
            Some(wait) => until_there_is_a_server(py, wait, |slice| {
                let options = ClientOptions { server_wait: Some(slice), ..options.clone() };
                ipc::Client::connect(&address, options)
            })?,
        };
        Ok(Client {
            first: Link::new(py, client, allow_pickle)?,
            replaced: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            later: Mutex::new(None),
            timeout,
            server_wait,
            idempotent,
            allow_pickle,
        })
    }

    /// Calls an operation and waits for its answer.
    ///
    /// bytes in, bytes out; arrays in, arrays out. An array in the answer is a read-only view of shared memory that stays valid
    /// as long as you keep it. Several arguments, also by name, arrive at the handler as they are given here; the names of the
    /// options below are taken.
    #[pyo3(signature = (operation, data=Given(None), *more, timeout=None, out=None, device=None, cache=None, defer=true,
                        crc=false, pack=false, idempotent=None, **named))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn call<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        data: Given<'py>,
        more: &Bound<'py, PyTuple>,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<&str>,
        cache: Option<&str>,
        defer: bool,
        crc: bool,
        pack: bool,
        idempotent: Option<bool>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = CallArguments { timeout, device, cache, defer, crc, pack }.options()?;
        let limit = Limit::new(options.timeout.or(self.timeout));
        let link = self.link();
        let data = joined(py, &link.client, data.0, more, named)?;
        let (payload, allow) = match link.call(py, operation, &data, &options, limit) {
            Ok(payload) => (payload, link.allow),
            Err(error) if idempotent.unwrap_or(self.idempotent) && is_gone(py, &error) => {
                let link = self.again(py, &link, limit, error)?;
                if !more.is_empty() || named.is_some() {
                    takes_several(py, &link.client)?;
                }
                (link.call(py, operation, &data, &options, limit)?, link.allow)
            }
            Err(error) => return Err(error),
        };
        payload_into(py, payload, out, allow)
    }

    /// Sends a call and returns a Future for its answer. You may change the data immediately afterwards.
    #[pyo3(signature = (operation, data=Given(None), *more, timeout=None, device=None, cache=None, defer=true, crc=false,
                        pack=false, **named))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn call_async(
        &self,
        py: Python<'_>,
        operation: &str,
        data: Given<'_>,
        more: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
        device: Option<&str>,
        cache: Option<&str>,
        defer: bool,
        crc: bool,
        pack: bool,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Future> {
        let options = CallArguments { timeout, device, cache, defer, crc, pack }.options()?;
        let limit = Limit::new(options.timeout.or(self.timeout));
        let link = self.link();
        let data = joined(py, &link.client, data.0, more, named)?;
        let job = link.start(py, operation, &data, &options, limit, Mode::Async)?;
        let (id, state) = (job.id(), Mutex::new(State::Waiting(job)));
        Ok(Future { id, allow: link.allow, state, failure: OnceLock::new() })
    }

    /// Starts a pipeline: up to `depth` calls without an answer, answers in any order. A sleeping server is woken once per
    /// `batch` calls; with None, the batch is chosen by measuring which one gives the most answers per second.
    #[pyo3(signature = (depth=8, *, batch=None))]
    fn pipeline(&self, depth: usize, batch: Option<usize>) -> Pipeline {
        let link = self.link();
        let pipeline = link.client.pipeline(depth).with_batch(batch.map_or(Batch::Auto, Batch::Of));
        let client = link.client.clone();
        Pipeline { pipeline: Mutex::new(Some(pipeline)), client, timeout: self.timeout, allow: link.allow }
    }

    /// Lends an array in shared memory. Fill it and send it without a copy, as often as you like.
    #[pyo3(signature = (shape, dtype))]
    fn loan<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (tensor, _) = loan_layout(shape, dtype)?;
        let limit = Limit::new(self.timeout);
        let link = self.link();
        let loan = until_there_is_room(py, limit, || {
            let patience = limit.left().map_or(SLICE, |left| left.min(SLICE));
            match link.client.loan_within(tensor.bytes(), Some(patience)) {
                Err(Error::DeadlineExceeded { .. }) => Err(Error::Busy { outstanding: 0 }),
                lent => lent,
            }
        })?;
        loan_to_python(py, loan, &tensor)
    }

    /// Returns how busy the server is, as it last wrote it to shared memory; the server is not asked.
    fn load<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let load = self.link().client.load();
        let dict = PyDict::new(py);
        dict.set_item("sessions", load.sessions)?;
        dict.set_item("handlers", load.handlers)?;
        dict.set_item("busy_handlers", load.busy_handlers)?;
        dict.set_item("queued", load.queued)?;
        Ok(dict)
    }

    /// Asks the server how it is, and returns its state ("ready", "not ready", "draining") and how busy it is. Any error means that it
    /// is not there, or not able to answer in time.
    #[pyo3(signature = (timeout=None))]
    fn ping<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyDict>> {
        let options = CallOptions::from(seconds(timeout)?.or(self.timeout));
        let link = self.link();
        link.client.needs_services("says if it is ready").map_err(|error| raise(py, error))?;
        let asked = link.start(
            py,
            PING,
            &py.None().into_bound(py),
            &options,
            Limit::new(options.timeout),
            Mode::Sync,
        );
        let mut job = asked?;
        _health(py, &wait_with_signals(py, |slice| job.wait_within(slice), None)?.to_vec())
    }

    /// Explains where calls of this kind and size run, with the measurements behind the decision.
    #[pyo3(signature = (operation, bytes, *, mode="sync", device=None, cache=None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        bytes: u64,
        mode: &str,
        device: Option<&str>,
        cache: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mode: Mode = mode.parse().map_err(PyValueError::new_err)?;
        let options = CallArguments { device, cache, ..CallArguments::default() }.options()?;
        explanation(py, &self.link().client.explain(operation, bytes, mode, options))
    }

    /// Counters of the session so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.link().client.stats();
        let dict = PyDict::new(py);
        dict.set_item("calls", stats.calls)?;
        dict.set_item("outstanding", stats.outstanding)?;
        dict.set_item("request_pool_bytes", stats.request_pool_bytes)?;
        dict.set_item("request_used_bytes", stats.request_used_bytes)?;
        dict.set_item("response_pool_bytes", stats.response_pool_bytes)?;
        dict.set_item("waits_ready", stats.waits_ready)?;
        dict.set_item("waits_spun", stats.waits_spun)?;
        dict.set_item("parks", stats.parks)?;
        dict.set_item("spin_ns", stats.spin_ns)?;
        dict.set_item("server_busy_handlers", stats.server_busy_handlers)?;
        dict.set_item("server_sessions", stats.server_sessions)?;
        Ok(dict)
    }

    /// Address of the server.
    #[getter]
    fn address(&self) -> String {
        self.first.client.address().to_string()
    }

    /// Time limit in seconds of calls that have no limit of their own.
    #[getter]
    fn timeout(&self) -> Option<f64> {
        self.timeout.map(|timeout| timeout.as_secs_f64())
    }

    /// Raises PeerTooOldError if the server's version has no several arguments, streams and pings. `what` is what a newer one does.
    fn _needs_services(&self, py: Python<'_>, what: &str) -> PyResult<()> {
        self.link().client.needs_services(what).map_err(|error| raise(py, error))
    }

    /// Returns a client of the session that calls use now, which no other session will replace.
    fn _pinned(&self) -> Client {
        Client {
            first: self.link().into_owned(),
            replaced: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            later: Mutex::new(None),
            timeout: self.timeout,
            server_wait: None,
            idempotent: false,
            allow_pickle: self.allow_pickle,
        }
    }

    /// Ends the session. Arrays that came from it stay valid.
    fn close(&self, py: Python<'_>) {
        // The order matters to `again`, which installs a session only before it sees this.
        self.closed.store(true, Ordering::SeqCst);
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner).clone();
        py.detach(|| {
            self.first.client.close();
            if let Some(later) = &later {
                later.client.close();
            }
        });
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<memlift.ipc.Client of {}>", self.first.client.address())
    }
}

impl Client {
    /// Returns the session, its time limit, and what it allows.
    pub fn parts(&self) -> (ipc::Client, Option<Duration>, Allow) {
        let link = self.link();
        (link.client.clone(), self.timeout, link.allow)
    }

    /// Returns the session that calls use now.
    fn link(&self) -> Cow<'_, Link> {
        match self.replaced.load(Ordering::Acquire) {
            false => Cow::Borrowed(&self.first),
            true => {
                let later = self.later.lock().unwrap_or_else(PoisonError::into_inner).clone();
                later.map_or(Cow::Borrowed(&self.first), Cow::Owned)
            }
        }
    }

    /// Opens a session in place of `gone`, or takes the one that another thread has opened meanwhile. Waits for the server as long as
    /// the call may take; without a limit of the call, as long as the client waits for a server.
    fn again(&self, py: Python<'_>, gone: &Link, limit: Limit, error: PyErr) -> PyResult<Link> {
        let wait = limit.left().or(self.server_wait).unwrap_or_default();
        let opened = match self.successor_of(gone) {
            Some(link) => return Ok(link),
            None => until_there_is_a_server(py, wait, |slice| gone.client.reconnect(slice)),
        };
        let made = opened.and_then(|client| Link::new(py, client, self.allow_pickle));
        let made = made.inspect_err(|failed| failed.set_cause(py, Some(error)))?;
        let (link, unused) = {
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            match later.as_ref().filter(|link| is_other(link, gone) && link.client.check().is_ok()) {
                Some(link) => (link.clone(), Some(made)),
                None => (made.clone(), later.replace(made)),
            }
        };
        self.replaced.store(true, Ordering::Release);
        py.detach(|| {
            drop(unused);
            if self.closed.load(Ordering::SeqCst) {
                link.client.close();
            }
        });
        Ok(link)
    }

    fn successor_of(&self, gone: &Link) -> Option<Link> {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner).clone();
        later.filter(|link| is_other(link, gone) && link.client.check().is_ok())
    }
}

/// Returns true if the two sessions differ.
fn is_other(link: &Link, gone: &Link) -> bool {
    !link.client.is_same(&gone.client)
}

/// Returns the answer to a ping, as `Client.ping` does.
#[pyfunction]
pub fn _health<'py>(py: Python<'py>, answer: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let health = Health::from_bytes(answer).map_err(|error| raise(py, error))?;
    let dict = PyDict::new(py);
    dict.set_item("state", health.state.name())?;
    dict.set_item("sessions", health.sessions)?;
    dict.set_item("busy_handlers", health.busy_handlers)?;
    dict.set_item("queued", health.queued)?;
    Ok(dict)
}

/// Returns true if the error says that the server is gone, or goes.
fn is_gone(py: Python<'_>, error: &PyErr) -> bool {
    ["PeerDiedError", "DrainingError"].iter().any(|class| crate::errors::is(py, error, class))
}

/// Tries to send until there is room; signals are handled between the tries.
fn until_there_is_room<T: Send>(
    py: Python<'_>,
    limit: Limit,
    mut send: impl FnMut() -> Result<T, Error> + Send,
) -> PyResult<T> {
    loop {
        match py.detach(&mut send) {
            Ok(sent) => return Ok(sent),
            Err(Error::Busy { .. }) if !limit.is_over() => py.check_signals()?,
            Err(error) => return Err(raise(py, error)),
        }
    }
}

/// Waits in slices. `wait` gets the length of a slice, and returns `None` if nothing came in it.
fn wait_with_signals<T: Send>(
    py: Python<'_>,
    mut wait: impl FnMut(Option<Duration>) -> Result<Option<T>, Error> + Send,
    patience: Option<Duration>,
) -> PyResult<T> {
    let until = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE));
        match py.detach(|| wait(Some(left))) {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {
                py.check_signals()?;
                if until.is_some_and(|until| Instant::now() >= until) {
                    let limit = patience.unwrap_or_default();
                    return Err(raise(py, Error::DeadlineExceeded { limit }));
                }
            }
            Err(error) => return Err(raise(py, error)),
        }
    }
}

enum State {
    Waiting(ipc::Job),
    Done(Payload),
    /// The reason is in [`Future::failure`].
    Failed,
    Busy,
}

/// An answer that has not been fetched yet.
#[pyclass(module = "memlift._native", frozen)]
pub struct Future {
    id: u64,
    allow: Allow,
    state: Mutex<State>,
    /// Exception that the call ended with. Set once and with the interpreter, so that the collector can read it while a thread holds `state`.
    failure: OnceLock<Py<PyBaseException>>,
}

impl Future {
    /// Returns the exception that the call ended with.
    fn failed(&self, py: Python<'_>) -> PyErr {
        let failure = self.failure.get().expect("set before the state says so");
        PyErr::from_value(failure.bind(py).clone().into_any())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Future {
    /// Number of the call within its session.
    #[getter]
    fn job(&self) -> u64 {
        self.id
    }

    /// State of the call, as the server says: {"state": "queued", "ahead": n}, {"state": "taken", "done": d, "total": t} or
    /// {"state": "answered"}.
    #[pyo3(signature = (timeout=None))]
    fn state<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyDict>> {
        let ask = |slice| match &*self.lock() {
            State::Waiting(job) => match job.state(slice) {
                Err(Error::DeadlineExceeded { .. }) => Ok(None),
                state => state.map(Some),
            },
            State::Busy => Err(Error::Busy { outstanding: 1 }),
            State::Done(_) | State::Failed => Ok(Some(ipc::JobState::Answered)),
        };
        let asked = wait_with_signals(py, ask, seconds(timeout)?)?;
        state(py, asked)
    }

    /// Returns true if the answer has arrived.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| match &*self.lock() {
            State::Waiting(job) => job.is_done(),
            State::Busy => false,
            State::Done(_) | State::Failed => true,
        })
    }

    /// Waits for the answer. Raises DeadlineExceededError after `timeout` seconds without one; you may then call it again. out: as
    /// for `call`.
    #[pyo3(signature = (timeout=None, *, out=None))]
    fn result<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let patience = seconds(timeout)?;
        let taken = std::mem::replace(&mut *self.lock(), State::Busy);
        let mut job = match taken {
            State::Waiting(job) => job,
            State::Busy => return Err(PyRuntimeError::new_err("another thread is waiting for this future")),
            done => {
                let answer = match &done {
                    State::Done(payload) => Ok(payload.clone()),
                    State::Failed => Err(self.failed(py)),
                    State::Waiting(_) | State::Busy => unreachable!("matched above"),
                };
                *self.lock() = done;
                return payload_into(py, answer?, out, self.allow);
            }
        };
        let waited = wait_with_signals(py, |slice| job.wait_within(slice), patience);
        let still_coming = waited.is_err() && !job.is_taken();
        if let Err(error) = &waited
            && !still_coming
        {
            let _ = self.failure.set(error.clone_ref(py).into_value(py));
        }
        *self.lock() = match &waited {
            _ if still_coming => State::Waiting(job),
            Ok(payload) => State::Done(payload.clone()),
            Err(_) => State::Failed,
        };
        payload_into(py, waited?, out, self.allow)
    }

    /// Returns the exception that the call ended with, or None. Waits like `result`.
    #[pyo3(signature = (timeout=None))]
    fn exception<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        match self.result(py, timeout, None) {
            Ok(_) => Ok(py.None().into_bound(py)),
            Err(error) if matches!(&*self.lock(), State::Failed) => {
                Ok(error.into_value(py).into_bound(py).into_any())
            }
            Err(error) => Err(error),
        }
    }

    /// Shows the collector the way back from the exception's traceback to this object.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.failure.get().map_or(Ok(()), |failure| visit.call(failure))
    }

    fn __repr__(&self) -> String {
        let state = match &*self.lock() {
            State::Waiting(_) | State::Busy => "pending",
            State::Done(_) => "done",
            State::Failed => "failed",
        };
        format!("<memlift.ipc.Future of job {}, {state}>", self.id)
    }
}

/// Calls that are sent now and collected later.
#[pyclass(module = "memlift._native", frozen)]
pub struct Pipeline {
    pipeline: Mutex<Option<ipc::Pipeline>>,
    client: ipc::Client,
    timeout: Option<Duration>,
    allow: Allow,
}

impl Pipeline {
    fn with<T>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut ipc::Pipeline) -> Result<T, Error> + Send,
    ) -> PyResult<T>
    where
        T: Send,
    {
        let ran = py.detach(|| {
            let mut pipeline = self.pipeline.lock().unwrap_or_else(PoisonError::into_inner);
            match pipeline.as_mut() {
                Some(pipeline) => run(pipeline),
                None => Err(Error::Closed { what: "pipeline" }),
            }
        });
        ran.map_err(|error| raise(py, error))
    }
}

#[pymethods]
impl Pipeline {
    /// Sends a call and returns its job id. Waits if `depth` calls have no answer yet.
    #[pyo3(signature = (operation, data=Given(None), *more, timeout=None, device=None, cache=None, defer=true, crc=false,
                        pack=false, **named))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn submit(
        &self,
        py: Python<'_>,
        operation: &str,
        data: Given<'_>,
        more: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
        device: Option<&str>,
        cache: Option<&str>,
        defer: bool,
        crc: bool,
        pack: bool,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let options = CallArguments { timeout, device, cache, defer, crc, pack }.options()?;
        let limit = Limit::new(options.timeout.or(self.timeout));
        let data = joined(py, &self.client, data.0, more, named)?;
        let argument = Argument::new(&data, self.allow)?;
        let outgoing = argument.outgoing();
        until_there_is_room(py, limit, || {
            let mut pipeline = self.pipeline.lock().unwrap_or_else(PoisonError::into_inner);
            match pipeline.as_mut() {
                Some(pipeline) => {
                    pipeline.submit_within(operation, outgoing.clone(), &options, limit, Some(SLICE))
                }
                None => Err(Error::Closed { what: "pipeline" }),
            }
        })
    }

    /// Makes the server notice all calls now, including those of an incomplete batch.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |pipeline| {
            pipeline.flush();
            Ok(())
        })
    }

    /// Returns the next answer as (job, value), in the order of arrival, or None if there are no more. Raises the exception of
    /// a failed call, with the job id as its `job`. out: as for `call`.
    #[pyo3(signature = (timeout=None, *, out=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        let patience = seconds(timeout)?.or(self.timeout);
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            let left =
                until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE));
            // The inner result is that of the call; the outer one is that of the session or of this slice.
            let step = self.with(py, |pipeline| match pipeline.next(Some(left)) {
                Err(Error::DeadlineExceeded { .. }) => Ok(None),
                other => other.map(Some),
            })?;
            match step {
                None => {
                    py.check_signals()?;
                    if until.is_some_and(|until| Instant::now() >= until) {
                        let limit = patience.unwrap_or_default();
                        return Err(raise(py, Error::DeadlineExceeded { limit }));
                    }
                }
                Some(None) => return Ok(None),
                Some(Some((job, Ok(payload)))) => {
                    return Ok(Some((job, payload_into(py, payload, out, self.allow)?)));
                }
                Some(Some((job, Err(error)))) => {
                    let error = raise(py, error);
                    error.value(py).setattr("job", job)?;
                    return Err(error);
                }
            }
        }
    }

    /// Iterates over all remaining answers, as (job, value).
    #[pyo3(signature = ())]
    fn results(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        self.next(py, None, None)
    }

    /// Number of calls without an answer.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |pipeline| Ok(pipeline.outstanding()))
    }

    /// Abandons all calls without an answer.
    fn close(&self, py: Python<'_>) {
        let old = py.detach(|| self.pipeline.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(old);
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}
