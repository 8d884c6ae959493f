// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of each connection.
//!
//! - **Owner** the connection has its [`Session`]; what others may ask about it lies in [`Sessions`], for as long as it is open

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a name that a client may take.
const NAME_BYTES: usize = 1024;

/// A connection as it describes itself.
#[derive(Clone, Debug)]
pub struct Described {
    peer: Option<SocketAddr>,
    own: Option<SocketAddr>,
    since: Instant,
    /// Milliseconds from `since` to its last command.
    used_ms: Arc<AtomicU64>,
    pub name: Vec<u8>,
    pub library_name: Vec<u8>,
    pub library_version: Vec<u8>,
    pub resp3: bool,
}

impl Described {
    /// One line as CLIENT LIST has it.
    pub fn line(&self, id: u64) -> String {
        let address = |address: Option<SocketAddr>| address.map_or(String::new(), |one| one.to_string());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut line = String::new();
        let _ = write!(
            line,
            "id={id} addr={} laddr={} name={} age={} idle={} flags=N db=0 sub=0 psub=0 user=default resp={} lib-name={} lib-ver={}",
            address(self.peer),
            address(self.own),
            text(&self.name),
            self.since.elapsed().as_secs(),
            self.since
                .elapsed()
                .saturating_sub(Duration::from_millis(self.used_ms.load(Ordering::Relaxed)))
                .as_secs(),
            if self.resp3 { 3 } else { 2 },
            text(&self.library_name),
            text(&self.library_version),
        );
        line
    }
}

/// The open connections of a server.
#[derive(Debug, Default)]
pub struct Sessions {
    next: u64,
    open: BTreeMap<u64, Described>,
}

impl Sessions {
    /// Those that are open, the oldest first.
    pub fn open(&self) -> impl Iterator<Item = (u64, &Described)> {
        self.open.iter().map(|(id, described)| (*id, described))
    }
}

/// A command that waits for EXEC.
pub type Queued = Vec<Vec<u8>>;

/// Commands since MULTI.
#[derive(Debug, Default)]
pub struct Multi {
    pub commands: Vec<Queued>,
    pub bytes: usize,
    /// One of them was refused: EXEC does nothing.
    pub is_spoilt: bool,
}

/// An entry as it was at WATCH: None, or its expiry and two hashes of its value.
pub type Seen = Option<(u64, [u64; 2])>;

/// State of one connection.
#[derive(Debug)]
pub struct Session {
    pub id: u64,
    pub multi: Option<Multi>,
    pub watched: Vec<(Vec<u8>, Seen)>,
    since: Instant,
    used_ms: Arc<AtomicU64>,
    sessions: Arc<Mutex<Sessions>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        lock(&self.sessions).open.remove(&self.id);
    }
}

fn lock(sessions: &Mutex<Sessions>) -> MutexGuard<'_, Sessions> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Of a new connection between these addresses.
    pub fn new(
        sessions: &Arc<Mutex<Sessions>>,
        peer: Option<SocketAddr>,
        own: Option<SocketAddr>,
    ) -> Session {
        let mut all = lock(sessions);
        all.next += 1;
        let (id, since, used_ms) = (all.next, Instant::now(), Arc::<AtomicU64>::default());
        let described = Described {
            peer,
            own,
            since,
            used_ms: Arc::clone(&used_ms),
            name: Vec::new(),
            library_name: Vec::new(),
            library_version: Vec::new(),
            resp3: false,
        };
        all.open.insert(id, described);
        Session { id, multi: None, watched: Vec::new(), since, used_ms, sessions: Arc::clone(sessions) }
    }

    /// Notes that a command ran now. It locks nothing: other threads have connections, too.
    pub fn note_use(&self) {
        self.used_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Reads or changes what others may ask about it.
    pub fn described<R>(&self, work: impl FnOnce(&mut Described) -> R) -> R {
        let mut all = lock(&self.sessions);
        work(all.open.get_mut(&self.id).expect("open as long as the session lives"))
    }

    /// The open connections of its server.
    pub fn all(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }
}

/// A name without blanks and control characters, which would break lists of names.
pub fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}
