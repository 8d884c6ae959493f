// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health of a server, as it answers a ping.
//!
//! - **Layout** the answer, 16 bytes: 0 state u32 (1 ready, 2 not ready, 3 draining) · 4 sessions u32 · 8 handlers at work u32 · 12 requests
//!   that wait for one u32

use crate::error::Error;

/// Name of the operation that answers with the server's health.
pub const PING: &str = "memlift.ping";
/// Bytes of its answer.
const BYTES: usize = 16;

/// Readiness of a server for calls, as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum HealthState {
    /// It takes calls.
    Ready = 1,
    /// It runs, and asks for no calls yet.
    NotReady = 2,
    /// It ends, and begins no more calls.
    Draining = 3,
}

impl HealthState {
    /// Its name in Python and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            HealthState::Ready => "ready",
            HealthState::NotReady => "not ready",
            HealthState::Draining => "draining",
        }
    }
}

/// Health of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Readiness for calls.
    pub state: HealthState,
    /// Sessions that are open.
    pub sessions: u32,
    /// Handlers at work.
    pub busy_handlers: u32,
    /// Requests that wait for a handler.
    pub queued: u32,
}

impl Health {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.state as u32, self.sessions, self.busy_handlers, self.queued];
        for (target, word) in bytes.chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the answer to a [`PING`].
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if it is none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Health, Error> {
        Health::read(bytes)
            .ok_or_else(|| Error::peer_fault("an answer to a ping that says nothing about health"))
    }

    fn read(bytes: &[u8]) -> Option<Health> {
        let words: [u8; BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let states = [HealthState::Ready, HealthState::NotReady, HealthState::Draining];
        let state = states.into_iter().find(|&state| state as u32 == word(0))?;
        Some(Health { state, sessions: word(4), busy_handlers: word(8), queued: word(12) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_reads_back_and_nothing_else_does() {
        let health = Health { state: HealthState::Draining, sessions: 1, busy_handlers: 2, queued: u32::MAX };
        let bytes = health.to_bytes();
        assert_eq!(Health::read(&bytes), Some(health));
        assert_eq!(Health::read(&bytes[1..]), None);
        for state in [0, 4, u32::MAX] {
            let mut lie = bytes;
            lie[..4].copy_from_slice(&state.to_le_bytes());
            assert_eq!(Health::read(&lie), None);
        }
    }
}
