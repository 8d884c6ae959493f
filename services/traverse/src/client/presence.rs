// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds out if nodes are alive: a dead node makes only its own data unavailable.
//!
//! - **Flow** connecting: all nodes are asked for their ranges at the same time; once some have answered, the client waits
//!   another [`PATIENCE`] for silent ones ([`Client::ask_all`]). Allocating: a node that has not answered lately is asked first
//!   if it is alive, and is skipped if not
//! - **Order** a silent node is asked again every [`RETRY_SILENT_AFTER`] when memory is allocated, and whenever a request is about
//!   an address that no known node has
//! - **Not here** nodes as the map lists them (`route`), requests to a dead node's addresses (`send`, `answer`)

use std::time::{Duration, Instant};

use memlift_spec::formats::packet::MAP_BACKUP;

use super::{Answer, Client, Request, Result, Ticket, route};
use crate::map::Entry;
use crate::transport::Peer;

/// Time for which the client waits for a silent node; when connecting, it starts once others have answered.
const PATIENCE: Duration = Duration::from_millis(700);
/// A node that has answered within this time counts as alive.
const LATELY: Duration = Duration::from_secs(1);
/// Time after which a silent node is asked again.
const RETRY_SILENT_AFTER: Duration = Duration::from_secs(2);

impl Client {
    /// Asks all nodes for their ranges.
    pub(super) fn ask_all(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut waiting = Vec::new();
        for node in 0..self.reaches.len() {
            waiting.push((node, self.ask_what(node)?));
        }
        let (mut answered, mut failed) = (false, None);
        while !(waiting.is_empty() || answered && begun.elapsed() >= PATIENCE) {
            let came = self.poll()?;
            let mut left = Vec::new();
            for (node, ticket) in waiting {
                match self.take(ticket) {
                    None => left.push((node, ticket)),
                    Some(Ok(answer)) => {
                        self.note_range(node, &answer);
                        answered = true;
                    }
                    Some(Err(error)) => {
                        self.reaches[node].silent = Some(Instant::now());
                        failed.get_or_insert(error);
                    }
                }
            }
            waiting = left;
            if came == 0 && !waiting.is_empty() {
                self.pause(Duration::from_millis(1))?;
            }
        }
        for (node, ticket) in waiting {
            self.give_up_on(node, ticket);
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => Ok(()),
        }
    }

    fn ask_what(&mut self, node: usize) -> Result<Ticket> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.launch(Some(ticket), Request::map(node), node)?;
        Ok(ticket)
    }

    /// Handles a node's answer about its range.
    fn note_range(&mut self, node: usize, answer: &Answer) {
        let is_backup = self.config.iterations.saturating_sub(answer.iterations) == MAP_BACKUP
            && (answer.address, answer.value) == (0, 0);
        if let Ok(entry) = Entry::decode(&answer.body) {
            let own = self.reaches[node].peer;
            if is_backup {
                route::take_entry(&mut self.routes, &mut self.reaches, &entry);
            } else if let Some(of) = entry.node.filter(|of| of.socket().map(Peer::Socket) == Some(own)) {
                // Its name in the map, by which it is known again at another address, and its backup.
                route::known(&mut self.reaches, &of, entry.cluster, entry.epoch);
            }
        }
        let reach = &mut self.reaches[node];
        reach.is_backup = is_backup;
        reach.silent = None;
        reach.heard = Some(Instant::now());
        // The memory's first number is kept: a node that has another memory by now must refuse addresses of the old one.
        if reach.cluster == 0 {
            reach.cluster = answer.cluster;
            if self.routes.owner(answer.address).is_none() {
                self.routes.assign(answer.address, answer.address.saturating_add(answer.value), node);
            }
        }
    }

    fn give_up_on(&mut self, node: usize, ticket: Ticket) {
        self.reaches[node].silent = Some(Instant::now());
        // The request changes nothing, so its outcome does not matter. Left in flight, it would hold up later requests.
        self.flights.retain(|_, flight| flight.ticket != Some(ticket));
    }

    /// Returns the node that is asked next for memory. Backups have none.
    pub(super) fn node_in_turn(&mut self) -> usize {
        for _ in 0..self.nodes() {
            if !self.reaches[self.next_node % self.nodes()].is_backup {
                break;
            }
            (self.turn_bytes, self.next_node) = (0, self.next_node + 1);
        }
        self.next_node % self.nodes()
    }

    /// Returns true if the node is the only one, has answered lately, or answers now.
    pub(super) fn is_there(&mut self, node: usize) -> Result<bool> {
        let reach = &self.reaches[node];
        if self.reaches.iter().filter(|reach| !reach.is_backup).count() <= 1
            || reach.heard.is_some_and(|heard| heard.elapsed() < LATELY)
        {
            return Ok(true);
        }
        if reach.silent.is_some_and(|silent| silent.elapsed() < RETRY_SILENT_AFTER) {
            return Ok(false);
        }
        let begun = Instant::now();
        let ticket = self.ask_what(node)?;
        while begun.elapsed() < PATIENCE {
            let came = self.poll()?;
            match self.take(ticket) {
                Some(Ok(answer)) => {
                    self.note_range(node, &answer);
                    return Ok(true);
                }
                Some(Err(_)) => break,
                None if came == 0 => self.pause(Duration::from_millis(1))?,
                None => {}
            }
        }
        self.give_up_on(node, ticket);
        Ok(false)
    }

    /// Marks a node as silent: for a while other nodes are asked first.
    pub(super) fn mark_silent(&mut self, node: usize) {
        self.reaches[node].heard = None;
        self.reaches[node].silent = Some(Instant::now());
    }

    /// Returns the first node that has never answered: it may have an address that no other node has.
    pub(super) fn unheard(&self) -> Option<usize> {
        self.reaches.iter().position(|reach| reach.cluster == 0)
    }
}
