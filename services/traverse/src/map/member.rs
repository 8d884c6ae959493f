// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the cluster: joins, renews its lease, and follows the newest map.
//!
//! - **Flow** [`Member::join`] (a node) or [`Member::watch`] (a client) ─▶ [`Shared`], updated by a thread that waits for maps; a
//!   node has a second thread that renews the lease
//! - **Order** a lease is renewed three times in its duration. If it is lost, the node joins again as the same start: its data is
//!   still there, and so are its ranges. While the map's authority does not answer, the map stays unchanged and the attempts
//!   continue, at most two seconds apart
//! - **Owner** the threads end when the member is dropped; a node then gives its lease back

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::MapError;
use super::change::{Join, Order};
use super::lease::{self, Lease};
use super::node::{NodeId, State};
use super::range::Map;
use super::replicas::{BackupOrder, Replicas};
use super::shared::Shared;
use super::source::{Authority, Source};

/// A process of the cluster.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    node: Option<(NodeId, u64)>,
    source: Source,
    state: Arc<ThreadState>,
    lease: Arc<Lease>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ThreadState {
    stop: AtomicBool,
    /// Last errors of the thread that waits for maps and of the one that renews; `None` after a success.
    trouble: [Mutex<Option<String>>; 2],
}

impl ThreadState {
    fn note(&self, thread: usize, trouble: Option<String>) {
        *self.trouble[thread].lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Sleeps until the time is over or the member ends; returns true if the thread must continue.
    fn sleep(&self, mut left: Duration) -> bool {
        while !self.stop.load(Ordering::SeqCst) && !left.is_zero() {
            let step = left.min(Duration::from_millis(20));
            std::thread::sleep(step);
            left -= step;
        }
        !self.stop.load(Ordering::SeqCst)
    }
}

impl Member {
    /// Joins as a node.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`], [`MapError::Unreachable`]: no thread was started
    pub fn join(source: Source, join: Join) -> Result<Member, MapError> {
        Member::join_as(source, join, None)
    }

    /// Joins as the primary of a replicated node, with the copy of this number.
    ///
    /// # Errors
    ///
    /// The errors of [`Member::join`]; [`MapError::Replaced`]
    pub fn join_replica(source: Source, join: Join, replica: u64) -> Result<Member, MapError> {
        Member::join_as(source, join, Some(replica))
    }

    fn join_as(source: Source, join: Join, replica: Option<u64>) -> Result<Member, MapError> {
        let mut authority = source.connect()?;
        let asked = lease::now();
        let (map, id, length) = match replica {
            Some(replica) => authority.join_replica(&join, replica)?,
            None => authority.join(&join)?,
        };
        let mut member = Member::start(source, map, Some((id, join.incarnation)))?;
        member.lease.renew(asked, length);
        let (shared, state) = (member.shared.clone(), member.state.clone());
        if length != Duration::MAX {
            let lease = member.lease.clone();
            let renewer = LeaseRenewer { authority, join, replica, id, length, lease, shared, state };
            member.threads.push(std::thread::spawn(move || renewer.run()));
        }
        Ok(member)
    }

    /// Follows the map as a client.
    ///
    /// # Errors
    ///
    /// [`MapError::Unreachable`], or an error in the map
    pub fn watch(source: Source) -> Result<Member, MapError> {
        let map = source.connect()?.read()?;
        Member::start(source, map, None)
    }

    fn start(source: Source, map: Map, node: Option<(NodeId, u64)>) -> Result<Member, MapError> {
        let mut authority = source.connect()?;
        let (shared, state) = (Shared::new(map, node.map(|(id, _)| id)), Arc::new(ThreadState::default()));
        let (told, alive) = (shared.clone(), state.clone());
        let thread = std::thread::spawn(move || follow(&mut *authority, &told, &alive));
        Ok(Member { shared, node, source, state, lease: Arc::default(), threads: vec![thread] })
    }

    /// Returns the copy of the map that the threads keep up to date.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns this node's lease, as far as the node may rely on it.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Asks the map's authority to list another backup of this node, or none, and adopts the new map.
    ///
    /// # Errors
    ///
    /// [`MapError::Replaced`]; [`MapError::Unreachable`]: the change may have been made or not
    pub fn set_backup(&self, order: &BackupOrder) -> Result<Replicas, MapError> {
        let (map, replicas) = self.source.connect()?.set_backup(order)?;
        self.shared.publish(map);
        Ok(replicas)
    }

