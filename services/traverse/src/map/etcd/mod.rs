// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map in etcd, which survives the loss of a machine, as a single coordinator does not.
//!
//! - **Layout** PREFIX/map: the whole map, encoded, in one value · PREFIX/node/NAME/INCARNATION: a key that exists while that node's
//!   lease runs · PREFIX/replicas/NAME: the copies of a replicated node, put in one transaction with the map
//! - **Flow** a change: read ─▶ one function from map to map (`change`) ─▶ put, if the map was not put meanwhile; otherwise try again.
//!   A node whose key is gone is marked down by the first process that notices
//! - **Order** the map's epoch orders all changes: it grows by one with each put, and a put requires the revision that was read. After
//!   each loss of the connection the whole prefix is read again, and watched from the revision of that reading; keys that were deleted
//!   meanwhile are missing in it, and so noticed
//! - **Owner** the lease belongs to the [`Etcd`] that joined. While etcd is away all processes continue with the map they have; no
//!   range moves, no node joins
//! - **Not here** the transport of requests to etcd, with TLS and a password: `http`; the syntax of its address: `etcd_address`

mod http;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::MapError;
use super::change::{Join, Order};
use super::etcd_address::{EtcdAddress, LEASE_S};
use super::node::{NodeId, State};
use super::range::Map;
use super::replicas::{BackupOrder, Replicas};
use super::source::Authority;
use http::{ANSWER_TIMEOUT, Http, Next, Stream};

/// Number of times that a change is tried while others change the map at the same time.
const TRIES: usize = 32;

/// A map in etcd.
pub struct Etcd {
    http: Http,
    /// The host that answered last.
    host: usize,
    lease_s: u64,
    /// The lease that this node holds through this connection, and its key, which exists while the lease runs.
    lease: Option<(String, String)>,
    watch: Option<Stream>,
    epoch: u64,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("address", self.http.address())
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// Result of reading the prefix once.
struct Reading {
    map: Map,
    /// Revision of the last put of the map; 0: there is none.
    put: i64,
    /// Revision of the reading.
    revision: i64,
    /// Names and incarnations of the nodes whose leases run.
    alive: BTreeSet<(String, u64)>,
    /// Encoded copies of replicated nodes by name, each with the revision of its last put.
    replicas: BTreeMap<String, (Vec<u8>, i64)>,
}

impl Reading {
    fn replicas(&self, name: &str) -> Result<Option<Replicas>, MapError> {
        self.replicas.get(name).map(|(bytes, _)| Replicas::decode(bytes)).transpose()
    }
}

/// A changed map, and the changed copies of a node.
struct Changed<T> {
    map: Map,
    /// Name of a node, and its copies from now on; `None` in the pair: the node is not replicated any more.
    replicas: Option<(String, Option<Replicas>)>,
    /// Name and incarnation of a node whose lease must not run.
    without_lease: Option<(String, u64)>,
    result: T,
}

impl<T> Changed<T> {
    fn map(map: Map, result: T) -> Changed<T> {
        Changed { map, replicas: None, without_lease: None, result }
    }
}

/// Decodes a base64 field.
fn decoded(value: &Value) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(value.as_str()?).ok()
}

fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

impl Etcd {
    /// Makes the access to an etcd; nothing is sent before the first request.
    #[must_use]
    pub fn new(address: EtcdAddress) -> Etcd {
        let lease_s = address.lease_s.unwrap_or(LEASE_S);
        Etcd { http: Http::new(address), host: 0, lease_s, lease: None, watch: None, epoch: 0 }
    }

    /// Sets the length of leases, in seconds.
    #[must_use]
    pub fn with_lease_s(mut self, seconds: u64) -> Etcd {
        self.lease_s = seconds.max(1);
        self
    }

    fn unreachable(&self, source: io::Error) -> MapError {
        MapError::Unreachable {
            what: format!("etcd at {}", self.http.address().hosts.join(", ")),
            epoch: self.epoch,
            source,
        }
    }

