// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries out each change exactly once: the state of requests that change memory, kept until their client has received the
//! answer.
//!
//! - **Sessions** a client's requests belong to a session, whose number grows. A session is forgotten after it was idle for
//!   [`IDLE_LIMIT`], or when its client has ended it and room is needed. From then on all session numbers up to the greatest forgotten
//!   one are refused unless they are still known: so a request of a forgotten session never runs again, however late it comes.
//!   While a client's session is alive, another session with the same client number is refused: two processes have drawn, or were
//!   given, the same number
//!
//! - **Flow** request ──[`Once::begin`]──▶ run it, or answer from memory ─▶ [`Once::decide`], [`Once::settle`]
//! - **Order** a client's requests before `settled` are forgotten and refused; at most [`WINDOW`] after it are remembered. Of two
//!   attempts that run at the same time the later one counts; the result of the earlier one is dropped
//! - **Owner** the node's writer; a few hundred bytes per request that a client has not settled
//! - **Not here** the log, which keeps this state across restarts (`log`)

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::wire::{ApplyOperands, Header, Status};

/// Greatest number of unsettled requests of one client.
pub const WINDOW: u64 = 1024;

/// A session that was idle for this long is forgotten when other clients come.
pub const IDLE_LIMIT: Duration = Duration::from_secs(600);
/// The limit that replaces [`IDLE_LIMIT`] when there is no room left. Clients begin a new session before theirs was idle for so
/// long.
const IDLE_LIMIT_WHEN_FULL: Duration = Duration::from_secs(120);
/// After its session was idle for this long, a client number may be taken over by another process.
const NUMBER_REUSE_AFTER: Duration = Duration::from_secs(60);
/// Pause between two searches for sessions to forget.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);
/// Pause between two such searches while there is no room.
const FULL_SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// Identity of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// Tenant of the client that sent the request.
    pub tenant: u32,
    /// Number of its client.
    pub client: u64,
    /// Incarnation of the client; a greater one is a later start of the client.
    pub incarnation: u32,
    /// Number of the request among its client's.
    pub sequence: u64,
    /// Requests of the client with smaller numbers are settled.
    pub settled: u64,
    /// Number of the client's session.
    pub session: u64,
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
            session: header.session,
        }
    }
}

/// End of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Status of the answer.
    pub status: Status,
    /// Value in the answer.
    pub value: u64,
    /// Address in the answer.
    pub address: u64,
    /// Body of the answer.
    pub body: Vec<u8>,
}

/// State of a remembered request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// The request runs, in the attempt with this number.
    Running(u32),
    /// The change of the request is decided, by reads that began at this clock. Only the owner of the address knows whether
    /// the change was applied.
    Decided(ApplyOperands, Vec<u8>, u32),
    /// The request is over, with this outcome of reads that began at this clock.
    Settled(Outcome, u32),
}

/// Decision about an attempt of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Run this attempt now.
    Run,
    /// Drop this attempt: it is already running, or a later one is.
    Drop,
    /// Continue with the decided change: operands, body, clock.
    Resume(ApplyOperands, Vec<u8>, u32),
    /// Answer with this outcome of reads that began at this clock.
    Answer(Outcome, u32),
    /// Refuse the request with this status.
    Refuse(Status),
}

#[derive(Debug)]
struct Client {
    session: u64,
    incarnation: u32,
    settled: u64,
    /// True once the client has ended the session.
    ended: bool,
    heard: Instant,
    known: BTreeMap<u64, Known>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Once {
    clients: HashMap<(u32, u64), Client>,
    most: usize,
    /// For each tenant: sessions below this number were forgotten, except those in `clients`.
    bounds: BTreeMap<u32, u64>,
    next_sweep_at: Instant,
    /// Time of the next search for room. Until then, requests that find no room do not search.
    next_full_sweep_at: Instant,
}

/// Reason that a client's entry is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryUse {
    /// A packet that may begin a request.
    Request,
    /// A record of a log or of another node: it always gets room, if need be by forgetting another session.
    Record,
}