    /// Returns this node's id; `None` for a client.
    #[must_use]
    pub fn id(&self) -> Option<NodeId> {
        self.node.map(|(id, _)| id)
    }

    /// Returns the current error of the map's source for people to read; `None` if there is none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let read = |one: &Mutex<Option<String>>| one.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.state.trouble.iter().find_map(read)
    }

    /// Asks the map's authority for a change, and adopts the new map.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`]; [`MapError::Unreachable`]: the change may have been made or not
    pub fn order(&self, order: &Order) -> Result<u64, MapError> {
        let (map, number) = self.source.connect()?.order(order)?;
        self.shared.publish(map);
        Ok(number)
    }

    /// Reads the newest map now.
    ///
    /// # Errors
    ///
    /// [`MapError::Unreachable`]
    pub fn refresh(&self) -> Result<Arc<Map>, MapError> {
        self.shared.publish(self.source.connect()?.read()?);
        Ok(self.shared.map())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Follows the map until the member ends.
fn follow(authority: &mut dyn Authority, shared: &Shared, state: &ThreadState) {
    let mut pause = Duration::from_millis(50);
    while !state.stop.load(Ordering::SeqCst) {
        let (epoch, claimed) = (shared.map().epoch(), shared.wanted());
        match authority.wait(epoch, Duration::from_millis(250)) {
            Ok(map) => {
                let newest = map.is_none();
                if let Some(map) = map {
                    shared.publish(map);
                }
                // There is no newer map, so the claimed epoch was wrong: a forged packet costs one reading of the map,
                // not more.
                if let Some(claimed) = claimed.filter(|_| newest) {
                    shared.settle_wanted(claimed);
                }
                state.note(0, None);
                pause = Duration::from_millis(50);
            }
            Err(error) => {
                state.note(0, Some(error.to_string()));
                if !state.sleep(pause) {
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        }
    }
}

/// Renews a node's lease.
struct LeaseRenewer {
    authority: Box<dyn Authority>,
    join: Join,
    /// Number of this copy of a replicated node.
    replica: Option<u64>,
    id: NodeId,
    length: Duration,
    lease: Arc<Lease>,
    shared: Arc<Shared>,
    state: Arc<ThreadState>,
}

impl LeaseRenewer {
    fn run(mut self) {
        let mut pause = self.length / 3;
        while self.state.sleep(pause) {
            pause = match self.once() {
                Ok(()) => {
                    self.state.note(1, None);
                    self.length / 3
                }
                Err(error) => {
                    self.state.note(1, Some(error.to_string()));
                    (self.length / 10).clamp(Duration::from_millis(20), Duration::from_secs(2))
                }
            };
        }
        // A node that stops regularly is marked down immediately. If that message is lost, its lease runs out.
        self.lease.end();
        let _ = self.authority.order(&Order::Leave(self.id, self.join.incarnation));
    }

    fn once(&mut self) -> Result<(), MapError> {
        let asked = lease::now();
        match self.authority.renew(self.id, self.join.incarnation) {
            Err(MapError::LeaseLost { .. }) => {}
            Ok(()) => {
                self.lease.renew(asked, self.length);
                let map = self.shared.map();
                let own = map.node(self.id).filter(|node| node.incarnation == self.join.incarnation);
                if own.is_none_or(|node| node.state == State::Up) {
                    return Ok(());
                }
                // Somebody saw an earlier lease run out, and marked the node down after it had this one.
            }
            other => return other,
        }
        // The node still has the data of this start, so it joins again as recovered.
        let newest = self.authority.read()?;
        let own = self.shared.map().cluster();
        if newest.cluster() == own && newest.node(self.id).is_none() {
            return Err(self.forgotten());
        }
        let map = self.shared.map();
        let join = Join { recovered: true, epoch: map.epoch(), cluster: map.cluster(), ..self.join.clone() };
        let asked = lease::now();
        let (map, id, length) = match self.replica {
            Some(replica) => self.authority.join_replica(&join, replica)?,
            None => self.authority.join(&join)?,
        };
        if id != self.id {
            return Err(self.forgotten());
        }
        self.lease.renew(asked, length);
        self.shared.publish(map);
        Ok(())
    }

    fn forgotten(&self) -> MapError {
        let name = &self.join.name;
        MapError::refused(format!(
            "node {name} was forgotten while it was away, and its data with it: start it again"
        ))
    }
}
