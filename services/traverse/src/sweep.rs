// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sweeps the expiring maps that were declared to a node: the node's own client, in a thread beside its shards.
//!
//! - **Flow** [`Sweeper::serve`]: declared terms ─▶ one step of one map after the other ([`ExpiringMap::sweep`]) ─▶ a pause ─▶ …
//! - **Bound** after a step the thread rests for [`REST`] times as long as the step took, or [`REST_BUSY`] times if a tenth of what it saw had
//!   expired. A map is swept at most once in [`PASS_MIN`]
//! - **Order** a sweep changes a map by ordinary requests, so the log, moves of ranges and other nodes' chains need nothing more. If the
//!   terms have moved to another node with their range, they are declared there, and forgotten here once that node has agreed
//! - **Owner** the caller's thread. Errors end no node: the step is tried again later
//! - **Not here** what a step does (`structures/expiring`)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, ClientError, Config, OnWait};
use crate::map::Shared;
use crate::node::Node;
use crate::structures::expiring::{Sweep, Swept};
use crate::structures::{ExpiringMap, Heap};
use crate::wire::Keys;

/// Least time between the starts of two sweeps of one map.
const PASS_MIN: Duration = Duration::from_secs(1);
/// Pause after a step, as a multiple of its duration.
const REST: u32 = 19;
/// The same while a tenth of the entries seen has expired.
const REST_BUSY: u32 = 3;
/// Pause while nothing is to be swept, and before a failed step is tried again.
const IDLE: Duration = Duration::from_millis(100);
/// The longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Pause before terms that another node has are declared there again, and before a failed connection is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// How the sweeper's client reaches the nodes.
#[derive(Clone, Debug)]
pub enum Reached {
    /// At these places: `HOST:PORT`, or `shm:NAME`.
    Places(Vec<String>),
    /// By the current map of the cluster.
    Map(Arc<Shared>),
}

/// Progress of the sweep of one map.
#[derive(Debug, Default)]
struct MapSweep {
    sweep: Sweep,
    begun: Option<Instant>,
    /// Time before which the map is left alone.
    not_before: Option<Instant>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Sweeper {
    node: Node,
    reached: Reached,
    keys: Keys,
    clients: HashMap<u32, Client>,
    maps: BTreeMap<u64, MapSweep>,
    not_before: Option<Instant>,
    stop: Arc<AtomicBool>,
}

impl Sweeper {
    /// Makes the sweeper of a node, which ends when `stop` is true. `keys` are those of the node's tenants.
    #[must_use]
    pub fn new(node: Node, reached: Reached, keys: Keys, stop: Arc<AtomicBool>) -> Sweeper {
        let (clients, maps) = (HashMap::new(), BTreeMap::new());
        Sweeper { node, reached, keys, clients, maps, not_before: None, stop }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sweeps until the end.
    pub fn serve(&mut self) {
        while !self.is_over() {
            let mut pause = self.turn();
            while !pause.is_zero() && !self.is_over() {
                let piece = pause.min(IDLE);
                std::thread::sleep(piece);
                pause -= piece;
            }
        }
    }

    /// Makes one step of each map whose turn it is; returns the time to pause.
    fn turn(&mut self) -> Duration {
        let now = Instant::now();
        let declared = self.node.declared();
        self.maps.retain(|at, _| declared.iter().any(|(_, address, _)| address == at));
        if declared.is_empty() || self.node.is_log_full() || self.not_before.is_some_and(|until| now < until)
        {
            return IDLE;
        }
        let (mut rest, mut seen, mut expired) = (IDLE, 0, 0);
        let begun = Instant::now();
        for (tenant, at, is_here) in declared {
            if self.is_over() {
                break;
            }
            let map = self.maps.entry(at).or_default();
            if map.not_before.is_some_and(|until| now < until) {
                continue;
            }
            match self.step(tenant, at, is_here) {
                Ok(swept) => {
                    rest = Duration::ZERO;
                    seen += swept.seen;
                    expired += swept.expired;
                }
                Err(error) => {
                    // A new client finds nodes that were started again, and has another session.
                    let is_full = matches!(error, ClientError::ReadOnly | ClientError::Busy(_));
                    if !is_full {
                        self.clients.remove(&tenant);
                    }
                    if let Some(map) = self.maps.get_mut(&at) {
                        map.not_before = Some(Instant::now() + AGAIN);
                    }
                }
            }
        }
        let times = if expired * 10 >= seen.max(1) { REST_BUSY } else { REST };
        rest.max(begun.elapsed() * times)
    }

    /// Makes one step of a map.
    fn step(&mut self, tenant: u32, at: u64, is_here: bool) -> Result<Swept, ClientError> {
        if !self.clients.contains_key(&tenant) {
            let client = self.connect(tenant)?;
            self.clients.insert(tenant, client);
        }
        let (Some(client), Some(state)) = (self.clients.get_mut(&tenant), self.maps.get_mut(&at)) else {
            return Ok(Swept::default());
        };
        let now = Instant::now();
        if state.begun.is_none() {
            if !is_here {
                // Its range is another node's now. If that one does not agree (an earlier release does not answer), this node
                // goes on.
                if client.declare(at).is_ok() {
                    self.node.undeclare(at);
                    return Ok(Swept::default());
                }
            }
            state.begun = Some(now);
        }
        let swept = match ExpiringMap::find(client, at)? {
            Some(map) => map.sweep(client, &mut state.sweep)?,
            None => {
                // Dropped, or other memory by now.
                self.node.undeclare(at);
                Swept::default()
            }
        };
        if swept.ended {
            state.not_before = state.begun.take().map(|begun| begun + PASS_MIN);
        }
        Ok(swept)
    }

    fn connect(&mut self, tenant: u32) -> Result<Client, ClientError> {
        // The shards may have ended already, and would never answer.
        let stop = Arc::clone(&self.stop);
        let on_wait = Some(OnWait::new(move || !stop.load(Ordering::Relaxed)));
        let keys = self.keys.only(tenant);
        let config = Config { tenant, keys, deadline: DEADLINE, on_wait, ..Config::default() };
        let client = match &self.reached {
            Reached::Places(places) => {
                let places: Vec<&str> = places.iter().map(String::as_str).collect();
                Client::reach(&places, config)
            }
            Reached::Map(shared) => Client::of_map(&shared.map(), config),
        };
        if client.is_err() {
            self.not_before = Some(Instant::now() + AGAIN);
        }
        client
    }
}