    /// Sends a request to the host that answered last, then to the others.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value, MapError> {
        self.ask_within(path, body, ANSWER_TIMEOUT)
    }

    /// The same; each host must answer within `patience`.
    fn ask_within(&mut self, path: &str, body: &Value, patience: Duration) -> Result<Value, MapError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no hosts");
        let hosts = self.http.address().hosts.len();
        for _ in 0..hosts {
            match self.http.ask(self.host, path, body, patience) {
                Ok(value) => return Ok(value),
                Err(error) => last = error,
            }
            self.host = (self.host + 1) % hosts;
        }
        Err(self.unreachable(last))
    }

    fn key(&self, rest: &str) -> String {
        BASE64_STANDARD.encode(format!("{}/{rest}", self.http.address().prefix))
    }

    /// Returns the range of keys below the prefix: the first key, and the first one behind.
    fn keys(&self) -> (String, String) {
        // '0' is the character after '/'.
        (self.key(""), BASE64_STANDARD.encode(format!("{}0", self.http.address().prefix)))
    }

    fn bad(&self, what: &str) -> MapError {
        MapError::refused(format!(
            "etcd at {} says what it should not ({what}): is its JSON gateway on?",
            self.http.address().hosts[self.host]
        ))
    }

    fn reading(&mut self) -> Result<Reading, MapError> {
        let (key, range_end) = self.keys();
        let answer = self.ask("/v3/kv/range", &json!({"key": key, "range_end": range_end}))?;
        let revision = number(&answer["header"]["revision"]).ok_or_else(|| self.bad("no revision"))?;
        let (alive, replicas) = (BTreeSet::new(), BTreeMap::new());
        let mut reading = Reading { map: Map::empty(), put: 0, revision, alive, replicas };
        let none = Vec::new();
        for pair in answer["kvs"].as_array().unwrap_or(&none) {
            let key = decoded(&pair["key"]).and_then(|key| String::from_utf8(key).ok());
            let key = key.ok_or_else(|| self.bad("a key that is no text"))?;
            let rest = key.strip_prefix(&format!("{}/", self.http.address().prefix)).unwrap_or("");
            if rest == "map" {
                let bytes = decoded(&pair["value"]).ok_or_else(|| self.bad("no value"))?;
                reading.map = Map::decode(&bytes)?;
                reading.put = number(&pair["mod_revision"]).ok_or_else(|| self.bad("no revision"))?;
            } else if let Some(name) = rest.strip_prefix("replicas/") {
                let bytes = decoded(&pair["value"]).ok_or_else(|| self.bad("no value"))?;
                let put = number(&pair["mod_revision"]).ok_or_else(|| self.bad("no revision"))?;
                reading.replicas.insert(name.to_owned(), (bytes, put));
            } else if let Some((name, incarnation)) =
                rest.strip_prefix("node/").and_then(|rest| rest.split_once('/'))
                && let Ok(incarnation) = incarnation.parse()
            {
                reading.alive.insert((name.to_owned(), incarnation));
            }
        }
        if reading.map.epoch() < self.epoch {
            return Err(MapError::refused(format!(
                "etcd has epoch {}, and epoch {} was read from it before: it was set back to an old state",
                reading.map.epoch(),
                self.epoch
            )));
        }
        Ok(reading)
    }

    /// Puts a changed map, and the changed copies of a node with it, if the last puts are still those that were read; returns true
    /// if they were put.
    fn put<T>(&mut self, changed: &Changed<T>, read: &Reading) -> Result<bool, MapError> {
        let Changed { map, replicas, without_lease, .. } = changed;
        let same = |key: &str, put: i64| json!({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": put.to_string()});
        let (key, value) = (self.key("map"), BASE64_STANDARD.encode(map.encode()));
        let mut compare = vec![same(&key, read.put)];
        let mut success = vec![json!({"request_put": {"key": key, "value": value}})];
        if let Some((name, replicas)) = replicas {
            let key = self.key(&format!("replicas/{name}"));
            // A key that does not exist has revision 0.
            compare.push(same(&key, read.replicas.get(name).map_or(0, |(_, put)| *put)));
            success.push(match replicas {
                Some(replicas) => {
                    json!({"request_put": {"key": key, "value": BASE64_STANDARD.encode(replicas.encode())}})
                }
                None => json!({"request_delete_range": {"key": key}}),
            });
        }
        if let Some((name, incarnation)) = without_lease {
            let key = self.key(&format!("node/{name}/{incarnation}"));
            compare.push(json!({"key": key, "target": "VERSION", "result": "EQUAL", "version": "0"}));
        }
        let answer = self.ask("/v3/kv/txn", &json!({"compare": compare, "success": success}))?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Reads the map, and marks the nodes down whose leases have run out.
    fn tended(&mut self) -> Result<Reading, MapError> {
        for _ in 0..TRIES {
            let mut reading = self.reading()?;
            let gone = reading.map.nodes().iter().find(|node| {
                node.state == State::Up && !reading.alive.contains(&(node.name.clone(), node.incarnation))
            });
            let Some(gone) = gone else {
                self.epoch = reading.map.epoch();
                return Ok(reading);
            };
            let changed = Changed::map(reading.map.down(gone.id, gone.incarnation)?, ());
            let _ = self.put(&changed, &reading)?;
            reading.map = changed.map;
        }
        Err(MapError::Conflict { epoch: self.epoch })
    }

    fn change<T>(
        &mut self,
        change: impl Fn(&Reading) -> Result<Changed<T>, MapError>,
    ) -> Result<(Map, T), MapError> {
        for _ in 0..TRIES {
            let reading = self.tended()?;
            let changed = change(&reading)?;
            if changed.map.epoch() == reading.map.epoch() || self.put(&changed, &reading)? {
                self.epoch = changed.map.epoch();
                return Ok((changed.map, changed.result));
            }
        }
        Err(MapError::Conflict { epoch: self.epoch })
    }

    /// Gets a lease, and joins by a change of the map.
    fn join_with(
        &mut self,
        join: &Join,
        change: impl Fn(&Reading) -> Result<Changed<NodeId>, MapError>,
    ) -> Result<(Map, NodeId, Duration), MapError> {
        self.revoke();
        let granted = self.ask("/v3/lease/grant", &json!({"TTL": self.lease_s.to_string()}))?;
        let lease = granted["ID"].as_str().ok_or_else(|| self.bad("no lease"))?.to_owned();
        let seconds = number(&granted["TTL"]).and_then(|ttl| u64::try_from(ttl).ok()).unwrap_or(self.lease_s);
        // The key is put before the map shows the node as up: a reader of both never finds an up node without its key.
        let key = self.key(&format!("node/{}/{}", join.name, join.incarnation));
        self.lease = Some((lease.clone(), key.clone()));
        self.ask("/v3/kv/put", &json!({"key": key, "value": "", "lease": lease}))?;
        match self.change(change) {
            Ok((map, id)) => Ok((map, id, Duration::from_secs(seconds))),
            Err(error) => {
                self.revoke();
                Err(error)
            }
        }
    }

    fn revoke(&mut self) {
        if let Some((lease, _)) = self.lease.take() {
            // A lease that is not revoked runs out without help.
            let _ = self.ask("/v3/lease/revoke", &json!({"ID": lease}));
        }
    }

    /// Watches the prefix from a revision on.
    fn watch(&mut self, revision: i64) -> Result<(), MapError> {
        let (key, range_end) = self.keys();
        let create = json!({"create_request": {"key": key, "range_end": range_end, "start_revision": (revision + 1).to_string()}});
        let watch = self.http.stream(self.host, "/v3/watch", &create);
        self.watch = Some(watch.map_err(|error| self.unreachable(error))?);
        Ok(())
    }

    /// Returns true if an event reports a change; an error if the watch has ended.
    fn event(&self, event: &Value) -> Result<bool, MapError> {
        let result = &event["result"];
        if result.is_null() || result["canceled"].as_bool() == Some(true) {
            return Err(self.unreachable(io::Error::other("the watch was cancelled")));
        }
        Ok(result["events"].as_array().is_some_and(|events| !events.is_empty()))
    }
}

impl Authority for Etcd {
    fn read(&mut self) -> Result<Map, MapError> {
        Ok(self.tended()?.map)
    }

    fn wait(&mut self, epoch: u64, timeout: Duration) -> Result<Option<Map>, MapError> {
        let until = Instant::now() + timeout;
        loop {
            if self.watch.is_none() {
                let reading = self.tended()?;
                self.watch(reading.revision)?;
                if reading.map.epoch() > epoch {
                    return Ok(Some(reading.map));
                }
            }
            let watch = self.watch.as_mut().expect("opened above");
            let changed = match watch.next(until.saturating_duration_since(Instant::now())) {
                Ok(Next::Nothing) => return Ok(None),
                Ok(Next::Ended) => {
                    self.watch = None;
                    continue;
                }
                Ok(Next::Event(event)) => self.event(&event),
                Err(error) => Err(self.unreachable(error)),
            };
            match changed {
                // The prefix is read as a whole, because only the outcome of several events matters.
                Ok(true) => {
                    let reading = self.tended();
                    if reading.is_err() {
                        // The event is consumed, so the watch starts again: its first reading shows the change.
                        self.watch = None;
                    }
                    let reading = reading?;
                    if reading.map.epoch() > epoch {
                        return Ok(Some(reading.map));
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    self.watch = None;
                    return Err(error);
                }
            }
        }
    }

    fn join(&mut self, join: &Join) -> Result<(Map, NodeId, Duration), MapError> {
        self.join_with(join, |reading| {
            if reading.replicas.contains_key(&join.name) {
                return Err(MapError::refused(format!(
                    "node {0} is replicated: start it with --replicate, or run `memlift map forget {0}` and lose its data",
                    join.name
                )));
            }
            let (map, result) = reading.map.join(join)?;
            Ok(Changed::map(map, result))
        })
    }

    fn join_replica(&mut self, join: &Join, replica: u64) -> Result<(Map, NodeId, Duration), MapError> {
        self.join_with(join, |reading| {
            let listed = reading.replicas(&join.name)?;
            let (map, result, replicas) = reading.map.join_replica(join, listed, replica)?;
            // The map may call a node down that got a new lease since.
            let other =
                reading.map.node_named(&join.name).filter(|node| node.incarnation != join.incarnation);
            let without_lease = other.map(|node| (node.name.clone(), node.incarnation));
            let replicas = Some((join.name.clone(), Some(replicas)));
            Ok(Changed { map, replicas, without_lease, result })
        })
    }

    fn replicas(&mut self, name: &str) -> Result<(Map, Option<Replicas>), MapError> {
        let reading = self.tended()?;
        let replicas = reading.replicas(name)?;
        Ok((reading.map, replicas))
    }

    fn set_backup(&mut self, order: &BackupOrder) -> Result<(Map, Replicas), MapError> {
        self.change(|reading| {
            let (map, result) = reading.map.set_backup(order, reading.replicas(&order.name)?)?;
            let replicas = Some((order.name.clone(), Some(result)));
            Ok(Changed { map, replicas, without_lease: None, result })
        })
    }

    fn renew(&mut self, node: NodeId, _: u64) -> Result<(), MapError> {
        let lost = || MapError::LeaseLost { node: node.to_string() };
        let (lease, key) = self.lease.clone().ok_or_else(lost)?;
        // If one of several hosts is silent, another one must be asked before the lease is over.
        let patience = match self.http.address().hosts.len() {
            0 | 1 => ANSWER_TIMEOUT,
            _ => ANSWER_TIMEOUT.min(Duration::from_secs(self.lease_s) / 4),
        };
        let answer = self.ask_within("/v3/lease/keepalive", &json!({"ID": lease}), patience)?;
        // For a lease that does not exist any more, the answer has no time to live.
        if number(&answer["result"]["TTL"]).is_none_or(|ttl| ttl <= 0) {
            return Err(lost());
        }
        // If somebody deleted the key, the node is marked down although its lease runs: it must join again.
        let there = self.ask_within("/v3/kv/range", &json!({"key": key, "count_only": true}), patience)?;
        if number(&there["count"]).is_none_or(|count| count < 1) {
            return Err(lost());
        }
        Ok(())
    }

    fn order(&mut self, order: &Order) -> Result<(Map, u64), MapError> {
        let changed = self.change(|reading| {
            let (map, result) = order.carry_out(&reading.map)?;
            let replicas = match order {
                Order::Forget(name) if reading.replicas.contains_key(name) => Some((name.clone(), None)),
                _ => None,
            };
            Ok(Changed { map, replicas, without_lease: None, result })
        });
        if matches!(order, Order::Leave(..)) {
            self.revoke();
        }
        changed
    }
}
