// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory node in threads of this process, for tests, notebooks, and programs that keep their own data nearby.
//!
//! - **Flow** options ──▶ memory ──▶ one thread per address and shard ──▶ [`WalkNode::stop`].
//! - **Owner** the threads are Rust threads and never take the GIL. They end with the object.
//! - **Not here** changes of the cluster map: `memlift map`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use memlift::ground::region::process_mark;
use memlift::traverse::map;
use memlift::traverse::node::{Alone, Durability, Node, NodeError, NodeOptions, Router};
use memlift::traverse::resolve::resolve;
use memlift::traverse::sweep::{Reached, Sweeper};
use memlift::traverse::transport::Transport;
use memlift::traverse::transport::shm::Shm;
use memlift::traverse::transport::udp::Udp;
use memlift::traverse::wire::Keys;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::new;

/// A memory node in this process.
#[pyclass(module = "memlift._native", frozen)]
pub struct WalkNode {
    /// `None` after a stop, when its memory and log are released.
    node: Mutex<Option<Node>>,
    range: (u64, u64),
    places: Vec<String>,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<Result<(), NodeError>>>>,
    /// The process that has the threads.
    process: u64,
}

impl WalkNode {
    /// Ends the threads; returns the error of one that failed.
    fn end(&self) -> Option<String> {
        if self.process != process_mark() {
            // A forked child has neither the threads nor the node, and other threads of the parent may hold these locks for ever.
            return None;
        }
        self.stop.store(true, Ordering::Relaxed);
        let threads: Vec<_> = self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        let mut failed = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(error.to_string()),
                Err(_) => failed = Some("a thread of the node panicked: report this".to_owned()),
            }
        }
        self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed
    }

    fn running<T>(&self, py: Python<'_>, run: impl FnOnce(&Node) -> T + Send) -> PyResult<T>
    where
        T: Send,
    {
        if self.process != process_mark() {
            let text = "the node runs in the process that this one was forked from: ask it there";
            return Err(new(py, "ForkedError", (text,)));
        }
        let ran = py.detach(|| self.node.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(run));
        ran.ok_or_else(|| new(py, "ClosedError", ("the node was stopped: start another one",)))
    }
}

impl Drop for WalkNode {
    fn drop(&mut self) {
        self.end();
    }
}

/// One transport per address and shard.
type Transports = Vec<Box<dyn Transport>>;

fn listen(
    listen: &[String],
    shards: usize,
    authenticated: bool,
) -> Result<(Transports, Vec<String>), String> {
    let (mut transports, mut places) = (Transports::new(), Vec::new());
    for place in listen {
        match place.strip_prefix("shm:") {
            Some(name) => {
                let first = Shm::listen(name).map_err(|error| error.to_string())?;
                for _ in 1..shards {
                    transports.push(Box::new(first.another().map_err(|error| error.to_string())?));
                }
                transports.push(Box::new(first));
                places.push(place.clone());
            }
            None => {
                let address = resolve(place).map_err(|reason| format!("{reason}, or shm: and a name"))?;
                let sockets =
                    Udp::bind_shared(address, authenticated, shards).map_err(|error| error.to_string())?;
                places.extend(sockets.first().map(|socket| socket.address().to_string()));
                transports.extend(sockets.into_iter().map(|udp| Box::new(udp) as Box<dyn Transport>));
            }
        }
    }
    Ok((transports, places))
}

/// Returns the cluster map, and the first address of the node's ranges in it.
fn shared(path: &Path, name: &str) -> Result<(Arc<map::Shared>, u64), String> {
    let map = map::file::read(path).map_err(|error| error.to_string())?;
    let id = map.node_named(name).map(|node| node.id);
    let id = id.ok_or_else(|| format!("{} has no node called {name}", path.display()))?;
    let first = map.ranges().iter().filter(|range| range.owner == Some(id)).map(|range| range.base).min();
    let first = first.ok_or_else(|| format!("{} gives {name} no range", path.display()))?;
    Ok((map::Shared::new(map, Some(id)), first))
}