impl Once {
    /// Makes an empty memory of requests for `most` clients.
    #[must_use]
    pub fn new(most: usize) -> Once {
        Once {
            clients: HashMap::new(),
            most: most.max(1),
            bounds: BTreeMap::new(),
            next_sweep_at: Instant::now(),
            next_full_sweep_at: Instant::now(),
        }
    }

    fn forget_client(&mut self, tenant: u32, client: u64) {
        if let Some(gone) = self.clients.remove(&(tenant, client)) {
            self.bound(tenant, gone.session.saturating_add(1));
        }
    }

    /// Notes that a tenant's sessions below this number were forgotten.
    pub fn bound(&mut self, tenant: u32, bound: u64) {
        let entry = self.bounds.entry(tenant).or_default();
        *entry = bound.max(*entry);
    }

    /// Returns the number below which a tenant's sessions were forgotten.
    #[must_use]
    pub fn bound_of(&self, tenant: u32) -> u64 {
        self.bounds.get(&tenant).copied().unwrap_or(0)
    }

    /// Returns all tenants, each with the number below which its sessions were forgotten.
    #[must_use]
    pub fn bounds(&self) -> Vec<(u32, u64)> {
        self.bounds.iter().map(|(tenant, bound)| (*tenant, *bound)).collect()
    }

    /// Forgets sessions that are over; with `full` also ended ones, and those that were idle for `IDLE_LIMIT_WHEN_FULL`.
    fn sweep(&mut self, full: bool) {
        let quiet = if full { IDLE_LIMIT_WHEN_FULL } else { IDLE_LIMIT };
        let over = |client: &Client| (full && client.ended) || client.heard.elapsed() >= quiet;
        let gone: Vec<(u32, u64)> =
            self.clients.iter().filter(|(_, client)| over(client)).map(|(&key, _)| key).collect();
        gone.into_iter().for_each(|(tenant, client)| self.forget_client(tenant, client));
    }

    /// Makes room for one more client; returns false if there is none.
    fn make_room(&mut self, wanted: EntryUse) -> bool {
        let now = Instant::now();
        if now >= self.next_sweep_at {
            self.next_sweep_at = now + SWEEP_PAUSE;
            self.sweep(false);
        }
        if self.clients.len() >= self.most && now >= self.next_full_sweep_at {
            self.sweep(true);
            self.next_full_sweep_at = now + FULL_SWEEP_PAUSE;
        }
        if self.clients.len() >= self.most && wanted == EntryUse::Record {
            let longest = self.clients.iter().min_by_key(|(_, client)| client.heard).map(|(&key, _)| key);
            longest.into_iter().for_each(|(tenant, client)| self.forget_client(tenant, client));
        }
        self.clients.len() < self.most
    }

