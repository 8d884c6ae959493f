// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each change exactly once: what is remembered of requests that change memory, until their client has heard.
//!
//! Flow     request ──[`Once::begin`]──▶ run it, or answer what is remembered ─▶ [`Once::decide`], [`Once::settle`]
//! Order    a client's requests before `settled` are forgotten and refused; at most [`WINDOW`] after it are remembered. Of two
//!          attempts that run at once the later one counts; what the earlier one comes to is dropped
//! Owner    the node's writer; a few hundred bytes per request that a client has not settled
//! Not here the log, which makes this outlive the process (`log`)

use std::collections::{BTreeMap, HashMap};

use crate::wire::{ApplyOperands, Header, Status};

/// Requests of one client that may be unsettled.
pub const WINDOW: u64 = 1024;

/// Which request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// Of whom.
    pub tenant: u32,
    /// Of which client.
    pub client: u64,
    /// Of which of its lives.
    pub incarnation: u32,
    /// Which.
    pub sequence: u64,
    /// Those before are settled.
    pub settled: u64,
}

impl Id {
    /// The request that a header names.
    #[must_use]
    pub fn of(header: &Header) -> Id {
        Id {
            tenant: header.tenant,
            client: header.client,
            incarnation: header.incarnation,
            sequence: header.sequence,
            settled: header.settled,
        }
    }
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The answer's.
    pub status: Status,
    /// The answer's.
    pub value: u64,
    /// The answer's.
    pub address: u64,
    /// The answer's.
    pub body: Vec<u8>,
}

/// What is known of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// It runs, in this attempt.
    Running(u32),
    /// What it changes is decided; whether that has happened, the address's owner knows.
    Decided(ApplyOperands, Vec<u8>),
    /// It is over.
    Settled(Outcome),
}

/// What to do with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Run it.
    Run,
    /// An attempt that is not older runs already.
    Drop,
    /// Go on with what was decided.
    Resume(ApplyOperands, Vec<u8>),
    /// Answer this.
    Answer(Outcome),
    /// It cannot be begun.
    Refuse(Status),
}

#[derive(Debug, Default)]
struct Client {
    incarnation: u32,
    settled: u64,
    known: BTreeMap<u64, Known>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Once {
    clients: HashMap<(u32, u64), Client>,
    most: usize,
}

impl Once {
    /// For as many clients.
    #[must_use]
    pub fn new(most: usize) -> Once {
        Once { clients: HashMap::new(), most }
    }

    fn client(&mut self, id: &Id) -> Result<&mut Client, Status> {
        if !self.clients.contains_key(&(id.tenant, id.client)) {
            if self.clients.len() >= self.most {
                // Clients that have settled everything could only send what is refused anyway, or something new.
                self.clients.retain(|_, client| !client.known.is_empty());
            }
            if self.clients.len() >= self.most {
                return Err(Status::Limit);
            }
        }
        let client = self.clients.entry((id.tenant, id.client)).or_default();
        if id.incarnation < client.incarnation {
            return Err(Status::Stale);
        }
        if id.incarnation > client.incarnation {
            *client = Client { incarnation: id.incarnation, ..Client::default() };
        }
        if id.settled > client.settled {
            client.settled = id.settled;
            client.known = client.known.split_off(&id.settled);
        }
        if id.sequence < client.settled {
            return Err(Status::Stale);
        }
        if id.sequence - client.settled >= WINDOW {
            return Err(Status::Limit);
        }
        Ok(client)
    }

    /// What to do with an attempt at a request.
    pub fn begin(&mut self, id: &Id, attempt: u32) -> Begin {
        let client = match self.client(id) {
            Ok(client) => client,
            Err(status) => return Begin::Refuse(status),
        };
        match client.known.get_mut(&id.sequence) {
            None => {
                client.known.insert(id.sequence, Known::Running(attempt));
                Begin::Run
            }
            Some(Known::Running(running)) if attempt > *running => {
                *running = attempt;
                Begin::Run
            }
            Some(Known::Running(_)) => Begin::Drop,
            Some(Known::Decided(operands, body)) => Begin::Resume(*operands, body.clone()),
            Some(Known::Settled(outcome)) => Begin::Answer(outcome.clone()),
        }
    }

    /// Whether this attempt is the one that counts, and still runs.
    #[must_use]
    pub fn runs(&self, id: &Id, attempt: u32) -> bool {
        self.clients.get(&(id.tenant, id.client)).is_some_and(|client| {
            client.incarnation == id.incarnation
                && client.known.get(&id.sequence) == Some(&Known::Running(attempt))
        })
    }

    /// What is known.
    #[must_use]
    pub fn known(&self, id: &Id) -> Option<&Known> {
        let client = self.clients.get(&(id.tenant, id.client))?;
        (client.incarnation == id.incarnation).then(|| client.known.get(&id.sequence)).flatten()
    }