#[pymethods]
impl WalkNode {
    #[new]
    #[pyo3(signature = (memory, listen, *, base=None, shards=1, log=None, durable=false, keys=None, workspaces=None,
                        prefault=false, map=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        memory: u64,
        listen: Vec<String>,
        base: Option<u64>,
        shards: usize,
        log: Option<PathBuf>,
        durable: bool,
        keys: Option<Vec<(u32, [u8; 32])>>,
        workspaces: Option<usize>,
        prefault: bool,
        map: Option<(PathBuf, String)>,
    ) -> PyResult<WalkNode> {
        let wrong = |text: String| new(py, "BadArgumentError", (text,));
        if listen.is_empty() || !(1..=64).contains(&shards) {
            return Err(wrong("a node listens at one place at least, with 1 to 64 shards".to_owned()));
        }
        let keys = keys
            .unwrap_or_default()
            .into_iter()
            .fold(Keys::none(), |keys, (tenant, key)| keys.with(tenant, key));
        let authenticated = !keys.is_empty();
        let durability = if durable { Durability::Disk } else { Durability::Process };
        let defaults = NodeOptions::default();
        let shared = match &map {
            Some((path, name)) => Some(shared(path, name).map_err(wrong)?),
            None => None,
        };
        let first = shared.as_ref().map(|(_, first)| *first);
        let options = NodeOptions {
            base: base.or(first).unwrap_or(defaults.base),
            bytes: memory.max(1 << 20).next_multiple_of(4096),
            prefault,
            workspaces,
            keys: keys.clone(),
            log: log.map(|path| (path, durability)),
            ..defaults
        };
        py.detach(|| {
            let (node, _) = Node::open(options).map_err(|error| error.to_string())?;
            let (transports, places) = self::listen(&listen, shards, authenticated)?;
            let stop = Arc::new(AtomicBool::new(false));
            let mut threads = Vec::new();
            for transport in transports {
                let router: Box<dyn Router> = match &shared {
                    Some((shared, _)) => Box::new(shared.view()),
                    None => Box::new(Alone),
                };
                let mut shard = node.shard(transport, router);
                let stopped = Arc::clone(&stop);
                let thread = std::thread::Builder::new().name("memlift-node".to_owned());
                let spawned = thread.spawn(move || shard.serve(&stopped)).map_err(|error| error.to_string());
                match spawned {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            let reached = match &shared {
                Some((shared, _)) => Reached::Map(Arc::clone(shared)),
                None => Reached::Places(places.iter().take(1).cloned().collect()),
            };
            let mut sweeper = Sweeper::new(node.clone(), reached, keys, Arc::clone(&stop));
            let thread = std::thread::Builder::new().name("memlift-sweep".to_owned());
            let spawned = thread.spawn(move || {
                sweeper.serve();
                Ok(())
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error.to_string());
                }
            }
            let range = (node.memory().base(), node.memory().bytes());
            let (node, threads) = (Mutex::new(Some(node)), Mutex::new(threads));
            Ok(WalkNode { node, range, places, stop, threads, process: process_mark() })
        })
        .map_err(|text: String| new(py, "NodeFailedError", (text,)))
    }

    /// Addresses at which clients connect.
    #[getter]
    fn places(&self) -> Vec<String> {
        self.places.clone()
    }

    /// First address of the node's memory, and its size in bytes.
    #[getter]
    fn range(&self) -> (u64, u64) {
        self.range
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counted, usage) = self.running(py, |node| (node.stats().read(), node.writer().usage()))?;
        let dict = PyDict::new(py);
        for (name, count) in counted.iter() {
            dict.set_item(name, count)?;
        }
        dict.set_item("free_bytes", usage.free)?;
        dict.set_item("live_bytes", usage.live)?;
        dict.set_item("retired_bytes", usage.retired)?;
        dict.set_item("waste_bytes", usage.waste)?;
        dict.set_item("largest_free_bytes", usage.largest_free)?;
        Ok(dict)
    }

    /// Names and tenants of the programs that the node holds.
    fn programs(&self, py: Python<'_>) -> PyResult<Vec<(String, u32)>> {
        let programs = self.running(py, Node::programs)?;
        Ok(programs.into_iter().map(|(tenant, name, _)| (name, tenant)).collect())
    }

    /// Ends the threads and frees the memory; data that is not in a log is lost.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        match py.detach(|| self.end()) {
            None => Ok(()),
            Some(failed) => Err(new(py, "NodeFailedError", (failed,))),
        }
    }
}