    fn client(&mut self, id: &Id, wanted: EntryUse) -> Result<&mut Client, Status> {
        let key = (id.tenant, id.client);
        let known =
            self.clients.get(&key).map(|known| (known.incarnation, known.session, known.ended, known.heard));
        let fresh = match known {
            Some((incarnation, _, _, _)) if id.incarnation < incarnation => return Err(Status::Stale),
            Some((incarnation, _, _, _)) if id.incarnation > incarnation => true,
            Some((_, session, _, _)) if id.session == session => false,
            Some((_, session, ended, heard)) => {
                if wanted == EntryUse::Request && !ended && heard.elapsed() < NUMBER_REUSE_AFTER {
                    return Err(Status::Taken);
                }
                if id.session < session {
                    return Err(Status::Expired);
                }
                true
            }
            None => true,
        };
        if fresh {
            // Checked also when the session replaces a known one of its client: the replaced session's requests are refused
            // by its lower number.
            if wanted == EntryUse::Request && id.session < self.bound_of(id.tenant) {
                return Err(Status::Expired);
            }
            self.forget_client_for(&key, id);
            if !self.make_room(wanted) {
                return Err(Status::Limit);
            }
        }
        let client = self.clients.entry(key).or_insert_with(|| Client {
            session: id.session,
            incarnation: id.incarnation,
            settled: 0,
            ended: false,
            heard: Instant::now(),
            known: BTreeMap::new(),
        });
        client.heard = Instant::now();
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

    /// Forgets an earlier session of the same client. Its number or its incarnation is below the new one's, which tells its
    /// packets apart while the new session lives; afterwards the bound covers both.
    fn forget_client_for(&mut self, key: &(u32, u64), id: &Id) {
        if let Some(gone) = self.clients.remove(key)
            && gone.session > id.session
        {
            self.bound(key.0, gone.session.saturating_add(1));
        }
    }

    /// Ends a client's session, and settles its requests below `id.settled`.
    pub fn end(&mut self, id: &Id) {
        if let Some(client) = self.clients.get_mut(&(id.tenant, id.client))
            && (client.incarnation, client.session) == (id.incarnation, id.session)
        {
            client.ended = true;
            self.next_full_sweep_at = Instant::now();
            client.settled = client.settled.max(id.settled);
            client.known = client.known.split_off(&id.settled);
        }
    }

    /// Decides about an attempt of a request, and notes that it runs.
    pub fn begin(&mut self, id: &Id, attempt: u32) -> Begin {
        let client = match self.client(id, EntryUse::Request) {
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
            Some(Known::Decided(operands, body, since)) => Begin::Resume(*operands, body.clone(), *since),
            Some(Known::Settled(outcome, since)) => Begin::Answer(outcome.clone(), *since),
        }
    }

    /// Returns true if this attempt is the one that counts, and is still running.
    #[must_use]
    pub fn is_current_attempt(&self, id: &Id, attempt: u32) -> bool {
        self.clients.get(&(id.tenant, id.client)).is_some_and(|client| {
            (client.incarnation, client.session) == (id.incarnation, id.session)
                && client.known.get(&id.sequence) == Some(&Known::Running(attempt))
        })
    }

    /// Returns the remembered state of a request.
    #[must_use]
    pub fn known(&self, id: &Id) -> Option<&Known> {
        let client = self.clients.get(&(id.tenant, id.client))?;
        let same = (client.incarnation, client.session) == (id.incarnation, id.session);
        same.then(|| client.known.get(&id.sequence)).flatten()
    }

    /// Forgets an attempt whose result need not be remembered: another attempt may begin.
    pub fn forget(&mut self, id: &Id, attempt: u32) {
        if self.is_current_attempt(id, attempt)
            && let Some(client) = self.clients.get_mut(&(id.tenant, id.client))
        {
            client.known.remove(&id.sequence);
        }
    }

    /// Remembers the state of a request, also of one that was not begun here. Returns false if it is stale, or there is no
    /// room.
    pub fn note(&mut self, id: &Id, known: Known) -> bool {
        self.client(id, EntryUse::Record).is_ok_and(|client| {
            client.known.insert(id.sequence, known);
            true
        })
    }

    /// Notes that a client's requests below `id.settled` are over.
    pub fn settled(&mut self, id: &Id) {
        // An error means that the request is stale: a later watermark is known already.
        let _ = self.client(id, EntryUse::Record);
    }

    /// Returns the requests that are over, or decided here, in order.
    pub fn all(&self) -> Vec<(Id, Known)> {
        let mut all = Vec::new();
        for (&(tenant, client), of) in &self.clients {
            let Client { session, incarnation, settled, .. } = *of;
            all.extend(of.known.iter().filter(|(_, known)| !matches!(known, Known::Running(_))).map(
                |(&sequence, known)| {
                    (Id { tenant, client, incarnation, sequence, settled, session }, known.clone())
                },
            ));
        }
        all.sort_unstable_by_key(|(id, _)| (id.tenant, id.client, id.sequence));
        all
    }

    /// Returns the number up to which each client has settled its requests.
    pub fn watermarks(&self) -> Vec<Id> {
        let id = |(&(tenant, client), of): (&(u32, u64), &Client)| {
            let Client { session, incarnation, settled, .. } = *of;
            Id { tenant, client, incarnation, sequence: settled, settled, session }
        };
        let mut all: Vec<Id> = self.clients.iter().map(id).collect();
        all.sort_unstable_by_key(|id| (id.tenant, id.client));
        all
    }

    /// Returns the number of clients, and of remembered requests.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.clients.len(), self.clients.values().map(|client| client.known.len()).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64, settled: u64) -> Id {
        Id { tenant: 1, client: 2, incarnation: 3, sequence, settled, session: 7 }
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
        assert!(!once.is_current_attempt(&id(5, 1), 0) && once.is_current_attempt(&id(5, 1), 2));
        assert!(once.note(&id(5, 1), Known::Settled(outcome(9), 3)));
        assert_eq!(once.begin(&id(5, 1), 3), Begin::Answer(outcome(9), 3));
        assert_eq!(once.begin(&id(6, 6), 0), Begin::Run);
        assert_eq!(once.begin(&id(5, 1), 4), Begin::Refuse(Status::Stale), "settled is never taken back");
        assert_eq!(once.begin(&id(6 + WINDOW, 6), 0), Begin::Refuse(Status::Limit));
        assert_eq!(once.size(), (1, 1));
        let mut other = Once::new(2);
        once.watermarks().iter().for_each(|id| other.settled(id));
        assert!(once.note(&id(6, 6), Known::Settled(outcome(3), 3)));
        assert_eq!(once.all(), [(id(6, 6), Known::Settled(outcome(3), 3))]);
        assert!(once.all().into_iter().all(|(id, known)| other.note(&id, known)));
        assert_eq!(other.begin(&id(6, 6), 1), Begin::Answer(outcome(3), 3), "the other one knows as much");
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
        once.end(&Id { tenant: 9, ..id(6, 6) });
        assert_eq!(once.begin(&Id { client: 9, ..id(5, 1) }, 0), Begin::Run, "room of one that has gone");
        assert_eq!(once.begin(&Id { tenant: 9, ..id(5, 1) }, 1), Begin::Refuse(Status::Expired), "forgotten");
    }