    /// A request that was begun and came to nothing that has to be remembered: another attempt may begin.
    pub fn forget(&mut self, id: &Id, attempt: u32) {
        if self.runs(id, attempt)
            && let Some(client) = self.clients.get_mut(&(id.tenant, id.client))
        {
            client.known.remove(&id.sequence);
        }
    }

    /// Remembers something, also of a request that was not begun here; false: it is stale, or there is no room.
    pub fn note(&mut self, id: &Id, known: Known) -> bool {
        self.client(id).is_ok_and(|client| {
            client.known.insert(id.sequence, known);
            true
        })
    }

    /// Requests of a client before `settled` are over; false: there is no room for the client.
    pub fn settled(&mut self, id: &Id) -> bool {
        // Stale: more is known already.
        !matches!(self.client(id), Err(Status::Limit))
    }

    /// What is remembered of requests that are over, or decided here, in order.
    pub fn all(&self) -> Vec<(Id, Known)> {
        let mut all = Vec::new();
        for (&(tenant, client), of) in &self.clients {
            let Client { incarnation, settled, .. } = *of;
            all.extend(of.known.iter().filter(|(_, known)| !matches!(known, Known::Running(_))).map(
                |(&sequence, known)| (Id { tenant, client, incarnation, sequence, settled }, known.clone()),
            ));
        }
        all.sort_unstable_by_key(|(id, _)| (id.tenant, id.client, id.sequence));
        all
    }

    /// How far each client has settled its requests.
    pub fn watermarks(&self) -> Vec<Id> {
        let id = |(&(tenant, client), of): (&(u32, u64), &Client)| {
            let Client { incarnation, settled, .. } = *of;
            Id { tenant, client, incarnation, sequence: settled, settled }
        };
        let mut all: Vec<Id> = self.clients.iter().map(id).collect();
        all.sort_unstable_by_key(|id| (id.tenant, id.client));
        all
    }

    /// Clients, and requests remembered.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.clients.len(), self.clients.values().map(|client| client.known.len()).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64, settled: u64) -> Id {
        Id { tenant: 1, client: 2, incarnation: 3, sequence, settled }
    }

    fn outcome(value: u64) -> Outcome {
        Outcome { status: Status::Applied, value, address: 0, body: Vec::new() }
    }

    #[test]
    fn the_later_attempt_counts_and_its_outcome_stays() {
        let mut once = Once::new(2);
        assert_eq!(once.begin(&id(5, 1), 0), Begin::Run);
        assert_eq!(once.begin(&id(5, 1), 0), Begin::Drop);
        assert_eq!(once.begin(&id(5, 1), 2), Begin::Run);
        assert_eq!(once.begin(&id(5, 1), 1), Begin::Drop);
        assert!(!once.runs(&id(5, 1), 0) && once.runs(&id(5, 1), 2));
        assert!(once.note(&id(5, 1), Known::Settled(outcome(9))));
        assert_eq!(once.begin(&id(5, 1), 3), Begin::Answer(outcome(9)));
        assert_eq!(once.begin(&id(6, 6), 0), Begin::Run);
        assert_eq!(once.begin(&id(5, 1), 4), Begin::Refuse(Status::Stale), "settled is never taken back");
        assert_eq!(once.begin(&id(6 + WINDOW, 6), 0), Begin::Refuse(Status::Limit));
        assert_eq!(once.size(), (1, 1));
        let mut other = Once::new(2);
        assert!(once.watermarks().iter().all(|id| other.settled(id)));
        assert!(once.note(&id(6, 6), Known::Settled(outcome(3))));
        assert_eq!(once.all(), [(id(6, 6), Known::Settled(outcome(3)))]);
        assert!(once.all().into_iter().all(|(id, known)| other.note(&id, known)));
        assert_eq!(other.begin(&id(6, 6), 1), Begin::Answer(outcome(3)), "the other one knows as much");
        assert_eq!(other.begin(&id(5, 1), 9), Begin::Refuse(Status::Stale));
    }

    #[test]
    fn lives_and_clients_are_told_apart() {
        let mut once = Once::new(2);
        assert_eq!(once.begin(&id(5, 1), 0), Begin::Run);
        assert_eq!(once.begin(&Id { incarnation: 4, ..id(5, 1) }, 0), Begin::Run);
        assert_eq!(once.begin(&id(5, 1), 1), Begin::Refuse(Status::Stale), "an earlier life");
        assert_eq!(once.begin(&Id { tenant: 9, ..id(5, 1) }, 0), Begin::Run);
        assert_eq!(once.begin(&Id { client: 9, ..id(5, 1) }, 0), Begin::Refuse(Status::Limit));
        once.forget(&Id { tenant: 9, ..id(5, 1) }, 0);
        assert_eq!(
            once.begin(&Id { client: 9, ..id(5, 1) }, 0),
            Begin::Run,
            "room of one that has nothing open"
        );
    }
}
