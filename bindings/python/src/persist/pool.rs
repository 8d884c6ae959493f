// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool for Python: opening, transactions, names.
//!
//! - **Flow** outside of a transaction, each call is a transaction of its own, without the GIL. Inside, calls use the thread's open
//!   transaction, stored in [`OPEN`]; `begin` and `end` may be nested, and only the outermost pair begins and ends a transaction.
//! - **Order** if an operation fails in the middle, its transaction can only be rolled back.
//! - **Owner** an open transaction belongs to its thread, and is rolled back when the thread ends. The pool's generation is increased
//!   after something was removed or rolled back, before locks are released, so that cached offsets are looked up again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift::persist::layout::SLAB_BYTES;
use memlift::persist::raw::{Handle, Looking, OpenTx, PoolRef, Table, root, root_or};
use memlift::persist::{
    BackupOptions, Domain, Durability, Error, Mechanism, Options, Pool, Survives, Tx, TxOptions, View,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::array::{self, Shape};
use super::dict::PersistDict;
use super::pins::Pins;
use super::replica::{Place, Replica};
use crate::errors::{new, open_error, persist_error};

/// Reason why a call was refused.
pub enum Trouble {
    Pool(Error),
    Gone(String),
    Argument(String),
    Closed(String),
    Forked(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Pool(error)
    }
}

impl Trouble {
    pub fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Trouble::Pool(error) => persist_error(py, error),
            Trouble::Gone(text) => new(py, "GoneError", (text,)),
            Trouble::Argument(text) => new(py, "BadArgumentError", (text,)),
            Trouble::Closed(text) => new(py, "ClosedError", (text,)),
            Trouble::Forked(text) => new(py, "ForkedError", (text,)),
        }
    }
}

/// Kind of object that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Dict,
    Array,
}

/// An entry of the table of names.
pub struct Named {
    pub kind: Kind,
    pub offset: u64,
    /// Shape of an array; `None` for a dict.
    pub shape: Option<Shape>,
}

impl Named {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![if self.kind == Kind::Dict { 1 } else { 2 }];
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        if let Some(shape) = &self.shape {
            shape.encode(&mut bytes);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Named> {
        let (head, rest) = bytes.split_at_checked(9)?;
        let offset = u64::from_le_bytes(head[1..].try_into().ok()?);
        match head[0] {
            1 if rest.is_empty() => Some(Named { kind: Kind::Dict, offset, shape: None }),
            2 => Some(Named { kind: Kind::Array, offset, shape: Some(Shape::decode(rest)?) }),
            _ => None,
        }
    }
}

/// A transaction that writes.
pub struct Writing<'a, 'p> {
    pub tx: &'a mut Tx<'p>,
    pub inner: &'a Inner,
    /// Arrays that this transaction has made or changed.
    pub fresh: &'a mut HashSet<u64>,
}

/// State that all Python objects of a pool share.
pub struct Inner {
    /// Dropped before the pool.
    replica: Option<Replica>,
    handle: Handle,
    number: u64,
    path: PathBuf,
    process: u32,
    durability: Durability,
    generation: AtomicU64,
    pub pins: Pins,
}

struct Open {
    tx: OpenTx,
    inner: Arc<Inner>,
    depth: u32,
    doomed: Option<String>,
    fresh: HashSet<u64>,
}

thread_local! {
    /// Open transactions of this thread, by pool.
    static OPEN: RefCell<HashMap<u64, Open>> = RefCell::default();
}

impl Inner {
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn forget_places(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Refuses a durability that would wait for a replica that is not there.
    fn check(&self, durability: Durability) -> Result<(), Trouble> {
        if durability == Durability::Replicated && self.replica.is_none() {
            let text = "durability \"replicated\": the pool has no replica; open it with replicate=URL";
            return Err(Trouble::Argument(text.to_owned()));
        }
        Ok(())
    }

    fn closed(&self) -> Trouble {
        if self.process != std::process::id() {
            return Trouble::Forked(format!(
                "the pool {} belongs to the process that this one was forked from: a pool has one owner; close it there and open \
                 it here",
                self.path.display()
            ));
        }
        Trouble::Closed(format!("the pool {} is closed: open it again", self.path.display()))
    }

    fn trouble(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Pool(Error::Argument { what }) if self.process != std::process::id() => {
                Trouble::Forked(what)
            }
            other => other,
        }
    }