    #[test]
    fn clients_that_come_and_go_leave_room_and_none_runs_twice() {
        let mut once = Once::new(4);
        let of = |client: u64| Id {
            tenant: 1,
            client,
            incarnation: 1,
            sequence: 1,
            settled: 1,
            session: 100 + client,
        };
        for client in 1..200 {
            assert_eq!(once.begin(&of(client), 0), Begin::Run, "client {client}");
            assert!(once.note(&of(client), Known::Settled(outcome(client), 3)));
            assert_eq!(once.begin(&of(client), 1), Begin::Answer(outcome(client), 3));
            once.end(&Id { sequence: 2, settled: 2, ..of(client) });
            assert!(once.size().0 <= 4);
        }
        for client in 1..200 {
            let again = once.begin(&of(client), 2);
            assert!(
                matches!(again, Begin::Refuse(Status::Expired | Status::Stale)),
                "client {client}: {again:?}"
            );
        }
        // Requests that one node has forgotten must not begin at the next node that gets its ranges or its log.
        let mut other = Once::new(4);
        once.bounds().into_iter().for_each(|(tenant, bound)| other.bound(tenant, bound));
        once.watermarks().iter().for_each(|id| other.settled(id));
        for client in 1..200 {
            let again = other.begin(&of(client), 2);
            assert!(
                matches!(again, Begin::Refuse(Status::Expired | Status::Stale)),
                "client {client}: {again:?}"
            );
        }
        assert_eq!(
            once.begin(&Id { tenant: 2, ..of(1) }, 0),
            Begin::Run,
            "another tenant's sessions are its own"
        );
    }

    #[test]
    fn a_number_has_one_living_owner() {
        let mut once = Once::new(4);
        assert_eq!(once.begin(&id(5, 1), 0), Begin::Run);
        for session in [6, 8] {
            assert_eq!(
                once.begin(&Id { session, ..id(5, 1) }, 0),
                Begin::Refuse(Status::Taken),
                "session {session}"
            );
        }
        assert!(
            once.is_current_attempt(&id(5, 1), 0)
                && !once.is_current_attempt(&Id { session: 8, ..id(5, 1) }, 0)
        );
        once.end(&Id { session: 8, ..id(9, 9) });
        assert_eq!(once.begin(&id(5, 1), 0), Begin::Drop, "only its owner ends a session");
        once.end(&id(6, 6));
        assert_eq!(once.begin(&Id { session: 8, ..id(1, 1) }, 0), Begin::Run, "it is free again");
        assert_eq!(once.begin(&id(6, 6), 0), Begin::Refuse(Status::Taken));
    }
}