    /// Runs a function on the pool, without the GIL.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&PoolRef) -> Result<R, Trouble> + Send,
    ) -> PyResult<R> {
        py.detach(|| self.handle.with(work).unwrap_or_else(|| Err(self.closed())))
            .map_err(|trouble| self.trouble(trouble).raise(py))
    }

    /// Reads objects: in the thread's open transaction, or under a read lock.
    pub fn read<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Looking<'_>) -> Result<R, Trouble> + Send,
    ) -> PyResult<R> {
        let mut work = Some(work);
        let inside = OPEN.with_borrow(|open| {
            let open = open.get(&self.number)?;
            work.take().map(|work| work(&open.tx.looking()))
        });
        match (inside, work) {
            (Some(result), _) => result.map_err(|trouble| trouble.raise(py)),
            (None, Some(work)) => self.with(py, |pool| {
                let look = pool.read()?;
                let seen = work(&Looking::Read(&look));
                look.check()?;
                seen
            }),
            (None, None) => Err(PyValueError::new_err("a call did nothing")),
        }
    }

    /// Changes objects: in the thread's open transaction, or in a transaction of its own.
    pub fn write<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Writing<'_, '_>) -> Result<R, Trouble> + Send,
    ) -> PyResult<R> {
        let mut work = Some(work);
        let inside = OPEN.with_borrow_mut(|open| {
            let Open { tx, doomed, fresh, .. } = open.get_mut(&self.number)?;
            let work = work.take()?;
            let result = tx.with(|tx| work(&mut Writing { tx, inner: self, fresh }));
            if let Err(Trouble::Pool(error)) = &result {
                doomed.get_or_insert_with(|| error.to_string());
            }
            Some(result)
        });
        match (inside, work) {
            (Some(result), _) => result.map_err(|trouble| trouble.raise(py)),
            (None, Some(work)) => self.with(py, |pool| {
                self.free_waiting(pool)?;
                let options = TxOptions { durability: self.durability, sections: None };
                let result = pool.tx_with(options, |tx| {
                    work(&mut Writing { tx, inner: self, fresh: &mut HashSet::new() })
                });
                if result.is_err() {
                    self.forget_places();
                }
                result
            }),
            (None, None) => Err(PyValueError::new_err("a call did nothing")),
        }
    }

    /// Returns true if this thread's open transaction made or changed this array.
    pub fn is_fresh(&self, object: u64) -> bool {
        OPEN.with_borrow(|open| open.get(&self.number).is_some_and(|open| open.fresh.contains(&object)))
    }

    /// Returns a reference to the pool for a view: that of the open transaction, or of the handle.
    pub fn share(&self) -> Option<PoolRef> {
        let inside = OPEN.with_borrow(|open| open.get(&self.number).map(|open| open.tx.pool()));
        inside.or_else(|| self.handle.with(PoolRef::clone))
    }

    /// Frees the arrays in limbo that have no view any more.
    fn free_waiting(&self, pool: &Pool) -> Result<(), Error> {
        let waiting = self.pins.waiting();
        if waiting.is_empty() {
            return Ok(());
        }
        pool.tx(|tx| {
            let limbo = root(tx)?.limbo;
            for object in &waiting {
                if limbo != 0
                    && !self.pins.contains(*object)
                    && Table::at(limbo).remove(tx, &object.to_le_bytes())?
                {
                    tx.free_raw(*object, array::TYPE)?;
                }
            }
            Ok(())
        })
    }

    /// Finds the object of a name; returns `None` if the pool has no such name.
    pub fn find<V: View>(view: &V, name: &str) -> Result<Option<Named>, Trouble> {
        let names = root(view)?.names;
        if names == 0 {
            return Ok(None);
        }
        let Some(bytes) = Table::at(names).get(view, name.as_bytes())? else { return Ok(None) };
        let named = Named::decode(bytes).ok_or_else(|| {
            Trouble::Argument(format!(
                "the name {name:?} stands for something that this release does not know: use a newer one"
            ))
        })?;
        Ok(Some(named))
    }
}

impl Writing<'_, '_> {
    /// Sets the object of a name.
    pub fn name(&mut self, name: &str, named: &Named) -> Result<(), Trouble> {
        let at = root_or(self.tx)?;
        let mut names = self.tx.get(at)?.names;
        if names == 0 {
            names = Table::create(self.tx)?.offset();
            self.tx.get_mut(at)?.names = names;
        }
        Table::at(names).put(self.tx, name.as_bytes(), &named.encode())?;
        Ok(())
    }

    /// Frees an array: now, or, if it has views, after the last of them is gone.
    pub fn retire(&mut self, object: u64) -> Result<(), Trouble> {
        if object == 0 {
            return Ok(());
        }
        if !self.inner.pins.contains(object) {
            return Ok(self.tx.free_raw(object, array::TYPE)?);
        }
        let at = root_or(self.tx)?;
        let mut limbo = self.tx.get(at)?.limbo;
        if limbo == 0 {
            limbo = Table::create(self.tx)?.offset();
            self.tx.get_mut(at)?.limbo = limbo;
        }
        Table::at(limbo).put(self.tx, &object.to_le_bytes(), b"")?;
        Ok(())
    }
}

/// Empties limbo when the pool is opened: there are no views yet.
fn empty_limbo(pool: &Pool) -> Result<(), Error> {
    loop {
        let left = pool.tx(|tx| {
            let limbo = root(tx)?.limbo;
            if limbo == 0 {
                return Ok(0);
            }
            let limbo = Table::at(limbo);
            for (key, _) in limbo.batch(tx, None, 100, usize::MAX)?.unwrap_or_default() {
                let object = u64::from_le_bytes(key[..].try_into().unwrap_or_default());
                // If the object is damaged, its memory is lost, but the pool can be used.
                let _ = tx.free_raw(object, array::TYPE);
                limbo.remove(tx, &key)?;
            }
            limbo.len(tx)
        });
        match left {
            Ok(0) | Err(Error::Layout { .. }) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

fn durability(name: &str) -> PyResult<Durability> {
    Ok(match name {
        "sync" => Durability::Sync,
        "group" => Durability::Group,
        "buffered" => Durability::Buffered,
        "replicated" => Durability::Replicated,
        _ => {
            let text = format!("no durability {name:?}: \"sync\", \"group\", \"buffered\" or \"replicated\"");
            return Err(PyValueError::new_err(text));
        }
    })
}

/// Waits for another process's pool in pieces: between two of them, Ctrl-C is seen.
fn open_in_turn(
    py: Python<'_>,
    path: &Path,
    wait: Duration,
    open: impl Fn(Duration) -> Result<Pool, Error> + Sync,
) -> PyResult<Pool> {
    const PIECE: Duration = Duration::from_millis(50);
    let started = Instant::now();
    loop {
        let left = wait.saturating_sub(started.elapsed());
        match py.detach(|| open(left.min(PIECE))) {
            Err(Error::InUse { .. }) if left > PIECE => py.check_signals()?,
            opened => return opened.map_err(|error| open_error(py, path, error)),
        }
    }
}

/// A pool of persistent objects.
#[pyclass(module = "memlift._native", frozen)]
pub struct PersistPool {
    pub inner: Arc<Inner>,
}

#[pymethods]
impl PersistPool {
    #[new]
    #[pyo3(signature = (path, *, mode, size, size_max, lane_bytes, mechanism, domain, durability, prefault, memory, readers, wait, replica))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of Python
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        size: u64,
        size_max: Option<u64>,
        lane_bytes: u64,
        mechanism: &str,
        domain: &str,
        durability: &str,
        prefault: bool,
        memory: Option<u64>,
        readers: u64,
        wait: f64,
        replica: Option<(String, f64, f64, f64)>,
    ) -> PyResult<PersistPool> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(mechanism) = Mechanism::ALL.into_iter().find(|one| one.name() == mechanism) else {
            let names = Mechanism::ALL.map(Mechanism::name).join(", ");
            return Err(PyValueError::new_err(format!("no mechanism {mechanism:?}: {names}")));
        };
        let domain = match domain {
            "auto" => Domain::Auto,
            "lines" => Domain::Lines,
            "pages" => Domain::Pages,
            _ => {
                let text = format!("no domain {domain:?}: \"auto\", \"lines\" or \"pages\"");
                return Err(PyValueError::new_err(text));
            }
        };
        let durability = self::durability(durability)?;
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value).map_err(|_| {
                PyValueError::new_err(format!("{name} is a number of seconds from 0 on, not {value}"))
            })
        };
        let replica = replica.map(|(url, interval, retain, wait)| {
            let (interval, retain) =
                (seconds("replica_interval", interval)?, seconds("replica_retain", retain)?);
            PyResult::Ok((url, Place { interval, retain, wait: seconds("replica_wait", wait)? }))
        });
        let replica = replica.transpose()?;
        let defaults = Options::default();
        let options = Options {
            replica_wait: replica.as_ref().map_or(defaults.replica_wait, |(_, place)| place.wait),
            heap_bytes: size,
            max_bytes: size_max.unwrap_or(defaults.max_bytes).max(size),
            // Transactions write one at a time (there is one section), and one lane is shared.
            lanes: 2,
            lane_bytes,
            mechanism,
            domain,
            prefault,
            mirror_bytes: memory,
            readers_bytes: readers,
            read_only: mode == "r",
            ..defaults
        };
        if !["r", "w", "c", "x"].contains(&mode) {
            let text = format!(
                "no mode {mode:?}: \"r\" (read), \"w\" (read and write), \"c\" (create if missing) or \"x\" (create)"
            );
            return Err(PyValueError::new_err(text));
        }
        let open = |wait: Duration| {
            let options = Options { wait, ..options.clone() };
            match mode {
                "c" => Pool::open_or_create(&path, &options),
                "x" => Pool::create(&path, &options),
                _ => Pool::open(&path, &options),
            }
        };
        let wait = seconds("wait", wait)?;
        let pool = open_in_turn(py, &path, wait, open)?;
        // A pool that is not ours is refused now, and not at the first use.
        py.detach(|| {
            pool.read(|r| root(r))?;
            if options.read_only { Ok(()) } else { empty_limbo(&pool) }
        })
        .map_err(|error| open_error(py, &path, error))?;
        let replica = replica.map(|(url, place)| Replica::begin(py, &pool, &url, place)).transpose()?;
        let inner = Inner {
            handle: Handle::new(pool),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            path,
            process: std::process::id(),
            durability,
            generation: AtomicU64::new(1),
            pins: Pins::default(),
            replica,
        };
        inner.check(durability).map_err(|trouble| trouble.raise(py))?;
        Ok(PersistPool { inner: Arc::new(inner) })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.path.clone()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.handle.with(|_| ()).is_none()
    }

    /// Begins this thread's transaction, or a nested one inside it.
    #[pyo3(signature = (durability=None))]
    fn begin(&self, py: Python<'_>, durability: Option<&str>) -> PyResult<()> {
        let durability = durability.map_or(Ok(self.inner.durability), self::durability)?;
        self.inner.check(durability).map_err(|trouble| trouble.raise(py))?;
        let inside = OPEN
            .with_borrow_mut(|open| open.get_mut(&self.inner.number).map(|open| open.depth += 1).is_some());
        if inside {
            return Ok(());
        }
        let inner = &self.inner;
        inner.with(py, |pool| {
            inner.free_waiting(pool)?;
            let open = Open {
                tx: pool.begin(durability)?,
                inner: Arc::clone(inner),
                depth: 1,
                doomed: None,
                fresh: HashSet::new(),
            };
            OPEN.with_borrow_mut(|all| all.insert(inner.number, open));
            Ok(())
        })
    }

    /// Ends the innermost transaction of this thread; the outermost one is committed or rolled back.
    fn end(&self, py: Python<'_>, commit: bool) -> PyResult<()> {
        let number = self.inner.number;
        let outermost = OPEN.with_borrow_mut(|all| {
            let open = all.get_mut(&number)?;
            open.depth -= 1;
            if open.depth > 0 && !commit {
                open.doomed.get_or_insert_with(|| "a transaction inside it was rolled back".to_owned());
            }
            Some(open.depth == 0)
        });
        match outermost {
            Some(true) => {}
            Some(false) => return Ok(()),
            None => {
                let text =
                    "this thread has no open transaction: a transaction ends in the thread that began it";
                return Err(new(py, "OutOfOrderError", (text,)));
            }
        }
        let ended = py.detach(|| {
            let Some(Open { tx, inner, doomed, .. }) = OPEN.with_borrow_mut(|all| all.remove(&number)) else {
                return Ok(());
            };
            if commit && doomed.is_none() {
                // If the commit fails, cached offsets are forgotten; at worst this costs a look-up without need.
                let committed = tx.commit();
                if committed.is_err() {
                    inner.forget_places();
                }
                return committed;
            }
            inner.forget_places();
            drop(tx);
            match doomed {
                Some(reason) if commit => {
                    Err(Error::Aborted(format!("something in the transaction had failed before: {reason}")))
                }
                _ => Ok(()),
            }
        });
        ended.map_err(|error| self.inner.trouble(Trouble::Pool(error)).raise(py))
    }

    /// Returns true if this thread has an open transaction.
    #[getter]
    fn in_transaction(&self) -> bool {
        OPEN.with_borrow(|open| open.contains_key(&self.inner.number))
    }

    /// Returns the dict of a name, and creates it if there is none.
    fn dict(&self, py: Python<'_>, name: String, pickle: bool) -> PyResult<PersistDict> {
        let inner = &self.inner;
        let is_dict = |found: Option<Named>| match found {
            None => Ok(false),
            Some(Named { kind: Kind::Dict, .. }) => Ok(true),
            Some(_) => Err(Trouble::Argument(format!("{name:?} is an array: pool.array gives it"))),
        };
        let there = inner.read(py, |view| is_dict(Inner::find(view, &name)?))?;
        if !there {
            inner.write(py, |writing| {
                // Another thread may have created it meanwhile.
                if !is_dict(Inner::find(writing.tx, &name)?)? {
                    let offset = Table::create(writing.tx)?.offset();
                    writing.name(&name, &Named { kind: Kind::Dict, offset, shape: None })?;
                }
                Ok(())
            })?;
        }
        Ok(PersistDict::new(Arc::clone(inner), name, pickle))
    }

    /// Returns all names, each with True if it is an array.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<(String, bool)>> {
        self.inner.read(py, |view| {
            let names = root(view)?.names;
            if names == 0 {
                return Ok(Vec::new());
            }
            let all = Table::at(names).batch(view, None, usize::MAX, usize::MAX)?.unwrap_or_default();
            Ok(all
                .into_iter()
                .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value.first() == Some(&2)))
                .collect())
        })
    }

    /// Removes a dict or an array from the pool; returns False if there is none of that name.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.inner.write(py, |writing| {
            let Some(named) = Inner::find(writing.tx, name)? else { return Ok(false) };
            writing.inner.forget_places();
            match named.kind {
                Kind::Dict => Table::at(named.offset).free(writing.tx)?,
                Kind::Array => writing.retire(named.offset)?,
            }
            let names = root(writing.tx)?.names;
            Ok(Table::at(names).remove(writing.tx, name.as_bytes())?)
        })
    }

    fn put_array(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        element: (char, u8),
        extents: Vec<u64>,
    ) -> PyResult<()> {
        array::put(&self.inner, py, name, data, Shape::new(element, extents))
    }

    /// Returns the array's memory (an exporter of its bytes, or bytes), element type and extents; None if there is no such array.
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn view<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Option<(Bound<'py, PyAny>, String, Vec<u64>)>> {
        array::view(&self.inner, py, name)
    }

    /// Returns the CRC-32C of the array's bytes as they are stored; None if there is no such array.
    fn array_crc(&self, py: Python<'_>, name: &str) -> PyResult<Option<u32>> {
        array::crc(&self.inner, py, name)
    }

    /// Replaces the array's contents by `data`; only the differences are logged.
    fn change_array(&self, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<()> {
        array::change(&self.inner, py, name, data)
    }

    fn guarantee(&self, py: Python<'_>) -> PyResult<(bool, &'static str, String, String)> {
        let guarantee = self.inner.with(py, |pool| Ok(pool.guarantee()))?;
        let domain = if guarantee.domain == Domain::Lines { "lines" } else { "pages" };
        let survives = guarantee.survives == Survives::PowerFailure;
        Ok((survives, domain, guarantee.by.to_owned(), guarantee.to_string()))
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (header, usage, recovered, counters, guarantee) = self.inner.with(py, |pool| {
            Ok((pool.header(), pool.usage(), pool.recovered(), pool.counters(), pool.guarantee()))
        })?;
        let info = PyDict::new(py);
        info.set_item("path", &self.inner.path)?;
        info.set_item("guarantee", guarantee.to_string())?;
        let mechanism = Mechanism::ALL.into_iter().find(|one| *one as u8 == header.mechanism);
        info.set_item("mechanism", mechanism.map(Mechanism::name))?;
        info.set_item("heap_bytes", usage.0)?;
        info.set_item("free_bytes", usage.1)?;
        info.set_item("file_bytes", header.file_bytes())?;
        info.set_item("lane_bytes", header.lane_bytes)?;
        info.set_item("views", self.inner.pins.views())?;
        info.set_item("recovered_transactions", recovered.transactions)?;
        info.set_item("recovered_log_bytes", recovered.log_bytes)?;
        info.set_item("closed_before", recovered.clean)?;
        info.set_item("hardens", counters.hardens)?;
        info.set_item("log_bytes", counters.log_bytes)?;
        Ok(info)
    }

    /// Makes later reads see what the writing process has committed since. Existing views of arrays do not change.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let inner = &self.inner;
        let refreshed = py.detach(|| inner.handle.refresh());
        let refreshed = refreshed.map_err(|error| inner.trouble(Trouble::Pool(error)).raise(py))?;
        inner.forget_places();
        refreshed.ok_or_else(|| inner.closed().raise(py))
    }

    /// Returns true if this is a snapshot of a pool that another process writes.
    #[getter]
    fn beside(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.with(py, |pool| Ok(pool.is_beside()))
    }

    /// Makes all committed transactions durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, |pool| Ok(pool.sync()?))
    }

    /// Returns the state of the replica; None if there is none, or the pool is closed.
    fn replica<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let replica = self.inner.replica.as_ref().filter(|_| !self.closed());
        replica.map_or(Ok(None), |replica| replica.status(py))
    }

    /// Waits until the replica has everything that was committed. Signals are handled meanwhile.
    fn wait_replica(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        match &self.inner.replica {
            Some(_) if self.closed() => Err(self.inner.closed().raise(py)),
            Some(replica) => replica.wait(py, patience),
            None => {
                let text = "the pool has no replica: open it with replicate=URL".to_owned();
                Err(Trouble::Argument(text).raise(py))
            }
        }
    }

    /// Moves the entries of dicts together and frees blocks of the disk. Returns the number of moved objects, the bytes of the
    /// heap that became free, and the bytes on the disk before and now.
    fn compact(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        if self.in_transaction() {
            let text =
                "a transaction of this thread is open: leave its `with` block before compacting the pool";
            return Err(new(py, "OutOfOrderError", (text,)));
        }
        let done = self.inner.with(py, |pool| Ok(pool.compact(|_, _| {})?))?;
        Ok((done.moved, done.freed * SLAB_BYTES, done.before, done.after))
    }

    /// Copies the pool into a new file while others use it. Returns the bytes in use, the bytes copied in all, the bytes copied
    /// while the log waited, and the seconds that it waited. Signals are handled between two pieces.
    fn backup(&self, py: Python<'_>, target: PathBuf, rate: Option<u64>) -> PyResult<(u64, u64, u64, f64)> {
        if self.in_transaction() {
            let text = "a transaction of this thread is open: leave its `with` block before copying the pool";
            return Err(new(py, "OutOfOrderError", (text,)));
        }
        let bytes_per_second = match rate.map(NonZeroU64::new) {
            Some(None) => return Err(PyValueError::new_err("bytes_per_second: 0 copies nothing")),
            rate => rate.flatten(),
        };
        let mut signal = None;
        let done = self.inner.with(py, |pool| {
            Ok(pool.backup(&target, BackupOptions { bytes_per_second }, |_, _| {
                signal = Python::attach(|py| py.check_signals()).err();
                signal.is_none()
            })?)
        });
        if let Some(signal) = signal {
            return Err(signal);
        }
        let done = done?;
        Ok((done.bytes, done.copied, done.held_bytes, done.held.as_secs_f64()))
    }

    /// Closes the pool, after its replica has got everything or `replica_wait` has passed; returns the number of remaining views, and the
    /// reason why the replica lacks something. As long as there are views, the file stays locked.
    fn close(&self, py: Python<'_>) -> PyResult<(usize, Option<String>)> {
        if self.in_transaction() {
            let text = "a transaction of this thread is open: leave its `with` block before closing the pool";
            return Err(new(py, "OutOfOrderError", (text,)));
        }
        let inner = &self.inner;
        if self.closed() {
            return Ok((0, None));
        }
        let lacks = self.inner.replica.as_ref().map_or(Ok(None), |replica| replica.end(py))?;
        let closed = py.detach(|| {
            if let Some(freed) = inner.handle.with(|pool| inner.free_waiting(pool)) {
                freed.or_else(|error| if matches!(error, Error::ReadOnly) { Ok(()) } else { Err(error) })?;
            }
            inner.handle.close()
        });
        match closed.map_err(|error| self.inner.trouble(Trouble::Pool(error)).raise(py))? {
            true => Ok((0, lacks)),
            false => Ok((self.inner.pins.views().max(1), lacks)),
        }
    }
}
